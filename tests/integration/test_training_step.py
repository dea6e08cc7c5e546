"""A step in pieces is the plain step; and any number of ranks, in plain processes of torch's own, is one rank."""

from __future__ import annotations

import math
import os
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from ranks import run_ranks
from torch.utils._python_dispatch import TorchDispatchMode
from training_data import TrainingData, make_training_data
from transformers import MPNetConfig, MPNetModel

from raydense.data.generated import commit_queries
from raydense.data.store import PassageStore
from raydense.errors import InputError
from raydense.models.cross_encoder import CrossEncoder
from raydense.models.tiny import make_tiny_encoder, make_tiny_generator
from raydense.storage import Draft, Place
from raydense.training.activation_checkpointing import checkpoint_activations
from raydense.training.batches import Sampler
from raydense.training.engine import TorchEngine, make_engine
from raydense.training.loop_settings import LoopSettings
from raydense.training.memory import MemoryEstimate
from raydense.training.method import Batch, Metrics, Outputs, load_model, method_of
from raydense.training.methods.retriever import Retriever, compared
from raydense.training.piece_count import pieces_of
from raydense.training.pieces import _EACH_COSTS, by_length, cut_up, piece_of
from raydense.training.precision import Precision
from raydense.training.prefetch import Prefetch
from raydense.training.settings import PretrainSettings, TrainSettings
from raydense.training.start_model import load_start
from raydense.training.step import forward_and_backward, loss_of, run

Outcome = tuple[float, dict[str, torch.Tensor]]
CPU = torch.device("cpu")
# Four queries a step, on a slope: temperature, masks, several positives, in-batch queries all bear on the gradient.
METHODS: dict[str, dict[str, Any]] = {
    "retriever": {"temperature": 0.05},
    "separate encoders": {"objective": "retriever", "temperature": 0.05, "shared": False},
    "pair": {"temperature": 0.05, "alpha": 0.4, "in_batch_queries": True},
    "multi-positive": {"temperature": 0.05, "positives": 2},
    "reranker": {"loss": "pointwise"},
    "joint": {"temperature": 0.05, "in_batch": True},
    "generator": {},
    "mlm": {},
    "cocondenser": {"context": "mixed"},
    "cotmae": {"context": "query"},
    "static": {"objective": "joint", "teacher": "static", "temperature": 0.05, "in_batch": True},
    "retriever, own list": {"objective": "retriever", "temperature": 0.05, "in_batch": False},
    "pair, own list": {"objective": "pair", "temperature": 0.05, "alpha": 0.4, "in_batch": False},
    "multi-positive, own list": {"objective": "multi-positive", "temperature": 0.05, "positives": 2, "in_batch": False},
    "joint, own list": {"objective": "joint", "temperature": 0.05},
}


class LearnedTemperature(Retriever):
    """InfoNCE whose temperature is a weight, exp(-log_scale)."""

    def loss(self, outputs: Outputs, batch: Batch) -> tuple[torch.Tensor, Metrics]:
        queries, passages = self.vectors(outputs)
        scores = compared(queries, passages) * self.model.log_scale.exp()
        return torch.nn.functional.cross_entropy(scores, batch["positive"]), {}


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> TrainingData:
    made = make_training_data(tmp_path_factory.mktemp("training"))
    store = PassageStore(made.root / "sample/corpus")
    make_tiny_encoder(store.passages(np.arange(len(store))), made.root / "tiny", 1)
    make_tiny_generator(store.passages(np.arange(len(store))), made.root / "writer", 1)
    draft = Draft.open(made.root / "generated", "generated", {"stage": "test"})
    commit_queries(draft, "generated-00000.arrow", 0, [[f"query {j} of {i}" for j in range(1 + i % 3)] for i in range(len(store))])
    draft.finish(len(store), corpus=store.fingerprint)
    torch.manual_seed(4)
    CrossEncoder.load(made.root / "tiny").save(made.root / "scorer")
    return made


