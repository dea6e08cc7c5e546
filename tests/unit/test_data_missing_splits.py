"""The splits that judgements lack: which queries they get, and that no query is in two of them."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from raydense.data.importing import import_dataset
from raydense.data.missing_splits import fill_splits, questions_of
from raydense.data.settings import ImportSettings
from raydense.data.source_size import parts_held
from raydense.data.splits import SHARES
from raydense.data.tables import read_table
from raydense.errors import InputError
from raydense.storage import read_manifest


def judged(first: int, count: int, each: int = 2) -> pa.Table:
    """Judgements of `each` passages for each of the queries from number `first` on."""
    rows = [(f"q{first + n}", f"d{n}-{m}", 1) for n in range(count) for m in range(each)]
    return pa.table(dict(zip(("query_id", "passage_id", "relevance"), map(list, zip(*rows, strict=True)), strict=True)))


def ids(table: pa.Table) -> set[str]:
    return set(table["query_id"].to_pylist())


@given(there=st.sets(st.sampled_from(sorted(SHARES)), min_size=1), count=st.integers(10, 60), each=st.integers(1, 3))
def test_each_query_comes_into_one_split_with_all_its_passages(there: set[str], count: int, each: int) -> None:
    given_ = {split: judged(1_000 * number, count, each) for number, split in enumerate(sorted(there))}
    made = fill_splits(given_, None)
    assert set(made) == set(SHARES)
    whole = {(row["query_id"], row["passage_id"]) for table in given_.values() for row in table.to_pylist()}
    rows = [(row["query_id"], row["passage_id"]) for table in made.values() for row in table.to_pylist()]
    assert len(rows) == len(whole)
    assert set(rows) == whole
    assert not any(ids(made[a]) & ids(made[b]) for a in SHARES for b in SHARES if a < b)
    assert fill_splits(given_, None) == made


@pytest.mark.parametrize(
    ("there", "sizes"),
    [
        (["test"], {"train": 70, "dev": 10, "test": 20}),
        (["train", "test"], {"train": 88, "dev": 12, "test": 100}),
        (["dev", "test"], {"train": 88, "dev": 12, "test": 100}),
        (["train", "dev"], {"train": 78, "dev": 100, "test": 22}),
        (["train"], {"train": 70, "dev": 10, "test": 20}),
        (["train", "dev", "test"], {"train": 100, "dev": 100, "test": 100}),
    ],
)
def test_the_first_split_that_is_there_is_divided(there: list[str], sizes: dict[str, int]) -> None:
    made = fill_splits({split: judged(1_000 * number, 100) for number, split in enumerate(there)}, None)
    assert {split: len(ids(table)) for split, table in made.items()} == pytest.approx(sizes, abs=1)


@given(shared=st.integers(1, 80), name=st.sampled_from(["test", "dl19"]))
def test_what_another_split_asks_too_is_not_drawn(shared: int, name: str) -> None:
    """As in public sets whose train and test have questions in common: dev must not choose by test's."""
    queries = pa.table({"query_id": [f"q{n}" for n in range(2_000)], "text": [f"question {n % 1_000}" for n in range(2_000)]})
    train, test = judged(0, 100), judged(1_000, shared)  # other ids, the same texts
    made = fill_splits({"train": train, name: test}, queries)
    assert made[name] == test
    of = {split: {int(name[1:]) % 1_000 for name in ids(table)} for split, table in made.items()}
    assert set.union(*(of[split] for split in SHARES if split != name)) == set(range(100))
    assert not of["dev"] & (of["train"] | of[name])
    same = fill_splits({"train": judged(0, 100), name: judged(0, shared)}, None)
    assert not ids(same["dev"]) & ids(same[name])


def test_queries_of_one_text_stay_together() -> None:
    queries = pa.table({"query_id": [f"q{n}" for n in range(100)], "text": [f"{' ' * (n // 20)}Question {n % 20}" for n in range(100)]})
    made = fill_splits({"test": judged(0, 100)}, queries)
    of = {split: {int(name[1:]) % 20 for name in ids(table)} for split, table in made.items()}
    assert not any(of[a] & of[b] for a in SHARES for b in SHARES if a < b)


_SPELLINGS = ["ABC怎么养 {}", "abc怎么养 {}", "ＡＢＣ怎么养　{}", "  abc怎么养 \t{}\n", "ａｂｃ怎么养  {}"]


def test_spellings_of_one_question_stay_together() -> None:
    """Full and half width, case and blanks do not make another question, as they do not for `overlap` and `construct`."""
    texts = [spelling.format(n) for spelling in _SPELLINGS for n in range(20)]
    queries = pa.table({"query_id": [f"q{n}" for n in range(100)], "text": texts})
    made = fill_splits({"test": judged(0, 100)}, queries)
    of = {split: {int(name[1:]) % 20 for name in ids(table)} for split, table in made.items()}
    assert {split: len(questions) for split, questions in of.items()} == {"train": 14, "dev": 2, "test": 4}
    assert not any(of[a] & of[b] for a in SHARES for b in SHARES if a < b)


def test_what_another_split_asks_in_full_width_is_not_drawn() -> None:
    queries = pa.table(
        {"query_id": [f"q{n}" for n in range(60)], "text": [f"abc{n}" for n in range(30)] + [f"ＡＢＣ{n}" for n in range(30)]}
    )
    made = fill_splits({"train": judged(0, 30), "test": judged(30, 15)}, queries)
    assert len(ids(made["dev"])) == 2  # of the 15 that test does not ask
    assert all(int(name[1:]) >= 15 for name in ids(made["dev"]))


