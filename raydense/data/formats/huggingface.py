"""Hugging Face: a folder that `datasets.load_dataset(folder, "corpus")` reads: Parquet files, and a README.md whose front matter lists them.

The columns are those of BEIR's sets on the Hub: corpus {_id, title, text}, queries {_id, text, perhaps answers}, and a split of
qrels for each set of judgements {query-id, corpus-id, score}.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from raydense.data.formats.beir import CORPUS, QRELS, QUERIES, corpus_fields
from raydense.data.formats.data_card import front_matter, hub_split, write_card
from raydense.data.formats.intake import Intake, Passages, without_empty_answers
from raydense.data.formats.lines import Field
from raydense.data.formats.outlet import Outlet, splits_of
from raydense.data.tables import read_table
from raydense.errors import InputError
from raydense.runtime.progress import say

FILE_BYTES = 256 << 20  # of a Parquet file of the corpus, before it is compressed
_GROUP_BYTES = 16 << 20
_READ_ROWS = 65_536
_TYPES = {"id": pa.string(), "text": pa.string(), "texts": pa.list_(pa.string()), "int": pa.int32()}
_FIX = "give the columns of BEIR's sets on the Hub: _id, title, text; query-id, corpus-id, score"


def passages(source: Path, strict: bool = True) -> Passages:
    """The passages of the configuration `corpus`; with `strict` off, their text may be null."""
    files = [file for found in _files(source, "corpus").values() for file in found]
    if not files:
        raise InputError("holds no corpus", source, "add corpus/*.parquet, and name it in README.md if that names others")
    return _tables(files, corpus_fields(strict)), partial(_where, files)


def read(source: Path, intake: Intake) -> None:
    """Import the folder: the files that its README.md lists for `corpus`, `queries` and `qrels`, or that lie in folders of these names."""
    judged = _files(source, "qrels") or _files(source, "default")
    intake.expect(*((f"qrels/{split}", files[0]) for split, files in judged.items()))
    if intake.store is None or _files(source, "corpus"):
        intake.corpus(passages(source, intake.strict))
    asked = [file for found in _files(source, "queries").values() for file in found]
    if not asked:
        raise InputError("holds no queries", source, "add queries/*.parquet, and name it in README.md if that names others")
    intake.queries(without_empty_answers(pa.concat_tables(_tables(asked, QUERIES))), partial(_where, asked))
    for split, files in judged.items():
        intake.qrels(split, pa.concat_tables(_tables(files, QRELS)), partial(_where, files))


def _files(source: Path, config: str) -> dict[str, list[Path]]:
    """The files of each split of a configuration, as README.md has it; without one, those of the folder `config`.

    There the split of a file of qrels is its name, without the `-00000-of-00001` of the Hub.
    """
    found: dict[str, list[Path]] = {}
    listed = front_matter(source / "README.md").get("configs")
    if not isinstance(listed, list):
        for file in sorted((source / config).glob("*.parquet")):
            found.setdefault(re.sub(r"-\d{5}-of-\d{5}$", "", file.stem) if config == "qrels" else config, []).append(file)
        return found
    for entry in listed:
        if isinstance(entry, dict) and entry.get("config_name") == config:
            for split, pattern in _patterns(entry.get("data_files"), source):
                found.setdefault(split, []).extend(_matching(source, pattern))
    return found


def _patterns(listed: object, source: Path) -> Iterator[tuple[str, str]]:
    """The splits of `data_files` with their paths: a path, a list of paths, or a list of {split, path}."""
    for entry in listed if isinstance(listed, list) else [listed]:
        split, paths = (entry.get("split"), entry.get("path")) if isinstance(entry, dict) else ("train", entry)
        for path in paths if isinstance(paths, list) else [paths]:
            if not isinstance(split, str) or not isinstance(path, str):
                raise InputError(f"data_files has {str(entry)[:60]}", source / "README.md", "give a list of {split: NAME, path: FILES}")
            yield split, path


def _matching(source: Path, pattern: str) -> list[Path]:
    if Path(pattern).is_absolute() or ".." in Path(pattern).parts:
        raise InputError(f"data_files names files elsewhere: {pattern}", source / "README.md", "give paths in its folder")
    try:
        files = sorted(source.glob(pattern))
    except (ValueError, NotImplementedError) as error:
        raise InputError(
            f"data_files names {pattern!r}: {error}", source / "README.md", "give paths in its folder, as data/*.parquet"
        ) from None
    if not files:
        raise InputError(f"data_files names {pattern}, which is not there", source / "README.md", "get the folder again")
    return files


def _tables(files: list[Path], fields: list[Field]) -> Iterator[pa.Table]:
    """The rows of some Parquet files with raydense's names and types; a column that need not be there is null."""
    schema = pa.schema([(field.name, _TYPES[field.type]) for field in fields])
    for file in files:
        try:
            opened = pq.ParquetFile(file)
            there = [field.key for field in fields if field.key in opened.schema_arrow.names]
            for field in fields:
                if field.needed and field.key not in there:
                    raise InputError(f"has no column {field.key!r}", file, _FIX)
            row = 0
            for batch in opened.iter_batches(_READ_ROWS, columns=there):
                yield pa.table([_column(batch, field, file, row) for field in fields], schema)
                row += batch.num_rows
            if not row:
                yield schema.empty_table()
        except (pa.ArrowInvalid, OSError) as error:
            raise InputError(f"is not a whole Parquet file ({error})", file, "get it again") from None


