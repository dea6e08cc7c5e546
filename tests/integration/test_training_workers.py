"""A run that continues with another number of workers, 4 to 2 to 1 to 2: its losses, weights and moments, on every engine.

Workers are plain processes of torch's own; the model is small, with a frozen weight and sizes that no number of workers divides.
"""

from __future__ import annotations

import gc
import hashlib
import math
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from hypothesis import given
from hypothesis import strategies as st
from ranks import run_ranks
from torch import Tensor, nn

from raydense.storage import Place
from raydense.training.engine import DeepSpeedEngine, Engine, TorchEngine, learning_rate, make_engine
from raydense.training.precision import Precision
from raydense.training.settings import TrainSettings

CPU = torch.device("cpu")
WORKERS = [4, 2, 1, 2]
EACH = 4
STEPS = EACH * len(WORKERS)
WAYS: dict[str, tuple[dict[str, Any], Precision]] = {
    "ddp": ({"engine": {"name": "ddp"}}, "fp32"),
    "ddp lamb": ({"engine": {"name": "ddp"}, "optimizer": "lamb"}, "fp32"),
    "zero 0": ({"engine": {"zero": 0}}, "fp32"),
    "zero 1": ({"engine": {"zero": 1}}, "fp32"),
    "zero 2": ({"engine": {"zero": 2}}, "fp32"),
    "zero 1 bf16": ({"engine": {"zero": 1}}, "bf16"),
    "zero 2 bf16": ({"engine": {"zero": 2}}, "bf16"),
}


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.words = nn.Embedding(11, 7)
        self.norm = nn.LayerNorm(7)
        self.first, self.fixed, self.last = nn.Linear(7, 5), nn.Linear(5, 3), nn.Linear(3, 1)
        self.fixed.weight.requires_grad = False

    def forward(self, input: Tensor) -> Tensor:
        return self.last(torch.tanh(self.fixed(self.first(self.norm(self.words(input)))))).float()  # type: ignore[no-any-return]


def settings(workers: int, **changes: Any) -> TrainSettings:
    paths = {"objective": "retriever", "model": "tiny", "corpus": "c", "queries": "q", "examples": "e", "output": "o"}
    return TrainSettings(**{**paths, "batch_size": 8, "accumulation": 2, "lr": 0.05, "clip": 0.5, "workers": workers, **changes})


