"""One typed model per stage: at once the YAML schema of a recipe, the flags of the command line, their help, and the validation.

Nothing here imports Ray, torch or FAISS. A field made with `artifact` names an input folder; one made with `resource` says how
the work is spread, not what comes out, and so is no part of the output's fingerprint.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, ValidationInfo, field_validator, model_validator

from raydense import storage
from raydense.errors import InputError, did_you_mean


def artifact(kind: str, help: str, default: Any = ..., **limits: Any) -> Any:
    """A field that names an input: a folder of `kind`."""
    return Field(default, description=help, json_schema_extra={"artifact": kind}, **limits)


def resource(default: Any, help: str, **limits: Any) -> Any:
    """A field that says how the work is spread; the output is the same whatever it is."""
    return Field(default, description=help, json_schema_extra={"resource": True}, **limits)


def setting(default: Any, help: str, **limits: Any) -> Any:
    """A field that shapes the output."""
    return Field(default, description=help, **limits)


def _words(value: object) -> object:
    return value.replace(",", " ").split() if isinstance(value, str) else value


def _place(item: str) -> str:
    """A path, or NAME=path, as `storage.checked` gives it."""
    name, path = storage.named(item)
    return f"{name}={storage.checked(path)}" if name else storage.checked(path)


def _number_or_auto(value: object) -> object:
    whole = str(value).isdigit() and not isinstance(value, bool)
    if value != "auto" and not whole:
        raise ValueError("must be a whole number of at least 0, or auto")
    return value


Words = Annotated[list[str], BeforeValidator(_words)]
Pair = Annotated[tuple[int, int], BeforeValidator(_words)]
NumberOrAuto = Annotated[int | Literal["auto"], BeforeValidator(_number_or_auto)]


class BaseSettings(BaseModel):
    """What a person gives, checked: unknown keys are refused, and the first fault is one line."""

    model_config = ConfigDict(extra="forbid", validate_default=True, allow_inf_nan=False, protected_namespaces=())

    @field_validator("*", mode="before")
    @classmethod
    def _path_as_text(cls, value: object, info: ValidationInfo) -> object:
        """Artifacts and paths may stand where a folder is named; one of a store is looked over before anything repeats it."""
        items = [os.fspath(item) if isinstance(item, os.PathLike) else item for item in (value if isinstance(value, list) else [value])]
        if info.field_name == "output" or info.field_name in cls.inputs():
            items = [_place(item) if isinstance(item, str) else item for item in items]
        return items if isinstance(value, list) else items[0]

    def located(self) -> Self:
        """A copy whose inputs are absolute paths, for workers: they may have another working directory."""
        paths = {n: v for n in self.inputs() if isinstance(v := getattr(self, n), str) and not (n == "model" and v == "tiny")}
        return self.model_copy(update={n: storage.absolute(v) for n, v in paths.items()})

    @classmethod
    def read(cls, values: dict[str, Any], where: str = "") -> Self:
        """Validate `values`; the first fault as an InputError that names the key and the fix."""
        try:
            return cls.model_validate(values)
        except ValidationError as error:
            raise _first_fault(cls, error, where) from None

    @classmethod
    def inputs(cls) -> dict[str, str]:
        """The fields that name input artifacts, with the kind of each."""
        extras = {n: f.json_schema_extra for n, f in cls.model_fields.items()}
        return {n: str(e["artifact"]) for n, e in extras.items() if isinstance(e, dict) and "artifact" in e}

    def _refuse_given(self, names: Iterable[str], by: str) -> None:
        """ValueError where some of `names` were given, which mean nothing `by` another setting's value."""
        given = [name for name in names if name in self.model_fields_set and getattr(self, name) is not None]
        if given:
            raise ValueError(f"{by} does not use {', '.join(given)}: leave {'it' if len(given) == 1 else 'them'} out")


class Settings(BaseSettings):
    """What every stage has: an output folder.

    `newer` names settings that came after outputs had been made without them, which their default leaves as they are.
    """

    newer: ClassVar[tuple[str, ...]] = ()
    output: str = setting(..., "the folder to make; it appears whole or not at all", min_length=1)

    def shaping(self) -> dict[str, Any]:
        """The settings that shape the output: neither its folder, nor inputs, nor resources, nor newer ones that are the default."""
        fields = type(self).model_fields
        kept = {n for n, f in fields.items() if n != "output" and not isinstance(f.json_schema_extra, dict)}
        given = self.model_dump(mode="json", include=kept)
        return {name: value for name, value in given.items() if name not in self.newer or value != fields[name].default}

    def left_open(self) -> set[str]:
        """The settings and inputs that these do not say, and the stage takes from elsewhere when it runs; none of most stages."""
        return set()


