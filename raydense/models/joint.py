"""A retriever and a re-ranker as one module, so that one engine trains both with one optimiser, one loss scaler, one checkpoint."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from raydense.models.cross_encoder import CrossEncoder
from raydense.models.dual_encoder import DualEncoder
from raydense.models.tokens import Batch


class JointModel(nn.Module):
    """Both models; `frozen` keeps the re-ranker as it is: no gradient, no dropout."""

    def __init__(self, retriever: DualEncoder, reranker: CrossEncoder, frozen: bool = False) -> None:
        super().__init__()
        self.retriever, self.reranker, self.frozen = retriever, reranker, frozen
        if frozen:
            reranker.requires_grad_(False)

    def train(self, mode: bool = True) -> JointModel:
        super().train(mode)
        if self.frozen:
            self.reranker.eval()
        return self

    def forward(
        self, queries: Batch | None = None, passages: Batch | None = None, pairs: Batch | None = None
    ) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        """Vectors of queries [n, d] and passages [p, d], and scores of pairs [k], all float32; None for what is not given."""
        vectors = self.retriever(queries, passages)
        if pairs is None:
            return *vectors, None
        with torch.set_grad_enabled(torch.is_grad_enabled() and not self.frozen):
            return *vectors, self.reranker(pairs)
