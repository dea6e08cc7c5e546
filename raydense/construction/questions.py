"""Reads raw question-answer data, one JSON object a line: the raw files of DuReader 2.0, or anyone's with the same keys.

| key | holds |
| --- | --- |
| `question_id` or `id` | a string or a whole number, unique in all files |
| `question` | its text |
| `answers` | a list of strings; may be missing or empty |
| `documents` | a list, may be missing or empty, of `{"paragraphs": [...]}` or `{"text": ...}`, each perhaps with `title` and `id` |
| `split` | perhaps `train`, `dev` or another name, which `refuse_part_name` takes; otherwise the one in the file's name, as in `search.dev.json` |
| `answer_spans` | perhaps a list of `{"document": i, "start": a, "end": b}`: answers by their place, in characters of the text of document i (from 0) |

Other keys are left out, also DuReader's own `answer_spans`, which are pairs of positions of tokens. The keys of DuReader 2.0 are
those of its demo files (github.com/baidu/DuReader, DuReader-2.0/data/demo), read without `segmented_*` and `is_selected`.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, BinaryIO, TypeGuard

from raydense.data.dataset import refuse_part_name
from raydense.data.formats import records
from raydense.data.formats.files import files_below, not_text, opened, plain
from raydense.data.formats.lines import LONGEST_LINE, json_object
from raydense.errors import InputError
from raydense.storage import Place

_SUFFIXES = (".json", ".jsonl")
_SPLITS = ("train", "dev", "test")
_MARK = b"\xef\xbb\xbf"
_STEP = 4 << 20


@dataclass(frozen=True)
class Document:
    """A document of a question: its id (`<question id>-<position from 0>` where it has none), title and paragraphs, perhaps empty ones."""

    id: str
    title: str
    paragraphs: list[str]


@dataclass(frozen=True)
class Question:
    """A question with its answers and documents. `split` is empty where neither the line nor the file's name has one; `where` is `file:line`."""

    id: str
    text: str
    answers: list[str]
    documents: list[Document]
    split: str
    where: str


@dataclass(frozen=True)
class Block:
    """Whole lines of a file: its bytes `start` to `stop`, the first of which is line `line`. A gzip file is one block, whose `stop` is None."""

    path: Path
    start: int
    stop: int | None
    line: int = 1
    name: str = ""
    """The file's path in its source, if that is a folder."""

    def at(self, source: str) -> Block:
        """The block on this machine, which fetches the source where it is in a bucket."""
        return replace(self, path=Place.of(source).source() / self.name)

    @property
    def size(self) -> int:
        """Its bytes on disk."""
        return self.path.stat().st_size if self.stop is None else self.stop - self.start


def question_files(source: str | os.PathLike[str]) -> list[Path]:
    """The file `source`, or all `*.json`, `*.jsonl` and these as `.gz` in the folder and its folders, sorted; InputError if there is none.

    Hidden files are left out, and NAME.gz where NAME is there, too.
    """
    place = Place.of(source)
    if not place.exists():
        raise InputError("no such file or folder", place, "check the path")
    root = place.source()
    if not root.is_dir():
        return [root]
    files = [file for file in files_below(root) if plain(file).suffix in _SUFFIXES]
    if not files:
        raise InputError("holds no file of questions", place, "give *.json or *.jsonl (also .gz), one question a line")
    return files


def blocks_of(source: str | os.PathLike[str], bytes_per_block: int) -> list[Block]:
    """All files of a source in blocks, in order. Reads the files once, to number their lines."""
    root = Place.of(source).source()
    found = [(path, block) for path in question_files(source) for block in blocks(path, bytes_per_block)]
    return [replace(block, name="" if path == root else str(path.relative_to(root))) for path, block in found]


def blocks(path: Path, bytes_per_block: int) -> list[Block]:
    """The file in blocks of about this many bytes, each of whole lines, to be read in parallel. Reads the file once, to number its lines."""
    if plain(path) != path:
        return [Block(path, 0, None)]
    with opened(path) as stream:
        found = [Block(path, 0, 0)]
        while block := _counted(stream, bytes_per_block, path, found[-1].line):
            last, (size, lines) = found[-1], block
            found[-1] = Block(path, last.start, last.start + size, last.line)
            found.append(Block(path, last.start + size, last.start + size, last.line + lines))
    return found[:-1]


