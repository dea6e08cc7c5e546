"""Where the actors of a pool should lie when nodes have come; pure, so that every case can be tried."""

from __future__ import annotations

from collections import Counter

Place = tuple[int, int]


def next_move(placed: dict[Place, str], nodes: list[str]) -> tuple[Place, str] | None:
    """The replica to move next, as (shard, replica), and the node to move it to; None where they lie well.

    `placed` is the node of each replica, `nodes` those that take one. Actors are to be spread evenly, to one; and two replicas of
    a shard are not to share a node where a node with fewer actors has none of it. Each move brings that nearer, so that moves end.
    """
    if not nodes:
        return None
    load = Counter(placed.values())
    emptiest = min(nodes, key=lambda node: (load[node], node))
    fullest = max(load, key=lambda node: (load[node], node), default=emptiest)
    held = {(shard, node) for (shard, _), node in placed.items()}
    if load[fullest] - load[emptiest] >= 2:
        there = sorted(place for place, node in placed.items() if node == fullest)
        return min(there, key=lambda place: ((place[0], emptiest) in held, place)), emptiest
    twice = Counter((shard, node) for (shard, _), node in placed.items())
    for place, node in sorted(placed.items(), reverse=True):
        if twice[place[0], node] > 1:
            free = [other for other in nodes if load[other] < load[node] and (place[0], other) not in held]
            if free:
                return place, min(free)
    return None
