"""oracle(): the judged queries of each passage, against a loop over the judgements; resumed, and refused where its inputs do not fit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from raydense.data.generated import Generated
from raydense.data.oracle import oracle
from raydense.data.settings import OracleSettings
from raydense.data.store import CorpusWriter, PassageStore
from raydense.data.tables import commit_table
from raydense.errors import InputError
from raydense.inference.settings import SplitSettings
from raydense.inference.split import split
from raydense.storage import Artifact, Draft
from raydense.training.contexts import Contexts


def table(folder: Path, kind: str, columns: dict[str, Any]) -> None:
    draft = Draft.open(folder, kind, {"made": sorted(columns.items())})
    made = pa.table(columns)
    commit_table(draft, f"{kind}.parquet", made)
    draft.finish(made.num_rows)


def judge(folder: Path, rows: list[tuple[str, str, int]]) -> None:
    table(folder, "qrels", dict(zip(("query_id", "passage_id", "relevance"), map(list, zip(*rows, strict=True)), strict=True)))


def write_corpus(folder: Path, passages: int, doc_ids: list[str | None] | None = None) -> None:
    writer = CorpusWriter(Draft.open(folder, "corpus", {"doc_ids": doc_ids}), 7)
    columns: dict[str, Any] = {"passage_id": [f"p{n}" for n in range(passages)], "title": [""] * passages}
    columns["text"] = [f"Text {n} goes on. It ends, and {n} is its number." for n in range(passages)]
    writer.add(pa.table(columns | ({"doc_id": pa.array(doc_ids, pa.string())} if doc_ids else {})))
    writer.finish()


# 40 queries, of which some have the same text; judgements of every sort, in no order, some twice and some of relevance 0
TEXTS = {f"q{n}": f"question {n % 33}" for n in range(40)}


@pytest.fixture
def root(tmp_path: Path) -> Path:
    table(tmp_path / "queries", "queries", {"query_id": list(TEXTS), "text": list(TEXTS.values())})
    rng = np.random.default_rng(3)
    drawn = [(f"q{rng.integers(40)}", f"{rng.choice(['p', 'd'])}{rng.integers(30)}", int(rng.integers(3))) for _ in range(80)]
    judge(tmp_path / "qrels", [*drawn, drawn[0], ("q1", "nowhere", 1)])
    return tmp_path


def settings(root: Path, **more: Any) -> OracleSettings:
    return OracleSettings(**{name: str(root / name) for name in ("corpus", "queries", "qrels")} | {"output": str(root / "out")} | more)


def judged_by_hand(root: Path, names: list[set[str]]) -> list[list[str]]:
    """For each passage, whose own id and document's are `names`, the texts of its queries, as they first appear among the queries."""
    rows = Artifact.open(root / "qrels", "qrels").parts(".parquet")
    judged = [row for part in rows for row in pa.parquet.read_table(part).to_pylist() if row["relevance"] >= 1]
    lists = []
    for own in names:
        found = {TEXTS[row["query_id"]] for row in judged if row["passage_id"] in own}
        lists.append(sorted(found, key=list(TEXTS.values()).index))
    return lists


def test_a_passage_has_the_queries_of_its_own_judgements_and_of_its_document(root: Path) -> None:
    rng = np.random.default_rng(4)
    documents = [None if n % 5 == 4 else f"d{rng.integers(30)}" for n in range(25)]
    write_corpus(root / "corpus", 25, documents)
    made = oracle(settings(root))
    generated = Generated(made.path, PassageStore(root / "corpus"))
    wanted = judged_by_hand(root, [{f"p{n}", documents[n] or f"p{n}"} for n in range(25)])
    assert generated.slice(0, 25).to_pylist() == wanted
    assert any(len(queries) > 2 for queries in wanted)
    assert made.summary["queries"] == sum(map(len, wanted))
    assert made.summary["without"] == sum(not queries for queries in wanted) > 0
    assert list(generated.ranges.values()) == PassageStore(root / "corpus").shards == [(0, 7), (7, 14), (14, 21), (21, 25)]


def test_pre_training_reads_the_passages_that_have_a_query(root: Path) -> None:
    write_corpus(root / "corpus", 25)
    contexts = Contexts(PassageStore(root / "corpus"), "query", str(oracle(settings(root)).path))
    wanted = judged_by_hand(root, [{f"p{n}"} for n in range(25)])
    rows = np.array([n for n in range(25) if wanted[n]])
    assert contexts.examples().query.tolist() == rows.tolist()
    drawn = contexts.draw(rows, np.random.default_rng(5).random((len(rows), 2)))
    assert all(text in wanted[row] for text, row in zip(drawn, rows, strict=True))


def test_passages_of_a_split_have_the_queries_of_their_document(root: Path) -> None:
    write_corpus(root / "documents", 25)
    passages = split(SplitSettings(corpus=str(root / "documents"), unit="words", length=4, output=str(root / "corpus"), shard_rows=30))
    assert passages.rows > 50
    made = oracle(settings(root))
    store = PassageStore(root / "corpus")
    documents = store.slice(0, len(store))["doc_id"].to_pylist()
    assert Generated(made.path, store).slice(0, len(store)).to_pylist() == judged_by_hand(root, [{name} for name in documents])


def test_a_stopped_run_goes_on_with_the_shards_that_are_missing(root: Path) -> None:
    write_corpus(root / "corpus", 25)
    whole = oracle(settings(root, output=str(root / "whole")))
    made = oracle(settings(root))
    inode = (made.path / "generated-00000.arrow").stat().st_ino
    (made.path / "generated-00002.arrow").unlink()
    again = oracle(settings(root))
    assert {file.path: file.sha256 for file in again.files} == {file.path: file.sha256 for file in whole.files}
    assert again.summary == whole.summary
    assert (again.path / "generated-00000.arrow").stat().st_ino == inode


def test_other_judgements_are_refused_in_the_same_folder(root: Path) -> None:
    write_corpus(root / "corpus", 25)
    oracle(settings(root))
    judge(root / "more", [("q1", "p1", 1)])
    with pytest.raises(InputError, match=r"inputs\.qrels"):
        oracle(settings(root, qrels=str(root / "more")))


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([("q1", "x1", 1), ("q2", "p3", 0)], "no judgement names a passage or a document of the corpus"),
        ([("q1", "p1", 1), ("nobody", "p3", 1)], "names query 'nobody', which the queries do not have"),
    ],
)
def test_judgements_of_something_else_are_refused_and_leave_nothing(root: Path, rows: list[tuple[str, str, int]], message: str) -> None:
    from raydense.recipes.stage import VERBS

    write_corpus(root / "corpus", 25)
    judge(root / "wrong", rows)
    with pytest.raises(InputError, match=message):
        VERBS["oracle"].run(settings(root, qrels=str(root / "wrong")))
    assert not (root / "out").exists()
