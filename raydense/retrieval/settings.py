"""The settings of `index` and `search`, and of the pool that a search calls."""

from __future__ import annotations

import re
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import BaseModel, BeforeValidator, model_validator

from raydense.forecast import PROCESS_BYTES, TORCH_BYTES, Forecast, Holds, Known, fewest
from raydense.inference.settings import QUERY_PROMPT, QueryPrompt
from raydense.settings import BaseSettings, Folder, FolderOrNone, OneOrMore, Settings, artifact, group, resource, setting
from raydense.storage import named

_Name = Annotated[str, BeforeValidator(lambda name: "none" if name is None else name)]


class BM25Settings(BaseSettings):
    """BM25 as in Lucene."""

    k1: float = setting(0.9, "term saturation", ge=0)
    b: float = setting(0.4, "length normalisation", ge=0, le=1)
    stemmer: _Name = setting("english", "Snowball stemmer (english is Porter2), or none")
    stopwords: _Name = setting("en", "stop words of this language, or none")


# the settings of `index` that one kind alone has, after the input that it is made of
_OWN = {
    "faiss": ("embeddings", "factory", "train_sample", "recall", "skip_memory_check", "single_core"),
    "bm25": ("corpus", "generated", "bm25"),
}
KINDS = tuple(_OWN)


class IndexSettings(Settings):
    """Make a searchable index: FAISS over embeddings, or BM25 over a corpus."""

    renamed: ClassVar[dict[str, str]] = {name: f"bm25.{name}" for name in BM25Settings.model_fields} | {
        "background": "single_core",
        "elsewhere": "skip_memory_check",
        "expand": "generated",
    }
    recorded: ClassVar[dict[str, str]] = {"generated": "expand"}
    newer = ("recall",)

    kind: Literal["faiss", "bm25"] = setting(
        ...,
        "faiss for vectors, bm25 for words",
    )
    embeddings: FolderOrNone = artifact("embeddings", "faiss: the vectors", None)
    corpus: FolderOrNone = artifact(
        "corpus",
        "bm25: the passages; words of Chinese, Japanese, Korean, Thai, Lao, Khmer and Burmese are pairs of neighbouring characters",
        None,
    )
    generated: FolderOrNone = artifact("generated", "bm25: generated queries, whose words are added to their passages", None)
    shards: int = setting(0, "parts, each held by its own actor; 0: so many that a part is at most about 2 GiB", ge=0)
    factory: str = setting("Flat", "faiss: index factory string, as Flat, SQfp16, IVF4096,Flat or HNSW32")
    train_sample: int = setting(200_000, "faiss: vectors that a quantiser is trained on", ge=256)
    recall: float = setting(
        0.95,
        "faiss with inverted lists: choose the smallest nprobe that finds this share of the exact best 100; 0: choose none, each search gives it",
        ge=0,
        le=1,
    )
    bm25: BM25Settings = group("how texts are split into words, and words weighted", BM25Settings)
    seed: int = setting(42, "random seed of the samples that a quantiser is trained on, and nprobe chosen by", ge=0, lt=2**63)
    concurrency: int = resource(
        0,
        "tasks at once: one makes a shard, or with bm25 counts a part of the texts; 0: as many as the machine has CPUs, on a cluster all, since it may grow",
        ge=0,
    )
    skip_memory_check: bool = resource(False, "faiss: make it even if these machines have too little memory to search it")
    single_core: bool = resource(False, "faiss: one core for each task, also where it leaves others idle")

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if not getattr(self, _OWN[self.kind][0]):
            raise ValueError(f"kind {self.kind} needs {_OWN[self.kind][0]}")
        self._refuse_given(_of_others(self.kind), f"kind {self.kind}")
        return self

    @classmethod
    def takes(cls, values: dict[str, Any]) -> set[str]:
        """As for every stage, without the settings of the other kind."""
        others = _of_others(str(values.get("kind")))
        return {key for key in super().takes(values) if key.partition(".")[0] not in others}

    def shaping(self) -> dict[str, Any]:
        """As for every stage, but without the seed of bm25: a recipe sets it for every stage that has one, but bm25 draws nothing.

        A number of shards that is left open stands as 1, so that the folders that trials share keep their names.
        """
        shaping = super().shaping() | {"shards": self.shards or 1}
        return {name: value for name, value in shaping.items() if (self.kind, name) != ("bm25", "seed")}

    def left_open(self) -> set[str]:
        """The number of shards, if it follows from the size: an index that was begun keeps its own."""
        return set() if self.shards else {"shards"}

    def forecast(self, known: Known) -> Forecast:
        """By the kind of the index."""
        from raydense.retrieval.kind import kind_named

        read = known.of(getattr(self, _OWN[self.kind][0]))
        return kind_named(self.kind).forecast(self, read) if read else Forecast()


