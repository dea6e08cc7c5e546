"""What the driver does while workers train: it shows their progress, sends their history to trackers, and starts lost workers again."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from raydense.errors import fixable
from raydense.runtime.metrics import show
from raydense.runtime.progress import Progress, say
from raydense.runtime.ray_internals import remove_left_groups
from raydense.runtime.waiting import Waiting
from raydense.training.capacity import Placing
from raydense.training.ending import WAITS_S, Ending
from raydense.training.generation_builder import GenerationBuilder
from raydense.training.history import HISTORY, USAGE, Follower, Line
from raydense.training.loop import Job
from raydense.training.notice import ask_to_end, withdraw
from raydense.training.registered import fix_registered, keep_registered, newest_state
from raydense.training.shared_folder import mark
from raydense.training.status import dev_line, forget, micro_batch_line, start_line, steps_done
from raydense.training.tracking import Send
from raydense.training.workers import Workers, leave_working

_REPORTING_S = 1.0  # of a report that sends to a tracker


class Followed:
    """Starts workers, shows their progress, and sends their history to trackers."""

    def __init__(self, job: Job, send: Send, ending: Ending) -> None:
        self._shared, self._send, self._sent, self._ending = job.shared, send, 0, ending
        self._follower, self._usage = Follower(job.shared / HISTORY), Follower(job.shared / USAGE)
        self._settings, self._asks_micro_batch = job.settings, job.settings.micro_batch == "auto"
        self._measures_dev = bool(job.dev)
        self._at = 0  # the step that the workers are at, as far as they have shown
        self._began = False  # whether the workers have, and cut the history off at the checkpoint
        self._shown: dict[str, str] = {}  # the newest lines that were printed, by what they are about
        self._ahead: Line = {}  # what was measured of the machines until a step that was not reported yet
        self._output = job.generations.output

    def run(self, job: Job, gpu: bool, builder: GenerationBuilder, progress: Progress) -> dict[str, Any]:
        """Start the workers, follow them to their end, and return the outcome.

        Ray gives up after a number of failures, even if it made progress between them, and at once if its controller is killed.
        Here a new checkpoint resets the count of failures.
        """
        from ray.exceptions import ActorDiedError, OutOfMemoryError
        from ray.train import TrainingFailedError

        lost, at = 0, checkpointed(job)
        job = replace(job, mark=mark(self._shared))
        while True:
            try:
                result = self._once(Workers(job, gpu), builder, progress)
                if not result["ended"]:
                    self._ending.check(result["step"])
                return result
            except (ActorDiedError, OutOfMemoryError, TrainingFailedError) as error:
                self._ending.check()
                before, at = at, checkpointed(job)
                lost += job.settings.max_failures + 1 if isinstance(error, TrainingFailedError) else 1
                lost = lost if at == before else 0
                if builder.failed_by(error) or fixable(error) or not job.settings.max_failures or lost > job.settings.max_failures:
                    raise
                remove_left_groups()
                say(f"train: its workers were lost, and it continues from step {at:,}")

    def _once(self, workers: Workers, builder: GenerationBuilder, progress: Progress) -> dict[str, Any]:
        import ray

        forget(self._shared)
        withdraw(self._shared)
        self._at, self._began, self._ahead = 0, False, {}
        fix_registered(self._shared)
        job = ray.get_runtime_context().get_job_id()
        placing = Placing(self._settings, job)
        try:
            workers.start()
            with Waiting("train", placing.waits), self._ending.following():
                while workers.is_alive():
                    workers.join(self._shared.look_every_s)
                    self._ending.look()
                    builder.check()
                    if not self._began:
                        placing.refuse()
                    with suppress(OSError):  # the workers may still reach the store or the disk
                        keep_registered(self._shared)
                    with suppress(OSError):
                        self.report(progress)
        except Exception:
            self._let_save(workers)
            raise
        finally:
            leave_working(workers, self._output)
        outcome = workers.outcome()
        if not self._began:  # no step was left
            self._began = True
            with suppress(OSError):  # the training is done
                self.report(progress)
        return outcome

    def _let_save(self, workers: Workers) -> None:
        """Where something else than the workers failed, as the refresh: they save before the end of this process ends them."""
        with suppress(OSError):
            if workers.is_alive() and start_line(self._shared) is not None:
                ask_to_end(self._shared)
                say("train: fails, and saves after this step before it ends; a signal ends it at once")
                workers.join(WAITS_S)

    def report(self, progress: Progress) -> None:
        """Show and send what is new.

        Nothing of the history before the workers have begun: until then it may have steps after the checkpoint, which are made again.
        """
        self._say_news(progress)
        self._at = max(self._at, steps_done(self._shared) or 0)
        progress.set(self._at or progress.done)  # even if nothing is new: a line is printed at intervals
        self._began = self._began or start_line(self._shared) is not None
        if not self._began:
            return
        newest = self._send_some()
        if newest:
            progress.set(self._at, _described(newest))

    def send_rest(self) -> None:
        """Send what no report had the time for: the training is done, and the history complete."""
        with suppress(OSError):
            while self._send_some():
                pass

    def _send_some(self) -> Line:
        """Show and send new lines for a second or so; returns their newest numbers, nothing if there was no line.

        A driver that starts again sends the whole history, which takes a slow tracker long; what ends the training is looked for meanwhile.
        """
        newest: Line = {}
        until = time.monotonic() + _REPORTING_S
        for line in self._new_lines():
            self._at = max(self._at, line["step"])
            newest |= line
            if line["step"] > self._sent:
                self._send(line)
                self._sent = line["step"]
                if "skipped" in line:
                    say(f"train: step {line['step']:,} did not update the weights: its gradient is not finite")
            if time.monotonic() >= until:
                break
        for name, value in newest.items():
            show("train", value, output=Path(self._output).name, name=name)
        return newest

    def _new_lines(self) -> Iterator[Line]:
        """The new lines of the history, each with what was measured of the machines since the line before."""
        usage = self._usage.new_lines()  # the file is read at the first `next`: after the history, which is written after it
        for line in self._follower.new_lines():
            used: Line = {}
            while (ahead := self._ahead or next(usage, {})) and ahead["step"] <= line["step"]:
                used, self._ahead = ahead, {}
            self._ahead = ahead
            yield used | line

    def _say_news(self, progress: Progress) -> None:
        """Print the lines of worker 0 that were not printed yet."""
        lines = {
            "micro_batch": micro_batch_line(self._shared) if self._asks_micro_batch else None,
            "start": start_line(self._shared) if "start" not in self._shown else None,  # once, however often workers start again
            "dev": dev_line(self._shared) if self._measures_dev else None,
        }
        for name, line in lines.items():
            if line and line != self._shown.get(name):
                progress.clear()
                say(f"train: {line}")
                self._shown[name] = line
        if "start" in self._shown:
            progress.starting = False


def _described(line: Line) -> str:
    """What the progress line says of the newest numbers, which are of a step before the last: not each step is written."""
    shown = {
        "loss": "loss {:.4f}",
        "gradient_norm": "gradient {:.2g}",
        "lr": "lr {:.1e}",
        "tokens_per_second": "{:,.0f} tokens/s",
        "memory": "{:.1f} GiB",
    }
    numbers = ", ".join(text.format(line[name]) for name, text in shown.items() if name in line)
    return f"at step {line['step']:,}: {numbers}"


def checkpointed(job: Job) -> int:
    state = newest_state(job.shared)
    return state.step if state else 0
