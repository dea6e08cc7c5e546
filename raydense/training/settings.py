"""What the settings of all training methods have in common; a method's own settings are in its file.

`TrainSettings(objective="pair", alpha=0.2)` and `TrainSettings.read` make the method's own, here `Pair.Settings`.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self

from pydantic import model_validator

from raydense.errors import InputError
from raydense.settings import BaseSettings, Folder, FolderOrNone, NumberOrAuto, Settings, artifact, group, resource, setting

if TYPE_CHECKING:
    from raydense.training.method import Method

# Where the methods that come with raydense are, by verb: a file for each.
METHODS = {"train": "raydense.training.methods", "pretrain": "raydense.training.methods.pretraining"}


def built_in(verb: str) -> list[str]:
    """The names of the methods that come with raydense, as their files say."""
    folder = Path(__file__).parent.joinpath(*METHODS[verb].split(".")[2:])
    return sorted(file.stem.replace("_", "-") for file in folder.glob("[a-z]*.py"))


def _listed(verb: str) -> str:
    return f"{', '.join(built_in(verb))}, the name that an installed package gives to its own, or package.module:Class"


class EngineSettings(BaseSettings):
    """What runs forward, backward and step."""

    name: Literal["deepspeed", "ddp"] = setting("deepspeed", "DeepSpeed, or PyTorch's DistributedDataParallel")
    zero: int = setting(1, "DeepSpeed's ZeRO stage, 0 to 3", ge=0, le=3)

    @model_validator(mode="after")
    def _fits_engine(self) -> Self:
        if self.name == "ddp":
            self._refuse_given(["zero"], "engine ddp")
        return self


class DevSettings(BaseSettings):
    """What is measured while a model trains."""

    qrels: Folder = artifact("qrels", "judgements of the dev queries")
    run: FolderOrNone = artifact("run", "candidates of the dev queries; what a re-ranker orders, and hard candidates for a retriever", None)
    every: int = setting(0, "steps between dev measurements; 0 means ten over the whole run", ge=0)
    passages: int = setting(5_000, "passages that the dev queries are searched in, their positives included", ge=10)


class RefreshSettings(BaseSettings):
    """How new hard negatives are found while a retriever trains."""

    every: float = setting(..., "find them every so many steps, or epochs", gt=0)
    unit: Literal["steps", "epochs"] = setting("steps", "what `every` counts")
    mode: Literal["sync", "async"] = setting(
        "sync", "the training waits for the new negatives, and lends its GPUs; or goes on, and takes them a period later"
    )
    qrels: FolderOrNone = artifact(
        "qrels", "passages judged relevant here are never new negatives, as the positives of the examples never are", None
    )
    fraction: float = setting(1.0, "share of the queries that get new negatives, drawn anew each time; the others keep theirs", gt=0, le=1)
    only_changed: bool = setting(
        False, "new negatives only among passages whose rank is another than at the refresh before; the others stay what they are"
    )
    negatives: int = setting(8, "new negatives of each query", ge=1)
    depth: int = setting(200, "ranks to draw them from", ge=1)
    skip: int = setting(0, "first ranks to leave out", ge=0)
    reranker: FolderOrNone = artifact("model", "a trained re-ranker, which denoises: only what it is sure is irrelevant stays", None)
    s_neg: float = setting(0.1, "with it: the probability that a new negative must be below", gt=0, lt=1)
    factory: str = setting("Flat", "FAISS index factory string of the index that is searched")
    search_params: str = setting("", "FAISS search parameters of it, as nprobe=32 or efSearch=128")
    shards: int = setting(1, "parts of that index, each held by its own actor", ge=1)

    @model_validator(mode="after")
    def _fits_itself(self) -> Self:
        if self.unit == "steps" and self.every % 1:
            raise ValueError(f"refresh.every {self.every:g} steps is no whole number: give one, or refresh.unit epochs")
        if self.skip >= self.depth:
            raise ValueError(f"refresh.skip {self.skip} leaves nothing of refresh.depth {self.depth}")
        if self.only_changed:
            self._refuse_given(["fraction"], "refresh.only_changed, which compares the ranks of all queries,")
        if self.reranker is None:
            self._refuse_given(["s_neg"], "a refresh without reranker")
        else:
            self._refuse_given(["skip"], "a refresh with reranker")
        return self


_GROUPS: dict[str, type[BaseSettings]] = {"dev": DevSettings, "refresh": RefreshSettings}
_RENAMED = {f"{name}_{key}": f"{name}.{key}" for name, keys in _GROUPS.items() for key in keys.model_fields}


class LoopSettings(Settings):
    """What every training has: how long, with which optimiser, on which engine and workers.

    A class of settings is one method's (`trains`), or stands for those of the method that the key `chosen_by` names.
    """

    trains: ClassVar[type[Method] | None] = None
    verb: ClassVar[str]
    renamed: ClassVar[dict[str, str]] = {"zero": "engine.zero"}

    model: Folder = artifact(
        "model", "the model folder to start from (Hugging Face or sentence-transformers), or 'tiny': a small one from scratch"
    )
    corpus: Folder = artifact("corpus", "the passages")
    dropout: float | None = setting(
        None, "dropout of the model, in joint training of the re-ranker alone; by default as the model folder says", ge=0, lt=1
    )
    epochs: float = setting(1.0, "passes over the examples", gt=0)
    max_steps: int = setting(0, "stop after this many steps; 0 means after the epochs", ge=0)
    batch_size: int = setting(64, "queries of one optimiser step, over all workers", ge=1)
    accumulation: int = setting(1, "parts that a step is made of, one after another; in-batch negatives come from the same part", ge=1)
    lr: float = setting(2e-5, "highest learning rate", gt=0)
    warmup: float = setting(0.1, "share of the steps that the learning rate rises for, before it falls to zero linearly", ge=0, lt=1)
    optimizer: Literal["adamw", "lamb"] = setting("adamw", "lamb for very large batches; it needs engine.name ddp")
    weight_decay: float = setting(0.01, "weight decay; biases and layer norms have none", ge=0)
    clip: float = setting(1.0, "longest gradient; 0 leaves it as it is", ge=0)
    precision: Literal["auto", "fp32", "bf16", "fp16"] = setting("auto", "auto: bf16 where the GPU has it, fp16 on older GPUs, fp32 on CPU")
    seed: int = setting(42, "of the order of examples, the draw of negatives, new weights and dropout", ge=0, lt=2**63)

    engine: EngineSettings = group("what runs forward, backward and step", EngineSettings)
    workers: int = resource(
        1,
        "training workers; batches are the same for any number, and losses, but for what dropout draws;"
        " a run that was stopped may go on with another number, but not with ZeRO 3",
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
    def _fits_workers(self) -> Self:
        if self.batch_size % (self.accumulation * self.workers):
            raise ValueError(f"batch_size {self.batch_size} must divide by workers x accumulation = {self.workers} x {self.accumulation}")
        if self.engine.name == "deepspeed" and self.optimizer == "lamb":
            raise ValueError("lamb needs the norm of each weight, and DeepSpeed keeps weights in flat pieces: use engine.name ddp")
        return self

    @classmethod
    def chosen(cls, values: dict[str, Any], where: str = "") -> type[Self]:
        """The settings class of the method that is named; InputError where there is none, or `values` have keys of other methods."""
        if cls.trains is not None:
            return cls
        own = super().chosen(values, where)
        unknown = [key for key in values if key not in own.model_fields and key not in own.renamed]
        if own is not cls and (unused := sorted(_of_other_methods(own) & set(unknown))):
            what = f"{cls.chosen_by} {values[cls.chosen_by]} does not use {', '.join(unused)}"
            raise InputError(f"{what}: leave {'it' if len(unused) == 1 else 'them'} out", "" if where == "--" else where.rstrip(".: "))
        return own

    @classmethod
    def read(cls, values: dict[str, Any], where: str = "") -> Self:
        """As `BaseSettings.read`; the method is asked for first, since it decides which other keys there are."""
        if cls.trains is None and values.get(cls.chosen_by) is None:
            raise InputError("missing", f"{where}{cls.chosen_by}", f"give it: {cls.model_fields[cls.chosen_by].description}")
        return super().read(values, where)

    @classmethod
    def _named_by(cls, value: Any, where: str) -> type[Self]:
        from raydense.training.registry import load_method

        return load_method(cls.verb, str(value), where).Settings  # type: ignore[return-value]

    @classmethod
    def refuse_unknown(cls, key: str, where: str) -> None:
        """As `BaseSettings.refuse_unknown`; a key of another method is known, so that a sweep over methods can leave it out."""
        if key.partition(".")[0] not in _of_other_methods(cls):
            super().refuse_unknown(key, where)

    @model_validator(mode="before")
    @classmethod
    def _names_its_method(cls, values: Any) -> Any:
        if cls.trains is None or not isinstance(values, dict):
            return values
        name = values.get(cls.chosen_by)
        if name is None:
            return {**values, cls.chosen_by: cls.trains.name or f"{cls.trains.__module__}:{cls.trains.__qualname__}"}
        from raydense.training.registry import load_method

        if load_method(cls.verb, name) is not cls.trains:
            raise ValueError(f"these are the settings of {cls.chosen_by} {cls.trains.name}, not of {name}")
        return values


def _of_other_methods(own: type[LoopSettings]) -> set[str]:
    """The keys that methods which come with raydense have."""
    from raydense.training.registry import built_in_methods

    return {key for method in built_in_methods(own.verb) for key in method.Settings.model_fields}


class TrainSettings(LoopSettings):
    """Train a retriever, a re-ranker, both together, or a query generator, on Ray Train, with DeepSpeed or DDP."""

    verb = "train"
    chosen_by = "objective"
    newer = ("more_examples", "refresh.only_changed", "refresh.search_params", "adapter")
    renamed = LoopSettings.renamed | _RENAMED

    objective: str = setting(..., f"the method: {_listed('train')}", examples=built_in("train"))

    if TYPE_CHECKING:  # the method's own class, which `objective` names, has more

        def __init__(self, *, objective: str, **settings: Any) -> None: ...

    queries: Folder = artifact("queries", "the queries that the examples name")
    examples: Folder = artifact(
        "examples or qrels", "positives and hard negatives of each training query; or qrels, where no hard negatives are needed"
    )
    more_examples: FolderOrNone = artifact(
        "examples",
        "more of them, as with negatives that another retriever found: a query of both is learned twice an epoch, with either's",
        None,
    )
    draw_positives: bool = setting(
        True, "of a query with more, draw anew each epoch; false takes the first ones listed: DPR's files have the gold passage first"
    )


class NegativesSettings(BaseSettings):
    """Of methods that learn from hard negatives."""

    negatives: int = setting(1, "hard negatives of each query at each step, drawn anew each epoch", ge=0)


class MeasuredSettings(BaseSettings):
    """Of methods that measure MRR@10 while they train."""

    dev: DevSettings | None = group("measure MRR@10 while it trains, and keep the best checkpoint")


class VectorSettings(BaseSettings):
    """How a retriever turns texts into vectors, and scores into shares."""

    temperature: float | None = setting(
        None, "tau, scores are divided by it; by default 0.05 where vectors have length 1 (normalize), else 1.0", gt=0
    )
    shared: bool | None = setting(
        None, "one encoder for queries and passages; false trains two; by default as the model folder says, else one"
    )
    pooling: str | None = setting(
        None, "how token states become one vector: cls, mean, lasttoken (of decoders), ...; by default as the model folder says, else mean"
    )
    adapter: str | None = setting(
        None,
        "a new adapter is all that learns, as lora:rank=16,alpha=32; it is merged into the saved weights; by default all weights learn",
    )
    normalize: bool | None = setting(None, "scale vectors to length 1; by default as the model folder says, else no")
    query_prefix: str | None = setting(None, "text put before each query; by default as the model folder says")
    passage_prefix: str | None = setting(None, "text put before each passage; by default as the model folder says")
    query_length: int | None = setting(None, "most tokens of a query; by default as the model folder says, else 32", ge=4)
    passage_length: int | None = setting(None, "most tokens of a passage; by default as the model folder says, else 128", ge=8)

    def left_open(self) -> set[str]:
        """The temperature where none is given: it follows the model, and the output records it."""
        return {"temperature"} if self.temperature is None else set()


class PairSettings(BaseSettings):
    """How a re-ranker reads a query with a passage, and learns from labels."""

    loss: Literal["listwise", "pointwise"] = setting("listwise", "over a query's list, or each passage by itself")
    pair_length: int | None = setting(None, "most tokens of a query with a passage; by default as the model folder says, else 128", ge=8)


class RefreshedSettings(BaseSettings):
    """Of methods whose retriever can find its own hard negatives while it trains."""

    refresh: RefreshSettings | None = group("let the retriever, as it is then, find new hard negatives while it trains")

    @model_validator(mode="after")
    def _fits_refresh(self) -> Self:
        if self.refresh is None:
            return self
        self._refuse_given(["more_examples"], "a training with refresh, which makes the negatives anew,")
        negatives = getattr(self, "negatives", 0)
        if not 1 <= negatives <= self.refresh.negatives:
            raise ValueError(f"refresh needs 1 <= negatives <= refresh.negatives, not {negatives} and {self.refresh.negatives}")
        return self


def refresh_of(settings: LoopSettings) -> RefreshSettings | None:
    """The settings of a training's refresh, where it has one."""
    return settings.refresh if isinstance(settings, RefreshedSettings) else None


