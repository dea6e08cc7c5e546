"""The stage `search` with a real encoder: the run it writes, what it refuses, and how it continues after a stop."""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from embeddings import write_embeddings
from inference_world import WORDS, write_table

import raydense.retrieval.search as searching
from raydense.data.tables import commit_table
from raydense.errors import InputError
from raydense.inference.encode import encode
from raydense.inference.query_encoder import query_encoder
from raydense.inference.settings import EncodeSettings
from raydense.models.tiny import make_tiny_encoder
from raydense.retrieval.index import index
from raydense.retrieval.pool import SearchPool
from raydense.retrieval.search import search
from raydense.retrieval.settings import IndexSettings, SearchSettings
from raydense.storage import Draft, fingerprint_of, provenance

pytestmark = pytest.mark.usefixtures("ray_cluster")

TEXTS = [" ".join(WORDS[(i * 7 + j * j) % len(WORDS)] for j in range(1 + i % 9)) for i in range(60)]


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny encoder, its vectors of 60 passages (the first 50 are queries too), an index of 2 shards, and qrels of 3 queries."""
    folder = tmp_path_factory.mktemp("search")
    make_tiny_encoder(TEXTS, folder / "model", seed=3)
    make_tiny_encoder(TEXTS, folder / "other", seed=4)
    vectors = query_encoder(str(folder / "model"))(TEXTS)
    write_embeddings(folder / "embeddings", vectors, model=fingerprint_of(folder / "model"))
    index(IndexSettings(kind="faiss", embeddings=str(folder / "embeddings"), shards=2, output=str(folder / "index")))
    tables = {
        "queries": {"query_id": [f"q{i}" for i in range(50)], "text": TEXTS[:50]},
        "qrels": {"query_id": ["q7", "q3", "q3", "q40"], "passage_id": ["p1", "p2", "p3", "p4"], "relevance": [1, 1, 0, 1]},
    }
    for kind, columns in tables.items():
        draft = Draft.open(folder / kind, kind, {})
        commit_table(draft, f"{kind}.parquet", pa.table(columns))
        draft.finish(len(columns["query_id"]))
    return folder


def settings(root: Path, output: Path, **more: object) -> SearchSettings:
    given = {"index": str(root / "index"), "queries": str(root / "queries"), "model": str(root / "model"), "output": str(output), **more}
    return SearchSettings.model_validate(given)


def read(artifact_folder: Path) -> pa.Table:
    return pa.concat_tables([pq.read_table(p) for p in sorted(artifact_folder.glob("run-*.parquet"))])


def test_run_names_the_nearest_passages_and_none_that_is_not_there(root: Path, tmp_path: Path) -> None:
    run = search(settings(root, tmp_path / "run", k=100, block=16))
    table = read(tmp_path / "run")
    assert run.rows == len(table) == 50 * 60
    assert search(settings(root, tmp_path / "all", k=10**9)).rows == run.rows, "k beyond the passages there are takes no memory"
    assert [len(pq.read_table(p)) for p in run.parts(".parquet")] == [960, 960, 960, 120]
    vectors = query_encoder(str(root / "model"))(TEXTS).astype(np.float64)
    assert run.summary["dimension"] == vectors.shape[1]
    true = vectors[:50] @ vectors.T
    scores = table["score"].to_numpy().reshape(50, 60)
    rows = np.array([int(p[1:]) for p in table["passage_id"].to_pylist()]).reshape(50, 60)
    assert table["query_id"].to_pylist() == [f"q{i}" for i in range(50) for _ in range(60)]
    assert table["rank"].to_pylist() == list(range(1, 61)) * 50
    assert (np.sort(rows, axis=1) == np.arange(60)).all()
    np.testing.assert_allclose(scores, np.take_along_axis(true, rows, axis=1), rtol=1e-4, atol=1e-4)
    assert (np.diff(scores, axis=1) <= 0).all()
    assert (np.diff(rows, axis=1)[np.diff(scores, axis=1) == 0] > 0).all()


def test_qrels_choose_the_queries(root: Path, tmp_path: Path) -> None:
    search(settings(root, tmp_path / "run", k=2, qrels=str(root / "qrels")))
    assert read(tmp_path / "run")["query_id"].to_pylist() == ["q3", "q3", "q7", "q7", "q40", "q40"]


def test_a_stopped_run_goes_on_with_the_blocks_that_are_missing(root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two of four blocks are there: the second run searches the rest only, and another `block` is refused."""
    whole = search(settings(root, tmp_path / "whole", k=5, block=16))
    stopped = Draft.open(tmp_path / "run", "run", provenance("search", settings(root, tmp_path / "run", k=5, block=16)))
    for path in whole.parts(".parquet")[:2]:
        commit_table(stopped, path.name, pq.read_table(path))
    stopped.close()
    searched = []
    blocks = SearchPool.answers

    def counted(pool: SearchPool, stream: Iterator[np.ndarray], k: int) -> Iterator[object]:
        for answer in blocks(pool, stream, k):
            searched.append(len(answer.queries))
            yield answer

    monkeypatch.setattr(SearchPool, "answers", counted)
    with pytest.raises(InputError, match=r"settings\.block: 16 -> 10"):
        search(settings(root, tmp_path / "run", k=5, block=10))
    resumed = search(settings(root, tmp_path / "run", k=5, block=16))
    assert searched == [16, 2]
    assert resumed.fingerprint == whole.fingerprint
    assert read(tmp_path / "run").equals(read(tmp_path / "whole"))


