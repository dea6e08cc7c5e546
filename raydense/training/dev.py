"""The dev metrics during training: of a retriever over a small set of passages, of a re-ranker over the first hits of a run.

The work is split over the workers; each has the same number of batches, as ZeRO 3 requires. Worker 0 compares the vectors, a block of queries
at a time, and sends the metrics to the others: what follows from them is the same on all.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import torch
import torch.distributed as dist
from numpy.typing import NDArray
from torch import Tensor, nn

from raydense.data.lookup import IdLookup
from raydense.data.runs import BLOCK_ROWS, query_blocks
from raydense.data.store import PassageStore
from raydense.data.tables import positives_of, query_positions, read_table
from raydense.errors import InputError
from raydense.models.cross_encoder import CrossEncoder
from raydense.models.dual_encoder import DualEncoder
from raydense.models.sharded import OnAllWorkers
from raydense.models.tokens import Tokens
from raydense.runtime.progress import say
from raydense.storage import Artifact
from raydense.training.engine import Engine
from raydense.training.gather import gather
from raydense.training.ragged import Ragged
from raydense.training.settings import DevSettings
from raydense.training.texts import Texts

METRICS = ("mrr@10", "ndcg@10", "recall@100")
METRIC, OF_RERANKER = METRICS[0], "reranker mrr@10"
_DEPTH = 20
_BATCH = 64  # texts, or pairs, that go through the model at once, at most
_AT_ONCE = 2**23  # scores that are compared at once
_RANDOM = 0.25  # of the passages next to the positives, at least
Ints = NDArray[np.int64]


@dataclass(frozen=True)
class DevSet:
    """Dev queries by position [n], the rows of their candidates, and which of these are relevant: the columns of each query, as of `relevant_columns`.

    A retriever's candidates are the same for all queries: rows [p]. A re-ranker's are each query's own: rows [n, depth], absent bool
    [n, depth] where a query has fewer. `sources` has, of queries of `mix`, which are of each source: bool [n].
    """

    query: Ints
    rows: Ints
    relevant: Ragged
    absent: NDArray[np.bool_] | None = None
    sources: dict[str, NDArray[np.bool_]] = field(default_factory=dict)

    def relevant_of(self, block: slice) -> NDArray[np.bool_]:
        """Which candidates are relevant for a block of the queries: bool [b, p], or [b, depth]. Of all queries it would be far more than the rest."""
        found = self.relevant.take(np.arange(len(self.query))[block])
        relevant = np.zeros((len(found), self.rows.shape[-1]), bool)
        relevant[found.owner, found.values] = True
        return relevant


def relevant_columns(of_query: Ints, column: Ints, queries: int) -> Ragged:
    """The relevant columns of each of so many queries, rising, from pairs of a query's number and a column, in any order; each pair counts once."""
    of_query, column = np.unique(np.stack([of_query, column]), axis=1)
    return Ragged(column, np.append(0, np.cumsum(np.bincount(of_query, minlength=queries))))


MakeDevSet = Callable[[Ints, Ints, Any, int, int, np.random.Generator], DevSet]


def read_dev_sets(settings: Any, store: PassageStore, made: dict[str, MakeDevSet]) -> dict[str, DevSet]:
    """The dev sets that a method measures, by the names of the metrics; empty without the group `dev`.

    `dev.passages` bounds the passages, or the pairs, of one measurement. A query whose positives the corpus lacks is no dev query.
    """
    dev: DevSettings | None = settings.dev
    if dev is None:
        return {}
    queries = read_table(settings.queries, "queries")
    qrels = positives_of(read_table(dev.qrels, "qrels"))
    if not qrels.num_rows:
        raise InputError("no judgement with relevance of at least 1", dev.qrels, "give others")
    judged, qrels = len(qrels), store.known_judgements(qrels, dev.qrels)
    store.say_lacking("train", judged - len(qrels), judged, dev.qrels)
    at = query_positions(qrels["query_id"], queries, dev.qrels)
    rows = store.known_rows(qrels["passage_id"], dev.qrels)
    run = _first_of_run(dev, np.unique(at), queries, store) if dev.run else None
    if run is not None:
        _refuse_another(run[0], at, dev)
    sets = {name: make(at, rows, run, dev.passages, len(store), np.random.default_rng([settings.seed, 1])) for name, make in made.items()}
    for one in sets.values():
        if one.absent is not None and not len(one.relevant.values):
            raise InputError(f"has no relevant passage among the first {_DEPTH} of a dev query", dev.run, "give better candidates")
    return {name: replace(one, sources=_of_sources(one.query, queries)) for name, one in sets.items()}