def _of_others(kind: str) -> list[str]:
    """The settings of the other kinds; none where `kind` is no kind."""
    return [name for other, names in _OWN.items() if kind in _OWN and other != kind for name in names]


def _joined(factories: object) -> object:
    """A list of factory strings as one text, which is what fingerprints have."""
    if isinstance(factories, list | tuple) and all(isinstance(one, str) for one in factories):
        return " ".join(factories)
    return factories


class CompareSettings(Settings):
    """Compare FAISS indexes on a sample of the embeddings: recall, speed, memory and the time to build, for the factory strings given."""

    renamed: ClassVar[dict[str, str]] = {"queries": "query_sample"}
    recorded: ClassVar[dict[str, str]] = {"query_sample": "queries"}

    embeddings: Folder = artifact("embeddings", "the vectors of passages")
    factories: Annotated[str, BeforeValidator(_joined)] = setting(
        "Flat SQfp16 SQ8 IVF1024,Flat IVF1024,SQ8 RaBitQ,Refine(SQ8) IVF1024,RaBitQ,Refine(SQ8)",
        "index factory strings, with blanks or semicolons between them; in a file a list, too",
        pattern=r"[^\s;]",
    )
    sample: int = setting(200_000, "vectors that are indexed, drawn at random", ge=1_000)
    query_sample: int = setting(1_000, "other vectors, which are the queries; at most a tenth of all", ge=1)
    k: int = setting(100, "answers of a query that count: recall@k", ge=1)
    recall: float = setting(0.95, "with inverted lists: the least nprobe that reaches this recall, if any does", gt=0, le=1)
    train_sample: int = setting(200_000, "vectors that a quantiser is trained on", ge=256)
    threads: int = setting(1, "threads that build and search", ge=1)
    seed: int = setting(42, "random seed of the samples", ge=0, lt=2**63)

    @property
    def named(self) -> list[str]:
        """The factory strings."""
        return list(dict.fromkeys(re.split(r"[;\s]+", self.factories.strip("; \t\n"))))


class TopicsSettings(Settings):
    """Group training queries into topics: `train --topics` then makes each batch of queries about one topic.

    By qrels, queries whose relevant passages are near each other in the corpus, as those of one document are, have one topic; by embeddings,
    queries of similar vectors.
    """

    qrels: FolderOrNone = artifact("qrels", "the judgements of the training queries; needs queries and corpus", None)
    queries: FolderOrNone = artifact("queries", "with qrels: the queries", None)
    corpus: FolderOrNone = artifact("corpus", "with qrels: the passages, document after document", None)
    embeddings: FolderOrNone = artifact("embeddings", "or the vectors of the queries, as `encode --queries` makes them", None)
    size: int = setting(128, "queries of a topic, about; some batches of a training, so that these differ from epoch to epoch", ge=2)
    seed: int = setting(42, "with embeddings: random seed of the k-means", ge=0, lt=2**63)

    @model_validator(mode="after")
    def _one_way(self) -> Self:
        if bool(self.embeddings) == bool(self.qrels):
            raise ValueError("give either qrels, with queries and corpus, or embeddings")
        if self.embeddings:
            self._refuse_given(["queries", "corpus"], "topics by embeddings")
        elif not (self.queries and self.corpus):
            raise ValueError("qrels needs queries and corpus")
        return self

    def forecast(self, known: Known) -> Forecast:
        """The time grows with the queries, by vectors with the products of k-means."""
        queries = known.of(self.embeddings or self.queries)
        if not queries:
            return Forecast()
        needs = f"{queries} queries, {self.size} in a topic"
        makes = {self.output: Holds(queries.rows, queries.word, bytes=12.0 * queries.rows)}
        if not self.embeddings:
            return Forecast(needs, makes, "topics qrels", {"queries": float(queries.rows)}, PROCESS_BYTES, tasks=1)
        if not queries.each:
            return Forecast(needs, makes)
        from raydense.retrieval.topics import memory_of, products_of  # only here: importing Ray takes a second

        of = (queries.rows, int(queries.each), self.size)
        return Forecast(needs, makes, "topics vectors", {"products": float(products_of(*of))}, memory_of(*of), tasks=1)


class Pool(BaseModel):
    """How an index is searched by a pool of shard actors; part of the stages that search."""

    search_params: str = setting(
        "", "FAISS search parameters, as nprobe=32, efSearch=128 or k_factor_rf=10; nprobe is the index's own by default"
    )
    shard_replicas: int = resource(1, "actors of each shard", ge=1)
    threads: int = resource(0, "threads of a shard actor; 0 shares the cores between the actors of a machine", ge=0)
    gpu: bool = resource(
        False, "load the shards on GPUs (needs faiss-gpu), several on one if they are more; a search of k above 2,048 takes the CPU"
    )


