"""The batches of a training: which examples, positives and hard negatives each step sees, for any number of workers.

A step's batch is a pure function of (seed, epoch, step). A step has `accumulation` parts; a worker takes its contiguous slice
of each part, so that the negatives of a part come from the same queries for any number of workers.
"""

from __future__ import annotations

import threading
from dataclasses import replace
from functools import lru_cache

import numpy as np

from raydense.errors import InputError
from raydense.training.epochs import Epochs
from raydense.training.examples import Examples
from raydense.training.loop_settings import LoopSettings
from raydense.training.method import method_of
from raydense.training.part import Part


class Sampler:
    """The order of the examples: `step(s)` is the global batch of step s, in parts. The last, incomplete batch of an epoch is dropped."""

    def __init__(self, examples: Examples, settings: LoopSettings) -> None:
        self.examples, self.batch_size, self.accumulation = examples, settings.batch_size, settings.accumulation
        self.draws, self.seed, self.settings = method_of(settings).draws(settings), settings.seed, settings
        epochs = Epochs(examples, self.batch_size, getattr(settings, "one_source", False), self.seed)
        self.steps_per_epoch = epochs.steps
        self._order = lru_cache(maxsize=2)(epochs.order)  # two: threads make batches of the end of one and of the start of the next
        self._making = threading.Lock()
        if not self.steps_per_epoch:
            raise InputError(
                f"{len(examples):,} examples are fewer than one batch of {self.batch_size:,}",
                "batch_size",
                "lower it, or give more examples",
            )

    def steps(self, epochs: float, max_steps: int) -> int:
        """Steps of a training of so many epochs; `max_steps`, if not 0, is the number itself."""
        return max_steps or max(1, int(epochs * self.steps_per_epoch))

    def step(self, step: int) -> list[Part]:
        """The global batch of `step` (counted over the whole run, from 0), in its parts."""
        epoch, at = divmod(step, self.steps_per_epoch)
        with self._making:  # each thread would make them anew
            order, known = self._order(epoch), self.examples.known
        chosen = order[at * self.batch_size : (at + 1) * self.batch_size]
        rng = np.random.default_rng([self.seed, epoch, at])
        listed, draws = self.examples.positives.take(chosen), self.draws
        positives, scores = listed.draw(draws.positives, rng) if draws.random_positives else listed.first(draws.positives)
        negatives = np.zeros((len(chosen), 0), np.int64)
        if draws.negatives:
            given = self.examples.negatives.take(chosen)
            log_weights = method_of(self.settings).log_weights(self.settings, scores[:, 0], given)
            negatives, of_negatives = given.draw(draws.negatives, rng, log_weights)
            scores = np.concatenate([scores, of_negatives], axis=1)
        whole = Part(self.examples.query[chosen], positives, negatives, known.take(chosen))
        if listed.scores is not None:
            whole = replace(whole, scores=scores)
        states = rng.integers(2**63, size=self.accumulation).tolist()
        return [replace(whole.slice_of(part, self.accumulation), random_state=state) for part, state in enumerate(states)]
