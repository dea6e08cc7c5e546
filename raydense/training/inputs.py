"""Checks that neither inputs nor the code of a method have changed since the training began: its workers start later, and again after each failure."""

from __future__ import annotations

from raydense.errors import InputError
from raydense.storage import check_unchanged
from raydense.training.loop_settings import LoopSettings


def refuse_replaced(settings: LoopSettings, inputs: dict[str, str]) -> None:
    """InputError if an input of the settings does not have its fingerprint in `inputs`, by its key such as `examples` or `dev.qrels`."""
    for key, fingerprint in inputs.items():
        folder = settings.value_of(key)
        if folder != "tiny":
            check_unchanged(folder, fingerprint)


def refuse_edited(settings: LoopSettings, code: str) -> None:
    """InputError unless the method's code, where it is not raydense's, is that which the training began with."""
    now = settings.method_code()
    if now != code:
        what = f"its code is not that which the training began with ({code[:8] or 'none'} at the start, {now[:8] or 'none'} now)"
        fix = "restore it, and run the same command again; or train with it into a new --output"
        raise InputError(what, getattr(settings, settings.chosen_by), fix)
