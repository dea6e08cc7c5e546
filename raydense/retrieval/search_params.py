"""Checks the search parameters of a FAISS index; the factory string is checked first, which needs no FAISS."""

from __future__ import annotations

import re

from raydense.errors import InputError
from raydense.storage import Artifact

KEY = "search_params"


def require_nprobe(factory: str, search_params: str, key: str = KEY) -> None:
    """InputError if an index of inverted lists would be searched without `nprobe`.

    FAISS would probe one list: of 20,000 passages in `IVF256,Flat` such a search finds 0.016 of the best 100.
    """
    lists = any(part.startswith(("IVF", "IMI")) for part in re.split(r"[,()]", factory))
    if lists and "nprobe" not in {given.partition("=")[0].strip() for given in search_params.split(",")}:
        what = (
            f"an index {factory} is searched with nprobe, the number of lists that a query looks into: FAISS's own 1 finds next to nothing"
        )
        raise InputError(what, key, f"give --{key.replace('_', '-')} nprobe=32, or more for a higher recall at a lower speed")


def check_search_params(index: Artifact, search_params: str) -> None:
    """InputError if `index` cannot be searched with these parameters, or needs one that is missing."""
    if index.summary["kind"] == "bm25":
        if search_params:
            raise InputError("BM25 has no search parameters", KEY, "leave them out")
        return
    require_nprobe(index.summary["factory"], search_params)
    if search_params:
        import faiss

        from raydense.retrieval.faiss_shard import set_search_params

        set_search_params(faiss.read_index(str(index.file("empty.faiss"))), search_params)
