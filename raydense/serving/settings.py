"""The settings of `serve`."""

from __future__ import annotations

from typing import Self

from pydantic import model_validator

from raydense.settings import BaseSettings, FolderOrNone, artifact, resource, setting


class ServeSettings(BaseSettings):
    """Answer queries over HTTP: a Ray Serve application over a search pool, which encodes the queries of many callers together."""

    index: FolderOrNone = artifact("index", "the index to answer from, by a pool that is started for it; or give pool", None)
    pool: str | None = resource(None, "the name of a running pool (`raydense pool start`) to use instead of starting one")
    model: FolderOrNone = artifact("model", "the retriever that the embeddings were made with; not for bm25", None)
    corpus: FolderOrNone = artifact("corpus", "the passages of the index, if callers may ask for their titles and texts", None)
    search_params: str = setting("", "FAISS search parameters, as nprobe=32 or efSearch=128; nprobe is the index's own by default")
    shard_replicas: int = resource(1, "actors of each shard", ge=1)
    replicas: int = resource(1, "processes that handle requests, each with a query encoder", ge=1)
    gpus_per_replica: float = resource(0.0, "GPUs of one process; may be a fraction", ge=0)

    @model_validator(mode="after")
    def _asks_one(self) -> Self:
        if self.pool:
            self._refuse_given(["index", "search_params", "shard_replicas"], "serving by pool")
        elif not self.index:
            raise ValueError("serving needs index, or pool")
        return self
