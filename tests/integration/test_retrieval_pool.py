"""FAISS shards behind a pool: the ids of one index over everything, whatever the sharding, ties and deaths included."""

import os
import signal
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import Queue

import faiss
import forked
import numpy as np
import pytest
import ray
from embeddings import write_embeddings
from ray.actor import ActorHandle
from ray.exceptions import ActorDiedError
from search_versions import until

from raydense.errors import InputError, fixable
from raydense.retrieval.index import index
from raydense.retrieval.memory import plan_memory
from raydense.retrieval.merge import first_share
from raydense.retrieval.pool import SearchPool
from raydense.retrieval.settings import IndexSettings
from raydense.retrieval.shard_actor import PoolPlan, start_actor
from raydense.retrieval.versions import Table, Version, Versions
from raydense.runtime.tasks import shard_ranges
from raydense.storage import Artifact

pytestmark = pytest.mark.usefixtures("ray_cluster")

ROWS, K, DIMENSION = 3_000, 20, 385
MakeIndex = Callable[..., Artifact]


@pytest.fixture(scope="module")
def make_index(tmp_path_factory: pytest.TempPathFactory) -> MakeIndex:
    root = tmp_path_factory.mktemp("indexes")

    def make(vectors: np.ndarray, factory: str, shards: int) -> Artifact:
        name = f"{vectors.shape[1]}-{vectors.dtype}-{len(vectors)}"
        write_embeddings(root / name, vectors, files=3)
        output = str(root / f"{name}-{factory}-{shards}")
        return index(
            IndexSettings(kind="faiss", embeddings=str(root / name), factory=factory, shards=shards, train_sample=2_000, output=output)
        )

    return make


def duplicated_vectors(dimension: int, dtype: type = np.float32) -> tuple[np.ndarray, np.ndarray]:
    """Vectors that each stand in the corpus about ten times, and the number of the different vector at each row."""
    rng = np.random.default_rng(dimension)
    different = rng.standard_normal((300, dimension)).astype(dtype)
    which = rng.integers(0, 300, ROWS)
    return different[which], which


def queries_of(dimension: int, n: int = 40) -> np.ndarray:
    return np.random.default_rng(99).standard_normal((n, dimension)).astype(np.float32)


def best_rows(scores: np.ndarray, k: int) -> np.ndarray:
    """All rows sorted by score falling, then row rising."""
    return np.lexsort((np.broadcast_to(np.arange(scores.shape[1]), scores.shape), -scores), axis=-1)[:, :k]


@pytest.mark.parametrize(("factory", "shards", "dtype"), [("Flat", 1, "f4"), ("Flat", 2, "f4"), ("Flat", 7, "f2"), ("SQfp16", 2, "f2")])
def test_sharded_search_is_one_flat_index_with_duplicates(make_index: MakeIndex, factory: str, shards: int, dtype: str) -> None:
    """An odd dimension, a block that FAISS gives to BLAS and one that it does not, and vectors ten times over; equal vectors have equal scores, so ties come by row, across shards too."""
    vectors, which = duplicated_vectors(DIMENSION, np.dtype(dtype).type)
    different = np.zeros((300, DIMENSION))
    different[which] = vectors
    queries = queries_of(DIMENSION, 400)
    true = (queries.astype(np.float64) @ different.T)[:, which]
    with SearchPool.start(make_index(vectors, factory, shards)) as pool:
        scores, rows = pool.search(queries, K)
        assert scores.dtype == np.float32
        assert rows.dtype == np.int64
        np.testing.assert_array_equal(rows, best_rows(true, K))
        np.testing.assert_allclose(scores, np.take_along_axis(true, rows, axis=1), rtol=2e-5)
        plain = faiss.IndexFlatIP(DIMENSION)
        plain.add(vectors.astype(np.float32))
        np.testing.assert_allclose(scores, plain.search(queries, K)[0], rtol=2e-5)
        alone = pool.search(queries[3:4], K)
        np.testing.assert_array_equal(alone[0], scores[3:4])
        np.testing.assert_array_equal(alone[1], rows[3:4])


