"""label(): against a slow reading of its rules in plain Python, on runs of a re-ranker (its scoring is tested in tests/integration)."""

from __future__ import annotations

import math
import tempfile
from collections import Counter
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import raydense.mining.label as labelling
from raydense.data.tables import read_table
from raydense.errors import InputError
from raydense.mining.label import label
from raydense.mining.settings import LabelSettings
from raydense.storage import Artifact, Draft
from tests.mining_world import Run, examples_of, worlds, write_table, write_trained, write_world

LOGITS = [-1000.0, -6.0, -2.5, -2.0, -0.5, 0.0, 1.5, 2.0, 2.5, 7.0, 1000.0]


def label_world(root: Path, output: str = "labels", qrels: bool = True, **more: object) -> Artifact:
    folders = {name: str(root / name) for name in ("run", "corpus", "queries") + (("qrels",) if qrels else ())}
    return label(LabelSettings.read({**folders, "output": str(root / output), **more}))


def sigmoid(x: float) -> float:
    return 1 / (1 + math.exp(-x)) if x > -700 else 0.0


def slowly(texts: list[str], qrels: list[tuple[str, str, int]], run: Run, s: LabelSettings) -> dict[str, dict[str, list]]:
    """Gold and pseudo-positives and every confident negative of each query, read off the rules one passage at a time."""
    found = {}
    for query, hits in run.items():
        gold = [row for _, row in sorted((-r, int(p[1:])) for q, p, r in qrels if q == query and r >= 1)]
        scored = [(int(p[1:]), sigmoid(score)) for p, score in hits[: s.depth]]
        seen = {texts[row] for row in gold}
        pseudo, negatives = [], []
        for row, probability in scored:
            if probability > s.s_pos and texts[row] not in seen:
                seen.add(texts[row])
                pseudo.append(row)
        for row, probability in scored:
            if probability < s.s_neg and texts[row] not in seen:
                seen.add(texts[row])
                negatives.append(row)
        found[query] = {"gold": gold, "pseudo": pseudo, "negatives": negatives, "scores": dict(scored)}
    return found


