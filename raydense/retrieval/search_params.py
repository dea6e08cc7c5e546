"""Search parameters of a FAISS index: those that it has by default, and the one that it needs; read off the factory string, without FAISS."""

from __future__ import annotations

import re
from typing import Any

from raydense.errors import InputError

KEY = "search_params"
_K_FACTOR = 10  # FAISS's own 1 refines only the k that were found, which changes their order, but finds nothing more


def with_defaults(search_params: str, factory: str, **chosen: Any) -> str:
    """The search parameters of an index of `factory`: `search_params` as given, before them what they leave open.

    That is what was `chosen` for the index, and `k_factor_rf=10` for one that refines its hits.
    """
    defaults = {**chosen, "k_factor_rf": _K_FACTOR} if re.search(r"Refine|RFlat", factory) else chosen
    given = _names(search_params)
    left = [f"{name}={value}" for name, value in defaults.items() if name not in given]
    return ",".join([*left, *([search_params] if search_params else [])])


def _names(search_params: str) -> set[str]:
    return {given.partition("=")[0].strip() for given in search_params.split(",")}


def require_nprobe(factory: str, search_params: str) -> None:
    """InputError if an index of inverted lists would be searched without `nprobe`.

    FAISS would probe one list: of 20,000 passages in `IVF256,Flat` such a search finds 0.016 of the best 100.
    """
    lists = any(part.startswith(("IVF", "IMI")) for part in re.split(r"[,()]", factory))
    if lists and "nprobe" not in _names(search_params):
        what = f"none was chosen for this index {factory}, and FAISS's own 1 finds next to nothing"
        raise InputError(f"nprobe is missing: {what}", KEY, "give --search-params nprobe=32, or index again with a recall")
