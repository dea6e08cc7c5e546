"""How many tasks of an index are submitted at once, without Ray."""

from __future__ import annotations

import pytest

from raydense.errors import InputError
from raydense.runtime import tasks
from raydense.runtime.tasks import refuse_small_nodes, submitted_at_once

GIB = 2**30


@pytest.mark.parametrize(
    ("at_once", "joined", "cpus", "expected"),
    [
        (0, True, 0, 16),  # a head that is kept free, before any node has come
        (0, True, 4, 16),
        (3, True, 0, 3),
        (0, False, 4, 4),  # one machine: as many shards in memory as it has CPUs
        (2, False, 4, 2),
    ],
)
def test_a_cluster_is_asked_for_all_shards_before_its_nodes_have_come(at_once: int, joined: bool, cpus: int, expected: int) -> None:
    assert submitted_at_once(16, at_once, joined, cpus) == expected


def test_nothing_to_do_is_no_fault() -> None:
    assert submitted_at_once(0, 0, True, 0) == 1


def test_a_task_that_fits_on_no_node_is_refused_unless_the_cluster_grows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ray.nodes", lambda: [{"Alive": True, "Resources": {"memory": each * GIB, "CPU": 1.0}} for each in (1.0, 2.0)])
    monkeypatch.setattr(tasks, "autoscales", lambda: True)
    refuse_small_nodes("index", 3 * GIB)
    monkeypatch.setattr(tasks, "autoscales", lambda: False)
    refuse_small_nodes("index", 2 * GIB)
    with pytest.raises(InputError, match=r"a task needs 3\.0 GiB of memory, and the largest node has 2\.0 GiB for tasks"):
        refuse_small_nodes("index", 3 * GIB)
    with pytest.raises(InputError, match=r"compare: .*; give a smaller sample, or a larger machine"):
        refuse_small_nodes("compare", 3 * GIB)


def test_a_head_without_cpus_takes_no_task(monkeypatch: pytest.MonkeyPatch) -> None:
    nodes = [{"Alive": True, "Resources": {"memory": 9.0 * GIB}}, {"Alive": True, "Resources": {"memory": 1.0 * GIB, "CPU": 2.0}}]
    monkeypatch.setattr("ray.nodes", lambda: nodes)
    monkeypatch.setattr(tasks, "autoscales", lambda: False)
    refuse_small_nodes("index", GIB)
    with pytest.raises(InputError, match=r"the largest node has 1\.0 GiB for tasks"):
        refuse_small_nodes("index", 2 * GIB)
