"""The stage `compare`: builds and searches indexes of several factories on a sample of embeddings, to choose one by recall, speed and memory."""

from __future__ import annotations

import json
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from raydense.errors import InputError
from raydense.retrieval.compare_page import write_page
from raydense.retrieval.settings import CompareSettings
from raydense.retrieval.vectors import Vectors
from raydense.runtime.progress import Progress
from raydense.runtime.session import ensure_ray
from raydense.runtime.tasks import run_tasks
from raydense.storage import Artifact, Draft, provenance, releases_outputs

_ROUNDS = 3
_ANSWERS = "answers.npy"
Block = NDArray[np.float32]


@releases_outputs
def compare(settings: CompareSettings) -> Artifact:
    """A report of kind `report`: for each factory recall@k, queries a second, bytes and seconds to build; `metrics.json`, `report.html`.

    One committed file for each factory, measured by a task of its own, one at a time; a second run after a kill measures the others.
    InputError on a factory that FAISS cannot make or train.
    """
    draft = Draft.open(settings.output, "report", provenance("compare", settings))
    if draft.done:
        return draft.done
    ensure_ray()
    settings = settings.located()
    vectors = Vectors(settings.embeddings, fingerprint=draft.made_from["inputs"]["embeddings"])
    if vectors.rows < 10 * settings.k:
        raise InputError(f"{vectors.rows:,} vectors are too few for the best {settings.k}", "k", f"give at most {vectors.rows // 10}")
    if settings.k > (indexed := _sizes(settings, vectors)[0]):
        raise InputError(f"{indexed:,} indexed vectors have no best {settings.k:,}", "k", f"give at most {indexed}, or a larger sample")
    memory = task_bytes(settings, vectors)
    factories, there = settings.named, draft.committed()
    missing = [(draft, settings, number) for number in range(len(factories)) if _file(number) not in there]
    with Progress("compare", len(factories), "builds", len(factories) - len(missing)) as progress:
        for _ in run_tasks("compare", measure, missing, 1, memory):  # one at a time: another would slow it
            progress.add(1)
    rows = [json.loads(draft.read(_file(number)).read_text()) for number in range(len(factories))]
    result = {"runs": {row["factory"]: {"metrics": {k: v for k, v in row.items() if k != "factory"}} for row in rows}}
    draft.commit("metrics.json", lambda path: path.write_text(json.dumps(result, indent=2)), len(rows))
    about = {"vectors": vectors.rows, "dimension": vectors.dimension, "sample": _sizes(settings, vectors)[0], "threads": settings.threads}
    draft.commit("report.html", lambda path: write_page(path, rows, settings.k, about), len(rows))
    return draft.finish(len(rows), result=result, **about)


def _file(number: int) -> str:
    return f"index-{number:03d}.json"


