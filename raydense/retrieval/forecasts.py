"""What FAISS indexes and searches will need, from the sizes of what they read."""

from __future__ import annotations

import re

from raydense.forecast import Forecast, Holds, Known, lists_of, probed_share, tokens
from raydense.models.model_size import model_of
from raydense.retrieval.kind import kind_of
from raydense.retrieval.settings import IndexSettings, Pool
from raydense.runtime.progress import size
from raydense.storage import Artifact, read_manifest

_ITERATIONS = 10  # of k-means, FAISS's default for lists
_LINKS = 500  # vectors that one is compared with when a graph is built


def vectors_forecast(settings: IndexSettings, vectors: Holds) -> Forecast:
    """The time grows with the numbers of the vectors, and with the products that train, fill and try lists."""
    if not vectors.each:
        needs = f"{vectors} vectors" + (f" over {settings.shards} shard(s)" if settings.shards else "")
        return Forecast(needs, {settings.output: Holds(vectors.rows, vectors.word)})
    from raydense.retrieval.faiss_plan import plan_build  # only here: importing Ray and FAISS takes a second
    from raydense.retrieval.faiss_size import size_of
    from raydense.retrieval.nprobe import QUERIES
    from raydense.retrieval.sharding import shards_begun, shards_for

    rows, width, lists = vectors.rows, int(vectors.each), lists_of(settings.factory)
    shards = settings.shards or shards_begun(settings) or shards_for(size_of(settings.factory, width).vector, rows)
    plan = plan_build(settings.factory, width, rows, shards, sample=settings.train_sample)
    disk = sum(plan.file_bytes)
    made = Holds(rows, vectors.word, width, disk + 16.0 * rows, probed_share(settings.factory), lists, shards)
    task = f"{size(plan.task_bytes)} for each task that fills one"
    needs = f"{vectors} vectors over {shards} shard(s), about {size(disk)} of memory and as much disk, {task}"
    work = {"numbers": float(rows * width)}
    if lists:
        trained = _ITERATIONS * min(settings.train_sample, rows)
        work["products"] = float((trained + rows) * lists * width + (QUERIES * rows * width if settings.recall else 0))
    elif "HNSW" in settings.factory:
        work["products"] = float(_LINKS * rows * width)
    return Forecast(needs, {settings.output: made}, f"index {'lists' if lists else 'vectors'}", work, plan.largest_task)


def search_work(known: Known, queries: Holds, index: Holds, k: int, model: str | None, search_params: str) -> tuple[str, dict[str, float]]:
    """The kind of a search, and its work: hits to write, products of queries and vectors (or passages), and the queries to encode."""
    given = re.search(r"nprobe=(\d+)", search_params)
    share = min(1.0, int(given[1]) / index.lists) if given and index.lists else index.probed
    compared = queries.rows * (index.rows * share + index.lists)
    work = {"hits": float(queries.rows * min(k, index.rows)), "products": compared * (index.each or 1.0)}
    encoder = model_of(known, model)
    if encoder and encoder.flops:
        work["flops"] = queries.rows * tokens(queries.each, encoder.query_length) * encoder.flops
    return f"search {'bm25' if not index.each else 'lists' if share < 1 else 'vectors'}", work


def on_gpus(settings: Pool, index: str | None) -> str:
    """The GPU memory of a search, where its index is there; InputError if that does not go to GPUs."""
    if not settings.gpu or not index or read_manifest(index) is None:
        return ""
    from raydense.retrieval.gpu import actor_bytes, copy_bytes

    artifact = Artifact.open(index, "index")
    summary = artifact.summary
    kind_of(artifact).check_gpu(settings.search_params)
    copies = [copy_bytes(summary, stop - start) for start, stop in summary["shards"]]
    needed = settings.shard_replicas * sum(actor_bytes(copy, 1) for copy in copies)
    return f", about {size(needed)} of GPU memory in {settings.shard_replicas * len(copies)} actors"
