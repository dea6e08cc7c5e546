"""A retriever as a model of the package mteb (its `SearchProtocol`): corpora are encoded on Ray Data and searched by a pool of shard actors.

The package is an extra, and is imported only where mteb asks for its metadata.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from raydense.data.store import CorpusWriter
from raydense.data.tables import commit_table, query_starts, read_table
from raydense.errors import InputError
from raydense.inference.encode import encode
from raydense.inference.settings import EncodeSettings
from raydense.retrieval.index import index
from raydense.retrieval.search import search
from raydense.retrieval.settings import IndexSettings, SearchSettings
from raydense.storage import Artifact, Draft, fingerprint_of, model_place, releases_outputs

_ROWS = 8_192
_SHARD_ROWS = 100_000


class MtebSearch:
    """A model folder, for `mteb.evaluate(MtebSearch("model"), tasks)`.

    `encode`, `index` and `search` are further settings of these stages, as `index={"factory": "SQfp16"}`. What the stages make of a
    task lies below `folder`, and is continued or used again by the next call; on a cluster all nodes must see it. Without a folder it is
    temporary, and removed when the next corpus comes. InputError if the folder holds no model, or a stage has no such setting.
    """

    def __init__(
        self,
        model: str | os.PathLike[str],
        folder: str | os.PathLike[str] | None = None,
        *,
        encode: dict[str, Any] | None = None,
        index: dict[str, Any] | None = None,
        search: dict[str, Any] | None = None,
    ) -> None:
        self.model, self.folder = os.fspath(model), folder
        self.fingerprint = fingerprint_of(model_place(self.model))
        self._encode, self._index, self._search = encode or {}, index or {}, search or {}
        for stage, given, known in (
            ("encode", encode, EncodeSettings),
            ("index", index, IndexSettings),
            ("search", search, SearchSettings),
        ):
            for key in given or {}:
                known.refuse_unknown(key, f"{stage}.")
        self._temporary: TemporaryDirectory[str] | None = None
        self._work = Path()

    @property
    def mteb_model_meta(self) -> Any:
        """The model's name and fingerprint, by which mteb keeps its results (an `mteb.ModelMeta`)."""
        from mteb.models import ModelMeta

        name = f"raydense/{model_place(self.model).name}"
        return ModelMeta.create_empty({"name": name, "revision": self.fingerprint, "framework": ["PyTorch"]})

    def index(self, corpus: Any, *, task_metadata: Any, hf_split: str, hf_subset: str, **_: Any) -> None:
        """Encode and index a corpus: a `datasets.Dataset` of `id`, `text` and perhaps `title`. InputError if a column is not there, or no text."""
        self._work = self._folder_of(task_metadata.name, hf_subset, hf_split)
        made = _write_corpus(corpus, self._work / "corpus", task_metadata.name)
        vectors = encode(EncodeSettings(model=self.model, corpus=made, output=self._work / "embeddings", **self._encode))
        index(IndexSettings(kind="faiss", embeddings=vectors, output=self._work / "index", **self._index))

    def search(self, queries: Any, *, task_metadata: Any, top_k: int, top_ranked: Any = None, **_: Any) -> dict[str, dict[str, float]]:
        """The best `top_k` passages of each query of a `datasets.Dataset` of `id`, `text` and perhaps `instruction`: scores by passage, by query.

        InputError if the task gives candidates to re-rank, or conversations.
        """
        if top_ranked is not None:
            raise InputError(
                "gives candidates to re-rank, and a search finds its own",
                task_metadata.name,
                "give mteb the CrossEncoder, or a retrieval task",
            )
        asked = _write_queries(queries, self._work / "queries", task_metadata.name)
        settings = {"model": self.model, "queries": asked, "index": self._work / "index", "k": top_k, **self._search}
        return _by_query(search(SearchSettings(output=self._work / f"run-{top_k}", **settings)), asked)

    def _folder_of(self, task: str, subset: str, split: str) -> Path:
        if self._temporary is not None:
            self._temporary.cleanup()
        if self.folder is None:
            self._temporary = TemporaryDirectory(prefix="raydense-mteb-")
        root = self._temporary.name if self._temporary else self.folder
        return Path(str(root)) / task / subset / split


@releases_outputs
def _write_corpus(corpus: Any, folder: Path, task: str) -> Artifact:
    draft = Draft.open(folder, "corpus", {"stage": "mteb", "task": task, "rows": _digest(corpus, ["id", "title", "text"])})
    if draft.done:
        return draft.done
    writer = CorpusWriter(draft, _SHARD_ROWS, lambda row: f"{task}, passage {row + 1}", strict=False)
    for table in _tables(corpus, ["id", "title", "text"]):
        writer.add(table.rename_columns(["passage_id", "title", "text"]))
    return writer.finish()


@releases_outputs
def _write_queries(queries: Any, folder: Path, task: str) -> Artifact:
    draft = Draft.open(folder, "queries", {"stage": "mteb", "task": task, "rows": _digest(queries, ["id", "text", "instruction"])})
    if draft.done:
        return draft.done
    table = pa.concat_tables(_tables(queries, ["id", "text", "instruction"]))
    # as mteb itself joins them
    text = pc.if_else(
        pc.equal(table["instruction"], ""), table["text"], pc.binary_join_element_wise(table["text"], table["instruction"], " ")
    )
    commit_table(draft, "queries.parquet", pa.table({"query_id": table["id"], "text": text}))
    return draft.finish(table.num_rows)


def _tables(dataset: Any, columns: list[str]) -> Iterator[pa.Table]:
    """The columns as strings, some thousand rows at a time; "" for a title or instruction that is not there."""
    for batch in dataset.with_format("arrow").iter(batch_size=_ROWS):
        found = {}
        for name in columns:
            there = batch[name] if name in batch.column_names else None
            if there is None and name in ("id", "text"):
                raise InputError(f"has no column {name!r}", "mteb", "give a task of texts")
            if there is not None and pa.types.is_nested(there.type):
                raise InputError(f"its column {name!r} is {there.type}", "mteb", "give a task of texts: conversations are not read")
            found[name] = pa.repeat("", batch.num_rows) if there is None else pc.fill_null(there.cast(pa.string()), "")
        yield pa.table(found)


def _digest(dataset: Any, columns: list[str]) -> str:
    """A digest of the rows, the same for the same ones in the same order."""
    found = sha256()
    for table in _tables(dataset, columns):
        with pa.ipc.new_stream(sink := pa.BufferOutputStream(), table.schema) as stream:
            stream.write_table(table.combine_chunks())
        found.update(sink.getvalue())
    return found.hexdigest()


def _by_query(run: Artifact, asked: Artifact) -> dict[str, dict[str, float]]:
    """The hits as mteb takes them; a query without hits has none."""
    found: dict[str, dict[str, float]] = {name: {} for name in read_table(asked, "queries", ["query_id"])["query_id"].to_pylist()}
    hits = read_table(run, "run", ["query_id", "passage_id", "score"])
    starts = query_starts(hits["query_id"])
    for start, stop in zip(starts[:-1].tolist(), starts[1:].tolist(), strict=True):
        part = hits.slice(start, stop - start)
        found[part["query_id"][0].as_py()] = dict(zip(part["passage_id"].to_pylist(), part["score"].to_pylist(), strict=True))
    return found
