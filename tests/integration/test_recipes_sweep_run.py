"""A real sweep, killed on its way and run again: shared stages are made once, nothing is made twice, and one table comes out."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import forked
import psutil
import pytest
from ray.exceptions import OutOfMemoryError
from ray.tune import Tuner
from warm_worker import cold_environment, own_ray_environment

from raydense.cli import main
from raydense.errors import InputError
from raydense.recipes.recipe import state
from raydense.recipes.sweep import Sweep, plan_sweep, write_tables
from raydense.recipes.sweep_run import run_sweep
from raydense.runtime.session import SHARERS
from raydense.storage import Place
from raydense.training.history import Follower
from raydense.training.registered import newest_state

pytestmark = pytest.mark.usefixtures("ray_cluster")

RECIPE = """
stages:
  data: {do: sample, passages: 300, train_queries: 96, dev_queries: 16, test_queries: 24}
  words: {do: index, kind: bm25, corpus: $data/corpus}
  bm25: {do: search, index: $words, queries: $data/queries, k: 20}
  negatives: {do: mine, run: $bm25, corpus: $data/corpus, queries: $data/queries, qrels: $data/qrels/train, negatives: 4}
  reranker: {do: train, objective: reranker, model: tiny, corpus: $data/corpus, queries: $data/queries, examples: $negatives,
    engine: {name: ddp}, max_steps: 3, batch_size: 8, lr: 1.0e-3}
  reranked: {do: rerank, model: $reranker, run: $bm25, corpus: $data/corpus, queries: $data/queries, depth: 5}
  report: {do: evaluate, run: [BM25=$bm25, re-ranked=$reranked], qrels: $data/qrels/test, metrics: [RR@10, nDCG@10]}
sweep:
  reranker.seed: [1, 2]
  variants:
    shallow: {}
    deep: {reranked.depth: 10}
"""
SMALL = """
stages:
  data: {do: sample, passages: 200, train_queries: 10, dev_queries: 5, test_queries: 10}
  words: {do: index, kind: bm25, corpus: $data/corpus}
  bm25: {do: search, index: $words, queries: $data/queries, qrels: $data/qrels/test, k: 10}
  report: {do: evaluate, run: [$bm25], qrels: $data/qrels/test, metrics: [RR@10]}
