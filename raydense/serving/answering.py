"""Answers questions by a search pool: encodes them in batches, searches, and returns passage ids and texts. Independent of HTTP.

An app calls a running pool, or its own pool, which any of its processes starts if it does not run. The pool may be switched to
another index at any time: each answer comes from one index, with its ids, and an index of another model's vectors is refused.
"""

from __future__ import annotations

import hashlib
import json
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import numpy as np

from raydense.data.store import PassageStore
from raydense.errors import InputError
from raydense.inference.query_encoder import query_encoder
from raydense.retrieval.asking import Answer
from raydense.retrieval.merge import Hits
from raydense.retrieval.named import pool_status, pools
from raydense.retrieval.pool import SearchPool
from raydense.retrieval.query_vectors import check_model
from raydense.retrieval.search import PassageIds
from raydense.retrieval.versions import Queries
from raydense.serving.question import Question
from raydense.serving.settings import ServeSettings
from raydense.storage import Artifact

_IDLE_S = 600.0  # seconds after which the pool of an app ends, once all processes of the app have ended
_AWAKE_S = 60.0  # between two calls that keep the pool of an app from ending
Reply = dict[str, Any]


class Unavailable(Exception):
    """A valid question cannot be answered now; the text is one line with the reason."""


@dataclass(frozen=True)
class Known:
    """An index that was checked: its ids, and why the texts of its passages are not available (or "")."""

    ids: PassageIds
    without_texts: str


def own_pool(settings: ServeSettings, app: str) -> str:
    """The name of the pool that the app `app` starts for itself: it depends on the index, so that no caller gets answers of another one."""
    index = Artifact.open(str(settings.index), "index")
    made_of = json.dumps([index.fingerprint, settings.search_params, settings.shard_replicas])
    return f"serve-{app}-{hashlib.sha256(made_of.encode()).hexdigest()[:12]}"


def connect(settings: ServeSettings, app: str) -> SearchPool:
    """The pool that an app calls; its own pool is started if it does not run. InputError if there is none, or model and index do not fit."""
    if settings.pool:
        return SearchPool.connect(settings.pool)
    name = own_pool(settings, app)
    index = Artifact.open(str(settings.index), "index")
    if name not in pools():
        check_model(settings.model, index)
        try:
            SearchPool.start(index, settings.shard_replicas, name, search_params=settings.search_params, idle_timeout=_IDLE_S)
        except InputError:
            if name not in pools():  # otherwise another process of the app started it first
                raise
    return SearchPool.connect(name)


