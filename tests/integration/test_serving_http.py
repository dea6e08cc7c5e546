"""The routes of a served app and what they refuse, asked as callers ask: with `requests`, by raw sockets, with and without the token."""

from __future__ import annotations

import json
import re
import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from http.client import HTTPResponse
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np
import psutil
import pytest
import ray
import requests
from embeddings import write_corpus, write_embeddings
from inference_world import WORDS
from nodes import free_ports
from prometheus_client.parser import text_string_to_metric_families
from ray import serve

from raydense.inference.query_encoder import query_encoder
from raydense.models.tiny import make_tiny_encoder
from raydense.models.tokenizer import load_tokenizer
from raydense.retrieval.held import HeldIndex
from raydense.retrieval.index import index
from raydense.retrieval.named import pools
from raydense.retrieval.settings import IndexSettings
from raydense.serving.app import application
from raydense.serving.running import running
from raydense.serving.settings import ServeSettings
from raydense.storage import Artifact, fingerprint_of

pytestmark = pytest.mark.usefixtures("ray_cluster")

TEXTS = [" ".join(WORDS[(i * 7 + j * j) % len(WORDS)] for j in range(1 + i % 9)) + f" {i}" for i in range(120)]
TOKEN = "a-token-of-the-tests"
MIB = 2**20


