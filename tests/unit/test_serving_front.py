"""What stands before a served app: requests merged and told apart again, bodies bounded, errors without paths, the token."""

from __future__ import annotations

import asyncio
import json
import re
import string
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from raydense.errors import InputError, InputErrors
from raydense.serving.body import read_body
from raydense.serving.front import Front
from raydense.serving.host import is_local
from raydense.serving.merged import MOST, ROUTE, Asked, pack_replies, pack_requests, unpack_replies, unpack_requests
from raydense.serving.merging import LARGE, LIMITS, TOGETHER, Limits, Merging
from raydense.serving.question import Question
from raydense.serving.refusal import LARGEST, Refused, Reply, TooLarge, Unavailable, refusal, without_places
from raydense.serving.search_r1 import Retrieval
from raydense.serving.settings import ServeSettings
from raydense.serving.token import allows, expected, hashed

REQUESTS = st.lists(st.builds(Asked, st.sampled_from(["/search", "/retrieve"]), st.text(max_size=9), st.binary(max_size=50)), max_size=9)
REPLIES = st.lists(st.builds(Reply, st.sampled_from([200, 422]), st.binary(max_size=50), st.dictionaries(st.text(), st.text())), max_size=9)


@given(REQUESTS, REPLIES)
def test_what_is_merged_is_told_apart_again(requests: list[Asked], replies: list[Reply]) -> None:
    assert unpack_requests(pack_requests(requests)) == requests
    assert unpack_replies(pack_replies(replies)) == replies


@given(st.binary(max_size=60))
def test_no_bytes_are_taken_for_merged_requests_that_are_none(body: bytes) -> None:
    try:
        found = unpack_requests(body)
    except ValueError:
        return
    assert all(isinstance(one.body, bytes) for one in found)


def _asked(*sizes: int) -> list[Asked]:
    return [Asked("/search", "", bytes([number % 256]) * size) for number, size in enumerate(sizes)]


def _merge(requests: list[Asked], send: Callable[[list[Asked]], Awaitable[list[Reply]]], limits: Limits, waits: float = 60.0) -> list[Any]:
    async def all_of_them() -> list[Any]:
        merging = Merging(send)
        merging.limits = limits
        return await asyncio.gather(*(asyncio.wait_for(merging.ask(one), waits) for one in requests), return_exceptions=True)

    return asyncio.run(all_of_them())


