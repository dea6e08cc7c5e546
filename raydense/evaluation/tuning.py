"""Tunes the weights of a fusion: of all that are tried, those with the best metric on dev queries."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import product
from typing import TYPE_CHECKING, Any

import numpy as np

from raydense.evaluation.metrics import Judgements, Measuring
from raydense.retrieval.fusion import Pooled
from raydense.runtime.progress import Progress

if TYPE_CHECKING:
    from raydense.evaluation.fuse import Block

_FARTHEST = 16.0  # lambda lies at most so many times above or below the ratio of the spreads,
_STEPS = 4  # in so many steps for each factor of 2


def combinations(runs: int) -> list[list[float]]:
    """Weights that sum to 1, those nearest to each other first: of two runs in steps of 0.05, of more in steps of 0.1."""
    steps = 20 if runs == 2 else 10
    first = product(range(steps + 1), repeat=runs - 1)
    every = [[part / steps for part in (*parts, steps - sum(parts))] for parts in first if sum(parts) <= steps]
    return sorted(every, key=lambda weights: max(weights) - min(weights))


def lambdas(spreads: list[float]) -> list[list[float]]:
    """Weights [1, lambda] for the scores of two runs as they are, and each run alone; first the lambda at which both runs' scores span as much.

    `spreads` is what the scores of each run span.
    """
    ratio = spreads[0] / spreads[1] if min(spreads) > 0 else 1.0
    most = round(_STEPS * np.log2(_FARTHEST))
    nearest_first = sorted(range(-most, most + 1), key=abs)
    return [*([1.0, float(f"{ratio * 2 ** (step / _STEPS):.3g}")] for step in nearest_first), [1.0, 0.0], [0.0, 1.0]]


def tuned(
    judgements: Judgements, blocks: Iterable[tuple[Block, Pooled]], tried: list[list[float]], most: int, progress: Progress
) -> tuple[list[float], dict[str, Any]]:
    """Of the weights that are tried the first with the best mean metric over the first `most` hits; and the means: `fused`, of the `worst`, and of each run `alone`.

    A run alone is measured by its own hits, as `evaluate` does: with the other weights 0 it would end in the passages that it lacks.
    A judged query that no run has counts 0 for all. `progress` counts each block with each weights.
    """
    measuring = [Measuring(judgements, "the fused run") for _ in tried]
    alone = [Measuring(judgements, f"run {number}") for number in range(1, len(tried[0]) + 1)]
    (measure,) = judgements.measures
    whole = measure.params.get("judged_only", False)  # ir-measures leaves out unjudged hits before it cuts
    depth = most if whole else min(most, int(measure.params.get("cutoff", most)))
    for block, pooled in blocks:
        for hits, each in zip(block.runs, alone, strict=True):
            each.add(block.table(hits))
        for weights, each in zip(tried, measuring, strict=True):
            each.add(block.table(pooled.fused(weights, depth)))
            progress.add(1)
    means = [_mean(each) for each in measuring]
    best = int(np.argmax(np.round(means, 12)))
    return tried[best], {"fused": means[best], "worst": min(means), "alone": [_mean(each) for each in alone]}


def _mean(measuring: Measuring) -> float:
    return next(iter(measuring.result().means.values()))
