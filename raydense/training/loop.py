"""The training loop, as each Ray Train worker runs it: batches, steps, log, dev metric, checkpoints."""

from __future__ import annotations

import json
import math
import time
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn

from raydense.data.store import PassageStore
from raydense.errors import InputError
from raydense.models.sharded import OnAllWorkers, together
from raydense.storage import Place
from raydense.training.activation_checkpointing import checkpoint_activations, give_memory_back
from raydense.training.batches import Sampler
from raydense.training.checkpoints import Checkpoints
from raydense.training.cores import share_cores
from raydense.training.dev import Dev
from raydense.training.dev_sets import METRIC, DevSet
from raydense.training.engine import Engine, learning_rate, make_engine
from raydense.training.generations import Generations
from raydense.training.inputs import refuse_edited, refuse_replaced
from raydense.training.log import Log
from raydense.training.loop_settings import LoopSettings
from raydense.training.method import dev_interval, method_of
from raydense.training.micro_batch import Kept, find_micro_batch, keep_half, kept_micro_batch, out_of_memory, refuse_too_little_to_offload
from raydense.training.notice import Asked, Notice
from raydense.training.outage import outlasting
from raydense.training.piece_count import pieces_of
from raydense.training.pieces import Cut, cut_up
from raydense.training.precision import Precision, precision_for
from raydense.training.prefetch import Prefetch
from raydense.training.registered import State, newest_state
from raydense.training.settings import dev_of
from raydense.training.shared_folder import refuse_other_folder
from raydense.training.start_model import load_start
from raydense.training.status import Status, dev_measured, when
from raydense.training.step import run_cut
from raydense.training.transfer import Sent, Transfer
from raydense.training.unused import uses_all_weights
from raydense.training.worker import Worker

SKIPPED_AT_MOST = 20  # in a row: float16 halves its scale from 2^14 on until a gradient is finite
_FIX = "lower --lr, clip the gradient with --clip, or give --precision fp32"


@dataclass(frozen=True)
class Job:
    """What the driver sends to each worker: the settings with absolute paths, the start model's folder, and
    the folder that driver and workers share.

    The workers end after `until` of the `steps`. `inputs` has the fingerprints of the inputs, by the keys of the settings; `code` is that of
    the method, as `method_code` of the settings.
    """

    settings: LoopSettings
    start: str
    shared: Place
    steps: int
    dev: dict[str, DevSet]
    generations: Generations
    until: int
    inputs: dict[str, str]
    code: str = ""
    mark: str = ""  # of the shared folder


def train_worker(job: Job) -> dict[str, Any]:
    """Run one worker. An error that the user must fix is returned as `fault`, not raised: Ray Train would retry it.

    It is raised where the other workers may wait for this one, which they would do for half an hour: in the steps, unless all of them have
    it; and where memory runs out, of which the others may still have some.
    """
    from ray.train import get_context
    from ray.train.torch import get_device

    context, loop = get_context(), None
    try:
        worker = Worker(context.get_world_rank(), context.get_world_size(), context.get_local_world_size(), get_device())
        with together():
            refuse_other_folder(job.shared, job.mark, job.generations.output.located)
        loop = Loop(job, worker)
        return loop.run()
    except InputError as error:
        if loop and loop.worker.workers > 1 and not isinstance(error, OnAllWorkers):
            raise
        return {"fault": list(error.args)}
    except torch.OutOfMemoryError as error:
        if loop and job.settings.micro_batch == "auto":
            keep_half(_kept_in(job, loop.worker), int(loop.settings.micro_batch))
        raise out_of_memory(job.settings) from error


def _kept_in(job: Job, worker: Worker) -> Place:
    return job.shared / f"micro_batch-{worker.workers}.json"


