"""Planted paraphrases: which of them `overlap` removes, by kind and threshold, and which other training queries with them.

    python benchmarks/overlap.py --data DATA --model MODEL [--encoder ENCODER] [--train 2000] [--dev 500] [--planted 50] [--work FOLDER]

DATA is an English data set of `raydense import` with the parts queries, qrels/train and qrels/dev. The first TRAIN and DEV queries of a draw are taken.
For each kind PLANTED dev queries are drawn that its rule changes, and their paraphrases join the training queries. MODEL is a retriever, or a re-ranker whose
candidates come from ENCODER, by default from BM25. Other training queries that are removed are counted as lost, although some
of them may truly repeat a dev query: read OUT/report.md.
"""

from __future__ import annotations

import argparse
import re
import tempfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

import raydense as rd
from raydense.data.same_text import normalised
from raydense.data.tables import commit_table, read_table
from raydense.storage import Draft

THRESHOLDS = (0.5, 0.6, 0.7, 0.8, 0.85, 0.9, 0.95)
_FUNCTION = {"the", "a", "an", "of", "is", "are", "was", "were", "did", "does", "do", "in", "on", "at", "to", "for", "by"}
_WORDS = {
    "what": "which",
    "who": "which person",
    "when": "at what time",
    "where": "in what place",
    "why": "for what reason",
    "how many": "what number of",
    "how much": "what amount of",
    "how": "in what way",
    "which": "what",
}


def spelling(text: str) -> str:
    """Another case, two blanks, a question mark of full width."""
    return text.upper().replace(" ", "  ").replace("?", "\uff1f")


def punctuation(text: str) -> str:
    return " ".join(re.sub(r"[^\w\s]", " ", text).split())


def function_words(text: str) -> str:
    """Without articles, prepositions and forms of to be and to do, as one types into a search box."""
    return " ".join(word for word in text.split() if word.lower() not in _FUNCTION)


def question_word(text: str) -> str:
    """The first question word by another."""
    found = re.search(rf"\b({'|'.join(_WORDS)})\b", text, re.IGNORECASE)
    return text[: found.start()] + _WORDS[found[0].lower()] + text[found.end() :] if found else text


def word_order(text: str) -> str:
    """The first half of the words after the second: how a clause of place or time moves."""
    words = text.rstrip(" ?").split()
    return " ".join(words[len(words) // 2 :] + words[: len(words) // 2]) + "?"


def all_rules(text: str) -> str:
    return punctuation(word_order(function_words(question_word(text)))).lower()


KINDS: dict[str, Callable[[str], str]] = {
    "spelling": spelling,
    "punctuation": punctuation,
    "function words": function_words,
    "question word": question_word,
    "word order": word_order,
    "all of these": all_rules,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, required in (("data", True), ("model", True), ("encoder", False), ("work", False)):
        parser.add_argument(f"--{name}", required=required)
    for name, default in (("train", 2_000), ("dev", 500), ("planted", 50), ("seed", 1)):
        parser.add_argument(f"--{name}", type=int, default=default)
    given = parser.parse_args()
    work = Path(given.work or tempfile.mkdtemp())
    planted, train, dev = plant(given, work)
    made = rd.overlap(
        rd.OverlapSettings(
            queries=work / "queries", train_qrels=work / "train", against=f"dev={work / 'dev'}", model=given.model, encoder=given.encoder,
            threshold=min(THRESHOLDS), depth=20, output=work / "out",
        )
    )  # fmt: skip
    pairs = pq.read_table(made.file("pairs.parquet"))
    print(f"{train:,} training and {dev:,} dev queries, at most {given.planted} paraphrases of each kind; {made.path / 'report.md'}\n")
    print(f"| removed above | {' | '.join(f'{at:g}' for at in THRESHOLDS)} |\n| {' | '.join('---' for _ in range(len(THRESHOLDS) + 1))} |")
    removed = [
        set(pairs.filter(pc.or_(pairs["same_text"], pc.greater(pairs["similarity"], at)))["train_query_id"].to_pylist())
        for at in THRESHOLDS
    ]
    for kind, those in planted.items():
        shares = [f"{100 * len(found & those) / len(those):.0f}%" if those else "" for found in removed]
        print(f"| {kind}, {len(those)} | {' | '.join(shares)} |")
    others = set().union(*planted.values())
    print(f"| other training queries | {' | '.join(str(len(found - others)) for found in removed)} |")


def plant(given: argparse.Namespace, work: Path) -> tuple[dict[str, set[str]], int, int]:
    """Write queries, train and dev into `work`; the ids of the planted queries by kind, and how many queries there are without them."""
    data, rng = Path(given.data), np.random.default_rng(given.seed)
    texts = {row["query_id"]: row["text"] for row in read_table(data / "queries", "queries").to_pylist()}
    train, dev = (drawn(data / "qrels" / split, getattr(given, split), rng) for split in ("train", "dev"))
    kept = {query: texts[query] for query in train + dev}
    planted: dict[str, set[str]] = {}
    for number, (kind, rule) in enumerate(KINDS.items()):
        changed = [
            query
            for query in dev
            if rule(texts[query]) != texts[query] and (kind == "spelling" or not same(rule(texts[query]), texts[query]))
        ]
        chosen = rng.permutation(changed)[: given.planted].tolist()
        new = {f"planted-{number}-{query}": rule(texts[query]) for query in chosen}
        planted[kind] = set(new)
        kept |= new
    drawn_by = {key: value for key, value in vars(given).items() if key not in ("model", "encoder", "work")}
    write(work / "queries", "queries", drawn_by, {"query_id": [*kept], "text": [*kept.values()]})
    for split, ids in (("train", train + [query for found in planted.values() for query in sorted(found)]), ("dev", dev)):
        write(work / split, "qrels", drawn_by, {"query_id": ids, "passage_id": ["p"] * len(ids), "relevance": [1] * len(ids)})
    return planted, len(train), len(dev)


def drawn(folder: Path, count: int, rng: np.random.Generator) -> list[str]:
    ids = np.array(sorted(set(read_table(folder, "qrels", ["query_id"])["query_id"].to_pylist())))
    chosen: list[str] = rng.permutation(ids)[:count].tolist()
    return chosen


def same(one: str, other: str) -> bool:
    a, b = normalised(pa.array([one, other])).to_pylist()
    return bool(a == b)


def write(folder: Path, kind: str, drawn_by: dict[str, object], columns: dict[str, list[object]]) -> None:
    draft = Draft.open(folder, kind, {"benchmark": "overlap", **drawn_by})
    if not draft.done:
        commit_table(draft, f"{kind}.parquet", pa.table(columns))
        draft.finish(len(columns["query_id"]))


if __name__ == "__main__":
    main()
