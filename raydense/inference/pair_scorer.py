"""Scores pairs of a question and a passage by a re-ranker in this process: for a server, and for `Retriever`."""

from __future__ import annotations

import os
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from raydense.inference.device import Device
from raydense.inference.layout import Layout
from raydense.storage import check_unchanged, model_place

Scorer = Callable[[list[str], list[str]], NDArray[np.float32]]


def pair_scorer(model: str | os.PathLike[str], fingerprint: str | None = None, gpu: bool | None = None) -> Scorer:
    """A function from questions and as many passages to logits float32 [n], by the re-ranker in folder `model`.

    `pair_scorer("RERANKER_DIR")(["a question"], ["a passage"])`. It computes on a GPU (`gpu`), by default where torch sees one.

    InputError if the folder holds no trained re-ranker, or does not have `fingerprint`.
    """
    from raydense.models.cross_encoder import CrossEncoder
    from raydense.models.model_kind import require_model

    model = os.fspath(model)
    require_model(model, scores=True)
    device = Device(Layout.alone(gpu), 0, cpu_bf16=True)
    placed = device.place(CrossEncoder.load(model))
    if fingerprint is not None:
        check_unchanged(model_place(model), fingerprint)

    def scores(questions: list[str], passages: list[str]) -> NDArray[np.float32]:
        if not questions:
            return np.zeros(0, np.float32)
        found: NDArray[np.float32]
        found, _ = device.run(placed.tokenize_pairs(questions, passages), placed.tokenizer.pad_id, placed, lambda n: None)
        return found

    return scores
