"""What all tokenise tasks share: the tokens of a part, and a tokenizer that a worker process keeps open between tasks."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from raydense.inference.packing import pack, token_columns
from raydense.inference.settings import EncodeSettings, GenerateSettings
from raydense.inference.sources import source_of
from raydense.storage import Draft, check_unchanged

if TYPE_CHECKING:
    from raydense.models.tokenizer import TextTokenizer

Changes = tuple[tuple[str, Any], ...]


def tokenise_part(
    table: pa.Table,
    settings: EncodeSettings | GenerateSettings,
    draft: Draft,
    prints: dict[str, str],
    load: Callable[..., Any],
    changes: Changes = (),
) -> pa.Table:
    """The tokens of the part that `table` names, with its row range, packed into one row; `load` as `kept_tokenizer` calls it."""
    part = table["part"][0].as_py()
    queries = None if settings.corpus else getattr(settings, "queries", None)
    source = source_of(settings.corpus, queries, prints["queries" if queries else "corpus"])
    tokenizer = kept_tokenizer(load, settings.model, prints["model"], changes)
    tokens = (tokenizer.queries if queries else tokenizer.passages)(source.texts(part))
    return pack({"part": [part], "range": list(source.parts[part]), **token_columns(tokens)})


@lru_cache(maxsize=1)
def kept_tokenizer(load: Callable[..., Any], folder: str, print_: str, changes: Changes = ()) -> Any:
    """The result of `load(folder, **changes)`, kept between tasks; InputError if the folder does not have the fingerprint `print_`."""
    tokenizer = load(folder, **dict(changes))
    check_unchanged(folder, print_)
    return tokenizer


def retriever_tokenizer(folder: str, **changes: Any) -> TextTokenizer:
    """The tokenizer of a retriever, for `kept_tokenizer`."""
    from raydense.models.tokenizer import load_tokenizer

    return load_tokenizer(folder, **changes)
