"""How many dev and test queries have a relevant passage that is relevant to a training query, too.

    raydense import --format beir --input ../shared/data/scifact --fill-splits --output DATA
    python benchmarks/shared_passages.py DATA ...

Printed for each DATA: the queries of dev and of test; those with such a passage; and those whose words are, in addition, nearly those of a training
query with the same passage: at least half of the words that either has are in both (Jaccard).
"""

from __future__ import annotations

import argparse
from collections import defaultdict
from pathlib import Path

from raydense.data.same_text import normalised
from raydense.data.tables import positives_of, read_table


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path, nargs="+")
    for data in parser.parse_args().data:
        queries = read_table(data / "queries", "queries")
        texts = normalised(queries["text"].combine_chunks()).to_pylist()
        words = {query: set(text.split()) for query, text in zip(queries["query_id"].to_pylist(), texts, strict=True)}
        train = pairs(data / "qrels" / "train")
        for split in ("dev", "test"):
            if not (data / "qrels" / split).exists():
                continue
            asked = pairs(data / "qrels" / split)
            known, near = shared(train, asked, words)
            parts = (f"{name} {len(found):,} ({len(found) / len(asked):.0%})" for name, found in (("shared", known), ("near", near)))
            print(f"{data} {split}: {len(asked):,} queries, {', '.join(parts)}")


def pairs(qrels: Path) -> dict[str, set[str]]:
    """The relevant passages of each query."""
    found: dict[str, set[str]] = defaultdict(set)
    judged = positives_of(read_table(qrels, "qrels"))
    for query, passage in zip(judged["query_id"].to_pylist(), judged["passage_id"].to_pylist(), strict=True):
        found[query].add(passage)
    return found


def shared(train: dict[str, set[str]], asked: dict[str, set[str]], words: dict[str, set[str]]) -> tuple[set[str], set[str]]:
    """The queries of `asked` with a passage of `train`, and those of them that are near to one of its queries."""
    of_passage: dict[str, set[str]] = defaultdict(set)
    for query, passages in train.items():
        for passage in passages:
            of_passage[passage].add(query)
    others = {query: set().union(*(of_passage.get(passage, set()) for passage in passages)) for query, passages in asked.items()}
    known = {query for query, found in others.items() if found}
    near = {query for query in known if any(jaccard(words[query], words[other]) >= 0.5 for other in others[query])}
    return known, near


def jaccard(a: set[str], b: set[str]) -> float:
    return len(a & b) / max(1, len(a | b))


if __name__ == "__main__":
    main()
