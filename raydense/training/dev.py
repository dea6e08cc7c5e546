"""The dev metrics during training, MRR@10: of a retriever over a small set of passages, of a re-ranker over the first hits of a run.

The work is split over the workers; each has the same number of batches, as ZeRO 3 requires.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import torch
import torch.distributed as dist
from numpy.typing import NDArray
from torch import Tensor, nn

from raydense.data.store import PassageStore
from raydense.data.tables import positives_of, query_positions, read_table
from raydense.errors import InputError
from raydense.models.cross_encoder import CrossEncoder
from raydense.models.dual_encoder import DualEncoder
from raydense.models.tokens import Tokens
from raydense.training.engine import Engine
from raydense.training.settings import DevSettings
from raydense.training.tensors import pad
from raydense.training.texts import Texts

METRIC, OF_RERANKER = "mrr@10", "reranker mrr@10"
_DEPTH = 20
_BATCH = 64
Ints = NDArray[np.int64]


@dataclass(frozen=True)
class DevSet:
    """Dev queries by position [n], the rows of their candidates, and which of these are relevant.

    A retriever's candidates are the same for all queries: rows [p], relevant bool [n, p]. A re-ranker's are each query's own:
    rows [n, depth], relevant bool [n, depth], absent bool [n, depth] where a query has fewer.
    """

    query: Ints
    rows: Ints
    relevant: NDArray[np.bool_]
    absent: NDArray[np.bool_] | None = None


MakeDevSet = Callable[[Ints, Ints, Any, int, int, np.random.Generator], DevSet]


def read_dev_sets(settings: Any, store: PassageStore, made: dict[str, MakeDevSet]) -> dict[str, DevSet]:
    """The dev sets that a method measures, by the names of the metrics; empty without the group `dev`.

    `dev.passages` bounds the passages, or the pairs, of one measurement.
    """
    dev: DevSettings | None = settings.dev
    if dev is None:
        return {}
    queries = read_table(settings.queries, "queries", ["query_id"])
    qrels = positives_of(read_table(dev.qrels, "qrels"))
    if not qrels.num_rows:
        raise InputError("no judgement with relevance of at least 1", dev.qrels, "give others")
    at = query_positions(qrels["query_id"], queries, dev.qrels)
    rows = store.known_rows(qrels["passage_id"], dev.qrels)
    run = _first_of_run(dev, queries, store) if dev.run else None
    return {name: make(at, rows, run, dev.passages, len(store), np.random.default_rng([settings.seed, 1])) for name, make in made.items()}


def _first_of_run(dev: DevSettings, queries: pa.Table, store: PassageStore) -> tuple[Ints, Ints, Ints]:
    """Query positions, ranks (from 0) and rows of the first passages of a run, ordered by query and rank."""
    assert dev.run is not None
    run = read_table(dev.run, "run", ["query_id", "passage_id", "rank"])
    run = run.filter(pc.less_equal(run["rank"], _DEPTH))
    at = query_positions(run["query_id"], queries, dev.run)
    return at, run["rank"].to_numpy().astype(np.int64) - 1, store.known_rows(run["passage_id"], dev.run)


def retriever_set(at: Ints, rows: Ints, run: Any, most: int, corpus: int, rng: np.random.Generator) -> DevSet:
    """Queries over a small set of passages: their positives, the first hits of the run, and passages drawn at random."""
    kept = np.unique(rows)
    if run is not None:
        run_at, rank, run_rows = run
        hard = run_rows[np.isin(run_at, at)][np.argsort(rank[np.isin(run_at, at)], kind="stable")]
        _, first = np.unique(hard, return_index=True)
        hard = np.setdiff1d(hard[np.sort(first)][: max(0, most - len(kept))], kept)
        kept = np.union1d(kept, hard)
    if len(kept) < most:
        others = rng.choice(corpus, size=min(corpus, 2 * most), replace=False)
        kept = np.sort(np.concatenate([kept, others[~np.isin(others, kept)][: most - len(kept)]]))
    query, of_query = np.unique(at, return_inverse=True)
    relevant = np.zeros((len(query), len(kept)), bool)
    relevant[of_query, np.searchsorted(kept, rows)] = True
    return DevSet(query, kept, relevant)


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
    return DevSet(query, np.maximum(candidates, 0), relevant & (candidates >= 0), candidates < 0)


def _pair(query: Ints, rows: Ints, corpus: int) -> Ints:
    return query * np.int64(corpus + 1) + rows + 1


class Dev:
    """This worker's share of a dev set, tokenised; measures the retriever or the re-ranker of the model."""

    def __init__(self, dev: DevSet, model: nn.Module, texts: Texts, rank: int, workers: int) -> None:
        kind = DualEncoder if dev.absent is None else CrossEncoder
        model = next(part for part in model.modules() if isinstance(part, kind))
        self.dev, self.model, self.rank, self.workers = dev, model, rank, workers
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

    def measure(self, engine: Engine) -> float:
        """MRR@10, the same on every worker; InputError, on all workers, if a score is not a number."""
        engine.module.eval()
        with torch.no_grad():
            scores = self._retriever_scores(engine) if isinstance(self.model, DualEncoder) else self._reranker_scores(engine)
        engine.module.train()
        if np.isnan(scores).any():
            fix = "lower --lr, clip the gradient with --clip, or give --precision fp32"
            raise InputError("the dev scores are not numbers", "train", fix)
        return mrr_at_10(scores, self.dev.relevant)

    def _retriever_scores(self, engine: Engine) -> NDArray[np.float32]:
        queries = self._of_all_workers(self._outputs(engine, self._queries, "queries"), len(self.dev.query))
        passages = self._of_all_workers(self._outputs(engine, self._passages, "passages"), len(self.dev.rows))
        return (queries.float() @ passages.float().T).cpu().numpy()

    def _reranker_scores(self, engine: Engine) -> NDArray[np.float32]:
        flat = self._of_all_workers(self._outputs(engine, self._pairs, "pairs"), self.dev.rows.size)
        scores = flat.float().cpu().numpy().reshape(self.dev.rows.shape)
        assert self.dev.absent is not None
        return np.where(self.dev.absent, np.float32(-np.inf), scores)

    def _outputs(self, engine: Engine, share: tuple[Tokens, Ints], side: str) -> Tensor:
        tokens, order = share
        found = [_one(engine.forward(**{side: batch})) for batch in self._batches(tokens, order, engine.device)]
        back = torch.from_numpy(np.argsort(order)).to(engine.device)
        return torch.cat(found)[back]

    def _batches(self, tokens: Tokens, order: Ints, device: torch.device) -> Iterator[dict[str, Tensor]]:
        for start in range(0, len(order), _BATCH):
            batch = pad(self.model, tokens.select(order[start : start + _BATCH]))
            yield {name: value.to(device) for name, value in batch.items()}

    def _of_all_workers(self, mine: Tensor, total: int) -> Tensor:
        if self.workers == 1:
            return mine[:total]
        gathered = [torch.empty_like(mine) for _ in range(self.workers)]
        dist.all_gather(gathered, mine.contiguous())
        return torch.cat(gathered)[:total]


def _one(output: Any) -> Tensor:
    return output if isinstance(output, Tensor) else next(o for o in output if o is not None)


def mrr_at_10(scores: NDArray[np.float32], relevant: NDArray[np.bool_]) -> float:
    """Mean over queries of 1 / rank of the first relevant candidate, 0 beyond rank 10; ties go to the earlier column.

    scores float [n, p], relevant bool [n, p].
    """
    best = np.where(relevant, scores, -np.inf).max(axis=1, keepdims=True)
    first = np.argmax(relevant & (scores == best), axis=1)[:, None]
    before = np.arange(scores.shape[1]) < first
    rank = 1 + ((scores > best) | ((scores == best) & before)).sum(axis=1)
    counted = relevant.any(axis=1) & (rank <= 10)
    return float(np.mean(np.where(counted, 1 / rank, 0.0)))