def _first_fault(cls: type[BaseSettings], error: ValidationError, where: str) -> InputError:
    fault = error.errors()[0]
    key = ".".join(str(part) for part in fault["loc"])
    flags = where == "--"
    name = f"--{key.replace('_', '-')}" if flags and key else f"{where}{key}" if key else "" if flags else where.rstrip(".: ")
    if fault["type"] == "extra_forbidden":
        return InputError("unknown key", name, did_you_mean(key, cls.model_fields))
    if fault["type"] == "missing":
        return InputError("missing", name, f"give it: {cls.model_fields[key].description}")
    message = fault["msg"].removeprefix("Value error, ")
    given = f" (given: {fault['input']!r})" if key else ""
    field = cls.model_fields.get(str(fault["loc"][0])) if fault["loc"] else None
    return InputError(f"{message[:1].lower()}{message[1:]}{given}", name, f"it is: {field.description}" if field else "")


class Spread(BaseModel):
    """How an actor pool is spread; part of the stages that run on Ray Data."""

    concurrency: Pair = resource(
        (1, 0), "fewest and most model actors, as MIN,MAX; MAX 0 means as many as there is room for, on a cluster one a file: it may grow"
    )
    gpus_per_actor: float = resource(-1.0, "GPUs of one actor; -1 takes one where the cluster has GPUs, else none")
    cpus_per_actor: float = resource(1.0, "logical CPUs of one actor; on a cluster it uses as many cores", gt=0)
    background: bool = resource(False, "on CPUs: let all other work of the machine go first")

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        low, high = self.concurrency
        if low < 1 or (high and high < low):
            raise ValueError(f"concurrency {low},{high} must be MIN,MAX with 1 <= MIN <= MAX (or MAX 0)")
        return self


class SampleSettings(Settings):
    """Make a sample data set of any size: an invented world with confusable neighbours, paraphrase and several answers."""

    passages: int = setting(5_000, "passages to make, at least this many up to one entity's worth", ge=100)
    train_queries: int = setting(4_800, "training queries", ge=1)
    dev_queries: int = setting(300, "dev queries", ge=1)
    test_queries: int = setting(500, "test queries", ge=1)
    seed: int = setting(1, "another seed, another world", ge=0, lt=2**63)
    notes: int = setting(
        1, "passages about each entity that say one of its six facts again: with 12, most queries have three positives", ge=0, le=1_000
    )
    shard_rows: int = setting(25_000, "passages a corpus file", ge=1)


class ImportSettings(Settings):
    """Read a data set of another tool into corpus, queries, qrels, examples and runs."""

    newer = ("strict",)  # what a strict import takes, the other takes as it is

    format: Literal["beir", "msmarco", "trec", "dpr", "tevatron", "flagembedding", "ir_datasets"] = setting(..., "the family of formats")
    input: str = artifact("source", "the folder or file to read; for ir_datasets a data set id")
    corpus: str | None = artifact(
        "corpus", "the corpus that a run, qrels or examples file names passages of, where the input has none", None
    )
    shard_rows: int = setting(25_000, "passages a corpus file: also what one commit of `encode` holds", ge=1)
    strict: bool = setting(
        True,
        "refuse passages without text, and judgements of passages that the corpus lacks; else both are kept and counted, for `evaluate`: `mine` refuses such judgements",
    )


class ExportSettings(Settings):
    """Write artifacts in another tool's format."""

    format: Literal["beir", "msmarco", "trec", "dpr", "tevatron", "flagembedding", "pyserini"] = setting(..., "the family of formats")
    run: str | None = artifact("run", "the run to write", None)
    corpus: str | None = artifact("corpus", "the corpus to write, or to take texts from", None)
    queries: str | None = artifact("queries", "the queries to write, or to take texts from", None)
    qrels: str | None = artifact("qrels", "the qrels to write", None)
    examples: str | None = artifact("examples", "the training examples to write", None)
    tag: str = setting("raydense", "the name in the last column of a TREC run")


