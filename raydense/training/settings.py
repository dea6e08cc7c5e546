"""The settings of `train` and `pretrain`."""

from __future__ import annotations

from typing import Any, ClassVar, Literal, Self

from pydantic import model_validator

from raydense.settings import NumberOrAuto, Settings, artifact, resource, setting


class LoopSettings(Settings):
    """What every training has: how long, with which optimiser, on which engine and workers."""

    dropout: float | None = setting(
        None, "dropout of the model, in joint training of the re-ranker alone; by default as the model folder says", ge=0, lt=1
    )
    epochs: float = setting(1.0, "passes over the examples", gt=0)
    max_steps: int = setting(0, "stop after this many steps; 0 means after the epochs", ge=0)
    batch_size: int = setting(64, "queries of one optimiser step, over all workers", ge=1)
    accumulation: int = setting(1, "parts that a step is made of, one after another; in-batch negatives come from the same part", ge=1)
    lr: float = setting(2e-5, "highest learning rate", gt=0)
    warmup: float = setting(0.1, "share of the steps that the learning rate rises for, before it falls to zero linearly", ge=0, lt=1)
    optimizer: Literal["adamw", "lamb"] = setting("adamw", "lamb for very large batches; it needs engine ddp")
    weight_decay: float = setting(0.01, "weight decay; biases and layer norms have none", ge=0)
    clip: float = setting(1.0, "longest gradient; 0 leaves it as it is", ge=0)
    precision: Literal["auto", "fp32", "bf16", "fp16"] = setting("auto", "auto: bf16 where the GPU has it, fp16 on older GPUs, fp32 on CPU")
    seed: int = setting(42, "of the order of examples, the draw of negatives, new weights and dropout", ge=0, lt=2**63)

    engine: Literal["deepspeed", "ddp"] = setting("deepspeed", "what runs forward, backward and step")
    zero: int = setting(1, "DeepSpeed's ZeRO stage, 0 to 3", ge=0, le=3)
    workers: int = resource(
        1,
        "training workers; batches are the same for any number, and losses, but for what dropout draws;"
        " a run that was stopped may go on with another number, but not with zero 3",
        ge=1,
    )
    cpus_per_worker: float = resource(1.0, "logical CPUs of one worker", gt=0)
    gpus_per_worker: int = resource(
        -1, "GPUs of one worker; -1 takes one where the cluster has GPUs when it begins, else none", ge=-1, le=1
    )
    micro_batch: NumberOrAuto = resource(
        0,
        "texts that one worker sends through the model at once, 0 for all, auto for the most that its memory takes: fewer need less"
        " memory and more time, and give the same gradients, but for what dropout draws",
    )
    activation_checkpointing: bool = resource(False, "compute activations again on the way back: less memory, a third more time")
    checkpoint_every: int = resource(200, "steps between checkpoints: the most that a crash costs", ge=1)
    log_every: int = resource(10, "steps between log lines", ge=1)
    max_failures: int = resource(
        3, "worker failures that are recovered from, counted anew where a new checkpoint came between them, before the run gives up", ge=0
    )
    track: Literal["none", "mlflow", "wandb"] = resource("none", "also log there; TensorBoard files are always written")

    @model_validator(mode="after")
    def _fits_engine(self) -> Self:
        if self.batch_size % (self.accumulation * self.workers):
            raise ValueError(f"batch_size {self.batch_size} must divide by workers x accumulation = {self.workers} x {self.accumulation}")
        if self.engine == "ddp":
            self._refuse_given(["zero"], "engine ddp")
        elif self.optimizer == "lamb":
            raise ValueError("lamb needs the norm of each weight, and DeepSpeed keeps weights in flat pieces: use engine ddp")
        return self


_RETRIEVERS = ("retriever", "pair", "multi-positive")


# The objectives that a setting means something to; what is not here means something to all.
_OBJECTIVES_OF: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(("temperature", "in_batch", "shared", "pooling", "normalize", "query_prefix"), (*_RETRIEVERS, "joint")),
    **dict.fromkeys(("passage_prefix", "query_length", "passage_length"), (*_RETRIEVERS, "joint", "generator")),
    **dict.fromkeys(("negatives", "dev_qrels", "dev_run", "dev_every", "dev_passages"), (*_RETRIEVERS, "joint", "reranker")),
    "cross_batch": _RETRIEVERS,
    **dict.fromkeys(("alpha", "in_batch_queries"), ("pair",)),
    "positives": ("multi-positive",),
    "refresh_every": (*_RETRIEVERS, "joint"),
    **dict.fromkeys(("reranker", "teacher", "direction"), ("joint",)),
    **dict.fromkeys(("loss", "pair_length"), ("reranker", "joint")),
}


