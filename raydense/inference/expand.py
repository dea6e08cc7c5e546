"""Queries with generated contexts (GAR, Mao et al. 2021): an answer, a title or a sentence after each query, one set of queries per kind.

A block of queries and a kind is a part of the work: it becomes one file of the kind's queries.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from raydense.data.dataset import DatasetDraft
from raydense.data.tables import commit_table, concat_parts, judged_rows
from raydense.errors import InputError
from raydense.inference.drawing import Drawer, Drawing, load_tokenizer
from raydense.inference.endpoint_settings import EndpointSettings
from raydense.inference.expand_settings import ExpandSettings
from raydense.inference.layout import Layout
from raydense.inference.live_line import live_line
from raydense.inference.packing import pack, token_columns, unpack
from raydense.inference.pipeline import run
from raydense.inference.precision import forget_precision, precision_of
from raydense.inference.reply_text import text_of
from raydense.inference.settings import QUERIES_A_FILE
from raydense.inference.tokenising import kept_tokenizer
from raydense.runtime.progress import say
from raydense.storage import Artifact, Draft, File, provenance, releases_outputs

if TYPE_CHECKING:
    from raydense.inference.endpoint import Reply
    from raydense.inference.replies import Questions
    from raydense.models.tokenizer import TextTokenizer


@dataclass(frozen=True)
class Part:
    """A block of queries, from the row `start` of all that are expanded, and a kind of context."""

    kind: str
    number: int
    start: int
    queries: pa.Table

    @property
    def folder(self) -> str:
        """The part of the data set that it belongs to."""
        return f"queries/{self.kind}"

    @property
    def file(self) -> str:
        """The name of its file there."""
        return f"queries-{self.number:05d}.parquet"

    @property
    def name(self) -> str:
        """Its name among all parts."""
        return f"{self.kind}-{self.number:05d}"

    def prompts(self, template: str) -> list[str]:
        """What the model is asked for each query."""
        return [template.replace("{query}", text) for text in self.queries["text"].to_pylist()]


@releases_outputs
def expand(settings: ExpandSettings) -> Artifact:
    """Write, for each kind, the queries with a generated context after each text: a `dataset` with the parts `queries/KIND`.

    Ids, answers and order stay. A query whose context is empty stays as it is. The contexts are the same for any number of actors or of
    requests at once. What an earlier run committed, and replies of an endpoint, are kept. InputError if the model is not a generator, the
    endpoint refuses, or the output was made from other settings or inputs; EndpointError if the endpoint does not answer.
    """
    made_from = provenance("expand", settings)
    if settings.model:
        from raydense.models.generator import read_generator_config

        read_generator_config(settings.model, query_length=settings.length)
    queries = _queries(settings, made_from["inputs"])
    dataset = DatasetDraft(settings.output, made_from)
    if dataset.done:
        return dataset.done
    blocks = [(start, queries.slice(start, QUERIES_A_FILE)) for start in range(0, len(queries), QUERIES_A_FILE)]
    parts = [Part(kind, number, start, block) for kind in settings.kinds for number, (start, block) in enumerate(blocks)]
    files = _Files(dataset)
    if settings.endpoint:
        _ask(settings, parts, files)
    else:
        _draw(settings, parts, files, made_from["inputs"])
    found = {kind: files.finish(f"queries/{kind}", kind, settings) for kind in settings.kinds}
    empty = ", ".join(f"{summary['empty']:,} without {kind}" for kind, summary in found.items())
    words = f"{len(queries):,} queries, {empty}"
    if settings.endpoint:
        from raydense.inference.replies import say_spent, summed

        say_spent("expand", words, summed(found.values()))
    else:
        say(f"expand: {words}")
        _say_cut(str(settings.model), sum(summary["prompts_cut"] for summary in found.values()), len(queries) * len(found))
    return dataset.finish(queries=len(queries), kinds=list(settings.kinds))


def _queries(settings: ExpandSettings, prints: dict[str, str]) -> pa.Table:
    """The queries to expand, in the order of their artifact."""
    table = concat_parts(Artifact.open(settings.queries, "queries", prints["queries"]).parts(".parquet"), "queries")
    rows = judged_rows(table, settings.qrels)
    if not len(rows):
        raise InputError("no queries", settings.qrels or settings.queries, "give some")
    return table.take(pa.array(rows)).combine_chunks()


class _Files:
    """The committed files of a data set's parts, each of which is opened when something of it is there, or is to be written."""

    def __init__(self, dataset: DatasetDraft) -> None:
        self.dataset = dataset
        self._drafts: dict[str, Draft] = {}

    def _draft(self, folder: str) -> Draft:
        if folder not in self._drafts:
            self._drafts[folder] = self.dataset.part(folder, "queries")
        return self._drafts[folder]

    def committed(self, folder: str) -> dict[str, File]:
        """The files of a part that are there, by name."""
        if not (self.dataset.draft.place / folder).exists():
            return {}
        draft = self._draft(folder)
        return {file.path: file for file in draft.done.files} if draft.done else draft.committed()

    def there(self, parts: list[Part]) -> dict[str, File]:
        """The files of these parts that are there, by the part's name; the records of a folder are read once."""
        files = {folder: self.committed(folder) for folder in dict.fromkeys(part.folder for part in parts)}
        return {part.name: files[part.folder][part.file] for part in parts if part.file in files[part.folder]}

    def commit(self, part: Part, contexts: list[str], **note: Any) -> None:
        """Commit the queries of a part with their contexts."""
        given, texts = pa.array(contexts, pa.string()), part.queries["text"].combine_chunks()
        joined = pc.if_else(pc.equal(given, ""), texts, pc.binary_join_element_wise(texts, given, " "))
        table = part.queries.set_column(part.queries.column_names.index("text"), "text", joined)
        empty = int(pc.sum(pc.equal(given, "")).as_py())
        commit_table(self._draft(part.folder), part.file, table, empty=empty, **note)

    def finish(self, folder: str, kind: str, settings: ExpandSettings) -> dict[str, Any]:
        """Finish a part of which all files are committed; its summary."""
        draft = self._draft(folder)
        if draft.done is None:
            files = draft.committed().values()
            notes, rows = [file.note for file in files], sum(file.rows for file in files)
            found: dict[str, Any] = {"queries": rows, "kind": kind, "empty": sum(note["empty"] for note in notes)}
            if settings.endpoint:
                from raydense.inference.replies import summary_of

                found |= summary_of(settings.endpoint, notes)
            else:
                found |= {"model": draft.made_from["inputs"]["model"], "precision": precision_of(files, draft)}
                found |= {"tokens": sum(note["tokens"] for note in notes), "seconds": round(sum(note["seconds"] for note in notes), 2)}
                found["prompts_cut"] = sum(note.get("prompts_cut", 0) for note in notes)  # an earlier version counted none
            draft.done = draft.finish(rows, **found)
        self.dataset.keep(folder, draft.done)
        return draft.done.summary


