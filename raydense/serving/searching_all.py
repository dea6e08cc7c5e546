"""All indexes of an app, or of a `Retriever`: asks them at once, and fuses what they find. Whether they belong together is checked here."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from raydense.errors import InputError
from raydense.inference.query_encoder import QueryEncoder, query_encoder
from raydense.retrieval.asking import Answer
from raydense.retrieval.fused_indexes import fusion_of_indexes
from raydense.retrieval.fusion_rule import Fusion
from raydense.retrieval.merge import Hits
from raydense.retrieval.versions import Queries
from raydense.serving.refusal import Unavailable
from raydense.serving.searching import Known, Searching
from raydense.serving.settings import RetrieverSettings
from raydense.storage import Artifact, fingerprint_of

OTHER_CORPUS = "the index was made of another corpus"
Rows = NDArray[np.int64]
DIFFERENT = "the pools answer from indexes of different corpora"


@dataclass(frozen=True)
class Found:
    """The hits of some queries, fused if there are several indexes; what each index answered; and their ids."""

    hits: Hits
    answers: tuple[Answer, ...]
    known: Known


def fusion_of(settings: RetrieverSettings, indexes: list[Artifact]) -> Fusion | None:
    """How the hits of several indexes are fused; InputError where they are of different corpora, or others than the fused run's."""
    return fusion_of_indexes(indexes, settings.names, settings.fuse, settings.model, settings.search_params)


def check_corpus(corpus: str | None, index: Artifact) -> None:
    """InputError unless the index is of the corpus whose texts a server has, if it has one."""
    if corpus and fingerprint_of(corpus) != index.summary["corpus"]:
        raise InputError(OTHER_CORPUS, corpus, "give the corpus that the index was made of")


class SearchingAll:
    """Asks one index, or several; safe to use from several threads, of which `at_once` search at the same time.

    `gpu`: whether queries are encoded on a GPU, by default where torch sees one. InputError unless the indexes are of one corpus, that of the
    settings if they have one, and fit the fused run.
    """

    def __init__(self, settings: RetrieverSettings, searched: list[Searching], at_once: int, gpu: bool | None = None) -> None:
        self._fusion = fusion_of(settings, [one.index for one in searched])
        check_corpus(settings.corpus, searched[0].index)
        # several indexes of the model's vectors are asked by one encoding
        wanted = {one.dimension: one.index.summary["model"] for one in searched if one.dimension}
        encoders = {
            dimension: query_encoder(settings.model or "", model, dimension, gpu, settings.prompt) for dimension, model in wanted.items()
        }
        self._parts: tuple[list[Searching], dict[int, QueryEncoder]] = searched, encoders
        self._asking = ThreadPoolExecutor(at_once * len(searched))

    def __iter__(self) -> Iterator[Searching]:
        return iter(self._parts[0])

    @property
    def _open(self) -> tuple[list[Searching], dict[int, QueryEncoder]]:
        searched, encoders = self._parts
        if not searched:
            raise Unavailable("it was closed")
        return searched, encoders

    def close(self) -> None:
        """End its threads, and forget the indexes."""
        self._asking.shutdown()
        self._parts = [], {}

    def prepare(self, texts: list[str]) -> list[Queries]:
        """The queries in the format of each index. Unavailable if it was closed."""
        searched, encoders = self._open
        vectors = {dimension: encode(texts) for dimension, encode in encoders.items()}
        return [vectors[one.dimension] if one.dimension else texts for one in searched]

    def truncated(self, texts: list[str]) -> list[bool]:
        """Whether an encoder reads only the beginning of a text."""
        return next((encode.truncated(texts) for encode in self._open[1].values()), [False] * len(texts))

    def ask(self, queries: list[Queries], k: int) -> Found:
        """The best k of queries as `prepare` makes them. Unavailable if an index does not answer, or they are of different corpora by now."""
        depths = [max(k, depth) for depth in self._fusion.depths] if self._fusion else [k]
        searched, _ = self._open
        try:
            asking = self._asking.map(Searching.ask, searched, queries, depths)
        except RuntimeError as error:  # its threads have ended; what a search raises comes below
            raise Unavailable("it was closed") from error
        answers = list(asking)
        known = answers[0][1]
        if any(other.corpus != known.corpus for _, other in answers):
            raise Unavailable(DIFFERENT)
        found = tuple(answer for answer, _ in answers)
        hits = self._fusion.fused([one.hits for one in found], known.ids.take, k) if self._fusion else found[0].hits
        return Found(hits, found, known)


def ranks_in(rows: Rows, found: Rows) -> Rows:
    """The rank, from 1, at which `found` int64 [n, m] has each of `rows` int64 [n, k]; 0 where it has not."""
    width = 1 + max(rows.max(initial=0), found.max(initial=0))
    query = np.arange(len(rows))[:, None] * width
    there, wanted = np.where(found >= 0, query + found, -1).ravel(), (query + rows).ravel()
    order = np.argsort(there, kind="stable")
    at = np.minimum(np.searchsorted(there[order], wanted), max(0, len(there) - 1))
    if not len(there):
        return np.zeros(rows.shape, np.int64)
    hit = (there[order[at]] == wanted) & (rows.ravel() >= 0)
    return np.where(hit, order[at] % found.shape[1] + 1, 0).reshape(rows.shape)
