"""Training on real Ray Train workers: the same losses for any number of workers and engine, and after a worker is killed."""

from __future__ import annotations

import os
import re
import signal
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import numpy as np
import psutil
import pytest
import ray
import torch
from inference_world import make_reranker
from ray.train import WorkerGroupError
from search_versions import until
from sentence_transformers import CrossEncoder as TheirCrossEncoder
from training_data import TrainingData, make_training_data

from raydense.data.store import PassageStore
from raydense.errors import InputError, fixable
from raydense.models.cross_encoder import CrossEncoder
from raydense.models.dual_encoder import DualEncoder
from raydense.models.tiny import make_tiny_encoder
from raydense.refresh.train import train
from raydense.runtime import session as ray_session
from raydense.runtime import waiting
from raydense.storage import Artifact, Place
from raydense.training import capacity
from raydense.training.checkpoints import refuse_other_workers
from raydense.training.history import Follower, Line, read_history
from raydense.training.registered import RUN, State

pytestmark = pytest.mark.usefixtures("ray_cluster")

STEPS = 50
Curve = Callable[..., list[Line]]


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> TrainingData:
    return make_training_data(tmp_path_factory.mktemp("training"))


@pytest.fixture(scope="module")
def curve(data: TrainingData, tmp_path_factory: pytest.TempPathFactory) -> Curve:
    """The history of a training of so many steps, run once for each way of running it."""
    done: dict[tuple, list[Line]] = {}

    def run(engine: str, workers: int, zero: int = 1) -> list[Line]:
        key = (engine, workers, zero)
        if key not in done:
            runs = {"name": engine} | ({"zero": zero} if engine == "deepspeed" else {})
            output = tmp_path_factory.mktemp("curve") / "model"
            wanted = steady(data, output, engine=runs, workers=workers, checkpoint_every=STEPS)
            done[key] = read_history(train(wanted).path / "history.jsonl")
        return done[key]

    return run


def steady(data: TrainingData, output: Path, **changes: object):  # type: ignore[no-untyped-def]
    """Settings whose loss neither explodes nor hangs on rounding: short vectors, a moderate learning rate, two parts a step."""
    fixed = {
        "max_steps": STEPS,
        "lr": 1e-4,
        "normalize": True,
        "temperature": 0.2,
        "accumulation": 2,
        "checkpoint_every": 6,
        "log_every": 1,
    }
    return data.settings(output, **{**fixed, **changes})


def losses(history: list[Line]) -> np.ndarray:
    return np.array([line["loss"] for line in history])


