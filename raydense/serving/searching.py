"""One index of an app: what answers from it (this process, a pool that runs already, or one that the app starts), and what was checked of the index.

The pool may be switched to another index at any time: each answer comes from one index, and an index of another model's vectors is refused.
"""

from __future__ import annotations

import hashlib
import json
import threading
import time
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from raydense.errors import InputError
from raydense.retrieval.asking import Answer
from raydense.retrieval.fused_indexes import asked_without_model
from raydense.retrieval.held import HeldIndex
from raydense.retrieval.kind import kind_of
from raydense.retrieval.named import close_pool, pool_status, pools
from raydense.retrieval.passage_ids import PassageIds
from raydense.retrieval.pool import SearchPool
from raydense.retrieval.query_vectors import check_model
from raydense.retrieval.versions import Queries
from raydense.runtime.session import physical_cpus
from raydense.serving.refusal import Unavailable, without_places
from raydense.serving.settings import RetrieverSettings, ServeSettings
from raydense.storage import Artifact, named

AT_ONCE = 2  # batches that a process encodes and searches at once: each has its share of the cores
_FAULT_S = 10.0  # for which an index that could not be used is not checked again
_IDLE_S = 600.0  # seconds after which the pool of an app ends, once all processes of the app have ended
Reply = dict[str, Any]


@dataclass(frozen=True)
class Known:
    """An index that was checked: its ids, and the fingerprint of its corpus."""

    ids: PassageIds
    corpus: str


