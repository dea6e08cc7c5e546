"""A search of several indexes gives the hits of `fuse` over the runs of each, bit by bit, by pools that run already too."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import ray
from embeddings import write_corpus, write_embeddings
from inference_world import WORDS, file_bytes, write_table
from ray.util.placement_group import placement_group, remove_placement_group
from search_versions import until

from raydense.data.tables import read_table
from raydense.errors import InputError
from raydense.evaluation.fuse import fuse
from raydense.evaluation.settings import FuseSettings
from raydense.inference.query_encoder import encode_blocks, query_encoder
from raydense.models.tiny import make_tiny_encoder
from raydense.retrieval.fusion_rule import Fusion
from raydense.retrieval.index import index
from raydense.retrieval.memory import plan_memory
from raydense.retrieval.pool import SearchPool
from raydense.retrieval.search import search
from raydense.retrieval.settings import IndexSettings, SearchSettings
from raydense.storage import Artifact, fingerprint_of

pytestmark = pytest.mark.usefixtures("ray_cluster")

TEXTS = [" ".join(WORDS[(i * 7 + j * j) % len(WORDS)] for j in range(1 + i % 9)) for i in range(300)]  # some are alike: equal scores
ASKED = [*TEXTS[:29], "nothing known", *TEXTS[30:40]]


@dataclass(frozen=True)
class World:
    """A corpus with an index of words and one of vectors, and queries with their vectors."""

    root: Path
    words: Artifact
    dense: Artifact

    def search(self, name: str, **given: Any) -> Artifact:
        return search(SearchSettings.read({"queries": str(self.root / "queries"), "output": str(self.root / name), **given}))

    def fused(self, name: str, k: int, depth: int, **how: Any) -> Artifact:
        """The run that `fuse` makes of the runs of both, of `depth` hits."""
        self.search(f"words-{depth}", index=str(self.words.path), k=depth)
        self.search(f"dense-{depth}", index=str(self.dense.path), k=depth, vectors=str(self.root / "query-vectors"))
        runs = [f"{one}={self.root / one}-{depth}" for one in ("words", "dense")]
        return fuse(FuseSettings.read({"run": runs, "k": k, "output": str(self.root / name), **how}))

    @property
    def both(self) -> list[str]:
        return [str(self.words.path), str(self.dense.path)]


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    root = tmp_path_factory.mktemp("fused")
    corpus = write_corpus(root / "corpus", TEXTS)
    make_tiny_encoder(TEXTS, root / "model", seed=3)
    write_table(root / "queries", "queries", pa.table({"query_id": [f"q{i}" for i in range(len(ASKED))], "text": ASKED}))
    encode, of = query_encoder(str(root / "model")), {"model": fingerprint_of(root / "model")}
    write_embeddings(root / "vectors", encode(TEXTS), corpus=corpus.fingerprint, **of)
    write_embeddings(root / "query-vectors", encode(ASKED), queries=fingerprint_of(root / "queries"), **of)
    words = index(IndexSettings(kind="bm25", corpus=str(root / "corpus"), shards=2, output=str(root / "words")))
    dense = index(IndexSettings(kind="faiss", embeddings=str(root / "vectors"), shards=2, output=str(root / "dense")))
    return World(root, words, dense)


def hits_of(run: Artifact) -> dict[str, list[tuple[str, int, float]]]:
    found: dict[str, list[tuple[str, int, float]]] = {}
    for row in read_table(run.path, "run").to_pylist():
        found.setdefault(row["query_id"], []).append((row["passage_id"], row["rank"], row["score"]))
    return found


@pytest.mark.parametrize(("k", "depth", "block"), [(7, 100, 2_048), (150, 150, 13)])
def test_reciprocal_ranks_of_the_first_hundred_or_k(world: World, k: int, depth: int, block: int) -> None:
    expected = world.fused(f"reciprocal-{k}", k, depth)
    found = world.search(f"both-{k}", index=world.both, vectors=str(world.root / "query-vectors"), k=k, block=block)
    assert hits_of(found) == hits_of(expected)
    assert list(hits_of(found)) == [f"q{i}" for i in range(len(ASKED))]
    assert len(found.files) == -(-len(ASKED) // block)
    for key in ("kind", "method", "scale", "weights", "k", "queries", "corpus"):
        assert found.summary[key] == expected.summary[key], key
    assert found.summary["index"] == [world.words.fingerprint, world.dense.fingerprint]


def test_weights_and_depth_of_a_fused_run_and_queries_encoded_here(world: World) -> None:
    """The depth is the run's; and the run that the search makes is one that another search takes its weights from."""
    given = world.fused("weighted", 9, 20, method="sum", weights=[0.4, 0.6])
    asked = {"index": [f"dense={world.dense.path}", f"words={world.words.path}"], "model": str(world.root / "model"), "k": 9}
    found = world.search("by-weights", **asked, fuse=str(given.path))
    wanted, here = hits_of(given), hits_of(found)
    assert {q: [p for p, *_ in hits] for q, hits in here.items()} == {q: [p for p, *_ in hits] for q, hits in wanted.items()}
    assert found.summary["weights"] == {"dense": 0.6, "words": 0.4}
    again = world.search("again", **asked, fuse=str(found.path))
    assert file_bytes(again.path) == file_bytes(found.path)
    assert Fusion.of(str(found.path), ["words", "dense"]).rule.weights == [0.4, 0.6]