def test_more_workers_than_fit_on_a_cluster_are_refused(data: TrainingData, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a cluster that others started too, where no node comes by itself."""
    monkeypatch.setenv("RAY_ADDRESS", ray.get_runtime_context().gcs_address)
    monkeypatch.setattr(ray_session, "_AUTOSCALER_S", 0.0)
    monkeypatch.setattr(capacity, "_COMES_BACK_S", 0.0)
    for asked, message in (
        ({"workers": 8}, "8 workers x 1 CPU is more than the 4"),
        ({"gpus_per_worker": 1}, "1 workers x 1 GPU is more than the 0"),
    ):
        with pytest.raises(InputError, match=f"{message} here"):
            train(data.settings(tmp_path / "model", **asked))


def test_workers_that_wait_for_resources_are_reported(
    data: TrainingData, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(waiting, "_WAITS_S", 0.5)
    monkeypatch.setattr(waiting, "_LOOK_S", 0.1)
    others = ray.util.placement_group([{"CPU": 1}] * 4)
    ray.get(others.ready())
    training = threading.Thread(target=train, args=[data.settings(tmp_path / "model", max_steps=1)])
    training.start()
    printed = ""

    def is_reported() -> bool:
        nonlocal printed
        printed += capsys.readouterr().err
        return "waits for CPUs, GPUs or memory" in printed

    until(is_reported, "no line reports the workers that wait")
    ray.util.remove_placement_group(others)
    training.join()
    is_reported()
    assert printed.count("waits for CPUs, GPUs or memory") == 1
    assert re.search(r"train: 96 examples, 1 step of 8, 1 worker on cpu in fp32, about \d[\d,]+ tokens a step\n", printed), printed
    assert Artifact.open(tmp_path / "model").manifest["made_from"]["settings"]["temperature"] == 1.0  # as its vectors have any length


@pytest.mark.parametrize(("engine", "workers", "zero"), [("ddp", 2, 1), pytest.param("deepspeed", 4, 1, marks=pytest.mark.long)])
def test_losses_are_those_of_one_worker(curve: Curve, engine: str, workers: int, zero: int) -> None:
    one = curve("ddp", 1)
    assert [line["step"] for line in one] == list(range(1, STEPS + 1))
    assert losses(one)[-5:].mean() < losses(one)[:5].mean() - 0.1
    np.testing.assert_allclose(losses(curve(engine, workers, zero)), losses(one), rtol=0, atol=1e-5)


@pytest.mark.long
@pytest.mark.parametrize("zero", [2, 3])
def test_zero_2_and_3_with_a_dev_metric(data: TrainingData, curve: Curve, tmp_path: Path, zero: int) -> None:
    """The first steps are the same; the best weights, gathered from the workers, are the ones saved."""
    dev = {"dev": {"qrels": str(data.root / "sample/qrels/dev"), "passages": 100, "every": 4}, "lr": 1e-4}
    model = train(steady(data, tmp_path / "model", engine={"name": "deepspeed", "zero": zero}, workers=2, max_steps=8, warmup=0.0, **dev))
    history = read_history(model.path / "history.jsonl")
    assert losses(history)[0] == pytest.approx(losses(curve("ddp", 1))[0], abs=1e-5)
    measured = {0: model.summary["dev_start"]["mrr@10"]} | {line["step"]: line["mrr@10"] for line in history if "mrr@10" in line}
    assert set(measured) == {0, 4, 8}
    assert model.summary["dev"] == {"mrr@10": max(measured.values())}
    assert model.summary["best_step"] == max(measured, key=lambda step: (measured[step], -step))
    assert all(np.isfinite(p.detach().numpy()).all() and p.numel() for p in DualEncoder.load(model.path).parameters())


def workers_here() -> list[psutil.Process]:
    """The Ray Train workers that descend from this process."""
    found = []
    for process in psutil.Process().children(recursive=True):
        with suppress(psutil.NoSuchProcess, psutil.ZombieProcess):  # it ends while it is looked at
            if "RayTrainWorker" in process.name() + " ".join(process.cmdline()):
                found.append(process)
    return found


def test_killed_workers_cost_nothing_but_time(data: TrainingData, curve: Curve, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Killed twice with one failure allowed: a new checkpoint in between resets the count."""
    moments = [9, 16]
    killed: list[tuple[int, int]] = []

    def kill() -> None:
        follower, step = Follower(Place.of(tmp_path / "model/.work/history.jsonl")), 0
        for at in moments:
            while step < at:
                step = max([step, *(line["step"] for line in follower.new_lines())])
                time.sleep(0.02)
            while not (there := [worker.pid for worker in workers_here() if worker.pid not in dict(killed)]):
                time.sleep(0.02)
            os.kill(there[0], signal.SIGKILL)
            killed.append((there[0], step))

    hunter = threading.Thread(target=kill, daemon=True)
    hunter.start()
    model = train(steady(data, tmp_path / "model", workers=2, max_failures=1))
    hunter.join(timeout=1)
    assert len(killed) == 2
    assert killed[1][1] < STEPS
    assert "its workers were lost, and it continues from step" in capsys.readouterr().err
    history = read_history(model.path / "history.jsonl")
    assert [line["step"] for line in history] == list(range(1, STEPS + 1))
    assert history == curve("ddp", 2), f"killed at {killed}"


def scores_as_here(folder: Path) -> bool:
    """Whether sentence-transformers scores with a re-ranker as we do, and not with a head of its own."""
    pairs = [("who built it", "the old bridge"), ("what causes a fever", "a red fox in winter")]
    model, queries, passages = CrossEncoder.load(folder), *zip(*pairs, strict=True)
    with torch.no_grad():
        ours = model(model.tokenize_pairs(list(queries), list(passages)).pad(model.tokenizer.pad_id)).numpy()
    return np.allclose(TheirCrossEncoder(str(folder), device="cpu", local_files_only=True).predict(pairs), ours, atol=1e-5)


def test_a_reranker_learns_and_loads_elsewhere(data: TrainingData, tmp_path: Path) -> None:
    model = train(data.settings(tmp_path / "model", objective="reranker", max_steps=40, lr=5e-4, pair_length=64))
    history = read_history(model.path / "history.jsonl")
    assert losses(history)[-10:].mean() < losses(history)[:10].mean()
    assert scores_as_here(model.path)
    assert train(data.settings(tmp_path / "model", objective="reranker", max_steps=40, lr=5e-4, pair_length=64)).manifest == model.manifest


def test_joint_training_makes_two_models(data: TrainingData, tmp_path: Path) -> None:
    """On two workers of DeepSpeed and in pieces: what comes out are folders like those that went in, and better ones."""
    store = PassageStore(data.root / "sample/corpus")
    make_tiny_encoder(store.passages(np.arange(len(store))), tmp_path / "encoder", seed=5)
    reranker = make_reranker(tmp_path / "start", tmp_path / "encoder")
    dev = {"dev": {"qrels": str(data.root / "sample/qrels/dev"), "passages": 100, "every": 20}}
    wanted = data.settings(
        tmp_path / "both",
        objective="joint",
        reranker=str(reranker),
        workers=2,
        engine={"name": "deepspeed"},
        micro_batch=8,
        max_steps=40,
        lr=5e-4,
        log_every=1,
        **dev,
    )
    both = train(wanted)
    history = read_history(both.path / "history.jsonl")
    assert both.kind == "joint"
    for name in ("loss", "supervised"):
        curve = [line[name] for line in history]
        assert np.mean(curve[-10:]) < np.mean(curve[:10]), name
    measured = [both.summary["dev_start"]["mrr@10"], *(line["mrr@10"] for line in history if "mrr@10" in line)]
    assert both.summary["dev"]["mrr@10"] == max(measured)
    assert DualEncoder.load(Artifact.open(both.path / "retriever", "model")).dimension == 128
    assert scores_as_here(both.path / "reranker")
    with pytest.raises(InputError, match="holds two models; give the retriever/ or the reranker/"):
        DualEncoder.load(both.path)
    assert train(wanted).manifest == both.manifest


@pytest.mark.long
@pytest.mark.parametrize(
    ("objective", "changes"), [("pair", {"alpha": 0.3}), ("pair", {"alpha": 0.3, "shared": False}), ("multi-positive", {"positives": 2})]
)
def test_other_objectives_learn(data: TrainingData, tmp_path: Path, objective: str, changes: dict) -> None:
    model = train(steady(data, tmp_path / "model", objective=objective, max_steps=30, lr=1e-3, **changes))
    history = losses(read_history(model.path / "history.jsonl"))
    assert history[-5:].mean() < history[:5].mean()
    assert model.summary["objective"] == objective
    assert DualEncoder.load(model.path).config.shared is changes.get("shared", True)


@pytest.mark.long
def test_gradients_that_stay_not_finite_stop_the_run_with_one_line(data: TrainingData, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="the gradients of 20 steps in a row are not finite, the last at step") as caught:
        train(data.settings(tmp_path / "model", lr=1e30, clip=0.0, max_steps=40, log_every=2))
    assert fixable(caught.value) is not None
    assert not (tmp_path / "model/manifest.json").exists()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"precision": "fp16"}, "fp16 does not train on a CPU"),
        ({"batch_size": 1000}, "96 examples are fewer than one batch of 1,000"),
        ({"negatives": 4}, "96 of 96 queries have fewer than 4 negatives"),
        ({"workers": 8}, "8 workers x 1 CPU is more than the 4 here"),
        ({"track": "wandb"}, "wandb is not installed"),
        ({"model": "/nowhere"}, "no such model folder"),
        ({"objective": "joint", "reranker": "/nowhere"}, "no such file or folder"),
    ],
)
def test_bad_input_is_one_clear_line_before_any_worker_starts(data: TrainingData, tmp_path: Path, changes: dict, message: str) -> None:
    with pytest.raises(InputError, match=message):
        train(data.settings(tmp_path / "model", **changes))
    assert not (tmp_path / "model/manifest.json").exists()


