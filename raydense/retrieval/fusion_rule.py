"""How the hits of several runs or pools are fused: the rule that a fused run keeps in its manifest, or equal weights."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from raydense.errors import InputError
from raydense.retrieval.fusion import Hits, Pooled, Rows, by_rank, by_score
from raydense.retrieval.merge import Hits as PoolHits
from raydense.retrieval.merge import no_hits
from raydense.storage import Artifact

DEPTH = 100  # hits of each pool that are fused where no fused run says how many
_AT_ONCE = 1 << 18  # hits of all pools together that are fused at once: it bounds the memory


@dataclass(frozen=True)
class Rule:
    """The method, whether scores are scaled, and the weight of each run."""

    method: str
    scale: bool
    weights: Sequence[float]

    @classmethod
    def of(cls, folder: str, names: Sequence[str]) -> Rule:
        """That of a fused run, its weights for runs of these names if they are its own, else in its order.

        InputError unless it is a fused run, of as many runs, and where its order would give a run's weight to one of another's name.
        """
        summary = Artifact.open(folder, "run").summary
        if summary.get("kind") != "fused":
            raise InputError("is no fused run", folder, "give one that `raydense fuse` made")
        weights = list(in_order(summary["weights"], names, folder).values())
        if len(weights) != len(names):
            raise InputError(f"fuses {len(weights)} runs, not {len(names)}", folder, "give as many, in the same order")
        return cls(summary["method"], summary["scale"], weights)

    def pooled(self, runs: list[Hits]) -> Pooled:
        """The part of each run in the scores of the passages of all."""
        return by_rank(runs) if self.method == "reciprocal" else by_score(runs, self.scale)

    def fused(self, runs: list[Hits], most: int) -> Hits:
        """The first `most` passages of each query."""
        return self.pooled(runs).fused(self.weights, most)


@dataclass(frozen=True)
class Fusion:
    """A rule; and of each pool how many hits of a query are fused, and the run of a fused run that it stands for: the name, and the kind of its
    index or else the stage that made it ("": not known).
    """

    rule: Rule
    depths: Sequence[int]
    kinds: Mapping[str, str]

    @classmethod
    def reciprocal(cls, runs: int) -> Fusion:
        """Reciprocal ranks of the first `DEPTH`, with equal weights."""
        return cls(Rule("reciprocal", True, [1.0] * runs), [DEPTH] * runs, {})

    @classmethod
    def of(cls, folder: str, names: Sequence[str]) -> Fusion:
        """That of a fused run, for pools of these names as `Rule.of`; InputError as there."""
        rule = Rule.of(folder, names)
        about = Artifact.open(folder, "run").summary.get("runs")
        if about is None:
            raise InputError("was made by a version that did not keep how many hits it fused", folder, "fuse again")
        about = in_order(about, names, folder)
        return cls(rule, [one["depth"] for one in about.values()], {name: one["kind"] for name, one in about.items()})

    def fused(self, hits: Sequence[PoolHits], ids: Callable[[Rows], pa.Array], k: int) -> PoolHits:
        """The fused hits of pools of one corpus, as `fuse` would make them of their runs.

        `hits` has float32 scores and int64 rows of each pool, [n, m] with -1 for none; `ids` gives the passage ids of rows. Returns
        [n, min(k, hits of all pools)] of both, padded with -inf and -1: by score falling, and of equal ones by passage id falling.
        """
        columns = sum(rows.shape[1] for _, rows in hits)
        k = min(k, columns)
        best, step = no_hits(len(hits[0][0]), k), max(1, _AT_ONCE // columns)
        for at in range(0, len(best[0]), step):
            part = slice(at, at + step)
            rows, runs = _as_runs([(scores[part], found[part]) for scores, found in hits], ids)
            fused = self.rule.fused(runs, k)
            place = fused.query + at, fused.rank - 1
            best[0][place], best[1][place] = fused.score, rows[fused.passage]
        return best


def in_order(of_run: dict[str, Any], names: Sequence[str], folder: str) -> dict[str, Any]:
    """What the manifest of a fused run has of each of its runs: in the order of `names` if these are its own, else in its order."""
    if set(names) == set(of_run):
        return {name: of_run[name] for name in names}
    if any(one != name and name in of_run for one, name in zip(of_run, names, strict=False)):
        what = f"fuses {', '.join(of_run)} in this order, which is not that of {', '.join(names)}"
        raise InputError(what, folder, "write NAME=folder with its names, or give its order")
    return of_run


def _as_runs(hits: Sequence[PoolHits], ids: Callable[[Rows], pa.Array]) -> tuple[Rows, list[Hits]]:
    """The rows of all hits in the order of their passage ids, which is how `Hits` number them; and the hits of each pool."""
    rows = np.unique(np.concatenate([found[found >= 0] for _, found in hits]))
    order = pc.sort_indices(ids(rows)).to_numpy()
    number = np.empty(len(rows), np.int64)
    number[order] = np.arange(len(rows))
    runs = []
    for scores, found in hits:
        query, place = np.nonzero(found >= 0)
        passage = number[np.searchsorted(rows, found[query, place])]
        runs.append(Hits(query, passage, (place + 1).astype(np.int32), scores[query, place]))
    return rows[order], runs
