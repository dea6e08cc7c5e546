"""The tokenise tasks' common part: a corpus shard's tokens, and what a worker process keeps open from one task to the next."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any

import numpy as np
import pyarrow as pa

from raydense.data.store import store_of
from raydense.inference.pipeline import pack, token_columns
from raydense.inference.settings import EncodeSettings, GenerateSettings
from raydense.storage.artifact import Draft

Changes = tuple[tuple[str, Any], ...]


def tokenise_shard(
    table: pa.Table,
    settings: EncodeSettings | GenerateSettings,
    draft: Draft,
    prints: dict[str, str],
    load: Callable[..., Any],
    changes: Changes = (),
) -> pa.Table:
    """The tokens of the shard that `table` names, with its row range, packed into one row; `load` as `kept_tokenizer` calls it."""
    shard = table["shard"][0].as_py()
    store = store_of(settings.corpus, prints["corpus"])
    start, stop = store.shards[shard]
    tokens = kept_tokenizer(load, settings.model, prints["model"], changes).passages(store.passages(np.arange(start, stop)))
    return pack({"shard": [shard], "range": [start, stop], **token_columns(tokens)})


@lru_cache(maxsize=1)
def kept_tokenizer(load: Callable[..., Any], folder: str, print_: str, changes: Changes = ()) -> Any:
    """What `load(folder, **changes)` gives, kept from task to task; `print_` is in the key, since a folder can change between stages."""
    return load(folder, **dict(changes))
