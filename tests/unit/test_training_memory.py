"""The estimated memory of a training is what its modules hold, and `micro_batch: auto` takes what fits."""

from __future__ import annotations

import json
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import psutil
import pytest
import torch
from training_data import TrainingData, make_training_data
from transformers import AutoTokenizer, BertConfig, BertModel, BigBirdConfig, BigBirdModel

from raydense.data.store import PassageStore
from raydense.errors import InputError
from raydense.models.cpu_layers import use_cpu_layers
from raydense.models.cross_encoder import CrossEncoder
from raydense.models.masking import NOT_MASKED
from raydense.models.tiny import make_tiny_encoder, many_words
from raydense.storage import Place
from raydense.training import micro_batch
from raydense.training.generations import Generations
from raydense.training.loop import Job, Loop
from raydense.training.loop_settings import LoopSettings
from raydense.training.memory import MemoryEstimate, describe
from raydense.training.method import load_model
from raydense.training.micro_batch import (
    bounded_by,
    find_micro_batch,
    keep_half,
    largest_by_estimate,
    largest_by_trial,
    memory_for,
    refuse_too_little,
    refuse_too_little_to_offload,
    refuse_too_little_to_write,
)
from raydense.training.piece_count import pieces_of
from raydense.training.settings import PretrainSettings, TrainSettings
from raydense.training.status import micro_batch_line
from raydense.training.trial_batch import longest_batch
from raydense.training.unused import uses_all_weights
from raydense.training.worker import Worker

CPU = torch.device("cpu")
LAYERS, DEEP = 2, 4
METHODS: dict[str, dict[str, Any]] = {
    "retriever": {},
    "separate encoders": {"objective": "retriever", "shared": False},
    "pair": {},
    "multi-positive": {"positives": 2},
    "reranker": {},
    "joint": {},
    "static": {"objective": "joint", "teacher": "static"},
}
PRETRAINING: dict[str, dict[str, Any]] = {
    "mlm": {},
    "condenser": {},
    "cocondenser": {"context": "passage"},
    "cotmae": {"context": "passage"},
}


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> TrainingData:
    """With a start model of two layers, one of four, and re-rankers made from them."""
    made = make_training_data(tmp_path_factory.mktemp("training"))
    store = PassageStore(made.root / "sample/corpus")
    shape: dict[str, Any] = {"vocab_size": 5_000, "hidden_size": 96, "num_attention_heads": 6, "intermediate_size": 384}
    for name, layers in (("start", LAYERS), ("deep", DEEP)):
        make_tiny_encoder(store.passages(np.arange(len(store))), made.root / name, 1)
        BertModel(BertConfig(num_hidden_layers=layers, **shape), add_pooling_layer=False).save_pretrained(made.root / name)
        CrossEncoder.load(made.root / name).save(made.root / f"{name}-scorer")
    return made


def pretraining(data: TrainingData, method: str, **changes: Any) -> PretrainSettings:
    own = {
        "model": str(data.root / "start"),
        "dropout": 0.1,
        "batch_size": 4,
        "passage_length": 64,
        "engine": {"name": "ddp"},
        **PRETRAINING[method],
    }
    inputs = {"output": str(data.root / "o"), "corpus": str(data.root / "sample/corpus")}
    return PretrainSettings(**{"precision": "fp32", **inputs, **own, **changes}, method=method)


def settings(data: TrainingData, method: str = "retriever", **changes: Any) -> LoopSettings:
    if method in PRETRAINING:
        return pretraining(data, method, **changes)
    own = {"objective": method, "model": str(data.root / "start"), "dropout": 0.1, "batch_size": 4, **METHODS[method]}
    if own["objective"] != "reranker":
        own |= {"query_length": 16, "passage_length": 64}
    if own["objective"] in ("reranker", "joint"):
        own["pair_length"] = 64
    if own["objective"] == "joint":
        own["reranker"] = str(data.root / "start-scorer")
    if own.get("teacher") == "static":
        changes["dropout"] = 0.0  # a frozen re-ranker has none
    return data.settings(data.root / "o", **{**own, **changes})


