"""Runs forward, backward and step: plain PyTorch with DDP, or DeepSpeed with ZeRO 0 to 3, behind one small interface.

Both get the same torch optimiser, the same clipping (set explicitly: DeepSpeed's default of 1.0 would make engines differ), and
the mean of the parts' losses over parts and workers. `backward` is called once for each part, or for each piece of a part, whose
losses add up to the part's; `step` follows the last call.
"""

from __future__ import annotations

import io
import math
import os
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from raydense.models.cpu_layers import use_cpu_layers
from raydense.models.sharded import OnAllWorkers, full_count, full_shape, is_sharded, offloading
from raydense.runtime.verbosity import limit_logs
from raydense.storage import Place
from raydense.training.lamb import Lamb
from raydense.training.loop_settings import LoopSettings
from raydense.training.outage import outlasting
from raydense.training.precision import DTYPES, Precision

_FIRST_LOSS_SCALE = 2.0**14
_TAG = "engine"  # the folder of DeepSpeed's files in a checkpoint
_BUCKET = 50_000_000  # weights: 200 MB in float32
WHOLE_AT_ONCE = 10**9  # weights of ZeRO 3 that are gathered and stay for their next use: 4 GB in float32


def learning_rate(step: int, steps: int, settings: LoopSettings) -> float:
    """The learning rate of `step` (from 0): rises linearly during the warm-up, then falls to zero at `steps`, by its schedule, or stays."""
    rising = int(settings.warmup * steps)
    if step < rising:
        return settings.lr * (step + 1) / rising
    if settings.schedule == "constant":
        return settings.lr
    left = (steps - step) / (steps - rising)
    return settings.lr * (left if settings.schedule == "linear" else (1 - math.cos(math.pi * left)) / 2)


def make_optimizer(model: nn.Module, settings: LoopSettings) -> torch.optim.Optimizer:
    """AdamW (Loshchilov and Hutter 2019) or LAMB, with no weight decay on biases and norms: the parameters of one dimension.

    AdamW is PyTorch's fused one: on CPUs it takes a sixth of the time, as it makes no tensors.
    """
    trained = [p for p in model.parameters() if p.requires_grad]
    groups = [
        {"params": [p for p in trained if len(full_shape(p)) > 1], "weight_decay": settings.weight_decay},
        {"params": [p for p in trained if len(full_shape(p)) <= 1], "weight_decay": 0.0},
    ]
    if settings.optimizer == "lamb":
        groups = [{**group, "scaled": scaled} for group, scaled in zip(groups, (True, False), strict=True)]
    groups = [group for group in groups if group["params"]]  # an adapter has matrices alone
    return Lamb(groups, lr=settings.lr) if settings.optimizer == "lamb" else torch.optim.AdamW(groups, lr=settings.lr, fused=True)


def _clipped(model: nn.Module, most: float) -> float:
    """The L2 norm of the gradient, which is then scaled down to `most`; 0 is no limit."""
    norm = nn.utils.get_total_norm([p.grad for p in model.parameters() if p.grad is not None])
    if most:
        nn.utils.clip_grads_with_norm_(model.parameters(), most, norm)
    return float(norm)


def casts(settings: LoopSettings, device: torch.device) -> bool:
    """Whether weights are cast to the precision of a training: by DeepSpeed on GPUs. Elsewhere autocast computes in it, and they stay in float32.

    On a CPU that is as fast, and nearer to float32: after four steps of MiniLM the loss differed by 0.001 of itself, of cast weights by 0.04.
    """
    return settings.engine.name == "deepspeed" and device.type != "cpu"


def offloads(settings: LoopSettings, gpu: bool) -> bool:
    """Whether what the optimizer holds is in the machine's memory and not on a GPU: a CPU has no other."""
    return gpu and settings.engine.offload


