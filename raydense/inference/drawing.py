"""Draws texts from a sequence-to-sequence model in an actor: queries for passages, or contexts for queries."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from raydense.inference.device import Device
from raydense.inference.layout import Layout
from raydense.inference.live_line import Meter
from raydense.inference.loading import model_of_stage
from raydense.inference.packing import tokens_of, unpack
from raydense.storage import Draft

if TYPE_CHECKING:
    from raydense.models.tokenizer import TextTokenizer


@dataclass(frozen=True)
class Drawing:
    """What is drawn: `each` texts for every input, by the model in a folder whose configuration `changes` override, with a seed."""

    model: str
    each: int
    top_p: float
    top_k: int
    temperature: float
    seed: int
    precision: str
    token_budget: int
    changes: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Drawn:
    """The texts drawn for each input of a part, whose first row is `start`, and what its record says of the work."""

    part: int
    start: int
    texts: list[list[str]]
    note: dict[str, Any]


class Drawer:
    """A model on the device of an actor. InputError, at the first draw, if the folder changed or the device lacks the precision `begun`."""

    def __init__(self, drawing: Drawing, draft: Draft, print_: str, layout: Layout, begun: str | None) -> None:
        self._drawing, self._draft = drawing, draft
        self._device = Device(layout, drawing.token_budget, drawing.precision, begun)
        self._loading = model_of_stage(self._device, draft, begun, drawing.model, print_, self._load)

    def _load(self) -> Any:
        from raydense.models.generator import Generator

        return Generator.load(self._drawing.model, **self._drawing.changes).to(self._device.name)

    def draw(self, table: pa.Table) -> Drawn:
        """The texts for a part as a tokenise task packed it: its number `part`, its rows `range`, and tokens."""
        model = self._loading.result()
        columns = unpack(table)
        part, start = columns["part"][0].as_py(), columns["range"][0].as_py()
        begun = time.perf_counter()
        texts, tokens = self._draw(model, tokens_of(columns), start, Meter(self._draft, f"part-{part:05d}").count)
        taken = {"precision": self._device.precision, "seconds": round(time.perf_counter() - begun, 3)}
        return Drawn(part, start, texts, {"tokens": tokens, **taken})

    def _draw(self, model: Any, tokens: Any, start: int, count: Any) -> tuple[list[list[str]], int]:
        """The texts drawn for each input of a part whose first row is `start`, and the number of tokens drawn for them."""
        import torch

        from raydense.models.generator import decode
        from raydense.models.sampling import mixed, sample_queries
        from raydense.models.tokens import batches_by_token_budget

        d = self._drawing
        pad = model.tokenizer.pad_id
        seed = mixed(torch.tensor([d.seed]))

        def compute(batch: Any) -> Any:
            keys = (seed ^ torch.from_numpy(start + batch)).to(self._device.name)
            inputs = tokens.select(batch).pad(pad, self._device.name)
            return sample_queries(model, inputs, keys, d.each, d.top_p, d.top_k, d.temperature).cpu()

        batches = batches_by_token_budget(d.each * (tokens.lengths + model.config.query_length), self._device.budget)
        texts: list[list[str]] = [[]] * len(tokens)
        written = 0
        for batch, ids in zip(batches, self._device.each(batches, compute, count), strict=True):
            flat = decode(model.tokenizer, ids.flatten(0, 1))
            written += int((ids != pad).sum())
            for i, row in enumerate(batch.tolist()):
                texts[row] = flat[i * d.each : (i + 1) * d.each]
        return texts, written


def load_tokenizer(folder: str, **changes: Any) -> TextTokenizer:
    """The tokenizer of a generator's folder."""
    from raydense.models.generator import generator_tokenizer, read_generator_config

    return generator_tokenizer(*read_generator_config(folder, **changes))
