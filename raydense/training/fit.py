"""Runs a training, by any method, on Ray Train workers, into an artifact.

The driver checks the inputs, starts the workers, shows their progress, and writes the best weights into the model's folder.
"""

from __future__ import annotations

import json
import math
import shutil
import time
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from raydense.data.store import PassageStore, full_text
from raydense.errors import InputError
from raydense.models.model_card import add_section
from raydense.models.tiny import many_words
from raydense.runtime.progress import Progress, say
from raydense.runtime.session import joins_cluster
from raydense.storage import MANIFEST, Artifact, Draft, Place, begun_from, provenance, read_manifest, releases_outputs
from raydense.training.batches import Sampler
from raydense.training.capacity import require_capacity
from raydense.training.card import shown_inputs, training_section
from raydense.training.checkpoints import refuse_other_workers
from raydense.training.ending import Ending
from raydense.training.followed import Followed
from raydense.training.generation_builder import GenerationBuilder, MakeGeneration
from raydense.training.generations import Generations
from raydense.training.history import EVENTS, HISTORY, lines_of
from raydense.training.inputs import refuse_replaced
from raydense.training.left_threads import wait_for_left
from raydense.training.loop import Job
from raydense.training.loop_settings import LoopSettings
from raydense.training.method import dev_interval, load_model, method_of
from raydense.training.micro_batch import refuse_too_little, refuse_too_little_to_write
from raydense.training.nodes_code import require_code
from raydense.training.registered import newest_state
from raydense.training.settings import dev_of
from raydense.training.tracking import tracking
from raydense.training.weights import load_weights

_RESULT, _TINY = "result.json", "tiny-model"
_CHUNK = 4_096
_SUMMED = ("seconds", "steps", "waited", "input_wait", "tokens")  # of what workers report, over all that were started one after another


@releases_outputs
def fit(settings: LoopSettings, make: MakeGeneration | None = None) -> Artifact:
    """Train by the method of the settings, and return its artifact; continues from the newest checkpoint where an earlier run stopped.

    An artifact of kind `joint` holds several models, each in a sub-folder. `make` makes new hard negatives if the settings have
    a refresh. InputError on bad inputs, or on gradients that stay not finite.
    """
    settings = method_of(settings).completed(settings)
    output = Place.of(settings.output)
    wait_for_left(output)
    made_from = provenance(settings.verb, settings)
    _discard_uncounted(output, settings, made_from)
    draft = Draft.open(output, method_of(settings).artifact, made_from)
    shared = draft.shared
    if draft.done:
        shared.forget()
        return draft.done
    started, named = time.monotonic(), shown_inputs(settings)
    settings = settings.located()
    if not (shared / _RESULT).exists():
        _run(settings, draft, shared, make)
    made = _finish(settings, named, draft, shared, json.loads((shared / _RESULT).read() or b""), time.monotonic() - started)
    shared.forget()
    return made


def _discard_uncounted(output: Place, settings: LoopSettings, made_from: dict[str, Any]) -> None:
    """Discard what another code of the method left before its first checkpoint, as where it failed: no step of it would be continued."""
    begun = begun_from(output) if read_manifest(output) is None else None
    asked = json.loads(json.dumps(made_from))
    if begun is None or begun == asked or {**begun, "method_code": asked.get("method_code")} != asked:
        return
    draft = Draft.open(output, method_of(settings).artifact, begun)
    if newest_state(draft.shared) is None:
        draft.discard()
    draft.close()


