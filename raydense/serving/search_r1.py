"""The request and reply of Search-R1's retrieval server, which agents are trained with (`search_r1/search/retrieval_server.py` there)."""

from __future__ import annotations

from typing import Any

from raydense.serving.question import Question, Text, parsed
from raydense.settings import BaseSettings, setting

_EXAMPLE = 'send {"queries": ["..."], "topk": 3, "return_scores": true}'


class Retrieval(BaseSettings):
    """What Search-R1's client asks: queries, and how many passages of each."""

    queries: list[Text] = setting(..., "the queries", min_length=1)
    topk: int | None = setting(None, "passages of each query, 3 by default", ge=0, le=1_000)
    return_scores: bool = setting(False, "whether each passage comes with its score")

    @classmethod
    def parse(cls, body: bytes) -> Retrieval:
        """The request in a body; InputError where it is none."""
        return cls.read(parsed(body, _EXAMPLE))

    @property
    def question(self) -> Question:
        """The same as a question of ours."""
        return Question(queries=self.queries, k=self.topk or 3, texts=True)

    def reply(self, answer: dict[str, Any]) -> dict[str, Any]:
        """An answer of ours, with texts, as Search-R1 reads it: `contents` is the title in quotes, a line break, and the text."""
        return {"result": [[self._document(passage) for passage in passages] for passages in answer["results"]]}

    def _document(self, passage: dict[str, Any]) -> dict[str, Any]:
        document = {"id": passage["id"], "contents": f'"{passage["title"]}"\n{passage["text"]}'}
        return {"document": document, "score": passage["score"]} if self.return_scores else document
