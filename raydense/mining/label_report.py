"""The report that `label` writes next to its examples: counts, a histogram of the teacher's probabilities, a sample to read."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from raydense.data.draws import draw
from raydense.data.lookup import hash_strings
from raydense.data.report_page import bars, shown, table, write_page
from raydense.data.store import PassageStore
from raydense.data.tables import one_array, query_positions, read_table
from raydense.inference.rerank import probability
from raydense.mining.settings import LabelSettings

SAMPLE = 30


def write_report(path: Path, settings: LabelSettings, summary: dict[str, Any], parts: list[Path], store: PassageStore) -> None:
    """Write the page, as Markdown; `parts` are the files of the examples."""
    write_page(path, _counts(settings, summary), _histogram(summary["scores"]), _sample(settings, parts, store))


def _counts(settings: LabelSettings, summary: dict[str, Any]) -> Iterator[str]:
    yield "# Labels by a teacher\n"
    thresholds = f"Pseudo-positives above {settings.s_pos}, confident negatives below {settings.s_neg}"
    yield f"{thresholds}, of the first {summary['depth']} candidates.\n"
    rows = [(name.replace("_", " "), summary[name]) for name in ("queries", "labelled", "unlabelled", "kept", "kept_labelled")]
    rows += [(f"dropped: {cause}", count) for cause, count in summary["dropped"].items()]
    rows += [(f"fewer than {settings.enough} negatives", summary["short"])]
    rows += [(f"candidates: {what}", count) for what, count in summary["candidates"].items()]
    rows += [(f"gold positives that the teacher puts below {settings.s_neg}", summary["gold_below_s_neg"])]
    rows += [(f"kept: {part} of source {source}", n) for part, found in summary["sources"].items() for source, n in found.items()]
    yield from table(("", "count"), ((name, f"{count:,}") for name, count in rows))


def _histogram(scores: dict[str, list[int]]) -> Iterator[str]:
    yield "\n## Probabilities\n\nOf the gold positives among the candidates, and of all others.\n"
    bins = len(scores["other"])
    columns = zip(range(bins), scores["gold"], scores["other"], bars(scores["other"]), strict=True)
    yield from table(
        ("probability", "gold", "others", ""),
        ((f"{i / bins:.2f} to {(i + 1) / bins:.2f}", f"{gold:,}", f"{other:,}", bar) for i, gold, other, bar in columns),
    )


def _sample(settings: LabelSettings, parts: list[Path], store: PassageStore) -> Iterator[str]:
    yield f"\n## A sample to read\n\n{SAMPLE} queries drawn at random, or all where there are fewer; long texts are cut.\n"
    examples = _drawn(settings.seed, parts)
    queries = read_table(settings.queries, "queries", ["query_id", "text"])
    texts = one_array(queries["text"]).take(pa.array(query_positions(examples["query_id"], queries, settings.run))).to_pylist()
    for example, text in zip(examples.to_pylist(), texts, strict=True):
        yield f"### {example['query_id']}: {shown(text)}\n"
        for side in ("positive", "negative"):
            rows = np.array(example[f"{side}s"], dtype=np.int64)
            lists = (example[f"{side}_sources"], example[f"{side}_scores"], store.ids(rows).to_pylist(), store.passages(rows))
            for source, score, passage_id, passage in zip(*lists, strict=True):
                yield f"- {source}, {'not scored' if score is None else f'{probability(score):.3f}'}, {passage_id}: {shown(passage)}"
        yield ""


def _drawn(seed: int, parts: list[Path]) -> pa.Table:
    """The examples of the sample, in their order."""
    ids = [pq.read_table(part, columns=["query_id"])["query_id"] for part in parts]
    drawn = [draw(seed, hash_strings(column), np.zeros(len(column), dtype=np.int64)) for column in ids]
    starts = np.cumsum([0, *map(len, ids)])
    chosen = np.sort(np.argsort(np.concatenate(drawn), kind="stable")[:SAMPLE])
    place = np.searchsorted(starts, chosen, side="right") - 1
    tables = [pq.read_table(parts[part]).take(pa.array(chosen[place == part] - starts[part])) for part in np.unique(place)]
    return pa.concat_tables(tables)
