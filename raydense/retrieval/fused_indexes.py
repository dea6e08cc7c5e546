"""Several indexes of one corpus that are searched as one: how their hits are fused, and whether they belong together."""

from __future__ import annotations

from collections.abc import Sequence

from raydense.errors import InputError
from raydense.retrieval.fusion_rule import Fusion
from raydense.retrieval.kind import kind_of
from raydense.retrieval.settings import KINDS
from raydense.storage import Artifact


def fusion_of_indexes(
    indexes: Sequence[Artifact], names: Sequence[str], fuse: str | None, model: str | None, search_params: str
) -> Fusion | None:
    """How the hits of the indexes are fused, by the fused run `fuse` or by reciprocal ranks; None for one index.

    InputError where they are of different corpora, or others than the fused run's, or where all are asked by texts and model or search
    parameters are given.
    """
    if len(indexes) == 1:
        return None
    if len({index.summary["corpus"] for index in indexes}) > 1:
        raise InputError("the indexes are of different corpora", "index", "give indexes of one corpus")
    if not any(kind_of(index).encoded for index in indexes):
        if model:
            raise InputError("no index of these needs a model", "model", "leave it out, or give an index of kind faiss")
        for index in indexes:
            kind_of(index).check_params(search_params)
    if not fuse:
        return Fusion.reciprocal(len(indexes))
    fusion = Fusion.of(fuse, names)
    for number, (index, (run, kind)) in enumerate(zip(indexes, fusion.kinds.items(), strict=True), 1):
        if kind and kind not in KINDS:
            what = f"its run {run!r} was made by {kind}, and so has other scores than an index"
            raise InputError(what, fuse, "fuse runs that `raydense search` made")
        if kind and kind != (here := index.summary["kind"]):
            what = f"its run {run!r} is of kind {kind}, and index {number} of kind {here}"
            raise InputError(what, fuse, "give the indexes in the order of the runs, or by their names")
    return fusion


def asked_without_model(index: Artifact, of: int) -> bool:
    """Whether one of `of` indexes is asked by texts, without model, vectors and search parameters, although they are given: they are for the others."""
    return of > 1 and not kind_of(index).encoded
