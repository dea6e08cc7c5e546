"""What becomes of the questions of a batch where a part of it is not answered, without Ray."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from raydense.serving.answering import Answering
from raydense.serving.question import Question
from raydense.serving.refusal import Unavailable
from raydense.serving.settings import ServeSettings


def test_a_pool_that_is_gone_is_looked_for_once_in_a_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    """A re-ranker that fails for one part is asked again for the next; each search of a dead pool would wait for its start."""
    asked: list[int] = []

    class Pools:
        def prepare(self, texts: list[str]) -> list[list[str]]:
            return [texts]

        def truncated(self, texts: list[str]) -> list[bool]:
            return [False] * len(texts)

        def ask(self, queries: Any, k: int) -> Any:
            asked.append(k)
            if k > 60:
                raise Unavailable("the pool is gone")
            return SimpleNamespace(known=None)

        def close(self) -> None:
            pass

    monkeypatch.setattr("raydense.serving.answering.sources", lambda *given: [])
    monkeypatch.setattr("raydense.serving.answering.SearchingAll", lambda *given, gpu: Pools())
    settings, fingerprints = ServeSettings(pool=["one"]), {"index": []}
    with Answering(settings, "app", True, lambda questions, rows, end: np.zeros(rows.shape, np.float32), fingerprints) as answering:
        found = answering.answer([Question(query="a", k=k) for k in (80, 60, 70)])
    assert [str(one) for one in found] == ["the pool is gone", "this server has no corpus", "the pool is gone"]
    assert asked == [60, 70]
