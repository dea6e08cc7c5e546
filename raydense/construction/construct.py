"""Construct: questions with documents and answers become a retrieval data set (DuReader-retrieval, section 2.2).

Each block of the input is cut into passages and labelled by a task, which leaves two files in the work folder (`labelled`). Then equal
questions and equal passages become one (`merging`), and the data set is written, with `report.md` and a line for each question left out.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray

from raydense.construction.answer_tokens import Unit, unit_of
from raydense.construction.construct_report import write_report
from raydense.construction.labelled import COUNTED, Rules, label_block, names_of, read_counts
from raydense.construction.merging import Merged, first_passages, merge_questions
from raydense.construction.questions import Block, Question, blocks_of, read_block
from raydense.construction.settings import BLOCK_BYTES, LENGTHS, TASK_BYTES, ConstructSettings
from raydense.data.dataset import DatasetDraft, gone_if_refused
from raydense.data.json_lines import write_json_lines
from raydense.data.missing_splits import fill_splits
from raydense.data.splits import SHARES, divided
from raydense.data.store import CorpusWriter
from raydense.data.tables import one_column
from raydense.errors import InputError, RefusedByStore
from raydense.inference.arrivals import arriving
from raydense.runtime.progress import Progress, say
from raydense.runtime.session import ensure_ray
from raydense.runtime.tasks import refuse_small_nodes, run_tasks
from raydense.storage import Artifact, Draft, Place, check_unchanged, provenance, releases_outputs

Mask = NDArray[np.bool_]
REPORT, DROPPED = "report.md", "dropped.jsonl"
_LOOKED_AT = 1_000  # questions that decide the unit
_AT_ONCE = 8_192  # passages


@releases_outputs
def construct(settings: ConstructSettings) -> Artifact:
    """A data set of corpus, queries and qrels/<split>; a question counts where a passage of its own documents is positive.

    A paragraph is positive if the F1 of one of its spans and one of the answers is at least `f1` (algorithm 1), a passage if any of its
    paragraphs is. Passages of one text are one, and so are questions of one text, with the answers and positives of all. Passages of
    questions that are left out stay in the corpus. The summary has the counts of each step and of each split, as tables 2 and 3 of the
    paper. InputError names file and line of a fault of the input, and says where no question is left.
    """
    made_from = provenance("construct", settings)
    dataset = DatasetDraft(settings.output, made_from)
    if dataset.done:
        return dataset.done
    with gone_if_refused(dataset.draft, partial(_stays, dataset.draft)):
        there = blocks_of(settings.input, BLOCK_BYTES)
        if next(_questions(there), None) is None:
            raise InputError("holds no question", settings.input, "give one question a line")
        rules = _rules(settings, there)
    missing = [number for number in range(len(there)) if any(dataset.draft.kept(name) is None for name in names_of(number))]
    if missing:
        ensure_ray()
        refuse_small_nodes("construct", TASK_BYTES)
    with gone_if_refused(dataset.draft, partial(_stays, dataset.draft)):
        files = _labelled(settings, dataset, there, missing, rules)
        check_unchanged(settings.input, made_from["inputs"]["input"])
        merged = merge_questions([pq.read_table(questions) for questions, _ in files])
        judged = _judged(settings, merged, files)
    counts = sum((read_counts(questions) for questions, _ in files), Counter[str]())
    first = first_passages(pq.read_table(passages, columns=["passage_id"])["passage_id"] for _, passages in files)
    corpus = _write_corpus(settings, dataset, files, first)
    _write_queries(dataset, merged, judged)
    dataset.draft.commit(DROPPED, lambda path: write_json_lines(path, merged.dropped(_ids(judged))), 0)
    summary = _summary(rules, counts, merged, judged, corpus, files, first)
    dataset.draft.commit(REPORT, lambda path: write_report(path, summary), 0)
    _say(summary)
    _say_missing(merged.queries["split"], judged)
    return dataset.finish(**summary)


def _rules(settings: ConstructSettings, there: list[Block]) -> Rules:
    unit: Unit = unit_of(question.text for question in islice(_questions(there), _LOOKED_AT)) if settings.unit == "auto" else settings.unit
    length = LENGTHS[unit] if settings.length is None else settings.length
    say(f"construct: spans of {unit}, passages of more than {length} {unit}")
    return Rules(unit, length, settings.f1, settings.titles)


def _questions(there: list[Block]) -> Iterator[Question]:
    for block in there:
        yield from read_block(block)


def _stays(draft: Draft, error: InputError) -> bool:
    return isinstance(error, RefusedByStore) or bool(draft.committed())


def _labelled(
    settings: ConstructSettings, dataset: DatasetDraft, there: list[Block], missing: list[int], rules: Rules
) -> list[tuple[Path, Path]]:
    """The files of all blocks, in order, on this machine; those that an earlier run left are kept."""
    draft = dataset.draft
    whole = sum(block.size for block in there)
    left = sum(there[number].size for number in missing)
    located = str(Place.of(settings.input).located)
    with Progress("construct", whole, "bytes", whole - left) as progress:
        calls = [(draft, rules, number, located, there[number]) for number in missing]
        reported = run_tasks("construct", label_block, calls, settings.concurrency, TASK_BYTES)
        for done in arriving(draft, [names_of(number)[1] for number in missing], reported):
            progress.add(done)
    return [(draft.kept_whole(questions), draft.kept_whole(passages)) for questions, passages in map(names_of, range(len(there)))]


def _judged(settings: ConstructSettings, merged: Merged, files: list[tuple[Path, Path]]) -> dict[str, pa.Table]:
    """The positive pairs of each split, as qrels; InputError if there is none."""
    pairs = merged.pairs(pq.read_table(passages, columns=["question", "passage_id", "f1"]) for _, passages in files)
    splits = {split: pairs.filter(pc.equal(pairs["split"], split)) for split in pc.unique(pairs["split"]).to_pylist()}
    if not splits:
        raise InputError("no question has a positive passage", settings.input, "check that it has answers, or give a smaller f1")
    if settings.fill_splits:
        splits = fill_splits(splits, merged.queries, settings.fill_by)
    columns = ["query_id", "passage_id", "relevance"]
    return {split: splits[split].select(columns) for split in sorted(splits, key=lambda name: ([*SHARES, name].index(name), name))}


def _write_corpus(settings: ConstructSettings, dataset: DatasetDraft, files: list[tuple[Path, Path]], first: list[Mask]) -> Artifact:
    draft = dataset.part("corpus", "corpus")
    if draft.done:
        return dataset.keep("corpus", draft.done)
    writer = CorpusWriter(draft, settings.shard_rows)
    with Progress("construct corpus", sum(map(len, first)), "passages") as progress:
        for (_, passages), mask in zip(files, first, strict=True):
            for rows, table in _pieces(passages, mask):
                writer.add(table)
                progress.add(rows)
    return dataset.keep("corpus", writer.finish())


def _pieces(passages: Path, mask: Mask) -> Iterator[tuple[int, pa.Table]]:
    """How many passages were read, and those of the mask, some thousand at a time: the block of a gzip file is the whole file."""
    row = 0
    with pq.ParquetFile(passages) as file:
        for batch in file.iter_batches(_AT_ONCE, columns=["passage_id", "doc_id", "title", "text"]):
            yield len(batch), pa.Table.from_batches([batch]).filter(pa.array(mask[row : row + len(batch)]))
            row += len(batch)


def _write_queries(dataset: DatasetDraft, merged: Merged, judged: dict[str, pa.Table]) -> None:
    kept = merged.queries.filter(pc.is_in(merged.queries["query_id"], value_set=_ids(judged)))
    dataset.table("queries", "queries", kept.select(["query_id", "text", "answers"]))
    for split, table in judged.items():
        dataset.table(f"qrels/{split}", "qrels", table)


def _ids(judged: dict[str, pa.Table]) -> pa.Array:
    """The queries that are judged in some split."""
    return pc.unique(pa.concat_tables(judged.values())["query_id"])


def _summary(
    rules: Rules,
    counts: Counter[str],
    merged: Merged,
    judged: dict[str, pa.Table],
    corpus: Artifact,
    files: list[tuple[Path, Path]],
    first: list[Mask],
) -> dict[str, Any]:
    """What the manifest has: the rules, the counts of each step, the numbers of each split, and the lengths of all passages."""
    every, lengths = _lengths(files, first, pc.unique(pa.concat_tables(judged.values())["passage_id"]))
    kept = len(_ids(judged))
    steps = {name: counts[name] for name in COUNTED} | {
        "passages of the same text, now one": counts["passages"] - corpus.rows,
        "passages in the corpus": corpus.rows,
        "questions of the same text, now one": merged.repeated,
        "questions moved to a held-out split": merged.moved,
        "questions without a positive passage": len(merged.queries) - kept,
        "queries": kept,
    }
    quantiles = pc.quantile(every, [0.5], interpolation="lower")
    return {
        "unit": rules.unit,
        "length": rules.length,
        "f1": rules.f1,
        "steps": steps,
        "splits": {split: _of_split(table, merged.queries, lengths, rules) for split, table in judged.items()},
        "passage_length": {"mean": round(pc.mean(every).as_py(), 2), "median": quantiles[0].as_py()},
    }


def _lengths(files: list[tuple[Path, Path]], first: list[Mask], positive: pa.Array) -> tuple[pa.Array, pa.Table]:
    """The length of each passage of the corpus; and of the positive ones, with their ids."""
    every, of_positive = [], []
    for (_, passages), mask in zip(files, first, strict=True):
        table = pq.read_table(passages, columns=["passage_id", "length"]).filter(pa.array(mask))
        every.append(table["length"])
        of_positive.append(table.filter(pc.is_in(table["passage_id"], value_set=positive)))
    return one_column(every).combine_chunks(), pa.concat_tables(of_positive)


def _of_split(table: pa.Table, queries: pa.Table, lengths: pa.Table, rules: Rules) -> dict[str, Any]:
    """The rows of table 3 for a split; lengths in the unit of the rules."""
    ids = pc.unique(table["query_id"])
    texts = queries["text"].filter(pc.is_in(queries["query_id"], value_set=ids))
    passages = pc.unique(table["passage_id"])
    of_passages = lengths["length"].take(pc.index_in(passages, value_set=lengths["passage_id"].combine_chunks()))
    of_queries = pc.utf8_length(texts) if rules.unit == "characters" else pc.list_value_length(pc.utf8_split_whitespace(texts))
    return {
        "queries": len(ids),
        "positive pairs": table.num_rows,
        "positive passages": len(passages),
        "passages a query": round(table.num_rows / len(ids), 2),
        f"{rules.unit} a query": round(pc.mean(of_queries).as_py(), 2),
        f"{rules.unit} a positive passage": round(pc.mean(of_passages).as_py(), 2),
    }


def _say(summary: dict[str, Any]) -> None:
    steps = summary["steps"]
    say(
        f"construct: {steps['questions']:,} questions, {steps['documents']:,} documents, {steps['paragraphs']:,} paragraphs,"
        f" {steps['positive paragraphs']:,} of them positive; {steps['passages in the corpus']:,} passages"
    )
    left_out = steps["questions without a positive passage"]
    splits = ", ".join(f"{name} {of['queries']:,}" for name, of in summary["splits"].items())
    say(
        f"construct: {steps['queries']:,} queries ({splits}); {left_out:,} left out, which have no positive passage: {DROPPED};"
        f" {steps['questions of the same text, now one']:,} asked the same as an earlier one"
    )


def _say_missing(asked: pa.ChunkedArray, judged: dict[str, pa.Table]) -> None:
    """Say which splits have no query, and why; `asked` is the split of each question, of which some have no positive passage."""
    counts = {entry["values"]: entry["counts"] for entry in pc.value_counts(asked).to_pylist()}
    missing = [split for split in dict.fromkeys((*SHARES, *sorted(counts))) if split not in judged]
    if not missing:
        return
    why = "; ".join(
        f"{split}: {counts.get(split, 0):,} questions{', none has a positive passage' if split in counts else ''}" for split in missing
    )
    draws = divided(list(judged))
    fix = f"; --fill-splits draws {', '.join(draws[1:])} from {draws[0]}" if len(draws) > 1 else ""
    say(f"construct: no qrels/{', qrels/'.join(missing)} ({why}){fix}")
