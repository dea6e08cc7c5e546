"""mine(hybrid): against a slow reading of RocketQAv2's hybrid augmentation in plain Python."""

from __future__ import annotations

import tempfile
from itertools import pairwise
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import raydense.mining.mine as mining
from raydense.data.store import PassageStore
from raydense.data.tables import read_table
from raydense.errors import InputError
from raydense.mining.mine import mine
from raydense.mining.settings import MineSettings
from raydense.storage import Artifact
from tests.mining_world import Run, examples_of, worlds, write_table, write_world

Labels = dict[str, tuple[list[tuple[int, float]], list[tuple[int, float]]]]


def write_labels(root: Path, labels: Labels, files: int = 1, **summary: object) -> None:
    """Examples of these positives and negatives, each with a probability, in so many files."""
    table = pa.table(
        {
            "query_id": pa.array(list(labels), pa.string()),
            **{f"{n}s": pa.array([[r for r, _ in e[i]] for e in labels.values()], pa.list_(pa.int64())) for i, n in SIDES},
            **{f"{n}_scores": pa.array([[p for _, p in e[i]] for e in labels.values()], pa.list_(pa.float32())) for i, n in SIDES},
        }
    )
    edges = np.linspace(0, table.num_rows, files + 1).astype(int)
    parts = [table.slice(a, b - a) for a, b in pairwise(edges)]
    write_table(root / "labels", "examples", parts, **{"corpus": PassageStore(root / "corpus").fingerprint, **summary})


SIDES = ((0, "positive"), (1, "negative"))


def hybrid(root: Path, output: str = "examples", **more: object) -> Artifact:
    folders = {name: str(more.pop(name, root / name)) for name in ("run", "corpus", "queries", "qrels")}
    group = {"labels": str(root / "labels")} | {name: more.pop(name) for name in ("labels", "denoised") if name in more}
    return mine(MineSettings.read({**folders, "hybrid": group, "output": str(root / output), **more}))


