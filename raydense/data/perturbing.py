"""Queries with noise, to see what a retriever loses by it (robustness; Qiu et al. 2022, section 3.6): `perturb` writes them anew.

Each place of a query (a character, a pair of characters, a term) has a random number, a function of the seed and the query's id
alone. The places with the lowest numbers are changed, as many as the rate says, so those of a higher rate include those of a lower one.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from raydense.data.settings import PerturbSettings
from raydense.data.tables import commit_table
from raydense.data.typos import is_cjk, terms_of, typo
from raydense.runtime.progress import Progress, say
from raydense.storage import Artifact, Draft, provenance, releases_outputs

_SPACE = re.compile(r"\s*")
Noisy = tuple[str, float]
"""A text, and the share of its places that were changed."""


@releases_outputs
def perturb(settings: PerturbSettings) -> Artifact:
    """Write the queries with noise: an artifact of kind `queries` with the same ids, columns and order.

    What happens to a query depends on its id and text, the seed, the kind and the rate, not on other queries; each kind (`KINDS`) says what
    its places are. No query becomes blank. The summary has `queries`, how many are `changed`, and `share`, the mean over the queries of the
    share of their places that were changed. Files that an earlier run committed are kept.
    """
    made_from = provenance("perturb", settings)
    queries = Artifact.open(settings.queries, "queries", made_from["inputs"]["queries"])
    draft = Draft.open(settings.output, "queries", made_from)
    if draft.done:
        return draft.done
    there = draft.committed()
    with Progress("perturb", queries.rows, "queries") as progress:
        for number, part in enumerate(queries.parts(".parquet")):
            name = f"queries-{number:05d}.parquet"
            if name in there:
                progress.add(there[name].rows)
                continue
            table, note = _noisy(pq.read_table(part), settings)
            commit_table(draft, name, table, **note)
            progress.add(table.num_rows)
    notes = [file.note for file in draft.committed().values()]
    changed, shares = (sum(note[key] for note in notes) for key in ("changed", "shares"))
    share = shares / max(1, queries.rows)
    say(f"perturb: {changed:,} of {queries.rows:,} queries changed by {settings.kind}, {100 * share:.1f}% of a query on average")
    return draft.finish(queries.rows, queries=queries.rows, changed=changed, share=share)


def _noisy(table: pa.Table, settings: PerturbSettings) -> tuple[pa.Table, dict[str, Any]]:
    """A file's queries with noise, how many differ, and the sum of the shares of their places that were changed."""
    texts = table["text"].to_pylist()
    pairs = zip(table["query_id"].to_pylist(), texts, strict=True)
    found = [noisy(text, settings.kind, settings.rate, f"{settings.seed}:{query}") for query, text in pairs]
    at = table.column_names.index("text")
    changed = sum(new != old for (new, _), old in zip(found, texts, strict=True))
    table = table.set_column(at, "text", pa.array([text for text, _ in found], pa.string()))
    return table, {"changed": changed, "shares": sum(share for _, share in found)}


def noisy(text: str, kind: str, rate: float, key: str) -> Noisy:
    """A text with noise of a kind (`KINDS`), and the share of its places that were changed; `key` alone decides the draw."""
    draws = random.Random(key)  # of a text: by SHA-512, the same in every process
    return KINDS[kind](text, rate, draws.random)


def _with_typos(text: str, rate: float, draw: Callable[[], float]) -> Noisy:
    """`typo`: a place is a letter or a digit. The one with the highest number is never left out, so that something remains."""
    rounding = draw()
    places = [at for at, character in enumerate(text) if character.isalnum()]
    order = _ordered(places, draw)
    count = int(rate * len(places) + rounding)
    drawn = {at: (draw(), draw()) for at in places}
    characters = list(text)
    for at in order[:count]:
        characters[at] = typo(text[at], *drawn[at], may_vanish=at != order[-1])
    return "".join(characters), count / max(1, len(places))


def _swapped(text: str, rate: float, draw: Callable[[], float]) -> Noisy:
    """`swap`: a letter or digit and the next one, different and of one script, change places; no character is in two swaps."""
    rounding = draw()
    total = sum(map(str.isalnum, text))
    pairs = [at for at, (a, b) in enumerate(pairwise(text)) if a.isalnum() and b.isalnum() and a != b and is_cjk(a) == is_cjk(b)]
    free = [True] * (len(text) + 1)
    apart: list[int] = []
    for at in _ordered(pairs, draw):
        if free[at] and free[at + 1]:
            free[at] = free[at + 1] = False
            apart.append(at)
    chosen = apart[: int(rate * total / 2 + rounding)]
    characters = list(text)
    for at in chosen:
        characters[at], characters[at + 1] = text[at + 1], text[at]
    return "".join(characters), 2 * len(chosen) / max(1, total)


def _shuffled(text: str, rate: float, draw: Callable[[], float]) -> Noisy:
    """`shuffle`: terms change places in a random cycle, in which each goes to the place of another; white space stays where it is."""
    rounding = draw()
    spans = terms_of(text)
    order = _ordered(range(len(spans)), draw)
    amount = rate * len(spans)
    count = int(amount + rounding) if amount >= 2 else 2 * int(amount / 2 + rounding)  # one term alone has nowhere to go
    chosen = order[:count] if len(spans) > 1 else []
    words = [text[a:b] for a, b in spans]
    moved = dict(zip(chosen, [words[at] for at in chosen[1:] + chosen[:1]], strict=True))
    return _joined(text, spans, moved), len(chosen) / max(1, len(spans))


def _dropped(text: str, rate: float, draw: Callable[[], float]) -> Noisy:
    """`drop`: terms are left out, with the white space after them; the one with the highest number stays."""
    rounding = draw()
    spans = terms_of(text)
    chosen = _ordered(range(len(spans)), draw)[: min(int(rate * len(spans) + rounding), max(0, len(spans) - 1))]
    if not chosen:
        return text, 0.0
    left_out = dict.fromkeys(chosen, "")
    gone = [(a, _SPACE.match(text, b).end()) if at in left_out else (a, b) for at, (a, b) in enumerate(spans)]  # type: ignore[union-attr]
    return _joined(text, gone, left_out).strip(), len(chosen) / len(spans)


def _ordered(places: Any, draw: Callable[[], float]) -> list[int]:
    """The places in the order of a random number each."""
    numbers = [(draw(), at) for at in places]
    return [at for _, at in sorted(numbers)]


def _joined(text: str, spans: list[tuple[int, int]], new: dict[int, str]) -> str:
    """The text with some of its spans, by their number, replaced."""
    parts, end = [], 0
    for at, (start, stop) in enumerate(spans):
        parts += [text[end:start], new.get(at, text[start:stop])]
        end = stop
    return "".join([*parts, text[end:]])


KINDS: dict[str, Callable[[str, float, Callable[[], float]], Noisy]] = {
    "typo": _with_typos,
    "swap": _swapped,
    "shuffle": _shuffled,
    "drop": _dropped,
}
