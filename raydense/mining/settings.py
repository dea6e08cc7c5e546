"""The settings of the stages that choose what is trained on: `mine`, `label` and `filter`."""

from __future__ import annotations

from typing import Any, ClassVar, Literal, Self

from pydantic import model_validator

from raydense.inference.settings import Spread
from raydense.retrieval.settings import Pool
from raydense.settings import BaseSettings, Folder, FolderOrNone, Settings, artifact, group, resource, setting


class FilterSettings(Settings, Pool):
    """Keep a generated query only where a search with it finds its own passage again (round-trip consistency)."""

    generated: Folder = artifact("generated", "the queries, as `generate` wrote them or as `filter` kept them")
    corpus: Folder = artifact("corpus", "the passages that they were written for")
    index: Folder = artifact("index", "an index of this corpus")
    model: FolderOrNone = artifact("model", "the retriever that the embeddings were made with; not for bm25", None)
    k: int = setting(10, "keep a query whose passage, or one of the same text, is among the first so many", ge=1)
    seed: int = setting(42, "of the sample to read", ge=0, lt=2**63)


class HybridSettings(BaseSettings):
    """Hybrid augmentation (RocketQAv2, section 3.3)."""

    labels: Folder = artifact("examples", "what `label` made of the same queries")
    denoised: int | None = setting(None, "how many of the negatives are the labels' confident ones; by default half", ge=0)


class MineSettings(Settings):
    """Make examples from a run: positives, and hard negatives that are never a positive of the query, nor a passage of the same text."""

    newer = ("teacher",)
    renamed: ClassVar[dict[str, str]] = {"strategy": "hybrid", "labels": "hybrid.labels", "denoised": "hybrid.denoised"}

    run: Folder = artifact("run", "the run to take negatives from")
    corpus: Folder = artifact("corpus", "the passages")
    queries: Folder = artifact("queries", "the queries")
    qrels: Folder = artifact("qrels", "the positives; queries not judged here get no example")
    hybrid: HybridSettings | None = group("also take pseudo-positives and confident negatives of labels (RocketQAv2)")
    negatives: int = setting(8, "hard negatives of each query, of both parts together where there are two", ge=1)
    depth: int = setting(200, "ranks of the run to draw from", ge=1)
    skip: int = setting(0, "first ranks to leave out", ge=0)
    pick: Literal["random", "top"] = setting("random", "draw from the ranks at random, or take the highest")
    shortage: Literal["keep", "drop", "fail"] = setting(
        "keep", "what to do with a query that has fewer negatives than asked: keep what was found, drop the query, or stop"
    )
    teacher: bool = setting(
        False,
        "the run's scores are a teacher's, as those of `rerank`: keep those of the positives too, for objectives that learn from them",
    )
    seed: int = setting(42, "of the draw", ge=0, lt=2**63)

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if self.hybrid is None:
            return self
        if self.teacher:
            raise ValueError("teacher is for the scores of the run, and with hybrid all scores are those of its labels: leave one out")
        if self.hybrid.denoised is None:
            self.__dict__["hybrid"] = self.hybrid.replaced({"denoised": self.negatives // 2})
        elif self.hybrid.denoised > self.negatives:
            raise ValueError(f"hybrid.denoised {self.hybrid.denoised} is more than the {self.negatives} negatives that it is a part of")
        return self


class LabelSettings(Settings, Spread):
    """Label candidates with a re-ranker as the teacher: pseudo-positives and confident negatives, of judged and of other queries."""

    run: Folder = artifact("run", "the candidates")
    model: FolderOrNone = artifact(
        "model", "the teacher, a trained re-ranker; without it the run is one of `rerank`, whose scores are the teacher's", None
    )
    corpus: Folder = artifact("corpus", "the passages")
    queries: Folder = artifact("queries", "the queries")
    qrels: FolderOrNone = artifact("qrels", "positives that stay whatever the teacher says; other queries have only what it finds", None)
    depth: int = setting(50, "passages of each query to score", ge=1)
    s_pos: float = setting(0.9, "a probability above it makes a pseudo-positive", ge=0, le=1)
    s_neg: float = setting(0.1, "a probability below it makes a confident negative; what lies between is left out", ge=0, le=1)
    negatives: int = setting(8, "most confident negatives of each query, drawn at random", ge=1)
    shortage: Literal["keep", "drop", "fail"] = setting(
        "keep", "what to do with a query that has fewer negatives than asked: keep what was found, drop the query, or stop"
    )
    seed: int = setting(42, "of the draw, and of the sample to read", ge=0, lt=2**63)
    token_budget: int = resource(0, "tokens of one batch, padding included; 0 means what suits the device", ge=0)
    block: int = setting(256, "queries that are scored and committed together", ge=1)

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if self.s_neg >= self.s_pos:
            raise ValueError(f"s_neg {self.s_neg} must be below s_pos {self.s_pos}")
        return self

    def shaping(self) -> dict[str, Any]:
        """As of every stage, and that scores are logits: outputs from before have probabilities, and are refused."""
        return super().shaping() | {"scores": "logits"}
