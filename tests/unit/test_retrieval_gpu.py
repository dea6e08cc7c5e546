"""What goes to a GPU and what it takes there: rules, computed without one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from raydense.errors import InputError
from raydense.retrieval import gpu, gpu_nodes
from raydense.retrieval.faiss_library import faiss
from raydense.retrieval.faiss_shard import FaissShard
from raydense.retrieval.faiss_size import size_of
from raydense.retrieval.gpu import check_gpu_index, copy_bytes, has_half_tables, is_half, share, sharing_of, takes_cpu, temporary_bytes
from raydense.retrieval.gpu_nodes import parsed, plan_gpus
from raydense.retrieval.merge import order_hits, rounding_bound
from raydense.storage import Draft

GIB = 2**30


@pytest.mark.parametrize(
    "factory",
    [
        "Flat",
        "SQfp16",
        "IVF4096,Flat",
        "IVF4096,SQfp16",
        "IVF64,SQ8",
        "IVF64,SQ4",
        "PCA64,Flat",
        "PCA64,IVF16,PQ8",
        "OPQ16_64,IVF256,PQ16",
        "IVF9,PQ96",
        "IVF9,PQ8x8",
        "IVF9,PQ8np",
    ],
)
def test_what_goes_to_a_gpu(factory: str) -> None:
    check_gpu_index(factory)


@pytest.mark.parametrize(
    "factory",
    [
        "SQ8",
        "SQ4",
        "SQbf16",
        "HNSW32",
        "IVF64_HNSW32,Flat",
        "RaBitQ",
        "RaBitQ,Refine(SQ8)",
        "IVF64,RaBitQ",
        "IVF64,SQbf16",
        "IVF64,PQ16x4",
        "IVF64,PQ16x4fs",
        "PQ16",
        "L2norm,Flat",
        "IVF9,Flat,RFlat",
    ],
)
def test_what_faiss_has_on_no_gpu_is_refused(factory: str) -> None:
    with pytest.raises(InputError, match=r"FAISS has no .* for GPUs.*; index with Flat, SQfp16, .* or leave gpu out"):
        check_gpu_index(factory)


def test_codes_and_lists_that_are_too_many() -> None:
    for codes in (5, 36, 72, 128):
        with pytest.raises(InputError, match=f"take no codes of {codes} bytes; PQ of 1, 2, 3, .* 96"):
            check_gpu_index(f"IVF4096,PQ{codes}")
    check_gpu_index("IVF4096,Flat", "nprobe=2048")
    with pytest.raises(InputError, match=r"nprobe is 2,049, and FAISS's GPUs take at most 2,048"):
        check_gpu_index("IVF4096,Flat", "quantizer_efSearch=9000, nprobe = 2049")


def test_tables_in_half_precision_where_shared_memory_is_too_small() -> None:
    assert [has_half_tables(f"IVF16,PQ{codes}") for codes in (8, 48, 56, 96)] == [False, False, True, True]
    assert not has_half_tables("OPQ96_96,IVF16,SQ8")


@pytest.mark.parametrize(
    ("summary", "half"),
    [
        ({"factory": "Flat", "dtype": "float16"}, True),
        ({"factory": "Flat", "dtype": "float32"}, False),
        ({"factory": "Flat"}, False),  # made before the summary had it
        ({"factory": "SQfp16", "dtype": "float32"}, True),
        ({"factory": "IVF16,SQfp16", "dtype": "float16"}, False),
    ],
)
def test_float16_only_where_the_vectors_lose_nothing(summary: dict[str, Any], half: bool) -> None:
    assert is_half(summary) is half


def test_a_k_that_a_gpu_does_not_find() -> None:
    assert [takes_cpu(k, 1, False) for k in (2_048, 2_049)] == [False, True]
    assert [takes_cpu(k, 1, True) for k in (2_032, 2_033)] == [False, True]
    assert not takes_cpu(4_000, 8, True), "each shard is first asked for a part"


def summary(factory: str, dtype: str = "float32", rows: int = 1_000_000, shards: int = 1) -> dict[str, Any]:
    ranges = [(at * rows // shards, (at + 1) * rows // shards) for at in range(shards)]
    return {"kind": "faiss", "factory": factory, "dimension": 768, "dtype": dtype, "shards": ranges}


def test_the_memory_of_a_copy() -> None:
    rows = 1_000_000
    assert copy_bytes(summary("Flat"), rows) == rows * (4 * 768 + 4)
    assert copy_bytes(summary("Flat", "float16"), rows) == rows * (2 * 768 + 4)
    assert copy_bytes(summary("SQfp16"), rows) == rows * (2 * 2 * 768 + 4), "twice while its array grows"
    lists = copy_bytes(summary("IVF4096,SQfp16"), rows)
    assert lists - size_of("IVF4096,SQfp16", 768).of(rows) == 4096 * (1_024 + 16 * (2 * 768 + 8))


def test_temporary_memory_is_divided() -> None:
    assert [temporary_bytes(n) // 2**20 for n in (1, 2, 3, 6, 100)] == [1536, 768, 512, 256, 256]


@pytest.mark.parametrize(
    ("shards", "replicas", "gpus", "sharing"),
    [(1, 1, 1, 1), (4, 1, 4, 1), (4, 1, 8, 1), (5, 1, 4, 2), (8, 1, 1, 8), (4, 2, 3, 3), (1, 3, 2, 2)],
)
def test_as_few_actors_share_a_gpu_as_find_a_place(shards: int, replicas: int, gpus: int, sharing: int) -> None:
    assert sharing_of([GIB] * shards, replicas, [80 * GIB] * gpus, "index") == sharing
    assert gpus * int(1 / share(sharing)) >= shards * replicas, "as Ray counts"


def test_a_share_is_what_ray_can_count() -> None:
    for sharing in range(1, 200):
        assert share(sharing) * sharing <= 1
        assert round(share(sharing) * 10_000) == 10_000 // sharing


def test_a_gpu_with_too_little_memory_is_refused() -> None:
    sharing_of([13 * GIB], 1, [16 * GIB], "index")
    with pytest.raises(
        InputError,
        match=r"an actor needs 17.0 GiB of its memory, and the smallest of 2 has 16.0 GiB; index with more shards, .*leave gpu out",
    ):
        sharing_of([15 * GIB], 1, [24 * GIB, 16 * GIB], "index")
    with pytest.raises(InputError, match=r"4 actors share a GPU and need .* has 16.0 GiB; use more GPUs, .* fewer replicas"):
        sharing_of([4 * GIB] * 4, 2, [16 * GIB] * 2, "index")


def test_what_nvidia_smi_prints() -> None:
    assert parsed("81559\n16384\n") == [81_559 * 2**20, 16 * GIB]
    assert parsed("") == parsed("[N/A]\n") == []


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Nodes of 4 and 2 GPUs of 16 and 80 GiB, of which some are claimed; as Ray lists them."""
    nodes = [{"NodeID": name, "Alive": True, "Resources": {"GPU": float(count)}} for name, count in (("v100", 4), ("h100", 2))]
    found: dict[str, Any] = {"free": {"v100": 4.0, "h100": 2.0}, "memory": {"v100": 16 * GIB, "h100": 80 * GIB}}
    monkeypatch.setattr("ray.nodes", lambda: nodes)
    monkeypatch.setattr(gpu_nodes, "autoscales", lambda: False)
    monkeypatch.setattr(gpu_nodes, "_RELEASE_S", 0.0)
    monkeypatch.setattr(gpu_nodes, "free_by_node", lambda: {name: {"GPU": free} for name, free in found["free"].items()})
    monkeypatch.setattr(gpu_nodes, "_memory_of", lambda node, count: [found["memory"][node]] * count)
    return found