def frozen(model: nn.Module) -> set[str]:
    """The names of the weights that are not trained."""
    return {name for name, parameter in model.named_parameters(remove_duplicate=False) if not parameter.requires_grad}


def trained(model: nn.Module) -> dict[str, Tensor]:
    """The weights and buffers of `model`, without frozen weights."""
    left = frozen(model)
    return {name: value for name, value in model.state_dict().items() if name not in left}


def restore(src: dict[str, Tensor], dst: nn.Module) -> None:
    """Load what `trained` returned for another copy of the model into `dst`; its other weights stay."""
    dst.load_state_dict({**dst.state_dict(), **src})


def average_gradients(model: nn.Module) -> None:
    """Give each weight the mean of its gradients over the workers, where one that has none counts as zeros; none where no worker has one."""
    weights = [weight for weight in model.parameters() if weight.requires_grad]
    there = torch.tensor([weight.grad is not None for weight in weights], dtype=torch.int32, device=weights[0].device)
    dist.all_reduce(there, dist.ReduceOp.MAX)
    gradients = []
    for weight, has in zip(weights, there.tolist(), strict=True):
        if has and weight.grad is None:
            weight.grad = torch.zeros_like(weight)
        if weight.grad is not None:
            gradients.append(weight.grad)
    for some in _buckets(gradients):
        flat = some[0] if len(some) == 1 and some[0].is_contiguous() else torch.cat([gradient.flatten() for gradient in some])
        dist.all_reduce(flat)
        flat /= dist.get_world_size()
        if flat is some[0]:
            continue
        for gradient, mean in zip(some, flat.split([gradient.numel() for gradient in some]), strict=True):
            gradient.copy_(mean.view_as(gradient))


def _buckets(gradients: list[Tensor]) -> Iterator[list[Tensor]]:
    """In their order, in lists of at most `_BUCKET` numbers, or of one."""
    some: list[Tensor] = []
    held = 0
    for gradient in gradients:
        if some and held + gradient.numel() > _BUCKET:
            yield some
            some, held = [], 0
        some.append(gradient)
        held += gradient.numel()
    if some:
        yield some


class Engine(ABC):
    """Holds the model and its optimiser; every worker calls every method at the same time."""

    module: nn.Module
    device: torch.device
    casts = False  # whether the weights are in the precision of the training, with float32 ones in the optimizer
    trains_weights_of_loss = True  # whether weights that only the loss reads, not the model's forward, are trained

    @abstractmethod
    def forward(self, **batch: Any) -> Any:
        """The model's outputs, with the graph behind them."""

    @abstractmethod
    def backward(self, loss: Tensor) -> None:
        """Add the gradients of one part's loss."""

    @abstractmethod
    def step(self, lr: float) -> float:
        """Clip, update the weights with this learning rate, and clear the gradients; returns the gradient's norm before clipping.

        The norm is not finite, on all workers, where the gradient is not: weights and optimizer then stay as they are.
        """

    @abstractmethod
    def save(self, folder: Path) -> None:
        """Write this worker's files of a checkpoint into its own `folder`, without frozen weights."""

    @abstractmethod
    def load(self, folder: Place, workers: int) -> None:
        """Read a checkpoint that contains the files of all its `workers`, whose number may differ from now; of a bucket what is needed here."""

    def weights(self) -> dict[str, Tensor]:
        """The trained weights, unsharded, on the CPU, in fp32 if trained in it; without frozen weights; empty on other workers than worker 0."""
        if dist.is_initialized() and dist.get_rank():
            return {}
        return {name: value.detach().cpu() for name, value in trained(self.module).items()}


