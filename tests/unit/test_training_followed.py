"""What the driver shows and sends of a training."""

from __future__ import annotations

from pathlib import Path

from raydense.runtime.progress import Progress
from raydense.storage import Place
from raydense.training.ending import Ending
from raydense.training.followed import Followed
from raydense.training.generations import Generations
from raydense.training.history import History, Line
from raydense.training.loop import Job
from raydense.training.settings import TrainSettings
from raydense.training.status import Status


def test_steps_that_are_made_again_are_neither_shown_nor_sent_before_they_are(tmp_path: Path) -> None:
    shared = Place.of(str(tmp_path)) / "shared"
    killed = History(shared, 0)
    killed.add([{"step": step, "loss": 1.0} for step in (1, 2, 3)])
    killed.close()
    settings = TrainSettings.read(
        {"objective": "retriever", "output": str(tmp_path / "out"), **dict.fromkeys(("model", "corpus", "queries", "examples"), "x")}
    )
    job = Job(settings, "start", shared, 10, {}, Generations(Place.of(str(tmp_path)), 10, 10), 10, {})
    sent: list[Line] = []
    followed, progress = Followed(job, sent.append, Ending(shared, 10)), Progress("train", 10, "steps")
    followed.report(progress)
    assert (progress.done, progress.note, sent) == (0, "", [])

    again = History(shared, 0)
    Status(shared).start("10 steps of 32")
    again.add([{"step": 1, "loss": 2.0}])
    followed.report(progress)
    assert (progress.done, progress.note, sent) == (1, "loss 2.0000", [{"step": 1, "loss": 2.0}])
    again.close()
