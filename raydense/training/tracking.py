"""Sends the history of a training to experiment trackers of third parties, while it runs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from raydense.errors import InputError
from raydense.training.history import Line
from raydense.training.loop_settings import LoopSettings

Send = Callable[[Line], None]


@contextmanager
def tracking(settings: LoopSettings) -> Iterator[Send]:
    """A function that sends a line of the history. The tracker's run ends with the block, as failed if the block raises.

    InputError if the tracker is not installed.
    """
    if settings.track == "none":
        yield lambda line: None
        return
    if find_spec(settings.track) is None:
        raise InputError(f"{settings.track} is not installed", "track", f"pip install {settings.track}, or give --track none")
    tracker: Any = import_module(settings.track)
    name = Path(settings.output).name
    if settings.track == "mlflow":
        with tracker.start_run(run_name=name):
            tracker.log_params(settings.shaping())
            yield lambda line: tracker.log_metrics(_numbers(line), step=line["step"])
    else:
        with tracker.init(project="raydense", name=name, config=settings.shaping()) as run:
            yield lambda line: run.log(_numbers(line), step=line["step"])


def _numbers(line: Line) -> dict[str, float]:
    return {name.replace("@", "_at_"): value for name, value in line.items() if name != "step"}
