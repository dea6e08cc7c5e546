"""Epochs over several sources: how often each example comes, and that a batch of one source is one."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from raydense.errors import InputError
from raydense.training.epochs import Epochs
from raydense.training.examples import Examples
from raydense.training.ragged import Ragged


def examples(sizes: list[int], weights: list[float]) -> Examples:
    source = np.random.default_rng(0).permutation(np.repeat(np.arange(len(sizes)), sizes))
    each = Ragged(np.arange(len(source)), np.arange(len(source) + 1))
    return Examples(
        np.arange(len(source)), each, each, source=source, weights={f"s{number}": weight for number, weight in enumerate(weights)}
    )


@given(
    sizes=st.lists(st.integers(0, 30), min_size=1, max_size=4),
    weights=st.lists(st.sampled_from([0.3, 0.5, 1.0, 2.0, 2.6]), min_size=4, max_size=4),
    batch=st.integers(1, 6),
    one=st.booleans(),
    epoch=st.integers(0, 3),
)
def test_each_source_comes_as_often_as_its_weight_says(sizes: list[int], weights: list[float], batch: int, one: bool, epoch: int) -> None:
    given_ = examples(sizes, weights[: len(sizes)])
    least = batch if one else 1
    if any(size and round(size * weight) < least for size, weight in zip(sizes, weights, strict=False)):
        with pytest.raises(InputError, match=r"source s\d has \d examples an epoch, by its weight, and is never drawn"):
            Epochs(given_, batch, one, seed=5)
        return
    epochs = Epochs(given_, batch, one, seed=5)
    order = epochs.order(epoch)
    assert given_.source is not None
    for number, (size, weight) in enumerate(zip(sizes, weights, strict=False)):
        times = np.bincount(order, minlength=len(given_))[given_.source == number]
        count = round(size * weight)
        assert times.sum() == (count // batch * batch if one else count)
        assert not size or times.max() <= -(-count // size)
        assert one or not size or times.min() >= count // size
    assert epochs.steps == len(order) // batch
    if one:
        assert all(len(set(given_.source[of])) == 1 for of in order.reshape(-1, batch))
    assert np.array_equal(order, epochs.order(epoch))


def test_without_weights_the_order_is_that_of_examples_without_sources() -> None:
    plain, mixed = (Epochs(one, 4, False, 7).order(2) for one in (examples([20], [1.0]), examples([12, 8], [1.0, 1.0])))
    assert np.array_equal(plain, mixed)
    assert np.array_equal(plain, np.random.default_rng([7, 2]).permutation(20))
