"""The stage `filter`: keeps a generated query if a search with it finds the passage that it was written for.

That is round-trip consistency (Alberti et al. 2019, Synthetic QA corpora generation with roundtrip consistency), judged by the rank
of the passage as in Promptagator (Dai et al. 2022). The queries go through the index's pool in one stream of blocks, file after
file of the input; a file is committed when its last block is back.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from contextlib import closing
from dataclasses import dataclass
from functools import lru_cache, partial
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from raydense.data.draws import draw
from raydense.data.generated import Generated, commit_queries
from raydense.data.store import PassageStore, Rows
from raydense.data.tables import write_arrow
from raydense.errors import InputError
from raydense.inference.query_encoder import encode_blocks
from raydense.mining.consistency_report import SAMPLE, write_report
from raydense.mining.counts import added
from raydense.mining.negatives import Flags, first_of_each
from raydense.mining.settings import FilterSettings
from raydense.retrieval.kind import kind_of
from raydense.retrieval.kinds.bm25 import expanded_with
from raydense.retrieval.query_vectors import check_model, leaves_no_gpu
from raydense.retrieval.settings import Pool
from raydense.runtime.progress import Progress, say
from raydense.storage import Artifact, Draft, provenance, provenance_of, read_manifest, releases_outputs

if TYPE_CHECKING:
    from raydense.retrieval.asking import Answer
    from raydense.retrieval.pool import Queries, SearchPool

REPORT = "report.md"
_BLOCK = 2_048
# The first rank of each bar of the histogram.
_BINS = [*range(1, 11), *(edge * 10**power + 1 for power in range(1, 9) for edge in (1, 2, 5))]


@releases_outputs
def filter(settings: FilterSettings) -> Artifact:
    """The generated queries whose own passage, or one of the same text, is among the first k that the index finds.

    The output is again of kind `generated`, with the same files and rows; each list keeps its order and loses the queries that
    were not found. `report.md` has the counts, a histogram of the ranks and a sample to read. A second run after a kill continues
    with the missing files; the result is the same for any number of replicas, threads or shards of an exact index.
    Raises InputError if generated queries, index, model and corpus do not belong together, if the index was expanded with
    these queries, if a running pool answers from another index or switches to one meanwhile, and if no query is left.
    """
    running: SearchPool | None = None
    if settings.pool:
        if done := _finished(settings):  # which no longer needs the pool
            return done
        running, settings = _by_pool(settings)
    made_from, index = provenance("filter", settings), Artifact.open(settings.index, "index")
    if read_manifest(settings.output) is None:
        kind_of(index).check_params(settings.search_params)
    draft = Draft.open(settings.output, "generated", made_from)
    if draft.done:
        return draft.done
    store = PassageStore(settings.corpus)
    generated = Generated(settings.generated, store)
    store.refuse_rows_of_another(index)
    check_model(settings.model, index, settings.prompt)
    _refuse_expanded(index, generated)
    _filter_files(draft, settings, index, generated, store, running)
    notes = [file.note for file in draft.committed().values() if file.path != REPORT]
    try:
        summary = _sum_up(settings, notes)
    except InputError:  # the settings that fix it make other files
        draft.discard()
        raise
    samples = [path for name in generated.ranges if (path := draft.kept(_sample(name)))]
    draft.commit(REPORT, partial(write_report, settings=settings, summary=summary, samples=samples, store=store), 0)
    share = 100 * summary["queries"] / summary["read"]
    say(f"filter: {summary['queries']:,} of {summary['read']:,} queries kept ({share:.1f}%); {summary['without']:,} passages have none")
    made_with = {"model": generated.artifact.summary.get("model"), "corpus": store.fingerprint, "index": index.fingerprint}
    made_with["origin"] = generated.origin
    return draft.finish(len(generated), **made_with, k=settings.k, **summary)


def _finished(settings: FilterSettings) -> Artifact | None:
    """A finished output by a running pool; InputError if it was made from other settings or inputs."""
    manifest = read_manifest(settings.output)
    if manifest is None:
        return None
    return Draft.open(settings.output, "generated", provenance_of(manifest["made_from"], "filter", settings)).done


def _by_pool(settings: FilterSettings) -> tuple[SearchPool, FilterSettings]:
    """The running pool of the settings, pinned to the index that it answers from now, and the settings of the same search without it."""
    from raydense.retrieval.pool import SearchPool

    pool = SearchPool.connect(settings.pool, pinned=True)
    pool.refuse_other_index(settings.index)
    return pool, settings.model_copy(update={"search_params": pool.plan.search_params})


def _refuse_expanded(index: Artifact, generated: Generated) -> None:
    """InputError if the index was expanded with these queries: it would find each passage by the query itself, and drop nothing."""
    if expanded_with(index) == generated.origin:
        raise InputError("was expanded with these same queries", index.place, "give an index of the passages alone")


@dataclass(frozen=True)
class FileQueries:
    """The queries of one file, list after list, and the row of the passage that each was written for."""

    lists: pa.ListArray
    start: int

    @property
    def counts(self) -> Rows:
        """How many queries each passage has, int64 [passages]."""
        return self.lists.value_lengths().to_numpy().astype(np.int64)

    @property
    def own(self) -> Rows:
        """The row of the passage of each query, int64 [queries]."""
        return np.repeat(np.arange(self.start, self.start + len(self.lists)), self.counts)

    def texts(self, at: int) -> list[str]:
        """The texts of the block that begins at query `at`."""
        found: list[str] = self.lists.flatten().slice(at, _BLOCK).to_pylist()
        return found

    def kept(self, kept: Flags) -> pa.ListArray:
        """The lists with only the queries that `kept` bool [queries] marks, in their order."""
        before = np.concatenate([[0], np.cumsum(kept)])
        ends = np.concatenate([[0], np.cumsum(self.counts)])
        return pa.ListArray.from_arrays(pa.array(before[ends], pa.int32()), self.lists.flatten().filter(pa.array(kept)))


def places(rows: Rows, own: Rows, text_hash: NDArray[np.uint64]) -> Rows:
    """The rank, from 1, at which each query's hits `rows` int64 [n, k] (-1: none) have its `own` passage or one of the same text.

    `text_hash` uint64 is by row. Returns int64 [n]; 0 if no hit is such a passage.
    """
    same = (rows >= 0) & (text_hash[rows] == text_hash[own][:, None])
    return np.where(same.any(axis=1), same.argmax(axis=1) + 1, 0)


def _filter_files(
    draft: Draft, settings: FilterSettings, index: Artifact, generated: Generated, store: PassageStore, running: SearchPool | None
) -> None:
    """Commit the files that are missing, by the pool that is running, or by one for all of them."""
    done = draft.committed()
    pending = {name: rows for name, rows in generated.ranges.items() if name not in done or draft.kept(_sample(name)) is None}
    counts = generated.counts()
    left = sum(int(counts[start:stop].sum()) for start, stop in pending.values())
    if not counts.sum():
        raise InputError("has no queries", settings.generated, "give what `raydense generate` wrote")
    if not pending:
        return
    from raydense.retrieval.pool import SearchPool

    given = {key: getattr(settings, key) for key in Pool.model_fields}
    with running or SearchPool.start(index, **given) as pool:
        stream = _blocks(settings, index, generated, list(pending.values()), pool)
        hits = pool.answers(stream, settings.k)
        with closing(stream), Progress("filter", int(counts.sum()), "queries", int(counts.sum()) - left) as progress:
            for name, rows in pending.items():
                asked = _asked(generated, *rows)
                _commit(draft, settings, name, asked, *_found(asked.own, hits, store, progress))


def _blocks(
    settings: FilterSettings, index: Artifact, generated: Generated, ranges: list[tuple[int, int]], pool: SearchPool
) -> Generator[Queries, None, None]:
    """The queries of the files with these rows as the index takes them, a block at a time: their vectors, or the texts for BM25."""
    counts, summary = generated.counts(), index.summary
    ends = [(start, stop, int(counts[start:stop].sum())) for start, stop in ranges]
    blocks = [{"start": start, "stop": stop, "at": at} for start, stop, total in ends for at in range(0, total, _BLOCK)]
    if not settings.model:
        return (_asked(generated, block["start"], block["stop"]).texts(block["at"]) for block in blocks)
    texts = partial(_block_texts, folder=generated.artifact.located, fingerprint=generated.artifact.fingerprint)
    on_cpu = pool.plan.gpu and leaves_no_gpu(pool)
    return encode_blocks("filter", settings.model, summary["model"], summary["dimension"], blocks, texts, on_cpu, settings.prompt)


def _block_texts(block: pa.Table, folder: str, fingerprint: str) -> list[str]:
    start, stop, at = (block[name][0].as_py() for name in ("start", "stop", "at"))
    return _asked(_opened(folder, fingerprint), start, stop).texts(at)


@lru_cache(maxsize=1)
def _opened(folder: str, fingerprint: str) -> Generated:
    """The artifact, kept open by a worker process; InputError if it does not have the fingerprint."""
    return Generated(folder, fingerprint=fingerprint)


def _asked(generated: Generated, start: int, stop: int) -> FileQueries:
    return FileQueries(generated.slice(start, stop), start)


def _found(own: Rows, hits: Iterator[Answer], store: PassageStore, progress: Progress) -> tuple[Rows, Rows]:
    """The rank of each query's own passage in the next hits, 0 if it is not among them, and the row of its first hit."""
    place, first = np.zeros_like(own), np.full_like(own, -1)
    for at in range(0, len(own), _BLOCK):
        _, rows = next(hits).hits
        block = slice(at, at + _BLOCK)
        place[block], first[block] = places(rows, own[block], store.text_hash), rows[:, 0]
        progress.add(len(rows))
    return place, first


