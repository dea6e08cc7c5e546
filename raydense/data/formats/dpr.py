"""DPR: training JSON, `psgs_w100.tsv`, question-and-answer files, and retrieval results."""

from __future__ import annotations

import ast
import csv
import json
import re
from collections.abc import Iterable, Iterator
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa

from raydense.data.answers import normal_tokens, token_matcher
from raydense.data.formats.files import corpus_file, files_of, opened, plain
from raydense.data.formats.intake import Intake, Passages, run_part
from raydense.data.formats.lines import Field, columns, first_line, is_unicode, json_objects, where
from raydense.data.formats.outlet import Example, Outlet
from raydense.data.formats.records import ExampleRows, name, number, objects, text, texts
from raydense.data.formats.texts import TextCorpus
from raydense.data.runs import BLOCK_ROWS
from raydense.errors import InputError
from raydense.runtime.progress import say

PASSAGES = [Field("passage_id", "id", "id"), Field("text", "text"), Field("title", "text")]
QUESTIONS = [Field("text", "text", "question"), Field("answers", "text", "['answer', ...]")]
HEADER = ["id", "text", "title"]
_RUN = pa.schema([("query_id", pa.string()), ("passage_id", pa.string()), ("score", pa.float32())])


def passages(source: Path) -> Passages:
    """The passages of `psgs*.tsv` in a folder, or of the file that is one."""
    path = corpus_file(source, "psgs*.tsv", "psgs_w100.tsv")
    if first_line(path).split("\t") != HEADER:
        raise InputError("the first line is not the header", f"{path}:1", "it must be id<TAB>text<TAB>title")
    return columns(path, PASSAGES, skip=1, quoted=True), where(path, 1)


class _Files(NamedTuple):
    """The files of DPR in a folder, or one of them; `results` are those of `entries` that have hits, not training entries."""

    collection: list[Path]
    entries: list[Path]
    results: list[Path]
    questions: list[Path]


def _files(source: Path) -> _Files:
    """The files by their names, and JSON files by the contexts that they begin with."""
    files = files_of(source)
    collection = [p for p in files if p.name.startswith("psgs")]
    entries = [p for p in files if plain(p).suffix in (".json", ".jsonl")]
    questions = [p for p in files if plain(p).suffix in (".csv", ".tsv") and p not in collection]
    if not collection and not entries and not questions:
        raise InputError("holds no file of DPR", source, "give psgs_w100.tsv, training *.json, or questions *.csv")
    return _Files(collection, entries, [path for path in entries if _is_results(path)], questions)


def _is_results(path: Path) -> bool:
    with opened(path) as stream:
        first = re.search(rb'(?<!\\)"(\w*ctxs)"\s*:', stream.read(1 << 16))
    return first is not None and first[1] == b"ctxs"


def _part(path: Path, runs: list[Path]) -> str:
    return run_part(plain(path).stem, runs) if path in runs else f"examples/{plain(path).stem}"


def parts(source: Path) -> set[str]:
    """The parts that an import of a folder makes: for `plan`, before anything is read but how the files begin."""
    found = _files(source)
    made = {_part(path, found.results) for path in found.entries}
    made |= {f"qrels/{plain(path).stem}" for path in found.entries if path not in found.results}
    made |= {"queries"} if found.entries or found.questions else set()
    return made | ({"corpus"} if found.collection or found.entries else set())


def read(source: Path, intake: Intake) -> None:
    """Import a folder or a file. Without a corpus, the contexts of the training files become the corpus."""
    collection, training, runs, questions = _files(source)
    intake.expect(*((_part(path, runs), path) for path in training))
    if collection:
        intake.corpus(passages(source))
    gathered, examples = TextCorpus(), {}
    own_texts = intake.store is None
    if own_texts and training:
        say(
            f"import: there is no psgs*.tsv and no --corpus: the passages of {plain(training[0]).name} and others like it become the corpus"
        )
    for path in questions:
        _read_questions(path, gathered)
    for path in training:
        if path in runs:
            for _ in _hits(path, gathered, own_texts):  # what is wrong in it is found before anything is written
                pass
        else:
            examples[path] = _read_training(path, gathered, own_texts)
    if gathered.queries:
        gathered.write(intake, with_corpus=own_texts and bool(gathered.passages))
    for path, rows in examples.items():
        rows.write_with_negatives(plain(path).stem, intake)
        intake.qrels(plain(path).stem, *rows.judgements())
    for path in runs:
        tables = partial(_run_tables, path, gathered, own_texts)
        intake.run(run_part(plain(path).stem, runs), tables, partial(_where_hit, path))


def _read_questions(path: Path, gathered: TextCorpus) -> None:
    """`question<TAB>['answer', ...]`; a cell that contains a quote is quoted as in CSV. The answers are a Python list literal."""
    at = where(path)
    row = 0
    for table in columns(path, QUESTIONS, quoted=True):
        for question, literal in zip(table["text"].to_pylist(), table["answers"].to_pylist(), strict=True):
            try:
                answers = ast.literal_eval(literal)
            except (ValueError, SyntaxError, MemoryError, RecursionError):
                answers = None
            if not isinstance(answers, list) or not all(isinstance(a, str) and is_unicode(a) for a in answers):
                raise InputError(f"the answers are {literal[:40]!r}, not a list of strings", at(row), "write them as ['one', 'two']")
            gathered.add_query(question, "" if question.strip() else at(row), answers=answers)
            row += 1


