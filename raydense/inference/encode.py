"""Texts to embeddings: one Arrow file per corpus shard or block of queries, in the order of the rows, by a pool of model actors."""

from __future__ import annotations

import time
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from raydense.data.store import PassageStore
from raydense.data.tables import write_arrow
from raydense.errors import InputError
from raydense.inference.device import Device
from raydense.inference.layout import Layout
from raydense.inference.live_line import Meter
from raydense.inference.loading import model_of_stage
from raydense.inference.packing import tokens_of, unpack
from raydense.inference.pipeline import run_parts
from raydense.inference.precision import precision_of, refuse_fp16_on_cpus
from raydense.inference.settings import EncodeSettings
from raydense.inference.sources import Passages, Queries, Source
from raydense.inference.tokenising import retriever_tokenizer, tokenise_part
from raydense.models.model_kind import multiplies, require_model
from raydense.runtime.progress import say
from raydense.storage import Artifact, Draft, model_place, provenance, releases_outputs


@releases_outputs
def encode(settings: EncodeSettings) -> Artifact:
    """Encode every passage of `settings.corpus`, or query of `settings.queries`: `row: int64, embedding: fixed_size_list<dtype>[d]`, and ids.

    Files that an earlier run committed are kept. The bytes are the same for any number of actors or threads. InputError
    if the model is not a retriever, or the output was made from other settings or inputs, or begun in a precision that a device lacks.
    """
    made_from = provenance("encode", settings)
    require_model(settings.model, scores=False, **settings.changes())
    source: Source = Passages(PassageStore(settings.corpus)) if settings.corpus else Queries(str(settings.queries))
    if not source.parts:
        raise InputError("holds no texts", settings.corpus or settings.queries or "", "give some")
    draft = Draft.open(settings.output, "embeddings", made_from)
    if draft.done:
        return draft.done
    refuse_fp16_on_cpus(settings)
    _say_similarity(str(settings.model))
    there = draft.committed()
    ids, total = ("passage_ids.arrow" if settings.corpus else "query_ids.arrow"), source.parts[-1][1]
    if ids not in there:
        draft.commit(ids, source.write_ids, total)
    pending = {part: stop - start for part, (start, stop) in enumerate(source.parts) if _name(part) not in there}
    if pending:
        actor = partial(PartEncoder, begun=precision_of(there.values(), draft), multiplies=multiplies(settings.model))
        tokenise = partial(tokenise_part, load=retriever_tokenizer, changes=tuple(settings.changes().items()))
        parts, sizes = [{"part": part} for part in pending], list(pending.values())
        run_parts(settings, draft, source.unit, parts, sizes, total, tokenise, actor, prints=made_from["inputs"])
    there = draft.committed()
    notes = [file.note for path, file in there.items() if path.startswith("embeddings-")]
    of = {"corpus": source.fingerprint} if settings.corpus else {"queries": source.fingerprint}
    return draft.finish(
        total,
        of=source.unit,
        dimension=notes[0]["dimension"],
        dtype=settings.dtype,
        precision=precision_of(there.values(), draft),
        model=made_from["inputs"]["model"],
        **of,
        tokens=sum(n["tokens"] for n in notes),
        padding_share=round(1 - sum(n["tokens"] for n in notes) / max(1, sum(n["padded"] for n in notes)), 4),
        seconds=round(sum(n["seconds"] for n in notes), 2),
    )


def _say_similarity(model: str) -> None:
    """Say where sentence-transformers would rank the vectors of a model by another similarity than an index does."""
    from raydense.models.encoder_config import read_encoder_config, similarity_of

    folder = model_place(model).local()
    named = similarity_of(folder)
    if named not in ("", "dot") and not (named == "cosine" and read_encoder_config(folder).normalize):
        say(
            f"encode: {model} names {named} as its similarity, and does not scale its vectors: an index ranks by the inner product of these"
        )


class PartEncoder:
    """A model actor: takes the tokens of a part, commits its vectors, and returns the record of the commit."""

    def __init__(
        self, settings: EncodeSettings, draft: Draft, prints: dict[str, str], layout: Layout, begun: str | None, multiplies: bool = True
    ) -> None:
        self._draft, self._dtype, self._settings = draft, np.dtype(settings.dtype), settings
        # `search` encodes queries in fp32; those that are encoded before it get the same vectors. A static encoder only adds up rows
        exact = settings.queries or not multiplies
        precision = "fp32" if exact and settings.precision == "auto" else settings.precision
        self._device = Device(layout, settings.token_budget, precision, begun, cpu_bf16=True)
        self._loading = model_of_stage(self._device, draft, begun, settings.model, prints["model"], self._load)

    def _load(self) -> Any:
        from raydense.models.dual_encoder import DualEncoder

        return self._device.place(DualEncoder.load(self._settings.model, **self._settings.changes()))

    def __call__(self, table: pa.Table) -> pa.Table:
        """Encode and commit one part as `tokenise_part` packed it."""
        model = self._loading.result()
        columns = unpack(table)
        part, tokens, (start, stop) = columns["part"][0].as_py(), tokens_of(columns), columns["range"].to_pylist()
        begun = time.perf_counter()
        meter = Meter(self._draft, _name(part))
        forward = model.encode_passages if self._settings.corpus else model.encode_queries
        vectors, padded = self._device.run(tokens, model.tokenizer.pad_id, forward, meter.count)
        note = {
            "dimension": model.dimension,
            "tokens": len(tokens.ids),
            "padded": padded,
            "precision": self._device.precision,
            "seconds": round(time.perf_counter() - begun, 3),
        }
        found = vector_table(start, _as_dtype(vectors, self._dtype))
        self._draft.commit(_name(part), lambda path: write_arrow(path, found), stop - start, **note)
        return pa.Table.from_pylist([{"part": part, **note}])


def _as_dtype(vectors: NDArray[np.float32], dtype: np.dtype[Any]) -> NDArray[Any]:
    """The vectors in `dtype`; InputError if one of their numbers is too large for it."""
    with np.errstate(over="ignore"):
        found = vectors.astype(dtype)
    if not np.isfinite(found).all():
        raise InputError(f"a number of a vector is {np.abs(vectors).max():g}, too large for {dtype}", "dtype", "give dtype float32")
    return found


def vector_table(start: int, vectors: NDArray[Any]) -> pa.Table:
    """A table of embeddings: vectors [n, d] as the rows start..start+n-1."""
    embedding = pa.FixedSizeListArray.from_arrays(pa.array(vectors.reshape(-1)), vectors.shape[1])
    return pa.table({"row": pa.array(np.arange(start, start + len(vectors))), "embedding": embedding})


def _name(part: int) -> str:
    return f"embeddings-{part:05d}.arrow"
