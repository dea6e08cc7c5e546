"""Copies an index to the GPU of this process, in float16 where that loses nothing; `gpu` holds the rules."""

from __future__ import annotations

from typing import Any

from raydense.retrieval.faiss_fill import is_exact
from raydense.retrieval.faiss_library import faiss
from raydense.retrieval.gpu import has_half_tables

_BLOCK_BYTES = 256 * 2**20  # of decoded vectors; at each block the array on the GPU grows


def has_gpu_support() -> bool:
    """Whether the installed FAISS is one for GPUs."""
    return hasattr(faiss, "StandardGpuResources")


def to_gpu(index: Any, factory: str, half: bool, temporary: int, search_params: Any) -> Any:
    """A copy of `index` on GPU 0 of this process, which Ray chose, with so many bytes of temporary memory.

    FAISS's own kernels, without cuVS: the limits in `gpu` are theirs.
    """
    resources = faiss.StandardGpuResources()
    resources.setTempMemory(temporary)
    if is_exact(index):
        return _flat(resources, index, half)
    options = faiss.GpuClonerOptions()
    options.use_cuvs, options.useFloat16 = False, has_half_tables(factory)
    moved = faiss.index_cpu_to_gpu(resources, 0, index, options)
    if search_params:
        faiss.GpuParameterSpace().set_index_parameters(moved, search_params)
    return moved


def _flat(resources: Any, index: Any, half: bool) -> Any:
    """A flat index with the same vectors.

    FAISS's own copy of a flat index to float16 holds the vectors in float32 next to it; `add` takes them in parts.
    """
    config = faiss.GpuIndexFlatConfig()
    config.useFloat16, config.use_cuvs = half, False
    moved = faiss.GpuIndexFlat(resources, index.d, index.metric_type, config)
    if isinstance(index, faiss.IndexFlat):
        moved.add(faiss.rev_swig_ptr(index.get_xb(), index.ntotal * index.d).reshape(index.ntotal, index.d))
        return moved
    step = max(1, _BLOCK_BYTES // (4 * index.d))
    for start in range(0, index.ntotal, step):
        moved.add(index.reconstruct_n(start, min(step, index.ntotal - start)))
    return moved
