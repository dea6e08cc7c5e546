"""The stage `pretrain`: trains an encoder on passages without labels, and saves it as a folder that `train` starts from."""

from __future__ import annotations

from raydense.storage import Artifact
from raydense.training.fit import fit
from raydense.training.settings import PretrainSettings


def pretrain(settings: PretrainSettings) -> Artifact:
    """Pre-train by the method of the settings, and return the model artifact, without the heads of pre-training.

    Continues from the newest checkpoint where an earlier run stopped. InputError on bad inputs, or on gradients that stay not finite.
    """
    return fit(settings)
