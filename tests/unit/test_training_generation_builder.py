"""The thread that makes generations in mode async: what becomes of one that a training does not wait for."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest
import torch

from raydense.errors import InputError, LostOutput
from raydense.storage import WORK, Draft, Place, releases_outputs
from raydense.training.generation_builder import GenerationBuilder
from raydense.training.generations import Generations
from raydense.training.left_threads import wait_for_left
from raydense.training.settings import TrainSettings


def test_a_generation_that_nobody_waits_for_ends_with_the_training(tmp_path: Path) -> None:
    """As where the dev metric no longer rises: what the thread went on to write would stand in the finished model's folder."""
    needed = {"output": "o", "objective": "retriever", "model": "tiny", "corpus": "c", "queries": "q", "examples": "e"}
    settings = TrainSettings.read({**needed, "refresh": {"every": 5, "mode": "async"}})
    generations = Generations(Place.of(tmp_path), 20, 5, behind=1)
    fault, begun, over = tmp_path / WORK / "refresh-fault.txt", threading.Event(), threading.Event()
    numbers = []

    def make(settings: Any, start: Any, generations: Generations, number: int) -> None:
        numbers.append(number)
        begun.set()
        while not over.is_set() and not fault.exists():
            over.wait(0.01)
        if not over.is_set():
            raise InputError(fault.read_text(), "refresh", "")
        (generations.work(number) / "late").write_text("of a phase")

    for number in (1, 2):
        generations.hand_over(5 * number, {"weight": torch.zeros(2)})
    with GenerationBuilder(make, settings, "tiny", generations, {}):
        assert begun.wait(60)
    Place.of(tmp_path / WORK).delete()  # as a training that is finished does
    over.set()
    for thread in threading.enumerate():
        if thread.name == "refresh":
            thread.join(60)
    assert numbers == [1]
    assert not (tmp_path / WORK).exists()


def test_a_training_that_goes_on_waits_for_the_thread_of_the_interrupted_one(tmp_path: Path) -> None:
    """In one process, as a notebook after Ctrl-C: both would write the same files."""
    needed = {"output": "o", "objective": "retriever", "model": "tiny", "corpus": "c", "queries": "q", "examples": "e"}
    settings = TrainSettings.read({**needed, "refresh": {"every": 5, "mode": "async"}})
    generations = Generations(Place.of(tmp_path), 20, 5, behind=1)
    fault, begun, looked, made = tmp_path / WORK / "refresh-fault.txt", threading.Event(), threading.Event(), []

    def make(settings: Any, start: Any, generations: Generations, number: int) -> None:
        begun.set()
        while not fault.exists():
            threading.Event().wait(0.01)
        looked.wait(60)  # the phase that is at work
        made.append(number)

    @releases_outputs
    def interrupted() -> None:
        Draft.open(tmp_path, "model", {})
        for number in (1, 2):
            generations.hand_over(5 * number, {"weight": torch.zeros(2)})
        with GenerationBuilder(make, settings, "tiny", generations, {}):
            assert begun.wait(60)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert fault.exists()
    assert made == []
    with pytest.raises(LostOutput):  # nor does another process take the training over
        Place.of(tmp_path / WORK).hold()
    looked.set()
    wait_for_left(Place.of(tmp_path))
    with GenerationBuilder(None, settings, "tiny", Generations(Place.of(tmp_path), 20, 20), {}):
        assert made == [1], "and not the second one: the training had ended"
        assert not fault.exists()
        assert not [thread for thread in threading.enumerate() if thread.name == "refresh"]


def test_a_phase_is_not_begun_for_a_training_that_has_ended(tmp_path: Path) -> None:
    generations = Generations(Place.of(tmp_path), 20, 5, behind=1)
    generations.refuse_given_up()
    generations.give_up("the training has ended")
    with pytest.raises(InputError, match="the training has ended"):
        generations.refuse_given_up()
    generations.begin()
    generations.refuse_given_up()
