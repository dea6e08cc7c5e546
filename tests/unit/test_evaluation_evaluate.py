"""evaluate(): the shapes of metrics.json, answers, several runs, and a page that needs nothing outside itself."""

from __future__ import annotations

import hashlib
import json
from html.parser import HTMLParser
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from raydense.data.store import CorpusWriter
from raydense.data.tables import commit_table, read_table
from raydense.errors import InputError, fixable
from raydense.evaluation.curves import read_curves
from raydense.evaluation.evaluate import evaluate
from raydense.evaluation.settings import EvaluateSettings
from raydense.evaluation.table import comparison_table
from raydense.evaluation.trials import summarise
from raydense.storage import Artifact, Draft, named_folders

EVIL = "<script>alert('x')</script> & \"more\""
TEXTS = ["Paris is the capital of France.", f"Rome {EVIL}", "Berlin, since 1990", "x " * 300 + "Rome at last", "Oslo", "Bern"]


def write_table(folder: Path, kind: str, *parts: pa.Table) -> None:
    draft = Draft.open(folder, kind, {"stage": f"test <{kind}>", "settings": {"evil": EVIL}})
    for number, part in enumerate(parts):
        commit_table(draft, f"{kind}-{number:05d}.parquet", part)
    draft.finish(sum(p.num_rows for p in parts))


def run_table(run: dict[str, list[int]]) -> pa.Table:
    rows = [(q, f"p{p}", rank, 1.0 / rank) for q, hits in run.items() for rank, p in enumerate(hits, 1)]
    return pa.table(dict(zip(["query_id", "passage_id", "rank", "score"], map(list, zip(*rows, strict=True)), strict=True)))


@pytest.fixture
def world(tmp_path: Path) -> Path:
    writer = CorpusWriter(Draft.open(tmp_path / "corpus", "corpus", {"stage": "test"}), 4)
    writer.add(pa.table({"passage_id": [f"p{i}" for i in range(6)], "title": [""] * 6, "text": TEXTS}))
    writer.finish()
    queries = {"query_id": ["q0", "q1", "q2", "other"], "text": ["capital of France?", EVIL, "since when?", "unjudged"]}
    write_table(tmp_path / "queries", "queries", pa.table({**queries, "answers": [["paris"], ["ROME"], [r"19[89]0"], ["x"]]}))
    qrels = {"query_id": ["q0", "q1", "q1", "q2"], "passage_id": ["p0", "p1", "p3", "p2"], "relevance": [1, 2, 1, 1]}
    write_table(tmp_path / "qrels", "qrels", pa.table(qrels))
    good, bad = {"q0": [0, 1], "q1": [1, 0], "q2": [4, 2], "other": [0]}, {"q0": [1, 0], "q1": [4, 3, 0]}
    write_table(tmp_path / "bad", "run", run_table(bad))
    write_table(tmp_path / "good", "run", run_table({"q0": good["q0"]}), run_table({q: good[q] for q in ("q1", "q2", "other")}))
    model = tmp_path / "model"
    model.mkdir()
    (model / "config.json").write_text("{}")
    steps = [{"step": s, "loss": 2.0 / s, "lr": 1e-4, **({"mrr@10": s / 60} if s % 20 == 0 else {})} for s in range(1, 61)]
    (model / "history.jsonl").write_text("".join(json.dumps(step) + "\n" for step in steps))
    return tmp_path


def evaluate_world(root: Path, output: str, runs: list[str], **settings: object) -> Artifact:
    given = {"output": str(root / output), "run": runs, "qrels": str(root / "qrels"), "metrics": "RR@10 R@1", **settings}
    return evaluate(EvaluateSettings.read(given))


