"""What the processor of this machine computes fast."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path


@cache
def cpuinfo() -> str:
    """What the kernel says of the processor; empty where it says nothing."""
    file = Path("/proc/cpuinfo")
    return file.read_text() if file.exists() else ""


def gains_by_bf16(described: str) -> bool:
    """Whether the CPU that /proc/cpuinfo describes multiplies matrices in bf16 faster than in fp32.

    Those with AMX do, and AMD's with AVX-512 BF16. With that alone Intel's do not (docs/benchmarks/speed.md).
    """
    flags = set(re.findall(r"^flags\s*:(.*)$", described, re.M)[0].split()) if "\nflags" in described else set()
    return "amx_bf16" in flags or ("avx512_bf16" in flags and "AuthenticAMD" in described)
