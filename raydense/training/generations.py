"""Which generation of hard negatives each step learns from, and the files by which workers and driver hand generations over.

After every so many steps (a boundary) worker 0 leaves the weights, and the driver makes the next generation of them. In mode `sync` the
steps from that boundary on learn from it, in mode `async` those from the boundary after. Generation 0 is the examples that the training
was given. All of it follows from the number of a step, so that a training goes on the same after a kill, and on every worker.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from torch import Tensor

from raydense.data.artifact import MANIFEST, write_whole
from raydense.errors import InputError
from raydense.settings import Training, TrainSettings
from raydense.training.batches import Sampler
from raydense.training.checkpoints import write_weights

_LOOK_EVERY_S = 0.1


@dataclass(frozen=True)
class Generations:
    """The boundaries of a training of `steps` steps; without refresh there is none before its end.

    `behind` is how many periods of `every` steps the weights that found the negatives are older than they would be in mode sync;
    with `keeps_run` what they found stays until the next generation is made, which is compared with it.
    """

    output: Path
    steps: int
    every: int
    behind: int = 0
    keeps_run: bool = False

    @classmethod
    def of(cls, settings: Training, sampler: Sampler, steps: int, output: Path) -> Generations:
        """Those of a training into `output`."""
        if not isinstance(settings, TrainSettings) or settings.refresh_every is None:
            return cls(output, steps, steps)
        each = sampler.steps_per_epoch if settings.refresh_unit == "epochs" else 1
        every, behind = max(1, round(settings.refresh_every * each)), int(settings.refresh_mode == "async")
        generations = cls(output, steps, every, behind, settings.refresh_only_changed)
        if not generations.last:
            what = f"{steps:,} steps end before new negatives would be learned from, at step {generations.starts(1):,} in mode"
            mend = "train longer (--epochs, --max-steps), or refresh more often"
            raise InputError(f"{what} {settings.refresh_mode}", "refresh_every", mend)
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

    def examples(self, number: int) -> Path:
        """The artifact of generation `number` of 1 and more."""
        return self.output / "refresh" / f"{number:03d}"

    def work(self, number: int) -> Path:
        """What a generation is made in; gone when it is made."""
        return self.output / ".work" / "refresh" / f"{number:03d}"

    def weights(self, number: int) -> Path:
        """The weights that worker 0 left for a generation."""
        return self.work(number) / "weights.safetensors"

    def run(self, number: int) -> Path:
        """What the weights of a generation found for the queries."""
        return self.work(number) / "run"

    @property
    def _fault(self) -> Path:
        return self.output / ".work" / "refresh-fault.txt"

    def boundary(self, step: int) -> bool:
        """Whether a generation is made of the weights after `step` steps."""
        number, beyond = divmod(step, self.every)
        return not beyond and 1 <= number <= self.last

    def hand_over(self, step: int, weights: dict[str, Tensor]) -> None:
        """Leave the weights after `step` steps, a boundary, to the driver; where some are left already, as before a kill, these stay."""
        file = self.weights(step // self.every)
        if file.is_file() or self.made(step // self.every):
            return
        file.parent.mkdir(parents=True, exist_ok=True)
        write_weights(file, weights)

    def made(self, number: int) -> bool:
        """Whether a generation is there, whole."""
        return (self.examples(number) / MANIFEST).is_file()

    def open(self) -> Iterator[int]:
        """The generations that were handed over and are not made yet, in order."""
        return (n for n in range(1, self.last + 1) if not self.made(n) and self.weights(n).is_file())

    def close(self, number: int) -> None:
        """Remove what a generation that is made was made in; where its run is kept, that of the one before."""
        if self.keeps_run:
            for one in self.work(number).iterdir():
                if one.is_dir() and one != self.run(number):
                    shutil.rmtree(one, ignore_errors=True)
            self.weights(number).unlink(missing_ok=True)
            number -= 1
        shutil.rmtree(self.work(number), ignore_errors=True)

    def await_(self, number: int) -> float:
        """Wait till a generation is made; returns the seconds. InputError where the driver could not make it."""
        begun = time.monotonic()
        while not self.made(number):
            if self._fault.is_file():
                raise InputError(self._fault.read_text(), "refresh", "mend it, and run the same command again")
            time.sleep(_LOOK_EVERY_S)
        return time.monotonic() - begun

    def give_up(self, why: str) -> None:
        """Tell the workers that wait that no further generation will come."""
        write_whole(self._fault, why)

    def begin(self) -> None:
        """Forget what an earlier run could not make, and remove what it left of what it made."""
        self._fault.unlink(missing_ok=True)
        for number in range(1, self.last + 1):
            if self.made(number) and self.work(number).is_dir():
                self.close(number)
