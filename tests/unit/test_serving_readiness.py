"""Probes of an app: all that ask at once share one query."""

from __future__ import annotations

import asyncio

import pytest

from raydense.serving.readiness import Readiness
from raydense.serving.refusal import Unavailable


def test_probes_share_one_query_while_it_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where it takes longer than a probe waits; the next one is asked once it has ended."""
    monkeypatch.setattr("raydense.serving.readiness._WITHIN_S", 0.01)
    asked = 0

    async def probe() -> list[object]:
        go = asyncio.Event()

        async def ask() -> None:
            nonlocal asked
            asked += 1
            await go.wait()

        readiness = Readiness(ask)
        late = [await asyncio.gather(*(readiness.check() for _ in range(5)), return_exceptions=True) for _ in range(3)]
        go.set()
        await readiness.check()
        return [one for several in late for one in several]

    late = asyncio.run(asyncio.wait_for(probe(), 60))
    assert {(type(one), str(one)) for one in late} == {(Unavailable, "no query is answered within 0.01 s")}
    assert asked == 1


def test_a_query_that_was_answered_shows_that_the_next_will_be(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = 0

    async def ask() -> None:
        nonlocal asked
        asked += 1

    async def probe() -> None:
        readiness = Readiness(ask)
        await asyncio.gather(*(readiness.check() for _ in range(5)))
        await readiness.check()
        assert asked == 1
        monkeypatch.setattr("raydense.serving.readiness._AGAIN_S", -1.0)
        await readiness.check()
        assert asked == 2

    asyncio.run(asyncio.wait_for(probe(), 60))


def test_probes_share_the_error_of_a_query_and_the_next_ask_again() -> None:
    errors = iter([Unavailable("the pool has ended")])

    async def ask() -> None:
        for error in errors:
            raise error

    async def probe() -> list[object]:
        readiness = Readiness(ask)
        found = await asyncio.gather(*(readiness.check() for _ in range(3)), return_exceptions=True)
        await readiness.check()
        return list(found)

    assert [str(one) for one in asyncio.run(asyncio.wait_for(probe(), 60))] == ["the pool has ended"] * 3
