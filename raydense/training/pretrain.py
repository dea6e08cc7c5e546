"""The stage `pretrain`: an encoder learns from passages and their contexts."""

from raydense.storage import Artifact
from raydense.training.settings import PretrainSettings
from raydense.training.train import train


def pretrain(settings: PretrainSettings) -> Artifact:
    """Pre-train an encoder, as `raydense.training.train.train` describes it; an artifact of kind `model`."""
    return train(settings)