class SplitSettings(Settings):
    """Split documents into passages: whole sentences up to a number of tokens, or blocks of words."""

    corpus: str = artifact("corpus", "the documents, or passages that are too long")
    unit: Literal["tokens", "words"] = setting(
        "tokens", "whole sentences of at most so many tokens, a longer sentence cut; or blocks of so many words, as blanks separate them"
    )
    length: int = setting(0, "most tokens or words of a passage; 0 means 144 tokens (query-as-context) or 100 words (DPR)", ge=0, lt=2**31)
    model: str | None = artifact("model", "tokens: the folder whose tokenizer counts them, special tokens left out", None)
    language: str = setting("en", "tokens: whose sentences these are, as en or zh", pattern=r"^[a-z]{2,3}(-[A-Za-z]+)*$")
    shard_rows: int = setting(25_000, "passages a corpus file: also what one commit of `encode` holds", ge=1)

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if self.unit == "words":
            self._refuse_given(["model", "language"], "unit words")
        elif not self.model:
            raise ValueError("unit tokens needs model, the folder whose tokenizer counts them")
        elif self.model == "tiny":  # which names no folder, and so has no fingerprint
            raise ValueError("model tiny is what training starts from: write ./tiny for a folder of that name")
        if not self.length:
            self.__dict__["length"] = 144 if self.unit == "tokens" else 100
        return self


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

    temperature: float = setting(1.0, "retriever: tau, scores are divided by it", gt=0)
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


_PRECISION = "auto: half precision on a GPU, bf16 where it has it, else fp16"


class EncodeSettings(Settings, Spread):
    """Turn every passage of a corpus into a vector, on Ray Data, resumable file by file."""

    newer = ("precision",)

    model: str = artifact("model", "the retriever's folder")
    corpus: str = artifact("corpus", "the passages to encode")
    dtype: Literal["float16", "float32"] = setting("float16", "of the vectors")
    precision: Literal["auto", "fp32"] = setting("auto", _PRECISION)
    token_budget: int = resource(0, "tokens of one batch, padding included; 0 means what suits the device", ge=0)


class GenerateSettings(Settings, Spread):
    """Write queries for every passage of a corpus (doc2query), by nucleus sampling on Ray Data, resumable file by file."""

    model: str = artifact("model", "the generator's folder: any sequence-to-sequence model, as T5 trained for doc2query")
    corpus: str = artifact("corpus", "the passages")
    queries_each: int = setting(5, "queries of each passage", ge=1)
    top_p: float = setting(0.95, "draw from the likeliest tokens that together have this probability", gt=0, le=1)
    top_k: int = setting(25, "and from at most so many; 0 for all", ge=0)
    sampling_temperature: float = setting(1.0, "above 1 more surprising queries, below 1 more likely ones", gt=0)
    passage_prefix: str | None = setting(None, "text put before each passage; by default as the model folder says, else none")
    passage_length: int | None = setting(None, "most tokens of a passage; by default as the model folder says, else 128", ge=8)
    query_length: int | None = setting(None, "most tokens of a query; by default as the model folder says, else 64", ge=4)
    duplicates: Literal["drop", "keep"] = setting("drop", "what to do with a query that a passage has already")
    seed: int = setting(42, "of the draws; each passage has random numbers of its own", ge=0, lt=2**63)
    precision: Literal["auto", "fp32"] = setting("auto", _PRECISION)
    token_budget: int = setting(
        16_384, "tokens of one batch, read and to be written, of all queries; it shapes what rounding does to a probability", ge=1
    )