def _commit(draft: Draft, settings: FilterSettings, name: str, asked: FileQueries, place: Rows, first: Rows) -> None:
    """Commit the queries of a file that are kept, and store its sample for the report."""
    kept = asked.kept(place > 0)
    bins = [*(edge for edge in _BINS if edge <= settings.k), settings.k + 1]
    ranks = np.histogram(place[place > 0], bins)[0].tolist()
    spans = [str(low) if low + 1 == high else f"{low} to {high - 1}" for low, high in pairwise(bins)]
    counts = {
        "read": len(place),
        "queries": int((place > 0).sum()),
        "without": int((kept.value_lengths().to_numpy() == 0).sum()),
        "without_before": int((asked.counts == 0).sum()),
    }
    draft.keep(_sample(name), partial(write_arrow, table=_drawn(settings.seed, asked, place, first)))
    commit_queries(draft, name, asked.start, kept, counts=counts, ranks=dict(zip(spans, ranks, strict=True)))


def _sample(name: str) -> str:
    return f"sample-{name}"


def _drawn(seed: int, asked: FileQueries, place: Rows, first: Rows) -> pa.Table:
    """Of the kept and of the dropped queries of a file those with the lowest random numbers, each with its passage's row, its place and the first hit."""
    own = asked.own
    ends = np.cumsum(asked.counts)
    drawn = draw(seed, own.astype(np.uint64), np.arange(len(own)) - (ends - asked.counts)[own - asked.start])
    chosen = first_of_each((place == 0).astype(np.int64), drawn, SAMPLE)
    columns = {"drawn": drawn, "own": own, "place": place, "first": first}
    return pa.table({name: column[chosen] for name, column in columns.items()} | {"query": asked.lists.flatten().take(pa.array(chosen))})


def _sum_up(settings: FilterSettings, notes: list[dict[str, Any]]) -> dict[str, Any]:
    """The summary from the notes of the files; InputError if nothing is left."""
    counts = added(note["counts"] for note in notes)
    if not counts["queries"]:
        raise InputError("no query is left", settings.generated, "give a greater k, or an index that finds more")
    return {**counts, "ranks": added(note["ranks"] for note in notes)}