def train(engine: Engine, steps: range, rank: int, workers: int, s: TrainSettings) -> list[float]:
    """The loss of each step, over all workers."""
    losses = []
    for step in steps:
        words = torch.randint(11, (s.accumulation, workers, 8 // s.accumulation // workers), generator=torch.Generator().manual_seed(step))
        parts = []
        for part in words[:, rank]:
            loss = (engine.forward(input=part).squeeze(-1) - part / 11).square().mean()
            engine.backward(loss)
            parts.append(loss.detach())
        engine.step(learning_rate(step, STEPS, s))
        total = torch.stack(parts).mean()
        dist.all_reduce(total)
        losses.append(float(total / workers))
    return losses


def moments(engine: Engine) -> dict[str, Tensor]:
    """By the parameter's name, in full, on all workers."""
    trained = {name: p for name, p in engine.module.named_parameters() if p.requires_grad}
    if isinstance(engine, DeepSpeedEngine) and engine.zero:
        from deepspeed.utils import safe_get_full_optimizer_state

        optimizer = engine._engine.optimizer
        optimizer._hp_optimizer_states_linked = False  # DeepSpeed links them once, before the second group has any
        optimizer._lazy_init_hp_params_optimizer_state()
        keys = ("exp_avg", "exp_avg_sq")
        return {f"{name} {key}": safe_get_full_optimizer_state(p, key) for name, p in trained.items() for key in keys}
    assert isinstance(engine, TorchEngine | DeepSpeedEngine)
    state = [values for group in engine.optimizer.param_groups for values in (engine.optimizer.state[p] for p in group["params"])]
    return {f"{i} {key}": value for i, values in enumerate(state) for key, value in values.items()}


def held(engine: Engine) -> dict[str, Tensor]:
    """The weights and moments of now, whatever comes after."""
    return {name: value.clone() for name, value in {**engine.weights(), **moments(engine)}.items()}


def digests(folder: Path) -> dict[str, str]:
    return {str(f): hashlib.sha256(f.read_bytes()).hexdigest() for f in folder.rglob("*") if f.is_file()}


def saved(folder: Path) -> set[str]:
    """The names of the weights in a checkpoint."""
    ours, deepspeeds = folder / "engine.pt", folder / "engine/mp_rank_00_model_states.pt"
    if ours.exists():
        return set(torch.load(ours, weights_only=True)["model"])
    return set(torch.load(deepspeeds, weights_only=False)["module"])


def leg(rank: int, number: int, folder: str) -> None:
    """Of every way the steps that this number of workers does; the first then continues to the end, as the run without a stop."""
    import raydense.training.engine as engine_module

    engine_module.casts = lambda settings, device: True  # as on a GPU
    workers = WORKERS[number]
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(workers), DS_ACCELERATOR="cpu")
    torch.set_num_threads(1)
    gc.freeze()  # DeepSpeed collects garbage a dozen times for a bf16 optimiser, and all these modules are none
    dist.init_process_group("gloo", init_method=f"file://{folder}/meet-{number}", rank=rank, world_size=workers)
    for way, (changes, precision) in WAYS.items():
        s = settings(workers, **changes)
        engine = make_engine(Model(), s, CPU, precision)
        found: dict[str, Any] = {}
        before, after = (Path(folder, f"{way} {n}") for n in (number - 1, number))
        if number:
            engine.load(Place.of(before), WORKERS[number - 1])
            found["at the start"] = held(engine)
        found["losses"] = train(engine, range(number * EACH, (number + 1) * EACH), rank, workers, s)
        after.mkdir(exist_ok=True)
        engine.save(after)
        found["at the end"] = held(engine)
        if rank == 0:
            found["saved"] = saved(after)
        if not number:
            found["undisturbed"] = train(engine, range(EACH, STEPS), rank, workers, s)
        if rank == 0:
            torch.save(found, f"{after}.pt")
    if number == 1:
        tied(rank, workers, Path(folder))
    dist.barrier()
    dist.destroy_process_group()


def tied(rank: int, workers: int, folder: Path) -> None:
    """The same with ZeRO 3, by the same workers: the losses and weights of a run that stops after two steps, and of one that does not."""
    s = settings(workers, engine={"zero": 3})
    engine, again = (make_engine(Model(), s, CPU, "fp32") for _ in range(2))
    train(engine, range(2), rank, workers, s)
    (folder / "tied").mkdir(exist_ok=True)
    engine.save(folder / "tied")
    dist.barrier()
    again.load(Place.of(folder / "tied"), workers)
    found = [(train(one, range(2, 5), rank, workers, s), one.weights()) for one in (engine, again)]
    if rank == 0:
        torch.save(found, folder / "tied.pt")


@pytest.fixture(scope="module")
def legs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[dict[str, Any]]]:
    """What the legs of each way found."""
    folder = tmp_path_factory.mktemp("legs")
    for number, workers in enumerate(WORKERS):
        there = digests(folder)
        run_ranks(leg, (number, str(folder)), workers)
        assert there.items() <= digests(folder).items(), "a checkpoint was written to by those who read it"
    found = {way: [torch.load(folder / f"{way} {number}.pt") for number in range(len(WORKERS))] for way in WAYS}
    return {**found, "zero 3": torch.load(folder / "tied.pt")}


@pytest.mark.parametrize("way", WAYS)
def test_losses_are_those_of_the_run_that_nobody_stopped(legs: dict[str, list[dict[str, Any]]], way: str) -> None:
    expected = [*legs[way][0]["losses"], *legs[way][0]["undisturbed"]]
    found = [loss for of_leg in legs[way] for loss in of_leg["losses"]]
    assert expected[-1] < expected[0] / 2
    np.testing.assert_allclose(found, expected, rtol=1e-5 if WAYS[way][1] == "fp32" else 0.05)


@pytest.mark.parametrize("way", WAYS)
def test_a_checkpoint_has_no_frozen_weights(legs: dict[str, list[dict[str, Any]]], way: str) -> None:
    learned = {name for name, weight in Model().named_parameters() if weight.requires_grad}
    assert all(one["saved"] == learned for one in legs[way])


def test_zero_3_goes_on_exactly_without_the_frozen_weights(legs: dict[str, list[Any]]) -> None:
    (losses, weights), (resumed, theirs) = legs["zero 3"]
    assert resumed == losses
    assert all(torch.equal(weights[name], theirs[name]) for name in weights)


@pytest.mark.parametrize("way", WAYS)
def test_weights_and_moments_are_those_before_the_stop(legs: dict[str, list[dict[str, Any]]], way: str) -> None:
    for before, after in zip(legs[way], legs[way][1:], strict=False):
        assert before["at the end"].keys() == after["at the start"].keys()
        for name, value in before["at the end"].items():
            assert torch.equal(value, after["at the start"][name]), name


