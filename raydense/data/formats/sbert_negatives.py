"""sentence-transformers' hard negatives of MS MARCO: JSON lines {qid, pos, neg: {system: passages}} of ids; their texts are in the corpus.

A passage is its id, or {pid, ce-score} with the score of a cross-encoder. `chosen` makes it a format whose negatives
`import --hard-negatives` chooses, as BEIR's train_msmarco_v3.py and sentence-transformers' train_bi-encoder_mnrl.py do.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa

from raydense.data.formats.files import files_of, plain
from raydense.data.formats.intake import Intake
from raydense.data.formats.lines import check_string, json_objects
from raydense.data.formats.records import name, number
from raydense.data.settings import HardNegatives
from raydense.errors import InputError
from raydense.runtime.progress import Progress, say

_BLOCK = 4_096  # queries whose ids become rows together: strings of the file's 300 million negatives would need 20 GB
_SHAPE = "passages are ids, or all of them objects with pid and ce-score"


class _Passages(NamedTuple):
    """Passages of a line: their ids, and the scores where it has them."""

    ids: list[str]
    scores: list[float] | None


class _Line(NamedTuple):
    """A query with its positives and the negatives of each system."""

    at: str
    query: str
    positives: _Passages
    systems: dict[str, _Passages]


def read(source: Path, intake: Intake) -> None:
    """Import a file, or the `*.jsonl` of a folder; queries without a positive or without a negative are left out and counted."""
    files = [p for p in files_of(source) if plain(p).suffix == ".jsonl" or not source.is_dir()]
    if not files:
        raise InputError("holds no *.jsonl", source, "check the folder")
    if intake.store is None:
        raise InputError("holds ids of passages, and no texts", source, "import MS MARCO's collection, and give it as --corpus")
    for path in files:
        _read_file(path, intake)


def _read_file(path: Path, intake: Intake) -> None:
    blocks, places = [], []
    counts: Counter[str] = Counter()
    lines = (_line(at, entry) for at, entry in json_objects(path))
    with Progress("import examples", 0, "queries") as progress:
        while block := list(islice(lines, _BLOCK)):
            taken = list(_taken(block, intake.hard_negatives, counts))
            places += [line.at for line, _ in taken]
            blocks.append(_rows(taken, intake))
            progress.add(len(block))
    if not places:
        raise InputError("no query has a positive and a negative", path, "check the file, or choose other hard_negatives")
    say(f"import {path.name}: {len(places):,} queries; {', '.join(f'{key}: {count:,}' for key, count in sorted(counts.items()))}")
    table = pa.concat_tables(blocks)
    table = table.drop_columns([key for key in table.column_names if table[key].null_count == len(table)])
    intake.examples(plain(path).stem, table, places.__getitem__)


def _line(at: str, entry: dict[str, Any]) -> _Line:
    systems = entry.get("neg")
    if not isinstance(systems, dict):
        raise InputError("no object 'neg'", at, "each line has qid, pos, and the negatives of each system as neg")
    found = {check_string(system, "neg", at): _passages(entry["neg"], system, at) for system in systems}
    line = _Line(at, name(entry, "qid", at), _passages(entry, "pos", at), found)
    if len({side.scores is None for side in (line.positives, *found.values()) if side.ids}) > 1:
        raise InputError("some passages have a 'ce-score' and others have none", at, _SHAPE)
    return line


def _passages(entry: dict[str, Any], key: str, at: str) -> _Passages:
    values = entry.get(key)
    if not isinstance(values, list):
        raise InputError(f"no list {key!r}", at, _SHAPE)
    scored = [isinstance(value, dict) for value in values]
    if values and all(scored):
        return _Passages([name(value, "pid", at) for value in values], [number(value, "ce-score", at) for value in values])
    if any(scored):
        raise InputError("some passages have a 'ce-score' and others have none", at, _SHAPE)
    return _Passages([name({key: value}, key, at) for value in values], None)


def _taken(lines: list[_Line], choice: HardNegatives, counts: Counter[str]) -> Iterator[tuple[_Line, _Passages]]:
    """The lines that make an example, each with its negatives."""
    for line in lines:
        negatives = chosen(line, choice, counts) if line.positives.ids else None
        if negatives is None:
            counts["left out without a positive"] += 1
        elif not negatives.ids:
            counts["left out without a negative"] += 1
        else:
            yield line, negatives


def chosen(line: _Line, choice: HardNegatives, counts: Counter[str]) -> _Passages:
    """The negatives of a line, each passage once, no positive: of each system the first `per_system` that no earlier one has.

    With `margin` those stay out whose score is above the lowest of the positives less `margin`; InputError without scores.
    """
    limit = None
    if choice.absolute_margin is not None:
        if line.positives.scores is None:
            raise InputError(
                "has no 'ce-score' to keep the margin by", line.at, "leave hard_negatives.absolute_margin out, or give the file with scores"
            )
        limit = min(line.positives.scores) - choice.absolute_margin
    taken: dict[str, float | None] = {}
    positives = set(line.positives.ids)
    for system, found in line.systems.items():
        before = len(taken)
        for at, passage in enumerate(found.ids):
            if choice.per_system is not None and len(taken) - before == choice.per_system:
                break
            score = found.scores[at] if found.scores else None
            if limit is not None and score is not None and score > limit:
                counts["negatives within the margin"] += 1
            elif passage not in positives and passage not in taken:
                taken[passage] = score
        counts[f"negatives of {system}"] += len(taken) - before
    scores = [score for score in taken.values() if score is not None]
    return _Passages(list(taken), scores if taken and len(scores) == len(taken) else None)


def _rows(taken: list[tuple[_Line, _Passages]], intake: Intake) -> pa.Table:
    """A table of examples, with rows in place of ids; scores only where the lines have them."""
    ids, floats = pa.list_(pa.string()), pa.list_(pa.float32())
    table: dict[str, pa.Array] = {"query_id": pa.array([line.query for line, _ in taken], pa.string())}
    for side, found in (("positive", [line.positives for line, _ in taken]), ("negative", [negatives for _, negatives in taken])):
        table[f"{side}s"] = intake.rows(pa.array([one.ids for one in found], ids), lambda row: taken[row][0].at)
        table[f"{side}_scores"] = pa.array([one.scores for one in found], floats)
    return pa.table(table)
