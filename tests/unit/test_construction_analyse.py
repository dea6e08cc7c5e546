"""analyse(): hand-made errors of each kind, the queries that a run fails against a slow reading, and what it writes."""

from __future__ import annotations

import json
import tempfile
from html.parser import HTMLParser
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

import raydense.construction.analyse as analysing
import raydense.construction.failures as failing
from raydense.cli import main
from raydense.construction.analyse import Sorted, analyse
from raydense.construction.analysis_page import _examples
from raydense.construction.error_kinds import OTHERS, PAPER, RULES, Pair, PassageTerms, QueryTerms, numerical_mismatch
from raydense.construction.settings import AnalyseSettings
from raydense.construction.terms import Splitter
from raydense.data.runs import query_blocks as blocks_of
from raydense.data.store import CorpusWriter
from raydense.errors import InputError
from raydense.storage import Artifact, Draft
from tests.error_pairs import COMMON, MEANT, PAIRS
from tests.mining_world import worlds, write_table, write_world

EVERY = [(kind, number, *pair) for kind, pairs in PAIRS.items() for number, pair in enumerate(pairs)]
INPUTS = ("run", "corpus", "queries", "qrels")


def analyse_in(root: Path, output: str = "out", **more: object) -> Artifact:
    return analyse(AnalyseSettings.read({**{name: str(root / name) for name in INPUTS}, "output": str(root / output), **more}))


def rows_of(artifact: Artifact, name: str = "analysis") -> list[dict]:
    return pq.read_table(artifact.file(f"{name}.parquet")).to_pylist()


def run_table(rows: list[tuple[str, str, int, float]]) -> pa.Table:
    return pa.table(dict(zip(["query_id", "passage_id", "rank", "score"], map(list, zip(*rows, strict=True)), strict=True)))


def write_errors(root: Path) -> None:
    """The pairs of `error_pairs`, one hit a query, in a corpus in which `COMMON` is general and `MEANT` rare."""
    filler = [COMMON] * 60 + [MEANT] * 5 + [f"nothing of all this {number}" for number in range(1_500)]
    passages = [(f"filler-{number}", text) for number, text in enumerate(filler)]
    queries, qrels, run, teacher = [], [], [], []
    for kind, number, query, text, evidence in EVERY:
        name = f"{kind}-{number}"
        passages += [(f"wrong-{name}", text), (f"right-{name}", text if "positive" in evidence else f"the answer to {name}")]
        queries.append((name, query))
        qrels.append((name, f"right-{name}", 1))
        run.append((name, f"wrong-{name}", 1, 0.5))
        teacher.append((name, f"wrong-{name}", 1, 4.0 if evidence == "teacher" else -4.0))
    writer = CorpusWriter(Draft.open(root / "corpus", "corpus", {"test": "corpus"}), 700)
    writer.add(pa.table({"passage_id": [p for p, _ in passages], "title": [""] * len(passages), "text": [t for _, t in passages]}))
    writer.finish()
    write_table(
        root / "queries", "queries", [pa.table(dict(zip(["query_id", "text"], map(list, zip(*queries, strict=True)), strict=True)))]
    )
    columns = map(list, zip(*qrels, strict=True))
    write_table(root / "qrels", "qrels", [pa.table(dict(zip(["query_id", "passage_id", "relevance"], columns, strict=True)))])
    write_table(root / "run", "run", [run_table(run)])
    write_table(root / "teacher", "run", [run_table(teacher)], stage="rerank")


@pytest.fixture(scope="module")
def errors(tmp_path_factory) -> Artifact:
    root = tmp_path_factory.mktemp("errors")
    write_errors(root)
    return analyse_in(root, k=5, sample=1_000, teacher=str(root / "teacher"))


@pytest.mark.parametrize(("kind", "number", "query", "passage", "evidence"), EVERY)
def test_a_hand_made_error_is_of_its_kind(errors, kind, number, query, passage, evidence):
    row = next(row for row in rows_of(errors) if row["query_id"] == f"{kind}-{number}")
    assert (row["kind"], row["passage_id"]) == (kind, f"wrong-{kind}-{number}")
    assert row["evidence"] == "" if kind == OTHERS else evidence in row["evidence"]


def test_the_shares_are_those_of_the_rows(errors):
    result, rows = json.loads(errors.file("metrics.json").read_text()), rows_of(errors)
    assert list(result["kinds"]) == [*RULES, OTHERS] == list(PAPER)
    for kind, found in result["kinds"].items():
        count = sum(row["kind"] == kind for row in rows)
        assert found == {"pairs": count, "share": count / len(rows), "paper": PAPER[kind]}
    assert sum(PAPER.values()) == pytest.approx(1)
    assert result["failed"] == result["queries"] == result["looked_at"] == result["pairs"] == len(EVERY) == errors.rows
    assert errors.summary["result"] == result
    assert len(errors.head(2)) == 2


