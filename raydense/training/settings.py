"""The settings of the stages `train` and `pretrain`, and those that several methods share; a method's own settings are in its file."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, Self

from pydantic import model_validator

from raydense.data.margins import MARGINS, Margins, WithoutAnswers
from raydense.settings import BaseSettings, Folder, FolderOrNone, artifact, group, resource, setting
from raydense.training.loop_settings import LoopSettings
from raydense.training.registry import built_in


class DevSettings(BaseSettings):
    """What is measured while a model trains."""

    qrels: Folder = artifact("qrels", "judgements of the dev queries")
    run: FolderOrNone = artifact(
        "run", "candidates of the dev queries: a re-ranker reorders them, for a retriever they are hard candidates", None
    )
    every: int = setting(0, "steps between dev measurements; 0: a tenth of all steps, rounded up", ge=0)
    metric: Literal["mrr@10", "ndcg@10", "recall@100"] = setting(
        "mrr@10", "the metric that decides which step is the best, and about patience; recall@100 for retrievers alone"
    )
    patience: int = setting(0, "stop after so many dev measurements in a row without a better one; 0: never", ge=0)
    keep: Literal["best", "last"] = setting(
        "best", "the weights of the step with the best dev.metric, or of the last one: where the same queries are reported afterwards"
    )
    passages: int = setting(
        5_000,
        "how many passages the dev queries are searched in: their positives, the first hits of dev.run, and random ones. If the queries are more"
        " than this, or their positives more than half of it, some queries are drawn. For a re-ranker: how many pairs are scored, 20 of each query",
        ge=10,
    )

    @model_validator(mode="after")
    def _fits_what_is_kept(self) -> Self:
        if self.keep == "last" and self.patience:
            raise ValueError("dev.keep last makes all steps: it does not use dev.patience")
        return self

    def refuse_recall(self, of: str) -> None:
        """ValueError if a re-ranker is to be chosen by a metric that its order does not change; `of` is what says that it is one."""
        if self.metric == "recall@100":
            raise ValueError(f"dev.metric recall@100 is of a retriever: with {of} give mrr@10 or ndcg@10")


class JointDevSettings(DevSettings):
    """What is measured while two models train together."""

    by: Literal["retriever", "reranker"] = setting(
        "retriever", "the model whose dev.metric decides which step is the best, and about patience; reranker needs dev.run"
    )

    @model_validator(mode="after")
    def _fits_a_run(self) -> Self:
        if self.by == "reranker" and self.run is None:
            raise ValueError("dev.by reranker needs dev.run, the candidates that the re-ranker is measured on")
        if self.by == "reranker":
            self.refuse_recall("dev.by reranker")
        return self


class RefreshSettings(Margins, WithoutAnswers):
    """How new hard negatives are found while a retriever trains."""

    every: float = setting(..., "find new negatives every so many steps or epochs", gt=0)
    unit: Literal["steps", "epochs"] = setting("steps", "what `every` counts")
    mode: Literal["sync", "async"] = setting(
        "sync", "sync: the training waits for the new negatives, and lends its GPUs; async: it continues, and uses them one period later"
    )
    qrels: FolderOrNone = artifact(
        "qrels", "passages judged relevant here are never used as negatives; positives of the examples never are", None
    )
    fraction: float = setting(
        1.0, "share of the queries that get new negatives, drawn at random each time; the others keep theirs", gt=0, le=1
    )
    only_changed: bool = setting(
        False, "new negatives only from passages whose rank has changed since the last refresh; negatives with unchanged ranks stay"
    )
    negatives: int = setting(8, "new negatives of each query", ge=1)
    depth: int = setting(200, "ranks to draw them from", ge=1)
    skip: int = setting(0, "first ranks to leave out", ge=0)
    reranker: FolderOrNone = artifact(
        "model", "a trained re-ranker that denoises the new negatives: only passages with a low probability of relevance are used", None
    )
    s_neg: float = setting(0.1, "with reranker: a new negative must have a lower probability than this", gt=0, lt=1)
    factory: str = setting("Flat", "FAISS index factory string of the index that is searched")
    search_params: str = setting("", "FAISS search parameters of it, as nprobe=32 or efSearch=128; nprobe is the index's own by default")
    shards: int = setting(1, "shards of that index, each held by its own actor; 0: so many that one is at most about 2 GiB", ge=0)

    @model_validator(mode="after")
    def _fits_itself(self) -> Self:
        if self.unit == "steps" and self.every % 1:
            raise ValueError(f"refresh.every {self.every:g} steps is not a whole number: give one, or refresh.unit epochs")
        if self.skip >= self.depth:
            raise ValueError(f"refresh.skip {self.skip} leaves nothing of refresh.depth {self.depth}")
        if self.only_changed:
            self._refuse_given(["fraction"], "refresh.only_changed, which compares the ranks of all queries,")
            self._refuse_given(MARGINS, "refresh.only_changed, whose hits lack the positives,")
        if self.reranker is None:
            self._refuse_given(["s_neg"], "a refresh without reranker")
        else:
            self._refuse_given(["skip", *MARGINS], "a refresh with reranker")
        return self


def _listed(verb: str) -> str:
    return f"{', '.join(built_in(verb))}, the name that an installed package gives to its own, or package.module:Class"


_GROUPS: dict[str, type[BaseSettings]] = {"dev": DevSettings, "refresh": RefreshSettings}
_RENAMED = {f"{name}_{key}": f"{name}.{key}" for name, keys in _GROUPS.items() for key in keys.model_fields}


class TrainSettings(LoopSettings):
    """Train a retriever, a re-ranker, both together, or a query generator, on Ray Train, with DeepSpeed or DDP.

    `train --objective NAME --help` also lists the settings of a method: its negatives, temperature, dev metric and refresh.
    """

    verb = "train"
    chosen_by = "objective"
    newer = (
        *LoopSettings.newer,
        *("more_examples", "refresh.only_changed", "refresh.search_params", "adapter", "dev.patience", "dev.by", "dev.keep", "dev.metric"),
        *("one_source", "topics"),
        *(f"refresh.{name}" for name in (*MARGINS, "without_answers")),
    )
    renamed = LoopSettings.renamed | _RENAMED

    objective: str = setting(..., f"the method: {_listed('train')}", examples=built_in("train"))

    if TYPE_CHECKING:  # the method's own class, which `objective` names, has more

        def __init__(self, *, objective: str, **settings: Any) -> None: ...

    queries: Folder = artifact("queries", "the queries that the examples name")
    examples: Folder = artifact(
        "examples or qrels", "positives and hard negatives of each training query; or qrels, if no hard negatives are needed"
    )
    more_examples: FolderOrNone = artifact(
        "examples",
        "more examples, for instance with negatives of another retriever: a query in both is trained on twice an epoch, once with each",
        None,
    )
    draw_positives: bool = setting(
        True,
        "if a query has several positives, draw at random each epoch; false takes the first: DPR's files list the gold passage first",
    )

    one_source: bool = setting(
        False, "with queries of `mix`: each batch is of one source, so that in-batch negatives are; otherwise batches are mixed"
    )


class NegativesSettings(BaseSettings):
    """Settings of methods that learn from hard negatives."""

    negatives: int = setting(1, "hard negatives of each query at each step, drawn at random each epoch", ge=0)

    def _refuse_no_negatives(self, compared: int, each: str) -> None:
        """ValueError if a query, one of so many `compared` with each other, has no negative, hard or in-batch: its loss would always be 0."""
        if self.negatives == 0 and compared == 1:
            raise ValueError(
                f"with negatives 0 a query has in-batch negatives alone, and here it has none: {each} is 1 query;"
                " give negatives, a larger batch_size, or less accumulation"
            )


class MeasuredSettings(BaseSettings):
    """Settings of methods that measure dev queries during training."""

    dev: DevSettings | None = group("measure MRR@10, nDCG@10 and recall@100 during training, and keep the best checkpoint by one of them")


class VectorSettings(BaseSettings):
    """How a retriever turns texts into vectors, and scores into probabilities."""

    temperature: float | None = setting(
        None, "tau, scores are divided by it; by default 0.05 if vectors have length 1 (normalize), else 1.0", gt=0
    )
    shared: bool | None = setting(None, "one encoder for queries and passages; false trains two; by default the model folder's, else one")
    pooling: str | None = setting(
        None, "how token states become one vector: cls, mean, lasttoken (of decoders), ...; by default the model folder's, else mean"
    )
    adapter: str | None = setting(
        None,
        "train only a new adapter, for instance lora:rank=16,alpha=32, and merge it into the saved weights; by default all weights are trained",
    )
    normalize: bool | None = setting(None, "scale vectors to length 1; by default the model folder's, else no")
    query_prefix: str | None = setting(None, "text put before each query; by default the model folder's")
    passage_prefix: str | None = setting(None, "text put before each passage; by default the model folder's")
    query_length: int | None = setting(None, "longest query, in tokens; by default the model folder's, else 32", ge=4)
    passage_length: int | None = setting(None, "longest passage, in tokens; by default the model folder's, else 128", ge=8)

    def left_open(self) -> set[str]:
        """The temperature if none is given: it follows from the model, and the output records it."""
        return {"temperature"} if self.temperature is None else set()


class PairSettings(BaseSettings):
    """How a re-ranker reads a query with a passage, and learns from labels."""

    loss: Literal["listwise", "pointwise"] = setting("listwise", "listwise: over a query's list; pointwise: each passage by itself")
    pair_length: int | None = setting(None, "longest query with a passage, in tokens; by default the model folder's, else 128", ge=8)


class RefreshedSettings(BaseSettings):
    """Settings of methods whose retriever can find its own hard negatives during training."""

    refresh: RefreshSettings | None = group("find new hard negatives during training with the current retriever")

    @model_validator(mode="after")
    def _fits_refresh(self) -> Self:
        if self.refresh is None:
            return self
        self._refuse_given(["more_examples"], "a training with refresh, which replaces the negatives,")
        negatives = getattr(self, "negatives", 0)
        if not 1 <= negatives <= self.refresh.negatives:
            raise ValueError(f"refresh needs 1 <= negatives <= refresh.negatives, not {negatives} and {self.refresh.negatives}")
        depth, skip = self.refresh.depth, self.refresh.skip
        if depth < negatives:
            raise ValueError(f"refresh.depth {depth} is below negatives {negatives}: no query would get new ones")
        if depth - skip < negatives and not self.refresh.only_changed:  # a negative that stands may be of a rank that is skipped
            raise ValueError(
                f"refresh.depth less refresh.skip leaves {depth - skip} ranks, fewer than negatives {negatives}: no query would get new ones"
            )
        return self


def refresh_of(settings: LoopSettings) -> RefreshSettings | None:
    """The refresh settings of a training, if it has a refresh."""
    return settings.refresh if isinstance(settings, RefreshedSettings) else None


def dev_of(settings: LoopSettings) -> DevSettings | None:
    """The dev settings of a training, if it measures anything."""
    return settings.dev if isinstance(settings, MeasuredSettings) else None


class PretrainSettings(LoopSettings):
    """Pre-train an encoder on passages and their contexts: masked tokens, Condenser, coCondenser or CoT-MAE."""

    verb = "pretrain"
    chosen_by = "method"

    method: str = setting(..., f"the method: {_listed('pretrain')}", examples=built_in("pretrain"))

    if TYPE_CHECKING:  # the method's own class has more

        def __init__(self, *, method: str, **settings: Any) -> None: ...

    model: Folder = artifact("model", "the encoder's folder to start from, or 'tiny': a small new one")
    corpus: Folder = artifact("corpus", "the passages; with doc_id for context passage")
    dropout: float | None = setting(None, "dropout of the encoder and of the head; by default the model folder's", ge=0, lt=1)
    batch_size: int = setting(64, "passages of one optimiser step, over all workers", ge=1)
    accumulation: int = setting(1, "number of parts of a step, which run one after another; cocondenser compares the texts of a part", ge=1)
    mask: float = setting(0.15, "share of a passage's tokens to mask", gt=0, lt=1)
    passage_length: int = setting(144, "longest passage, and longest context, in tokens", ge=8)
    seed: int = setting(42, "random seed of the order of passages, of contexts and masks, of new weights and dropout", ge=0, lt=2**63)
    workers: int = resource(
        1,
        "training workers. Batches, and losses apart from dropout, are the same for any number. A stopped training may continue with another"
        " number, except with ZeRO 3",
        ge=1,
    )


class ContextSettings(BaseSettings):
    """Settings of methods that read a passage together with a context."""

    context: Literal["passage", "query", "mixed"] = setting(
        ..., "passage: another passage of the document; query: one of the passage's queries; mixed: either; drawn at random each time"
    )
    generated: FolderOrNone = artifact("generated", "what `generate` or `oracle` wrote for the corpus; for context query and mixed", None)
    context_mask: float = setting(0.15, "share of a context's tokens to mask", gt=0, lt=1)

    @model_validator(mode="after")
    def _fits_context(self) -> Self:
        if self.context == "passage":
            self._refuse_given(["generated"], "context passage")
        elif self.generated is None:
            raise ValueError(f"context {self.context} needs generated, the queries that `raydense generate` wrote")
        return self
