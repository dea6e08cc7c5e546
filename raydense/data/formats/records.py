"""Reads the fields of nested training records, and gathers them as examples."""

from __future__ import annotations

import json
import math
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from raydense.data.formats.lines import LARGEST, Where, check_string
from raydense.errors import InputError
from raydense.runtime.progress import say

if TYPE_CHECKING:
    from raydense.data.formats.intake import Intake

_NEEDED: Any = object()
_BLOCK = 4_096  # examples that are held as objects
_OPTIONAL = ("positive_scores", "negative_scores", "negative_sources")
_STRINGS, _FLOATS = pa.list_(pa.string()), pa.list_(pa.float32())
_KINDS = [("query_id", pa.string()), ("positives", _STRINGS), ("negatives", _STRINGS)]
_EXAMPLES = pa.schema([*_KINDS, *zip(_OPTIONAL, (_FLOATS, _FLOATS, _STRINGS), strict=True)])


def _get(entry: dict[str, Any], key: str, at: str, default: Any) -> Any:
    value = entry.get(key)
    if value is not None:
        return value
    if default is _NEEDED:
        raise InputError(f"no {key!r}", at, "each entry needs it")
    return default


def _wrong(value: Any, key: str, at: str, wanted: str) -> InputError:
    return InputError(f"{key!r} is {json.dumps(value)[:40]}, not {wanted}", at, "correct the entry")


def text(entry: dict[str, Any], key: str, at: str, default: Any = _NEEDED) -> str:
    """A string."""
    value = _get(entry, key, at, default)
    if not isinstance(value, str):
        raise _wrong(value, key, at, "a string")
    return check_string(value, key, at)


def name(entry: dict[str, Any], key: str, at: str) -> str:
    """An id: a string, or a whole number, which becomes a string."""
    value = _get(entry, key, at, _NEEDED)
    if isinstance(value, bool) or not isinstance(value, (str, int)):
        raise _wrong(value, key, at, "a string or a whole number")
    return check_string(str(value), key, at)


def number(entry: dict[str, Any], key: str, at: str) -> float:
    """A number, or a string that holds one, as in DPR's scores."""
    value = _get(entry, key, at, _NEEDED)
    try:
        found = float("nan" if isinstance(value, bool) else value)
    except (TypeError, ValueError, OverflowError):
        found = math.nan
    if not abs(found) <= LARGEST["float"]:
        raise _wrong(value, key, at, "a finite number")
    return found


def texts(entry: dict[str, Any], key: str, at: str, default: Any = _NEEDED) -> list[str]:
    """A list of strings."""
    value = _get(entry, key, at, default)
    if not isinstance(value, list) or not all(isinstance(v, str) for v in value):
        raise _wrong(value, key, at, "a list of strings")
    return [check_string(v, key, at) for v in value]


def names(entry: dict[str, Any], key: str, at: str, default: Any = _NEEDED) -> list[str]:
    """A list of ids."""
    value = _get(entry, key, at, default)
    if not isinstance(value, list) or not all(isinstance(v, (str, int)) and not isinstance(v, bool) for v in value):
        raise _wrong(value, key, at, "a list of ids")
    return [check_string(str(v), key, at) for v in value]


def numbers(entry: dict[str, Any], key: str, at: str, count: int) -> list[float] | None:
    """A list of `count` numbers, or None where the entry has none."""
    value = _get(entry, key, at, None)
    if value is None or value == []:
        return None
    if not isinstance(value, list) or not all(
        isinstance(v, (int, float)) and not isinstance(v, bool) and abs(v) <= LARGEST["float"] for v in value
    ):
        raise _wrong(value, key, at, "a list of finite numbers")
    if len(value) != count:
        raise InputError(f"{key!r} has {len(value)} numbers for {count} passages", at, "give one for each")
    return [float(v) for v in value]


def objects(entry: dict[str, Any], key: str, at: str, default: Any = _NEEDED) -> list[dict[str, Any]]:
    """A list of objects."""
    value = _get(entry, key, at, default)
    if not isinstance(value, list) or not all(isinstance(v, dict) for v in value):
        raise _wrong(value, key, at, "a list of objects")
    return value


def values(entry: dict[str, Any], key: str, at: str, default: Any = _NEEDED) -> list[Any]:
    """A list of whatever it holds."""
    value = _get(entry, key, at, default)
    if not isinstance(value, list):
        raise _wrong(value, key, at, "a list")
    return value


class ExampleRows:
    """Training examples as they are read, with the place of each; their ids are held as Arrow holds them, not as objects."""

    def __init__(self) -> None:
        self._rows: list[tuple[str, list[str], list[str], list[float] | None, list[float] | None, list[str] | None]] = []
        self._blocks = [_EXAMPLES.empty_table()]
        self._places: list[str] = []

    def __len__(self) -> int:
        return len(self._places)

    def add(
        self,
        at: str,
        query_id: str,
        positives: list[str],
        negatives: list[str],
        positive_scores: list[float] | None = None,
        negative_scores: list[float] | None = None,
        sources: list[str] | None = None,
    ) -> None:
        """Add one example; InputError if it has no positive."""
        if not positives:
            raise InputError("no positive passage", at, "give at least one, or remove the entry")
        self._rows.append((query_id, positives, negatives, positive_scores, negative_scores, sources))
        self._places.append(at)
        if len(self._rows) == _BLOCK:
            self._flush()

    def _flush(self) -> None:
        self._blocks.append(pa.table([list(column) for column in zip(*self._rows, strict=True)], schema=_EXAMPLES))
        self._rows = []

    def at(self, row: int) -> str:
        """The file and line of an example."""
        return self._places[row]

    def table(self) -> pa.Table:
        """The examples, with ids of passages; scores and sources only where some example has them."""
        if self._rows:
            self._flush()
        self._blocks = [pa.concat_tables(self._blocks).combine_chunks()]
        table = self._blocks[0]
        return table.drop_columns([key for key in _OPTIONAL if table[key].null_count == len(table)])

    def judgements(self) -> tuple[pa.Table, Where]:
        """The positives as qrels of relevance 1, and a function that returns the file and line of each."""
        table = self.table()
        lists = table["positives"]
        owner = pc.list_parent_indices(lists)
        relevance = pa.repeat(pa.scalar(1, pa.int32()), len(owner))
        pairs = {"query_id": table["query_id"].take(owner), "passage_id": pc.list_flatten(lists), "relevance": relevance}
        return pa.table(pairs), lambda row: self._places[owner[row].as_py()]

    def write_with_negatives(self, split: str, intake: Intake) -> None:
        """Write the examples that have negatives, or all where none has any: the others are judgements, and a training with negatives would refuse them."""
        table = self.table()
        kept = np.flatnonzero(pc.list_value_length(table["negatives"]).to_numpy())
        if 0 < len(kept) < len(table):
            left = len(table) - len(kept)
            say(f"import examples/{split}: {left:,} of {len(table):,} entries have no negative passage, and are judgements alone")
            intake.examples(split, table.take(pa.array(kept)), lambda row: self._places[int(kept[row])])
        else:
            intake.examples(split, table, self.at)