@pytest.mark.parametrize(("factory", "shards"), [("Flat", 1), ("Flat", 7), ("SQfp16", 2)])
def test_ties_of_hundreds_of_rows(make_index: MakeIndex, factory: str, shards: int) -> None:
    """Small whole numbers: exact in any order of summing, and so many ties that every margin is too small; a zero query ties all."""
    rng = np.random.default_rng(5)
    vectors = rng.integers(-1, 2, (ROWS, 5)).astype(np.float32)
    queries = np.vstack([rng.integers(-1, 2, (20, 5)), np.zeros((1, 5))]).astype(np.float32)
    with SearchPool.start(make_index(vectors, factory, shards)) as pool:
        scores, rows = pool.search(queries, K)
        many = pool.search(np.tile(queries, (9, 1)), K)
    true = queries @ vectors.T
    np.testing.assert_array_equal(rows, best_rows(true, K))
    np.testing.assert_array_equal(many, np.tile((scores, rows), (1, 9, 1)))
    np.testing.assert_array_equal(scores, np.take_along_axis(true, rows, axis=1))


def test_all_the_best_in_one_shard_and_ties_across_two(make_index: MakeIndex) -> None:
    """7 topics, each a shard of its own, and a vector that stands 30 times on each side of a border: a shard's first share is too small."""
    rng = np.random.default_rng(3)
    ranges, k = shard_ranges(ROWS, 7), 50
    topics = np.linalg.qr(rng.standard_normal((64, 7)))[0].T
    vectors = np.vstack([10 * topic + rng.standard_normal((stop - start, 64)) for topic, (start, stop) in zip(topics, ranges, strict=True)])
    border = ranges[2][1]
    vectors[border - 30 : border + 30] = 20 * (topics[2] + topics[3])
    vectors = vectors.astype(np.float16).astype(np.float32)
    queries = np.vstack([topics + 0.1 * rng.standard_normal((7, 64)), 2 * (topics[2] + topics[3])[None]]).astype(np.float32)
    with SearchPool.start(make_index(vectors, "Flat", 7)) as pool:
        scores, rows = pool.search(np.tile(queries, (5, 1)), k)
        many = pool.search(np.tile(queries, (9, 1)), k)
    true = best_rows(queries.astype(np.float64) @ vectors.T.astype(np.float64), k)
    of_shard = np.stack([((true >= start) & (true < stop)).sum(axis=1) for start, stop in ranges])
    assert (of_shard.max(axis=0) > first_share(k, 7)).sum() >= 5
    assert (true[-1] == np.arange(border - 30, border + 20)).all()
    np.testing.assert_array_equal(rows, np.tile(true, (5, 1)))
    np.testing.assert_array_equal(many[1], np.tile(true, (9, 1)))
    np.testing.assert_array_equal(many[0][:40], scores)
    assert (scores[-1] == scores[-1, 0]).all()


def test_a_block_is_settled_while_the_next_is_searched(make_index: MakeIndex) -> None:
    vectors, _ = duplicated_vectors(DIMENSION)
    with SearchPool.start(make_index(vectors, "Flat", 1), threads=1) as pool:
        [[actor]] = pool.actors
        ray.get(actor.search.remote((K,), 40, queries_of(DIMENSION)))
        searched = actor.search.remote((K,), 20_000, queries_of(DIMENSION, 20_000))
        settled = actor.settle.remote("rescore", queries_of(DIMENSION), np.zeros((40, K), np.int64))
        assert ray.wait([searched, settled], num_returns=1)[0] == [settled]
        ray.get(searched)