class TrainSettings(LoopSettings):
    """Train a retriever, a re-ranker, or both together, on Ray Train, with DeepSpeed or DDP."""

    newer = ("more_examples", "refresh_only_changed", "refresh_search_params")

    objective: Literal["retriever", "pair", "multi-positive", "reranker", "joint", "generator"] = setting(
        ...,
        "what to train: a retriever by the query-centric loss, with the passage-centric one (pair), or with several positives a query;"
        " a re-ranker; both, each learning from the other; or a generator, which writes queries for passages",
    )
    model: str = artifact(
        "model", "the model folder to start from (Hugging Face or sentence-transformers), or 'tiny': a small one from scratch"
    )
    reranker: str | None = artifact("model", "joint: the re-ranker's folder to start from, a trained one for a static teacher", None)
    corpus: str = artifact("corpus", "the passages")
    queries: str = artifact("queries", "the queries that the examples name")
    examples: str = artifact(
        "examples or qrels", "positives and hard negatives of each training query; or qrels, where no hard negatives are needed"
    )
    more_examples: str | None = artifact(
        "examples",
        "others beside, as of negatives that another retriever found: a query of both is learned twice an epoch, with either's",
        None,
    )
    dev_qrels: str | None = artifact(
        "qrels", "judgements of the dev queries; with it, a dev metric while training, and the best checkpoint kept", None
    )
    dev_run: str | None = artifact(
        "run", "candidates of the dev queries; what a re-ranker orders, and hard candidates for a retriever", None
    )

    temperature: float | None = setting(
        None, "retriever: tau, scores are divided by it; by default 0.05 where vectors have length 1 (normalize), else 1.0", gt=0
    )
    negatives: int = setting(1, "hard negatives of each query at each step, drawn anew each epoch", ge=0)
    in_batch: bool | None = setting(
        None, "other queries' passages are negatives too, in joint training their positives; by default yes, but not in joint training"
    )
    cross_batch: bool = setting(True, "retriever: and those of every worker, not only of this one")
    positives: int = setting(1, "multi-positive: most positives of each query at each step", ge=1)
    draw_positives: bool = setting(
        True, "of a query with more, draw anew each epoch; false takes the first ones listed: DPR's files have the gold passage first"
    )
    alpha: float = setting(0.1, "pair: weight of the passage-centric loss; the query-centric one has the rest", ge=0, le=1)
    in_batch_queries: bool = setting(False, "pair: the passage-centric loss has the batch's other queries as negatives too")
    loss: Literal["listwise", "pointwise"] | None = setting(None, "re-ranker: over a query's list (default), or each passage by itself")
    teacher: Literal["dynamic", "static"] = setting("dynamic", "joint: the re-ranker learns too, or is frozen and only teaches")
    direction: Literal["de_ce", "ce_de"] = setting("de_ce", "joint: KL(retriever || re-ranker), or the other way round")

    shared: bool = setting(True, "retriever: one encoder for queries and passages; false trains two")
    pooling: Literal["cls", "mean"] | None = setting(
        None, "retriever: how token states become one vector; by default as the model folder says, else mean"
    )
    normalize: bool | None = setting(None, "retriever: scale vectors to length 1; by default as the model folder says, else no")
    query_prefix: str | None = setting(None, "retriever: text put before each query; by default as the model folder says")
    passage_prefix: str | None = setting(None, "retriever: text put before each passage; by default as the model folder says")
    query_length: int | None = setting(
        None, "most tokens of a query; by default as the model folder says, else 32, of a generator 64", ge=4
    )
    passage_length: int | None = setting(None, "most tokens of a passage; by default as the model folder says, else 128", ge=8)
    pair_length: int | None = setting(
        None, "re-ranker: most tokens of a query with a passage; by default as the model folder says, else 128", ge=8
    )
    dev_every: int = setting(0, "steps between dev measurements; 0 means ten over the whole run", ge=0)
    dev_passages: int = setting(5_000, "passages that the dev queries are searched in, their positives included", ge=10)

    refresh_every: float | None = setting(
        None, "let the retriever, as it is then, find new hard negatives every so many steps, or epochs; by default never", gt=0
    )
    refresh_unit: Literal["steps", "epochs"] = setting("steps", "what refresh_every counts")
    refresh_mode: Literal["sync", "async"] = setting(
        "sync", "the training waits for the new negatives, and lends its GPUs; or goes on, and takes them a period later"
    )
    refresh_qrels: str | None = artifact("qrels", "its passages are no new negatives, as the positives of the examples never are", None)
    refresh_fraction: float = setting(
        1.0, "share of the queries that get new negatives, drawn anew each time; the others keep theirs", gt=0, le=1
    )
    refresh_only_changed: bool = setting(
        False, "new negatives only among passages whose rank is another than at the refresh before; the others stay what they are"
    )
    refresh_negatives: int = setting(8, "new negatives of each query", ge=1)
    refresh_depth: int = setting(200, "ranks to draw them from", ge=1)
    refresh_skip: int = setting(0, "first ranks to leave out", ge=0)
    refresh_reranker: str | None = artifact("model", "a trained re-ranker, which denoises: only what it is sure is irrelevant stays", None)
    refresh_s_neg: float = setting(0.1, "with it: the probability that a new negative must be below", gt=0, lt=1)
    refresh_factory: str = setting("Flat", "FAISS index factory string of the index that is searched")
    refresh_search_params: str = setting("", "FAISS search parameters of it, as nprobe=32 or efSearch=128")
    refresh_shards: int = setting(1, "parts of that index, each held by its own actor", ge=1)

    @model_validator(mode="after")
    def _fits(self) -> Self:
        unused = [name for name, objectives in _OBJECTIVES_OF.items() if self.objective not in objectives]
        self._refuse_given(unused, f"objective {self.objective}")
        if self.objective == "generator":
            self.__dict__["negatives"] = 0
        if self.loss is None and "loss" not in unused:
            self.__dict__["loss"] = "listwise"
        if self.in_batch is None and "in_batch" not in unused:
            self.__dict__["in_batch"] = self.objective in _RETRIEVERS
        if not self.in_batch and self.negatives == 0 and self.objective != "generator":
            raise ValueError(f"a {self.objective} without in_batch needs negatives of at least 1")
        if self.objective == "pair" and not self.shared:
            raise ValueError("the passage-centric loss compares queries and passages in one space: it needs shared true")
        if not self.in_batch and "in_batch" not in unused:
            self._refuse_given(["cross_batch"], "a training without in_batch")
        if not self.dev_qrels:
            self._refuse_given(["dev_every", "dev_passages"], "a training without dev_qrels")
        if self.in_batch_queries and not self.in_batch:
            raise ValueError("in_batch_queries needs in_batch")
        if self.objective == "joint" and self.reranker is None:
            raise ValueError("joint training needs reranker, the folder that it starts from")
        if self.teacher == "static":
            self._refuse_given(["loss"], "a static teacher")
        self._refuse_refresh()
        return self

    def left_open(self) -> set[str]:
        """The temperature where none is given: it follows the model, and the output records it."""
        return {"temperature"} if self.temperature is None else set()

    def _refuse_refresh(self) -> None:
        """ValueError where the settings of refresh do not go together."""
        if self.refresh_every is None:
            self._refuse_given(_refresh_of(type(self)), "a training without refresh_every")
            return
        self._refuse_given(["more_examples"], "a training with refresh_every, which makes the negatives anew,")
        if self.refresh_unit == "steps" and self.refresh_every % 1:
            raise ValueError(f"refresh_every {self.refresh_every:g} steps is no whole number: give one, or refresh_unit epochs")
        if not 1 <= self.negatives <= self.refresh_negatives:
            raise ValueError(f"refresh needs 1 <= negatives <= refresh_negatives, not {self.negatives} and {self.refresh_negatives}")
        if self.refresh_skip >= self.refresh_depth:
            raise ValueError(f"refresh_skip {self.refresh_skip} leaves nothing of refresh_depth {self.refresh_depth}")
        if self.refresh_only_changed:
            self._refuse_given(["refresh_fraction"], "refresh_only_changed, which compares the ranks of all queries,")
        if self.refresh_reranker is None:
            self._refuse_given(["refresh_s_neg"], "a refresh without refresh_reranker")
        else:
            self._refuse_given(["refresh_skip"], "a refresh with refresh_reranker")

    def shaping(self) -> dict[str, Any]:
        """As of every stage, of refresh only where there is one; and the workers, where each takes negatives of its own queries only."""
        alone = self.objective in _RETRIEVERS and self.in_batch and not self.cross_batch
        left_out = set() if self.refresh_every else {"refresh_every", *_refresh_of(type(self))}
        shaping = {name: value for name, value in super().shaping().items() if name not in left_out}
        return shaping | ({"workers": self.workers} if alone else {})


