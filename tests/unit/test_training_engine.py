"""Engines on one process, the learning rate, and the history file."""

from __future__ import annotations

import math
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tensorboard.backend.event_processing.event_file_loader import EventFileLoader

from raydense.errors import InputError
from raydense.storage import Place
from raydense.training.engine import (
    TorchEngine,
    deepspeed_config,
    import_deepspeed,
    learning_rate,
    make_engine,
    make_optimizer,
    shards_weights,
)
from raydense.training.history import EVENTS, HISTORY, Follower, History, read_history
from raydense.training.settings import TrainSettings

CPU = torch.device("cpu")


def settings(**changes: object) -> TrainSettings:
    values = {"objective": "retriever", "model": "tiny", "corpus": "c", "queries": "q", "examples": "e", "output": "o"}
    return TrainSettings(**{**values, **changes})  # type: ignore[arg-type]


def model() -> torch.nn.Sequential:
    torch.manual_seed(1)
    return torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.LayerNorm(8), torch.nn.Linear(8, 1))


def test_learning_rate_rises_then_falls_to_zero_or_stays() -> None:
    rates = [learning_rate(step, 20, settings(lr=1.0, warmup=0.25)) for step in range(20)]
    assert rates[:5] == pytest.approx([0.2, 0.4, 0.6, 0.8, 1.0])
    assert rates[5:] == pytest.approx([1 - i / 15 for i in range(15)])
    assert learning_rate(0, 3, settings(lr=1.0)) == 1.0
    cosine = [learning_rate(step, 20, settings(lr=1.0, warmup=0.25, schedule="cosine")) for step in range(20)]
    assert cosine[:6] == pytest.approx([0.2, 0.4, 0.6, 0.8, 1.0, 1.0])
    assert cosine[5:] == pytest.approx([(1 + math.cos(math.pi * i / 15)) / 2 for i in range(15)])
    constant = [learning_rate(step, 20, settings(lr=1.0, warmup=0.25, schedule="constant")) for step in range(20)]
    assert constant == pytest.approx([0.2, 0.4, 0.6, 0.8] + [1.0] * 16)


@pytest.mark.parametrize("clip", [0.0, 0.1])
def test_parts_add_up_to_one_step_of_plain_adamw(clip: float) -> None:
    """Two parts of four rows make the step of all eight; against a bare loop with PyTorch's AdamW."""
    inputs = torch.randn(8, 4, generator=torch.Generator().manual_seed(2))
    engine = TorchEngine(model(), settings(accumulation=2, clip=clip, weight_decay=0.1), CPU, "fp32")
    bare = model()
    weights, rest = [p for p in bare.parameters() if p.ndim > 1], [p for p in bare.parameters() if p.ndim == 1]
    optimizer = torch.optim.AdamW([{"params": weights, "weight_decay": 0.1}, {"params": rest, "weight_decay": 0.0}], lr=0.01)
    for _ in range(5):
        for part in inputs.chunk(2):
            engine.backward(engine.forward(input=part).square().mean())
        engine.step(0.01)
        optimizer.zero_grad()
        bare(inputs).square().mean().backward()
        if clip:
            torch.nn.utils.clip_grad_norm_(bare.parameters(), clip)
        optimizer.step()
    for name, value in engine.weights().items():
        torch.testing.assert_close(value, bare.state_dict()[name])


@pytest.mark.parametrize("decay", [0.1, 0.0])
def test_lamb_is_its_algorithm(decay: float) -> None:
    """You et al. 2020, algorithm 2, written out in NumPy in float64; biases keep Adam's own length."""
    torch.manual_seed(5)
    model = torch.nn.Linear(4, 3).double()
    optimizer = make_optimizer(model, settings(optimizer="lamb", engine={"name": "ddp"}, weight_decay=decay))
    weights = [p.detach().numpy().copy() for p in model.parameters()]
    mean, square = [np.zeros_like(w) for w in weights], [np.zeros_like(w) for w in weights]
    for step in range(1, 5):
        for group in optimizer.param_groups:
            group["lr"] = 0.1 / step
        gradients = [np.random.default_rng(10 * step + i).normal(size=w.shape) for i, w in enumerate(weights)]
        for parameter, gradient in zip(model.parameters(), gradients, strict=True):
            parameter.grad = torch.tensor(gradient)
        optimizer.step()
        for i, g in enumerate(gradients):
            mean[i], square[i] = 0.9 * mean[i] + 0.1 * g, 0.999 * square[i] + 0.001 * g * g
            way = mean[i] / (1 - 0.9**step) / (np.sqrt(square[i] / (1 - 0.999**step)) + 1e-6)
            if weights[i].ndim > 1:
                way += decay * weights[i]
                way *= np.linalg.norm(weights[i]) / np.linalg.norm(way)
            weights[i] = weights[i] - 0.1 / step * way
    for parameter, weight in zip(model.parameters(), weights, strict=True):
        np.testing.assert_allclose(parameter.detach().numpy(), weight, rtol=1e-9)


