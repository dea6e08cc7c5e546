"""Pools with a name: switched to another index while they serve, maintained, and ended."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import forked
import numpy as np
import psutil
import pyarrow as pa
import pytest
import ray
from embeddings import write_corpus, write_embeddings
from search_versions import DIMENSION, K, Versions, make_versions, until
from warm_worker import own_ray_environment

from raydense.cli import main
from raydense.data.tables import commit_table
from raydense.errors import InputError
from raydense.retrieval.controller import PoolController, controller_name
from raydense.retrieval.index import index
from raydense.retrieval.named import asked, pools
from raydense.retrieval.pool import SearchPool
from raydense.retrieval.search import search
from raydense.retrieval.settings import IndexSettings, SearchSettings
from raydense.retrieval.shard_actor import NAMESPACE, PoolPlan
from raydense.storage import Artifact, Draft

pytestmark = pytest.mark.usefixtures("ray_cluster")


JOB_WITH_POOL = """
import sys, time
from raydense.retrieval.pool import SearchPool
pool = SearchPool.start(sys.argv[1], name="of-a-job", detached=False)
pool.swap(sys.argv[2])
print("serves", flush=True)
time.sleep(600)
"""


def controller_of(name: str) -> Any:
    return ray.get_actor(controller_name(name), namespace=NAMESPACE)


@pytest.fixture(scope="module")
def versions(tmp_path_factory: pytest.TempPathFactory) -> Versions:
    return make_versions(tmp_path_factory.mktemp("versions"))


@pytest.fixture
def pool(versions: Versions, request: pytest.FixtureRequest) -> Iterator[SearchPool]:
    with SearchPool.start(versions.indexes[0], name=request.node.name) as started:
        yield started


def shard_actors(name: str) -> list[str]:
    there = ray.util.list_named_actors(all_namespaces=True)
    return [actor["name"] for actor in there if actor["name"].startswith(f"{name}/") and actor["name"] != controller_name(name)]


@pytest.mark.filterwarnings("error::pytest.PytestUnhandledThreadExceptionWarning")  # of a caller
def test_a_swap_while_callers_ask(pool: SearchPool, versions: Versions) -> None:
    """Three callers with small blocks; each answer is that of one index, both answer, and a stream that was begun continues."""
    old, new = versions.indexes
    answered: list[str] = []
    wrong: list[int] = []
    stop = threading.Event()

    def ask(seed: int) -> None:
        mine, rng = SearchPool.connect(pool.name), np.random.default_rng(seed)
        while not stop.is_set():
            at = int(rng.integers(0, 190))
            which = slice(at, at + int(rng.integers(1, 10)))
            answer = mine.answer(versions.queries[which], K)
            answered.append(answer.index)
            wrong.extend([at] * (not versions.is_right(answer, which)))

    callers = [threading.Thread(target=ask, args=(seed,)) for seed in range(3)]
    for caller in callers:
        caller.start()
    blocks = [versions.queries[at : at + 10] for at in range(0, 200, 10)]
    stream = pool.answers(iter(blocks), K)
    begun = [next(stream) for _ in range(3)]
    until(lambda: old.fingerprint in answered, "nobody asked before the swap")
    pool.swap(new)
    switched = len(answered)
    until(lambda: len(answered) > switched + 20, "no call after the swap")
    stop.set()
    for caller in callers:
        caller.join()
    begun += stream
    assert not wrong
    assert set(answered[switched + 10 :]) == {new.fingerprint}
    assert [answer.index for answer in begun[:3]] == [old.fingerprint] * 3
    assert begun[-1].index == new.fingerprint
    assert all(versions.is_right(answer, slice(10 * i, 10 * i + 10)) for i, answer in enumerate(begun))
    assert pool.status()["version"] == 2
    until(lambda: len(shard_actors(pool.name)) == 2, "the old actors have not ended")


def test_a_swap_that_cannot_be_leaves_the_pool_as_it_is(pool: SearchPool, versions: Versions, tmp_path: Path) -> None:
    old, new = versions.indexes
    write_corpus(tmp_path / "corpus", ["some words"] * 5)
    words = index(IndexSettings(kind="bm25", corpus=str(tmp_path / "corpus"), output=str(tmp_path / "words")))
    with pytest.raises(InputError, match="its kind is bm25, the pool's is faiss; start another pool"):
        pool.swap(words)
    with pytest.raises(InputError, match=r"2 shards x 10000.* next to 756 MiB of the current actors.* fewer replicas"):
        pool.swap(new, shard_replicas=10_000)
    write_embeddings(tmp_path / "emb", np.eye(DIMENSION, dtype=np.float32))
    gone = index(IndexSettings(kind="faiss", embeddings=str(tmp_path / "emb"), output=str(tmp_path / "gone")))
    damaged = tmp_path / "gone" / "shard-00000.faiss"
    damaged.write_bytes(bytes(damaged.stat().st_size))
    with pytest.raises(InputError, match=r"could not switch to it .*still answers from"):
        pool.swap(gone)
    answer = pool.answer(versions.queries, K)
    assert answer.index == old.fingerprint
    assert versions.is_right(answer, slice(None))
    assert len(shard_actors(pool.name)) == 2


def test_a_swap_that_another_one_overtook_is_refused(pool: SearchPool, versions: Versions) -> None:
    """Its plan has the replicas and search parameters of a version that serves no more."""
    old, new = versions.indexes
    overtaken = pool.plan
    pool.swap(new, shard_replicas=2)
    refusal = asked(pool.name, "swap", 1, replace(overtaken, fingerprint=old.fingerprint), [2**20] * 2, "late", 60.0)
    assert refusal == "another swap was faster, and some settings may be its own: swap again"
    assert (pool.plan.fingerprint, pool.plan.replicas) == (new.fingerprint, 2)
    pool.swap(old)
    assert (pool.plan.fingerprint, pool.plan.replicas) == (old.fingerprint, 2)


def test_the_controller_dies_and_the_pool_continues(pool: SearchPool, versions: Versions) -> None:
    """Its next process knows the version that it was switched to, finds the actors, and ends one that a swap left behind."""
    pool.swap(versions.indexes[1])
    until(lambda: len(shard_actors(pool.name)) == 2, "the old actors have not ended")
    before = set(shard_actors(pool.name))
    left = f"{pool.name}/0-3/0/0/0/left"
    ray.remote(num_cpus=0, name=left, namespace=NAMESPACE, lifetime="detached")(Witness).remote()
    until(lambda: left in shard_actors(pool.name), "no leftover")
    ray.kill(ray.get_actor(controller_name(pool.name), namespace=NAMESPACE), no_restart=False)
    assert versions.is_right(pool.answer(versions.queries, K), slice(None))
    assert SearchPool.connect(pool.name).answer(versions.queries[:5], K).index == versions.indexes[1].fingerprint
    assert pool.status()["version"] == 2
    until(lambda: set(shard_actors(pool.name)) == before, "the leftover has not ended")
    assert SearchPool.connect(pool.name).status()["fingerprint"] == versions.indexes[1].fingerprint


def _pids(pool: SearchPool) -> set[int]:
    return {actor["pid"] for actor in pool.status()["actors"]}


class Witness:
    """Stands for an actor that no controller watches."""


def test_an_actor_that_was_ended_for_good_is_replaced(pool: SearchPool, versions: Versions) -> None:
    before = {actor["pid"] for actor in pool.status()["actors"]}
    ray.kill(pool.actors[1][0], no_restart=True)
    assert versions.is_right(pool.answer(versions.queries, K), slice(None))
    there = ("ready", "ready")
    until(lambda: tuple(a["state"] for a in pool.status()["actors"]) == there and len(_pids(pool) - before) == 1, "no other actor")
    assert versions.is_right(pool.answer(versions.queries, K), slice(None))


def test_actors_that_cannot_load_are_one_line_and_tried_again(versions: Versions, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A controller of this process, which looks when it is told to, and its actors, whose index lacks a file for a while."""
    shutil.copytree(versions.indexes[0].path, tmp_path / "index")
    artifact = Artifact.open(tmp_path / "index", "index")
    (tmp_path / "index" / "shard-00001.faiss").rename(tmp_path / "away")
    monkeypatch.setattr(PoolController, "_watch", lambda self: None)
    controller = PoolController("lacks", "one", PoolPlan(artifact.located, artifact.fingerprint, 1, 1, False, "", 1), [2**27] * 2, 0.0)

    def states() -> set[str]:
        controller._look()
        return {actor["state"] for actor in controller.status()["actors"]}

    try:
        until(lambda: states() == {"dead"}, "the actors load without the file")
        assert re.match(r"no actor of shard [01] could start \(.*shard-00001\.faiss: ", controller.table().fault)
        (tmp_path / "away").rename(tmp_path / "index" / "shard-00001.faiss")
        assert states() == {"dead"}, "it is tried again at once"
        monkeypatch.setattr("raydense.retrieval.controller._RETRY_S", 0.0)
        until(lambda: states() == {"ready"}, "it is not tried again")
        assert controller.table().fault == ""
    finally:
        controller.close()


