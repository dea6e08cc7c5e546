"""The client of an OpenAI-compatible endpoint: many requests at once, at a limited rate, repeated where they fail, their tokens counted.

It runs in the driver alone: so the rate and the budget hold exactly, and the API key stays in the process whose environment has it. Waiting
for answers takes no CPU; one process keeps thousands of requests open.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import re
import time
from collections.abc import Callable, Coroutine, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from contextvars import copy_context
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from functools import partial
from typing import Any, Generic, TypeVar
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

import aiohttp

from raydense.errors import EndpointError, InputError
from raydense.inference.endpoint_settings import EndpointSettings
from raydense.runtime.progress import duration, say

K = TypeVar("K")
Body = dict[str, Any]
Requests = Iterable[tuple[K, Body]]
Work = Callable[[], object]

# of a request that may succeed when it is sent again; 501 and 505 say what the server cannot do
_PASSING = {408, 409, 425, 429} | (set(range(500, 600)) - {501, 505})
_OF_THE_TEXT = {400, 413, 422}  # of a request that may be refused for its text: its length, or what it says
_FAILS = 500  # of a server that may fail at this text alone; the others of _PASSING say that it is busy, or away
_HELLO = "Hello"  # what any text model answers
_REFUSED_ALWAYS = 10  # texts that may be refused whatever the share
_SPENT = "insufficient_quota"  # OpenAI's 429 that does not pass
_BACKOFF_S = 1.0, 60.0  # after the first attempt, doubled after each further one, and the most
_MOST_BYTES = 16 * 2**20  # of a reply
_SAY_EVERY_S = 30.0
_LONGEST_WAIT_S = 600.0  # whatever an endpoint asks for
_KEPT = "what was answered is kept: run the same command again to continue"


@dataclass(frozen=True)
class Reply:
    """A model's reply: its text, its tokens (0, 0 where the endpoint counts none), whether a limit cut it, and the model that it names.

    Where the endpoint refused the text the reply is empty, and `refused` says why.
    """

    text: str
    prompt_tokens: int = 0
    completion_tokens: int = 0
    cut: bool = False
    model: str = ""
    refused: str = ""

    @property
    def metered(self) -> bool:
        """Whether its tokens are known: the endpoint counted them, or refused the text."""
        return bool(self.prompt_tokens or self.completion_tokens or self.refused)


class Pace:
    """The times of requests: at most `per_minute` (0: as many as there are), evenly spaced, and none during a pause."""

    def __init__(self, per_minute: float) -> None:
        self._gap = 60 / per_minute if per_minute else 0.0
        self._next = self._resumes = 0.0

    def turn(self) -> float:
        """The seconds until the next request may be sent; the turn is taken."""
        now = time.monotonic()
        at = max(now, self._next, self._resumes)
        self._next = at + self._gap
        return at - now

    def pause(self, seconds: float) -> None:
        """Give no turn for so many seconds; turns that were taken before and lie in them are to be taken again."""
        self._resumes = max(self._resumes, time.monotonic() + seconds)

    @property
    def paused(self) -> bool:
        """Whether nothing may be sent now."""
        return time.monotonic() < self._resumes


class _Stopped(Exception):
    """Another request has ended the work."""


@dataclass(frozen=True)
class _Fault:
    """A failure that may pass, in a line; the seconds that the endpoint wants to be left alone; whether the text may be what it fails at."""

    line: str
    wait: float = 0.0
    of_the_text: bool = False


class _Following(Generic[K]):
    """The requests of all files, one after another, whoever takes them."""

    def __init__(self, files: Iterator[Requests[K]]) -> None:
        self._files = files
        self._requests: Iterator[tuple[K, Body]] = iter(())

    async def following(self, aside: asyncio.Lock) -> tuple[K, Body] | None:
        """The next request; None after the last one. The next file is read in a thread, under the lock `aside`."""
        found = next(self._requests, None)
        while found is None:
            async with aside:
                found = next(self._requests, None)  # another one has read it meanwhile
                if found is None:
                    file = await asyncio.to_thread(next, self._files, None)
                    if file is None:
                        return None
                    self._requests = iter(file)
                    found = next(self._requests, None)
        return found


class Endpoint:
    """An endpoint that a stage asks. `prompt_tokens` and `completion_tokens` are those of all replies, and may begin with earlier ones."""

    def __init__(self, settings: EndpointSettings, stage: str) -> None:
        self._settings, self._stage = settings, stage
        self._url = f"{settings.url}/chat/completions"
        self._key, self._proxy = _key(settings.key_variable), proxy_of(self._url)
        self._secrets = [secret for secret in (self._key, self._proxy and urlsplit(self._proxy).password) if secret]
        self._said, self._answered, self._refused = float("-inf"), 0, 0
        self._pace = Pace(settings.requests_per_minute)
        self.prompt_tokens = self.completion_tokens = 0

    @property
    def cost(self) -> float:
        """The dollars of all replies."""
        return self._settings.cost(self.prompt_tokens, self.completion_tokens)

    def count(self, prompt_tokens: int, completion_tokens: int, answered: int = 0, refused: int = 0) -> None:
        """Add tokens to those of all replies, and to how many requests were answered, and refused for their texts."""
        self.prompt_tokens += prompt_tokens
        self.completion_tokens += completion_tokens
        self._answered += answered
        self._refused += refused

    def ask(self, files: Iterable[Requests[K]], got: Callable[[K, Reply], Work | None], broken: Callable[[K, Reply], None]) -> None:
        """Send each body of each file, and call `got` with its key and the reply, in the order of the answers.

        What takes its time happens in a thread next to the open requests, one at a time: the next of `files`, and the work that `got`
        returns. A reply that costs tokens and is no chat completion goes to `broken`, and its request is sent again. A text that is refused
        by an endpoint that has answered, or at which alone it fails in all attempts, is an empty reply, unless these are more than 10 and
        `max_refused` of the requests; if nothing else is answered meanwhile, a greeting is sent to see. At the first failure no more requests are sent, those that are open are waited for, and it is raised: InputError for what the endpoint refuses (its key,
        its model, the request, which is named by its key as text), EndpointError if it does not answer in `attempts`, or if `max_cost` is
        reached, and what the caller's raise.
        """
        _run(self._ask(iter(files), got, broken))

    async def _ask(self, files: Iterator[Requests[K]], got: Callable[[K, Reply], Work | None], broken: Callable[[K, Reply], None]) -> None:
        self._stop = asyncio.Event()
        failures: list[Exception] = []
        aside, requests = asyncio.Lock(), _Following(files)

        async def work() -> None:
            try:
                while not self._stop.is_set() and (following := await requests.following(aside)) is not None:
                    key, body = following
                    reply = await self._reply(session, key, body, partial(broken, key))
                    self.count(reply.prompt_tokens, reply.completion_tokens)
                    if left := got(key, reply):
                        async with aside:
                            await asyncio.to_thread(left)
                    if self._settings.max_cost and not reply.metered:
                        raise InputError("counts no tokens (usage), so that max_cost cannot be kept", self._url, "leave max_cost out")
            except _Stopped:
                pass
            except Exception as error:
                failures.append(error)
                self._stop.set()

        timeout = aiohttp.ClientTimeout(total=self._settings.timeout)
        headers = {"Authorization": f"Bearer {self._key}"} if self._key else {}
        connector = aiohttp.TCPConnector(limit=0)
        async with aiohttp.ClientSession(headers=headers, timeout=timeout, connector=connector) as session:
            await asyncio.gather(*(work() for _ in range(self._settings.requests_at_once)))
        if failures:
            raise failures[0]

    async def _reply(self, session: aiohttp.ClientSession, key: object, body: Body, broken: Callable[[Reply], None]) -> Reply:
        """The reply to one request, sent again after each failure that may pass; an empty one where it fails at this text alone."""
        faults: list[_Fault] = []
        answered = 0
        while len(faults) < self._settings.attempts:
            if faults:
                await self._wait(faults)
            await self._turn()
            found = await self._attempt(session, key, body, broken)
            if isinstance(found, Reply):
                return found
            answered = answered if faults else self._answered  # before the first failure, others may only have been quicker
            faults.append(found)
        failed = f"failed {len(faults)} times (the last time: {faults[-1].line})"
        of_the_text = self._answered > 0 and all(fault.of_the_text for fault in faults)
        if of_the_text and (self._answered > answered or await self._greets(session, key, body, broken)):
            return self._without(key, failed)
        raise EndpointError(f"{self._url}: {f'{key} ' if self._answered else ''}{failed}; {_KEPT}")

    async def _greets(self, session: aiohttp.ClientSession, key: object, body: Body, broken: Callable[[Reply], None]) -> bool:
        """Whether it answers a greeting in place of a text at which it fails: nothing else may be left to ask."""
        await self._turn()
        found = await self._attempt(session, key, {**body, "messages": [{"role": "user", "content": _HELLO}]}, broken)
        if not isinstance(found, Reply) or found.refused:
            return False
        if found.metered:
            self.count(found.prompt_tokens, found.completion_tokens)
            broken(found)
        return True

    async def _attempt(self, session: aiohttp.ClientSession, key: object, body: Body, broken: Callable[[Reply], None]) -> Reply | _Fault:
        """The reply to a request that is sent once, or why there is none; InputError for what does not pass."""
        try:
            # a redirect could carry the key to another host
            async with session.post(self._url, json=body, allow_redirects=False, proxy=self._proxy) as response:
                status, content = response.status, await _content(response)
        except aiohttp.ClientConnectorCertificateError as error:
            fix = "check endpoint.url, and the certificates of this machine (SSL_CERT_FILE)"
            raise InputError(f"has no valid certificate ({self._hidden(str(error))})", self._url, fix) from None
        except TimeoutError:
            return _Fault(f"no answer in {duration(self._settings.timeout)}", of_the_text=True)
        except (aiohttp.ClientError, ConnectionError) as error:
            return _Fault(self._hidden(str(error)) or type(error).__name__)
        if status == 200:
            return self._read(content, broken)
        fault = self._line(status, content)
        if status in _OF_THE_TEXT and _SPENT not in fault:
            return self._without(key, fault)
        if status not in _PASSING or _SPENT in fault:
            raise self._refusal(status, fault)
        return _Fault(fault, retry_after(response.headers.get("Retry-After")), status == _FAILS)

    async def _wait(self, faults: list[_Fault]) -> None:
        """Wait, after these failures of a request, until it may be sent again."""
        fault = faults[-1]
        self._pace.pause(fault.wait)
        self._say(f"{fault.line}; is asked again{f' in {duration(fault.wait)}, as it wants' if fault.wait >= 1 else ''}")
        first, most = _BACKOFF_S
        await self._sleep(random.uniform(0, min(most, first * 2 ** (len(faults) - 1))) + fault.wait)

    async def _turn(self) -> None:
        """Wait until the next request may be sent; EndpointError if the replies have cost what they may."""
        await self._sleep(self._pace.turn())
        while self._pace.paused:
            await self._sleep(self._pace.turn())
        if self._settings.max_cost and self.cost >= self._settings.max_cost:
            what = f"the replies so far cost ${self.cost:,.4f}, and max_cost is ${self._settings.max_cost:g}"
            raise EndpointError(f"{self._url}: {what}; what was answered is kept: run the same command with a greater max_cost to continue")

    async def _sleep(self, seconds: float) -> None:
        """Wait; _Stopped as soon as the work is to end."""
        if seconds > 0:
            with suppress(TimeoutError):
                await asyncio.wait_for(self._stop.wait(), seconds)
        if self._stop.is_set():
            raise _Stopped

    def _say(self, words: str) -> None:
        """Report a failure, but not each of many."""
        now = time.monotonic()
        if now - self._said >= _SAY_EVERY_S:
            self._said = now
            say(f"{self._stage}: {self._url}: {words}")

    def _read(self, content: bytes, broken: Callable[[Reply], None]) -> Reply | _Fault:
        """The reply in a body of status 200, which is counted; one that is no chat completion is a reply without text, whose tokens may cost all the same.

        InputError if it is the first one.
        """
        read = written = 0
        try:
            found = json.loads(content)
            usage = found.get("usage") or {}
            read, written = int(usage.get("prompt_tokens") or 0), int(usage.get("completion_tokens") or 0)
            choice = found["choices"][0]
            text = (choice["message"].get("content") or "").encode("utf-8", "replace").decode()
            reply = Reply(text, read, written, choice.get("finish_reason") == "length", str(found.get("model") or ""))
        except (ValueError, LookupError, TypeError, AttributeError):
            pass
        else:
            self._answered += 1
            return reply
        if (reply := Reply("", read, written)).metered:
            self.count(read, written)
            broken(reply)
        fault = f"does not answer with a chat completion ({self._line(200, content)})"
        if not self._answered and not self.prompt_tokens:  # nor an earlier command's requests
            raise InputError(fault, self._url, "check endpoint.url")
        return _Fault(fault, of_the_text=True)

    def _without(self, key: object, fault: str) -> Reply:
        """The empty reply to a text that is refused; InputError where that is more than the fault of single texts."""
        if not self._answered:
            fix = "shorten what is asked, or see `prompt` and `endpoint.extra_body`; if others were answered, the same command goes on without it"
            raise InputError(f"refuses the request for {key} ({fault})", self._url, fix)
        self._refused += 1
        asked = self._answered + self._refused
        if self._refused > max(_REFUSED_ALWAYS, self._settings.max_refused * asked):
            what = f"has refused {self._refused:,} of {asked:,} requests, the last for {key} ({fault})"
            raise InputError(what, self._url, "raise endpoint.max_refused to leave more of them empty; what was answered is kept")
        return Reply("", refused=fault)

    def _refusal(self, status: int, fault: str) -> InputError:
        fixes = {
            401: f"check the key in {self._settings.key_variable}" if self._key else f"put the key into {self._settings.key_variable}",
            404: "check endpoint.url and endpoint.model",
        }
        return InputError(f"refuses the request ({fault})", self._url, fixes.get(status, "see what it says; what was answered is kept"))

    def _line(self, status: int, content: bytes) -> str:
        """A status and what the body says of it, in one line."""
        text = content.decode("utf-8", "replace")
        try:
            found = json.loads(text)
            error = found.get("error", found)
            code = error.get("code") if isinstance(error, dict) else None
            text = str(error.get("message") or error) if isinstance(error, dict) else str(error)
            text = f"{text} ({code})" if code == _SPENT else text
        except (ValueError, AttributeError):
            pass
        line = next((line for line in text.splitlines() if line.strip()), "")
        return f"{status} {self._hidden(line)}".rstrip()

    def _hidden(self, text: str) -> str:
        """A text in printable characters, cut where it is long, without the key and the proxy's password."""
        for secret in self._secrets:
            text = text.replace(secret, "***")
        text = re.sub(r"[^\x20-\x7e\u00a0-\uffff]+", " ", text).strip()
        return text if len(text) <= 200 else f"{text[:197]}..."


