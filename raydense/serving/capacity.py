"""How much a proxy holds at once: requests, or bytes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from raydense.serving.refusal import Unavailable


class Capacity:
    """At most `most` at once; `what` they are, for the line of `Unavailable` that refuses more."""

    def __init__(self, most: int, what: str) -> None:
        self._most, self._what = most, what
        self.used = 0

    @contextmanager
    def held(self, size: int = 0) -> Iterator[Callable[[int], None]]:
        """In the block `size` of it is taken, and what the yielded function is given; at the end all of that is given back."""
        mine = 0

        def take(more: int) -> None:
            nonlocal mine
            if self.used + more > self._most:
                raise Unavailable(f"{self._most:,} {self._what} already; ask again later")
            self.used, mine = self.used + more, mine + more

        try:
            take(size)
            yield take
        finally:
            self.used -= mine
