"""Hides the judgements of some training queries, to measure what a method makes of queries without labels when the labels are known."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from raydense.data.missing_splits import questions_of
from raydense.data.settings import HiddenSettings
from raydense.errors import InputError


def hide_labels(judged: dict[str, pa.Table], queries: pa.Table | None, settings: HiddenSettings) -> dict[str, pa.Table]:
    """The judgements of each split, those of a share of train's queries as the split `hidden` in place of train.

    Which queries, the seed decides; queries of one text in `queries` (`query_id`, `text`) stay together. InputError without train, where
    there is a split `hidden`, or where no query would be left on one side.
    """
    if "train" not in judged or "hidden" in judged:
        has = "there are judgements called hidden" if "hidden" in judged else "there are no judgements called train"
        raise InputError(f"{has}: the hidden ones are taken from train, and become hidden", "hidden", "rename the splits, or leave it out")
    train = judged["train"]
    questions, place = np.unique(questions_of(train["query_id"], queries), return_inverse=True)
    count = round(settings.share * len(questions))
    if not 0 < count < len(questions):
        what = f"share {settings.share:g} of the {len(questions)} queries of train leaves none {'hidden' if count == 0 else 'judged'}"
        raise InputError(what, "hidden", "give another share")
    gone = np.zeros(len(questions), bool)
    gone[np.random.default_rng(settings.seed).permutation(len(questions))[:count]] = True
    return {**judged, "train": train.filter(pa.array(~gone[place])), "hidden": train.filter(pa.array(gone[place]))}