@pytest.mark.parametrize(("factory", "search_params"), [("IVF16,Flat", "nprobe=16"), ("HNSW16", "efSearch=400"), ("PCA8,SQ8", "")])
def test_other_indexes_train_once_and_open_in_plain_faiss(make_index: MakeIndex, factory: str, search_params: str) -> None:
    vectors = np.random.default_rng(1).standard_normal((ROWS, 16)).astype(np.float32)
    queries = queries_of(16)
    artifact = make_index(vectors, factory, 2)
    with SearchPool.start(artifact, search_params=search_params, threads=1) as pool:
        _, rows = pool.search(queries, K)
    parts = [faiss.read_index(str(path)) for path in artifact.parts(".faiss", "shard-")]
    assert [p.ntotal for p in parts] == [stop - start for start, stop in artifact.summary["shards"]]
    whole = faiss.read_index(str(artifact.path / "empty.faiss"))
    whole.add(vectors)
    if search_params:
        faiss.ParameterSpace().set_index_parameters(whole, search_params)
    expected = whole.search(queries, K)[1]
    overlap = np.mean([len(np.intersect1d(a, b)) / K for a, b in zip(rows, expected, strict=True)])
    assert overlap > 0.98


def test_more_asked_than_there_is(make_index: MakeIndex) -> None:
    vectors = np.random.default_rng(2).standard_normal((9, 4)).astype(np.float32)
    with SearchPool.start(make_index(vectors, "Flat", 2)) as pool:
        scores, rows = pool.search(queries_of(4, 3), K)
        assert scores.shape == rows.shape == (3, 9), "k is more than the index has rows"
        assert (np.sort(rows, axis=1) == np.arange(9)).all()
        for count in (0, 3, 100):
            assert [hits.shape for hits in pool.search(queries_of(4, count), 10**9)] == [(count, 9)] * 2
        with pytest.raises(InputError, match=r"vectors \[n, 4\]"):
            pool.search(queries_of(5), K)


def test_killed_actors_come_back_with_right_answers(make_index: MakeIndex) -> None:
    vectors, _ = duplicated_vectors(37)
    queries = queries_of(37, 400)
    blocks = [queries[at : at + 10] for at in range(0, 400, 10)]
    with SearchPool.start(make_index(vectors, "Flat", 2), shard_replicas=2) as pool:
        undisturbed = pool.search(queries, K)
        found = []
        for i, answer in enumerate(pool.answers(iter(blocks), K)):
            assert answer.queries is blocks[i]
            found.append(answer.hits)
            if i == 4:
                _, pid = ray.get(pool.actors[0][0].describe.remote())
                os.kill(pid, signal.SIGKILL)
            if i == 8:
                ray.kill(pool.actors[1][1], no_restart=False)
    np.testing.assert_array_equal(np.concatenate([rows for _, rows in found]), undisturbed[1])
    np.testing.assert_array_equal(np.concatenate([scores for scores, _ in found]), undisturbed[0])
    assert len(found) == len(blocks)


_OTHER_JOB = """
import sys, numpy as np
from raydense.retrieval.pool import SearchPool
np.save(sys.argv[2], SearchPool.connect("shared").search(np.load(sys.argv[1]), 20)[1])
"""


def test_another_job_connects_by_name(make_index: MakeIndex, tmp_path: Path) -> None:
    vectors, _ = duplicated_vectors(37)
    np.save(tmp_path / "queries.npy", queries_of(37))
    artifact = make_index(vectors, "Flat", 2)
    with SearchPool.start(artifact, name="shared") as pool:
        environment = {**os.environ, "RAY_ADDRESS": ray.get_runtime_context().gcs_address}
        command = [sys.executable, "-c", _OTHER_JOB, str(tmp_path / "queries.npy"), str(tmp_path / "rows.npy")]
        forked.run(command, env=environment, check=True, timeout=120)
        np.testing.assert_array_equal(np.load(tmp_path / "rows.npy"), pool.search(queries_of(37), K)[1])
        with pytest.raises(InputError, match="a search pool of the name 'shared' already"):
            SearchPool.start(artifact, name="shared")
    with pytest.raises(InputError, match="no search pool of the name 'nobody'"):
        SearchPool.connect("nobody")


