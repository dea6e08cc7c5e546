"""The versions of a pool's index: the version and the actors that a caller uses, and how it notices a swap."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from raydense.errors import InputError
from raydense.retrieval.gpu import is_half
from raydense.retrieval.kind import kind_of
from raydense.retrieval.merge import Scores
from raydense.retrieval.shard_actor import PoolPlan

Queries = Scores | list[str]
_LOOK_S = 5.0  # between two requests for missing replicas
_AWAY_S, _LONGEST_AWAY_S = 5.0, 60.0  # for how long other replicas are preferred after one was away; doubled each time


@dataclass(frozen=True)
class Table:
    """A pool as its controller reports it: the current version, its plan, and for each shard the actors that are loaded and answer."""

    number: int
    plan: PoolPlan
    actors: list[list[Any]]
    fault: str = ""


class Version:
    """One index as a pool holds it, and the actors of each shard; `number` rises with each swap."""

    def __init__(self, table: Table) -> None:
        self.number, self.plan, self.actors = table.number, table.plan, table.actors
        self.index = self.plan.open()
        self._kind = kind_of(self.index)
        self.largest_norm: float | None = self.index.summary.get("largest_norm")
        self.half = self.plan.gpu and is_half(self.index.summary)
        self.shard_rows: list[int] = [stop - start for start, stop in self.index.summary["shards"]]
        self.reported = False  # whether a line was printed that a caller waits for its actors
        self._away: dict[Any, tuple[float, float]] = {}  # by actor: the end of the period, and its length

    @property
    def incomplete(self) -> bool:
        """Whether a shard has fewer actors than it should."""
        return any(len(replicas) < self.plan.replicas for replicas in self.actors)

    def pick(self, shard: int, number: int) -> Any:
        """The actor of `shard` for call `number`, in rotation; actors that were away recently are skipped."""
        replicas = self.actors[shard]
        ordered = [replicas[(number + i) % len(replicas)] for i in range(len(replicas))]
        now = time.monotonic()
        return next((actor for actor in ordered if self._away.get(actor, (0.0, 0.0))[0] <= now), ordered[0])

    def set_away(self, actor: Any) -> None:
        """Prefer others for a while: Ray takes seconds to report that an actor is still away."""
        length = min(2 * self._away[actor][1], _LONGEST_AWAY_S) if actor in self._away else _AWAY_S
        self._away[actor] = time.monotonic() + length, length

    def set_back(self, actor: Any) -> None:
        """Record that an actor answered."""
        self._away.pop(actor, None)

    def prepare(self, queries: Queries) -> list[Any]:
        """The checked queries in the shards' format."""
        return self._kind.prepare(queries)


def check_k(k: object) -> int:
    """The number of hits that a caller wants; InputError unless it is a whole number from 1 on."""
    if not isinstance(k, int | np.integer) or isinstance(k, bool) or k < 1:
        raise InputError(f"k is {k!r}", "k", "give a whole number, at least 1")
    return int(k)


class Versions:
    """A caller's copy of the current version, updated from the pool's controller; safe to use from several threads.

    `look` returns the current table, with at least one actor of every shard, or raises InputError if there is no such pool; it is None
    for a pool without a controller, which never changes. With `pinned`, another index or other search parameters raise InputError.
    """

    def __init__(self, version: Version, look: Callable[[], Table] | None = None, pinned: bool = False) -> None:
        self._version, self._look, self._pinned = version, look, pinned
        self._renewing, self._looked = threading.Lock(), time.monotonic()

    @property
    def changes(self) -> bool:
        """Whether the pool has a controller, which replaces actors that Ray does not restart."""
        return self._look is not None

    def current(self) -> Version:
        """The version to call; it is updated at intervals while a shard has fewer replicas than planned."""
        version = self._version
        if version.incomplete and self.changes and time.monotonic() - self._looked > _LOOK_S:
            return self.renew(version)
        return version

    def renew(self, version: Version) -> Version:
        """The current version; the same object if only its actors changed."""
        with self._renewing:
            if self._look is None or self._version is not version:
                return self._version
            table = self._look()
            self._looked = time.monotonic()
            if table.number <= version.number and _answers_from(table.plan) != _answers_from(version.plan):
                what = "the pool was closed, and started again with another index"
                raise InputError(what, table.plan.index, "connect to it again")
            if table.number == version.number:
                version.actors = table.actors
            else:
                self._refuse_other(version.plan, table.plan)
                self._version = Version(table)
            return self._version

    def _refuse_other(self, here: PoolPlan, there: PoolPlan) -> None:
        if self._pinned and _answers_from(here) != _answers_from(there):
            what = f"the pool has switched to another index ({here.fingerprint[:12]} -> {there.fingerprint[:12]})"
            raise InputError(what, there.index, "run again for a run of that one, with another --output")


def _answers_from(plan: PoolPlan) -> tuple[str, str]:
    return plan.fingerprint, plan.search_params
