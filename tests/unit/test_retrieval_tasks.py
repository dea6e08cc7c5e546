"""How many tasks of an index are submitted at once, without Ray."""

from __future__ import annotations

import pytest

from raydense.retrieval.tasks import submitted_at_once


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
