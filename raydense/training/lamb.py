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
            weights = [weight for weight in group["params"] if weight.grad is not None]
            if weights:
                self._update(weights, group)

    def _update(self, weights: list[Tensor], group: dict[str, Any]) -> None:
        """All weights of a group by each operation: a GPU gets few large kernels, and nothing that waits for a result of it."""
        states, gradients = [self._state_of(weight) for weight in weights], [weight.grad for weight in weights if weight.grad is not None]
        steps, means, squares = ([state[name] for state in states] for name in ("step", "mean", "square"))
        first, second = group["betas"]
        torch._foreach_add_(steps, 1)
        torch._foreach_lerp_(means, gradients, 1 - first)
        torch._foreach_mul_(squares, second)
        torch._foreach_addcmul_(squares, gradients, gradients, value=1 - second)
        done = torch.stack(steps).tolist()  # on the CPU
        directions = torch._foreach_div(means, [1 - first**n for n in done])
        lengths = torch._foreach_div(squares, [1 - second**n for n in done])
        torch._foreach_sqrt_(lengths)
        torch._foreach_add_(lengths, group["eps"])
        torch._foreach_div_(directions, lengths)
        del lengths
        torch._foreach_add_(directions, weights, alpha=group["weight_decay"])
        if group["scaled"]:
            ours, theirs = (torch.stack(torch._foreach_norm(one)) for one in (weights, directions))
            ratios = torch.where((ours > 0) & (theirs > 0), ours / theirs, torch.ones_like(ours))
            torch._foreach_mul_(directions, list(ratios.unbind()))
        torch._foreach_add_(weights, directions, alpha=-group["lr"])

    def _state_of(self, weight: Tensor) -> dict[str, Tensor]:
        state = self.state[weight]
        if not state:
            state.update(step=torch.tensor(0.0), mean=torch.zeros_like(weight), square=torch.zeros_like(weight))
        return state
