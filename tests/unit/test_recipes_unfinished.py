"""What a stage that was begun has done, of stages that commit files; tests of trainings' signals have that of steps."""

from dataclasses import dataclass
from pathlib import Path

import pytest

from raydense.forecast import Forecast
from raydense.inference.settings import EncodeSettings
from raydense.recipes.stage import Stage
from raydense.recipes.unfinished import left, progress
from raydense.storage import Draft
from raydense.training.settings import TrainSettings

FORECAST = Forecast("passages", {}, "encode tiny", {"flops": 500.0}, tasks=4)


@dataclass
class Begun:
    stage: Stage
    draft: Draft


@pytest.fixture
def begun(tmp_path: Path) -> Begun:
    settings = EncodeSettings(model="m", corpus="c", output=str(tmp_path / "vectors"))
    return Begun(Stage("vectors", "encode", settings, ()), Draft.open(settings.output, "embeddings", {}))


@pytest.mark.parametrize(
    ("files", "words", "work"),
    [(0, "0 files committed", 500.0), (1, "1 file committed", 500.0), (4, "4 files committed", 125.0), (7, "7 files committed", 0.0)],
)
def test_parts_that_are_committed_are_not_left(begun: Begun, files: int, words: str, work: float) -> None:
    for number in range(files):
        begun.draft.commit(f"part-{number}", lambda path: path.write_text("part"), 10)
    assert progress(begun.stage) == words
    assert left(begun.stage, FORECAST).work == {"flops": pytest.approx(work)}


def test_work_whose_parts_are_not_known_is_all_left(begun: Begun) -> None:
    begun.draft.commit("one", lambda path: path.write_text("one"), 10)
    assert left(begun.stage, Forecast(work={"hits": 5.0})).work == {"hits": 5.0}


def test_a_training_without_a_checkpoint_has_all_its_steps_left(tmp_path: Path) -> None:
    settings = TrainSettings(
        objective="retriever", model="m", corpus="c", queries="q", examples="e", output=str(tmp_path / "model"), max_steps=100
    )
    stage = Stage("retriever", "train", settings, ())
    assert progress(stage) == "no step is saved"
    assert left(stage, Forecast(work={"steps": 100.0})).work == {"steps": 100.0}