@given(
    world=worlds(),
    data=st.data(),
    sizes=st.integers(1, 6).flatmap(lambda n: st.tuples(st.just(n), st.integers(0, n))),
    pick=st.sampled_from(["random", "top"]),
    shortage=st.sampled_from(["keep", "drop"]),
    cuts=st.tuples(st.integers(1, 3), st.integers(1, 3), st.integers(1, 30)),
    least=st.none() | st.integers(1, 6),
)
@settings(max_examples=20, deadline=None)
def test_equals_the_slow_reading(world, data, sizes, pick, shortage, cuts, least):
    texts, qrels, run = world
    rows = st.lists(st.integers(0, len(texts) - 1), max_size=8, unique=True)
    labelled = data.draw(st.permutations(sorted(run)))[: data.draw(st.integers(0, len(run)))]
    labels: Labels = {q: ([(r, 0.9 + r / 1000) for r in data.draw(rows)], [(r, r / 1000) for r in data.draw(rows)]) for q in labelled}
    negatives, denoised = sizes
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr(mining, "BLOCK_ROWS", cuts[2])
        root = Path(folder)
        write_world(root, texts, qrels, run, cuts[0], kind="faiss")
        write_labels(root, labels, cuts[1])
        asked = {"negatives": negatives, "denoised": denoised, "pick": pick, "shortage": shortage}
        least = least and min(least, negatives)
        asked |= {"min_negatives": least} if least else {}
        try:
            artifact = hybrid(root, **asked)
        except InputError as error:
            if "no example is left" not in str(error) and "no query has a positive" not in str(error):
                raise
            found, summary = {}, {}
        else:
            found, summary = examples_of(artifact), artifact.summary
        kept = []
        removed = {"positive by the labels": 0, "in the denoised part": 0}
        for query, hits in run.items():
            gold = [row for _, row in sorted((-r, int(p[1:])) for q, p, r in qrels if q == query and r >= 1)]
            if not gold:
                assert query not in found
                continue
            of_positives, of_negatives = labels.get(query, ([], []))
            gold_texts = {texts[row] for row in gold}
            positive_texts = gold_texts | {texts[row] for row, _ in of_positives}
            confident = {texts[row] for row, _ in of_negatives} - positive_texts
            seen = {texts[int(p[1:])] for p, _ in hits} - gold_texts
            removed["positive by the labels"] += len(seen & positive_texts)
            free = seen - positive_texts
            if query not in found:
                fewest = len(free - confident) + max(0, len(free & confident) - min(denoised, len(confident)))
                assert shortage == "drop"
                if least:
                    assert min(denoised, len(confident)) + min(negatives - denoised, fewest) < least
                else:
                    assert len(confident) < denoised or fewest < negatives - denoised
                continue
            kept.append(query)
            example = found[query]
            assert example["positives"][: len(gold)] == gold
            pseudo = example["positives"][len(gold) :]
            assert [texts[row] for row in pseudo] == list(
                dict.fromkeys(texts[row] for row, _ in of_positives if texts[row] not in gold_texts)
            )
            assert set(pseudo) <= {row for row, _ in of_positives}
            assert example["positive_sources"] == ["gold"] * len(gold) + ["pseudo"] * len(pseudo)
            probability = dict(of_positives)
            assert example["positive_scores"] == [pytest.approx(probability.get(row)) for row in example["positives"]]
            lists: dict[str, list[int]] = {"dense": [], "denoised": []}
            for row, source in zip(example["negatives"], example["negative_sources"], strict=True):
                lists[source].append(row)
            taken = {texts[row] for row in lists["denoised"]}
            assert len(taken) == len(lists["denoised"]) == min(denoised, len(confident))
            assert taken <= confident
            assert set(lists["denoised"]) <= {row for row, _ in of_negatives}
            removed["in the denoised part"] += len(free & taken)
            drawn = {texts[row] for row in lists["dense"]}
            assert len(drawn) == len(lists["dense"]) == min(negatives - denoised, len(free - taken))
            assert drawn <= free - taken
            if pick == "top":
                order = dict.fromkeys(texts[int(p[1:])] for p, _ in hits)
                assert [texts[row] for row in lists["dense"]] == [t for t in order if t in free - taken][: negatives - denoised]
            scores = dict(of_negatives)
            of_source = zip(example["negatives"], example["negative_sources"], strict=True)
            assert example["negative_scores"] == [pytest.approx(scores[r]) if s == "denoised" else None for r, s in of_source]
            if shortage == "drop":
                assert least or len(example["negatives"]) == negatives
                assert len(example["negatives"]) >= (least or 0)
        assert list(found) == kept
        if summary:
            assert summary["removed"]["positive by the labels"] == removed["positive by the labels"]
            assert shortage == "drop" or summary["removed"]["in the denoised part"] == removed["in the denoised part"]


TEXTS = [f"text {i}" for i in range(40)]
HITS = [(f"p{i}", 40.0 - i) for i in range(40)]
RUN: Run = {f"q{i}": HITS for i in range(6)}
QRELS = [(f"q{i}", "p0", 1) for i in range(6)]
LABELS: Labels = {f"q{i}": ([(0, 0.99), (1, 0.95)], [(row, 0.01) for row in range(20, 30)]) for i in range(6)}


@pytest.fixture
def world(tmp_path: Path) -> Path:
    write_world(tmp_path, TEXTS, QRELS, RUN, kind="bm25")
    write_labels(tmp_path, LABELS)
    return tmp_path


def test_half_of_each_by_default_and_all_counted(world: Path, capsys: pytest.CaptureFixture[str]) -> None:
    artifact = hybrid(world, negatives=9)
    assert artifact.summary["sources"] == {"negatives": {"bm25": 30, "denoised": 24}, "positives": {"gold": 6, "pseudo": 6}}
    assert artifact.summary["removed"]["positive by the labels"] == 6
    assert artifact.summary["removed"]["in the denoised part"] == 24
    assert "30 bm25, 24 denoised" in capsys.readouterr().err
    for example in examples_of(artifact).values():
        assert example["positives"] == [0, 1]
        assert example["positive_scores"] == [pytest.approx(0.99), pytest.approx(0.95)]
        assert len(set(example["negatives"])) == 9
        assert not {0, 1} & set(example["negatives"])


def test_a_part_that_is_short_is_reported_and_not_filled_from_the_other(world: Path) -> None:
    artifact = hybrid(world, negatives=24, denoised=12)
    assert artifact.summary["hybrid"]["queries short of denoised negatives"] == artifact.summary["short"] == 6
    assert artifact.summary["sources"]["negatives"] == {"bm25": 72, "denoised": 60}
    with pytest.raises(InputError, match="6 queries have fewer than 24 negatives"):
        hybrid(world, "failed", negatives=24, denoised=12, shortage="fail")


