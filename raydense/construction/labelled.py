"""A block of questions: their documents cut into passages, and each passage labelled by the answers; one task, two files."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from raydense.construction.answer_tokens import AnswerTokens, Unit
from raydense.construction.joining import joined
from raydense.construction.questions import Block, Document, Question, read_block
from raydense.construction.span_f1 import best_span_f1
from raydense.storage import Draft

QUESTIONS = pa.schema(
    [
        ("question_id", pa.string()),
        ("question", pa.string()),
        ("answers", pa.list_(pa.string())),
        ("split", pa.string()),
        ("where", pa.string()),
    ]
)
PASSAGES = pa.schema(
    [
        ("question", pa.int32()),  # its place in the block
        ("passage_id", pa.string()),
        ("doc_id", pa.string()),
        ("title", pa.string()),
        ("text", pa.string()),
        ("length", pa.int32()),
        ("f1", pa.float32()),  # the best of its paragraphs; 0 where all are below the threshold
    ]
)
COUNTED = (
    "questions",
    "questions without an answer",
    "answers",
    "answers without a letter",
    "documents",
    "paragraphs",
    "empty paragraphs",
    "positive paragraphs",
    "passages",
)
_COUNTS, _AT_ONCE = b"counts", 20_000


@dataclass(frozen=True)
class Rules:
    """How paragraphs become passages, and which are positive; as in ConstructSettings."""

    unit: Unit
    length: int
    f1: float
    titles: bool

    @property
    def between(self) -> str:
        """What stands between joined paragraphs."""
        return "" if self.unit == "characters" else " "


def names_of(number: int) -> tuple[str, str]:
    """The names of the files of a block in the work folder: questions and passages."""
    return f"questions-{number:05d}.parquet", f"passages-{number:05d}.parquet"


def label_block(draft: Draft, rules: Rules, number: int, source: str, block: Block) -> int:
    """Write the two files of a block of `source`, for the stage to read with `read_counts` and pyarrow; the bytes of the block."""
    counts, questions = Counter[str](), list[dict[str, Any]]()
    of_questions, of_passages = names_of(number)
    here = block.at(source)
    draft.keep(of_passages, lambda path: _write_passages(path, here, rules, questions, counts))
    counts["questions"] += len(questions)
    noted = QUESTIONS.with_metadata({_COUNTS: json.dumps(counts).encode()})
    draft.keep(of_questions, lambda path: pq.write_table(pa.Table.from_pylist(questions, noted), path, compression="zstd"))
    return here.size


def _write_passages(path: Path, block: Block, rules: Rules, questions: list[dict[str, Any]], counts: Counter[str]) -> None:
    """Write the passages, some thousand at a time: a gzip file is one block. Adds to `questions` and `counts`."""
    tokens, held = AnswerTokens(rules.unit), list[dict[str, Any]]()
    with pq.ParquetWriter(path, PASSAGES, compression="zstd") as sink:
        for question in read_block(block):
            held += [row | {"question": len(questions)} for row in _passages_of(question, rules, tokens, counts)]
            questions.append(
                {
                    "question_id": question.id,
                    "question": question.text,
                    "answers": question.answers,
                    "split": question.split,
                    "where": question.where,
                }
            )
            if len(held) >= _AT_ONCE:
                sink.write_table(pa.Table.from_pylist(held, PASSAGES))
                held.clear()
        sink.write_table(pa.Table.from_pylist(held, PASSAGES))


def read_counts(path: Path) -> Counter[str]:
    """What a block was made of: a number of each of COUNTED."""
    metadata = pq.read_schema(path).metadata or {}
    return Counter(json.loads(metadata[_COUNTS]))


def _passages_of(question: Question, rules: Rules, tokens: AnswerTokens, counts: Counter[str]) -> list[dict[str, Any]]:
    answers = [tokens(answer) for answer in question.answers]
    counts["answers"] += len(answers)
    counts["answers without a letter"] += sum(not len(answer) for answer in answers)
    counts["questions without an answer"] += not any(len(answer) for answer in answers)
    found = []
    for document in question.documents:
        paragraphs = [text.strip() for text in document.paragraphs if text.strip()]
        counts["documents"] += 1
        counts["paragraphs"] += len(paragraphs)
        counts["empty paragraphs"] += len(document.paragraphs) - len(paragraphs)
        of_paragraphs = map(tokens, paragraphs) if answers else ()
        f1 = [max(best_span_f1(words, answer, rules.f1) for answer in answers) for words in of_paragraphs] or [0.0] * len(paragraphs)
        counts["positive paragraphs"] += sum(value > 0 for value in f1)
        found += _joined_passages(document, paragraphs, f1, rules, tokens)
    counts["passages"] += len(found)
    return found


def _joined_passages(
    document: Document, paragraphs: list[str], f1: list[float], rules: Rules, tokens: AnswerTokens
) -> list[dict[str, Any]]:
    """A passage is positive if any of its paragraphs is; equal texts have equal ids, in all blocks and all data sets."""
    lengths = [tokens.length(text) for text in paragraphs]
    rows = []
    for start, stop in joined(lengths, rules.length):
        text = rules.between.join(paragraphs[start:stop])
        rows.append(
            {
                "passage_id": hashlib.blake2b(text.encode(), digest_size=16).hexdigest(),
                "doc_id": document.id,
                "title": document.title if rules.titles else "",
                "text": text,
                "length": sum(lengths[start:stop]),
                "f1": max(f1[start:stop]),
            }
        )
    return rows
