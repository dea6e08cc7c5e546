"""The number format in which a training computes: what is asked for, what its device has, and what the steps that are done had."""

from __future__ import annotations

from typing import Literal

import torch
from torch import nn

from raydense.errors import InputError
from raydense.models.float32_linear import overflows_in_fp16
from raydense.runtime.processor import cpuinfo, gains_by_bf16
from raydense.training.loop_settings import LoopSettings

Precision = Literal["fp32", "bf16", "fp16"]
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


def choose_precision(asked: str, device: torch.device, begun: Precision | None = None) -> Precision:
    """The number format of a training on `device`; InputError if the device, or this build of torch, does not support the requested one.

    `auto` goes on in the format of the steps that are done, `begun`, where the device has it; otherwise it is the device's first: of a GPU
    bf16 (from compute capability 8) or fp16, of a CPU bf16 where that is the faster one, else fp32.
    """
    if device.type == "cpu":
        if asked == "fp16":
            raise InputError("fp16 does not train on a CPU", "precision", "use fp32 or bf16, or a GPU")
        has: list[Precision] = ["bf16", "fp32"] if gains_by_bf16(cpuinfo()) else ["fp32", "bf16"]
    else:
        major, minor = torch.cuda.get_device_capability(device)
        check_kernels(major, minor, torch.cuda.get_arch_list())
        if asked == "bf16" and major < 8:
            raise InputError(f"this GPU (sm_{major}{minor}) has no bf16", "precision", "use fp16 or auto")
        has = ["bf16", "fp16", "fp32"] if major >= 8 else ["fp16", "fp32"]
    if asked != "auto":
        return asked  # type: ignore[return-value]
    return begun if begun in has else has[0]


def precision_for(settings: LoopSettings, device: torch.device, model: nn.Module, begun: Precision | None = None) -> Precision:
    """The number format of a training of `model` on `device`, as `choose_precision`.

    DeepSpeed casts all weights, also those of layers whose values leave fp16's range (a T5's): for such a model `auto` is then fp32,
    and fp16 an InputError. So is ZeRO 0 in half precision on a GPU.
    """
    precision = choose_precision(settings.precision, device, begun)
    if settings.engine.name != "deepspeed" or precision == "fp32" or device.type == "cpu":
        return precision
    if settings.engine.zero == 0:
        # DeepSpeed 0.19 counts one step too many there, sums gradients in half precision, and gives no float32 weights
        raise InputError(f"ZeRO 0 does not train in {precision}", "engine.zero", "give 1, or --engine.name ddp, or --precision fp32")
    if precision != "fp16" or not overflows_in_fp16(model):
        return precision
    if settings.precision == "auto":
        return "fp32"
    what = "DeepSpeed casts all weights to fp16, whose range is too small for some layers of this model"
    raise InputError(what, "precision", "give --engine.name ddp, or --precision fp32")


def check_kernels(major: int, minor: int, built_for: list[str]) -> None:
    """InputError if this build of torch has no kernels for a GPU of capability major.minor (binaries run within a major version)."""
    numbers = [(kind, int(digits)) for kind, _, rest in (a.partition("_") for a in built_for) if (digits := rest.rstrip("af")).isdigit()]
    binary = any(kind == "sm" and n // 10 == major and n % 10 <= minor for kind, n in numbers)
    compiled = any(kind == "compute" and n <= major * 10 + minor for kind, n in numbers)
    if numbers and not binary and not compiled:
        raise InputError(
            f"torch {torch.__version__} was built for {', '.join(built_for)}, this GPU is sm_{major}{minor}",
            "torch",
            "install the build for it from https://download.pytorch.org/whl/ (V100, sm_70: the cu126 index)",
        )
