"""Sends a reply to a caller who reads it: what is not read is not kept for longer than it needs on a slow line."""

from __future__ import annotations

import asyncio
from contextlib import suppress

from raydense.serving.body import Send
from raydense.serving.refusal import Reply

PART = 2**16  # bytes that are sent at once
_RATE = 2**20  # bytes that a caller reads in a second, at least


async def send_reply(send: Send, reply: Reply, seconds: float) -> None:
    """Send a reply in parts, each once the caller has read most of the one before it.

    All of it has `seconds`, and another for each MiB. Then the rest is dropped: a server closes the connection of a reply that did not come to its end.
    """
    headers = {"content-type": reply.kind, "content-length": str(len(reply.body)), **reply.headers}
    start = [(name.lower().encode(), value.encode()) for name, value in headers.items()]
    with suppress(TimeoutError):
        async with asyncio.timeout(seconds + len(reply.body) / _RATE):
            await send({"type": "http.response.start", "status": reply.status, "headers": start})
            for at in range(0, max(len(reply.body), 1), PART):
                part = reply.body[at : at + PART]
                await send({"type": "http.response.body", "body": part, "more_body": at + PART < len(reply.body)})
