"""What building an index needs, and what is refused before anything is computed."""

from __future__ import annotations

from pathlib import Path

import pytest

from raydense.errors import InputError
from raydense.retrieval import faiss_plan
from raydense.retrieval.faiss_plan import check_build, plan_build, threads_each
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


@pytest.mark.parametrize(
    ("heads", "workers", "threads"),
    [([], [8], 8), ([0], [8], 7), ([0], [1], 1), ([0], [8, 8, 8, 8], 7), ([4], [4], 4)],
)
def test_a_task_leaves_room_for_the_sliver_of_a_cpu_that_an_actor_claims(
    heads: list[int], workers: list[int], threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Actors keep off a head without CPUs by it, for as long as the pool lives: a task of a whole node would never begin beside one."""
    nodes = [{"Alive": True, "Resources": {"CPU": float(cpus)} if cpus else {}} for cpus in heads + workers]
    monkeypatch.setattr("ray.nodes", lambda: nodes)
    monkeypatch.setattr(faiss_plan, "joins_cluster", lambda: True)
    assert threads_each(len(workers) + sum(1 for head in heads if head), 0) == threads


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
    wanted += r"--factory SQfp16 \(10.0 GiB\), SQ8 \(5.0 GiB\), RaBitQ,Refine\(SQ8\) \(5.8 GiB\) or --elsewhere"
    with pytest.raises(InputError, match=wanted):
        check(tmp_path, monkeypatch, "Flat", 11, [15])
    check(tmp_path, monkeypatch, "Flat", 11, [15], elsewhere=True)
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
