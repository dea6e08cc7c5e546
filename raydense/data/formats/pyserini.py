"""Pyserini: a corpus {id, contents}, its vectors {id, contents, vector}, and a FAISS index as a folder of `index` and `docid`, an id a line."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from raydense.data.formats.outlet import Outlet, write_columns
from raydense.data.json_lines import write_json_lines
from raydense.data.store import full_text
from raydense.errors import InputError
from raydense.runtime.progress import say
from raydense.storage import Artifact

_STEP = 1_024  # vectors, whose digits are in memory together


def write(outlet: Outlet) -> None:
    """Write a corpus, the contents being title and text, or with its vectors; or an index of one shard."""
    kind = "encoded" if set(outlet.given) == {"corpus", "embeddings"} else outlet.choose("corpus", "index", "embeddings")
    if kind == "embeddings":
        raise InputError("embeddings without the texts of their ids", "export", "give --corpus too")
    if kind == "index":
        _write_index(Artifact.open(str(outlet.settings.index), "index"), outlet.path)
    elif kind == "encoded":
        _write_encoded(Artifact.open(str(outlet.settings.embeddings), "embeddings"), outlet)
    else:
        write_json_lines(outlet.path, (passage for table in outlet.passages() for passage in _passages(table)))


def _passages(table: pa.Table) -> list[dict[str, Any]]:
    texts = full_text(table).to_pylist()
    return [{"id": name, "contents": text} for name, text in zip(table["passage_id"].to_pylist(), texts, strict=True)]


def _write_index(index: Artifact, folder: Path) -> None:
    if index.summary["kind"] != "faiss":
        raise InputError(f"is an index of kind {index.summary['kind']}, not of FAISS", index.place, "give one of --kind faiss")
    if (shards := len(index.summary["shards"])) > 1:
        raise InputError(f"has {shards} shards, and Pyserini reads one file", index.place, "make one with `raydense index --shards 1`")
    folder.mkdir()
    shutil.copyfile(index.file("shard-00000.faiss"), folder / "index")
    write_columns(folder / "docid", ({"id": batch["passage_id"].to_pylist()} for batch in _batches(index, "passage_ids.arrow")), " ")
    if "nprobe" in index.summary:
        say(
            f"export: the file does not hold how many lists to search: set nprobe of the index that Pyserini reads to {index.summary['nprobe']}"
        )


def _write_encoded(embeddings: Artifact, outlet: Outlet) -> None:
    """A line a passage; the vectors in the fewest digits that read back as the same float32."""
    if (of := embeddings.summary.get("of", "passages")) != "passages":
        raise InputError(f"holds vectors of {of}, not of passages", embeddings.place, "encode with --corpus")
    outlet.store.refuse_rows_of_another(embeddings)
    names = [file.path for file in embeddings.files if file.path.startswith("embeddings-")]
    batches = (batch for name in names for batch in _batches(embeddings, name))
    with open(outlet.path, "w", encoding="utf-8", newline="\n") as stream:
        for part in (batch.slice(at, _STEP) for batch in batches for at in range(0, batch.num_rows, _STEP)):
            passages = outlet.store.take(part["row"].to_numpy(), ["passage_id", "title", "text"])
            for passage, vector in zip(_passages(passages), _spelled(part["embedding"]), strict=True):
                stream.write(f'{json.dumps(passage, ensure_ascii=False)[:-1]}, "vector": [{vector}]}}\n')


def _batches(artifact: Artifact, name: str) -> Iterator[pa.RecordBatch]:
    reader = pa.ipc.open_file(pa.memory_map(str(artifact.file(name))))
    return (reader.get_batch(number) for number in range(reader.num_record_batches))


def _spelled(vectors: pa.FixedSizeListArray) -> list[str]:
    """The numbers of each vector, apart by commas."""
    numbers = vectors.flatten().to_numpy().astype(np.float32)
    ends = np.arange(len(vectors) + 1) * vectors.type.list_size
    lists = pa.ListArray.from_arrays(pa.array(ends, pa.int32()), pa.array(numbers).cast(pa.string()))
    return list(pc.binary_join(lists, ", ").to_pylist())
