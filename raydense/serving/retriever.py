"""`Retriever`: answers questions in this process, by indexes that it holds or by running pools, with the texts of the hits."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Self, overload

from raydense.data.store import PassageStore
from raydense.errors import InputError
from raydense.retrieval.memory import plan_memory
from raydense.retrieval.versions import check_k
from raydense.runtime.limits import memory_total
from raydense.runtime.progress import size
from raydense.serving.hits import Hit, HitList
from raydense.serving.passage_scorer import PassageScorer
from raydense.serving.ranked import Ranked
from raydense.serving.refusal import Unavailable
from raydense.serving.searching import Searching, Source
from raydense.serving.searching_all import SearchingAll, fusion_of
from raydense.serving.settings import RetrieverSettings
from raydense.storage import named_folders

_AT_ONCE = 1_024  # questions that are searched together: it bounds the memory
_PAIRS = 50_000  # of questions and passages that are re-ranked together: their texts are in memory
Where = str | os.PathLike[str]


class Retriever:
    """`with Retriever.load(index=..., model=..., corpus=...) as retriever: retriever.search("a question")`. Safe to use from several threads.

    Indexes are held in this process, whose memory they need: no Ray is started. With pools it joins the cluster of Ray where they run.
    """

    def __init__(self, settings: RetrieverSettings) -> None:
        settings = settings.located()
        self.settings = settings
        self._corpus = PassageStore(settings.corpus) if settings.corpus else None
        self._searching = SearchingAll(settings, _pools(settings) if settings.pool else _held(settings), at_once=1)
        self._names = settings.names
        self._score = PassageScorer(settings.reranker, self._corpus) if settings.reranker and self._corpus else None
        self._closed = False

    @classmethod
    def load(
        cls,
        index: Where | Sequence[Where] | None = None,
        model: Where | None = None,
        corpus: Where | None = None,
        *,
        pool: str | Sequence[str] | None = None,
        fuse: Where | None = None,
        reranker: Where | None = None,
        **more: Any,
    ) -> Retriever:
        """Open what `RetrieverSettings` names; `more` are its other settings. A folder may be given as text, a path or an artifact.

        InputError if they do not belong together, the machine has too little memory for the indexes, or there is no such pool.
        """
        folders = {"index": _several(index), "model": model, "corpus": corpus, "pool": _several(pool), "fuse": fuse, "reranker": reranker}
        given: dict[str, Any] = {key: value for key, value in folders.items() if value not in (None, [])}
        return cls(RetrieverSettings(**given, **more))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Release what it holds; pools go on."""
        self._closed = True
        self._searching.close()
        self._corpus, self._score = None, None

    @overload
    def search(self, questions: str, k: int = 10) -> HitList: ...
    @overload
    def search(self, questions: list[str], k: int = 10) -> list[HitList]: ...
    def search(self, questions: str | list[str], k: int = 10) -> HitList | list[HitList]:
        """The best k passages of a question, or of each of several, which are encoded and searched together.

        Of several indexes hits are fused as `fuse` does, and with a re-ranker the first ones are ordered again. InputError on an empty
        question, or where a pool answers from an index that does not fit.
        """
        if not isinstance(questions, Iterable):
            raise InputError(f"are no text ({questions!r})", "questions", "give a str, or a list of them")
        asked = [questions] if isinstance(questions, str) else list(questions)
        if self._closed:
            raise InputError("is closed", "Retriever", "load it again")
        k = check_k(k)
        for number, question in enumerate(asked, 1):
            if not isinstance(question, str) or not _encodes(question):
                raise InputError(f"is no text ({ascii(question)[:40]})", f"question {number}", "give a str")
            if not question.strip():
                raise InputError("is empty", f"question {number}", "write some words")
        corpus, score = self._corpus, self._score  # whatever `close` does meanwhile
        at_once = min(_AT_ONCE, max(1, _PAIRS // self.settings.rerank_depth)) if score else _AT_ONCE
        parts = (asked[at : at + at_once] for at in range(0, len(asked), at_once))
        found = [hits for part in parts for hits in self._answered(part, k, corpus, score)]
        return found[0] if isinstance(questions, str) else found

    def _answered(self, asked: list[str], k: int, corpus: PassageStore | None, score: PassageScorer | None) -> Iterator[HitList]:
        """The best k of each question; those of all are re-ranked together."""
        depth = self.settings.rerank_depth
        try:
            found = self._searching.ask(self._searching.prepare(asked), max(k, depth) if score else k)
        except Unavailable as error:
            raise InputError(str(error), "pool") from error
        if corpus and found.known.corpus != corpus.fingerprint:
            raise InputError("answers from an index of another corpus now", "pool", "load the retriever again")
        ranked = Ranked.of(found)
        if score:
            ranked = ranked.by(score(asked, found.hits[1][:, :depth]))
        for question, passages in zip(asked, ranked.cut(k).passages(self._names, corpus), strict=True):
            yield HitList(question, [Hit(rank, **passage) for rank, passage in enumerate(passages, 1)])


def _pools(settings: RetrieverSettings) -> list[Searching]:
    return [Searching(source, source.connect()) for source in (Source(settings, name) for name in settings.pool)]


def _held(settings: RetrieverSettings) -> list[Searching]:
    """The indexes of the settings, opened; InputError where they do not fit the model, or into the memory of this machine."""
    sources = [Source(settings, name, folder, held=True, at_once=1) for name, folder in named_folders(settings.index)]
    opened = [index for source in sources if (index := source.check_own())]
    fusion_of(settings, opened)
    needed, there = sum(plan_memory(index, 1).total for index in opened), memory_total()
    if needed > there:
        what = f"needs {size(needed)} of memory, and this machine has {size(there)}"
        raise InputError(what, "index", "start a pool of it on a cluster (`raydense pool start`), and give --pool")
    return [Searching(source, source.connect()) for source in sources]


def _encodes(question: str) -> bool:
    """Whether it has no half of a surrogate pair, which is no text."""
    return not any("\ud800" <= letter <= "\udfff" for letter in question)


def _several(given: Where | Sequence[Where] | None) -> list[Where]:
    return [given] if isinstance(given, str | os.PathLike) else list(given or ())
