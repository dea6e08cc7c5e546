"""Metrics of a user: a function that gives the value of a query, named as `package.module:function@10` or by an entry point (`raydense.metrics`)."""

from __future__ import annotations

from collections.abc import Callable
from inspect import signature
from math import isfinite
from typing import Any

from ir_measures import measures

from raydense.errors import InputError
from raydense.extensions.code_digest import code_of
from raydense.extensions.loading import Kind, faults_named
from raydense.storage import digest_of

OUTSIDE = Kind("metric", "raydense.metrics", "package.module:function")
_PAGE = "docs/extending.md, A metric,"


class OwnMeasure(measures.Measure):
    """A user's function as a measure of ir-measures, whose name is as it was given; its `value` is not asked for by that library."""

    SUPPORTED_PARAMS = {"cutoff": measures.ParamInfo(dtype=int, required=False)}  # noqa: RUF012

    def __init__(self, name: str, function: Callable[[str, dict[str, float], dict[str, float]], float], **params: int) -> None:
        super().__init__(**params)
        self.NAME = self.__name__ = name
        self.function = function

    def value(self, query_id: str, hits: list[tuple[str, float]], judged: dict[str, float]) -> float:
        """The value of a query with these hits, best first, of which it gets the first `cutoff`; InputError where it is no number."""
        with faults_named(self.function, f"the metric {self.NAME}"):
            found: Any = self.function(query_id, dict(hits[: self.params.get("cutoff")]), judged)
        try:
            number = float(found)
        except (TypeError, ValueError):
            number = float("nan")
        if not isfinite(number):
            raise InputError(f"gives {found!r} for query {query_id!r}", self.NAME, "return a finite number")
        return number


def own_metric(name: str, key: str) -> OwnMeasure | None:
    """The metric of a user that a name as `mine:answered@10` names; None if it names none. InputError at the setting `key`."""
    word, at, cutoff = name.partition("@")
    path = None if "(" in word else OUTSIDE.path_of(word)
    if path is None:
        return None
    if at and not cutoff.isdecimal():
        raise InputError(f"cannot read metric {name!r}", key, f"write the number of passages that it looks at as {word}@10")
    function = OUTSIDE.load(path, key)
    if isinstance(function, type) or not callable(function):
        raise InputError(f"{word} is no function", key, f"write one as {_PAGE} shows")
    try:
        signature(function).bind("", {}, {})
    except TypeError as error:
        raise InputError(f"{word} does not take what a metric is given ({error})", key, f"write it as {_PAGE} shows") from None
    return OwnMeasure(word, function, **({"cutoff": int(cutoff)} if at else {}))


def metrics_code(names: list[str]) -> str:
    """A digest of the code of those metrics that are a user's; "" where none is."""
    found = [code_of(own.function) for name in names if (own := own_metric(name, ""))]
    return digest_of(found) if found else ""
