"""Packs tokens into tables of one row, which Ray Data neither cuts nor joins, to send them from a task to an actor."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

if TYPE_CHECKING:
    from raydense.models.tokens import Tokens


def pack(columns: Mapping[str, Any]) -> pa.Table:
    """A table of one row whose cell `name` holds the whole column `name`, so that Ray Data neither cuts nor joins it."""
    arrays = {name: pa.array(values) for name, values in columns.items()}
    return pa.table({name: pa.LargeListArray.from_arrays(np.array([0, len(a)]), a) for name, a in arrays.items()})


def unpack(table: pa.Table) -> dict[str, pa.Array]:
    """The inverse of `pack`, without a copy."""
    return {name: table[name].combine_chunks().flatten() for name in table.column_names}


def token_columns(tokens: Tokens) -> dict[str, Any]:
    """Tokens as columns for `pack`."""
    types = {} if tokens.types is None else {"types": tokens.types}
    return {"ids": tokens.ids, "offsets": tokens.offsets, **types}


def tokens_of(columns: Mapping[str, pa.Array]) -> Tokens:
    """The inverse of `token_columns`."""
    from raydense.models.tokens import Tokens

    types = columns["types"].to_numpy() if "types" in columns else None
    return Tokens(columns["ids"].to_numpy(), columns["offsets"].to_numpy(), types)
