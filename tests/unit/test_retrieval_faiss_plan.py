"""What building an index needs, and what is refused before anything is computed."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from raydense.errors import InputError
from raydense.forecast import Holds
from raydense.retrieval import faiss_build, faiss_plan, faiss_size
from raydense.retrieval.faiss_plan import check_build, check_training, plan_build, threads_each, training_threads, with_threads
from raydense.retrieval.faiss_size import facts_of, index_of
from raydense.retrieval.forecasts import vectors_forecast
from raydense.retrieval.settings import IndexSettings
from raydense.storage import Draft

GIB = 2**30
ROWS = 21_015_324


def check(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, factory: str, shards: int, nodes: list[float], free: int = 2**50, **given: bool
) -> None:
    listed = [{"Resources": {"memory": int(node * GIB), "CPU": 2}} for node in nodes]
    monkeypatch.setattr(faiss_plan, "shard_nodes", lambda gpu: listed)
    monkeypatch.setattr(faiss_plan, "autoscales", lambda: False)
    monkeypatch.setattr(faiss_plan.shutil, "disk_usage", lambda folder: type("Usage", (), {"free": free}))
    settings = IndexSettings(kind="faiss", embeddings="v", output=str(tmp_path / "i"), shards=shards, **given)
    plan = plan_build(factory, 256, ROWS, shards)
    check_build(settings, plan, Draft.open(settings.output, "index", {}), list(range(shards)))


def put_nodes(monkeypatch: pytest.MonkeyPatch, cpus: list[int], free: list[float] | None = None, gib: float = 1_000) -> None:
    """A cluster of nodes with these CPUs and the same memory, of which so many CPUs are free."""
    nodes = [
        {"NodeID": str(number), "Alive": True, "Resources": {"CPU": float(each), "memory": gib * GIB} if each else {}}
        for number, each in enumerate(cpus)
    ]
    left = {str(number): {"CPU": each, "memory": gib * GIB} for number, each in enumerate(cpus if free is None else free)}
    monkeypatch.setattr("ray.nodes", lambda: nodes)
    monkeypatch.setattr(faiss_plan, "free_by_node", lambda: left)
    monkeypatch.setattr(faiss_plan, "joins_cluster", lambda: True)
    monkeypatch.setattr(faiss_plan, "_RELEASE_S", 0)


@pytest.mark.parametrize(
    ("heads", "workers", "threads"),
    [([], [8], 8), ([0], [8], 7), ([0], [1], 1), ([0], [8, 8, 8, 8], 7), ([4], [4], 4)],
)
def test_a_task_leaves_room_for_the_sliver_of_a_cpu_that_an_actor_claims(
    heads: list[int], workers: list[int], threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Actors keep off a head without CPUs by it, for as long as the pool lives: a task of a whole node would never begin beside one."""
    put_nodes(monkeypatch, heads + workers)
    assert threads_each(len(workers) + sum(1 for head in heads if head), 0, lambda threads: GIB) == threads


