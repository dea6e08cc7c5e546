"""Splits documents into passages: a corpus whose texts are short enough for a model, each with the id of its document.

It is in this package because it uses two packages of the layer below: the passage store (`raydense/data`) and the tokenizer
(`raydense/models`). `raydense/data/passage_spans.py` decides where texts are cut.
Documents are cut in parts, by Ray tasks where there are many; what a part keeps in the work folder are places in the texts. Then one process
writes the passages in order: that only copies texts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache, partial
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from raydense.data.passage_spans import Span, token_spans, word_spans
from raydense.data.store import CorpusWriter, PassageStore, Rows, store_of
from raydense.inference.arrivals import arriving
from raydense.inference.settings import SplitSettings
from raydense.ranges import ranges
from raydense.runtime.progress import Progress, say
from raydense.storage import Artifact, Draft, check_unchanged, provenance, releases_outputs

_ROWS = 8_192  # documents of a part
_FEW = 8  # parts that are cut here rather than by Ray, whose start takes seconds
_CHARACTERS = 250_000  # characters of the documents that are cut together: more are not faster, and need more memory
Cut = Callable[[list[str]], list[list[Span]]]


@releases_outputs
def split(settings: SplitSettings) -> Artifact:
    """Cut the documents of `settings.corpus` into passages: a corpus of `passage_id`, `title`, `text` and `doc_id`.

    Passages of document `D` are `D-0`, `D-1`, ...; they have its title, and its `doc_id`, or `D` if it has none. Documents without
    text give no passage; their number is logged and in the summary. A run after a kill cuts the missing parts, and writes the same
    bytes. InputError if the tokenizer cannot be read, no document has text, or an id is repeated.
    """
    made_from = provenance("split", settings)
    _cut_of(settings, made_from["inputs"].get("model"))
    store = PassageStore(settings.corpus)
    draft = Draft.open(settings.output, "corpus", made_from)
    if draft.done:
        return draft.done
    starts = range(0, len(store), _ROWS)
    parts = [_Part(start, min(start + _ROWS, len(store)), f"cuts-{number:05d}.npz") for number, start in enumerate(starts)]
    _cut_parts(draft, settings, parts, made_from["inputs"], len(store))
    return _write(draft, settings, store, parts)


@dataclass(frozen=True)
class _Part:
    """A range of documents that are cut together."""

    start: int
    stop: int
    name: str


def _cut_parts(draft: Draft, settings: SplitSettings, parts: list[_Part], prints: dict[str, Any], documents: int) -> None:
    """Cut the parts that no earlier run has cut."""
    missing = [part for part in parts if draft.kept(part.name) is None]
    calls = [(draft, settings.located(), part, prints) for part in missing]
    done = documents - sum(part.stop - part.start for part in missing)
    reported = _by_tasks(calls) if len(calls) > _FEW else (_cut_part(*call) for call in calls)
    with Progress("split", documents, "documents", done) as progress:
        for cut in arriving(draft, [part.name for part in missing], reported):
            progress.add(cut)


def _by_tasks(calls: list[tuple[Any, ...]]) -> Iterator[int]:
    from raydense.runtime.session import ensure_ray
    from raydense.runtime.tasks import run_tasks

    ensure_ray()
    yield from run_tasks("split", _cut_part, calls)


def _cut_part(draft: Draft, settings: SplitSettings, part: _Part, prints: dict[str, Any]) -> int:
    """Keep, for each document of a part, the number of its passages and where they begin and end; returns the documents."""
    cut, store = _cut_of(settings, prints.get("model")), store_of(settings.corpus, prints["corpus"])
    counts, spans = [], [np.empty((0, 2), dtype=np.int64)]
    for documents in _portions(store, part):
        found = cut(pc.fill_null(documents["text"], "").to_pylist())
        counts += list(map(len, found))
        spans.append(np.array([span for of in found for span in of], dtype=np.int64).reshape(-1, 2))
    arrays: dict[str, Any] = {"counts": np.array(counts, dtype=np.int64), "spans": np.concatenate(spans)}
    draft.keep(part.name, lambda path: np.savez(path, **arrays))
    return part.stop - part.start


def _write(draft: Draft, settings: SplitSettings, store: PassageStore, parts: list[_Part]) -> Artifact:
    """Write the passages of all parts, in order."""
    writer, empty = CorpusWriter(draft, settings.shard_rows), 0
    with Progress("split: passages", len(store), "documents") as progress:
        for part in parts:
            kept = np.load(draft.kept_whole(part.name))
            counts, spans = kept["counts"], kept["spans"]
            empty += int((counts == 0).sum())
            first, ends = 0, np.append(0, np.cumsum(counts))
            for documents in _portions(store, part):
                last = first + documents.num_rows
                passages = _passages_of(documents, counts[first:last], spans[ends[first] : ends[last]])
                first = last
                if passages.num_rows:
                    writer.add(passages)
                progress.add(documents.num_rows, f"{writer.rows:,} passages")
    if empty:
        say(f"split: {empty:,} of {len(store):,} documents have no text, and make no passage")
    return writer.finish(documents=len(store), empty=empty)


def _cut_of(settings: SplitSettings, model_print: str | None) -> Cut:
    if settings.unit == "words":
        return partial(word_spans, length=settings.length)
    from raydense.models.tokenizer import splits_words_first, starts_of_long

    source = _tokenizer(str(settings.model), str(model_print))
    starts = partial(starts_of_long, source, length=settings.length)
    return partial(token_spans, language=settings.language, length=settings.length, starts=starts, words_first=splits_words_first(source))


@lru_cache(maxsize=1)
def _tokenizer(folder: str, print_: str) -> Any:
    """The tokenizer, kept by a worker process from part to part; InputError if the folder does not have the fingerprint `print_`."""
    from raydense.models.tokenizer import tokenizer_of_passages

    tokenizer = tokenizer_of_passages(folder)
    check_unchanged(folder, print_)
    return tokenizer


def _portions(store: PassageStore, part: _Part) -> Iterator[pa.Table]:
    """The documents of a part in order, in tables whose texts have about `_CHARACTERS` characters."""
    rows = store.slice(part.start, part.stop)
    lengths = pc.fill_null(pc.utf8_length(rows["text"]), 0).to_numpy()
    portion = np.cumsum(lengths, dtype=np.int64) // _CHARACTERS
    for first, last in pairwise([0, *(np.flatnonzero(np.diff(portion)) + 1).tolist(), rows.num_rows]):
        yield rows.slice(first, last - first)


def _passages_of(documents: pa.Table, counts: Rows, spans: Rows) -> pa.Table:
    """The passages of some documents: `counts` int64 [documents], and where they begin and end, int64 [passages, 2]."""
    owner = np.repeat(np.arange(len(counts)), counts)
    number = ranges(np.zeros_like(counts), counts)
    source, ids = pa.array(owner), documents["passage_id"]
    doc_ids = pc.coalesce(documents["doc_id"], ids) if "doc_id" in documents.column_names else ids
    texts, names = pc.fill_null(documents["text"], "").to_pylist(), ids.to_pylist()
    cut = zip(owner.tolist(), spans.tolist(), strict=True)
    columns = {
        "passage_id": pa.array([f"{names[of]}-{n}" for of, n in zip(owner.tolist(), number.tolist(), strict=True)], pa.string()),
        "title": documents["title"].take(source),
        "text": pa.array([texts[of][a:b] for of, (a, b) in cut], pa.string()),
        "doc_id": doc_ids.take(source),
    }
    return pa.table(columns)