def steps_one_by_one(weights: list[torch.Tensor], gradients: list[list[torch.Tensor]], decay: float, lr: float) -> list[torch.Tensor]:
    """LAMB weight by weight, in float32."""
    done = []
    for weight, of_steps in zip(weights, zip(*gradients, strict=True), strict=True):
        w, mean, square = weight.clone(), torch.zeros_like(weight), torch.zeros_like(weight)
        for step, gradient in enumerate(of_steps, 1):
            mean.lerp_(gradient, 1 - 0.9)
            square.mul_(0.999).addcmul_(gradient, gradient, value=1 - 0.999)
            way = (mean / (1 - 0.9**step)) / ((square / (1 - 0.999**step)).sqrt() + 1e-6)
            if w.ndim > 1:
                way += decay * w
                way *= w.norm() / way.norm()
            w -= lr * way
        done.append(w)
    return done


def test_lamb_over_all_weights_at_once_is_lamb_weight_by_weight(tmp_path: Path) -> None:
    """Also across a checkpoint, and for a weight that has no gradient at first."""
    random = torch.Generator().manual_seed(3)
    asked = settings(optimizer="lamb", engine={"name": "ddp"}, weight_decay=0.1)
    engine = TorchEngine(model(), asked, CPU, "fp32")
    start = [p.detach().clone() for p in engine.module.parameters()]
    gradients = [[torch.randn(p.shape, generator=random) for p in start] for _ in range(6)]
    for number, of_step in enumerate(gradients):
        if number == 3:
            engine.save(tmp_path)
            engine = TorchEngine(model(), asked, CPU, "fp32")
            engine.load(Place.of(tmp_path), workers=1)
        for parameter, gradient in zip(engine.module.parameters(), of_step, strict=True):
            parameter.grad = gradient.clone()
        if number == 0:
            next(engine.module.parameters()).grad = None
        engine.optimizer.param_groups[0]["lr"] = engine.optimizer.param_groups[1]["lr"] = 0.01
        engine.optimizer.step()
    wanted = [
        *steps_one_by_one(start[:1], [one[:1] for one in gradients[1:]], 0.1, 0.01),
        *steps_one_by_one(start[1:], [one[1:] for one in gradients], 0.1, 0.01),
    ]
    for parameter, weight in zip(engine.module.parameters(), wanted, strict=True):
        torch.testing.assert_close(parameter.detach(), weight, rtol=1e-6, atol=1e-7)