def settings(data: TrainingData, method: str, **changes: Any) -> LoopSettings:
    if method in ("mlm", "cocondenser", "cotmae"):
        inputs = {"corpus": str(data.root / "sample/corpus"), "model": str(data.root / "tiny"), "output": str(data.root / "o")}
        generated = {"generated": str(data.root / "generated")} if "context" in METHODS[method] else {}
        own = {"method": method, "batch_size": 8, "accumulation": 2, "engine": {"name": "ddp"}, "lr": 1e-3, "passage_length": 64}
        return PretrainSettings(**{**inputs, **generated, **own, **METHODS[method], **changes})
    short = (
        {} if method in ("reranker", "generator") else {"normalize": True}
    )  # long vectors have large gradients, whose rounding would hide faults
    own = {"objective": method, **short, "batch_size": 8, "accumulation": 2, "model": str(data.root / "tiny"), **METHODS[method]}
    if own["objective"] == "joint":
        own["reranker"] = str(data.root / "scorer")
    if method == "generator":
        own |= {"model": str(data.root / "writer"), "negatives": None}
    return data.settings(data.root / "o", **{**own, **changes})


@cache
def start_of(data: TrainingData, method: str) -> dict[str, torch.Tensor]:
    asked = settings(data, method)
    return load_model(asked, asked.model).state_dict()


def one_step(asked: LoopSettings, rank: int = 0, workers: int = 1, go: Any = forward_and_backward) -> Outcome:
    """The mean loss of the first step over its parts, and the weights after it, by `descent`."""
    examples, texts = method_of(asked).read(asked, PassageStore(asked.corpus))
    kind = method_of(asked)
    model = load_start(asked, asked.model, CPU).train()
    if asked.activation_checkpointing:
        checkpoint_activations(model)
    method = kind(asked, model, texts, rank, workers)
    pieces = pieces_of(asked)
    engine: Any = make_engine(model, asked, CPU, "fp32", pieces)
    parts = Sampler(examples, asked).step(0)
    losses = [go(engine, method, method.prepare(p), pieces, list(range(100 * i, 100 * i + pieces)))["loss"] for i, p in enumerate(parts)]
    loss = torch.stack(losses).mean()
    if workers > 1:
        dist.all_reduce(loss)
    engine.step(1.0)
    return float(loss) / workers, engine.weights()


@cache
def plain_step(data: TrainingData, method: str, micro_batch: int = 0) -> Outcome:
    """That of one rank, by `descent`; several tests compare with it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("raydense.training.engine.make_optimizer", descent)
        return one_step(settings(data, method, clip=0.0, micro_batch=micro_batch))


def assert_same(one: Outcome, other: Outcome, start: dict[str, torch.Tensor], what: str = "") -> None:
    """The same loss, and weights whose differences are rounding compared with how far they moved from `start`."""
    assert one[0] == pytest.approx(other[0], rel=1e-5), what
    moved = max(float((value - start[name]).abs().max()) for name, value in other[1].items())
    assert moved > 1e-3, "nothing to compare"
    for name, value in one[1].items():
        assert float((value - other[1][name]).abs().max()) < 5e-4 * moved, f"{what}: {name}"


@pytest.fixture
def steep(monkeypatch: pytest.MonkeyPatch) -> None:
    """A step that follows the gradient's size, which the first one of AdamW does not."""
    monkeypatch.setattr("raydense.training.engine.make_optimizer", descent)


def descent(model: torch.nn.Module, settings: TrainSettings) -> torch.optim.Optimizer:
    """g / (|g| + 1), of a class that DeepSpeed's ZeRO accepts."""
    return torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], betas=(0.0, 0.0), eps=1.0, weight_decay=0.0)


@pytest.mark.parametrize("method", METHODS)
def test_pieces_give_the_gradients_of_the_whole(data: TrainingData, steep: None, method: str) -> None:
    whole = plain_step(data, method)
    for changes in ({"micro_batch": 3}, {"micro_batch": 1}, {"micro_batch": 2, "activation_checkpointing": True}):
        assert pieces_of(settings(data, method, **changes)) > 1
        assert_same(one_step(settings(data, method, clip=0.0, **changes)), whole, start_of(data, method), str(changes))


@pytest.mark.parametrize("precision", ["fp32", "fp16"])
def test_a_weight_that_the_loss_reads_has_the_gradient_of_the_whole(data: TrainingData, precision: Precision) -> None:
    """As a learned temperature: it is scaled and averaged over the parts of a step as those of the model are."""
    found = []
    for micro_batch in (0, 2):
        asked = settings(data, "retriever", clip=0.0, micro_batch=micro_batch)
        examples, texts = Retriever.read(asked, PassageStore(asked.corpus))
        model = load_start(asked, asked.model, CPU)
        model.log_scale = torch.nn.Parameter(torch.tensor([3.0]))
        method, pieces = LearnedTemperature(asked, model, texts, 0, 1), pieces_of(asked)
        engine = TorchEngine(model, asked, CPU, precision, pieces)
        for part in Sampler(examples, asked).step(0):
            forward_and_backward(engine, method, method.prepare(part), pieces, list(range(pieces)))
        engine.scaler.unscale_(engine.optimizer)
        found.append(float(model.log_scale.grad))
    assert pieces > 1
    assert abs(found[0]) > 1e-3
    assert found[1] == pytest.approx(found[0], rel=1e-4 if precision == "fp32" else 1e-2)