def test_an_actor_that_cannot_load_is_one_line(make_index: MakeIndex) -> None:
    artifact = make_index(duplicated_vectors(37)[0], "Flat", 2)
    plan = PoolPlan(artifact.located, "another", 1, 1, False, "", 1)
    with pytest.raises(ActorDiedError) as died:
        ray.get(start_actor(plan, 0, 2**28).describe.remote())
    code, line = fixable(died.value) or (1, "")
    assert (code, line.splitlines()) == (2, [line])
    assert line.startswith(f"{artifact.located}: was made again")


def another_holds_the_memory() -> ActorHandle:
    """Stands for the actors of another pool: it has reserved all memory but for a little, once Ray reports so."""

    class Holder:
        pass

    holder = ray.remote(num_cpus=0, memory=int(ray.cluster_resources()["memory"]) - 2**27)(Holder).remote()
    until(lambda: ray.available_resources().get("memory", 0) < 2**28, "the memory is not reserved")
    return holder


def test_a_pool_without_memory_next_to_another_is_refused_and_one_that_waits_reports_so(
    make_index: MakeIndex, monkeypatch: pytest.MonkeyPatch
) -> None:
    vectors, _ = duplicated_vectors(37)
    artifact = make_index(vectors, "Flat", 2)
    holder = another_holds_the_memory()
    monkeypatch.setattr("raydense.retrieval.pool._RELEASE_S", 0.5)
    with pytest.raises(InputError, match=r"of which others have reserved .* close a pool that is no longer needed"):
        SearchPool.start(artifact)
    monkeypatch.setattr("raydense.retrieval.asking._REPORT_AFTER_S", 0.2)
    plan = PoolPlan(artifact.located, artifact.fingerprint, 1, 1, False, "", 1)
    actors = [[start_actor(plan, shard, size)] for shard, size in enumerate(plan_memory(artifact, 1).actor_bytes)]
    said: Queue[str] = Queue()
    monkeypatch.setattr("raydense.retrieval.asking.say", said.put)  # capsys loses what another thread prints while it is read
    with SearchPool(Versions(Version(Table(1, plan, actors)))) as waiting, ThreadPoolExecutor(1) as other:
        found = other.submit(waiting.search, queries_of(37), K)
        assert "search: waits for the actors of" in said.get(timeout=60)
        assert not found.done()
        ray.kill(holder)
        _, rows = found.result()
    assert not any("for the actors of" in said.get() for _ in range(said.qsize()))
    assert (rows >= 0).all()
    monkeypatch.setattr("raydense.retrieval.pool._RELEASE_S", 10.0)  # what the one before held is free a moment later
    holder = another_holds_the_memory()
    threading.Timer(1.0, ray.kill, [holder]).start()
    with SearchPool.start(artifact) as pool:
        np.testing.assert_array_equal(pool.search(queries_of(37), K)[1], rows)


def test_what_cannot_be_is_refused(make_index: MakeIndex, capsys: pytest.CaptureFixture[str]) -> None:
    vectors, _ = duplicated_vectors(37)
    artifact = make_index(vectors, "Flat", 2)
    with pytest.raises(InputError, match=r"the index needs 20000 actors .* give more shards or nodes, factory SQfp16, fewer replicas"):
        SearchPool.start(artifact, shard_replicas=10_000)
    assert "3,000 passages, 20000 actors (2 shards x 10000), at most" in capsys.readouterr().err
    with pytest.raises(InputError, match="does not take 'nprobe=4'"):
        SearchPool.start(artifact, search_params="nprobe=4")
    if not hasattr(faiss, "StandardGpuResources"):
        with pytest.raises(InputError, match="no GPU support"):
            SearchPool.start(artifact, gpu=True)
    for factory, message in [
        ("Flatt", "FAISS cannot make 'Flatt'"),
        ("IVF2500,Flat", "2,000 vectors do not train"),
        ("IDMap,Flat", "own ids"),
    ]:
        with pytest.raises(InputError, match=message):
            make_index(vectors, factory, 1)
