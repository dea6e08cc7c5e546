"""How near a retriever's positives are to their queries, and to the passages that it confuses them with (PAIR, figure 4)."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from raydense.data.store import PassageStore, Rows
from raydense.data.tables import query_positions
from raydense.evaluation.metrics import Judgements, trec_order
from raydense.evaluation.runs import MeasuredRun
from raydense.evaluation.settings import SimilaritySettings
from raydense.inference.settings import QUERY_PROMPT
from raydense.ranges import ranges
from raydense.runtime.progress import Progress
from raydense.storage import fingerprint_of

if TYPE_CHECKING:
    from raydense.models.dual_encoder import DualEncoder

_QUERIES_AT_ONCE, _TEXTS_AT_ONCE, _PAIRS_AT_ONCE = 1_024, 8_192, 65_536
_TOKENS = 4096
_RETRIEVER = "retriever"  # of a folder that holds it and a re-ranker
Vectors = NDArray[np.float32]


class _Pairs(NamedTuple):
    """The rows of p+ of some queries, by their numbers, both int64 [queries]; and of each p- its query's place there and its row, int64 [pairs]."""

    query: Rows
    positive: Rows
    of: Rows
    negative: Rows


def similarities(
    runs: list[MeasuredRun],
    models: dict[str, Path],
    judgements: Judgements,
    queries: pa.Table,
    store: PassageStore,
    settings: SimilaritySettings,
) -> dict[str, dict[str, Any]]:
    """For each run that one of `models` found: what its s(p+, q) and s(p+, p-) are, mean and standard deviation over the pairs.

    The queries are at most `settings.query_sample` of the judged ones, evenly chosen; p+ is the positive of the highest grade, p- each of
    the first `settings.passages` of the run that are not known positives, nor of p+'s text. `nearer` is the share of pairs where
    s(p+, q) is above s(p+, p-), which is what the passage-centric loss asks for (eq. 4). Vectors have the dimension that the run
    records, else the model's own, queries its prompt, and texts the model's lengths. Holds the vectors of 1,024 queries
    and their passages, whatever the number of queries.
    """
    retrievers = {fingerprint_of(folder): folder for model in models.values() for folder in (model, model / _RETRIEVER) if folder.is_dir()}
    found = {}
    for run in runs:
        made_from = run.artifact.manifest["made_from"]
        folder = retrievers.get(made_from["inputs"].get("model", "")) if made_from.get("stage") == "search" else None
        if folder and (measured := _similarity(folder, run, judgements, queries, store, settings)):
            found[run.name] = measured
    return found


def _chosen(judgements: Judgements, most: int) -> Rows:
    """The numbers of the queries: `most` of those that have a positive, evenly chosen, or all of them for 0."""
    asked = judgements.with_positive
    if not most or not len(asked):
        return asked
    return asked[np.unique(np.linspace(0, len(asked) - 1, most).round().astype(np.int64))]


def _pairs(asked: Rows, run: MeasuredRun, judgements: Judgements, store: PassageStore, passages: int) -> _Pairs:
    """The pairs of some queries, whose numbers rise; without those whose p+ the corpus lacks, or that have no p-."""
    judged, ids, grade = judgements.judged(asked)
    judged, ids, grade = judged[grade >= 1], ids.filter(pa.array(grade >= 1)), grade[grade >= 1]
    known, best = store.rows_of(ids), np.lexsort((-grade, judged))
    positive = known[best[np.unique(judged[best], return_index=True)[1]]]
    found = run.places.rows_of(asked)
    hits, number = trec_order(found, judgements.numbers(found["query_id"]))
    at, row = np.searchsorted(asked, number), store.rows_of(hits["passage_id"])
    others = (row >= 0) & (positive[at] >= 0) & ~np.isin(at * len(store) + row, (judged * len(store) + known)[known >= 0])
    at, row = at[others], row[others]
    differs = store.text_hash[row] != store.text_hash[positive[at]]
    at, row = at[differs], row[differs]
    starts = np.flatnonzero(np.append(True, at[1:] != at[:-1])) if len(at) else at
    rank = ranges(np.zeros_like(starts), np.diff(np.append(starts, len(at))))
    kept, of = np.unique(at[rank < passages], return_inverse=True)
    return _Pairs(asked[kept], positive[kept], of, row[rank < passages])