@given(st.lists(st.one_of(st.integers(0, 20), st.integers(LARGEST // 3, LARGEST)), min_size=1, max_size=150), st.integers(1, 4))
def test_each_request_gets_its_own_reply(sizes: list[int], at_once: int) -> None:
    """Whatever their number and sizes: never more merged requests at once than allowed, nor larger ones."""
    batches: list[list[Asked]] = []
    now = 0

    async def send(batch: list[Asked]) -> list[Reply]:
        nonlocal now
        now += 1
        assert now <= at_once
        batches.append(batch)
        await asyncio.sleep(0)
        now -= 1
        return [Reply(200, one.body) for one in batch]

    requests = _asked(*sizes)
    assert [one.body for one in _merge(requests, send, Limits(at_once=at_once))] == [one.body for one in requests]
    sent = [one for batch in batches for one in batch]
    for large in (False, True):
        assert [one for one in sent if (len(one.body) > LARGE) is large] == [one for one in requests if (len(one.body) > LARGE) is large]
    assert all(len(batch) == 1 or (len(batch) <= MOST and sum(len(one.body) for one in batch) <= TOGETHER) for batch in batches)


def test_large_requests_leave_a_place_to_small_ones() -> None:
    """A large one goes alone, and large ones never have all places: a small one waits for small ones."""
    order: list[int] = []

    async def ask() -> None:
        go = asyncio.Event()

        async def send(batch: list[Asked]) -> list[Reply]:
            order.extend(len(one.body) for one in batch)
            if len(batch[0].body) > TOGETHER:
                await go.wait()
            return [Reply(200, b"")] * len(batch)

        merging = Merging(send)
        merging.limits = Limits(at_once=2)
        large = [asyncio.create_task(merging.ask(one)) for one in _asked(TOGETHER + 1, TOGETHER + 2, TOGETHER + 3)]
        await asyncio.gather(*(merging.ask(one) for one in _asked(1, 2, 3)))
        assert order == [TOGETHER + 1, 1, 2, 3]
        go.set()
        await asyncio.gather(*large)

    asyncio.run(asyncio.wait_for(ask(), 60))
    assert order == [TOGETHER + 1, 1, 2, 3, TOGETHER + 2, TOGETHER + 3]


def _searches(*asked: tuple[int, int]) -> list[Asked]:
    return [Asked("/search", "", json.dumps({"queries": ["a"] * queries, "k": k}).encode()) for queries, k in asked]


@given(st.lists(st.tuples(st.integers(1, 50), st.integers(1, 1_000)), min_size=1, max_size=90), st.sampled_from([0, 50]))
def test_what_is_merged_asks_for_no_more_hits_than_a_request_may(asked: list[tuple[int, int]], depth: int) -> None:
    """Forty requests of fifty queries and a thousand passages have small bodies, and two million hits."""
    limits, sent = Limits(at_once=2, hits=50_000, depth=depth), []

    async def send(batch: list[Asked]) -> list[Reply]:
        sent.append(batch)
        await asyncio.sleep(0)
        return [Reply(200, one.body) for one in batch]

    requests = _searches(*asked)
    assert [one.body for one in _merge(requests, send, limits)] == [one.body for one in requests]
    assert sum(map(len, sent)) == len(requests)
    for batch in sent:
        hits = [one.hits(depth) for one in batch]
        assert len(batch) == 1 or (sum(hits) <= limits.hits and max(hits) <= limits.hits // 8)


@pytest.mark.parametrize(
    ("body", "depth", "hits"),
    [
        (b'{"query": "a"}', 0, 10),
        (b'{"queries": ["a", "b"], "k": 20}', 0, 40),
        (b'{"queries": ["a", "b"], "k": 20}', 50, 100),
        (b'{"queries": ["a", "b"], "topk": 3}', 0, 6),
        (b'{"query": "a", "queries": null, "k": 1000}', 50, 1_000),
        (b'{"queries": 3, "k": 20}', 0, 0),
        (b'{"query": "a", "k": "20"}', 0, 0),
        (b"[1]", 0, 0),
        (b"\xff", 0, 0),
        (b"[" * 2_000, 0, 0),
    ],
)
def test_the_hits_of_a_request_are_read_without_a_check(body: bytes, depth: int, hits: int) -> None:
    assert Asked("/search", "", body).hits(depth) == hits


def test_those_that_wait_go_together() -> None:
    sizes = []

    async def send(batch: list[Asked]) -> list[Reply]:
        sizes.append(len(batch))
        await asyncio.sleep(0)
        return [Reply(200, b"")] * len(batch)

    _merge(_asked(*[1] * (2 * MOST + 5)), send, Limits(at_once=2))
    assert sizes == [MOST, MOST, 5]


def test_a_failure_is_that_of_its_batch_alone() -> None:
    async def send(batch: list[Asked]) -> list[Reply]:
        if batch[0].body == b"\0":
            raise Unavailable("it has ended")
        return [Reply(200, b"")] * len(batch)

    found = _merge(_asked(*[1] * (MOST + 3)), send, Limits(at_once=1))
    assert [type(one) for one in found] == [Unavailable] * MOST + [Reply] * 3


def test_an_app_that_does_not_answer_keeps_nothing() -> None:
    """The time of a merged request is limited, too: those that come later are sent, and those whose time is over are not."""
    sent: list[int] = []

    async def send(batch: list[Asked]) -> list[Reply]:
        sent.append(len(batch))
        await asyncio.Event().wait()
        raise AssertionError

    found = _merge(_asked(*[1] * (3 * MOST)), send, Limits(seconds=0.05, at_once=1), waits=0.01)
    assert [type(one) for one in found] == [TimeoutError] * 3 * MOST
    assert sent == [MOST]


def _caller(body: bytes, stays: bool = True) -> Callable[[], Awaitable[dict[str, Any]]]:
    """What an ASGI server gives of a connection: the body, then nothing until the caller goes."""
    messages = iter([{"type": "http.request", "body": body, "more_body": False}])

    async def receive() -> dict[str, Any]:
        if (message := next(messages, None)) is not None:
            return message
        if stays:
            await asyncio.Event().wait()
        return {"type": "http.disconnect"}

    return receive


def test_the_limits_of_an_app_are_known_before_its_first_request() -> None:
    """A request that takes longer than the limit at first would otherwise end, and the app's own limit would never be read."""
    merged: list[int] = []

    async def serve(scope: Any, receive: Any, send: Any) -> None:
        asked = unpack_requests((await receive())["body"])
        merged.append(len(asked))
        headers = [(LIMITS.encode(), b'{"seconds": 300.0, "at_once": 4}'), (b"content-type", b"application/octet-stream")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": pack_replies([Reply(200, b"{}")] * len(asked))})

    async def ask() -> tuple[list[Reply], Limits]:
        front = Front(serve)
        scope = {"type": "http", "method": "POST", "headers": []}
        replies = await asyncio.gather(*(front._reply(scope, _caller(b"{}"), "/", "/search") for _ in range(5)))
        return replies, front._apps["/"].limits

    replies, limits = asyncio.run(ask())
    assert [reply.status for reply in replies] == [200] * 5
    assert limits == Limits(300.0, 4)
    assert (merged[0], sum(merged)) == (0, 5)


def test_what_no_caller_waits_for_is_not_asked() -> None:
    """Two requests wait until a first one is answered, and the caller of one goes: its place is free, and its query is not encoded."""
    merged: list[list[bytes]] = []

    async def ask() -> tuple[list[Reply], int]:
        begun, go = asyncio.Event(), asyncio.Event()

        async def serve(scope: Any, receive: Any, send: Any) -> None:
            asked = unpack_requests((await receive())["body"])
            if asked:
                merged.append([one.body for one in asked])
                begun.set()
                await go.wait()
            headers = [(LIMITS.encode(), b'{"seconds": 300.0, "at_once": 1}'), (b"content-type", b"application/octet-stream")]
            await send({"type": "http.response.start", "status": 200, "headers": headers})
            await send({"type": "http.response.body", "body": pack_replies([Reply(200, b"{}")] * len(asked))})

        front = Front(serve)
        scope = {"type": "http", "method": "POST", "headers": []}
        first = asyncio.create_task(front._reply(scope, _caller(b"a"), "/", "/search"))
        await begun.wait()
        stays = asyncio.create_task(front._reply(scope, _caller(b"c"), "/", "/search"))
        gone = await front._reply(scope, _caller(b"b", stays=False), "/", "/search")
        go.set()
        return [await first, gone, await stays], front._requests.used

    replies, waiting = asyncio.run(asyncio.wait_for(ask(), 60))
    assert merged == [[b"a"], [b"c"]]
    assert [reply.status for reply in replies] == [200, 499, 200]
    assert waiting == 0


class _App:
    """An app behind a front: it says its limits, and answers each request once `go` is set."""

    def __init__(self, **limits: Any) -> None:
        self.limits, self.go, self.bodies = {"seconds": 300.0, "at_once": 2, **limits}, asyncio.Event(), list[bytes]()
        self.front = Front(self._serve)

    async def _serve(self, scope: Any, receive: Any, send: Any) -> None:
        body = (await receive())["body"]
        merged = scope["path"].endswith(ROUTE)
        asked = unpack_requests(body) if merged else []
        self.bodies += [one.body for one in asked] if merged else [body]
        if asked:
            await self.go.wait()
        headers = [(LIMITS.encode(), json.dumps(self.limits).encode()), (b"content-type", b"application/octet-stream")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": pack_replies([Reply(200, b"{}")] * len(asked))})

    async def ask(self, receive: Any, path: str = "/search", **headers: str) -> Reply:
        """The reply to a POST, or to a GET on routes that take no body."""
        method = "POST" if path == "/search" else "GET"
        sent = [(name.replace("_", "-").encode(), value.encode()) for name, value in headers.items()]
        return await self.front._reply({"type": "http", "method": method, "path": path, "headers": sent}, receive, "/", path)

    def held(self) -> tuple[int, int]:
        """The requests and bytes of bodies that are counted."""
        return self.front._requests.used, self.front._bodies.used


def test_the_metrics_of_an_app_are_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where a proxy has several: who reads those of one does not see the others' requests."""
    monkeypatch.setattr("raydense.serving.front.served_path", lambda app, scope, route: (scope["path"][:2], scope["path"][2:]))
    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    async def ask() -> None:
        app = _App()
        app.go.set()
        for path in ("/a/search", "/a/search", "/b/search", "/a/metrics", "/b/metrics"):
            method = "POST" if path.endswith("/search") else "GET"
            await app.front({"type": "http", "method": method, "path": path, "headers": []}, _caller(b"{}"), send)

    asyncio.run(asyncio.wait_for(ask(), 60))
    pages = [message["body"].decode() for message in sent if b"raydense_requests" in message.get("body", b"")]
    counts = [re.findall(r'raydense_requests_total{route="/search",status="200"} (\S+)', page) for page in pages]
    assert counts == [["2.0"], ["1.0"]]


async def _silent() -> dict[str, Any]:
    """Of a caller who sends headers alone."""
    await asyncio.Event().wait()
    raise AssertionError


def _piecewise(*pieces: bytes) -> Callable[[], Awaitable[dict[str, Any]]]:
    """Of a caller who sends so much of a body, and never its end."""
    messages = iter(pieces)

    async def receive() -> dict[str, Any]:
        piece = next(messages, None)
        return await _silent() if piece is None else {"type": "http.request", "body": piece, "more_body": True}

    return receive


async def _begun(*waiting: Awaitable[Any]) -> list[asyncio.Task[Any]]:
    """Tasks that have gone as far as they can."""
    tasks = [asyncio.ensure_future(one) for one in waiting]
    for _ in range(50):
        await asyncio.sleep(0)
    return tasks


async def _ended(tasks: list[asyncio.Task[Any]]) -> None:
    for one in tasks:
        one.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


def test_what_was_refused_leaves_no_trace() -> None:
    """However many were refused because others wait: once these have gone, requests are answered again."""

    async def ask() -> tuple[list[int], tuple[int, int]]:
        app, many = _App(), 64  # bodies of a mebibyte are all that may wait
        waiting = await _begun(*(app.ask(_caller(b"a" * LARGEST)) for _ in range(many)))
        refused = [(await app.ask(_caller(b"a"))).status for _ in range(3 * many)]
        app.go.set()
        assert [reply.status for reply in await asyncio.gather(*waiting)] == [200] * many
        return [*refused, (await app.ask(_caller(b"a"))).status], app.held()

    statuses, held = asyncio.run(asyncio.wait_for(ask(), 60))
    assert statuses == [503] * 192 + [200]
    assert held == (0, 0)


def test_more_requests_than_may_wait_are_refused_at_once() -> None:
    async def ask() -> tuple[Reply, list[Reply], tuple[int, int]]:
        app = _App()
        waiting = await _begun(*(app.ask(_caller(b"a")) for _ in range(512)))
        refused = await app.ask(_caller(b"a"))
        app.go.set()
        return refused, await asyncio.gather(*waiting), app.held()

    refused, answered, held = asyncio.run(asyncio.wait_for(ask(), 60))
    assert (refused.status, "Retry-After" in refused.headers) == (503, True)
    assert [reply.status for reply in answered] == [200] * 512
    assert held == (0, 0)


def test_those_without_a_token_are_bounded_by_themselves() -> None:
    """However many ask whether an app is ready that does not say so: they fill none of its places for others, and a search is answered."""

    async def ask() -> tuple[list[int], int, int]:
        app = _App()
        app.go.set()
        asked, answer = app.front._serve, asyncio.Event()

        async def serve(scope: Any, receive: Any, send: Any) -> None:
            if scope["path"] == "/ready":
                await answer.wait()
            await asked(scope, receive, send)

        app.front._serve = serve
        waiting = await _begun(*(app.ask(_caller(b""), "/ready") for _ in range(100)))
        search = (await app.ask(_caller(b"{}"))).status
        answer.set()
        return [reply.status for reply in await asyncio.gather(*waiting)], search, app.front._probes.used

    statuses, search, held = asyncio.run(asyncio.wait_for(ask(), 60))
    assert (statuses.count(200), statuses.count(503)) == (64, 36)
    assert (search, held) == (200, 0)


@pytest.mark.parametrize(
    ("status", "kind", "expected"),
    [
        (0, "", (503, "the process that had this request has ended; ask again")),
        (408, "text/plain", (504, "")),
        (429, "text/plain", (503, "too many requests wait, or no process of the app is ready; ask again later")),
        (503, "text/plain", (503, "too many requests wait, or no process of the app is ready; ask again later")),
        (500, "text/plain", (500, "internal error: the server's log has more")),
        (500, "application/json", (500, "said by the app")),
        (503, "application/json", (503, "said by the app")),
        (422, "application/json", (422, "said by the app")),
    ],
)
def test_errors_of_serve_are_one_line(status: int, kind: str, expected: tuple[int, str]) -> None:
    """A status of 0 is that of a connection of Serve's that broke; what is not JSON is Serve's own, and may be a traceback."""

    async def serve(scope: Any, receive: Any, send: Any) -> None:
        if scope["path"] != "/passages/1":
            raise RuntimeError("the limits of the app are not known")
        if status:
            body = b'{"error":"said by the app"}' if kind == "application/json" else b"Traceback (most recent call last)"
            await send({"type": "http.response.start", "status": status, "headers": [(b"content-type", kind.encode())]})
            await send({"type": "http.response.body", "body": body})

    scope = {"type": "http", "method": "GET", "path": "/passages/1", "headers": []}
    reply = asyncio.run(asyncio.wait_for(Front(serve)._reply(scope, _caller(b""), "/", "/passages/1"), 60))
    assert reply.status == expected[0]
    assert json.loads(reply.body)["error"].startswith(expected[1])
    assert ("Retry-After" in reply.headers) == (status in (0, 429) or (status, kind) == (503, "text/plain"))


@given(st.lists(st.lists(st.binary(max_size=9), max_size=4), max_size=90), st.integers(0, 90))
def test_a_body_counts_as_what_has_come_of_it(unfinished: list[list[bytes]], whole: int) -> None:
    """Whatever its headers allow: small ones of unknown length leave room to others, also while they wait for their reply."""

    async def ask() -> None:
        app = _App()
        coming = await _begun(*(app.ask(_piecewise(*pieces), transfer_encoding="chunked") for pieces in unfinished))
        waiting = await _begun(*(app.ask(_caller(b"abc"), transfer_encoding="chunked") for _ in range(whole)))
        assert app.held() == (whole, 3 * whole + sum(len(piece) for pieces in unfinished for piece in pieces))
        app.go.set()
        assert [reply.status for reply in await asyncio.gather(*waiting)] == [200] * whole
        await _ended(coming)
        assert app.held() == (0, 0)

    asyncio.run(asyncio.wait_for(ask(), 60))


def test_who_sends_no_body_takes_no_place() -> None:
    """A thousand callers who sent headers alone, where 512 requests may wait: others are answered."""

    async def ask() -> list[int]:
        app = _App()
        app.go.set()
        silent = await _begun(*(app.ask(_silent, content_length="30") for _ in range(1_000)))
        found = [(await app.ask(_caller(b"{}"))).status, (await app.ask(_silent, "/health", content_length="30")).status]
        await _ended(silent)
        return found

    assert asyncio.run(asyncio.wait_for(ask(), 60)) == [200, 200]


def test_a_body_has_a_time_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("raydense.serving.front._BODY_S", 0.01)

    async def ask() -> tuple[Reply, tuple[int, int], list[bytes]]:
        app = _App()
        return await app.ask(_piecewise(b"{"), content_length="30"), app.held(), app.bodies

    reply, held, bodies = asyncio.run(asyncio.wait_for(ask(), 60))
    assert (reply.status, reply.body) == (408, b'{"error":"the body did not come within 0.01 s"}')
    assert reply.headers == {"Connection": "close"}, "the rest of it may still come"
    assert (held, bodies) == ((0, 0), [])


def test_without_the_token_nothing_is_read() -> None:
    """The app says the hash of its token with its limits: who lacks it is refused before the body, and the app is not asked."""

    async def ask() -> tuple[list[int], list[bytes]]:
        app = _App(token=hashed("a-word"))
        app.go.set()
        wrong = [await app.ask(_silent, path, authorization=sent) for path in ("/search", "/metrics") for sent in ("", "Bearer word")]
        right = await app.ask(_caller(b"right"), authorization="Bearer a-word")
        return [one.status for one in [*wrong, right, await app.ask(_caller(b""), "/")]], app.bodies

    statuses, bodies = asyncio.run(asyncio.wait_for(ask(), 60))
    assert statuses == [401] * 4 + [200, 200]
    assert bodies == [b"right", b""]


def test_the_token_of_an_app_may_change(monkeypatch: pytest.MonkeyPatch) -> None:
    """As its settings do: who has another token than the last one known is not refused before the app was asked again, some time later."""
    monkeypatch.setattr("raydense.serving.front._AGAIN_S", 0.0)

    async def ask() -> list[int]:
        app, found = _App(), []
        app.go.set()
        for token, sent in (("one", "one"), ("two", "two"), ("two", "one"), ("", ""), ("", "two")):
            app.limits["token"] = hashed(token) if token else ""
            found.append((await app.ask(_caller(b"{}"), authorization=f"Bearer {sent}")).status)
        return found

    assert asyncio.run(asyncio.wait_for(ask(), 60)) == [200, 200, 401, 200, 200]


def test_an_app_at_the_loopback_may_get_a_token(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who has it is then answered at any name."""
    monkeypatch.setattr("raydense.serving.front._AGAIN_S", 0.0)

    async def ask() -> list[int]:
        app = _App(local=True)
        app.go.set()
        found = [(await app.ask(_caller(b"{}"), host="search.example")).status]
        app.limits |= {"token": hashed("new"), "local": False}
        return [
            *found,
            *[(await app.ask(_caller(b"{}"), host="search.example", **sent)).status for sent in ({"authorization": "Bearer new"}, {})],
        ]

    assert asyncio.run(asyncio.wait_for(ask(), 60)) == [403, 200, 401]


@pytest.mark.parametrize(
    "host", ["localhost", "LOCALHOST:8000", "127.0.0.1", "127.0.0.1:8000", "127.0.1.1:1", "[::1]", "[::1]:8000", "::1"]
)
def test_a_host_of_this_machine(host: str) -> None:
    assert is_local(host)


@pytest.mark.parametrize(
    "host",
    [
        "",
        "0.0.0.0",
        "evil.example",
        "evil.example:8000",
        "localhost.evil.example",
        "127.0.0.1.evil.example",
        "evil.example@localhost",
        "::",
    ],
)
def test_a_host_that_is_not_of_this_machine_alone(host: str) -> None:
    assert not is_local(host)


def test_an_app_at_the_loopback_is_asked_by_its_name() -> None:
    """Where it has no token: a page whose name leads to the loopback (DNS rebinding) is refused before its body is read."""

    async def ask() -> tuple[list[int], list[bytes]]:
        app = _App(local=True)
        app.go.set()
        refused = [(await app.ask(_silent, path, host="evil.example:8000")).status for path in ("/search", "/metrics")]
        local = (await app.ask(_caller(b"a"), host="localhost:8000")).status
        return [*refused, local, (await app.ask(_caller(b"of HTTP/1.0"))).status], app.bodies

    assert asyncio.run(asyncio.wait_for(ask(), 60)) == ([403, 403, 200, 200], [b"a", b"of HTTP/1.0"])


def test_an_app_that_has_not_said_whom_it_answers_is_not_asked_by_another_name(monkeypatch: pytest.MonkeyPatch) -> None:
    """It may be at the loopback without a token, and too busy to say so in time."""
    monkeypatch.setattr("raydense.serving.front._LEARN_S", 0.01)

    async def ask() -> tuple[list[int], list[bytes]]:
        app = _App(local=True)
        app.go.set()
        asked = app.front._serve

        async def serve(scope: Any, receive: Any, send: Any) -> None:
            if scope["path"] == ROUTE and (body := (await receive())["body"]) == pack_requests([]):
                await asyncio.Event().wait()
            await asked(scope, _caller(body), send)

        app.front._serve = serve
        return [
            (await app.ask(_caller(b"{}"), host=host)).status for host in ("evil.example", "localhost:8000", "evil.example")
        ], app.bodies

    assert asyncio.run(asyncio.wait_for(ask(), 60)) == ([503, 200, 403], [b"{}"])


def test_who_has_gone_leaves_nothing_in_the_queue() -> None:
    """Behind a large request that is in progress: the bodies of others go with their callers."""

    async def ask() -> tuple[list[Any], list[int]]:
        async def send(batch: list[Asked]) -> list[Reply]:
            await asyncio.Event().wait()
            raise AssertionError

        merging = Merging(send)
        waiting = [asyncio.create_task(merging.ask(one)) for one in _asked(*[LARGE + 1, 1] * 50)]
        await asyncio.sleep(0.01)
        for one in waiting:
            one.cancel()
        gone = await asyncio.gather(*waiting, return_exceptions=True)
        return gone, [len(merging._large), len(merging._small)]

    gone, left = asyncio.run(asyncio.wait_for(ask(), 60))
    assert {type(one) for one in gone} == {asyncio.CancelledError}
    assert left == [0, 0]


def test_one_place_is_shared_in_turn() -> None:
    order: list[int] = []

    async def send(batch: list[Asked]) -> list[Reply]:
        order.append(len(batch[0].body))
        await asyncio.sleep(0)
        return [Reply(200, b"")] * len(batch)

    _merge(_asked(LARGE + 1, LARGE + 2, LARGE + 3, *[1] * (2 * MOST)), send, Limits(at_once=1))
    assert order == [LARGE + 1, 1, LARGE + 2, 1, LARGE + 3]


def test_all_wait_for_one_answer_about_the_limits() -> None:
    """Of an app that does not answer: no body is read meanwhile, and none waits for the time of those before it."""
    asked = 0

    async def _unread() -> dict[str, Any]:
        raise AssertionError

    async def ask() -> None:
        async def serve(scope: Any, receive: Any, send: Any) -> None:
            nonlocal asked
            asked += 1
            await asyncio.Event().wait()

        front = Front(serve)
        scope = {"type": "http", "method": "POST", "headers": []}
        waiting = [asyncio.create_task(front._reply(scope, _unread, "/", "/search")) for _ in range(100)]
        await asyncio.sleep(0.01)
        await _ended(waiting)
        assert (front._requests.used, front._bodies.used) == (0, 0)

    asyncio.run(asyncio.wait_for(ask(), 60))
    assert asked == 1


def test_a_body_is_read_where_one_is_asked_for_alone() -> None:
    """Whatever comes to another route is not kept."""

    async def ask() -> tuple[int, list[bytes]]:
        app = _App()
        reply = await app.ask(_piecewise(*[b"x" * LARGEST] * 99), "/health", content_length=str(99 * LARGEST))
        return reply.status, app.bodies

    assert asyncio.run(asyncio.wait_for(ask(), 60)) == (200, [b""])


def _read(pieces: list[bytes], **headers: bytes) -> bytes:
    async def read() -> bytes:
        waiting = iter(pieces)
        left = len(pieces)

        async def receive() -> dict[str, Any]:
            nonlocal left
            left -= 1
            return {"type": "http.request", "body": next(waiting), "more_body": left > 0}

        return await read_body({"headers": [(name.encode(), value) for name, value in headers.items()]}, receive)

    return asyncio.run(read())


def test_a_body_is_read_up_to_its_limit() -> None:
    assert _read([b"a", b"", b"bc"]) == b"abc"
    assert len(_read([b"x" * LARGEST])) == LARGEST
    with pytest.raises(TooLarge):
        _read([b"x" * LARGEST, b"x"])
    for length in (b"1048577", b"-1", b"1e3", b"99999999999999999999"):
        with pytest.raises(TooLarge):
            _read([], **{"content-length": length})


@pytest.mark.parametrize(
    ("error", "status", "line", "header"),
    [
        (InputError("wrong", "k", "fix it"), 422, "k: wrong; fix it", None),
        (InputErrors(InputError("one"), InputError("two")), 422, "one", None),
        (TooLarge(), 413, "the body is larger than 1,048,576 bytes; send fewer queries at once", None),
        (Refused(401, "no token"), 401, "no token", "WWW-Authenticate"),
        (Unavailable("/srv/model: is not the model"), 503, "(a path of the server): is not the model", "Retry-After"),
        (TimeoutError(), 504, "no answer within 3 s; ask for less at once, or again later", None),
    ],
)
def test_a_refusal_is_a_status_and_one_line(error: Exception, status: int, line: str, header: str | None) -> None:
    found = refusal(error, 3.0)
    assert found is not None
    assert (found.status, found.body) == (status, Reply.of(status, {"error": line}).body)
    assert list(found.headers) == ([header] if header else [])


def test_an_error_that_nobody_foresaw_has_no_reply_of_its_own() -> None:
    assert refusal(KeyError("/srv/secret")) is None


@given(st.lists(st.text(string.ascii_letters + string.digits + "._- ,", min_size=1, max_size=8), min_size=1, max_size=4))
def test_no_path_of_the_server_is_in_a_line(parts: list[str]) -> None:
    for path in ("/" + "/".join(parts), "s3://" + "/".join(parts), "./" + "/".join(parts), "../" + "/".join(parts)):
        line = without_places(f"{path}: is no index ({path}); give another than {path!r}")
        assert line.startswith("(a path of the server): is no index ((a path of the server)); give another than ")
        assert path not in line
    assert without_places("the pools answer from indexes of different corpora") == "the pools answer from indexes of different corpora"


def test_the_token_is_that_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RAYDENSE_TOKEN", raising=False)
    assert expected() == ""
    assert allows("", "")
    monkeypatch.setenv("RAYDENSE_TOKEN", "a-word")
    assert "a-word" not in expected()
    assert allows(expected(), "Bearer a-word")
    assert allows(expected(), "bearer  a-word ")
    for wrong in ("", "Bearer", "Bearer ", "Bearer a-wor", "Bearer a-word2", "Basic a-word", "a-word", "Bearer é"):
        assert not allows(expected(), wrong)
    monkeypatch.setenv("RAYDENSE_TOKEN", " ")
    with pytest.raises(InputError, match="RAYDENSE_TOKEN: is empty"):
        expected()
    monkeypatch.setenv("RAYDENSE_TOKEN", "pässwort")
    with pytest.raises(InputError, match="RAYDENSE_TOKEN: has other characters than ASCII"):
        expected()


@pytest.mark.parametrize("given", [{"index": ["x=a", "x=b"]}, {"index": ["a", "a"]}, {"pool": ["p", "p"]}])
def test_two_indexes_of_one_name_are_refused(given: dict[str, list[str]]) -> None:
    with pytest.raises(InputError, match="have the same name"):
        ServeSettings.read(given)


def test_what_search_r1_asks_is_a_question_with_texts() -> None:
    asked = Retrieval.parse(b'{"queries": ["a", " ", "b", ""], "topk": 0, "return_scores": true}')
    assert asked.question == Question(queries=["a", "b"], k=3, texts=True)
    passage = {"id": "p", "title": "T", "text": "x\ny", "score": 0.5}
    document = {"id": "p", "contents": '"T"\nx\ny'}
    assert asked.reply([[], [passage]]) == {"result": [[], [], [{"document": document, "score": 0.5}], []]}
    assert Retrieval.parse(b'{"queries": ["a"]}').reply([[passage]]) == {"result": [[document]]}


@pytest.mark.parametrize("queries", [[], ["", " \u3000"]])
def test_search_r1_may_ask_nothing(queries: list[str]) -> None:
    """As its client does where no agent searched, and with `<search></search>`."""
    asked = Retrieval.parse(json.dumps({"queries": queries}).encode())
    assert asked.question is None
    assert asked.reply([]) == {"result": [[] for _ in queries]}


def test_a_request_is_bounded_by_queries_and_by_hits() -> None:
    Question(queries=["a"] * 5, k=20).check(5, 100)
    with pytest.raises(InputError, match="5 queries, and a request may have 4"):
        Question(queries=["a"] * 5, k=1).check(4, 100)
    with pytest.raises(InputError, match="5 queries of 21 passages, and a request may ask for 100 passages"):
        Question(queries=["a"] * 5, k=21).check(5, 100)
    Question(queries=["a"] * 2, k=10).check(5, 100, depth=50)
    with pytest.raises(InputError, match="3 queries of which 50 passages each are re-ranked, and a request may ask for 100 passages"):
        Question(queries=["a"] * 3, k=10).check(5, 100, depth=50)


@pytest.mark.parametrize("k", ["10", 10.0, True, "x"])
def test_a_number_of_passages_is_a_whole_number(k: object) -> None:
    for settings, name in ((Question, "k"), (Retrieval, "topk")):
        with pytest.raises(InputError, match=f"{name}: input should be a valid integer"):
            settings.parse(json.dumps({"queries": ["a"], name: k}).encode())


def test_a_wrong_text_gets_no_advice_for_the_command_line() -> None:
    with pytest.raises(InputError) as refused:
        Question.parse(b'{"query": 5}')
    assert str(refused.value) == "query: input should be a valid string (given: 5); it is: one query, in place of queries"
