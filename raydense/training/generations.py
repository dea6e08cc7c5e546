"""Which generation of hard negatives each step learns from, and the files by which workers and driver hand generations over.

After every so many steps (a boundary) worker 0 leaves the weights, and the driver makes the next generation of them. In mode `sync` the
steps from that boundary on learn from it, in mode `async` those from the boundary after. Generation 0 is the examples that the training
was given. All of it follows from the number of a step, so that a training goes on the same after a kill, and on every worker.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from torch import Tensor

from raydense.errors import InputError
from raydense.storage import MANIFEST, WORK, Place
from raydense.training.batches import Sampler
from raydense.training.checkpoints import write_weights
from raydense.training.loop_settings import LoopSettings
from raydense.training.settings import refresh_of

_WEIGHTS, _RUN = "weights.safetensors", "run"
_FAULT, _EXAMPLES = "refresh-fault.txt", "refresh"


@dataclass(frozen=True)
class Generations:
    """The boundaries of a training of `steps` steps; without refresh there is none before its end.

    `behind` is how many periods of `every` steps the weights that found the negatives are older than they would be in mode sync;
    with `keeps_run` what they found stays until the next generation is made, which is compared with it.
    """

    output: Place
    steps: int
    every: int
    behind: int = 0
    keeps_run: bool = False

    @classmethod
    def of(cls, settings: LoopSettings, sampler: Sampler, steps: int, output: Place) -> Generations:
        """Those of a training into `output`."""
        refresh = refresh_of(settings)
        if refresh is None:
            return cls(output, steps, steps)
        each = sampler.steps_per_epoch if refresh.unit == "epochs" else 1
        every, behind = max(1, round(refresh.every * each)), int(refresh.mode == "async")
        generations = cls(output, steps, every, behind, refresh.only_changed)
        if not generations.last:
            what = f"{steps:,} steps end before new negatives would be learned from, at step {generations.starts(1):,} in mode"
            fix = "train longer (--epochs, --max-steps), or refresh more often"
            raise InputError(f"{what} {refresh.mode}", "refresh.every", fix)
        return generations

    def at(self, step: int) -> int:
        """The generation that `step` (from 0) learns from."""
        return max(0, step // self.every - self.behind)

    def end(self, step: int) -> int:
        """The first step after `step` that may learn from another generation, or the number of steps."""
        return min(self.steps, (step // self.every + 1) * self.every)

    def starts(self, number: int) -> int:
        """The first step that learns from generation `number` of 1 and more."""
        return (number + self.behind) * self.every

    def made_of(self, number: int) -> int:
        """The steps that the weights had behind them which found the negatives of a generation."""
        return number * self.every

    @property
    def last(self) -> int:
        """The last generation that any step learns from."""
        return self.at(self.steps - 1)

    def examples(self, number: int) -> Place:
        """The artifact of generation `number` of 1 and more."""
        return self.output / _EXAMPLES / f"{number:03d}"

    @property
    def _shared(self) -> Place:
        return self.output / WORK

    @property
    def look_every_s(self) -> float:
        """How often who waits for weights or examples looks whether they are there."""
        return self._shared.look_every_s

    def work(self, number: int) -> Place:
        """What a generation is made in; gone when it is made."""
        return self.output / WORK / "refresh" / f"{number:03d}"

    def weights(self, number: int) -> Path:
        """The weights that worker 0 left for a generation, on this machine."""
        return (self.work(number) / _WEIGHTS).fetch()

    def run(self, number: int) -> Place:
        """What the weights of a generation found for the queries."""
        return self.work(number) / _RUN

    def boundary(self, step: int) -> bool:
        """Whether a generation is made of the weights after `step` steps."""
        number, beyond = divmod(step, self.every)
        return not beyond and 1 <= number <= self.last

    def hand_over(self, step: int, weights: dict[str, Tensor]) -> None:
        """Leave the weights after `step` steps, a boundary, to the driver; where some are left already, as before a kill, these stay."""
        number = step // self.every
        if not self._left(number) and not self.made(number):
            write_weights(self.work(number) / _WEIGHTS, weights)

    def _left(self, number: int) -> bool:
        return (self.work(number) / _WEIGHTS).exists()

    def made(self, number: int) -> bool:
        """Whether a generation is there, whole."""
        return (self.examples(number) / MANIFEST).exists()

    def _all_made(self) -> set[int]:
        names = (self.output / _EXAMPLES).names(f"*/{MANIFEST}")
        return {int(name.partition("/")[0]) for name in names}

    def open(self) -> Iterator[int]:
        """The generations that were handed over, in order as they are, and are not made yet."""
        made = self._all_made()
        for number in range(1, self.last + 1):
            if number not in made:
                if not self._left(number):
                    return
                yield number

    def leaves(self, number: int) -> list[Place]:
        """What a generation that is made was made in, and is to go; where its run is kept, that of the one before."""
        work, before = self.work(number), self.work(number - 1)
        if not self.keeps_run:
            return [work / name for name in work.entries()]
        return [*(work / name for name in work.entries() if name != _RUN), *(before / name for name in before.entries())]

    def close(self, number: int) -> None:
        """Remove what a generation that is made leaves."""
        self.work(number).forget()
        for place in self.leaves(number):
            place.delete()
        self.work(number - 1 if self.keeps_run else number).delete()

    def await_(self, number: int) -> float:
        """Wait till a generation is made; returns the seconds. InputError where the driver could not make it."""
        begun = time.monotonic()
        while not self.made(number):
            fault = (self._shared / _FAULT).read_text()
            if fault is not None:
                raise InputError(fault, "refresh", "fix it, and run the same command again")
            time.sleep(self.look_every_s)
        return time.monotonic() - begun

    def give_up(self, why: str) -> None:
        """Tell the workers that wait that no further generation will come."""
        (self._shared / _FAULT).write_text(why)

    def begin(self) -> None:
        """Forget what an earlier run could not make, and remove what it left of what it made."""
        (self._shared / _FAULT).delete()
        for number in sorted(self._all_made()):
            self.close(number)