def test_a_pool_that_nobody_asks_ends(versions: Versions) -> None:
    pool = SearchPool.start(versions.indexes[0], name="idle", idle_timeout=3.0)
    until(lambda: "idle" not in pools() and not shard_actors("idle"), "the pool has not ended")
    with pytest.raises(InputError, match=r"no search pool of the name 'idle'|was closed"):
        pool.search(versions.queries, K)
    with SearchPool.start(versions.indexes[0], name="idle") as again:
        assert again.status()["idle_timeout"] == 0.0


def test_a_pool_that_is_to_end_with_its_job_ends_when_that_is_killed(versions: Versions, joining: dict[str, str]) -> None:
    """Also after a switch, and after its controller died, which started the shard actors."""
    old, new = versions.indexes
    job = forked.Popen([sys.executable, "-c", JOB_WITH_POOL, str(old.path), str(new.path)], env=joining, stdout=subprocess.PIPE)
    assert job.stdout is not None
    assert job.stdout.readline() == b"serves\n"
    pool = SearchPool.connect("of-a-job")
    first = ray.get(controller_of("of-a-job").status.remote())
    assert first["fingerprint"] == new.fingerprint
    ray.kill(controller_of("of-a-job"), no_restart=False)
    answer = pool.answer(versions.queries, K)
    assert answer.index == new.fingerprint
    assert versions.is_right(answer, slice(None))
    pids = [actor["pid"] for actor in pool.status()["actors"] if "pid" in actor]
    os.kill(job.pid, signal.SIGKILL)
    job.wait()
    until(lambda: "of-a-job" not in pools() and not shard_actors("of-a-job"), "actors are listed after their job")
    until(lambda: not any(map(psutil.pid_exists, pids)), "processes run after their job")


