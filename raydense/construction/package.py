"""Packages: pairs of query and passage as a page on which one person gives each a label by keyboard, and as JSON lines."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any

import jinja2
import numpy as np
import pyarrow as pa

from raydense.data.json_lines import write_json_lines
from raydense.data.marking import marking_script
from raydense.data.page_template import page_template
from raydense.runtime.progress import Progress
from raydense.storage import Draft, digest_of

COLUMNS = ["query_id", "passage_id", "query", "title", "text"]


@dataclass(frozen=True)
class Label:
    """What a person can say of a pair: `key` on the keyboard (`also` is another one), the words, and the relevance that it stands for, if any."""

    key: str
    label: str
    relevance: int | None = None
    also: str = ""


RELEVANCE = (Label("1", "relevant", 1, "y"), Label("0", "not relevant", 0, "n"), Label("?", "unsure", None, "u"))
RELEVANT = "Does the passage answer the query?"


@dataclass(frozen=True)
class Page:
    """What the pages of a set of packages ask, the labels to choose from, and how many pairs of each package are drawn for reviewers."""

    question: str = RELEVANT
    labels: Sequence[Label] = RELEVANCE
    review: int = 0
    seed: int = 42


def write_packages(draft: Draft, tables: Iterable[pa.Table], pairs: int, page: Page | None = None) -> list[dict[str, Any]]:
    """Commit `package-00000.jsonl` and `.html`, and so on, of `pairs` pairs each, the last perhaps of fewer; and `review-00000` likewise.

    `tables` have the string columns query_id, passage_id, query, title and text (others are left out), and are read one after another.
    A package's fingerprint is that of its pairs and labels: answers carry it. Files that were committed before are kept. Returns for
    each package its "name", "fingerprint", "pairs", and with a page for reviewers "review" of the same form.
    """
    page = page or Page()
    there = draft.committed().keys()
    found = []
    with Progress(f"{draft.made_from.get('stage', draft.kind)}: pages", 0, "packages") as progress:
        for number, table in enumerate(_cut(tables, pairs)):
            package = _commit(draft, there, f"package-{number:05d}", table, page)
            if page.review:
                drawn = np.random.default_rng([page.seed, number]).permutation(table.num_rows)[: page.review]
                sample = table.take(pa.array(np.sort(drawn)))
                package["review"] = _commit(draft, there, f"review-{number:05d}", sample, page, package["fingerprint"])
            found.append(package)
            progress.add(1)
    return found


def _cut(tables: Iterable[pa.Table], rows: int) -> Iterator[pa.Table]:
    """The rows of `tables` in tables of `rows` rows."""
    held: list[pa.Table] = []
    for table in tables:
        held.append(table.select(COLUMNS))
        while sum(map(len, held)) >= rows:
            joined = pa.concat_tables(held)
            yield joined.slice(0, rows)
            held = [joined.slice(rows)]
    if sum(map(len, held)):
        yield pa.concat_tables(held)


def _commit(draft: Draft, there: Collection[str], name: str, table: pa.Table, page: Page, of: str = "") -> dict[str, Any]:
    """Commit the two files of a page unless they are `there`."""
    rows = table.to_pylist()
    head: dict[str, Any] = {"package": name, "question": page.question, "labels": [asdict(label) for label in page.labels]}
    head["fingerprint"] = digest_of([head["question"], head["labels"], of, rows])
    head |= {"pairs": len(rows), **({"review_of": of} if of else {})}
    for suffix, write in ((".jsonl", _write_lines), (".html", _write_page)):
        if f"{name}{suffix}" not in there:
            draft.commit(f"{name}{suffix}", partial(write, head=head, rows=rows), 0)
    return {"name": name, "fingerprint": head["fingerprint"], "pairs": len(rows)}


def _write_lines(path: Path, head: dict[str, Any], rows: list[dict[str, Any]]) -> None:
    write_json_lines(path, (head, *rows))


def _write_page(path: Path, head: dict[str, Any], rows: list[dict[str, Any]]) -> None:
    path.write_text(_template().render(head=head, data={**head, "rows": rows}, marking=marking_script()), encoding="utf-8")


@cache
def _template() -> jinja2.Template:
    return page_template("raydense.construction", "package.html.j2", policies={"json.dumps_kwargs": {"ensure_ascii": False}})
