"""Estimates the peak memory of one training worker from the start model's config, before any weight is read.

The model runs forward and backward in torch's FakeTensorMode, where tensors have shapes and no memory: what autograd would hold is
counted, for any family of encoders. What engine and optimiser hold follows from the number of weights.
"""

from __future__ import annotations

import tempfile
import warnings
import weakref
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn.functional import scaled_dot_product_attention
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from raydense.errors import InputError
from raydense.models.cpu_layers import use_cpu_layers
from raydense.models.dual_encoder import DualEncoder
from raydense.models.tiny import many_words
from raydense.models.weights import without_reading
from raydense.training.activation_checkpointing import checkpoint_activations
from raydense.training.engine import WHOLE_AT_ONCE, bucket_of, casts, offloads, shards_weights
from raydense.training.loop_settings import LoopSettings
from raydense.training.method import load_model, method_of
from raydense.training.piece_count import pieces_of
from raydense.training.precision import DTYPES, precision_for
from raydense.training.trial_batch import longest_batch, run_trial

# What a worker holds with Python, Ray, torch, transformers and a tokenizer loaded, and what DeepSpeed adds, as Linux reports it.
_PROCESS, _DEEPSPEED = 600 * 2**20, 50 * 2**20
# glibc's heap keeps holes between the tensors of a step: 1.1 to 1.6 times what is alive was seen on CPUs.
_HOLES = 1.3
# Bytes a weight of the machine's memory with offload: with ZeRO 1 and 2, and with ZeRO 3 (docs/benchmarks/memory.md).
_OFFLOADED, _OFFLOADED_3 = 23, 33
# Copies of the scores that a loss and its gradient hold at once: scores, logits, shares, and the gradients of these.
_COPIES = 6


@dataclass(frozen=True)
class Memory:
    """The peak memory of one worker in bytes, by purpose.

    `activations` is the peak beyond the rest: in forward and backward of a piece, in the update of the weights, or in
    the copy of them that is saved. `outputs` are the vectors and scores of all texts with their gradients; `process` is Python,
    torch and Ray (0 on a GPU).
    """

    weights: int
    gradients: int
    optimizer: int
    activations: int
    outputs: int
    process: int

    @property
    def total(self) -> int:
        """The sum of all parts, in bytes."""
        return sum(asdict(self).values())

    def __str__(self) -> str:
        parts = ", ".join(f"{size / 2**30:.1f} {name}" for name, size in asdict(self).items() if size >= 0.05 * 2**30)
        return f"{self.total / 2**30:.1f} GiB a worker ({parts})"