def _sizes(settings: CompareSettings, vectors: Vectors) -> tuple[int, int]:
    """The numbers of vectors that are indexed, and of others that are the queries."""
    queries = min(settings.query_sample, vectors.rows // 10)
    return min(settings.sample, vectors.rows - queries), queries


def task_bytes(settings: CompareSettings, vectors: Vectors) -> int:
    """The memory of the task of the largest index: the sample, and what `index` reserves to train it and to fill it.

    InputError on a factory that FAISS cannot make, or not train on the sample, before the first is measured: without it the report is another.
    """
    from raydense.retrieval.faiss_plan import check_training, plan_build

    (indexed, queries), largest = _sizes(settings, vectors), 0
    for factory in settings.named:
        try:
            plan = replace(plan_build(factory, vectors.dimension, indexed, 1, sample=settings.train_sample), threads=settings.threads)
            check_training(plan, settings.train_sample)
        except InputError as error:
            raise InputError(error.args[0], "factories", "leave it out") from None
        largest = max(largest, plan.train_bytes, plan.task_bytes)
    return (indexed + queries) * vectors.dimension * 4 + largest


def _drawn(settings: CompareSettings, vectors: Vectors) -> tuple[Block, Block]:
    """The vectors of a seeded sample in two parts: indexed ones, and queries."""
    indexed, queries = _sizes(settings, vectors)
    rows = np.random.default_rng(settings.seed).choice(vectors.rows, indexed + queries, replace=False)
    return vectors.take(np.sort(rows[:indexed])), vectors.take(np.sort(rows[indexed:]))


def measure(draft: Draft, settings: CompareSettings, number: int) -> None:
    """Build and search the index of one factory, and commit what was measured."""
    from raydense.retrieval.faiss_library import faiss

    faiss.omp_set_num_threads(settings.threads)
    vectors = Vectors(settings.embeddings, fingerprint=draft.made_from["inputs"]["embeddings"])
    indexed, queries = _drawn(settings, vectors)
    answers = _answers(draft, indexed, queries, settings.k)
    factory = settings.named[number]
    with draft.aside() as aside:
        path = aside / "shard.faiss"
        empty, seconds = _build(path, indexed, factory, settings)
        found = _search(path, indexed, queries, answers, factory, settings)
        size = path.stat().st_size
    whole = empty + (size - empty) * vectors.rows // len(indexed)
    row = {"factory": factory, **found, "MiB": round(size / 2**20, 1), "GiB of all": round(whole / 2**30, 3), "build s": round(seconds, 1)}
    draft.commit(_file(number), lambda path: path.write_text(json.dumps(row)), 1)


def _answers(draft: Draft, indexed: Block, queries: Block, k: int) -> NDArray[np.int64]:
    """The exact best k rows of each query; computed once."""
    from raydense.retrieval.faiss_library import faiss
    from raydense.retrieval.faiss_speed import blas_preferred

    kept = draft.kept(_ANSWERS)
    if kept is None:
        with blas_preferred(indexed.shape[1]):
            answers = faiss.knn(queries, indexed, k, metric=faiss.METRIC_INNER_PRODUCT)[1]
        draft.keep(_ANSWERS, lambda path: np.save(path, answers))
        return answers
    return np.load(kept)


def _build(path: Path, indexed: Block, factory: str, settings: CompareSettings) -> tuple[int, float]:
    """Write the index, and `empty.faiss` next to it; returns the bytes of that, and the seconds of training and filling, as `index` does it."""
    from raydense.retrieval.faiss_fill import fill, train
    from raydense.retrieval.faiss_library import faiss
    from raydense.retrieval.faiss_size import index_of, reason

    index, begun = index_of(factory, indexed.shape[1]), time.perf_counter()
    try:
        if not index.is_trained:
            size = min(settings.train_sample, len(indexed))
            rows = np.random.default_rng(settings.seed).choice(len(indexed), size, replace=False)
            train(index, indexed[np.sort(rows)], settings.threads)
        trained = time.perf_counter()
        faiss.write_index(index, str(path.with_name("empty.faiss")))
        written = time.perf_counter()
        fill(index, len(indexed), lambda: [indexed], settings.threads)
    except RuntimeError as error:
        what = f"FAISS cannot make {factory!r} of {len(indexed):,} vectors: {reason(error)}"
        raise InputError(what, "factories", "leave it out") from None
    seconds = time.perf_counter() - written + trained - begun
    faiss.write_index(index, str(path))
    return path.with_name("empty.faiss").stat().st_size, seconds


def _search(
    path: Path, indexed: Block, queries: Block, answers: NDArray[np.int64], factory: str, settings: CompareSettings
) -> dict[str, Any]:
    """The recall, the queries a second and, for inverted lists, the nprobe chosen, as `index` chooses it."""
    from raydense.retrieval.faiss_library import faiss
    from raydense.retrieval.faiss_shard import FaissShard, set_search_params
    from raydense.retrieval.nprobe import covered, least_nprobe, share_found
    from raydense.retrieval.search_params import with_defaults

    shard = FaissShard(str(path), 0, settings.threads, with_defaults("", factory))

    def recall(nprobe: int) -> float:
        set_search_params(shard.index, f"nprobe={nprobe}")
        return share_found(shard.nearest(queries, settings.k)[1], answers)

    chosen = {}
    if faiss.try_extract_index_ivf(shard.index) is not None:
        faiss.omp_set_num_threads(settings.threads)  # filling may have left one
        held = covered(shard.index, queries, answers, lambda rows: indexed[rows])
        chosen["nprobe"] = least_nprobe(recall, held, settings.recall)
        set_search_params(shard.index, f"nprobe={chosen['nprobe']}")
    seconds = []
    for _ in range(_ROUNDS):
        begun = time.perf_counter()
        rows = shard.nearest(queries, settings.k)[1]
        seconds.append(time.perf_counter() - begun)
    measured = {f"recall@{settings.k}": round(share_found(rows, answers), 4), "queries/s": round(len(queries) / min(seconds), 1)}
    return {**measured, "nprobe": chosen.get("nprobe", 0)}