class IndexSettings(Settings):
    """Make a searchable index: FAISS over embeddings, or BM25 over a corpus."""

    kind: Literal["faiss", "bm25"] = setting(
        ..., "faiss for vectors, bm25 for words; of Chinese, Japanese and Korean, each two neighbouring characters"
    )
    embeddings: str | None = artifact("embeddings", "faiss: the vectors", None)
    corpus: str | None = artifact("corpus", "bm25: the passages", None)
    expand: str | None = artifact("generated", "bm25: queries generated for the passages, whose words they are given too", None)
    shards: int = setting(1, "parts, each held by its own actor", ge=1)
    factory: str = setting("Flat", "faiss: index factory string, as Flat, SQfp16, IVF4096,Flat or HNSW32")
    train_sample: int = setting(200_000, "faiss: vectors that a quantiser is trained on", ge=256)
    k1: float = setting(0.9, "bm25: term saturation", ge=0)
    b: float = setting(0.4, "bm25: length normalisation", ge=0, le=1)
    stemmer: str = setting("english", "bm25: Snowball stemmer (english is Porter2), or none")
    stopwords: str = setting("en", "bm25: stop words of this language, or none")
    seed: int = setting(42, "of the sample that a quantiser is trained on", ge=0, lt=2**63)
    concurrency: int = resource(
        0, "shards made at once; 0 means as many as there is room for, on a cluster all that are left: it may grow", ge=0
    )

    @model_validator(mode="after")
    def _fits(self) -> Self:
        needed, other = ("embeddings", "corpus") if self.kind == "faiss" else ("corpus", "embeddings")
        if not getattr(self, needed):
            raise ValueError(f"kind {self.kind} needs {needed}")
        if getattr(self, other):
            raise ValueError(f"kind {self.kind} does not take {other}")
        if self.kind == "faiss":
            self._refuse_given(["expand"], "kind faiss")
        others = ("factory", "train_sample") if self.kind == "bm25" else ("k1", "b", "stemmer", "stopwords")
        self._refuse_given(others, f"kind {self.kind}")
        return self

    def shaping(self) -> dict[str, Any]:
        """As of every stage, but for the seed of bm25: a recipe gives its own to every stage that has one, and nothing is drawn there."""
        return {name: value for name, value in super().shaping().items() if (self.kind, name) != ("bm25", "seed")}


class Pool(BaseModel):
    """How an index is searched by a pool of shard actors; part of the stages that search."""

    search_params: str = setting("", "FAISS search parameters, as nprobe=32 or efSearch=128")
    replicas: int = resource(1, "actors of each shard", ge=1)
    threads: int = resource(0, "threads of a shard actor; 0 shares the cores between the actors of a machine", ge=0)
    gpu: bool = resource(False, "hold the shards on GPUs (needs faiss-gpu)")


class SearchSettings(Settings, Pool):
    """Search an index with a pool of shard actors; the best k passages of each query become a run."""

    newer = ("drop_identical",)

    index: str | None = artifact("index", "the index; with pool, by default the one that the pool answers from", None)
    queries: str = artifact("queries", "the queries")
    model: str | None = artifact("model", "the retriever that the embeddings were made with; not for bm25", None)
    qrels: str | None = artifact("qrels", "search only the queries judged here", None)
    k: int = setting(100, "passages of each query", ge=1)
    drop_identical: bool = setting(
        False,
        "leave out a passage that has the query's own id and is not judged (with qrels), as BEIR does: in ArguAna and Quora it is the query",
    )
    block: int = setting(2_048, "queries of one commit, sent at once: each makes a file, and bounds the memory", ge=1)
    pool: str | None = resource(None, "the name of a pool that is there (`raydense pool start`), to ask in place of one of its own")
    background: bool = resource(False, "encode the queries on the CPU: the GPU of this machine is for other work")

    @model_validator(mode="after")
    def _asks_one(self) -> Self:
        if self.pool:
            self._refuse_given(["search_params", "replicas", "threads", "gpu"], "a search by pool")
        elif not self.index:
            raise ValueError("a search needs index, or pool")
        return self

    def left_open(self) -> set[str]:
        """What a pool that is asked knows of itself: its search parameters, and its index where none is given."""
        return {"search_params", *(() if self.index else ("index",))} if self.pool else set()


class ServeSettings(BaseSettings):
    """Answer queries over HTTP: a Ray Serve application over a search pool, which encodes the queries of many callers together."""

    index: str | None = artifact("index", "the index to answer from, by a pool that is started for it; or give pool", None)
    pool: str | None = resource(None, "the name of a pool that is there (`raydense pool start`), to ask in place of one of its own")
    model: str | None = artifact("model", "the retriever that the embeddings were made with; not for bm25", None)
    corpus: str | None = artifact("corpus", "the passages of the index, where callers may ask for their titles and texts", None)
    search_params: str = setting("", "FAISS search parameters, as nprobe=32 or efSearch=128")
    shard_replicas: int = resource(1, "actors of each shard", ge=1)
    replicas: int = resource(1, "processes that take requests, each with a query encoder", ge=1)
    gpus_per_replica: float = resource(0.0, "GPUs of one of them, which may be a fraction", ge=0)

    @model_validator(mode="after")
    def _asks_one(self) -> Self:
        if self.pool:
            self._refuse_given(["index", "search_params", "shard_replicas"], "serving by pool")
        elif not self.index:
            raise ValueError("serving needs index, or pool")
        return self


