"""BM25 in shards: bm25s's own scores, bit for bit, whatever the sharding; and its known figure on SciFact."""

import csv
import json
import shutil
from pathlib import Path

import bm25s
import ir_measures
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import Stemmer
from embeddings import write_corpus
from ir_measures import nDCG

from raydense.data.generated import commit_queries
from raydense.data.store import CorpusWriter, PassageStore
from raydense.data.tables import commit_table
from raydense.errors import InputError
from raydense.retrieval import bm25_build
from raydense.retrieval.index import index
from raydense.retrieval.pool import SearchPool
from raydense.retrieval.search import search
from raydense.retrieval.settings import IndexSettings, SearchSettings
from raydense.storage import Draft

pytestmark = pytest.mark.usefixtures("ray_cluster")

SHARED = Path(__file__).parents[3] / "shared" / "data"
WORDS = [
    "rain",
    "falls",
    "on",
    "the",
    "running",
    "rivers",
    "of",
    "a",
    "hilly",
    "land",
    "and",
    "Farmers",
    "farm;",
    "müde",
    "Füchse",
    "schlafen",
    "東京",
    "x2",
    "ix",
    "re-run",
    "its",
]


def some_texts(n: int, seed: int) -> list[str]:
    """Texts of Zipf-like words, in which equal scores and empty texts (stop words only) occur."""
    rng = np.random.default_rng(seed)
    return [" ".join(WORDS[min(rng.zipf(1.5) - 1, len(WORDS) - 1)] for _ in range(rng.integers(1, 12))) for _ in range(n)]


@pytest.mark.parametrize(("stemmer", "stopwords"), [("english", "en"), ("none", "none")])
def test_sharded_scores_are_those_of_bm25s(tmp_path: Path, stemmer: str, stopwords: str) -> None:
    texts, titles = some_texts(200, 1), ["Rain" if i % 3 else "" for i in range(200)]
    queries = [*some_texts(40, 2), "unknown words", "the of", "rivers rivers running rain"]
    write_corpus(tmp_path / "corpus", texts, titles)
    stem, stop = (None if stemmer == "none" else Stemmer.Stemmer(stemmer)), (None if stopwords == "none" else stopwords)
    plain = bm25s.BM25(method="lucene", k1=0.9, b=0.4)
    full = [f"{title} {text}".strip() for title, text in zip(titles, texts, strict=True)]
    plain.index(bm25s.tokenize(full, stopwords=stop, stemmer=stem, show_progress=False), show_progress=False)
    tokens = bm25s.tokenize(queries, stopwords=stop, stemmer=stem, return_ids=False, show_progress=False)
    true = np.stack([plain.get_scores(t) if t else np.zeros(200, np.float32) for t in tokens])
    order = np.lexsort((np.broadcast_to(np.arange(200), true.shape), -true), axis=-1)
    best = np.take_along_axis(true, order, axis=1)
    for shards in (1, 4):
        settings = {"kind": "bm25", "corpus": str(tmp_path / "corpus"), "bm25": {"stemmer": stemmer, "stopwords": stopwords}}
        artifact = index(IndexSettings(**settings, shards=shards, output=str(tmp_path / f"index{shards}")))
        with SearchPool.start(artifact) as pool:
            for k in (5, 200, 10**9):
                scores, rows = pool.search(queries, k)
                np.testing.assert_array_equal(rows, np.where(best > 0, order, -1)[:, :k])
                np.testing.assert_array_equal(scores, np.where(best > 0, best, -np.inf)[:, :k].astype(np.float32))
    assert (true[-3:-1] == 0).all() or stopwords == "none"


def test_expanded_passages_are_indexed_as_if_their_queries_stood_in_them(tmp_path: Path) -> None:
    texts, lists = some_texts(60, 3), [some_texts(i % 4, i) for i in range(60)]
    write_corpus(tmp_path / "plain", texts, ["Rain"] * 60)
    write_corpus(tmp_path / "joined", [" ".join([text, *of]) for text, of in zip(texts, lists, strict=True)], ["Rain"] * 60)
    draft = Draft.open(tmp_path / "generated", "generated", {"test": "generated"})
    for start in (0, 25):
        commit_queries(draft, f"generated-{start:05d}.arrow", start, lists[start : 25 if start == 0 else 60])
    draft.finish(60, corpus=PassageStore(tmp_path / "plain").fingerprint)
    one = {"kind": "bm25", "corpus": str(tmp_path / "plain"), "generated": str(tmp_path / "generated"), "shards": 3}
    expanded = index(IndexSettings(**one, output=str(tmp_path / "expanded")))
    joined = index(IndexSettings(kind="bm25", corpus=str(tmp_path / "joined"), shards=3, output=str(tmp_path / "other")))
    assert {f.path: f.sha256 for f in expanded.files} == {f.path: f.sha256 for f in joined.files}
    with pytest.raises(InputError, match="generated: was generated for another corpus"):
        index(IndexSettings(**{**one, "corpus": str(tmp_path / "joined")}, output=str(tmp_path / "wrong")))


