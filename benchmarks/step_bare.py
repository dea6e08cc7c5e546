"""A training step as one writes it by hand: transformers' model, PyTorch's loss and AdamW, one at a time.

`train_peers.py` starts it, and asks it for steps.
"""

from __future__ import annotations

from typing import Any

import torch
from step_job import LR, SCALE, Job
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits, cross_entropy, kl_div, normalize
from transformers import AutoModel, AutoModelForMaskedLM, AutoModelForSequenceClassification, AutoTokenizer

Texts = dict[str, Any]
HALF = {"bf16": torch.bfloat16, "fp16": torch.float16}


class Retriever(nn.Module):
    """Mean of the states, length 1; the softmax over all passages of the batch."""

    def __init__(self, job: Job) -> None:
        super().__init__()
        self.job, self.tokenizer = job, AutoTokenizer.from_pretrained(job.model)
        self.encoder = AutoModel.from_pretrained(job.model, add_pooling_layer=False)

    def vectors(self, texts: list[str]) -> Tensor:
        limits: dict[str, Any] = {"padding": True, "truncation": True, "max_length": self.job.length}
        tokens = self.tokenizer(texts, return_tensors="pt", **limits).to(self.encoder.device)
        states, mask = self.encoder(**tokens).last_hidden_state, tokens["attention_mask"].unsqueeze(2)
        return normalize((states.float() * mask).sum(1) / mask.sum(1), dim=1)

    def forward(self, texts: Texts) -> Tensor:
        scores = self.vectors(texts["queries"]).float() @ self.vectors(texts["passages"]).float().T
        return cross_entropy(SCALE * scores, torch.arange(len(scores), device=scores.device))


class Reranker(nn.Module):
    """Binary cross-entropy of each pair."""

    def __init__(self, job: Job, folder: str = "") -> None:
        super().__init__()
        self.job, self.tokenizer = job, AutoTokenizer.from_pretrained(folder or job.model)
        self.model = AutoModelForSequenceClassification.from_pretrained(folder or job.model)

    def scores(self, queries: list[str], passages: list[str]) -> Tensor:
        limits: dict[str, Any] = {"padding": True, "truncation": "only_second", "max_length": self.job.length}
        tokens = self.tokenizer(queries, passages, return_tensors="pt", **limits).to(self.model.device)
        return self.model(**tokens).logits.squeeze(1).float()

    def forward(self, texts: Texts) -> Tensor:
        scores = self.scores(texts["queries"], texts["passages"])
        return binary_cross_entropy_with_logits(scores, torch.tensor(texts["labels"], device=scores.device))


class Joint(nn.Module):
    """KL(retriever || re-ranker) over each query's list, and the re-ranker's cross-entropy (RocketQAv2)."""

    def __init__(self, job: Job) -> None:
        super().__init__()
        self.retriever, self.reranker = Retriever(job), Reranker(job, job.reranker)

    def forward(self, texts: Texts) -> Tensor:
        queries, passages = texts["queries"], texts["passages"]
        lists = len(passages) // len(queries)
        of_queries, of_passages = self.retriever.vectors(queries).float(), self.retriever.vectors(passages).float()
        retriever = SCALE * (of_passages.view(len(queries), lists, -1) @ of_queries.unsqueeze(2)).squeeze(2)
        reranker = self.reranker.scores([query for query in queries for _ in range(lists)], passages).view(-1, lists)
        distilled = kl_div(reranker.log_softmax(1), retriever.log_softmax(1), reduction="batchmean", log_target=True)
        return distilled + cross_entropy(reranker, torch.zeros(len(queries), dtype=torch.int64, device=reranker.device))


class Mlm(nn.Module):
    """Masked tokens, by transformers' own loss."""

    def __init__(self, job: Job) -> None:
        super().__init__()
        self.tokenizer, self.model = AutoTokenizer.from_pretrained(job.model), AutoModelForMaskedLM.from_pretrained(job.model)

    def forward(self, texts: Texts) -> Tensor:
        batch = self.tokenizer.pad({"input_ids": texts["input_ids"]}, return_tensors="pt").to(self.model.device)
        labels = nn.utils.rnn.pad_sequence([torch.tensor(row) for row in texts["labels"]], batch_first=True, padding_value=-100)
        loss: Tensor = self.model(**batch, labels=labels.to(self.model.device)).loss
        return loss


MODELS: dict[str, type[nn.Module]] = {"retriever": Retriever, "reranker": Reranker, "joint": Joint, "mlm": Mlm}


def main() -> None:
    """Make a step whenever it is asked for."""
    job = Job.given()
    if job.threads:
        torch.set_num_threads(job.threads)
    model = MODELS[job.method](job).to(job.device).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=LR)
    scaler = torch.amp.GradScaler(job.device, enabled=job.precision == "fp16")
    for texts, begun in zip(job.steps()[:-1], job.asked(), strict=True):
        with torch.autocast(job.device, HALF.get(job.precision), enabled=job.precision in HALF):
            loss = model(texts)
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        job.say(begun, loss.item())


if __name__ == "__main__":
    main()
