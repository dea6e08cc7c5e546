"""A training step by the trainers that users take: sentence-transformers' for retrievers and cross-encoders, transformers' for masked tokens.

`train_peers.py` starts it, and asks it for steps. A step is all that the trainer does from one to the next: the batch of the step after it
is tokenised in it, the step's own was tokenised in the one before. Needs the packages `datasets` and `accelerate`.
"""

from __future__ import annotations

import tempfile
from typing import Any

import torch
from datasets import Dataset
from sentence_transformers import CrossEncoder, SentenceTransformer, SentenceTransformerTrainer, SentenceTransformerTrainingArguments
from sentence_transformers.cross_encoder import CrossEncoderTrainer, CrossEncoderTrainingArguments
from sentence_transformers.cross_encoder.losses import BinaryCrossEntropyLoss
from sentence_transformers.sentence_transformer.losses import MultipleNegativesRankingLoss
from step_job import LR, SCALE, Job, clocks
from torch.utils.data import BatchSampler, SequentialSampler
from transformers import (
    AutoModelForMaskedLM,
    AutoTokenizer,
    DataCollatorForTokenClassification,
    Trainer,
    TrainerCallback,
    TrainingArguments,
)


class InOrder:
    """For a trainer: the batches in the order of the data; keeps the loss of each step."""

    losses: list[float]
    train_dataset: Any

    def _get_train_sampler(self, *_: Any) -> Any:
        return SequentialSampler(self.train_dataset)

    def get_batch_sampler(self, dataset: Any, batch_size: int, **_: Any) -> Any:
        return BatchSampler(SequentialSampler(dataset), batch_size, drop_last=True)

    def training_step(self, *args: Any, **more: Any) -> Any:
        loss = super().training_step(*args, **more)  # type: ignore[misc]
        self.losses = [loss.item()]
        return loss


class Retriever(InOrder, SentenceTransformerTrainer):
    """sentence-transformers' trainer of encoders."""


class Reranker(InOrder, CrossEncoderTrainer):
    """sentence-transformers' trainer of cross-encoders."""


class Mlm(InOrder, Trainer):
    """transformers' trainer."""


class Asked(TrainerCallback):
    """Makes the trainer wait at the end of each step until the next one is asked for."""

    def __init__(self, job: Job) -> None:
        self.job, self.waits = job, job.asked()
        self.trainer: Any = None
        self.begun = clocks()

    def on_train_begin(self, *_: Any, **__: Any) -> None:
        self.begun = next(self.waits)

    def on_step_end(self, *_: Any, **__: Any) -> None:
        self.job.say(self.begun, self.trainer.losses[-1])
        self.begun = next(self.waits, self.begun)


def retriever(job: Job, arguments: dict[str, Any]) -> Any:
    """The softmax over all passages of the batch."""
    columns: dict[str, list[str]] = {}
    names = ["anchor", "positive", *(f"negative_{number}" for number in range(job.negatives))]
    for texts in job.steps():
        passages = texts["passages"]
        taken = [passages[at : at + job.batch_size] for at in range(0, len(passages), job.batch_size)]
        for name, column in zip(names, [texts["queries"], *taken], strict=True):
            columns.setdefault(name, []).extend(column)
    model = SentenceTransformer(job.model, device=job.device)
    model.max_seq_length = job.length
    loss = MultipleNegativesRankingLoss(model, scale=SCALE)
    return Retriever(model, SentenceTransformerTrainingArguments(**arguments), Dataset.from_dict(columns), loss=loss)


def reranker(job: Job, arguments: dict[str, Any]) -> Any:
    """Binary cross-entropy of each pair."""
    names = {"query": "queries", "passage": "passages", "label": "labels"}
    columns = {name: [value for texts in job.steps() for value in texts[key]] for name, key in names.items()}
    model = CrossEncoder(job.model, max_length=job.length, device=job.device)
    arguments["per_device_train_batch_size"] *= 1 + job.negatives
    return Reranker(model, CrossEncoderTrainingArguments(**arguments), Dataset.from_dict(columns), loss=BinaryCrossEntropyLoss(model))


def mlm(job: Job, arguments: dict[str, Any]) -> Any:
    """Masked tokens."""
    columns = {name: [row for texts in job.steps() for row in texts[name]] for name in ("input_ids", "labels")}
    model = AutoModelForMaskedLM.from_pretrained(job.model)
    collate = DataCollatorForTokenClassification(AutoTokenizer.from_pretrained(job.model))
    return Mlm(model, TrainingArguments(**arguments), collate, Dataset.from_dict(columns))


def main() -> None:
    """Make a step whenever it is asked for."""
    job = Job.given()
    if job.threads:
        torch.set_num_threads(job.threads)
    with tempfile.TemporaryDirectory() as aside:
        arguments = {"output_dir": aside, "per_device_train_batch_size": job.batch_size, "learning_rate": LR}
        arguments |= {"max_steps": len(job.sampled), "save_strategy": "no", "report_to": [], "logging_strategy": "no", "disable_tqdm": True}
        arguments |= {"use_cpu": job.device == "cpu", "bf16": job.precision == "bf16", "fp16": job.precision == "fp16"}
        asked = Asked(job)
        trainer = {"retriever": retriever, "reranker": reranker, "mlm": mlm}[job.method](job, arguments)
        asked.trainer = trainer
        trainer.add_callback(asked)
        trainer.train()


if __name__ == "__main__":
    main()