def _refresh_of(cls: type[TrainSettings]) -> list[str]:
    """The settings that mean something only where there is a refresh."""
    return [name for name in cls.model_fields if name.startswith("refresh_") and name != "refresh_every"]


class PretrainSettings(LoopSettings):
    """Pre-train an encoder on passages and their contexts: masked tokens, Condenser, coCondenser or CoT-MAE."""

    method: Literal["mlm", "condenser", "cocondenser", "cotmae"] = setting(..., "what is learned beside masked tokens, and by which head")
    model: str = artifact("model", "the encoder's folder to start from, or 'tiny': a small one from scratch")
    corpus: str = artifact("corpus", "the passages; with doc_id for context passage")
    generated: str | None = artifact("generated", "what `generate` wrote for the corpus; for context query and mixed", None)
    dropout: float | None = setting(None, "dropout of the encoder and of the head; by default as the model folder says", ge=0, lt=1)
    batch_size: int = setting(64, "passages of one optimiser step, over all workers", ge=1)
    accumulation: int = setting(1, "parts that a step is made of, one after another; cocondenser compares the texts of a part", ge=1)
    context: Literal["passage", "query", "mixed"] | None = setting(
        None,
        "cocondenser, cotmae (which need it): another passage of the document, one of the passage's queries, drawn anew each time, or either",
    )
    mask: float | None = setting(None, "share of a passage's tokens to hide; by default 0.15, and 0.3 for cotmae", gt=0, lt=1)
    context_mask: float | None = setting(None, "the same of a context; by default 0.15, and 0.45 for cotmae", gt=0, lt=1)
    layers: int = setting(2, "layers of Condenser's head, or of CoT-MAE's decoder; they are dropped at the end", ge=1)
    skip_from: int | None = setting(
        None, "condenser, cocondenser: the layer that the head has the tokens' states from; by default half of all", ge=0
    )
    temperature: float = setting(1.0, "cocondenser: tau, scores of the contrastive loss are divided by it", gt=0)
    passage_length: int = setting(144, "most tokens of a passage, and of a context", ge=8)

    # what the loop asks of every training
    dev_qrels: ClassVar[None] = None
    dev_every: ClassVar[int] = 0
    positives: ClassVar[int] = 1
    negatives: ClassVar[int] = 0
    draw_positives: ClassVar[bool] = False

    @property
    def objective(self) -> str:
        """The method, by which the loop finds its objective."""
        return self.method

    @model_validator(mode="after")
    def _fits(self) -> Self:
        paired = self.method in ("cocondenser", "cotmae")
        if not paired:
            self._refuse_given(["context", "context_mask", "generated"], f"method {self.method}")
        elif self.context is None:
            raise ValueError(f"method {self.method} needs context: passage, query or mixed")
        if self.context == "passage":
            self._refuse_given(["generated"], "context passage")
        elif paired and self.generated is None:
            raise ValueError(f"context {self.context} needs generated, the queries that `raydense generate` wrote")
        if self.method == "mlm":
            self._refuse_given(["layers"], "method mlm")
        if self.method not in ("condenser", "cocondenser"):
            self._refuse_given(["skip_from"], f"method {self.method}")
        if self.method != "cocondenser":
            self._refuse_given(["temperature"], f"method {self.method}")
        for name, share, of_cotmae in (("mask", 0.15, 0.3), ("context_mask", 0.15, 0.45)):
            if getattr(self, name) is None and (paired or name == "mask"):
                self.__dict__[name] = of_cotmae if self.method == "cotmae" else share
        return self


Training = TrainSettings | PretrainSettings