def test_indexes_of_one_model_are_asked_by_one_encoding(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each would hold the GPU, or the cores, while it waits for the other; the hits are those of the runs of each."""
    opened: list[str] = []

    def counted(stage: str, *given: Any) -> Any:
        opened.append(stage)
        return encode_blocks(stage, *given)

    monkeypatch.setattr("raydense.retrieval.query_vectors.encode_blocks", counted)
    halves = index(IndexSettings(kind="faiss", factory="SQfp16", embeddings=str(world.root / "vectors"), output=str(world.root / "halves")))
    asked, indexes = {"model": str(world.root / "model"), "k": 100}, {"dense": world.dense, "halves": halves}
    runs = [f"{name}={world.search(f'{name}-encoded', index=str(one.path), **asked).path}" for name, one in indexes.items()]
    opened.clear()
    found = world.search("dense-and-halves", index=[str(one.path) for one in indexes.values()], **asked, block=13)
    assert opened == ["search"]
    assert hits_of(found) == hits_of(fuse(FuseSettings.read({"run": runs, "k": 100, "output": str(world.root / "fused-halves")})))


def test_running_pools_give_the_same_run_which_needs_them_no_longer(world: World) -> None:
    asked = {"vectors": str(world.root / "query-vectors"), "k": 5}
    wanted = world.search("by-index", index=[f"words={world.words.path}", f"dense={world.dense.path}"], **asked)
    pools = {"pool": ["words", "dense"], **asked}
    with SearchPool.start(world.words, name="words"), SearchPool.start(world.dense, name="dense"):
        found = world.search("by-pools", **pools)
        with pytest.raises(InputError, match="the pool 'words' answers from another index"):
            world.search("turned", index=world.both[::-1], **pools)
    assert file_bytes(found.path) == file_bytes(wanted.path)
    assert found.summary == wanted.summary
    assert world.search("by-pools", **pools).fingerprint == found.fingerprint
    with pytest.raises(InputError, match="no search pool of the name 'words'"):
        world.search("by-no-pools", **pools)


def test_pools_with_other_search_parameters_are_refused(world: World) -> None:
    """Also where one has none: the run names one value for all of its indexes that have any."""
    of = {"kind": "faiss", "embeddings": str(world.root / "vectors"), "train_sample": len(TEXTS)}
    lists = index(IndexSettings(factory="IVF4,Flat", output=str(world.root / "lists"), **of))
    pools = {"pool": ["lists", "dense"], "vectors": str(world.root / "query-vectors")}
    refused = pytest.raises(InputError, match="pool: have different search parameters, nprobe=2 and none")
    with SearchPool.start(lists, name="lists", search_params="nprobe=2"), SearchPool.start(world.dense, name="dense"), refused:
        world.search("other-params", **pools)
    assert not (world.root / "other-params").exists()


def test_indexes_that_fit_one_by_one_but_not_together_are_refused(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where each has its turn, Ray may not have reported what the one before it reserved."""
    monkeypatch.setattr("raydense.retrieval.pool._RELEASE_S", 0.5)
    each, there = [plan_memory(one, 1).total for one in (world.words, world.dense)], int(ray.cluster_resources()["memory"])
    until(lambda: ray.available_resources().get("memory", 0) == there, "actors of other tests keep their memory")
    others = placement_group([{"memory": there - sum(each) + 1}])
    ray.get(others.ready())
    until(lambda: ray.available_resources()["memory"] < sum(each), "the memory is not reserved")
    try:
        with pytest.raises(InputError, match=r"the 2 indexes together need 4 actors .* search each alone and `fuse` the runs"):
            world.search("short", index=world.both, vectors=str(world.root / "query-vectors"))
    finally:
        remove_placement_group(others)


def test_one_index_is_recorded_as_before(world: World) -> None:
    """Given as a list or as a text: runs of earlier versions stay valid."""
    found = world.search("alone", index=[str(world.words.path)], k=3)
    assert found.manifest["made_from"]["inputs"]["index"] == world.words.fingerprint
    assert "names" not in found.manifest["made_from"]
    assert world.search("alone", index=str(world.words.path), k=3).fingerprint == found.fingerprint
    assert (found.summary["kind"], found.summary["index"]) == ("bm25", world.words.fingerprint)


def test_what_does_not_fit_is_refused_and_leaves_nothing(world: World) -> None:
    write_corpus(world.root / "other-corpus", TEXTS[::-1])
    other = index(IndexSettings(kind="bm25", corpus=str(world.root / "other-corpus"), output=str(world.root / "other")))
    model, weighted = str(world.root / "model"), str(world.fused("to-refuse", 9, 20, method="sum", weights=[0.4, 0.6]).path)
    for given, message in (
        ({"index": world.both}, "model: missing"),
        ({"index": [world.both[0], str(other.path)]}, "the indexes are of different corpora"),
        ({"index": [f"a={world.both[0]}", f"a={world.both[1]}"], "model": model}, "two of index have the same name, 'a'"),
        ({"index": world.both, "model": model, "drop_identical": True}, "a search of several indexes does not use drop_identical"),
        ({"index": world.both[0], "fuse": weighted}, "a search of one index does not use fuse"),
        ({"index": [*world.both, f"c={world.both[0]}"], "model": model, "fuse": weighted}, "fuses 2 runs, not 3"),
        ({"index": world.both[::-1], "model": model, "fuse": str(world.root / "words-20")}, "is no fused run"),
        ({"index": world.both, "pool": "words"}, "there are 1 pools and 2 indexes"),
        ({"index": [f"a={world.both[0]}", f"b={world.both[0]}"], "gpu": True}, "BM25 does not use GPUs"),
    ):
        with pytest.raises(InputError, match=message):
            world.search("refused", **given)
        assert not (world.root / "refused").exists() or not (world.root / "refused" / "manifest.json").exists()
