"""Calls of a pool: a block of queries is answered by one version of the index; if a replica is away, the call is retried at another."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import ray
from numpy.typing import NDArray
from ray.exceptions import ActorDiedError, GetTimeoutError, RayError, RayTaskError

from raydense.retrieval.merge import (
    MARGIN,
    Hits,
    Rows,
    Scores,
    contenders,
    first_share,
    merge_hits,
    order_hits,
    rounding_bound,
    widened,
)
from raydense.retrieval.shard_actor import RETIRED
from raydense.retrieval.versions import Queries, Version, Versions
from raydense.runtime.progress import say
from raydense.runtime.ray_internals import is_started

_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.005, 0.5
_REPORT_AFTER_S = 30.0
_FEW = 64  # in blocks of up to so many queries, and in an index of one shard, each shard rescores all its hits in the same call
_INLINE = 65_536  # arguments of up to so many bytes are part of the call: faster than ray.put, and below Ray's own limit for inlining


@dataclass(frozen=True)
class Answer:
    """A block of queries with its hits, all from one version of the index, and that index's fingerprint."""

    queries: Queries
    hits: Hits
    index: str
    version: int


def of_one_version(answers: list[Answer], ask: Callable[[Queries], Answer]) -> list[Answer]:
    """The answers, at least one, all from one version: those from another one than the last asked are asked again.

    A pool that was closed and started again counts its versions from 1: the latest answer says what is current, not the highest number.
    """
    answers, current = list(answers), answers[-1].version
    while any(answer.version != current for answer in answers):
        for at, answer in enumerate(answers):
            if answer.version != current:
                answers[at] = ask(answer.queries)
                current = answers[at].version
    return answers


class Moved(Exception):
    """The pool has switched to another version: a block that was started with the earlier one starts again."""


class Asked(Protocol):
    """A call of one shard."""

    def answer(self) -> Any:
        """What the shard gives."""


class _Ask:
    """One call of one shard; while a replica is away or busy, the call is sent to another."""

    def __init__(self, versions: Versions, version: Version, shard: int, number: int, method: str, *args: Any) -> None:
        self._versions, self._version = versions, version
        self._shard, self._number, self._method, self._args = shard, number, method, args
        self._send()

    def _send(self) -> None:
        self._actor = self._version.pick(self._shard, self._number)
        self._ref = getattr(self._actor, self._method).remote(*self._args)

    def answer(self) -> Any:
        """The shard's answer; Moved if the pool has switched to another version meanwhile."""
        pause, begun, reported = _FIRST_PAUSE_S, time.monotonic(), False
        while True:
            try:
                answer = self._got()
            except RayTaskError:
                raise
            except RayError as error:
                self._left(error)
            else:
                if not isinstance(answer, str):
                    self._version.set_back(self._actor)
                    return answer
                if answer == RETIRED:
                    self._version.set_away(self._actor)
                    self._renew()
            reported = reported or self._report(begun)
            time.sleep(pause * random.uniform(0.5, 1.0))
            pause = min(2 * pause, _LONGEST_PAUSE_S)
            self._number += 1
            self._send()

    def _got(self) -> Any:
        """The actor's answer; logs once for all shards if the actor does not start, for instance if no node has memory for it.

        A pool with a controller lists only actors that have started.
        """
        version = self._version
        if self._versions.changes or version.reported:
            return ray.get(self._ref)
        try:
            return ray.get(self._ref, timeout=_REPORT_AFTER_S)
        except GetTimeoutError:
            if not is_started(self._actor):
                version.reported = True
                say(f"search: waits for the actors of {version.plan.index} to start and load: `ray status` shows what each node has free")
        return ray.get(self._ref)

    def _left(self, error: RayError) -> None:
        """Handle an actor that is away: Ray restarts it, or it has ended and the pool's controller lists others."""
        self._version.set_away(self._actor)
        if isinstance(error, ActorDiedError):
            if not self._versions.changes:
                raise error
            self._renew()

    def _renew(self) -> None:
        if self._versions.renew(self._version) is not self._version:
            raise Moved

    def _report(self, begun: float) -> bool:
        late = time.monotonic() - begun > _REPORT_AFTER_S
        if late:
            say(f"search: waits for shard {self._shard} of {self._version.plan.index}: all its actors are away or busy")
        return late