@pytest.mark.parametrize(
    ("cpus", "free", "tasks", "threads"),
    [([8], [7.0], 1, 7), ([8, 8, 8], [7.0, 7.0, 7.0], 3, 7), ([8], [0.0], 1, 1), ([64, 8, 8, 8], None, 2, 32), ([16, 4], [2.0, 4.0], 1, 4)],
)
def test_a_task_claims_what_others_leave(
    cpus: list[int], free: list[float] | None, tasks: int, threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What serves holds its CPU for good: a task that claims all of a node would never begin beside it."""
    put_nodes(monkeypatch, cpus, free)
    assert threads_each(tasks, 0, lambda threads: GIB) == threads


@pytest.mark.parametrize("factory", ["HNSW32", "PCA256,SQ8", "OPQ64,IVF1024,PQ64", "Flat"])
def test_a_small_index_is_made_on_a_machine_of_many_cores(factory: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    put_nodes(monkeypatch, [64], gib=5)
    settings = IndexSettings(kind="faiss", embeddings="v", output=str(tmp_path / "i"), shards=1, factory=factory)
    one = plan_build(factory, 768, 1_000_000, 1)
    plan = with_threads(one, settings, 1)
    assert plan.task_bytes <= 5 * GIB
    assert plan.threads == (1 if factory == "HNSW32" else plan.threads)
    assert plan.threads > 1 or factory == "HNSW32"
    assert with_threads(one, settings.replaced({"single_core": True}), 1) == one


def test_a_plan_makes_an_index_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Of many lists one takes half a second."""
    put_nodes(monkeypatch, [64, 64])
    made: list[tuple[str, int]] = []
    monkeypatch.setattr(faiss_size, "index_of", lambda *of: made.append(of) or index_of(*of))
    facts_of.cache_clear()
    settings = IndexSettings(kind="faiss", embeddings="v", output=str(tmp_path / "i"))
    plan = plan_build("IVF64,SQ8", 768, 1_000_000, 1, sample=10_000)
    check_training(plan, 10_000)
    assert training_threads(plan, settings) == 64
    assert with_threads(plan, settings, 1).largest_task >= plan.nprobe_bytes
    assert made == [("IVF64,SQ8", 768)]


def test_the_memory_of_a_task_is_asked_once_for_each_number_of_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    put_nodes(monkeypatch, [4, 4, 4])
    asked: list[int] = []
    threads_each(2, 0, lambda threads: asked.append(threads) or GIB)
    assert len(asked) == len(set(asked))


def test_what_is_trained_needs_no_memory_to_train(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """An index that was trained on a larger machine, or by a version that did not count it, is filled."""
    asked, samples = IndexSettings(kind="faiss", embeddings="v", output=str(tmp_path / "i"), shards=1, factory="IVF64,SQ8"), []
    vectors = SimpleNamespace(rows=100_000, dimension=64)
    monkeypatch.setattr(faiss_build, "Vectors", lambda *_, **__: vectors)

    def stop(settings: IndexSettings, plan: faiss_plan.BuildPlan, draft: Draft, missing: list[int]) -> None:
        samples.append(plan.train_bytes > 0)
        raise KeyboardInterrupt

    monkeypatch.setattr(faiss_build, "check_build", stop)
    draft = Draft.open(asked.output, "index", {"inputs": {"embeddings": "v"}})
    for _ in range(2):
        with pytest.raises(KeyboardInterrupt):
            faiss_build.build_faiss(draft, asked)
        draft.commit(faiss_build.EMPTY, lambda path: path.write_bytes(b"trained"), 0)
    draft.close()
    assert samples == [True, False]


def test_a_small_shard_has_no_more_in_work_than_its_vectors() -> None:
    small = plan_build("SQ8", 768, 20_000, 1)
    assert replace(small, threads=64).task_bytes == small.file_bytes[0] + 4 * 20_000 + 5 * 20_000 * 768 * 4 + faiss_plan.PROCESS_BYTES


@pytest.mark.parametrize(
    ("group", "fix"), [("", r"train_sample: .*; give a smaller one, or"), ("refresh.", r"factory: .*; give a larger machine, or")]
)
def test_a_training_that_no_node_holds(group: str, fix: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(faiss_plan, "shard_nodes", lambda gpu: [{"Resources": {"memory": 8 * GIB, "CPU": 2}}])
    monkeypatch.setattr(faiss_plan, "autoscales", lambda: False)
    large = plan_build("IVF65536,SQ8", 768, ROWS, 16, group, 5_000_000)
    with pytest.raises(InputError, match=rf"^{fix}"):
        faiss_plan.check_memory(large, elsewhere=True)
    faiss_plan.check_memory(replace(large, sample=200_000), elsewhere=True)
    assert plan_build("Flat", 768, ROWS, 16, sample=5_000_000).train_bytes == 0


def test_what_fits_is_built(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    check(tmp_path, monkeypatch, "Flat", 11, [13, 13])
    check(tmp_path, monkeypatch, "SQfp16", 6, [16])


def test_a_task_that_no_node_holds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(
        InputError, match=r"a task of an index SQfp16 of 21,015,324 x 256 in 1 shard needs 10.4 GiB .* has 8.0 GiB; --shards 2 or"
    ):
        check(tmp_path, monkeypatch, "SQfp16", 1, [8, 8])


def test_an_index_that_the_nodes_could_not_search(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = r"a search of an index Flat .* in 11 shards needs 22.7 GiB of memory, and there are 1 nodes with 15.0 GiB; "
    wanted += r"--factory SQfp16 \(10.0 GiB\), SQ8 \(5.0 GiB\), RaBitQ,Refine\(SQ8\) \(5.8 GiB\) or --skip-memory-check"
    with pytest.raises(InputError, match=wanted):
        check(tmp_path, monkeypatch, "Flat", 11, [15])
    check(tmp_path, monkeypatch, "Flat", 11, [15], skip_memory_check=True)
    with pytest.raises(InputError, match=r"--factory IVF4096,SQfp16 "):
        check(tmp_path, monkeypatch, "IVF4096,Flat", 11, [15])


def test_a_disk_that_is_too_small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InputError, match=r"needs 20.0 GiB of disk, and 12.0 GiB are free; .*--factory SQfp16"):
        check(tmp_path, monkeypatch, "Flat", 11, [64], free=12 * GIB)


def test_the_choice_of_nprobe_is_counted() -> None:
    """Where a shard is small, the vectors that its lists are compared with are larger."""
    small, large = plan_build("IVF64,RaBitQ", 768, 30_000, 1), plan_build("IVF64,Flat", 768, 1_000_000, 1)
    vectors = 6 * 30_000 * 768 + 8 * 25_600 * 768
    assert small.nprobe_bytes - faiss_plan.PROCESS_BYTES == vectors
    assert large.nprobe_bytes - faiss_plan.PROCESS_BYTES == large.file_bytes[0] + 8 * 25_600 * 768
    assert [plan.largest_task for plan in (small, large)] == [max(plan.task_bytes, plan.nprobe_bytes) for plan in (small, large)]
    assert plan_build("Flat", 768, 30_000, 1).nprobe_bytes == 0


def test_a_forecast_counts_the_choice_of_nprobe(tmp_path: Path) -> None:
    """As the stage itself, which would be refused where the plan passes."""
    asked = IndexSettings(kind="faiss", embeddings="v", output=str(tmp_path / "i"), shards=1, factory="IVF64,RaBitQ")
    plan = plan_build(asked.factory, 768, 30_000, 1, sample=asked.train_sample)
    assert vectors_forecast(asked, Holds(30_000, each=768)).memory == plan.nprobe_bytes > max(plan.task_bytes, plan.train_bytes)
