"""overlap(): its pairs against all pairs of small vectors, its texts and its parts; the search for candidates is in tests/integration."""

from __future__ import annotations

import json
import tempfile
from itertools import pairwise
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from raydense.construction.evaluation_queries import Questions, Texts
from raydense.construction.overlap import overlap
from raydense.construction.question_search import unit
from raydense.construction.settings import OverlapSettings
from raydense.construction.similar import read_candidates, similar_pairs, without_same_text
from raydense.data.same_text import normalised
from raydense.data.tables import read_table
from raydense.errors import InputError
from raydense.storage import Artifact
from tests.mining_world import write_table, write_trained

QUERIES = {
    "t0": "How do I raise sunflowers?",
    "t1": "how  do I raise SUNFLOWERS?",
    "t2": "What is a bond?",
    "t3": "Who wrote Hamlet?",
    "d0": " ＨＯＷ do I raise\u3000sunflowers？ ",
    "d1": "Why is the sky blue?",
    "e0": "who wrote hamlet?",
}


def write_queries(root: Path, queries: dict[str, str] = QUERIES) -> None:
    write_table(root / "queries", "queries", [pa.table({"query_id": [*queries], "text": [*queries.values()]})])


def write_qrels(folder: Path, pairs: list[tuple[str, str]]) -> None:
    table = pa.table({"query_id": [q for q, _ in pairs], "passage_id": [p for _, p in pairs], "relevance": [1] * len(pairs)})
    write_table(folder, "qrels", [table])


@pytest.fixture
def world(tmp_path: Path) -> Path:
    write_queries(tmp_path)
    write_qrels(tmp_path / "train", [("t0", "a"), ("t2", "b"), ("t1", "a"), ("t3", "c"), ("t2", "d")])
    write_qrels(tmp_path / "dev", [("d1", "a"), ("d0", "b"), ("d0", "c")])
    write_qrels(tmp_path / "test", [("e0", "c")])
    return tmp_path


def asked(root: Path, **more: object) -> OverlapSettings:
    against = [str(root / "dev"), f"exam={root / 'test'}"]
    given = {"queries": str(root / "queries"), "train_qrels": str(root / "train"), "against": against, "output": str(root / "out")}
    return OverlapSettings.read({**given, **more})


def rows(folder: Path) -> list[tuple[str, str]]:
    return [(row["query_id"], row["passage_id"]) for row in read_table(folder, "qrels").to_pylist()]


def test_queries_of_the_same_text_are_removed_without_a_model(world: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made = overlap(asked(world))
    assert made.kind == "dataset"
    assert rows(world / "out" / "qrels" / "train") == [("t2", "b"), ("t2", "d")]
    assert rows(world / "out" / "qrels" / "dev-overlap") == [("d0", "b"), ("d0", "c")]
    assert rows(world / "out" / "qrels" / "dev-others") == [("d1", "a")]
    assert rows(world / "out" / "qrels" / "exam-overlap") == [("e0", "c")]
    assert rows(world / "out" / "qrels" / "exam-others") == []
    pairs = pq.read_table(made.file("pairs.parquet")).to_pylist()
    assert [(p["split"], p["query_id"], p["train_query_id"], p["similarity"], p["same_text"]) for p in pairs] == [
        ("dev", "d0", "t0", 1.0, True),
        ("dev", "d0", "t1", 1.0, True),
        ("exam", "e0", "t3", 1.0, True),
    ]
    removed = [json.loads(line) for line in made.file("removed.jsonl").read_text().splitlines()]
    assert [(line["train_query_id"], line["split"], line["query_id"], line["text"]) for line in removed] == [
        ("t0", "dev", "d0", QUERIES["d0"]),
        ("t1", "dev", "d0", QUERIES["d0"]),
        ("t3", "exam", "e0", QUERIES["e0"]),
    ]
    line = "2 queries accounting for 66.67% of the dev and exam queries are similar to 3 training queries"
    assert line in made.file("report.md").read_text()
    assert f"overlap: {line}; 3 of these have the same text; 1 of 4 training queries kept" in capsys.readouterr().err
    assert made.summary["splits"] == {
        "dev": {"queries": 2, "overlap": 1, "others": 1},
        "exam": {"queries": 1, "overlap": 1, "others": 0},
    }
    assert overlap(asked(world)).fingerprint == made.fingerprint == Artifact.open(world / "out", "dataset").fingerprint


def test_the_removed_queries_are_lines_of_json(tmp_path: Path) -> None:
    write_queries(tmp_path, {"t0": "who? yes/no", "t1": "why?", "d0": "Who? YES/no"})
    write_qrels(tmp_path / "train", [("t0", "a"), ("t1", "b")])
    write_qrels(tmp_path / "dev", [("d0", "a")])
    made = overlap(asked(tmp_path, against=[str(tmp_path / "dev")]))
    line = (
        '{"train_query_id": "t0", "train_text": "who? yes/no", "similarity": 1.0, "split": "dev", "query_id": "d0", "text": "Who? YES/no"}'
    )
    assert made.file("removed.jsonl").read_text() == line + "\n"
    write_qrels(tmp_path / "none", [("t1", "b")])
    made = overlap(asked(tmp_path, train_qrels=str(tmp_path / "none"), against=[str(tmp_path / "dev")], output=str(tmp_path / "out-none")))
    assert made.file("removed.jsonl").read_text() == ""


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("How  to\tgo?", " how to go? ", True),
        ("ｉＰｈｏｎｅ　１５？", "iphone 15?", True),
        ("\u00a0Ａ\u2003b\u2028c", "a B c", True),
        ("ﾊﾟﾝ", "パン", True),
        ("ÉTÉ", "e\u0301te\u0301", True),
        ("how to go", "how to go?", False),
        ("together", "to gether", False),
        ("苹果手机", "苹果 手机", False),
    ],
)
def test_what_counts_as_the_same_text(one: str, other: str, same: bool) -> None:
    found = normalised(pa.array([one, other])).to_pylist()
    assert (found[0] == found[1]) == same