@dataclass(frozen=True)
class World:
    """A served index with its corpus, the hits that it should give, and where."""

    root: Path
    index: Artifact
    url: str

    def hits(self, texts: list[str], k: int) -> tuple[Any, Any]:
        return HeldIndex(self.index).search(query_encoder(str(self.root / "model"))(texts), k)

    def post(self, path: str, body: Any) -> tuple[int, dict[str, Any]]:
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        answer = requests.post(f"{self.url}{path}", data=data, headers={"Authorization": f"Bearer {TOKEN}"}, timeout=120)
        return answer.status_code, answer.json()

    def get(self, path: str) -> requests.Response:
        return requests.get(f"{self.url}{path}", headers={"Authorization": f"Bearer {TOKEN}"}, timeout=120)

    def counted(self) -> dict[tuple[str, str], float]:
        """The requests by route and status."""
        families = text_string_to_metric_families(self.get("/metrics").text)
        samples = next(one.samples for one in families if one.name == "raydense_requests")
        return {(one.labels["route"], one.labels["status"]): one.value for one in samples if one.name.endswith("_total")}


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    root = tmp_path_factory.mktemp("http")
    make_tiny_encoder(TEXTS, root / "model", seed=1)
    corpus = write_corpus(root / "corpus", TEXTS, [f"title {i}" for i in range(len(TEXTS))])
    write_embeddings(
        root / "vectors", query_encoder(str(root / "model"))(TEXTS), model=fingerprint_of(root / "model"), corpus=corpus.fingerprint
    )
    held = index(IndexSettings(kind="faiss", embeddings=str(root / "vectors"), shards=2, output=str(root / "index")))
    settings = ServeSettings(
        index=str(held.path), model=str(root / "model"), corpus=str(root / "corpus"), max_queries=8, max_hits=1_000, log_queries=True
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAYDENSE_TOKEN", TOKEN)
        with running(settings, "http-routes", "/here", "127.0.0.1", free_ports(1)[0]) as url:
            yield World(root, held, url)


def test_the_page_is_at_the_address_itself(world: World) -> None:
    """Without a redirect to a `Host` of the caller's."""
    found = requests.get(world.url, headers={"Host": "elsewhere.example"}, allow_redirects=False, timeout=120)
    assert (found.status_code, found.headers["location"]) == (307, "/here/")
    assert "<form" in requests.get(world.url, timeout=120).text


def test_the_process_holds_the_index_and_answers_as_it(world: World) -> None:
    """Also where callers of one batch want other numbers of passages."""
    assert not pools(), "no pool is started for an index that the process holds"

    def ask(i: int) -> tuple[int, int, dict[str, Any]]:
        return i, *world.post("/search", {"queries": TEXTS[i : i + 2], "k": 3 + i % 5})

    with ThreadPoolExecutor(12) as callers:
        answers = list(callers.map(ask, range(48)))
    for i, status, answer in answers:
        assert status == 200
        assert (answer["index"], answer["version"]) == (world.index.fingerprint, 1)
        scores, rows = world.hits(TEXTS[i : i + 2], 3 + i % 5)
        assert [[hit["id"] for hit in hits] for hits in answer["results"]] == [[f"p{row}" for row in one] for one in rows]
        np.testing.assert_allclose([[hit["score"] for hit in hits] for hits in answer["results"]], scores, rtol=1e-5)


@pytest.mark.parametrize("scores", [True, False])
def test_as_the_client_of_search_r1_asks(world: World, scores: bool) -> None:
    """As `_batch_search` of its agents does: `requests.post(url, json=...).json()["result"]`, of which it reads title and text by line breaks."""
    payload = {"queries": TEXTS[5:8], "topk": 3, "return_scores": scores}
    headers = {"Authorization": f"Bearer {TOKEN}"}
    result = requests.post(f"{world.url}/retrieve", json=payload, headers=headers, timeout=120).json()["result"]
    expected, rows = world.hits(TEXTS[5:8], 3)
    for found, line, of in zip(result, rows, expected, strict=True):
        documents = [one["document"] for one in found] if scores else found
        assert [one["id"] for one in documents] == [f"p{row}" for row in line]
        for document, row in zip(documents, line, strict=True):
            title, *text = document["contents"].split("\n")
            assert (title, "\n".join(text)) == (f'"title {row}"', TEXTS[row])
        if scores:
            np.testing.assert_allclose([one["score"] for one in found], of, rtol=1e-5)
    without = requests.post(f"{world.url}/retrieve", json={"queries": TEXTS[:1]}, headers=headers, timeout=120).json()
    assert [len(one) for one in without["result"]] == [3]


def test_an_agent_of_search_r1_may_not_search(world: World) -> None:
    """Its client posts what the agents of a step searched for: nothing, or an empty search; it would end at a reply without `result`."""
    assert world.post("/retrieve", {"queries": []}) == (200, {"result": []})
    assert world.post("/retrieve", {"queries": ["", "\u3000"]}) == (200, {"result": [[], []]})
    status, reply = world.post("/retrieve", {"queries": ["", TEXTS[5], " "], "topk": 3})
    assert (status, [len(found) for found in reply["result"]]) == (200, [0, 3, 0])
    assert reply["result"][1] == world.post("/retrieve", {"queries": [TEXTS[5]], "topk": 3})[1]["result"][0]


def test_a_passage_by_its_id(world: World) -> None:
    assert world.get("/passages/p7").json() == {"id": "p7", "title": "title 7", "text": TEXTS[7]}
    for unknown in ("p7000", "p7/p8", "%00", "é"):
        answer = world.get(f"/passages/{unknown}")
        assert (answer.status_code, answer.json()) == (404, {"error": "no passage has this id"})


def test_the_log_has_the_route_and_nothing_that_a_caller_wrote(world: World) -> None:
    """Also without a token: a line break in a path would put a line of the caller's there."""
    forged = "2026-11-26 22:00:00,000 INFO forged-by-a-caller"
    for sent in ({}, {"Authorization": f"Bearer {TOKEN}"}):
        for path in (f"/passages/x%0A{quote(forged)}", f"/nothing%0A{quote(forged)}"):
            assert requests.get(f"{world.url}{path}", headers=sent, timeout=120).status_code in (401, 404)
    logs = [one.read_text() for one in Path(ray._private.worker.global_worker.node.get_logs_dir_path(), "serve").glob("*.log")]
    assert any("GET /passages 404" in one for one in logs)
    assert [one for one in logs if "forged-by-a-caller" in one] == []


def test_a_corpus_that_cannot_be_read_is_503_without_its_place(world: World, tmp_path: Path) -> None:
    """Replaced, or without a file: what was asked is valid, and is answered once the corpus is there again."""
    corpus = write_corpus(tmp_path / "corpus", TEXTS).path
    words = index(IndexSettings(kind="bm25", corpus=str(corpus), output=str(tmp_path / "words")))
    write_corpus(tmp_path / "other", TEXTS[::-1])
    settings = ServeSettings(index=str(words.path), corpus=str(corpus))
    url = world.url.replace("/here", "/unread")

    def asked(texts: bool = True) -> list[tuple[int, str]]:
        sent: Any = {"headers": {"Authorization": f"Bearer {TOKEN}"}, "timeout": 120}
        answers = [
            requests.get(f"{url}/passages/p7", **sent),
            requests.post(f"{url}/search", json={"query": TEXTS[7], "texts": texts}, **sent),
        ]
        return [(one.status_code, one.text) for one in answers]

    serve.run(application(settings), name="unread", route_prefix="/unread")
    try:
        corpus.rename(tmp_path / "kept")
        (tmp_path / "other").rename(corpus)
        replaced = asked()
        corpus.rename(tmp_path / "other")
        (tmp_path / "kept").rename(corpus)
        gone = []
        for name in ("id_hash.npy", "corpus-00000.arrow"):
            (corpus / name).rename(tmp_path / name)
            gone += asked(texts=name.endswith("arrow"))
            (tmp_path / name).rename(corpus / name)
        assert [status for status, _ in replaced] == [503, 503]
        assert [status for status, _ in gone] == [503, 200, 503, 503]
        assert [text for _, text in replaced + gone if str(tmp_path) in text] == []
        assert [status for status, _ in asked()] == [200, 200]
    finally:
        serve.delete("unread")


def test_long_queries_are_named(world: World) -> None:
    tokenizer = load_tokenizer(world.root / "model")
    longest = tokenizer.config.query_length
    words = [WORDS[0]] * (2 * longest)
    exact = next(n for n in range(longest, 0, -1) if not tokenizer.truncates([" ".join(words[:n])])[0])
    asked = [TEXTS[0], " ".join(words), " ".join(words[:exact]), " ".join(words[: exact + 1])]
    status, answer = world.post("/search", {"queries": asked, "k": 1})
    assert (status, answer["truncated"]) == (200, [1, 3])
    assert "truncated" not in world.post("/search", {"query": TEXTS[0], "k": 1})[1]


@pytest.mark.parametrize(
    ("path", "body", "status", "line"),
    [
        ("/search", b"what?", 422, "body: no JSON"),
        ("/search", b"\xff\xfe", 422, "body: no JSON"),
        ("/search", {"queries": TEXTS[:9]}, 422, "queries: 9 queries, and a request may have 8; send several requests"),
        ("/search", {"queries": TEXTS[:8], "k": 126}, 422, "k: 8 queries of 126 passages, and a request may ask for 1,000 passages"),
        ("/search", {"query": " \t"}, 422, "queries: a query is blank; write some words"),
        ("/search", {"queries": ["a", "\u3000"]}, 422, "queries: a query is blank"),
        ("/search", {"queries": []}, 422, "queries: needs 1 or more, not 0"),
        ("/search", {"query": "a", "k": "3"}, 422, "k: input should be a valid integer"),
        ("/search", {"query": "a" * 10_001}, 422, "query: string should have at most 10000 characters"),
        ("/retrieve", {"queries": "a"}, 422, "queries: input should be a valid list"),
        ("/retrieve", {"query": ["a"]}, 422, "query: unknown key; did you mean 'queries'?"),
        ("/search", b"[" * (MIB + 1), 413, "the body is larger than 1,048,576 bytes; send fewer queries at once"),
        ("/nothing", {}, 404, "not found"),
        ("/merged", b"", 404, "no such route"),
    ],
)
def test_what_is_refused_is_one_line(world: World, path: str, body: Any, status: int, line: str) -> None:
    found, answer = world.post(path, body)
    assert found == status, answer
    assert answer["error"].startswith(line), answer
    assert "\n" not in answer["error"]
    assert str(world.root) not in answer["error"]


def test_every_route_but_two_asks_for_the_token(world: World) -> None:
    for path in ("/passages/p1", "/metrics", "/docs", "/openapi.json"):
        assert world.get(path).status_code == 200
        for sent in ({}, {"Authorization": "Bearer wrong"}, {"Authorization": f"Basic {TOKEN}"}, {"Authorization": TOKEN}):
            answer = requests.get(f"{world.url}{path}", headers=sent, timeout=120)
            assert (answer.status_code, answer.headers["WWW-Authenticate"]) == (401, "Bearer"), (path, sent)
    for path in ("/search", "/retrieve"):
        answer = requests.post(f"{world.url}{path}", json={"queries": ["a"]}, timeout=120)
        assert answer.status_code == 401
        assert answer.json() == {"error": "this server asks for a token: send the header Authorization: Bearer TOKEN"}
    for path in ("/health", "/ready"):
        assert requests.get(f"{world.url}{path}", timeout=120).json() == {"ready": True, "index": world.index.fingerprint, "version": 1}


@pytest.mark.parametrize(("token", "status"), [("wrong", b"401"), (TOKEN, b"408")])
def test_who_sends_no_body_blocks_nobody(world: World, token: str, status: bytes) -> None:
    """600 connections with headers alone, where 512 requests may wait: without the token they are refused at once, with it after a while."""
    where = world.url.removeprefix("http://").partition("/")[0]
    head = f"POST /here/search HTTP/1.1\r\nHost: {where}\r\nAuthorization: Bearer {token}\r\nContent-Length: 30\r\n\r\n"
    with ExitStack() as open_:
        connections = [open_.enter_context(socket.create_connection(tuple(where.split(":")), timeout=120)) for _ in range(600)]
        for one in connections:
            one.sendall(head.encode())
        assert world.post("/search", {"query": "a", "k": 1})[0] == 200
        assert {one.recv(65_536)[:12] for one in connections} == {b"HTTP/1.1 " + status}
        assert world.post("/search", {"query": "a", "k": 1})[0] == 200


def test_the_description_loads_nothing_from_elsewhere(world: World) -> None:
    description = world.get("/openapi.json").json()
    assert description["openapi"].startswith("3.")
    assert description["servers"] == [{"url": "/here"}]
    assert set(description["paths"]) >= {"/search", "/retrieve", "/passages/{passage_id}", "/health", "/ready", "/metrics"}
    page = world.get("/docs").text
    assert not re.findall(r"<script|https?:|//|@import|url\(", page)
    for path in description["paths"]:
        assert path in page


def test_metrics_count_what_was_answered(world: World) -> None:
    before = world.counted()
    for _ in range(3):
        world.post("/search", {"query": "a", "k": 1})
    world.post("/search", b"what?")
    world.get("/passages/none-of-this")
    after = world.counted()
    gained = {key: value - before.get(key, 0) for key, value in after.items() if value != before.get(key, 0)}
    assert gained == {("/search", "200"): 3, ("/search", "422"): 1, ("/passages", "404"): 1, ("/metrics", "200"): 1}
    text = world.get("/metrics").text
    assert "raydense_request_seconds_bucket" in text
    assert "raydense_batch_requests_bucket" in text


def _serve_processes() -> list[psutil.Process]:
    mine = psutil.Process().children(recursive=True)
    return [one for one in mine if one.is_running() and one.name().startswith(("ray::ServeRep", "ray::ProxyAct"))]


def _highest(process: psutil.Process) -> int:
    """The most bytes that a process has had in memory since `clear_refs` was written."""
    return int(re.findall(r"VmHWM:\s+(\d+) kB", Path(f"/proc/{process.pid}/status").read_text())[0]) * 1024


def _send(world: World, head: str, piece: bytes, pieces: int) -> tuple[int, str]:
    """Send a body whatever the server says meanwhile; the status and error that it says first."""
    where = world.url.removeprefix("http://").partition("/")[0]
    host, port = where.split(":")
    with socket.create_connection((host, int(port)), timeout=120) as connection:
        connection.sendall(f"POST /here/search HTTP/1.1\r\nHost: {where}\r\n{head}\r\n\r\n".encode())
        for _ in range(pieces):
            connection.sendall(piece)
        with HTTPResponse(connection) as answer:
            answer.begin()
            return answer.status, json.loads(answer.read())["error"]


@pytest.mark.parametrize(
    ("head", "status", "line"),
    [
        (f"Content-Length: {400 * MIB}\r\nAuthorization: Bearer {TOKEN}", 413, "the body is larger than"),
        (f"Transfer-Encoding: chunked\r\nAuthorization: Bearer {TOKEN}", 413, "the body is larger than"),
        ("Transfer-Encoding: chunked", 401, "this server asks for a token"),
    ],
)
def test_a_large_body_is_never_in_memory(world: World, head: str, status: int, line: str) -> None:
    """400 MiB, by its length or in pieces: the proxy and the process of the app need less than 5 MiB for it."""
    assert _send(world, f"Content-Length: {2 * MIB}\r\nAuthorization: Bearer {TOKEN}", b"x" * MIB, 2)[0] == 413
    processes = _serve_processes()
    assert {one.name()[:13] for one in processes} == {"ray::ServeRep", "ray::ProxyAct"}
    for one in processes:
        Path(f"/proc/{one.pid}/clear_refs").write_text("5")
    before = {one: _highest(one) for one in processes}
    piece = f"{MIB:x}\r\n".encode() + b"x" * MIB + b"\r\n" if head.startswith("Transfer") else b"x" * MIB
    found, error = _send(world, head, piece, 400)
    assert (found, error[: len(line)]) == (status, line)
    grown = {one.name(): (_highest(one) - size) / MIB for one, size in before.items()}
    assert max(grown.values()) < 5, grown
    assert world.post("/search", {"query": "a", "k": 1})[0] == 200


def test_an_app_that_is_not_ours_is_passed_through(world: World) -> None:
    """Whatever it reads and answers: nothing of it is bounded or merged."""

    @serve.deployment
    class Length:
        async def __call__(self, request: Any) -> dict[str, int]:
            return {"bytes": len(await request.body())}

    serve.run(Length.bind(), name="length", route_prefix="/length")
    try:
        url = world.url.replace("/here", "/length")
        assert requests.post(url, data=b"x" * 3 * MIB, timeout=120).json() == {"bytes": 3 * MIB}
    finally:
        serve.delete("length")
