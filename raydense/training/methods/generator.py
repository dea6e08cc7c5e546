"""A query generator: learns to write the query of a passage (doc2query; query-as-context, section 3.1)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from raydense.settings import setting
from raydense.training.method import Batch, Held, Method, Metrics, Outputs, method
from raydense.training.settings import TrainSettings

if TYPE_CHECKING:
    from torch import Tensor

    from raydense.models.generator import Generator
    from raydense.training.part import Part


@method("generator")
class QueryGenerator(Method):
    """L = -1/|tokens| sum log P(q | p) over the queries of the batch, each with one of its positives, by teacher forcing.

    The mean is over the tokens of all workers.
    """

    adds = True
    models: ClassVar[Mapping[str, str]] = {"": "generator"}
    model: Generator

    class Settings(TrainSettings):
        """Train a sequence-to-sequence model that writes queries for passages."""

        passage_prefix: str | None = setting(None, "text put before each passage; by default the model folder's")
        query_length: int | None = setting(None, "longest query, in tokens; by default the model folder's, else 64", ge=4)
        passage_length: int | None = setting(None, "longest passage, in tokens; by default the model folder's, else 128", ge=8)

    @classmethod
    def couples(cls, settings: Any) -> bool:
        return False

    @classmethod
    def texts_of(cls, settings: Any) -> dict[str, int]:
        return dict.fromkeys(("queries", "passages"), cls.queries_of(settings))

    @classmethod
    def held(cls, settings: Any) -> Held:
        return Held(scores=cls.queries_of(settings))

    @classmethod
    def make_tiny(cls, texts: Iterable[str], folder: Path | str, seed: int) -> None:
        from raydense.models.tiny import make_tiny_generator

        make_tiny_generator(texts, folder, seed)

    @classmethod
    def load(cls, settings: Any, folder: str) -> Generator:
        from raydense.models.generator import Generator, changes

        return Generator.load(folder, dropout=settings.dropout, **changes(settings))

    @classmethod
    def check(cls, settings: Any, folder: str) -> None:
        from raydense.models.generator import changes, read_generator_config

        read_generator_config(folder, **changes(settings))

    @classmethod
    def lengths(cls, model: Generator) -> dict[str, int]:
        return {"queries": model.config.query_length, "passages": model.config.passage_length}

    def prepare(self, part: Part) -> Batch:
        """As `Method.prepare`; row i of both batches is a pair, and `tokens`, float32 without dimension, are those of all queries."""

        mine = part.slice_of(self.rank, self.workers)
        pad_id = self.model.tokenizer.pad_id
        queries = self.model.tokenize_queries(self.texts.queries(mine.query)).pad(pad_id)
        return {
            "queries": queries,
            "passages": self.model.tokenize_passages(self.texts.passages(mine.positives[:, 0])).pad(pad_id),
            "tokens": queries["attention_mask"].sum().float(),
        }

    def loss(self, outputs: Outputs, batch: Batch) -> tuple[Tensor, Metrics]:
        """As `Method.loss`; the metric `surprise` is the mean of -log P(q | p) over queries."""
        import torch.distributed as dist

        surprise, count = outputs[0], batch["tokens"].clone()
        if self.workers > 1:
            dist.all_reduce(count)  # the mean over workers is then the mean over all tokens, however they are distributed
        return surprise.sum() / (count / self.workers), {"surprise": surprise.detach().sum() / self.queries_of(self.settings)}