def _refuse_another(of_run: Ints, judged: Ints, dev: DevSettings) -> None:
    """InputError where the run has none of the dev queries; where it lacks some, it is said."""
    asked = np.unique(judged)
    lacking = int((~np.isin(asked, of_run)).sum())
    if lacking == len(asked):
        raise InputError(f"has no query that is judged in {dev.qrels}", dev.run, "give candidates of the dev queries")
    if lacking:
        say(f"train: {lacking:,} of {len(asked):,} dev queries are not in {dev.run}: as candidates they have none")


def _of_sources(query: Ints, queries: pa.Table) -> dict[str, NDArray[np.bool_]]:
    """Which of the dev queries are of each source, where they are of several."""
    if "source" not in queries.column_names:
        return {}
    source = np.array(queries["source"].take(pa.array(query)).to_pylist(), object)
    names = sorted(set(source))
    return {name: source == name for name in names} if len(names) > 1 else {}


def _first_of_run(dev: DevSettings, judged: Ints, queries: pa.Table, store: PassageStore) -> tuple[Ints, Ints, Ints]:
    """Query positions, ranks (from 0) and rows of the first passages of the judged queries in a run, in its order; reads it in blocks."""
    assert dev.run is not None
    run = Artifact.open(dev.run, "run")
    store.refuse_rows_of_another(run)
    lookup = IdLookup(queries["query_id"].take(pa.array(judged)))
    found = [np.empty((3, 0), np.int64)]
    for block in query_blocks(run.parts(".parquet"), BLOCK_ROWS, ["query_id", "passage_id", "rank"]):
        block = block.filter(pc.less_equal(block["rank"], _DEPTH))
        place = lookup.positions_of_rows(block["query_id"])
        mine = block.filter(pa.array(place >= 0))
        found.append(np.stack([judged[place[place >= 0]], mine["rank"].to_numpy() - 1, store.known_rows(mine["passage_id"], dev.run)]))
    at, rank, rows = np.concatenate(found, axis=1)
    return at, rank, rows