class PretrainSettings(LoopSettings):
    """Pre-train an encoder on passages and their contexts: masked tokens, Condenser, coCondenser or CoT-MAE."""

    verb = "pretrain"
    chosen_by = "method"

    method: str = setting(..., f"the method: {_listed('pretrain')}", examples=built_in("pretrain"))

    if TYPE_CHECKING:  # the method's own class has more

        def __init__(self, *, method: str, **settings: Any) -> None: ...

    model: Folder = artifact("model", "the encoder's folder to start from, or 'tiny': a small one from scratch")
    corpus: Folder = artifact("corpus", "the passages; with doc_id for context passage")
    dropout: float | None = setting(None, "dropout of the encoder and of the head; by default as the model folder says", ge=0, lt=1)
    batch_size: int = setting(64, "passages of one optimiser step, over all workers", ge=1)
    accumulation: int = setting(1, "parts that a step is made of, one after another; cocondenser compares the texts of a part", ge=1)
    mask: float = setting(0.15, "share of a passage's tokens to hide", gt=0, lt=1)
    passage_length: int = setting(144, "most tokens of a passage, and of a context", ge=8)


class ContextSettings(BaseSettings):
    """Of methods that read a passage together with a context of it."""

    context: Literal["passage", "query", "mixed"] = setting(
        ..., "another passage of the document, one of the passage's queries, drawn anew each time, or either"
    )
    generated: FolderOrNone = artifact("generated", "what `generate` wrote for the corpus; for context query and mixed", None)
    context_mask: float = setting(0.15, "share of a context's tokens to hide", gt=0, lt=1)

    @model_validator(mode="after")
    def _fits_context(self) -> Self:
        if self.context == "passage":
            self._refuse_given(["generated"], "context passage")
        elif self.generated is None:
            raise ValueError(f"context {self.context} needs generated, the queries that `raydense generate` wrote")
        return self