class SearchSettings(Settings, QueryPrompt, Pool):
    """Search an index with a pool of shard actors; the best k passages of each query become a run.

    Of several indexes of one corpus (as BM25 and faiss: --index A --index B) the hits are fused, as `raydense fuse` does with runs.
    """

    newer = ("drop_identical", *QUERY_PROMPT)
    renamed: ClassVar[dict[str, str]] = {"background": "queries_on_cpu", "replicas": "shard_replicas"}

    index: OneOrMore = artifact("index", "the index, or several of one corpus; with pool, by default the pool's", None)
    fuse: FolderOrNone = artifact(
        "run",
        "several indexes: a run that `raydense fuse` made, whose method, weights and depth are used; by default reciprocal ranks of the first 100 hits, or k",
        None,
    )
    queries: Folder = artifact("queries", "the queries")
    model: FolderOrNone = artifact("model", "the retriever that the embeddings were made with; not for bm25", None)
    vectors: FolderOrNone = artifact("embeddings", "in place of model: the vectors of the queries, as `encode --queries` makes them", None)
    qrels: FolderOrNone = artifact("qrels", "search only the queries judged here", None)
    k: int = setting(100, "passages of each query", ge=1)
    drop_identical: bool = setting(
        False,
        "leave out the passage whose id is the query's own, as BEIR does (ArguAna, Quora), unless qrels judge it",
    )
    block: int = setting(2_048, "queries of a block, which is searched at once and committed as one file; it bounds the memory", ge=1)
    pool: OneOrMore = resource(None, "the name of a running pool (`raydense pool start`) to use instead of starting one, or of several")
    queries_on_cpu: bool = resource(False, "encode the queries on the CPU, and leave the GPUs to other work")

    @model_validator(mode="after")
    def _asks_one(self) -> Self:
        if self.pool:
            self._refuse_given(["search_params", "shard_replicas", "threads", "gpu"], "a search by pool")
        elif not self.index:
            raise ValueError("a search needs index, or pool")
        if self.vectors:
            self._refuse_given(["model", "queries_on_cpu"], "a search with vectors")
        elif not self.model:
            self._refuse_given(["queries_on_cpu"], "a search without model")
        if len(self.pools or self.indexes) > 1:
            self._refuse_given(["drop_identical"], "a search of several indexes")
        else:
            self._refuse_given(["fuse"], "a search of one index")
        if self.pool and self.index and len(self.pools) != len(self.indexes):
            raise ValueError(f"there are {len(self.pools)} pools and {len(self.indexes)} indexes: give as many, or leave index out")
        self._refuse_same_names("index")
        return self

    @classmethod
    def takes(cls, values: dict[str, Any]) -> set[str]:
        """As for every stage; without a model nothing is encoded."""
        return super().takes(values) - (set() if "model" in values else {"queries_on_cpu"})

    @property
    def indexes(self) -> list[str]:
        """The indexes, each a folder or NAME=folder."""
        return self.index if isinstance(self.index, list) else [self.index] if self.index else []

    @property
    def pools(self) -> list[str]:
        """The names of the pools."""
        return self.pool if isinstance(self.pool, list) else [self.pool] if self.pool else []

    def asked(self, known: Known) -> Holds | None:
        """The queries that are searched."""
        return fewest(known.of(self.queries), known.of(self.qrels)) if self.qrels else known.of(self.queries)

    def forecast(self, known: Known) -> Forecast:
        """The time grows with the hits to write, and with queries x vectors (or passages) that are compared."""
        queries = self.asked(known)
        if not queries:
            return Forecast()
        from raydense.retrieval.forecasts import on_gpus, search_work

        one = None if isinstance(self.index, list) else self.index
        indexes = [known.of(named(index)[1]) for index in self.indexes]
        several = f", of {len(indexes)} indexes" if len(indexes) > 1 else ""
        needs = f"{queries} queries x {self.k}{several}{on_gpus(self, one)}"
        made = Holds(queries.rows, queries.word, self.k, 7.0 * queries.rows * self.k)
        there = [index for index in indexes if index]
        if not there or len(there) < len(indexes):
            return Forecast(needs, {self.output: made})
        process = TORCH_BYTES if self.model else PROCESS_BYTES
        memory = process + max(index.bytes / max(1, index.files) for index in there)
        if several:  # whose time was not measured
            return Forecast(needs, {self.output: made}, memory=memory)
        kind, work = search_work(known, queries, there[0], self.k, None if self.vectors else self.model, self.search_params)
        return Forecast(needs, {self.output: made}, kind, work, memory, -1 if self.gpu or self.model else 0)

    def left_open(self) -> set[str]:
        """The values that a running pool provides: its search parameters, and its index if none is given."""
        return {"search_params", *(() if self.index else ("index",))} if self.pool else set()