class TorchEngine(Engine):
    """One process, or PyTorch's DistributedDataParallel over several.

    That one averages gradients while the backward pass runs, and waits for one of each weight. With `overlaps` False, for models some of whose
    weights may get none, they are averaged after it.
    """

    def __init__(
        self, model: nn.Module, settings: LoopSettings, device: torch.device, precision: Precision, pieces: int = 1, overlaps: bool = True
    ) -> None:
        self.module, self.device, self.settings = model.to(device), device, settings
        self.optimizer = make_optimizer(self.module, settings)
        self.scaler = torch.amp.GradScaler(device.type, init_scale=_FIRST_LOSS_SCALE, enabled=precision == "fp16")
        self._mixed = None if precision == "fp32" else DTYPES[precision]
        self._run: nn.Module = self.module
        self._distributed: nn.parallel.DistributedDataParallel | None = None
        several = dist.is_initialized() and dist.get_world_size() > 1
        self._averages = several and not overlaps
        if several and overlaps:
            self._distributed = nn.parallel.DistributedDataParallel(self.module, broadcast_buffers=False, gradient_as_bucket_view=True)
            self._run = self._distributed
        if self._averages:
            for value in self.module.state_dict().values():
                dist.broadcast(value, 0)
        self._backwards, self._done = settings.accumulation * pieces, 0

    def forward(self, **batch: Any) -> Any:
        if self._distributed is not None:
            self._distributed.require_backward_grad_sync = self._done == self._backwards - 1
        with torch.autocast(self.device.type, self._mixed, enabled=self._mixed is not None):
            return self._run(**batch)

    def backward(self, loss: Tensor) -> None:
        self._done += 1
        self.scaler.scale(loss / self.settings.accumulation).backward()

    def step(self, lr: float) -> float:
        for group in self.optimizer.param_groups:
            group["lr"] = lr
        if self._averages:
            average_gradients(self.module)
        self.scaler.unscale_(self.optimizer)
        norm = _clipped(self.module, self.settings.clip)
        if math.isfinite(norm) or self.scaler.is_enabled():  # which then lowers its scale
            self.scaler.step(self.optimizer)
            self.scaler.update()
        self.optimizer.zero_grad(set_to_none=True)
        self._done = 0
        return norm

    def save(self, folder: Path) -> None:
        if not dist.is_initialized() or dist.get_rank() == 0:
            state = {"model": trained(self.module), "optimizer": self.optimizer.state_dict(), "scaler": self.scaler.state_dict()}
            torch.save(state, folder / "engine.pt")

    def load(self, folder: Place, workers: int) -> None:
        file = outlasting((folder / "engine.pt").fetch, "reading a checkpoint")
        state = torch.load(file, map_location="cpu", weights_only=True, mmap=True)  # the workers of a machine share its memory
        restore(state["model"], self.module)
        # the optimizer moves what a fresh one has on the device, and keeps the rest, as LAMB's steps, on the CPU
        self.optimizer.load_state_dict(state["optimizer"])
        for values in self.optimizer.state.values():
            values.update({name: value.clone() for name, value in values.items() if value.device.type == "cpu"})  # no longer of the file
        self.scaler.load_state_dict(state["scaler"])


