"""FAISS, with kernels of its OpenBLAS that fit the CPU. Everything imports `faiss` from here, since the kernels are chosen when it loads.

The OpenBLAS in FAISS's wheels (0.3.15, of 2021) does not know newer CPUs: on an AMD Zen 5 and an Intel Sapphire Rapids it uses SSE.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import numpy as np  # noqa: F401  it comes with an OpenBLAS of its own, a newer one that chooses well

KERNELS = "OPENBLAS_CORETYPE"
_AVX2 = {"avx2", "fma"}
_AVX512 = {"avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl"}


def kernels_for(flags: set[str]) -> str | None:
    """The kernels of OpenBLAS for a CPU with these flags of /proc/cpuinfo; None: what OpenBLAS finds."""
    if flags >= _AVX512:
        return "SkylakeX"
    return "Haswell" if flags >= _AVX2 else None


@contextmanager
def kernels_chosen() -> Iterator[None]:
    """While an OpenBLAS is loaded: the variable that it reads, unless it is set; other libraries and processes do not see it."""
    flags: set[str] = set()
    with suppress(OSError):
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        flags = set(next((line for line in lines if line.startswith("flags")), "").split())
    kernels = None if KERNELS in os.environ else kernels_for(flags)
    if kernels:
        os.environ[KERNELS] = kernels
    try:
        yield
    finally:
        if kernels:
            del os.environ[KERNELS]


with kernels_chosen():
    import faiss as faiss

# whether the threshold of `prefer_blas` counts the numbers of all queries, as from FAISS 1.15 on, or queries: found by its default, before that is changed
COUNTS_NUMBERS: bool = faiss.cvar.distance_compute_blas_threshold > 1_000
