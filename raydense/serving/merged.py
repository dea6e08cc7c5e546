"""Several requests as the body of one, and their replies as that of its response: what the front and the app send each other.

A line of JSON with the lengths of the bodies, then the bodies.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Any

from raydense.serving.question import Question
from raydense.serving.refusal import Reply

ROUTE = "/merged"
MOST = 64  # requests


@dataclass(frozen=True)
class Asked:
    """A request to one of the routes that are merged: the route, the header `Authorization`, and the body."""

    route: str
    authorization: str
    body: bytes

    def hits(self, depth: int) -> int:
        """Queries times passages, of each at least `depth`; 0 where that cannot be read: the app refuses such a request."""
        try:
            given = json.loads(self.body)
            queries, k = given.get("queries") or [""], given.get("k", given.get("topk"))
        except (ValueError, RecursionError, AttributeError):
            return 0
        k = Question.model_fields["k"].default if k is None else k
        return len(queries) * max(k, depth) if isinstance(queries, list) and isinstance(k, int) else 0


def pack_requests(requests: list[Asked]) -> bytes:
    """The body of the merged request."""
    return _pack([[one.route, one.authorization] for one in requests], [one.body for one in requests])


def unpack_requests(body: bytes) -> list[Asked]:
    """The requests of a merged one; ValueError where the body is none."""
    return [Asked(str(route), str(authorization), part) for (route, authorization), part in _unpack(body)]


def pack_replies(replies: list[Reply]) -> bytes:
    """The body of the response."""
    return _pack([[one.status, one.headers] for one in replies], [one.body for one in replies])


def unpack_replies(body: bytes) -> list[Reply]:
    """The replies in the body of the response."""
    return [Reply(status, part, headers) for (status, headers), part in _unpack(body)]


def _pack(heads: list[list[Any]], bodies: list[bytes]) -> bytes:
    line = json.dumps([[*head, len(body)] for head, body in zip(heads, bodies, strict=True)])
    return b"".join([line.encode(), b"\n", *bodies])


def _unpack(body: bytes) -> list[tuple[list[Any], bytes]]:
    line, _, rest = body.partition(b"\n")
    heads = json.loads(line)
    if not isinstance(heads, list) or not all(isinstance(head, list) and len(head) == 3 and isinstance(head[2], int) for head in heads):
        raise ValueError("not a merged request")
    cuts = pairwise(accumulate((head[2] for head in heads), initial=0))
    return [(head[:2], rest[start:stop]) for head, (start, stop) in zip(heads, cuts, strict=True)]