class DeepSpeedEngine(Engine):
    """DeepSpeed, with the optimiser's state (ZeRO 1), gradients (2) and weights (3) shared out over the workers."""

    trains_weights_of_loss = False  # 0.19.8 loses gradients of theirs: all with ZeRO 1 in half precision, one of two with ZeRO 3 in pieces

    def __init__(self, model: nn.Module, settings: LoopSettings, device: torch.device, precision: Precision, pieces: int = 1) -> None:
        deepspeed = import_deepspeed(device)
        if single := [name for name, weight in model.named_parameters() if not weight.dim()]:
            raise OnAllWorkers(
                "has no dimension, and DeepSpeed takes none such", single[0], "give it the shape [1], or set engine.name to ddp"
            )
        self._mixed = None if precision == "fp32" or casts(settings, device) else DTYPES[precision]
        self.precision: Precision = "fp32" if self._mixed else precision
        self.casts = self.precision != "fp32"
        self.device, self.zero, self._pieces, self._clip = device, settings.engine.zero, pieces, settings.clip
        model = model.to(device)
        _cast_shards(model, DTYPES[self.precision])
        self.optimizer = make_optimizer(model, settings)
        weights = full_count(weight for weight in model.parameters() if weight.requires_grad)
        config = deepspeed_config(settings, self.precision, dist.get_world_size(), pieces, weights, device.type == "cuda")
        with redirect_stdout(io.StringIO()):  # it prints what memory is in use
            self._engine, *_ = deepspeed.initialize(model=model, optimizer=self.optimizer, config=config, dist_init_required=False)
        self.module = self._engine.module
        self._outlast_lowest_scale()
        if self.precision == "fp16" and self.zero < 3 and not offloads(settings, device.type == "cuda"):
            # its norm tells overflow, too (since 0.19.8); to look at each gradient before takes a dozen kernels a weight
            self._engine.optimizer.check_overflow = lambda partition_gradients=True: None

    def forward(self, **batch: Any) -> Any:
        with torch.autocast(self.device.type, self._mixed, enabled=self._mixed is not None):
            return self._engine(**batch)

    def backward(self, loss: Tensor) -> None:
        self._engine.backward(loss * self._pieces)  # DeepSpeed divides by all accumulation steps, but the losses of pieces are summed
        if not self._engine.is_gradient_accumulation_boundary():
            self._engine.step()

    def step(self, lr: float) -> float:
        for group in self.optimizer.param_groups:
            group["lr"] = lr
        if self.zero == 0:  # DeepSpeed runs the optimizer as it is, and does not look whether a gradient is finite
            norm = _clipped(self.module, self._clip)
            if not math.isfinite(norm):
                self._engine.zero_grad()  # an optimizer leaves weights that have no gradient as they are
            self._engine.step()
            return norm
        self._engine.step()
        return float(self._engine.get_global_grad_norm()) if self._engine.was_step_applied() else math.inf

    def save(self, folder: Path) -> None:
        self._engine.save_checkpoint(str(folder), tag=_TAG, exclude_frozen_parameters=True)

    def load(self, folder: Place, workers: int) -> None:
        from raydense.training.shards import Files, OtherWorkersFiles

        files = Files(folder / _TAG)
        if self.zero in (1, 2) and workers != dist.get_world_size():
            files = OtherWorkersFiles(folder / _TAG, workers, [group["params"][0].numel() for group in self.optimizer.param_groups])
        self._engine.checkpoint_engine, own = files, self._engine.checkpoint_engine
        with files.named() as names:
            self._engine.load_checkpoint(names, tag=_TAG, custom_load_fn=restore)
        self._engine.checkpoint_engine = own
        self._outlast_lowest_scale()

    def _outlast_lowest_scale(self) -> None:
        """Skip steps of fp16 also at the lowest loss scale, where DeepSpeed would end with an error of its own: the loop counts them."""
        if self.precision == "fp16":
            self._engine.optimizer.loss_scaler.raise_error_at_min_scale = False

    def weights(self) -> dict[str, Tensor]:
        if self.zero < 3 and self.precision == "fp32":
            return super().weights()
        from deepspeed.utils import safe_get_full_fp32_param

        kept, state = dist.get_rank() == 0, super().weights()
        for name, parameter in self.module.named_parameters(remove_duplicate=False):
            if parameter.requires_grad:
                full = safe_get_full_fp32_param(parameter)
                if kept:
                    state[name] = (parameter if full is None else full).detach().cpu()
        return state


def import_deepspeed(device: torch.device) -> Any:
    """DeepSpeed for a device; imported only where it is used: it takes a second, which DDP need not spend."""
    if device.type == "cpu":
        os.environ["DS_ACCELERATOR"] = "cpu"
    elif device.index is not None:
        os.environ["LOCAL_RANK"] = str(device.index)  # the GPU that it takes; Ray numbers workers otherwise where a node has more than ten
    import deepspeed

    if device.type == "cpu":
        # otherwise it compiles its own collectives at the first start, which takes half a minute or more and a compiler; gloo suffices
        deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
    limit_logs("DeepSpeed", "ERROR")
    return deepspeed


