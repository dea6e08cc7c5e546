"""Indexes of words: BM25 over the texts of a corpus, asked by texts."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from raydense.errors import InputError
from raydense.forecast import Forecast, Holds
from raydense.retrieval.batching import Parts
from raydense.retrieval.bm25_shard import PARTS, Bm25Shard
from raydense.retrieval.kind import IndexKind
from raydense.retrieval.settings import IndexSettings
from raydense.retrieval.sharding import shards_begun, shards_of_bytes
from raydense.storage import Artifact, Draft

if TYPE_CHECKING:
    from raydense.retrieval.merge import Rows
    from raydense.retrieval.words import Words


def expanded_with(index: Artifact) -> str | None:
    """The `origin` of the generated queries whose words an index has, too; None for one of the passages alone."""
    # an earlier version noted it among the inputs alone
    found: str | None = index.summary.get("expand", index.manifest["made_from"].get("inputs", {}).get("expand"))
    return found


class Kind(IndexKind):
    """BM25: any batch of queries and any k give the same hits; it has no parameters, no model and no GPU."""

    title = "BM25"
    encoded = False
    hits_stand_alone = True

    @staticmethod
    def shards_of(settings: IndexSettings) -> int:
        """By the size of the texts, which is about that of the scores."""
        return shards_of_bytes(_text_bytes(settings))

    @staticmethod
    def build(draft: Draft, settings: IndexSettings) -> Artifact:
        from raydense.retrieval.bm25_build import build_bm25

        return build_bm25(draft, settings)

    @staticmethod
    def forecast(settings: IndexSettings, read: Holds) -> Forecast:
        """The time grows with the characters."""
        from raydense.retrieval.bm25_build import counting_bytes  # only here: importing Ray and a stemmer takes a second
        from raydense.retrieval.bm25_counts import PART_BYTES

        characters = read.rows * read.each
        shards = settings.shards or shards_begun(settings) or shards_of_bytes(round(characters))
        made = Holds(read.rows, read.word, bytes=0.6 * characters, files=shards)
        needs, tasks = f"{read} passages to count words of", -(-round(characters) // PART_BYTES)
        memory = counting_bytes(round(characters))
        return Forecast(needs, {settings.output: made}, "index bm25", {"characters": characters}, memory, tasks=tasks)

    @staticmethod
    def join(calls: list[Parts]) -> Parts:
        """The words (int32, one query after another), and their starts (int64 [n + 1])."""
        ends = np.cumsum([0, *(len(words) for words, _ in calls)])
        starts: list[Rows] = [starts[:-1] + end for (_, starts), end in zip(calls, ends, strict=False)]
        return np.concatenate([words for words, _ in calls]), np.concatenate([*starts, ends[-1:]])

    def params(self, search_params: str) -> str:
        return ""

    def check_params(self, search_params: str) -> None:
        if search_params:
            raise InputError("BM25 has no search parameters", "search_params", "leave them out")

    def check_gpu(self, search_params: str) -> None:
        raise InputError("BM25 does not use GPUs", "gpu", "leave it out")

    def prepare(self, queries: Any) -> list[Any]:
        """The numbers of the words, and the start of each query among them."""
        if not isinstance(queries, list) or not all(isinstance(query, str) for query in queries):
            raise InputError("a BM25 index is searched with a list of strings", "queries")
        return list(self._words.query_ids(queries, self._vocabulary))

    def open_shard(self, shard: int, threads: int, search_params: str) -> Bm25Shard:
        start, stop = self.index.summary["shards"][shard]
        return Bm25Shard((self.index.file(f"shard-{shard:05d}.{part}.npy") for part in PARTS), start, stop, threads)

    @cached_property
    def _words(self) -> Words:
        from raydense.retrieval.words import words_of  # only where it is asked: a stemmer takes a while to import

        return words_of(self.index)

    @cached_property
    def _vocabulary(self) -> pa.Array:
        words = pa.ipc.open_file(pa.memory_map(str(self.index.file("vocabulary.arrow")))).read_all()["word"]
        return words.chunk(0) if words.num_chunks == 1 else words.combine_chunks()


def _text_bytes(settings: IndexSettings) -> int:
    read = [("corpus", settings.corpus), *([("generated", settings.generated)] if settings.generated else [])]
    files = [file for kind, folder in read for file in Artifact.open(str(folder), kind).files if file.path.startswith(f"{kind}-")]
    return max(1, sum(file.bytes for file in files))
