"""How many shards an index gets where the settings leave it open: so many that each stays under about 2 GiB."""

from __future__ import annotations

from raydense.retrieval.kind import kind_named
from raydense.retrieval.settings import IndexSettings
from raydense.storage import made_or_begun_from

SHARD_BYTES = 2 * 2**30


def with_shards(settings: IndexSettings) -> IndexSettings:
    """The settings with a number of shards: the given one, that of the output if it was begun before, otherwise by the size.

    The number follows from the inputs alone, so that it is the same on every machine. Raises InputError if an input is missing, or
    FAISS does not know the factory string.
    """
    if settings.shards:
        return settings
    return settings.replaced({"shards": shards_begun(settings) or kind_named(settings.kind).shards_of(settings)})


def shards_begun(settings: IndexSettings) -> int:
    """The number of shards that the output was begun with; 0 if it was not."""
    there = made_or_begun_from(settings.output)
    return int(there.get("settings", {}).get("shards") or 0) if there.get("stage") == "index" else 0


def shards_for(vector_bytes: float, rows: int) -> int:
    """The least number of shards of at most about 2 GiB of codes."""
    return max(1, min(rows, shards_of_bytes(round(vector_bytes * rows))))


def shards_of_bytes(size: int) -> int:
    """The least number of shards of at most about 2 GiB."""
    return -(-size // SHARD_BYTES)