def test_a_person_names_the_kinds_that_no_rule_names(errors):
    head, *asked = [json.loads(line) for line in (errors.path / "package-00000.jsonl").read_text().splitlines()]
    assert [label["label"] for label in head["labels"]] == list(PAPER)
    assert [label["key"] for label in head["labels"]] == [str(n) for n in range(1, 9)]
    left = [row for row in rows_of(errors, "pairs") if row["kind"] == "others"]
    assert left
    assert [(row["query"], row["text"]) for row in asked] == [(row["query"], row["passage"]) for row in left]
    assert "What is wrong with the passage?" in (errors.path / "package-00000.html").read_text()


def test_the_pairs_have_their_texts(errors):
    pairs = rows_of(errors, "pairs")
    assert list(pairs[0]) == ["query_id", "passage_id", "query", "passage", "title", "score", "kind", "evidence"]
    assert {(row["query"], row["passage"]) for row in pairs} == {(query, passage) for _, _, query, passage, _ in EVERY}


class Page(HTMLParser):
    def __init__(self, text: str) -> None:
        super().__init__()
        self.inside: list[str] = []
        self.words: dict[str, set[str]] = {"mark": set(), "del": set(), "h2": set()}
        self.sources: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.inside.append(tag)
        self.sources += [value or "" for name, value in attrs if name in ("src", "href")]

    def handle_endtag(self, tag):
        while self.inside and self.inside.pop() != tag:
            pass

    def handle_data(self, data):
        if self.inside and self.inside[-1] in self.words:
            self.words[self.inside[-1]].add(data)


def test_the_page_marks_what_a_passage_has_and_lacks(errors):
    page = Page(errors.file("report.html").read_text())
    assert page.words["h2"] == set(PAIRS)
    assert {"Taobao", "Louvre", "ibuprofen"} <= page.words["del"]
    assert {"password", "opening", "hours"} <= page.words["mark"]
    assert page.sources == []


def test_examples_are_of_different_queries_first_and_no_pairs_are_compared(monkeypatch):
    def compared(one, other):
        raise AssertionError("pairs are compared field by field")

    query, passage = QueryTerms("gold", [], {}, frozenset(), {}), PassageTerms("silver", [], False, None)
    pairs = [Sorted(f"q{n // 3}", f"p{n}", n % 3 + 1, 1.0, Pair(query, passage), OTHERS, "") for n in range(7)]
    monkeypatch.setattr(Sorted, "__eq__", compared)
    best = {f"q{n}": ("right", "gold") for n in range(3)}
    found = _examples(OTHERS, pairs, best, Splitter())
    assert [(one["query_id"], one["passage_id"]) for one in found] == [("q0", "p0"), ("q1", "p3"), ("q2", "p6"), ("q0", "p1")]


def test_texts_are_escaped(tmp_path):
    write_world(
        tmp_path, ["<script>alert(1)</script> & banana", "gold <b>"], [("<i>banana</i>", "p1", 1)], {"<i>banana</i>": [("p0", 1.0)]}
    )
    page = analyse_in(tmp_path).file("report.html").read_text()
    assert "<script>" not in page
    assert "<i>" not in page
    assert "&lt;script&gt;alert(1)&lt;/script&gt; &amp; <mark>banana</mark>" in page


@given(
    world=worlds(),
    k=st.integers(1, 6),
    sample=st.integers(1, 6),
    seed=st.integers(0, 3),
    cuts=st.tuples(st.integers(1, 4), st.integers(1, 30)),
)
@settings(max_examples=15, deadline=None)
def test_the_failed_queries_equal_a_slow_reading(world, k, sample, seed, cuts):
    texts, qrels, run = world
    positives = {q: {p for other, p, r in qrels if other == q and r >= 1} for q, _, _ in qrels}
    judged = {q for q, found in positives.items() if found}
    failed = {q: hits[:k] for q, hits in run.items() if q in judged and not {p for p, _ in hits[:k]} & positives[q]}
    assume(failed)
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr(failing, "query_blocks", lambda parts, rows: blocks_of(parts, cuts[1]))
        root = Path(folder)
        write_world(root, texts, qrels, run, cuts[0])
        artifact = analyse_in(root, k=k, sample=sample, seed=seed)
        found, every = rows_of(artifact), rows_of(analyse_in(root, "all", k=k, sample=100, seed=seed))
        result = artifact.summary["result"]
    assert [(row["query_id"], row["passage_id"], row["rank"]) for row in every] == [
        (q, p, rank) for q, hits in failed.items() for rank, (p, _) in enumerate(hits, 1)
    ]
    drawn = list(dict.fromkeys(row["query_id"] for row in found))
    assert found == [row for row in every if row["query_id"] in drawn]
    assert len(drawn) == min(sample, len(failed)) == result["looked_at"]
    without = judged - set(run)
    assert (result["queries"], result["failed"], result["without_hits"]) == (len(judged), len(failed) + len(without), len(without))
    equal = {(q, p) for q, hits in failed.items() for p, _ in hits if texts[int(p[1:])] in {texts[int(g[1:])] for g in positives[q]}}
    assert {(row["query_id"], row["passage_id"]) for row in every if row["kind"] == "false negative"} == equal


