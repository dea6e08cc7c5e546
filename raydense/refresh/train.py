"""The stage `train`: any method; with a refresh, new hard negatives are found during training."""

from __future__ import annotations

from functools import partial

from raydense.refresh.check import check_refresh
from raydense.refresh.generation import make_generation
from raydense.refresh.training_pool import TrainingPool
from raydense.storage import Artifact, read_manifest
from raydense.training.fit import fit
from raydense.training.settings import TrainSettings, refresh_of


def train(settings: TrainSettings) -> Artifact:
    """Train by the method of the settings, and return its artifact; continues from the newest checkpoint where an earlier run stopped.

    The artifact is of kind `model`, or of the method's own kind: joint training makes a `joint` that contains the models `retriever/`
    and `reranker/`. With a refresh it keeps every generation of the examples in its folder `refresh/`. InputError on bad
    inputs, or on gradients that stay not finite; with a refresh, before the first step, also on what `check_refresh` finds.
    """
    refresh = refresh_of(settings)
    if refresh is not None:
        if read_manifest(settings.output) is None:  # what is finished is not made here
            check_refresh(settings, refresh)
        with TrainingPool() as pool:
            return fit(settings, partial(make_generation, pool))
    return fit(settings)
