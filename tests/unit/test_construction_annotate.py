"""annotate(): against a slow reading of its rules in plain Python; the scores of models are tested in tests/integration."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import raydense.construction.annotate as annotating
import raydense.construction.pooling as pooling
from raydense.construction.annotate import annotate
from raydense.construction.ranked import first_to_judge
from raydense.construction.settings import AnnotateSettings
from raydense.data.tables import commit_table, read_table
from raydense.errors import InputError
from raydense.forecast import Known
from raydense.storage import Artifact, Draft
from tests.annotation_world import annotate_settings
from tests.mining_world import worlds, write_trained

TEXTS = ["gold", "silver", "gold", "iron", "tin", "lead", "tin"]
QRELS = [("q", "p0", 1), ("q", "p5", 0), ("r", "p3", 2), ("none", "p1", 1)]
ONE = {"q": [("p1", 3.0), ("p2", 2.0), ("p4", 1.0)], "r": [("p3", 1.0)], "unjudged": [("p1", 1.0)]}
TWO = {"q": [("p4", 3.0), ("p6", 2.0), ("p5", 1.0), ("p0", 0.5)]}


def world_of(root: Path, texts=TEXTS, qrels=QRELS, runs=(ONE, TWO), **more) -> AnnotateSettings:
    return annotate_settings(root, texts, qrels, runs, **more)


def read_pairs(artifact: Artifact) -> list[dict]:
    return [row for part in artifact.parts(".parquet", "pairs-") for row in pq.read_table(part).to_pylist()]


def slow_pairs(texts, qrels, runs, depth, keep) -> list[dict]:
    """The rules of `annotate` without a model, one pair at a time."""
    listed = []
    for query in dict.fromkeys(q for q, _, _ in qrels):
        judged = {int(p[1:]): grade for q, p, grade in qrels if q == query}
        # a pair of the qrels is written once here; of equal grades the lower row is first
        known = [row for row, grade in sorted(judged.items(), key=lambda item: (-item[1], item[0])) if grade >= 1]
        ranks: dict[int, dict[str, int]] = {}
        for number, run in enumerate(runs):
            for rank, (passage, _) in enumerate(run.get(query, [])[:depth], 1):
                ranks.setdefault(int(passage[1:]), {})[f"r{number}"] = rank
        score = {row: sum(1 / (60 + rank) for rank in found.values()) for row, found in ranks.items()}
        order = sorted(ranks, key=lambda row: (-score[row], row))
        asked = 0
        for row in order:
            if asked == keep:
                break
            same = [other for other in order if other in known and texts[other] == texts[row]]
            same += [other for other in known if texts[other] == texts[row]]
            same += [other for other in order if texts[other] == texts[row]]
            like = None if same[0] == row else f"p{same[0]}"
            asked += like is None
            listed.append(
                {
                    "query_id": query,
                    "passage_id": f"p{row}",
                    "text": texts[row],
                    "score": pytest.approx(score[row], abs=1e-12),
                    "found": [{"run": run, "rank": rank} for run, rank in ranks[row].items()],
                    "judged": judged.get(row),
                    "same_text_as": like,
                }
            )
    return listed


@given(world=worlds(), other=st.integers(0, 3), depth=st.integers(1, 6), keep=st.integers(1, 5), package=st.integers(1, 7))
@settings(max_examples=25)
def test_pairs_are_those_of_a_slow_reading(world, other, depth, keep, package) -> None:
    texts, qrels, run = world
    second = {query: hits[other:][::-1] for query, hits in run.items()}
    runs = [run, second]
    expected = slow_pairs(texts, qrels, runs, depth, keep)
    with tempfile.TemporaryDirectory() as folder:
        asked = world_of(Path(folder), texts, qrels, runs, depth=depth, keep=keep, package=package)
        if not expected:
            with pytest.raises(InputError, match="no run has a query that is judged here"):
                annotate(asked)
            return
        made = annotate(asked)
        found = read_pairs(made)
        assert [{name: row[name] for name in expected[0]} for row in found] == expected
        fresh = [row for row in found if row["same_text_as"] is None]
        assert [row["package"] for row in fresh] == [i // package for i in range(len(fresh))]
        assert all(row["package"] is None for row in found if row["same_text_as"])
        lines = [json.loads(line) for part in made.parts(".jsonl", "package-") for line in part.read_text().splitlines()]
        assert [(line["query_id"], line["passage_id"]) for line in lines if "query_id" in line] == [
            (row["query_id"], row["passage_id"]) for row in fresh
        ]
        assert made.summary["asked"] == len(fresh) == sum(line["pairs"] for line in lines if "pairs" in line)


@given(st.data())
def test_the_first_of_each_query_are_chosen_whatever_the_order_of_the_pool(data) -> None:
    """By mean score falling, then row rising, with equal scores and texts: a reading of the rule with sets."""
    pairs = data.draw(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 8)), min_size=1, max_size=30, unique=True))
    known = data.draw(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 8)), max_size=6, unique=True))
    query, row = np.array(pairs).T
    score = np.array(data.draw(st.lists(st.sampled_from([0.1, 0.5, 0.5 + 1e-12, 0.9]), min_size=len(pairs), max_size=len(pairs))))
    text = np.array([3, 3, 1, 2, 2, 0, 4, 5, 5], dtype=np.uint64)
    keep = data.draw(st.integers(1, 4))
    of_query, of_row = np.array(known, dtype=np.int64).reshape(-1, 2).T
    found = first_to_judge(query, row, score, text[row], (of_query, of_row, text[of_row]), keep)
    expected = []
    for q in sorted(set(query.tolist())):
        mine = sorted((i for i in range(len(pairs)) if query[i] == q), key=lambda i: (-score[i], row[i]))
        seen = {text[r] for p, r in known if p == q}
        judged_here = 0
        met_positive = set()
        for i in mine:
            if judged_here == keep:
                break
            positive = (q, int(row[i])) in known
            first = positive and text[row[i]] not in met_positive if text[row[i]] in seen else text[row[i]] not in met_positive
            if first:
                met_positive.add(text[row[i]])
                judged_here += 1
            expected.append((i, first))
    assert list(zip(found.at.tolist(), (found.like < 0).tolist(), strict=True)) == expected


def test_judgements_of_passages_that_the_corpus_lacks_are_left_out(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made = annotate(world_of(tmp_path / "all", qrels=[("q", "p99", 1), *QRELS, ("q", "p98", 0)]))
    assert read_pairs(made) == read_pairs(annotate(world_of(tmp_path / "known")))
    said = f"annotate: 2 of 6 judgements of {tmp_path / 'all/run0/qrels'} name passages that the corpus lacks: left out"
    assert said in capsys.readouterr().err


def test_repeats_name_the_passage_that_they_repeat_and_are_not_asked(tmp_path: Path) -> None:
    made = annotate(world_of(tmp_path, keep=3))
    rows = {(row["query_id"], row["passage_id"]): row for row in read_pairs(made)}
    assert rows["q", "p2"]["same_text_as"] == "p0"
    assert rows["q", "p6"]["same_text_as"] == "p4"
    assert rows["q", "p4"]["found"] == [{"run": "r0", "rank": 3}, {"run": "r1", "rank": 1}]
    assert rows["q", "p4"]["judged"] is None
    assert rows["r", "p3"]["judged"] == 2
    assert made.summary["missing"] == 1
    assert made.summary["repeats"] == 2
    assert not any("unjudged" in key for key in rows)


def test_the_same_pairs_whatever_the_blocks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    texts = [f"text {i % 30}" for i in range(40)]
    runs = [{f"q{q}": [(f"p{(i * 7 + q * (n + 3)) % 40}", 5.0 - i) for i in range(12)] for q in range(9)} for n in range(3)]
    qrels = [(f"q{q}", f"p{q}", 1) for q in range(8)]
    made = []
    for name, rows in (("whole", 1 << 18), ("cut", 40)):
        monkeypatch.setattr(pooling, "BLOCK_ROWS", rows)
        made.append(annotate(world_of(tmp_path / name, texts, qrels, runs, package=7)))
    assert len(made[1].parts(".parquet")) > len(made[0].parts(".parquet"))
    assert read_pairs(made[0]) == read_pairs(made[1])
    names = [file.path for file in made[0].files if not file.path.endswith(".parquet")]
    assert len(names) == 4 * len(made[0].summary["packages"])
    assert all(made[0].file(name).read_bytes() == made[1].file(name).read_bytes() for name in names)


def test_what_is_committed_is_read_as_often_for_many_packages_as_for_few(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    texts = [f"text {i}" for i in range(40)]
    runs = [{f"q{q}": [(f"p{(i * 7 + q) % 40}", 5.0 - i) for i in range(12)] for q in range(9)}]
    qrels = [(f"q{q}", f"p{q}", 1) for q in range(8)]
    committed, reads = Draft.committed, []
    monkeypatch.setattr(Draft, "committed", lambda self: reads.append(self.kind) or committed(self))
    counts = []
    for package in (1, 1000):
        made = annotate(world_of(tmp_path / str(package), texts, qrels, runs, package=package))
        counts.append((len(made.summary["packages"]) > 20, len(reads)))
        reads.clear()
    assert [many for many, _ in counts] == [True, False]
    assert counts[0][1] == counts[1][1]


def test_the_pages_are_counted_as_they_are_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made = annotate(world_of(tmp_path, package=1))
    assert f"annotate: pages: {len(made.summary['packages'])} packages in " in capsys.readouterr().err


def test_a_stopped_annotation_keeps_what_was_committed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    texts = [f"text {i}" for i in range(40)]
    runs = [{f"q{q}": [(f"p{(i * 7 + q) % 40}", 5.0 - i) for i in range(12)] for q in range(9)}]
    qrels = [(f"q{q}", f"p{q}", 1) for q in range(8)]
    monkeypatch.setattr(pooling, "BLOCK_ROWS", 30)
    whole = annotate(world_of(tmp_path / "whole", texts, qrels, runs, package=7))
    asked, write, written = world_of(tmp_path / "stopped", texts, qrels, runs, package=7), annotating._write, []

    def stop_at_the_third(path: Path, table) -> None:
        if len(written) == 2:
            raise KeyboardInterrupt
        written.append(path.name)
        write(path, table)

    monkeypatch.setattr(annotating, "_write", stop_at_the_third)
    with pytest.raises(KeyboardInterrupt):
        annotate(asked)
    assert not (Path(asked.output) / "manifest.json").exists()
    kept = {path.name: path.stat().st_mtime_ns for path in Path(asked.output).glob("pairs-*.parquet")}
    assert len(kept) == 2
    monkeypatch.setattr(annotating, "_write", write)
    made = annotate(asked)
    assert {name: made.file(name).stat().st_mtime_ns for name in kept} == kept
    assert [(file.path, file.sha256) for file in made.files] == [(file.path, file.sha256) for file in whole.files]


def test_bad_input_is_one_line(tmp_path: Path) -> None:
    base = world_of(tmp_path)
    with pytest.raises(InputError, match="two of run have the same name"):
        annotate(base.replaced({"run": [f"a={tmp_path / 'run0' / 'run'}", f"a={tmp_path / 'run1' / 'run'}"]}))
    with pytest.raises(InputError, match="names passage 'p1' twice for query 'q'"):
        annotate(world_of(tmp_path / "twice", runs=({"q": [("p1", 1.0), ("p1", 0.5)]},)))
    with pytest.raises(InputError, match="no run has a query that is judged here"):
        annotate(world_of(tmp_path / "other", runs=({"unjudged": [("p1", 1.0)]},)))
    assert not (tmp_path / "other" / "annotation" / "manifest.json").exists()
    elsewhere = Draft.open(tmp_path / "elsewhere", "run", {})
    commit_table(elsewhere, "run.parquet", read_table(tmp_path / "run0" / "run", "run"))
    elsewhere.finish(1, corpus="f" * 64)
    with pytest.raises(InputError, match="elsewhere: was made with another corpus"):
        annotate(base.replaced({"run": [str(tmp_path / "elsewhere")]}))


def test_rerankers_trained_listwise_are_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The stage stops at the runs, before a worker would start."""
    models = [f"{loss}={write_trained(tmp_path / loss, loss)}" for loss in ("listwise", "pointwise")]
    with pytest.raises(InputError, match="no run has a query that is judged here"):
        annotate(world_of(tmp_path / "world", runs=({"unjudged": [("p1", 1.0)]},), model=models))
    assert "annotate: re-ranker listwise was trained with loss listwise: " in (said := capsys.readouterr().err)
    assert "re-ranker pointwise" not in said


