"""A served index whose processes are killed and whose index is switched under requests: what `benchmarks/serving_faults.py` measures, smaller."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from nodes import free_ports

from raydense.serving.running import running

sys.path.append(str(Path(__file__).resolve().parents[2] / "benchmarks"))

from serving_faults import NAME, Asked, World, during, inject

pytestmark = [pytest.mark.usefixtures("ray_cluster"), pytest.mark.long]


def test_a_process_killed_and_the_index_switched(tmp_path: Path) -> None:
    """Each answer is that of the index that it names, both indexes answer, and a request fails with 503 alone, which a second one does not."""
    world, asked = World(tmp_path, 200), Asked()
    with running(world.settings[0], NAME, "/", "127.0.0.1", free_ports(1)[0]) as url:
        during(url, world, 8, 300, asked, lambda: inject(world, asked, 300, 1))
    assert asked.failed == []
    assert (asked.wrong, asked.mixed) == (0, 0)
    assert asked.statuses.keys() <= {200, 503}
    assert asked.statuses[200] == len(asked.seconds) >= 300
    assert asked.indexes.keys() == {one.fingerprint for one in world.indexes}
