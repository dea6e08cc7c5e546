"""How near a retriever's positives are to their queries, and to the passages that it confuses them with (PAIR, figure 4)."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
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
    ids = judgements.query_ids.to_pylist()
    positive = {q: [p for p, grade in judgements.judged[q].items() if grade >= 1] for q in ids}
    asked = [q for q in ids if positive[q]]
    chosen = [asked[int(at)] for at in np.unique(np.linspace(0, len(asked) - 1, _QUERIES).round())] if asked else []
    best = [max(positive[q], key=lambda p: judgements.judged[q][p]) for q in chosen]
    rows = store.rows_of(pa.array(best, pa.string()))
    triples = []
    for query, row in zip(chosen, rows.tolist(), strict=True):
        hits = store.rows_of(run.hits.filter(pc.equal(run.hits["query_id"], query))["passage_id"])
        known = store.rows_of(pa.array(positive[query], pa.string()))
        others = hits[(hits >= 0) & ~np.isin(hits, known)]
        if row >= 0 and len(others := others[store.text_hash[others] != store.text_hash[row]]):
            triples.append((query, row, others[:_NEGATIVES]))
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
