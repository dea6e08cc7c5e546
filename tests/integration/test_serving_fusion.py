"""An app of two indexes, BM25's and a retriever's: its answers are those of `fuse`, hit by hit and bit by bit."""

from __future__ import annotations

import json
import threading
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import ray
from embeddings import write_corpus, write_embeddings
from inference_world import WORDS
from nodes import free_ports
from ray.util.placement_group import placement_group, remove_placement_group
from search_versions import until

import raydense.retrieval.fusion_rule as rules
from raydense.data.tables import commit_table, read_table
from raydense.errors import InputError
from raydense.evaluation.fuse import fuse
from raydense.evaluation.settings import FuseSettings
from raydense.inference.query_encoder import query_encoder
from raydense.models.tiny import make_tiny_encoder
from raydense.retrieval.index import index
from raydense.retrieval.memory import plan_memory
from raydense.retrieval.named import close_pool, pools
from raydense.retrieval.pool import SearchPool
from raydense.retrieval.search import search
from raydense.retrieval.settings import IndexSettings, SearchSettings
from raydense.serving.answering import Answering
from raydense.serving.question import Question
from raydense.serving.refusal import Unavailable
from raydense.serving.retriever import Retriever
from raydense.serving.running import running
from raydense.serving.searching import connected, sources
from raydense.serving.searching_all import SearchingAll
from raydense.serving.settings import ServeSettings
from raydense.storage import Artifact, Draft, fingerprint_of

pytestmark = pytest.mark.usefixtures("ray_cluster")

TEXTS = [" ".join(WORDS[(i * 7 + j * j) % len(WORDS)] for j in range(1 + i % 9)) for i in range(300)]  # some are alike: equal scores
ASKED = TEXTS[:40]


@dataclass(frozen=True)
class World:
    """A corpus with an index of words and one of vectors, and its queries with their vectors."""

    root: Path
    words: Artifact
    dense: Artifact

    @property
    def served(self) -> dict[str, Any]:
        return {"index": [str(self.words.path), str(self.dense.path)], "model": str(self.root / "model")}

    def fused(self, name: str, k: int, depth: int, **rule: Any) -> Artifact:
        """What `fuse` makes of the first `depth` hits of both, as `search` finds them."""
        runs = []
        for kind, place, by in (("words", self.words, {}), ("dense", self.dense, {"vectors": str(self.root / "query-vectors")})):
            output = str(self.root / f"{kind}-{depth}")
            runs.append(
                str(search(SearchSettings(index=str(place.path), queries=str(self.root / "queries"), k=depth, output=output, **by)).path)
            )
        return fuse(FuseSettings(run=runs, k=k, output=str(self.root / name), **rule))


def _table(folder: Path, kind: str, **columns: Any) -> None:
    draft = Draft.open(folder, kind, {"test": kind})
    commit_table(draft, f"{kind}.parquet", pa.table(columns))
    draft.finish(len(next(iter(columns.values()))))


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    root = tmp_path_factory.mktemp("fusion")
    corpus = write_corpus(root / "corpus", TEXTS)
    make_tiny_encoder(TEXTS, root / "model", seed=0)
    _table(root / "queries", "queries", query_id=[f"q{i}" for i in range(len(ASKED))], text=ASKED)
    encode, of = query_encoder(str(root / "model")), {"model": fingerprint_of(root / "model")}
    write_embeddings(root / "vectors", encode(TEXTS), corpus=corpus.fingerprint, **of)
    write_embeddings(root / "query-vectors", encode(ASKED), queries=fingerprint_of(root / "queries"), **of)
    words = index(IndexSettings(kind="bm25", corpus=str(root / "corpus"), shards=2, output=str(root / "words")))
    dense = index(IndexSettings(kind="faiss", embeddings=str(root / "vectors"), shards=2, output=str(root / "dense")))
    yield World(root, words, dense)
    for name in pools():
        close_pool(name)


def hits_of(fused: Artifact) -> list[list[tuple[str, float]]]:
    found: dict[str, list[tuple[str, float]]] = {f"q{i}": [] for i in range(len(ASKED))}
    for row in read_table(fused.path, "run").to_pylist():
        found[row["query_id"]].append((row["passage_id"], row["score"]))
    return list(found.values())


def answered(answering: Answering, k: int) -> list[list[tuple[str, float]]]:
    (reply,) = answering.answer([Question(queries=ASKED, k=k)])
    if isinstance(reply, Unavailable):
        raise reply
    return [[(hit["id"], hit["score"]) for hit in hits] for hits in reply["results"]]


