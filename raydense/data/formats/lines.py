"""Reads files of lines (JSON lines, or columns) as Arrow tables, in blocks: fast for valid files, and exact about the first fault.

A block is parsed by Arrow. Where that fails, or a needed field is missing, the block is read again line by line, which either
succeeds (an id that is a number becomes a string) or names the file, the line and the fault.
"""

from __future__ import annotations

import codecs
import csv
import io
import json
import math
import re
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, Literal, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.json

from raydense.data.formats.files import not_text, opened
from raydense.errors import InputError

BLOCK_BYTES = 16 << 20
MOST_BLOCKS = 4  # of one object: a file of another kind is neither read to its end nor held
LONGEST_LINE = 64 << 20
_ARROW = {"id": pa.string(), "text": pa.string(), "texts": pa.list_(pa.string()), "int": pa.int32(), "float": pa.float32()}
_JSON_TYPES = {"id": (str, int), "text": (str,), "texts": (list,)}
_EXPECTED = {
    "id": "a string or a whole number",
    "text": "a string",
    "texts": "a list of strings",
    "int": "a whole number of 32 bits",
    "float": "a finite number",
}
LARGEST = {"int": 2**31 - 1, "float": math.nextafter(2.0**128 - 2.0**103, 0)}  # what is not rounded beyond 32 bits
_FIX = "correct the line"
_SHOWN = 8  # keys of a line that lacks one
_BETWEEN = re.compile(r"[ \t]+")
_UNEVEN = (b"\t", b"\r", b"  ", b" \n", b"\n ")
Where = Callable[[int], str]
"""The `path:line` of row n, from 0."""


class Field(NamedTuple):
    """A field to read: raydense's name for it, its type, the file's name for it, and whether each line must have it."""

    name: str
    type: Literal["id", "text", "texts", "int", "float"]
    source: str = ""
    needed: bool = True

    @property
    def key(self) -> str:
        return self.source or self.name


def blocks(path: Path, skip: int = 0) -> Iterator[tuple[int, bytes]]:
    """Whole lines of a file, some MB at a time, each with the number of its first line; the first `skip` lines that are not blank left out."""
    line, found, header = 1, False, b""
    with opened(path) as stream:
        start = stream.read(3)
        stream.seek(3 if start == b"\xef\xbb\xbf" else 0)
        while skip and (header := stream.readline(LONGEST_LINE)):
            _check_text(path, line, header)
            line, skip = line + 1, skip - bool(header.strip())
        while block := stream.read(BLOCK_BYTES):
            rest = stream.readline(LONGEST_LINE)
            block += rest
            if len(rest) == LONGEST_LINE and not rest.endswith(b"\n"):
                last = line + block.count(b"\n")
                raise InputError(f"a line of more than {LONGEST_LINE >> 20} MiB", f"{path}:{last}", "write one record a line")
            _check_text(path, line, block)
            found = found or bool(block.strip())
            yield line, block
            line += block.count(b"\n")
    if not found and b"\r" in header.strip():
        raise InputError("its line ends are CR alone", path, "convert them to LF")
    if not found:
        raise InputError("has a header and no line after it" if header else "empty file", path, "give one with lines")


def _check_text(path: Path, line: int, block: bytes) -> None:
    try:
        block.decode("utf-8")
    except UnicodeDecodeError as error:
        raise not_text(path, line + block.count(b"\n", 0, error.start), block[error.start]) from None


def pieces(path: Path) -> Iterator[tuple[str, bool]]:
    """The text of a file in pieces, and whether each is the last; InputError on bytes that are not UTF-8."""
    decoder, line = codecs.getincrementaldecoder("utf-8")(), 1
    with opened(path) as stream:
        while True:
            data = stream.read(BLOCK_BYTES)
            try:
                text = decoder.decode(data, final=not data)
            except UnicodeDecodeError as error:
                raise not_text(path, line + error.object.count(b"\n", 0, error.start), error.object[error.start]) from None
            yield text, not data
            if not data:
                return
            line += data.count(b"\n")


def first_line(path: Path) -> str:
    """The first line that is not empty; InputError if there is none."""
    for _, block in blocks(path):
        for line in block.splitlines():
            if line.strip():
                return line.decode("utf-8").lstrip("\ufeff")
    raise InputError("empty file", path, "give one with lines")


def where(path: Path, skip: int = 0) -> Where:
    """The places of the rows of a file; a line is looked up when the function is called."""
    return partial(_where, path, skip)


def placed(tables: Iterable[pa.Table], at: Where) -> Iterator[tuple[pa.Table, Where]]:
    """The tables that follow one another in a file, whose rows are `at` places, each with the places of its own rows."""
    before = 0
    for table in tables:
        yield table, partial(_later, at, before)
        before += table.num_rows


def _later(at: Where, before: int, row: int) -> str:
    return at(before + row)


def _where(path: Path, skip: int, row: int) -> str:
    with opened(path) as stream:
        filled = (number for number, line in enumerate(stream, 1) if line.strip())
        number = next(islice(filled, skip + row, None), 0)
    return f"{path}:{number}" if number else str(path)