def test_what_does_not_belong_together_is_refused(root: Path, tmp_path: Path) -> None:
    bad: list[tuple[dict[str, object], str]] = [
        ({"model": str(root / "other")}, "is not the model of this index"),
        ({"model": None}, "give the retriever"),
        ({"search_params": "nprobe=2"}, "does not take 'nprobe=2'"),
    ]
    for wrong, message in bad:
        with pytest.raises(InputError, match=message):
            search(settings(root, tmp_path / message[:6], **wrong))
    given = {"kind": "faiss", "embeddings": str(root / "embeddings"), "factory": "IVF4,Flat", "recall": 0, "output": str(tmp_path / "ivf")}
    ivf = str(index(IndexSettings.read(given)).path)
    for without in ("", "quantizer_efSearch=4"):
        with pytest.raises(InputError, match=r"search_params: nprobe is missing.* IVF4,Flat.* give --search-params nprobe=32"):
            search(settings(root, tmp_path / "run", index=ivf, search_params=without))
    whole = search(settings(root, tmp_path / "run", index=ivf, search_params="nprobe=4"))  # no folder was begun by those refused
    assert whole.rows == search(settings(root, tmp_path / "flat")).rows


def test_more_hits_of_a_block_than_are_held_at_once_are_refused(root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before anything is made; an exact index is not asked for all k of each shard."""
    approximate = tmp_path / "approximate"
    index(IndexSettings(kind="faiss", embeddings=str(root / "embeddings"), factory="HNSW8", shards=2, output=str(approximate)))
    monkeypatch.setattr(searching, "_MOST_HITS", 32 * 20)
    with pytest.raises(InputError, match=r"block: 32 queries of a block x 40 hits of all shards .* give at most 16"):
        search(settings(root, tmp_path / "run", index=str(approximate), k=20, block=32))
    assert not (tmp_path / "run").exists()
    assert search(settings(root, tmp_path / "run", k=20, block=32)).rows == 50 * 20
    monkeypatch.setattr(searching, "_MOST_HITS", 59)
    with pytest.raises(InputError, match=r"1 queries of a block x 60 hits .* give a lower k"):
        search(settings(root, tmp_path / "other", index=str(approximate), k=10**9, block=1))


def stopped(root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, index: str, **more: object) -> SearchSettings:
    """The settings of a search that ended after the first of its blocks."""
    asked, commit = settings(root, tmp_path / "run", index=index, block=32, **more), searching.commit_table

    def once(draft: Draft, name: str, *table: pa.Table, **note: int) -> None:
        if draft.committed():
            raise KeyboardInterrupt
        commit(draft, name, *table, **note)

    monkeypatch.setattr(searching, "commit_table", once)
    with pytest.raises(KeyboardInterrupt):
        search(asked)
    monkeypatch.setattr(searching, "commit_table", commit)
    return asked


def test_a_search_that_was_begun_is_not_refused_for_its_block(root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another block would be another search: what was found could not be kept."""
    asked = stopped(root, tmp_path, monkeypatch, str(root / "index"), k=20)
    monkeypatch.setattr(searching, "_MOST_HITS", 32)
    assert search(asked).rows == 50 * 20


def test_a_search_of_lists_that_an_earlier_version_began_is_refused(root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its scores have other last digits; a search that needs no more blocks is finished."""
    given = {"kind": "faiss", "embeddings": str(root / "embeddings"), "factory": "IVF4,Flat", "output": str(tmp_path / "ivf")}
    ivf = str(index(IndexSettings.read(given)).path)
    with monkeypatch.context() as earlier:
        earlier.setattr(searching, "_rounding", lambda indexes: {})
        asked = stopped(root, tmp_path, monkeypatch, ivf)
    with pytest.raises(InputError, match=r"run: was begun by another version of raydense, .*; delete this folder and search again"):
        search(asked)
    shutil.rmtree(asked.output)
    assert search(stopped(root, tmp_path, monkeypatch, ivf)).summary["queries"] == 50


def test_vectors_that_were_encoded_before_give_the_run_of_the_model(root: Path, tmp_path: Path) -> None:
    """Also of some of the queries, and in half precision; other vectors are refused."""
    by_model = search(settings(root, tmp_path / "model", k=5, qrels=str(root / "qrels")))
    common = of_queries(root)
    vectors = encode(EncodeSettings.read({**common, "output": str(tmp_path / "vectors")}))
    given = {"vectors": str(vectors.path), "model": None, "k": 5, "qrels": str(root / "qrels")}
    search(settings(root, tmp_path / "vectors run", **given))
    mine, theirs = read(tmp_path / "vectors run"), read(by_model.path)
    assert mine.drop("score").equals(theirs.drop("score"))
    np.testing.assert_allclose(mine["score"], theirs["score"], rtol=1e-5)
    assert not (tmp_path / "model" / ".work").exists()
    refused = [
        ({"vectors": str(root / "embeddings")}, "holds vectors of passages, not of queries; encode with --queries"),
        ({"queries": str(other_queries(tmp_path))}, "vectors: are of other queries"),
        (
            {"vectors": str(encode(EncodeSettings.read({**common, "model": str(root / "other"), "output": str(tmp_path / "other")})).path)},
            "by another model",
        ),
        (
            {"vectors": str(encode(EncodeSettings.read({**common, "dimension": 64, "output": str(tmp_path / "short")})).path)},
            "of another dimension",
        ),
    ]
    for changed, message in refused:
        with pytest.raises(InputError, match=message):
            search(settings(root, tmp_path / "refused", **{**given, "qrels": None, **changed}))
    with pytest.raises(InputError, match="a search with vectors does not use model"):
        SearchSettings.read({**given, "index": "i", "queries": "q", "output": "o", "model": "m"})


def test_another_prompt_than_the_models_gives_the_run_of_queries_that_begin_with_it(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Given as a text or by its name; a run that was begun with another one is refused."""
    config = root / "model" / "config_sentence_transformers.json"
    prefix = f"{WORDS[2]} {WORDS[4]} "
    assert json.loads(config.read_text())["prompts"] == {"query": "", "document": ""}
    write_table(
        tmp_path / "with", "queries", pa.table({"query_id": [f"q{i}" for i in range(50)], "text": [prefix + t for t in TEXTS[:50]]})
    )
    wanted = search(settings(root, tmp_path / "wanted", k=5, queries=str(tmp_path / "with")))
    made = search(settings(root, tmp_path / "made", k=5, query_prefix=prefix))
    assert read(made.path).equals(read(wanted.path))
    assert not read(made.path).equals(read(search(settings(root, tmp_path / "without", k=5)).path))
    vectors = encode(EncodeSettings.read({**of_queries(root), "query_prefix": prefix, "output": str(tmp_path / "vectors")}))
    given = {"vectors": str(vectors.path), "model": None, "k": 5}
    assert read(search(settings(root, tmp_path / "by vectors", **given)).path).drop("score").equals(read(made.path).drop("score"))
    with pytest.raises(InputError, match=r"was made from something else \(settings.query_prefix: .* -> None\)"):
        search(settings(root, tmp_path / "made", k=5))
    begun = stopped(root, tmp_path, monkeypatch, str(root / "index"), query_prefix=prefix)
    with pytest.raises(InputError, match=r"settings.query_prefix: .* -> other"):
        search(begun.model_copy(update={"query_prefix": "other"}))
    with pytest.raises(InputError, match="has no prompt 'web'; there are query, document"):
        search(settings(root, tmp_path / "none", prompt_name="web"))
    assert not (tmp_path / "none").exists()


def of_queries(root: Path) -> dict[str, str]:
    return {"model": str(root / "model"), "queries": str(root / "queries"), "dtype": "float32"}


def other_queries(folder: Path) -> Path:
    draft = Draft.open(folder / "others", "queries", {})
    commit_table(draft, "queries.parquet", pa.table({"query_id": ["q1"], "text": ["another"]}))
    return draft.finish(1).path


def test_a_passage_of_the_querys_own_id_stays_where_it_is_judged(root: Path, tmp_path: Path) -> None:
    """Two queries that have the ids of passages: of one, which is judged with that passage, it is a hit like others."""
    tables = {
        "queries": {"query_id": ["p7", "p3"], "text": [TEXTS[7], TEXTS[3]]},
        "qrels": {"query_id": ["p7", "p7", "p3"], "passage_id": ["p7", "p2", "p1"], "relevance": [1, 1, 1]},
    }
    for kind, columns in tables.items():
        draft = Draft.open(tmp_path / kind, kind, {})
        commit_table(draft, f"{kind}.parquet", pa.table(columns))
        draft.finish(len(columns["query_id"]))
    given = {"queries": str(tmp_path / "queries"), "qrels": str(tmp_path / "qrels")}
    every = read(search(settings(root, tmp_path / "every", k=60, **given)).path).to_pylist()
    found = read(search(settings(root, tmp_path / "found", k=59, drop_identical=True, **given)).path).to_pylist()
    for query in ("p7", "p3"):
        hits = [row["passage_id"] for row in every if row["query_id"] == query]
        assert len(hits) == 60
        wanted = [passage for passage in hits if query == "p7" or passage != query][:59]
        assert [row["passage_id"] for row in found if row["query_id"] == query] == wanted
    assert "p7" in {row["passage_id"] for row in found if row["query_id"] == "p7"}
