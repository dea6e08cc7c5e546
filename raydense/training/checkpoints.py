"""Checkpoints: the files of every worker after the same step, uploaded while the next steps are done.

A checkpoint is the engine's files and `state.json` (step, workers, precision, the best dev measurement so far). Ray Train registers it
when all workers have uploaded theirs, and hands the newest registered one to workers that start in the same storage.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import tempfile
import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, replace
from pathlib import Path

import ray.train
from torch import Tensor

from raydense.errors import InputError
from raydense.models.sharded import together
from raydense.runtime.ray_internals import persist_checkpoint, persisted_checkpoint
from raydense.storage import Place
from raydense.storage.files import remove_left
from raydense.training.engine import Engine, shards_weights
from raydense.training.loop_settings import LoopSettings
from raydense.training.outage import outlasting
from raydense.training.precision import Precision
from raydense.training.registered import RUN, STATE, State, forget_unregistered
from raydense.training.weights import save_weights

_PREFIX = "raydense-checkpoint-"
_MAY_BE_NEWEST = 3  # one that is being uploaded, one that is uploaded and not registered yet, and the one before


class Checkpoints:
    """The checkpoints of one worker. All workers call each method at the same step."""

    def __init__(self, shared: Place, engine: Engine, rank: int, before: Callable[[], None]) -> None:
        """`before` is called on worker 0 before each upload: it sends what a run that continues from the checkpoint needs, too."""
        self._shared, self._engine, self._rank, self._before = shared, engine, rank, before
        self._uploaded = threading.Event()
        self._uploaded.set()
        self._best_steps: deque[int] = deque(maxlen=_MAY_BE_NEWEST)

    def load(self, workers: int, precision: Precision, output: Place) -> State:
        """Continue from the newest registered checkpoint, if there is one; InputError, on all workers, if it is of another precision."""
        checkpoint = ray.train.get_checkpoint()
        name = checkpoint and Path(checkpoint.path).name
        if self._rank == 0:
            outlasting(lambda: forget_unregistered(self._shared, name), "looking for checkpoints")
        if name is None:
            return State(precision, workers=workers, casts=self._engine.casts)
        # not by Ray from a bucket: a worker that comes later than the others downloads over the files that these read
        folder = self._shared / RUN / name
        state = State(**json.loads(outlasting((folder / STATE).read, "reading a checkpoint") or b""))
        with together():
            refuse_other_precision(output, state, precision, self._engine.casts)
        self._engine.load(folder, state.workers)
        self._best_steps.append(state.best_step)
        return replace(state, workers=workers, casts=self._engine.casts)

    def save(self, state: State) -> None:
        """Write a checkpoint on this machine, and begin to upload it. One is uploaded at a time: first this waits for the one before."""
        self._uploaded.wait()
        folder = self._new_folder()
        try:
            self._engine.save(folder)
            if self._rank == 0:
                (folder / STATE).write_text(json.dumps(asdict(state)))
        except BaseException as error:
            of_disk = _error_of_disk(folder) if isinstance(error, RuntimeError) else None
            shutil.rmtree(folder, ignore_errors=True)  # a full disk stays full otherwise
            if of_disk:
                raise of_disk from error
            raise
        self._best_steps.append(state.best_step)
        checkpoint = None
        if any(folder.iterdir()):
            checkpoint = ray.train.Checkpoint.from_directory(folder)
            self._uploaded.clear()
        else:
            folder.rmdir()
        ray.train.report(
            {"step": state.step},
            checkpoint=checkpoint,
            checkpoint_upload_mode=ray.train.CheckpointUploadMode.ASYNC,
            delete_local_checkpoint_after_upload=False,  # nor would Ray delete it after an upload that failed
            checkpoint_upload_fn=self._upload,
        )

    def settle(self) -> None:
        """Wait until all checkpoints are registered, those of all workers: worker 0 waits for that."""
        if self._rank == 0:
            ray.train.get_all_reported_checkpoints(consistency_mode=ray.train.CheckpointConsistencyMode.COMMITTED)

    def save_weights(self, step: int, weights: dict[str, Tensor]) -> None:
        """Write the best weights so far, on worker 0; those stay that a checkpoint names as its best, also one that is being uploaded."""
        if self._rank == 0:
            outlasting(lambda: save_weights(self._shared, step, weights, set(self._best_steps)), "saving the best weights")

    def _upload(self, checkpoint: ray.train.Checkpoint, name: str) -> ray.train.Checkpoint:
        """In Ray's thread for uploads. An error ends the workers, which start again from the checkpoint before."""
        try:
            if self._rank == 0:
                outlasting(self._before, "sending the history")
            return outlasting(lambda: self._persist(checkpoint, name), "uploading a checkpoint")
        finally:
            shutil.rmtree(checkpoint.path, ignore_errors=True)
            self._uploaded.set()

    def _persist(self, checkpoint: ray.train.Checkpoint, name: str) -> ray.train.Checkpoint:
        """Not by Ray to a bucket: it copies by pyarrow, which ignores that the service did not take a file."""
        if not self._shared.everywhere:
            return persist_checkpoint(checkpoint, name)
        for file in sorted(Path(checkpoint.path).rglob("*")):
            if file.is_file():
                (self._shared / RUN / name / file.relative_to(checkpoint.path).as_posix()).publish(file)
        return persisted_checkpoint(name)

    def _new_folder(self) -> Path:
        """A folder of this machine; what workers that were killed left behind is removed: this one's at once, others' after a day."""
        prefix = f"{_PREFIX}{hashlib.sha256(self._shared.located.encode()).hexdigest()[:16]}-{self._rank}-"
        for left in Path(tempfile.gettempdir()).glob(f"{prefix}*"):
            with suppress(FileNotFoundError):  # another worker is removing it, too
                if left.lstat().st_uid == os.getuid():
                    shutil.rmtree(left, ignore_errors=True)
        remove_left(Path(tempfile.gettempdir()).glob(f"{_PREFIX}*"))
        return Path(tempfile.mkdtemp(prefix=prefix))


def _error_of_disk(folder: Path) -> OSError | None:
    """Why nothing can be written there; None if something can. torch reports a full disk as a RuntimeError about positions in a file."""
    try:
        (folder / "probe").write_bytes(bytes(2**20))
    except OSError as error:
        return error
    return None


def refuse_other_precision(output: Place, state: State, precision: Precision, casts: bool) -> None:
    """InputError where the steps so far were done in another precision: `auto` depends on the machine.

    DeepSpeed `casts` the weights on GPUs alone: its checkpoints of the same precision then differ between GPUs and CPUs.
    """
    if state.precision != precision:
        raise InputError(
            f"its {state.step} steps were done in {state.precision}, and on this device it would go on in {precision}",
            output,
            f"go on where the device does {state.precision}, or delete the folder to start again",
        )
    if state.casts not in (None, casts):
        begun, here = ("GPUs", "CPUs") if state.casts else ("CPUs", "GPUs")
        raise InputError(
            f"its {state.step} steps were done in {state.precision} on {begun}, and DeepSpeed's checkpoints of these do not load on {here}",
            output,
            f"go on on {begun}, or delete the folder to start again",
        )


def refuse_other_workers(output: Place, state: State, settings: LoopSettings) -> None:
    """InputError where the checkpoints of unfinished work cannot be loaded by this number of workers: those of weights in shards by as many alone."""
    if shards_weights(settings) and state.workers != settings.workers:
        raise InputError(
            f"its checkpoints are of {state.workers} workers, and ZeRO 3's load with as many only (now {settings.workers})",
            output,
            f"give --workers {state.workers}, or delete the folder to start again",
        )
