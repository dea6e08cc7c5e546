import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from raydense.models.tokens import Tokens, batches_by_token_budget

LISTS = st.lists(st.lists(st.integers(1, 99), max_size=9), max_size=12)


def tokens_of(lists: list[list[int]], typed: bool = False) -> Tokens:
    offsets = np.concatenate([[0], np.cumsum([len(x) for x in lists], dtype=np.int64)]).astype(np.int64)
    ids = np.array([i for x in lists for i in x], dtype=np.int32)
    return Tokens(ids, offsets, (ids % 2).astype(np.int8) if typed else None)


def lists_of(tokens: Tokens) -> list[list[int]]:
    return [tokens.ids[a:b].tolist() for a, b in zip(tokens.offsets[:-1], tokens.offsets[1:], strict=True)]


@given(st.lists(st.integers(0, 600), max_size=80), st.integers(1, 2_000), st.integers(1, 20))
def test_batches_hold_each_text_once_within_the_budget(lengths, budget, most):
    batches = batches_by_token_budget(np.array(lengths, dtype=np.int64), budget, most)
    taken = np.concatenate(batches).tolist() if batches else []
    assert sorted(taken) == list(range(len(lengths)))
    assert taken == sorted(range(len(lengths)), key=lambda i: (-lengths[i], i))
    for batch in batches:
        assert 1 <= len(batch) <= most
        assert len(batch) == 1 or max(lengths[i] for i in batch) * len(batch) <= budget


@given(st.lists(st.integers(1, 600), min_size=2, max_size=80), st.integers(600, 5_000))
def test_no_batch_could_have_taken_the_next_text(lengths, budget):
    batches = batches_by_token_budget(np.array(lengths), budget, 1_000)
    for batch in batches[:-1]:
        assert lengths[batch[0]] * (len(batch) + 1) > budget


@given(LISTS, st.booleans(), st.data())
def test_select_is_a_list_of_lists_indexed(lists, typed, data):
    indices = data.draw(st.lists(st.integers(0, len(lists) - 1), max_size=9)) if lists else []
    chosen = tokens_of(lists, typed).select(np.array(indices, dtype=np.int64))
    wanted = tokens_of([lists[i] for i in indices], typed)
    assert lists_of(chosen) == lists_of(wanted)
    assert chosen.lengths.tolist() == [len(lists[i]) for i in indices]
    if typed:
        assert chosen.types.tolist() == wanted.types.tolist()


@given(LISTS, st.booleans())
def test_pad_puts_tokens_first_and_masks_the_rest(lists, typed):
    batch = tokens_of(lists, typed).pad(7)
    longest = max(1, *map(len, lists)) if lists else 0  # no model takes texts of no tokens alone
    assert batch["input_ids"].tolist() == [x + [7] * (longest - len(x)) for x in lists]
    assert batch["attention_mask"].tolist() == [[1] * len(x) + [0] * (longest - len(x)) for x in lists]
    assert all(t.dtype == torch.int64 and t.shape == (len(lists), longest) for t in batch.values())
    if typed:
        assert batch["token_type_ids"].tolist() == [[i % 2 for i in x] + [0] * (longest - len(x)) for x in lists]
    assert ("token_type_ids" in batch) == typed


def test_no_texts_are_no_batches():
    assert batches_by_token_budget(np.empty(0, np.int64), 100) == []
    assert tokens_of([]).pad(0)["input_ids"].shape == (0, 0)


@pytest.mark.parametrize("dtype", [np.int32, np.int64, np.uint32])
def test_lengths_of_any_integer_type_are_sorted_alike(dtype):
    assert [b.tolist() for b in batches_by_token_budget(np.array([2, 9, 2], dtype=dtype), 9)] == [[1], [0, 2]]