def tables_of(files: list[Path], read: Callable[[Path], Iterable[pa.Table]], starts: list[int]) -> Iterator[pa.Table]:
    """The tables of all files; notes in `starts` the first row of each file, for `where_in`."""
    row = 0
    for path in files:
        starts.append(row)
        for table in read(path):
            row += table.num_rows
            yield table


def where_in(files: list[Path], starts: list[int], row: int) -> str:
    """The place of a row of files that begin with the rows `starts`."""
    file = bisect_right(starts, row) - 1
    return where(files[file])(row - starts[file])


def json_lines(path: Path, fields: list[Field]) -> Iterator[pa.Table]:
    """The objects of a JSON lines file, their fields (of type id, text or texts) renamed to raydense's names; other fields are left out."""
    wanted = pa.schema([(f.key, _ARROW[f.type]) for f in fields])
    options = pa.json.ParseOptions(explicit_schema=wanted, unexpected_field_behavior="ignore")
    reading = pa.json.ReadOptions(block_size=2 * BLOCK_BYTES)

    def fast(block: bytes) -> pa.Table:
        return pa.json.read_json(io.BytesIO(block + b"\n"), reading, options).select(wanted.names)

    def slow(line: bytes, at: str) -> list[Any]:
        row = json_object(line, at)
        if lacking := next((f.key for f in fields if f.needed and row.get(f.key) is None), None):
            has = ", ".join(repr(key) for key in islice(row, _SHOWN)) or "no keys"
            raise InputError(f"no {lacking!r}", at, f"each line needs it; this one has {has}")
        return [_checked(row.get(f.key), f, at) for f in fields]

    return _tables(path, fields, 0, fast, slow)


def json_object(line: bytes | str, at: str) -> dict[str, Any]:
    """A line as a JSON object; InputError with `at` if it is not one."""
    try:
        row = json.loads(line)
    except (ValueError, RecursionError) as error:  # a ValueError of its own where a number has thousands of digits
        raise InputError(f"not JSON ({error})", at, _FIX) from None
    if not isinstance(row, dict):
        raise InputError(f"not a JSON object but {type(row).__name__}", at, _FIX)
    return row


def _checked(value: Any, field: Field, at: str) -> Any:
    if value is None:
        return None
    fits = isinstance(value, _JSON_TYPES[field.type]) and not isinstance(value, bool)
    if not fits or (isinstance(value, list) and not all(isinstance(one, str) for one in value)):
        raise InputError(f"{field.key!r} is {json.dumps(value)[:40]}, not {_EXPECTED[field.type]}", at, _FIX)
    if isinstance(value, list):
        return [check_string(one, field.key, at) for one in value]
    return check_string(str(value), field.key, at)


def check_string(value: str, key: str, at: str) -> str:
    """`value` if it is Unicode text that can be written; InputError if it holds half of a surrogate pair."""
    if not is_unicode(value):
        raise InputError(f"{key!r} holds half of a surrogate pair", at, _FIX)
    return value


def is_unicode(value: str) -> bool:
    """Whether a text can be written: it holds no half of a surrogate pair, as JSON's escapes may."""
    try:
        value.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True


def columns(
    path: Path, fields: list[Field], skip: int = 0, quoted: bool = False, spaces: bool = False, optional: int = 0
) -> Iterator[pa.Table]:
    """The rows of a file of columns, separated by tabs (or, with `spaces`, by blanks and tabs), with the fields' names in order.

    `quoted` reads CSV quotes. The last `optional` columns may be missing.
    """
    names = [f.name for f in fields]
    reading = pa.csv.ReadOptions(column_names=names, block_size=2 * BLOCK_BYTES, use_threads=False)
    parsing = pa.csv.ParseOptions(delimiter="\t", quote_char='"' if quoted else False, double_quote=quoted)
    converting = pa.csv.ConvertOptions(column_types=dict.fromkeys(names, pa.string()), null_values=[], strings_can_be_null=False)
    schema = pa.schema([(f.name, _ARROW[f.type]) for f in fields])
    whole = [f.name for f in fields if f.type == "int"]

    def fast(block: bytes) -> pa.Table:
        if spaces:
            block = _tabbed(block)
        table = pa.csv.read_csv(io.BytesIO(block), reading, parsing, converting)
        if any(pc.any(pc.match_substring(table[name], "x", ignore_case=True)).as_py() for name in whole):
            raise pa.ArrowInvalid("a number in base 16")
        return table.cast(schema)

    def slow(line: bytes, at: str) -> list[Any]:
        text = line.decode("utf-8").strip("\r\n")
        cells = cells_of(text) if spaces else _csv_cells(text, at) if quoted else text.split("\t")
        if not len(fields) - optional <= len(cells) <= len(fields):
            separator = "<blank>" if spaces else "<TAB>"
            raise InputError(f"{len(cells)} columns, not {len(fields)}", at, f"lines are {separator.join(f.key for f in fields)}")
        cells += [""] * (len(fields) - len(cells))
        return [_parsed(cell, f, at) for cell, f in zip(cells, fields, strict=True)]

    return _tables(path, fields, skip, fast, slow)


