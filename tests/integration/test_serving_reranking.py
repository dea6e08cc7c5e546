"""An app with a re-ranker: its answers are those of `Retriever` with the same one, whatever callers share a batch; where it is gone, 503."""

from __future__ import annotations

import json
import os
import signal
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
from embeddings import write_corpus
from inference_world import WORDS, make_reranker, score_error
from nodes import free_ports
from ray import serve
from search_versions import until

import raydense as rd
from raydense.data.store import PassageStore
from raydense.errors import InputError
from raydense.models.tiny import make_tiny_encoder
from raydense.retrieval.index import index
from raydense.retrieval.settings import IndexSettings
from raydense.serving.passage_scorer import PassageScorer
from raydense.serving.reranking import by_handle
from raydense.serving.running import running
from raydense.serving.settings import ServeSettings

pytestmark = pytest.mark.usefixtures("ray_cluster")

TEXTS = [" ".join(WORDS[(i * 7 + j * j) % len(WORDS)] for j in range(1 + i % 9)) for i in range(150)]
ASKED = TEXTS[20:32]
DEPTH = 4


@dataclass(frozen=True)
class World:
    """An index of words that is served with a re-ranker, and what a `Retriever` with it finds."""

    root: Path
    url: str
    wanted: dict[str, rd.Retriever]

    def post(self, body: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        try:
            with urllib.request.urlopen(
                urllib.request.Request(f"{self.url}/search", data=json.dumps(body).encode()), timeout=120
            ) as answer:
                return answer.status, json.loads(answer.read())
        except urllib.error.HTTPError as error:
            return error.code, json.loads(error.read())


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    root = tmp_path_factory.mktemp("reranked")
    write_corpus(root / "corpus", TEXTS)
    make_tiny_encoder(TEXTS, root / "encoder", seed=3)
    make_reranker(root / "reranker", root / "encoder", steep=True)
    index(IndexSettings(kind="bm25", corpus=str(root / "corpus"), output=str(root / "words")))
    asked = {"index": str(root / "words"), "corpus": str(root / "corpus"), "reranker": str(root / "reranker"), "rerank_depth": DEPTH}
    with (
        rd.Retriever.load(**asked) as retriever,
        running(ServeSettings(**asked, max_hits=200), "reranked", "/", "127.0.0.1", free_ports(1)[0]) as url,
    ):
        yield World(root, url, {"retriever": retriever})


def test_answers_are_those_of_a_retriever_whatever_callers_come_together(world: World) -> None:
    """With other k in the same batch: what is below the depth has the same scores."""
    bodies = [{"queries": ASKED[at : at + 2], "k": k, "texts": True} for at, k in zip(range(0, 12, 2), (2, 9, 3, 12, 4, 6), strict=True)]
    with ThreadPoolExecutor(6) as callers:
        found = list(callers.map(world.post, bodies * 2))
    scored = [hit["score"] for _, reply in found for hits in reply["results"] for hit in hits if hit["reranked"]]
    assert max(scored) - min(scored) > 5 * score_error(), "the scores tell passages apart"
    for body, (status, reply) in zip(bodies * 2, found, strict=True):
        assert status == 200, reply
        wanted = world.wanted["retriever"].search(body["queries"], k=max(body["k"], DEPTH))
        for hits, expected in zip(reply["results"], wanted, strict=True):
            scores = [hit["score"] for hit in hits]
            assert len(hits) == min(body["k"], len(expected))
            assert scores == sorted(scores, reverse=True)
            assert [hit["reranked"] for hit in hits] == [place < DEPTH for place in range(len(hits))]
            for hit in hits:
                same = next(one for one in expected if one.id == hit["id"])
                assert (hit["reranked"], hit["text"]) == (same.reranked, same.text)
                np.testing.assert_allclose(hit["score"], same.score, atol=score_error())
            others = [one.score for one in expected if one.id not in {hit["id"] for hit in hits}]
            assert max(others, default=-np.inf) <= min(scores, default=np.inf) + 2 * score_error()


def test_a_scorer_gives_each_pair_its_score_in_any_batch(world: World) -> None:
    scorer = PassageScorer(str(world.root / "reranker"), PassageStore(world.root / "corpus"))
    blocks = [(ASKED[:2], np.array([[3, 4, -1], [5, -1, -1]])), (ASKED[2:3], np.array([[7, 8]])), ([], np.zeros((0, 3), np.int64))]
    together = scorer.several(blocks)
    for (questions, rows), scores in zip(blocks, together, strict=True):
        assert scores.shape == rows.shape
        assert (np.isnan(scores) == (rows < 0)).all()
        for at, place in zip(*np.nonzero(rows >= 0), strict=True):
            alone = scorer([questions[at]], rows[at : at + 1, place : place + 1])
            np.testing.assert_allclose(scores[at, place], alone[0, 0], atol=score_error())


def test_pairs_of_several_parts_get_their_scores(world: World) -> None:
    questions, rows = TEXTS * 4, np.arange(4 * len(TEXTS) * 3).reshape(-1, 3) % len(TEXTS)
    scores = by_handle(serve.get_deployment_handle("Reranker", "reranked"), 1)(questions, rows, time.monotonic() + 120)
    wanted = PassageScorer(str(world.root / "reranker"), PassageStore(world.root / "corpus"))(questions, rows)
    np.testing.assert_allclose(scores, wanted, atol=score_error())


def test_the_pairs_of_a_request_are_bounded(world: World) -> None:
    status, reply = world.post({"queries": ["a"] * 51, "k": 1})
    line = "queries: 51 queries of which 4 passages each are re-ranked, and a request may ask for 200 passages; send several requests"
    assert (status, reply) == (422, {"error": line})


def test_a_re_ranker_that_does_not_answer_is_503_and_one_that_was_killed_is_replaced(world: World) -> None:
    asked = {"query": ASKED[0], "k": 2}
    (stopped,) = _processes()
    os.kill(stopped, signal.SIGSTOP)
    try:
        status, reply = world.post(asked)
    finally:
        os.kill(stopped, signal.SIGCONT)
    assert (status, reply["error"]) == (503, "the re-ranker does not answer (TimeoutError)")
    until(lambda: world.post(asked)[0] == 200, "it does not answer again")
    os.kill(stopped, signal.SIGKILL)
    seen = set()

    def replaced() -> bool:
        seen.add(world.post(asked)[0])
        return 200 in seen

    until(replaced, "no other process takes its place")
    assert seen <= {200, 503}
    assert stopped not in _processes()


def _processes() -> list[int]:
    """The process ids of the replicas of the re-ranker."""
    mine = psutil.Process().children(recursive=True)
    return [one.pid for one in mine if one.is_running() and one.name().startswith("ray::ServeRepl") and "Reranker" in one.cmdline()[0]]


def test_what_does_not_fit_is_refused_before_anything_starts(world: World) -> None:
    asked = {"index": str(world.root / "words"), "corpus": str(world.root / "corpus")}
    with (
        pytest.raises(InputError, match="without a head that scores"),
        running(ServeSettings(**asked, reranker=str(world.root / "encoder")), "refused", "/x", "127.0.0.1", free_ports(1)[0]),
    ):
        pass
    with pytest.raises(InputError, match="serving with a reranker needs corpus"):
        ServeSettings(index=asked["index"], reranker=str(world.root / "reranker"))
    with pytest.raises(InputError, match="serving without a reranker does not use reranker_replicas"):
        ServeSettings(**asked, reranker_replicas=2)
