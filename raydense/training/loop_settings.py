"""The settings that all trainings have in common, and how they become the class of the method that they name.

`TrainSettings(objective="pair", alpha=0.2)` and `TrainSettings.read` make the method's own class, here `Pair.Settings`.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, ClassVar, Literal, Self

from pydantic import model_validator

from raydense.errors import InputError
from raydense.extensions.code_digest import code_of
from raydense.forecast import Forecast, Known
from raydense.settings import BaseSettings, Folder, NumberOrAuto, Settings, artifact, group, resource, setting
from raydense.training.registry import built_in_methods, load_method


class EngineSettings(BaseSettings):
    """What runs forward, backward and step."""

    name: Literal["deepspeed", "ddp"] = setting("deepspeed", "DeepSpeed, or PyTorch's DistributedDataParallel")
    zero: int = setting(1, "DeepSpeed's ZeRO stage; with 3 no worker ever holds the whole model", ge=0, le=3)
    offload: bool = setting(
        False,
        "on GPUs, keep the optimizer's state in the machine's memory, with zero 3 the weights too, and update the weights there:"
        " for models that do not fit a GPU otherwise; slower",
    )

    @model_validator(mode="after")
    def _fits_engine(self) -> Self:
        if self.name == "ddp":
            self._refuse_given(["zero", "offload"], "engine ddp")
        if self.zero == 0 and self.offload:
            raise ValueError("zero 0 keeps the optimizer's state on the GPU: offload needs zero 1, 2 or 3")
        return self


class LoopSettings(Settings):
    """The settings of every training: how long, with which optimiser, on which engine and workers.

    A settings class belongs to one method (`trains`), or is replaced by that of the method that the key `chosen_by` names.
    """

    trains: ClassVar[type[Any] | None] = None
    verb: ClassVar[str]
    renamed: ClassVar[dict[str, str]] = {"zero": "engine.zero"}
    scratch = ("model",)
    newer: ClassVar[tuple[str, ...]] = ("schedule", "tf32", "engine.offload")

    model: Folder = artifact(
        "model", "the model folder to start from (Hugging Face or sentence-transformers), or 'tiny': a small new model"
    )
    corpus: Folder = artifact("corpus", "the passages")
    dropout: float | None = setting(
        None, "dropout of the model, in joint training only of the re-ranker; by default the model folder's", ge=0, lt=1
    )
    epochs: float = setting(1.0, "passes over the examples", gt=0)
    max_steps: int = setting(0, "make this many steps, however many epochs they are; 0: those of the epochs", ge=0)
    batch_size: int = setting(64, "queries of one optimiser step, over all workers", ge=1)
    accumulation: int = setting(
        1, "number of parts of a step, which run one after another; in-batch negatives come from the same part", ge=1
    )
    lr: float = setting(2e-5, "highest learning rate", gt=0)
    warmup: float = setting(0.1, "share of the steps in which the learning rate rises; then it falls to zero, by the schedule", ge=0, lt=1)
    schedule: Literal["linear", "cosine", "constant"] = setting(
        "linear", "how the learning rate falls: in a line, or along half a cosine; constant: it stays"
    )
    optimizer: Literal["adamw", "lamb"] = setting("adamw", "lamb for very large batches; it needs engine.name ddp")
    weight_decay: float = setting(0.01, "weight decay; biases and layer norms have none", ge=0)
    clip: float = setting(1.0, "clip the norm of the gradient to this; 0 does not clip", ge=0)
    precision: Literal["auto", "fp32", "bf16", "fp16"] = setting(
        "auto", "auto: bf16 on GPUs and CPUs that gain by it, fp16 on older GPUs, fp32 on other CPUs"
    )
    tf32: bool = setting(
        False, "on GPUs, multiply matrices of float32 with 10 bits of their mantissa, several times as fast; with precision fp32"
    )
    seed: int = setting(42, "random seed of the order of examples, the draw of negatives, new weights and dropout", ge=0, lt=2**63)

    engine: EngineSettings = group("the engine that runs forward, backward and step", EngineSettings)
    workers: int = resource(
        1,
        "training workers. Batches, and losses apart from dropout, are the same for any number, except with in-batch negatives without"
        " cross_batch. A stopped training may continue with another number, except with these and with ZeRO 3",
        ge=1,
    )
    cpus_per_worker: float = resource(1.0, "logical CPUs of one worker", gt=0)
    gpus_per_worker: int = resource(-1, "GPUs of one worker; -1: one if the cluster has GPUs at the start, otherwise none", ge=-1, le=1)
    accelerator: str = resource(
        "", "the kind of GPU that each worker gets, where those of a cluster differ, by Ray's name: V100, T4, A100, H100 and others"
    )
    micro_batch: NumberOrAuto = resource(
        0,
        "texts that one worker sends through the model at once; 0: all; auto: as many as fit in its memory. Fewer texts take less"
        " memory and more time, and give the same gradients apart from dropout",
    )
    activation_checkpointing: bool = resource(False, "compute activations again in the backward pass: less memory, a third more time")
    checkpoint_every: int = resource(
        200, "steps between checkpoints: a crash costs at most this many, and as many again while one is being uploaded", ge=1
    )
    checkpoint_minutes: float = resource(30.0, "minutes after which there is a checkpoint too; 0: by steps alone", ge=0)
    log_every: int = resource(10, "steps between log lines", ge=1)
    max_failures: int = resource(3, "worker failures to recover from before giving up; a new checkpoint resets the count", ge=0)
    track: Literal["none", "mlflow", "wandb"] = resource(
        "none", "an experiment tracker to log to as well; TensorBoard files are always written"
    )

    @model_validator(mode="after")
    def _fits_workers(self) -> Self:
        if self.batch_size % (self.accumulation * self.workers):
            raise ValueError(f"batch_size {self.batch_size} must divide by workers x accumulation = {self.workers} x {self.accumulation}")
        if self.accelerator and not self.gpus_per_worker:
            raise ValueError("accelerator names a kind of GPU, and gpus_per_worker is 0: leave one of them out")
        if self.engine.name == "deepspeed" and self.optimizer == "lamb":
            raise ValueError("lamb needs the norm of each weight, and DeepSpeed keeps weights in flat pieces: use engine.name ddp")
        if self.tf32 and self.precision != "fp32":
            raise ValueError(f"tf32 changes nothing in precision {self.precision}: leave it out, or give precision fp32")
        return self

    def outside_code(self) -> dict[str, str]:
        """As for every stage."""
        return {"method_code": self.method_code()}

    def method_code(self) -> str:
        """A digest of the code of a user's method; "" for one of raydense."""
        return code_of(self.trains) if self.trains else ""

    def forecast(self, known: Known) -> Forecast:
        """As for every stage."""
        from raydense.training.forecasts import training_forecast

        return training_forecast(self, known)

    @classmethod
    def chosen(cls, values: dict[str, Any], where: str = "") -> type[Self]:
        """The settings class of the named method; InputError if there is none, or `values` have keys of other methods."""
        if cls.trains is not None:
            return cls
        own = super().chosen(values, where)
        unknown = [key for key in values if key not in own.model_fields and key not in own.renamed]
        if own is not cls and (unused := sorted(_of_other_methods(own) & set(unknown))):
            what = f"{cls.chosen_by} {values[cls.chosen_by]} does not use {', '.join(unused)}"
            raise InputError(f"{what}: leave {'it' if len(unused) == 1 else 'them'} out", "" if where == "--" else where.rstrip(".: "))
        return own

    @classmethod
    def read(cls, values: dict[str, Any], where: str = "", flags: Collection[str] = ()) -> Self:
        """As `BaseSettings.read`; a missing method is reported first, since it decides which other keys exist."""
        if cls.trains is None and values.get(cls.chosen_by) is None:
            raise InputError("missing", f"{where}{cls.chosen_by}", f"give it: {cls.model_fields[cls.chosen_by].description}")
        return super().read(values, where, flags)

    @classmethod
    def _named_by(cls, value: Any, where: str) -> type[Self]:
        return load_method(cls.verb, str(value), where).Settings

    @classmethod
    def refuse_unknown(cls, key: str, where: str) -> None:
        """As `BaseSettings.refuse_unknown`; a key of another method counts as known, so that a sweep over methods can leave it out."""
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
        if load_method(cls.verb, name) is not cls.trains:
            raise ValueError(f"these are the settings of {cls.chosen_by} {cls.trains.name}, not of {name}")
        return values


def _of_other_methods(own: type[LoopSettings]) -> set[str]:
    """The keys of the methods that come with raydense."""
    return {key for method in built_in_methods(own.verb) for key in method.Settings.model_fields}
