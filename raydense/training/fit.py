"""Runs a training, by any method, on Ray Train workers, into an artifact.

The driver checks the inputs, starts the workers, shows their progress, and writes the best weights into the model's folder.
"""

from __future__ import annotations

import json
import os
import shutil
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from raydense.data.store import PassageStore, full_text
from raydense.errors import InputError, StorageError, fixable
from raydense.runtime.allocator import cpu_worker_env
from raydense.runtime.metrics import show
from raydense.runtime.progress import Progress, say
from raydense.runtime.session import joins_cluster
from raydense.runtime.waiting import Waiting
from raydense.storage import MANIFEST, Artifact, Draft, Place, provenance
from raydense.training.batches import Sampler
from raydense.training.capacity import require_capacity, workers_wait
from raydense.training.checkpoints import (
    RUN,
    fix_registered,
    keep_registered,
    load_weights,
    newest_state,
    refuse_other_workers,
)
from raydense.training.dev import METRIC
from raydense.training.ending import Ending
from raydense.training.generation_builder import GenerationBuilder, MakeGeneration
from raydense.training.generations import Generations
from raydense.training.history import EVENTS, HISTORY, Follower, read_history
from raydense.training.inputs import refuse_replaced
from raydense.training.loop import FOUND, Job, train_worker
from raydense.training.loop_settings import LoopSettings
from raydense.training.method import load_model, method_of
from raydense.training.micro_batch import refuse_too_little
from raydense.training.notice import withdraw
from raydense.training.status import forget, start_line, steps_done
from raydense.training.tracking import Send, tracking

_RESULT, _TINY = "result.json", "tiny-model"
_CHUNK = 4_096
# Ray Train polls its workers at this interval: it bounds the delay of a report, and of the end.
_LOOK_EVERY_S = "0.25"


def fit(settings: LoopSettings, make: MakeGeneration | None = None) -> Artifact:
    """Train by the method of the settings, and return its artifact; continues from the newest checkpoint where an earlier run stopped.

    An artifact of kind `joint` holds several models, each in a sub-folder. `make` makes new hard negatives if the settings have
    a refresh. InputError on bad inputs, or on gradients that stay not finite.
    """
    settings = method_of(settings).completed(settings)
    draft = Draft.open(settings.output, method_of(settings).artifact, provenance(settings.verb, settings))
    shared = draft.shared
    if draft.done:
        shared.forget()
        return draft.done
    started = time.monotonic()
    settings = settings.located()
    if not (shared / _RESULT).exists():
        _run(settings, draft, shared, make)
    made = _finish(settings, draft, shared, json.loads((shared / _RESULT).read() or b""), time.monotonic() - started)
    shared.forget()
    return made


def _run(settings: LoopSettings, draft: Draft, shared: Place, make: MakeGeneration | None) -> None:
    """Check the inputs, train, and keep what worker 0 reports."""
    store = PassageStore(settings.corpus)
    method = method_of(settings)
    examples, _ = method.read(settings, store, log=True)
    dev, inputs = method.dev_sets(settings, store), draft.made_from["inputs"]
    refuse_replaced(settings, inputs)
    sampler = Sampler(examples, settings)
    steps = sampler.steps(settings.epochs, settings.max_steps)
    generations = Generations.of(settings, sampler, steps, draft.located)
    if settings.model != "tiny":
        method.check(settings, settings.model)
    gpu = require_capacity(settings)
    state = newest_state(shared)
    if state is not None:
        refuse_other_workers(draft.place, state, settings)
        if state.workers != settings.workers:
            say(f"train: {state.step:,} steps were done with {state.workers} worker(s), the rest with {settings.workers}")
    with tracking(settings) as send, Ending(shared, steps) as ending:
        start = _tiny(settings, store, shared) if settings.model == "tiny" else settings.model
        if settings.micro_batch == "auto" and not gpu and not joins_cluster():
            refuse_too_little(settings, start)
        opened = {key: value for key, value in inputs.items() if "." not in key}  # the driver reads the inputs of groups (dev, refresh)
        job = Job(settings, start, shared, steps, dev, generations, steps, opened, state.precision if state else None)
        with GenerationBuilder(make, settings, start, generations, inputs) as builder:
            result = _train(job, gpu, state.step if state else 0, _Followed(job, send, ending), builder)
            (shared / _RESULT).write_text(json.dumps(result))


def _train(job: Job, gpu: bool, done: int, followed: _Followed, builder: GenerationBuilder) -> dict[str, Any]:
    """Train to the last step, or until the dev metric no longer rises, and return what worker 0 reports.

    In mode sync the workers end at each boundary, so that their GPUs are free for finding the new negatives. They also end before a node
    of theirs is taken away.
    """
    lends = job.generations.last > 0 and not job.generations.behind
    seconds, steps, waited, input_wait = 0.0, 0, 0.0, 0.0
    with Progress("train", job.steps, "steps", done) as progress:
        while True:
            if lends:
                waited += builder.make_open()
                job = replace(job, until=job.generations.end(done))
            result = followed.run(job, gpu, builder, progress)
            seconds, steps, done = seconds + result["seconds"], steps + result["steps"], result["step"]
            waited, input_wait = waited + result["waited"], input_wait + result["input_wait"]
            if result["ended"]:
                if done < job.steps:
                    say(f"train: ended after {done:,} steps: the dev metric was best at step {result['best_step']:,}")
                _say_gain(result)
                return {**result, "seconds": seconds, "steps": steps, "waited": waited, "input_wait": input_wait}
            if done < job.until:
                say(f"train: a node of its workers is going to be taken away; it continues from step {done:,}")