def test_plan_foresees_the_pairs_that_are_scored(tmp_path: Path) -> None:
    base = world_of(tmp_path)
    found = base.forecast(Known())
    assert found.work == {"hits": 4.0 * 50 * 2}  # four judgements of at most as many queries
    assert found.makes[base.output].rows == 4


@pytest.mark.parametrize(
    "given",
    [{"block": 64}, {"token_budget": 9}, {"concurrency": "1,2"}, {"gpus_per_actor": 1}, {"cpus_per_actor": 2}, {"background": True}],
)
def test_what_only_re_rankers_use_is_refused_without_one(given: dict) -> None:
    asked = {"run": ["a"], "corpus": "c", "queries": "q", "qrels": "j", "output": "o"}
    with pytest.raises(InputError, match=f"annotate without model does not use {next(iter(given))}: leave it out"):
        AnnotateSettings.read({**asked, **given})
    AnnotateSettings.read({**asked, **given, "model": ["m"]})
    assert not AnnotateSettings.takes(asked) & given.keys()  # nor has it as a recipe's default
    assert AnnotateSettings.takes({**asked, "model": ["m"]}) >= given.keys()


def test_a_seed_of_no_page_is_refused() -> None:
    asked = {"run": ["a"], "corpus": "c", "queries": "q", "qrels": "j", "output": "o", "review": 0}
    with pytest.raises(InputError, match="review 0 does not use seed: leave it out"):
        AnnotateSettings.read({**asked, "seed": 3})
    assert "seed" not in AnnotateSettings.takes(asked)
    assert "seed" in AnnotateSettings.takes(asked | {"review": 1})
