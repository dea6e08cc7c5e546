"""The number format of a training: by device, by what was begun, and refused where torch has no kernels."""

from __future__ import annotations

import pytest
import torch

from raydense.errors import InputError
from raydense.training.precision import check_kernels, choose_precision, precision_for
from raydense.training.settings import TrainSettings

CPU = torch.device("cpu")


@pytest.mark.parametrize(("gains", "first"), [(True, "bf16"), (False, "fp32")])
def test_precision_by_device(gains: bool, first: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("raydense.training.precision.gains_by_bf16", lambda described: gains)
    assert choose_precision("auto", CPU) == first
    assert [choose_precision("auto", CPU, begun) for begun in ("fp32", "bf16", "fp16")] == ["fp32", "bf16", first]
    assert [choose_precision(asked, CPU, "fp32") for asked in ("fp32", "bf16")] == ["fp32", "bf16"]
    with pytest.raises(InputError, match="fp16 does not train on a CPU"):
        choose_precision("fp16", CPU)


def test_a_torch_without_kernels_for_the_gpu() -> None:
    check_kernels(7, 0, ["sm_70", "sm_80"])
    check_kernels(8, 9, ["sm_80", "sm_90"])
    check_kernels(12, 0, ["sm_80", "compute_90"])
    check_kernels(9, 0, ["sm_90a"])
    with pytest.raises(InputError, match=r"this GPU is sm_70; .*cu126"):
        check_kernels(7, 0, ["sm_75", "sm_80", "sm_90", "compute_90"])


@pytest.mark.parametrize("precision", ["auto", "bf16", "fp16"])
def test_zero_0_trains_in_float32_alone_on_a_gpu(precision: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """DeepSpeed's own wrapper of it counts one of Adam's steps too many, and gives no float32 weights."""
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (8, 0))
    monkeypatch.setattr(torch.cuda, "get_arch_list", lambda: ["sm_80"])

    def chosen(precision: str, device: torch.device, **engine: object) -> str:
        inputs = {"corpus": "c", "queries": "q", "examples": "e", "output": "o"}
        asked = TrainSettings(objective="retriever", model="tiny", precision=precision, engine=engine, **inputs)  # type: ignore[arg-type]
        return precision_for(asked, device, torch.nn.Linear(2, 2))

    gpu = torch.device("cuda")
    with pytest.raises(
        InputError, match=r"engine.zero: ZeRO 0 does not train in (bf16|fp16); give 1, or --engine.name ddp, or --precision fp32"
    ):
        chosen(precision, gpu, name="deepspeed", zero=0)
    assert chosen("fp32", gpu, name="deepspeed", zero=0) == "fp32"
    assert {chosen(precision, gpu, name="ddp"), chosen(precision, gpu, zero=1)} <= {"bf16", "fp16"}
    assert chosen("bf16", CPU, name="deepspeed", zero=0) == "bf16"