def _say_gain(result: dict[str, Any]) -> None:
    """Say what the training gained on the dev queries, or that it gained nothing."""
    start, best = result["start"], result["best"]
    if start is None:
        return
    if result["best_step"]:
        say(f"train: {METRIC} {best:.4f} after step {result['best_step']:,}, {start:.4f} before the first")
    else:
        say(
            f"train: {METRIC} was never above the {start:.4f} before the first step, so the model is what it was: lower --lr, or give other negatives"
        )


class _Followed:
    """Starts workers, shows their progress, and sends their history to trackers."""

    def __init__(self, job: Job, send: Send, ending: Ending) -> None:
        self._shared, self._send, self._sent, self._ending = job.shared, send, 0, ending
        self._follower = Follower(job.shared / HISTORY)
        self._asks_micro_batch = job.settings.micro_batch == "auto"  # and it was not logged yet
        self._shows_start, self._at = True, 0  # the step that the workers are at, as far as they have shown
        self._output = Path(job.generations.output).name

    def run(self, job: Job, gpu: bool, builder: GenerationBuilder, progress: Progress) -> dict[str, Any]:
        """Start the workers, follow them to their end, and return the outcome.

        Ray gives up after a number of failures, even if it made progress between them, and at once if its controller is killed.
        Here a new checkpoint resets the count of failures.
        """
        from ray.exceptions import ActorDiedError
        from ray.train import TrainingFailedError

        lost, at = 0, _checkpointed(job)
        while True:
            try:
                result = self._once(_Fit(job, gpu), builder, progress)
                if not result["ended"]:
                    self._ending.check(result["step"])
                return result
            except (ActorDiedError, TrainingFailedError) as error:
                self._ending.check()
                before, at = at, _checkpointed(job)
                lost += 1 if isinstance(error, ActorDiedError) else job.settings.max_failures + 1
                lost = lost if at == before else 0
                if fixable(error) or not job.settings.max_failures or lost > job.settings.max_failures:
                    raise
                say(f"train: its workers were lost, and it continues from step {at:,}")

    def _once(self, fit: _Fit, builder: GenerationBuilder, progress: Progress) -> dict[str, Any]:
        import ray

        (self._shared / FOUND).delete()
        forget(self._shared)
        withdraw(self._shared)
        self._at = 0
        fix_registered(self._shared)
        fit.start()
        job = ray.get_runtime_context().get_job_id()
        with Waiting("train", lambda: workers_wait(job)), self._ending.following():
            while fit.is_alive():
                fit.join(self._shared.look_every_s)
                self._ending.look()
                builder.check()
                keep_registered(self._shared)
                with suppress(StorageError):  # the workers may still reach the store
                    self._report(progress)
        return fit.outcome()

    def _report(self, progress: Progress) -> None:
        """Show and send what is new."""
        found = (self._shared / FOUND).read_text() if self._asks_micro_batch else None
        if found is not None:
            say(f"train: {found}")
            self._asks_micro_batch = False
        if self._shows_start and (start := start_line(self._shared)):
            say(f"train: {start}")
            self._shows_start = progress.starting = False
        self._at = max(self._at, steps_done(self._shared) or 0)
        progress.set(self._at or progress.done)  # even if nothing is new: a line is printed at intervals
        for line in self._follower.new_lines():
            self._at = max(self._at, line["step"])
            progress.set(self._at, f"loss {line['loss']:.4f}" if "loss" in line else "")
            for name, value in line.items():
                show("train", value, output=self._output, name=name)
            if line["step"] > self._sent:
                self._send(line)
                self._sent = line["step"]
                if "skipped" in line:
                    say(f"train: step {line['step']:,} did not update the weights: its gradient is not finite")


def _checkpointed(job: Job) -> int:
    state = newest_state(job.shared)
    return state.step if state else 0


def _tiny(settings: LoopSettings, store: PassageStore, shared: Place) -> str:
    """The folder of a new small model, with a vocabulary made from the corpus; made once."""
    draft = Draft.open(shared / _TINY, "model", {"stage": _TINY})
    if not draft.done:
        draft.commit_tree(lambda folder: method_of(settings).make_tiny(_texts(store), folder, settings.seed))
        draft.finish(0)
    return str(shared / _TINY)


def _texts(store: PassageStore) -> Iterator[str]:
    for start, stop in store.shards:
        for at in range(start, stop, _CHUNK):
            yield from full_text(store.slice(at, min(stop, at + _CHUNK), ["title", "text"])).to_pylist()


