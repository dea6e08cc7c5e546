"""The vectors that a search asks with: those that were given, or what the pool of `encode` makes of the queries."""

from __future__ import annotations

import pyarrow as pa

from raydense.data.tables import commit_table
from raydense.errors import InputError
from raydense.inference.encode import encode
from raydense.inference.query_encoder import QUERY_TOKENS
from raydense.inference.settings import EncodeSettings
from raydense.retrieval.vectors import Vectors
from raydense.storage import Artifact, Draft, Place, fingerprint_of


def check_model(model: str | None, index: Artifact) -> None:
    """InputError unless `model` is the retriever whose vectors `index` holds, or None for a BM25 index."""
    if index.summary["kind"] == "bm25":
        if model:
            raise InputError("a BM25 index needs no model", "model", "leave it out, or give an index of kind faiss")
        return
    if not model:
        raise InputError("missing", "model", "give the retriever that the embeddings of this index were made with")
    here, wanted = fingerprint_of(model), index.summary["model"]
    if here != wanted:
        what = f"is not the model of this index (fingerprint {here[:12]}, the embeddings have {wanted[:12]})"
        raise InputError(what, model, "give that model, or encode and index with this one")


def check_vectors(vectors: str, queries: str, index: Artifact) -> None:
    """InputError unless `vectors` are those of `queries`, made by the model whose vectors `index` holds, in its dimension."""
    if index.summary["kind"] == "bm25":
        raise InputError("a BM25 index needs no vectors", "vectors", "leave them out, or give an index of kind faiss")
    of = Vectors(vectors, of="queries").artifact.summary
    if of["queries"] != fingerprint_of(queries):
        raise InputError("are of other queries", vectors, f"encode the queries in {queries} with the model of the index")
    for key, what in (("model", "were made by another model than the index's"), ("dimension", "are of another dimension than the index's")):
        if of[key] != index.summary[key]:
            raise InputError(
                f"{what} ({str(of[key])[:12]}, not {str(index.summary[key])[:12]})", vectors, "encode the queries as the passages"
            )


def query_vectors(place: Place, model: str, queries: pa.Table, index: Artifact, background: bool = False) -> Vectors:
    """The vectors of `queries` (query_id, text), in their order, by the actor pool of `encode`; made in `place`, or found there.

    In the background they are encoded on CPUs. InputError where `model` is not the retriever of `index` any more.
    """
    asked = Draft.open(place / "queries", "queries", {"stage": "search"})
    if not asked.done:
        commit_table(asked, "queries.parquet", queries)
        asked.finish(len(queries))
    made = encode(
        EncodeSettings.read(
            {
                "output": place / "vectors",
                "model": model,
                "queries": place / "queries",
                "dimension": index.summary["dimension"],
                "dtype": "float32",
                "precision": "fp32",
                "token_budget": QUERY_TOKENS,
                **({"gpus_per_actor": 0} if background else {}),
            }
        )
    )
    if made.summary["model"] != index.summary["model"]:
        raise InputError("is not the model of this index any more", model, "leave inputs as they are while a stage runs")
    return Vectors(made, of="queries")
