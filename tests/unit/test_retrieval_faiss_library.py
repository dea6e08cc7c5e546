"""The kernels of OpenBLAS that a CPU gets, and who sees the variable that chooses them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from raydense.retrieval.faiss_library import KERNELS, kernels_chosen, kernels_for

AVX512 = "flags\t\t: fpu avx2 fma avx512f avx512dq avx512cd avx512bw avx512vl\n"


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        ("avx2 fma avx512f avx512dq avx512cd avx512bw avx512vl", "SkylakeX"),
        ("avx2 fma avx512f", "Haswell"),
        ("avx2", None),
        ("", None),
    ],
)
def test_kernels_use_what_the_cpu_has(flags: str, expected: str | None) -> None:
    assert kernels_for(set(flags.split())) == expected


@pytest.mark.parametrize(("cpuinfo", "given", "seen"), [(AVX512, None, "SkylakeX"), (AVX512, "Haswell", "Haswell"), ("", None, None)])
def test_only_what_is_loaded_meanwhile_sees_the_variable(
    cpuinfo: str, given: str | None, seen: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Path, "read_text", lambda self: cpuinfo)
    monkeypatch.delenv(KERNELS, raising=False)
    if given:
        monkeypatch.setenv(KERNELS, given)
    with kernels_chosen():
        assert os.environ.get(KERNELS) == seen
    assert os.environ.get(KERNELS) == given
