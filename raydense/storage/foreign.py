"""Files of other tools given in place of an artifact: guesses the command that imports a file from its first line."""

from __future__ import annotations

import os
import re
import shlex
import zlib

from raydense.storage.place import Place

_HEAD = 1 << 16
# A pattern of the first line of a file, the format that reads the file, and the part of the data set that it becomes.
_LOOKS = [
    (r"query-id\tcorpus-id\tscore$", "beir", "qrels/SPLIT"),
    (r"id\ttext\ttitle$", "dpr", "corpus"),
    (r'\{.*"neg": ?\{', "sbert_negatives", "examples/SPLIT"),
    (r'\{.*"pos": ?\[', "flagembedding", "examples/SPLIT"),
    (r'\{.*"positive_(passages|document_ids)":', "tevatron", "examples/SPLIT"),
    (r'\{(?=.*"docid":).*"anchor":', "query_as_context", "corpus"),
    (r'\{"spans": ?\[', "condenser", "corpus"),
    (r'\{.*"docid":', "tevatron", "corpus"),
    (r'\{.*"query_id":', "tevatron", "queries"),
    (r'\{.*"_id":', "beir", "queries"),
    (r'(\[|\{).*"positive_ctxs":', "dpr", "examples/SPLIT"),
    (r'(\[|\{).*"ctxs":', "dpr", "run"),
    (r"[^\t]+\t\[.*\]$", "dpr", "queries"),
    (r"[^\t]+\t[^\t]+$", "msmarco", "queries"),  # before those whose columns a query's words would fill
    (r"[^\t]+(\t[^\t]+){4}\t0$", "rocketqa", "examples/SPLIT"),
    (r"\S+\t\S+\t\d+\t-?\d*\.\d\S*$", "rocketqa", "run"),
    (r"\S+\s+\S+\s+\S+\s+\d+\s+\S+\s+\S+$", "trec", "run"),
    (r"\S+\s+\S+\s+\S+\s+-?\d+$", "trec", "qrels/SPLIT"),
    (r"\S+\t\S+\t\d+$", "msmarco", "run"),
    (r"\S+\s+\S+\s+-?\d*\.\d\S*$", "tevatron", "run"),
]


def how_to_import(file: Place, kind: str | None) -> str:
    """The fix for a file given in place of an artifact of `kind` ("one or another", None: any): the import command, and what to give then."""
    head = _first_line(file)
    found = next(((format, part) for look, format, part in _LOOKS if re.match(look, head)), None)
    if found is None:
        return "import it with `raydense import`, whose help lists the formats, and give what that makes"
    format, part = found
    folder, name = os.path.split(str(file))
    rename = ""
    stem = name.removesuffix(".gz").rpartition(".")[0] or name
    if format == "beir" and name.startswith("corpus"):  # read with its queries
        name, part = "", "corpus"
    elif format == "msmarco" and name.startswith("collection"):
        part = "corpus"
    elif format == "msmarco" and part == "queries" and not name.startswith("queries"):  # MS MARCO's files are known by their names
        name = f"queries.{name}"
        rename = f"rename it to {name}, "
    holds = part.partition("/")[0]
    if kind and holds not in kind.split(" or "):
        return f"it looks like {holds} of the format {format}; give {kind}"
    source, output = os.path.join(folder, name) if name else folder or ".", f"data/{stem}"
    command = shlex.join(["raydense", "import", "--format", format, "--input", source, "--output", output])
    if format == "sbert_negatives" or (format, holds) == ("rocketqa", "examples"):  # the passages are those of a corpus
        command += " --corpus CORPUS"
    return f"{rename}make one with `{command}`, and give {shlex.quote(f'{output}/{part}')}"


def _first_line(file: Place) -> str:
    """The first line of a file, at most some KB of it, decompressed if it is gzip; an indented JSON list becomes one line without blanks."""
    head = file.head(_HEAD)
    if head.startswith(b"\x1f\x8b"):
        try:
            head = zlib.decompressobj(31).decompress(head, _HEAD)
        except zlib.error:
            return ""
    text = head.decode("utf-8", "replace").lstrip("\ufeff \n")
    first = text.split("\n")[0].rstrip("\r")
    return "".join(text.split()) if first.strip() == "[" else first
