"""The settings of the stages that select training data: `mine`, `label` and `filter`."""

from __future__ import annotations

from typing import Any, ClassVar, Literal, Self

from pydantic import model_validator

from raydense.data.margins import MARGINS, Margins, WithoutAnswers
from raydense.forecast import PROCESS_BYTES, QUERY_CHARACTERS, Forecast, Holds, Known, fewest
from raydense.inference.settings import BATCH, QUERY_PROMPT, SPREAD, QueryPrompt, Spread, pairs_forecast
from raydense.retrieval.settings import Pool
from raydense.settings import BaseSettings, Folder, FolderOrNone, Settings, artifact, group, resource, setting


class FilterSettings(Settings, QueryPrompt, Pool):
    """Keep a generated query only if a search with it finds its own passage again (round-trip consistency)."""

    newer = QUERY_PROMPT
    renamed: ClassVar[dict[str, str]] = {"replicas": "shard_replicas"}

    generated: Folder = artifact("generated", "the queries, as `generate` wrote them or as `filter` kept them")
    corpus: Folder = artifact("corpus", "the passages that they were written for")
    index: Folder = artifact("index", "an index of this corpus")
    model: FolderOrNone = artifact("model", "the retriever that the embeddings were made with; not for bm25", None)
    k: int = setting(10, "keep a query whose passage, or one of the same text, is among this many first hits", ge=1)
    seed: int = setting(42, "random seed of the sample to read", ge=0, lt=2**63)
    pool: str = resource("", "the name of a running pool of this index (`raydense pool start`) to use instead of starting one")

    @model_validator(mode="after")
    def _starts_or_calls(self) -> Self:
        if self.pool:
            self._refuse_given(Pool.model_fields, "a filter by pool")
        return self

    def left_open(self) -> set[str]:
        """The search parameters, if a running pool provides them."""
        return {"search_params"} if self.pool else set()

    def forecast(self, known: Known) -> Forecast:
        """A search of the queries of each passage."""
        generated, index = known.of(self.generated), known.of(self.index)
        if not generated:
            return Forecast()
        from raydense.retrieval.forecasts import on_gpus, search_work

        needs = f"the queries of {generated} passages x {self.k}{on_gpus(self, self.index)}"
        makes = {self.output: generated}
        if not index:
            return Forecast(needs, makes)
        queries = Holds(round(generated.rows * max(1.0, generated.each / QUERY_CHARACTERS)), "at most", QUERY_CHARACTERS)
        kind, work = search_work(known, queries, index, self.k, self.model, self.search_params)
        return Forecast(needs, makes, kind.replace("search", "filter"), work, PROCESS_BYTES + index.bytes / max(1, index.files))


class Shortage(BaseSettings):
    """When a query has too few negatives, and what becomes of it."""

    negatives: int
    min_negatives: int | None = setting(
        None,
        "a query with fewer negatives than this is short, and `shortage` decides about it: give what the training takes of each query"
        " (`train --negatives`); by default `negatives`",
        ge=1,
    )
    shortage: Literal["keep", "drop", "fail"] = setting(
        "keep", "what to do with a query that is short of negatives: keep what was found, drop the query, or stop"
    )

    @property
    def enough(self) -> int:
        """The fewest negatives of a query that is not short."""
        return self.min_negatives or self.negatives

    @model_validator(mode="after")
    def _enough_of_all(self) -> Self:
        if self.enough > self.negatives:
            raise ValueError(f"min_negatives {self.min_negatives} is more than the {self.negatives} negatives: give more negatives")
        return self


class HybridSettings(BaseSettings):
    """Hybrid augmentation (RocketQAv2, section 3.3)."""

    labels: Folder = artifact("examples", "what `label` made of the same queries")
    denoised: int | None = setting(None, "the number of negatives taken from the labels' confident negatives; by default half", ge=0)