class _Fit(threading.Thread):
    """Runs Ray Train's fit in a thread: the main thread shows progress, and handles Ctrl-C, which fit would capture."""

    def __init__(self, job: Job, gpu: bool) -> None:
        super().__init__(name="fit", daemon=True)
        self._job, self._gpu = job, gpu
        self._result: dict[str, Any] = {}
        self._error: BaseException | None = None

    def run(self) -> None:
        try:
            self._result = _fit(self._job, self._gpu)
        except BaseException as error:  # raised again by outcome(), in the main thread
            self._error = error

    def outcome(self) -> dict[str, Any]:
        """What worker 0 returned; raises what went wrong."""
        if self._error is not None:
            raise self._error
        if "fault" in self._result:
            raise InputError(*self._result["fault"])
        return self._result


def _fit(job: Job, gpu: bool) -> dict[str, Any]:
    os.environ.setdefault("RAY_TRAIN_HEALTH_CHECK_INTERVAL_S", _LOOK_EVERY_S)
    os.environ.setdefault("RAY_TRAIN_METRICS_ENABLED", "0")
    if not joins_cluster():  # an embedded Ray is never preempted: no actor needed for that
        os.environ.setdefault("RAY_TRAIN_ENABLE_PREEMPTION_WATCHER", "0")
    from ray.train import CheckpointConfig, FailureConfig, RunConfig, ScalingConfig
    from ray.train.torch import TorchConfig, TorchTrainer

    each = {"CPU": job.settings.cpus_per_worker} | ({"GPU": 1.0} if gpu else {})
    # otherwise idle threads keep their cores busy, and two trainings on one machine take ten times as long as one
    env = {"OMP_WAIT_POLICY": os.environ.get("OMP_WAIT_POLICY", "PASSIVE"), **_allocator(job, gpu)}
    trainer = TorchTrainer(
        lambda: train_worker(job),  # type: ignore[arg-type]
        torch_config=TorchConfig(backend="nccl" if gpu else "gloo"),
        scaling_config=ScalingConfig(num_workers=job.settings.workers, use_gpu=gpu, resources_per_worker=each),
        run_config=RunConfig(  # type: ignore[call-arg]  # it is of another class where types are checked
            name=RUN,
            **job.shared.for_ray(),
            worker_runtime_env={"env_vars": env},
            failure_config=FailureConfig(max_failures=job.settings.max_failures),
            checkpoint_config=CheckpointConfig(num_to_keep=1),
        ),
    )
    result: Any = trainer.fit()
    return result.return_value


def _allocator(job: Job, gpu: bool) -> dict[str, str]:
    """The environment of the workers' allocator; with activation checkpointing it is glibc's, since `give_memory_back` sets glibc up."""
    return {} if gpu or job.settings.activation_checkpointing else cpu_worker_env()


def _finish(settings: LoopSettings, draft: Draft, shared: Place, result: dict[str, Any], seconds: float) -> Artifact:
    """Commit the best weights as model folders, and the measurements."""
    start = str(shared / _TINY) if settings.model == "tiny" else settings.model
    method, model = method_of(settings), load_model(settings, start)
    inputs: dict[str, str] = draft.made_from["inputs"]
    refuse_replaced(settings, {key: inputs[key] for key in ("model", "reranker") if key in inputs})
    model.load_state_dict({**model.state_dict(), **load_weights(shared, result["best_step"])})  # frozen weights are those of the start
    name = getattr(settings, settings.chosen_by)
    for folder, one in method.parts(model).items():
        if not folder:
            draft.commit_tree(one.save)
            continue
        part = Draft.open(draft.place / folder, "model", {**draft.made_from, "part": folder})
        if not part.done:
            part.commit_tree(one.save)
            part.finish(0, objective=name, best_step=result["best_step"])
    names = draft.place.names(f"refresh/*/{MANIFEST}")
    renewed = {"generations": [Artifact.open(draft.place / str(Path(name).parent), "examples").summary for name in names]}
    history, events = (shared / HISTORY).fetch(), (shared / EVENTS).fetch()
    lines = read_history(history)
    skipped = sum(line.get("skipped", 0) for line in lines)
    draft.commit(HISTORY, lambda path: shutil.copyfile(history, path), len(lines))
    draft.commit(EVENTS, lambda path: shutil.copyfile(events, path), len(lines))
    return draft.finish(
        0,
        objective=name,
        steps=len(lines),
        best_step=result["best_step"],
        dev={} if result["best"] is None else {METRIC: result["best"]},
        **({} if result["start"] is None else {"dev_start": {METRIC: result["start"]}}),
        loss_last=next(line["loss"] for line in reversed(lines) if "loss" in line),
        seconds=round(seconds, 2),
        queries_per_second=round(result["steps"] * settings.batch_size / max(result["seconds"], 1e-9), 1),
        input_wait=round(result["input_wait"], 2),
        corpus=inputs["corpus"],
        **({"steps_skipped": skipped} if skipped else {}),
        **(renewed | {"waited": round(result["waited"], 2)} if renewed["generations"] else {}),
    )