def test_a_pool_takes_the_gpus_that_are_free(cluster: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    index = Draft.open(tmp_path / "index", "index", {}).finish(0, **summary("Flat", "float16", 8_000_000, 8))
    assert plan_gpus(index, 1) == 2
    assert "on 6 GPUs of 16.0 GiB, 2 actors on each, at most 2.7 GiB an actor" in capsys.readouterr().err
    cluster["free"] = {"v100": 0.5, "h100": 1.0}
    assert plan_gpus(index, 1) == 8
    cluster["free"] = {"v100": 1.5, "h100": 0.0}
    with pytest.raises(InputError, match=r"8 actors share a GPU and need"):
        plan_gpus(index, 1)
    cluster["free"] = {"v100": 0.0, "h100": 0.9}
    with pytest.raises(InputError, match="others have claimed all GPUs"):
        plan_gpus(index, 1)
    cluster |= {"free": {"v100": 1.0}, "memory": {"v100": gpu_nodes._UNKNOWN}}
    assert plan_gpus(index, 1) == 8
    assert "whose memory nvidia-smi does not report" in capsys.readouterr().err


def rounded(queries: np.ndarray) -> np.ndarray:
    return queries.astype(np.float16).astype(np.float32)


def test_the_bound_holds_for_queries_rounded_to_float16() -> None:
    rng = np.random.default_rng(3)
    for scale in (1e-6, 1e-3, 1.0, 100.0):
        queries = (scale * rng.standard_normal((200, 64)) * (rng.random((200, 64)) < 0.2)).astype(np.float32)
        towards = np.sign(rounded(queries).astype(np.float64) - queries)  # the worst passages: all errors add up
        passages = np.concatenate([rng.standard_normal((500, 64)), towards]).astype(np.float16).astype(np.float64)
        largest = float(np.linalg.norm(passages, axis=1).max())
        errors = np.abs(rounded(queries).astype(np.float64) @ passages.T - queries.astype(np.float64) @ passages.T)
        assert (errors.max(axis=1) <= rounding_bound(queries, largest, half=True)).all()
    assert (rounding_bound(queries, largest) < rounding_bound(queries, largest, half=True)).all()


class Half:
    """Searches as FAISS does on a GPU in float16: queries are rounded, sums are not."""

    def __init__(self, index: Any) -> None:
        self.index, self.asked = index, []

    def search(self, queries: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray]:
        self.asked.append(k)
        return self.index.search(rounded(queries), k)


def test_rounded_queries_change_no_hit(tmp_path: Path) -> None:
    """4,000 near vectors: many scores lie closer together than the rounding."""
    rng = np.random.default_rng(1)
    vectors = (rng.standard_normal(32) + 0.02 * rng.standard_normal((4_000, 32))).astype(np.float32)
    index = faiss.index_factory(32, "SQfp16", faiss.METRIC_INNER_PRODUCT)
    faiss.write_index(index, str(tmp_path / "empty.faiss"))
    index.add(vectors)
    faiss.write_index(index, str(tmp_path / "shard.faiss"))
    shard = FaissShard(str(tmp_path / "shard.faiss"), 0, 1)
    queries = (vectors[:40] + 0.1 * rng.standard_normal((40, 32))).astype(np.float32)
    wanted = shard.exact(queries, 10, rounding_bound(queries, 9.0))
    half = Half(shard.index)
    shard._on_gpu, shard._half = half, True
    rough = order_hits(*shard.nearest(queries, 10, True), 10)
    assert (rough[1] != wanted[1]).any(), "without the bound hits are lost"
    found = shard.exact(queries, 10, rounding_bound(queries, 9.0, half=True))
    np.testing.assert_array_equal(found[1], wanted[1])
    np.testing.assert_array_equal(found[0], wanted[0])
    shard.exact(queries, 1_000, rounding_bound(queries, 9.0, half=True))
    assert half.asked[-1] == gpu.LARGEST_K, "no more than a GPU finds"
    shard.nearest(queries, gpu.LARGEST_K + 1)
    shard.nearest(queries * 1e6, 10)
    assert half.asked[-1] == gpu.LARGEST_K, "the CPU takes a larger k, and queries too large for float16"
