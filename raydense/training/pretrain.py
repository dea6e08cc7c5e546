"""The stage `pretrain`: an encoder goes on learning from passages alone, and is saved as a folder that `train` starts from."""

from __future__ import annotations

from raydense.storage import Artifact
from raydense.training.fit import fit
from raydense.training.settings import PretrainSettings


def pretrain(settings: PretrainSettings) -> Artifact:
    """Pre-train by the method of the settings, and return the model artifact; its heads are dropped.

    Continues from the newest checkpoint where an earlier run stopped. InputError on bad inputs, or on a loss that is not finite.
    """
    return fit(settings)
