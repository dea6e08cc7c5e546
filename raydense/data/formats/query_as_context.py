"""Query-as-context: passages with their contexts, JSON lines {docid, anchor, nearby, overlap, random_sampled, query[]}; CoT-MAE has no query.

They are what its authors' make_contextual_splits.py and query_gen.py write (caskcsg/ir, cotmae-qc/qg): the passages of a document
follow one another, and `docid` numbers the passages. The token ids that tokenize_json_file.py makes of them are not read.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa

from raydense.data.formats.files import json_files_of
from raydense.data.formats.intake import Intake, Passages
from raydense.data.formats.lines import Field, first_line, json_lines, json_object, tables_of, where_in

CONTEXTS = ("nearby", "random_sampled", "overlap")
PASSAGES = [Field("passage_id", "id", "docid"), Field("text", "text", "anchor"), *(Field(name, "text", needed=False) for name in CONTEXTS)]
QUERIES = [Field("queries", "texts", "query", needed=False)]


def passages(source: Path) -> Passages:
    """The anchors, with the document that each is of: `doc_id` is the id of its first passage."""
    files, starts = json_files_of(source), list[int]()
    return _in_documents(tables_of(files, partial(json_lines, fields=PASSAGES), starts)), partial(where_in, files, starts)


def read(source: Path, intake: Intake) -> None:
    """Import a file, or the JSON files of a folder as one: the corpus, and the queries if they have been generated."""
    files = json_files_of(source)
    intake.refuse_corpus(files[0])
    intake.corpus(passages(source))
    if any("query" in json_object(first_line(path), f"{path}:1") for path in files):
        intake.generated(table["queries"] for table in tables_of(files, partial(json_lines, fields=QUERIES), []))


def _in_documents(tables: Iterator[pa.Table]) -> Iterator[pa.Table]:
    before: dict[str, Any] = {}
    document = ""
    for table in tables:
        documents = []
        for line in table.to_pylist():
            document = document if before and _of_one_document(before, line) else line["passage_id"]
            documents.append(document)
            before = line
        texts = {"passage_id": table["passage_id"], "title": pa.repeat("", len(table)), "text": table["text"]}
        yield pa.table({**texts, "doc_id": pa.array(documents, pa.string())})


def _of_one_document(before: dict[str, Any], line: dict[str, Any]) -> bool:
    """Whether a context of one of two lines that follow one another is the other's passage, or is a piece across both."""
    for own, other in ((before, line), (line, before)):
        if other["text"] != own["text"] and other["text"] in (own["nearby"], own["random_sampled"]):
            return True  # a passage that is alone in its document is its own context
    return any(_across(one["overlap"] or "", before["text"], line["text"]) for one in (before, line))


def _across(piece: str, first: str, second: str) -> bool:
    """Whether a text is the end of the first passage and the beginning of the second; whole passages may come before and after."""
    for cut in re.finditer(re.escape(f" {second.partition(' ')[0]}"), piece):
        end, beginning = piece[: cut.start()], piece[cut.start() + 1 :]
        if (first.endswith(end) or end.endswith(first)) and (second.startswith(beginning) or beginning.startswith(second)):
            return True
    return False