class NotThose(TorchEngine):
    trains_weights_of_loss = False


@pytest.mark.parametrize("micro_batch", [0, 2])
def test_a_weight_that_the_loss_reads_is_refused_where_it_would_not_be_trained(data: TrainingData, micro_batch: int) -> None:
    """As by DeepSpeed; a loss of outputs alone is not."""
    asked = settings(data, "retriever", micro_batch=micro_batch)
    examples, texts = Retriever.read(asked, PassageStore(asked.corpus))
    model, pieces = load_start(asked, asked.model, CPU), pieces_of(asked)
    model.log_scale = torch.nn.Parameter(torch.tensor([3.0]))
    engine = NotThose(model, asked, CPU, "fp32", pieces)
    part = Sampler(examples, asked).step(0)[0]
    plain = Retriever(asked, model, texts, 0, 1)
    assert forward_and_backward(engine, plain, plain.prepare(part), pieces, [0] * pieces)["loss"] > 0
    learned = LearnedTemperature(asked, model, texts, 0, 1)
    with pytest.raises(InputError, match=r"LearnedTemperature\.loss: reads weights itself, .*; set engine.name to ddp"):
        forward_and_backward(engine, learned, learned.prepare(part), pieces, [0] * pieces)


@pytest.mark.parametrize("method", METHODS)
def test_a_step_at_once_reads_texts_of_one_length_together(
    data: TrainingData, steep: None, method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In several forwards, with the loss and the gradient of one."""
    forwards: list[int] = []
    for each_costs in (10**9, 0):
        monkeypatch.setitem(_EACH_COSTS, "cpu", each_costs)
        found = one_step(
            settings(data, method, clip=0.0), go=lambda *given: forwards.append(pieces_in(*given)) or forward_and_backward(*given)
        )
        whole = found if each_costs else whole  # noqa: F821
    assert forwards[:2] == [1, 1]
    assert min(forwards[2:]) > 1
    assert_same(found, whole, start_of(data, method))


def pieces_in(engine: Any, method: Any, batch: Any, pieces: int, seeds: list[int]) -> int:
    return len(cut_up(method.settings, batch, pieces).texts)


def test_the_less_a_forward_costs_the_more_there_are(data: TrainingData, monkeypatch: pytest.MonkeyPatch) -> None:
    lengths = torch.tensor([100, 90, 60, 50, 12, 10, 10, 8])
    batch = {"passages": {"attention_mask": (torch.arange(100) < lengths[:, None]).long()}}
    found = []
    for each_costs in (10_000, 200, 1):
        monkeypatch.setitem(_EACH_COSTS, "cpu", each_costs)
        found.append([one["passages"]["attention_mask"].numel() for one in cut_up(settings(data, "retriever"), batch, 1).texts])
    assert found == [[800], [400, 48], [100, 90, 60, 50, 12, 10, 10, 8]]
    tied = settings(data, "retriever", engine={"name": "deepspeed", "zero": 3}, workers=2)
    assert len(cut_up(tied, batch, 1).texts) == 1  # both must gather the weights as often


class Indexed(TorchDispatchMode):
    """Keeps the shapes of the tensors whose rows are taken one by one."""

    def __init__(self) -> None:
        super().__init__()
        self.shapes: list[tuple[int, ...]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.ops.aten.index.Tensor:
            self.shapes.append(tuple(args[0].shape))
        return func(*args, **(kwargs or {}))


def test_a_step_that_stays_whole_is_not_copied(data: TrainingData, monkeypatch: pytest.MonkeyPatch) -> None:
    mask = (torch.arange(100) < torch.tensor([8, 100, 12, 90])[:, None]).long()
    for each_costs, pieces in ((10_000, 1), (1, 4)):
        monkeypatch.setitem(_EACH_COSTS, "cpu", each_costs)
        with Indexed() as indexed:
            cut = cut_up(settings(data, "retriever"), {"passages": {"attention_mask": mask}}, 1)
        assert len(cut.texts) == pieces
        assert ((4, 100) in indexed.shapes) == (pieces > 1)


@pytest.mark.parametrize(("changes", "times"), [({"teacher": "static"}, 1), ({}, 2), ({"in_batch": False}, 1)])
def test_only_gradient_caching_reads_a_pair_twice(data: TrainingData, changes: dict[str, Any], times: int) -> None:
    """Where the step runs in pieces, the teacher learns, and lists hold the positives of other queries."""
    read: list[int] = []

    def count(module: torch.nn.Module, given: Any, scores: Any) -> None:
        if isinstance(module, CrossEncoder):
            read.append(len(scores))

    for micro_batch, expected in ((4, times), (0, 1)):
        asked = settings(data, "joint", micro_batch=micro_batch, **changes)
        assert pieces_of(asked) > 1 or not micro_batch
        read.clear()
        hook = torch.nn.modules.module.register_module_forward_hook(count)
        try:
            one_step(asked)
        finally:
            hook.remove()
        assert sum(read) == expected * asked.accumulation * method_of(asked).texts_of(asked)["pairs"]


@pytest.mark.parametrize("method", METHODS)
def test_no_forward_and_no_loss_asks_a_gpu_for_a_number(data: TrainingData, method: str) -> None:
    """A tensor without values raises wherever a shape or a branch depends on one: there a GPU makes the step wait."""
    asked = settings(data, method, dropout=None)
    examples, texts = method_of(asked).read(asked, PassageStore(asked.corpus))
    prepared = method_of(asked)(asked, load_model(asked, asked.model), texts, 0, 1).prepare(Sampler(examples, asked).step(0)[0])
    part = cut_up(asked, prepared, 1, "cuda")
    outline = MemoryEstimate(asked, asked.model, CPU)
    model = outline.model
    with outline._fake as fake:
        moved = part.moved(fake.from_tensor)
        loss, _ = loss_of(method_of(asked)(asked, model, texts, 0, 1), run(OfModel(model), moved.texts[0]), moved.rest[0])
        loss.backward()
    assert all(weight.grad is not None for weight in model.parameters() if weight.requires_grad)


class OfModel:
    """As much of an engine as `run` uses."""

    def __init__(self, model: torch.nn.Module) -> None:
        self.forward, self.device = model, CPU


def test_several_threads_make_the_batches_of_one(data: TrainingData) -> None:
    for method in ("joint", "cocondenser"):
        asked = settings(data, method, micro_batch=3)
        examples, texts = method_of(asked).read(asked, PassageStore(asked.corpus))
        of, sampler = method_of(asked)(asked, load_model(asked, asked.model), texts, 0, 1), Sampler(examples, asked)

        def make(step: int) -> list[torch.Tensor]:
            return [tensor for part in sampler.step(step) for tensor in cut_up(asked, of.prepare(part), pieces_of(asked)).tensors()]  # noqa: B023

        for (_, one), (_, other) in zip(Prefetch(make, 1).range(0, 8), Prefetch(make, 3).range(0, 8), strict=True):
            assert len(one) == len(other)
            assert all(torch.equal(a, b) for a, b in zip(one, other, strict=True))


def test_dropout_draws_the_same_on_both_ways_through(data: TrainingData, steep: None) -> None:
    """With dropout, the gradient of pieces is that of the loss it reports: of all pieces with their graphs at once."""
    asked = settings(data, "retriever", dropout=0.3, micro_batch=3, clip=0.0)
    assert_same(one_step(asked), one_step(asked, go=all_graphs_at_once), start_of(data, "retriever"))


def all_graphs_at_once(engine: Any, method: Any, batch: Any, pieces: int, seeds: list[int]) -> dict[str, torch.Tensor]:
    texts = {name: value for name, value in batch.items() if isinstance(value, dict)}
    orders, outputs = by_length(texts), []
    for i, seed in enumerate(seeds):
        torch.manual_seed(seed)
        outputs.append(run(engine, piece_of(texts, orders, i, pieces)))
    whole = tuple(torch.cat(pieces)[order.argsort()] for pieces, order in zip(zip(*outputs, strict=True), orders.values(), strict=True))
    loss, _ = method.loss(whole, {k: v for k, v in batch.items() if k not in texts})
    engine.backward(loss)
    return {"loss": loss.detach()}


@pytest.mark.parametrize(
    ("returned", "message"),
    [
        (torch.tensor(1.0), "returns a Tensor;"),
        ((torch.ones(2), {}), r"returns a loss of shape \[2\];"),
        (None, "returns a NoneType;"),
        ((torch.tensor(1.0), {"accuracy": torch.ones(2)}), r"returns the metric 'accuracy', of shape \[2\];"),
        ((torch.tensor(1.0), {"accuracy": None}), "returns the metric 'accuracy', a NoneType;"),
    ],
)
def test_a_loss_that_is_no_scalar_with_metrics_is_named(returned: Any, message: str) -> None:
    class Wrong:
        def loss(self, outputs: Any, batch: Any) -> Any:
            return returned

    with pytest.raises(InputError, match=rf"test_training_step\..*Wrong\.loss: {message}"):
        loss_of(Wrong(), (), {})  # type: ignore[arg-type]


def test_metrics_may_be_numbers_and_keep_no_graph() -> None:
    class Numbers:
        def loss(self, outputs: Any, batch: Any) -> Any:
            loss = torch.ones((), requires_grad=True) * 2
            return loss, {"accuracy": 0.5, "rows": 3, "right": torch.tensor(1), "loss again": loss}

    _, metrics = loss_of(Numbers(), (), {})  # type: ignore[arg-type]
    assert {name: value.item() for name, value in metrics.items()} == {"accuracy": 0.5, "rows": 3, "right": 1, "loss again": 2}
    assert {value.dtype for value in metrics.values()} == {torch.float32}
    assert not metrics["loss again"].requires_grad


def test_a_piece_has_a_row_of_every_kind() -> None:
    def tokens(rows: int) -> dict[str, torch.Tensor]:
        return {"input_ids": torch.arange(rows)[:, None], "attention_mask": torch.ones(rows, 1, dtype=torch.int64)}

    texts = {"pairs": tokens(7), "passages": tokens(2)}
    cut = [piece_of(texts, by_length(texts), i, 5) for i in range(5)]
    assert [piece["pairs"]["input_ids"].flatten().tolist() for piece in cut] == [[0], [1], [2, 3], [4], [5, 6]]
    assert [piece["passages"]["input_ids"].flatten().tolist() for piece in cut] == [[0], [0], [0], [0], [1]]


def test_a_piece_has_texts_of_about_one_length() -> None:
    lengths = np.random.default_rng(3).integers(1, 40, 64)
    mask = torch.from_numpy((np.arange(40) < lengths[:, None]).astype(np.int64))
    texts = {"passages": {"input_ids": torch.arange(64)[:, None] * mask, "attention_mask": mask}}
    as_given = {"passages": torch.arange(64)}
    padded = [
        sum(piece_of(texts, orders, i, 8)["passages"]["attention_mask"].numel() for i in range(8))
        for orders in (as_given, by_length(texts))
    ]
    assert padded[1] == 8 * np.sort(lengths)[7::8].sum() < 0.8 * padded[0]


def again(given: dict[str, Any], workers: int) -> LoopSettings:
    return (PretrainSettings if "method" in given else TrainSettings)(**{**given, "workers": workers})


def rank_of_several(rank: int, workers: int, asked: dict[Any, dict[str, Any]], folder: str) -> None:
    import raydense.training.engine as engine

    engine.make_optimizer = descent
    _EACH_COSTS["cpu"] = 0  # a step at once has as many forwards as it can
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(workers))  # DeepSpeed asks for them
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=workers)
    results = {name: one_step(again(given, workers), rank, workers) for name, given in asked.items()}
    if rank == 0:
        torch.save(results, f"{folder}/result.pt")
    dist.barrier()
    dist.destroy_process_group()


@pytest.mark.parametrize("workers", [2, pytest.param(4, marks=pytest.mark.long)])
def test_ranks_give_the_loss_and_gradients_of_one(data: TrainingData, tmp_path: Path, steep: None, workers: int) -> None:
    """With cross-batch negatives, whole and in pieces."""
    asked = {
        (method, micro_batch): settings(data, method, micro_batch=micro_batch, clip=0.0)
        for method in METHODS
        for micro_batch in ((0, 2) if workers == 2 else (0,))
    }
    given = {name: s.model_dump(exclude_unset=True) for name, s in asked.items()}
    run_ranks(rank_of_several, (workers, given, str(tmp_path)), workers)
    several = torch.load(tmp_path / "result.pt")
    for name in asked:
        assert_same(several[name], plain_step(data, *name), start_of(data, name[0]), str(name))


@pytest.mark.parametrize("zero", [pytest.param(1, marks=pytest.mark.long), 2, pytest.param(3, marks=pytest.mark.long)])
def test_deepspeed_in_pieces(data: TrainingData, tmp_path: Path, steep: None, zero: int) -> None:
    asked = {
        (method, pieces): settings(data, method, engine={"name": "deepspeed", "zero": zero}, micro_batch=pieces, clip=0.0)
        for method in ("retriever", "joint", "static", *(("generator", "mlm", "cocondenser", "cotmae") if zero >= 2 else ()))
        for pieces in ((0,) if zero == 3 and method in ("generator", "mlm", "cocondenser", "cotmae") else (0, 1 if zero == 2 else 3))
    }
    given = {name: s.model_dump(exclude_unset=True) for name, s in asked.items()}
    run_ranks(rank_of_several, (2, given, str(tmp_path)), 2)
    several = torch.load(tmp_path / "result.pt")
    for name in asked:
        assert_same(several[name], plain_step(data, name[0]), start_of(data, name[0]), str(name))


def two_layers() -> torch.nn.Sequential:
    return torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Linear(16, 4))


def one_more(engine: Any, rank: int) -> None:
    """A step of two pieces."""
    for piece in range(2):
        engine.backward(engine.forward(input=torch.full((3, 8), 1.0 + piece + rank)).square().mean())
    engine.step(0.01)


def third_steps(engine: Any, asked: TrainSettings, rank: int, folder: Path) -> list[dict[str, torch.Tensor]]:
    """The weights after one more step: of the engine, and of a fresh one that loaded its checkpoint."""
    saved = folder / str(asked.engine.zero)
    saved.mkdir(exist_ok=True)
    engine.save(saved)
    fresh = make_engine(two_layers(), asked, CPU, "fp32", 2)
    fresh.load(Place.of(saved), 2)
    for one in (engine, fresh):
        one_more(one, rank)
    return [engine.weights(), fresh.weights()]


def overlapping(rank: int, given: list[dict[str, Any]], folder: str) -> None:
    """For each ZeRO stage, without and with reduction during the backward, and with offload: the bytes of the buckets in it, and the weights after two steps."""
    import raydense.training.engine as engine_module

    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE="2")
    dist.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=2)
    plain, found = engine_module.deepspeed_config, []
    for asked in given:
        of_stage = []
        for gpu, offload in ((False, False), (True, False), (True, True)):
            engine_module.deepspeed_config = lambda *args, on=gpu: plain(*args[:-1], on)
            asked["engine"]["offload"] = offload
            torch.manual_seed(1)
            model = two_layers()
            engine: Any = make_engine(model, TrainSettings(**asked), CPU, "fp32", 2)
            held: list[int] = []

            def look(gradient: torch.Tensor, engine: Any = engine, held: list[int] = held) -> None:
                buckets = engine._engine.optimizer.ipg_buckets.values()
                held.append(sum(b.nbytes for one in buckets for b in (one.buffer if isinstance(one.buffer, list) else [one.buffer])))

            # between the gradients of the last layer and of the first
            model[0].register_forward_hook(lambda module, given, output, look=look: output.register_hook(look) and None)
            for _ in range(2):
                one_more(engine, rank)
            of_stage.append((max(held), {name: value.clone() for name, value in engine.weights().items()}))
            if offload:
                of_stage += [(0, weights) for weights in third_steps(engine, TrainSettings(**asked), rank, Path(folder))]
        found.append(of_stage)
    if rank == 0:
        torch.save(found, f"{folder}/found.pt")
    dist.barrier()
    dist.destroy_process_group()


def test_reduction_during_the_backward_and_offload_give_the_same(data: TrainingData, tmp_path: Path) -> None:
    """What GPUs do; a CPU has no streams and no other memory, but the same order of events. ZeRO 3 has one bucket either way."""
    asked = [
        settings(data, "retriever", engine={"name": "deepspeed", "zero": zero}, batch_size=6, accumulation=1, workers=2)
        for zero in (1, 2, 3)
    ]
    run_ranks(overlapping, ([s.model_dump(exclude_unset=True) for s in asked], str(tmp_path)), 2)
    weights = 8 * 16 + 16 + 16 * 4 + 4
    for zero, ((alone, plain), (both, overlapped), (_, offloaded), (_, third), (_, loaded)) in enumerate(
        torch.load(tmp_path / "found.pt"), 1
    ):
        assert (alone, both) == (4 * weights, 4 * weights * (2 if zero < 3 else 1))
        assert all(torch.equal(value, overlapped[name]) for name, value in plain.items())
        assert all(torch.equal(value, loaded[name]) and not torch.equal(value, offloaded[name]) for name, value in third.items())
        for name, value in plain.items():
            torch.testing.assert_close(offloaded[name], value, rtol=1e-6, atol=1e-7)


def many_small_gradients(rank: int, asked: list[dict[str, Any]], folder: str) -> None:
    """For each ZeRO stage the sum of a gradient of 1 and 511 of 1/512, as the engine has it before the step."""
    import raydense.training.engine as engine_module

    engine_module.casts = lambda settings, device: True  # as on a GPU
    os.environ.update(RANK="0", LOCAL_RANK="0", WORLD_SIZE="1")
    dist.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=0, world_size=1)
    found = []
    for given in asked:
        engine: Any = make_engine(torch.nn.Linear(4, 1, bias=False), TrainSettings(**given), CPU, "bf16", 512)
        for piece in range(512):
            engine.backward(engine.forward(input=torch.ones(1, 4, dtype=torch.bfloat16)).float().sum() * (1 / 512 if piece else 1.0))
        from deepspeed.utils import safe_get_full_grad

        found.append(float(safe_get_full_grad(next(engine.module.parameters()))[0, 0]))
    torch.save(found, f"{folder}/found.pt")
    dist.destroy_process_group()


def test_small_gradients_of_many_pieces_are_not_lost_in_half_precision(data: TrainingData, tmp_path: Path) -> None:
    asked = [
        settings(data, "retriever", engine={"name": "deepspeed", "zero": zero}, precision="bf16", batch_size=1, accumulation=1, clip=0.0)
        for zero in (1, 2, 3)
    ]
    given = [s.model_dump(exclude_unset=True) for s in asked]
    run_ranks(many_small_gradients, (given, str(tmp_path)), 1)
    assert torch.load(tmp_path / "found.pt") == pytest.approx([1 + 511 / 512] * 3, rel=2e-3)


def mixed(rank: int, asked: list[dict[str, Any]], folder: str) -> None:
    """For each engine the outputs of a layer in bf16, and a weight after a step."""
    os.environ.update(RANK="0", LOCAL_RANK="0", WORLD_SIZE="1")
    dist.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=0, world_size=1)
    found = []
    for given in asked:
        torch.manual_seed(1)
        engine: Any = make_engine(torch.nn.Linear(64, 8, bias=False), TrainSettings(**given), CPU, "bf16")
        outputs = engine.forward(input=torch.randn(4, 64, generator=torch.Generator().manual_seed(2)))
        engine.backward(outputs.float().square().mean())
        engine.step(1e-3)
        found.append((outputs.detach(), engine.weights()["weight"]))
    torch.save(found, f"{folder}/found.pt")
    dist.destroy_process_group()


def test_on_a_cpu_every_engine_computes_in_bf16_and_keeps_its_weights_in_float32(data: TrainingData, tmp_path: Path) -> None:
    engines: list[dict[str, Any]] = [{"name": "ddp"}, *({"name": "deepspeed", "zero": zero} for zero in range(4))]
    asked = [settings(data, "retriever", engine=engine, batch_size=1, accumulation=1) for engine in engines]
    run_ranks(mixed, ([s.model_dump(exclude_unset=True) for s in asked], str(tmp_path)), 1)
    (outputs, weight), *others = torch.load(tmp_path / "found.pt")
    assert (outputs.dtype, weight.dtype) == (torch.bfloat16, torch.float32)
    for other_outputs, other_weight in others:
        assert torch.equal(other_outputs, outputs)
        assert torch.allclose(other_weight, weight, atol=1e-7)


def a_bad_step(rank: int, asked: list[dict[str, Any]], folder: str) -> None:
    """For each engine: the norms of a good step, of one whose gradient is not finite on worker 1, and of a good one; and the weights after them.

    `without` has the weights of the same without the bad one.
    """
    import raydense.training.engine as engine_module

    engine_module.casts = lambda settings, device: True  # as on a GPU
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE="2")
    dist.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=2)

    def steps(given: dict[str, Any], factors: list[float]) -> tuple[list[float], torch.Tensor | None]:
        torch.manual_seed(1)
        engine: Any = make_engine(torch.nn.Linear(4, 2, bias=False), TrainSettings(**given), CPU, given["precision"])
        norms = []
        vectors = torch.ones(3, 4, dtype=next(engine.module.parameters()).dtype)
        for factor in factors:
            engine.backward(engine.forward(input=vectors).float().square().mean() * (factor if rank else 1.0))
            norms.append(engine.step(0.01))
        return norms, engine.weights().get("weight")

    found = [(*steps(given, [1.0, bad, 1.0]), steps(given, [1.0, 1.0])[1]) for given in asked for bad in (math.nan, math.inf)]
    torch.save(found, f"{folder}/found-{rank}.pt")
    dist.destroy_process_group()


def test_a_gradient_that_is_not_finite_changes_nothing_with_any_engine(data: TrainingData, tmp_path: Path) -> None:
    engines = [{"name": "ddp"}, *({"name": "deepspeed", "zero": zero} for zero in range(4))]
    asked = [
        settings(data, "retriever", engine=engine, precision=precision, batch_size=6, accumulation=1, workers=2, clip=clip)
        for engine in engines
        for precision in ("fp32", "bf16")
        for clip in (0.0, 0.5)
        if (engine.get("zero"), precision) != (0, "bf16")  # refused on GPUs
    ]
    run_ranks(a_bad_step, ([s.model_dump(exclude_unset=True) for s in asked], str(tmp_path)), 2)
    both = [torch.load(tmp_path / f"found-{rank}.pt") for rank in range(2)]
    for number, (one, other) in enumerate(zip(*both, strict=True)):
        norms, weights, without = one
        what = str(asked[number // 2].engine)
        assert [math.isfinite(norm) for norm in norms] == [True, False, True], what
        assert norms[0] == pytest.approx(other[0][0], rel=1e-6), what
        assert torch.equal(weights, without), what


def bad_steps_in_fp16(rank: int, asked: list[dict[str, Any]], folder: str) -> None:
    """For each engine the norms of 20 steps in which rank 1 has no finite gradient, and of 5 more after a checkpoint; then that of a good one."""
    import raydense.training.engine as engine_module

    engine_module.casts = lambda settings, device: True  # as on a GPU
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE="2")
    engine_module.import_deepspeed(CPU)
    from deepspeed.accelerator import get_accelerator

    type(get_accelerator()).is_fp16_supported = lambda self: True
    dist.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=2)

    def norms(engine: Any, factors: list[float]) -> list[float]:
        found = []
        for factor in factors:
            engine.backward(engine.forward(input=torch.ones(3, 4, dtype=torch.float16)).float().square().mean() * (factor if rank else 1.0))
            found.append(engine.step(0.01))
        return found

    found = []
    for number, given in enumerate(asked):
        first, second = (make_engine(torch.nn.Linear(4, 2, bias=False), TrainSettings(**given), CPU, "fp16") for _ in range(2))
        norms_of_first = norms(first, [math.nan, math.inf] * 10)
        there = Path(folder, str(number))
        there.mkdir(exist_ok=True)
        first.save(there)
        dist.barrier()
        second.load(Place.of(there), 2)
        found.append([*norms_of_first, *norms(second, [math.nan] * 5 + [1.0])])
    torch.save(found, f"{folder}/found-{rank}.pt")
    dist.destroy_process_group()


def test_deepspeed_skips_as_many_steps_of_fp16_as_the_loop_allows(data: TrainingData, tmp_path: Path) -> None:
    """From its first loss scale, 2^14, DeepSpeed's scaler is at 1 after 15 of them, and would end the training at the next."""
    asked = [
        settings(data, "retriever", engine={"name": "deepspeed", "zero": zero}, precision="fp16", batch_size=6, accumulation=1)
        for zero in (1, 2, 3)
    ]
    run_ranks(bad_steps_in_fp16, ([s.model_dump(exclude_unset=True) for s in asked], str(tmp_path)), 2)
    for rank in range(2):
        for norms in torch.load(tmp_path / f"found-{rank}.pt"):
            assert [math.isfinite(norm) for norm in norms] == [False] * 25 + [True]


def test_a_family_without_activation_checkpointing_is_refused() -> None:
    small = MPNetConfig(vocab_size=20, hidden_size=8, num_hidden_layers=1, num_attention_heads=1, intermediate_size=8)
    with pytest.raises(InputError, match="activation_checkpointing: MPNetModel has none"):
        checkpoint_activations(torch.nn.ModuleList([MPNetModel(small)]))
