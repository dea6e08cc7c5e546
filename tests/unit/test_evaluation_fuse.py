"""fuse(): against a slow reading of reciprocal rank fusion and of weighted sums, one passage at a time; and weights tuned on dev queries."""

from __future__ import annotations

import hashlib
import tempfile
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import raydense.evaluation.fuse as fusing
from raydense.data.tables import read_table
from raydense.errors import InputError
from raydense.evaluation.evaluate import evaluate
from raydense.evaluation.fuse import fuse
from raydense.evaluation.settings import EvaluateSettings, FuseSettings
from raydense.evaluation.tuning import combinations, lambdas
from raydense.forecast import Holds, Known
from raydense.storage import Artifact
from tests.mining_world import Run, write_table

PASSAGES = [f"p{i}" for i in range(12)]


def write_run(folder: Path, run: Run, stage: str = "test", **summary: object) -> str:
    rows = [(q, p, rank, score) for q, hits in run.items() for rank, (p, score) in enumerate(hits, 1)]
    columns = list(map(list, zip(*rows, strict=True))) or [[], [], [], []]
    write_table(
        folder, "run", [pa.table(dict(zip(["query_id", "passage_id", "rank", "score"], columns, strict=True)))], stage=stage, **summary
    )
    return str(folder)


def hits_of(made: Artifact) -> dict[str, list[tuple[str, float]]]:
    found: dict[str, list[tuple[str, float]]] = {}
    for row in read_table(made.path, "run").to_pylist():
        hits = found.setdefault(row["query_id"], [])
        hits.append((row["passage_id"], row["score"]))
        assert row["rank"] == len(hits)
    return found


def slowly(runs: list[Run], s: FuseSettings) -> dict[str, list[tuple[str, float]]]:
    """The first k passages of each query, by the words of the papers."""
    equal = 1.0 if s.method == "reciprocal" or not s.scale else 1 / len(runs)
    weights = s.weights or [equal] * len(runs)
    fused = {}
    for query in dict.fromkeys(q for run in runs for q in run):
        total = dict.fromkeys((p for run in runs for p, _ in run.get(query, [])), 0.0)
        for run, weight in zip(runs, weights, strict=True):
            scores = dict(run.get(query, []))
            if not scores:
                continue
            low, high = min(scores.values()), max(scores.values())
            for passage in total:
                if s.method == "reciprocal":
                    part = 1 / (60 + list(scores).index(passage) + 1) if passage in scores else 0.0
                elif not s.scale:
                    part = scores.get(passage, low)
                elif passage not in scores:
                    part = 0.0
                else:
                    part = (scores[passage] - low) / (high - low) if high > low else 1.0
                total[passage] += weight * part
        order = sorted(total, key=lambda p: (np.float32(total[p]), p), reverse=True)
        fused[query] = [(p, total[p]) for p in order[: s.k]]
    return fused


@st.composite
def run_lists(pick):
    queries = [f"q{i}" for i in range(pick(st.integers(1, 5)))]
    runs = []
    for _ in range(pick(st.integers(2, 4))):
        run = {}
        for query in pick(st.permutations(queries)):
            hits = pick(st.lists(st.sampled_from(PASSAGES), max_size=8, unique=True))
            scores = sorted(pick(st.lists(st.integers(-8, 8), min_size=len(hits), max_size=len(hits))), reverse=True)
            if hits:
                run[query] = [(p, score / 4) for p, score in zip(hits, scores, strict=True)]
        runs.append(run)
    return runs


