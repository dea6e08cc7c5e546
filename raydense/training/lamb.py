"""LAMB, the optimiser of very large batches (You et al. 2020, algorithm 2; PAIR trains with it on MS MARCO)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor


class Lamb(torch.optim.Optimizer):
    """Adam's direction r plus decay, as long for each weight as the weight itself: w -= lr |w| / |r + decay w| (r + decay w).

    As in the authors' code, groups that are not `scaled` (biases and norms) use Adam's own length; so does a weight or a direction of
    length 0.
    """

    def __init__(self, groups: Any, lr: float, betas: tuple[float, float] = (0.9, 0.999), eps: float = 1e-6) -> None:
        super().__init__(groups, {"lr": lr, "betas": betas, "eps": eps, "weight_decay": 0.0, "scaled": True})

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        """One update of every weight that has a gradient; `closure` is not used."""
        for group in self.param_groups:
            for weight in group["params"]:
                if weight.grad is not None:
                    self._update(weight, group)

    def _update(self, weight: Tensor, group: dict[str, Any]) -> None:
        state = self.state[weight]
        if not state:
            state.update(step=torch.tensor(0.0), mean=torch.zeros_like(weight), square=torch.zeros_like(weight))
        state["step"] += 1
        first, second = group["betas"]
        state["mean"].lerp_(weight.grad, 1 - first)
        state["square"].mul_(second).addcmul_(weight.grad, weight.grad, value=1 - second)
        steps = state["step"].item()
        mean, square = state["mean"] / (1 - first**steps), state["square"] / (1 - second**steps)
        direction = mean / (square.sqrt() + group["eps"])
        direction.add_(weight, alpha=group["weight_decay"])
        if group["scaled"]:
            ours, theirs = torch.linalg.vector_norm(weight), torch.linalg.vector_norm(direction)
            direction.mul_(torch.where((ours > 0) & (theirs > 0), ours / theirs, torch.ones_like(ours)))
        weight.add_(direction, alpha=-group["lr"])