def _similarity(
    folder: Path, run: MeasuredRun, judgements: Judgements, queries: pa.Table, store: PassageStore, settings: SimilaritySettings
) -> dict[str, Any] | None:
    """What the model's similarities are, block by block of the queries; None without a pair."""
    from raydense.models.dual_encoder import DualEncoder  # only here: importing torch takes seconds

    given = run.artifact.manifest["made_from"]["settings"]
    changes = {"dimension": run.artifact.summary.get("dimension"), **{name: given.get(name) for name in QUERY_PROMPT}}
    model, asked = DualEncoder.load(folder, **changes), _chosen(judgements, settings.query_sample)
    found = []
    with Progress("evaluate similarity", len(asked), "queries") as progress:
        for start in range(0, len(asked), _QUERIES_AT_ONCE):
            block = asked[start : start + _QUERIES_AT_ONCE]
            pairs = _pairs(block, run, judgements, store, settings.passages)
            if len(pairs.query):
                at = query_positions(judgements.query_ids.take(pa.array(pairs.query)), queries, "qrels")
                found.append(_scores(model, pairs, queries["text"].take(pa.array(at)).to_pylist(), store))
            progress.add(len(block))
    if not found:
        return None
    to_query, to_negative, nearer = (np.concatenate(column) for column in zip(*found, strict=True))
    return {
        "queries": len(to_query),
        "pairs": len(to_negative),
        "s(p+,q)": {"mean": _figure(to_query.mean()), "spread": _figure(to_query.std())},
        "s(p+,p-)": {"mean": _figure(to_negative.mean()), "spread": _figure(to_negative.std())},
        "nearer": float(nearer.mean()),
    }


def _scores(model: DualEncoder, pairs: _Pairs, texts: list[str], store: PassageStore) -> tuple[Vectors, Vectors, NDArray[np.bool_]]:
    """s(p+, q) of each query, float32 [queries]; s(p+, p-) of each pair, float32 [pairs], and whether it is below the first, bool [pairs]."""
    rows, place = np.unique(np.concatenate([pairs.positive, pairs.negative]), return_inverse=True)
    positive, negative = np.split(place, [len(pairs.positive)])
    q = _vectors(model, texts, "queries")
    p = np.concatenate([_vectors(model, store.passages(part), "passages") for part in _parts(rows)])
    to_query = np.einsum("nd,nd->n", p[positive], q)
    cuts = [slice(start, start + _PAIRS_AT_ONCE) for start in range(0, len(negative), _PAIRS_AT_ONCE)]
    to_negative = np.concatenate([np.einsum("nd,nd->n", p[positive[pairs.of[cut]]], p[negative[cut]]) for cut in cuts])
    return to_query, to_negative, to_query[pairs.of] > to_negative


def _parts(rows: Rows) -> list[Rows]:
    """The rows of texts that are tokenised together."""
    return [rows[start : start + _TEXTS_AT_ONCE] for start in range(0, len(rows), _TEXTS_AT_ONCE)]


def _figure(value: np.floating) -> float:
    """Rounded, since another processor adds up in another order."""
    return float(f"{value:.5g}")


def _vectors(model: DualEncoder, texts: list[str], side: str) -> Vectors:
    import torch

    from raydense.models.tokens import batches_by_token_budget

    tokens = model.tokenize_queries(texts) if side == "queries" else model.tokenize_passages(texts)
    found = np.empty((len(texts), model.dimension), np.float32)
    encode = model.encode_queries if side == "queries" else model.encode_passages
    for batch in batches_by_token_budget(tokens.lengths, _TOKENS):
        with torch.inference_mode():
            found[batch] = encode(tokens.select(batch).pad(model.tokenizer.pad_id)).numpy()
    return found
