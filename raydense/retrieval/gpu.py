"""What FAISS takes to a GPU, and the memory that it takes there: rules that need neither FAISS's GPU build nor a GPU.

Read from FAISS 1.15's faiss/gpu: GpuCloner.cpp (which indexes), impl/IndexUtils.cu (k and nprobe), impl/IVFPQ.cu (code sizes),
impl/FlatIndex.cu (half precision), StandardGpuResources.cpp (temporary memory). Flat, SQfp16, IVF of both, and of PQ64 have run on a GPU.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

from raydense.errors import InputError
from raydense.forecast import lists_of
from raydense.retrieval.merge import first_share
from raydense.runtime.progress import size

LARGEST_K = 2_048  # also the largest nprobe
LARGEST_HALF = 65_504.0
_PQ_BYTES = (1, 2, 3, 4, 8, 12, 16, 20, 24, 28, 32, 40, 48, 56, 64, 96)
_PQ_FLOAT32 = 48  # more need look-up tables in float16: 48 KiB of shared memory hold 256 float32 of each sub-quantiser
_TEMPORARY, _LEAST_TEMPORARY = 1536 * 2**20, 256 * 2**20
_CONTEXT = 512 * 2**20  # of CUDA, in each process
_LIST_BYTES, _GROUP = 1_024, 32  # each inverted list has two allocations; its codes are kept by groups of 32 vectors
_MOVED = r"(?:(?:PCA[RW]*|OPQ|RR|ITQ|HR)[\d_]*,)*(Flat|SQfp16|IVF\d+,Flat|IVF\d+,SQ(?:4|6|8|fp16)|IVF\d+,PQ(\d+)(?:x8)?(?:np)?)"
_FIX = "index with Flat, SQfp16, IVF4096,Flat, IVF4096,SQfp16 or IVF4096,PQ64, or leave gpu out"


def check_gpu_index(factory: str, search_params: str = "") -> None:
    """InputError if an index of `factory`, searched with `search_params`, does not go to a GPU: FAISS would search a copy on the CPU, or stop."""
    found = re.fullmatch(_MOVED, factory)
    if not found:
        raise InputError(f"FAISS has no {factory} for GPUs", "gpu", _FIX)
    if found[2] and int(found[2]) not in _PQ_BYTES:
        raise InputError(
            f"FAISS's GPUs take no codes of {found[2]} bytes", "gpu", f"PQ of {', '.join(map(str, _PQ_BYTES))}, or leave gpu out"
        )
    nprobe = re.search(r"(?:^|,)\s*nprobe\s*=\s*(\d+)", search_params)
    if nprobe and int(nprobe[1]) > LARGEST_K:
        what = f"nprobe is {int(nprobe[1]):,}, and FAISS's GPUs take at most {LARGEST_K:,}"
        raise InputError(what, "gpu", "give --search-params nprobe=2048 or less, index with more lists, or leave gpu out")


def is_half(summary: Mapping[str, Any]) -> bool:
    """Whether a GPU holds the vectors of this index in float16, without loss: they are of float16 already. FAISS then rounds queries too."""
    factory = summary["factory"]
    return factory == "SQfp16" or (factory == "Flat" and summary.get("dtype") == "float16")


def has_half_tables(factory: str) -> bool:
    """Whether an index of PQ codes needs its look-up tables in float16 on a GPU."""
    codes = re.search(r",PQ(\d+)", factory)
    return codes is not None and int(codes[1]) > _PQ_FLOAT32


def takes_cpu(k: int, shards: int, exact: bool) -> bool:
    """Whether a search of `k` asks a shard for more hits than FAISS finds on a GPU, so that the CPU searches."""
    return (first_share(k, shards) if exact else k) > LARGEST_K


def copy_bytes(summary: Mapping[str, Any], rows: int) -> int:
    """The most memory of a GPU that a shard of `rows` vectors takes while it is loaded, without FAISS's temporary memory."""
    factory, dimension = summary["factory"], summary["dimension"]
    if is_half(summary):
        vectors = rows * dimension * 2
        return 4 * rows + (2 * vectors if factory == "SQfp16" else vectors)  # decoded block by block, its array grows
    from raydense.retrieval.faiss_size import size_of

    every, lists = size_of(factory, dimension), lists_of(factory)
    if not lists:
        return every.of(rows) + 4 * rows
    return every.of(rows) + lists * (_LIST_BYTES + math.ceil(every.vector * _GROUP / 2))


def temporary_bytes(sharing: int) -> int:
    """FAISS's temporary memory in each of the actors that share a GPU: its default for one of more than 8 GiB, divided by them."""
    return max(_LEAST_TEMPORARY, _TEMPORARY // sharing)


def actor_bytes(copy: int, sharing: int) -> int:
    """The memory of a GPU for one of the actors that share it."""
    return copy + _CONTEXT + temporary_bytes(sharing)


def sharing_of(copies: Sequence[int], replicas: int, gpus: Sequence[int], where: str) -> int:
    """How many actors share a GPU: as few as the `gpus`, the bytes of each, allow. InputError if they have too little memory.

    `copies` are the bytes of each shard's copy.
    """
    actors = len(copies) * replicas
    sharing = math.ceil(actors / len(gpus))
    each, least = actor_bytes(max(copies), sharing), min(gpus)
    if each * sharing <= least:
        return sharing
    shared = f"{sharing} actors share a GPU and need" if sharing > 1 else "an actor needs"
    what = f"{shared} {size(each * sharing)} of its memory, and the smallest of {len(gpus)} has {size(least)}"
    fixes = ["use more GPUs" if sharing > 1 else "index with more shards", "index with SQfp16, IVF4096,SQ8 or IVF4096,PQ64"]
    fixes += ["fewer replicas"] if replicas > 1 else []
    raise InputError(what, where, ", ".join([*fixes, "or leave gpu out"]))


def share(sharing: int) -> float:
    """The part of a GPU that an actor claims of Ray, which counts in ten-thousandths."""
    return 10_000 // sharing / 10_000
