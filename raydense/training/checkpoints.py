"""Checkpoints: every worker's files reported to Ray Train at the same step, and the best weights next to them.

A checkpoint is the engine's files and `state.json` (step, workers, precision, the best dev measurement so far). Ray Train registers it
when all workers have reported, and hands the newest registered one to workers that start in the same storage.
"""

from __future__ import annotations

import json
import tempfile
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import ray.train
from safetensors.torch import load_file, save_file
from torch import Tensor

from raydense.errors import InputError
from raydense.storage import Place
from raydense.training.engine import Engine, Precision, tied
from raydense.training.loop_settings import LoopSettings

RUN = "run"
_STATE = "state.json"
_LISTED = "checkpoint_manager_snapshot.json"


@dataclass(frozen=True)
class State:
    """The state of a training: `step` steps are done, with this number of `workers`; `best_step` has the best dev metric, `best`.

    `start` is the dev metric before the first step.     `precision` is the one used for the steps, never auto. The last `skipped` steps in a row did not update the weights.
    """

    precision: Precision
    step: int = 0
    workers: int = 1
    best_step: int = 0
    best: float | None = None
    skipped: int = 0
    start: float | None = None


def save_checkpoint(engine: Engine, state: State, rank: int) -> None:
    """Report a checkpoint; all workers call this at the same step, and wait for each other."""
    folder = Path(tempfile.mkdtemp(prefix="raydense-checkpoint-"))
    engine.save(folder)
    if rank == 0:
        (folder / _STATE).write_text(json.dumps(asdict(state)))
    checkpoint = ray.train.Checkpoint.from_directory(folder) if any(folder.iterdir()) else None
    ray.train.report({"step": state.step}, checkpoint=checkpoint, delete_local_checkpoint_after_upload=True)


def load_checkpoint(engine: Engine, workers: int, precision: Precision, output: Place) -> State:
    """Continue from the newest registered checkpoint, if there is one; InputError if it is of another precision."""
    checkpoint = ray.train.get_checkpoint()
    if checkpoint is None:
        return State(precision, workers=workers)
    with checkpoint.as_directory() as folder:
        state = State(**json.loads((Path(folder) / _STATE).read_text()))
        refuse_other_precision(output, state, precision)
        engine.load(Path(folder), state.workers)
    return replace(state, workers=workers)


def refuse_other_precision(output: Place, state: State, precision: Precision) -> None:
    """InputError where the steps so far were done in another precision: `auto` depends on the machine."""
    if state.precision != precision:
        raise InputError(
            f"its {state.step} steps were done in {state.precision}, and on this device it would go on in {precision}",
            output,
            f"go on where the device does {state.precision}, or delete the folder to start again",
        )


def newest_state(shared: Place) -> State | None:
    """The state of unfinished work in `shared`, from its newest checkpoint; None if there is none."""
    return max(_states(shared), key=lambda state: state.step, default=None)


def _states(shared: Place) -> list[State]:
    """The state in every checkpoint in `shared`, registered or not; a checkpoint that a kill cut short is skipped."""
    found = []
    for name in shared.names(f"{RUN}/*/{_STATE}"):
        with suppress(json.JSONDecodeError):
            text = (shared / name).read_text()
            if text is not None:
                found.append(State(**json.loads(text)))
    return found


def keep_registered(shared: Place) -> None:
    """Copy Ray Train's list of registered checkpoints, if it is new and complete: Ray overwrites it in place.

    In a bucket every file is complete, and needs no copy.
    """
    if shared.durable:
        return
    text, kept = (shared / RUN / _LISTED).read_text(), shared / _LISTED
    if text is not None and text != kept.read_text() and _names_checkpoints(text, shared):
        kept.write_text(text)


def fix_registered(shared: Place) -> None:
    """Before workers start: replace a list that a kill cut short by its copy, if the checkpoints in the copy exist.

    Without a usable list the training starts from step 0: Ray itself would always refuse the folder.
    """
    listed, kept = (shared / RUN / _LISTED).read_text(), (shared / _LISTED).read_text()
    if listed is None or _names_checkpoints(listed, shared):
        return
    if kept is not None and _names_checkpoints(kept, shared):
        (shared / RUN / _LISTED).write_text(kept)
    else:
        (shared / RUN / _LISTED).delete()


def _names_checkpoints(text: str, shared: Place) -> bool:
    """Whether a list is complete, and the checkpoints that it names exist."""
    try:
        named = json.loads(text)["checkpoint_results"]
    except (json.JSONDecodeError, KeyError):
        return False
    return all((shared / RUN / one["checkpoint_dir_name"]).exists() for one in named)


def refuse_other_workers(output: Place, state: State, settings: LoopSettings) -> None:
    """InputError where the checkpoints of unfinished work cannot be loaded by this number of workers."""
    if tied(settings) and state.workers != settings.workers:
        raise InputError(
            f"its checkpoints are of {state.workers} workers, and ZeRO 3's load with as many only (now {settings.workers})",
            output,
            f"give --workers {state.workers}, or delete the folder to start again",
        )


def weights_name(step: int) -> str:
    """The file name of the best or last weights, saved after `step`."""
    return f"weights-{step}.safetensors"


def write_weights(file: Place, weights: dict[str, Tensor]) -> None:
    """Write weights; the file appears only when it is complete."""
    with file.writing() as aside:
        save_file({key: value.clone().contiguous() for key, value in weights.items()}, aside)


def save_weights(shared: Place, step: int, weights: dict[str, Tensor]) -> None:
    """Write the weights; remove earlier ones, except those that a checkpoint names as its best."""
    write_weights(shared / weights_name(step), weights)
    kept = {weights_name(s) for s in (step, *(state.best_step for state in _states(shared)))}
    for old in set(shared.names("weights-*.safetensors")) - kept:
        (shared / old).delete()


def load_weights(shared: Place, step: int) -> dict[str, Any]:
    """What `save_weights` wrote at `step`."""
    return load_file((shared / weights_name(step)).fetch())
