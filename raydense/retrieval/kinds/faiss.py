"""Indexes of vectors: FAISS over the embeddings of a corpus, asked by the vectors of the same retriever."""

from __future__ import annotations

from typing import Any

import numpy as np

from raydense.errors import InputError
from raydense.forecast import Forecast, Holds
from raydense.retrieval.batching import Parts
from raydense.retrieval.gpu import check_gpu_index
from raydense.retrieval.kind import IndexKind
from raydense.retrieval.search_params import require_nprobe, with_defaults
from raydense.retrieval.settings import IndexSettings
from raydense.retrieval.sharding import shards_for
from raydense.storage import Artifact, Draft


class Kind(IndexKind):
    """FAISS by a factory string. Nothing here imports FAISS before it is needed."""

    title = "FAISS"
    encoded = True

    @staticmethod
    def shards_of(settings: IndexSettings) -> int:
        """By the size of the codes. InputError if FAISS does not know the factory string."""
        from raydense.retrieval.faiss_size import size_of

        vectors = Artifact.open(str(settings.embeddings), "embeddings")
        return shards_for(size_of(settings.factory, int(vectors.summary["dimension"])).vector, vectors.rows)

    @staticmethod
    def build(draft: Draft, settings: IndexSettings) -> Artifact:
        from raydense.retrieval.faiss_build import build_faiss

        return build_faiss(draft, settings)

    @staticmethod
    def forecast(settings: IndexSettings, read: Holds) -> Forecast:
        from raydense.retrieval.forecasts import vectors_forecast

        return vectors_forecast(settings, read)

    @property
    def hits_stand_alone(self) -> bool:
        return self.exact

    @staticmethod
    def join(calls: list[Parts]) -> Parts:
        """The vectors, float32 [n, d]."""
        return (np.concatenate([vectors for (vectors,) in calls]),)

    def params(self, search_params: str) -> str:
        """With the `nprobe` that was chosen when the index was made, where none is given."""
        summary = self.index.summary
        return with_defaults(search_params, summary["factory"], **({"nprobe": summary["nprobe"]} if "nprobe" in summary else {}))

    def check_params(self, search_params: str) -> None:
        used = self.params(search_params)
        require_nprobe(self.index.summary["factory"], used)
        if used:
            from raydense.retrieval.faiss_library import faiss
            from raydense.retrieval.faiss_shard import set_search_params

            set_search_params(faiss.read_index(str(self.index.file("empty.faiss"))), used)

    def check_gpu(self, search_params: str) -> None:
        check_gpu_index(self.index.summary["factory"], self.params(search_params))

    def prepare(self, queries: Any) -> list[Any]:
        """The vectors, float32 [n, d]."""
        dimension = self.index.summary["dimension"]
        if not isinstance(queries, np.ndarray) or queries.ndim != 2 or queries.shape[1] != dimension:
            raise InputError(f"the index is searched with vectors [n, {dimension}]", "queries")
        if queries.dtype.kind not in "fiu":
            raise InputError(f"are of dtype {queries.dtype}, no real numbers", "queries", "give float32")
        with np.errstate(over="ignore"):  # what float32 cannot hold is no finite number of it
            vectors = np.ascontiguousarray(queries, dtype=np.float32)
        if not np.isfinite(vectors).all():
            raise InputError("a query has numbers that are not finite in float32", "queries", "check what encodes them")
        return [vectors]

    def open_shard(self, shard: int, threads: int, search_params: str) -> Any:
        """A `FaissShard`. InputError if it does not take the parameters."""
        from raydense.retrieval.faiss_shard import FaissShard

        path = self.index.file(f"shard-{shard:05d}.faiss")  # before the small file, which a full cache removes while a large one is fetched
        start = self.index.summary["shards"][shard][0]
        return FaissShard(str(path), start, threads, self.params(search_params), str(self.index.file("empty.faiss")))