def _run(settings: LoopSettings, draft: Draft, shared: Place, make: MakeGeneration | None) -> None:
    """Check the inputs, train, and keep what worker 0 reports."""
    store = PassageStore(settings.corpus)
    method = method_of(settings)
    examples, _ = method.read(settings, store, log=True)
    dev, inputs = method.dev_sets(settings, store), draft.made_from["inputs"]
    refuse_replaced(settings, inputs)
    sampler = Sampler(examples, settings)
    steps = sampler.steps(settings.epochs, settings.max_steps)
    _say_of_patience(settings, dev_interval(settings, steps), steps)
    generations = Generations.of(settings, sampler, steps, draft.located)
    _check_model(settings)
    gpu = require_capacity(settings)
    _say_of_offload(settings, gpu)
    require_code(settings)
    state = newest_state(shared)
    if state is not None:
        refuse_other_workers(draft.place, state, settings)
        if state.workers != settings.workers:
            say(f"train: {state.step:,} steps were done with {state.workers} worker(s), the rest with {settings.workers}")
    with tracking(settings) as send, Ending(shared, steps) as ending:
        start = _tiny(settings, store, shared) if settings.model == "tiny" else settings.model
        if settings.micro_batch == "auto" and not gpu and not joins_cluster():
            refuse_too_little(settings, start)
        refuse_too_little_to_write(settings, start)
        opened = {key: value for key, value in inputs.items() if "." not in key}  # the driver reads the inputs of groups (dev, refresh)
        job = Job(settings, start, shared, steps, dev, generations, steps, opened, draft.made_from.get("method_code", ""))
        with GenerationBuilder(make, settings, start, generations, inputs) as builder:
            followed = Followed(job, send, ending)
            result = _train(job, gpu, state.step if state else 0, followed, builder)
            (shared / _RESULT).write_text(json.dumps(result))
        ending.check(steps)
        followed.send_rest()


def _check_model(settings: LoopSettings) -> None:
    """InputError where the method could not begin with the model, or with a tiny one: that one is made later, after the output is begun."""
    method = method_of(settings)
    if settings.model != "tiny":
        return method.check(settings, settings.model)
    with TemporaryDirectory() as aside:
        method.make_tiny(many_words(), aside, 0)
        try:
            method.check(settings, aside)
        except InputError as error:
            what, where, fix = error.args
            raise InputError(what, "model tiny" if where == aside else where, fix) from None


def _train(job: Job, gpu: bool, done: int, followed: Followed, builder: GenerationBuilder) -> dict[str, Any]:
    """Train to the last step, or until the dev metric no longer rises, and return what worker 0 reports.

    In mode sync the workers end at each boundary, so that their GPUs are free for finding the new negatives. They also end before a node
    of theirs is taken away.
    """
    lends = job.generations.last > 0 and not job.generations.behind
    summed, memory = dict.fromkeys(_SUMMED, 0.0), 0.0
    with Progress("train", job.steps, "steps", done) as progress:
        while True:
            if lends:
                summed["waited"] += builder.make_open()
                job = replace(job, until=job.generations.end(done))
            result = followed.run(job, gpu, builder, progress)
            done, memory = result["step"], max(memory, result["memory"])
            summed = {name: value + result[name] for name, value in summed.items()}
            if result["ended"]:
                if done < job.steps:
                    say(f"train: ended after {done:,} steps: the dev metric was best at step {result['best_step']:,}")
                _say_gain(result)
                return {**result, **summed, "memory": memory}
            if done < job.until:
                say(f"train: a node of its workers is going to be taken away; it continues from step {done:,}")


def _say_gain(result: dict[str, Any]) -> None:
    """Say what the training gained on the dev queries, or that it gained nothing; with `dev.keep` last, that it lost."""
    start, best = result["start"], result["best"]
    if start is None:
        return
    if result["best_step"] and best < start:
        found = f"{result['by']} fell from {start:.4f} before the first step to {best:.4f} after step {result['best_step']:,}"
        say(f"train: {found}, which dev.keep last keeps: lower --lr, or give other negatives")
    elif result["best_step"]:
        say(f"train: {result['by']} {best:.4f} after step {result['best_step']:,}, {start:.4f} before the first")
    else:
        say(
            f"train: {result['by']} was never above the {start:.4f} before the first step, so the model is what it was: lower --lr, or give other negatives"
        )


