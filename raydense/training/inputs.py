"""Checks that the inputs of a training have not changed since it began: its workers start later, and read again after each failure."""

from __future__ import annotations

from raydense.storage import check_unchanged
from raydense.training.loop_settings import LoopSettings


def refuse_replaced(settings: LoopSettings, inputs: dict[str, str]) -> None:
    """InputError if an input of the settings does not have its fingerprint in `inputs`, by its key such as `examples` or `dev.qrels`."""
    for key, fingerprint in inputs.items():
        folder = settings.value_of(key)
        if folder != "tiny":
            check_unchanged(folder, fingerprint)
