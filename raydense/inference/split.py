"""Splits documents into passages: a corpus whose texts are short enough for a model, each with the id of its document.

It is in this package because it uses two packages of the layer below: the passage store (`raydense/data`) and the tokenizer
(`raydense/models`). `raydense/data/splitting.py` decides where texts are cut.
It runs in one process: the tokenizer's threads use the cores, and hundreds of megabytes of text take minutes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from itertools import pairwise

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from raydense.data.splitting import Span, token_spans, word_spans
from raydense.data.store import CorpusWriter, PassageStore
from raydense.inference.settings import SplitSettings
from raydense.runtime.progress import Progress, say
from raydense.storage import Artifact, Draft, provenance

_ROWS = 8_192  # texts whose lengths are counted together
_CHARACTERS = 250_000  # characters of the documents that are cut together: more are not faster, and need more memory
Cut = Callable[[list[str]], list[list[Span]]]


def split(settings: SplitSettings) -> Artifact:
    """Cut the documents of `settings.corpus` into passages: a corpus of `passage_id`, `title`, `text` and `doc_id`.

    Passages of document `D` are `D-0`, `D-1`, ...; they have its title, and its `doc_id`, or `D` if it has none. Documents without
    text give no passage; their number is logged and in the summary. A run after a kill writes the same bytes. InputError
    if the tokenizer cannot be read, no document has text, or an id is repeated.
    """
    made_from = provenance("split", settings)
    cut = _cut_of(settings)
    store = PassageStore(settings.corpus)
    draft = Draft.open(settings.output, "corpus", made_from)
    if draft.done:
        return draft.done
    writer = CorpusWriter(draft, settings.shard_rows)
    empty = 0
    with Progress("split", len(store), "documents") as progress:
        for documents in _portions(store):
            passages, none = _passages_of(documents, cut)
            empty += none
            if passages.num_rows:
                writer.add(passages)
            progress.add(documents.num_rows, f"{writer.rows:,} passages")
    if empty:
        say(f"split: {empty:,} of {len(store):,} documents have no text, and make no passage")
    return writer.finish(documents=len(store), empty=empty)


def _cut_of(settings: SplitSettings) -> Cut:
    if settings.unit == "words":
        return partial(word_spans, length=settings.length)
    from raydense.models.tokenizer import starts_of_long, tokenizer_of_passages

    source = tokenizer_of_passages(str(settings.model))
    starts = partial(starts_of_long, source, length=settings.length)
    return partial(token_spans, language=settings.language, length=settings.length, starts=starts)


def _portions(store: PassageStore) -> Iterator[pa.Table]:
    """The documents in order, in tables whose texts have about `_CHARACTERS` characters."""
    for start in range(0, len(store), _ROWS):
        rows = store.slice(start, min(start + _ROWS, len(store)))
        lengths = pc.fill_null(pc.utf8_length(rows["text"]), 0).to_numpy()
        portion = np.cumsum(lengths, dtype=np.int64) // _CHARACTERS
        for first, last in pairwise([0, *(np.flatnonzero(np.diff(portion)) + 1).tolist(), rows.num_rows]):
            yield rows.slice(first, last - first)


def _passages_of(documents: pa.Table, cut: Cut) -> tuple[pa.Table, int]:
    """The passages of some documents, and the number of documents without one."""
    texts = pc.fill_null(documents["text"], "").to_pylist()
    spans = cut(texts)
    counts = [len(found) for found in spans]
    source = pa.array(np.repeat(np.arange(len(texts)), counts))
    ids = documents["passage_id"]
    doc_ids = pc.coalesce(documents["doc_id"], ids) if "doc_id" in documents.column_names else ids
    columns = {
        "passage_id": pa.array([f"{i}-{n}" for i, count in zip(ids.to_pylist(), counts, strict=True) for n in range(count)], pa.string()),
        "title": documents["title"].take(source),
        "text": pa.array([text[a:b] for text, found in zip(texts, spans, strict=True) for a, b in found], pa.string()),
        "doc_id": doc_ids.take(source),
    }
    return pa.table(columns), counts.count(0)