class MineSettings(Settings, Margins, WithoutAnswers, Shortage):
    """Make examples from a run: positives and hard negatives; a positive of the query, or a passage of its text, is never a negative."""

    newer = ("keep_scores", "random", "min_negatives", "without_answers", *MARGINS)
    renamed: ClassVar[dict[str, str]] = {
        "strategy": "hybrid",
        "labels": "hybrid.labels",
        "denoised": "hybrid.denoised",
        "teacher": "keep_scores",
    }
    recorded: ClassVar[dict[str, str]] = {"keep_scores": "teacher"}

    run: Folder = artifact("run", "the run to take negatives from")
    corpus: Folder = artifact("corpus", "the passages")
    queries: Folder = artifact("queries", "the queries")
    qrels: Folder = artifact("qrels", "the positives; queries not judged here get no example")
    hybrid: HybridSettings | None = group("also take pseudo-positives and confident negatives of labels (RocketQAv2)")
    negatives: int = setting(8, "negatives of each query, with hybrid of both parts together", ge=1)
    random: int = setting(0, "of the negatives, how many are random passages of the corpus, not hits of the run", ge=0)
    depth: int = setting(200, "ranks of the run to draw from", ge=1)
    skip: int = setting(0, "first ranks to skip", ge=0)
    pick: Literal["random", "top"] = setting("random", "random: draw from the ranks at random; top: take the highest")
    keep_scores: bool = setting(
        False,
        "the run's scores are a teacher's, such as those of `rerank`: keep the positives' scores too, for objectives that learn from them",
    )
    seed: int = setting(42, "random seed of the draw", ge=0, lt=2**63)

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if self.skip >= self.depth:
            raise ValueError(f"skip {self.skip} leaves nothing of depth {self.depth}: give a larger depth")
        if self.random > self.negatives:
            raise ValueError(f"random {self.random} is more than the {self.negatives} negatives that it is a part of: give more negatives")
        if self.random and (self.keep_scores or self.hybrid):
            raise ValueError("random passages have no score of a teacher: leave out random, or keep_scores and hybrid")
        if self.hybrid is None:
            return self
        if self.keep_scores:
            raise ValueError("keep_scores keeps the scores of the run, but with hybrid all scores are those of the labels: leave one out")
        if self.hybrid.denoised is None:
            self.__dict__["hybrid"] = self.hybrid.replaced({"denoised": self.negatives // 2})
        elif self.hybrid.denoised > self.negatives:
            raise ValueError(f"hybrid.denoised {self.hybrid.denoised} is more than the {self.negatives} negatives that it is a part of")
        return self

    def forecast(self, known: Known) -> Forecast:
        """The time grows with the hits to draw from."""
        run = known.of(self.run)
        queries = fewest(run, known.of(self.queries), known.of(self.qrels))
        if not queries:
            return Forecast()
        made = Holds(queries.rows, "at most", self.negatives, queries.rows * (8.0 * self.negatives + 8))
        work = {"hits": float(queries.rows * min(self.depth, run.each or self.depth if run else self.depth))}
        return Forecast(f"{queries} queries x {self.negatives} negatives", {self.output: made}, "mine", work, 2 * PROCESS_BYTES)


_OF_MODEL = ("token_budget", "block", *SPREAD)  # what `label` uses only where it scores the candidates itself


class LabelSettings(Settings, Spread, WithoutAnswers, Shortage):
    """Label candidates with a re-ranker as the teacher: pseudo-positives and confident negatives, of judged and of other queries."""

    newer = ("min_negatives", "without_answers")

    run: Folder = artifact("run", "the candidates")
    model: FolderOrNone = artifact(
        "model",
        "the teacher, a trained re-ranker; without it the run is one of `rerank`, whose scores are the teacher's and stay for other settings",
        None,
    )
    corpus: Folder = artifact("corpus", "the passages")
    queries: Folder = artifact("queries", "the queries")
    qrels: FolderOrNone = artifact("qrels", "positives that stay whatever their score; other queries have only pseudo-positives", None)
    depth: int = setting(50, "how many of the first passages of each query are labelled, and with model scored", ge=1)
    s_pos: float = setting(0.9, "a probability above it makes a pseudo-positive", ge=0, le=1)
    s_neg: float = setting(0.1, "a probability below it makes a confident negative; candidates in between are left out", ge=0, le=1)
    negatives: int = setting(8, "at most so many negatives of each query, drawn at random from those below s_neg", ge=1)
    seed: int = setting(42, "random seed of the draw, and of the sample to read", ge=0, lt=2**63)
    token_budget: int = resource(0, BATCH, ge=0)
    block: int = setting(256, "queries that are scored and committed together", ge=1)

    @classmethod
    def takes(cls, values: dict[str, Any]) -> set[str]:
        """As for every stage; without a model nothing that only a model uses."""
        return super().takes(values) - (set() if "model" in values else set(_OF_MODEL))

    def left_open(self) -> set[str]:
        """Without a model the block, which does nothing: earlier versions took one, and recorded it."""
        return set() if self.model else {"block"}

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if self.model is None:
            self._refuse_given(_OF_MODEL, "label without model")
        if self.s_neg >= self.s_pos:
            raise ValueError(f"s_neg {self.s_neg} must be below s_pos {self.s_pos}")
        return self

    def forecast(self, known: Known) -> Forecast:
        """The time grows with the pairs to score, or, of a run that has the scores, with its hits."""
        queries = fewest(known.of(self.run), known.of(self.queries))
        if not queries:
            return Forecast()
        made = Holds(queries.rows, "at most", self.negatives, queries.rows * (8.0 * self.negatives + 16))
        if self.model:
            return pairs_forecast(self, self.model, made, known)
        work = {"hits": float(queries.rows * self.depth)}
        return Forecast(f"{queries} queries to label", {self.output: made}, "label", work, PROCESS_BYTES)

    def shaping(self) -> dict[str, Any]:
        """As for every stage; also records that scores are logits: outputs of old versions have probabilities, and are refused."""
        return super().shaping() | {"scores": "logits"}
