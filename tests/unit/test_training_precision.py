"""The number format of a training: by device, by what was begun, and refused where torch has no kernels."""

from __future__ import annotations

import pytest
import torch

from raydense.errors import InputError
from raydense.training.precision import _check_kernels, choose_precision

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
    _check_kernels(7, 0, ["sm_70", "sm_80"])
    _check_kernels(8, 9, ["sm_80", "sm_90"])
    _check_kernels(12, 0, ["sm_80", "compute_90"])
    _check_kernels(9, 0, ["sm_90a"])
    with pytest.raises(InputError, match=r"this GPU is sm_70; .*cu126"):
        _check_kernels(7, 0, ["sm_75", "sm_80", "sm_90", "compute_90"])
