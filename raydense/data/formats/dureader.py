"""DuReader-retrieval: the folder that its baseline downloads (dureader-retrieval-baseline-dataset), and runs as its evaluation reads them.

The names of the files are those of that folder, their columns and keys those of its readme.md; `test1/test1.json` is the one of the
test set, and a run {question_id: [paragraph_id, ...]} is what its metric/evaluation.py takes (PaddlePaddle/RocketQA,
research/DuReader-Retrieval-Baseline). The columns that the readme calls `null` are not read.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from raydense.data.formats.dureader_export import write_files
from raydense.data.formats.files import files_below, opened, plain
from raydense.data.formats.intake import Intake, Passages, run_part, without_repeats
from raydense.data.formats.json_maps import json_pairs
from raydense.data.formats.lines import Field, blocks, columns, json_object, where, where_in
from raydense.data.formats.outlet import Outlet
from raydense.data.formats.records import name, objects, text
from raydense.data.formats.text_pairs import TextPairs, named_queries
from raydense.data.formats.texts import TextCorpus
from raydense.errors import InputError

MAP = "passage2id.map.json"
PART = [Field("0", "text"), Field("1", "text"), Field("text", "text", "passage_text"), Field("3", "text")]
DUAL = [Field("query", "text"), Field("0", "text"), Field("positive", "text", "para_text_pos"), Field("1", "text")]
DUAL += [Field("negative", "text", "para_text_neg"), Field("2", "text")]
CROSS = [Field("query", "text"), Field("0", "text"), Field("passage", "text", "para_text"), Field("label", "int")]
ID_MAP = [Field("query_id", "id"), Field("passage_id", "id")]
_KINDS = {
    "collection": r"part-\d+",
    "map": re.escape(MAP),
    "q2qid": r"q2qid\..*json",
    "training": r"(dual|cross)\..*tsv",
    "id_map": r".*id_map\.tsv",
    "json": r".*\.json",
}


def _files(source: Path) -> dict[str, list[Path]]:
    """The files by kind: by their names, and JSON files by what they begin with."""
    found: dict[str, list[Path]] = {kind: [] for kind in (*_KINDS, "questions", "run")}
    for path in files_below(source):
        kind = next((kind for kind, names in _KINDS.items() if re.fullmatch(names, plain(path).name)), None)
        if kind:
            found[("questions" if _is_lines(path) else "run") if kind == "json" else kind].append(path)
    if not any(found.values()):
        what = (
            "part-00, passage2id.map.json, dev.json, q2qid.dev.json, dual.train.tsv, cross.train.tsv, *.id_map.tsv, or *.json that is a run"
        )
        raise InputError("holds no file of DuReader-retrieval", source, f"give {what}")
    found["collection"].sort(key=lambda path: (path.parent, int(plain(path).name.removeprefix("part-"))))
    return found


def _is_lines(path: Path) -> bool:
    """Whether a JSON file has questions, one a line, and not a list for each question."""
    with opened(path) as stream:
        head = stream.read(4096)
    first = re.match(rb'(\xef\xbb\xbf)?\s*\{\s*"((?:[^"\\]|\\.)*)"\s*:\s*\[', head)
    return not first or first[2] == b"answer_paragraphs"


def passages(source: Path) -> Passages:
    """The passages of `passage-collection/part-*`, in order, with the ids that `passage2id.map.json` gives their lines, counted from 0."""
    found = _files(source)
    parts, maps = found["collection"], found["map"]
    if not parts or len(maps) != 1:
        lacks = "part-00 and the other parts" if not parts else f"one {MAP}, but {len(maps)}"
        raise InputError(f"does not hold {lacks}", source, "give the folder with passage-collection")
    starts: list[int] = []
    return _numbered(parts, maps[0], starts), partial(where_in, parts, starts)


def _numbered(parts: list[Path], ids_of: Path, starts: list[int]) -> Iterator[pa.Table]:
    """The lines of the parts with their ids; notes in `starts` the first line of each."""
    ids, row = _ids(ids_of), 0
    for part in parts:
        starts.append(row)
        for table in columns(part, PART):
            stop = row + table.num_rows
            if stop > len(ids):
                raise InputError(
                    f"is passage {len(ids)}, counted from 0, which {ids_of} does not have", where_in(parts, starts, len(ids)), "add it"
                )
            yield pa.table({"passage_id": ids.slice(row, table.num_rows), "title": pa.repeat("", table.num_rows), "text": table["text"]})
            row = stop
    if row < len(ids):
        raise InputError(f"names {len(ids):,} passages, of which the parts hold {row:,}", ids_of, "get the parts that are missing")


def _ids(path: Path) -> pa.ChunkedArray:
    """The passage ids by line; holds 45 bytes and the id of each."""
    lines, ids = list[NDArray[np.int64]](), list[pa.Array]()
    for pairs, at in json_pairs(path):
        try:
            lines.append(np.array([key for key, _ in pairs]).astype(np.int64))
            ids.append(pa.array([value for _, value in pairs], pa.string()))
        except (ValueError, OverflowError, pa.ArrowInvalid, pa.ArrowTypeError):
            wrong = next((i for i, (k, v) in enumerate(pairs) if not (k.isascii() and k.isdigit()) or not isinstance(v, str)), 0)
            raise InputError(
                f"maps {pairs[wrong][0]!r:.60} to {pairs[wrong][1]!r:.60}, not a line to an id", at(wrong), "correct it"
            ) from None
    numbers, named = np.concatenate(lines or [np.zeros(0, np.int64)]), pa.chunked_array(ids, pa.string())
    order = np.argsort(numbers, kind="stable")
    if not np.array_equal(numbers[order], np.arange(len(numbers))):
        lost = int(np.argmax(np.append(numbers[order], -1) != np.arange(len(numbers) + 1)))
        raise InputError(f"its lines are not 0 to {len(numbers) - 1:,}: line {lost} is missing, or there twice", path, "get it again")
    return named if (numbers[1:] > numbers[:-1]).all() else named.take(pa.array(order))


def parts(source: Path) -> set[str]:
    """The parts that an import of a folder makes: for `plan`, before anything is read but how JSON files begin."""
    found = _files(source)
    runs, training = found["run"] + found["id_map"], found["training"]
    made = {run_part(plain(path).stem, runs) for path in runs} | {f"examples/{plain(path).stem}" for path in training}
    made |= {f"qrels/{split}" for split in _splits(found["questions"])} | ({"qrels/train"} if training else set())
    made |= {"queries"} if found["questions"] or found["q2qid"] or training else set()
    return made | ({"corpus"} if found["collection"] or found["map"] else set())


def read(source: Path, intake: Intake) -> None:
    """Import the folder, or one of its files. Training files need the passages: their texts are looked up in them."""
    found = _files(source)
    splits = _splits(found["questions"])
    queries, judged = TextCorpus(), dict[str, tuple[list[tuple[str, str]], list[str]]]()
    for split, path in splits.items():
        judged[split] = _read_questions(path, queries)
    for path in found["q2qid"]:
        _read_map(path, queries)
    runs = found["run"] + found["id_map"]
    intake.expect(
        *((f"qrels/{split}", path) for split, path in splits.items() if judged[split][0]),
        *((f"examples/{plain(path).stem}", path) for path in found["training"]),
        *((run_part(plain(path).stem, runs), path) for path in runs),
    )
    if found["collection"] or found["map"]:
        intake.corpus(passages(source))
    trained = [(path, _read_training(path, intake)) for path in found["training"]]
    known = named_queries(trained, queries)
    if queries.queries:
        queries.write(intake, with_corpus=False)
    _write_judged(judged, trained, known, intake)
    for path in found["run"]:
        intake.run(run_part(plain(path).stem, runs), partial(_run_tables, path), partial(_where_hit, path))
    for path in found["id_map"]:
        intake.run(run_part(plain(path).stem, runs), partial(columns, path, ID_MAP), where(path))


def _splits(questions: list[Path]) -> dict[str, Path]:
    """The question files by split, which is the file's name; InputError for two of one name."""
    found: dict[str, Path] = {}
    for path in questions:
        other = found.setdefault(plain(path).stem, path)
        if other is not path:
            raise InputError(f"has the name of {other}, and both would be the split {plain(path).stem}", path, "rename or remove one")
    return found