class MemoryEstimate:
    """A training whose model has shapes and no memory; estimates the memory for each `micro_batch`."""

    def __init__(self, settings: LoopSettings, folder: str | Path, device: torch.device) -> None:
        """InputError if the folder cannot be used; its weights are not read."""
        self.settings, self._gpu = settings, device.type == "cuda"
        self._fake = _Fake()
        with self._fake, torch.random.fork_rng(devices=[]), without_reading(), warnings.catch_warnings():
            warnings.filterwarnings("ignore", "Accessing the data pointer of FakeTensor")  # by PyTorch itself, of a copy's tensors
            self.model = load_model(settings, str(folder)).train()
            if not self._gpu:
                use_cpu_layers(self.model)
            self.precision = precision_for(settings, device, self.model)
            self._weights = DTYPES[self.precision] if casts(settings, device) else torch.float32
            if self._weights != torch.float32:
                _cast(self.model, self._weights)
        if settings.activation_checkpointing:
            checkpoint_activations(self.model, lambda: _KernelDropout(self._gpu))  # a mode does not last into the backward pass
        self._trained = [p for p in self.model.parameters() if p.requires_grad]
        self._running: dict[int, int] = {}

    @property
    def on_machine(self) -> int:
        """Bytes of the machine's memory that a worker with a GPU uses for what is offloaded; 0 without offload.

        Weights, moments and gradients in float32 are 16 bytes a weight; the rest is pinned buffers, whose sizes PyTorch rounds up, as measured
        with DeepSpeed 0.19 on one worker. ZeRO 2 adds up the gradients of pieces and parts in float32 there, too.
        """
        s, trained = self.settings, _count(self._trained)
        if not offloads(s, self._gpu):
            return 0
        summed = 8 * trained if s.engine.zero == 2 and s.accumulation * pieces_of(s) > 1 else 0
        return int((_OFFLOADED_3 if shards_weights(s) else _OFFLOADED) * trained / s.workers) + summed

    @property
    def whole(self) -> int:
        """Bytes of all weights in float32, as the model is written at the end."""
        return 4 * _count(self.model.parameters())

    @property
    def here(self) -> int:
        """Bytes of the model as it is loaded, in float32, and of its gradients."""
        return self.whole + 4 * _count(self._trained)

    def memory(self, micro_batch: int) -> Memory:
        """The memory of a worker that sends at most `micro_batch` texts of a kind through the model at once; 0 means all."""
        settings = self.settings.model_copy(update={"micro_batch": micro_batch})
        pieces = pieces_of(settings)
        weights, gradients, optimizer, updating = self._held(pieces)
        if pieces not in self._running:
            self._running[pieces] = self.running(pieces)
        running = int(self._running[pieces] * (1.0 if self._gpu else _HOLES)) + self._gathered()
        # worker 0 copies the trained weights to save them, on a GPU to the memory of its machine; with ZeRO 3 gradients stay meanwhile
        saving = 0 if self._gpu else 4 * _count(self._trained) - (0 if shards_weights(settings) else gradients)
        process = 0 if self._gpu else _PROCESS + (_DEEPSPEED if settings.engine.name == "deepspeed" else 0)
        return Memory(weights, gradients, optimizer, max(running, updating, saving), self._outputs(), process)

    def running(self, pieces: int) -> int:
        """The most bytes that forward and backward of a piece hold at once on top of weights and gradients.

        Gradients count from the start: those of earlier pieces exist, and those of the first piece reuse memory of activations
        that no allocator returns in time.
        """
        mixed = DTYPES[self.precision] if self._weights == torch.float32 and self.precision != "fp32" else None
        with self._fake, torch.random.fork_rng(devices=[]):
            for weight in self._trained:
                weight.grad = torch.empty_like(weight)
            held = [*self.model.parameters(), *self.model.buffers(), *(weight.grad for weight in self._trained)]
            batch = longest_batch(self.model, self.settings, pieces)
            with _Tally(held) as tally, _KernelDropout(self._gpu), torch.autocast("cpu", mixed, enabled=mixed is not None):
                run_trial(self.model, batch)
        return tally.peak

    def _held(self, pieces: int) -> tuple[int, int, int, int]:
        """Bytes of weights, of gradients, of the optimiser, and of what is added when it updates the weights.

        Those of DeepSpeed are measured with version 0.19, as multiples of the weights.
        """
        s, whole, share = self.settings, _count(self.model.parameters()), 1 / self.settings.workers
        trained, each = _count(self._trained), self._weights.itemsize
        if offloads(s, self._gpu):
            piece = each * (trained if s.engine.zero == 1 or each == 4 else bucket_of(trained))
            summed = int(4 * (share if s.engine.zero == 2 else 1) * trained) if each < 4 else 0
            held = each * bucket_of(trained) if shards_weights(s) else piece + summed + self._buckets()
            return 0 if shards_weights(s) else each * whole, held, 0, 0
        if s.engine.name == "ddp" or s.engine.zero == 0:
            # LAMB makes two tensors of each weight's size at once, fused AdamW none
            made = 2 * trained if s.optimizer == "lamb" else 0
            summed = trained if s.engine.name == "deepspeed" else 0  # over workers, from one flat copy
            # DDP's buckets: gradients lie in them once workers have exchanged them, and until then next to them
            buckets = trained if s.engine.name == "ddp" and s.workers > 1 and s.accumulation * pieces > 1 else 0
            return 4 * whole, 4 * (trained + buckets), 8 * trained, 4 * max(made, summed)
        if shards_weights(s):  # float32 weights and moments, and the gradients' sums, of its share; they are copied in an update
            shared = int(4 * share * trained)
            return int(each * share * whole), shared + each * bucket_of(trained), 3 * shared, shared
        half = each < 4  # then gradients are added up in float32, next to those of a piece
        gradients = each + ((4 if s.engine.zero == 1 else 2 * share) if half else 0)
        updating = 3 + 6 * share if half and s.engine.zero == 1 else max(0, 16 * share - gradients)
        if self._gpu and s.workers == 1:
            updating = 0  # as measured: docs/benchmarks/memory.md, On a GPU
        return each * whole, int(gradients * trained) + self._buckets(), int((12 + each) * share * trained), int(updating * trained)

    def _gathered(self) -> int:
        """Bytes of ZeRO 3 in a backward beyond a worker's share: weights that are whole, and a bucket's gradients, flat and as they are reduced.

        Of several workers, or offloaded: one alone has no other weights than its share. As measured with DeepSpeed 0.19,
        docs/benchmarks/memory.md.
        """
        if not shards_weights(self.settings):
            return 0
        shared = self.settings.workers > 1 or offloads(self.settings, self._gpu)
        whole = min(_count(self.model.parameters()), WHOLE_AT_ONCE) if shared else 0
        return self._weights.itemsize * (whole + 3 * bucket_of(_count(self._trained)))

    def _buckets(self) -> int:
        """Bytes of the buckets of ZeRO 1 and 2 that the multiples of the weights leave out.

        They were measured where one bucket holds all gradients. A smaller one comes on top of them, on several GPUs another, and on one GPU
        what that other one held in half precision: docs/benchmarks/memory.md, On a GPU.
        """
        zero, trained = self.settings.engine.zero, _count(self._trained)
        size = 4 if zero == 1 else self._weights.itemsize
        another = self._gpu and (self.settings.workers > 1 or self._weights.itemsize < 4)
        return size * bucket_of(trained) * ((bucket_of(trained) < trained) + another)

    def _outputs(self) -> int:
        """Vectors and scores of all texts of a part, in float32, with their gradients."""
        held = method_of(self.settings).held(self.settings)
        dimension = next(m.dimension for m in self.model.modules() if isinstance(m, DualEncoder)) if held.vectors else 0
        return 4 * (2 * dimension * held.vectors + _COPIES * held.scores)


