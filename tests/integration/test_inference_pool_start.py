"""A pool of actors has its first size before there is anything to compute, and ends where one of them ends again and again."""

from __future__ import annotations

import os
import signal
import sys
import tempfile
import time
import uuid
from pathlib import Path

import pyarrow as pa
import pytest
from nodes import several_nodes
from ray import cloudpickle

from raydense.errors import InputError, fixable
from raydense.inference.layout import Layout
from raydense.inference.pipeline import run
from raydense.inference.settings import EncodeSettings
from raydense.runtime import waiting

cloudpickle.register_pickle_by_value(sys.modules[__name__])  # Ray's workers cannot import a test
ACTORS = 3  # with the tokenise tasks, what the four CPUs of the tests' Ray have room for


class Starts:
    """An actor that leaves a file when it starts, and returns what it is given."""

    def __init__(self, folder: Path, layout: Layout) -> None:
        assert (layout.fewest, layout.first, layout.most) == (1, ACTORS, ACTORS)
        (folder / uuid.uuid4().hex).touch()

    def __call__(self, table: pa.Table) -> pa.Table:
        return table


def waits(table: pa.Table, folder: Path) -> pa.Table:
    """The part and the number of actors that are there, once all are or two minutes are over. Until it returns, no actor has work."""
    end = time.monotonic() + 120
    while (there := len(list(folder.iterdir()))) < ACTORS and time.monotonic() < end:
        time.sleep(0.05)
    return table.append_column("there", pa.array([there]))


@pytest.mark.usefixtures("ray_cluster")
def test_all_actors_that_fit_start_before_the_first_file_is_there(tmp_path: Path) -> None:
    spread = EncodeSettings(model="m", corpus="c", output="o", concurrency=(1, ACTORS))
    records = list(run("encode", spread, [{"part": part} for part in range(6)], waits, Starts, folder=tmp_path))
    assert sorted(record["part"] for record in records) == list(range(6))
    assert {record["there"] for record in records} == {ACTORS}


class Ends:
    """An actor that is killed whenever it computes, as where memory runs out."""

    def __init__(self, layout: Layout) -> None:
        pass

    def __call__(self, table: pa.Table) -> pa.Table:
        os.kill(os.getpid(), signal.SIGKILL)
        return table


def passes(table: pa.Table) -> pa.Table:
    return table


@pytest.mark.usefixtures("ray_cluster")
def test_an_actor_that_is_killed_each_time_ends_the_stage_with_a_line(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(waiting, "_LOOK_S", 0.2)
    spread = EncodeSettings(model="m", corpus="c", output="o", concurrency=(1, 1))
    with pytest.raises(
        InputError, match=r"encode: its processes end before one has finished a part, \d+ times in a row, .* memory"
    ) as caught:
        list(run("encode", spread, [{"part": part} for part in range(2)], passes, Ends))
    assert fixable(caught.value) == (2, str(caught.value))
    assert "Traceback" not in "".join(capfd.readouterr())


ON_GPUS = """
from raydense.inference.pipeline import run
from raydense.inference.settings import EncodeSettings

class Computes:
    def __init__(self, layout):
        pass

    def __call__(self, table):
        return table

def tokenise(table):
    return table

spread = EncodeSettings(model="m", corpus="c", output="o")
print(sorted(record["part"] for record in run("encode", spread, [{"part": part} for part in range(4)], tokenise, Computes)))
"""


def test_actors_on_gpus_leave_the_cpus_to_the_tokenise_tasks(tmp_path: Path) -> None:
    """Nodes with no more CPUs than GPUs: each actor of a GPU that also took a CPU would leave none."""
    log = tmp_path / "log"
    with tempfile.TemporaryDirectory(prefix="nodes-", dir="/tmp") as folder, several_nodes(Path(folder), 1, cpus=1, gpus=2) as cluster:
        assert cluster.driver("-c", ON_GPUS, log=log).wait(300) == 0, log.read_text()
    assert log.read_text().splitlines()[-1] == "[0, 1, 2, 3]"
