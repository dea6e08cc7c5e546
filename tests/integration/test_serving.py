"""The served app, asked over HTTP at the loopback: its answers are those of a search, whatever becomes of its pool and its processes."""

from __future__ import annotations

import json
import os
import shutil
import signal
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
import ray
from embeddings import write_corpus, write_embeddings
from inference_world import WORDS
from nodes import free_ports
from ray import serve
from ray.serve.context import _get_global_client
from ray.serve.schema import ServeDeploySchema
from ray.util.placement_group import placement_group, remove_placement_group
from search_versions import until

from raydense.errors import InputError
from raydense.inference.query_encoder import query_encoder
from raydense.models.tiny import make_tiny_encoder
from raydense.retrieval.index import index
from raydense.retrieval.named import close_pool, pool_status, pools
from raydense.retrieval.pool import SearchPool
from raydense.retrieval.settings import IndexSettings
from raydense.serving.app import application
from raydense.serving.refusal import Unavailable
from raydense.serving.running import _run, running
from raydense.serving.searching import Searching, Source, sources
from raydense.serving.settings import ServeSettings
from raydense.storage import Artifact, fingerprint_of

pytestmark = pytest.mark.usefixtures("ray_cluster")

TEXTS = [" ".join(WORDS[(i * 7 + j * j) % len(WORDS)] for j in range(1 + i % 9)) + f" {i}" for i in range(200)]
K = 7
callers_fail_the_test = pytest.mark.filterwarnings("error::pytest.PytestUnhandledThreadExceptionWarning")


@dataclass(frozen=True)
class World:
    """What is served: two indexes of one model and one of another, the pool that switches between them, an index of words, and where."""

    root: Path
    indexes: list[Artifact]
    foreign: Artifact
    pool: SearchPool
    words: Artifact
    url: str
    config: dict[str, Any]

    def post(self, path: str, body: Any) -> tuple[int, dict[str, Any]]:
        """The status and the JSON of the answer to a request."""
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        return _response(urllib.request.Request(f"{self.url}{path}", data=data))

    def health(self, app: str) -> tuple[int, dict[str, Any]]:
        return _response(urllib.request.Request(f"{self.url}/{app}/health"))


def _response(request: urllib.request.Request) -> tuple[int, dict[str, Any]]:
    try:
        with urllib.request.urlopen(request, timeout=120) as answer:
            return answer.status, json.loads(answer.read())
    except urllib.error.HTTPError as error:
        with error:
            text = error.read().decode()
        return error.code, json.loads(text) if text.startswith("{") else {"error": text}


def _index(root: Path, name: str, model: str, texts: list[str]) -> Artifact:
    write_embeddings(root / f"{name}-vectors", query_encoder(str(root / model))(texts), model=fingerprint_of(root / model))
    return index(IndexSettings(kind="faiss", embeddings=str(root / f"{name}-vectors"), shards=2, output=str(root / name)))


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """Two apps: `dense` asks a pool that is there, `words` has one of its own and comes from a configuration file of Serve."""
    root, port = tmp_path_factory.mktemp("serving"), free_ports(1)[0]
    for seed, name in enumerate(("model", "other")):
        make_tiny_encoder(TEXTS, root / name, seed=seed)
    indexes = [_index(root, "first", "model", TEXTS), _index(root, "second", "model", TEXTS[::-1])]
    foreign = _index(root, "foreign", "other", TEXTS)
    write_corpus(root / "corpus", TEXTS, [f"title {i}" for i in range(len(TEXTS))])
    words = index(IndexSettings(kind="bm25", corpus=str(root / "corpus"), output=str(root / "words")))
    app = {
        "name": "words",
        "route_prefix": "/words",
        "import_path": "raydense.serving.app:build",
        "args": {"index": str(words.path), "corpus": str(root / "corpus"), "shard_replicas": 2},  # by a pool
        "deployments": [{"name": "Search", "max_ongoing_requests": 4, "max_queued_requests": 4, "autoscaling_config": {"max_replicas": 1}}],
    }
    http = {"host": "127.0.0.1", "port": port}
    config = {"http_options": http, "applications": [app]}
    with SearchPool.start(indexes[0], name="served") as pool:
        serve.start(http_options=http)
        _get_global_client().deploy_apps(ServeDeploySchema.model_validate(config))
        settings = ServeSettings(pool="served", model=str(root / "model"), replicas=2)
        serve.run(application(settings), name="dense", route_prefix="/dense")
        until(lambda: serve.status().applications["words"].status == "RUNNING", "the app of the configuration does not run")
        yield World(root, indexes, foreign, pool, words, f"http://127.0.0.1:{port}", config)
        serve.shutdown()
    for name in pools():
        close_pool(name)


