"""The best F1 of any span of a paragraph against an answer, exactly: how DuReader-retrieval labels (section 2.2.2, algorithm 1)."""

from __future__ import annotations

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

Tokens = NDArray[np.uint32]
_CELLS = 1 << 20  # pairs of a span's first and last token that are looked at together


def best_span_f1(paragraph: Tokens, answer: Tokens, threshold: float) -> float:
    """The largest F1 of a span (consecutive tokens) of `paragraph` and `answer`, as bags of tokens; 0.0 where it is below `threshold`.

    F1 is `2 c / (s + m)` for a span of `s` tokens, an answer of `m`, and `c` tokens in common, each as often as both have it. No span is
    left out: those that are not looked at cannot be the best. One begins and ends with a token of the answer; and with F1 of at least
    `threshold`, it has at most `m (2 / threshold - 1)` tokens, since `c` is at most `m`.

    Where a span from token i to token j has one token more at j, this one is in common with the answer if the span has it less often so
    far than the answer: if its n-th occurrence before j, with n the times that the answer has it, comes before i. So the tokens in common
    of all spans from i are a running count over j.
    """
    m = len(answer)
    kinds, kind, often = _of_answer(paragraph, answer)
    at = np.flatnonzero(kind >= 0).astype(np.int32)  # the tokens of the paragraph that the answer has
    kind = kind[at]
    common = int(np.minimum(np.bincount(kind, minlength=len(kinds)), often).sum())
    if common == 0 or 2.0 * common / (common + m) < threshold:
        return 0.0
    before = _nth_before(kind, often)
    longest = min(len(paragraph), int(m * (2.0 / threshold - 1.0)) + 1)
    reach = int((np.searchsorted(at, at + longest) - np.arange(len(at))).max())
    window = min(reach, len(at))
    ends = sliding_window_view(np.append(at, np.full(window - 1, np.iinfo(np.int32).max // 2, np.int32)), window)
    befores = sliding_window_view(np.append(before, np.full(window - 1, len(at), np.int32)), window)
    best = 0.0
    for start in range(0, len(at), max(1, _CELLS // window)):
        of = slice(start, start + max(1, _CELLS // window))
        first = np.arange(len(at), dtype=np.int32)[of, None]
        shared = np.cumsum(befores[of] < first, axis=1, dtype=np.int32)
        f1 = 2.0 * shared / (ends[of] - at[of, None] + (1 + m))
        best = max(best, float(f1.max()))
    return best if best >= threshold else 0.0


def _of_answer(paragraph: Tokens, answer: Tokens) -> tuple[Tokens, NDArray[np.int64], NDArray[np.int64]]:
    """The kinds of tokens of the answer; the kind of each token of the paragraph, or -1; and how often the answer has each kind."""
    kinds, often = np.unique(answer, return_counts=True)
    place = np.minimum(np.searchsorted(kinds, paragraph), len(kinds) - 1) if len(kinds) else np.zeros(len(paragraph), np.int64)
    there = kinds[place] == paragraph if len(kinds) else np.zeros(len(paragraph), np.bool_)
    return kinds, np.where(there, place, -1), often


def _nth_before(kind: NDArray[np.int64], often: NDArray[np.int64]) -> NDArray[np.int32]:
    """For each token the place of the n-th token of its kind before it, with n = `often` of this kind; -1 where there are fewer."""
    order = np.argsort(kind, kind="stable")
    ordered = kind[order]
    number = np.arange(len(order)) - np.searchsorted(ordered, ordered)
    n = often[ordered]
    nth = np.where(number >= n, order[np.maximum(np.arange(len(order)) - n, 0)], -1)
    before = np.empty(len(kind), np.int32)
    before[order] = nth
    return before
