"""The notice that a training is to end: the driver gives it on a signal, Ray before it takes a node away. After which step the workers save.

All workers make a checkpoint together. So worker 0 sends its word to the others after each step, a few bytes, when the gradients have just
brought the workers to the same point: about a millisecond between two busy CPU workers, less on GPUs. Where they wait for new hard negatives
instead, it sends it after each look.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import suppress
from enum import IntEnum
from typing import TYPE_CHECKING

from raydense.errors import InputError
from raydense.runtime.ray_internals import node_leaves
from raydense.storage import Place

if TYPE_CHECKING:
    import torch

_STOP = "stop.txt"


class Asked(IntEnum):
    """What the workers do after a step, besides the checkpoints by steps."""

    NOTHING = 0
    SAVE = 1
    END = 2  # save, too


class Notice:
    """Asked after each step, and in waits, by every worker. On worker 0 a thread looks for the driver's file: in a bucket each look is a request."""

    def __init__(self, shared: Place, minutes: float, rank: int, workers: int, device: torch.device) -> None:
        """`minutes` after a checkpoint the next one is due, by the clock of worker 0; 0: never."""
        self._shared, self._minutes, self._rank, self._workers, self._device = shared, minutes, rank, workers, device
        self._end_asked, self._closed = threading.Event(), threading.Event()
        self.saved()

    def watch(self) -> None:
        """Begin to look for the driver's file, until `close`."""
        if self._rank == 0:
            threading.Thread(target=self._look, name="notice", daemon=True).start()

    def saved(self) -> None:
        """There is a checkpoint, now."""
        self._saved = time.monotonic()

    def asked(self) -> Asked:
        """What is to be done after this step, the same on all workers, which all ask."""
        if self._workers == 1:
            return self._word()
        import torch
        import torch.distributed as dist

        word = torch.tensor([self._word()], dtype=torch.int32, device=self._device)
        dist.broadcast(word, src=0)
        return Asked(int(word.item()))

    def wait(self, ready: Callable[[], bool]) -> bool:
        """Wait until all workers are `ready`; False, on all of them, where they are to end before that.

        They agree after each look: one that left the wait alone would wait for the others in the next step, and those here for it.
        """
        while not self._on_all(ready()):
            if self.asked() == Asked.END:
                return False
            time.sleep(self._shared.look_every_s)
        return True

    def _on_all(self, mine: bool) -> bool:
        if self._workers == 1:
            return mine
        import torch
        import torch.distributed as dist

        lacking = torch.tensor([not mine], dtype=torch.int32, device=self._device)
        dist.all_reduce(lacking)
        return not lacking.item()

    def close(self) -> None:
        """No longer look."""
        self._closed.set()

    def _word(self) -> Asked:
        if self._rank:
            return Asked.NOTHING
        if self._end_asked.is_set() or node_leaves():
            return Asked.END
        late = self._minutes and time.monotonic() - self._saved > 60 * self._minutes
        return Asked.SAVE if late else Asked.NOTHING

    def _look(self) -> None:
        while not self._closed.wait(self._shared.look_every_s):
            with suppress(OSError, InputError):  # what the store refuses for good, the steps meet as well
                if (self._shared / _STOP).stat() is not None:
                    return self._end_asked.set()


def ask_to_end(shared: Place) -> None:
    """Ask the workers to save after the step that they are in, and to end."""
    (shared / _STOP).write_text("")


def is_asked(shared: Place) -> bool:
    """Whether workers have been asked to end, and no others have started since."""
    return (shared / _STOP).stat() is not None


def withdraw(shared: Place) -> None:
    """Before workers start: remove what an earlier run asked of its own."""
    (shared / _STOP).delete()