class Experts(nn.Module):
    """A weight that nothing uses, and experts of which a batch uses those that its words meet."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.words, self.unused = nn.Embedding(11, 7), nn.Parameter(torch.ones(3))
        self.experts = nn.ModuleList(nn.Linear(7, 1) for _ in range(11))

    def forward(self, input: Tensor) -> Tensor:
        return torch.stack([self.experts[int(word)](self.words(word)) for word in input])


def by_experts(rank: int, workers: int, folder: str) -> None:
    """Train the model on one worker or several, with the gradients averaged after the backward pass."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/meet-{workers}", rank=rank, world_size=workers)
    s = settings(workers, engine={"name": "ddp"}, batch_size=8)
    engine = make_engine(Experts(), s, CPU, "fp32", overlaps=False)
    losses = train(engine, range(6), rank, workers, s)
    torch.save((losses, engine.module.state_dict(), list(engine.weights())), f"{folder}/{workers}-{rank}.pt")
    dist.barrier()
    dist.destroy_process_group()


def test_workers_whose_batches_use_other_weights_learn_as_one_does(tmp_path: Path) -> None:
    for workers in (1, 2):
        run_ranks(by_experts, (workers, str(tmp_path)), workers)
    (losses, weights, names), *several = (torch.load(tmp_path / f"{name}.pt") for name in ("1-0", "2-0", "2-1"))
    for found in several:
        np.testing.assert_allclose(found[0], losses, rtol=1e-5)
        for name, weight in weights.items():
            torch.testing.assert_close(found[1][name], weight, rtol=1e-5, atol=1e-6)
    assert torch.equal(weights["unused"], torch.ones(3))
    assert [found[2] for found in several] == [names, []], "the weights to save are on worker 0 alone"


@given(values=st.integers(0, 40), before=st.integers(1, 6), now=st.integers(1, 6), trimmed=st.booleans())
def test_shards_are_cut_again_without_loss(values: int, before: int, now: int, trimmed: bool) -> None:
    """Also of fewer values than workers, with the zeros at the end kept (as of moments) or not (as of ZeRO's weights)."""
    from raydense.training.shards import cut

    whole = torch.arange(1.0, values + 1)

    def shards(workers: int, trimmed: bool) -> list[Tensor]:
        length = 2 * math.ceil(values / (2 * workers))
        full = torch.cat([whole, torch.zeros(workers * length - values)])
        return [full[r * length : min((r + 1) * length, max(values, r * length)) if trimmed else (r + 1) * length] for r in range(workers)]

    old, new = shards(before, trimmed), shards(now, trimmed=False)
    at = 0
    for shard in new:
        assert torch.equal(cut(old, at, len(shard)), shard)
        at += len(shard)


def test_the_loss_scaler_of_half_precision_is_read(tmp_path: Path) -> None:
    """As DeepSpeed keeps it in the shards of a GPU's fp16, which no CPU trains in."""
    from deepspeed.runtime.fp16.loss_scaler import DynamicLossScaler

    from raydense.training.shards import OtherWorkersFiles

    scaler = DynamicLossScaler(2.0**9, scale_window=1000, min_scale=1, delayed_shift=2, consecutive_hysteresis=False)
    for rank in range(2):
        base = {"state": {0: {"step": torch.tensor(3.0), "exp_avg": torch.full((4,), float(rank))}}, "param_groups": [{"params": [0]}]}
        state = {"loss_scaler": scaler, "base_optimizer_state": base, "single_partition_of_fp32_groups": [torch.ones(4 - rank)]}
        torch.save({"optimizer_state_dict": state}, tmp_path / f"zero_pp_rank_{rank}_mp_rank_00_optim_states.pt")
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/meet", rank=0, world_size=1)
    try:
        read = OtherWorkersFiles(Place.of(tmp_path), 2, [8]).load(f"{tmp_path}/zero_pp_rank_0_mp_rank_00_optim_states.pt")[
            "optimizer_state_dict"
        ]
    finally:
        dist.destroy_process_group()
    assert vars(read["loss_scaler"]) == vars(scaler)
    assert read["base_optimizer_state"]["state"][0]["exp_avg"].tolist() == [0.0] * 4 + [1.0] * 4
    assert read["base_optimizer_state"]["state"][0]["step"] == 3
    assert read["single_partition_of_fp32_groups"][0].tolist() == [1.0] * 7 + [0.0]
