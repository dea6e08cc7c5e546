"""The files next to the checkpoints: the best weights for a run that continues from one."""

from __future__ import annotations

import json
import os
import shutil
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

import forked
import pytest
import ray.train
import torch

from raydense.errors import InputError
from raydense.storage import Place
from raydense.training import history as history_module
from raydense.training.checkpoints import Checkpoints, refuse_other_precision
from raydense.training.engine import TorchEngine
from raydense.training.history import HISTORY, Follower, History, read_history
from raydense.training.registered import RUN, State, fix_registered, forget_unregistered, keep_registered, newest_state
from raydense.training.settings import TrainSettings
from raydense.training.weights import load_weights, save_weights, weights_name
from tests.s3_server import BUCKET, environment

LISTED = f"{RUN}/checkpoint_manager_snapshot.json"


@pytest.fixture(params=["folder", "store"])
def shared(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Place:
    if request.param == "folder":
        return Place.of(tmp_path)
    for name, value in environment(request.getfixturevalue("port"), tmp_path / "cache").items():
        monkeypatch.setenv(name, value)
    return Place.of(f"s3://{BUCKET}/{tmp_path.name}")


def checkpoint(shared: Place, state: State, registered: bool = True) -> None:
    """The part of a checkpoint that records its step, and Ray Train's list, as Ray Train writes them."""
    (shared / f"{RUN}/checkpoint_{state.step}/state.json").write_text(json.dumps(asdict(state)))
    if registered:
        (shared / LISTED).write_text(json.dumps({"checkpoint_results": [{"checkpoint_dir_name": f"checkpoint_{state.step}"}]}))


def weights(step: int) -> dict[str, torch.Tensor]:
    return {"w": torch.full((2,), float(step))}


def test_the_best_weights_of_checkpoints_outlive_better_ones_after_them(shared: Place) -> None:
    """Those that a checkpoint in upload names, too: nobody can see it in the store yet."""
    for step in (4, 8):
        save_weights(shared, step, weights(step), {4})
    checkpoint(shared, State("fp32", step=5, best_step=4, best=0.1))
    for better in (12, 14, 16):
        save_weights(shared, better, weights(better), {4, 8})
    state = newest_state(shared)
    assert state is not None
    assert load_weights(shared, state.best_step)["w"].tolist() == [4.0, 4.0]
    assert shared.names("weights-*") == sorted(map(weights_name, (4, 8, 16)))


def test_steps_of_another_precision_are_not_gone_on_with(shared: Place) -> None:
    checkpoint(shared, State("bf16", step=20))
    state = newest_state(shared)
    assert state is not None
    refuse_other_precision(shared, state, "bf16", casts=False)
    with pytest.raises(InputError, match=r"20 steps were done in bf16, .* go on in fp32; go on where .* bf16, or delete the folder"):
        refuse_other_precision(shared, state, "fp32", casts=False)


@pytest.mark.parametrize(("casts", "begun", "here"), [(True, "GPUs", "CPUs"), (False, "CPUs", "GPUs")])
def test_steps_of_a_gpu_are_not_gone_on_with_on_a_cpu(casts: bool, begun: str, here: str, shared: Place) -> None:
    """Of DeepSpeed in half precision, which casts the weights on GPUs alone."""
    state = State("bf16", step=20, casts=casts)
    refuse_other_precision(shared, state, "bf16", casts)
    with pytest.raises(InputError, match=f"20 steps were done in bf16 on {begun}, .* not load on {here}; go on on {begun}, or delete"):
        refuse_other_precision(shared, state, "bf16", not casts)


def test_an_upload_that_was_cut_short_is_no_checkpoint_and_goes(shared: Place) -> None:
    """However much of it is there: Ray Train continues from the one before."""
    checkpoint(shared, State("fp32", step=5))
    checkpoint(shared, State("fp32", step=10), registered=False)
    assert newest_state(shared) == State("fp32", step=5)
    forget_unregistered(shared, "checkpoint_5")
    assert shared.names(f"{RUN}/*/state.json") == [f"{RUN}/checkpoint_5/state.json"]
    assert newest_state(shared) == State("fp32", step=5)


def test_a_list_of_checkpoints_that_a_kill_cut_short_is_the_one_before_it(tmp_path: Path) -> None:
    """Ray Train writes its list in place, and refuses a torn one, or one that names what is gone, for ever."""
    shared = Place.of(tmp_path)
    checkpoint(shared, State("fp32", step=5))
    whole = (shared / LISTED).read_text()
    assert whole is not None
    keep_registered(shared)
    for torn in ("", whole[:-10], whole.replace("5", "9")):
        (shared / LISTED).write_text(torn)
        keep_registered(shared)
        assert newest_state(shared) == State("fp32", step=5)
        fix_registered(shared)
        assert (shared / LISTED).read_text() == whole
    (tmp_path / RUN / "checkpoint_5").rename(tmp_path / RUN / "checkpoint_6")
    fix_registered(shared)
    assert not (shared / LISTED).exists(), "without a valid list it starts from step 0"


def test_a_list_that_names_what_is_gone_from_a_store_goes(shared: Place) -> None:
    checkpoint(shared, State("fp32", step=5))
    whole = (shared / LISTED).read_text()
    assert whole is not None
    fix_registered(shared)
    assert (shared / LISTED).read_text() == whole
    (shared / f"{RUN}/checkpoint_5").delete()
    fix_registered(shared)
    assert not (shared / LISTED).exists()


def test_a_follower_sees_that_a_history_began_again(shared: Place) -> None:
    """Also where it has grown beyond the place that was read to before anyone looked: in a store it is seen now and then."""
    follower = Follower(shared / HISTORY)
    (shared / HISTORY).write_text('{"step": 1, "loss": 0.5}\n{"step": 2, "loss": 0.5}\n{"st')
    assert [line["step"] for line in follower.new_lines()] == [1, 2]
    (shared / HISTORY).write_text('{"step": 1, "loss": 0.5}\n{"step": 2, "loss": 0.55}\n{"step": 3, "loss": 0.5}\n')
    assert [line["step"] for line in follower.new_lines()] == [1, 2, 3]
    assert not list(follower.new_lines())
    (shared / HISTORY).write_text('{"step": 1, "loss": 0.5}\n')
    assert [line["step"] for line in follower.new_lines()] == [1]


def test_a_long_history_is_read_in_pieces(shared: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """And what is left of a piece is not lost."""
    monkeypatch.setattr(history_module, "_READ", 60)  # two lines, and a part of the third
    (shared / HISTORY).write_text("".join(f'{{"step": {step}, "loss": 0.5}}\n' for step in range(1, 8)))
    follower = Follower(shared / HISTORY)
    assert next(follower.new_lines())["step"] == 1
    assert [[line["step"] for line in follower.new_lines()] for _ in range(4)] == [[2, 3], [4, 5], [6, 7], []]


def test_a_history_goes_on_from_what_a_checkpoint_holds(shared: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On another machine too: what it has of its own, as of an earlier run, is not what counts."""
    follower = Follower(shared / HISTORY)
    assert not list(follower.new_lines())
    history = History(shared, 0)
    history.add([{"step": step, "loss": step / 10} for step in range(1, 8)])
    history.send()
    assert [line["step"] for line in follower.new_lines()] == list(range(1, 8))
    history.close()
    monkeypatch.setenv("RAYDENSE_CACHE", str(tmp_path / "other"))
    again = History(shared, 4)
    assert [line["step"] for line in follower.new_lines()] == [1, 2, 3, 4]
    again.add([{"step": step, "loss": step / 10} for step in range(5, 10)])
    again.send()
    assert [line["step"] for line in follower.new_lines()] == [5, 6, 7, 8, 9]
    again.close()
    assert [line["step"] for line in read_history((shared / HISTORY).fetch())] == list(range(1, 10))
    if shared.everywhere:
        assert shared.files().keys() == {HISTORY, "logs/events.out.tfevents.0.raydense"}


def test_a_worker_that_comes_late_leaves_the_files_alone_that_another_one_reads(
    shared: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Worker 0 comes late by its requests to the store: the others of its machine read the checkpoint by then."""
    settings = TrainSettings(objective="retriever", model="m", corpus="c", queries="q", examples="e", output="o")
    engines = [TorchEngine(torch.nn.Linear(8, 8), settings, torch.device("cpu"), "fp32") for _ in range(3)]
    (tmp_path / "made").mkdir()
    engines[0].save(tmp_path / "made")
    checkpoint(shared, State("fp32", step=5))
    with (shared / RUN / "checkpoint_5/engine.pt").writing() as aside:
        shutil.copyfile(tmp_path / "made/engine.pt", aside)
    root = shared.for_ray()
    registered = ray.train.Checkpoint(f"{root['storage_path']}/{RUN}/checkpoint_5", root.get("storage_filesystem"))
    monkeypatch.setattr(ray.train, "get_checkpoint", lambda: registered)
    read, seen = torch.load, []

    def load(rank: int) -> None:
        Checkpoints(shared, engines[2 - rank], rank, lambda: None).load(2, "fp32", shared)

    def late_meanwhile(file: Path, **given: Any) -> Any:
        if not seen:
            seen.append(os.stat(file))
            load(rank=0)
            now = os.stat(file)
            assert (now.st_ino, now.st_mtime_ns, now.st_size) == (seen[0].st_ino, seen[0].st_mtime_ns, seen[0].st_size)
        return read(file, **given)

    monkeypatch.setattr(torch, "load", late_meanwhile)
    load(rank=1)
    for engine in engines[1:]:
        assert all(torch.equal(weight, engines[0].module.state_dict()[name]) for name, weight in engine.module.state_dict().items())


def test_a_checkpoint_that_the_disk_does_not_take_is_one_line_and_leaves_nothing(tmp_path: Path) -> None:
    """torch itself reports positions in a file, and the cause nowhere."""
    script = (
        "import resource, signal, sys, torch\n"
        "from raydense.errors import fixable\n"
        "from raydense.storage import Place\n"
        "from raydense.training.checkpoints import Checkpoints\n"
        "from raydense.training.engine import TorchEngine\n"
        "from raydense.training.registered import State\n"
        "from raydense.training.settings import TrainSettings\n"
        "settings = TrainSettings(objective='retriever', model='m', corpus='c', queries='q', examples='e', output='o')\n"
        "engine = TorchEngine(torch.nn.Linear(200, 200), settings, torch.device('cpu'), 'fp32')\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, 50_000))\n"
        "try: Checkpoints(Place.of(sys.argv[1]), engine, 0, lambda: None).save(State('fp32', step=3))\n"
        "except OSError as error: print(*fixable(error))\n"
    )
    (tmp_path / "temporary").mkdir()
    run = forked.run(
        [sys.executable, "-c", script, str(tmp_path / "shared")],
        env={**os.environ, "TMPDIR": str(tmp_path / "temporary")},
        capture_output=True,
        text=True,
    )
    assert "larger than a file may be here" in run.stdout, run.stderr
    assert not list((tmp_path / "temporary").iterdir())