def test_a_static_teacher_without_a_head_is_refused_for_a_tiny_retriever_too(data: TrainingData, tmp_path: Path) -> None:
    make_tiny_encoder(["a few words", "and some more"], tmp_path / "encoder", seed=1)
    with pytest.raises(InputError, match="is no trained re-ranker: it has no head"):
        train(data.settings(tmp_path / "model", objective="joint", teacher="static", reranker=str(tmp_path / "encoder")))
    assert not (tmp_path / "model").exists(), "another re-ranker can have the same output"


def test_it_ends_where_the_dev_metric_no_longer_rises(data: TrainingData, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """By steps so small that it never does."""
    dev = {"qrels": str(data.root / "sample/qrels/dev"), "passages": 100, "every": 2, "patience": 2}
    model = train(data.settings(tmp_path / "model", max_steps=40, lr=1e-12, dev=dev))
    history = read_history(model.path / "history.jsonl")
    assert [line["step"] for line in history if "mrr@10" in line] == [2, 4]
    assert {"mrr@10", "ndcg@10", "recall@100"} <= history[-1].keys()
    assert (model.summary["steps"], model.summary["best_step"]) == (4, 0)
    printed = capfd.readouterr().err
    assert "train: ended after 4 steps: the dev metric was best at step 0" in printed
    start = model.summary["dev_start"]["mrr@10"]
    assert re.search(
        rf"train: dev after step 4: mrr@10 0\.\d+, .*; the best mrr@10 is {start:.4f}, before the first step; 2 of 2 in a row without a better one",
        printed,
    )


def test_a_training_that_only_harms_keeps_the_model_that_it_began_with(
    data: TrainingData, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    dev = {"qrels": str(data.root / "sample/qrels/dev"), "passages": 100, "every": 5}
    good = train(data.settings(tmp_path / "good", max_steps=20, normalize=True))
    harmed = train(data.settings(tmp_path / "harmed", model=str(good.path), max_steps=5, lr=0.1, warmup=0.0, dev=dev))
    assert "the model is what it was" in capfd.readouterr().err
    assert harmed.summary["best_step"] == 0
    assert harmed.summary["dev"] == harmed.summary["dev_start"]
    assert max(line["mrr@10"] for line in read_history(harmed.path / "history.jsonl") if "mrr@10" in line) < harmed.summary["dev"]["mrr@10"]
    changed = {"output": str(tmp_path / "last"), "dev.keep": "last"}
    last = train(data.settings(tmp_path / "harmed", model=str(good.path), max_steps=5, lr=0.1, warmup=0.0, dev=dev).replaced(changed))
    assert "after step 5, which dev.keep last keeps: lower --lr" in capfd.readouterr().err
    assert last.summary["best_step"] == 5
    assert last.summary["dev"]["mrr@10"] < last.summary["dev_start"]["mrr@10"]
    weights, kept, those_of_last = (DualEncoder.load(made.path).state_dict() for made in (good, harmed, last))
    assert all(torch.equal(value, kept[name]) for name, value in weights.items())
    assert not all(torch.equal(value, those_of_last[name]) for name, value in weights.items())


def test_zero_3_refuses_checkpoints_of_another_number_of_workers(data: TrainingData, tmp_path: Path) -> None:
    wanted = data.settings(tmp_path / "model", engine={"name": "deepspeed", "zero": 3})
    with pytest.raises(InputError, match=r"checkpoints are of 2 workers, and ZeRO 3's load with as many only.*give --workers 2"):
        refuse_other_workers(tmp_path / "model/.work", State("fp32", step=10, workers=2), wanted)
    refuse_other_workers(tmp_path / "model/.work", State("fp32", step=10, workers=2), wanted.replaced({"engine.zero": 2}))


def registered(storage: Path) -> int:
    """The step of the newest checkpoint that Ray Train would continue from."""
    snapshot = storage / RUN / "checkpoint_manager_snapshot.json"
    return max([0, *map(int, re.findall(r'"step": ?(\d+)', snapshot.read_text()))]) if snapshot.is_file() else 0


@pytest.mark.long
def test_a_run_goes_on_with_fewer_workers(data: TrainingData, curve: Curve, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Four workers, one of which is killed, then two, then one: the losses of a run that one worker does from start to end."""
    storage = tmp_path / "model/.work"
    dev = {"dev": {"qrels": str(data.root / "sample/qrels/dev"), "passages": 60, "every": 10}, "micro_batch": "auto"}

    def go_on(workers: int) -> Artifact:
        fixed = {"engine": {"name": "deepspeed", "zero": 2}, "max_failures": 0, "checkpoint_every": 5}
        return train(steady(data, tmp_path / "model", workers=workers, **fixed, **dev))

    def kill(after: int) -> None:
        while registered(storage) <= after:
            time.sleep(0.02)
        os.kill(workers_here()[0].pid, signal.SIGKILL)

    for workers in (4, 2):
        hunter = threading.Thread(target=kill, args=(registered(storage),), daemon=True)
        hunter.start()
        with pytest.raises(WorkerGroupError):
            go_on(workers)
        hunter.join()
    model = go_on(1)
    changes = re.findall(r"(\d+) steps were done with (\d) worker\(s\), the rest with (\d)", capsys.readouterr().err)
    assert [change[1:] for change in changes] == [("4", "2"), ("2", "1")]
    assert 0 < int(changes[0][0]) < int(changes[1][0]) < STEPS
    history = read_history(model.path / "history.jsonl")
    assert [line["step"] for line in history] == list(range(1, STEPS + 1))
    np.testing.assert_allclose(losses(history), losses(curve("ddp", 1)), rtol=1e-5)
    measured = {0: model.summary["dev_start"]["mrr@10"]} | {line["step"]: line["mrr@10"] for line in history if "mrr@10" in line}
    assert list(measured) == [0, 10, 20, 30, 40, 50]
    assert model.summary["best_step"] == max(measured, key=lambda step: (measured[step], -step))