class Answering:
    """Holds the query encoder and the pool; safe to use from several threads. InputError if it cannot start."""

    def __init__(self, settings: ServeSettings, app: str) -> None:
        self.settings, self.app = settings, app
        self._corpus = PassageStore(settings.corpus) if settings.corpus else None
        self._pool = connect(settings, app)
        self._known: dict[str, Known | InputError] = {}
        self._connecting, self._encoding = threading.Lock(), threading.Lock()
        first = self._check(self._pool.index)
        if first.without_texts and self._corpus:
            raise InputError(first.without_texts, settings.corpus, "give the corpus that the index was made of")
        summary = self._pool.index.summary
        self._prepare: Callable[[list[str]], Queries] = list
        if settings.model:
            self._prepare = query_encoder(settings.model, summary["model"], summary["dimension"])
        threading.Thread(target=self._keep_awake, daemon=True).start()

    def answer(self, questions: list[Question]) -> list[Reply | Unavailable]:
        """A reply to each question, in order: all are encoded together, and those with the same k are searched together.

        Unavailable in place of the reply to a question for texts that are not available; raised if there is no pool, or it has another model.
        """
        order = sorted(range(len(questions)), key=lambda i: questions[i].k)
        queries = self._encoded([text for i in order for text in questions[i].asked])
        replies: dict[int, Reply | Unavailable] = {}
        at = 0
        for k, group in groupby(order, key=lambda i: questions[i].k):
            alike = list(group)
            ends = np.cumsum([len(questions[i].asked) for i in alike])
            answer, known = self._ask(queries[at : at + int(ends[-1])], k)
            at += int(ends[-1])
            for i, stop in zip(alike, ends.tolist(), strict=True):
                which = slice(stop - len(questions[i].asked), stop)
                replies[i] = self._reply(questions[i], (answer.hits[0][which], answer.hits[1][which]), answer, known)
        return [replies[i] for i in range(len(questions))]

    def health(self) -> Reply:
        """Whether questions are answered now, and by which index; else the reason."""
        try:
            status = pool_status(self._pool.name)
            known = self._known.get(status["fingerprint"]) or self._check(Artifact.open(status["index"], "index"))
            if isinstance(known, InputError):
                raise known
        except InputError as error:
            return {"ready": False, "why": str(error)}
        states = dict.fromkeys(sorted({actor["shard"] for actor in status["actors"]}), False)
        for actor in status["actors"]:
            states[actor["shard"]] |= actor["state"] == "ready"
        at = {"index": status["fingerprint"], "version": status["version"]}
        away = [shard for shard, there in states.items() if not there]
        return {"ready": False, "why": f"no actor of shard {away[0]} answers", **at} if away else {"ready": True, **at}

    def _encoded(self, texts: list[str]) -> Queries:
        with self._encoding:  # the next batch is encoded while this one is searched
            return self._prepare(texts)

    def _ask(self, queries: Queries, k: int) -> tuple[Answer, Known]:
        try:
            while True:
                pool = self._pool
                try:
                    answer = pool.answer(queries, k)
                except InputError:  # it was closed, or has ended: a new one may run
                    pool = self._reconnected(pool)
                    answer = pool.answer(queries, k)
                known = self._known.get(answer.index)
                if known is None and pool.index.fingerprint == answer.index:  # otherwise it has switched to a third one meanwhile
                    known = self._check(pool.index)
                if isinstance(known, InputError):
                    raise known
                if known is not None:
                    return answer, known
        except InputError as error:
            raise Unavailable(str(error)) from error

    def _reconnected(self, pool: SearchPool) -> SearchPool:
        with self._connecting:
            if self._pool is pool:
                self._pool = connect(self.settings, self.app)
            return self._pool

    def _check(self, index: Artifact) -> Known:
        """Check an index, once; InputError, now and at each later call, if it does not hold this model's vectors."""
        known: Known | InputError
        try:
            check_model(self.settings.model, index)
            known = Known(PassageIds(index), self._without_texts(index))
        except InputError as error:
            known = error
        last = dict(list(self._known.items())[-1:])  # answers in progress may still come from it
        self._known = {**last, index.fingerprint: known}
        if isinstance(known, InputError):
            raise known
        return known

    def _without_texts(self, index: Artifact) -> str:
        if self._corpus is None:
            return "this server has no corpus"
        return "" if index.summary["corpus"] == self._corpus.fingerprint else "the index was made of another corpus than the server has"

    def _reply(self, question: Question, hits: Hits, answer: Answer, known: Known) -> Reply | Unavailable:
        scores, rows = hits
        if question.texts and (self._corpus is None or known.without_texts):
            return Unavailable(str(InputError(known.without_texts, "texts", "leave it out")))
        found = rows >= 0
        flat = rows[found]
        columns = {"id": known.ids.take(flat).to_pylist(), "score": scores[found].tolist()}
        if question.texts and self._corpus is not None:
            columns |= self._corpus.take(flat, ["title", "text"]).to_pydict()
        passages = [dict(zip(columns, one, strict=True)) for one in zip(*columns.values(), strict=True)]
        ends = np.cumsum(found.sum(axis=1)).tolist()
        results = [passages[start:end] for start, end in zip([0, *ends], ends, strict=False)]
        return {"results": results, "index": answer.index, "version": answer.version}

    def _keep_awake(self) -> None:
        while True:
            time.sleep(_AWAKE_S)
            with suppress(Exception):  # the next caller gets the error
                self._ask(self._encoded(["awake"]), 1)