sweep:
"""


def manifests(folder: Path) -> dict[str, tuple[int, int]]:
    """When each artifact was finished, and the file that shows it; those inside of work under way are not meant."""
    files = [file for file in folder.rglob("manifest.json") if ".work" not in file.parts]
    return {str(file): ((stat := file.stat()).st_mtime_ns, stat.st_ino) for file in files}


def start_sweep(folder: Path, log: str, environment: dict[str, str]) -> subprocess.Popen[bytes]:
    """The sweep as a user runs it: a process of its own, with a Ray of its own."""
    command = [sys.executable, "-m", "raydense", "run", "recipe.yaml", "--output", "out", "--concurrent", "2"]
    with open(folder / log, "w") as stream:
        return forked.Popen(command, cwd=folder, env=environment, stdout=stream, stderr=stream, start_new_session=True)


def kill_once_trained(folder: Path) -> None:
    """Begin the sweep, and kill -9 it when the first re-ranker is trained."""
    process = start_sweep(folder, "log", own_ray_environment())
    try:
        while not list(folder.glob("out/stages/*/reranker/manifest.json")):
            assert process.poll() is None, (folder / "log").read_text()
            time.sleep(0.05)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


@pytest.mark.long
def test_the_trainings_of_a_sweep_save_before_it_ends(tmp_path: Path) -> None:
    (tmp_path / "recipe.yaml").write_text(RECIPE.replace("max_steps: 3,", "max_steps: 5000, checkpoint_every: 5000,"))

    def steps() -> list[int]:
        files = sorted(tmp_path.glob("out/stages/*/reranker/.work/history.jsonl"))
        return [max([line["step"] for line in Follower(Place.of(file)).new_lines()], default=0) for file in files]

    with start_sweep(tmp_path, "log", own_ray_environment()) as process:
        while len(done := steps()) < 2 or min(done) < 10:
            assert process.poll() is None, (tmp_path / "log").read_text()
            time.sleep(0.05)
        process.send_signal(signal.SIGTERM)  # as `timeout`: to the process, and then to its group
        os.killpg(process.pid, signal.SIGTERM)
    printed = (tmp_path / "log").read_text()
    assert process.returncode == 143, printed
    assert "sweep: 2 trainings save after the step under way, then it ends" in printed
    assert printed.splitlines()[-1] == "raydense: ended by SIGTERM; the same command continues from here"
    saved = [newest_state(Place.of(work)) for work in sorted(tmp_path.glob("out/stages/*/reranker/.work"))]
    assert all(state is not None and state.step >= least for state, least in zip(saved, done, strict=True))


@contextmanager
def environments_of(name: str) -> Iterator[list[dict[str, str]]]:
    """The environments of processes of a name that live while the block runs."""
    seen: dict[int, dict[str, str]] = {}
    left = threading.Event()

    def look() -> None:
        while not left.wait(0.05):
            for process in psutil.process_iter():
                with suppress(psutil.Error):
                    if process.pid not in seen and "".join(process.cmdline()).strip() == name:
                        seen[process.pid] = process.environ()

    watcher, found = threading.Thread(target=look), list[dict[str, str]]()
    watcher.start()
    try:
        yield found
    finally:
        left.set()
        watcher.join()
        found += seen.values()


@pytest.mark.long
def test_a_killed_sweep_goes_on_and_ends_in_one_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]):
    (tmp_path / "recipe.yaml").write_text(RECIPE)
    kill_once_trained(tmp_path)
    before = manifests(tmp_path / "out")
    assert {Path(file).parent.name for file in before} >= {"data", "words", "bm25", "negatives", "reranker"}

    monkeypatch.chdir(tmp_path)
    sweep = Sweep.read("recipe.yaml", "out")
    assert sweep is not None
    with environments_of("ray::RayTrainWorker") as seen, start_sweep(tmp_path, "log-2", cold_environment()) as process:
        process.wait()
    printed = Path("log-2").read_text()
    assert process.returncode == 0, printed
    trained = sum(Path(file).parent.name == "reranker" for file in before)
    if trained == 1:  # on a busy machine both may be
        assert any(of.get(SHARERS) == "2" for of in seen), "two trainings share the cores"
    assert (printed.count("reranker: done in"), printed.count("reranked: done in")) == (2 - trained, 4)
    assert "negatives: done in" not in printed, "made before the kill"
    after = manifests(tmp_path / "out")
    assert before.items() <= after.items(), "what was done is not made again"
    distinct = {stage.settings.output for trial in sweep.trials for stage in trial.recipe.stages}
    assert len(distinct) == 4 + 2 + 4 * 2
    assert {str(Path(file).parent.relative_to(tmp_path)) for file in after} >= distinct
    assert {row["state"] for row in plan_sweep(sweep)} == {"done"}

    assert run_sweep(sweep) == {}
    assert "4 trials, 4 done before" in capfd.readouterr().err
    assert manifests(tmp_path / "out") == after

    summary, table = write_tables(sweep, {})
    assert json.loads((tmp_path / "out" / "sweep.json").read_text()) == summary
    rows = summary["runs"]["re-ranked"]
    seeds = ["reranker.seed=1", "reranker.seed=2"]
    assert {name: row["seeds"] for name, row in rows.items()} == {"shallow": seeds, "deep": seeds}
    for trial in sweep.trials:
        of = json.loads((Path(trial.report.settings.output) / "metrics.json").read_text())["runs"]["re-ranked"]["metrics"]
        row = rows[trial.variant]
        for metric, value in of.items():
            assert row["metrics"][metric]["values"][row["seeds"].index(trial.seed)] == value
        assert state(trial.report)[0] == "done"
    assert "(all)" in table, "BM25 is the same in all trials"
    assert "| deep | 2 |" in (tmp_path / "out" / "sweep.md").read_text()


def test_a_trial_that_fails_says_so_at_once_and_does_not_stop_the_others(tmp_path: Path, capfd: pytest.CaptureFixture[str]):
    (tmp_path / "recipe.yaml").write_text(f"{SMALL}  variants: {{fails: {{bm25.qrels: $data/qrels/train}}, works: {{}}}}\n")
    sweep = Sweep.read(tmp_path / "recipe.yaml", tmp_path / "out")
    assert sweep is not None
    with pytest.raises(SystemExit) as ended:
        main(["run", str(tmp_path / "recipe.yaml"), "--output", str(tmp_path / "out")])
    assert ended.value.code == 2
    summary = json.loads((tmp_path / "out" / "sweep.json").read_text())
    found, qrels = (sweep.trials[0].report.settings.value_of(key) for key in ("run", "qrels"))
    what = f"{found[0]}: has no query of the 10 that are measured; give the run of the queries of {qrels}"
    why = f"{tmp_path}/recipe.yaml: stages.report: {what}"
    assert summary["failed"] == {"fails": why}
    said = capfd.readouterr().err.splitlines()
    assert said[-1] == f"raydense: {why}"
    assert said.index(f"fails: failed: {why}") < said.index("works: begins")
    assert any(line.startswith("sweep: 1 of 2 trials ended in ") for line in said)
    assert (tmp_path / "out" / "trials" / "fails" / "log").read_text().splitlines()[-1] == f"failed: {why}"
    assert list(summary["runs"]["bm25"]) == ["works"]


def ended_by_ray(fit: Callable[[Tuner], Any], folder: Path, times: list[str], after: bool) -> Callable[[Tuner], Any]:
    """Tune's `fit` that ends as where Ray kills one of Tune's actors for want of memory: `after` the first run is done, or before any stage is."""

    def ended(tuner: Tuner) -> Any:
        times.append("fit")
        if after and len(times) > 1:
            return fit(tuner)
        if after:
            fit(tuner)
            shutil.rmtree(next(path.parent for path in folder.rglob("manifest.json") if path.parent.name == "report"))
        raise RuntimeError("Caught unexpected exception") from OutOfMemoryError("killed")

    return ended


@pytest.mark.parametrize("some_done", [True, False])
def test_a_sweep_goes_on_after_ray_ended_it_for_want_of_memory(
    some_done: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
):
    (tmp_path / "recipe.yaml").write_text(f"{SMALL}  variants: {{short: {{bm25.k: 5}}, long: {{}}}}\n")
    sweep, times = Sweep.read(tmp_path / "recipe.yaml", tmp_path / "out"), list[str]()
    assert sweep is not None
    monkeypatch.setattr(Tuner, "fit", ended_by_ray(Tuner.fit, tmp_path / "out", times, some_done))
    if some_done:
        assert run_sweep(sweep) == {}
        assert len(times) == 2
        assert "ran out of memory, and Ray ended a trial; goes on" in capfd.readouterr().err
        assert {row["state"] for row in plan_sweep(sweep)} == {"done"}
    else:
        with pytest.raises(InputError, match=r"ran out of memory.*the same command goes on"):
            run_sweep(sweep)
        assert len(times) == 1
