"""The stage `overlap`: removes the training queries that ask the same as a dev or test query (DuReader-retrieval, section 2.3).

The candidates of each dev and test query come from a search among the training queries, never from all pairs.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from raydense.construction.evaluation_queries import EvaluationQueries, Questions, Texts, read_questions
from raydense.construction.overlap_report import overlap_line, write_report
from raydense.construction.question_search import QuestionSearch, check_models
from raydense.construction.settings import OverlapSettings
from raydense.construction.similar import CandidatePairs, Pairs, no_candidates, read_candidates, similar_pairs, without_same_text
from raydense.data.dataset import DatasetDraft
from raydense.data.formats.outlet import exact
from raydense.data.json_lines import write_json_lines
from raydense.data.tables import read_table
from raydense.errors import InputError
from raydense.inference.rerank import loss_of, warn_of_loss
from raydense.runtime.progress import say
from raydense.storage import WORK, Artifact, provenance, releases_outputs

PAIRS, REMOVED, REPORT = "pairs.parquet", "removed.jsonl", "report.md"


@releases_outputs
def overlap(settings: OverlapSettings) -> Artifact:
    """A data set with `qrels/train` without the similar queries, and each set of `against` NAME cut in two: `qrels/NAME-overlap`, its
    queries that a training query is similar to, and `qrels/NAME-others` (of DuReader-retrieval's Table 6).

    Two queries are similar if their texts are the same but for case, white space, blanks before punctuation and the width of characters, or if the
    model's similarity is higher than `threshold`: a retriever's cosine, both encoded as queries, or a re-ranker's probability. `pairs.parquet` has every
    similar pair with both texts, by similarity falling; `removed.jsonl` the removed queries, each with the most similar one; `report.md`
    counts, histograms and pairs to read. Raises InputError if a query is unknown or judged in two sets, a model is of the wrong
    kind, or no training query is left.
    """
    made_from = provenance("overlap", settings)
    scores = check_models(settings) if settings.model else False
    if scores:
        warn_of_loss("overlap", "the model", loss_of(str(settings.model)))
    train, asked = read_questions(settings.train_qrels, settings.splits, settings.queries)
    dataset = DatasetDraft(settings.output, made_from)
    if dataset.done:
        return dataset.done
    texts = Texts.of(train)
    own, distinct = texts.numbers(asked.questions), train.take(texts.first)
    found = no_candidates()
    if settings.model:
        run = QuestionSearch(settings, made_from, dataset.draft.place / WORK).candidates(distinct, asked.questions)
        found = read_candidates(run, asked.questions, distinct, logits=scores)
    others = without_same_text(found, own)
    pairs = similar_pairs(own, others, texts, _threshold(settings))
    counts = _counts(settings, train, asked, pairs, found)
    if counts["removed"] == len(train):
        fix = "give a higher threshold" if settings.model else "give other training queries"
        raise InputError("no training query is left: each is similar to a query of against", settings.train_qrels, fix)
    table = _pairs_table(train, asked, pairs)
    _write_parts(settings, dataset, asked, train, pairs)
    dataset.draft.commit(PAIRS, lambda path: pq.write_table(table, path, compression="zstd"), len(table))
    dataset.draft.commit(REMOVED, partial(_write_removed, table=table, pairs=pairs), counts["removed"])
    page = partial(write_report, settings=settings, counts=counts, asked=asked, distinct=distinct, found=others, texts=texts, own=own)
    dataset.draft.commit(REPORT, page, 0)
    _say(settings, counts)
    return dataset.finish(**counts)


def _threshold(settings: OverlapSettings) -> float:
    return 1.0 if settings.threshold is None else settings.threshold  # without a model there are no candidates to compare


def _counts(settings: OverlapSettings, train: Questions, asked: EvaluationQueries, pairs: Pairs, found: CandidatePairs) -> dict[str, Any]:
    """The summary. `cut` counts the asked queries whose candidates are all similar: deeper ones may be, too."""
    hit, of = pairs.hit, np.bincount(asked.split, minlength=len(asked.names))
    overlapping = np.bincount(asked.split[hit], minlength=len(asked.names))
    alike = np.bincount(found.asked[found.similarity > _threshold(settings)], minlength=1)
    return {
        "train": len(train),
        "removed": len(pairs.removed),
        "kept": len(train) - len(pairs.removed),
        "removed_same_text": len(pairs.at(pairs.same_text).removed),
        "asked": len(asked.questions),
        "overlapping": len(hit),
        "overlapping_same_text": len(pairs.at(pairs.same_text).hit),
        "pairs": len(pairs.asked),
        "cut": int((alike >= settings.depth).sum()),
        "splits": {
            name: {"queries": int(n), "overlap": int(m), "others": int(n - m)}
            for name, n, m in zip(asked.names, of, overlapping, strict=True)
        },
    }


def _pairs_table(train: Questions, asked: EvaluationQueries, pairs: Pairs) -> pa.Table:
    one, other = asked.questions.take(pairs.asked), train.take(pairs.train)
    return pa.table(
        {
            "split": pa.array(asked.names).take(pa.array(asked.split[pairs.asked])),
            "query_id": one.ids,
            "text": one.texts,
            "train_query_id": other.ids,
            "train_text": other.texts,
            "similarity": pa.array(pairs.similarity.astype(np.float32)),
            "same_text": pa.array(pairs.same_text),
        }
    )


def _write_removed(path: Path, table: pa.Table, pairs: Pairs) -> None:
    """The removed queries, each with its most similar pair, in the order of the pairs."""
    first = np.sort(np.unique(pairs.train, return_index=True)[1])
    columns = ["train_query_id", "train_text", "similarity", "split", "query_id", "text"]
    lines = table.select(columns).take(pa.array(first))
    similarity = map(float, exact(lines["similarity"]))
    write_json_lines(path, (row | {"similarity": one} for row, one in zip(lines.to_pylist(), similarity, strict=True)))


def _write_parts(settings: OverlapSettings, dataset: DatasetDraft, asked: EvaluationQueries, train: Questions, pairs: Pairs) -> None:
    """The judgements, each set in its own order."""
    removed, hit = train.take(pairs.removed).ids, asked.questions.take(pairs.hit).ids
    for part, folder in settings.parts.items():
        qrels = read_table(folder, "qrels")
        among = pc.is_in(qrels["query_id"], value_set=removed if part == "qrels/train" else hit)
        kept = qrels.filter(among if part.endswith("-overlap") else pc.invert(among))
        dataset.table(part, "qrels", kept, queries=len(pc.unique(kept["query_id"])))


def _say(settings: OverlapSettings, counts: dict[str, Any]) -> None:
    say(
        f"overlap: {overlap_line(counts)}; {counts['removed_same_text']:,} of these have the same text;"
        f" {counts['kept']:,} of {counts['train']:,} training queries kept"
    )
    if counts["cut"]:
        say(f"overlap: all {settings.depth} candidates of {counts['cut']:,} queries are similar: a greater depth may find more")
