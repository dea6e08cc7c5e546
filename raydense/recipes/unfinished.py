"""What a stage that was begun has done: in words, and what of its work is left."""

from __future__ import annotations

from dataclasses import replace

from raydense.forecast import Forecast
from raydense.recipes.stage import Stage
from raydense.storage import WORK, Place, commits_in
from raydense.training.loop_settings import LoopSettings
from raydense.training.registered import newest_state


def progress(stage: Stage) -> str:
    """The steps of a training that are saved, or the files of another stage that are committed."""
    if isinstance(stage.settings, LoopSettings):
        step = _saved(stage)
        return f"step {step:,} is saved" if step else "no step is saved"
    count = commits_in(stage.settings.output)
    return f"{count:,} {'file' if count == 1 else 'files'} committed"


def left(stage: Stage, forecast: Forecast) -> Forecast:
    """`forecast` without the work that is done, where its steps or parts can be counted."""
    steps = forecast.work.get("steps", 0.0)
    if isinstance(stage.settings, LoopSettings):
        done = _saved(stage) / steps if steps else 0.0
    else:  # some stages commit a file of ids first
        done = max(0, commits_in(stage.settings.output) - 1) / forecast.tasks if forecast.tasks else 0.0
    share = 1.0 - min(1.0, done)
    return replace(forecast, work={name: amount * share for name, amount in forecast.work.items()})


def _saved(stage: Stage) -> int:
    state = newest_state(Place.of(stage.settings.output) / WORK)
    return state.step if state else 0