class Block:
    """One block of queries, answered by all shards of one version; started again if the pool switches to another."""

    def __init__(self, versions: Versions, queries: Queries, k: int, number: int) -> None:
        self.versions, self.queries, self.wanted, self.number = versions, queries, k, number
        self._begin()

    def _begin(self) -> None:
        self.version = version = self.versions.current()
        self.k = min(self.wanted, version.index.rows)  # k sizes arrays here and in the shards: no more than there can be hits
        self.prepared = version.prepare(self.queries)
        self.refs = [part if part.nbytes <= _INLINE else self._put(part) for part in self.prepared]
        exact = version.largest_norm is not None
        self.asked = first_share(self.k, len(version.shard_rows)) if exact else self.k
        self.rescored = exact and (len(self.queries) <= _FEW or len(version.shard_rows) == 1)
        how = (self.asked, True) if self.rescored else (self.asked,)
        self.found = [self._ask(shard, "search", how, len(self.queries), *self.refs) for shard in range(len(version.shard_rows))]

    def answer(self) -> Answer:
        """The merged best k; for an exact index each score depends only on query and passage."""
        while True:
            try:
                return Answer(self.queries, self._hits(), self.version.plan.fingerprint, self.version.number)
            except Moved:
                self._begin()

    def _ask(self, shard: int, method: str, *args: Any) -> Asked:
        return _Ask(self.versions, self.version, shard, self.number, method, *args)

    def _put(self, part: NDArray[Any]) -> Any:
        """An argument for the calls of several shards."""
        return ray.put(part)

    def _settle(self, method: str, *args: Any) -> list[Any]:
        asks = [self._ask(shard, "settle", method, *args) for shard in range(len(self.version.shard_rows))]
        return [ask.answer() for ask in asks]

    def _hits(self) -> Hits:
        parts: list[Hits] = [ask.answer() for ask in self.found]
        if self.version.largest_norm is None:
            return merge_hits(parts, self.k)
        queries = self.prepared[0]
        bound = rounding_bound(queries, self.version.largest_norm, self.version.half)
        rows, open_ = self._contenders(parts, bound)
        if self.rescored and not open_.any():
            return merge_hits(parts, self.k)
        if open_.any() and self.asked < self.k + MARGIN:
            rows, open_ = self._contenders(self._widen(parts, open_), bound)
        scores = np.maximum.reduce(self._settle("rescore", self.refs[0], self._put(rows)))
        best = order_hits(scores, rows, self.k)
        unsettled = open_.any(axis=0)
        if unsettled.any():
            exact = self._settle("exact", self._put(queries[unsettled]), self.k, self._put(bound[unsettled]))
            best[0][unsettled], best[1][unsettled] = merge_hits(exact, self.k)
        return best

    def _contenders(self, parts: list[Hits], bound: Scores) -> tuple[Rows, NDArray[np.bool_]]:
        complete = [p[0].shape[1] >= rows for p, rows in zip(parts, self.version.shard_rows, strict=True)]
        return contenders(parts, complete, self.k, bound)

    def _widen(self, parts: list[Hits], open_: NDArray[np.bool_]) -> list[Hits]:
        """The hits, with k + MARGIN from each shard for the queries that are still undecided there (`open_` [shards, n])."""
        again = {shard: np.flatnonzero(line) for shard, line in enumerate(open_) if line.any()}
        asks = {s: self._ask(s, "settle", "nearest", self.prepared[0][which], self.k + MARGIN) for s, which in again.items()}
        wider = {s: ask.answer() for s, ask in asks.items()}
        return [widened(part, again[s], wider[s]) if s in again else part for s, part in enumerate(parts)]
