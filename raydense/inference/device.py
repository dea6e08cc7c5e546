"""The device of a model actor: a GPU, or CPU cores with one batch per thread; and its precision."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import numpy as np

from raydense.errors import InputError
from raydense.inference.layout import Layout
from raydense.runtime.processor import cpuinfo, gains_by_bf16
from raydense.runtime.session import physical_cpus

if TYPE_CHECKING:
    from raydense.models.tokens import Tokens

# On the CPU small batches were the faster ones (MiniLM, two cores); the GPU's is a guess, to be measured with benchmarks/gpu.py.
_CPU_BUDGET, GPU_BUDGET = 2_048, 65_536


class Device:
    """Where an actor computes: its GPU, or its share of the cores of its machine.

    On the CPU each batch is computed by one thread, and the threads take different batches: no thread
    waits for another inside a batch, and the bits are the same whatever the number of threads.
    """

    def __init__(self, layout: Layout, budget: int, precision: str = "auto", begun: str | None = None, cpu_bf16: bool = False) -> None:
        import torch

        self.name = "cuda" if layout.gpus else "cpu"
        self._asked, self._begun, self._cpu_bf16 = precision, begun, cpu_bf16
        self.budget = budget or (GPU_BUDGET if layout.gpus else _CPU_BUDGET)
        # On a GPU, one thread pads while the other waits for its batch to be taken.
        self.threads = threads = 2 if layout.gpus else layout.threads or max(1, physical_cpus() // layout.per_node)
        torch.set_num_threads(1)
        if layout.background and not layout.gpus and hasattr(os, "SCHED_IDLE"):
            os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))  # before its threads start, which inherit it
        self._whole = False  # whether no weight is left for autocast
        self._pool = ThreadPoolExecutor(threads, initializer=torch.set_num_threads, initargs=(1,))

    def begin_in(self, precision: str) -> None:
        """Compute in this precision if `auto` was asked for and the device has it; before `place`."""
        self._begun = precision

    def place(self, model: Any) -> Any:
        """The model (an nn.Module) on this device, with weights cast here, once.

        On a GPU all weights of its transformers, where they may be: that takes a sixth less time than autocast (docs/benchmarks/speed.md).
        Else, and on a CPU, those of linear layers.
        """
        from raydense.models.half import cast_linear, cast_whole

        if self._half:
            self._whole = self.name == "cuda" and cast_whole(model, self._half)
            if not self._whole:
                cast_linear(model, self._half)
        return model.to(self.name)

    def run(
        self, tokens: Tokens, pad_id: int, forward: Callable[[dict[str, Any]], Any], count: Callable[[int], None], budget: int = 0
    ) -> tuple[Any, int]:
        """The output of `forward` for each text, float32 [n, ...] in the texts' order, and the number of tokens computed, with padding.

        `count` is called with the number of texts of each finished batch, of `budget` tokens if not of the device's own number.
        """
        import torch

        from raydense.models.tokens import batches_by_token_budget

        lengths = tokens.lengths
        batches = batches_by_token_budget(lengths, budget or self.budget)
        parts = self.each(batches, lambda batch: forward(tokens.select(batch).pad(pad_id, self.name)).float(), count)
        found = torch.cat(list(parts)).cpu().numpy()
        ordered = np.empty_like(found)
        ordered[np.concatenate(batches)] = found
        if not np.isfinite(ordered).all():
            larger = "compute in fp32, whose range is larger: --precision fp32, or a CPU"
            fix = larger if self.precision == "fp16" else "train it again, or give another model"
            raise InputError("the model gives numbers that are not finite", "", fix)
        return ordered, sum(len(b) * int(lengths[b].max()) for b in batches)

    def each(self, batches: list[Any], compute: Callable[[Any], Any], count: Callable[[int], None]) -> Iterator[Any]:
        """The result of `compute` for each batch (an array of text numbers), in the batches' order and without gradients."""
        import torch

        def one(batch: Any) -> Any:
            with torch.inference_mode(), self._precision():
                found = compute(batch)
            count(len(batch))
            return found

        return self._pool.map(one, batches)

    def _precision(self) -> Any:
        import torch

        autocasts = self._half and not self._whole
        return torch.autocast(self.name, dtype=self._half) if autocasts else contextlib.nullcontext()

    @property
    def _half(self) -> Any:
        """The torch.dtype of matrix products, or None for float32."""
        import torch

        return {"bf16": torch.bfloat16, "fp16": torch.float16}.get(self.precision)

    @property
    def precision(self) -> str:
        """The requested precision. For auto it is the one that the output was begun in, if this device has it, otherwise its first one.

        A GPU has bf16 (from compute capability 8), fp16 and fp32, in this order; a CPU fp32 and, where `cpu_bf16` allows it, bf16,
        which comes first on one that gains by it.
        """
        import torch

        if self._asked != "auto":
            return self._asked
        if self.name == "cpu":
            has = sorted(["bf16", "fp32"], reverse=not gains_by_bf16(cpuinfo())) if self._cpu_bf16 else ["fp32"]
        else:
            has = ["bf16", "fp16", "fp32"] if torch.cuda.is_bf16_supported(including_emulation=False) else ["fp16", "fp32"]
        return self._begun if self._begun in has else has[0]