def _read_questions(path: Path, queries: TextCorpus) -> tuple[list[tuple[str, str]], list[str]]:
    """Adds the questions of a file, and returns its judgements, pairs of question and paragraph, each once, with their places."""
    judged: dict[tuple[str, str], str] = {}
    for first, block in blocks(path):
        for number, line in enumerate(block.split(b"\n"), first):
            if not line.strip():
                continue
            at = f"{path}:{number}"
            entry = json_object(line, at)
            query_id = queries.add_query(text(entry, "question", at), at, name(entry, "question_id", at))
            for paragraph in objects(entry, "answer_paragraphs", at, []):
                judged.setdefault((query_id, name(paragraph, "paragraph_id", at)), at)
    return list(judged), list(judged.values())


def _read_map(path: Path, queries: TextCorpus) -> None:
    """Adds the questions of a file {question: question_id}."""
    for pairs, at in json_pairs(path):
        for i, (asked, query_id) in enumerate(pairs):
            if not isinstance(query_id, str):
                raise InputError(f"maps {asked[:40]!r} to {str(query_id)[:40]}, not to an id", at(i), "give {question: question_id}")
            queries.add_query(asked, str(path), query_id)


def _read_training(path: Path, intake: Intake) -> TextPairs:
    if intake.store is None:
        raise InputError("has texts, no ids: it needs the corpus to look them up in", path, "add passage-collection, or give --corpus")
    return TextPairs(path, DUAL if path.name.startswith("dual") else CROSS, intake.store, intake.strict)


