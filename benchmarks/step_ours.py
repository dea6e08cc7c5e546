"""A training step as a worker of raydense makes it, one at a time; and what the other ways need: texts, masks, models with heads.

`train_peers.py` starts it, and asks it for steps.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from step_job import LR, SCALE, Job
from transformers import AutoModelForMaskedLM, AutoTokenizer

from raydense.data.store import PassageStore
from raydense.models.cross_encoder import CrossEncoder
from raydense.models.dual_encoder import DualEncoder
from raydense.runtime.session import physical_cpus
from raydense.training.batches import Sampler
from raydense.training.engine import Engine, make_engine
from raydense.training.loop_settings import LoopSettings
from raydense.training.method import Method, load_model, method_of
from raydense.training.part import Part
from raydense.training.piece_count import pieces_of
from raydense.training.precision import choose_precision
from raydense.training.settings import PretrainSettings, TrainSettings
from raydense.training.step import forward_and_backward


def settings_of(job: Job) -> LoopSettings:
    """A training of the job's method that changes nothing; its model has no dropout."""
    common: dict[str, Any] = {"output": "o", "model": job.model, "corpus": job.corpus, "lr": LR, "warmup": 0.0}
    common |= {"batch_size": job.batch_size, "precision": job.precision, "engine": {"name": job.engine}, "micro_batch": job.micro_batch}
    if job.method == "mlm":
        return PretrainSettings.read({"method": "mlm", "passage_length": job.length, **common})
    common |= {"objective": job.method, "queries": job.queries, "examples": job.examples, "negatives": job.negatives}
    if job.method != "reranker":
        common |= {"query_length": job.length, "passage_length": job.length, "normalize": True, "temperature": 1 / SCALE}
    if job.method == "reranker":
        common |= {"pair_length": job.length, "loss": "pointwise"}
    if job.method == "joint":
        common |= {"pair_length": job.length, "reranker": job.reranker}
    return TrainSettings.read(common)


def method_and_sampler(job: Job) -> tuple[Method, Sampler]:
    """The method with its model, and the sampler of its batches."""
    settings = settings_of(job)
    kind = method_of(settings)
    examples, texts = kind.read(settings, PassageStore(settings.corpus))
    return kind(settings, load_model(settings, settings.model), texts, 0, 1), Sampler(examples, settings)


def write_models(model: str, method: str, folder: Path) -> dict[str, str]:
    """The folders to start from, for all ways: the encoder without dropout, and what has the head that the method trains."""
    encoder, with_head = str(folder / "encoder"), str(folder / "head")
    DualEncoder.load(model, dropout=0.0).save(encoder)
    torch.manual_seed(1)
    if method == "mlm":
        model_with_head: Any = AutoModelForMaskedLM.from_pretrained(encoder)
        model_with_head.save_pretrained(with_head)
        AutoTokenizer.from_pretrained(encoder).save_pretrained(with_head)
    elif method != "retriever":
        CrossEncoder.load(encoder, dropout=0.0).save(with_head)
    return {"model": encoder if method in ("retriever", "joint") else with_head, "reranker": with_head if method == "joint" else ""}


def choose_steps(job: Job, count: int) -> tuple[list[int], list[dict[str, Any]]]:
    """The first steps without a passage that is a known positive of a query besides its own, which the others cannot leave out; their texts.

    Of texts there is one step more, since a trainer tokenises those of the next step in each.
    """
    method, sampler = method_and_sampler(job)
    steps, texts = [], []
    for step in range(sampler.steps_per_epoch):
        (part,) = sampler.step(step)
        batch = method.prepare(part)
        marks = batch.get("known", batch.get("relevant"))
        if marks is None or int(marks.sum()) == len(part):
            steps.append(step)
            texts.append(_texts(method, part, batch))
        if len(steps) > count:
            return steps[:count], texts
    raise SystemExit("too few batches without a known positive of another query: lower --batch-size or --steps")


def _texts(method: Method, part: Part, batch: dict[str, Any]) -> dict[str, Any]:
    """What the other ways read: texts, in pre-training the masked tokens."""
    if method.name == "mlm":
        passages = batch["passages"]
        real = [row.nonzero().flatten() for row in passages["attention_mask"]]
        return {key: [row[at].tolist() for row, at in zip(passages[key], real, strict=True)] for key in ("input_ids", "labels")}
    lists = np.concatenate([part.positives[:, :1], part.negatives], axis=1)
    rows = lists.T if method.name == "retriever" else lists  # all positives first, as sentence-transformers has them
    found = {"queries": method.texts.queries(part.query), "passages": method.texts.passages(rows.ravel())}
    if method.name == "reranker":
        found["queries"] = np.repeat(np.array(found["queries"], object), lists.shape[1]).tolist()
        found["labels"] = batch["relevant"].float().flatten().tolist()
    return found


def start(job: Job) -> tuple[Method, Sampler, Engine, int]:
    """What a worker of one process has before its first step: method, sampler, the engine in training, and the number of pieces."""
    torch.set_num_threads(job.threads or physical_cpus())
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT="0", RANK="0", WORLD_SIZE="1", LOCAL_RANK="0")
    dist.init_process_group("nccl" if job.device == "cuda" else "gloo", store=dist.HashStore(), rank=0, world_size=1)
    method, sampler = method_and_sampler(job)
    device, pieces = torch.device(job.device), pieces_of(method.settings)
    engine = make_engine(method.model, method.settings, device, choose_precision(job.precision, device), pieces)
    engine.module.train()
    return method, sampler, engine, pieces


def main() -> None:
    """Make a step whenever it is asked for."""
    job = Job.given()
    method, sampler, engine, pieces = start(job)
    for step, begun in zip(job.sampled, job.asked(), strict=True):
        (part,) = sampler.step(step)
        measured = forward_and_backward(engine, method, method.prepare(part), pieces, [0] * pieces)
        engine.step(LR)
        job.say(begun, measured["loss"].item())


if __name__ == "__main__":
    main()
