"""The stage `topics`: groups queries for trainings whose batches are of queries about one topic.

The other passages of such a batch are harder negatives than those of a batch that is drawn at random. By vectors it is the topic-aware
sampling of Hofstätter et al. 2021, "Efficiently Teaching an Effective Dense Retriever with Balanced Topic Aware Sampling", section 3.2.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from raydense.data.store import PassageStore
from raydense.data.tables import commit_table, concat_parts, positives_of, query_positions
from raydense.errors import InputError
from raydense.retrieval.settings import TopicsSettings
from raydense.retrieval.vectors import Vectors
from raydense.runtime.progress import say
from raydense.runtime.session import ensure_ray
from raydense.runtime.tasks import run_tasks
from raydense.storage import Artifact, Draft, provenance, releases_outputs

_TABLE = "topics.parquet"
_ROUNDS = 10
_SAMPLED = 64  # vectors that each centroid is found from, on average
_PROCESS_BYTES = 1 << 29
Topics = NDArray[np.int32]


@releases_outputs
def topics(settings: TopicsSettings) -> Artifact:
    """The topic of every query, a number from 0, in a table of `query_id` and `topic` in the order of the queries.

    By qrels, the judged queries in the order of their first relevant passage, cut into runs of `size`; the others are one topic more. By
    embeddings, spherical k-means of the queries' vectors, about `size` in each topic, in a Ray task on one core, so that it is the same for
    any number of them. InputError on vectors of passages, or if no judgement names a passage of the corpus.
    """
    draft = Draft.open(settings.output, "topics", provenance("topics", settings))
    if draft.done:
        return draft.done
    prints = draft.made_from["inputs"]
    if not settings.embeddings:
        queries = Artifact.open(str(settings.queries), "queries", prints["queries"])
        if not draft.committed():
            _commit_by_corpus(draft, settings, queries)
        return _finish(draft, queries=queries.fingerprint)
    vectors = Vectors(settings.embeddings, "queries", prints["embeddings"])
    if not draft.committed():
        ensure_ray()
        memory = memory_of(vectors.rows, vectors.dimension, settings.size)
        for _ in run_tasks("topics", _commit_by_vectors, [(draft, settings.located())], memory=memory):
            pass
    return _finish(draft, queries=vectors.artifact.summary["queries"], model=vectors.artifact.summary["model"])


def _finish(draft: Draft, **of: str) -> Artifact:
    made = draft.committed()[_TABLE]
    say(f"topics: {made.rows:,} queries in {made.note['topics']:,} topics")
    return draft.finish(made.rows, topics=made.note["topics"], **of)


def _commit(draft: Draft, ids: pa.ChunkedArray, topic: Topics) -> None:
    commit_table(draft, _TABLE, pa.table({"query_id": ids, "topic": topic}), topics=int(topic.max()) + 1)


def _commit_by_corpus(draft: Draft, settings: TopicsSettings, queries: Artifact) -> None:
    """Group the queries by where their relevant passages are in the corpus."""
    prints = draft.made_from["inputs"]
    asked = concat_parts(queries.parts(".parquet"), "queries", ["query_id"])
    judged = positives_of(concat_parts(Artifact.open(str(settings.qrels), "qrels", prints["qrels"]).parts(".parquet"), "qrels"))
    rows = PassageStore(str(settings.corpus), prints["corpus"]).rows_of(judged["passage_id"].combine_chunks())
    if not (rows >= 0).any():
        raise InputError("no judgement names a passage of the corpus", str(settings.qrels), "give the qrels of this corpus")
    query = query_positions(judged["query_id"], asked, settings.qrels)
    first = np.full(len(asked), np.iinfo(np.int64).max)
    np.minimum.at(first, query[rows >= 0], rows[rows >= 0])
    _commit(draft, asked["query_id"], runs_of(first, settings.size))


def runs_of(first: NDArray[np.int64], size: int) -> Topics:
    """The topic of each query: runs of `size` queries by `first`, their first relevant row, and one more topic of those without one.

    `first` int64 [n] has the greatest int64 there. The last run has the rest, up to half a run more.
    """
    judged = np.flatnonzero(first < np.iinfo(np.int64).max)
    count = count_of(len(judged), size)
    topic = np.full(len(first), count, np.int32)
    topic[judged[np.argsort(first[judged], kind="stable")]] = np.minimum(np.arange(len(judged)) // size, count - 1)
    return topic


def count_of(queries: int, size: int) -> int:
    """The number of topics of about `size` queries each, at least one."""
    return max(1, round(queries / size))


def memory_of(queries: int, dimension: int, size: int) -> int:
    """The bytes of the process that groups so many vectors."""
    return _PROCESS_BYTES + 4 * dimension * (2 * queries + 4 * count_of(queries, size))


def products_of(queries: int, dimension: int, size: int) -> int:
    """The products of numbers that k-means and the search for each vector's centroid take."""
    count = count_of(queries, size)
    return (_ROUNDS * min(queries, _SAMPLED * count) + queries) * count * dimension


def _commit_by_vectors(draft: Draft, settings: TopicsSettings) -> None:
    """Group the queries by their vectors."""
    vectors = Vectors(str(settings.embeddings), "queries", draft.made_from["inputs"]["embeddings"])
    with pa.memory_map(str(vectors.artifact.file("query_ids.arrow"))) as source:
        ids = pa.ipc.open_file(source).read_all()["query_id"]
    _commit(draft, ids, clusters_of(vectors, count_of(vectors.rows, settings.size), settings.seed))


def clusters_of(vectors: Vectors, count: int, seed: int) -> Topics:
    """The topic of each vector, int32 [n]: the centroid of the highest cosine, of `count` that k-means finds in a seeded sample."""
    from raydense.retrieval.faiss_library import faiss

    faiss.omp_set_num_threads(1)
    size = min(vectors.rows, _SAMPLED * count)
    rows = np.sort(np.random.default_rng(seed).choice(vectors.rows, size, replace=False))
    kmeans = faiss.Kmeans(
        vectors.dimension, count, niter=_ROUNDS, seed=seed % 2**31, spherical=True, min_points_per_centroid=1, max_points_per_centroid=size
    )
    kmeans.train(_unit(vectors.take(rows)))
    found = [kmeans.index.search(np.ascontiguousarray(block, dtype=np.float32), 1)[1][:, 0] for block in vectors.blocks(0, vectors.rows)]
    return np.concatenate(found).astype(np.int32)


def _unit(vectors: NDArray[np.float32]) -> NDArray[np.float32]:
    return vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12)
