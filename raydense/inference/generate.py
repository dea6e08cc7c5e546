"""Queries for passages (doc2query): one Arrow file per corpus shard, in the order of the rows, drawn by a pool of model actors."""

from __future__ import annotations

from functools import partial
from typing import Any

import pyarrow as pa

from raydense.data.generated import commit_queries
from raydense.data.store import PassageStore
from raydense.inference.drawing import Drawer, Drawing, load_tokenizer
from raydense.inference.layout import Layout
from raydense.inference.pipeline import run_parts
from raydense.inference.precision import precision_of
from raydense.inference.settings import GenerateSettings
from raydense.inference.tokenising import tokenise_part
from raydense.storage import Artifact, Draft, provenance, releases_outputs


@releases_outputs
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
        tokenise = partial(tokenise_part, load=load_tokenizer, changes=tuple(changes(settings).items()))
        actor = partial(PartWriter, begun=precision_of(there.values(), draft), changes=changes(settings))
        parts, sizes = [{"part": part} for part in pending], list(pending.values())
        run_parts(settings, draft, "passages", parts, sizes, len(store), tokenise, actor, prints=made_from["inputs"])
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


class PartWriter:
    """A model actor: takes the tokens of a part, commits the queries drawn for it, and returns the record of the commit."""

    def __init__(
        self, settings: GenerateSettings, draft: Draft, prints: dict[str, str], layout: Layout, begun: str | None, changes: dict[str, Any]
    ) -> None:
        self._settings, self._draft = settings, draft
        s, sampling = settings, settings.sampling
        how = (sampling.top_p, sampling.top_k, sampling.temperature, s.seed, s.precision, s.token_budget, changes)
        self._drawer = Drawer(Drawing(str(s.model), s.queries_each, *how), draft, prints["model"], layout, begun)

    def __call__(self, table: pa.Table) -> pa.Table:
        """Draw and commit the queries of one part as `tokenise_part` packed it."""
        drawn = self._drawer.draw(table)
        queries, counts = _kept(drawn.texts, self._settings.duplicates == "drop")
        note = {"queries": sum(map(len, queries)), **counts, **drawn.note}
        commit_queries(self._draft, _name(drawn.part), drawn.start, queries, **note)
        return pa.Table.from_pylist([{"part": drawn.part, **note}])


def _kept(drawn: list[list[str]], once: bool) -> tuple[list[list[str]], dict[str, int]]:
    """The queries of each passage that are kept, and how many were empty, or repeated if each is kept only `once`."""
    full = [[query for query in queries if query] for queries in drawn]
    kept = [list(dict.fromkeys(queries)) for queries in full] if once else full
    sizes = [sum(map(len, lists)) for lists in (drawn, full, kept)]
    return kept, {"empty": sizes[0] - sizes[1], "repeated": sizes[1] - sizes[2]}


def _name(part: int) -> str:
    return f"generated-{part:05d}.arrow"
