"""Trackers that are not installed here, as stand-ins: what a run is begun with."""

from __future__ import annotations

from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest

from raydense.training import tracking as tracking_module
from raydense.training.settings import TrainSettings
from raydense.training.tracking import tracking


@pytest.mark.parametrize(
    ("variable", "project", "name"), [(None, "raydense", "first"), ("", "raydense", "first"), ("mine", "mine", "mine")]
)
def test_a_run_of_wandb_has_the_project_and_name_of_the_environment(
    variable: str | None, project: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun: dict[str, Any] = {}

    def init(**given: Any) -> Any:
        begun.update(given)
        return nullcontext()

    monkeypatch.setattr(tracking_module, "find_spec", lambda name: object())
    monkeypatch.setattr(tracking_module, "import_module", lambda name: SimpleNamespace(init=init))
    for key in ("WANDB_PROJECT", "WANDB_NAME"):
        monkeypatch.delenv(key, raising=False)
        if variable is not None:
            monkeypatch.setenv(key, variable)
    settings = TrainSettings(objective="retriever", model="tiny", corpus="c", queries="q", examples="e", output="runs/first", track="wandb")
    with tracking(settings):
        pass
    assert (begun["project"], begun["name"]) == (project, name)