def _say_of_offload(settings: LoopSettings, gpu: bool) -> None:
    """A line where there is nothing to offload."""
    if settings.engine.offload and not gpu:
        say("train: engine.offload has no effect: on CPUs the machine's memory holds everything")


def _say_of_patience(settings: LoopSettings, every: int, steps: int) -> None:
    """A line where the training is over before as many dev measurements as `dev.patience` have followed the best one."""
    dev = dev_of(settings)
    patience = dev.patience if dev else 0
    if patience * every >= steps:
        measured = f"the dev metric is measured every {every:,} of {steps:,} steps"
        say(f"train: dev.patience {patience} cannot end this training early: {measured}; lower dev.patience or dev.every")


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


def _finish(settings: LoopSettings, named: dict[str, str], draft: Draft, shared: Place, result: dict[str, Any], seconds: float) -> Artifact:
    """Commit the best weights as model folders, and the measurements; `named` are the inputs as the user gave them."""
    start = str(shared / _TINY) if settings.model == "tiny" else settings.model
    model = load_model(settings, start)
    inputs: dict[str, str] = draft.made_from["inputs"]
    refuse_replaced(settings, {key: inputs[key] for key in ("model", "reranker") if key in inputs})
    model.load_state_dict({**model.state_dict(), **load_weights(shared, result["best_step"])})  # frozen weights are those of the start
    history, events = (shared / HISTORY).fetch(), (shared / EVENTS).fetch()
    steps, skipped, last = _counted(history)
    _save_models(settings, draft, model, training_section(settings, draft.made_from, result, steps, history), result["best_step"])
    draft.commit(HISTORY, lambda path: shutil.copyfile(history, path), steps)
    draft.commit(EVENTS, lambda path: shutil.copyfile(events, path), steps)
    names = draft.place.names(f"refresh/*/{MANIFEST}")
    generations = [Artifact.open(draft.place / str(Path(name).parent), "examples").summary for name in names]
    return draft.finish(
        0,
        objective=getattr(settings, settings.chosen_by),
        steps=steps,
        best_step=result["best_step"],
        dev={} if result["best"] is None else {result["by"]: result["best"]},
        **({} if result["start"] is None else {"dev_start": {result["by"]: result["start"]}}),
        loss_last=last,
        seconds=round(seconds, 2),
        **_rates(settings, result),
        corpus=inputs["corpus"],
        inputs=named,
        **({"steps_skipped": skipped} if skipped else {}),
        **({"generations": generations, "waited": round(result["waited"], 2)} if generations else {}),
    )


def _save_models(settings: LoopSettings, draft: Draft, model: Any, card: str, best_step: int) -> None:
    """Commit each model that was trained: into the artifact's own folder, or as an artifact in a sub-folder."""
    for folder, one in method_of(settings).parts(model).items():
        if not folder:
            draft.commit_tree(partial(_save, one, card))
            continue
        part = Draft.open(draft.place / folder, "model", {**draft.made_from, "part": folder})
        if not part.done:
            part.commit_tree(partial(_save, one, card))
            part.finish(0, objective=getattr(settings, settings.chosen_by), best_step=best_step)


def _rates(settings: LoopSettings, result: dict[str, Any]) -> dict[str, float]:
    """What the steps took, for the summary."""
    seconds = max(result["seconds"], 1e-9)
    return {
        "queries_per_second": round(result["steps"] * settings.batch_size / seconds, 1),
        "input_wait": round(result["input_wait"], 2),
        "tokens_per_second": round(result["tokens"] / seconds, 1),
        "memory": result["memory"],
    }


def _save(model: Any, card: str, folder: Path) -> None:
    model.save(folder)
    add_section(folder, card)


def _counted(history: Path) -> tuple[int, int, float]:
    """The steps in a history, how many of them were skipped, and the last loss; one line is held at a time."""
    steps, skipped, last = 0, 0, math.nan
    for line in lines_of(history):
        steps, skipped, last = steps + 1, skipped + line.get("skipped", 0), line.get("loss", last)
    return steps, skipped, last
