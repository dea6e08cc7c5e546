"""Runs the trials of a sweep as trials of Ray Tune, several at once."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, redirect_stderr, redirect_stdout, suppress
from dataclasses import dataclass
from typing import Any

from raydense.errors import Faults, InputError, StorageError, faults_of, why
from raydense.recipes.recipe import open_stages, refuse_wrong, run_stage, state
from raydense.recipes.stage import Stage
from raydense.recipes.sweep import Sweep, Trial
from raydense.recipes.sweep_ending import saving
from raydense.recipes.sweep_progress import SweepProgress
from raydense.runtime.progress import duration, say, say_error
from raydense.runtime.session import SHARERS, ensure_ray, quiet_data
from raydense.runtime.verbosity import limit_logs
from raydense.storage import Place

_TUNE = "tune"  # what Tune keeps of the trials, which nothing reads again


def run_sweep(sweep: Sweep, concurrent: int = 1) -> dict[str, Exception]:
    """Run what is not done of the trials, as trials of Ray Tune, `concurrent` at once; returns what went wrong, by trial's name.

    A trial that fails does not stop the others. Stopping anywhere is safe: the next call continues where this one stopped. What
    the stages of a trial print goes to its folder's `log`. InputError, before anything starts, where a stage's folder was made from
    something else, or an input is wrong.
    """
    left = _left(sweep)
    for trial in sweep.trials:
        _describe(trial)
    say(f"sweep: {len(sweep.trials)} trials, {len(sweep.trials) - len(left)} done before")
    return _run(sweep, left, concurrent)


def _run(sweep: Sweep, left: list[Trial], concurrent: int) -> dict[str, Exception]:
    """Run Tune, again where Ray has ended one of its own actors for want of memory, which Tune does not survive, as long as stages get done."""
    while left:
        before = _open(left)
        try:
            return _tune(sweep, left, concurrent)
        except RuntimeError as error:
            from ray.exceptions import OutOfMemoryError

            if not isinstance(error.__cause__, OutOfMemoryError):
                raise
        left = [trial for trial in left if open_stages(trial.recipe)]
        fix = "give a smaller --concurrent, or end what else needs memory"
        if _open(left) == before:
            raise InputError("Ray ended the sweep: the machine ran out of memory", "sweep", f"{fix}; the same command goes on")
        say(f"sweep: the machine ran out of memory, and Ray ended a trial; goes on ({fix})")
    return {}


def _open(trials: list[Trial]) -> int:
    return sum(len(open_stages(trial.recipe)) for trial in trials)


def _left(sweep: Sweep) -> list[Trial]:
    """The trials that are not done; InputError, or InputErrors, where some cannot run, with their names unless all have the same fault."""
    left, refused = [], dict[tuple[str, str, str], list[str]]()
    for trial in sweep.trials:
        try:
            if open_stages(trial.recipe):
                refuse_wrong(trial.recipe)
                left.append(trial)
        except InputError as error:
            for fault in faults_of(error):
                refused.setdefault(fault.args, []).append(trial.name)
    faults = Faults()
    for (what, where, fix), trials in refused.items():
        faults.add(what, where if len(trials) == len(sweep.trials) else f"{where} (of {', '.join(trials)})", fix)
    faults.refuse()
    return left


def _describe(trial: Trial) -> None:
    """Write into the trial's folder what it is made of."""
    folder = trial.recipe.output
    stages = {stage.name: os.path.relpath(stage.settings.output, folder) for stage in trial.recipe.stages}
    described = {"variant": trial.variant, "seed": trial.seed, "stages": stages}
    (folder / "trial.json").write_text(json.dumps(described, indent=1) + "\n")


