"""The stage `topics`: groups queries by their vectors, for trainings whose batches are of queries about one topic.

By topic-aware sampling (Hofstätter et al. 2021, "Efficiently Teaching an Effective Dense Retriever with Balanced Topic Aware
Sampling", section 3.2): the other passages of such a batch are harder negatives than those of a batch that is drawn at random.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from raydense.data.tables import commit_table
from raydense.retrieval.settings import TopicsSettings
from raydense.retrieval.vectors import Vectors
from raydense.runtime.progress import say
from raydense.runtime.session import ensure_ray
from raydense.runtime.tasks import run_tasks
from raydense.storage import Artifact, Draft, provenance, releases_outputs

_ROUNDS = 10
_SAMPLED = 64  # vectors that each centroid is found from, on average
_PROCESS_BYTES = 1 << 29


@releases_outputs
def topics(settings: TopicsSettings) -> Artifact:
    """The topic of every query, a number from 0: by spherical k-means of their vectors, about `size` queries in each.

    One table of `query_id` and `topic`, in the order of the queries; made by one task on one core, so that it is the same for any
    number of them. InputError on vectors of passages.
    """
    draft = Draft.open(settings.output, "topics", provenance("topics", settings))
    if draft.done:
        return draft.done
    vectors = Vectors(settings.embeddings, "queries", draft.made_from["inputs"]["embeddings"])
    count = count_of(vectors.rows, settings.size)
    if not draft.committed():
        ensure_ray()
        held = 4 * vectors.dimension * (2 * min(vectors.rows, _SAMPLED * count) + 4 * count)
        for _ in run_tasks("topics", _group, [(draft, settings.located(), count)], memory=_PROCESS_BYTES + held):
            say(f"topics: {vectors.rows:,} queries in {count:,} topics")
    return draft.finish(vectors.rows, topics=count, queries=vectors.artifact.summary["queries"], model=vectors.artifact.summary["model"])


def count_of(queries: int, size: int) -> int:
    """The number of topics of about `size` queries each, at least one."""
    return max(1, round(queries / size))


def _group(draft: Draft, settings: TopicsSettings, count: int) -> None:
    """Group the queries, and commit the table."""
    vectors = Vectors(settings.embeddings, "queries", draft.made_from["inputs"]["embeddings"])
    ids = pa.ipc.open_file(pa.memory_map(str(vectors.artifact.file("query_ids.arrow")))).read_all()["query_id"]
    found = pa.table({"query_id": ids, "topic": topics_of(vectors, count, settings.seed)})
    commit_table(draft, "topics.parquet", found)


def topics_of(vectors: Vectors, count: int, seed: int) -> NDArray[np.int32]:
    """The topic of each vector, int32 [n]: the centroid of the highest cosine, of `count` that k-means finds in a seeded sample."""
    from raydense.retrieval.faiss_library import faiss

    faiss.omp_set_num_threads(1)
    size = min(vectors.rows, _SAMPLED * count)
    rows = np.sort(np.random.default_rng(seed).choice(vectors.rows, size, replace=False))
    sample = _unit(vectors.take(rows))
    kmeans = faiss.Kmeans(
        vectors.dimension, count, niter=_ROUNDS, seed=seed % 2**31, spherical=True, min_points_per_centroid=1, max_points_per_centroid=size
    )
    kmeans.train(sample)
    found = [kmeans.index.search(np.ascontiguousarray(block, dtype=np.float32), 1)[1][:, 0] for block in vectors.blocks(0, vectors.rows)]
    return np.concatenate(found).astype(np.int32)


def _unit(vectors: NDArray[np.float32]) -> NDArray[np.float32]:
    return vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12)