def _key(variable: str) -> str:
    """The API key in an environment variable, or ""; InputError, which does not repeat it, if it cannot be sent."""
    key = os.environ.get(variable, "").strip()
    if not re.fullmatch(r"[\x21-\x7e]*", key):
        raise InputError("holds characters that no API key has", variable, "copy the key again")
    return key


def proxy_of(url: str) -> str | None:
    """The proxy that the environment names for an address (HTTP_PROXY, HTTPS_PROXY, NO_PROXY), None if there is none.

    aiohttp's own reading of it would also take credentials from ~/.netrc, and refuse those that are sent already.
    """
    parts = urlsplit(url)
    return None if proxy_bypass(parts.hostname or "") else getproxies().get(parts.scheme)


def retry_after(value: str | None) -> float:
    """The seconds that a header Retry-After asks for, which is a number or a date (RFC 9110, section 10.2.3), at most ten minutes; 0 if there is none."""
    if not value:
        return 0.0
    with suppress(ValueError):
        seconds = float(value)
        return min(seconds, _LONGEST_WAIT_S) if 0 <= seconds < float("inf") else 0.0
    with suppress(ValueError):
        return min(_LONGEST_WAIT_S, max(0.0, parsedate_to_datetime(value).timestamp() - time.time()))
    return 0.0


async def _content(response: aiohttp.ClientResponse) -> bytes:
    """The body of a response; InputError if it is larger than any reply is."""
    content = bytearray()
    async for chunk in response.content.iter_any():
        content += chunk
        if len(content) > _MOST_BYTES:
            raise InputError("answers with more than 16 MiB", response.url, "check endpoint.url")
    return bytes(content)


def _run(work: Coroutine[Any, Any, None]) -> None:
    """Run to the end; in a thread of its own where this one runs a loop already, as that of a notebook does."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        asyncio.run(work)
    else:
        with ThreadPoolExecutor(1) as pool:
            pool.submit(copy_context().run, asyncio.run, work).result()