@given(
    runs=run_lists(),
    rule=st.sampled_from([{}, {"method": "reciprocal"}, {"method": "sum"}, {"method": "sum", "scale": False}]),
    weighted=st.booleans(),
    k=st.sampled_from([3, 1_000]),
    block=st.integers(1, 30),
)
@settings(max_examples=40, deadline=None)
def test_equals_the_slow_reading(runs, rule, weighted, k, block):
    given_weights = [0.25, 1.0, 0.5, 0.0][: len(runs)] if weighted else []
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr(fusing, "BLOCK_ROWS", block)
        root = Path(folder)
        folders = [write_run(root / f"run-{number}", run) for number, run in enumerate(runs)]
        s = FuseSettings.read({"output": str(root / "fused"), "run": folders, "weights": given_weights, "k": k, **rule})
        found, expected = hits_of(fuse(s)), slowly(runs, s)
        assert list(found) == list(expected)
        for query, hits in expected.items():
            assert [p for p, _ in found[query]] == [p for p, _ in hits]
            assert [score for _, score in found[query]] == pytest.approx([score for _, score in hits], rel=1e-6, abs=1e-7)


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[str]]:
    """Two runs that find different positives, and judgements of half of the queries."""
    root, rng = tmp_path_factory.mktemp("fuse"), np.random.default_rng(2)
    queries = [f"q{i}" for i in range(30)]
    qrels = [(query, str(rng.choice(PASSAGES)), 1) for query in queries[:15]]
    wanted = {query: passage for query, passage, _ in qrels}
    runs = []
    for strength in (2.0, 1.0):
        run = {}
        for query in queries:
            score = {p: float(rng.normal() + strength * (p == wanted.get(query))) for p in rng.permutation(PASSAGES)[:9]}
            run[query] = sorted(score.items(), key=lambda pair: -pair[1])
        runs.append(write_run(root / f"run-{strength:g}", run, corpus="c"))
    names = ["query_id", "passage_id", "relevance"]
    write_table(root / "qrels", "qrels", [pa.table(dict(zip(names, map(list, zip(*qrels, strict=True)), strict=True)))])
    return root, runs


def measured(root: Path, runs: list[str], where: Path) -> list[float]:
    named = [f"r{number}={run}" for number, run in enumerate(runs)]
    made = evaluate(EvaluateSettings(output=str(where), run=named, qrels=str(root / "qrels"), metrics=["RR@5"]))
    return [made.summary["result"]["runs"][f"r{number}"]["metrics"]["RR@5"] for number in range(len(runs))]


def test_the_weights_are_those_with_the_best_metric_of_all_that_are_tried(world: tuple[Path, list[str]], tmp_path: Path):
    root, runs = world
    tuned = fuse(FuseSettings(output=str(tmp_path / "tuned"), run=runs, qrels=str(root / "qrels"), metric="RR@5"))
    made = {}
    for number, weights in enumerate(combinations(2)):
        made[tuple(weights)] = str(fuse(FuseSettings(output=str(tmp_path / f"w{number}"), run=runs, method="sum", weights=weights)).path)
    values = dict(zip(made, measured(root, list(made.values()), tmp_path / "report"), strict=True))
    assert values[tuple(tuned.summary["weights"].values())] == max(values.values()) == pytest.approx(tuned.summary["dev"]["fused"])
    assert max(values.values()) > max(values[1.0, 0.0], values[0.0, 1.0])
    assert tuned.summary["corpus"] == "c"
    again = fuse(FuseSettings(output=str(tmp_path / "again"), run=runs, weights_of=str(tuned.path)))
    assert [hashlib.sha256(part.read_bytes()).digest() for part in again.parts(".parquet")] == [
        hashlib.sha256(part.read_bytes()).digest() for part in tuned.parts(".parquet")
    ]