def test_a_positive_of_the_same_question_under_another_id_is_in_neither_part(tmp_path: Path) -> None:
    qrels = [("q0", "p0", 1), ("other", "p21", 1), ("other", "p5", 1)]
    write_world(tmp_path, TEXTS, qrels, {"q0": HITS}, asked={"q0": "asthma", "other": "asthma"})
    write_labels(tmp_path, {"q0": LABELS["q0"]})
    example = examples_of(hybrid(tmp_path, negatives=40, denoised=10))["q0"]
    assert example["positives"] == [0, 1]
    assert sorted(example["negatives"]) == [row for row in range(2, 40) if row not in (5, 21)]


def test_negatives_of_the_labels_that_hold_an_answer_are_left_out(world: Path) -> None:
    queries = read_table(world / "queries", "queries")
    held = pa.array([["text 21", "text 5"]] * len(queries))
    write_table(world / "asked", "queries", [queries.append_column("answers", held)])
    artifact = hybrid(world, queries=str(world / "asked"), negatives=40, denoised=10, without_answers="token")
    for example in examples_of(artifact).values():
        assert sorted(example["negatives"]) == [row for row in range(2, 40) if row not in (5, 21)]
    assert artifact.summary["hybrid"]["negatives of the labels with an answer"] == 6


def test_each_part_is_drawn_by_its_own_random_numbers(world: Path) -> None:
    """With random numbers in common, the denoised part would leave the undenoised one those confident negatives with the highest numbers."""
    texts = [f"text {i}" for i in range(100)]
    run: Run = {f"q{i}": [(f"p{r}", 100.0 - r) for r in range(100)] for i in range(400)}
    root = world / "many"
    write_world(root, texts, [(q, "p0", 1) for q in run], run)
    write_labels(root, {q: ([(0, 1.0)], [(row, 0.01) for row in range(50, 100)]) for q in run})
    drawn = [
        row
        for e in examples_of(hybrid(root, negatives=40, denoised=20)).values()
        for row, source in zip(e["negatives"], e["negative_sources"], strict=True)
        if source == "run"
    ]
    # Of the 79 that are left 30 are confident: a share of 0.38, with a standard error of 0.005
    assert abs(np.mean(np.array(drawn) >= 50) - 30 / 79) < 0.03


def test_the_same_however_run_and_labels_are_cut(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = []
    for name, cuts, files, rows in (("a", 1, 1, 1 << 18), ("b", 4, 3, 50), ("c", 2, 6, 90)):
        monkeypatch.setattr(mining, "BLOCK_ROWS", rows)
        write_world(tmp_path / name, TEXTS, QRELS, RUN, cuts)
        order = list(LABELS) if name != "c" else list(reversed(LABELS))
        write_labels(tmp_path / name, {q: LABELS[q] for q in order}, files)
        made.append(read_table(hybrid(tmp_path / name, negatives=8).path, "examples"))
    assert made[0].equals(made[1])
    assert made[0].equals(made[2])


def test_bad_input_is_one_line(world: Path) -> None:
    with pytest.raises(InputError, match=r"hybrid\.labels: missing; give it: what `label` made"):
        MineSettings.read({"output": "x", "run": "x", "corpus": "x", "queries": "x", "qrels": "x", "hybrid": {}})
    with pytest.raises(InputError, match=r"strategy: was renamed; write hybrid"):
        hybrid(world, strategy="hard")
    with pytest.raises(InputError, match=r"hybrid\.denoised 9 is more than the 8 negatives"):
        hybrid(world, denoised=9)
    write_world(world / "other", TEXTS[:30], QRELS, {"q0": HITS[:9]})
    with pytest.raises(InputError, match="was made with another corpus"):
        hybrid(world / "other", labels=str(world / "labels"))
    plain = pa.table({"query_id": ["q0"], "positives": pa.array([[0]]), "negatives": pa.array([[1]])})
    write_table(world / "plain", "examples", [plain])
    with pytest.raises(InputError, match="without the scores of a teacher"):
        hybrid(world, labels=str(world / "plain"))
    write_table(world / "twice", "examples", [read_table(world / "labels", "examples")] * 2)
    with pytest.raises(InputError, match="names a query twice"):
        hybrid(world, labels=str(world / "twice"))
