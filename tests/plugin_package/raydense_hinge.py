"""A retriever by the hinge loss over each query's own list, in a package outside raydense."""

import torch

from raydense.settings import setting
from raydense.training.dual_encoder import DualEncoderMethod
from raydense.training.method import method


@method("hinge")
class Hinge(DualEncoderMethod):
    """mean over q, p- of max(0, margin - s(q, p+) + s(q, p-))."""

    class Settings(DualEncoderMethod.Settings):
        """Train a retriever by the hinge loss."""

        margin: float = setting(1.0, "how far below the positive each negative should score", gt=0)

    def loss(self, outputs, batch):
        scores = self.list_scores(outputs)
        violation = (self.settings.margin - scores[:, :1] + scores[:, 1:]).clamp(min=0)
        return violation.mean(), {"accuracy": (violation.detach() == 0).float().mean()}


class Double(Hinge):
    """A method without a name or settings of its own: twice the loss."""

    def loss(self, outputs, batch):
        value, metrics = super().loss(outputs, batch)
        return 2 * value, metrics


class Fragile(Hinge):
    """The hinge loss, which is not a number for a batch that has the first query."""

    def prepare(self, part):
        return {**super().prepare(part), "first": torch.tensor(0 in part.query)}

    def loss(self, outputs, batch):
        value, metrics = super().loss(outputs, batch)
        return value * torch.where(batch["first"], float("nan"), 1.0), metrics


class Large(Hinge):
    """The hinge loss, for which no memory is left, as torch reports it of a GPU."""

    def loss(self, outputs, batch):
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")
