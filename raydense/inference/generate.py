"""Queries for passages (doc2query): one Arrow file per corpus shard, in the order of the rows, drawn by a pool of model actors."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from raydense.data.generated import commit_queries
from raydense.data.store import PassageStore
from raydense.inference.device import Device
from raydense.inference.layout import Layout
from raydense.inference.live_line import Meter
from raydense.inference.packing import tokens_of, unpack
from raydense.inference.pipeline import run_parts
from raydense.inference.precision import fix_precision, precision_of
from raydense.inference.settings import GenerateSettings
from raydense.inference.tokenising import tokenise_part
from raydense.storage import Artifact, Draft, check_unchanged, provenance

if TYPE_CHECKING:
    from raydense.models.tokenizer import TextTokenizer


def generate(settings: GenerateSettings) -> Artifact:
    """Write `queries_each` queries for every passage of the corpus: `generated`, a row a passage, `row: int64, queries: list<string>`.

    With an endpoint, `generate_by_endpoint` writes them. Empty queries are left out; so are repeated ones, unless `duplicates` is keep. Shards that an earlier run committed are kept.
    The queries are the same for any number of actors or threads. InputError if the model is not a generator, or the output
    was made from other settings or inputs, or begun in a precision that a device lacks.
    """
    if settings.model is None:
        from raydense.inference.generate_by_endpoint import generate_by_endpoint

        return generate_by_endpoint(settings)
    made_from = provenance("generate", settings)
    from raydense.models.generator import changes, read_generator_config

    read_generator_config(settings.model, **changes(settings))
    store = PassageStore(settings.corpus)
    draft = Draft.open(settings.output, "generated", made_from)
    if draft.done:
        return draft.done
    there = draft.committed()
    pending = {part: stop - start for part, (start, stop) in enumerate(store.shards) if _name(part) not in there}
    if pending:
        tokenise = partial(tokenise_part, load=_load_tokenizer, changes=tuple(changes(settings).items()))
        actor = partial(PartWriter, begun=precision_of(there.values(), draft))
        parts, left = [{"part": part} for part in pending], sum(pending.values())
        run_parts(settings, draft, "passages", parts, left, len(store), tokenise, actor, prints=made_from["inputs"])
    files = draft.committed().values()
    notes = [file.note for file in files]
    return draft.finish(
        len(store),
        model=made_from["inputs"]["model"],
        corpus=made_from["inputs"]["corpus"],
        **{key: sum(n[key] for n in notes) for key in ("queries", "repeated", "empty", "tokens")},
        precision=precision_of(files, draft),
        seconds=round(sum(n["seconds"] for n in notes), 2),
    )


def _load_tokenizer(folder: str, **changes: Any) -> TextTokenizer:
    from raydense.models.generator import generator_tokenizer, read_generator_config

    return generator_tokenizer(*read_generator_config(folder, **changes))


class PartWriter:
    """A model actor: takes the tokens of a part, commits the queries drawn for it, and returns the record of the commit."""

    def __init__(self, settings: GenerateSettings, draft: Draft, prints: dict[str, str], layout: Layout, begun: str | None) -> None:
        self._draft, self._settings = draft, settings
        self._device = Device(layout, settings.token_budget, settings.precision, begun)
        # Loaded in a thread: the actor is ready at once, and what the loading raises reaches the driver as an error of the part.
        self._loading = ThreadPoolExecutor(1).submit(self._load, prints, begun)

    def _load(self, prints: dict[str, str], begun: str | None) -> Any:
        fix_precision(self._device.precision, begun, self._draft)
        from raydense.models.generator import Generator, changes

        model = Generator.load(str(self._settings.model), **changes(self._settings)).to(self._device.name)
        check_unchanged(str(self._settings.model), prints["model"])
        return model

    def __call__(self, table: pa.Table) -> pa.Table:
        """Draw and commit the queries of one part as `tokenise_part` packed it."""
        model = self._loading.result()
        columns = unpack(table)
        part, start = columns["part"][0].as_py(), columns["range"][0].as_py()
        begun = time.perf_counter()
        drawn, tokens = self._draw(model, tokens_of(columns), start, Meter(self._draft, _name(part)).count)
        queries, counts = _kept(drawn, self._settings.duplicates == "drop")
        taken = {"precision": self._device.precision, "seconds": round(time.perf_counter() - begun, 3)}
        note = {"queries": sum(map(len, queries)), **counts, "tokens": tokens, **taken}
        commit_queries(self._draft, _name(part), start, queries, **note)
        return pa.Table.from_pylist([{"part": part, **note}])

    def _draw(self, model: Any, tokens: Any, start: int, count: Any) -> tuple[list[list[str]], int]:
        """The texts drawn for each passage of a shard whose first row is `start`, and the number of tokens drawn for them."""
        import torch

        from raydense.models.generator import decode
        from raydense.models.sampling import mixed, sample_queries
        from raydense.models.tokens import batches_by_token_budget

        s = self._settings
        each, pad = s.queries_each, model.tokenizer.pad_id
        seed = mixed(torch.tensor([s.seed]))

        def compute(batch: Any) -> Any:
            keys = (seed ^ torch.from_numpy(start + batch)).to(self._device.name)
            passages = tokens.select(batch).pad(pad, self._device.name)
            return sample_queries(model, passages, keys, each, s.sampling.top_p, s.sampling.top_k, s.sampling.temperature).cpu()

        batches = batches_by_token_budget(each * (tokens.lengths + model.config.query_length), self._device.budget)
        texts: list[list[str]] = [[]] * len(tokens)
        written = 0
        for batch, ids in zip(batches, self._device.each(batches, compute, count), strict=True):
            flat = decode(model.tokenizer, ids.flatten(0, 1))
            written += int((ids != pad).sum())
            for i, row in enumerate(batch.tolist()):
                texts[row] = flat[i * each : (i + 1) * each]
        return texts, written


def _kept(drawn: list[list[str]], once: bool) -> tuple[list[list[str]], dict[str, int]]:
    """The queries of each passage that are kept, and how many were empty, or repeated if each is kept only `once`."""
    full = [[query for query in queries if query] for queries in drawn]
    kept = [list(dict.fromkeys(queries)) for queries in full] if once else full
    sizes = [sum(map(len, lists)) for lists in (drawn, full, kept)]
    return kept, {"empty": sizes[0] - sizes[1], "repeated": sizes[1] - sizes[2]}


def _name(part: int) -> str:
    return f"generated-{part:05d}.arrow"
