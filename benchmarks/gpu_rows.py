"""The rows of `gpu.py`: each measures one thing on a device, ours and others in turns, and returns rates and their ratio."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import gpu_world as world
import numpy as np
import torch
from transformers import AutoModel
from turns import in_turns

from raydense.inference.device import Device
from raydense.inference.layout import Layout
from raydense.models.tokens import batches_by_token_budget
from raydense.training.registry import built_in

HALVES = {"bf16": torch.bfloat16, "fp16": torch.float16}
Found = dict[str, Any]


@dataclass(frozen=True)
class Place:
    """Where rows are measured, and how much of it."""

    device: torch.device
    tiny: bool
    folder: Path

    def wait(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize()

    def many(self, full: int, tiny: int) -> int:
        return tiny if self.tiny else full


def place_in(folder: Path, device: torch.device, tiny: bool) -> Place:
    """A place whose models, data and indexes are in `folder`: those of the tiny form apart."""
    own = folder / ("tiny" if tiny else "full")
    own.mkdir(parents=True, exist_ok=True)
    return Place(device, tiny, own)


def rows(place: Place) -> dict[str, Callable[[Place], Found]]:
    """Every row by its name, in the order of what matters most."""
    found: dict[str, Callable[[Place], Found]] = {"matrix product bf16": matrix_product}
    found |= {f"encode {half}": partial(encoding, half=half) for half in HALVES}
    found |= {f"search {name}": partial(searching, factory=factory, half=half) for name, (factory, half) in _indexes(place).items()}
    found |= {f"train step {name}": partial(train_step, verb="train", name=name) for name in built_in("train")}
    found |= {f"pretrain step {name}": partial(train_step, verb="pretrain", name=name) for name in built_in("pretrain")}
    return found | {"generate": generating, "search, a pool of shards that share the GPU": shared_pool}


def _indexes(place: Place) -> dict[str, tuple[str, bool]]:
    """The indexes of the search rows: their factory strings, and whether their vectors are numbers of float16."""
    lists = place.many(1_024, 8)
    found = {"Flat, float32": ("Flat", False), "Flat, float16": ("Flat", True), "SQfp16": ("SQfp16", True)}
    return found | {name: (name, False) for name in (f"IVF{lists},Flat", f"IVF{lists},SQfp16", f"IVF{lists},PQ{place.many(64, 8)}")}


def _vectors_of(place: Place, half: bool) -> np.ndarray:
    return world.vectors(place.many(1_000_000, 2_000), place.many(768, 32), half)


def build_indexes(place: Place) -> None:
    """Write the files of all search rows."""
    for factory, half in _indexes(place).values():
        world.index_file(place, factory, _vectors_of(place, half))


def against(place: Place, count: int, unit: str, ways: dict[str, Callable[[], object]], **more: Any) -> Found:
    """Rates of `ours` and the other ways, by the least seconds of as many turns as fit two seconds a way, at least three; and the ratio to the best."""

    def waited(way: Callable[[], object]) -> Callable[[], object]:
        return lambda: (way(), place.wait(), None)[2]

    waiting = {name: waited(way) for name, way in ways.items()}
    slowest = max(times[0] for times in in_turns(waiting, 1, warm=not place.tiny).values())
    turns = 1 if place.tiny else max(3, min(100, int(2 / slowest)))
    seconds = {name: min(times) for name, times in in_turns(waiting, turns, warm=False).items()}
    rates = {name: count / taken for name, taken in seconds.items()}
    ours = rates.pop("ours")
    return {"unit": unit, "ours": ours, "others": rates, "ratio": ours / max(rates.values()), "more": more}


def matrix_product(place: Place) -> Found:
    """Of large matrices in bfloat16, against float32: what a card gives at most."""
    size = place.many(8_192, 64)
    a, b = (torch.randn(size, size, device=place.device) for _ in range(2))
    c, d = a.bfloat16(), b.bfloat16()
    return against(place, 2 * size**3 / 1e12, "TFLOP/s", {"ours": lambda: c @ d, "float32": lambda: a @ b})


def encoding(place: Place, half: str) -> Found:
    """A model actor's own loop over tokens, against the forward of transformers' model in half precision over the same batches."""
    exact, count = world.encoder(place), place.many(8_192, 64)
    tokens = world.random_tokens(count, 64, 128)
    actor = Device(Layout(1, 1, 1, float(place.device.type == "cuda"), 1, 1), place.many(65_536, 1_024), half)
    model = actor.place(world.encoder(place))
    bare = AutoModel.from_pretrained(place.folder / "encoder", add_pooling_layer=False).to(place.device, HALVES[half]).eval()
    batches = batches_by_token_budget(tokens.lengths, actor.budget)

    def theirs() -> None:
        with torch.inference_mode():
            for batch in batches:
                padded = tokens.select(batch).pad(0, place.device)
                hidden, mask = bare(**padded).last_hidden_state, padded["attention_mask"][:, :, None]
                ((hidden * mask).sum(1) / mask.sum(1)).cpu()

    run = partial(actor.run, tokens, 0, model.encode_passages, lambda _: None)
    vectors = run()[0]
    with torch.inference_mode():
        wanted = exact.encode_passages(tokens.select(np.arange(32)).pad(0, place.device)).float().cpu().numpy()
    cosine = (vectors[:32] * wanted).sum(1) / np.linalg.norm(vectors[:32], axis=1) / np.linalg.norm(wanted, axis=1)
    return against(place, count, "passages/s", {"ours": run, f"torch, {half}": theirs}, least_cosine=round(float(cosine.min()), 6))


def train_step(place: Place, verb: str, name: str) -> Found:
    """An engine's step, against the same model, loss and batches with torch's AdamW and autocast."""
    from raydense.training.engine import make_engine
    from raydense.training.method import load_model
    from raydense.training.precision import DTYPES, choose_precision
    from raydense.training.step import forward_and_backward

    training = world.training(place, verb, name)
    precision = choose_precision("auto", place.device)
    engine = make_engine(load_model(training.settings, training.settings.model), training.settings, place.device, precision)
    engine.module.train()
    method, batches = training.method_for(engine.module), training.batches
    model = load_model(training.settings, training.settings.model).to(place.device).train()
    theirs, mixed = training.method_for(model), None if precision == "fp32" else DTYPES[precision]
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-5)

    def ours() -> None:
        for number, batch in enumerate(batches):
            forward_and_backward(engine, method, batch, 1, [number])
            engine.step(1e-5)

    def bare() -> None:
        for batch in batches:
            moved = {key: _moved(value, place.device) for key, value in batch.items()}
            with torch.autocast(place.device.type, mixed, enabled=mixed is not None):
                outputs = model(**{key: value for key, value in moved.items() if isinstance(value, dict)})
            rest = {key: value for key, value in moved.items() if not isinstance(value, dict)}
            theirs.loss(outputs if isinstance(outputs, tuple) else (outputs,), rest)[0].backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()

    count, unit = len(batches) * training.settings.batch_size, "queries/s" if verb == "train" else "passages/s"
    for way in (ours, bare):
        way()  # makes the optimizer's state, which then is there for both
    memory = {"gib": most_memory(place, ours), "gib_of_bare_torch": most_memory(place, bare)} if place.device.type == "cuda" else {}
    return against(place, count, unit, {"ours": ours, "bare torch": bare}, precision=precision, **memory)


def most_memory(place: Place, steps: Callable[[], None]) -> float:
    """GiB of tensors that are on a GPU at most during some steps, with both models and their optimizer states."""
    place.wait()
    torch.cuda.reset_peak_memory_stats()
    steps()
    place.wait()
    return round(torch.cuda.max_memory_allocated() / 2**30, 2)


def _moved(value: Any, device: torch.device) -> Any:
    if isinstance(value, dict):
        return {key: _moved(each, device) for key, each in value.items()}
    return value.to(device, non_blocking=True)


def searching(place: Place, factory: str, half: bool) -> Found:
    """One shard, without Ray, against FAISS's own copy of the index and, for flat vectors, torch's product and top-k."""
    from raydense.retrieval.faiss_library import faiss
    from raydense.retrieval.faiss_shard import FaissShard
    from raydense.retrieval.gpu import temporary_bytes

    count, k, vectors = place.many(2_048, 32), place.many(100, 10), _vectors_of(place, half)
    queries = world.vectors(count, vectors.shape[1], half, seed=2)
    params = f"nprobe={place.many(32, 2)}" if factory.startswith("IVF") else ""
    file = world.index_file(place, factory, vectors)
    shard = FaissShard(str(file), 0, torch.get_num_threads(), params)
    on_gpu = place.device.type == "cuda"
    wanted = shard.nearest(queries[:64], k)[1]
    plain: Any = faiss.read_index(str(file))
    if on_gpu:
        shard.load_on_gpu(factory, half, temporary_bytes(1), params)
        options = faiss.GpuClonerOptions()
        options.useFloat16 = half or ",PQ" in factory
        resources = faiss.StandardGpuResources()
        plain = faiss.index_cpu_to_gpu(resources, 0, plain, options)
    if params:
        (faiss.GpuParameterSpace() if on_gpu else faiss.ParameterSpace()).set_index_parameters(plain, params)
    ways: dict[str, Callable[[], object]] = {"ours": lambda: shard.nearest(queries, k), "plain FAISS": lambda: plain.search(queries, k)}
    if factory == "Flat":
        kind = torch.float16 if half and on_gpu else torch.float32
        held, asked = (torch.from_numpy(each).to(place.device, kind) for each in (vectors, queries))
        ways["torch"] = lambda: [(part @ held.T).topk(k, dim=1)[1].cpu() for part in asked.split(256)]
    found = shard.nearest(queries[:64], k)[1]
    same = np.mean([len(set(a) & set(b)) / k for a, b in zip(found.tolist(), wanted.tolist(), strict=True)])
    return against(place, count, "queries/s", ways, rows=len(vectors), k=k, hits_of_the_cpu=round(float(same), 4))


def generating(place: Place) -> Found:
    """A model actor's drawing of queries, against transformers' `generate`."""
    from raydense.models.sampling import mixed, sample_queries

    model, count, each = world.generator(place), place.many(512, 8), place.many(5, 2)
    tokens, key = world.random_tokens(count, 64, 128), mixed(torch.tensor([1]))
    precision = "bf16" if place.device.type == "cuda" else "fp32"
    actor = Device(Layout(1, 1, 1, float(place.device.type == "cuda"), 1, 1), place.many(65_536, 1_024), precision)
    batches = batches_by_token_budget(each * (tokens.lengths + model.config.query_length), actor.budget)

    def draw(batch: Any) -> Any:
        keys = (key ^ torch.from_numpy(np.asarray(batch))).to(place.device)
        return sample_queries(model, tokens.select(batch).pad(0, place.device), keys, each, 0.95, 25, 1.0).cpu()

    def theirs() -> None:
        with torch.inference_mode(), torch.autocast(place.device.type, torch.bfloat16, enabled=precision == "bf16"):
            for batch in batches:
                padded = tokens.select(batch).pad(0, place.device)
                model.model.generate(
                    input_ids=padded["input_ids"],
                    attention_mask=padded["attention_mask"],
                    do_sample=True,
                    top_p=0.95,
                    top_k=25,
                    num_return_sequences=each,
                    max_new_tokens=model.config.query_length,
                ).cpu()

    ways: dict[str, Callable[[], object]] = {"ours": lambda: list(actor.each(batches, draw, lambda _: None)), "transformers": theirs}
    return against(place, count * each, "queries/s", ways, precision=precision)


def shared_pool(place: Place) -> Found:
    """Three shards of float16 vectors in a pool of Ray, on one GPU, with the hits of a pool on the CPU."""
    from raydense.retrieval.index import index
    from raydense.retrieval.pool import SearchPool
    from raydense.retrieval.settings import IndexSettings

    rows, count, k = place.many(300_000, 600), place.many(1_024, 16), 10
    vectors, queries = world.vectors(rows, place.many(768, 32), True), world.vectors(count, place.many(768, 32), True, seed=2)
    embeddings = world.write_embeddings(place.folder / "embeddings", vectors.astype(np.float16))
    made = index(IndexSettings(kind="faiss", embeddings=str(embeddings.place), shards=3, output=str(place.folder / "index")))
    begun = time.monotonic()
    with SearchPool.start(made, gpu=place.device.type == "cuda") as pool, SearchPool.start(made) as plain:
        found, wanted = pool.search(queries, k), plain.search(queries, k)
        started = round(time.monotonic() - begun, 1)
        np.testing.assert_array_equal(found[1], wanted[1])
        np.testing.assert_array_equal(found[0], wanted[0])
        ways: dict[str, Callable[[], object]] = {
            "ours": lambda: pool.search(queries, k),
            "a pool on the CPU": lambda: plain.search(queries, k),
        }
        return against(place, count, "queries/s", ways, started_s=started)
