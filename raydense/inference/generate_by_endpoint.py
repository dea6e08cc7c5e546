"""Queries for passages (doc2query) from a language model's endpoint: a request a passage, one Arrow file per corpus shard."""

from __future__ import annotations

import re

import numpy as np

from raydense.data.generated import commit_queries
from raydense.data.store import PassageStore
from raydense.inference.endpoint import Body
from raydense.inference.replies import Asker, Journal, note_of, summary_of
from raydense.inference.settings import QUERY_TOKENS, GenerateSettings
from raydense.runtime.progress import say
from raydense.storage import Artifact, Draft, provenance

_THOUGHTS = re.compile(
    r"\A\s*<think>.*?(</think>|\Z)", re.S
)  # what a reasoning model writes before its answer, if its server leaves it there
_NUMBER = re.compile(r"\s*(?:[-*•]\s+|\(?\d{1,3}[.):]\s+|(?:query|question|q)\s*\d{1,3}\s*[.):]\s*)", re.I)
_QUOTES = {'"': '"', "'": "'", "“": "”", "«": "»", "「": "」"}


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
    names = {f"generated-{part:05d}.arrow": rows for part, rows in enumerate(store.shards)}
    asker = Asker(endpoint, "generate", len(store), "passages")
    for name in names:
        asker.count(draft, name, there.get(name))
    with asker:
        for name, (start, stop) in names.items():
            if name not in there:
                _commit_shard(settings, draft, asker, name, start, store.passages(np.arange(start, stop)))
    notes = [file.note for file in draft.committed().values()]
    counts = {key: sum(note[key] for note in notes) for key in ("queries", "repeated", "empty", "surplus")}
    found = summary_of(endpoint, notes)
    cost = f", ${found['cost']:,.4f}" if "cost" in found else ""
    say(f"generate: {counts['queries']:,} queries, {found['prompt_tokens']:,} tokens in, {found['completion_tokens']:,} out{cost}")
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


def text_of(reply: str) -> str:
    """A reply without the thoughts that a reasoning model writes before it."""
    return _THOUGHTS.sub("", reply).strip()


def queries_of(reply: str, cut: bool, most: int, once: bool) -> tuple[list[str], dict[str, int]]:
    """The first `most` queries of a reply, a line each; how many it lacks (`empty`), and has `repeated` (if each is kept `once`) or `surplus`.

    Numbers, bullets and quotes around a query are removed. Lines that introduce the queries or fence them are none, nor is the last line of a
    reply that a limit `cut`.
    """
    lines = text_of(reply).splitlines()
    found = [_stripped(line) for line in (lines[:-1] if cut else lines)]
    full = [line for line in found if line and not line.endswith(":") and not line.startswith("```")]
    kept = list(dict.fromkeys(full)) if once else full
    counts = {"empty": max(0, most - len(full)), "repeated": len(full) - len(kept), "surplus": max(0, len(kept) - most)}
    return kept[:most], counts


def _stripped(line: str) -> str:
    line = _NUMBER.sub("", line, count=1).strip() if _NUMBER.match(line) else line.strip()
    inner = line[1:-1]
    return inner.strip() if len(line) > 2 and _QUOTES.get(line[0]) == line[-1] and line[0] not in inner else line