def cells_of(line: str) -> list[str]:
    """The columns of a line that blanks or tabs separate. A blank beyond ASCII is part of an id."""
    line = line.strip(" \t\r\n")
    return _BETWEEN.split(line) if line else []


def _tabbed(block: bytes) -> bytes:
    """The block with one tab between the columns of each line, which blanks and tabs separate."""
    single = not block.startswith(b" ") and not block.endswith(b" ") and not any(odd in block for odd in _UNEVEN)
    if single:  # as tools write them: a regular expression would hold each column, and take five times as long
        return block.replace(b" ", b"\t")
    block = re.sub(rb"(?m)^[ \t]+|[ \t\r]+$", b"", block)
    return re.sub(rb"[ \t]+", b"\t", block)


def _csv_cells(text: str, at: str) -> list[str]:
    try:
        return next(csv.reader([text], delimiter="\t", strict=True))
    except (csv.Error, StopIteration) as error:
        raise InputError(f"quotes do not match ({error})", at, "give one row per line, quoted as CSV") from None


def _parsed(cell: str, field: Field, at: str) -> Any:
    if field.type in ("id", "text"):
        return cell
    try:
        value = int(cell) if field.type == "int" else float(cell)
        if "_" in cell or not cell.isascii() or not abs(value) <= LARGEST[field.type]:
            raise ValueError
        return value
    except ValueError:
        raise InputError(f"{field.key} is {cell[:40]!r}, not {_EXPECTED[field.type]}", at, _FIX) from None


def _tables(
    path: Path, fields: list[Field], skip: int, fast: Callable[[bytes], pa.Table], slow: Callable[[bytes, str], list[Any]]
) -> Iterator[pa.Table]:
    schema = pa.schema([(f.name, _ARROW[f.type]) for f in fields])
    for line, block in blocks(path, skip):
        filled = sum(1 for text in block.split(b"\n") if text.strip())
        if not filled:
            continue
        try:
            table = fast(block).rename_columns(schema.names)
            table.validate(full=True)
            whole = table.num_rows == filled and not any(_lacks(table[f.name], f) for f in fields)
        except (pa.ArrowInvalid, pa.ArrowTypeError, pa.ArrowNotImplementedError):
            whole = False
        if not whole:
            rows = [slow(text, f"{path}:{n}") for n, text in enumerate(block.split(b"\n"), line) if text.strip()]
            table = pa.table([list(column) for column in zip(*rows, strict=True)], schema=schema)
        yield table


def _lacks(column: pa.ChunkedArray, field: Field) -> bool:
    """Whether a required field is missing, a number is not one, or a list has a hole."""
    if field.type == "texts" and pc.list_flatten(column).null_count:
        return True
    if field.type == "float" and not pc.all(pc.is_finite(column)).as_py():
        return True
    return bool(field.needed and column.null_count)


def refuse_blank(table: pa.Table, names: list[str], at: Where) -> None:
    """InputError on the first row of `table` where one of the columns `names` is empty or null."""
    for name in names:
        text = pc.fill_null(table[name].cast(pa.string()), "")
        blank = pc.index(pc.equal(pc.utf8_length(pc.utf8_trim_whitespace(text)), 0), pa.scalar(True)).as_py()
        if blank >= 0:
            raise InputError(f"empty {name}", at(blank), "fill it, or remove the line")


def json_objects(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """The objects of a JSON list or of JSON lines, streamed, each with the `path:line` where it begins.

    An object that spans several pieces counts as malformed, so that the rest of the file is neither read nor held.
    """
    decoder, text, at, line, listed = json.JSONDecoder(), "", 0, 1, False
    source, between = pieces(path), re.compile(r"[\s,]*")
    opening: re.Pattern[str] | None = re.compile(r"\ufeff?\s*\[?\s*")
    while True:
        skipped = (opening or between).match(text, at)
        stop = skipped.end() if skipped else at
        line += text.count("\n", at, stop)
        listed = listed or (opening is not None and "[" in text[at:stop])
        at = stop
        try:
            value, stop = decoder.raw_decode(text, at)
        except (ValueError, RecursionError) as error:
            more = next(source, None) if len(text) - at < MOST_BLOCKS * BLOCK_BYTES else None
            if more is not None:
                text, at = text[at:] + more[0], 0
                continue
            rest = text[at:].strip()
            if opening and not text.strip("\ufeff \t\r\n"):
                raise InputError("empty file", path, "give one with lines") from None
            if opening and rest in ("", "]"):
                raise InputError("holds no object", path, "give a non-empty list, or one object per line") from None
            if rest == ("]" if listed else ""):
                return
            what = f"not JSON ({error})" if rest else "a JSON list that does not end"
            raise InputError(what, f"{path}:{line}", "give a JSON list of objects, or one object per line") from None
        if not isinstance(value, dict):
            raise InputError(f"not a JSON object but {type(value).__name__}", f"{path}:{line}", _FIX)
        yield f"{path}:{line}", value
        line += text.count("\n", at, stop)
        at, opening = stop, None