def retriever_set(at: Ints, rows: Ints, run: Any, most: int, corpus: int, rng: np.random.Generator) -> DevSet:
    """Queries over a small set of passages: their positives, the first hits of the run, and passages drawn at random.

    Where their positives alone are more than half of the passages, as many of the queries are drawn as leave half for others. There are no
    more queries than passages.
    """
    at, rows = _drawn(at, rows, most // 2, rng)
    kept = np.unique(rows)
    if run is not None:
        run_at, rank, run_rows = run
        mine = np.isin(run_at, at) & ~np.isin(run_rows, kept)
        hard = run_rows[mine][np.argsort(rank[mine], kind="stable")]
        _, first = np.unique(hard, return_index=True)
        kept = np.union1d(kept, hard[np.sort(first)][: int((1 - _RANDOM) * max(0, most - len(kept)))])
    if len(kept) < most:
        others = rng.choice(corpus, size=min(corpus, 2 * most), replace=False)
        kept = np.sort(np.concatenate([kept, others[~np.isin(others, kept)][: most - len(kept)]]))
    query, of_query = np.unique(at, return_inverse=True)
    return DevSet(query, kept, relevant_columns(of_query, np.searchsorted(kept, rows), len(query)))


def _drawn(at: Ints, rows: Ints, most: int, rng: np.random.Generator) -> tuple[Ints, Ints]:
    """The judgements of at most `2 * most` queries, drawn at random, that have at most `most` of them, or name at most `most` passages."""
    query, of_query = np.unique(at, return_inverse=True)
    fits = len(np.unique(rows)) <= most
    if fits and len(query) <= 2 * most:
        return at, rows
    order = rng.permutation(len(query))
    held = np.cumsum(np.bincount(of_query)[order])
    count = 2 * most if fits else max(1, int(np.searchsorted(held, most, side="right")))
    taken = np.isin(of_query, order[:count])
    return at[taken], rows[taken]


def reranker_set(at: Ints, rows: Ints, run: Any, most: int, corpus: int, rng: np.random.Generator) -> DevSet:
    """Queries, each over its own first hits in the run."""
    query = np.unique(at)
    if len(query) * _DEPTH > most:
        query = np.sort(rng.choice(query, size=max(1, most // _DEPTH), replace=False))
    run_at, rank, run_rows = run
    mine = np.isin(run_at, query)
    of_query = np.searchsorted(query, run_at[mine])
    candidates = np.full((len(query), _DEPTH), -1, np.int64)
    candidates[of_query, rank[mine]] = run_rows[mine]
    relevant = np.isin(_pair(query[:, None], candidates, corpus), _pair(at, rows, corpus))
    of_query, column = np.nonzero(relevant & (candidates >= 0))
    return DevSet(query, np.maximum(candidates, 0), relevant_columns(of_query, column, len(query)), candidates < 0)


def _pair(query: Ints, rows: Ints, corpus: int) -> Ints:
    return query * np.int64(corpus + 1) + rows + 1


class Dev:
    """This worker's share of a dev set, tokenised; measures the retriever or the re-ranker of the model."""

    def __init__(self, dev: DevSet, model: nn.Module, texts: Texts, rank: int, workers: int, micro_batch: int = 0) -> None:
        """No more than four times `micro_batch` texts go through the model at once: without gradients each takes less; 0: no such limit."""
        kind = DualEncoder if dev.absent is None else CrossEncoder
        model = next(part for part in model.modules() if isinstance(part, kind))
        self.dev, self.model, self.rank, self.workers = dev, model, rank, workers
        self._at_once = min(_BATCH, 4 * micro_batch or _BATCH)
        if isinstance(model, DualEncoder):
            self._queries = self._share(model.tokenize_queries(texts.queries(self._mine(len(dev.query), dev.query))))
            self._passages = self._share(model.tokenize_passages(texts.passages(self._mine(len(dev.rows), dev.rows))))
        elif isinstance(model, CrossEncoder):
            pairs = np.repeat(dev.query, dev.rows.shape[1])
            queries, rows = self._mine(len(pairs), pairs), self._mine(len(pairs), dev.rows.ravel())
            self._pairs = self._share(model.tokenize_pairs(texts.queries(queries), texts.passages(rows)))

    def _mine(self, total: int, values: Ints) -> Ints:
        """This worker's share of `values`; all shares have the same size, and the last ones are padded with the last value."""
        share = -(-total // self.workers)
        return values[np.minimum(np.arange(self.rank * share, (self.rank + 1) * share), total - 1)]

    @staticmethod
    def _share(tokens: Tokens) -> tuple[Tokens, Ints]:
        """The tokens, and their order by length, which reduces padding."""
        return tokens, np.argsort(tokens.lengths, kind="stable")

    def measure(self, engine: Engine) -> dict[str, float]:
        """The metrics by name, the same on every worker: `METRICS`, of a re-ranker without the recall, which its order does not change.

        Of queries of several sources also the first of these for each source, as `mrr@10 of NAME`. InputError, on all workers, if a score is not a number.
        """
        engine.module.eval()
        with torch.no_grad():
            found = self._of_retriever(engine) if isinstance(self.model, DualEncoder) else self._of_reranker(engine)
        engine.module.train()
        if self.workers > 1:
            dist.broadcast(found, src=0)
        values = found.tolist()
        if any(math.isnan(value) for value in values):
            fix = "lower --lr, clip the gradient with --clip, or give --precision fp32"
            raise OnAllWorkers("the dev scores are not numbers", "train", fix)
        of_source = dict(zip((f"{METRIC} of {name}" for name in self.dev.sources), values[len(METRICS) :], strict=True))
        return dict(zip(METRICS if self.dev.absent is None else METRICS[:2], values, strict=False)) | of_source

    def _of_retriever(self, engine: Engine) -> Tensor:
        queries = gather(self._outputs(engine, self._queries, "queries"))[: len(self.dev.query)].float()
        passages = gather(self._outputs(engine, self._passages, "passages"))[: len(self.dev.rows)].float()
        return self._means(len(queries), lambda block: queries[block] @ passages.T, engine.device)

    def _of_reranker(self, engine: Engine) -> Tensor:
        scores = gather(self._outputs(engine, self._pairs, "pairs"))[: self.dev.rows.size].float().view(self.dev.rows.shape)
        absent = torch.from_numpy(self.dev.absent).to(engine.device)
        return self._means(len(scores), lambda block: scores[block].masked_fill(absent[block], -math.inf), engine.device)

    def _means(self, queries: int, score: Callable[[slice], Tensor], device: torch.device) -> Tensor:
        """The mean of each metric over the queries, and of the first over those of each source, float32 [3 + sources]; worker 0 computes it."""
        summed = torch.zeros(len(METRICS), device=device)
        of_source = torch.zeros(len(self.dev.sources), device=device)
        masks = torch.from_numpy(np.stack([*self.dev.sources.values()])).to(device).float() if self.dev.sources else None
        step = max(1, _AT_ONCE // max(1, self.dev.rows.shape[-1]))
        for at in range(0, queries if self.rank == 0 else 0, step):
            block = slice(at, min(at + step, queries))
            found = of_queries(score(block), torch.from_numpy(self.dev.relevant_of(block)).to(device))
            summed += found.sum(dim=1)
            if masks is not None:
                of_source += masks[:, block] @ found[0]
        return torch.cat([summed / queries, of_source if masks is None else of_source / masks.sum(dim=1)])

    def _outputs(self, engine: Engine, share: tuple[Tokens, Ints], side: str) -> Tensor:
        tokens, order = share
        found = [_one(engine.forward(**{side: batch})) for batch in self._batches(tokens, order, engine.device)]
        back = torch.from_numpy(np.argsort(order)).to(engine.device)
        return torch.cat(found)[back]

    def _batches(self, tokens: Tokens, order: Ints, device: torch.device) -> Iterator[dict[str, Tensor]]:
        for start in range(0, len(order), self._at_once):
            yield tokens.select(order[start : start + self._at_once]).pad(self.model.tokenizer.pad_id, device)


def _one(output: Any) -> Tensor:
    return output if isinstance(output, Tensor) else next(o for o in output if o is not None)


def of_queries(scores: Tensor, relevant: Tensor) -> Tensor:
    """MRR@10, nDCG@10 and recall@100 of each query, float32 [3, n]; all 0 where none is relevant, NaN where a score is NaN.

    scores float [n, p], relevant bool [n, p]: candidates, of which equal scores rank the earlier column first.
    """
    order = torch.sort(scores, dim=1, descending=True, stable=True).indices[:, :100]
    hit, there = relevant.gather(1, order).float(), relevant.sum(dim=1).clamp(min=1)
    first = hit[:, :10]
    discount = 1 / torch.arange(2, 2 + first.shape[1], device=scores.device).log2()
    ideal = discount.cumsum(0)[there.clamp(max=len(discount)) - 1]
    reciprocal = (first / torch.arange(1, 1 + first.shape[1], device=scores.device)).amax(dim=1)
    found = torch.stack([reciprocal, (first * discount).sum(dim=1) / ideal, hit.sum(dim=1) / there])
    return found.masked_fill(scores.isnan().any(dim=1), math.nan)
