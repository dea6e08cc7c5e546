"""With ZeRO 3 a model is loaded in shards: its weights and losses are those of a model that is loaded whole, its memory is not."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from ranks import run_ranks
from training_data import TrainingData, make_training_data
from transformers import BertConfig, BertForMaskedLM, BertModel, Qwen3Config, Qwen3Model

from raydense.data.store import PassageStore
from raydense.errors import InputError
from raydense.models.cross_encoder import CrossEncoder
from raydense.models.sharded import gathered, is_sharded
from raydense.models.tiny import make_tiny_encoder, make_tiny_generator
from raydense.storage import Place
from raydense.training.batches import Sampler
from raydense.training.engine import make_engine
from raydense.training.loop_settings import LoopSettings
from raydense.training.method import load_model, method_of
from raydense.training.piece_count import pieces_of
from raydense.training.settings import PretrainSettings, TrainSettings
from raydense.training.start_model import load_start
from raydense.training.step import forward_and_backward

CPU = torch.device("cpu")
STEPS = 3
CASES: dict[str, dict[str, Any]] = {
    "separate encoders": {"objective": "retriever", "shared": False, "temperature": 0.1, "normalize": True},
    "adapter": {
        "objective": "retriever",
        "model": "qwen",
        "adapter": "lora:rank=4",
        "pooling": "lasttoken",
        "temperature": 0.1,
        "normalize": True,
    },
    "new head": {"objective": "reranker", "loss": "pointwise"},
    "frozen teacher": {"objective": "joint", "teacher": "static", "temperature": 0.1, "normalize": True, "reranker": "scorer"},
    "tied weights": {"objective": "generator", "model": "writer", "negatives": None},
    "head for masked tokens": {"method": "mlm", "model": "masked"},
    "bf16": {"objective": "retriever", "precision": "bf16", "temperature": 0.1, "normalize": True},
}
QUICK = ["adapter", "new head"]
EACH = [pytest.param(case, marks=[] if case in QUICK else pytest.mark.long) for case in CASES]
MEASURE = """
import json, os, sys, threading
import torch, torch.distributed as dist
from raydense.training.engine import import_deepspeed
from raydense.training.method import load_model
from raydense.training.settings import TrainSettings
from raydense.training.start_model import load_start
import transformers.models.bert.modeling_bert

rank, meet, way, settings = sys.argv[1], sys.argv[2], sys.argv[3], TrainSettings(**json.loads(sys.argv[4]))
os.environ.update(RANK=rank, LOCAL_RANK=rank, WORLD_SIZE="2", DS_ACCELERATOR="cpu")
torch.set_num_threads(1)
dist.init_process_group("gloo", init_method=f"file://{meet}", rank=int(rank), world_size=2)
import_deepspeed(torch.device("cpu"))

def held(of):
    return next(1024 * int(line.split()[1]) for line in open("/proc/self/status") if line.startswith(of))

done, private = threading.Event(), []
def look():
    while not done.wait(0.001):
        private.append(held("RssAnon"))