def test_a_pool_that_is_being_switched_is_not_idle(versions: Versions) -> None:
    """The new actors take longer to load than the pool may be idle: one of them stands still for so long, if it was caught before it had loaded."""
    pool = SearchPool.start(versions.indexes[0], name="slow", idle_timeout=6.0)
    for number in range(1, 20):
        new, before = versions.indexes[number % 2], set(_shard_processes())
        switching = threading.Thread(target=pool.swap, args=(new,))
        switching.start()
        with _standing_still(before):
            until(lambda: _served_idle(pool) > 8 or pool.status()["version"] > number, "the actors that serve are not idle")  # noqa: B023
            caught = pool.status()["swapping"]
        switching.join()
        assert pool.plan.fingerprint == new.fingerprint
        if caught:
            break
    assert caught
    until(lambda: "slow" not in pools() and not shard_actors("slow"), "the pool has not ended")


def _served_idle(pool: SearchPool) -> float:
    return min(actor["idle_s"] for actor in pool.status()["actors"])


@contextmanager
def _standing_still(before: set[psutil.Process]) -> Iterator[None]:
    """The first process that holds a shard and is not of those `before` is suspended in the block."""
    end = time.monotonic() + 120
    while not (new := set(_shard_processes()) - before):  # without a pause: it loads in a tenth of a second
        assert time.monotonic() < end, "no new actor"
    one = new.pop()
    one.suspend()
    try:
        yield
    finally:
        one.resume()


def _shard_processes() -> list[psutil.Process]:
    """The processes of this Ray that hold shards, or are about to."""
    found = []
    for pid in psutil.pids():
        with suppress(OSError, psutil.NoSuchProcess, psutil.ZombieProcess):  # it ends while it is looked at
            if Path(f"/proc/{pid}/cmdline").read_bytes().startswith(b"ray::ShardActor"):
                one = psutil.Process(pid)
                if os.getpid() in (parent.pid for parent in one.parents()):
                    found.append(one)
    return found


def test_a_pool_that_was_started_again_with_another_index_is_another_pool(versions: Versions) -> None:
    """Who asked the one before, of the same name and version, does not take the hits of one index for those of the other."""
    old, new = versions.indexes
    with SearchPool.start(old, name="again") as pool:
        assert pool.answer(versions.queries[:5], K).index == old.fingerprint
    with SearchPool.start(new, name="again") as other:
        with pytest.raises(InputError, match="was closed, and started again with another index; connect to it again"):
            pool.answer(versions.queries[:5], K)
        assert versions.is_right(other.answer(versions.queries[:5], K), slice(0, 5))


