"""Whether the files that workers write arrive where the driver reads them; those of a node that does not share the output's folder do not."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

from raydense.errors import InputError
from raydense.storage import Draft

T = TypeVar("T")
_LOOK_S = 30.0
_ARRIVES_S = 90.0  # more than a network file system takes to show what another machine wrote


class Arrivals:
    """Compares what the workers report with the files that are there, twice a minute and at the end; not in a bucket, which all nodes share.

    `count` says how many of those are there that the workers write, if these are not committed.
    """

    def __init__(self, draft: Draft, count: Callable[[], int] | None = None):
        self._draft, self._shared = draft, draft.place.everywhere
        self._count = count or (lambda: len(draft.committed()))
        self._before = 0 if self._shared or count else self._count()
        self._next, self._owed, self._since = 0.0, 0, 0.0

    def check(self, reported: int) -> None:
        """InputError if files that were `reported` a while ago are not there."""
        now = time.monotonic()
        if self._shared or now < self._next:
            return
        self._next, there = now + _LOOK_S, self._there()
        if there >= self._owed:
            self._owed, self._since = (reported, now) if there < reported else (0, now)
        elif now - self._since > _ARRIVES_S:
            self._refuse(there, self._owed)

    def end(self, reported: int) -> None:
        """Wait a while until all files that were `reported` are there; InputError if they are not."""
        until = time.monotonic() + _ARRIVES_S
        while not self._shared and (there := self._there()) < reported:
            if time.monotonic() > until:
                self._refuse(there, reported)
            time.sleep(0.5)

    def _there(self) -> int:
        return self._count() - self._before

    def _refuse(self, there: int, reported: int) -> None:
        what = f"of {reported:,} files that the workers wrote, {there:,} are there: a node of the cluster writes to a folder of its own of this name"
        raise InputError(what, self._draft.place.located, "give a folder that all nodes share, or a bucket")


def arriving(draft: Draft, names: list[str], reported: Iterable[T]) -> Iterator[T]:
    """What workers report, one item for each of the files `names` that they keep; InputError if some are not there a while later."""
    arrivals = Arrivals(draft, lambda: sum(map(draft.has_kept, names)))
    for number, item in enumerate(reported, 1):
        yield item
        arrivals.check(number)
    arrivals.end(len(names))
