"""How near a retriever's positives are to their queries, and to the passages that it confuses them with (PAIR, figure 4)."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from raydense.data.store import PassageStore
from raydense.data.tables import query_positions
from raydense.evaluation.metrics import Judgements
from raydense.evaluation.runs import MeasuredRun
from raydense.runtime.progress import say
from raydense.storage import fingerprint_of

if TYPE_CHECKING:
    from raydense.models.dual_encoder import DualEncoder

_QUERIES, _NEGATIVES = 100, 10
_TOKENS = 4096
_RETRIEVER = "retriever"  # of a folder that holds it and a re-ranker


def similarities(
    runs: list[MeasuredRun], models: dict[str, Path], judgements: Judgements, queries: pa.Table, store: PassageStore
) -> dict[str, dict[str, Any]]:
    """For each run that one of `models` found: what its s(p+, q) and s(p+, p-) are, mean and standard deviation over the pairs.

    A sample of what the paper has, which takes the first 100 passages of every query: at most 100 judged queries, evenly chosen;
    p+ is the positive of the highest grade, p- each of the first 10 passages of the run that are not known positives, nor of p+'s
    text. `nearer` is the share of pairs where s(p+, q) is above s(p+, p-), which is what the passage-centric loss asks for (eq. 4).
    """
    retrievers = {fingerprint_of(folder): folder for model in models.values() for folder in (model, model / _RETRIEVER) if folder.is_dir()}
    found = {}
    for run in runs:
        made_from = run.artifact.manifest["made_from"]
        folder = retrievers.get(made_from["inputs"].get("model", "")) if made_from.get("stage") == "search" else None
        triples = _triples(run, judgements, store) if folder else []
        if folder and triples:
            say(f"evaluate: {run.name}: encoding the positives and negatives of {len(triples):,} queries")
            found[run.name] = _similarity(folder, triples, queries, store)
    return found


def _triples(run: MeasuredRun, judgements: Judgements, store: PassageStore) -> list[tuple[str, int, NDArray[np.int64]]]:
    """Query id, row of p+, and rows of its p-."""
    asked = judgements.with_positive
    chosen = [int(asked[int(at)]) for at in np.unique(np.linspace(0, len(asked) - 1, _QUERIES).round())] if len(asked) else []
    triples = []
    for query in chosen:
        grades = judgements.grades(query)
        positive = [p for p, grade in grades.items() if grade >= 1]
        row = int(store.rows_of(pa.array([max(positive, key=lambda p: grades[p])], pa.string()))[0])
        hits = store.rows_of(run.hits(query)["passage_id"])
        known = store.rows_of(pa.array(positive, pa.string()))
        others = hits[(hits >= 0) & ~np.isin(hits, known)]
        if row >= 0 and len(others := others[store.text_hash[others] != store.text_hash[row]]):
            triples.append((judgements.query_ids[query].as_py(), row, others[:_NEGATIVES]))
    return triples


def _similarity(folder: Path, triples: list[tuple[str, int, NDArray[np.int64]]], queries: pa.Table, store: PassageStore) -> dict[str, Any]:
    from raydense.models.dual_encoder import DualEncoder  # only here: importing torch takes seconds

    model = DualEncoder.load(folder)
    asked, positives, others = zip(*triples, strict=True)
    at = query_positions(pa.array(asked, pa.string()), queries, "qrels")
    q = _vectors(model, queries["text"].take(pa.array(at)).to_pylist(), "queries")
    rows, place = np.unique(np.concatenate([positives, *others]), return_inverse=True)
    p = _vectors(model, store.passages(rows), "passages")[place]
    of = np.repeat(np.arange(len(triples)), [len(rows) for rows in others])
    positive, negative = p[: len(triples)], p[len(triples) :]
    to_query = np.einsum("nd,nd->n", positive, q)
    to_negative = np.einsum("nd,nd->n", positive[of], negative)
    return {
        "queries": len(triples),
        "pairs": len(of),
        "s(p+,q)": {"mean": _figure(to_query.mean()), "spread": _figure(to_query.std())},
        "s(p+,p-)": {"mean": _figure(to_negative.mean()), "spread": _figure(to_negative.std())},
        "nearer": float(np.mean(to_query[of] > to_negative)),
    }


def _figure(value: np.floating) -> float:
    """Rounded, since another processor adds up in another order."""
    return float(f"{value:.5g}")


def _vectors(model: DualEncoder, texts: list[str], side: str) -> NDArray[np.float32]:
    import torch

    from raydense.models.tokens import batches_by_token_budget

    tokens = model.tokenize_queries(texts) if side == "queries" else model.tokenize_passages(texts)
    found = np.empty((len(texts), model.dimension), np.float32)
    encode = model.encode_queries if side == "queries" else model.encode_passages
    for batch in batches_by_token_budget(tokens.lengths, _TOKENS):
        with torch.inference_mode():
            found[batch] = encode(tokens.select(batch).pad(model.tokenizer.pad_id)).numpy()
    return found