def _tune(sweep: Sweep, left: list[Trial], concurrent: int) -> dict[str, Exception]:
    # Ctrl-C ends the command, as everywhere; Tune would tidy up first, and print a report of its own.
    os.environ.setdefault("TUNE_DISABLE_SIGINT_HANDLER", "1")
    os.environ.setdefault("TUNE_PRINT_ALL_TRIAL_ERRORS", "0")
    os.environ.setdefault("TUNE_DISABLE_AUTO_CALLBACK_LOGGERS", "1")
    os.environ.setdefault("RAY_AIR_NEW_OUTPUT", "0")
    ensure_ray()
    import ray
    from ray import tune

    limit_logs("ray.tune", "CRITICAL")
    sharers = -(-min(concurrent, len(left)) // _computing_nodes())
    here = _Here(ray.get_runtime_context().get_node_id(), _address(), os.getcwd(), os.environ.get("RAY_ADDRESS"), sharers)
    running: dict[str, Trial] = {}
    tuner = tune.Tuner(
        # Of no CPU: a trial only waits for its stages, and these need the CPUs. It lives on the machine of this process, which
        # ends with the command alone; Tune does not take a trial that needs nothing.
        tune.with_resources(lambda point: _trainable(left[point["trial"]], here), {"CPU": 0, f"node:{here.ip}": 1e-3}),
        param_space={"trial": tune.grid_search(list(range(len(left))))},
        tune_config=tune.TuneConfig(max_concurrent_trials=concurrent),
        run_config=tune.RunConfig(
            name="tune",
            storage_path=str(Place.of(sweep.output.located).working(_TUNE)),
            callbacks=[_listener(left, running)],
            verbose=0,
        ),
    )
    with saving(running), SweepProgress(running):
        results = tuner.fit()
    sweep.output.forget(_TUNE)
    return {trial.name: result.error for number, trial in enumerate(left) if (result := results[number]).error}


def _listener(trials: list[Trial], running: dict[str, Trial]) -> Any:
    """Tune's callback that logs each stage and trial that is finished, and keeps the trials that are `running`, by name."""
    from ray import tune

    begun, ended, in_all = time.monotonic(), list[str](), len(trials)

    def of(trial: Any) -> Trial:
        return trials[trial.config["trial"]]

    class Listener(tune.Callback):
        def on_trial_start(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
            running[of(trial).name] = of(trial)
            say(f"{of(trial).name}: begins")

        def on_trial_result(self, iteration: int, trials: list[Any], trial: Any, result: dict[str, Any], **info: Any) -> None:
            say(f"{of(trial).name}: {result['said']}")

        def on_trial_complete(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
            running.pop(of(trial).name, None)
            ended.append(of(trial).name)
            if left := in_all - len(ended):
                so_far = time.monotonic() - begun
                say(
                    f"sweep: {len(ended)} of {in_all} trials ended in {duration(so_far)}, about {duration(so_far / len(ended) * left)} left"
                )

        on_trial_error = on_trial_complete

    return Listener()


def _address() -> str:
    """This machine's, as the cluster knows it."""
    import ray

    here = ray.get_runtime_context().get_node_id()
    return next(node["NodeManagerAddress"] for node in ray.nodes() if node["NodeID"] == here)


def _computing_nodes() -> int:
    """The nodes over which trials spread."""
    import ray

    return max(1, sum(node["Alive"] and any(node["Resources"].get(kind) for kind in ("CPU", "GPU")) for node in ray.nodes()))


@dataclass(frozen=True)
class _Here:
    """Where the command runs: stages are begun from there too, with the same relative paths; `sharers` trials share the cores of a node."""

    node: str
    ip: str
    folder: str
    address: str | None
    sharers: int


def _trainable(trial: Trial, here: _Here) -> None:
    """What Tune runs. The stages run in a task of its own: what this process itself starts would share the trial's resources."""
    import ray
    from ray import tune
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    place = NodeAffinitySchedulingStrategy(here.node, soft=False)
    shared = {"env_vars": {SHARERS: str(here.sharers)}} if here.sharers > 1 else None  # what a stage starts has it too
    task = ray.remote(_stages).options(num_cpus=0, num_returns="streaming", max_retries=0, scheduling_strategy=place, runtime_env=shared)
    finished: Any
    try:
        for finished in task.remote(trial, here):  # type: ignore[attr-defined]
            tune.report({"said": ray.get(finished)})
    except Exception as error:
        tune.report({"said": f"failed: {why(error)}"})
        raise


def _stages(trial: Trial, here: _Here) -> Iterator[str]:
    """Run the stages of a trial in order, yielding a few words on each that was not done before."""
    os.chdir(here.folder)
    if here.address:
        os.environ["RAY_ADDRESS"] = here.address  # this process has joined already; stages ask whether Ray is theirs alone
    ensure_ray()
    quiet_data()
    stages, shared = trial.recipe.stages, trial.recipe.output
    log_file = shared / "log"
    kept = log_file.growing()
    if not kept.exists():  # the store has what another machine, or an earlier command, wrote
        kept.write_bytes(log_file.sent() or b"")
    with open(kept, "a", buffering=1, encoding="utf-8") as log, redirect_stderr(log), redirect_stdout(log):
        for number, stage in enumerate(stages, 1):
            label = f"[{number}/{len(stages)}] {stage.name}"
            with _alone(stage):
                if state(stage)[0] != "done":
                    try:
                        _, seconds = run_stage(stage, trial.recipe, label)
                    except Exception as error:
                        say_error(f"failed: {why(error)}")
                        raise
                    finally:
                        with suppress(StorageError):
                            log_file.send()
                    yield f"{label}: done in {duration(seconds)}"
    shared.forget()


def _alone(stage: Stage) -> AbstractContextManager[None]:
    """Wait until no other trial is at work on a stage: all trials live on this machine."""
    return Place.of(stage.settings.output).lock()