def _cast_shards(model: nn.Module, dtype: torch.dtype) -> None:
    """Cast a model whose weights are shared out, which DeepSpeed takes to be in its precision already."""
    weights = list(model.parameters())
    if any(map(is_sharded, weights)):
        for weight in weights:
            weight.data = weight.data.to(dtype)
            if is_sharded(weight):
                weight.ds_tensor.data = weight.ds_tensor.data.to(dtype)  # type: ignore[attr-defined]


def bucket_of(weights: int) -> int:
    """How many of so many trained weights one of DeepSpeed's buckets holds."""
    return min(weights, _BUCKET)


def deepspeed_config(
    settings: LoopSettings, precision: Precision, workers: int, pieces: int = 1, weights: int = 0, gpu: bool = False
) -> dict[str, Any]:
    """The configuration of a DeepSpeed engine: nothing that shapes the result is left to DeepSpeed's defaults.

    Its buckets hold no more than the `weights` that are trained, if these are given, and at most 50 million: DeepSpeed's hold 500 million,
    2 GB, whatever the model. On several GPUs gradients are reduced while others are computed, with ZeRO 1 and 2 from two buckets in turn;
    on one that gains nothing, and DeepSpeed would wait at the end of each backward. On GPUs the optimizer's state, with ZeRO 3 the
    weights too, may be in the machine's memory: there is no other on a CPU. Gradients of parts and pieces are summed in float32, since
    half precision would lose small ones. DeepSpeed's timer of throughput is off: it waits for the GPU at the beginning and end of each
    piece.
    """
    bucket = bucket_of(weights or _BUCKET)
    return {
        **({"data_types": {"grad_accum_dtype": "fp32"}} if precision != "fp32" else {}),
        "train_micro_batch_size_per_gpu": settings.batch_size // (workers * settings.accumulation),
        "gradient_accumulation_steps": settings.accumulation * pieces,
        "gradient_clipping": settings.clip if settings.engine.zero else 0.0,
        "zero_optimization": {
            "stage": settings.engine.zero,
            "reduce_bucket_size": bucket,
            "allgather_bucket_size": _BUCKET,
            "stage3_max_live_parameters": WHOLE_AT_ONCE,
            "stage3_max_reuse_distance": WHOLE_AT_ONCE,
            "overlap_comm": gpu and workers > 1 and settings.engine.zero > 0,
            **(offloading(settings.engine.zero) if offloads(settings, gpu) else {}),
        },
        "zero_force_ds_cpu_optimizer": False,
        "bf16": {"enabled": precision == "bf16"},
        "fp16": {"enabled": precision == "fp16", "initial_scale_power": 14, "loss_scale_window": 1000, "hysteresis": 2},
        "steps_per_print": 10**9,
        "timers": {"throughput": {"enabled": False}},
    }


def make_engine(
    model: nn.Module, settings: LoopSettings, device: torch.device, precision: Precision, pieces: int = 1, overlaps: bool = True
) -> Engine:
    """The engine that the settings name, on this worker's device; `backward` is called for `pieces` pieces of each part.

    `overlaps` as for `TorchEngine`.
    """
    torch.backends.cuda.matmul.allow_tf32 = settings.tf32
    if device.type == "cpu":
        use_cpu_layers(model)
    if settings.engine.name == "deepspeed":
        return DeepSpeedEngine(model, settings, device, precision, pieces)
    return TorchEngine(model, settings, device, precision, pieces, overlaps)


def shards_weights(settings: LoopSettings) -> bool:
    """Whether no worker holds a whole weight: ZeRO 3."""
    return settings.engine.name == "deepspeed" and settings.engine.zero == 3
