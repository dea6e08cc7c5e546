"""The settings of a `Retriever`, which answers in the process that has it, and of `serve`."""

from __future__ import annotations

from typing import ClassVar, Self

from pydantic import model_validator

from raydense.inference.settings import QueryPrompt
from raydense.settings import FolderOrNone, Folders, Words, artifact, resource, setting
from raydense.storage import named_folders


class RetrieverSettings(QueryPrompt):
    """Answer questions in this process, from one index or from several of one corpus whose hits are fused."""

    called: ClassVar[str] = "a search"

    index: Folders = artifact("index", "the index, held by this process, or several of one corpus, whose hits are fused; or give pool", [])
    pool: Words = resource([], "the name of a running pool (`raydense pool start`) to use in place of index, or of several")
    fuse: FolderOrNone = artifact(
        "run",
        "several indexes: a run that `raydense fuse` made of as many runs, whose method, weights and depth are used. Weights go by the names of"
        " indexes or pools (NAME=folder), or in order if the names differ. By default: reciprocal ranks of the first 100 hits",
        None,
    )
    model: FolderOrNone = artifact("model", "the retriever that the embeddings were made with; not for bm25", None)
    corpus: FolderOrNone = artifact("corpus", "the passages of the index, for titles and texts", None)
    search_params: str = setting("", "FAISS search parameters, as nprobe=32 or efSearch=128; nprobe is the index's own by default")
    reranker: FolderOrNone = artifact("model", "a re-ranker that orders the first passages of each question again; needs corpus", None)
    rerank_depth: int = setting(
        50,
        "how many of the first passages the re-ranker scores, half as many as `rerank`, as somebody waits; the others follow in their order",
        ge=1,
        le=1_000,
    )

    @model_validator(mode="after")
    def _asks_one(self) -> Self:
        if self.pool:
            self._refuse_given(["index", "search_params"], f"{self.called} by pool")
        elif not self.index:
            raise ValueError(f"{self.called} needs index, or pool")
        if len(set(self.names)) < len(self.names):
            raise ValueError("two of index or pool have the same name: give each once, or write NAME=folder, each with another name")
        if len(self.pool or self.index) == 1:
            self._refuse_given(["fuse"], f"{self.called} of one index")
        if not self.reranker:
            self._refuse_given(["rerank_depth"], f"{self.called} without a reranker")
        elif not self.corpus:
            raise ValueError(f"{self.called} with a reranker needs corpus, the texts that it reads")
        return self

    @property
    def names(self) -> list[str]:
        """The names of the indexes or pools, in order."""
        return self.pool or [name for name, _ in named_folders(self.index)]


class ServeSettings(RetrieverSettings):
    """Answer queries over HTTP: a Ray Serve application that encodes the queries of many callers together, and holds the index or calls a search pool.

    A token in RAYDENSE_TOKEN is asked of every caller.

    Of several indexes of one corpus (as BM25 and faiss: --index A --index B) the hits are fused, as `raydense fuse` does with runs.
    """

    called = "serving"
    renamed: ClassVar[dict[str, str]] = {"most_queries": "max_queries", "most_hits": "max_hits", "seconds": "timeout"}

    index: Folders = artifact(
        "index",
        "the index to answer from, held by each process where memory allows, else by a pool that is started for it; or several, whose hits are fused; or give pool",
        [],
    )
    pool: Words = resource([], "the name of a running pool (`raydense pool start`) to use instead of starting one, or of several")
    corpus: FolderOrNone = artifact("corpus", "the passages of the index, if callers may ask for their titles and texts", None)
    shard_replicas: int = resource(1, "actors of each shard", ge=1)
    replicas: int = resource(1, "processes that handle requests, each with a query encoder", ge=1)
    gpus_per_replica: float = resource(0.0, "GPUs of one process; may be a fraction; with 0 it uses none", ge=0, le=1)
    reranker_replicas: int = resource(1, "processes of the re-ranker", ge=1)
    gpus_per_reranker: float = resource(0.0, "GPUs of one process of the re-ranker; may be a fraction; with 0 it uses none", ge=0, le=1)
    max_queries: int = resource(512, "queries of a request, at most", ge=1)
    max_hits: int = resource(
        50_000,
        "queries times k, or times rerank_depth where that is more, of a request, at most; and of requests that are answered together",
        ge=1,
    )
    timeout: float = resource(30.0, "seconds that a request may take", gt=0)
    log_queries: bool = resource(False, "whether the texts of the queries are written to the log of Ray Serve")

    @model_validator(mode="after")
    def _uses_all(self) -> Self:
        if self.pool:
            self._refuse_given(["shard_replicas"], "serving by pool")
        if not self.reranker:
            self._refuse_given(["reranker_replicas", "gpus_per_reranker"], "serving without a reranker")
        elif self.max_hits < self.rerank_depth:
            raise ValueError(
                f"max_hits is {self.max_hits:,}, and a re-ranker scores {self.rerank_depth:,} passages of each query: raise it"
            )
        return self
