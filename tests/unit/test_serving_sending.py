"""Replies of callers who do not read them: bounded in bytes and in time, while others are answered."""

from __future__ import annotations

import asyncio
import json
import socket
from types import SimpleNamespace
from typing import Any

import pytest
import uvicorn
from hypothesis import given
from hypothesis import strategies as st

from raydense.serving.front import Front
from raydense.serving.merged import ROUTE, pack_replies, unpack_requests
from raydense.serving.merging import LIMITS
from raydense.serving.refusal import LARGEST_REPLY, Refused, Reply, not_too_large
from raydense.serving.sending import PART, send_reply

MIB = 2**20


@given(st.integers(0, 4 * PART), st.sampled_from([200, 422]))
def test_a_reply_is_sent_as_it_is(size: int, status: int) -> None:
    body = bytes(i % 251 for i in range(size))
    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    asyncio.run(send_reply(send, Reply(status, body, {"X": "y"}), 60.0))
    start, *parts = sent
    assert (start["type"], start["status"]) == ("http.response.start", status)
    assert start["headers"] == [(b"content-type", b"application/json"), (b"content-length", str(size).encode()), (b"x", b"y")]
    assert b"".join(part["body"] for part in parts) == body
    assert [part["more_body"] for part in parts] == [True] * (len(parts) - 1) + [False]
    assert max(len(part["body"]) for part in parts) <= PART


def test_the_connection_of_who_does_not_read_is_closed() -> None:
    """By a real server: of 64 MiB the caller gets what was in buffers, once it reads, and then the end of the connection."""

    async def ask() -> tuple[bytes, int]:
        dropped, loop = asyncio.Event(), asyncio.get_running_loop()

        async def app(scope: Any, receive: Any, send: Any) -> None:
            await send_reply(send, Reply(200, bytes(64 * MIB)), -63.9)
            dropped.set()

        with socket.create_server(("127.0.0.1", 0)) as listens, socket.socket() as caller:
            server = uvicorn.Server(uvicorn.Config(app, lifespan="off", log_config=None))
            serving = asyncio.create_task(server.serve(sockets=[listens]))
            caller.setblocking(False)
            await loop.sock_connect(caller, listens.getsockname())
            await loop.sock_sendall(caller, b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
            head = await loop.sock_recv(caller, 12)
            await dropped.wait()
            read = 0
            while piece := await loop.sock_recv(caller, MIB):
                read += len(piece)
            server.should_exit = True
            await serving
            return head, read

    head, read = asyncio.run(asyncio.wait_for(ask(), 60))
    assert head == b"HTTP/1.1 200"
    assert read < 60 * MIB


class _App:
    """An app whose replies to a query of n are of n bytes, as a Serve proxy has it."""

    def __init__(self) -> None:
        patterns = {"/": [SimpleNamespace(path=ROUTE)]}
        self._app = SimpleNamespace(proxy_router=SimpleNamespace(match_route=lambda path: ("/",), route_patterns=patterns))

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        asked = unpack_requests((await receive())["body"])
        headers = [(LIMITS.encode(), b'{"at_once": 2}'), (b"content-type", b"application/octet-stream")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        body = pack_replies([Reply(200, bytes(json.loads(one.body)["n"])) for one in asked])
        await send({"type": "http.response.body", "body": body})


class _Caller:
    """One who asks for so many bytes, and reads them once `reads` is set."""

    def __init__(self, size: int) -> None:
        self._size, self.reads, self.status, self.got = size, asyncio.Event(), asyncio.Event(), list[Any]()

    async def ask(self, front: Front) -> None:
        messages = iter([{"type": "http.request", "body": json.dumps({"n": self._size}).encode(), "more_body": False}])

        async def receive() -> dict[str, Any]:
            if (message := next(messages, None)) is None:
                await asyncio.Event().wait()
                raise AssertionError
            return message

        await front({"type": "http", "method": "POST", "path": "/search", "headers": []}, receive, self._send)

    async def _send(self, message: Any) -> None:
        self.got.append(message.get("status") or len(message["body"]))
        self.status.set()
        if len(self.got) > 1:
            await self.reads.wait()


def test_replies_that_are_not_read_are_bounded_in_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where there is no room for another large one, it is 503; small ones are answered, and large ones again when the others were read."""
    monkeypatch.setattr("raydense.serving.front._REPLIES", 4 * MIB)

    async def ask() -> list[int]:
        front = Front(_App())
        silent = [_Caller(MIB) for _ in range(4)]
        sending = [asyncio.create_task(one.ask(front)) for one in silent]
        for one in silent:
            await one.status.wait()
        found = []
        for size in (MIB, PART):
            other = _Caller(size)
            other.reads.set()
            await other.ask(front)
            found.append(other.got[0])
        for one in silent:
            one.reads.set()
        await asyncio.gather(*sending)
        assert [one.got for one in silent] == [[200, *[PART] * 16]] * 4
        last = _Caller(4 * MIB)
        last.reads.set()
        await last.ask(front)
        assert front._replies.used == 0
        return [*found, last.got[0]]

    assert asyncio.run(asyncio.wait_for(ask(), 60)) == [503, 200, 200]


def test_a_reply_has_a_size_that_it_may_have() -> None:
    reply = Reply(200, bytes(LARGEST_REPLY))
    assert not_too_large(reply) is reply
    with pytest.raises(Refused, match="67,108,864 bytes; ask for fewer passages, or without texts") as refused:
        not_too_large(Reply(200, bytes(LARGEST_REPLY + 1)))
    assert refused.value.status == 422