resident, before = held("VmRSS"), held("RssAnon")
looks = threading.Thread(target=look)
looks.start()
model = load_start(settings, settings.model, torch.device("cpu")) if way == "shards" else load_model(settings, settings.model)
done.set()
looks.join()
print(json.dumps({"private": max(private) - before, "resident": held("VmHWM") - resident, "left": held("RssAnon") - before}))
dist.barrier()
"""


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> TrainingData:
    made = make_training_data(tmp_path_factory.mktemp("training"))
    store = PassageStore(made.root / "sample/corpus")
    texts = store.passages(np.arange(len(store)))
    for name in ("tiny", "qwen", "masked"):
        make_tiny_encoder(texts, made.root / name, 1)
    make_tiny_generator(texts, made.root / "writer", 1)
    torch.manual_seed(4)
    CrossEncoder.load(made.root / "tiny").save(made.root / "scorer")
    words = json.loads((made.root / "tiny/config.json").read_text())["vocab_size"]
    shape: dict[str, Any] = {
        "vocab_size": words,
        "hidden_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "intermediate_size": 64,
    }
    Qwen3Model(Qwen3Config(**shape, num_key_value_heads=2, head_dim=8, tie_word_embeddings=False)).half().save_pretrained(
        made.root / "qwen"
    )
    masked = BertForMaskedLM(BertConfig(**shape))
    torch.nn.init.normal_(masked.cls.predictions.bias)
    masked.save_pretrained(made.root / "masked")
    return made


def settings(data: TrainingData, case: str) -> LoopSettings:
    own = {**CASES[case], "engine": {"name": "deepspeed", "zero": 3}, "workers": 2, "batch_size": 8, "accumulation": 2, "lr": 1e-3}
    own |= {key: str(data.root / own.get(key, "tiny")) for key in ("model", *({"reranker"} & own.keys()))}
    if "method" in own:
        inputs = {"corpus": str(data.root / "sample/corpus"), "output": str(data.root / "o"), "passage_length": 64}
        return PretrainSettings(**{"precision": "fp32", **inputs, **own})
    return data.settings(data.root / "o", **own)


def engine_of(model: Any, asked: LoopSettings) -> Any:
    return make_engine(model.train(), asked, CPU, asked.precision, pieces_of(asked))  # type: ignore[arg-type]


def losses(engine: Any, model: Any, asked: LoopSettings, rank: int, steps: range) -> list[float]:
    """The loss of each step on this worker."""
    examples, texts = method_of(asked).read(asked, PassageStore(asked.corpus))
    method, sampler, found = method_of(asked)(asked, model, texts, rank, 2), Sampler(examples, asked), []
    for step in steps:
        parts = [forward_and_backward(engine, method, method.prepare(part), 1, [step]) for part in sampler.step(step)]
        engine.step(1e-3)
        found.append(float(torch.stack([one["loss"] for one in parts]).mean()))
    return found


def both_ways(rank: int, cases: dict[str, dict[str, Any]], folder: str) -> None:
    """Of each case: the weights as loaded whole and in shards; the losses and the last weights of both; and from a checkpoint of the first."""
    import raydense.training.engine as engine_module

    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE="2")
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=2)
    found = {}
    for case, given in cases.items():
        engine_module.casts = lambda settings, device, case=case: case == "bf16"  # as on a GPU
        asked = (PretrainSettings if "method" in given else TrainSettings)(**given)
        whole, shared = load_model(asked, asked.model), load_start(asked, asked.model, CPU)
        state = {name: value.clone() for name, value in whole.state_dict().items()}
        parts = sum(weight.ds_tensor.numel() for weight in shared.parameters() if is_sharded(weight))
        with gathered(shared):
            loaded = {name: value.clone() for name, value in shared.state_dict().items()}
        one, other = engine_of(whole, asked), engine_of(shared, asked)
        before = losses(one, whole, asked, rank, range(1))
        Path(folder, case).mkdir(exist_ok=True)
        one.save(Path(folder, case))
        expected = losses(one, whole, asked, rank, range(1, STEPS))
        undisturbed = losses(other, shared, asked, rank, range(STEPS))
        dist.barrier()
        other.load(Place.of(Path(folder, case)), 2)
        resumed = losses(other, shared, asked, rank, range(1, STEPS))
        found[case] = {"state": state, "loaded": loaded, "parts": parts, "losses": (before + expected, undisturbed, resumed)}
        found[case]["weights"] = (one.weights(), other.weights())
    torch.save(found, f"{folder}/found-{rank}.pt")
    dist.barrier()
    dist.destroy_process_group()


@pytest.fixture(scope="module")
def found(data: TrainingData, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], list[dict[str, Any]]]:
    """What each rank found of a case; cases of one length are run together."""
    done: dict[str, list[dict[str, Any]]] = {}

    def of(case: str) -> list[dict[str, Any]]:
        if case not in done:
            folder = tmp_path_factory.mktemp("found")
            given = {name: settings(data, name).model_dump(exclude_unset=True) for name in CASES if (name in QUICK) == (case in QUICK)}
            run_ranks(both_ways, (given, str(folder)), 2)
            ranks = [torch.load(folder / f"found-{rank}.pt") for rank in range(2)]
            done.update({name: [of_rank[name] for of_rank in ranks] for name in given})
        return done[case]

    return of


@pytest.mark.parametrize("case", EACH)
def test_weights_in_shards_are_those_of_the_whole_model(found: Callable[[str], list[dict[str, Any]]], case: str) -> None:
    for of_rank in found(case):
        whole, loaded = of_rank["state"], of_rank["loaded"]
        assert whole.keys() == loaded.keys()
        for name, value in whole.items():
            assert torch.equal(value, loaded[name]), name
        assert of_rank["parts"] > 0.3 * sum(value.numel() for value in whole.values()), "a worker has half of what transformers loads"


@pytest.mark.parametrize("case", EACH)
def test_losses_are_those_of_the_whole_model_also_from_its_checkpoint(found: Callable[[str], list[dict[str, Any]]], case: str) -> None:
    for of_rank in found(case):
        whole, shared, resumed = of_rank["losses"]
        assert len(set(whole)) == STEPS
        assert shared == whole
        assert resumed == whole[1:]
    one, other = found(case)[0]["weights"]
    assert one.keys() == other.keys()
    assert one
    for name, value in one.items():
        assert torch.equal(value, other[name]), name
    assert found(case)[1]["weights"] == ({}, {}), "the weights to save are on worker 0 alone"


@pytest.fixture(scope="module")
def large(data: TrainingData) -> Path:
    """A model of about 400 MB in float32, no weight of which is a large part. Its file is of half that: weights of another format are copied."""
    store, folder = PassageStore(data.root / "sample/corpus"), data.root / "large"
    make_tiny_encoder(store.passages(np.arange(len(store))), folder, 1)
    words = json.loads((folder / "config.json").read_text())["vocab_size"]
    shape: dict[str, Any] = {"hidden_size": 1024, "num_hidden_layers": 8, "num_attention_heads": 8, "intermediate_size": 4096}
    BertModel(BertConfig(vocab_size=words, **shape), add_pooling_layer=False).half().save_pretrained(folder)
    return folder


def measured(data: TrainingData, model: Path, way: str, tmp_path: Path) -> list[dict[str, int]]:
    """The bytes that loading adds to each of two workers, in processes of their own: at most, and in the end."""
    asked = data.settings(data.root / "o", model=str(model), engine={"name": "deepspeed", "zero": 3}, workers=2)
    given = json.dumps(asked.model_dump(exclude_unset=True, mode="json"))
    command = [sys.executable, "-c", MEASURE]
    # glibc's heap keeps holes where weights were whole, for what is made next; what is alive is measured
    environment = os.environ | {"MALLOC_MMAP_THRESHOLD_": str(2**20)}
    running = [
        subprocess.Popen([*command, str(rank), str(tmp_path / way), way, given], stdout=subprocess.PIPE, text=True, env=environment)
        for rank in range(2)
    ]
    outputs = [process.communicate()[0] for process in running]
    assert [process.returncode for process in running] == [0, 0]
    return [json.loads(output.splitlines()[-1]) for output in outputs]


@pytest.mark.long
def test_no_worker_holds_the_whole_model_while_it_is_loaded(data: TrainingData, large: Path, tmp_path: Path) -> None:
    """Resident memory has the pages of the file, too, which worker 0 maps and the system may take back; the other reads none of them."""
    file = (large / "model.safetensors").stat().st_size
    whole = 2 * file
    assert whole > 3e8
    for one in measured(data, large, "whole", tmp_path):
        assert one["private"] > 0.9 * whole, "this can be seen"
    shards = measured(data, large, "shards", tmp_path)
    for one in shards:
        assert 0.45 * whole < one["left"] < 0.65 * whole
        assert one["private"] < 0.8 * whole
    assert shards[0]["resident"] < 0.8 * whole + file
    assert shards[1]["resident"] < 0.8 * whole


def in_a_wrong_folder(rank: int, given: dict[str, Any], folder: str) -> None:
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE="2")
    dist.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=2)
    asked = TrainSettings(**given)
    missing = asked.model_copy(update={"model": f"{asked.model}-not-there"}) if rank else asked
    for number, one in enumerate((missing, asked)):
        with pytest.raises(InputError) as caught:
            load_start(one, one.model, CPU)
        Path(folder, f"{number}-{rank}.txt").write_text(str(caught.value))
    dist.destroy_process_group()


def test_an_error_of_one_worker_ends_all(data: TrainingData, tmp_path: Path) -> None:
    """A folder that one lacks; then weights of another shape than the config's, which only worker 0 reads."""
    wrong = shutil.copytree(data.root / "tiny", tmp_path / "wrong")
    config = json.loads((wrong / "config.json").read_text())
    (wrong / "config.json").write_text(json.dumps({**config, "intermediate_size": 256}))
    asked = data.settings(data.root / "o", model=str(wrong), engine={"name": "deepspeed", "zero": 3}, workers=2)
    run_ranks(in_a_wrong_folder, (asked.model_dump(exclude_unset=True), str(tmp_path)), 2)
    (missing, alike), (sizes, as_well) = [[(tmp_path / f"{number}-{rank}.txt").read_text() for rank in range(2)] for number in range(2)]
    assert missing == alike
    assert "wrong-not-there: no such model folder" in missing
    assert sizes == as_well
    assert "its weights cannot be loaded" in sizes