def deep(data: TrainingData, method: str, **changes: Any) -> LoopSettings:
    """As `settings`, with the models of four layers, of which one is a small part."""
    reranker = {"reranker": str(data.root / "deep-scorer")} if METHODS.get(method, {}).get("objective", method) == "joint" else {}
    return settings(data, method, model=str(data.root / "deep"), **reranker, **changes)


def outline(asked: LoopSettings) -> MemoryEstimate:
    return MemoryEstimate(asked, asked.model, CPU)


def loaded(asked: LoopSettings) -> torch.nn.Module:
    return load_model(asked, asked.model).train()


@pytest.fixture
def untraced(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a test that reads nothing of forward and backward, whose tracing takes a second."""
    monkeypatch.setattr(MemoryEstimate, "running", lambda self, pieces: 0)


@pytest.mark.usefixtures("untraced")
@pytest.mark.parametrize("method", [*METHODS, *PRETRAINING])
def test_weights_gradients_and_moments_are_those_of_the_model(data: TrainingData, method: str) -> None:
    model, memory = loaded(settings(data, method)), outline(settings(data, method)).memory(2)
    assert memory.weights == sum(p.nbytes for p in model.parameters())
    trained = [p for p in model.parameters() if p.requires_grad]
    assert memory.gradients == sum(p.nbytes for p in trained)
    optimizer = torch.optim.AdamW(trained)
    for weight in trained:
        weight.grad = torch.zeros_like(weight)
    optimizer.step()
    assert memory.optimizer == sum(value.nbytes for state in optimizer.state.values() for key, value in state.items() if key != "step")


def saved_for_backward(model: torch.nn.Module, batch: Any) -> int:
    """The bytes of what autograd saves in a forward, weights apart, a storage counted once."""
    weights, saved = {p.untyped_storage().data_ptr() for p in model.parameters()}, {}

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        saved[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage()  # held, so that no address comes twice
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        outputs = model(**batch)
    assert outputs is not None
    return sum(storage.nbytes() for address, storage in saved.items() if address not in weights)


@pytest.mark.parametrize(
    ("method", "dropout"),
    [
        *((method, 0.1) for method in ["retriever", "separate encoders", "reranker", "joint", *PRETRAINING]),
        *((method, 0.0) for method in ["retriever", "reranker", "static", "cotmae"]),  # layers without it are the same in all
    ],
)
def test_activations_are_what_autograd_saves(data: TrainingData, method: str, dropout: float) -> None:
    asked = deep(data, method, dropout=dropout)
    model = loaded(asked)
    use_cpu_layers(model)
    batch = longest_batch(model, asked, 1)
    saved = saved_for_backward(model, batch)
    masked = max(int((texts["labels"] != NOT_MASKED).sum()) if "labels" in texts else 0 for texts in batch.values())
    logits = 4 * masked * 5_000  # float32; on the way back there are their gradient, and the gradient of their logarithm
    assert saved > 2**20
    assert saved <= outline(asked).running(1) <= (1 + 1.2 / DEEP) * saved + 3 * logits  # and one layer on the way back


@pytest.mark.usefixtures("untraced")
def test_a_copy_to_save_is_of_the_trained_weights_and_not_on_a_gpu(data: TrainingData, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("raydense.training.memory.casts", lambda settings, device: True)  # as on a GPU
    frozen = outline(settings(data, adapter="lora:rank=4,alpha=8", engine={"name": "ddp"}))
    assert frozen.memory(1).activations == 0, "of an adapter a copy is no more than the gradients were"
    engine, weights = {"name": "deepspeed", "zero": 2, "offload": True}, sum(p.numel() for p in loaded(settings(data)).parameters())
    monkeypatch.setattr("raydense.training.engine._BUCKET", weights // 100)
    offloading = outline(settings(data, precision="bf16", workers=4, engine=engine))
    offloading._gpu = True
    assert offloading.memory(1).activations == 0


def test_less_at_once_needs_less_and_so_do_recomputed_activations(data: TrainingData) -> None:
    found = outline(deep(data, "reranker"))
    running = [found.running(pieces) for pieces in (1, 2, 4)]
    assert running[0] > 1.5 * running[1] > 2 * running[2]
    again = deep(data, "reranker", activation_checkpointing=True)
    assert outline(again).running(1) < running[0] / 2


@pytest.mark.parametrize(("method", "precision"), [("joint", "fp32"), ("retriever", "bf16")])
def test_recomputed_activations_of_a_gpu_are_those_of_the_first_time(
    data: TrainingData, monkeypatch: pytest.MonkeyPatch, method: str, precision: str
) -> None:
    """Attention with dropout is another kernel there, in the first computation and in the one of the backward pass."""
    monkeypatch.setattr("raydense.training.precision.choose_precision", lambda *_: precision)
    whole, again = (
        MemoryEstimate(asked, asked.model, torch.device("cuda")).running(1)
        for asked in (deep(data, method, dropout=0.1, activation_checkpointing=checkpointing) for checkpointing in (False, True))
    )
    assert again < whole / 2


@pytest.mark.usefixtures("untraced")
def test_zero_shares_the_optimiser_out(data: TrainingData) -> None:
    estimates = {
        (z, w): outline(settings(data, engine={"name": "deepspeed", "zero": z}, workers=w)).memory(0) for z in (1, 3) for w in (1, 4)
    }
    assert estimates[1, 4].optimizer == pytest.approx(estimates[1, 1].optimizer / 4, abs=4)
    assert estimates[1, 4].weights == estimates[1, 1].weights
    assert estimates[3, 4].weights == pytest.approx(estimates[3, 1].weights / 4, abs=4)


@pytest.mark.parametrize("zero", [1, 2])
def test_the_update_of_one_worker_adds_nothing_on_a_gpu(data: TrainingData, monkeypatch: pytest.MonkeyPatch, zero: int) -> None:
    """As measured, docs/benchmarks/memory.md; of several workers it is counted as on a CPU, where it is more than forward and backward hold."""
    monkeypatch.setattr("raydense.training.precision.choose_precision", lambda *_: "bf16")
    for workers, more in ((1, False), (2, True)):
        asked = settings(data, engine={"name": "deepspeed", "zero": zero}, workers=workers, batch_size=workers, micro_batch=1)
        found = MemoryEstimate(asked, asked.model, torch.device("cuda"))
        assert (found._held(1)[-1] > 0) == more


@pytest.mark.parametrize(("precision", "size"), [("fp32", 4), ("bf16", 2)])
def test_zero_3_holds_a_share_of_everything(data: TrainingData, monkeypatch: pytest.MonkeyPatch, precision: str, size: int) -> None:
    """Of 2 workers, as measured: a model of 100 million weights in buckets of half of them; and one of many times what is gathered at once."""
    monkeypatch.setattr("raydense.training.memory.casts", lambda settings, device: True)  # as on a GPU
    asked = settings(data, precision=precision, engine={"name": "deepspeed", "zero": 3}, workers=2)
    found, weights = outline(asked), sum(p.numel() for p in loaded(asked).parameters())
    monkeypatch.setattr("raydense.training.engine._BUCKET", weights // 2)
    memory = found.memory(1)
    running = memory.activations - found._gathered()
    held = {4: 12.0, 2: 10.0}[size]  # bytes a weight after a step
    assert memory.weights + memory.gradients + memory.optimizer == pytest.approx(held * weights, rel=1e-3)
    assert found._gathered() == pytest.approx((size + 1.5 * size) * weights, rel=1e-3)
    assert running > 0
    monkeypatch.setattr("raydense.training.memory.WHOLE_AT_ONCE", weights // 10)
    assert found._gathered() == pytest.approx(1.6 * size * weights, rel=1e-3)
    saved = found.memory(1).total
    found._gpu = True
    assert found.memory(1).total < saved, "the copy to save is not on the GPU"


@pytest.mark.usefixtures("untraced")
def test_ddp_has_buckets_next_to_the_gradients_of_pieces(data: TrainingData) -> None:
    """Of several workers, until the last piece of the last part, after which a gradient is a part of its bucket."""

    def gradients(workers: int, **changes: Any) -> int:
        asked = settings(data, engine={"name": "ddp"}, workers=workers, **changes)
        return outline(asked).memory(changes.get("micro_batch", 0)).gradients

    weights = sum(p.numel() for p in loaded(settings(data)).parameters())
    assert gradients(1) == gradients(2) == gradients(1, micro_batch=2) == 4 * weights
    assert gradients(2, micro_batch=2) == gradients(2, accumulation=2) == 8 * weights


@pytest.mark.usefixtures("untraced")
def test_buckets_that_are_not_the_gradients_are_counted(data: TrainingData, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("raydense.training.memory.casts", lambda settings, device: True)  # as on a GPU

    def gradients(zero: int, gpu: bool = False, precision: str = "fp32", workers: int = 1) -> int:
        found = outline(settings(data, precision=precision, workers=workers, engine={"name": "deepspeed", "zero": zero}))
        found._gpu = gpu
        return found.memory(0).gradients

    weights = sum(p.numel() for p in loaded(settings(data)).parameters())
    whole = {zero: gradients(zero) for zero in (1, 2, 3)}
    assert [gradients(zero, gpu=True) - whole[zero] for zero in (1, 2, 3)] == [0, 0, 0], "one GPU reduces after the backward"
    assert gradients(1, gpu=True, workers=2) - gradients(1, workers=2) == 4 * weights
    assert whole[3] == 8 * weights, "the sums, and a bucket"
    assert gradients(2, gpu=True, precision="bf16") - gradients(2, precision="bf16") == 2 * weights
    monkeypatch.setattr("raydense.training.engine._BUCKET", 1_000)
    assert [gradients(zero) - whole[zero] for zero in (1, 2)] == [4_000] * 2
    assert gradients(3) == 4 * weights + 4_000
    assert gradients(1, gpu=True) - whole[1] == 4_000


@pytest.mark.usefixtures("untraced")
@pytest.mark.parametrize(("zero", "precision", "each"), [(1, "fp32", 8), (1, "bf16", 8), (2, "bf16", 8), (3, "bf16", 0)])
def test_what_is_offloaded_is_not_on_the_gpu(
    data: TrainingData, monkeypatch: pytest.MonkeyPatch, zero: int, precision: str, each: int
) -> None:
    """Bytes a weight on the GPU without buckets: weights, and gradients of a piece, in half precision their sum, or of a bucket, in float32."""
    monkeypatch.setattr("raydense.training.memory.casts", lambda settings, device: True)  # as on a GPU
    asked = settings(data, precision=precision, engine={"name": "deepspeed", "zero": zero, "offload": True})
    found, weights, size = outline(asked), sum(p.numel() for p in loaded(asked).parameters()), 4 if precision == "fp32" else 2
    assert found.memory(1).optimizer > 0, "a CPU has no other memory"
    assert found.on_machine == 0
    found._gpu = True
    memory, buckets = found.memory(1), weights * {(1, 4): 0, (1, 2): 4, (2, 2): 2, (3, 2): 2}[zero, size]
    assert memory.optimizer == 0
    assert memory.weights + memory.gradients == pytest.approx(each * weights + buckets, rel=1e-3)
    assert found._gathered() == (0 if zero < 3 else 4 * size * weights)
    assert found.on_machine == (33 if zero == 3 else 23) * weights
    monkeypatch.setattr("raydense.training.engine._BUCKET", weights // 4)
    if (zero, size) == (2, 2):
        assert found.memory(1).gradients == pytest.approx((0.5 + 4 + 2 * 0.5) * weights, rel=1e-3), "of a bucket, the sum, and two buckets"


def test_too_little_memory_of_the_machine_to_offload_is_refused(data: TrainingData, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("raydense.training.precision.choose_precision", lambda *_: "fp32")
    asked, gpu = settings(data, engine={"name": "deepspeed", "offload": True}), torch.device("cuda")
    refuse_too_little_to_offload(asked, asked.model, gpu, 2)
    monkeypatch.setattr(micro_batch, "_SHARE", 1e-9)
    refuse_too_little_to_offload(asked, asked.model, torch.device("cpu"), 2)
    refuse_too_little_to_offload(settings(data, engine={"name": "deepspeed"}), asked.model, gpu, 2)
    with pytest.raises(InputError, match=r"engine.offload: offload needs about .* of the machine's memory for each of 2 worker"):
        refuse_too_little_to_offload(asked, asked.model, gpu, 2)


def test_too_little_memory_of_the_machine_to_write_the_model_is_refused(data: TrainingData, monkeypatch: pytest.MonkeyPatch) -> None:
    """With ZeRO 3 and on a cluster, where no worker would notice; also in a precision that the machine could not train in."""
    zero3 = settings(data, precision="fp16", engine={"name": "deepspeed", "zero": 3})
    size = 4 * sum(p.numel() for p in loaded(zero3).parameters())
    monkeypatch.setattr(micro_batch, "memory_total", lambda: size)
    refuse_too_little_to_write(zero3, zero3.model)
    monkeypatch.setattr(micro_batch, "memory_total", lambda: size - 1)
    plain = settings(data)
    refuse_too_little_to_write(plain, plain.model)
    for asked, address in ((zero3, "local"), (plain, "10.0.0.1:6379")):
        monkeypatch.setenv("RAY_ADDRESS", address)
        with pytest.raises(
            InputError, match=r"^model: the trained model takes .* GiB where it is written, and this machine has .*--entrypoint-memory"
        ):
            refuse_too_little_to_write(asked, asked.model)


def test_half_precision_holds_half(data: TrainingData, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("raydense.training.memory.casts", lambda settings, device: True)  # as on a GPU
    whole, half = (outline(settings(data, "retriever", precision=p, engine={"name": "deepspeed"})) for p in ("fp32", "bf16"))
    assert half.memory(2).weights == whole.memory(2).weights / 2
    assert half.running(1) < 0.8 * whole.running(1)
    assert half.memory(2).gradients == whole.memory(2).gradients * 1.5, "of a piece in half precision, their sum in float32"


def test_on_a_cpu_bf16_holds_the_weights_in_float32(data: TrainingData) -> None:
    whole, mixed = (outline(settings(data, "retriever", precision=p, engine={"name": "deepspeed"})) for p in ("fp32", "bf16"))
    assert (mixed.memory(2).weights, mixed.memory(2).optimizer) == (whole.memory(2).weights, whole.memory(2).optimizer)
    assert mixed.running(1) < whole.running(1)


def test_the_largest_that_fits_is_a_power_of_two_or_all(data: TrainingData) -> None:
    found = outline(settings(data))  # 12 passages
    needed = {texts: found.memory(texts).total for texts in (1, 4, 8, 12)}
    assert sorted(set(needed.values())) == list(needed.values())
    assert largest_by_estimate(found, needed[12]) == 12
    assert largest_by_estimate(found, needed[12] - 1) == 8
    assert largest_by_estimate(found, needed[4] + 1) == 4
    assert largest_by_estimate(found, min(needed.values()) - 1) == 0


def test_where_all_texts_fit_one_estimate_says_so(data: TrainingData, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each takes a second, and of a large model several."""
    found, running, estimated = outline(settings(data)), MemoryEstimate.running, []
    monkeypatch.setattr(MemoryEstimate, "running", lambda self, pieces: estimated.append(pieces) or running(self, pieces))
    assert largest_by_estimate(found, 2**40) == 12
    assert estimated == [1]


def test_a_trial_halves_until_nothing_runs_out(data: TrainingData) -> None:
    """A GPU with memory for `most` passages at once, which raises torch's error beyond that."""
    asked = settings(data)
    model, found, most = loaded(asked), outline(asked), 0

    def runs_out(module: Any, args: Any, given: Any) -> None:
        if len(given["passages"]["input_ids"]) > most:
            raise torch.OutOfMemoryError("CUDA out of memory")

    model.register_forward_pre_hook(runs_out, with_kwargs=True)
    for most, largest in ((0, 0), (1, 1), (5, 4), (12, 12)):  # noqa: B007
        assert largest_by_trial(model, found, CPU) == largest
        assert all(p.grad is None for p in model.parameters())


def test_each_worker_gets_a_share_of_the_memory_that_is_free(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(micro_batch, "memory_free", lambda: 200 * 2**20)
    assert memory_for(1) == int(0.8 * 200 * 2**20)
    assert memory_for(4) == int(0.8 * 50 * 2**20)


def test_auto_is_found_and_reported(data: TrainingData) -> None:
    asked = settings(data, micro_batch="auto")
    texts, line = find_micro_batch(asked, asked.model, loaded(asked), CPU, 1)
    assert texts == 12
    assert line.startswith("micro_batch 12 of 12 texts: about ")
    assert pieces_of(asked.model_copy(update={"micro_batch": texts})) == 1


@pytest.mark.parametrize("method", PRETRAINING)
def test_pretraining_too_finds_what_fits(data: TrainingData, method: str) -> None:
    asked = pretraining(data, method, micro_batch="auto")
    assert find_micro_batch(asked, asked.model, loaded(asked), CPU, 1)[0] == 4
    found = outline(asked)
    assert found.memory(1).activations < found.memory(4).activations


def begun(asked: LoopSettings, folder: Path, workers: int = 1) -> Loop:
    """A worker of a training, before its first step."""
    generations = Generations(Place.of(folder), steps=1, every=1)
    return Loop(Job(asked, asked.model, Place.of(folder), 1, {}, generations, until=1, inputs={}), Worker(0, workers, workers, CPU))


def said(folder: Path) -> str:
    return micro_batch_line(Place.of(folder)) or ""


def test_a_resumed_run_keeps_the_micro_batch_it_began_with(data: TrainingData, tmp_path: Path) -> None:
    """Also where the memory of the moment would take another one."""
    asked, file = settings(data, micro_batch="auto", max_steps=1), tmp_path / "micro_batch-1.json"
    assert begun(asked, tmp_path).settings.micro_batch == 12
    assert said(tmp_path).startswith("micro_batch 12 of 12")
    file.write_text(json.dumps(json.loads(file.read_text()) | {"texts": 4}))
    assert begun(asked, tmp_path).settings.micro_batch == 4
    assert said(tmp_path) == "micro_batch 4, as before"
    assert begun(asked, tmp_path, workers=2).settings.micro_batch == 12


def test_after_memory_ran_out_a_run_is_started_again_with_half(data: TrainingData, tmp_path: Path) -> None:
    """Several workers may run out of it at once, and it stays half of what they used."""
    asked = settings(data, micro_batch="auto", max_steps=1)
    used = begun(asked, tmp_path).settings.micro_batch
    for _ in range(2):
        keep_half(Place.of(tmp_path / "micro_batch-1.json"), int(used))
    assert begun(asked, tmp_path).settings.micro_batch == 6


def test_a_run_that_is_resumed_on_another_device_searches_its_micro_batch_again(
    data: TrainingData, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a container that may take half of the machine's memory."""
    asked, file = settings(data, micro_batch="auto", max_steps=1), tmp_path / "micro_batch-1.json"
    begun(asked, tmp_path)
    file.write_text(json.dumps(json.loads(file.read_text()) | {"texts": 4}))
    half = psutil.virtual_memory().total // 2
    monkeypatch.setattr(micro_batch, "memory_total", lambda: half)
    assert begun(asked, tmp_path).settings.micro_batch == 12
    line = said(tmp_path)
    assert line.startswith("micro_batch 12 of 12 texts: about ")
    assert re.search(r"; it was 4 on CPU with \d+\.\d GiB, without activation_checkpointing$", line)
    assert begun(asked, tmp_path).settings.micro_batch == 12
    assert said(tmp_path) == "micro_batch 12, as before"
    assert bounded_by(CPU, 1) == f"CPU with {half / 2**30:.1f} GiB"
    assert bounded_by(CPU, 2) == f"CPU with {half / 2**31:.1f} GiB"


def test_a_run_that_is_resumed_with_activation_checkpointing_searches_its_micro_batch_again(data: TrainingData, tmp_path: Path) -> None:
    """As the message about too little memory says. What version 0.2 kept does not tell: it is taken to be found without."""
    asked, file = settings(data, micro_batch="auto", max_steps=1), tmp_path / "micro_batch-1.json"
    begun(asked, tmp_path)
    file.write_text(json.dumps({"texts": 4, "devices": [bounded_by(CPU, 1)]}))
    assert begun(asked, tmp_path).settings.micro_batch == 4
    again = asked.model_copy(update={"activation_checkpointing": True})
    assert begun(again, tmp_path).settings.micro_batch == 12
    assert said(tmp_path).endswith("GiB, without activation_checkpointing")
    assert begun(again, tmp_path).settings.micro_batch == 12
    assert said(tmp_path) == "micro_batch 12, as before"
    begun(asked, tmp_path)
    assert said(tmp_path).endswith("GiB, with activation_checkpointing")


def test_a_gpu_is_known_by_its_name_and_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    card = SimpleNamespace(name="NVIDIA A10G", total_memory=22 * 2**30)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: card)
    assert bounded_by(torch.device("cuda:1"), 4) == "NVIDIA A10G with 22.0 GiB"


def test_too_little_for_one_text_is_refused(data: TrainingData, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = settings(data, micro_batch="auto")
    refuse_too_little(asked, asked.model)
    monkeypatch.setattr(micro_batch, "_SHARE", 1e-9)
    with pytest.raises(InputError, match=r"even one text at a time needs about .* GiB a worker") as caught:
        refuse_too_little(asked, asked.model)
    assert "micro_batch" in str(caught.value)
    assert "--activation-checkpointing" in str(caught.value)


def test_plan_shows_it(data: TrainingData) -> None:
    assert describe(settings(data, "static"))[0].startswith("about ")
    assert "activations" in describe(settings(data, model="tiny", batch_size=64))[0]
    assert describe(settings(data, micro_batch="auto"))[0].startswith("from ")
    assert describe(settings(data, model=str(data.root / "not there"))) == ("", 0)


def test_tiny_is_estimated_with_a_full_vocabulary(tmp_path: Path) -> None:
    """A corpus gives it as many pieces, or fewer."""
    make_tiny_encoder(many_words(), tmp_path, 0)
    assert json.loads((tmp_path / "config.json").read_text())["vocab_size"] == 8_192


@pytest.mark.parametrize("wrong", [-1, "many", 1.5])
def test_a_micro_batch_that_is_none_is_refused(data: TrainingData, wrong: Any) -> None:
    values = {**settings(data).model_dump(exclude_unset=True), "micro_batch": wrong}
    with pytest.raises(InputError, match="auto") as caught:
        TrainSettings.read(values, "--")
    assert str(caught.value).count("--micro-batch") == 1


@pytest.mark.parametrize("method", ["retriever", "separate encoders", "reranker", "joint", "static", *PRETRAINING])
def test_every_method_uses_all_weights(data: TrainingData, method: str) -> None:
    asked = deep(data, method, dropout=0.1)
    model, before = loaded(asked), torch.random.get_rng_state()
    assert uses_all_weights(model, asked)
    assert torch.equal(torch.random.get_rng_state(), before)
    assert all(weight.grad is None for weight in model.parameters())


def test_a_family_that_changes_for_short_texts_is_left_as_it_is(data: TrainingData, tmp_path: Path) -> None:
    """BigBird's pooler takes no part in a re-ranker's score, and its sparse attention gives way for good to a full one."""
    tokenizer = AutoTokenizer.from_pretrained(str(data.root / "start"), local_files_only=True)
    size = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 64, "block_size": 8}
    BigBirdModel(BigBirdConfig(vocab_size=len(tokenizer), max_position_embeddings=512, **size)).save_pretrained(tmp_path / "bird")
    tokenizer.save_pretrained(str(tmp_path / "bird"))
    asked = settings(data, "reranker", model=str(tmp_path / "bird"), pair_length=512)
    model = loaded(asked)
    before = [type(module) for module in model.modules()]
    assert not uses_all_weights(model, asked)
    assert [type(module) for module in model.modules()] == before
