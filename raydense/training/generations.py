"""The generation of hard negatives that each step learns from, and the files by which workers and driver exchange weights and generations.

After every `refresh.every` steps or epochs (a boundary) worker 0 saves the weights, and the driver makes the next generation from them.
In mode `sync` the steps from that boundary on learn from it, in mode `async` those from the next boundary on. Generation 0 is the
given examples. All of this follows from the number of a step, so it is the same on every worker and after a kill.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path

from torch import Tensor

from raydense.errors import InputError
from raydense.storage import MANIFEST, WORK, Place
from raydense.training.batches import Sampler
from raydense.training.loop_settings import LoopSettings
from raydense.training.settings import refresh_of
from raydense.training.weights import write_weights

_WEIGHTS, _RUN = "weights.safetensors", "run"
_FAULT, _EXAMPLES = "refresh-fault.txt", "refresh"


@dataclass(frozen=True)
class Generations:
    """The boundaries of a training of `steps` steps; without refresh there is none before its end.

    `behind` is the staleness of the weights that found the negatives, in periods of `every` steps: 0 in mode sync.
    With `keeps_run` the run of a generation is kept until the next generation has been compared with it.
    """

    output: Place
    steps: int
    every: int
    behind: int = 0
    keeps_run: bool = False

    @classmethod
    def of(cls, settings: LoopSettings, sampler: Sampler, steps: int, output: Place) -> Generations:
        """The generations of a training into `output`."""
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
        """The number of steps after which the weights that found a generation's negatives were saved."""
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
        """The polling interval of a process that waits for weights or examples."""
        return self._shared.look_every_s

    def work(self, number: int) -> Place:
        """The work folder of a generation; removed when it is made."""
        return self._shared / "refresh" / f"{number:03d}"

    def weights(self, number: int) -> Path:
        """The weights that worker 0 left for a generation, on this machine."""
        return (self.work(number) / _WEIGHTS).fetch()

    def run(self, number: int) -> Place:
        """The run of the queries that the weights of a generation gave."""
        return self.work(number) / _RUN

    def boundary(self, step: int) -> bool:
        """Whether a generation is made of the weights after `step` steps."""
        number, beyond = divmod(step, self.every)
        return not beyond and 1 <= number <= self.last

    def hand_over(self, step: int, weights: dict[str, Tensor]) -> None:
        """Save the weights after `step` steps (a boundary) for the driver; weights saved before a kill stay."""
        number = step // self.every
        if not self._left(number) and not self.made(number):
            write_weights(self.work(number) / _WEIGHTS, weights)

    def _left(self, number: int) -> bool:
        return (self.work(number) / _WEIGHTS).exists()

    def made(self, number: int) -> bool:
        """Whether a generation is complete."""
        return (self.examples(number) / MANIFEST).exists()

    def _all_made(self) -> set[int]:
        names = (self.output / _EXAMPLES).names(f"*/{MANIFEST}")
        return {int(name.partition("/")[0]) for name in names}

    def open(self) -> Iterator[int]:
        """The generations whose weights were handed over and that are not made yet, in order."""
        made = self._all_made()
        for number in range(1, self.last + 1):
            if number not in made:
                if not self._left(number):
                    return
                yield number

    def close(self, number: int, kept: Collection[str] = ()) -> None:
        """Remove the folders of a finished generation but those `kept` until the next one is made, and what was kept of the one before."""
        work, before, kept = self.work(number), self.work(number - 1), {*kept, *([_RUN] if self.keeps_run else [])}
        work.forget()
        for place in (*(work / name for name in work.entries() if name not in kept), *(before / name for name in before.entries())):
            place.delete()
        for place in (before,) if kept else (before, work):
            place.delete()

    def is_decided(self, number: int) -> bool:
        """Whether workers no longer need to wait for a generation: it is made, or the driver could not make it."""
        return self.made(number) or (self._shared / _FAULT).exists()

    def refuse_unmade(self, number: int) -> None:
        """InputError if the driver could not make a generation."""
        if not self.made(number):
            self.refuse_given_up()

    def give_up(self, why: str) -> None:
        """Notify waiting workers that no further generation will come, and what makes one that nobody waits for it."""
        (self._shared / _FAULT).write_text(why)

    def refuse_given_up(self) -> None:
        """InputError after `give_up`."""
        fault = (self._shared / _FAULT).read_text()
        if fault is not None:
            raise InputError(fault, "refresh", "fix it, and run the same command again")

    def begin(self) -> None:
        """Remove the error of an earlier run, and the folders that it did not clean up."""
        (self._shared / _FAULT).delete()
        for number in sorted(self._all_made()):
            self.close(number)