def _write_judged(
    judged: dict[str, tuple[list[tuple[str, str]], list[str]]], trained: list[tuple[Path, TextPairs]], known: dict[str, str], intake: Intake
) -> None:
    """The judgements of the question files, the examples, and the positives of all of them as qrels/train where no train.json is."""
    for split, (pairs, places) in judged.items():
        if pairs:
            intake.qrels(split, _qrels([p[0] for p in pairs], pa.array([p[1] for p in pairs], pa.string())), places.__getitem__)
    found = []
    for path, pairs_of in trained:
        examples = pairs_of.examples(known)
        intake.examples(plain(path).stem, examples, partial(_file, path))
        positives = examples["positives"].combine_chunks()
        asked = examples["query_id"].take(pc.list_parent_indices(positives))
        found.append(pa.table({"query_id": asked, "passage": positives.flatten()}))
    if found and "train" not in judged:
        pairs = without_repeats(pa.concat_tables(found), ["query_id", "passage"])
        passage_ids = trained[0][1].store.ids(pairs["passage"].to_numpy())
        intake.qrels("train", _qrels(pairs["query_id"], passage_ids), partial(_file, trained[0][0].parent))


def _file(path: Path, row: int) -> str:
    return str(path)


def _qrels(queries: Any, ids: pa.Array) -> pa.Table:
    return pa.table({"query_id": queries, "passage_id": ids, "relevance": pa.repeat(pa.scalar(1, pa.int32()), len(ids))})


def _run_tables(path: Path) -> Iterator[pa.Table]:
    """The hits of a run {question_id: [paragraph_id, ...]}, in their order."""
    for pairs, at in json_pairs(path):
        lists = [_hits(hits, at, i) for i, (_, hits) in enumerate(pairs)]
        counts = [len(hits) for hits in lists]
        names = pa.array([key for key, _ in pairs], pa.string()).take(pa.array(np.repeat(np.arange(len(pairs)), counts)))
        yield pa.table({"query_id": names, "passage_id": pa.array([hit for hits in lists for hit in hits], pa.string())})


def _hits(hits: Any, at: Any, pair: int) -> list[str]:
    if not isinstance(hits, list) or not all(isinstance(hit, str) for hit in hits):
        raise InputError(f"its list is {str(hits)[:40]}, not ids of passages", at(pair), "give {question_id: [paragraph_id, ...]}")
    return hits


def _where_hit(path: Path, row: int) -> str:
    """The place of the list that a hit is in."""
    for pairs, at in json_pairs(path):
        for i, (_, hits) in enumerate(pairs):
            if row < len(hits):
                return at(i)
            row -= len(hits)
    return str(path)


def write(outlet: Outlet) -> None:
    """Write a run as one JSON file; or corpus, queries, qrels and examples, those given or all of a data set, as the baseline's folder."""
    write_files(outlet)
