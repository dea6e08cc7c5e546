"""Checks that what a training reads is what it began with: its workers start later, and read again after each failure."""

from __future__ import annotations

from raydense.storage import check_unchanged
from raydense.training.loop_settings import LoopSettings


def refuse_replaced(settings: LoopSettings, inputs: dict[str, str]) -> None:
    """InputError where an input of the settings is not the one whose fingerprint `inputs` has by its key, as `examples` or `dev.qrels`."""
    for key, fingerprint in inputs.items():
        folder = settings.value_of(key)
        if folder != "tiny":
            check_unchanged(folder, fingerprint)