@given(st.lists(st.text(max_size=12), min_size=1, max_size=5))
@settings(max_examples=200)
def test_a_normalised_text_is_its_own(texts: list[str]) -> None:
    once = normalised(pa.array(texts, pa.string()))
    assert normalised(once).equals(once)
    assert not any("  " in text or text != text.strip() for text in once.to_pylist())


@st.composite
def small_worlds(pick):
    """Texts and vectors of training and asked queries; some share a text, and then the vector."""
    words = [f"text {i}" for i in range(8)]
    vector = st.lists(st.integers(-3, 3), min_size=3, max_size=3).filter(any)
    vectors = {word: np.array(pick(vector), dtype=np.float64) for word in words}
    train = pick(st.lists(st.sampled_from(words), min_size=1, max_size=12))
    other = pick(st.lists(st.sampled_from(words), min_size=1, max_size=8))
    return train, other, vectors, pick(st.sampled_from([0.0, 0.5, 0.8, 0.95, 1.0])), pick(st.booleans())


@given(small_worlds(), st.integers(1, 5))
@settings(max_examples=60, deadline=None)
def test_pairs_equal_a_reading_of_all_pairs(world, cuts: int) -> None:
    """Every pair is compared, in plain Python; the candidates come from a run of all texts, in which queries of one text stand for each other."""
    train, other, vectors, threshold, logits = world
    trained = Questions(pa.array([f"t{i}" for i in range(len(train))]), pa.array(train))
    asking = Questions(pa.array([f"d{i}" for i in range(len(other))]), pa.array([text.upper() for text in other]))
    texts = Texts.of(trained)
    distinct = trained.take(texts.first)

    def score(one: str, two: str) -> float:
        a, b = vectors[one], vectors[two]
        return float(np.float32(a @ b if logits else a @ b / np.linalg.norm(a) / np.linalg.norm(b)))

    run = [(q, p, score(other[i], t)) for i, q in enumerate(asking.ids.to_pylist()) for p, t in zip(*columns(distinct), strict=True)]
    with tempfile.TemporaryDirectory() as folder:
        names = ("query_id", "passage_id", "score")
        table = pa.table(dict(zip(names, map(list, zip(*run, strict=True)), strict=True)))
        table = table.append_column("rank", pa.array([1] * len(table)))
        edges = np.linspace(0, len(table), cuts + 1).astype(int)
        write_table(Path(folder) / "run", "run", [table.slice(a, b - a) for a, b in pairwise(edges)])
        found = read_candidates(Artifact.open(Path(folder) / "run"), asking, distinct, logits)
    own = texts.numbers(asking)
    pairs = similar_pairs(own, without_same_text(found, own), texts, threshold)
    expected = []
    for i, one in enumerate(other):
        for j, two in enumerate(train):
            similarity = 1.0 if one == two else 1 / (1 + np.exp(-score(one, two))) if logits else score(one, two)
            if one == two or similarity > threshold:
                expected.append((round(float(similarity), 9), i, j, one == two))
    got = zip(pairs.similarity.round(9).tolist(), pairs.asked.tolist(), pairs.train.tolist(), pairs.same_text.tolist(), strict=True)
    assert sorted(got) == sorted(expected)
    order = list(zip((-pairs.similarity).tolist(), pairs.asked.tolist(), pairs.train.tolist(), strict=True))
    assert order == sorted(order)
    assert pairs.removed.tolist() == sorted({j for _, _, j, _ in expected})
    assert pairs.hit.tolist() == sorted({i for _, i, _, _ in expected})


def columns(questions: Questions) -> tuple[list[str], list[str]]:
    return questions.ids.to_pylist(), questions.texts.to_pylist()