def _ask(settings: ExpandSettings, parts: list[Part], files: _Files) -> None:
    """Ask the endpoint for the contexts of the parts that are not there."""
    from raydense.inference.replies import Asker

    assert settings.endpoint
    draft = files.dataset.draft
    there = files.there(parts)
    asker = Asker(settings.endpoint, "expand", sum(part.queries.num_rows for part in parts), "contexts")
    for part in parts:
        asker.count(draft, part.name, there.get(part.name))
    pending = (part for part in parts if part.name not in there)
    with asker:
        asker.ask(draft, (_questions(settings, settings.endpoint, part, files) for part in pending))


def _questions(settings: ExpandSettings, endpoint: EndpointSettings, part: Part, files: _Files) -> Questions:
    """The requests for the contexts of a part."""
    from raydense.inference.replies import Questions

    prompts = part.prompts(getattr(settings.prompts, part.kind))
    sampling = {"max_tokens": settings.length, "temperature": settings.temperature}

    def commit(replies: list[Reply], note: dict[str, Any]) -> None:
        files.commit(part, [_one_line(text_of(reply.text)) for reply in replies], **note)

    def text(at: int) -> str:
        return f"query {part.queries['query_id'][at].as_py()!r} for its {part.kind}"

    return Questions(part.name, len(prompts), partial(_body, endpoint, prompts, settings.seed + part.start, sampling), text, commit)


