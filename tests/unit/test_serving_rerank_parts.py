"""What an app asks of its re-ranker: in parts, which are cancelled where the time is over."""

from __future__ import annotations

import time
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

from raydense.errors import InputError
from raydense.serving.refusal import Unavailable
from raydense.serving.reranking import _BATCH, _PART, by_handle


@dataclass
class Response:
    """As Ray Serve's."""

    asked: tuple[list[str], Any]
    stuck: Exception | None
    cancelled: bool = False
    answered: bool = False
    waited_s: float | None = None  # at most

    def result(self, timeout_s: float) -> Any:
        self.waited_s = timeout_s
        if self.stuck:
            raise self.stuck
        self.answered = True
        questions, rows = self.asked
        return np.array([[len(question) + row for row in line] for question, line in zip(questions, rows, strict=True)], np.float32)

    def cancel(self) -> None:
        self.cancelled = True


@dataclass
class Handle:
    """As Ray Serve's handle of a deployment, of whose calls those after the first `works` get no answer, and after `takes` are refused."""

    works: int = 1_000
    takes: int = 1_000
    stuck: Exception = field(default_factory=TimeoutError)  # what the calls without an answer raise
    sent: list[Response] = field(default_factory=list)
    most_open: int = 0

    @property
    def scores(self) -> Handle:
        return self

    def remote(self, asked: tuple[list[str], Any]) -> Response:
        if len(self.sent) == self.takes:
            raise RuntimeError
        self.sent.append(Response(asked, self.stuck if len(self.sent) >= self.works else None))
        self.most_open = max(self.most_open, sum(not one.answered for one in self.sent))
        return self.sent[-1]


@pytest.mark.parametrize(("queries", "depth"), [(1, 50), (512, 50), (20, 51), (3, 1_000), (7, 600), (2, 0)])
def test_pairs_are_sent_in_parts_that_are_scored_as_one(queries: int, depth: int) -> None:
    handle = Handle()
    rows = np.arange(queries * depth).reshape(queries, depth)
    texts = ["a" * (1 + at % 5) for at in range(queries)]
    scores = by_handle(handle, 1)(texts, rows, time.monotonic() + 9)
    assert scores.tolist() == (rows + np.array([[len(text)] for text in texts])).tolist()
    assert max((part.asked[1].size for part in handle.sent), default=0) <= _PART
    assert handle.most_open <= 2 * _BATCH


@pytest.mark.parametrize("handle", [Handle(works=0), Handle(takes=2)])
def test_where_nothing_is_scored_nothing_is_waited_for(handle: Handle) -> None:
    with pytest.raises(Unavailable, match="the re-ranker does not answer"):
        by_handle(handle, 1)(["a"] * 100, np.zeros((100, 50), np.int64), time.monotonic() + 9)
    assert len(handle.sent) == min(2 * _BATCH, handle.takes)
    assert all(part.cancelled for part in handle.sent)


def test_what_is_scored_in_time_is_that_of_the_first_questions() -> None:
    """The rest has no scores, and is cancelled."""
    handle = Handle(works=20)
    scores = by_handle(handle, 1)(["a"] * 100, np.zeros((100, 50), np.int64), time.monotonic() + 9)
    assert np.isnan(scores).all(axis=1).tolist() == [False] * 40 + [True] * 60
    assert not np.isnan(scores[:40]).any()
    assert all(part.cancelled or part.answered for part in handle.sent)


@pytest.mark.parametrize("works", [0, 20])
@pytest.mark.parametrize(
    ("stuck", "logged"), [(InputError("no finite numbers"), ["the re-ranker failed: no finite numbers"]), (TimeoutError(), [])]
)
def test_what_ends_the_scoring_but_time_is_logged(works: int, stuck: Exception, logged: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    lines: list[str] = []
    monkeypatch.setattr("raydense.serving.reranking._log.warning", lambda line, **how: lines.append(line))
    with suppress(Unavailable):
        by_handle(Handle(works, stuck=stuck), 1)(["a"] * 100, np.zeros((100, 50), np.int64), time.monotonic() + 9)
    assert lines == logged


def test_the_time_is_that_of_all_parts_together(monkeypatch: pytest.MonkeyPatch) -> None:
    now = iter([*[0.0] * 5, 0.0, 4.0, 8.0, 12.0, 16.0])
    monkeypatch.setattr(time, "monotonic", lambda: next(now))
    handle = Handle()
    by_handle(handle, 1)(["a"] * 10, np.zeros((10, 50), np.int64), 9.0)
    assert [part.waited_s for part in handle.sent] == [9.0, 5.0, 1.0, 0.0, 0.0]


def test_after_the_time_nothing_is_sent() -> None:
    handle = Handle()
    scores = by_handle(handle, 1)(["a"] * 10, np.zeros((10, 50), np.int64), time.monotonic())
    assert np.isnan(scores).all()
    assert handle.sent == []