class Loop:
    """One worker's run, from the newest checkpoint to the last step."""

    def __init__(self, job: Job, worker: Worker) -> None:
        self.job, self.worker, self.settings = job, worker, job.settings
        s, self.status = self.settings, Status(job.shared) if worker.rank == 0 else None
        threads = share_cores(worker.device, int(s.cpus_per_worker), worker.on_machine, job.generations.behind, s.engine.offload)
        self.batches, self.transfer = Prefetch(self._batches, threads), Transfer(worker.device)
        method = method_of(s)
        with together():  # a path may be missing on one machine alone
            examples, texts = method.read(s, PassageStore(s.corpus))
        self.sampler, self.generation, self.waited = Sampler(examples, s), 0, 0.0
        with together():
            refuse_too_little_to_offload(s, job.start, worker.device, worker.on_machine)
        model = load_start(s, job.start, worker.device)
        with together():
            refuse_replaced(s, job.inputs)
            refuse_edited(s, job.code)
        if s.activation_checkpointing:
            checkpoint_activations(model)
            if worker.device.type == "cpu":
                give_memory_back()
        if s.micro_batch == "auto":
            s = self.settings = self._with_micro_batch(model)
        self.method = method(s, model, texts, worker.rank, worker.workers)
        self.pieces = pieces_of(s)
        self.dev = {name: Dev(dev, model, texts, worker.rank, worker.workers, int(s.micro_batch)) for name, dev in job.dev.items()}
        self.precision = self._precision(model)
        overlaps = s.engine.name != "ddp" or worker.workers == 1 or uses_all_weights(model, s)
        self.engine: Engine = make_engine(model, s, worker.device, self.precision, self.pieces, overlaps)
        self.engine.module.train()
        self.log = Log(job.shared, worker)
        self.checkpoints = Checkpoints(job.shared, self.engine, worker.rank, self.log.send)
        self.dev_every = dev_interval(s, job.steps)
        dev = dev_of(s)
        self.decides = _named(next(iter(job.dev), METRIC), dev.metric if dev else METRIC)  # which step is the best
        self.patience, self.keeps_last = (dev.patience, dev.keep == "last") if dev else (0, False)
        self.notice, self.ends = Notice(job.shared, s.checkpoint_minutes, worker.rank, worker.workers, worker.device), False

    def _precision(self, model: nn.Module) -> Precision:
        """The number format of the training; InputError, on all workers, where `auto` chooses another one on the device of another worker.

        The steps that are done may be of this run: Ray starts workers again, perhaps on nodes of another kind.
        """
        done = newest_state(self.job.shared)
        with together():
            mine = precision_for(self.settings, self.worker.device, model, done.precision if done else None)
        if self.worker.workers == 1 or self.settings.precision != "auto":
            return mine
        found = [mine] * self.worker.workers
        dist.all_gather_object(found, mine)
        if len(set(found)) > 1:
            what = f"the devices of the workers would train in {' and '.join(sorted(set(found)))}"
            raise InputError(what, "precision", "give --precision fp32, or one kind of GPU with --accelerator")
        return mine

    def _with_micro_batch(self, model: nn.Module) -> LoopSettings:
        """The settings with the micro-batch that fits; the driver logs the line that worker 0 leaves.

        It is found once for a training, a number of workers, their devices and whether activations are kept: another one would change what
        dropout draws after a restart.
        """
        worker, place, checkpointing = self.worker, _kept_in(self.job, self.worker), self.settings.activation_checkpointing
        kept, devices = kept_micro_batch(place, worker.device, worker.on_machine)
        if kept and kept.devices == devices and kept.activation_checkpointing in (None, checkpointing):
            texts, line = kept.texts, f"micro_batch {kept.texts}, as before"
        else:
            texts, line = find_micro_batch(self.settings, self.job.start, model, worker.device, worker.on_machine)
            line += f"; it was {kept}" if kept else ""
        with together():
            if self.status:
                place.write_text(json.dumps(asdict(Kept(texts, devices, checkpointing))))
                self.status.micro_batch(line)
        return self.settings.model_copy(update={"micro_batch": texts})

    def run(self) -> dict[str, Any]:
        """Train to the last step, or to the end of this job; returns values for the summary."""
        state = self.checkpoints.load(self.worker.workers, self.precision, self.job.generations.output)
        self.log.open(state.step)
        status = self.status
        started, first = time.monotonic(), state.step
        self.notice.watch()
        while state.step < self.job.until and not (self.ends or self._stalled(state)):
            self._take_generation(self.job.generations.at(state.step))
            if self.ends:
                break
            for step, sent in self.batches.range(state.step, self.job.generations.end(state.step)):
                parts = self.transfer.receive(sent)
                if status and step == first:
                    status.start(self._described(parts))
                if self.dev and step == 0:
                    state, values = self._measured(state)
                    state = replace(state, start=values[self.decides])
                updated = self._train_step(step, parts)
                if status:
                    status.at(step + 1)
                state = self._after(replace(state, step=step + 1, skipped=0 if updated else state.skipped + 1))
                if self.ends or self._stalled(state):
                    break
        self.notice.close()
        self.log.flush()
        if state.best is None and state.step == self.job.steps:
            state = replace(state, best_step=state.step)
            self._save_weights(state.step)
        self.checkpoints.settle()
        self.log.close()
        if status:
            status.close()
            self.job.shared.forget()
        return self._result(state, first, time.monotonic() - started - self.waited)

    def _result(self, state: State, first: int, seconds: float) -> dict[str, Any]:
        """The values for the summary, of a run that began at step `first`."""
        done = {
            "step": state.step,
            "steps": state.step - first,
            "seconds": seconds,
            "waited": self.waited,
            "input_wait": self.batches.waited,
        }
        ended = state.step == self.job.steps or self._stalled(state)
        used = {"tokens": self.log.tokens, "memory": self.log.memory}
        best = {"best_step": state.best_step, "best": state.best, "start": state.start, "by": self.decides}
        return {**best, "ended": ended, **used, **done}

    def _stalled(self, state: State) -> bool:
        """Whether as many dev measurements in a row as the settings allow were no better than the best."""
        return bool(self.patience and state.best is not None and self._misses(state) >= self.patience)

    def _misses(self, state: State) -> int:
        """How many dev measurements in a row were no better than the best."""
        return (state.step - state.best_step) // self.dev_every

    def _described(self, parts: list[Cut]) -> str:
        """One line about examples, steps, workers and tokens; the tokens are estimated from this worker's first step."""
        s, worker = self.settings, self.worker
        what = f"{len(self.sampler.examples):,} examples, {self.job.steps:,} step{'s' * (self.job.steps > 1)} of {s.batch_size:,}"
        on = f"{worker.workers} worker{'s' * (worker.workers > 1)} on {worker.device.type} in {self.precision}"
        return f"{what}, {on}, about {sum(part.tokens for part in parts) * worker.workers:,} tokens a step"

    def _take_generation(self, number: int) -> None:
        """Use generation `number` of the hard negatives from now on; waits until it is made, or the workers are to end: a checkpoint is there."""
        if number == self.generation:
            return
        generations, begun = self.job.generations, time.monotonic()
        self.ends = not self.notice.wait(lambda: outlasting(lambda: generations.is_decided(number), "looking for new negatives"))
        self.waited += time.monotonic() - begun
        if self.ends:
            return
        with together():  # the driver may have given up
            generations.refuse_unmade(number)
            newer = {"examples": str(generations.examples(number))}
            examples, _ = self.method.read(self.settings.model_copy(update=newer), PassageStore(self.settings.corpus))
            refuse_replaced(self.settings, self.job.inputs)
        self.sampler, self.generation = Sampler(examples, self.settings), number

    def _batches(self, step: int) -> Sent:
        kind = self.worker.device.type
        return self.transfer.send([cut_up(self.settings, self.method.prepare(part), self.pieces, kind) for part in self.sampler.step(step)])

    def _train_step(self, step: int, parts: list[Cut]) -> bool:
        """Whether the weights were updated: they are not where the gradient is not finite."""
        seeds = np.random.SeedSequence([self.settings.seed, step, self.worker.rank]).generate_state(len(parts) * self.pieces)
        measured = [
            run_cut(self.engine, self.method, part, of_part.tolist())
            for part, of_part in zip(parts, seeds.reshape(len(parts), -1), strict=True)
        ]
        lr = learning_rate(step, self.job.steps, self.settings)
        norm = self.engine.step(lr)
        values = {name: torch.stack([m[name] for m in measured]).mean() for name in measured[0]}
        known = {"lr": lr}
        if self.job.generations.last:
            staleness = float(step - self.job.generations.made_of(self.generation))
            known = {"generation": float(self.generation), "staleness": staleness, **known}
        self.log.add(step + 1, known, norm, values, sum(part.tokens for part in parts))
        return math.isfinite(norm)

    def _after(self, state: State) -> State:
        """Do what is due after `state.step` steps: dev metric, log, weights for a generation, checkpoint.

        InputError, on all workers, if too many steps in a row were skipped.
        """
        if state.skipped == min(SKIPPED_AT_MOST, self.job.steps):
            self.log.flush()
            self.log.close()
            what = f"the gradients of {state.skipped} steps in a row are not finite, the last at step {state.step}"
            raise OnAllWorkers(what, "train", _FIX)
        last = state.step == self.job.steps
        if self.dev and (last or state.step % self.dev_every == 0):
            state, values = self._measured(state)
            self.log.flush(values)
        elif state.step % self.settings.log_every == 0:
            self.log.flush()
        if self.job.generations.boundary(state.step) and not self._stalled(state):
            self._hand_over(state.step)
        asked = self.notice.asked()
        self.ends = asked == Asked.END
        if not last and (asked or self._is_due(state.step)):
            self.log.flush()
            self.checkpoints.save(state)
            self.notice.saved()
        return state

    def _measured(self, state: State) -> tuple[State, dict[str, float]]:
        """The dev metrics; the weights are kept where the one that decides is the best so far, or where those of the last step are wanted."""
        if self.status:
            self.status.dev(f"measures the dev metric {when(state.step)}")
        values = {_named(name, metric): value for name, dev in self.dev.items() for metric, value in dev.measure(self.engine).items()}
        last = state.step == self.job.steps
        if last if self.keeps_last else state.best is None or values[self.decides] > state.best:
            state = replace(state, best=values[self.decides], best_step=state.step)
            self._save_weights(state.step)
        if self.status:
            self.status.dev(dev_measured(values, self.decides, state, self._misses(state), self.patience))
        return state, values

    def _is_due(self, step: int) -> bool:
        """Whether there is a checkpoint after `step` steps: also before a wait for other hard negatives."""
        return step % self.settings.checkpoint_every == 0 or step == self.job.until or self.job.generations.at(step) != self.generation

    def _hand_over(self, step: int) -> None:
        weights = self._finite_weights(step)
        if self.worker.rank == 0:
            outlasting(lambda: self.job.generations.hand_over(step, weights), "handing the weights over for new negatives")

    def _save_weights(self, step: int) -> None:
        self.checkpoints.save_weights(step, self._finite_weights(step))

    def _finite_weights(self, step: int) -> dict[str, Tensor]:
        weights = self.engine.weights()
        refuse_weights_not_finite(weights, step, self.worker)
        return weights


def _named(of: str, metric: str) -> str:
    """A metric as the history names it, of the dev set called `of`: `reranker ndcg@10` of `reranker mrr@10`."""
    return f"{of.removesuffix(METRIC)}{metric}"


def refuse_weights_not_finite(weights: dict[str, Tensor], step: int, worker: Worker) -> None:
    """InputError, on all workers, if a weight on one of them is not finite; all call this at the same step."""
    wrong = torch.tensor([not all(value.isfinite().all() for value in weights.values())], dtype=torch.int32, device=worker.device)
    if worker.workers > 1:
        dist.all_reduce(wrong)
    if wrong.item():
        raise OnAllWorkers(f"the weights are not finite numbers after step {step}", "train", _FIX)
