"""Stands before the apps of raydense in each HTTP proxy of Ray Serve: bounds what is read, waits and is sent, and merges requests that come together.

Serve reads a whole body before an app sees anything of it, and a request costs it several calls between processes. Here who has not the app's
token is refused before the body is read, and a body of more than 1 MiB or that is slow to come as soon as that is known; requests that come while
others are answered go to the app as one (`merged`); and each has a limit of time, and a line of JSON as its error. Other apps of the same Serve
are passed through. `MIDDLEWARES` makes Serve's proxies have it.
"""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import Awaitable, Callable
from contextlib import ExitStack, suppress
from typing import Any

from starlette.middleware import Middleware

from raydense.runtime.ray_internals import served_path
from raydense.serving.body import Receive, Scope, Send, authorization_of, headers_of, read_body, while_there
from raydense.serving.capacity import Capacity
from raydense.serving.host import is_local, require_local
from raydense.serving.merged import ROUTE, Asked, pack_requests, unpack_replies
from raydense.serving.merging import LIMITS, UNKNOWN, Limits, Merging
from raydense.serving.refusal import Refused, Reply, Unavailable, refusal
from raydense.serving.request_metrics import TEXT, route_of
from raydense.serving.sending import PART, send_reply
from raydense.serving.token import require

MIDDLEWARES = {"RAY_SERVE_HTTP_PROXY_CALLBACK_IMPORT_PATH": "raydense.serving.front:middlewares"}
_MERGED = {"/search", "/retrieve"}
_WAITING = 512  # requests that may be in a proxy
_OPEN_WAITING = 64  # and of those to `_OPEN`
_BYTES = 64 * 2**20  # of bodies in a proxy
_REPLIES = 256 * 2**20  # bytes of replies that callers have not read yet
_BODY_S = 10.0  # in which a body comes
_OPEN = {"/", "/health", "/ready"}  # they need no token
_OF_SERVE = {("/", "/-/healthz"), ("/", "/-/routes")}  # Serve's own, which probes ask at its root
_LEARN_S = 5.0  # in which an app says its limits
_AGAIN_S = 1.0  # after which it is asked again before a request is refused: the app may have another token by now
_log = logging.getLogger("ray.serve")


