"""The hits of a question, with their texts: a sequence, and a table in a notebook."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from typing import overload

from raydense.serving.snippet import Marker

_SHOWN = 300  # characters of a text in a notebook


@dataclass(frozen=True)
class Hit:
    """A passage that was found: rank from 1, id, score (the higher the better), title and text ("" without a corpus).

    `found` has the rank at which each index found it, by the name of the index; `reranked` is whether `score` is the re-ranker's.
    """

    rank: int
    id: str
    score: float
    title: str = ""
    text: str = ""
    found: Mapping[str, int] = field(default_factory=dict)
    reranked: bool = False


class HitList(Sequence[Hit]):
    """The hits of one `question`, the best first."""

    def __init__(self, question: str, hits: Sequence[Hit]) -> None:
        self.question, self._hits = question, tuple(hits)

    @overload
    def __getitem__(self, which: int) -> Hit: ...
    @overload
    def __getitem__(self, which: slice) -> HitList: ...
    def __getitem__(self, which: int | slice) -> Hit | HitList:
        return HitList(self.question, self._hits[which]) if isinstance(which, slice) else self._hits[which]

    def __len__(self) -> int:
        return len(self._hits)

    def __iter__(self) -> Iterator[Hit]:
        return iter(self._hits)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, HitList) and (self.question, self._hits) == (other.question, other._hits)

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        first = "".join(f"\n  {hit.rank} {hit.score:.4f} {hit.id} {hit.title}".rstrip() for hit in self._hits[:10])
        return f"HitList({self.question!r}, {len(self)} hits){first}"

    def _repr_html_(self) -> str:
        """A table whose snippets have the question's words marked, and where each index found the passage if there are several."""
        marker = Marker(self.question)
        several = len({name for hit in self._hits for name in hit.found}) > 1
        head = "".join(f"<th>{name}</th>" for name in ["rank", "score", "id", "passage", *["found"] * several])
        rows = "".join(f"<tr>{''.join(f'<td>{cell}</td>' for cell in _cells(hit, marker, several))}</tr>" for hit in self._hits)
        return f"<table><caption>{escape(self.question)}</caption><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>"


def _cells(hit: Hit, marker: Marker, several: bool) -> list[str]:
    parts = marker.snippet(hit.text, _SHOWN)
    snippet = "".join(f"<mark>{escape(part)}</mark>" if marked else escape(part) for part, marked in parts)
    passage = f"<b>{escape(hit.title)}</b><br>{snippet}" if hit.title else snippet
    found = [escape(", ".join(f"{name} {rank}" for name, rank in hit.found.items()))] * several
    return [str(hit.rank), f"{hit.score:.4f}" + "*" * hit.reranked, escape(hit.id), passage, *found]
