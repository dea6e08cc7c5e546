"""Labels by spans: how fast they are made, and how they agree with those of a data set whose answers are marked in the text.

    python benchmarks/construct.py pairs ../shared/data/dureader-demo/raw
    python benchmarks/construct.py labels ../shared/data/covidqa --f1 0.5 0.6 0.7 0.8 0.9 1

`pairs`: CPU seconds of one process for 100,000 pairs of a paragraph and an answer, drawn from a folder of questions. `labels`: a BEIR folder whose passages
are called `<document>#<number>` becomes questions with one document each, in order; `raydense construct --length 0` labels every passage, and its labels
are compared with the folder's.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from pathlib import Path

import numpy as np

import raydense as rd
from raydense.construction.answer_tokens import AnswerTokens, unit_of
from raydense.construction.questions import Question, blocks, question_files, read_block
from raydense.construction.span_f1 import best_span_f1
from raydense.data.store import PassageStore
from raydense.data.tables import read_table

PAIRS = 100_000


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["pairs", "labels"])
    parser.add_argument("input")
    parser.add_argument("--f1", type=float, nargs="+", default=[0.5])
    given = parser.parse_args()
    if given.what == "pairs":
        pairs(given.input)
    else:
        labels(given.input, given.f1)


def questions_in(folder: str) -> list[Question]:
    return [question for path in question_files(folder) for block in blocks(path, 64 << 20) for question in read_block(block)]


def pairs(folder: str) -> None:
    questions = questions_in(folder)
    tokens = AnswerTokens(unit_of(question.text for question in questions))
    found = [
        (paragraph, answer)
        for question in questions
        for answer in question.answers
        for document in question.documents
        for paragraph in document.paragraphs
    ]
    drawn = np.random.default_rng(0).integers(0, len(found), PAIRS)
    began, positive = time.process_time(), 0
    for number in drawn:
        paragraph, answer = found[number]
        positive += best_span_f1(tokens(paragraph), tokens(answer), 0.5) > 0
    lengths = np.array([[len(paragraph), len(answer)] for paragraph, answer in found])
    longest, mean = lengths.max(axis=0), lengths.mean(axis=0)
    print(f"{len(found):,} pairs; paragraphs {mean[0]:.0f} {tokens.unit} (at most {longest[0]:,}), answers {mean[1]:.0f} ({longest[1]:,})")
    print(f"{PAIRS:,} pairs drawn: {time.process_time() - began:.1f} CPU s in one process, {positive / PAIRS:.1%} positive")


def labels(folder: str, thresholds: list[float]) -> None:
    with tempfile.TemporaryDirectory() as temporary:
        here = Path(temporary)
        gold = as_questions(Path(folder), here / "asked.jsonl")
        print("| f1 | labelled | of these in the set | of the set's, labelled |\n| --- | --- | --- | --- |")
        for f1 in thresholds:
            made = rd.construct(rd.ConstructSettings(input=here / "asked.jsonl", length=0, unit="words", f1=f1, output=here / f"f1-{f1}"))
            mine = labelled(made)
            both = len(mine & gold)
            print(f"| {f1:g} | {len(mine):,} | {both / len(mine):.3f} | {both / len(gold):.3f} |", flush=True)


def as_questions(folder: Path, target: Path) -> set[tuple[str, str]]:
    """Writes the questions; the pairs (question, text of a passage) that the folder marks."""
    corpus = {row["_id"]: row["text"] for row in read_lines(folder / "corpus.jsonl")}
    documents: dict[str, list[str]] = {}
    for name, text in corpus.items():
        documents.setdefault(name.split("#")[0], []).append(text)
    queries = {row["_id"]: row for row in read_lines(folder / "queries.jsonl")}
    gold, of = set(), dict[str, str]()
    for file in sorted((folder / "qrels").glob("*.tsv")):
        for line in file.read_text().splitlines()[1:]:
            query, passage, _ = line.split("\t")
            gold.add((plain(queries[query]["text"]), plain(corpus[passage])))
            of[query] = passage.split("#")[0]
    rows = [
        {
            "id": name,
            "question": queries[name]["text"],
            "answers": queries[name]["answers"],
            "documents": [{"paragraphs": documents[of[name]]}],
        }
        for name in of
    ]
    target.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return gold


def labelled(made: rd.Artifact) -> set[tuple[str, str]]:
    store = PassageStore(made.path / "corpus")
    text = dict(zip(store.ids(np.arange(len(store))).to_pylist(), store.slice(0, len(store), ["text"])["text"].to_pylist(), strict=True))
    asked = {row["query_id"]: row["text"] for row in read_table(made.path / "queries", "queries").to_pylist()}
    judged = [read_table(part, "qrels").to_pylist() for part in sorted((made.path / "qrels").iterdir())]
    return {(plain(asked[row["query_id"]]), plain(text[row["passage_id"]])) for rows in judged for row in rows}


def plain(text: str) -> str:
    return " ".join(text.lower().split())


def read_lines(path: Path) -> list[dict]:
    with open(path, encoding="utf-8") as lines:  # splitlines would cut at U+2028, too
        return [json.loads(line) for line in lines]


if __name__ == "__main__":
    main()
