"""What a plan shows of stages: from the recipe alone, from finished artifacts, and compared with what stages then write."""

import re
import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import faiss
import numpy as np
import pyarrow as pa
import pytest
from embeddings import write_embeddings

from raydense.data.sample import sample as make_sample
from raydense.data.settings import SampleSettings
from raydense.data.store import PassageStore
from raydense.data.tables import commit_table, read_table
from raydense.errors import InputError
from raydense.forecast import PROCESS_BYTES, Holds, Known
from raydense.inference.settings import EncodeSettings, GenerateSettings, SplitSettings
from raydense.mining.mine import mine
from raydense.mining.settings import FilterSettings, MineSettings
from raydense.recipes.content import recipe_file
from raydense.recipes.planning import forecasts_of
from raydense.recipes.recipe import Recipe, plan
from raydense.retrieval.settings import IndexSettings, SearchSettings
from raydense.settings import Settings
from raydense.storage import Artifact, Draft
from raydense.training import forecasts, memory
from raydense.training.batches import Sampler
from raydense.training.examples import read_examples
from raydense.training.loop_settings import LoopSettings
from raydense.training.settings import PretrainSettings, TrainSettings


def needs(recipe: str, output: Path, *changes: str) -> dict[str, str]:
    """What the stages need, the memory of training apart."""
    return {row["stage"]: without_memory(row["needs"]) for row in plan(Recipe.read(recipe_file(recipe), output, changes))}


def needs_of(stages: Iterable[Settings]) -> list[str]:
    return [forecast.needs for forecast in forecasts_of(stages)]


def without_memory(need: str) -> str:
    return re.sub(r", about ([0-9.]+ GiB a worker \(.*\)|[0-9]+ MiB of memory .*)$", "", need)


def test_counts_flow_from_the_sample_to_the_report(tmp_path: Path) -> None:
    assert needs("quickstart", tmp_path, "data.train_queries=1000", "data.passages=2000", "retriever-2.max_steps=7") == {
        "data": "about 2,000 passages and 1,800 queries to make",
        "words": "about 2,000 passages to count words of",
        "bm25": "1,800 queries x 100",
        "negatives-1": "at most 1,000 queries x 8 negatives",
        "retriever-1": "at most 22 steps of 64 queries, 1 worker(s)",
        "vectors-1": "about 2,000 passages to encode",
        "dense-1": "about 2,000 vectors over 1 shard(s)",
        "found-1": "1,800 queries x 100",
        "negatives-2": "at most 1,000 queries x 8 negatives",
        "retriever-2": "7 steps of 64 queries, 1 worker(s)",
        "vectors-2": "about 2,000 passages to encode",
        "dense-2": "about 2,000 vectors over 2 shard(s)",
        "found-2": "1,800 queries x 100",
        "negatives-3": "at most 1,000 queries x 8 negatives",
        "reranker-1": "at most 62 steps of 32 queries, 1 worker(s)",
        "negatives-4": "at most 1,000 queries x 24 negatives",
        "reranker": "at most 124 steps of 32 queries, 1 worker(s)",
        "found-2-test": "at most 500 queries x 100",
        "reranked": "at most 500 queries x 20 pairs to score",
        "report": "4 run(s) over 500 queries",
    }
    assert not list(tmp_path.iterdir())


def test_of_an_import_only_the_import_can_tell(tmp_path: Path) -> None:
    needed = needs("scifact-tiny", tmp_path, "retriever.max_steps=9", f"data.input={tmp_path / 'elsewhere'}")
    assert needed.pop("data") == "what it holds shows when it has run"
    assert needed.pop("retriever") == "9 steps of 32 queries, 1 worker(s)"
    assert set(needed.values()) == {""}


def test_a_split_shows_its_documents_and_about_how_many_passages_they_give(tmp_path: Path) -> None:
    sample = SampleSettings(output=str(tmp_path / "data"), passages=300)
    passages = SplitSettings(output=str(tmp_path / "passages"), corpus=f"{sample.output}/corpus", unit="words")
    words = IndexSettings(output=str(tmp_path / "words"), kind="bm25", corpus=passages.output)
    assert list(needs_of([sample, passages, words]))[1:] == ["about 300 documents to split", "about 300 passages to count words of"]


