"""An output is computed in one precision: the first actor of a run records it, and the others follow it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from raydense.errors import InputError
from raydense.inference.layout import Layout
from raydense.inference.settings import EncodeSettings, RerankSettings
from raydense.runtime.session import ensure_ray
from raydense.storage import Draft, File

if TYPE_CHECKING:
    from raydense.inference.device import Device

_RECORD = "precision"  # in a draft's shared folder: the name of the precision that the first actor of this run computes in


def refuse_fp16_on_cpus(settings: EncodeSettings | RerankSettings) -> None:
    """InputError if fp16 is asked for, and the actors on the running cluster have no GPU: before anything is written, as it shapes the output."""
    if settings.precision == "fp16":
        ensure_ray()
        if not Layout.of(settings, 1).gpus:
            raise InputError("fp16 is for GPUs, and the actors have none", "precision", "give auto, fp32 or bf16")


def forget_precision(draft: Draft) -> None:
    """Delete the record of an earlier run's actors: its committed files record their own precision."""
    (draft.shared / _RECORD).delete()


def fix_precision(device: Device, begun: str | None, draft: Draft) -> None:
    """Record the precision of an actor's device, or follow the one that another actor of this run has recorded: an output has one precision.

    InputError if the device lacks that one, or the one that existing files were computed in (`begun`).
    """
    kind = "devices of a kind that does it (on GPUs --accelerator)"
    if begun not in (None, device.precision):
        raise InputError(
            f"what is there was computed in {begun}, and this device would continue in {device.precision}",
            draft.place,
            f"continue on {kind}, or delete the folder to start again",
        )
    first = draft.first(_RECORD, device.precision)
    device.begin_in(first)
    if device.precision != first:
        every = "fp16" if device.name == "cuda" else "fp32"
        what = f"the first device of this run computes in {first}, and another would in {device.precision}"
        raise InputError(what, draft.place, f"use {kind}, or delete the folder, and give --precision {every}, which all have")


def refuse_several(precisions: list[str], draft: Draft) -> None:
    """InputError if a draft is, or would be, computed in several precisions."""
    if len(precisions) > 1:
        what = f"its files would be computed in {' and '.join(sorted(precisions))}: the devices of the cluster differ"
        raise InputError(what, draft.place, "delete the folder, and give --precision fp32, or devices that do the same")


def precision_of(files: Iterable[File], draft: Draft) -> str | None:
    """The precision of committed files; None if none of them records it; InputError if they differ."""
    found = sorted({file.note["precision"] for file in files if "precision" in file.note})
    refuse_several(found, draft)
    return found[0] if found else None
