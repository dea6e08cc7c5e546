"""Which generation of negatives each step learns from; what a generation keeps of the one before; settings that do not go together."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from training_data import TrainingData, make_training_data, write_examples

from raydense.data.store import PassageStore
from raydense.data.tables import commit_table, read_table
from raydense.errors import InputError
from raydense.refresh.generation import _positives, _renewed
from raydense.storage import Artifact, Draft, Place
from raydense.training.batches import Sampler
from raydense.training.examples import Examples
from raydense.training.generations import Generations
from raydense.training.ragged import Ragged
from raydense.training.settings import RefreshSettings, TrainSettings, refresh_of


@given(steps=st.integers(1, 300), every=st.integers(1, 80), behind=st.integers(0, 1))
def test_generations_come_in_order_and_are_as_old_as_their_mode_allows(steps: int, every: int, behind: int) -> None:
    generations = Generations(Place.of("out"), steps, every, behind)
    at = [generations.at(step) for step in range(steps)]
    assert at[0] == 0
    assert all(later - earlier in (0, 1) for earlier, later in itertools.pairwise(at))
    for step, number in enumerate(at):
        if number:
            assert behind * every <= step - generations.made_of(number) < (behind + 1) * every
            assert generations.boundary(generations.made_of(number))
    assert list(range(1, generations.last + 1)) == sorted(set(at) - {0})
    assert sum(generations.boundary(step) for step in range(steps + 1)) == generations.last
    for step in range(steps):  # within a stretch no step learns from another generation
        assert len({at[inside] for inside in range(step, generations.end(step))}) == 1


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> TrainingData:
    return make_training_data(tmp_path_factory.mktemp("generations"))


def settings_of(data: TrainingData, **changes: Any) -> tuple[TrainSettings, RefreshSettings]:
    settings = data.settings(Path("out"), refresh={"every": 5, **changes})
    refresh = refresh_of(settings)
    assert refresh is not None
    return settings, refresh


def test_queries_with_too_few_new_negatives_keep_theirs(data: TrainingData, tmp_path: Path) -> None:
    before = read_table(data.root / "examples", "examples").to_pydict()
    ids = before["query_id"]
    # the last one first: the order of the new ones is not that of the examples
    mined = write_examples(tmp_path / "mined", [ids[9], ids[2], ids[5]], [[0]] * 3, [[7, 8, 9], [6], [1, 2]], candidates=6, removed={})
    model = Draft.open(tmp_path / "model", "model", {})
    none = np.zeros(sum(map(len, before["negatives"])), dtype=bool)
    made = _renewed(*settings_of(data), str(data.root / "examples"), mined, none, model.finish(0), 5, tmp_path / "made")
    after = read_table(made.path, "examples").to_pydict()
    assert after["query_id"] == ids
    assert after["positives"] == before["positives"]
    wanted = list(before["negatives"])
    wanted[9], wanted[5] = [7, 8, 9], [1, 2]
    assert after["negatives"] == wanted
    fresh = set(zip([9] * 3 + [5] * 2, [7, 8, 9, 1, 2], strict=True))
    old = {(q, row) for q in (9, 5) for row in before["negatives"][q]}
    assert made.summary["queries"] == 2
    assert made.summary["new"] == pytest.approx(len(fresh - old) / len(fresh), abs=1e-4)


@pytest.mark.parametrize(
    ("summary", "candidates", "removed"),
    [
        ({"candidates": 40, "removed": {"skipped rank": 3, "absolute margin": 7}}, 40, {"skipped rank": 3, "absolute margin": 7}),
        (
            {"candidates": {"gold positives": 4, "confident negatives": 9, "between the thresholds": 2}},
            15,
            {"gold positives": 4, "between the thresholds": 2},
        ),
    ],
)
def test_a_generation_says_what_its_margins_or_its_re_ranker_removed(
    data: TrainingData, tmp_path: Path, summary: dict[str, Any], candidates: int, removed: dict[str, int]
) -> None:
    """As `mine` counts it, or `label`: their folders go when the generation is made."""
    query = read_table(data.root / "examples", "examples")["query_id"][3].as_py()
    mined = write_examples(tmp_path / "mined", [query], [[0]], [[7, 8]], **summary)
    none = np.zeros(sum(map(len, read_table(data.root / "examples", "examples")["negatives"].to_pylist())), dtype=bool)
    model = Draft.open(tmp_path / "model", "model", {}).finish(0)
    made = _renewed(*settings_of(data), str(data.root / "examples"), mined, none, model, 5, tmp_path / "made")
    assert made.summary["candidates"] == candidates
    assert made.summary["removed"] == removed
    alone = _renewed(*settings_of(data), str(data.root / "examples"), None, none, model, 5, tmp_path / "alone")
    assert (alone.summary["candidates"], alone.summary["removed"]) == (0, {})


def test_a_fraction_of_the_queries_is_drawn_again_each_time(data: TrainingData, tmp_path: Path) -> None:
    settings, drawn = settings_of(data, fraction=0.25, qrels=str(data.root / "sample/qrels/dev")), []
    for number in (1, 2):
        known = _positives(*settings, str(data.root / "examples"), number, tmp_path / str(number))
        drawn.append(set(read_table(known.path, "qrels")["query_id"].to_pylist()))
        assert len(drawn[-1]) == known.summary["queries"] == 24
    assert drawn[0] != drawn[1]


def test_a_query_is_drawn_with_the_positives_of_all_its_examples(data: TrainingData, tmp_path: Path) -> None:
    ids = read_table(data.root / "examples", "examples")["query_id"].to_pylist()[:20]
    write_examples(tmp_path / "examples", [*ids, *ids], [[row] for row in range(40)], [[50]] * 40)
    known = _positives(*settings_of(data, fraction=0.5), str(tmp_path / "examples"), 1, tmp_path / "known")
    found = read_table(known.path, "qrels").to_pydict()
    rows = PassageStore(data.root / "sample/corpus").rows_of(pa.array(found["passage_id"]))
    drawn = set(found["query_id"])
    assert len(drawn) == 10
    assert set(zip(found["query_id"], rows, strict=True)) == {(ids[row % 20], row) for row in range(40) if ids[row % 20] in drawn}


def test_positives_of_both_sources_are_known(data: TrainingData, tmp_path: Path) -> None:
    examples = read_table(data.root / "examples", "examples").to_pydict()
    more = Draft.open(tmp_path / "more", "qrels", {})
    store = PassageStore(data.root / "sample/corpus")
    row = next(row for row in range(len(store)) if row not in examples["positives"][3])
    judged = {"query_id": [examples["query_id"][3], "nobody"], "passage_id": store.ids(np.array([row, row])), "relevance": [1, 1]}
    commit_table(more, "qrels.parquet", pa.table(judged))
    more.finish(2)
    known = _positives(*settings_of(data, qrels=str(tmp_path / "more")), str(data.root / "examples"), 1, tmp_path / "known")
    found = read_table(known.path, "qrels").to_pydict()
    of_query = {
        store.rows_of(pa.array([p]))[0] for q, p in zip(found["query_id"], found["passage_id"], strict=True) if q == judged["query_id"][0]
    }
    assert of_query == {*examples["positives"][3], row}
    assert "nobody" not in found["query_id"]
    assert Artifact.open(known.path).kind == "qrels"


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"refresh": {"mode": "async"}}, "refresh.every: missing"),
        ({"refresh": {"every": 2.5}}, "2.5 steps is not a whole number"),
        ({"refresh": {"every": 5, "negatives": 1}, "negatives": 2}, "1 <= negatives <= refresh.negatives"),
        ({"refresh": {"every": 5}, "negatives": 0}, "1 <= negatives <= refresh.negatives"),
        ({"refresh": {"every": 5, "skip": 30, "depth": 30}}, "leaves nothing of refresh.depth 30"),
        (
            {"negatives": 4, "refresh": {"every": 5, "skip": 2, "depth": 5}},
            "leaves 3 ranks, fewer than negatives 4: no query would get new",
        ),
        (
            {"negatives": 4, "refresh": {"every": 5, "only_changed": True, "depth": 3}},
            "depth 3 is below negatives 4: no query would get new",
        ),
        ({"refresh": {"every": 5, "s_neg": 0.2}}, "without reranker does not use s_neg"),
        ({"refresh": {"every": 5}, "objective": "reranker"}, "objective reranker does not use refresh"),
        ({"refresh": {"every": 5, "only_changed": True, "fraction": 0.5}}, "compares the ranks of all queries, does not use"),
        ({"refresh": {"every": 5, "only_changed": True, "max_score": 1}}, "whose hits lack the positives, does not use max_score"),
        ({"refresh": {"every": 5, "reranker": "r", "relative_margin": 0.1}}, "refresh with reranker does not use relative_margin"),
    ],
)
def test_refused(given: dict[str, Any], words: str) -> None:
    needed = {"output": "o", "objective": "retriever", "model": "tiny", "corpus": "c", "queries": "q", "examples": "e"}
    with pytest.raises(InputError, match=words):
        TrainSettings.read({**needed, **given})


def test_a_negative_that_stands_may_be_of_a_rank_that_is_skipped(data: TrainingData) -> None:
    given = data.settings(Path("out"), negatives=4, refresh={"every": 5, "only_changed": True, "skip": 2, "depth": 4})
    assert given.shaping()["refresh.skip"] == 2


def test_without_refresh_the_fingerprint_knows_nothing_of_it(data: TrainingData) -> None:
    assert not [name for name in data.settings(Path("out")).shaping() if name.startswith("refresh")]
    assert settings_of(data)[0].shaping()["refresh.mode"] == "sync"
    assert "refresh.only_changed" not in settings_of(data)[0].shaping()
    assert settings_of(data, only_changed=True)[0].shaping()["refresh.only_changed"]


@pytest.mark.parametrize(("mode", "steps", "first"), [("sync", 5, 5), ("async", 10, 10)])
def test_a_training_that_ends_before_it_would_learn_from_new_negatives_is_refused(
    data: TrainingData, mode: str, steps: int, first: int
) -> None:
    examples = Examples(np.arange(64), Ragged(np.arange(64), np.arange(65)), Ragged(np.arange(64), np.arange(65)))
    settings, _ = settings_of(data, mode=mode)
    with pytest.raises(InputError, match=f"{steps} steps end before new negatives would be learned from, at step {first} in mode {mode}"):
        Generations.of(settings, Sampler(examples, settings), steps, Place.of("out"))
    assert Generations.of(settings, Sampler(examples, settings), steps + 1, Place.of("out")).last == 1


@pytest.mark.parametrize("keeps", [False, True])
def test_what_a_kill_left_of_generations_that_are_made_goes(tmp_path: Path, keeps: bool) -> None:
    generations = Generations(Place.of(tmp_path), 20, 5, keeps_run=keeps)
    for number in (1, 2):
        for phase in ("run", "vectors"):
            Path(generations.work(number) / phase).mkdir(parents=True)
        generations.weights(number).touch()
        Draft.open(generations.examples(number), "examples", {}).finish(0)
    generations.begin()
    left = {str(path.relative_to(tmp_path)) for path in (tmp_path / ".work").rglob("*")}
    assert left == {".work/refresh"} | ({".work/refresh/002", ".work/refresh/002/run"} if keeps else set())


@pytest.mark.parametrize("keeps", [False, True])
def test_what_a_pool_serves_stays_until_the_next_generation(tmp_path: Path, keeps: bool) -> None:
    generations = Generations(Place.of(tmp_path), 20, 5, keeps_run=keeps)
    run = {"run"} if keeps else set()
    for number, kept, left in ((1, ("index",), {"index"}), (2, ("index",), {"index"}), (3, (), set())):
        for phase in ("run", "vectors", "index"):
            Path(generations.work(number) / phase).mkdir(parents=True)
        generations.close(number, kept)
        folders = {str(path.relative_to(tmp_path / ".work/refresh")) for path in (tmp_path / ".work/refresh").glob("*/*")}
        assert folders == {f"{number:03d}/{phase}" for phase in left | run}
