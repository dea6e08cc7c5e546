"""Answers questions: encodes them in batches, searches, fuses the hits of several indexes, and returns passage ids and texts.

Independent of HTTP.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from raydense.data.store import PassageStore
from raydense.errors import InputError
from raydense.retrieval.kind import kind_of
from raydense.serving.question import Question
from raydense.serving.ranked import Ranked
from raydense.serving.refusal import Unavailable
from raydense.serving.reranking import Rerank
from raydense.serving.searching import AT_ONCE, Known, Reply, Searching, connected, sources
from raydense.serving.searching_all import DIFFERENT, OTHER_CORPUS, Found, SearchingAll
from raydense.serving.settings import ServeSettings
from raydense.storage import check_unchanged, input_fingerprints

_AWAKE_S = 60.0  # between two calls that keep the pools of an app from ending


class Answering:
    """Holds the query encoder, and the indexes (`held`) or their pools; `rerank` scores the first hits of a query again, if it is given.

    Safe to use from several threads. InputError if it cannot start, as where an input has another fingerprint than in `fingerprints`.

    Until it is closed, it keeps the pools from ending, and starts its own ones again where they are gone. `with` closes it.
    """

    def __init__(
        self,
        settings: ServeSettings,
        app: str,
        held: bool = False,
        rerank: Rerank | None = None,
        fingerprints: dict[str, Any] | None = None,
    ) -> None:
        self.settings, self.names, self._rerank = settings, settings.names, rerank
        self._corpus = PassageStore(settings.corpus) if settings.corpus else None
        fingerprints = fingerprints or input_fingerprints(settings)
        places = sources(settings, app, held, fingerprints["index"])
        searched = [Searching(source, pool) for source, pool in zip(places, connected(places), strict=True)]
        self._searching = SearchingAll(settings, searched, AT_ONCE, gpu=settings.gpus_per_replica > 0)
        if settings.fuse:
            check_unchanged(settings.fuse, fingerprints["fuse"])
        # of a pool the index may change between two questions
        self._any_k = held and len(places) == 1 and kind_of(searched[0].index).hits_stand_alone
        self._closed = threading.Event()
        self._waking = threading.Thread(target=self._keep_awake, daemon=True)
        if not held:
            self._waking.start()

    def __enter__(self) -> Answering:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Keep the pools awake no longer; its own ones end where nobody calls them."""
        self._closed.set()
        if self._waking.is_alive():
            self._waking.join()
        self._searching.close()

    def answer(self, questions: list[Question]) -> list[Reply | Unavailable]:
        """A reply to each question, in order: all are encoded together, and searched in parts of at most `max_hits` hits (or one question).

        Unavailable in place of the reply to a question whose part is not answered, and to those of later parts where there is no pool, or it
        has another model; for texts that are not available; or whose passages the re-ranker does not all score in half of the seconds that a
        request may take.
        """
        end = time.monotonic() + self.settings.timeout / 2
        order = sorted(range(len(questions)), key=lambda i: self._deep(questions[i].k))
        texts = [text for i in order for text in questions[i].asked]
        queries, truncated = self._searching.prepare(texts), self._searching.truncated(texts)
        starts = np.cumsum([0, *(len(questions[i].asked) for i in order)]).tolist()
        spans = dict(zip(order, pairwise(starts), strict=True))
        replies: dict[int, Reply | Unavailable] = {}
        for alike in self._parts(questions, order):
            first, last = spans[alike[0]][0], spans[alike[-1]][1]
            try:
                found = self._searching.ask([of_index[first:last] for of_index in queries], self._deep(questions[alike[-1]].k))
            except Unavailable as error:  # each part that is left would look for the same pool again
                replies |= dict.fromkeys(order[len(replies) :], error)
                break
            try:
                logits = self._logits(texts[first:last], found, end)
            except Unavailable as error:
                replies |= dict.fromkeys(alike, error)
                continue
            for i in alike:
                start, stop = spans[i]
                which = slice(start - first, stop - first)
                replies[i] = self._reply(questions[i], found, which, None if logits is None else logits[which], truncated[start:stop])
        return [replies[i] for i in range(len(questions))]

    def _parts(self, questions: list[Question], order: list[int]) -> Iterator[list[int]]:
        """The numbers `order` of the questions, by depth rising, in parts: those of a part are searched equally deep, unless none's hits depend on it."""
        part: list[int] = []
        queries = 0
        for i in order:
            queries += len(questions[i].asked)
            alike = self._any_k or not part or self._deep(questions[part[0]].k) == self._deep(questions[i].k)
            if part and not (alike and queries * self._deep(questions[i].k) <= self.settings.max_hits):
                yield part
                part, queries = [], len(questions[i].asked)
            part.append(i)
        if part:
            yield part

    def passage(self, passage_id: str) -> Reply | None:
        """The id, title and text of a passage of the corpus; None for an unknown id, or without a corpus."""
        if self._corpus is None or (row := int(self._corpus.rows_of(pa.array([passage_id]))[0])) < 0:
            return None
        found: Reply = self._corpus.take(np.array([row]), ["title", "text"]).to_pylist()[0]
        return {"id": passage_id, **found}

    def health(self) -> Reply:
        """Whether questions are answered now, and by which index; else the reason."""
        found, corpora = zip(*[one.health() for one in self._searching], strict=True)
        if len(found) == 1 or not all(one["ready"] for one in found):
            return next((one for one in found if not one["ready"]), found[0])
        at = {key: [one[key] for one in found] for key in ("index", "version")}
        return {"ready": False, "why": DIFFERENT, **at} if len(set(corpora)) > 1 else {"ready": True, **at}

    def _deep(self, k: int) -> int:
        """How many hits are searched for where a caller wants k."""
        return max(k, self.settings.rerank_depth) if self._rerank else k

    def _logits(self, texts: list[str], found: Found, end: float) -> NDArray[np.float32] | None:
        """What the re-ranker, if there is one, gives until `end` for the first hits, NaN where nothing; Unavailable if the corpus that it reads is another."""
        if self._rerank is None:
            return None
        if why := self._without_texts(found.known):
            raise Unavailable(why)
        return self._rerank(texts, found.hits[1][:, : self.settings.rerank_depth], end)

    def _without_texts(self, known: Known) -> str:
        """Why the texts of an index's passages are not available; "" if they are."""
        if self._corpus is None:
            return "this server has no corpus"
        return "" if known.corpus == self._corpus.fingerprint else OTHER_CORPUS

    def _reply(
        self, question: Question, found: Found, which: slice, logits: NDArray[np.float32] | None, truncated: list[bool]
    ) -> Reply | Unavailable:
        """The reply to a question whose queries are `which` of those of `found`, with the re-ranker's logits of these."""
        if question.texts and (why := self._without_texts(found.known)):
            return Unavailable(str(InputError(why, "texts", "leave it out")))
        ranked = Ranked.of(found, which).cut(self._deep(question.k))  # whatever k others of the batch want
        if logits is not None:
            if (np.isnan(logits) & (ranked.hits[1][:, : logits.shape[1]] >= 0)).any():
                return Unavailable("the re-ranker has not scored all passages; send fewer queries at once, or ask again later")
            ranked = ranked.by(logits)
        several = len(found.answers) > 1
        names, corpus = self.names if several else [], self._corpus if question.texts else None
        indexes, versions = [answer.index for answer in found.answers], [answer.version for answer in found.answers]
        reply: Reply = {
            "results": ranked.cut(question.k).passages(names, corpus),
            "index": indexes if several else indexes[0],
            "version": versions if several else versions[0],
        }
        if question.each and several:
            each = zip(names, ranked.each(question.k), strict=True)
            reply["each"] = [{"name": name, "results": one.passages(names, corpus)} for name, one in each]
        return reply | {"truncated": [at for at, cut in enumerate(truncated) if cut]} if any(truncated) else reply

    def _keep_awake(self) -> None:
        while not self._closed.wait(_AWAKE_S):
            with suppress(Exception):  # the next caller gets the error
                for one, queries in zip(self._searching, self._searching.prepare(["awake"]), strict=True):
                    with suppress(Unavailable):
                        one.ask(queries, 1)
