"""The stage `train`: any method, with new hard negatives while it trains where the settings ask for a refresh."""

from __future__ import annotations

from raydense.refresh.generation import make_generation
from raydense.retrieval.search_params import require_nprobe
from raydense.storage import Artifact
from raydense.training.fit import fit
from raydense.training.settings import TrainSettings, refresh_of


def train(settings: TrainSettings) -> Artifact:
    """Train by the method of the settings, and return its artifact; continues from the newest checkpoint where an earlier run stopped.

    The artifact is of kind `model`, or of the kind that the method says: joint training makes a `joint` with the models `retriever/`
    and `reranker/` in it. With a refresh it keeps every generation of the examples in its folder `refresh/`. InputError on bad
    inputs, or on a loss that is not finite; with a refresh also where the examples are qrels, which hold no negatives to begin with,
    and where a re-ranker that should denoise is not trained.
    """
    refresh = refresh_of(settings)
    if refresh is not None:
        Artifact.open(settings.examples, "examples")
        require_nprobe(refresh.factory, refresh.search_params, "refresh.search_params")
    return fit(settings, make_generation)