class Truth:
    """What each index answers to each text, from a pool that does not switch."""

    def __init__(self, world: World) -> None:
        self.queries = query_encoder(str(world.root / "model"))(TEXTS)
        self.hits = {}
        for one in world.indexes:
            with SearchPool.start(one) as pool:
                self.hits[one.fingerprint] = pool.search(self.queries, 2 * K)

    def is_response(self, answer: dict[str, Any], asked: list[int], k: int) -> bool:
        """Whether an answer is that of the index that it names, and of it alone: ids, their order, and scores but for their last digits."""
        scores, rows = self.hits[answer["index"]]
        for i, found in zip(asked, answer["results"], strict=True):
            if [one["id"] for one in found] != [f"p{row}" for row in rows[i, :k]]:
                return False
            np.testing.assert_allclose([one["score"] for one in found], scores[i, :k], rtol=1e-5, atol=1e-5)
        return True


@pytest.fixture(scope="module")
def truth(world: World) -> Truth:
    return Truth(world)


def test_answers_are_those_of_a_search(world: World, truth: Truth) -> None:
    status, answer = world.post("/dense/search", {"queries": TEXTS[3:8], "k": K})
    assert status == 200
    assert answer.keys() == {"results", "index", "version"}
    version = pool_status("served")["version"]
    assert (answer["index"], answer["version"]) == (world.indexes[0].fingerprint, version)
    assert truth.is_response(answer, list(range(3, 8)), K)
    status, one = world.post("/dense/search", {"query": TEXTS[5], "k": K})
    assert status == 200
    assert truth.is_response(one, [5], K)
    assert world.health("dense") == (200, {"ready": True, "index": world.indexes[0].fingerprint, "version": version})


def test_texts_come_with_the_passages(world: World) -> None:
    """Of BM25, whose scores are the same to the last bit; a query that nothing answers has no passages."""
    status, answer = world.post("/words/search", {"queries": [TEXTS[30], "nothing-of-this"], "k": 3, "texts": True})
    assert status == 200
    with SearchPool.start(world.words) as pool:
        scores, rows = pool.search([TEXTS[30]], 3)
    passages = [
        {"id": f"p{row}", "score": float(s), "title": f"title {row}", "text": TEXTS[row]} for s, row in zip(scores[0], rows[0], strict=True)
    ]
    assert answer["results"] == [passages, []]


@callers_fail_the_test
def test_many_callers_at_once(world: World, truth: Truth) -> None:
    """Each gets its own answer, also where others ask for more passages, or more queries, in the same batch."""
    wrong: list[Any] = []

    def ask(caller: int) -> None:
        for round_ in range(4):
            at, k = caller * 4 + round_, K * (1 + caller % 2)
            asked = list(range(at, at + 1 + caller % 3))
            status, answer = world.post("/dense/search", {"queries": [TEXTS[i] for i in asked], "k": k})
            if status != 200 or not truth.is_response(answer, asked, k):
                wrong.append((asked, status, answer))

    callers = [threading.Thread(target=ask, args=(number,)) for number in range(16)]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join()
    assert not wrong


@pytest.mark.parametrize(
    ("body", "line"),
    [
        (b"what?", "body: no JSON (Expecting value: line 1 column 1 (char 0)); send "),
        (b"[]", "body: no JSON object; send "),
        (b"[" * 100_000, "body: JSON nested too deeply; send "),
        ({}, "give either queries or query: send "),
        ({"query": "a", "queries": ["b"]}, "give either queries or query: send "),
        ({"queries": ["a", 7]}, "queries.1: input should be a valid string (given: 7); it is: the queries"),
        ({"query": "a", "k": 0}, "k: input should be greater than or equal to 1 (given: 0); it is: passages of each query"),
        ({"query": "a", "kk": 3}, "kk: unknown key; did you mean 'k'?"),
        ({"query": "a", "texts": True}, "texts: this server has no corpus; leave it out, or start the server with --corpus"),
    ],
)
def test_bad_input_is_one_line(world: World, body: Any, line: str) -> None:
    status, answer = world.post("/dense/search", body)
    assert status == 422
    assert answer["error"].startswith(line)
    assert "\n" not in answer["error"]


