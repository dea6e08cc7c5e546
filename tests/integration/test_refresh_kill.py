"""kill -9 of a training that mines while it trains: run again it continues in the phase where it was, and its model is the undisturbed one.

Its search pool lives through the training, and no longer.
"""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import forked
import pytest
from killing import kill_once_committed
from search_versions import until
from training_data import TrainingData, make_training_data
from warm_worker import own_ray_environment

from raydense.retrieval.named import pools
from raydense.runtime.ray_internals import actors_of
from raydense.storage import Artifact

ROOT = Path(__file__).parents[2]
RUN = "import sys, json; from raydense.training.settings import TrainSettings; from raydense.refresh.train import train; train(TrainSettings(**json.loads(sys.argv[1])))"
# The same, but it is killed in generation 2: when the pool has switched to its index, or when its examples are registered and its folders remain.
RUN_KILLED = """
import json, os, signal, sys
from raydense.refresh.generation import make_generation
from raydense.refresh.training_pool import TrainingPool
from raydense.training.fit import fit
from raydense.training.generations import Generations
from raydense.training.settings import TrainSettings

def kill(where):
    if where == sys.argv[2]:
        os.kill(os.getpid(), signal.SIGKILL)

class Pool(TrainingPool):
    def on(self, *args):
        first, name = not self.name, super().on(*args)
        if not first:
            kill("switched")
        return name

class Registered(Generations):
    def close(self, number, kept=()):
        if number == 2:
            kill("registered")
        super().close(number, kept)

with Pool() as pool:
    fit(
        TrainSettings(**json.loads(sys.argv[1])),
        lambda settings, start, generations, number: make_generation(pool, settings, start, Registered(**vars(generations)), number),
    )
"""


def start(data: TrainingData, output: Path, mode: str, environment: dict[str, str], killed: str = "") -> subprocess.Popen[bytes]:
    refresh = {"refresh": {"every": 10, "mode": mode, "depth": 20, "negatives": 3, "only_changed": True}}
    settings = data.settings(output, max_steps=40, checkpoint_every=4, log_every=1, dropout=0.1, **refresh)
    command = [sys.executable, "-c", RUN_KILLED if killed else RUN, settings.model_dump_json(exclude_unset=True), killed]
    return forked.Popen(command, cwd=ROOT, env=environment, stderr=subprocess.PIPE)


def controllers() -> set[str]:
    """The jobs of all search pools with a name that this Ray has had: as many as there were pools, one a job."""
    jobs = [one["JobID"] for one in actors_of() if one["ActorClassName"] == "PoolController"]
    assert len(jobs) == len(set(jobs))
    return set(jobs)


def living(job: str) -> list[str]:
    """The actors of a job's search pool that live.

    Others are Ray's own: `_AutoscalingCoordinatorActor` outlives a job, and `PlacementGroupCleaner` sees its end by a dashboard alone.
    """
    alive = [one["ActorClassName"] for one in actors_of(job) if one["State"] != "DEAD"]
    return [name for name in alive if name in ("PoolController", "ShardActor")]


def finish(process: subprocess.Popen[bytes]) -> None:
    _, printed = process.communicate(timeout=300)
    assert process.returncode == 0, printed.decode()


@pytest.mark.long
@pytest.mark.parametrize("mode", ["async", "sync"])
def test_killed_while_it_mines_and_run_again(tmp_path: Path, joining: dict[str, str], mode: str) -> None:
    data = make_training_data(tmp_path)
    undisturbed = start(data, tmp_path / "undisturbed", mode, own_ray_environment())
    finish(undisturbed)

    work, before = tmp_path / "killed/.work/refresh/002", controllers()  # which needs what the one before found
    kill_once_committed(start(data, tmp_path / "killed", mode, joining), work, "vectors", 1)
    (pool,) = controllers() - before  # of generation 1, and still there
    until(lambda: not living(pool), "the search pool lives after its job")
    assert pools() == []
    assert (work / "retriever/manifest.json").is_file()
    assert not (tmp_path / "killed/refresh/002").exists()
    finish(start(data, tmp_path / "killed", mode, joining))
    assert len(controllers() - before) == 2
    assert pools() == []

    assert_alike(tmp_path)


@pytest.mark.long
@pytest.mark.parametrize(("mode", "killed"), [("sync", "switched"), ("async", "registered")])
def test_killed_around_the_registration_of_a_generation_and_run_again(
    tmp_path: Path, joining: dict[str, str], mode: str, killed: str
) -> None:
    data = make_training_data(tmp_path)
    finish(start(data, tmp_path / "undisturbed", mode, joining))

    before = controllers()
    driver = start(data, tmp_path / "killed", mode, joining, killed)
    _, printed = driver.communicate(timeout=300)
    assert driver.returncode == -signal.SIGKILL, printed.decode()
    (pool,) = controllers() - before
    until(lambda: not living(pool), "the search pool lives after its job")
    work, made = tmp_path / "killed/.work/refresh/002", tmp_path / "killed/refresh/002/manifest.json"
    assert (work / "index/manifest.json").is_file()
    assert ((work / "run/manifest.json").is_file(), made.is_file()) == ((killed == "registered"),) * 2
    finish(start(data, tmp_path / "killed", mode, joining))
    assert pools() == []
    assert_alike(tmp_path)


def assert_alike(folder: Path) -> None:
    """The model of the training that was killed is that of the undisturbed one, and so are its generations; nothing else is left."""
    whole, again = Artifact.open(folder / "undisturbed"), Artifact.open(folder / "killed")
    assert [(f.path, f.sha256) for f in again.files] == [(f.path, f.sha256) for f in whole.files]
    for number in ("001", "002"):
        made = [Artifact.open(one.path / "refresh" / number, "examples").fingerprint for one in (whole, again)]
        assert made[0] == made[1]
    assert not (folder / "killed/.work").exists()