def test_weights_that_were_tuned_before_a_kill_are_not_tuned_again(
    world: tuple[Path, list[str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    root, runs = world
    asked = {"run": runs, "qrels": str(root / "qrels"), "metric": "RR@5"}
    whole = fuse(FuseSettings(output=str(tmp_path / "whole"), **asked))
    assert "fuse weights: 21 fusions" in capsys.readouterr().err

    def killed(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(fusing, "commit_table", killed)
        with pytest.raises(KeyboardInterrupt):
            fuse(FuseSettings(output=str(tmp_path / "out"), **asked))
    assert "on 15 dev queries" in capsys.readouterr().err
    made = fuse(FuseSettings(output=str(tmp_path / "out"), **asked))
    assert "dev queries" not in capsys.readouterr().err
    assert (made.fingerprint, made.summary) == (whole.fingerprint, whole.summary)


def test_the_plan_counts_the_hits_of_each_weights_that_are_tried():
    known, given = Known(), {"output": "o", "run": ["a", "b"], "method": "sum"}
    known.expect({"a": Holds(30, each=9.0), "b": Holds(20, each=4.0), "dev": Holds(15)})
    assert FuseSettings(**given).forecast(known).work == {"hits": 350}
    for scale, tried in ((True, 21), (False, 35)):
        tuned = FuseSettings(**given, scale=scale, qrels="dev").forecast(known)
        assert tuned.work == {"hits": 350 + tried * 15 * 13}
        assert tuned.needs.endswith(f", {tried} weights tried")
        assert tuned.memory == FuseSettings(**given).forecast(known).memory + tried * 15 * 9


def test_weights_of_a_fused_run_follow_the_names_where_they_are_its_own(world: tuple[Path, list[str]], tmp_path: Path):
    _, (first, second) = world
    tuned = fuse(FuseSettings(output=str(tmp_path / "tuned"), run=[f"words={first}", f"dense={second}"], method="sum", weights=[0.7, 0.3]))
    for runs, weights in (
        ([f"dense={second}", f"words={first}"], {"dense": 0.3, "words": 0.7}),
        ([f"dev={first}", f"other={second}"], {"dev": 0.7, "other": 0.3}),  # other names: in order
    ):
        again = fuse(FuseSettings(output=str(tmp_path / runs[0][:3]), run=runs, weights_of=str(tuned.path)))
        assert again.summary["weights"] == weights
    with pytest.raises(InputError, match="fuses words, dense in this order, which is not that of dense, other"):
        fuse(FuseSettings(output=str(tmp_path / "torn"), run=[f"dense={second}", f"other={first}"], weights_of=str(tuned.path)))


def test_a_weight_is_not_given_to_a_run_of_another_kind(tmp_path: Path):
    words, dense = (write_run(tmp_path / kind, {"q1": [("p1", 2.0), ("p2", 1.0)]}, kind=kind) for kind in ("bm25", "faiss"))
    tuned = fuse(FuseSettings(output=str(tmp_path / "tuned"), run=[f"a={words}", f"b={dense}"], method="sum", weights=[0.7, 0.3]))
    with pytest.raises(InputError, match="weighs a run of kind bm25 where c is of kind faiss"):
        fuse(FuseSettings(output=str(tmp_path / "torn"), run=[f"c={dense}", f"d={words}"], weights_of=str(tuned.path)))
    for runs in ([f"c={words}", f"d={dense}"], [f"b={dense}", f"a={words}"]):
        again = fuse(FuseSettings(output=str(tmp_path / runs[0][0]), run=runs, weights_of=str(tuned.path)))
        assert sorted(again.summary["weights"].values()) == [0.3, 0.7]


@pytest.mark.parametrize("metric", ["nDCG@10 R@100", "nDGC@10"])
def test_a_metric_that_cannot_be_read_is_named_by_its_key(metric: str, world: tuple[Path, list[str]], tmp_path: Path):
    root, runs = world
    with pytest.raises(InputError, match=r"metric: (cannot read|unknown) metric"):
        fuse(FuseSettings(output=str(tmp_path / "out"), run=runs, qrels=str(root / "qrels"), metric=metric))


def test_lambda_is_the_best_of_a_grid_around_the_ratio_of_what_the_scores_span(world: tuple[Path, list[str]], tmp_path: Path):
    root, runs = world
    first, second = ({q: [(p, 40 * score) for p, score in hits] for q, hits in hits_of(Artifact.open(run)).items()} for run in runs)
    runs = [
        write_run(tmp_path / "a", first),
        write_run(tmp_path / "b", {q: [(p, score / 4_000) for p, score in hits] for q, hits in second.items()}),
    ]
    asked = {"run": runs, "scale": False}
    tuned = fuse(FuseSettings(output=str(tmp_path / "tuned"), qrels=str(root / "qrels"), metric="RR@5", **asked))
    judged = [f"q{i}" for i in range(15)]
    spans = [np.mean([np.ptp([score for _, score in hits_of(Artifact.open(run))[query]]) for query in judged]) for run in runs]
    made = {}
    for step in range(-16, 17):
        weight = float(f"{spans[0] / spans[1] * 2 ** (step / 4):.3g}")
        made[weight] = str(fuse(FuseSettings(output=str(tmp_path / f"w{step}"), method="sum", weights=[1.0, weight], **asked)).path)
    values = dict(zip(made, measured(root, list(made.values()), tmp_path / "report"), strict=True))
    one, weight = tuned.summary["weights"].values()
    assert (one, tuned.summary["method"], tuned.summary["scale"]) == (1.0, "sum", False)
    assert values[weight] == max(values.values()) == pytest.approx(tuned.summary["dev"]["fused"])
    assert max(values.values()) > max(tuned.summary["dev"]["runs"].values())


def test_lambda_where_a_run_has_one_hit_for_each_query():
    assert lambdas([3.0, 0.0])[0] == [1.0, 1.0]


def test_weights_are_tuned_on_as_many_hits_as_the_run_will_have(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    """The second run has the positive, but no weight puts it first: with one passage of each query it is worth nothing."""
    runs = [
        write_run(tmp_path / "a", {"q": [("p1", 3.0), ("p2", 2.9), ("p3", 0.0)]}),
        write_run(tmp_path / "b", {"q": [("p1", 3.0), ("p3", 1.0), ("p2", 0.0)]}),
    ]
    write_table(tmp_path / "qrels", "qrels", [pa.table({"query_id": ["q"], "passage_id": ["p3"], "relevance": pa.array([1], pa.int32())})])
    for metric in ("RR", "RR@10"):
        tuned = fuse(FuseSettings(output=str(tmp_path / metric), run=runs, qrels=str(tmp_path / "qrels"), metric=metric, k=1))
        assert tuned.summary["dev"] == {"metric": metric, "runs": {"a": 1 / 3, "b": 1 / 2}, "fused": 0.0}
        assert list(tuned.summary["weights"].values()) == [0.5, 0.5]
        assert "fuse: all weights that were tried are equally good, so the first is taken" in capsys.readouterr().err


def test_judgements_that_tell_no_weights_apart_are_refused(tmp_path: Path):
    runs = [write_run(tmp_path / name, {"q": [("p1", 3.0), (f"p{name}", 1.0)]}) for name in "ab"]
    for name, passage, relevance in (("negative", "p1", 0), ("not found", "p9", 1)):
        judged = pa.table({"query_id": ["q"], "passage_id": [passage], "relevance": pa.array([relevance], pa.int32())})
        write_table(tmp_path / name, "qrels", [judged])
        with pytest.raises(
            InputError, match=r"no weight can be found: nDCG@10 is 0 for each run of the 1 queries that are judged here; give"
        ):
            fuse(FuseSettings(output=str(tmp_path / "out"), run=runs, qrels=str(tmp_path / name)))


def test_a_run_in_another_order_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    monkeypatch.setattr(fusing, "BLOCK_ROWS", 2)
    ids = [f"q{i}" for i in range(6)]
    rising, falling = ({q: [("p1", 1.0), ("p2", 0.5)] for q in order} for order in (ids, ids[::-1]))
    more = dict.fromkeys(("q0", "q0b", *ids[1:]), rising["q0"])  # of a query that the others lack, in the middle
    runs = [write_run(tmp_path / "a", rising), write_run(tmp_path / "b", falling), write_run(tmp_path / "c", more)]
    assert list(hits_of(fuse(FuseSettings(output=str(tmp_path / "out"), run=runs)))) == [*ids, "q0b"]
    said = [line for line in capsys.readouterr().err.splitlines() if "another order" in line]
    assert said == ["fuse: b has its queries in another order than a, and takes longer to read in 7 blocks of queries"]


@pytest.mark.parametrize("metric", ["nDCG(judged_only=True)@1", "P(judged_only=True)@1"])
def test_weights_are_tuned_below_the_cutoff_of_a_metric_that_leaves_out_unjudged_hits(metric: str, tmp_path: Path):
    """Such a metric takes the first judged hits, wherever they are: here the second hit, after one that nobody judged."""
    runs = [
        write_run(tmp_path / "a", {"q": [("p1", 3.0), ("p2", 2.9), ("p3", 0.0)]}),
        write_run(tmp_path / "b", {"q": [("p1", 3.0), ("p3", 2.9), ("p2", 0.0)]}),
    ]
    judged = {"query_id": ["q", "q"], "passage_id": ["p2", "p3"], "relevance": pa.array([0, 1], pa.int32())}
    write_table(tmp_path / "qrels", "qrels", [pa.table(judged)])
    tuned = fuse(FuseSettings(output=str(tmp_path / "out"), run=runs, qrels=str(tmp_path / "qrels"), metric=metric))
    made = evaluate(EvaluateSettings(output=str(tmp_path / "r"), run=[str(tuned.path)], qrels=str(tmp_path / "qrels"), metrics=[metric]))
    assert tuned.summary["dev"] == {"metric": metric, "runs": {"a": 0.0, "b": 1.0}, "fused": 1.0}
    assert list(made.summary["result"]["metrics"].values()) == [1.0]


@pytest.mark.parametrize("scale", [True, False])
@pytest.mark.parametrize("metric", ["R@10", "RR", "nDCG@1"])
def test_each_run_alone_has_the_metric_that_evaluate_gives_it(scale: bool, metric: str, tmp_path: Path):
    """Of a passage that a run lacks it gets no credit, though the fused list has it; equal scores are ordered as trec_eval does."""
    runs = [
        write_run(tmp_path / "a", {"q": [("p1", 3.0), ("p2", 2.0)]}),
        write_run(tmp_path / "b", {"q": [("p3", 3.0), ("p4", 3.0)], "r": [("p5", 1.0)]}),
    ]
    judged = {"query_id": ["q", "r"], "passage_id": ["p3", "p5"], "relevance": pa.array([1, 1], pa.int32())}
    write_table(tmp_path / "qrels", "qrels", [pa.table(judged)])
    tuned = fuse(FuseSettings(output=str(tmp_path / "out"), run=runs, qrels=str(tmp_path / "qrels"), metric=metric, scale=scale))
    expected = {}
    for name, run in zip("ab", runs, strict=True):
        made = evaluate(EvaluateSettings(output=str(tmp_path / f"r{name}"), run=[run], qrels=str(tmp_path / "qrels"), metrics=[metric]))
        expected[name] = made.summary["result"]["metrics"][metric]
    assert tuned.summary["dev"]["runs"] == expected
    assert expected["a"] == 0


def test_what_each_run_was_made_by_is_kept(tmp_path: Path):
    """The kind of its index, or the stage; nothing of an imported run, which may hold the scores of an index."""
    hits: Run = {"q": [("p1", 3.0)]}
    runs = [
        write_run(tmp_path / "searched", hits, kind="bm25"),
        *(write_run(tmp_path / one, hits, stage=one) for one in ("rerank", "import")),
    ]
    first = fuse(FuseSettings(output=str(tmp_path / "first"), run=runs))
    assert {name: one["kind"] for name, one in first.summary["runs"].items()} == {"searched": "bm25", "rerank": "rerank", "import": ""}
    second = fuse(FuseSettings(output=str(tmp_path / "second"), run=[str(first.path), runs[0]]))
    assert second.summary["runs"]["first"]["kind"] == "fused"


def test_combinations_sum_to_one():
    assert [len(combinations(runs)) for runs in (2, 3, 4)] == [21, 66, 286]
    assert all(sum(weights) == pytest.approx(1) for runs in (2, 3, 4) for weights in combinations(runs))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"run": ["a"]}, "run"),
        ({"weights": [1.0]}, "1 weights for 2 runs"),
        ({"weights": [0.0, 0.0]}, "all weights are 0"),
        ({"weights": [1.0, 2.0], "qrels": "q"}, "weights and qrels both give the weights"),
        ({"weights_of": "f", "method": "sum"}, "with weights_of does not use method"),
        ({"metric": "RR@10"}, "without qrels does not use metric"),
        ({"method": "reciprocal", "scale": False}, "method reciprocal does not use scale"),
        ({"run": list("abc"), "qrels": "q", "scale": False}, "for two runs only: leave out scale"),
        ({"run": list("abcde"), "qrels": "q"}, "at most 4 runs"),
    ],
)
def test_settings_that_do_not_fit_are_refused(changes: dict[str, object], words: str):
    with pytest.raises(InputError, match=words):
        FuseSettings.read({"output": "o", "run": ["a", "b"], **changes})


def test_runs_that_do_not_fit_are_refused(world: tuple[Path, list[str]], tmp_path: Path):
    _, runs = world
    twice = write_run(tmp_path / "twice", {"q1": [("p1", 2.0), ("p2", 1.0), ("p1", 0.0)]})
    other = write_run(tmp_path / "other", {"q1": [("p1", 2.0)]}, corpus="d")
    torn = write_run(tmp_path / "torn", {"q1": [("p1", 2.0)]})
    asked = next(query for query in hits_of(Artifact.open(runs[0], "run")) if query != "q1")
    judged = str(tmp_path / "judged")
    write_table(Path(judged), "qrels", [pa.table({"query_id": [asked], "passage_id": ["p1"], "relevance": pa.array([1], pa.int32())})])
    write_table(
        tmp_path / "strange", "qrels", [pa.table({"query_id": ["x"], "passage_id": ["p1"], "relevance": pa.array([1], pa.int32())})]
    )
    for asked, words in (
        ({"run": [runs[0], twice]}, "names passage 'p1' twice for query 'q1'"),
        ({"run": [runs[0], other]}, "different corpora"),
        ({"run": [f"a={runs[0]}", f"a={runs[1]}"]}, "same name"),
        ({"run": runs, "weights_of": torn}, "is no fused run"),
        ({"run": runs, "qrels": str(tmp_path / "strange")}, "no run has a query that is judged here"),
        ({"run": [f"a={runs[0]}", f"one={torn}"], "qrels": judged}, "no weight can be found for one: without hits of the 1 queries"),
    ):
        with pytest.raises(InputError, match=words):
            fuse(FuseSettings(output=str(tmp_path / "out"), **asked))
        assert not (tmp_path / "out/manifest.json").exists()