@given(
    world=worlds(),
    data=st.data(),
    thresholds=st.sampled_from([(0.9, 0.1), (0.8, 0.2), (0.6, 0.4), (1.0, 0.0)]),
    negatives=st.integers(1, 5),
    depth=st.integers(1, 20),
    shortage=st.sampled_from(["keep", "drop"]),
    judged=st.booleans(),
    cuts=st.tuples(st.integers(1, 4), st.integers(1, 30)),
    least=st.none() | st.integers(1, 3),
)
@settings(max_examples=20, deadline=None)
def test_equals_the_slow_reading(world, data, thresholds, negatives, depth, shortage, judged, cuts, least):
    least = least and min(least, negatives)
    texts, qrels, run = world
    drawn = {q: sorted((data.draw(st.sampled_from(LOGITS)) for _ in hits), reverse=True) for q, hits in run.items()}
    run = {q: [(p, score) for (p, _), score in zip(hits, drawn[q], strict=True)] for q, hits in run.items()}
    asked = {"s_pos": thresholds[0], "s_neg": thresholds[1], "negatives": negatives, "depth": depth, "shortage": shortage}
    asked |= {"min_negatives": least} if least else {}
    s = LabelSettings(output="x", run="x", corpus="x", queries="x", **asked)
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr(labelling, "BLOCK_ROWS", cuts[1])
        root = Path(folder)
        write_world(root, texts, qrels, run, cuts[0], stage="rerank", model="m")
        expected = slowly(texts, qrels if judged else [], run, s)
        some = {q: e for q, e in expected.items() if e["gold"] or e["pseudo"]}
        short = [q for q, e in some.items() if len(e["negatives"]) < (least or negatives)]
        kept = {q: e for q, e in some.items() if shortage == "keep" or q not in short}
        if not kept:
            with pytest.raises(InputError, match="no example is left"):
                label_world(root, qrels=judged, **asked)
            return
        artifact = label_world(root, qrels=judged, **asked)
        found = examples_of(artifact)
        assert list(found) == list(kept)
        for query, e in kept.items():
            example = found[query]
            assert example["positives"] == e["gold"] + e["pseudo"]
            assert example["positive_sources"] == ["gold"] * len(e["gold"]) + ["pseudo"] * len(e["pseudo"])
            assert [s if s is None else sigmoid(s) for s in example["positive_scores"]] == [
                None if r not in e["scores"] else pytest.approx(e["scores"][r]) for r in example["positives"]
            ]
            assert len(example["negatives"]) == len(set(example["negatives"])) == min(negatives, len(e["negatives"]))
            assert set(example["negatives"]) <= set(e["negatives"])
            assert [sigmoid(s) for s in example["negative_scores"]] == [
                pytest.approx(e["scores"][r], abs=1e-7) for r in example["negatives"]
            ]
            assert example["negative_sources"] == ["denoised"] * len(example["negatives"])
        summary = artifact.summary
        unmet = {q for q, _, r in qrels if judged and r >= 1} - set(run)
        assert summary["dropped"] == {
            "no positive": len(expected) - len(some),
            "not in the run": len(unmet),
            "too few negatives": len(short) if shortage == "drop" else 0,
        }
        assert summary["queries"] == summary["labelled"] + summary["unlabelled"] == summary["kept"] + sum(summary["dropped"].values())
        assert summary["unlabelled"] == sum(not e["gold"] for e in expected.values())
        assert summary["short"] == len(short)
        assert summary["candidates"]["pseudo-positives"] == sum(len(e["pseudo"]) for e in expected.values())
        assert summary["candidates"]["confident negatives"] == sum(len(e["negatives"]) for e in expected.values())
        scored = [(q, row, p) for q, e in expected.items() for row, p in e["scores"].items()]
        assert sum(summary["candidates"].values()) == len(scored) == sum(map(sum, summary["scores"].values()))
        bins = Counter((row in expected[q]["gold"], min(int(p * 20), 19)) for q, row, p in scored)
        assert summary["scores"] == {"gold": [bins[True, i] for i in range(20)], "other": [bins[False, i] for i in range(20)]}
        assert summary["gold_below_s_neg"] == sum(p < s.s_neg for q, row, p in scored if row in expected[q]["gold"])


TEXTS = ["gold", "silver", "gold", "lead", "tin", "lead", "iron", "zinc"]
QRELS = [("q", "p0", 2), ("q", "p7", 1)]
RUN: Run = {"q": [("p1", 5.0), ("p2", 4.0), ("p6", 0.0), ("p3", -3.0), ("p5", -4.0), ("p0", -5.0), ("p4", -6.0)]}
FREE: Run = {"free": [("p3", 3.0), ("p5", 2.5), ("p4", -9.0)], "unsure": [("p6", 1.0), ("p4", -9.0)]}


