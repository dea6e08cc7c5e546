"""Reads the body of a request, and refuses a large one before it is in memory."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from typing import Any

from raydense.serving.refusal import LARGEST, Refused, TooLarge

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]


def headers_of(scope: Mapping[str, Any]) -> dict[bytes, bytes]:
    """The headers of an ASGI scope, by their names in lower case."""
    return {name.lower(): value for name, value in scope["headers"]}


async def read_body(scope: Scope, receive: Receive) -> bytes:
    """The body; `TooLarge` as soon as its length is known to be more than `LARGEST`, by its header or by what has come of it."""
    length = headers_of(scope).get(b"content-length", b"0")
    if not length.isdigit() or int(length) > LARGEST:
        raise TooLarge
    parts, size = [], 0
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise Refused(499, "the caller has gone")
        part = message.get("body", b"")
        size += len(part)
        if size > LARGEST:
            raise TooLarge
        parts.append(part)
        if not message.get("more_body", False):
            return b"".join(parts)
