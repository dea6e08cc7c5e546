"""Reads the body of a request, refuses a large one before it is in memory, and sees when the caller has gone."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Mapping, MutableMapping
from typing import Any, TypeVar

from raydense.serving.refusal import LARGEST, Refused, TooLarge

_GONE = "the caller has gone"
_T = TypeVar("_T")
Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]


def headers_of(scope: Mapping[str, Any]) -> dict[bytes, bytes]:
    """The headers of an ASGI scope, by their names in lower case."""
    return {name.lower(): value for name, value in scope["headers"]}


def authorization_of(scope: Mapping[str, Any]) -> str:
    """The header `Authorization` of an ASGI scope; "" if there is none."""
    return headers_of(scope).get(b"authorization", b"").decode("latin-1")


async def read_body(scope: Scope, receive: Receive, came: Callable[[int], None] = lambda size: None) -> bytes:
    """The body; `TooLarge` as soon as its length is known to be more than `LARGEST`, by its header or by what has come of it.

    `came` is called with the bytes of each part of it that comes.
    """
    length = headers_of(scope).get(b"content-length", b"0")
    if not length.isdigit() or int(length) > LARGEST:
        raise TooLarge
    parts, size = [], 0
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise Refused(499, _GONE)
        part = message.get("body", b"")
        size += len(part)
        if size > LARGEST:
            raise TooLarge
        came(len(part))
        parts.append(part)
        if not message.get("more_body", False):
            return b"".join(parts)


async def while_there(receive: Receive, answering: Coroutine[Any, Any, _T]) -> _T:
    """The result of `answering`; it is cancelled, and `Refused` raised, when the caller closes the connection first. What comes of a body is dropped."""

    async def leave() -> None:
        while (await receive())["type"] != "http.disconnect":
            pass

    answer, gone = asyncio.create_task(answering), asyncio.create_task(leave())
    try:
        await asyncio.wait((answer, gone), return_when=asyncio.FIRST_COMPLETED)
        if not answer.done():
            raise Refused(499, _GONE)
        return answer.result()
    finally:
        answer.cancel()
        gone.cancel()
