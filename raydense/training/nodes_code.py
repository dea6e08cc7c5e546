"""Checks that the nodes of a cluster have the code of a method outside raydense, before workers start there."""

from __future__ import annotations

from typing import Any

from raydense.errors import InputError
from raydense.runtime.session import joins_cluster
from raydense.runtime.tasks import run_tasks
from raydense.training.loop_settings import LoopSettings
from raydense.training.method import method_of
from raydense.training.registry import load_method


def require_code(settings: LoopSettings) -> None:
    """InputError where a node of the running cluster that the training joins cannot import its method.

    One node is asked: what the command finds alone, as in a folder on its PYTHONPATH, none of them has.
    """
    if joins_cluster() and settings.method_code():
        method = method_of(settings)
        for fault in run_tasks("train", _fault, [(settings.verb, f"{method.__module__}:{method.__qualname__}", settings.chosen_by)]):
            if fault:
                what, where, fix = fault
                raise InputError(f"{what} on a node of the cluster", where, fix)


def _fault(verb: str, name: str, where: str) -> tuple[Any, ...] | None:
    """What is wrong with the method here."""
    try:
        load_method(verb, name, where)
    except InputError as error:
        return error.args
    return None