def test_gold_stays_whatever_the_score_of_the_teacher(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_world(tmp_path, TEXTS, QRELS, RUN, stage="rerank", model="m")
    artifact = label_world(tmp_path, negatives=2)
    example = examples_of(artifact)["q"]
    assert example["positives"] == [0, 7, 1]
    assert example["positive_sources"] == ["gold", "gold", "pseudo"]
    assert example["positive_scores"] == [-5.0, None, 5.0]
    assert sorted(example["negatives"]) == [3, 4]
    assert artifact.summary["candidates"] == {
        "gold positives": 1,
        "text of a gold positive": 1,
        "pseudo-positives": 1,
        "confident negatives": 2,
        "between the thresholds": 1,
        "text of a pseudo-positive": 0,
        "repeated text": 1,
    }
    assert artifact.summary["gold_below_s_neg"] == 1
    assert "1 of 1 gold positives below s_neg (100%)" in capsys.readouterr().err


def test_a_positive_of_the_same_question_under_another_id_is_no_confident_negative(tmp_path: Path) -> None:
    """Nor for a query that is not judged; where the teacher is sure of it, it is a pseudo-positive."""
    hits = [("p3", 5.0), ("p4", 4.0), ("p0", -3.0), ("p6", -4.0)]
    qrels = [("q1", "p1", 1), ("q2", "p0", 1), ("q2", "p4", 1)]
    asked = dict.fromkeys(["q1", "q2", "free"], "what is asthma")
    write_world(tmp_path, TEXTS, qrels, {"q1": hits, "free": hits, "other": hits}, asked=asked, stage="rerank", model="m")
    artifact = label_world(tmp_path)
    found = examples_of(artifact)
    assert {q: sorted(one["negatives"]) for q, one in found.items()} == {"q1": [6], "free": [6], "other": [0, 6]}
    assert {q: one["positives"] for q, one in found.items()} == {"q1": [1, 3, 4], "free": [3, 4], "other": [3, 4]}
    assert artifact.summary["candidates"]["text of a gold positive"] == 2
    assert sum(artifact.summary["candidates"].values()) == 12


def test_a_confident_negative_holds_no_answer(tmp_path: Path) -> None:
    hits = [("p0", 5.0), ("p1", -4.0), ("p2", -5.0), ("p3", -6.0)]
    write_world(tmp_path, ["gold", "it is Kiwi.", "kiwis", "other"], [("q", "p0", 1)], {"q": hits}, stage="rerank", model="m")
    asked = pa.table({"query_id": ["q"], "text": ["which"], "answers": [["kiwi"]]})
    write_table(tmp_path / "asked", "queries", [asked])
    labels = label_world(tmp_path, queries=str(tmp_path / "asked"), without_answers="token")
    assert sorted(examples_of(labels)["q"]["negatives"]) == [2, 3]
    assert labels.summary["candidates"]["negatives that hold an answer"] == 1
    assert labels.summary["candidates"]["confident negatives"] == 2
    assert labels.summary["answers"] == {"looked at": 3}


def test_hits_that_a_re_ranked_run_keeps_below_its_depth_are_not_read_as_logits(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    cut = {q: hits[:2] for q, hits in {**RUN, **FREE}.items()}
    for name, run, depth in (("kept", {**RUN, **FREE}, 2), ("cut", cut, 100)):
        write_world(tmp_path / name, TEXTS, QRELS, run, stage="rerank", model="m", depth=depth)
    found, wanted = (label_world(tmp_path / name, negatives=2) for name in ("kept", "cut"))
    assert examples_of(found) == examples_of(wanted)
    assert {**found.summary, "corpus": "", "depth": 0} == {**wanted.summary, "corpus": "", "depth": 0}
    assert (found.summary["depth"], wanted.summary["depth"]) == (2, 50)
    assert ["of the first 2 candidates" in one.file("report.md").read_text() for one in (found, wanted)] == [True, False]
    line = f"label: {tmp_path / 'kept' / 'run'} has scores of the re-ranker down to rank 2: it is the depth, not 50"
    assert [one for one in capsys.readouterr().err.splitlines() if "scores of the re-ranker" in one] == [line]
    assert sum(found.summary["candidates"].values()) == 6


def test_a_query_without_labels_has_what_the_teacher_finds_or_is_dropped(tmp_path: Path) -> None:
    write_world(tmp_path, TEXTS, QRELS, {**RUN, **FREE}, stage="rerank", model="m")
    for name, qrels in (("with", True), ("without", False)):
        artifact = label_world(tmp_path, name, qrels=qrels)
        found = examples_of(artifact)
        assert list(found) == ["q", "free"]
        assert found["free"]["positives"] == [3]
        assert found["free"]["negatives"] == [4]
        assert artifact.summary["dropped"]["no positive"] == 1
        assert artifact.summary["unlabelled"] == (2 if qrels else 3)


def test_labels_whose_scores_are_probabilities_are_not_taken_for_current_ones(tmp_path: Path) -> None:
    """As they were written before scores became logits: by the same settings and inputs."""
    write_world(tmp_path, TEXTS, QRELS, RUN, stage="rerank", model="m")
    made_from = label_world(tmp_path, "now").manifest["made_from"]
    del made_from["settings"]["scores"]
    Draft.open(tmp_path / "before", "examples", made_from).finish(0)
    with pytest.raises(InputError, match=r"settings.scores: None -> logits"):
        label_world(tmp_path, "before")


def test_shortage(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_world(tmp_path, TEXTS, QRELS, {**RUN, **FREE}, stage="rerank", model="m")
    assert label_world(tmp_path, "none", s_neg=0.001).summary["negatives"][0] == 1
    line = "label: 1 of them have no negative, which a training with negatives refuses: --min-negatives 1 --shortage drop leaves them out"
    assert line in capsys.readouterr().err.splitlines()
    assert label_world(tmp_path, negatives=2).summary["short"] == 1
    assert list(examples_of(label_world(tmp_path, "dropped", negatives=2, shortage="drop"))) == ["q"]
    assert list(examples_of(label_world(tmp_path, "some", negatives=2, min_negatives=1, shortage="drop"))) == ["q", "free"]
    with pytest.raises(InputError, match="min_negatives 3 is more than the 2 negatives"):
        label_world(tmp_path, "more", negatives=2, min_negatives=3)
    with pytest.raises(InputError, match="1 queries have fewer than 2 confident negatives, the first is 'free'"):
        label_world(tmp_path, "failed", negatives=2, shortage="fail")
    assert label_world(tmp_path, "failed", negatives=2, shortage="drop").rows == 1, "the fix can have the same output"


def test_where_nothing_is_left_it_is_said_why(tmp_path: Path) -> None:
    run = {"q": [("p1", 1.2), ("p2", -3.0)], "free": [("p3", 0.5), ("p4", -3.0)]}
    write_world(tmp_path, TEXTS, QRELS, run, stage="rerank", model="m")
    unsure = r"no example is left: 2 queries have no positive \(s_pos is 0.9, the highest probability of all at most 0.80\); give qrels, a lower s_pos, "
    with pytest.raises(InputError, match=unsure):
        label_world(tmp_path, qrels=False)
    few = r"no example is left: 2 queries have fewer than 3 confident negatives; give a greater depth, a higher s_neg, a lower min_negatives, or shortage keep"
    with pytest.raises(InputError, match=few):
        label_world(tmp_path, qrels=False, s_pos=0.6, negatives=3, shortage="drop")


def test_the_report_can_be_read(tmp_path: Path) -> None:
    write_world(tmp_path, TEXTS, QRELS, {**RUN, **FREE}, stage="rerank", model="m")
    page = (label_world(tmp_path).path / "report.md").read_text()
    for line in (
        "| kept | 2 |",
        "| gold positives that the teacher puts below 0.1 | 1 |",
        "### q: q",
        "- gold, 0.007, p0: gold",
        "- gold, not scored, p7: zinc",
        "- pseudo, 0.993, p1: silver",
        "- denoised, 0.002, p4: tin",
    ):
        assert line in page.splitlines()
    bars = [line for line in page.splitlines() if line.startswith("| 0.00 to 0.05")]
    assert bars == [f"| 0.00 to 0.05 | 1 | 5 | {'█' * 40} |"]


def test_bad_input_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"s_neg 0.9 must be below s_pos 0.9"):
        LabelSettings.read({"output": "x", "run": "x", "corpus": "x", "queries": "x", "s_neg": 0.9})
    write_world(tmp_path, TEXTS, QRELS, RUN)
    with pytest.raises(InputError, match="has no scores of a re-ranker"):
        label_world(tmp_path)
    write_world(tmp_path / "other", TEXTS, QRELS, {**RUN, "more": [("p1", 1.0)]}, stage="rerank", model="m")
    with pytest.raises(InputError, match="names query 'more', which the queries do not have"):
        label_world(tmp_path / "other", queries=str(tmp_path / "queries"))
    write_world(tmp_path / "small", TEXTS[:5], [("q", "p1", 1)], {"q": [("p1", 1.0)]})
    with pytest.raises(InputError, match="names passage 'p6'"):
        label_world(tmp_path / "other", corpus=str(tmp_path / "small" / "corpus"), qrels=False)


@pytest.mark.parametrize(
    "given",
    [{"block": 64}, {"token_budget": 9}, {"concurrency": "1,2"}, {"gpus_per_actor": 1}, {"cpus_per_actor": 2}, {"background": True}],
)
def test_what_only_a_model_uses_is_refused_without_one(given: dict[str, object]) -> None:
    inputs = {name: name for name in ("output", "run", "corpus", "queries")}
    with pytest.raises(InputError, match=f"label without model does not use {next(iter(given))}: leave it out"):
        LabelSettings.read(inputs | given)
    assert LabelSettings.read(inputs | given | {"model": "m"}).model == "m"


def test_labels_for_which_a_block_was_given_without_effect_stay_valid(tmp_path: Path) -> None:
    """Earlier versions recorded it."""
    write_world(tmp_path, TEXTS, QRELS, RUN, stage="rerank", model="m")
    made_from = label_world(tmp_path, "now").manifest["made_from"]
    before = Draft.open(tmp_path / "before", "examples", made_from | {"settings": made_from["settings"] | {"block": 64}}).finish(0)
    assert label_world(tmp_path, "before").fingerprint == before.fingerprint
    with pytest.raises(InputError, match=r"settings\.negatives: 8 -> 3"):
        label_world(tmp_path, "before", negatives=3)


def test_labels_are_the_same_however_the_run_is_cut(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    texts = [f"text {i % 90}" for i in range(100)]
    run = {f"q{q}": [(f"p{(i * 7 + q) % 100}", 5.0 - 0.2 * i) for i in range(60)] for q in range(9)}
    made: list[pa.Table] = []
    for cuts, rows in ((1, 1 << 18), (4, 70), (3, 200)):
        monkeypatch.setattr(labelling, "BLOCK_ROWS", rows)
        write_world(tmp_path / str(cuts), texts, [("q1", "p5", 1)], run, cuts, stage="rerank", model="m")
        made.append(read_table(label_world(tmp_path / str(cuts)).path, "examples"))
    assert made[0].num_rows == 9
    assert made[0].equals(made[1])
    assert made[0].equals(made[2])
    reports = {(tmp_path / name / "labels" / "report.md").read_text() for name in ("1", "3", "4")}
    assert len(reports) == 1


@pytest.mark.parametrize(("loss", "warned"), [("listwise", True), ("pointwise", False), (None, False)])
def test_a_listwise_teacher_is_reported(tmp_path: Path, capsys: pytest.CaptureFixture[str], loss: str | None, warned: bool) -> None:
    """Of a scored run, and of a model; the latter stops at its queries, before a worker would start."""
    write_world(tmp_path, TEXTS, QRELS, RUN, stage="rerank", model="m", loss=loss)
    label_world(tmp_path)
    assert ("label: the teacher was trained with loss listwise: " in capsys.readouterr().err) == warned
    teacher = write_trained(tmp_path / "teacher", loss)
    write_table(tmp_path / "none", "queries", [pa.table({"query_id": ["other"], "text": ["other"]})])
    with pytest.raises(InputError, match="the queries do not have"):
        label_world(tmp_path, "more", model=str(teacher), queries=str(tmp_path / "none"))
    assert ("are no probabilities; pointwise makes them so" in capsys.readouterr().err) == warned


def test_a_run_of_another_corpus_is_refused(tmp_path):
    run = {"q0": [("p0", 7.0), ("p1", -6.0)]}
    write_world(tmp_path, ["text 0", "text 1"], [("q0", "p0", 1)], run, stage="rerank", model="m", corpus="c" * 64)
    with pytest.raises(InputError, match=r"run: was made with another corpus than \S+corpus"):
        label_world(tmp_path)


def test_judgements_of_passages_that_the_corpus_lacks_are_left_out_and_counted(tmp_path, capsys):
    run = {"q0": [("p0", 7.0), ("p1", -6.0)], "q1": [("p1", 6.0), ("p0", -6.0)]}
    write_world(tmp_path, ["text 0", "text 1"], [("q0", "p0", 1), ("q0", "p8", 1), ("q1", "p9", 1)], run, stage="rerank", model="m")
    found = examples_of(label_world(tmp_path, negatives=1))
    assert (found["q0"]["positives"], found["q1"]["positives"]) == ([0], [1])
    assert found["q1"]["positive_sources"] == ["pseudo"]
    line = f"label: 2 of 3 judgements of {tmp_path / 'qrels'} name passages that the corpus lacks: left out"
    assert capsys.readouterr().err.splitlines().count(line) == 1