@given(st.lists(st.text("aB ?1", max_size=4), min_size=1, max_size=12))
def test_ascii_texts_are_the_same_but_for_case_and_blanks(texts: list[str]) -> None:
    """Numbered by first appearance, on which the drawn splits of data sets in English depend."""
    names = [f"q{n}" for n in range(len(texts))]
    found = questions_of(pa.chunked_array([names]), pa.table({"query_id": names, "text": texts}))
    first: dict[str, int] = {}
    assert found.tolist() == [first.setdefault(" ".join(text.lower().split()).replace(" ?", "?"), len(first)) for text in texts]


@pytest.mark.parametrize(("given_", "what"), [({}, "none"), ({"all": judged(0, 9)}, "only all"), ({"test": judged(0, 3)}, "too few")])
def test_what_cannot_be_filled_is_refused(given_: dict[str, pa.Table], what: str) -> None:
    with pytest.raises(InputError, match=what):
        fill_splits(given_, None)


def test_two_files_of_one_split_are_refused(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    for name in ("qrels.dev.txt", "dev.qrels"):
        (tmp_path / "in" / name).write_text(f"q{len(name)} 0 d 1\n")
    with pytest.raises(InputError, match=r"qrels\.dev\.txt:1: two files of the input would both be qrels/dev"):
        import_dataset(ImportSettings(format="trec", input=str(tmp_path / "in"), output=str(tmp_path / "out"), fill_splits=True))
    assert not (tmp_path / "out").exists()


def test_an_import_draws_them_and_a_plan_foresees_them(tmp_path: Path) -> None:
    (source := tmp_path / "in" / "qrels").mkdir(parents=True)
    (tmp_path / "in" / "corpus.jsonl").write_text("".join(json.dumps({"_id": f"d{n}", "text": f"text {n}"}) + "\n" for n in range(50)))
    (tmp_path / "in" / "queries.jsonl").write_text("".join(json.dumps({"_id": f"q{n}", "text": f"query {n}"}) + "\n" for n in range(50)))
    (source / "test.tsv").write_text("query-id\tcorpus-id\tscore\n" + "".join(f"q{n}\td{n}\t1\n" for n in range(50)))
    settings = ImportSettings(format="beir", input=str(tmp_path / "in"), output=str(tmp_path / "out"), fill_splits=True)
    expected = {name: holds.rows for name, holds in parts_held(settings)[0].items()}
    import_dataset(settings)
    made = {f"qrels/{split}": len(read_table(tmp_path / "out" / "qrels" / split, "qrels")) for split in SHARES}
    assert made == {"qrels/train": 35, "qrels/dev": 5, "qrels/test": 10}
    assert {name: expected[name] for name in made} == pytest.approx(made, abs=1)
    manifest = read_manifest(tmp_path / "out")
    assert manifest is not None
    assert set(manifest["summary"]["parts"]) == {"corpus", "queries", *made}


@pytest.mark.parametrize("chosen", [{"fill_splits": True}, {"hidden": {"share": 0.5}}, {"fill_splits": True, "hidden": {"share": 0.5}}])
def test_examples_of_queries_that_were_drawn_or_hidden_are_left_out(chosen: dict, tmp_path: Path, capfd) -> None:
    """A training on them would train on the labels of dev, test or hidden."""
    context = {"title": "", "text": "good"}
    entries = [
        {"question": f"who {n}", "positive_ctxs": [context], "hard_negative_ctxs": [context | {"text": f"bad {n}"}]} for n in range(40)
    ]
    (source := tmp_path / "in").mkdir()
    for name, part in (
        ("train", entries),
        ("more", entries[:20]),
        ("dl19", [one | {"question": f"dl {one['question']}"} for one in entries]),
    ):
        (source / f"{name}.json").write_text(json.dumps(part))
    made = import_dataset(ImportSettings(format="dpr", input=str(source), output=str(tmp_path / "out"), **chosen)).path
    judged_ = {
        part: ids(read_table(made / "qrels" / part, "qrels")) for part in ("dev", "test", "hidden") if (made / "qrels" / part).exists()
    }
    drawn = set.union(*judged_.values())
    assert drawn
    examples = {name: ids(read_table(made / "examples" / name, "examples")) for name in ("train", "more", "dl19")}
    train = ids(read_table(made / "qrels/train", "qrels"))
    assert examples["train"] == train
    assert examples["more"] == ids(read_table(made / "qrels/more", "qrels")) - drawn
    assert len(examples["dl19"]) == 40
    assert f"import examples/train: left out {len(drawn)} of 40 examples" in capfd.readouterr().err


def test_examples_of_a_text_that_was_drawn_are_left_out(tmp_path: Path) -> None:
    """The same question under another id, as in triples of ids."""
    (source := tmp_path / "in").mkdir()
    (source / "collection.tsv").write_text("".join(f"{n}\tpassage {n}\n" for n in range(60)))
    (source / "queries.train.tsv").write_text("".join(f"{n}\tquestion {n % 30}\n" for n in range(60)))
    (source / "qrels.train.tsv").write_text("".join(f"{n}\t0\t{n}\t1\n" for n in range(30)))
    (source / "qidpidtriples.train.tsv").write_text("".join(f"{n}\t{n - 30}\t{n}\n" for n in range(30, 60)))
    made = import_dataset(ImportSettings(format="msmarco", input=str(source), output=str(tmp_path / "out"), fill_splits=True)).path
    train = {int(one) for one in ids(read_table(made / "qrels/train", "qrels"))}
    assert {int(one) - 30 for one in ids(read_table(made / "examples/train", "examples"))} == train
