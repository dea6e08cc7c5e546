"""A pool of actors has its first size before there is anything to compute: it does not grow one by one while files wait."""

from __future__ import annotations

import sys
import time
import uuid
from pathlib import Path

import pyarrow as pa
import pytest
from ray import cloudpickle

from raydense.inference.layout import Layout
from raydense.inference.pipeline import run
from raydense.inference.settings import EncodeSettings

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
