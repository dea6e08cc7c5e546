"""The request and reply of Search-R1's retrieval server, which agents are trained with (`search_r1/search/retrieval_server.py` there)."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field, StrictInt

from raydense.serving.question import LONGEST, Question, parsed
from raydense.settings import BaseSettings, setting

_EXAMPLE = 'send {"queries": ["..."], "topk": 3, "return_scores": true}'


class Retrieval(BaseSettings):
    """What Search-R1's client asks: queries, and how many passages of each. It asks none where no agent searched, and a blank one of an empty search."""

    queries: list[Annotated[str, Field(max_length=LONGEST)]] = setting(..., "the queries; a blank one has no passages")
    topk: StrictInt | None = setting(None, "passages of each query, 3 by default", ge=0, le=1_000)
    return_scores: bool = setting(False, "whether each passage comes with its score")

    @classmethod
    def parse(cls, body: bytes) -> Retrieval:
        """The request in a body; InputError where it is none."""
        return cls.read(parsed(body, _EXAMPLE))

    @property
    def question(self) -> Question | None:
        """The queries with words as a question of ours; None where there are none."""
        asked = [query for query in self.queries if query.strip()]
        return Question(queries=asked, k=self.topk or 3, texts=True) if asked else None

    def reply(self, results: list[list[dict[str, Any]]]) -> dict[str, Any]:
        """The results of `question`, as Search-R1 reads them: `contents` is the title in quotes, a line break, and the text."""
        found = iter(results)
        return {"result": [[self._document(passage) for passage in next(found)] if query.strip() else [] for query in self.queries]}

    def _document(self, passage: dict[str, Any]) -> dict[str, Any]:
        document = {"id": passage["id"], "contents": f'"{passage["title"]}"\n{passage["text"]}'}
        return {"document": document, "score": passage["score"]} if self.return_scores else document
