"""An output is computed in one precision: the first actor of a run records it, and the others must use it."""

from __future__ import annotations

from collections.abc import Iterable

from raydense.errors import InputError
from raydense.inference.layout import Layout
from raydense.inference.settings import EncodeSettings, RerankSettings
from raydense.runtime.session import ensure_ray
from raydense.storage import Draft, File

_FOLDER = "precision"  # in a draft's shared folder: an empty file for each precision that an actor of this run computes in
_PRECISIONS = ("fp32", "bf16", "fp16")


def refuse_fp16_on_cpus(settings: EncodeSettings | RerankSettings) -> None:
    """InputError if fp16 is asked for, and the actors on the running cluster have no GPU: before anything is written, as it shapes the output."""
    if settings.precision == "fp16":
        ensure_ray()
        if not Layout.of(settings, 1).gpus:
            raise InputError("fp16 is for GPUs, and the actors have none", "precision", "give auto, fp32 or bf16")


def forget_precision(draft: Draft) -> None:
    """Delete the records of an earlier run's actors: its committed files record their own precision."""
    (draft.shared / _FOLDER).delete()


def recorded(draft: Draft) -> str | None:
    """The precision that an actor of this run has recorded, None if none has: `auto` follows it, where CPUs of a cluster differ."""
    return next((name for name in (draft.shared / _FOLDER).names("*") if name in _PRECISIONS), None)


def fix_precision(precision: str, begun: str | None, draft: Draft) -> None:
    """Record the `precision` of an actor's device in the draft: `auto` depends on the machine, and an output has one precision.

    InputError if existing files were computed in another (`begun`), or another actor of this run computes in another.
    """
    if begun not in (None, precision):
        raise InputError(
            f"what is there was computed in {begun}, and this device would continue in {precision}",
            draft.place,
            f"continue where the device does {begun}, or delete the folder to start again",
        )
    kept = draft.shared / _FOLDER
    (kept / precision).write(b"")
    # each actor writes before it reads: of two that differ, at least one sees both
    refuse_several([name for name in kept.names("*") if name in _PRECISIONS], draft)  # and none that is half written


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
