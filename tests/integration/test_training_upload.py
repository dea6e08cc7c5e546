"""A training whose checkpoint takes long to upload: its steps go on, a kill costs that checkpoint alone, and its end waits for the upload."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import forked
import pytest
from s3_server import BUCKET, environment, proxy, with_environment
from training_data import TrainingData, make_training_data

from raydense.cli.work import verb_work
from raydense.refresh.train import train
from raydense.storage import Artifact, Place
from raydense.training.history import HISTORY
from raydense.training.registered import newest_state
from raydense.training.settings import TrainSettings

ROOT = Path(__file__).parents[2]
EVERY, STEPS = 5, 20
UPLOAD = re.compile(r"/run/(checkpoint_[^/]*)/engine\.pt")
pytestmark = pytest.mark.usefixtures("ray_cluster")


class SlowStore:
    """Holds the upload of every checkpoint but the first, until `released`."""

    def __init__(self) -> None:
        self.begun, self.released = threading.Event(), threading.Event()
        self.heard = threading.Event()  # a worker has looked for the driver's notice, and it was there
        self.uploads: list[str] = []

    def hold(self, method: str, path: str) -> None:
        found = UPLOAD.search(path)
        if found and method in ("PUT", "POST"):
            if found[1] not in self.uploads:
                self.uploads.append(found[1])
            if found[1] != self.uploads[0] and not self.released.is_set():
                self.begun.set()
                self.released.wait(300)

    def answered(self, method: str, path: str, status: int) -> None:
        if method == "HEAD" and path.endswith("/.work/stop.txt") and status == 200:
            self.heard.set()


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> TrainingData:
    return make_training_data(tmp_path_factory.mktemp("data"))


def settings_of(data: TrainingData, output: Place) -> TrainSettings:
    dev = {"dev": {"qrels": str(data.root / "sample/qrels/dev"), "passages": 60, "every": 3}}
    return data.settings(output, max_steps=STEPS, checkpoint_every=EVERY, log_every=1, dropout=0.1, **dev)


@pytest.fixture(scope="module")
def whole(data: TrainingData, ray_cluster: None) -> Artifact:
    return train(settings_of(data, Place.of(data.root / "undisturbed")))


def begin(settings: TrainSettings, there: dict[str, str]) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "raydense", *verb_work("train", settings).words]
    return forked.Popen(command, cwd=ROOT, env=with_environment(there), stderr=subprocess.PIPE, text=True)


def done_here(output: Place) -> list[int]:
    """The steps in the history of this machine, which the store may not have yet."""
    file = (output / f".work/{HISTORY}").growing()
    return [json.loads(line)["step"] for line in file.read_text().splitlines() if line.endswith("}")] if file.exists() else []


def test_a_checkpoint_that_the_store_does_not_take_is_no_checkpoint(
    data: TrainingData, port: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second one; the first is still there after it."""
    uploads: list[str] = []

    def refuses(method: str, path: str) -> bool:
        if not (found := UPLOAD.search(path)) or method not in ("PUT", "POST"):
            return False
        uploads.extend([found[1]] if found[1] not in uploads else [])
        return found[1] != uploads[0]

    output = Place.of(f"s3://{BUCKET}/refused")
    with proxy(port, lambda *_: None, refuses=refuses) as before:
        there = environment(before.port, tmp_path / "cache")
        for name, value in there.items():
            monkeypatch.setenv(name, value)
        wanted = settings_of(data, output).replaced({"max_failures": 0})
        with begin(wanted, there) as process:
            _, printed = process.communicate()
        assert process.returncode == 2, printed
        assert "access is denied; give credentials that may read and write it" in printed.splitlines()[-1]
        state = newest_state(output / ".work")
        assert state is not None
        assert state.step == EVERY


def test_weights_that_the_store_does_not_take_end_all_workers(
    data: TrainingData, port: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Worker 0 alone writes them, while the other one waits for it at the next step: for half an hour, if nobody ends it."""

    def refuses(method: str, path: str) -> bool:
        return method in ("PUT", "POST") and "/.work/weights-" in path

    with proxy(port, lambda *_: None, refuses=refuses) as before:
        there = environment(before.port, tmp_path / "cache")
        wanted = settings_of(data, Place.of(f"s3://{BUCKET}/weights-refused")).replaced({"max_failures": 1, "workers": 2})
        with begin(wanted, there) as process:
            _, printed = process.communicate()
    assert process.returncode == 2, printed
    assert "access is denied; give credentials that may read and write it" in printed.splitlines()[-1]


@pytest.mark.long  # four Rays one after another; test_training_checkpoints.py has the order of uploads
@pytest.mark.parametrize("end", ["killed", "told"])
def test_steps_go_on_during_an_upload(
    data: TrainingData, whole: Artifact, port: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, end: str
) -> None:
    store, output = SlowStore(), Place.of(f"s3://{BUCKET}/{end}")
    with proxy(port, lambda *_: None, hold=store.hold, answered=store.answered) as before:
        there = environment(before.port, tmp_path / "cache")
        for name, value in there.items():
            monkeypatch.setenv(name, value)
        with begin(settings_of(data, output), there) as process:
            while not (store.begun.is_set() and len(done_here(output)) >= 2 * EVERY + 3 and (state := newest_state(output / ".work"))):
                assert process.poll() is None, process.communicate()
                time.sleep(0.01)
            assert state.step == EVERY, "the second one is not registered before it is uploaded"
            process.send_signal(signal.SIGKILL if end == "killed" else signal.SIGTERM)
            if end == "told":
                assert process.stderr is not None
                while "saves after this step" not in (line := process.stderr.readline()):
                    assert line
                while not store.heard.wait(0.01):  # the third checkpoint waits for the second: no worker gets to the last step before
                    assert process.poll() is None, process.communicate()
                store.released.set()
            _, printed = process.communicate()
        store.released.set()
        continued = EVERY
        if end == "told":
            assert process.returncode == 128 + signal.SIGTERM, printed
            (at,) = re.findall(rf"continues from step (\d+) of {STEPS}\n", printed)
            continued = int(at)
            sent = (output / f".work/{HISTORY}").read_text() or ""  # what was on this machine is gone with the workers
            assert [json.loads(line)["step"] for line in sent.splitlines()] == list(range(1, continued + 1))
            state = newest_state(output / ".work")
            assert state is not None
            assert state.step == continued
        with begin(settings_of(data, output), there) as process:
            _, printed = process.communicate()
        assert f"train: continues after {continued} of {STEPS} steps" in printed
        again = Artifact.open(output, "model")
    assert [(f.path, f.sha256) for f in again.files] == [(f.path, f.sha256) for f in whole.files]
    assert again.summary["best_step"] == whole.summary["best_step"]