@dataclass(frozen=True)
class Source:
    """Where an app searches one of its indexes: in a running pool, in one that it starts for the index, or in its own processes."""

    settings: RetrieverSettings
    name: str
    index: str = ""  # of the app's own pool
    fingerprint: str | None = None  # that the index had when the app was started
    held: bool = False  # by each process of the app
    copies: int = 1  # actors of each shard of the app's own pool
    at_once: int = AT_ONCE  # searches that share the cores, of a process that holds it

    def check(self, index: Artifact) -> None:
        """InputError unless model and index fit. One of several indexes is asked by texts if it is of bm25, and the model is for the others."""
        check_model(None if self._without_model(index) else self.settings.model, index, self.settings.prompt)

    def dimension(self, index: Artifact) -> int:
        """The dimension of the vectors that the index is asked by; 0 if it is asked by texts."""
        return 0 if not self.settings.model or self._without_model(index) else int(index.summary["dimension"])

    def check_own(self) -> Artifact | None:
        """The index of the app's own pool; InputError unless model, search parameters and index fit."""
        if not self.index:
            return None
        index = self._opened()
        kind_of(index).check_params(self._params(index))
        return index

    def connect(self) -> SearchPool | HeldIndex:
        """What answers; the app's own pool is started if it does not run. InputError if there is none, or model and index do not fit."""
        if self.held:
            index = self._opened()
            return HeldIndex(index, max(1, physical_cpus() // self.at_once), self._params(index))
        if self.index and self.name not in pools():
            index = self._opened()
            try:
                SearchPool.start(index, shard_replicas=self.copies, name=self.name, search_params=self._params(index), idle_timeout=_IDLE_S)
            except InputError:
                if self.name not in pools():  # otherwise another process of the app started it first
                    raise
        return SearchPool.connect(self.name)

    def close_own(self) -> None:
        """End the app's own pool, if it runs."""
        if self.index and not self.held:
            with suppress(InputError):  # it is not there
                close_pool(self.name)

    def _opened(self) -> Artifact:
        index = Artifact.open(self.index, "index", self.fingerprint)
        self.check(index)
        return index

    def _without_model(self, index: Artifact) -> bool:
        return asked_without_model(index, len(self.settings.names))

    def _params(self, index: Artifact) -> str:
        return "" if self._without_model(index) else self.settings.search_params


def sources(settings: ServeSettings, app: str, held: bool = False, fingerprints: list[str] | None = None) -> list[Source]:
    """Where the app `app` searches; `fingerprints` are those of its indexes when it was started, by default as they are now.

    The name of a pool that it starts depends on the index, so that no caller gets answers of another one.
    """
    if settings.pool:
        return [Source(settings, name) for name in settings.pool]
    found = []
    folders = [folder for _, folder in map(named, settings.index)]
    fingerprints = fingerprints or [Artifact.open(folder, "index").fingerprint for folder in folders]
    for folder, fingerprint in zip(folders, fingerprints, strict=True):
        made_of = json.dumps([fingerprint, settings.search_params, settings.shard_replicas])
        name = f"serve-{app}-{hashlib.sha256(made_of.encode()).hexdigest()[:12]}"
        found.append(Source(settings, name, folder, fingerprint, held, settings.shard_replicas))
    return found


def connected(places: list[Source]) -> list[SearchPool | HeldIndex]:
    """What answers for each; if one cannot be started, those that were started here are ended, and InputError is raised."""
    there = set() if all(source.held for source in places) else set(pools())  # those need no Ray
    found: list[SearchPool | HeldIndex] = []
    try:
        for source in places:
            found.append(source.connect())
    except InputError:
        for source in places[: len(found)]:
            if source.name not in there:
                source.close_own()
        raise
    return found


class Searching:
    """Asks for the hits of one index; safe to use from several threads. InputError if a pool answers from an index that does not fit."""

    def __init__(self, source: Source, pool: SearchPool | HeldIndex) -> None:
        self._source, self._pool = source, pool
        self._checked: dict[str, tuple[Known | InputError, float]] = {}  # by fingerprint, with when it was checked
        self._connecting = threading.Lock()
        self.index = pool.index
        self.dimension = source.dimension(self.index)
        self.known = self._check(self.index)

    def ask(self, queries: Queries, k: int) -> tuple[Answer, Known]:
        """The hits of queries: texts, or vectors of `dimension`. Unavailable if there is no pool, or it has another model."""
        try:
            while True:
                pool = self._pool
                try:
                    answer = pool.answer(queries, k)
                except InputError:  # it was closed, or has ended: a new one may run
                    if isinstance(pool, HeldIndex):
                        raise
                    pool = self._reconnected(pool)
                    answer = pool.answer(queries, k)
                known = self._remembered(answer.index)
                if known is None and pool.index.fingerprint == answer.index:  # otherwise it has switched to a third one meanwhile
                    known = self._check(pool.index)
                if isinstance(known, InputError):
                    raise known
                if known is not None:
                    return answer, known
        except InputError as error:
            raise Unavailable(str(error)) from error

    def health(self) -> tuple[Reply, str]:
        """Whether questions are answered now, and by which index; else the reason. And the corpus of the index, if it is known."""
        if isinstance(self._pool, HeldIndex):
            return {"ready": True, "index": self.index.fingerprint, "version": 1}, self.known.corpus
        try:
            status = pool_status(self._pool.name)
            known = self._remembered(status["fingerprint"]) or self._check(Artifact.open(status["index"], "index"))
            if isinstance(known, InputError):
                raise known
        except InputError as error:
            return {"ready": False, "why": without_places(str(error))}, ""
        states = dict.fromkeys(sorted({actor["shard"] for actor in status["actors"]}), False)
        for actor in status["actors"]:
            states[actor["shard"]] |= actor["state"] == "ready"
        at = {"index": status["fingerprint"], "version": status["version"]}
        away = [shard for shard, there in states.items() if not there]
        return {"ready": False, "why": f"no actor of shard {away[0]} answers", **at} if away else {"ready": True, **at}, known.corpus

    def _reconnected(self, pool: SearchPool | HeldIndex) -> SearchPool | HeldIndex:
        with self._connecting:
            if self._pool is pool:
                self._pool = self._source.connect()
            return self._pool

    def _remembered(self, fingerprint: str) -> Known | InputError | None:
        """What a check of the index found; None if there was none, or that was a fault a while ago: a store that was away may be back."""
        known, at = self._checked.get(fingerprint, (None, 0.0))
        return None if isinstance(known, InputError) and time.monotonic() - at > _FAULT_S else known

    def _check(self, index: Artifact) -> Known:
        """Check an index, and remember what was found; InputError if it does not hold this model's vectors, or cannot be read."""
        known: Known | InputError
        try:
            self._source.check(index)
            if self._source.dimension(index) != self.dimension:
                raise InputError("the pool has switched to vectors of another dimension", index.place, "start the app again")
            known = Known(PassageIds(index), index.summary["corpus"])
        except InputError as error:
            known = error
        others = {one: found for one, found in self._checked.items() if one != index.fingerprint}
        last = dict(list(others.items())[-1:])  # answers in progress may still come from it
        self._checked = {**last, index.fingerprint: (known, time.monotonic())}
        if isinstance(known, InputError):
            raise known
        return known
