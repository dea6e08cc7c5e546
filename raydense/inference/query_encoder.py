"""Encodes queries: in this process (for a server), or a stream of blocks by a pool of actors (for `search` and `filter`)."""

from __future__ import annotations

import os
from collections.abc import Callable, Generator
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from raydense.inference.device import Device
from raydense.inference.layout import Layout
from raydense.inference.loading import in_thread
from raydense.inference.packing import pack, token_columns, tokens_of, unpack
from raydense.inference.pipeline import run
from raydense.inference.settings import Spread
from raydense.inference.tokenising import Changes, kept_tokenizer, retriever_tokenizer
from raydense.storage import check_unchanged, model_place

if TYPE_CHECKING:
    from raydense.models.tokens import Tokens

_GPU_TOKENS = 16_384  # of a batch: queries are short, and need little padding
_CPU_TOKENS = 64, 256  # of a thread's batch: with fewer a layer's weights are read for too little, with more it is padding (speed.md)
Texts = Callable[[pa.Table], list[str]]
Vectors = NDArray[np.float32]


def query_encoder(
    model: str | os.PathLike[str],
    fingerprint: str | None = None,
    dimension: int | None = None,
    gpu: bool | None = None,
    prompt: Changes = (),
) -> QueryEncoder:
    """What makes vectors of queries by the retriever in folder `model`: `query_encoder("MODEL_DIR")(["a question"])`. On a GPU (`gpu`), by default where torch sees one.

    `dimension` as in `EncodeSettings`, `prompt` as `QueryPrompt.prompt` has it. InputError if the folder holds no retriever, or does not have
    `fingerprint`.
    """
    return QueryEncoder(_Encoder(os.fspath(model), fingerprint, dimension, Layout.alone(gpu), prompt))


class QueryEncoder:
    """A function from texts to vectors float32 [n, d]."""

    def __init__(self, encoder: _Encoder) -> None:
        self._encoder = encoder

    def __call__(self, texts: list[str]) -> Vectors:
        return self._encoder.vectors(self._encoder.tokenizer.queries(texts), self._encoder.threads)

    def truncated(self, texts: list[str]) -> list[bool]:
        """Whether a text has more tokens than the retriever reads: its vector is of the first `query_length` of them."""
        return self._encoder.tokenizer.truncates(texts)


def encode_blocks(
    stage: str,
    model: str,
    fingerprint: str,
    dimension: int,
    blocks: list[dict[str, Any]],
    texts: Texts,
    on_cpu: bool = False,
    prompt: Changes = (),
) -> Generator[Vectors, None, None]:
    """The vectors float32 [n, d] of each block of queries, in order, while later blocks are encoded.

    `texts` returns the queries of a block in a worker, from a table of one row with the block's values. `prompt` as `QueryPrompt.prompt` has it.
    Ray Data bounds how far the actors are ahead of the caller. InputError if the retriever in folder `model` does not have `fingerprint`.
    """
    of = {"model": model_place(model).located, "fingerprint": fingerprint, "prompt": prompt}
    spread = Spread(gpus_per_actor=0.0) if on_cpu else Spread()
    for record in run(stage, spread, blocks, _tokenise, _BlockEncoder, in_order=True, **of, dimension=dimension, texts=texts):
        yield np.frombuffer(record["vectors"], np.float32).reshape(-1, dimension)


def _tokenise(table: pa.Table, model: str, fingerprint: str, dimension: int, texts: Texts, prompt: Changes) -> pa.Table:
    return pack(token_columns(kept_tokenizer(retriever_tokenizer, model, fingerprint, prompt).queries(texts(table))))


class _Encoder:
    """A retriever on a device, in float32."""

    def __init__(self, model: str, fingerprint: str | None, dimension: int | None, layout: Layout, prompt: Changes = ()) -> None:
        from raydense.models.dual_encoder import DualEncoder

        self._device = Device(layout, _GPU_TOKENS, "fp32")
        self.threads = self._device.threads
        self._model = DualEncoder.load(model, dimension=dimension, **dict(prompt)).to(self._device.name)
        if fingerprint is not None:
            check_unchanged(model_place(model), fingerprint)
        self.tokenizer = self._model.tokenizer

    def vectors(self, tokens: Tokens, share: int = 1) -> Vectors:
        """The vectors float32 [n, d] of n queries, in their order; a few of them are shared among so many threads.

        Their last bits depend on who shares a batch: what is written down is shared in one way, whatever the number of threads.
        """
        found: Vectors
        budget = 0 if self._device.name == "cuda" else int(np.clip(tokens.lengths.sum() // share, *_CPU_TOKENS))
        found, _ = self._device.run(tokens, self.tokenizer.pad_id, self._model.encode_queries, lambda n: None, budget)
        return found


class _BlockEncoder:
    """A model actor: takes the tokens of a block, and returns its vectors."""

    def __init__(self, model: str, fingerprint: str, dimension: int, texts: Texts, layout: Layout, prompt: Changes = ()) -> None:
        self._loading = in_thread(partial(_Encoder, model, fingerprint, dimension, layout, prompt))

    def __call__(self, table: pa.Table) -> pa.Table:
        vectors = self._loading.result().vectors(tokens_of(unpack(table)))
        return pa.table({"vectors": [vectors.tobytes()], "queries": [len(vectors)]})