def describe(settings: LoopSettings) -> tuple[str, int]:
    """The memory of a worker in words and in bytes; empty and 0 if a start model does not exist yet, or cannot be read.

    For this machine's kind of device: a GPU if torch sees one. For micro_batch auto, the range that it can choose from.
    """
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    with tempfile.TemporaryDirectory() as aside:
        if settings.model == "tiny":
            method_of(settings).make_tiny(many_words(), aside, 0)
        try:
            estimate = MemoryEstimate(settings, aside if settings.model == "tiny" else settings.model, device)
        except InputError:
            return "", 0
    more = f", and {estimate.on_machine / 2**30:.1f} GiB of the machine's memory" if estimate.on_machine else ""
    if isinstance(settings.micro_batch, int):
        memory = estimate.memory(settings.micro_batch)
        return f"about {memory}{more}", memory.total
    least, most = estimate.memory(1), estimate.memory(0)
    return f"from {least} with micro_batch 1 to {most.total / 2**30:.1f} GiB with all texts at once{more}", most.total


class _Fake(FakeTensorMode):
    """One mode for all of a model: layers that PyTorch makes by copying another layer must not copy the mode."""

    def __deepcopy__(self, memo: Any) -> _Fake:
        return self


class _Tally(TorchDispatchMode):
    """Counts the bytes of live tensors, except those `held` before; `peak` is the maximum."""

    def __init__(self, held: list[Tensor]) -> None:
        super().__init__()
        self.now = self.peak = 0
        self._alive: dict[int, Any] = {}
        for tensor in held:
            self._count(tensor.untyped_storage(), 0)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.ops.prim.device.default:  # more than half of the calls: answered as by FakeTensorMode, sooner
            return args[0].device
        out = func(*args, **(kwargs or {}))
        for tensor in tree_leaves(out):
            if isinstance(tensor, Tensor):
                self._count(tensor.untyped_storage(), tensor.untyped_storage().nbytes())
        return out

    def _count(self, storage: Any, size: int) -> None:
        key = storage._cdata
        if key not in self._alive:
            self._alive[key] = weakref.ref(storage, lambda _: self._forget(key, size))
            self.now += size
            self.peak = max(self.peak, self.now)

    def _forget(self, key: int, size: int) -> None:
        del self._alive[key]
        self.now -= size


class _KernelDropout(TorchFunctionMode):
    """On a GPU attention applies dropout inside its kernel and stores no attention weights for it."""

    def __init__(self, on: bool) -> None:
        super().__init__()
        self._on = on

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if self._on and func is scaled_dot_product_attention:
            kwargs = {**(kwargs or {}), "dropout_p": 0.0}
        return func(*args, **(kwargs or {}))


def _cast(model: nn.Module, dtype: torch.dtype) -> None:
    """As `model.to(dtype)`, which does not work for weights without memory."""
    for module in model.modules():
        for name, weight in list(module.named_parameters(recurse=False)):
            setattr(module, name, nn.Parameter(weight.detach().to(dtype), requires_grad=weight.requires_grad))


def _count(weights: Any) -> int:
    return sum(weight.numel() for weight in weights)
