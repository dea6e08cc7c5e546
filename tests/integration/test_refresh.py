"""Training with hard negatives that are mined again while it runs: which step learns from which generation, and what a generation holds."""

from __future__ import annotations

import re
import shutil
import sys
import threading
from collections.abc import Collection
from pathlib import Path
from typing import Any

import forked
import numpy as np
import pyarrow as pa
import pytest
import ray
import torch
from inference_world import make_reranker, score_error
from mining_world import write_table
from sentence_transformers import SentenceTransformer
from training_data import TrainingData, make_training_data

from raydense.data.store import PassageStore
from raydense.data.tables import read_table
from raydense.errors import InputError, StorageError
from raydense.models.cross_encoder import CrossEncoder
from raydense.models.tiny import make_tiny_encoder
from raydense.refresh import training_pool
from raydense.refresh.generation import make_generation
from raydense.refresh.train import train
from raydense.refresh.training_pool import TrainingPool
from raydense.retrieval import faiss_plan, sharding
from raydense.retrieval.index import index as bm25
from raydense.retrieval.memory import PROCESS_BYTES, plan_memory
from raydense.retrieval.named import close_pool, pools
from raydense.retrieval.pool import SearchPool
from raydense.retrieval.settings import IndexSettings
from raydense.runtime.ray_internals import actors_of
from raydense.storage import Artifact, Place, fingerprint_of
from raydense.training.capacity import refresh_actors
from raydense.training.fit import fit
from raydense.training.generations import Generations
from raydense.training.history import Line, read_history
from raydense.training.method import load_model
from raydense.training.settings import TrainSettings
from tests.s3_server import BUCKET, environment, with_environment

pytestmark = pytest.mark.usefixtures("ray_cluster")

STEPS, EVERY, DEPTH = 24, 8, 20
RUN = """
import json, sys
from raydense.refresh.train import train
from raydense.training.settings import TrainSettings
train(TrainSettings(**json.loads(sys.argv[1])))
"""


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> TrainingData:
    return make_training_data(tmp_path_factory.mktemp("refresh"))


def settings_of(data: TrainingData, output: Place, **changes: Any) -> TrainSettings:
    return data.settings(output, **{"max_steps": STEPS, "log_every": 1, "normalize": True, "temperature": 0.2, "lr": 1e-4, **changes})


def renewing(data: TrainingData, output: Place, **changes: Any) -> TrainSettings:
    own = {
        key: changes.pop(key) for key in ("mode", "only_changed", "fraction", "factory", "shards", "every", "max_score") if key in changes
    }
    return settings_of(data, output, refresh={"every": EVERY, "depth": DEPTH, "negatives": 3, **own}, **changes)


class Kept(Generations):
    """Generations whose phases stay where they were made."""

    def close(self, number: int, kept: Collection[str] = ()) -> None:
        shutil.copytree(self.work(number), Path(self.output).parent / f"phases-{number}")
        super().close(number, kept)


@pytest.fixture(scope="module")
def waited(data: TrainingData, tmp_path_factory: pytest.TempPathFactory) -> Artifact:
    """A training in mode sync; the phases of each generation are next to it."""

    with TrainingPool() as pool:

        def make(settings: Any, start: Any, generations: Generations, number: int) -> None:
            make_generation(pool, settings, start, Kept(**vars(generations)), number)

        return fit(renewing(data, tmp_path_factory.mktemp("sync") / "model", max_score=2.0), make)


def column(history: list[Line], name: str) -> list[float]:
    return [line[name] for line in history]


def negatives(examples: Place) -> dict[str, list[int]]:
    table = read_table(examples, "examples", ["query_id", "negatives"])
    return dict(zip(table["query_id"].to_pylist(), table["negatives"].to_pylist(), strict=True))


