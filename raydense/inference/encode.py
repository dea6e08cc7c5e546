"""Corpus to embeddings: one Arrow file per corpus shard, in the order of the rows, computed by a pool of model actors."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from raydense.data.store import PassageStore
from raydense.data.tables import write_arrow
from raydense.inference.pipeline import (
    Device,
    Layout,
    Meter,
    precision_of,
    require_model,
    run_shards,
    tokens_of,
    unpack,
)
from raydense.inference.settings import EncodeSettings
from raydense.inference.tokenising import tokenise_shard
from raydense.storage.artifact import Artifact, Draft, provenance

if TYPE_CHECKING:
    from raydense.models.tokenizer import TextTokenizer


def encode(settings: EncodeSettings) -> Artifact:
    """Encode every passage of `settings.corpus`: embeddings `row: int64, embedding: fixed_size_list<dtype>[d]`, and passage ids.

    Shards that an earlier run committed are kept. The bytes are the same whatever the number of actors or threads. InputError
    where the model is no retriever, or the output was made from something else, or begun in another precision.
    """
    made_from = provenance("encode", settings)
    require_model(settings.model, scores=False)
    store = PassageStore(settings.corpus)
    draft = Draft.open(settings.output, "embeddings", made_from)
    if draft.done:
        return draft.done
    there = draft.committed()
    if "passage_ids.arrow" not in there:
        draft.commit("passage_ids.arrow", store.write_ids, len(store))
    pending = [shard for shard in range(len(store.shards)) if _name(shard) not in there]
    if pending:
        tokenise = partial(tokenise_shard, load=_load_tokenizer)
        actor = partial(ShardEncoder, begun=precision_of(there.values(), draft))
        run_shards("encode", settings, draft, store, pending, tokenise, actor, prints=made_from["inputs"])
    there = draft.committed()
    notes = [file.note for path, file in there.items() if path.startswith("embeddings-")]
    return draft.finish(
        len(store),
        dimension=notes[0]["dimension"],
        dtype=settings.dtype,
        precision=precision_of(there.values(), draft),
        model=made_from["inputs"]["model"],
        corpus=made_from["inputs"]["corpus"],
        tokens=sum(n["tokens"] for n in notes),
        padding_share=round(1 - sum(n["tokens"] for n in notes) / sum(n["padded"] for n in notes), 4),
        seconds=round(sum(n["seconds"] for n in notes), 2),
    )


def _load_tokenizer(folder: str) -> TextTokenizer:
    from raydense.models.tokenizer import load_tokenizer

    return load_tokenizer(folder)


class ShardEncoder:
    """A model actor: takes the tokens of a shard, commits its vectors, and gives back what the commit noted."""

    def __init__(self, settings: EncodeSettings, draft: Draft, prints: dict[str, str], layout: Layout, begun: str | None) -> None:
        self._draft, self._dtype = draft, np.dtype(settings.dtype)
        self._device = Device(layout, settings.token_budget, half=settings.precision == "auto")
        # Loaded aside: the actor is ready at once, and what the loading raises reaches the driver as an error of the shard.
        self._loading = ThreadPoolExecutor(1).submit(self._load, settings.model, begun)

    def _load(self, folder: str, begun: str | None) -> Any:
        self._device.refuse_other(begun, self._draft)
        from raydense.models.dual_encoder import DualEncoder

        return DualEncoder.load(folder).to(self._device.name)

    def __call__(self, table: pa.Table) -> pa.Table:
        """Encode and commit one shard as `tokenise_shard` packed it."""
        model = self._loading.result()
        columns = unpack(table)
        shard, tokens, (start, stop) = columns["shard"][0].as_py(), tokens_of(columns), columns["range"].to_pylist()
        begun = time.perf_counter()
        meter = Meter(self._draft, _name(shard))
        vectors, padded = self._device.run(tokens, model.tokenizer.pad_id, model.encode_passages, meter.count)
        note = {
            "dimension": model.dimension,
            "tokens": len(tokens.ids),
            "padded": padded,
            "precision": self._device.precision,
            "seconds": round(time.perf_counter() - begun, 3),
        }
        found = _as_table(start, stop, vectors.astype(self._dtype))
        self._draft.commit(_name(shard), lambda path: write_arrow(path, found), stop - start, **note)
        return pa.Table.from_pylist([{"shard": shard, **note}])


def _as_table(start: int, stop: int, vectors: NDArray[Any]) -> pa.Table:
    embedding = pa.FixedSizeListArray.from_arrays(pa.array(vectors.reshape(-1)), vectors.shape[1])
    return pa.table({"row": pa.array(np.arange(start, stop)), "embedding": embedding})


def _name(shard: int) -> str:
    return f"embeddings-{shard:05d}.arrow"