def _counted(stream: BinaryIO, wanted: int, path: Path, line: int) -> tuple[int, int] | None:
    """Reads about `wanted` bytes from `line` on, to the end of a line: how many bytes and lines they are; None at the end of the file."""
    size = lines = 0
    while size < wanted and (part := stream.read(min(_STEP, wanted - size))):
        size, lines = size + len(part), lines + part.count(b"\n")
        ended = part.endswith(b"\n")
    if not size:
        return None
    rest = b"" if ended else stream.readline(LONGEST_LINE)
    if len(rest) == LONGEST_LINE and not rest.endswith(b"\n"):
        raise _too_long(path, line + lines)
    return size + len(rest), lines + rest.count(b"\n")


def _too_long(path: Path, line: int) -> InputError:
    return InputError(f"a line of more than {LONGEST_LINE >> 20} MiB", f"{path}:{line}", "give one question a line")


def read_block(block: Block) -> Iterator[Question]:
    """The questions of a block, one at a time. InputError names the file and the line of what is wrong.

    It does not tell whether an id is repeated, which the questions of all blocks together show.
    """
    split = _split_of(block.path)
    with opened(block.path) as stream:
        stream.seek(block.start)
        at, number = block.start, block.line - 1
        while (block.stop is None or at < block.stop) and (line := stream.readline(LONGEST_LINE)):
            at, number = at + len(line), number + 1
            if len(line) == LONGEST_LINE and not line.endswith(b"\n"):
                raise _too_long(block.path, number)
            line = line.removeprefix(_MARK) if number == 1 else line
            if line.strip():
                yield _question(_decoded(line, block.path, number), split, f"{block.path}:{number}")


def _split_of(path: Path) -> str:
    """The split that a part of the file's name is: `search.dev.json` -> `dev`; empty if none is."""
    return next((part for part in plain(path).name.split(".") if part in _SPLITS), "")


def _decoded(line: bytes, path: Path, number: int) -> str:
    try:
        return line.decode("utf-8").rstrip("\r\n")
    except UnicodeDecodeError as error:
        raise not_text(path, number, line[error.start]) from None


def _question(line: str, split: str, at: str) -> Question:
    entry = json_object(line, at)
    name = records.name(entry, "id" if "question_id" not in entry and "id" in entry else "question_id", at)
    text = records.text(entry, "question", at)
    for key, value in (("question_id", name), ("question", text)):
        if not value.strip():
            raise InputError(f"empty {key}", at, "fill it, or remove the line")
    documents = [_document(found, f"{name}-{i}", i, at) for i, found in enumerate(records.objects(entry, "documents", at, []))]
    answers = records.texts(entry, "answers", at, [])
    answers += [answer for answer in _spans(entry, documents, at) if answer not in answers]
    split = records.text(entry, "split", at, "") or split
    if split:
        refuse_part_name(f"qrels/{split}", lambda: at)
    return Question(name, text, answers, documents, split, at)


def _document(entry: dict[str, Any], id: str, position: int, at: str) -> Document:
    try:
        paragraphs = records.texts(entry, "paragraphs", at) if entry.get("paragraphs") is not None else [records.text(entry, "text", at)]
        return Document(records.name({"id": id} | entry, "id", at), records.text(entry, "title", at, ""), paragraphs)
    except InputError as error:
        what, where, fix = error.args
        raise InputError(f"documents[{position}]: {what}", where, fix) from None


def _spans(entry: dict[str, Any], documents: list[Document], at: str) -> Iterator[str]:
    """The texts of the `answer_spans` that are objects; InputError for one outside of its document, and where they are no list."""
    for span in records.values(entry, "answer_spans", at, []):
        if isinstance(span, dict):
            yield _text_of(span, documents, at)


def _text_of(span: dict[str, Any], documents: list[Document], at: str) -> str:
    fix = "count characters of the document's text, whose paragraphs have a line break between, from 0"
    document, start, end = (span.get(key) for key in ("document", "start", "end"))
    if not _is_whole(document) or not _is_whole(start) or not _is_whole(end):
        raise InputError(f"answer_spans: {str(span)[:60]} is not {{document, start, end}} in whole numbers", at, fix)
    if not 0 <= document < len(documents):
        raise InputError(f"answer_spans: document {document} of {len(documents)} (from 0)", at, "give the position of one of its documents")
    text = "\n".join(documents[document].paragraphs)
    if not 0 <= start < end <= len(text):
        raise InputError(f"answer_spans: {start} to {end} is not in document {document}, which has {len(text):,} characters", at, fix)
    return text[start:end]


def _is_whole(value: Any) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool)