DEVICES = [CPU, pytest.param(torch.device("cuda"), marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU"))]


@pytest.mark.parametrize("device", [*DEVICES, torch.device("meta")], ids=str)
@pytest.mark.parametrize("optimizer", ["adamw", "lamb"])
def test_a_loaded_optimizer_has_its_state_where_a_fresh_one_has_it(tmp_path: Path, optimizer: str, device: torch.device) -> None:
    """`meta` stands for a GPU on which a checkpoint of the CPU is loaded; PyTorch's AdamW refuses it, LAMB computes on it."""
    if (optimizer, device.type) == ("adamw", "meta"):
        pytest.skip("fused AdamW has no meta device")

    def engine_on(where: torch.device) -> TorchEngine:
        return TorchEngine(model(), settings(optimizer=optimizer, engine={"name": "ddp"}), where, "fp32")

    def update(engine: TorchEngine) -> None:
        for parameter in engine.module.parameters():
            parameter.grad = torch.ones_like(parameter)
        engine.optimizer.step()

    def lies(engine: TorchEngine) -> list[dict[str, tuple[torch.device, torch.dtype]]]:
        states = [engine.optimizer.state[parameter] for parameter in engine.module.parameters()]
        return [{name: (value.device, value.dtype) for name, value in state.items()} for state in states]

    saved, fresh, loaded = engine_on(CPU), engine_on(device), engine_on(device)
    update(saved)
    saved.save(tmp_path)
    loaded.load(Place.of(tmp_path), workers=1)
    if device.type == "meta":
        wanted = {"step": (CPU, torch.float32), "mean": (device, torch.float32), "square": (device, torch.float32)}
        assert lies(loaded) == [wanted] * 6
        return
    update(fresh)
    assert lies(loaded) == lies(fresh)
    update(loaded)
    assert lies(loaded) == lies(fresh)


def test_tf32_is_off_unless_given_and_reaches_torch() -> None:
    before = torch.backends.cuda.matmul.allow_tf32
    try:
        for given in (True, False):
            make_engine(model(), settings(precision="fp32", tf32=given, engine={"name": "ddp"}), CPU, "fp32")
            assert torch.backends.cuda.matmul.allow_tf32 is given
    finally:
        torch.backends.cuda.matmul.allow_tf32 = before
    with pytest.raises(InputError, match="tf32 changes nothing in precision auto: leave it out, or give precision fp32"):
        settings(tf32=True)
    assert "tf32" not in settings().shaping(), "an output of before keeps its fingerprint"
    assert settings(precision="fp32", tf32=True).shaping()["tf32"] is True


def test_a_loaded_engine_goes_on_as_if_never_stopped(tmp_path: Path) -> None:
    inputs = torch.randn(8, 4)

    def steps(engine: TorchEngine, count: int) -> None:
        for _ in range(count):
            engine.backward(engine.forward(input=inputs).square().mean())
            engine.step(0.01)

    first, second = (TorchEngine(model(), settings(), CPU, "fp32") for _ in range(2))
    steps(first, 3)
    first.save(tmp_path)
    second.load(Place.of(tmp_path), workers=1)
    steps(first, 3)
    steps(second, 3)
    assert all(torch.equal(a, b) for a, b in zip(first.weights().values(), second.weights().values(), strict=True))


def test_the_workers_of_a_machine_share_the_memory_of_a_checkpoint_while_they_load_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is mapped; what the optimizer goes on with is its own, whatever comes of the file."""
    first, second = (TorchEngine(model(), settings(), CPU, "fp32") for _ in range(2))
    first.backward(first.forward(input=torch.randn(8, 4)).square().mean())
    first.step(0.01)
    first.save(tmp_path)
    load, mapped = second.optimizer.load_state_dict, list[bool]()

    def seen(state: dict[str, Any]) -> None:
        mapped.append(f"{tmp_path}/engine.pt" in Path("/proc/self/maps").read_text())
        load(state)

    monkeypatch.setattr(second.optimizer, "load_state_dict", seen)
    second.load(Place.of(tmp_path), workers=1)
    with open(tmp_path / "engine.pt", "r+b") as file:
        file.write(bytes(os.stat(tmp_path / "engine.pt").st_size))
    assert mapped == [True]
    states = [engine.optimizer.state[weight] for engine in (first, second) for weight in engine.module.parameters()]
    for saved, loaded in zip(states[:6], states[6:], strict=True):
        assert all(torch.equal(value, loaded[name]) for name, value in saved.items())
    assert all(torch.equal(a, b) for a, b in zip(first.weights().values(), second.weights().values(), strict=True))


def test_no_setting_is_left_to_deepspeeds_defaults() -> None:
    config = deepspeed_config(settings(batch_size=24, accumulation=3, clip=0.0, engine={"name": "deepspeed", "zero": 2}), "fp16", 2)
    assert config["gradient_clipping"] == 0.0
    assert config["train_micro_batch_size_per_gpu"] == 4
    assert config["gradient_accumulation_steps"] == 3
    assert deepspeed_config(settings(batch_size=24, accumulation=3), "fp32", 2, pieces=4)["gradient_accumulation_steps"] == 12
    assert (config["fp16"]["enabled"], config["bf16"]["enabled"]) == (True, False)


def test_deepspeeds_buckets_are_no_larger_than_the_model() -> None:
    sizes = [
        deepspeed_config(settings(), "fp32", 2, weights=weights)["zero_optimization"]["reduce_bucket_size"] for weights in (4_160, 10**9)
    ]
    assert sizes == [4_160, 50_000_000]


def test_gradients_are_reduced_while_others_are_computed_on_several_gpus() -> None:
    def overlaps(zero: int, gpu: bool, workers: int = 2) -> bool:
        asked = settings(engine={"name": "deepspeed", "zero": zero})
        return deepspeed_config(asked, "fp32", workers, gpu=gpu)["zero_optimization"]["overlap_comm"]

    assert [overlaps(zero, gpu=True) for zero in range(4)] == [False, True, True, True]
    assert not any(overlaps(zero, gpu=False) for zero in range(4))
    assert not any(overlaps(zero, gpu=True, workers=1) for zero in range(4))


def test_no_timer_of_deepspeeds_waits_for_the_gpu_in_a_step() -> None:
    assert not deepspeed_config(settings(), "fp32", 2)["timers"]["throughput"]["enabled"]


def test_deepspeed_takes_the_gpu_of_the_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a node of sixteen GPUs the third worker has the ninth of them: Ray lists them as text, "0", "1", "10"."""
    monkeypatch.setenv("DS_ACCELERATOR", "cpu")
    monkeypatch.setenv("LOCAL_RANK", "2")
    import_deepspeed(torch.device("cuda", 8))
    assert os.environ["LOCAL_RANK"] == "8"
    from deepspeed.runtime.zero import stage_1_and_2

    assert callable(stage_1_and_2.is_invalid_grad_norm), "by its norm alone it tells overflow: see DeepSpeedEngine"


def test_offload_changes_nothing_on_a_cpu_and_keeps_a_gpus_share_in_the_machines_memory() -> None:
    def offloaded(zero: int, gpu: bool) -> list[str]:
        asked = settings(engine={"name": "deepspeed", "zero": zero, "offload": True})
        found = deepspeed_config(asked, "fp32", 2, gpu=gpu)["zero_optimization"]
        return [key for key in found if key.startswith("offload")]

    assert [offloaded(zero, gpu=True) for zero in (1, 2, 3)] == [["offload_optimizer"]] * 2 + [["offload_optimizer", "offload_param"]]
    assert [offloaded(zero, gpu=False) for zero in (1, 2, 3)] == [[]] * 3


@pytest.mark.parametrize(
    ("engine", "message"),
    [({"name": "ddp", "offload": True}, "engine ddp does not use offload"), ({"zero": 0, "offload": True}, "offload needs zero 1, 2 or 3")],
)
def test_offload_where_there_is_none_is_refused(engine: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        TrainSettings.read(settings().model_dump(exclude_unset=True) | {"engine": engine})


def test_zero_3_alone_shards_the_weights() -> None:
    assert not shards_weights(settings(engine={"name": "ddp"}))
    assert [shards_weights(settings(engine={"name": "deepspeed", "zero": zero})) for zero in range(4)] == [False, False, False, True]


def test_history_begins_again_after_the_checkpoint(tmp_path: Path) -> None:
    path, shared = tmp_path / HISTORY, Place.of(tmp_path)
    follower = Follower(Place.of(path))
    assert not list(follower.new_lines())
    history = History(shared, 0)
    history.add([{"step": s, "loss": s / 10} for s in range(1, 8)])
    assert [line["step"] for line in follower.new_lines()] == list(range(1, 8))
    history.close()
    with open(path, "a") as stream:
        stream.write('{"step": 8, "lo')  # what a kill leaves
    again = History(shared, 4)
    assert [line["step"] for line in follower.new_lines()] == [1, 2, 3, 4]
    again.add([{"step": s, "loss": s / 10} for s in range(5, 10)])
    again.close()
    assert [line["step"] for line in follower.new_lines()] == [5, 6, 7, 8, 9]
    assert [line["step"] for line in read_history(path)] == list(range(1, 10))


def test_tensorboard_reads_the_events_and_the_bytes_repeat(tmp_path: Path) -> None:
    lines = [{"step": 1, "loss": 0.5, "lr": 0.25}, {"step": 2, "loss": 0.25, "lr": 0.125, "mrr@10": 0.75}]
    for name in ("one", "two"):
        history = History(Place.of(tmp_path / name), 0)
        history.add(lines)
        history.close()
    assert (tmp_path / "one" / EVENTS).read_bytes() == (tmp_path / "two" / EVENTS).read_bytes()
    read = [
        {"step": e.step, **{v.tag: v.tensor.float_val[0] if v.HasField("tensor") else v.simple_value for v in e.summary.value}}
        for e in EventFileLoader(str(tmp_path / "one" / EVENTS)).Load()
        if e.summary.value
    ]
    assert read == lines