def test_a_corpus_that_is_replaced_before_a_task_opens_it_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_corpus(tmp_path / "corpus", some_texts(40, 1))
    ranges = bm25_build.shard_ranges

    def replaced(rows: int, shards: int) -> list[tuple[int, int]]:
        """Between the driver's opening of the corpus and the start of its tasks."""
        shutil.rmtree(tmp_path / "corpus")
        write_corpus(tmp_path / "corpus", some_texts(40, 2))
        return ranges(rows, shards)

    monkeypatch.setattr(bm25_build, "shard_ranges", replaced)
    with pytest.raises(InputError, match="corpus: was replaced while a stage was reading it"):
        index(IndexSettings(kind="bm25", corpus=str(tmp_path / "corpus"), output=str(tmp_path / "index")))


def test_bad_settings_are_refused(tmp_path: Path) -> None:
    write_corpus(tmp_path / "corpus", some_texts(5, 1))
    for wrong, message in [
        ({"bm25": {"stemmer": "englisch"}}, "did you mean 'english'"),
        ({"bm25": {"stopwords": "xx"}}, "no stop words"),
        ({"shards": 6}, "at most 5"),
    ]:
        with pytest.raises(InputError, match=message):
            index(IndexSettings(kind="bm25", corpus=str(tmp_path / "corpus"), output=str(tmp_path / f"{message}"), **wrong))


@pytest.mark.skipif(not SHARED.exists(), reason="needs ../shared")
def test_ndcg_on_scifact(tmp_path: Path) -> None:
    """Lucene's BM25, k1 0.9, b 0.4, Porter2, English stop words, title and text: nDCG@10 0.676."""
    source = SHARED / "scifact"
    passages = [json.loads(line) for line in (source / "corpus.jsonl").open()]
    writer = CorpusWriter(Draft.open(tmp_path / "corpus", "corpus", {}), 2_000)
    writer.add(
        pa.table(
            {"passage_id": [p["_id"] for p in passages], "title": [p["title"] for p in passages], "text": [p["text"] for p in passages]}
        )
    )
    writer.finish()
    queries = [json.loads(line) for line in (source / "queries.jsonl").open()]
    judged = list(csv.DictReader((source / "qrels" / "test.tsv").open(), delimiter="\t"))
    qrels = {
        "query_id": [j["query-id"] for j in judged],
        "passage_id": [j["corpus-id"] for j in judged],
        "relevance": [int(j["score"]) for j in judged],
    }
    tables = {"queries": {"query_id": [q["_id"] for q in queries], "text": [q["text"] for q in queries]}, "qrels": qrels}
    for kind, columns in tables.items():
        draft = Draft.open(tmp_path / kind, kind, {})
        commit_table(draft, f"{kind}.parquet", pa.table(columns))
        draft.finish(len(columns["query_id"]))
    index(IndexSettings(kind="bm25", corpus=str(tmp_path / "corpus"), shards=2, output=str(tmp_path / "index")))
    settings = SearchSettings(
        index=str(tmp_path / "index"),
        queries=str(tmp_path / "queries"),
        qrels=str(tmp_path / "qrels"),
        block=128,
        output=str(tmp_path / "run"),
    )
    run = pa.concat_tables(map(pq.read_table, search(settings).parts(".parquet")))
    assert len(set(run["query_id"].to_pylist())) == 300
    hits = [ir_measures.ScoredDoc(*hit) for hit in zip(*(run[c].to_pylist() for c in ("query_id", "passage_id", "score")), strict=True)]
    measured = ir_measures.calc_aggregate([nDCG @ 10], [ir_measures.Qrel(*q) for q in zip(*qrels.values(), strict=True)], hits)
    assert measured[nDCG @ 10] == pytest.approx(0.676, abs=0.005)
