"""Tokens of many texts or pairs without padding, and batches of them that need little padding.

Padding is added last, batch by batch (`Tokens.pad`), from flat arrays: only real tokens are sent between processes.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from raydense.ranges import ranges

Batch = dict[str, torch.Tensor]  # padded, for the forward of a model


@dataclass(frozen=True)
class Tokens:
    """The tokens of n texts: text i has `ids[offsets[i] : offsets[i + 1]]`.

    `ids` is int32 [total], `offsets` int64 [n + 1] from 0 to total; `types` (int8 [total], or None) are the segments of pairs.
    """

    ids: NDArray[np.int32]
    offsets: NDArray[np.int64]
    types: NDArray[np.int8] | None = None

    def __len__(self) -> int:
        return len(self.offsets) - 1

    @property
    def lengths(self) -> NDArray[np.int64]:
        """Tokens of each text, int64 [n]."""
        return np.diff(self.offsets)

    def select(self, indices: NDArray[np.integer]) -> Tokens:
        """The texts at `indices`, in that order; an index may be repeated."""
        lengths = self.lengths[indices]
        offsets = np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)])
        places = ranges(self.offsets[:-1][indices], lengths)
        return Tokens(self.ids[places], offsets, None if self.types is None else self.types[places])

    def pad(self, pad_id: int, device: torch.device | str = "cpu") -> Batch:
        """A padded batch for an encoder, int64 [n, longest, at least 1]: input_ids, attention_mask, and token_type_ids if there are types."""
        lengths = self.lengths
        real = np.arange(lengths.max(initial=min(1, len(self)))) < lengths[:, None]  # no model takes texts of no tokens alone
        batch = {"input_ids": _fill(real, self.ids, pad_id), "attention_mask": real.astype(np.int64)}
        if self.types is not None:
            batch["token_type_ids"] = _fill(real, self.types, 0)
        return {name: torch.from_numpy(values).to(device, non_blocking=True) for name, values in batch.items()}


def _fill(real: NDArray[np.bool_], values: NDArray, blank: int) -> NDArray[np.int64]:
    filled = np.full(real.shape, blank, dtype=np.int64)
    filled[real] = values
    return filled


def batches_by_token_budget(lengths: NDArray[np.integer], budget: int, max_batch: int = 1024) -> list[NDArray[np.int64]]:
    """Cut n texts into batches whose padded size, longest x count, is at most `budget` tokens.

    Texts are taken longest first (equal lengths in their given order), so neighbours need little padding and the first batch
    is the one that needs most memory. Each index comes exactly once; a text longer than the budget is a batch of its own.
    """
    order = np.argsort(-np.asarray(lengths, dtype=np.int64), kind="stable")
    batches = []
    start = 0
    while start < len(order):
        longest = max(1, int(lengths[order[start]]))
        count = min(max(1, budget // longest), max_batch)
        batches.append(order[start : start + count])
        start += count
    return batches
