"""Queries for passages (doc2query) from a language model's endpoint: a request a passage, one Arrow file per corpus shard."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from raydense.data.generated import commit_queries
from raydense.data.store import PassageStore
from raydense.inference.endpoint import Body, Reply
from raydense.inference.endpoint_settings import EndpointSettings
from raydense.inference.replies import Asker, Questions, say_spent, summary_of
from raydense.inference.reply_text import queries_of
from raydense.inference.settings import QUERY_TOKENS, GenerateSettings
from raydense.storage import Artifact, Draft, provenance


def generate_by_endpoint(settings: GenerateSettings) -> Artifact:
    """As `generate`, by the endpoint of the settings. Replies that an earlier run got are not asked for again.

    InputError if the endpoint refuses, or the output was made from other settings or inputs; EndpointError if it does not answer, or the
    budget is spent.
    """
    made_from = provenance("generate", settings)
    store = PassageStore(settings.corpus, made_from["inputs"]["corpus"])
    draft = Draft.open(settings.output, "generated", made_from)
    if draft.done:
        return draft.done
    endpoint = settings.endpoint
    assert endpoint
    there = draft.committed()
    shards = {f"generated-{part:05d}.arrow": rows for part, rows in enumerate(store.shards)}
    asker = Asker(endpoint, "generate", len(store), "passages")
    for name in shards:
        asker.count(draft, name, there.get(name))
    with asker:
        pending = (item for item in shards.items() if item[0] not in there)
        asker.ask(draft, (_questions(settings, endpoint, draft, store, name, rows) for name, rows in pending))
    notes = [file.note for file in draft.committed().values()]
    counts = {key: sum(note[key] for note in notes) for key in ("queries", "repeated", "empty", "surplus")}
    found = summary_of(endpoint, notes)
    say_spent("generate", f"{counts['queries']:,} queries", found)
    return draft.finish(len(store), corpus=made_from["inputs"]["corpus"], **counts, **found)


def _questions(
    settings: GenerateSettings, endpoint: EndpointSettings, draft: Draft, store: PassageStore, name: str, rows: tuple[int, int]
) -> Questions:
    """The requests for the queries of the passages `rows`, which are committed as the file `name`."""
    start, passages = rows[0], store.passages(np.arange(*rows))
    sampling = {"temperature": settings.sampling.temperature, "top_p": settings.sampling.top_p}
    longest = settings.queries_each * (settings.query_length or QUERY_TOKENS)
    prompt = str(settings.prompt).replace("{queries}", str(settings.queries_each))

    def body(at: int) -> Body:
        seed = (settings.seed + start + at) % 2**31
        return endpoint.body(prompt.replace("{passage}", passages[at]), max_tokens=longest, seed=seed, **sampling)

    def text(at: int) -> str:
        return f"passage {store.ids(np.array([start + at]))[0].as_py()!r}"

    return Questions(name, len(passages), body, text, partial(_commit, settings, draft, name, start))


def _commit(settings: GenerateSettings, draft: Draft, name: str, start: int, replies: list[Reply], note: dict[str, Any]) -> None:
    counts = {"repeated": 0, "empty": 0, "surplus": 0}
    queries = []
    for reply in replies:
        found, without = queries_of(reply.text, reply.cut, settings.queries_each, settings.duplicates == "drop")
        queries.append(found)
        for key, count in without.items():
            counts[key] += count
    commit_queries(draft, name, start, queries, queries=sum(map(len, queries)), **counts, **note)
