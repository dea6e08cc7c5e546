"""The memory allocator of workers that compute on CPUs: the jemalloc that Ray ships, set to keep freed pages."""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path

_FILE = "core/libjemalloc.so"
# -1: freed pages are never given back. A training step frees and takes gigabytes, and the kernel would zero each page again.
# 20: a small allocation may take a part of a kept extent up to 2^20 times as large. jemalloc's own 64 times leaves large extents
# unused: an actor of `encode` grew by 35 MB a file, to 7.3 GB over 21 million passages.
_KEEPS_PAGES = "dirty_decay_ms:-1,muzzy_decay_ms:-1,lg_extent_max_active_fit:20"


def shipped() -> Path | None:
    """The jemalloc that Ray ships here."""
    spec = importlib.util.find_spec("ray")
    library = Path(spec.origin).parent / _FILE if spec and spec.origin else None
    return library if library and library.is_file() else None


def can_be_preloaded(library: Path) -> bool:
    """Whether LD_PRELOAD can name it: the loader cuts the variable at blanks and colons, and knows no escape."""
    return not set(" :") & set(str(library))


def cpu_worker_env() -> dict[str, str]:
    """The environment of a worker that computes on CPUs: jemalloc preloaded, where Ray ships it in a folder whose path can be.

    Empty if LD_PRELOAD is set for this process, even to nothing: the user has then chosen an allocator. A given MALLOC_CONF is kept.
    """
    library = shipped()
    if "LD_PRELOAD" in os.environ or library is None or not can_be_preloaded(library):
        return {}
    return {"LD_PRELOAD": str(library), "MALLOC_CONF": os.environ.get("MALLOC_CONF", _KEEPS_PAGES)}
