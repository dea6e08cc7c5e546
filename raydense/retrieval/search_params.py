"""Search parameters of a FAISS index: those that an index brings, and those that are given; the factory string is checked without FAISS."""

from __future__ import annotations

import re
from typing import Any

from raydense.errors import InputError
from raydense.storage import Artifact

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


def index_params(index: Artifact, search_params: str) -> str:
    """What `index` is searched with where `search_params` are given: also the `nprobe` that was chosen when it was made."""
    if index.summary["kind"] == "bm25":
        return ""
    chosen = {"nprobe": index.summary["nprobe"]} if "nprobe" in index.summary else {}
    return with_defaults(search_params, index.summary["factory"], **chosen)


def _names(search_params: str) -> set[str]:
    return {given.partition("=")[0].strip() for given in search_params.split(",")}


def _require_nprobe(factory: str, search_params: str) -> None:
    """InputError if an index of inverted lists would be searched without `nprobe`.

    FAISS would probe one list: of 20,000 passages in `IVF256,Flat` such a search finds 0.016 of the best 100.
    """
    lists = any(part.startswith(("IVF", "IMI")) for part in re.split(r"[,()]", factory))
    if lists and "nprobe" not in _names(search_params):
        what = f"none was chosen for this index {factory}, and FAISS's own 1 finds next to nothing"
        raise InputError(f"nprobe is missing: {what}", KEY, "give --search-params nprobe=32, or index again with a recall")


def check_search_params(index: Artifact, search_params: str) -> None:
    """InputError if `index` cannot be searched with these parameters, or needs one that is missing."""
    if index.summary["kind"] == "bm25":
        if search_params:
            raise InputError("BM25 has no search parameters", KEY, "leave them out")
        return
    used = index_params(index, search_params)
    _require_nprobe(index.summary["factory"], used)
    if used:
        from raydense.retrieval.faiss_library import faiss
        from raydense.retrieval.faiss_shard import set_search_params

        set_search_params(faiss.read_index(str(index.file("empty.faiss"))), used)
