"""Builds a FAISS index in shards: trained once on a seeded sample; each shard is an empty clone, filled by its own task."""

from __future__ import annotations

import shutil
from typing import Any

import faiss
import numpy as np

from raydense.errors import InputError
from raydense.retrieval.nprobe import Shard, choose_nprobe
from raydense.retrieval.settings import IndexSettings
from raydense.retrieval.vectors import Vectors
from raydense.runtime.progress import Progress
from raydense.runtime.tasks import run_tasks, shard_ranges
from raydense.storage import Artifact, Draft

EMPTY = "empty.faiss"


def shard_file(shard: int) -> str:
    """The name of a shard's file; plain `faiss.read_index` opens it."""
    return f"shard-{shard:05d}.faiss"


def is_exact(index: faiss.Index) -> bool:
    """Whether a search of `index` looks at every vector, so that its hits can be put in one order, ties included."""
    return isinstance(index, faiss.IndexFlat | faiss.IndexScalarQuantizer)


def build_faiss(draft: Draft, settings: IndexSettings) -> Artifact:
    """Commit `empty.faiss` (trained, no vectors), a file per shard and `passage_ids.arrow`; finish the draft.

    Raises InputError on a factory string that FAISS does not know or cannot use, or too few vectors to train it.
    """
    vectors = Vectors(str(settings.embeddings), fingerprint=draft.made_from["inputs"]["embeddings"])
    if settings.shards > vectors.rows:
        raise InputError(f"{settings.shards} shards of {vectors.rows} vectors", "shards", f"give at most {vectors.rows}")
    if EMPTY not in draft.committed():
        empty = _train(settings, vectors)
        draft.commit(EMPTY, lambda path: faiss.write_index(empty, str(path)), 0)
    ranges = shard_ranges(vectors.rows, settings.shards)
    there = draft.committed()
    missing = [i for i in range(settings.shards) if shard_file(i) not in there]
    calls = [(draft, vectors.artifact.located, vectors.artifact.fingerprint, i, *ranges[i]) for i in missing]
    done = sum(there[shard_file(i)].rows for i in range(settings.shards) if i not in set(missing))
    with Progress("index", vectors.rows, "vectors", done) as progress:
        for rows in run_tasks("index", _fill, calls, settings.concurrency):
            progress.add(rows)
    ids = vectors.artifact.file("passage_ids.arrow")
    draft.commit("passage_ids.arrow", lambda path: shutil.copyfile(ids, path), vectors.rows)
    chosen = choose_nprobe(draft, EMPTY, [Shard(shard_file(i), *ranges[i]) for i in range(settings.shards)], vectors, settings)
    return draft.finish(vectors.rows, **_summary(draft, settings, vectors, ranges), **chosen)


def _summary(draft: Draft, settings: IndexSettings, vectors: Vectors, ranges: list[tuple[int, int]]) -> dict[str, Any]:
    there = draft.committed()
    norms: list[float] = [n for i in range(settings.shards) for n in [there[shard_file(i)].note.get("largest_norm")] if n is not None]
    return {
        "kind": "faiss",
        "factory": settings.factory,
        "dimension": vectors.dimension,
        "shards": ranges,
        "model": vectors.artifact.summary["model"],
        "corpus": vectors.artifact.summary["corpus"],
        "largest_norm": max(norms, default=None),
    }


def _train(settings: IndexSettings, vectors: Vectors) -> faiss.Index:
    try:
        index = faiss.index_factory(vectors.dimension, settings.factory, faiss.METRIC_INNER_PRODUCT)
        faiss.clone_index(index)
    except RuntimeError as error:
        raise InputError(f"FAISS cannot make {settings.factory!r}: {_reason(error)}", "factory", "as Flat, SQfp16, IVF4096,Flat") from None
    if isinstance(index, faiss.IndexIDMap | faiss.IndexIDMap2):
        raise InputError(f"{settings.factory!r} brings its own ids", "factory", "leave out IDMap: rows are the ids")
    if index.is_trained:
        return index
    size = min(settings.train_sample, vectors.rows)
    rows = np.sort(np.random.default_rng(settings.seed).choice(vectors.rows, size, replace=False, shuffle=False))
    try:
        index.train(vectors.take(rows))
    except RuntimeError as error:
        what = f"{size:,} vectors do not train {settings.factory!r}: {_reason(error)}"
        raise InputError(what, "factory", "use fewer lists or bits, a larger train_sample, or Flat") from None
    return index


def _reason(error: RuntimeError) -> str:
    return str(error).partition(".cpp:")[2].partition(": ")[2] or str(error)


def _fill(draft: Draft, embeddings: str, fingerprint: str, shard: int, start: int, stop: int) -> int:
    """Fill one shard, with one thread: with more, FAISS builds graphs in another order, and the bytes would depend on the machine."""
    faiss.omp_set_num_threads(1)
    index = faiss.read_index(str(draft.read(EMPTY)))
    largest = 0.0
    for block in Vectors(embeddings, fingerprint=fingerprint).blocks(start, stop):
        before = index.ntotal
        index.add(block)
        if is_exact(index):
            stored = index.reconstruct_n(before, len(block))
            largest = max(largest, float(np.sqrt(np.einsum("nd,nd->n", stored, stored).max())))
    note = {"largest_norm": largest} if is_exact(index) else {}
    draft.commit(shard_file(shard), lambda path: faiss.write_index(index, str(path)), stop - start, **note)
    return stop - start