def test_one_run(world: Path):
    report = evaluate_world(world, "report", [str(world / "good")])
    expected = {"metrics": {"RR@10": pytest.approx(2.5 / 3), "R@1": pytest.approx(0.5)}, "queries": 3}
    assert report.summary["result"] == json.loads((report.path / "metrics.json").read_text()) == expected
    assert report.rows == 3
    values = pq.read_table(report.path / "per_query.parquet").to_pylist()
    assert values[1] == {"run": "good", "query_id": "q1", "RR@10": 1.0, "R@1": 0.5}
    before = (report.path / "report.html").stat().st_mtime_ns
    assert evaluate_world(world, "report", [str(world / "good")]).path.joinpath("report.html").stat().st_mtime_ns == before


def test_the_table_of_one_run_has_its_name(world: Path):
    report = evaluate_world(world, "report", [str(world / "good")])
    assert comparison_table(report, {"good": 2.0}).splitlines()[2].split() == ["good", "0.8333", "0.5000", "2.0"]


@pytest.mark.parametrize(
    ("given", "name"), [("best", "best"), ("best/", "best"), ("./deep/../best/.", "best"), (".", "runs"), ("deep/..", "runs")]
)
def test_a_run_that_is_given_by_a_link_has_the_name_of_the_link(given: str, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Names are part of the provenance: a report goes on where its inputs have moved behind links."""
    (tmp_path / "exp-17/run").mkdir(parents=True)
    (tmp_path / "runs/deep").mkdir(parents=True)
    (tmp_path / "runs/best").symlink_to(tmp_path / "exp-17/run")
    monkeypatch.chdir(tmp_path / "runs")
    assert named_folders([given]) == [(name, given)]


def test_runs_in_folders_of_the_same_name_are_named_by_what_differs(world: Path):
    for name in ("bad", "good"):
        (world / "imported" / name).mkdir(parents=True)
        (world / name).rename(world / "imported" / name / "run")
    runs = [str(world / "imported" / name / "run") for name in ("bad", "good")]
    report = evaluate_world(world, "report", [*runs, f"named={runs[1]}"])
    assert list(report.summary["result"]["runs"]) == ["bad/run", "good/run", "named"]
    (world / "moved").mkdir()
    (world / "imported").rename(world / "moved" / "imported")
    moved = [path.replace("/imported/", "/moved/imported/") for path in runs]
    assert [name for name, _ in named_folders(["imported/good/run", "good/run"])] == ["imported/good/run", "good/run"]
    assert [name for name, _ in named_folders(moved)] == ["bad/run", "good/run"], "a report goes on where its folders have moved together"
    with pytest.raises(InputError, match="two of run have the same name, 'run'"):
        evaluate_world(world, "twice", [runs[0], runs[0]])


def test_several_runs_against_the_first(world: Path):
    report = evaluate_world(world, "report", [f"BM25={world / 'bad'}", f"dense={world / 'good'}"])
    result = report.summary["result"]
    assert result["runs"]["BM25"] == {"metrics": {"RR@10": pytest.approx(1 / 3), "R@1": 0.0}, "queries": 3}
    against = result["significance"]["runs"]["dense"]["RR@10"]
    assert (against["wins"], against["ties"], against["losses"]) == (3, 0, 0)
    assert against["p_randomisation"] <= against["p_holm"]
    assert result["significance"]["compared_with"] == "BM25"
    lines = comparison_table(report, {"BM25": 1.25}).splitlines()
    assert lines[0].split() == ["RR@10", "R@1", "seconds"]
    assert [line.split() for line in lines[2:]] == [["BM25", "0.3333", "0.0000", "1.2"], ["dense", "0.8333", "0.5000", "-"]]
    assert len(set(map(len, lines))) == 1


def test_metrics_that_look_deeper_than_a_run_say_so(world: Path, capsys: pytest.CaptureFixture[str]):
    runs = [f"good={world / 'good'}", f"bad={world / 'bad'}"]  # two hits of three queries; two and three hits
    page = (evaluate_world(world, "deep", runs, metrics="R@1 R@2 R@100").path / "report.html").read_text()
    said = capsys.readouterr().err
    assert "evaluate: good: R@100 count at most 2 passages of each query, as the run holds no more\n" in said
    assert "evaluate: bad: R@100 count at most 3 passages" in said
    assert "counts no more than the run holds: good at most 2 passages of each query; bad at most 3 passages" in page
    text = (evaluate_world(world, "first", runs, metrics="R@1 R@2 AP").path / "report.html").read_text()
    assert "count at most" not in capsys.readouterr().err
    assert "holds" not in text


def test_queries_without_a_positive_are_said(world: Path, capsys: pytest.CaptureFixture[str]):
    judged = read_table(world / "qrels", "qrels")
    more = pa.table({"query_id": ["q0", "none"], "passage_id": ["p7", "p7"], "relevance": [0, 0]}).cast(judged.schema)
    write_table(world / "negatives", "qrels", pa.concat_tables([judged, more]))
    count = len(judged["query_id"].unique()) + 1
    evaluate_world(world, "with", [str(world / "good")])
    assert "no positive" not in capsys.readouterr().err
    evaluate_world(world, "without", [str(world / "good")], qrels=str(world / "negatives"))
    assert f"evaluate: 1 of the {count} judged queries have no positive, and count 0 in most metrics\n" in capsys.readouterr().err


def test_a_run_without_a_relevant_hit_is_said(world: Path, capsys: pytest.CaptureFixture[str]):
    write_table(world / "split", "run", run_table({"q0": [41, 42], "q1": [43]}))
    evaluate_world(world, "some", [str(world / "good")])
    assert "all of it is 0" not in capsys.readouterr().err
    evaluate_world(world, "none", [str(world / "split")])
    assert "evaluate: split: all of it is 0: see that the judgements name its passages" in capsys.readouterr().err


def test_an_answer_error_names_its_own_run(world: Path):
    write_table(world / "foreign", "run", run_table({"q0": [0, 77]}))
    texts = {"queries": str(world / "queries"), "corpus": str(world / "corpus")}
    with pytest.raises(InputError, match=r"/foreign: names passage 'p77'"):
        evaluate_world(world, "x", [f"a={world / 'good'}", f"b={world / 'foreign'}"], answers={"match": "token"}, **texts)


def test_a_run_of_another_corpus_is_refused(world: Path):
    draft = Draft.open(world / "elsewhere", "run", {"stage": "test"})
    commit_table(draft, "run.parquet", run_table({"q0": [0]}))
    draft.finish(1, corpus="c" * 64)
    texts = {"queries": str(world / "queries"), "corpus": str(world / "corpus")}
    with pytest.raises(InputError, match=r"elsewhere: was made with another corpus than \S+corpus"):
        evaluate_world(world, "x", [str(world / "elsewhere")], answers={"match": "token"}, **texts)


def test_answer_accuracy(world: Path):
    texts = {
        "queries": str(world / "queries"),
        "corpus": str(world / "corpus"),
    }
    token = evaluate_world(world, "token", [str(world / "good")], answers={"match": "token", "k": "1 2"}, **texts).summary["result"][
        "answers"
    ]
    assert token["accuracy"] == {"top-1": pytest.approx(2 / 3), "top-2": pytest.approx(2 / 3)}
    regex = evaluate_world(world, "regex", [str(world / "good")], answers={"match": "regex", "k": "1 2"}, **texts).summary["result"][
        "answers"
    ]
    assert regex["accuracy"] == {"top-1": pytest.approx(2 / 3), "top-2": 1.0}
    assert regex["queries"] == 3
    with pytest.raises(InputError, match="corpus: missing"):
        evaluate_world(world, "none", [str(world / "good")], answers={"match": "token"}, queries=texts["queries"])


def test_answer_accuracy_stands_beside_the_metrics_of_judgements(world: Path):
    """Of three judged queries two have an answer: the third has no value, and is in no test of the accuracy."""
    table = pq.read_table(world / "queries" / "queries-00000.parquet")
    column = pa.array([["paris"], ["rome"], [], ["x"]], pa.list_(pa.string()))
    write_table(world / "asked", "queries", table.set_column(2, "answers", column))
    more = {"queries": str(world / "asked"), "corpus": str(world / "corpus"), "answers": {"k": "1 2"}}
    report = evaluate_world(world, "report", [str(world / "bad"), str(world / "good")], **more)
    result = report.summary["result"]
    assert result["runs"]["good"]["metrics"] == {"RR@10": pytest.approx(2.5 / 3), "R@1": 0.5, "top-1": 1.0, "top-2": 1.0}
    assert result["runs"]["bad"]["metrics"] == {"RR@10": pytest.approx(1 / 3), "R@1": 0.0, "top-1": 0.0, "top-2": 1.0}
    assert result["runs"]["good"]["answers"]["queries"] == 2
    against = result["significance"]["runs"]["good"]
    assert list(against) == ["RR@10", "R@1", "top-1", "top-2"]
    assert (against["top-1"]["difference"], against["top-1"]["wins"], against["top-1"]["ties"]) == (1.0, 2, 0)
    assert (against["top-2"]["ties"], against["top-2"]["p_randomisation"]) == (2, 1.0)
    assert "8 comparisons" not in result["significance"]["correction"]
    assert "4 comparisons" in result["significance"]["correction"]
    values = pq.read_table(report.path / "per_query.parquet").to_pylist()
    assert [row["top-1"] for row in values] == [0.0, 0.0, None, 1.0, 1.0, None]
    assert comparison_table(report).splitlines()[0].split() == ["RR@10", "R@1", "top-1", "top-2"]
    text = (report.path / "report.html").read_text()
    assert "over the 2 judged queries that have answers" in text
    assert Page(text).stack == []
    rows = summarise({"one": {"1": report}, "other": {"1": report}})["runs"]["good"]
    assert rows["one"]["metrics"]["top-1"]["mean"] == 1.0
    assert rows["other"]["significance"]["top-1"]["ties"] == 2


def test_answers_alone_are_measured_over_all_queries_that_have_some(world: Path):
    more = {"queries": str(world / "queries"), "corpus": str(world / "corpus"), "answers": {"k": "1 2"}}
    table = pq.read_table(world / "queries" / "queries-00000.parquet")
    draft = Draft.open(world / "asked", "queries", {})
    bare = pa.table({"query_id": ["bare"], "text": ["no answer"], "answers": pa.array([[]], pa.list_(pa.string()))})
    commit_table(draft, "queries.parquet", pa.concat_tables([table, bare]))
    draft.finish(5)
    given = {"run": [str(world / "bad"), str(world / "good")], **more, "queries": str(world / "asked")}
    report = evaluate(EvaluateSettings.read({**given, "output": str(world / "report")}))
    result = report.summary["result"]
    assert result["runs"]["bad"]["metrics"] == {"top-1": 0.0, "top-2": 0.5}  # of q0, q1, q2 and other: the run has two of them
    assert result["runs"]["good"] == {
        "metrics": {"top-1": 0.5, "top-2": 0.5},
        "queries": 4,
        "answers": {
            "match": "token",
            "accuracy": {"top-1": 0.5, "top-2": 0.5},
            "queries": 4,
            "expressions_given_up": 0,
            "expressions_invalid": 0,
        },
    }
    assert not {"depths", "similarity"} & result.keys()
    values = pq.read_table(report.path / "per_query.parquet").to_pylist()
    assert values[4:6] == [{"run": "good", "query_id": q, "top-1": 1.0, "top-2": 1.0} for q in ("q0", "q1")]
    text = (report.path / "report.html").read_text()
    assert "measured on 4 queries that have answers" in text
    assert Page(text).stack == []
    assert not [words for words in ("judged queries", "no relevant passage", "trec_eval") if words in text]
    assert [line.split()[0] for line in comparison_table(report).splitlines()[2:]] == ["bad", "good"]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({}, "nothing to measure by: give qrels; or answers.match, with queries that have answers, and corpus"),
        ({"answers": {"match": "token"}, "metrics": "R@5"}, "an evaluation without qrels does not use metrics: leave it out"),
        ({"answers": {"match": "token"}, "corpus": "c"}, "queries: missing; answers.match needs it"),
        ({"answers": {"match": "regex"}, "queries": "q"}, "corpus: missing; answers.match needs it"),
    ],
)
def test_without_qrels_it_reports_what_it_needs(world: Path, given: dict[str, str], message: str):
    with pytest.raises(InputError) as caught:
        evaluate(EvaluateSettings.read({"run": [str(world / "good")], "output": str(world / "none"), **given}))
    assert message in str(caught.value)
    assert not (world / "none").exists()


class Page(HTMLParser):
    """What a browser would see: open tags, links, texts."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.stack: list[str] = []
        self.names: list[str] = []
        self.links: list[str] = []
        self.ids: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.names.append(tag)
        self.links += [v or "" for k, v in attrs if k in ("src", "href", "xlink:href")]
        self.ids += [v or "" for k, v in attrs if k == "id"]
        if tag not in ("meta", "br"):
            self.stack.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        self.stack.pop()

    def handle_endtag(self, tag: str) -> None:
        assert self.stack.pop() == tag


def test_the_page_is_whole_escaped_and_the_same_each_time(world: Path):
    runs = [f"<i>first={world / 'bad'}", f"{EVIL.replace('/', '')}={world / 'good'}"]
    more = {
        "queries": world / "queries",
        "corpus": world / "corpus",
        "models": [f"m & n={world / 'model'}"],
        "title": EVIL,
        "answers": {"match": "token"},
    }
    reports = [evaluate_world(world, name, runs, **more) for name in ("one", "two")]
    digests = [[hashlib.sha256((r.path / f.path).read_bytes()).hexdigest() for f in r.files] for r in reports]
    assert digests[0] == digests[1]
    text = (reports[0].path / "report.html").read_text()
    page = Page(text)
    assert page.stack == []
    assert "script" not in page.names
    assert "i" not in page.names
    assert all(link.startswith("#") for link in page.links)
    assert {link[1:] for link in page.links} <= set(page.ids)
    assert len(page.ids) == len(set(page.ids))
    assert not [word for word in ("<img", "@import", "url(http", "<link") if word in text]
    assert page.names.count("svg") == 3
    assert "<mark>Paris</mark>" in text
    assert "<mark>Rome</mark> at last" in text
    assert str(world) not in text


def test_what_cannot_be_measured_is_refused(world: Path):
    with pytest.raises(InputError, match="did you mean 'nDCG@10'"):
        evaluate_world(world, "a", [str(world / "good")], metrics="ndgc@10")
    with pytest.raises(InputError, match="two of run have the same name, 'good'"):
        evaluate_world(world, "b", [str(world / "good"), f"good={world / 'bad'}"])
    with pytest.raises(InputError, match="holds qrels, not run"):
        evaluate_world(world, "c", [str(world / "qrels")])
    write_table(world / "foreign", "run", run_table({"of another set": [0, 1]}))
    with pytest.raises(
        InputError, match=r"foreign: has no query of the 3 that are measured; give the run of the queries of .*qrels$"
    ) as none:
        evaluate_world(world, "e", [f"a={world / 'good'}", str(world / "foreign")])
    assert (fixable(none.value) or (0,))[0] == 2
    evaluate_world(world, "d", [f"a={world / 'good'}"])
    with pytest.raises(InputError, match="was made from something else"):
        evaluate_world(world, "d", [f"b={world / 'good'}"])
    with open(world / "model" / "history.jsonl", "a") as stream:
        stream.write("{\n")
    with pytest.raises(InputError, match=r"history.jsonl:61: not a line"):
        read_curves(world / "model")