@given(small_worlds(), st.data())
@settings(max_examples=25, deadline=None)
def test_the_halves_of_a_set_are_disjoint_and_complete(world, data) -> None:
    train, other, *_ = world
    split = data.draw(st.lists(st.sampled_from(["dev", "test"]), min_size=len(other), max_size=len(other)))
    queries = {f"t{i}": text for i, text in enumerate(train)} | {f"d{i}": text for i, text in enumerate(other)}
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        write_queries(root, queries)
        write_qrels(root / "train", [(f"t{i}", p) for i in range(len(train)) for p in ("a", "b")])
        sets = {name: [(f"d{i}", "a") for i in range(len(other)) if split[i] == name] for name in ("dev", "test")}
        for name, pairs in sets.items():
            if pairs:
                write_qrels(root / name, pairs)
        against = [str(root / name) for name, pairs in sets.items() if pairs]
        if set(train) <= set(other):
            with pytest.raises(InputError, match="no training query is left"):
                overlap(asked(root, against=against))
            return
        made = overlap(asked(root, against=against))
        for name, pairs in sets.items():
            if pairs:
                halves = [rows(root / "out" / "qrels" / f"{name}-{half}") for half in ("overlap", "others")]
                assert sorted(halves[0] + halves[1]) == sorted(pairs)
                assert {q for q, _ in halves[0]} == {q for q, _ in pairs if queries[q] in train}
        kept = rows(root / "out" / "qrels" / "train")
        assert kept == [(f"t{i}", p) for i in range(len(train)) for p in ("a", "b") if train[i] not in other]
        assert made.summary["removed"] + made.summary["kept"] == len(train)


def test_vectors_get_the_length_one_and_zeros_stay() -> None:
    made = unit(np.array([[3, 4], [0, 0], [1e-30, 0]], dtype=np.float32))
    assert made.dtype == np.float32
    assert made.tolist() == [[pytest.approx(0.6), pytest.approx(0.8)], [0, 0], [1, 0]]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"threshold": 0.5}, "without model, does not use threshold"),
        ({"encoder": "e"}, "without model, does not use encoder"),
        ({"model": "m"}, "a model needs threshold: 0.5 for a re-ranker"),
        ({"model": "m", "threshold": 1.5}, "less than or equal to 1"),
        ({"against": []}, "against: needs 1 or more, not 0"),
        ({"against": ["a b=dev", "test"]}, "'a b' of against cannot be the name of a part"),
        ({"against": ["dev=x", "dev=y"]}, "two sets of against have the same name"),
    ],
)
def test_settings_that_do_not_fit(world: Path, change: dict[str, object], message: str) -> None:
    with pytest.raises(InputError) as caught:
        asked(world, **change)
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("part", "pairs", "message"),
    [
        ("dev", [("d1", "a"), ("t2", "a")], r"judges query 't2', which .*train judges too"),
        ("dev", [("e0", "a")], r"test: judges query 'e0', which .*dev judges too"),
        ("dev", [("nobody", "a")], r"dev: names query 'nobody', which the queries do not have"),
        ("train", [("t0", "a"), ("t3", "b")], "no training query is left: each is similar"),
        ("train", [], "train: judges no query"),
    ],
)
def test_bad_input_is_one_line_and_leaves_nothing(tmp_path: Path, part: str, pairs: list[tuple[str, str]], message: str) -> None:
    from raydense.recipes.stage import VERBS

    write_queries(tmp_path)
    sets = {"train": [("t0", "a"), ("t2", "b")], "dev": [("d0", "b")], "test": [("e0", "c")], part: pairs}
    for name, judged in sets.items():
        write_qrels(tmp_path / name, judged)
    with pytest.raises(InputError, match=message) as caught:
        VERBS["overlap"].run(asked(tmp_path))
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(("loss", "warned"), [("listwise", True), ("pointwise", False)])
def test_a_model_trained_listwise_is_named(world: Path, capsys: pytest.CaptureFixture[str], loss: str, warned: bool) -> None:
    """The stage stops at the judgements, before a worker would start."""
    write_qrels(world / "other", [("t0", "a")])
    model = write_trained(world / "model", loss)
    with pytest.raises(InputError, match="judges query 't0'"):
        overlap(asked(world, model=str(model), threshold=0.5, against=[str(world / "other")]))
    assert ("overlap: the model was trained with loss listwise: " in capsys.readouterr().err) == warned


def test_a_plan_counts_the_queries_and_knows_the_parts(world: Path) -> None:
    from raydense.forecast import Known

    plan = asked(world)
    forecast = plan.forecast(Known())
    assert forecast.kind == "overlap"
    assert {Path(folder).relative_to(world / "out").as_posix() for folder in forecast.makes} == set(plan.parts)
    assert set(plan.parts) == {"qrels/train", *(f"qrels/{name}-{half}" for name in ("dev", "exam") for half in ("overlap", "others"))}
