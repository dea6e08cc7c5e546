"""Splits that are drawn by passages: no drawn split has a relevant passage of another split."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import assume, event, given
from hypothesis import strategies as st

from raydense.construction.settings import ConstructSettings
from raydense.data.importing import import_dataset
from raydense.data.missing_splits import fill_splits
from raydense.data.settings import ImportSettings
from raydense.data.shared_passages import groups_of
from raydense.data.source_size import parts_held
from raydense.data.splits import SHARES
from raydense.data.tables import read_table
from raydense.errors import InputError

Row = tuple[str, str, int]


def as_table(rows: list[Row]) -> pa.Table:
    return pa.table(dict(zip(("query_id", "passage_id", "relevance"), map(list, zip(*rows, strict=True)), strict=True)))


def rows_of(table: pa.Table) -> list[Row]:
    return [tuple(row.values()) for row in table.to_pylist()]


def relevant(table: pa.Table) -> set[str]:
    return {passage for _, passage, grade in rows_of(table) if grade >= 1}


def queries_of(table: pa.Table) -> set[str]:
    return set(table["query_id"].to_pylist())


def drawn_rows(seed: int, queries: range, passages: int) -> list[Row]:
    """One to three judgements of each query, of grades 0 to 2."""
    rng = np.random.default_rng(seed)
    return [(f"q{q}", f"d{p}", int(rng.integers(0, 3))) for q in queries for p in rng.permutation(passages)[: rng.integers(1, 4)]]


@given(
    there=st.sets(st.sampled_from(["train", "dev", "test", "dl19"]), min_size=1),
    seed=st.integers(0, 10_000),
    passages=st.integers(30, 2_000),
    texts=st.booleans(),
)
def test_no_drawn_split_shares_a_relevant_passage_with_another(there: set[str], seed: int, passages: int, texts: bool) -> None:
    assume(there & set(SHARES))
    judged = {
        split: as_table(drawn_rows(seed + number, range(number * 90, number * 90 + 100), passages))
        for number, split in enumerate(sorted(there))
    }
    ids = [f"q{n}" for n in range(400)]
    queries = pa.table({"query_id": ids, "text": [f"question {n // 2}" for n in range(400)]}) if texts else None
    try:
        made = fill_splits(judged, queries, "passages")
    except InputError:
        event("the groups are too large")
        return
    assert made == fill_splits(judged, queries, "passages")
    assert set(made) == set(SHARES) | there
    before = Counter(row for table in judged.values() for row in rows_of(table))
    assert Counter(row for table in made.values() for row in rows_of(table)) == before
    for drawn in set(SHARES) - there:
        for other in set(made) - {drawn}:
            assert not relevant(made[drawn]) & relevant(made[other])
            asked = {split: {int(name[1:]) // (2 if texts else 1) for name in queries_of(made[split])} for split in (drawn, other)}
            assert not asked[drawn] & asked[other]


@given(seed=st.integers(0, 10_000), queries=st.integers(1, 40), passages=st.integers(3, 80))
def test_groups_are_those_of_a_walk_from_question_to_question(seed: int, queries: int, passages: int) -> None:
    rows = drawn_rows(seed, range(queries), passages)
    numbers = np.array([int(query[1:]) for query, _, _ in rows])
    found = groups_of(numbers, [as_table(rows[:3]), as_table(rows[3:])] if len(rows) > 3 else [as_table(rows)])
    holds: dict[int, set[str]] = {
        number: {passage for query, passage, grade in rows if query == f"q{number}" and grade} for number in numbers
    }
    group: dict[int, int] = {}
    for start in holds:
        walk = [start] if start not in group else []
        while walk:
            group[at := walk.pop()] = start
            walk += [other for other in holds if other not in group and holds[at] & holds[other]]
    pairs = {(group[int(number)], int(of)) for number, of in zip(numbers, found, strict=True)}
    assert len(pairs) == len({a for a, _ in pairs}) == len({b for _, b in pairs})


@pytest.mark.parametrize("there", [["test"], ["train", "test"], ["dev"]])
def test_the_shares_are_those_of_the_groups_that_are_free(there: list[str]) -> None:
    """600 questions in groups of one to five; of what another split is about, none is drawn, even over a third question."""
    rng, rows, group = np.random.default_rng(1), list[Row](), 0
    while len(rows) < 600:
        rows += [(f"q{len(rows) + n}", f"d{group}", 1) for n in range(min(int(rng.integers(1, 6)), 600 - len(rows)))]
        group += 1
    judged = {there[0]: as_table(rows)}
    if len(there) == 2:  # a question that links two groups, and test asks about one of them
        judged = {
            "train": as_table([*rows, ("link", "d0", 1), ("link", "d1", 1)]),
            "test": as_table([("other", "d0", 1), ("other", "d9", 0)]),
        }
    made = fill_splits(judged, None, "passages")
    bound = {query for query, passage, _ in [*rows, ("link", "d0", 1)] if passage in ("d0", "d1")} if len(there) == 2 else set()
    assert bound <= queries_of(made[there[0]])
    free = 600 - len(bound - {"link"})
    parts = {part: SHARES[part] for part in SHARES if part not in there[1:]}
    for part, share in parts.items():
        assert len(queries_of(made[part]) - bound) == pytest.approx(share / sum(parts.values()) * free, abs=3), part


@pytest.mark.parametrize(("size", "holder"), [(60, "train"), (15, "train")])
def test_a_large_group_goes_where_it_leaves_the_shares(size: int, holder: str) -> None:
    rows = [(f"q{n}", "shared" if n < size else f"d{n}", 1) for n in range(100)]
    made = fill_splits({"test": as_table(rows)}, None, "passages")
    assert {split: len(queries_of(made[split])) for split in SHARES} == {"train": 70, "dev": 10, "test": 20}
    assert "shared" in relevant(made[holder])


def test_a_group_too_large_for_the_shares_is_one_error_with_numbers() -> None:
    rows = [(f"q{n}", "shared" if n < 92 else f"d{n}", 1) for n in range(100)]
    with pytest.raises(InputError) as caught:
        fill_splits({"test": as_table(rows)}, None, "passages")
    assert str(caught.value) == (
        "fill_by: of 100 questions of test the largest group that hangs together by shared relevant passages has 92 (92%), so test, train, dev"
        " cannot be 2 : 7 : 1; leave it out, which draws by questions, or judge queries of other passages"
    )
    assert set(fill_splits({"test": as_table(rows)}, None)) == set(SHARES)
    judged = {"train": as_table(rows[:93]), "test": as_table([("other", "shared", 1)])}
    with pytest.raises(
        InputError, match=r"the 1 judged queries of train that do not hang together with another split .* are too few to draw dev"
    ):
        fill_splits(judged, None, "passages")


def test_an_import_draws_by_passages_and_a_plan_says_about(tmp_path: Path) -> None:
    (source := tmp_path / "in" / "qrels").mkdir(parents=True)
    (tmp_path / "in" / "corpus.jsonl").write_text("".join(json.dumps({"_id": f"d{n}", "text": f"text {n}"}) + "\n" for n in range(50)))
    (tmp_path / "in" / "queries.jsonl").write_text("".join(json.dumps({"_id": f"q{n}", "text": f"query {n}"}) + "\n" for n in range(100)))
    (source / "test.tsv").write_text("query-id\tcorpus-id\tscore\n" + "".join(f"q{n}\td{n // 2}\t1\n" for n in range(100)))
    given_ = {"format": "beir", "input": str(tmp_path / "in"), "output": str(tmp_path / "out")}
    settings = ImportSettings(**given_, fill_splits=True, fill_by="passages")
    expected = parts_held(settings)[0]
    import_dataset(settings)
    made = {split: read_table(tmp_path / "out" / "qrels" / split, "qrels") for split in SHARES}
    assert {split: len(table) for split, table in made.items()} == {"train": 70, "dev": 10, "test": 20}
    assert not any(relevant(made[a]) & relevant(made[b]) for a in SHARES for b in SHARES if a < b)
    assert str(expected["qrels/dev"]) == "about 10"
    assert settings.shaping()["fill_by"] == "passages"
    assert "fill_by" not in ImportSettings(**given_, fill_splits=True).shaping(), "an earlier import stays finished"


@pytest.mark.parametrize(("verb", "given_"), [(ImportSettings, {"format": "beir"}), (ConstructSettings, {})])
def test_without_splits_to_fill_it_is_refused(verb: type[ImportSettings | ConstructSettings], given_: dict[str, str]) -> None:
    with pytest.raises(InputError, match=r"without fill_splits does not use fill_by: leave it out"):
        verb(**given_, input="in", output="out", fill_by="passages")
