"""A request that gets no answer: its status and one line of JSON, which names no place of the server."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field

from raydense.errors import InputError

LARGEST = 2**20  # bytes of a body
LARGEST_REPLY = 64 * 2**20
RETRY_S = 1
_PLACE = re.compile(r"(?<![\w/])(?:\w+://|\.{0,2}/).*?(?=: |; |\)|$)")  # to the end of its part of the line: a name may hold blanks


@dataclass(frozen=True)
class Reply:
    """What is sent to a caller."""

    status: int
    body: bytes
    headers: dict[str, str] = field(default_factory=dict)
    kind: str = "application/json"

    @classmethod
    def of(cls, status: int, value: object) -> Reply:
        """JSON."""
        return cls(status, json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "replace"))


class Unavailable(Exception):
    """A valid question cannot be answered now; the text is one line with the reason."""


class Refused(Exception):
    """A request that is refused with this status; the text is one line with the reason."""

    def __init__(self, status: int, line: str) -> None:
        super().__init__(line)
        self.status = status


class TooLarge(Refused):
    """A body of more than `LARGEST` bytes."""

    def __init__(self) -> None:
        super().__init__(413, f"the body is larger than {LARGEST:,} bytes; send fewer queries at once")


def not_too_large(reply: Reply) -> Reply:
    """The reply; `Refused` where it has more than `LARGEST_REPLY` bytes."""
    if len(reply.body) > LARGEST_REPLY:
        raise Refused(422, f"the reply has more than {LARGEST_REPLY:,} bytes; ask for fewer passages, or without texts")
    return reply


def refusal(error: Exception, seconds: float = 0.0) -> Reply | None:
    """The reply to a request that ended with `error`, after at most `seconds`; None for an error that nobody foresaw."""
    headers: dict[str, str] = {}
    match error:
        case InputError():
            status, line = 422, str(error).partition("\n")[0][:1_000]
        case Refused():
            status, line = error.status, str(error)
        case Unavailable():
            status, line = 503, without_places(str(error))
        case TimeoutError():
            status, line = 504, f"no answer within {seconds:g} s; ask for less at once, or again later"
        case _:
            return None
    if status == 503:
        headers["Retry-After"] = str(RETRY_S)
    if status == 401:
        headers["WWW-Authenticate"] = "Bearer"
    if status == 408:
        headers["Connection"] = "close"
    return Reply(status, Reply.of(status, {"error": line}).body, headers)


def without_places(line: str) -> str:
    """A line for callers: where it names a folder, file or URL of the server, it says so without the name."""
    return _PLACE.sub("(a path of the server)", line)