def _body(endpoint: EndpointSettings, prompts: list[str], seed: int, sampling: dict[str, Any], at: int) -> dict[str, Any]:
    return endpoint.body(prompts[at], seed=(seed + at) % 2**31, **sampling)


def _draw(settings: ExpandSettings, parts: list[Part], files: _Files, prints: dict[str, str]) -> None:
    """Draw the contexts of the parts that are not there, by model actors on Ray Data."""
    committed = files.there(parts)
    pending = [part for part in parts if part.name not in committed]
    draft, total = files.dataset.draft, sum(part.queries.num_rows for part in parts)
    if not pending:
        return
    rows = [
        {"part": number, "start": part.start, "texts": part.prompts(getattr(settings.prompts, part.kind))}
        for number, part in enumerate(pending)
    ]
    located = settings.located()
    arguments: dict[str, Any] = {"settings": located, "draft": draft, "print_": prints["model"]}
    actor = partial(ContextDrawer, begun=precision_of(committed.values(), draft))
    forget_precision(draft)
    left = sum(part.queries.num_rows for part in pending)
    with live_line("expand", draft, "contexts", total, total - left) as committed_now:
        done = 0
        for record in run("expand", located, rows, tokenise_prompts, actor, **arguments):
            contexts = [_one_line(text) for text in json.loads(record.pop("contexts"))]
            part = pending[record.pop("part")]
            files.commit(part, contexts, **record)
            done += part.queries.num_rows
            committed_now(done)


def _say_cut(model: str, cut: int, prompts: int) -> None:
    """Say how many of the prompts are longer than what the model reads."""
    from raydense.models.generator import longest_input

    if cut:
        say(f"expand: the model reads the first {longest_input(model)} tokens of {cut:,} of {prompts:,} prompts, which are longer")


def _load_tokenizer(folder: str) -> TextTokenizer:
    from raydense.models.generator import longest_input

    longest = longest_input(folder)
    return load_tokenizer(folder, passage_length=longest, query_length=longest)


def tokenise_prompts(table: pa.Table, settings: ExpandSettings, draft: Draft, print_: str) -> pa.Table:
    """The tokens of the prompts that `table` holds for one part, and how many are longer than the model reads, packed into one row."""
    row = table.to_pylist()[0]
    tokenizer = kept_tokenizer(_load_tokenizer, str(settings.model), print_)
    tokens = tokenizer.passages(row["texts"])
    cut = sum(tokenizer.truncates([tokenizer.config.passage_prefix + text for text in row["texts"]]))
    where = {"part": [row["part"]], "range": [row["start"], row["start"] + len(row["texts"])], "prompts_cut": [cut]}
    return pack({**where, **token_columns(tokens)})


class ContextDrawer:
    """A model actor: takes the tokens of a part, and returns a context for each as JSON, which stays out of its log."""

    def __init__(self, settings: ExpandSettings, draft: Draft, print_: str, layout: Layout, begun: str | None) -> None:
        likeliest = settings.temperature == 0
        how = (1.0, 1 if likeliest else 0, settings.temperature or 1.0, settings.seed, settings.precision, settings.token_budget)
        drawing = Drawing(str(settings.model), 1, *how, {"query_length": settings.length})
        self._drawer = Drawer(drawing, draft, print_, layout, begun)

    def __call__(self, table: pa.Table) -> pa.Table:
        """Draw the contexts of one part as `tokenise_prompts` packed it."""
        drawn = self._drawer.draw(table)
        contexts = json.dumps([texts[0] for texts in drawn.texts]).encode()
        cut = unpack(table)["prompts_cut"][0].as_py()
        return pa.Table.from_pylist([{"part": drawn.part, "contexts": contexts, "prompts_cut": cut, **drawn.note}])


def _one_line(text: str) -> str:
    return " ".join(text.split())