def test_the_draw_does_not_depend_on_the_order_of_the_run(tmp_path):
    texts = [f"text {i}" for i in range(40)]
    qrels = [(f"q{i}", "p39", 1) for i in range(30)]
    run = {f"q{i}": [(f"p{i}", 1.0)] for i in range(30)}
    found = []
    for name, hits in (("one", run), ("other", dict(reversed(run.items())))):
        write_world(tmp_path / name, texts, qrels, hits)
        found.append({row["query_id"] for row in rows_of(analyse_in(tmp_path / name, sample=7))})
    assert found[0] == found[1]
    assert len(found[0]) == 7
    assert found[0] != {row["query_id"] for row in rows_of(analyse_in(tmp_path / "one", "seed", sample=7, seed=1))}


def test_the_same_inputs_give_the_same_bytes(tmp_path):
    write_errors(tmp_path)
    made = [analyse_in(tmp_path, output, sample=20) for output in ("one", "two", "one")]
    for name in ("analysis.parquet", "pairs.parquet", "metrics.json", "report.html"):
        assert made[0].file(name).read_bytes() == made[1].file(name).read_bytes()
    assert made[0].fingerprint == made[2].fingerprint


def test_what_is_wrong_is_one_line_and_nothing_is_left(tmp_path, capsys):
    right = {"q0": [("p0", 2.0), ("p1", 1.0)]}
    write_world(tmp_path, ["a", "b"], [("q0", "p0", 1)], right)
    for more, message in (
        ({}, "has a positive among the first 5 hits of every query"),
        ({"teacher": str(tmp_path / "run")}, "has no scores of a re-ranker"),
        ({"corpus": str(tmp_path / "run")}, "run"),
        ({"s_pos": 0.5}, "an analysis without a teacher does not use s_pos"),
    ):
        with pytest.raises(InputError, match=message):
            analyse_in(tmp_path, **more)
    flags = [word for name in INPUTS for word in (f"--{name}", str(tmp_path / name))]
    with pytest.raises(SystemExit, match="2"):
        main(["analyse", *flags, "--output", str(tmp_path / "out")])
    assert capsys.readouterr().err.strip().splitlines()[-1].count("has a positive among the first 5 hits") == 1
    assert not (tmp_path / "out").exists()


def test_a_run_of_other_queries_and_a_teacher_of_others_are_refused(tmp_path):
    write_world(tmp_path, ["a", "b"], [("q0", "p0", 1), ("q1", "p0", 0)], {"q1": [("p1", 1.0)]})
    with pytest.raises(InputError, match="no query that the qrels have a positive for"):
        analyse_in(tmp_path)
    write_world(tmp_path / "two", ["a", "b"], [("q0", "p0", 1)], {"q0": [("p1", 1.0)]})
    write_table(tmp_path / "two" / "teacher", "run", [run_table([("q0", "p0", 1, 3.0)])], stage="rerank")
    with pytest.raises(InputError, match="scores none of the pairs"):
        analyse_in(tmp_path / "two", teacher=str(tmp_path / "two" / "teacher"))
    write_table(tmp_path / "two" / "elsewhere", "run", [run_table([("q0", "p1", 1, 3.0)])], stage="rerank", corpus="c" * 64)
    with pytest.raises(InputError, match=r"elsewhere: was made with another corpus than \S+two/corpus"):
        analyse_in(tmp_path / "two", teacher=str(tmp_path / "two" / "elsewhere"))


def test_hits_that_a_teacher_keeps_below_its_depth_are_not_scored(tmp_path):
    write_world(tmp_path, ["a", "b", "c"], [("q0", "p0", 1)], {"q0": [("p1", 1.0)]})
    teacher = [run_table([("q0", "p2", 1, 3.0), ("q0", "p1", 2, 2.0)])]
    write_table(tmp_path / "teacher", "run", teacher, stage="rerank", depth=1)
    with pytest.raises(InputError, match="scores none of the pairs"):
        analyse_in(tmp_path, teacher=str(tmp_path / "teacher"))
    write_table(tmp_path / "deep", "run", teacher, stage="rerank", depth=2)
    analyse_in(tmp_path, teacher=str(tmp_path / "deep"))


