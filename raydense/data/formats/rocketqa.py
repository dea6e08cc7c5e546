"""RocketQA: training lines `query title positive title negative 0` or `query title passage label`, and runs `qid pid rank score`, apart by tabs.

These are the files of its data_train/, and what its scripts read and write (PaddlePaddle/RocketQA, research/; those of PAIR and RocketQAv2
have the same). A file's first line decides what it is. `*query*` has questions with their ids, as `train.query.txt`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import partial
from itertools import repeat
from pathlib import Path
from typing import Any

import pyarrow as pa

from raydense.data.formats.files import files_of, plain
from raydense.data.formats.intake import Intake, run_part
from raydense.data.formats.lines import Field, columns, first_line, where
from raydense.data.formats.outlet import Example, Outlet, exact, write_columns
from raydense.data.formats.text_pairs import TextPairs, named_queries
from raydense.data.formats.texts import TextCorpus
from raydense.errors import InputError

DUAL = [Field("query", "text"), Field("title_pos", "text"), Field("positive", "text", "para_pos")]
DUAL += [Field("title_neg", "text"), Field("negative", "text", "para_neg"), Field("0", "text")]
CROSS = [Field("query", "text"), Field("title", "text"), Field("passage", "text", "para"), Field("label", "int")]
RUN = [Field("query_id", "id", "qid"), Field("passage_id", "id", "pid"), Field("rank", "int"), Field("score", "float")]
QUERIES = [Field("query_id", "id", "qid"), Field("text", "text", "query")]
_NO_TITLE = "-"


def _fields(path: Path) -> list[Field]:
    """The columns of a file, by its first line; InputError where it has others."""
    cells = first_line(path).split("\t")
    if len(cells) == len(QUERIES) and "query" in path.name:
        return QUERIES
    if len(cells) == len(RUN):
        return RUN if cells[2].isdecimal() else CROSS
    if len(cells) != len(DUAL):
        kinds = ("<TAB>".join(field.key for field in fields) for fields in (DUAL, CROSS, RUN, QUERIES))
        raise InputError(f"{len(cells)} columns", f"{path}:1", f"lines are {', '.join(kinds)}, the last in a file called *query*")
    return DUAL


def read(source: Path, intake: Intake) -> None:
    """Import training files, runs and questions: a folder of them, or a file. The passages of training files are looked up in the corpus."""
    fields = {path: _fields(path) for path in files_of(source)}
    training = [path for path, lines in fields.items() if lines in (DUAL, CROSS)]
    runs = [path for path, lines in fields.items() if lines is RUN]
    intake.expect(
        *((f"examples/{plain(path).stem}", path) for path in training), *((run_part(plain(path).stem, runs), path) for path in runs)
    )
    queries = TextCorpus()
    for path in (path for path, lines in fields.items() if lines is QUERIES):
        for table in columns(path, QUERIES):
            for query_id, text in zip(table["query_id"].to_pylist(), table["text"].to_pylist(), strict=True):
                queries.add_query(text, str(path), query_id)
    trained = [(path, _pairs(path, fields[path], intake)) for path in training]
    known = named_queries(trained, queries)
    if known:
        queries.write(intake, with_corpus=False)
    for path, pairs in trained:
        intake.examples(plain(path).stem, pairs.examples(known), partial(_file, path))
    for path in runs:
        intake.run(run_part(plain(path).stem, runs), partial(_hits, path), where(path))


def _pairs(path: Path, fields: list[Field], intake: Intake) -> TextPairs:
    if intake.store is None:
        raise InputError("has texts, no ids: it needs the corpus to look them up in", path, "give --corpus")
    return TextPairs(path, fields, intake.store, intake.strict)


def _file(path: Path, row: int) -> str:
    return str(path)


def _hits(path: Path) -> Iterator[pa.Table]:
    """The lines of a run, which are ranked by score, as those of TREC."""
    return (table.drop_columns("rank") for table in columns(path, RUN))


def write(outlet: Outlet) -> None:
    """Write training examples for a dual encoder, or a run."""
    if outlet.choose("examples", "run") == "examples":
        write_columns(outlet.path, map(_lines, outlet.triples()))
    else:
        names = {"qid": "query_id", "pid": "passage_id", "rank": "rank"}
        cells = ({key: table[name].to_pylist() for key, name in names.items()} | {"score": exact(table["score"])} for table in outlet.run())
        write_columns(outlet.path, cells)


def _lines(example: Example) -> dict[str, Iterable[Any]]:
    """Lines of an example; a passage without a title has the sign that RocketQA's scripts write for it."""
    rows = len(example.positives)
    sides: dict[str, Iterable[Any]] = {"query": repeat(example.query, rows)}
    for side, found in (("pos", example.positives), ("neg", example.negatives)):
        sides |= {f"title_{side}": [p.title or _NO_TITLE for p in found], f"para_{side}": [p.text for p in found]}
    return sides | {"label": repeat("0", rows)}