def of_rank(run: Path) -> dict[tuple[str, str], int]:
    """The rank of each passage of each query."""
    table = read_table(run, "run").to_pydict()
    return dict(zip(zip(table["query_id"], table["passage_id"], strict=True), table["rank"], strict=True))


def ask(folder: Path, data: TrainingData, answer: str | None) -> str:
    """The queries, where those of the examples have this answer; the others keep theirs."""
    rows = read_table(data.root / "sample/queries", "queries").to_pylist()
    asked = [row | ({"answers": answer and [answer]} if row["query_id"].startswith("train") else {}) for row in rows]
    write_table(folder, "queries", [pa.Table.from_pylist(asked)])
    return str(folder)


def first_generation(data: TrainingData, root: Path, start: Path, **changes: Any) -> Artifact:
    """Of the weights of `start`, a folder that is made here; its phases are in `root`/phases-1."""
    settings, generations = settings_of(data, root / "model", **changes), Kept(Place.of(root / "model"), EVERY + 1, EVERY)
    generations.hand_over(EVERY, load_model(settings, str(start)).state_dict())
    with TrainingPool() as pool:
        make_generation(pool, settings, str(start), generations, 1)
    return Artifact.open(generations.examples(1), "examples")


def test_the_steps_after_a_boundary_learn_from_the_generation_made_there(waited: Artifact) -> None:
    history = read_history(waited.path / "history.jsonl")
    assert column(history, "step") == list(range(1, STEPS + 1))
    assert column(history, "generation") == [0] * EVERY + [1] * EVERY + [2] * EVERY
    assert column(history, "staleness") == [*range(EVERY)] * 3
    assert [one["step"] for one in waited.summary["generations"]] == [EVERY, 2 * EVERY]
    assert [one["queries"] for one in waited.summary["generations"]] == [96, 96]
    assert 0 < waited.summary["waited"] < waited.summary["seconds"]


def test_the_new_negatives_are_what_the_weights_of_the_boundary_find(data: TrainingData, waited: Artifact) -> None:
    """Against sentence-transformers, a plain matrix product and a plain sort."""
    store, queries = PassageStore(data.root / "sample/corpus"), read_table(data.root / "sample/queries", "queries")
    positives = read_table(data.root / "examples", "examples", ["query_id", "positives"]).to_pydict()
    for number in (1, 2):
        theirs = SentenceTransformer(str(waited.path.parent / f"phases-{number}/retriever"), device="cpu")
        passages = theirs.encode(store.passages(np.arange(len(store))))
        found = negatives(waited.path / f"refresh/{number:03d}")
        mined = Artifact.open(waited.path.parent / f"phases-{number}/negatives", "examples")
        assert mined.manifest["made_from"]["settings"]["max_score"] == 2.0
        inside = []
        for query, known in zip(positives["query_id"], positives["positives"], strict=True):
            text = queries["text"][queries["query_id"].to_pylist().index(query)].as_py()
            nearest = np.argsort(-(passages @ theirs.encode(text)), kind="stable")[:DEPTH]
            assert not set(found[query]) & set(known)
            inside.append(np.isin(found[query], nearest).mean())
        assert len(found) == 96
        assert np.mean(inside) > 0.98  # float16 vectors may order the last ones of a list otherwise


def test_a_training_says_what_each_rule_removed_from_the_new_negatives(data: TrainingData, waited: Artifact) -> None:
    ids = PassageStore(data.root / "sample/corpus").ids(np.arange(203)).to_pylist()
    examples = read_table(data.root / "examples", "examples", ["query_id", "positives"]).to_pydict()
    for number, summary in enumerate(waited.summary["generations"], 1):
        ranks = of_rank(waited.path.parent / f"phases-{number}/run")
        known = {(q, ids[row]) for q, rows in zip(examples["query_id"], examples["positives"], strict=True) for row in rows}
        assert summary["candidates"] == len(ranks) == 96 * DEPTH
        assert summary["removed"]["positive"] == len(known & ranks.keys()) > 0
        assert summary["removed"]["max score"] == 0
        made = Artifact.open(waited.path / f"refresh/{number:03d}", "examples")
        assert made.summary == summary


