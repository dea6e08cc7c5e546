"""evaluate with `train_qrels`: each metric apart for queries whose relevant passages are also relevant to a training query."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from test_evaluation_evaluate import Page

from raydense.data.store import CorpusWriter
from raydense.data.tables import commit_table
from raydense.errors import InputError
from raydense.evaluation.evaluate import evaluate
from raydense.evaluation.settings import EvaluateSettings
from raydense.evaluation.table import comparison_table
from raydense.forecast import Known
from raydense.storage import Artifact, Draft

QUERIES, PASSAGES = 60, 40
Judged = dict[str, dict[str, int]]


def write(folder: Path, kind: str, rows: list[tuple[Any, ...]], *columns: str) -> None:
    draft = Draft.open(folder, kind, {"stage": "test"})
    commit_table(draft, f"{kind}.parquet", pa.table(dict(zip(columns, map(list, zip(*rows, strict=True)), strict=True))))
    draft.finish(len(rows), queries=len({row[0] for row in rows}))


def write_qrels(folder: Path, judged: Judged) -> None:
    rows = [(query, passage, grade) for query, of in judged.items() for passage, grade in of.items()]
    write(folder, "qrels", rows, "query_id", "passage_id", "relevance")


@pytest.fixture
def world(tmp_path: Path) -> tuple[Path, Judged, Judged, dict[str, list[str]]]:
    """Graded test and training judgements that share some passages, and a run of all test queries but one."""
    rng = np.random.default_rng(8)
    test = {f"t{i}": {f"p{p}": int(rng.integers(0, 3)) for p in rng.permutation(PASSAGES)[:3]} for i in range(QUERIES)}
    train = {f"train{i}": {f"p{p}": int(rng.integers(0, 3)) for p in rng.permutation(PASSAGES)[:2]} for i in range(12)}
    found = {query: [f"p{p}" for p in rng.permutation(PASSAGES)[:10]] for query in [*test][1:]}
    write_qrels(tmp_path / "test", test)
    write_qrels(tmp_path / "train", train)
    rows = [(query, passage, rank, 1.0 / rank) for query, hits in found.items() for rank, passage in enumerate(hits, 1)]
    write(tmp_path / "run", "run", rows, "query_id", "passage_id", "rank", "score")
    backwards = [(query, passage, 11 - rank, float(rank)) for query, passage, rank, _ in reversed(rows)]
    write(tmp_path / "backwards", "run", backwards, "query_id", "passage_id", "rank", "score")
    return tmp_path, test, train, found


def report_of(root: Path, name: str = "report", **given: Any) -> Artifact:
    """A report on both runs: the settings `given` in place of these."""
    runs = [f"forwards={root / 'run'}", f"backwards={root / 'backwards'}"]
    known = {"run": runs, "qrels": str(root / "test"), "train_qrels": str(root / "train"), "metrics": "RR@10 R@5"}
    return evaluate(EvaluateSettings.read({"output": str(root / name), **known, **given}))


def positives(of: dict[str, int]) -> set[str]:
    return {passage for passage, grade in of.items() if grade >= 1}


def halves_by_hand(test: Judged, *trained: Judged) -> tuple[list[str], list[str], int]:
    """The queries of both halves, and how many have no positive, straight from the definition."""
    learned = {passage for train in trained for of in train.values() for passage in positives(of)}
    seen = [query for query, of in test.items() if positives(of) & learned]
    unseen = [query for query, of in test.items() if positives(of) and not positives(of) & learned]
    return seen, unseen, len(test) - len(seen) - len(unseen)


def reciprocal_rank(hits: list[str], of: dict[str, int]) -> float:
    return next((1 / rank for rank, passage in enumerate(hits, 1) if passage in positives(of)), 0.0)


def recall(hits: list[str], of: dict[str, int]) -> float:
    return len(set(hits[:5]) & positives(of)) / len(positives(of))


def test_both_halves_have_the_means_of_their_own_queries(world: tuple[Path, Judged, Judged, dict[str, list[str]]]) -> None:
    root, test, train, found = world
    seen, unseen, without = halves_by_hand(test, train)
    assert min(len(seen), len(unseen), without) > 0, "each kind of query is there"
    report = report_of(root)
    halves = report.summary["result"]["halves"]
    assert json.loads((report.path / "metrics.json").read_text())["halves"] == halves
    assert halves["without_positive"] == without
    for name, queries in (("seen", seen), ("unseen", unseen)):
        assert halves[name]["queries"] == len(queries)
        for run, order in (("forwards", 1), ("backwards", -1)):
            hits = {query: found.get(query, [])[::order] for query in queries}
            assert halves[name]["runs"][run] == {
                "RR@10": pytest.approx(np.mean([reciprocal_rank(hits[q], test[q]) for q in queries])),
                "R@5": pytest.approx(np.mean([recall(hits[q], test[q]) for q in queries])),
            }


def test_the_main_figures_are_what_they_are_without_it(world: tuple[Path, Judged, Judged, dict[str, list[str]]]) -> None:
    root = world[0]
    result, plain = report_of(root).summary["result"], report_of(root, "plain", train_qrels=None)
    assert plain.summary["result"] == {key: value for key, value in result.items() if key != "halves"}
    assert "train_qrels" not in plain.manifest["made_from"]["inputs"], "a report made before this setting is still finished"


def test_a_sum_is_one_in_each_half(world: tuple[Path, Judged, Judged, dict[str, list[str]]]) -> None:
    """NumRel counts the relevant passages of all queries, as trec_eval does: a half has those of its own."""
    root, test, train, _ = world
    seen, unseen, _ = halves_by_hand(test, train)
    halves = report_of(root, metrics="NumRel").summary["result"]["halves"]
    for name, queries in (("seen", seen), ("unseen", unseen)):
        assert halves[name]["runs"]["forwards"]["NumRel"] == sum(len(positives(test[query])) for query in queries)


def test_several_judgements_count_together(world: tuple[Path, Judged, Judged, dict[str, list[str]]]) -> None:
    root, test, train, _ = world
    more = {"hidden0": {"p0": 1, "p1": 0}, "hidden1": {"p2": 2}}
    write_qrels(root / "more", more)
    both = report_of(root, "both", train_qrels=[str(root / "train"), str(root / "more")])
    seen, unseen, _ = halves_by_hand(test, train, more)
    halves = both.summary["result"]["halves"]
    assert (halves["seen"]["queries"], halves["unseen"]["queries"]) == (len(seen), len(unseen))
    assert len(seen) > len(halves_by_hand(test, train)[0])
    assert both.fingerprint != report_of(root).fingerprint
    with pytest.raises(InputError, match="two of train_qrels have the same name, 'a'"):
        report_of(root, "twice", train_qrels=[f"a={root / 'train'}", f"a={root / 'more'}"])


@pytest.mark.parametrize(
    ("train", "line", "empty"),
    [
        ({"x": {"elsewhere": 1}}, "None of the 3 queries has", "seen"),
        ({"x": {"p0": 0}}, "None of the 3 queries has", "seen"),
        ({"x": {"p0": 1}, "y": {"p1": 2, "p2": 1}}, "All of the 3 queries have", "unseen"),
    ],
)
def test_an_empty_half_is_said_and_has_no_row(
    world: tuple[Path, Judged, Judged, dict[str, list[str]]], train: Judged, line: str, empty: str
) -> None:
    root = world[0]
    write_qrels(root / "few", {"t1": {"p0": 1}, "t2": {"p1": 1}, "t3": {"p2": 1, "p9": 0}})
    write_qrels(root / "learned", train)
    report = report_of(root, "few-report", qrels=str(root / "few"), train_qrels=str(root / "learned"))
    halves = report.summary["result"]["halves"]
    assert halves[empty] == {"queries": 0, "runs": {}}
    assert halves["without_positive"] == 0
    assert comparison_table(report).split("\n\n")[1:] == [f"{line} a relevant passage that is also relevant to a training query."]
    text = (report.path / "report.html").read_text()
    assert line in text
    assert "not seen</th>" not in text
    assert Page(text).stack == []


def test_the_printed_table_and_the_page_show_both(world: tuple[Path, Judged, Judged, dict[str, list[str]]]) -> None:
    root, test, train, _ = world
    seen, unseen, _ = halves_by_hand(test, train)
    report = report_of(root)
    halves = report.summary["result"]["halves"]
    _, line, table = comparison_table(report).split("\n\n")
    assert line == (
        f"{len(seen)} of the {len(seen) + len(unseen)} queries have a relevant passage that is also relevant to a training query,"
        " not counting those that have no relevant passage. RR@10 of these, and of the others:"
    )
    rows = [[f"{halves[half]['runs'][run]['RR@10']:.4f}" for half in ("seen", "unseen")] for run in ("forwards", "backwards")]
    assert table.splitlines()[0].split() == [str(len(seen)), "seen", str(len(unseen)), "not", "seen"]
    assert [row.split() for row in table.splitlines()[2:]] == [["forwards", *rows[0]], ["backwards", *rows[1]]]
    text = (report.path / "report.html").read_text()
    assert Page(text).stack == []
    assert f'<th scope="col">R@5<br>{len(seen)} seen</th><th scope="col">R@5<br>{len(unseen)} not seen</th>' in text
    recalls = [f"{halves[half]['runs']['backwards']['R@5']:.4f}" for half in ("seen", "unseen")]
    assert f'<th scope="row">backwards</th><td>{rows[1][0]}</td><td>{rows[1][1]}</td><td>{recalls[0]}</td><td>{recalls[1]}</td>' in text
    assert "train_qrels" in text, "where it came from"


def test_test_queries_that_were_trained_on_are_said(
    world: tuple[Path, Judged, Judged, dict[str, list[str]]], capsys: pytest.CaptureFixture[str]
) -> None:
    root, test, train, _ = world
    report_of(root)
    assert "training queries" not in capsys.readouterr().err
    write_qrels(root / "leaky", {**train, "t0": test["t0"], "t4": {"p1": 1}})
    report_of(root, "leaked", train_qrels=[str(root / "leaky")])
    assert f"evaluate: 2 of the {QUERIES} judged queries are training queries themselves" in capsys.readouterr().err


def test_answers_have_both_halves_too(world: tuple[Path, Judged, Judged, dict[str, list[str]]]) -> None:
    """Over the queries of a half that have answers; where none of a half has one, the metric is left out of it."""
    root, test, train, found = world
    seen = halves_by_hand(test, train)[0]
    writer = CorpusWriter(Draft.open(root / "corpus", "corpus", {"stage": "test"}), 100)
    writer.add(
        pa.table({"passage_id": [f"p{i}" for i in range(PASSAGES)], "title": [""] * PASSAGES, "text": ["word"] * 20 + ["other"] * 20})
    )
    writer.finish()
    answered = seen[:5]
    rows = [(query, query, ["word"] if query in answered else []) for query in test]
    write(root / "queries", "queries", rows, "query_id", "text", "answers")
    more = {"queries": str(root / "queries"), "corpus": str(root / "corpus"), "answers": {"k": "1"}}
    halves = report_of(root, "answered", **more).summary["result"]["halves"]
    held = [bool(found.get(query)) and int(found[query][0][1:]) < 20 for query in answered]
    assert halves["seen"]["runs"]["forwards"]["top-1"] == pytest.approx(np.mean(held))
    assert "top-1" not in halves["unseen"]["runs"]["forwards"]
    with pytest.raises(InputError, match="an evaluation without qrels does not use train_qrels: leave it out"):
        EvaluateSettings.read({"output": "x", "run": "run", "train_qrels": "train", **more})


def test_what_it_needs_is_foreseen(world: tuple[Path, Judged, Judged, dict[str, list[str]]]) -> None:
    root = world[0]
    given = {"output": str(root / "x"), "run": [str(root / "run")], "qrels": str(root / "test")}
    plain, more = (EvaluateSettings.read({**given, **one}).forecast(Known()) for one in ({}, {"train_qrels": str(root / "train")}))
    assert more.memory > plain.memory
    assert more.work == plain.work