@pytest.mark.parametrize(("k", "depth"), [(7, 100), (150, 150)])
def test_without_a_fused_run_it_is_reciprocal_ranks(world: World, k: int, depth: int, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = hits_of(world.fused(f"reciprocal-{k}", k, depth))
    assert any(len({score for _, score in hits}) < len(hits) for hits in expected), "no equal scores, which passage ids order"
    with Answering(ServeSettings(**world.served), "plain") as answering:
        assert answered(answering, k) == expected
        monkeypatch.setattr(rules, "_AT_ONCE", 3 * 2 * depth)
        assert answered(answering, k) == expected, "with three queries in a block"


def test_what_callers_ask_together_is_searched_in_parts(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of no more hits than one request may have, whatever comes together."""
    sizes: list[int] = []
    ask = SearchingAll.ask

    def counted(self: SearchingAll, queries: list[Any], k: int) -> Any:
        sizes.append(len(queries[0]) * k)
        return ask(self, queries, k)

    questions = [Question(queries=ASKED[at : at + 3], k=k) for at, k in zip(range(0, 15, 3), (5, 9, 5, 9, 5), strict=True)]
    with Answering(ServeSettings(**world.served, max_hits=30), "parts", held=True) as answering:
        alone = [answering.answer([one])[0] for one in questions]
        monkeypatch.setattr(SearchingAll, "ask", counted)
        assert answering.answer(questions) == alone
    assert sizes == [30, 15, 27, 27]


def test_small_ks_are_searched_and_re_ranked_together(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a re-ranker every k up to its depth is searched for equally deep."""
    deep: list[int] = []
    ask = SearchingAll.ask

    def noted(self: SearchingAll, queries: list[Any], k: int) -> Any:
        deep.append(k)
        return ask(self, queries, k)

    def rerank(questions: list[str], rows: np.ndarray, end: float) -> np.ndarray:
        return (rows * 7 % 31 + np.array([[len(question)] for question in questions])).astype(np.float32)

    questions = [Question(queries=ASKED[at : at + 2], k=k) for at, k in zip(range(0, 12, 2), (3, 12, 10, 5, 1, 12), strict=True)]
    reranked = {"corpus": str(world.root / "corpus"), "reranker": str(world.root / "model"), "rerank_depth": 10}
    with Answering(ServeSettings(**world.served, **reranked), "together", True, rerank) as answering:
        alone = [answering.answer([one])[0] for one in questions]
        monkeypatch.setattr(SearchingAll, "ask", noted)
        assert answering.answer(questions) == alone
    assert deep == [10, 12]


def test_questions_that_are_re_ranked_in_time_are_answered(world: World) -> None:
    """Whatever becomes of those that come with them: one waits behind, or its part fails."""
    most, ends = [99], []

    def rerank(questions: list[str], rows: np.ndarray, end: float) -> np.ndarray:
        ends.append(end)
        if not most[0]:
            raise Unavailable("the re-ranker does not answer")
        scores = (rows * 7 % 31).astype(np.float32)
        scores[most[0] :, -1:] = np.nan
        return scores

    questions = [Question(queries=ASKED[at : at + 2], k=k) for at, k in zip(range(0, 8, 2), (5, 10, 3, 5), strict=True)]
    reranked = {"corpus": str(world.root / "corpus"), "reranker": str(world.root / "model"), "rerank_depth": 10}
    with Answering(ServeSettings(**world.served, **reranked, timeout=600), "late", True, rerank) as answering:
        wanted = answering.answer(questions)
        most[0] = 5
        first, second, *late = answering.answer(questions)
        deeper = Question(queries=ASKED[:2], k=12)
        most[0], ends[:] = 2, []
        both = answering.answer([deeper, *questions[:2]])
        most[0] = 0
        none = answering.answer(questions[:2])
    assert [first, second] == wanted[:2]
    assert [str(one) for one in late] == ["the re-ranker has not scored all passages; send fewer queries at once, or ask again later"] * 2
    assert [isinstance(one, Unavailable) for one in both] == [False, False, True]
    assert ends[0] == ends[1], "the parts of what is asked together share their time"
    assert [str(one) for one in none] == ["the re-ranker does not answer"] * 2


@pytest.mark.parametrize(("scale", "weights"), [(True, [0.6, 0.4]), (False, [1.0, 9.0])])
def test_weights_and_depth_are_those_of_the_fused_run(world: World, scale: bool, weights: list[float]) -> None:
    given = world.fused(f"scale-{scale}", 1_000, 20, method="sum", scale=scale, weights=weights)
    assert given.summary["runs"] == {"words-20": {"kind": "bm25", "depth": 20}, "dense-20": {"kind": "faiss", "depth": 20}}
    expected = hits_of(given)
    deeper = world.fused(f"scale-{scale}-30", 30, 30, weights_of=str(given.path))
    with Answering(ServeSettings(**world.served, fuse=str(given.path)), "weighted") as answering:
        assert answered(answering, 5) == [hits[:5] for hits in expected]
        assert answered(answering, 30) == hits_of(deeper)
    both = [hits_of(world.fused(f"scale-{scale}-{one}", 5, 20, method="sum", scale=scale, weights=one)) for one in ([1, 0], [0, 1])]
    assert all([hits[:5] for hits in expected] != alone for alone in both), "one of the two decides alone"


def test_runs_go_to_the_indexes_and_pools_of_their_names(world: World) -> None:
    """In whatever order the indexes are given: weights, depths and kinds are those of the run of the same name."""
    given = {name: str(world.root / f"{name}-{depth}") for name, depth in (("words", 20), ("dense", 30))}
    for depth in (20, 30):
        world.fused(f"to-make-{depth}", 10, depth)
    runs = [f"{name}={folder}" for name, folder in given.items()]
    fused = fuse(FuseSettings(run=runs, method="sum", weights=[0.8, 0.2], k=1_000, output=str(world.root / "by-name")))
    expected = [hits[:5] for hits in hits_of(fused)]
    rest = {"model": str(world.root / "model"), "fuse": str(fused.path)}
    indexes = [f"dense={world.dense.path}", f"words={world.words.path}"]
    with Answering(ServeSettings(index=indexes, **rest), "by-name") as answering:
        assert answered(answering, 5) == expected
    of_pools = ServeSettings(pool=["dense", "words"], **rest)
    with (
        SearchPool.start(world.words, name="words"),
        SearchPool.start(world.dense, name="dense"),
        Answering(of_pools, "pools") as answering,
    ):
        assert answered(answering, 5) == expected


def test_an_app_that_is_closed_starts_no_pool_again(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("raydense.serving.answering._AWAKE_S", 0.1)
    settings = ServeSettings(**world.served)
    own = {source.name for source in sources(settings, "closed")}
    with Answering(settings, "closed"):
        close_pool(min(own))
        until(lambda: own <= set(pools()), "a pool that is gone is not started again by what keeps it awake")
    for name in own:
        close_pool(name)
    waking = [thread.name for thread in threading.enumerate() if "_keep_awake" in thread.name]
    assert not waking
    assert not own & set(pools())


@pytest.mark.parametrize("copies", [1, 2])
def test_over_http(world: World, copies: int) -> None:
    """By the process itself; and by pools, which end with the app."""
    port = free_ports(1)[0]
    settings = ServeSettings(**world.served, corpus=str(world.root / "corpus"), shard_replicas=copies)
    own = {source.name for source in sources(settings, "http")}
    with running(settings, "http", "/", "127.0.0.1", port) as url:
        body = json.dumps({"queries": ASKED[:3], "k": 5, "texts": True}).encode()
        with urllib.request.urlopen(urllib.request.Request(f"{url}/search", data=body), timeout=120) as answer:
            reply = json.loads(answer.read())
        with urllib.request.urlopen(f"{url}/health", timeout=120) as answer:
            health = json.loads(answer.read())
        assert own & set(pools()) == (own if copies == 2 else set())
    assert not own & set(pools())
    at = {"index": [world.words.fingerprint, world.dense.fingerprint], "version": [1, 1]}
    assert health == {"ready": True, **at}
    assert {key: reply[key] for key in at} == at
    for hits, expected in zip(reply["results"], hits_of(world.fused("http", 5, 100))[:3], strict=True):
        assert [hit["id"] for hit in hits] == [passage for passage, _ in expected]
        np.testing.assert_allclose([hit["score"] for hit in hits], [score for _, score in expected], rtol=1e-6)
        assert [hit["text"] for hit in hits] == [TEXTS[int(hit["id"][1:])] for hit in hits]


def _free() -> int:
    return int(ray.available_resources().get("memory", 0))


def test_both_indexes_reserve_their_memory(world: World) -> None:
    """Where there is room for one alone, the app is refused, and the pool that was started for it is ended."""
    each = [plan_memory(one, 1).total for one in (world.words, world.dense)]
    for name in pools():
        close_pool(name)
    before = int(ray.cluster_resources()["memory"])
    until(lambda: _free() == before, "actors of other tests keep their memory")
    own = sources(ServeSettings(**world.served), "memory")
    pools_of_both = connected(own)
    until(lambda: _free() == before - sum(each), "the actors do not reserve the memory of both")
    for pool in pools_of_both:
        pool.close()
    until(lambda: _free() == before, "the memory is not free again")
    others = placement_group([{"memory": before - sum(each) + 1}])
    ray.get(others.ready())
    try:
        with pytest.raises(InputError, match="of which others have reserved"):
            connected(own)
        assert not {source.name for source in own} & set(pools())
    finally:
        remove_placement_group(others)


def test_a_pool_that_switches_to_another_corpus(world: World) -> None:
    """No passage of one corpus is taken for that of another: there is no answer until the pools are of one corpus again."""
    write_corpus(world.root / "turned-corpus", TEXTS[::-1])
    turned = index(IndexSettings(kind="bm25", corpus=str(world.root / "turned-corpus"), output=str(world.root / "turned")))
    settings, (words, dense) = ServeSettings(pool=["words", "dense"], model=str(world.root / "model")), (world.words, world.dense)
    with SearchPool.start(words, name="words") as pool, SearchPool.start(dense, name="dense"), Answering(settings, "named") as answering:
        before = answered(answering, 5)
        assert before == hits_of(world.fused("named", 5, 100))
        pool.swap(turned)
        with pytest.raises(Unavailable, match="the pools answer from indexes of different corpora"):
            answered(answering, 5)
        health = answering.health()
        assert (health["ready"], health["version"]) == (False, [2, 1])
        pool.swap(world.words)
        assert answered(answering, 5) == before
        assert answering.health()["ready"]


def test_after_a_switch_to_a_new_corpus_there_are_ids_and_no_texts(world: World) -> None:
    """docs/guides/pools.md: texts need a server that is started with the new corpus."""
    write_corpus(world.root / "new-corpus", TEXTS[::-1])
    renewed = index(IndexSettings(kind="bm25", corpus=str(world.root / "new-corpus"), output=str(world.root / "renewed")))
    question = {"queries": ASKED[:1], "k": 5}
    settings = ServeSettings(pool=["single"], corpus=str(world.root / "corpus"))
    with SearchPool.start(world.words, name="single") as pool, Answering(settings, "single") as answering:
        (before,) = answering.answer([Question(**question, texts=True)])
        assert isinstance(before, dict)
        pool.swap(renewed)
        refused, reply = answering.answer([Question(**question, texts=True), Question(**question)])
        assert isinstance(refused, Unavailable)
        assert "the index was made of another corpus" in str(refused)
        assert isinstance(reply, dict)
        assert reply["index"] == renewed.fingerprint
        assert answering.health()["ready"]


def test_an_update_that_does_not_fit_leaves_the_running_app(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is wrong with pools is found before Serve hears of it: the app of that name answers on."""
    monkeypatch.setenv("RAY_ADDRESS", ray.get_runtime_context().gcs_address)
    where = ("updated", "/", "127.0.0.1", free_ports(1)[0])
    model, fused = {"model": str(world.root / "model")}, str(world.fused("for-updates", 10, 20).path)
    make_tiny_encoder(TEXTS, world.root / "other-model", seed=1)
    write_corpus(world.root / "apart-corpus", TEXTS[::-1])
    apart = index(IndexSettings(kind="bm25", corpus=str(world.root / "apart-corpus"), output=str(world.root / "apart")))
    with (
        SearchPool.start(world.words, name="words"),
        SearchPool.start(world.dense, name="dense"),
        SearchPool.start(apart, name="apart"),
        running(ServeSettings(pool=["words", "dense"], **model), *where) as url,
    ):
        for asked, words in (
            ({"pool": ["apart", "dense"], **model}, "the indexes are of different corpora"),
            ({"pool": ["dense", "words"], **model, "fuse": fused}, "is of kind bm25, and index 1 of kind faiss"),
            ({"pool": ["words", "dense", "words"], **model, "fuse": fused}, "two of index or pool have the same name"),
            ({"pool": ["words", "dense"], **model, "fuse": str(world.root / "words-20")}, "is no fused run"),
            ({"pool": ["words", "dense"], "model": str(world.root / "other-model")}, "is not the model of this index"),
            ({"pool": ["words", "dense"]}, "model: missing"),
            ({"pool": ["words"], **model}, "a BM25 index needs no model"),
            ({"pool": ["words"], "corpus": str(world.root / "apart-corpus")}, "the index was made of another corpus"),
        ):
            with pytest.raises(InputError, match=words), running(ServeSettings(**asked), *where):
                pass
        with urllib.request.urlopen(urllib.request.Request(f"{url}/search", data=b'{"query": "a"}'), timeout=120) as answer:
            assert answer.status == 200


def test_what_does_not_fit_is_refused(world: World) -> None:
    turned = world.served["index"][::-1]
    fused = str(world.fused("for-refusals", 10, 20).path)
    twice = str(fuse(FuseSettings(run=[fused, str(world.root / "dense-20")], output=str(world.root / "twice"))).path)
    write_corpus(world.root / "other-corpus", TEXTS[::-1])
    other = index(IndexSettings(kind="bm25", corpus=str(world.root / "other-corpus"), output=str(world.root / "other")))
    again = index(IndexSettings(kind="bm25", corpus=str(world.root / "corpus"), shards=1, output=str(world.root / "again")))
    for asked, words in (
        (
            {**world.served, "index": turned, "fuse": fused},
            "its run 'words-20' is of kind bm25, and index 1 of kind faiss; give the indexes in the order",
        ),
        ({**world.served, "index": [*turned, f"third={turned[0]}"], "fuse": fused}, "fuses 2 runs, not 3"),
        ({**world.served, "fuse": str(world.root / "words-20")}, "is no fused run"),
        ({**world.served, "fuse": twice}, "its run 'for-refusals' was made by fused"),
        ({"index": [world.served["index"][0], str(again.path)], "search_params": "nprobe=3"}, "BM25 has no search parameters"),
        ({**world.served, "index": [*world.served["index"], str(other.path)]}, "the indexes are of different corpora"),
        ({"index": world.served["index"]}, "model: missing"),
        ({"index": [world.served["index"][0], str(again.path)], "model": str(world.root / "model")}, "no index of these needs a model"),
    ):
        with pytest.raises(InputError, match=words), running(ServeSettings(**asked), "refused", "/", "127.0.0.1", free_ports(1)[0]):
            pass
    with pytest.raises(InputError, match="serving of one index does not use fuse"):
        ServeSettings(index=turned[0], fuse=fused)


def test_a_held_index_is_not_opened_again_for_a_query_that_fails(world: World) -> None:
    with Answering(ServeSettings(**world.served), "refused", held=True) as answering:
        for one in answering._searching:
            held = one._pool
            with pytest.raises(Unavailable, match=r"queries: the index is searched with|queries: a BM25 index is searched with"):
                one.ask(np.zeros((1, 3), np.float32), 1)
            assert one._pool is held


def test_more_hits_are_asked_for_than_there_are(world: World) -> None:
    """The room is that of the hits there are, not of as many as are asked for."""
    with Answering(ServeSettings(**world.served), "many", held=True) as answering:
        queries = answering._searching.prepare(ASKED[:2])
        scores, rows = answering._searching.ask(queries, 10_000).hits
        assert scores.shape == rows.shape == (2, 2 * len(TEXTS))
        assert ((rows >= 0).sum(axis=1) == len(TEXTS)).all()


def test_each_hit_says_at_which_ranks_the_indexes_found_it(world: World) -> None:
    """Of all hits that were fused, also where only the first few are wanted; and those of each index alone."""
    with Answering(ServeSettings(**world.served), "ranks", held=True) as answering, Retriever.load(**world.served) as retriever:
        (reply,) = answering.answer([Question(queries=ASKED, k=3, each=True)])
        assert isinstance(reply, dict)
        wanted = retriever.search(ASKED, 3)
        assert [[hit["found"] for hit in hits] for hits in reply["results"]] == [[hit.found for hit in hits] for hits in wanted]
        assert any(max(hit["found"].values()) > 3 for hits in reply["results"] for hit in hits)
        for one in reply["each"]:
            for hits in one["results"]:
                assert [hit["found"][one["name"]] for hit in hits] == [*range(1, len(hits) + 1)]
