"""What each kind of index does in its own way; the kinds are files of `raydense.retrieval.kinds`, found by the name in an index's summary."""

from __future__ import annotations

from abc import ABC, abstractmethod
from importlib import import_module
from typing import TYPE_CHECKING, Any, ClassVar

from raydense.errors import InputError
from raydense.retrieval.settings import KINDS, IndexSettings

if TYPE_CHECKING:
    from raydense.forecast import Forecast, Holds
    from raydense.retrieval.batching import Parts
    from raydense.storage import Artifact, Draft

_KINDS = "raydense.retrieval.kinds"


class IndexKind(ABC):
    """A finished index, read as one of its kind; the static methods are what the stage `index` makes one with.

    A further kind is a file of `raydense.retrieval.kinds` with a class `Kind` that derives from this one, and its settings in
    `IndexSettings`. Its shards have `nearest(*queries, k)`, where the queries are what `prepare` returns.
    """

    title: ClassVar[str]  # in messages
    encoded: ClassVar[bool]  # whether it is asked by the vectors of a retriever, and so has search parameters; otherwise by texts

    def __init__(self, index: Artifact) -> None:
        self.index = index

    @staticmethod
    @abstractmethod
    def shards_of(settings: IndexSettings) -> int:
        """The number of shards of at most about 2 GiB by the size of the inputs alone."""

    @staticmethod
    @abstractmethod
    def build(draft: Draft, settings: IndexSettings) -> Artifact:
        """Make the index, and finish the draft."""

    @staticmethod
    @abstractmethod
    def forecast(settings: IndexSettings, read: Holds) -> Forecast:
        """What making it will need, from the size of what it is made of."""

    @property
    def exact(self) -> bool:
        """Whether FAISS looks at every vector, so that the hits are scored again, and put in one order."""
        return self.index.summary.get("largest_norm") is not None

    @property
    @abstractmethod
    def hits_stand_alone(self) -> bool:
        """Whether a query's hits depend on neither the rest of its batch nor on k, so that searches of several callers can be merged."""

    @staticmethod
    @abstractmethod
    def join(calls: list[Parts]) -> Parts:
        """The prepared queries of several searches as those of one."""

    @abstractmethod
    def params(self, search_params: str) -> str:
        """What it is searched with where these parameters are given: also those that the index brings."""

    @abstractmethod
    def check_params(self, search_params: str) -> None:
        """InputError if it cannot be searched with these parameters, or needs one that is missing."""

    @abstractmethod
    def check_gpu(self, search_params: str) -> None:
        """InputError if it, or a search with these parameters, does not go to a GPU."""

    @abstractmethod
    def prepare(self, queries: Any) -> list[Any]:
        """The checked queries as a shard takes them. InputError if they are not what an index of this kind is asked by."""

    @abstractmethod
    def open_shard(self, shard: int, threads: int, search_params: str) -> Any:
        """The shard of that number for searching in this process, its files memory-mapped where they can be."""


def kind_named(name: str) -> type[IndexKind]:
    """The kind of this name."""
    kind: type[IndexKind] = import_module(f"{_KINDS}.{name}").Kind
    return kind


def kind_of(index: Artifact) -> IndexKind:
    """The index, read as one of its kind; InputError if this version knows no such kind."""
    name = index.summary["kind"]
    if name not in KINDS:
        raise InputError(f"is of kind {name}, which this raydense does not know", index.place, "use the version that made it")
    return kind_named(name)(index)