class FilterSettings(Settings, Pool):
    """Keep a generated query only where a search with it finds its own passage again (round-trip consistency)."""

    generated: str = artifact("generated", "the queries, as `generate` wrote them or as `filter` kept them")
    corpus: str = artifact("corpus", "the passages that they were written for")
    index: str = artifact("index", "an index of this corpus")
    model: str | None = artifact("model", "the retriever that the embeddings were made with; not for bm25", None)
    k: int = setting(10, "keep a query whose passage, or one of the same text, is among the first so many", ge=1)
    seed: int = setting(42, "of the sample to read", ge=0, lt=2**63)


class MineSettings(Settings):
    """Make examples from a run: positives, and hard negatives that are never a positive of the query, nor a passage of the same text."""

    run: str = artifact("run", "the run to take negatives from")
    corpus: str = artifact("corpus", "the passages")
    queries: str = artifact("queries", "the queries")
    qrels: str = artifact("qrels", "the positives; queries not judged here get no example")
    labels: str | None = artifact("examples", "hybrid: what `label` made of the same queries", None)
    strategy: Literal["hard", "hybrid"] = setting(
        "hard", "negatives of the run alone (hard), or also pseudo-positives and confident negatives of the labels (hybrid)"
    )
    negatives: int = setting(8, "hard negatives of each query, of both parts together where there are two", ge=1)
    denoised: int | None = setting(None, "hybrid: how many of the negatives are the labels' confident ones; by default half", ge=0)
    depth: int = setting(200, "ranks of the run to draw from", ge=1)
    skip: int = setting(0, "first ranks to leave out", ge=0)
    pick: Literal["random", "top"] = setting("random", "draw from the ranks at random, or take the highest")
    shortage: Literal["keep", "drop", "fail"] = setting(
        "keep", "what to do with a query that has fewer negatives than asked: keep what there is, drop it, or stop"
    )
    seed: int = setting(42, "of the draw", ge=0, lt=2**63)

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if self.strategy == "hard":
            self._refuse_given(["labels", "denoised"], "strategy hard")
            return self
        if not self.labels:
            raise ValueError("strategy hybrid needs labels, the examples that `raydense label` made")
        if self.denoised is None:
            self.__dict__["denoised"] = self.negatives // 2
        elif self.denoised > self.negatives:
            raise ValueError(f"denoised {self.denoised} is more than the {self.negatives} negatives that it is a part of")
        return self


class LabelSettings(Settings, Spread):
    """Label candidates with a re-ranker as the teacher: pseudo-positives and confident negatives, of judged and of other queries."""

    run: str = artifact("run", "the candidates")
    model: str | None = artifact(
        "model", "the teacher, a trained re-ranker; without it the run is one of `rerank`, whose scores are the teacher's", None
    )
    corpus: str = artifact("corpus", "the passages")
    queries: str = artifact("queries", "the queries")
    qrels: str | None = artifact("qrels", "positives that stay whatever the teacher says; other queries have only what it finds", None)
    depth: int = setting(50, "passages of each query to score", ge=1)
    s_pos: float = setting(0.9, "a probability above it makes a pseudo-positive", ge=0, le=1)
    s_neg: float = setting(0.1, "a probability below it makes a confident negative; what lies between is left out", ge=0, le=1)
    negatives: int = setting(8, "most confident negatives of each query, drawn at random", ge=1)
    shortage: Literal["keep", "drop", "fail"] = setting(
        "keep", "what to do with a query that has fewer negatives than asked: keep what there is, drop it, or stop"
    )
    seed: int = setting(42, "of the draw, and of the sample to read", ge=0, lt=2**63)
    token_budget: int = resource(0, "tokens of one batch, padding included; 0 means what suits the device", ge=0)
    block: int = setting(256, "queries that are scored and committed together", ge=1)

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if self.s_neg >= self.s_pos:
            raise ValueError(f"s_neg {self.s_neg} must be below s_pos {self.s_pos}")
        return self


