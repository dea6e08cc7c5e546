"""Which checkpoint a training continues from: the newest one that Ray Train has registered, and what to do where its list of them is damaged."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING

from raydense.storage import Place

if TYPE_CHECKING:  # it imports torch, and a plan reads states without it
    from raydense.training.precision import Precision

RUN = "run"
STATE = "state.json"
_LISTED = "checkpoint_manager_snapshot.json"


@dataclass(frozen=True)
class State:
    """The state of a training: `step` steps are done, with this number of `workers`; `best_step` has the best dev metric, `best`.

    `start` is the dev metric before the first step. `precision` is the one used for the steps, never auto. The last `skipped` steps in a row
    did not update the weights. `casts`: whether the weights were in that precision, as of `Engine.casts`; None in states of earlier versions.
    """

    precision: Precision
    step: int = 0
    workers: int = 1
    best_step: int = 0
    best: float | None = None
    skipped: int = 0
    start: float | None = None
    casts: bool | None = None


def newest_state(shared: Place) -> State | None:
    """The state of unfinished work in `shared`, from the newest checkpoint that is registered; None if there is none.

    One that is still being uploaded does not count, however much of it is there.
    """
    listed = _whole_list(shared)
    if not listed:
        return None
    text = (shared / RUN / listed[-1] / STATE).read_text()
    return State(**json.loads(text)) if text else None


def forget_unregistered(shared: Place, kept: str | None) -> None:
    """Before the steps begin: remove what is there of checkpoints whose upload was cut short; `kept` is the one that they begin from."""
    found = {name for name in (shared / RUN).entries() if name.startswith("checkpoint_") and name != _LISTED}
    for name in found - {kept}:
        (shared / RUN / name).delete()


def _whole_list(shared: Place) -> list[str] | None:
    """The folders of the registered checkpoints, the newest last; by the copy of Ray's list, while that is being written."""
    for place in (shared / RUN / _LISTED, shared / _LISTED):
        text = place.read_text()
        if text is not None and _names_checkpoints(text, shared):
            return _named(text)
    return None


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
    named = _named(text)
    return named is not None and all((shared / RUN / name).exists() for name in named)


def _named(text: str) -> list[str] | None:
    """The folders that a list names, the newest last; None if it is not complete."""
    try:
        return [one["checkpoint_dir_name"] for one in json.loads(text)["checkpoint_results"]]
    except (json.JSONDecodeError, KeyError):
        return None
