"""A method of an installed package trains by the name of its entry point, and as `package.module:Class`."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import forked
import pytest
from training_data import make_training_data

from raydense.storage import Artifact
from raydense.training.history import read_history

PACKAGE = Path(__file__).parents[1] / "plugin_package"


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The environment of a process that finds the package, installed into a folder of its own."""
    target = tmp_path_factory.mktemp("site")
    pip = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--no-build-isolation", "--target", str(target), str(PACKAGE)]
    subprocess.run(pip, check=True)
    return {**os.environ, "PYTHONPATH": os.pathsep.join([str(target), os.environ.get("PYTHONPATH", "")])}


@pytest.fixture(scope="module")
def joining(installed: dict[str, str]) -> Iterator[dict[str, str]]:
    """As `installed`, of a process that joins a Ray whose workers find the package, too."""
    code = (
        "import json, os, ray; ray.init(address='local', num_cpus=4, include_dashboard=False);"
        "joins = {key: value for key, value in os.environ.items() if key.startswith('RAY_AUTH')};"
        "print(json.dumps({**joins, 'RAY_ADDRESS': ray.get_runtime_context().gcs_address})); input()"
    )
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with forked.Popen([sys.executable, "-u", "-c", code], env=installed, text=True, **pipes) as process:
        assert process.stdin
        assert process.stdout
        yield installed | json.loads(process.stdout.readline())
        process.stdin.close()


def raydense(installed: dict[str, str], *words: str) -> subprocess.CompletedProcess[str]:
    return forked.run([sys.executable, "-m", "raydense", *words], env=installed, capture_output=True, text=True, check=False)


def test_an_installed_method_is_found_by_its_name(installed: dict[str, str]) -> None:
    shown = raydense(installed, "train", "--objective", "hinge", "--help")
    assert shown.returncode == 0, shown.stderr
    assert "--margin NUMBER" in shown.stdout
    assert "--alpha" not in shown.stdout
    unknown = raydense(installed, "train", "--objective", "hinged", "--output", "o")
    assert unknown.returncode == 2
    assert "no method 'hinged'; did you mean 'hinge'?" in unknown.stderr
    other = "from raydense.training.settings import TrainSettings as T; s = T(objective='raydense_hinge:Double', model='m', corpus='c', queries='q', examples='e', output='o', margin=2); print(s.margin, type(s).trains.__name__)"
    assert forked.run([sys.executable, "-c", other], env=installed, capture_output=True, text=True, check=True).stdout == "2.0 Double\n"


def train(installed: dict[str, str], folder: Path, method: str, *words: str) -> subprocess.CompletedProcess[str]:
    """Twelve steps over 96 examples: each is in one batch."""
    data = make_training_data(folder / "data")
    given = ["--corpus", f"{data.root}/sample/corpus", "--queries", f"{data.root}/sample/queries", "--examples", f"{data.root}/examples"]
    short = [
        "--model",
        "tiny",
        "--normalize",
        "--margin",
        "0.5",
        "--max-steps",
        "12",
        "--batch-size",
        "8",
        "--lr",
        "1e-3",
        "--engine.name",
        "ddp",
        "--json",
    ]
    return raydense(installed, "train", "--objective", method, "--output", str(folder / "model"), *given, *short, *words)


def trained(installed: dict[str, str], folder: Path, method: str, *words: str) -> tuple[subprocess.CompletedProcess[str], Artifact]:
    done = train(installed, folder, method, *words)
    assert done.returncode == 0, done.stderr
    return done, Artifact.open(folder / "model", "model")


def test_an_installed_method_trains(joining: dict[str, str], tmp_path: Path) -> None:
    done, made = trained(joining, tmp_path, "hinge")
    assert json.loads(done.stdout.splitlines()[-1])["fingerprint"] == made.fingerprint
    assert made.summary["objective"] == "hinge"
    assert made.manifest["made_from"]["settings"]["margin"] == 0.5
    losses = [line["loss"] for line in read_history(made.path / "history.jsonl")]
    assert sum(losses[-3:]) < sum(losses[:3])


def test_one_bad_batch_costs_its_step_and_no_more(joining: dict[str, str], tmp_path: Path) -> None:
    done, made = trained(joining, tmp_path, "raydense_hinge:Fragile")
    history = read_history(made.path / "history.jsonl")
    (bad,) = (line for line in history if "skipped" in line)
    assert bad.keys() == {"step", "accuracy", "lr", "skipped"}
    assert all(line.keys() == {"step", "loss", "accuracy", "lr", "gradient_norm"} for line in history if line is not bad)
    assert len(history) == 12
    assert made.summary["steps_skipped"] == 1
    assert f"train: step {bad['step']} did not update the weights" in done.stderr


@pytest.mark.parametrize(("micro_batch", "fix"), [("0", "set a smaller one, or auto; or --act"), ("auto", "set a smaller one; or --act")])
def test_memory_that_a_gpu_lacks_is_one_line(joining: dict[str, str], tmp_path: Path, micro_batch: str, fix: str) -> None:
    failed = train(joining, tmp_path, "raydense_hinge:Large", "--max-failures", "0", "--micro-batch", micro_batch)
    assert failed.returncode == 2
    assert f"micro_batch: the GPU has too little free memory for the training; {fix}" in failed.stderr.splitlines()[-1]
    assert "Traceback" not in failed.stderr


def test_an_edited_method_does_not_go_on_from_a_checkpoint(joining: dict[str, str], tmp_path: Path) -> None:
    """It begins anew where there is none yet, as after a mistake in its first step: nothing would be lost."""
    code = "from raydense_hinge import Hinge\nclass Mine(Hinge):\n    calls = 0\n    def loss(self, outputs, batch):\n        self.calls += 1\n"
    code += "        if self.calls == LAST:\n            raise RuntimeError('a mistake')\n        return super().loss(outputs, batch)\n"
    file = Path(joining["PYTHONPATH"].partition(os.pathsep)[0], "developed.py")

    def run(last: int) -> subprocess.CompletedProcess[str]:
        file.write_text(code.replace("LAST", str(last)))
        return train(joining, tmp_path, "developed:Mine", "--checkpoint-every", "4", "--max-failures", "0")

    for last in (1, 7):
        failed = run(last)
        assert failed.returncode == 1, failed.stderr
        assert "RuntimeError: a mistake" in failed.stderr
    refused = run(99)
    assert refused.returncode == 2
    assert "model: was made from something else (method_code: " in refused.stderr.splitlines()[-1]


def test_a_method_that_the_nodes_lack_is_one_line_before_the_workers_start(joining: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "driver_only.py").write_text("from raydense_hinge import Hinge\nclass Mine(Hinge):\n    pass\n")
    found = joining | {"PYTHONPATH": os.pathsep.join([str(tmp_path), joining["PYTHONPATH"]])}
    refused = train(found, tmp_path, "driver_only:Mine")
    assert refused.returncode == 2
    assert "objective: no module 'driver_only' on a node of the cluster; install its package, or" in refused.stderr.splitlines()[-1]
    assert "Traceback" not in refused.stderr