def test_small_calls_of_many_callers_get_what_they_get_alone(pool: SearchPool, versions: Versions) -> None:
    """Forty threads with a query each, more than may wait in an actor: batched, or refused as busy and repeated, with the same hits."""
    found: dict[int, bool] = {}

    def ask(i: int) -> None:
        answers = [pool.answer(versions.queries[i : i + 1], K) for _ in range(3)]
        found[i] = all(versions.is_right(answer, slice(i, i + 1)) for answer in answers)

    callers = [threading.Thread(target=ask, args=(i,)) for i in range(40)]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join()
    assert sorted(found) == list(range(40))
    assert all(found.values())


def test_a_run_comes_from_one_index(pool: SearchPool, versions: Versions, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run by a pool is the run by its index; a pool that switched in the middle is refused, and again when it is run again."""
    draft = Draft.open(tmp_path / "queries", "queries", {})
    commit_table(draft, "queries.parquet", pa.table({"query_id": [f"q{i}" for i in range(40)], "text": [str(i) for i in range(40)]}))
    asked = draft.finish(40)
    old, new = versions.indexes
    write_embeddings(tmp_path / "vectors", versions.queries[:40], model=old.summary["model"], queries=asked.fingerprint)
    common = {"queries": str(tmp_path / "queries"), "vectors": str(tmp_path / "vectors"), "k": 5, "block": 8}
    by_index = search(SearchSettings(index=str(old.path), output=str(tmp_path / "index"), **common))
    by_pool = search(SearchSettings(pool=pool.name, output=str(tmp_path / "pool"), **common))
    assert by_pool.fingerprint == by_index.fingerprint
    closed = search(SearchSettings(pool="closed by now", output=str(tmp_path / "pool"), **common))
    assert closed.fingerprint == by_pool.fingerprint
    with pytest.raises(InputError, match=r"answers from another index"):
        search(SearchSettings(pool=pool.name, index=str(new.path), output=str(tmp_path / "other"), **common))
    blocks = SearchPool.answers

    def switched(one: SearchPool, stream: Iterator[np.ndarray], k: int) -> Iterator[object]:
        for number, answer in enumerate(blocks(one, stream, k)):
            yield answer
            if number == 1:
                pool.swap(new)

    monkeypatch.setattr(SearchPool, "answers", switched)
    with pytest.raises(
        InputError, match=r"the pool has switched to another index .* run again for a run of that one, with another --output"
    ):
        search(SearchSettings(pool=pool.name, output=str(tmp_path / "switched"), **common))
    with pytest.raises(InputError, match=r"was made from something else \(inputs\.index"):
        search(SearchSettings(pool=pool.name, output=str(tmp_path / "switched"), **common))


def test_the_commands(versions: Versions, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Started, inspected, switched and closed from the command line."""

    def printed(*words: str) -> str:
        with pytest.raises(SystemExit) as ended:
            main(["pool", *words])
        assert ended.value.code == 0
        return capsys.readouterr().out

    old, new = (str(one.path) for one in versions.indexes)
    monkeypatch.setenv("RAY_ADDRESS", ray.get_runtime_context().gcs_address)
    assert f"commands: {old} (fingerprint" in printed("start", "--name", "commands", "--index", old, "--idle-timeout", "3600")
    assert "2 actors: " in printed("status")
    assert "version 2" in printed("swap", "--name", "commands", "--index", new)
    status = json.loads(printed("status", "--name", "commands", "--json"))
    assert (status["fingerprint"], status["idle_timeout"]) == (versions.indexes[1].fingerprint, 3600)
    assert printed("close", "--name", "commands") == "commands: closed\n"
    assert "commands" not in pools()


def test_a_pool_needs_a_cluster_that_outlives_the_command(versions: Versions) -> None:
    alone = own_ray_environment()
    command = [sys.executable, "-m", "raydense", "pool", "start", "--name", "x", "--index", str(versions.indexes[0].path)]
    ended = forked.run(command, capture_output=True, text=True, timeout=120, env=alone)
    assert ended.returncode == 2
    assert ended.stderr == (
        "raydense: x: a pool with a name outlives its job, and so needs a Ray cluster that does; give its --address, or set RAY_ADDRESS\n"
    )