def _context(ctx: dict[str, Any], gathered: TextCorpus, own: bool, at: str) -> str:
    """The passage id of a context: `passage_id`, `psg_id` or `id`; if it has none, an id made from its text."""
    given = next((name(ctx, key, at) for key in ("passage_id", "psg_id", "id") if ctx.get(key) is not None), None)
    if not own and given is not None:
        return given
    return gathered.add(text(ctx, "text", at), at, text(ctx, "title", at, ""), given)


def _read_training(path: Path, gathered: TextCorpus, own: bool) -> ExampleRows:
    """The entries with a positive; DPR leaves out the others, too, of which its own files have many."""
    rows, without = ExampleRows(), 0
    for at, entry in json_objects(path):
        given = objects(entry, "positive_ctxs", at)
        if not given:
            without += 1
            continue
        query = gathered.add_query(text(entry, "question", at), at, answers=texts(entry, "answers", at, []))
        positives = [_context(c, gathered, own, at) for c in given]
        sides = [[_context(c, gathered, own, at) for c in objects(entry, key, at, [])] for key in ("hard_negative_ctxs", "negative_ctxs")]
        hard, easy = ([passage for passage in side if passage not in positives] for side in sides)
        # as DPR's reader: passages of `negative_ctxs`, drawn from the whole corpus, only where there are no others
        rows.add(at, query, positives, hard or easy, sources=["hard"] * len(hard) if hard else ["negative"] * len(easy))
    if without:
        say(f"import {path.name}: {without:,} of {without + len(rows):,} entries have no positive passage, and are left out")
    if not len(rows):
        raise InputError("no entry has a positive passage", path, "check the file")
    return rows


def _hits(path: Path, gathered: TextCorpus, own: bool) -> Iterator[tuple[str, str, float]]:
    """The query, passage and score of each hit of retrieval results; adds the questions and, where they are the corpus, the passages."""
    for at, entry in json_objects(path):
        query = gathered.add_query(text(entry, "question", at), at, answers=texts(entry, "answers", at, []))
        for ctx in objects(entry, "ctxs", at):
            yield query, _context(ctx, gathered, own, at), number(ctx, "score", at)


def _run_tables(path: Path, gathered: TextCorpus, own: bool) -> Iterator[pa.Table]:
    hits = _hits(path, gathered, own)
    while block := list(islice(hits, BLOCK_ROWS)):
        yield pa.table([list(column) for column in zip(*block, strict=True)], schema=_RUN)


def _where_hit(path: Path, row: int) -> str:
    """The place of the entry that a hit is in."""
    for at, entry in json_objects(path):
        if row < (count := len(objects(entry, "ctxs", at))):
            return at
        row -= count
    return str(path)


def write(outlet: Outlet) -> None:
    """Write training examples or a run with its texts as a JSON list, or a corpus as `psgs_w100.tsv`."""
    kind = outlet.choose("examples", "run", "corpus", spelled=("examples", "run"))
    if kind == "corpus":
        _write_passages(outlet)
    elif kind == "examples":
        _write_list(outlet.path, map(_entry, outlet.examples()))
    else:
        _write_list(outlet.path, _results(outlet))


def _write_list(path: Path, entries: Iterable[dict[str, Any]]) -> None:
    with open(path, "w", encoding="utf-8", newline="\n") as stream:
        between = "[\n"
        for entry in entries:
            stream.write(between + json.dumps(entry, ensure_ascii=False))
            between = ",\n"
        stream.write("\n]\n" if between == ",\n" else "[]\n")


def _write_passages(outlet: Outlet) -> None:
    with open(outlet.path, "w", encoding="utf-8", newline="") as stream:
        writer = csv.writer(stream, delimiter="\t", lineterminator="\n")
        writer.writerow(HEADER)
        for table in outlet.passages():
            found = table.to_pydict()
            for passage_id, title, words in zip(found["passage_id"], found["title"], found["text"], strict=True):
                if "\n" in words or "\r" in words or "\n" in title or "\r" in title:
                    raise InputError(
                        f"passage {passage_id!r} has a line break, which psgs_w100.tsv cannot hold", "export", "use another format"
                    )
                writer.writerow([passage_id, words, title])


def _entry(example: Example) -> dict[str, Any]:
    positives, negatives = (
        [{"title": p.title, "text": p.text, "passage_id": p.passage_id} for p in side] for side in (example.positives, example.negatives)
    )
    return {
        "question": example.query,
        "answers": example.answers,
        "positive_ctxs": positives,
        "negative_ctxs": [],
        "hard_negative_ctxs": negatives,
    }


def _results(outlet: Outlet) -> Iterator[dict[str, Any]]:
    """The hits of each question. As DPR has it, scores are strings, and `has_answer` is of the text alone: what answer accuracy counts."""
    without = 0
    for found in outlet.found():
        holds = token_matcher(found.answers)
        contexts = [
            {"id": p.passage_id, "title": p.title, "text": p.text, "score": score, "has_answer": holds(normal_tokens(p.text))}
            for p, score in zip(found.passages, found.scores, strict=True)
        ]
        yield {"question": found.query, "answers": found.answers, "ctxs": contexts}
        without += not found.answers
    if without:
        say(f"export: {without:,} queries have no answers: has_answer is false for all that was found for them")
