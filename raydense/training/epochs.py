"""Which examples an epoch has, and in which order: all once, or of several sources each as often as its weight says."""

from __future__ import annotations

import numpy as np

from raydense.errors import InputError
from raydense.training.examples import Examples
from raydense.training.ragged import Ints


class Epochs:
    """The order of the examples of each epoch, a pure function of (seed, epoch); `steps` is how many batches it has.

    Without sources an epoch has every example once. With `one_source` each batch has examples of one source; the batches of all
    sources are in random order, and each source's last, incomplete one is dropped. Where the examples have topics, a batch has examples of
    one topic, or of the end of one and the next ones. InputError if a source would never be drawn.
    """

    def __init__(self, examples: Examples, batch_size: int, one_source: bool, seed: int) -> None:
        self._batch_size, self._one_source, self._seed, self._topic = batch_size, one_source, seed, examples.topic
        self._sources: list[tuple[Ints, int]] = []
        if examples.source is not None and (one_source or set(examples.weights.values()) != {1}):
            members = [np.flatnonzero(examples.source == number) for number in range(len(examples.weights))]
            self._sources = [(one, round(weight * len(one))) for one, weight in zip(members, examples.weights.values(), strict=True)]
            self._refuse_undrawn(list(examples.weights))
        self._examples = len(examples)
        counts = [count for _, count in self._sources] or [self._examples]
        self.steps = sum(count // batch_size for count in counts) if one_source else sum(counts) // batch_size

    def _refuse_undrawn(self, names: list[str]) -> None:
        least = self._batch_size if self._one_source else 1
        for name, (members, count) in zip(names, self._sources, strict=True):
            if len(members) and count < least:
                what = f"source {name} has {count} examples an epoch, by its weight, and is never drawn: a batch has {self._batch_size}"
                raise InputError(what, "one_source" if self._one_source else "weights", "give it a larger weight, or leave it out")

    def order(self, epoch: int) -> Ints:
        """The positions of the epoch's examples, int64 [n]: batch b has those from b * batch_size on."""
        rng = np.random.default_rng([self._seed, epoch])
        if not self._sources:
            return self._shuffled(np.arange(self._examples), rng)
        drawn = [_drawn(members, count, rng) for members, count in self._sources]
        if not self._one_source:
            return self._shuffled(np.concatenate(drawn), rng)
        shuffled = [self._shuffled(of_source, rng)[: len(of_source) // self._batch_size * self._batch_size] for of_source in drawn]
        return rng.permutation(np.concatenate(shuffled).reshape(-1, self._batch_size)).ravel()

    def _shuffled(self, members: Ints, rng: np.random.Generator) -> Ints:
        """The members in random order; with topics, batch by batch: what is left of the last batch comes last."""
        if self._topic is None:
            return rng.permutation(members)
        rank = rng.permutation(self._topic.max() + 1)[self._topic[members]]
        by_topic = members[np.lexsort((rng.random(len(members)), rank))]
        whole = len(members) // self._batch_size * self._batch_size
        return np.concatenate([rng.permutation(by_topic[:whole].reshape(-1, self._batch_size)).ravel(), by_topic[whole:]])


def _drawn(members: Ints, count: int, rng: np.random.Generator) -> Ints:
    """`count` of the members: each equally often, and some once more that are drawn at random."""
    times, more = divmod(count, max(1, len(members)))
    return np.concatenate([np.tile(members, times), rng.choice(members, more, replace=False)])
