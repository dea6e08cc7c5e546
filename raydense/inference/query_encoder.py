"""Queries to vectors in this process: what a server's process does with the code of `encode`'s actors."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from raydense.inference.pipeline import Device, Layout
from raydense.storage import check_unchanged

QUERY_TOKENS = 16_384  # of a batch: queries are short, and many of them waste little padding


def query_encoder(model: str, fingerprint: str | None = None, dimension: int | None = None) -> Callable[[list[str]], NDArray[np.float32]]:
    """A function from texts to vectors float32 [n, d], by the retriever in folder `model`, on this process's GPU where it has one.

    `dimension` as of `EncodeSettings`. InputError where the folder is no retriever, or not the one of `fingerprint`.
    """
    import torch

    from raydense.models.dual_encoder import DualEncoder

    gpus = 1.0 if torch.cuda.is_available() else 0.0
    device = Device(Layout(fewest=1, most=1, gpus=gpus, cpus=1.0, per_node=1), QUERY_TOKENS, "fp32")
    encoder = DualEncoder.load(model, dimension=dimension).to(device.name)
    if fingerprint is not None:
        check_unchanged(model, fingerprint)

    def encode(texts: list[str]) -> NDArray[np.float32]:
        vectors: NDArray[np.float32]
        vectors, _ = device.run(encoder.tokenize_queries(texts), encoder.tokenizer.pad_id, encoder.encode_queries, lambda n: None)
        return vectors

    return encode