@pytest.fixture
def swapped_back(world: World) -> Iterator[None]:
    yield
    if world.health("dense")[1].get("index") != world.indexes[0].fingerprint:
        world.pool.swap(world.indexes[0])


@callers_fail_the_test
@pytest.mark.usefixtures("swapped_back")
def test_a_pool_that_switches_its_index_while_it_serves(
    world: World, truth: Truth, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No request fails, and each answer is of one index; an index of another model's vectors is refused until there is a right one again."""
    old, new = world.indexes
    shutil.copytree(world.root / "model", tmp_path / "model")
    searching = Searching(Source(ServeSettings(pool="served", model=tmp_path / "model"), "served"), SearchPool.connect("served"))
    answered: list[str] = []
    wrong: list[Any] = []
    stop = threading.Event()

    def ask(caller: int) -> None:
        at = caller
        while not stop.is_set():
            at = (at + 7) % (len(TEXTS) - 3)
            status, answer = world.post("/dense/search", {"queries": TEXTS[at : at + 3], "k": K})
            if status != 200 or not truth.is_response(answer, [at, at + 1, at + 2], K):
                wrong.append((status, answer))
            else:
                answered.append(answer["index"])

    callers = [threading.Thread(target=ask, args=(number,)) for number in range(3)]
    for caller in callers:
        caller.start()
    until(lambda: old.fingerprint in answered or bool(wrong), "nobody asks before the swap")
    world.pool.swap(new)
    until(lambda: answered[-10:] == [new.fingerprint] * 10 or bool(wrong), "nobody asks after the swap")
    stop.set()
    for caller in callers:
        caller.join()
    assert not wrong
    (tmp_path / "model").rename(tmp_path / "away")  # as a mount may be when the index is checked
    for _ in range(2):
        with pytest.raises(Unavailable, match="no such"):
            searching.ask(truth.queries[:1], K)
        if not (tmp_path / "model").exists():
            (tmp_path / "away").rename(tmp_path / "model")
    assert searching.health()[0]["ready"] is False, "it is not looked for at each call"
    monkeypatch.setattr("raydense.serving.searching._FAULT_S", 0.0)
    assert searching.ask(truth.queries[:1], K)[0].index == new.fingerprint
    assert searching.health()[0]["ready"] is True
    world.pool.swap(world.foreign)
    for _ in range(2):
        status, answer = world.health("dense")
        assert (status, answer["ready"]) == (503, False)
        assert "is not the model of this index" in answer["why"]
        status, answer = world.post("/dense/search", {"query": TEXTS[0]})
        assert status == 503
        assert "is not the model of this index" in answer["error"]
    world.pool.swap(old)
    status, answer = world.post("/dense/search", {"query": TEXTS[0], "k": K})
    assert (status, answer["index"]) == (200, old.fingerprint)
    assert truth.is_response(answer, [0], K)


def _replicas() -> list[psutil.Process]:
    mine = psutil.Process().children(recursive=True)
    return [one for one in mine if one.is_running() and one.name().startswith("ray::ServeRepl") and "dense" in one.cmdline()[0]]


def test_a_process_that_is_killed(world: World, truth: Truth) -> None:
    """Its requests in progress fail (500); a second request is answered, and another process replaces it."""
    before = {one.pid for one in _replicas()}
    assert len(before) == 2
    os.kill(min(before), signal.SIGKILL)
    answers = 0

    def asked() -> bool:
        nonlocal answers
        status, answer = world.post("/dense/search", {"query": TEXTS[9], "k": K})
        assert status in (200, 500, 503), answer
        if status == 200:
            assert truth.is_response(answer, [9], K)
            answers += 1
        return answers >= 20 and len({one.pid for one in _replicas()} - {min(before)}) == 2

    until(asked, "the app does not go on as it was")


def test_more_than_can_wait_get_503(world: World) -> None:
    """503 at once beyond what the process and the proxy hold (about 4 and 4 here); the others are answered one after another."""
    status = pool_status(sources(ServeSettings(index=str(world.words.path), shard_replicas=2), "words")[0].name)
    statuses: list[int] = []
    callers: list[threading.Thread] = []

    def enough() -> bool:  # one caller after the other: Serve looks at how many wait before it counts one in, so all of a burst may get in
        callers.append(threading.Thread(target=lambda: statuses.append(world.post("/words/search", {"query": TEXTS[30]})[0])))
        callers[-1].start()
        return len(statuses) >= 4

    for actor in status["actors"]:
        os.kill(actor["pid"], signal.SIGSTOP)
    try:
        until(enough, "more wait than may")
        assert set(statuses) == {503}
    finally:
        for actor in status["actors"]:
            os.kill(actor["pid"], signal.SIGCONT)
        for caller in callers:
            caller.join()
    assert set(statuses) == {200, 503}
    assert len(statuses) == len(callers)


def test_a_pool_of_its_own_that_was_closed_is_started_again(world: World) -> None:
    settings = ServeSettings(index=str(world.words.path), shard_replicas=2)
    close_pool(sources(settings, "words")[0].name)
    status, answer = world.health("words")
    assert (status, answer["ready"]) == (503, False)
    status, answer = world.post("/words/search", {"query": TEXTS[30], "k": 3})
    assert (status, len(answer["results"][0])) == (200, 3)
    assert world.health("words")[0] == 200


def test_an_app_waits_for_what_others_have_and_says_so(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """And runs once it is free."""
    others = placement_group([{"CPU": 1}])  # the apps have the rest
    ray.get(others.ready())
    said: list[str] = []
    freed = threading.Timer(60, remove_placement_group, [others])  # also where the line is never said
    freed.start()

    def say(line: str) -> None:
        said.append(line)
        remove_placement_group(others)

    monkeypatch.setenv("RAY_ADDRESS", ray.get_runtime_context().gcs_address)
    monkeypatch.setattr("raydense.runtime.waiting.say", say)
    monkeypatch.setattr("raydense.runtime.waiting._WAITS_S", 0.5)
    monkeypatch.setattr("raydense.runtime.waiting._LOOK_S", 0.1)
    port = int(world.url.rpartition(":")[2])
    try:
        with running(ServeSettings(pool="served", model=world.root / "model"), "late", "/late", "127.0.0.1", port):
            assert world.post("/late/search", {"query": TEXTS[9], "k": K})[0] == 200
    finally:
        freed.cancel()
        remove_placement_group(others)
    assert said == ["serve: waits for CPUs, GPUs or memory in use by others, or for new nodes (see `ray status`)"]


def test_a_process_that_does_not_start_says_why_in_a_line(world: World) -> None:
    @serve.deployment(ray_actor_options={"num_cpus": 0})
    class Broken:
        def __init__(self) -> None:
            raise InputError("cannot be read", "ix/dense", "make it again")

    with pytest.raises(InputError) as refused:
        _run(Broken.bind(), "broken", "/broken")
    serve.delete("broken")
    assert str(refused.value) == "app 'broken': does not start: ix/dense: cannot be read; make it again"


def test_a_configuration_that_is_changed_while_it_is_asked(world: World) -> None:
    """Another index, which the new process holds itself: it is answered by the old one's pool until there is such a process, and no request fails between."""
    write_corpus(world.root / "corpus-2", TEXTS[::-1])
    new = index(IndexSettings(kind="bm25", corpus=str(world.root / "corpus-2"), output=str(world.root / "words-2")))
    app = world.config["applications"][0]
    args = {"index": str(new.path), "corpus": str(world.root / "corpus-2")}
    changed = {**world.config, "applications": [{**app, "args": args}]}
    if world.health("words")[1]["index"] != world.words.fingerprint:  # by this test, which runs once more
        _get_global_client().deploy_apps(ServeDeploySchema.model_validate(world.config))
        until(lambda: world.health("words")[1].get("index") == world.words.fingerprint, "the old index does not answer")
    ids = {world.words.fingerprint: "p30", new.fingerprint: f"p{len(TEXTS) - 1 - 30}"}
    _get_global_client().deploy_apps(ServeDeploySchema.model_validate(changed))
    answered: list[str] = []

    def asked() -> bool:
        status, answer = world.post("/words/search", {"query": TEXTS[30], "k": 1, "texts": True})
        assert status == 200, answer
        assert (answer["results"][0][0]["id"], answer["results"][0][0]["text"]) == (ids[answer["index"]], TEXTS[30])
        answered.append(answer["index"])
        return answered[-20:] == [new.fingerprint] * 20

    until(asked, "the new index does not answer")
    assert answered[0] == world.words.fingerprint