def _column(batch: pa.RecordBatch, field: Field, file: Path, row: int) -> pa.Array:
    """A column in raydense's type; InputError on another type, a number that does not fit, or a row without a value that is needed."""
    if field.key not in batch.schema.names:
        return pa.nulls(batch.num_rows, _TYPES[field.type])
    column, kind = batch[field.key], batch[field.key].type
    if field.needed and column.null_count:
        lost = int(np.argmax(column.is_null().to_numpy(zero_copy_only=False)))
        raise InputError(f"no {field.key!r}", f"{file}, row {row + lost + 1}", "each row needs it")
    try:
        if field.type == "text" and pa.types.is_integer(kind):
            raise pa.ArrowInvalid("a number")
        column = column.cast(_TYPES[field.type])
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        raise InputError(f"column {field.key!r} is {kind}, which does not become {_TYPES[field.type]}", file, _FIX) from None
    if field.type == "texts" and (holes := pc.list_flatten(column).is_null()).true_count:
        owner = pc.list_parent_indices(column).filter(holes)[0].as_py()
        raise InputError(f"{field.key!r} has a null", f"{file}, row {row + owner + 1}", "give a list of strings")
    return column


def _where(files: list[Path], row: int) -> str:
    """The file and row, from 1, of a row counted from 0 through all files."""
    for file in files:
        rows = pq.ParquetFile(file).metadata.num_rows
        if row < rows:
            return f"{file}, row {row + 1}"
        row -= rows
    return str(files[-1])


def write(outlet: Outlet) -> None:
    """Write corpus, queries and qrels, those that are given or all of a data set, with a data card."""
    parts = outlet.choose_parts("corpus", "queries", "qrels")
    outlet.path.mkdir()
    if "corpus" in parts:
        _write_corpus(outlet, outlet.path / "corpus")
    if "queries" in parts:
        (outlet.path / "queries").mkdir()
        names = [name for name in outlet.queries.column_names if name in ("query_id", "text", "answers")]
        _write(outlet.path / "queries" / "queries.parquet", outlet.queries.select(names).rename_columns({"query_id": "_id"}))
    for split, path in splits_of(parts, "qrels"):
        (outlet.path / "qrels").mkdir(exist_ok=True)
        file = outlet.path / "qrels" / f"{hub_split(split)}.parquet"
        if file.exists():
            raise InputError(f"two splits would both be {file.stem}", path, "rename one of them")
        if file.stem != split:
            say(f"export: the split {split} becomes {file.stem}, since a split's name has letters, digits, _ and . alone")
        _write(file, read_table(path, "qrels").rename_columns([field.key for field in QRELS]))
    write_card(outlet, parts)


def _write(path: Path, table: pa.Table) -> None:
    pq.write_table(table, path, compression="zstd")


def _write_corpus(outlet: Outlet, folder: Path) -> None:
    """The passages in files of bounded size; holds one row group."""
    folder.mkdir()
    number, size = -1, FILE_BYTES
    with ExitStack() as stack:
        for group in _groups(outlet):
            if size >= FILE_BYTES:
                stack.close()
                number, size = number + 1, 0
                path = folder / f"corpus-{number:05d}.parquet"
                writer = stack.enter_context(pq.ParquetWriter(path, group.schema, compression="zstd"))
            writer.write_table(group)
            size += group.nbytes


def _groups(outlet: Outlet) -> Iterator[pa.Table]:
    """The passages by some MB of text."""
    held: list[pa.Table] = []
    for table in outlet.passages():
        held.append(table.rename_columns([field.key for field in CORPUS]))
        if sum(part.nbytes for part in held) >= _GROUP_BYTES:
            yield pa.concat_tables(held).combine_chunks()
            held = []
    if held:
        yield pa.concat_tables(held).combine_chunks()