@pytest.mark.parametrize(("loss", "warned"), [("listwise", True), ("pointwise", False)])
def test_a_teacher_trained_listwise_is_named(tmp_path, capsys, loss, warned):
    write_world(tmp_path, ["a", "b"], [("q0", "p0", 1)], {"q0": [("p1", 1.0)]})
    write_table(tmp_path / "teacher", "run", [run_table([("q0", "p1", 1, 3.0)])], stage="rerank", loss=loss)
    analyse_in(tmp_path, teacher=str(tmp_path / "teacher"))
    assert ("analyse: the teacher was trained with loss listwise: " in capsys.readouterr().err) == warned


def test_the_command_says_each_kind(tmp_path, capsys):
    write_errors(tmp_path)
    flags = [word for name in INPUTS for word in (f"--{name}", str(tmp_path / name))]
    with pytest.raises(SystemExit, match="0"):
        main(["analyse", *flags, "--sample", "1000", "--output", str(tmp_path / "out")])
    said = capsys.readouterr()
    assert all(f"analyse: {kind}: " in said.err for kind in PAPER)
    assert "paper" not in said.err
    assert f"analyse: {len(EVERY)} queries in place of 1,000: no more fail and have hits" in said.err
    left = len(PAIRS["others"])
    assert f"analyse: others: package-*.html asks a person for the kind of these {left}\n" in said.err
    assert "report.html" in said.out


def test_few_queries_and_a_missing_page_are_said(tmp_path, capsys):
    write_world(tmp_path, ["a word", "a word", "b"], [("q0", "p0", 1)], {"q0": [("p1", 1.0)]})
    made = analyse_in(tmp_path, sample=40)
    said = capsys.readouterr().err
    assert "analyse: 1 queries in place of 40, too few for their shares to be those of other queries: no more fail and have hits" in said
    assert "analyse: others: no page asks a person, since a rule names each pair" in said
    assert not made.parts(".html", "package-")
    write_world(tmp_path / "more", ["a", "b"], [(f"q{n}", "p0", 1) for n in range(40)], {f"q{n}": [("p1", 1.0)] for n in range(40)})
    analyse_in(tmp_path / "more", sample=40)
    assert "in place of" not in capsys.readouterr().err


def test_a_large_corpus_is_counted_with_a_word_of_advice(tmp_path, capsys, monkeypatch):
    write_world(tmp_path, ["a", "b"], [("q0", "p0", 1)], {"q0": [("p1", 1.0)]})
    monkeypatch.setattr(analysing, "_MANY", 3)
    analyse_in(tmp_path, "small")
    assert "counts words" not in capsys.readouterr().err
    monkeypatch.setattr(analysing, "_MANY", 2)
    analyse_in(tmp_path, "large")
    said = "analyse: counts words in 2 passages, about 1 min; a BM25 index as --index has the counts"
    assert said in capsys.readouterr().err.splitlines()


def seen(query: str, passage: str) -> Pair:
    """A pair in a corpus where a word of `COMMON` is general, and each other one rare."""
    splitter = Splitter()
    terms, common = splitter.terms(query), {term.word for term in splitter.terms(COMMON)}
    idf = {term.word: 1.0 if term.word in common else 8.0 for term in terms}
    return Pair(
        QueryTerms(query, terms, idf, frozenset(word for word in idf if word not in common)), PassageTerms(passage, splitter.terms(passage))
    )


@pytest.mark.parametrize(("query", "passage", "evidence"), PAIRS["numerical mismatch"])
def test_a_number_is_a_mismatch_only_in_a_passage_on_the_topic(query, passage, evidence):
    assert numerical_mismatch(seen(query, passage)) == evidence
    other = evidence.partition(", not ")[2]
    assert numerical_mismatch(seen(query, f"the wheel of a ship, no. {other}")) is None
    assert numerical_mismatch(seen(evidence.partition(",")[0], f"the wheel of a ship, no. {other}")) == evidence, (
        "a query of a number alone"
    )


def test_a_number_in_a_passage_about_another_entity_is_no_numerical_mismatch():
    assert numerical_mismatch(seen("population of Mongolia in 2016", "The population of Bhutan in 2017")) is None
    assert numerical_mismatch(seen("population of Mongolia in 2016", "The population of Mongolia in 2017")) == "2016, not 2017"