class RerankSettings(Settings, Spread):
    """Order the first passages of a run anew, with a cross-encoder on Ray Data."""

    newer = ("precision",)

    model: str = artifact("model", "the re-ranker's folder")
    run: str = artifact("run", "the run to order anew")
    corpus: str = artifact("corpus", "the passages")
    queries: str = artifact("queries", "the queries")
    depth: int = setting(100, "passages of each query to score; the rest is left out", ge=1)
    precision: Literal["auto", "fp32"] = setting("auto", _PRECISION)
    token_budget: int = resource(0, "tokens of one batch, padding included; 0 means what suits the device", ge=0)
    block: int = setting(256, "queries of one commit: each makes a file", ge=1)


class EvaluateSettings(Settings):
    """Measure runs against judgements, or by the answers that they hold (give run and qrels, run and answers, or suite).

    Writes metrics.json and report.html.
    """

    run: Words = artifact(
        "run", "the runs, each a folder or NAME=folder (a name has no slash); the first is what the others are compared with", min_length=1
    )
    qrels: str | None = artifact("qrels", "the judgements; without them answers alone are measured, over all queries that have some", None)
    metrics: Words = setting(["nDCG@10", "RR@10", "R@50", "R@100"], "as ir-measures names them")
    queries: str | None = artifact("queries", "for example queries in the report, and for their answers", None)
    corpus: str | None = artifact("corpus", "for the texts in the report, and for answer accuracy", None)
    models: Words = artifact("model", "trained models whose curves the report draws", [])
    answers: Literal["none", "token", "regex"] = setting("none", "also measure whether the first k passages hold an answer of the query")
    answer_k: Annotated[list[Annotated[int, Field(ge=1)]], BeforeValidator(_words)] = setting(
        [1, 5, 20, 100], "the k of that measure", min_length=1
    )
    title: str = setting("raydense report", "the headline of the report")

    @model_validator(mode="after")
    def _measures(self) -> Self:
        if self.qrels is None:
            if self.answers == "none":
                raise ValueError("nothing to measure by: give qrels; or answers token or regex, with queries that have answers, and corpus")
            self._refuse_given(["metrics"], "an evaluation without qrels")
        return self


class SuiteSettings(Settings):
    """With --suite: measure a retriever, or BM25, on every test set of a folder; one table, and the mean of all.

    Each set is imported, encoded, indexed, searched and measured in a folder of its own; stopped, it goes on where it was.
    """

    output: str = setting(..., "the folder for the outputs of all sets, and for the table", min_length=1)
    suite: str = artifact(
        "suite",
        "the folder of the test sets, at any depth: BEIR folders, or what `raydense import` made; those of a sub-folder count as one",
    )
    model: str | None = artifact("model", "faiss: the retriever", None)
    reranker: str | None = artifact("model", "orders the first passages of each query anew, and is measured too", None)
    sets: Words = setting([], "only these sets, or those below these sub-folders; by default all")
    splits: Words = setting(["test"], "the qrels to measure against; a set that has some of several is measured on those", min_length=1)
    kind: Literal["faiss", "bm25"] = setting("faiss", "the retriever's vectors, or BM25, which needs no model")
    metrics: Words = setting(["nDCG@10", "R@100"], "as ir-measures names them, as RR(rel=2)@10", min_length=1)
    k: int = setting(100, "passages of each query; the query itself, where it stands in the corpus, is none", ge=1)
    depth: int = setting(100, "of these, how many the re-ranker scores; the rest is left out, also of what R@100 counts", ge=1)
    factory: str = setting("Flat", "faiss: index factory string, as Flat, SQfp16 or HNSW32")
    shards: int = setting(1, "parts of each index, each held by its own actor", ge=1)

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if self.kind == "bm25":
            self._refuse_given(["model", "factory"], "kind bm25")
        elif not self.model:
            raise ValueError("a suite needs model, the retriever to measure, or kind bm25")
        if not self.reranker:
            self._refuse_given(["depth"], "a suite without a reranker")
        return self