class Front:
    """The middleware (ASGI)."""

    def __init__(self, app: Callable[[Scope, Receive, Send], Awaitable[None]]) -> None:
        self._serve = app
        self._apps: dict[str, Merging] = {}
        self._probes = Capacity(_OPEN_WAITING, "requests without a token wait")
        self._requests, self._bodies = Capacity(_WAITING, "requests wait"), Capacity(_BYTES, "bytes of requests wait")
        self._replies = Capacity(_REPLIES, "bytes of replies wait to be read")

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request to an app of raydense; pass others through."""
        there = served_path(self._serve, scope, ROUTE)
        if there is None or there in _OF_SERVE:
            return await self._serve(scope, receive, send)
        prefix, path = there
        begun = time.perf_counter()
        reply = await self._reply(scope, receive, prefix, path)
        with ExitStack() as sending:
            try:
                sending.enter_context(self._replies.held(len(reply.body) if len(reply.body) > PART else 0))
            except Unavailable as error:
                reply = refusal(error) or reply
            seconds = time.perf_counter() - begun
            self._apps[prefix].metrics.answered(path, reply.status, seconds)
            _log.info(f"{scope['method']} {route_of(path)} {reply.status} {1_000 * seconds:.1f}ms", extra={"log_to_stderr": False})
            await send_reply(send, reply, self._apps[prefix].limits.seconds)

    async def _reply(self, scope: Scope, receive: Receive, prefix: str, path: str) -> Reply:
        merging = self._apps.get(prefix)
        if merging is None:
            merging = self._apps[prefix] = Merging(lambda asked: self._send_merged(prefix, asked))
        try:
            with merging.metrics.waiting.track_inprogress(), self._bodies.held() as came:
                await self._admit(scope, prefix, path)
                body = await _body(scope, receive, came) if _is_merged(scope, path) else b""
                with (self._probes if path in _OPEN else self._requests).held(1):
                    return await while_there(receive, self._answer(scope, body, merging, path))
        except Exception as error:
            merging.known &= not isinstance(error, TimeoutError)  # the app may have other limits by now
            found = refusal(error, merging.limits.seconds)
            if found is None:
                _log.exception("a request to raydense failed")
                found = Reply.of(500, {"error": "internal error: the server's log has more"})
            return found

    async def _admit(self, scope: Scope, prefix: str, path: str) -> None:
        """Refuse who may not ask, before anything of the body is read: it takes no place."""
        if path in _OPEN:
            return  # the app looks at the host
        merging = self._apps[prefix]
        if not merging.known:
            await self._learn(prefix, merging)
        if merging.limits is UNKNOWN and not is_local(_host(scope) or "localhost"):
            raise Unavailable("the app does not say yet whom it answers; ask again later")
        try:
            _require(scope, merging.limits)
        except Refused:
            if time.monotonic() - merging.learned <= _AGAIN_S:
                raise
            await self._learn(prefix, merging)
            _require(scope, merging.limits)

    async def _learn(self, prefix: str, merging: Merging) -> None:
        """Ask an app for its limits, by a merged request of none: a request that takes long is not to end before they are known.

        Those that come meanwhile wait for the same answer, and go on without one after `_LEARN_S`, if they name this machine as `Host`.
        """

        async def ask() -> None:
            with suppress(Exception):  # the request itself gets the error
                async with asyncio.timeout(_LEARN_S):
                    await self._send_merged(prefix, [])
            merging.learned = time.monotonic()

        if merging.learning is None or merging.learning.done():
            merging.learning = asyncio.create_task(ask())
        await asyncio.shield(merging.learning)

    async def _answer(self, scope: Scope, body: bytes, merging: Merging, path: str) -> Reply:
        if path == ROUTE:
            raise Refused(404, "no such route")
        async with asyncio.timeout(merging.limits.seconds):
            return await self._asked_of(scope, body, merging, path)

    async def _asked_of(self, scope: Scope, body: bytes, merging: Merging, path: str) -> Reply:
        if _is_merged(scope, path):
            return await merging.ask(Asked(path, authorization_of(scope), body))
        reply = await self._asked(scope, body)
        if path == "/metrics" and reply.status == 200:
            return Reply(200, merging.metrics.text(), kind=TEXT)
        return reply

    async def _send_merged(self, prefix: str, asked: list[Asked]) -> list[Reply]:
        if asked:
            self._apps[prefix].metrics.batch(len(asked))
        body = pack_requests(asked)
        path = f"{prefix.rstrip('/')}{ROUTE}"
        headers = [(b"host", b"localhost"), (b"content-length", str(len(body)).encode())]
        scope: Scope = {
            "type": "http",
            "asgi": {"version": "3.0", "spec_version": "2.3"},
            "http_version": "1.1",
            "scheme": "http",
            "method": "POST",
            "path": path,
            "raw_path": path.encode(),
            "query_string": b"",
            "root_path": "",
            "headers": headers,
            "client": None,
            "server": None,
            "state": {},
        }
        reply = await self._asked(scope, body)
        if reply.status != 200:
            if reply.kind != "application/json":  # Serve's own
                raise Unavailable("the app is being replaced; ask again")
            raise Refused(reply.status, json.loads(reply.body)["error"])
        if LIMITS in reply.headers:
            self._apps[prefix].limits, self._apps[prefix].known = Limits.of(reply.headers[LIMITS]), True
        return unpack_replies(reply.body)

    async def _asked(self, scope: Scope, body: bytes) -> Reply:
        """The reply of Serve, with an error of Serve's own as ours."""
        sent: dict[str, Any] = {"status": 0, "headers": [], "body": []}
        given = False

        async def receive() -> dict[str, Any]:
            nonlocal given
            if given:
                await asyncio.Event().wait()  # `while_there` watches the caller's connection
            given = True
            return {"type": "http.request", "body": body, "more_body": False}

        async def send(message: Any) -> None:
            if message["type"] == "http.response.start":
                sent.update(status=message["status"], headers=message["headers"])
            elif message["type"] == "http.response.body":
                sent["body"].append(message.get("body", b""))

        await self._serve(scope, receive, send)
        headers = {bytes(name).decode("latin-1").lower(): bytes(value).decode("latin-1") for name, value in sent["headers"]}
        kind = headers.pop("content-type", "")
        return _of_serve(sent["status"], b"".join(sent["body"]), headers, kind)


def _require(scope: Scope, limits: Limits) -> None:
    require(limits.token, authorization_of(scope))
    if limits.local:
        require_local(_host(scope))


def _host(scope: Scope) -> str:
    return headers_of(scope).get(b"host", b"").decode("latin-1")


def _is_merged(scope: Scope, path: str) -> bool:
    """Whether a request has a body that is read, and goes to the app with others."""
    return scope["method"] == "POST" and path in _MERGED


async def _body(scope: Scope, receive: Receive, came: Callable[[int], None]) -> bytes:
    try:
        async with asyncio.timeout(_BODY_S):
            return await read_body(scope, receive, came)
    except TimeoutError:
        raise Refused(408, f"the body did not come within {_BODY_S:g} s") from None


def _of_serve(status: int, body: bytes, headers: dict[str, str], kind: str) -> Reply:
    if status == 0:
        raise Unavailable("the process that had this request has ended; ask again")
    if status == 408:
        raise TimeoutError
    if status in (429, 503) and kind != "application/json":
        raise Unavailable("too many requests wait, or no process of the app is ready; ask again later")
    if status >= 500 and kind != "application/json":
        raise Refused(status, "internal error: the server's log has more")
    return Reply(status, body, {name: value for name, value in headers.items() if name not in ("content-length", "x-request-id")}, kind)


def middlewares() -> list[Middleware]:
    """What Serve's proxies put before their apps: they call this by its name."""
    return [Middleware(Front)]
