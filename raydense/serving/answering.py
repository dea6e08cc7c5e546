"""Answers questions: encodes them in batches, searches, fuses the hits of several indexes, and returns passage ids and texts.

Independent of HTTP.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from raydense.data.store import PassageStore
from raydense.errors import InputError
from raydense.inference.reordering import reordered_lists
from raydense.retrieval.kind import kind_of
from raydense.retrieval.merge import Hits
from raydense.serving.question import Question
from raydense.serving.refusal import Unavailable
from raydense.serving.reranking import Rerank
from raydense.serving.searching import AT_ONCE, Known, Reply, Searching, connected, sources
from raydense.serving.searching_all import DIFFERENT, OTHER_CORPUS, Found, SearchingAll, ranks_in
from raydense.serving.settings import ServeSettings
from raydense.storage import check_unchanged, input_fingerprints

_AWAKE_S = 60.0  # between two calls that keep the pools of an app from ending


@dataclass(frozen=True)
class _Ranked:
    """What was found for some of the queries; `logits` are a re-ranker's, of the first hits, NaN where it gave none."""

    found: Found
    hits: Hits
    parts: tuple[Hits, ...]  # those of each index
    logits: NDArray[np.float32] | None

    def of(self, which: slice) -> _Ranked:
        """Those of some of the queries."""
        hits, *parts = ((scores[which], rows[which]) for scores, rows in (self.hits, *self.parts))
        return _Ranked(self.found, hits, tuple(parts), None if self.logits is None else self.logits[which])

    @property
    def whole(self) -> bool:
        """Whether all that a re-ranker was to score is scored."""
        return self.logits is None or not (np.isnan(self.logits) & (self.hits[1][:, : self.logits.shape[1]] >= 0)).any()


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
        """A reply to each question, in order: all are encoded together, and searched in parts of at most `most_hits` hits (or one question).

        Unavailable in place of the reply to a question whose part is not answered, and to those of later parts where there is no pool, or it
        has another model; for texts that are not available; or whose passages the re-ranker does not all score in half of the seconds that a
        request may take.
        """
        end = time.monotonic() + self.settings.seconds / 2
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
                ranked = self._reranked(texts[first:last], found, end)
            except Unavailable as error:
                replies |= dict.fromkeys(alike, error)
                continue
            for i in alike:
                start, stop = spans[i]
                replies[i] = self._reply(questions[i], ranked.of(slice(start - first, stop - first)), truncated[start:stop])
        return [replies[i] for i in range(len(questions))]

    def _parts(self, questions: list[Question], order: list[int]) -> Iterator[list[int]]:
        """The numbers `order` of the questions, by depth rising, in parts: those of a part are searched equally deep, unless none's hits depend on it."""
        part: list[int] = []
        queries = 0
        for i in order:
            queries += len(questions[i].asked)
            alike = self._any_k or not part or self._deep(questions[part[0]].k) == self._deep(questions[i].k)
            if part and not (alike and queries * self._deep(questions[i].k) <= self.settings.most_hits):
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

    def _reranked(self, texts: list[str], found: Found, end: float) -> _Ranked:
        """With the scores that the re-ranker, if there is one, gives until `end`; Unavailable if the corpus that it reads is another."""
        logits = None
        if self._rerank is not None:
            if why := self._without_texts(found.known):
                raise Unavailable(why)
            logits = self._rerank(texts, found.hits[1][:, : self.settings.rerank_depth], end)
        return _Ranked(found, found.hits, tuple(answer.hits for answer in found.answers), logits)

    def _without_texts(self, known: Known) -> str:
        """Why the texts of an index's passages are not available; "" if they are."""
        if self._corpus is None:
            return "this server has no corpus"
        return "" if known.corpus == self._corpus.fingerprint else OTHER_CORPUS

    def _best(self, k: int, found: _Ranked) -> tuple[Hits, NDArray[np.bool_]]:
        """The hits of queries, and whether the re-ranker gave their scores, all [n, k]; whatever k others of the batch want."""
        scores, rows = found.hits[0][:, : self._deep(k)], found.hits[1][:, : self._deep(k)]
        if found.logits is None:
            return (scores, rows), np.zeros_like(rows, np.bool_)
        took, scores = reordered_lists(rows, found.logits)
        rows = rows[np.arange(len(rows))[:, None], took]
        return (scores[:, :k], rows[:, :k]), took[:, :k] < found.logits.shape[1]

    def _reply(self, question: Question, ranked: _Ranked, truncated: list[bool]) -> Reply | Unavailable:
        known, answers = ranked.found.known, ranked.found.answers
        if question.texts and (why := self._without_texts(known)):
            return Unavailable(str(InputError(why, "texts", "leave it out")))
        if not ranked.whole:
            return Unavailable("the re-ranker has not scored all passages; send fewer queries at once, or ask again later")
        hits, reranked = self._best(question.k, ranked)
        several = len(answers) > 1
        parts = ranked.parts if several else ()
        results = self._passages(known, hits, question.texts, parts, None if ranked.logits is None else reranked)
        indexes, versions = [answer.index for answer in answers], [answer.version for answer in answers]
        reply: Reply = {"results": results, "index": indexes if several else indexes[0], "version": versions if several else versions[0]}
        if question.each and several:
            alone = [(scores[:, : question.k], rows[:, : question.k]) for scores, rows in ranked.parts]
            of_each = (self._passages(known, one, question.texts, parts) for one in alone)
            reply["each"] = [{"name": name, "results": one} for name, one in zip(self.names, of_each, strict=True)]
        return reply | {"truncated": [at for at, cut in enumerate(truncated) if cut]} if any(truncated) else reply

    def _passages(
        self, known: Known, hits: Hits, texts: bool, parts: tuple[Hits, ...], reranked: NDArray[np.bool_] | None = None
    ) -> list[list[dict[str, Any]]]:
        """The passages of each query; each says at which rank the indexes of `parts` found it, and whether it is `reranked` [n, k], if that is given."""
        scores, rows = hits
        there = rows >= 0
        flat = rows[there]
        columns = {"id": known.ids.take(flat).to_pylist(), "score": scores[there].tolist()}
        if parts:
            ranks = np.stack([ranks_in(rows, of_index)[there] for _, of_index in parts], axis=1).tolist()
            columns["found"] = [{name: rank for name, rank in zip(self.names, one, strict=True) if rank} for one in ranks]
        if reranked is not None:
            columns["reranked"] = reranked[there].tolist()
        if texts and self._corpus is not None:
            columns |= self._corpus.take(flat, ["title", "text"]).to_pydict()
        passages = [dict(zip(columns, one, strict=True)) for one in zip(*columns.values(), strict=True)]
        ends = np.cumsum(there.sum(axis=1)).tolist()
        return [passages[start:end] for start, end in zip([0, *ends], ends, strict=False)]

    def _keep_awake(self) -> None:
        while not self._closed.wait(_AWAKE_S):
            with suppress(Exception):  # the next caller gets the error
                for one, queries in zip(self._searching, self._searching.prepare(["awake"]), strict=True):
                    with suppress(Unavailable):
                        one.ask(queries, 1)
