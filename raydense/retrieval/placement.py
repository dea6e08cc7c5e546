"""Decides which actors of a pool move to added nodes; a pure function, so that every case can be tested."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection

Slot = tuple[int, int]  # shard, replica


def next_move(placed: dict[Slot, str], nodes: list[str], leave: Collection[str] = ()) -> tuple[Slot, str] | None:
    """The replica to move next, as (shard, replica), and the node to move it to; None if the spread is right.

    `placed` is the node of each replica, `nodes` those that accept one, `leave` those that none stays on, whatever the numbers.
    The numbers of actors per node should differ by at most one; and two replicas of a shard should not share a node while a node
    with fewer actors has none of it. Each move comes closer to this, so moves end.
    """
    if not nodes:
        return None
    load = Counter(placed.values())
    emptiest = min(nodes, key=lambda node: (load[node], node))
    fullest = max(load, key=lambda node: (load[node], node), default=emptiest)
    held = {(shard, node) for (shard, _), node in placed.items()}
    if leaving := sorted(slot for slot, node in placed.items() if node in leave):  # one node after another
        return min(leaving, key=lambda slot: (load[placed[slot]], placed[slot], (slot[0], emptiest) in held, slot)), emptiest
    if load[fullest] - load[emptiest] >= 2:
        there = sorted(slot for slot, node in placed.items() if node == fullest)
        return min(there, key=lambda slot: ((slot[0], emptiest) in held, slot)), emptiest
    twice = Counter((shard, node) for (shard, _), node in placed.items())
    for slot, node in sorted(placed.items(), reverse=True):
        if twice[slot[0], node] > 1:
            free = [other for other in nodes if load[other] < load[node] and (slot[0], other) not in held]
            if free:
                return slot, min(free)
    return None
