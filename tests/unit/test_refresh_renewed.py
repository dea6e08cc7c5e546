"""Partial refresh: which passages changed their rank, and which negatives a query has then, against a reading of them in plain Python."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pyarrow as pa
import pytest
from embeddings import write_corpus
from hypothesis import given, settings
from hypothesis import strategies as st

from raydense.data.store import PassageStore
from raydense.data.tables import SCHEMAS, commit_table, read_table
from raydense.refresh.changed import changed, standing
from raydense.refresh.renewed import renewed, share_new
from raydense.storage import Artifact, Draft

PASSAGES, QUERIES = 12, 5
TEXTS = np.arange(PASSAGES, dtype=np.uint64) % 9  # the last passages have the texts of the first
Ranking = list[list[int]]
rankings = st.lists(st.lists(st.integers(0, PASSAGES - 1), unique=True, min_size=1, max_size=8), min_size=QUERIES, max_size=QUERIES)
negatives = st.lists(st.lists(st.integers(0, PASSAGES - 1), unique=True, max_size=5), min_size=QUERIES, max_size=QUERIES)


def write_run(output: Path, ranking: Ranking, cut: int) -> Artifact:
    """A run in two files, the first with `cut` queries."""
    draft = Draft.open(output, "run", {"stage": "test"})
    for number, queries in enumerate((range(cut), range(cut, QUERIES))):
        rows = [(f"q{q}", f"p{row}", rank, 1 / rank) for q in queries for rank, row in enumerate(ranking[q], 1)]
        columns = (
            dict(zip(SCHEMAS["run"].names, zip(*rows, strict=True), strict=True)) if rows else SCHEMAS["run"].empty_table().to_pydict()
        )
        commit_table(draft, f"run-{number}.parquet", pa.table(columns, schema=SCHEMAS["run"]))
    return draft.finish(sum(map(len, ranking)), kind="faiss")


def examples(of: dict[int, list[int]], unscored: Collection[int] = (), source: str = "old") -> pa.Table:
    """Examples whose scores give the source and the passage of each negative, null for the queries `unscored`."""
    sign = 1 if source == "old" else -1
    columns = {
        "query_id": [f"q{q}" for q in of],
        "positives": [[q] for q in of],
        "negatives": list(of.values()),
        "negative_scores": [None if q in unscored else [float(sign * row) for row in rows] for q, rows in of.items()],
        "negative_sources": [[source] * len(rows) for rows in of.values()],
    }
    return pa.table(columns, schema=pa.schema([SCHEMAS["examples"].field(name) for name in columns]))


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> PassageStore:
    folder = tmp_path_factory.mktemp("store") / "corpus"
    write_corpus(folder, [f"text {i}" for i in range(PASSAGES)])
    store = PassageStore(folder)
    assert store.ids(np.arange(PASSAGES)).to_pylist() == [f"p{i}" for i in range(PASSAGES)]
    return store


@settings(max_examples=25, deadline=None)
@given(rankings, rankings, negatives, st.integers(0, QUERIES))
def test_what_changed_and_what_stands(store: PassageStore, now: Ranking, before: Ranking, lists: Ranking, cut: int) -> None:
    with TemporaryDirectory() as folder:
        root = Path(folder)
        found, earlier = write_run(root / "now", now, cut), write_run(root / "before", before, cut)
        other = read_table(changed(found, earlier, root / "changed").path, "run")
        stands = standing(examples(dict(enumerate(lists))), found, earlier, store)
    same = {(q, row) for q in range(QUERIES) for row, its in zip(now[q], before[q], strict=False) if row == its}
    wanted = [(f"q{q}", f"p{row}", rank) for q in range(QUERIES) for rank, row in enumerate(now[q], 1) if (q, row) not in same]
    assert list(zip(*(other[name].to_pylist() for name in ("query_id", "passage_id", "rank")), strict=True)) == wanted
    assert stands.tolist() == [(q, row) in same for q, rows in enumerate(lists) for row in rows]


@settings(deadline=None)
@given(
    st.data(), negatives, st.sets(st.integers(0, QUERIES - 1)), st.integers(1, 4), st.integers(0, 3), st.sets(st.integers(0, QUERIES - 1))
)
def test_new_negatives_come_after_those_that_stand(
    data: st.DataObject, old: Ranking, with_new: set[int], least: int, more: int, unscored: set[int]
) -> None:
    most = least + more
    drawn = {q: [row for row in data.draw(st.permutations(range(PASSAGES))) if row not in old[q]][:most] for q in sorted(with_new)}
    flags = data.draw(st.lists(st.booleans(), min_size=sum(map(len, old)), max_size=sum(map(len, old))))
    table, renewed_rows = renewed(
        examples(dict(enumerate(old)), unscored), examples(drawn, source="new"), np.array(flags, dtype=bool), TEXTS, least, most
    )
    flag = iter(flags)
    standing_of = [[row for row in rows if next(flag)] for rows in old]
    for q in range(QUERIES):
        texts = {row % 9 for row in standing_of[q]}
        fresh = [row for row in drawn.get(q, []) if row % 9 not in texts]
        wanted = [*((row, "old") for row in standing_of[q]), *((row, "new") for row in fresh)][:most]
        is_new = q in drawn and len(wanted) >= least
        if not is_new:
            wanted = [(row, "old") for row in old[q]]
        assert bool(renewed_rows[q]) == is_new
        got = {name: table[f"negative{name}"][q].as_py() for name in ("s", "_scores", "_sources")}
        assert list(zip(got["s"], got["_sources"], strict=True)) == wanted
        score_of = {"old": lambda row, q=q: None if q in unscored else float(row), "new": lambda row: -float(row)}
        assert got["_scores"] == [score_of[source](row) for row, source in wanted]
    assert table["query_id"].to_pylist() == [f"q{q}" for q in range(QUERIES)]
    later = {(q, row) for q in range(QUERIES) if renewed_rows[q] for row in table["negatives"][q].as_py()}
    fresh = [pair for pair in later if pair[1] not in old[pair[0]]]
    assert share_new(examples(dict(enumerate(old))), table, renewed_rows) == (round(len(fresh) / len(later), 4) if later else 0.0)


def test_all_examples_of_a_query_are_renewed() -> None:
    old = pa.concat_tables([examples({0: [1, 2], 1: [3]}), examples({0: [4]}), examples({2: [6]})])
    stands = np.array([False, True, False, True, False])
    table, renewed_rows = renewed(old, examples({0: [8, 7], 1: [5]}, source="new"), stands, TEXTS, 1, 3)
    assert table["negatives"].to_pylist() == [[2, 8, 7], [5], [4, 8, 7], [6]]
    assert renewed_rows.tolist() == [True, True, True, False]


def test_unchanged_negatives_are_found_for_all_examples_of_a_query(tmp_path: Path) -> None:
    write_corpus(tmp_path / "corpus", [f"text {i}" for i in range(PASSAGES)])
    run = [[3, 1], [5], [6], [7], [8]]
    found, before = write_run(tmp_path / "now", run, 2), write_run(tmp_path / "before", [[3, 2], *run[1:]], 2)
    old = pa.concat_tables([examples({0: [3, 1], 1: [5]}), examples({0: [3]})])
    assert standing(old, found, before, PassageStore(tmp_path / "corpus")).tolist() == [True, False, True, True]