def test_in_mode_async_they_are_taken_a_period_later(
    data: TrainingData, waited: Artifact, tmp_path: Path, joining: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on a cluster, where the tasks of a stage take all cores of a node, but not those that the training holds."""
    monkeypatch.setenv("RAY_ADDRESS", joining["RAY_ADDRESS"])
    later = train(renewing(data, tmp_path / "model", mode="async"))
    history, other = read_history(later.path / "history.jsonl"), read_history(waited.path / "history.jsonl")
    assert column(history, "generation") == [0] * 2 * EVERY + [1] * EVERY
    assert column(history, "staleness") == [*range(2 * EVERY), *range(EVERY, 2 * EVERY)]
    np.testing.assert_allclose(column(history, "loss")[:EVERY], column(other, "loss")[:EVERY], atol=1e-5)
    assert not np.allclose(column(history, "loss")[EVERY : 2 * EVERY], column(other, "loss")[EVERY : 2 * EVERY], atol=1e-4)
    first, same = negatives(later.path / "refresh/001"), negatives(waited.path / "refresh/001")
    assert np.mean([first[query] == same[query] for query in same]) > 0.95


def test_actors_that_find_negatives_leave_the_workers_their_place(
    data: TrainingData, joining: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a cluster's four CPUs; a worker that is lost is started again among them."""
    asked = data.settings("model", workers=2)
    assert refresh_actors(asked) == 0, "on one machine there is one actor"
    monkeypatch.setenv("RAY_ADDRESS", joining["RAY_ADDRESS"])
    assert refresh_actors(asked) == 1
    assert refresh_actors(asked.model_copy(update={"workers": 1})) == 2
    assert refresh_actors(asked.model_copy(update={"workers": 4})) == 1


def test_passages_that_kept_their_rank_stay_what_they_are(data: TrainingData, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two generations of weights that differ a little, the first of weights at random; the index has shards by its size."""
    monkeypatch.setattr(sharding, "SHARD_BYTES", 60_000)
    start = str(tmp_path / "tiny")
    make_tiny_encoder(PassageStore(data.root / "sample/corpus").passages(np.arange(203)), Path(start), 0)
    settings = renewing(data, tmp_path / "model", only_changed=True, shards=0)
    generations, rng = Kept(Place.of(tmp_path / "model"), STEPS, EVERY, keeps_run=True), np.random.default_rng(5)
    weights = load_model(settings, start).state_dict()
    with TrainingPool() as pool:
        for number in (1, 2):
            generations.hand_over(number * EVERY, weights)
            make_generation(pool, settings, start, generations, number)
            weights = {name: one + 0.02 * torch.from_numpy(rng.standard_normal(one.shape)).to(one) for name, one in weights.items()}
    assert not generations.work(1).exists()
    assert len(Artifact.open(tmp_path / "phases-1/index", "index").summary["shards"]) == 2
    ranks = [of_rank(tmp_path / f"phases-{number}/run") for number in (1, 2)]
    ids = PassageStore(data.root / "sample/corpus").ids(np.arange(203)).to_pylist()
    same = {(query, ids.index(passage)) for (query, passage), rank in ranks[1].items() if ranks[0].get((query, passage)) == rank}
    before, after = (negatives(generations.examples(number)) for number in (1, 2))
    stood = {query: [row for row in rows if (query, row) in same] for query, rows in before.items()}
    for query, rows in after.items():
        assert rows[: len(stood[query])] == stood[query]
        assert not any((query, row) in same for row in rows[len(stood[query]) :])
    assert 0 < sum(map(len, stood.values())) < 3 * len(after)


class Watched(TrainingPool):
    """A training's pool, which another caller finds after each generation."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[list[str]] = []

    def make(self, settings: Any, start: Any, generations: Generations, number: int) -> None:
        make_generation(self, settings, start, generations, number)
        self.found.append(pools())
        for name in self.found[-1]:
            index = Artifact.open(generations.work(number) / "index", "index")
            vectors = np.random.default_rng(number).standard_normal((30, index.summary["dimension"])).astype(np.float32)
            answer = SearchPool.connect(name).answer(vectors, DEPTH)
            assert answer.index == index.fingerprint
            with SearchPool.start(index) as alone:
                for here, there in zip(answer.hits, alone.search(vectors, DEPTH), strict=True):
                    np.testing.assert_array_equal(here, there)
            Artifact.open(generations.work(number) / "retriever", "model")  # by which others encode their questions


@pytest.mark.parametrize(
    ("objective", "mode"),
    [
        ("retriever", "async"),
        pytest.param("pair", "sync", marks=pytest.mark.long),
        pytest.param("joint", "async", marks=pytest.mark.long),
    ],
)
def test_one_pool_lives_through_a_training(data: TrainingData, tmp_path: Path, objective: str, mode: str) -> None:
    more = {}
    if objective == "joint":
        make_tiny_encoder(PassageStore(data.root / "sample/corpus").passages(np.arange(203)), tmp_path / "tiny", 0)
        more = {"reranker": str(tmp_path / "tiny"), "model": str(tmp_path / "tiny")}
    steps = 8 if mode == "sync" else 10
    with Watched() as pool:
        made = fit(renewing(data, tmp_path / "model", objective=objective, mode=mode, every=2, max_steps=steps, **more), pool.make)
    first, *later, last = pool.found
    assert len(later) == 1
    assert len(first) == 1
    assert later == [first]
    assert last == pools() == []  # it ends with the last generation
    assert [one["step"] for one in made.summary["generations"]] == [2, 4, 6]
    held = ("ShardActor", "PoolController")
    assert not [one for one in actors_of() if one["ActorClassName"] in held and one["State"] != "DEAD"]
    assert not (tmp_path / "model/.work").exists()


def test_a_pool_that_would_leave_no_memory_for_the_next_index_ends(
    data: TrainingData, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As it ends with the training: also one that a thread is just about to start."""
    index = bm25(IndexSettings(kind="bm25", corpus=str(data.root / "sample/corpus"), output=str(tmp_path / "index")))
    with TrainingPool() as pool:
        pool.on(index, 1, "")
        pool.rest()
        assert pools() == [pool.name]
        (node,) = ray.nodes()
        (needs,) = plan_memory(index, 1).actor_bytes
        monkeypatch.setattr(training_pool, "shard_nodes", lambda gpu: [{**node, "Resources": {"memory": 3.0 * needs - 1}}])
        pool.rest()
        assert pools() == []
        assert pool.name == ""
    with pytest.raises(InputError, match="the training has ended"):
        pool.on(index, 1, "")
    assert pools() == []


def test_another_pool_is_started_where_the_first_one_was_closed(data: TrainingData, tmp_path: Path) -> None:
    index = bm25(IndexSettings(kind="bm25", corpus=str(data.root / "sample/corpus"), output=str(tmp_path / "index")))
    with TrainingPool() as pool:
        first = pool.on(index, 1, "")
        close_pool(first)
        second = pool.on(index, 1, "")
        assert first != second
        assert pools() == [second]
    assert pools() == []


class Interrupted(TrainingPool):
    """A pool whose first end, or first rest, meets a store that is away."""

    def __init__(self) -> None:
        super().__init__()
        self.away = True

    def close(self) -> None:
        if self.away:
            self.away = False
            raise StorageError("away")
        super().close()


def test_the_pool_ends_with_the_last_generation_also_if_that_is_begun_twice(data: TrainingData, tmp_path: Path) -> None:
    start = str(tmp_path / "tiny")
    make_tiny_encoder(PassageStore(data.root / "sample/corpus").passages(np.arange(203)), Path(start), 0)
    settings, generations = renewing(data, tmp_path / "model"), Generations(Place.of(tmp_path / "model"), EVERY + 1, EVERY)
    generations.hand_over(EVERY, load_model(settings, start).state_dict())
    with Interrupted() as pool:
        with pytest.raises(StorageError):
            make_generation(pool, settings, start, generations, generations.last)
        make_generation(pool, settings, start, generations, generations.last)
        assert pools() == []
        assert not generations.work(1).exists()


@pytest.mark.parametrize("by", ["reranker", "skip"])
def test_new_negatives_are_those_that_the_reranker_denies_or_the_ranks_allow(data: TrainingData, tmp_path: Path, by: str) -> None:
    """And that hold no answer. The re-ranker's scores are of one pair at a time; s_neg is the probability of their median over some pairs."""
    store, queries = PassageStore(data.root / "sample/corpus"), read_table(data.root / "sample/queries", "queries")
    start = tmp_path / "tiny"
    make_tiny_encoder(store.passages(np.arange(len(store))), start, 0)
    model = CrossEncoder.load(make_reranker(tmp_path / "reranker", start, steep=True)).eval()
    texts = dict(zip(queries["query_id"].to_pylist(), queries["text"].to_pylist(), strict=True))

    def logit(query: str, row: int) -> float:
        with torch.no_grad():
            pair = model.tokenize_pairs([texts[query]], store.passages(np.array([row]))).pad(model.tokenizer.pad_id)
            return float(model(pair)[0])

    before = read_table(data.root / "examples", "examples", ["query_id", "positives"]).to_pydict()
    some = [(query, row) for query in before["query_id"][:10] for row in range(0, len(store), 7)]
    middle = float(np.median([logit(*pair) for pair in some]))
    own = {"reranker": str(tmp_path / "reranker"), "s_neg": 1 / (1 + float(np.exp(-middle)))} if by == "reranker" else {"skip": 3}
    refresh = {"every": EVERY, "depth": DEPTH, "negatives": 3, "without_answers": "token", **own}
    made = first_generation(data, tmp_path, start, refresh=refresh, queries=ask(tmp_path / "asked", data, "Was"))
    holds_it = {row for row, text in enumerate(store.passages(np.arange(len(store)))) if re.search(r"\bwas\b", text.lower())}
    old, new = negatives(data.root / "examples"), negatives(made.path)
    renewed = [query for query in new if new[query] != old[query]]
    assert made.summary["queries"] == len(renewed) > 40
    ranks = of_rank(tmp_path / "phases-1" / "run")
    for query, positives in zip(before["query_id"], before["positives"], strict=True):
        if query in renewed:
            assert not ({*positives} | holds_it) & {*new[query]}
            of_query = [ranks[query, passage] for passage in store.ids(np.array(new[query])).to_pylist()]
            assert (4 if by == "skip" else 1) <= min(of_query) <= max(of_query) <= DEPTH
            if by == "reranker":
                assert max(logit(query, row) for row in new[query]) < middle + score_error()
    assert made.summary["candidates"] == len(ranks)
    assert 0 < sum(made.summary["removed"].values()) < len(ranks)
    assert made.summary["removed"]["negatives that hold an answer" if by == "reranker" else "holds an answer"] > 40


@pytest.mark.parametrize("margin", [{"absolute_margin": 0.002}, {"relative_margin": 0.004}], ids=lambda margin: next(iter(margin)))
def test_a_margin_is_measured_from_a_positive_among_the_hits(data: TrainingData, tmp_path: Path, margin: dict[str, float]) -> None:
    """From the lowest of several. Without all of them a query keeps the negatives that it had; against a reading in plain Python."""
    store, (name, value) = PassageStore(data.root / "sample/corpus"), *margin.items()
    texts, start = store.passages(np.arange(len(store))), tmp_path / "tiny"
    make_tiny_encoder(texts, start, 0)
    made = first_generation(data, tmp_path, start, refresh={"every": EVERY, "depth": DEPTH, "negatives": 3, **margin})
    old, new = negatives(data.root / "examples"), negatives(made.path)
    hits: dict[str, dict[int, float]] = {query: {} for query in old}
    for hit in read_table(tmp_path / "phases-1/run", "run").to_pylist():
        hits[hit["query_id"]][int(store.rows_of(pa.array([hit["passage_id"]]))[0])] = hit["score"]
    removed, renewed, lacking = 0, 0, 0
    for query, positives in read_table(data.root / "examples", "examples", ["query_id", "positives"]).to_pandas().itertuples(index=False):
        lowest = min(hits[query].get(row, -np.inf) for row in positives)
        most = lowest - (value if name == "absolute_margin" else abs(lowest) * value)
        free = [row for row in hits[query] if texts[row] not in {texts[known] for known in positives}]
        allowed = {row for row in free if hits[query][row] <= most}
        removed += len(free) - len(allowed)
        if lowest == -np.inf:
            lacking += 1
            assert not allowed
        if len(allowed) < 2:  # what a step takes
            assert new[query] == old[query]
        else:
            renewed += 1
            assert len(new[query]) == min(3, len(allowed))
            assert {*new[query]} <= allowed
    assert made.summary["removed"][name.replace("_", " ")] == removed
    assert made.summary["queries"] == renewed
    assert lacking > 10
    assert renewed > 10


@pytest.mark.long
def test_joint_training_with_a_part_of_the_queries_renewed(
    data: TrainingData, port: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its retriever finds them; the queries that were not drawn keep what they had. The model and its generations go to a store."""
    both = {"objective": "joint", "reranker": str(tmp_path / "reranker"), "max_steps": 6, "every": 4, "fraction": 0.25}
    train(settings_of(data, tmp_path / "reranker", objective="reranker", normalize=None, temperature=None, max_steps=2))
    for name, value in environment(port, tmp_path / "cache").items():
        monkeypatch.setenv(name, value)
    model = f"s3://{BUCKET}/model"
    # in a process whose Ray starts with these variables: the workers write there themselves
    command = [sys.executable, "-c", RUN, renewing(data, model, **both).model_dump_json(exclude_unset=True)]
    forked.run(command, env=with_environment({}), timeout=540, check=True)
    made = Artifact.open(model, "joint")
    before, after = negatives(data.root / "examples"), negatives(f"{model}/refresh/001")
    assert fingerprint_of(f"{model}/refresh/001") == Artifact.open(f"{model}/refresh/001", "examples").fingerprint
    assert Artifact.open(f"{model}/retriever", "model").summary["objective"] == "joint"
    assert list(after) == list(before)
    changed = [query for query in before if after[query] != before[query]]
    assert len(changed) <= 24 == made.summary["generations"][0]["queries"]
    assert len(changed) > 12


@pytest.mark.long
def test_an_error_in_a_refresh_ends_the_training(data: TrainingData, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="vectors do not train 'RQ4x8'"):
        train(renewing(data, tmp_path / "model", mode="async", factory="RQ4x8"))  # only FAISS knows how many vectors that needs
    assert not (tmp_path / "model/manifest.json").exists()


@pytest.mark.parametrize(
    ("wrong", "found"),
    [
        ({"factory": "IVF16Flatt"}, r"refresh.factory: FAISS cannot make 'IVF16Flatt'"),
        ({"factory": "PQ7"}, r"refresh.factory: FAISS cannot make 'PQ7'"),
        (
            {"factory": "IVF4096,Flat"},
            r"refresh.factory: 2\d\d vectors do not train 'IVF4096,Flat', which needs 4,096; use fewer lists or bits, or Flat",
        ),
        ({"shards": 300}, r"refresh.shards: 300 shards of 2\d\d vectors; give at most 2"),
        ({"search_params": "efSearch=64"}, r"refresh.search_params: a IndexFlat\w* does not take 'efSearch=64'"),
        ({"reranker": "ENCODER"}, "is no trained re-ranker"),
        ({"qrels": "QRELS"}, "names passage 'of another corpus', which the corpus .* does not have"),
        ({"without_answers": "token"}, "no query has an answer; give queries with answers, or leave refresh.without_answers out"),
    ],
)
def test_what_a_refresh_cannot_use_is_refused_before_the_first_step(
    wrong: dict[str, Any], found: str, data: TrainingData, tmp_path: Path
) -> None:
    make_tiny_encoder(["a few words", "and some more"], tmp_path / "encoder", 1)
    write_table(tmp_path / "qrels", "qrels", [pa.table({"query_id": ["q"], "passage_id": ["of another corpus"], "relevance": [1]})])
    here = {"ENCODER": str(tmp_path / "encoder"), "QRELS": str(tmp_path / "qrels")}
    given = {key: here.get(value, value) for key, value in wrong.items()}
    refresh, queries = {"every": EVERY, "depth": DEPTH, "negatives": 3, **given}, ask(tmp_path / "asked", data, None)
    asked = settings_of(data, tmp_path / "model", refresh=refresh, model=str(tmp_path / "encoder"), queries=queries)
    with pytest.raises(InputError, match=found):
        train(asked)
    assert not (tmp_path / "model").exists()


def test_an_index_that_these_machines_could_not_make_or_keep_is_refused_before_the_first_step(
    data: TrainingData, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = renewing(data, tmp_path / "model")
    with monkeypatch.context() as small:  # for the vectors that a task has in work
        node = {"Resources": {"memory": PROCESS_BYTES + 500_000, "CPU": 2}}
        small.setattr(faiss_plan, "shard_nodes", lambda gpu: [node] * 2)
        with pytest.raises(
            InputError, match=r"^index: a task of an index Flat of 2\d\d x 128 in 1 shard needs .*; --refresh.shards 2 or"
        ) as found:
            train(asked)
    assert "skip_memory_check" not in str(found.value)
    with monkeypatch.context() as full:
        full.setattr(faiss_plan.shutil, "disk_usage", lambda folder: type("Usage", (), {"free": 1_000}))
        with pytest.raises(InputError, match=r"an index Flat of 2\d\d x 128 in 1 shard needs .* of disk"):
            train(asked)
    assert not (tmp_path / "model").exists()


def test_of_a_model_that_does_not_say_its_width_what_needs_none_is_checked(data: TrainingData, tmp_path: Path) -> None:
    (tmp_path / "unknown").mkdir()
    refresh = {"every": EVERY, "shards": 300}
    with pytest.raises(InputError, match="300 shards"):
        train(settings_of(data, tmp_path / "model", refresh=refresh, model=str(tmp_path / "unknown")))


def test_a_training_that_leaves_no_cpus_for_its_refresh_is_refused(data: TrainingData, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"4 workers x 1 CPU, and 1.5 for what finds negatives meanwhile, is more than the 4 here"):
        train(renewing(data, tmp_path / "model", mode="async", workers=4))


def test_a_training_that_ends_early_leaves_no_generation_in_the_making(data: TrainingData, tmp_path: Path) -> None:
    """By steps so small that the dev metric never rises: it ends after 4, and the negatives of step 3 would be learned from after 6."""
    dev = {"qrels": str(data.root / "sample/qrels/dev"), "passages": 100, "every": 2, "patience": 2}
    made = train(renewing(data, tmp_path / "model", mode="async", every=3, lr=1e-12, dev=dev))
    assert made.summary["steps"] == 4
    assert not [thread for thread in threading.enumerate() if thread.name == "refresh"]
    assert pools() == []
    assert not (tmp_path / "model/.work").exists()
