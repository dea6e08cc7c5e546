"""Builds a FAISS index in shards: trained once on a seeded sample; each shard is an empty clone, filled by its own task."""

from __future__ import annotations

import shutil
from typing import Any

import numpy as np

from raydense.errors import InputError
from raydense.retrieval.faiss_fill import fill, train
from raydense.retrieval.faiss_library import faiss
from raydense.retrieval.faiss_plan import check_build, check_shards, check_training, plan_build, training_threads, with_threads
from raydense.retrieval.faiss_size import index_of, reason
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


def build_faiss(draft: Draft, settings: IndexSettings) -> Artifact:
    """Commit `empty.faiss` (trained, no vectors), a file per shard and `passage_ids.arrow`; finish the draft.

    Raises InputError on a factory string that FAISS does not know or cannot use, too few vectors to train it, or an index that does
    not fit the memory of the nodes, or the disk.
    """
    vectors = Vectors(str(settings.embeddings), fingerprint=draft.made_from["inputs"]["embeddings"])
    check_shards(settings.shards, vectors.rows)
    ranges = shard_ranges(vectors.rows, settings.shards)
    there = draft.committed()
    missing = [i for i in range(settings.shards) if shard_file(i) not in there]
    sample = 0 if EMPTY in there else settings.train_sample
    plan = plan_build(settings.factory, vectors.dimension, vectors.rows, settings.shards, sample=sample)
    check_training(plan, settings.train_sample)
    check_build(settings, plan, draft, missing)
    where = vectors.artifact.located, vectors.artifact.fingerprint
    if EMPTY not in there:
        if plan.train_bytes:
            threads = training_threads(plan, settings)
            list(run_tasks("index", _make_empty, [(draft, settings, *where, threads)], memory=plan.train_bytes, cpus=threads))
        else:
            _make_empty(draft, settings, *where)
    if missing:
        plan = with_threads(plan, settings, len(missing))
    calls = [(draft, *where, i, *ranges[i], plan.threads) for i in missing]
    done = sum(there[shard_file(i)].rows for i in range(settings.shards) if i not in set(missing))
    with Progress("index", vectors.rows, "vectors", done) as progress:
        for rows in run_tasks("index", _fill, calls, settings.concurrency, plan.task_bytes, plan.threads):
            progress.add(rows)
    ids = vectors.artifact.file("passage_ids.arrow")
    draft.commit("passage_ids.arrow", lambda path: shutil.copyfile(ids, path), vectors.rows)
    filled = [Shard(shard_file(i), *ranges[i]) for i in range(settings.shards)]
    chosen = choose_nprobe(draft, EMPTY, filled, vectors, settings, plan.nprobe_bytes)
    return draft.finish(vectors.rows, **_summary(draft, settings, vectors, ranges), **chosen)


def _summary(draft: Draft, settings: IndexSettings, vectors: Vectors, ranges: list[tuple[int, int]]) -> dict[str, Any]:
    there = draft.committed()
    norms: list[float] = [n for i in range(settings.shards) for n in [there[shard_file(i)].note.get("largest_norm")] if n is not None]
    return {
        "kind": "faiss",
        "factory": settings.factory,
        "dimension": vectors.dimension,
        "dtype": vectors.artifact.summary.get("dtype"),
        "shards": ranges,
        "model": vectors.artifact.summary["model"],
        "corpus": vectors.artifact.summary["corpus"],
        "largest_norm": max(norms, default=None),
    }


def _make_empty(draft: Draft, settings: IndexSettings, embeddings: str, fingerprint: str, threads: int = 1) -> None:
    """Commit the index without vectors, trained; its bytes do not depend on `threads`."""
    vectors = Vectors(embeddings, fingerprint=fingerprint)
    index = index_of(settings.factory, vectors.dimension)
    if not index.is_trained:
        size = min(settings.train_sample, vectors.rows)
        rows = np.sort(np.random.default_rng(settings.seed).choice(vectors.rows, size, replace=False, shuffle=False))
        try:
            train(index, vectors.take(rows), threads)
        except RuntimeError as error:
            what = f"{size:,} vectors do not train {settings.factory!r}: {reason(error)}"
            raise InputError(what, "factory", "use fewer lists or bits, a larger train_sample, or Flat") from None
    draft.commit(EMPTY, lambda path: faiss.write_index(index, str(path)), 0)


def _fill(draft: Draft, embeddings: str, fingerprint: str, shard: int, start: int, stop: int, threads: int) -> int:
    """Fill one shard; its bytes do not depend on `threads`."""
    index = faiss.read_index(str(draft.read(EMPTY)))
    vectors = Vectors(embeddings, fingerprint=fingerprint)
    largest = fill(index, stop - start, lambda: vectors.blocks(start, stop), threads)
    note = {} if largest is None else {"largest_norm": largest}
    draft.commit(shard_file(shard), lambda path: faiss.write_index(index, str(path)), stop - start, **note)
    return stop - start
