"""Queries for passages (doc2query) from a language model's endpoint: a request a passage, one Arrow file per corpus shard."""

from __future__ import annotations

import numpy as np

from raydense.data.generated import commit_queries
from raydense.data.store import PassageStore
from raydense.inference.endpoint import Body
from raydense.inference.replies import Asker, Journal, note_of, say_spent, summary_of
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
        for name, (start, stop) in shards.items():
            if name not in there:
                _commit_shard(settings, draft, asker, name, start, store.passages(np.arange(start, stop)))
    notes = [file.note for file in draft.committed().values()]
    counts = {key: sum(note[key] for note in notes) for key in ("queries", "repeated", "empty", "surplus")}
    found = summary_of(endpoint, notes)
    say_spent("generate", f"{counts['queries']:,} queries", found)
    return draft.finish(len(store), corpus=made_from["inputs"]["corpus"], **counts, **found)


def _commit_shard(settings: GenerateSettings, draft: Draft, asker: Asker, name: str, start: int, passages: list[str]) -> None:
    """Ask for the queries of the passages from row `start` on, and commit them."""
    sampling = {"temperature": settings.sampling.temperature, "top_p": settings.sampling.top_p}
    longest = settings.queries_each * (settings.query_length or QUERY_TOKENS)
    before, _, after = str(settings.prompt).replace("{queries}", str(settings.queries_each)).partition("{passage}")

    def body(at: int) -> Body:
        seed = (settings.seed + start + at) % 2**31
        return asker.settings.body(f"{before}{passages[at]}{after}", max_tokens=longest, seed=seed, **sampling)

    replies = asker.replies(draft, name, len(passages), body)
    counts = {"repeated": 0, "empty": 0, "surplus": 0}
    queries = []
    for reply in replies:
        found, without = queries_of(reply.text, reply.cut, settings.queries_each, settings.duplicates == "drop")
        queries.append(found)
        for key, count in without.items():
            counts[key] += count
    commit_queries(draft, name, start, queries, queries=sum(map(len, queries)), **counts, **note_of(replies))
    Journal(draft, name).delete()
