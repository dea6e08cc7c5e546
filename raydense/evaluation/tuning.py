"""Tunes the weights of a fusion: of all combinations in small steps, the one with the best metric on dev queries."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import product
from typing import TYPE_CHECKING, Any

import numpy as np

from raydense.evaluation.metrics import Judgements, Measuring
from raydense.retrieval.fusion import Pooled

if TYPE_CHECKING:
    from raydense.evaluation.fuse import Block

_DEEPEST = 1_000  # hits that count for a metric without cutoff


def combinations(runs: int) -> list[list[float]]:
    """Weights that sum to 1: of two runs in steps of 0.05, of more in steps of 0.1."""
    steps = 20 if runs == 2 else 10
    first = product(range(steps + 1), repeat=runs - 1)
    return [[part / steps for part in (*parts, steps - sum(parts))] for parts in first if sum(parts) <= steps]


def tuned(judgements: Judgements, blocks: Iterable[tuple[Block, Pooled]], runs: int) -> tuple[list[float], dict[str, Any]]:
    """The weights with the best mean metric, of equal ones those nearest to each other; and the means: `fused`, and of each run `alone`.

    A judged query that no run has counts 0 for all.
    """
    tried = combinations(runs)
    measuring = [Measuring(judgements, "the fused run") for _ in tried]
    (measure,) = judgements.measures
    most = int(measure.params.get("cutoff", _DEEPEST))
    for block, pooled in blocks:
        for weights, each in zip(tried, measuring, strict=True):
            each.add(block.table(pooled.fused(weights, most)))
    means = np.array([next(iter(each.result().means.values())) for each in measuring])
    spread = np.array([max(weights) - min(weights) for weights in tried])
    best = int(np.lexsort((spread, -np.round(means, 12)))[0])
    ends = [tried.index([float(run == other) for other in range(runs)]) for run in range(runs)]
    return tried[best], {"fused": float(means[best]), "alone": means[ends].tolist()}
