"""FAISS multiplies matrices with the CPU's vector instructions in whatever module of raydense loads it first."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from raydense.retrieval.faiss_library import KERNELS, kernels_for

CORE = """
import ctypes, importlib, sys
importlib.import_module(sys.argv[1])
(library,) = {line.split()[-1] for line in open("/proc/self/maps") if "faiss" in line and "openblas" in line}
core = ctypes.CDLL(library).openblas_get_corename
core.restype = ctypes.c_char_p
print(core().decode())
"""


@pytest.mark.parametrize("module", ["faiss_build", "nprobe"])
def test_every_module_loads_faiss_with_kernels_for_the_cpu(module: str) -> None:
    flags = set(next((line for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("flags")), "").split())
    expected = kernels_for(flags)
    if expected is None:
        pytest.skip("a CPU without AVX2")
    environment = {name: value for name, value in os.environ.items() if name != KERNELS}
    words = [sys.executable, "-c", CORE, f"raydense.retrieval.{module}"]
    assert subprocess.run(words, env=environment, capture_output=True, text=True, check=True).stdout.strip() == expected
