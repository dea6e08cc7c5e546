"""Loads the model of an actor in a thread: the actor is ready at once, and what the loading raises reaches the driver as an error of its first part."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from raydense.inference.device import Device
from raydense.inference.precision import fix_precision
from raydense.storage import Draft, check_unchanged


def in_thread(load: Callable[[], Any]) -> Future[Any]:
    """What `load` returns, later."""
    return ThreadPoolExecutor(1).submit(load)


def model_of_stage(device: Device, draft: Draft, begun: str | None, folder: str, print_: str, load: Callable[[], Any]) -> Future[Any]:
    """The model that `load` puts on `device`, later.

    InputError if the device lacks the precision `begun`, or the model in `folder` is no longer that of the fingerprint `print_`.
    """

    def loaded() -> Any:
        fix_precision(device, begun, draft)
        model = load()
        check_unchanged(folder, print_)
        return model

    return in_thread(loaded)
