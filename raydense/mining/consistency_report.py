"""The report that `filter` writes next to the queries that it kept: counts, a histogram of the ranks, a sample to read."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from raydense.data.report_page import bars, shown, table, write_page
from raydense.data.store import PassageStore
from raydense.mining.negatives import first_of_each
from raydense.mining.settings import FilterSettings

SAMPLE = 15  # queries shown of those kept, and as many of those dropped


def write_report(path: Path, settings: FilterSettings, summary: dict[str, Any], samples: list[Path], store: PassageStore) -> None:
    """Write the page, as Markdown; `samples` hold the queries with the lowest random numbers of each file, kept and dropped."""
    drawn = pa.concat_tables(pa.ipc.open_file(pa.memory_map(str(sample))).read_all() for sample in samples)
    dropped = (drawn["place"].to_numpy() == 0).astype(np.int64)
    chosen = drawn.take(pa.array(first_of_each(dropped, drawn["drawn"].to_numpy(), SAMPLE)))
    write_page(path, _counts(settings, summary), _histogram(settings, summary), _sample(chosen, store))


def _counts(settings: FilterSettings, summary: dict[str, Any]) -> Iterator[str]:
    yield "# Round-trip consistency\n"
    yield f"A query is kept where its own passage, or one of the same text, is among the first {settings.k} that the index finds with it.\n"
    rows = {
        "queries read": summary["read"],
        "kept": summary["queries"],
        "dropped": summary["read"] - summary["queries"],
        "passages without a query before": summary["without_before"],
        "passages without a query now": summary["without"],
    }
    yield from table(("", "count"), ((name, f"{count:,}") for name, count in rows.items()))


def _histogram(settings: FilterSettings, summary: dict[str, Any]) -> Iterator[str]:
    yield "\n## The rank of the own passage\n"
    counts = {**summary["ranks"], f"not among the first {settings.k}": summary["read"] - summary["queries"]}
    lines = zip(counts, counts.values(), bars([*counts.values()]), strict=True)
    share = 100 / summary["read"]
    yield from table(("rank", "queries", "share", ""), ((rank, f"{n:,}", f"{n * share:.1f}%", bar) for rank, n, bar in lines))


def _sample(chosen: pa.Table, store: PassageStore) -> Iterator[str]:
    """Kept ones first; of each the own passage, and the one in first place where that is another."""
    yield f"\n## A sample to read\n\n{SAMPLE} kept and {SAMPLE} dropped queries drawn at random, or all where there are fewer; long texts are cut."
    for line in chosen.to_pylist():
        yield f"\n### {'Kept' if line['place'] else 'Dropped'}: {shown(line['query'])}\n"
        where = f"in place {line['place']}" if line["place"] else "not found"
        yield _passage(f"its passage, {where}", line["own"], store)
        if line["first"] < 0:
            yield "- nothing was found"
        elif line["place"] != 1:
            yield _passage("in first place", line["first"], store)


def _passage(what: str, row: int, store: PassageStore) -> str:
    at = np.array([row])
    return f"- {what}, {store.ids(at)[0].as_py()}: {shown(store.passages(at)[0])}"
