"""Formats of other tools, one file each: a file here that defines one of these functions is a format, named as the file. No list exists.

`read(source, intake)` is what `import` calls, `passages(source)` what `import_corpus` calls, `write(outlet)` what `export` calls.
`plan` asks a folder for the parts that it becomes: `files(source)` gives the files of each, a line a row, by which it counts and cuts
them, too; `parts(source)` the names alone.
A format that defines `chosen` chooses among its negatives by the settings `hard_negatives` of an import.
`source` is a file or folder of this machine; in a format with `BY_NAME = True` it is a library's name of a data set.
A format of a user is a class with some of these functions, named `package.module:Class` or by an entry point (`raydense.formats`).
"""

from __future__ import annotations

import re
from contextlib import AbstractContextManager, nullcontext
from functools import cache
from importlib import import_module
from inspect import signature
from pathlib import Path
from typing import Any

from raydense.errors import InputError, did_you_mean
from raydense.extensions.code_digest import code_of
from raydense.extensions.loading import Kind, faults_named

_OUTSIDE = Kind("format", "raydense.formats", "package.module:Class")
_PAGE = "docs/extending.md, A format,"


def formats_that(function: str) -> tuple[str, ...]:
    """The names of the formats of raydense that define `read`, `passages`, `write`, `files`, `parts` or `chosen`."""
    return tuple(name for name, text in _texts().items() if re.search(rf"^def {function}\(", text, re.MULTILINE))


def defines(format: str, function: str) -> bool:
    """Whether a format, of raydense or of a user, defines a function."""
    return format in formats_that(function) if format in _texts() else callable(getattr(_class_of(format), function, None))


def require(format: str, function: str) -> None:
    """InputError unless there is a format of this name that defines `function`."""
    if format in formats_that(function):
        return
    if _OUTSIDE.path_of(format) is None:
        near = did_you_mean(format, [*formats_that(function), *_OUTSIDE.installed])
        raise InputError("no such format" if near.startswith("known") else f"no such format: {near}")
    if not defines(format, function):
        raise InputError(f"{format} has no {function}", "", f"write it: {_PAGE} says what it is given")


def by_name(format: str) -> bool:
    """Whether a format reads data sets that a library knows by name, not files."""
    text = _texts().get(format)
    return bool(getattr(_class_of(format), "BY_NAME", False) if text is None else re.search("^BY_NAME = True$", text, re.MULTILINE))


def load_format(name: str) -> Any:
    """What has the functions of a format: the module, or an object of a user's class."""
    if name in _texts():
        return import_module(f"{__name__}.{name}")
    with faults_of(name):
        return _class_of(name)()


def format_code(name: str) -> str:
    """A digest of the code of a user's format; "" for one of raydense."""
    return "" if name in _texts() else code_of(_class_of(name))


def call(name: str, function: str, *given: Any) -> Any:
    """What a function of a format gives; InputError, with file and line, on a fault of a user's."""
    with faults_of(name):
        return getattr(load_format(name), function)(*given)


def faults_of(name: str) -> AbstractContextManager[None]:
    """A context in which a fault of a user's format is an InputError with its file and line."""
    return nullcontext() if name in _texts() else faults_named(_class_of(name), f"the format {name}")


def _class_of(name: str) -> type[Any]:
    """The class of a user's format; InputError where there is none, or it is not made without arguments."""
    path = _OUTSIDE.path_of(name)
    found = _OUTSIDE.load(path) if path else None
    if not isinstance(found, type):
        raise InputError(f"{name} is no class of a format", "", f"write one as {_PAGE} shows")
    try:
        signature(found).bind()
    except TypeError as error:
        raise InputError(f"{name} cannot be made without arguments ({error})", "", f"write it as {_PAGE} shows") from None
    return found


@cache
def _texts() -> dict[str, str]:
    """The text of each file: importing the files is slow, and settings need only their names."""
    files = (file for folder in __path__ for file in Path(folder).glob("[a-z]*.py"))
    return {file.stem: file.read_text("utf-8") for file in sorted(files)}