def test_passages_that_a_filter_leaves_without_a_query_are_not_counted_on(tmp_path: Path) -> None:
    sample = SampleSettings(output=str(tmp_path / "data"), passages=300)
    corpus = f"{sample.output}/corpus"
    generated = GenerateSettings(output=str(tmp_path / "generated"), model="g", corpus=corpus)
    kept = FilterSettings(output=str(tmp_path / "kept"), generated=generated.output, corpus=corpus, index="i", k=7)
    given = {"model": "tiny", "corpus": corpus, "batch_size": 32, "epochs": 2, "output": "e"}
    query = PretrainSettings.read({**given, "method": "cotmae", "context": "query", "generated": kept.output})
    stages = [sample, generated, kept, query, PretrainSettings.read({**given, "method": "mlm"})]
    assert list(map(without_memory, needs_of(stages)))[1:] == [
        "about 300 passages x 5 queries",
        "the queries of about 300 passages x 7",
        "at most 18 steps of 32 passages, 1 worker(s)",
        "about 18 steps of 32 passages, 1 worker(s)",
    ]


def test_the_memory_of_training_is_shown_if_the_start_model_exists(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(forecasts, "_ESTIMATES", {})
    needed = {row["stage"]: row["needs"] for row in plan(Recipe.read(recipe_file("quickstart"), tmp_path))}
    assert re.search(r", 1 worker\(s\), about [01]\.[0-9] GiB a worker \(.*activations.*process\)$", needed["retriever-1"])
    assert "GiB a worker" not in needed["reranker-1"], "it starts from a retriever that is not made yet"
    assert capsys.readouterr().err == "plan: estimates the memory of retriever-1, which takes some seconds\n"


def test_the_memory_of_trainings_that_differ_in_what_needs_none_is_estimated_once(
    tmp_path: Path, tiny_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = tmp_path / "own"
    shutil.copytree(tiny_folder, own)
    given = {"model": str(own), "corpus": "c", "batch_size": 32, "output": "o"}
    monkeypatch.setattr(forecasts, "_ESTIMATES", {})
    estimated: list[LoopSettings] = []
    monkeypatch.setattr(memory, "describe", lambda settings: estimated.append(settings) or (str(len(estimated)), 1))

    def needed(**changes: Any) -> str:
        return next(iter(needs_of([PretrainSettings.read({**given, "method": "mlm", **changes})])))

    assert [needed(), needed(seed=1), needed(lr=0.1), needed(epochs=3), needed(corpus="d"), needed(output="p")] == ["1"] * 6
    changes: list[dict[str, Any]] = [{"passage_length": 40}, {"engine": {"name": "ddp"}}, {"model": str(tiny_folder)}, {"micro_batch": 4}]
    assert [needed(**change) for change in changes] == ["2", "3", "4", "5"]
    (own / "another").touch()
    assert needed() == "6", "the model's folder changed"


def test_fewer_examples_than_a_batch(tmp_path: Path) -> None:
    assert needs("quickstart", tmp_path, "data.train_queries=50")["retriever-1"] == "at most 50 examples, fewer than one batch of 64"


def write_run(folder: Path, queries: pa.Table, store: PassageStore, depth: int) -> None:
    """A run that gives each query the first passages of the corpus, with no count of its queries, as an imported one."""
    draft = Draft.open(folder, "run", {"test": depth})
    ids = store.take(np.arange(depth), ["passage_id"])["passage_id"].to_pylist() * queries.num_rows
    ranks = np.tile(np.arange(1, depth + 1), queries.num_rows)
    asked = np.repeat(queries["query_id"].to_numpy(zero_copy_only=False), depth)
    commit_table(draft, "run.parquet", pa.table({"query_id": asked, "passage_id": ids, "rank": ranks, "score": -ranks.astype(float)}))
    draft.finish(len(ids))


def test_the_plan_holds_for_what_is_made(tmp_path: Path) -> None:
    data = tmp_path / "data"
    inputs = {"corpus": str(data / "corpus"), "queries": str(data / "queries")}
    wanted: dict[str, int] = {"passages": 300, "train_queries": 90, "dev_queries": 10, "test_queries": 20}
    sample = SampleSettings(output=str(data), **wanted)  # type: ignore[arg-type]
    mining = MineSettings(output=str(tmp_path / "ex"), run=str(tmp_path / "run"), qrels=str(data / "qrels/train"), **inputs)
    training = {"output": str(tmp_path / "m"), "objective": "retriever", "model": "tiny", "examples": mining.output, **inputs}
    train = TrainSettings.read({**training, "batch_size": 8, "epochs": 2.5})
    encode = EncodeSettings(output=str(tmp_path / "v"), model=train.output, corpus=inputs["corpus"])
    stages: list[Settings] = [sample, mining, train, encode]
    assert list(map(without_memory, needs_of(stages))) == [
        "about 300 passages and 120 queries to make",
        "at most 90 queries x 8 negatives",
        "at most 27 steps of 8 queries, 1 worker(s)",
        "about 300 passages to encode",
    ]

    make_sample(sample)
    store, queries = PassageStore(inputs["corpus"]), read_table(inputs["queries"], "queries")
    assert queries.num_rows == 120
    write_run(tmp_path / "run", queries.slice(0, 60), store, depth=20)
    found = mine(mining)
    assert found.rows <= 90
    sampler = Sampler(read_examples(found.path, queries, store, train.negatives), train)
    steps = sampler.steps(train.epochs, train.max_steps)
    assert steps < 27
    judged: Any = Artifact.open(data / "qrels/train").rows
    assert list(map(without_memory, needs_of(stages)))[1:] == [
        f"at most {min(120, judged)} queries x 8 negatives",
        f"{steps} steps of 8 queries, 1 worker(s)",
        f"{len(store)} passages to encode",
    ]


@pytest.mark.parametrize(("factory", "dtype"), [("Flat", np.float16), ("Flat", np.float32), ("SQfp16", np.float32), ("SQ8", np.float16)])
def test_the_memory_of_an_index_is_that_of_faiss(tmp_path: Path, factory: str, dtype: type) -> None:
    vectors = np.random.default_rng(0).standard_normal((30_000, 64)).astype(dtype)
    write_embeddings(tmp_path / "v", vectors)
    index = faiss.index_factory(64, factory, faiss.METRIC_INNER_PRODUCT)
    index.train(vectors.astype(np.float32))
    index.add(vectors.astype(np.float32))
    size = round(len(faiss.serialize_index(index)) / 2**20)
    settings = IndexSettings(kind="faiss", embeddings=str(tmp_path / "v"), factory=factory, output=str(tmp_path / "i"))
    [needed] = needs_of([settings])
    assert needed.startswith(f"30,000 vectors over 1 shard(s), about {size} MiB of memory and as much disk, ")
    assert re.search(r", [0-9]{3} MiB for each task that fills one$", needed)


def test_the_shards_of_an_index_follow_from_its_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_embeddings(tmp_path / "v", np.zeros((30_000, 64), np.float16))
    monkeypatch.setattr("raydense.retrieval.sharding.SHARD_BYTES", 2**20)
    given = {"kind": "faiss", "embeddings": str(tmp_path / "v"), "output": str(tmp_path / "i")}
    shards = {factory: needs_of([IndexSettings.read({**given, "factory": factory})])[0] for factory in ("Flat", "SQ8", "RaBitQ")}
    assert {factory: int(need.split()[3]) for factory, need in shards.items()} == {"Flat": 8, "SQ8": 2, "RaBitQ": 1}


def test_a_search_of_several_indexes_shows_the_memory_of_the_largest(tmp_path: Path) -> None:
    Draft.open(tmp_path / "queries", "queries", {}).finish(100)
    for name, size in (("small", 2**20), ("large", 3 * 2**20)):
        draft = Draft.open(tmp_path / name, "index", {})
        draft.commit("shard-00000.bin", lambda path, size=size: path.write_bytes(bytes(size)), 1)
        draft.finish(1, kind="bm25", shards=[[0, 1]])
    given = {"queries": str(tmp_path / "queries"), "output": "o"}
    names = [f"{name}={tmp_path / name}" for name in ("small", "large")]
    several, large, unknown = forecasts_of(SearchSettings(**given, index=one) for one in (names, names[1], [*names, "later"]))
    assert several.needs == "100 queries x 100, of 2 indexes"
    assert several.memory == large.memory > 3 * 2**20
    assert unknown.memory == 0


@pytest.mark.parametrize(("shards", "expected"), [(8, 8), (0, 31)])
def test_a_process_of_a_search_holds_one_shard(shards: int, expected: int) -> None:
    """Of 21 million passages of 768 numbers, or as many bytes of text."""
    known = Known()
    rows = 21_015_324
    known.expect({"q": Holds(100, each=40), "v": Holds(rows, each=768), "c": Holds(rows, each=3072), "g": Holds(100, each=40)})
    index = {
        "faiss": IndexSettings(kind="faiss", embeddings="v", shards=shards, output="faiss"),
        "bm25": IndexSettings(kind="bm25", corpus="c", shards=shards, output="bm25"),
    }
    for kind, settings in index.items():
        known.expect(made := settings.forecast(known).makes)
        shard = made[kind].bytes / expected
        search = SearchSettings(index=kind, queries="q", output="o").forecast(known)
        found = FilterSettings(generated="g", corpus="c", index=kind, output="o").forecast(known)
        assert search.memory == pytest.approx(PROCESS_BYTES + shard)
        assert found.memory == pytest.approx(PROCESS_BYTES + shard)


def test_a_process_of_a_search_holds_one_shard_of_an_index_that_is_there(tmp_path: Path) -> None:
    Draft.open(tmp_path / "queries", "queries", {}).finish(100)
    draft = Draft.open(tmp_path / "index", "index", {})
    for shard in range(4):
        draft.commit(f"shard-{shard:05d}.bin", lambda path: path.write_bytes(bytes(2**20)), 1)
    draft.finish(4, kind="bm25", shards=[[0, 1], [1, 2], [2, 3], [3, 4]])
    [search] = forecasts_of([SearchSettings(index=str(tmp_path / "index"), queries=str(tmp_path / "queries"), output="o")])
    assert search.memory == PROCESS_BYTES + 2**20


def test_a_search_on_gpus_shows_their_memory(tmp_path: Path) -> None:
    """A million vectors of 768 in float16, in two shards of two actors: 1.5 GB each, CUDA and FAISS's temporary memory."""
    Draft.open(tmp_path / "queries", "queries", {}).finish(100)
    shards = [[0, 500_000], [500_000, 1_000_000]]
    made = {"kind": "faiss", "factory": "Flat", "dimension": 768, "dtype": "float16", "shards": shards}
    given = {
        "index": str(tmp_path / "flat"),
        "queries": str(tmp_path / "queries"),
        "model": "m",
        "output": "o",
        "gpu": True,
        "shard_replicas": 2,
    }
    assert needs_of([SearchSettings(**given)])[0] == "100 queries x 100"
    Draft.open(tmp_path / "flat", "index", {}).finish(0, **made)
    assert needs_of([SearchSettings(**given)])[0] == "100 queries x 100, about 10.9 GiB of GPU memory in 4 actors"
    Draft.open(tmp_path / "graph", "index", {}).finish(0, **{**made, "factory": "HNSW32"})
    with pytest.raises(InputError, match="FAISS has no HNSW32 for GPUs"):
        needs_of([SearchSettings(**{**given, "index": str(tmp_path / "graph")})])
