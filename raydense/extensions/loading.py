"""Finds the code of users by name: `package.module:Class` (or a function), or the name of an entry point of an installed package."""

from __future__ import annotations

import os
import sysconfig
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from importlib.metadata import entry_points
from operator import attrgetter
from pathlib import Path
from traceback import walk_tb
from types import ModuleType
from typing import Any

from raydense.errors import InputError, faults_of, fixable, short

_INSTALL = "install its package, or put its folder on PYTHONPATH; on a cluster see docs/methods.md, A new method"


@dataclass(frozen=True)
class Kind:
    """A kind of what users add: its word in messages, the group of its entry points, and how it is named by its module."""

    word: str
    group: str
    written: str

    @property
    def installed(self) -> list[str]:
        """The names that installed packages give."""
        return [entry.name for entry in entry_points(group=self.group)]

    def path_of(self, name: str) -> str | None:
        """`package.module:Class` of a name: itself if it is one, or that of the entry point; None if there is none."""
        if ":" in name:
            return name
        return next((f"{entry.module}:{entry.attr}" for entry in entry_points(group=self.group, name=name)), None)

    def load(self, path: str, where: str = "") -> Any:
        """What `package.module:Class` names; InputError, at `where`, if there is none, and at its line where the module has a fault."""
        module, _, attribute = path.partition(":")
        if not module or module.startswith(".") or not attribute:
            raise InputError(f"no {self.word} {path!r}", where, f"give {self.written}")
        there = _imported(module, where)
        try:
            return attrgetter(attribute)(there)
        except AttributeError:
            raise InputError(f"{module} has no {attribute}", where, f"give {self.written}") from None


@contextmanager
def as_fault_of_a_setting() -> Iterator[None]:
    """In a validator: an InputError without a place is a ValueError, to which the name of the setting is added; one at a line of code stays."""
    try:
        yield
    except InputError as error:
        what, where, fix = faults_of(error)[0].args
        if where:
            raise
        raise ValueError(f"{what}; {fix}".removesuffix("; ")) from None


@contextmanager
def faults_named(code: Any, whose: str) -> Iterator[None]:
    """A fault of the code of a user that the block calls is an InputError with its file and line; `whose` it is, as "the format faq:Faq"."""
    try:
        yield
    except Exception as error:
        place = _line_of(error, code.__module__)
        if fixable(error) or place is None:
            raise
        raise InputError(short(error), place, f"correct {whose}, or what it reads") from error


def _imported(module: str, where: str) -> ModuleType:
    """The module of a user's code; InputError with file and line where it has a fault."""
    try:
        return import_module(module)
    except InputError:
        raise
    except ModuleNotFoundError as error:
        itself = f"{module}.".startswith(f"{error.name}.")
        raise InputError(f"no module {error.name!r}", where if itself else _line_of(error, module) or module, _INSTALL) from None
    except Exception as error:
        fix = f"correct it: python -c 'import {module}' shows the whole traceback"
        raise InputError(short(error), _line_of(error, module) or module, fix) from error


def _line_of(error: Exception, module: str) -> str | None:
    """The file and line of a fault in a user's code, not those of the libraries that it calls; None if it is in none."""
    if isinstance(error, SyntaxError) and os.path.isfile(error.filename or ""):
        return f"{error.filename}:{error.lineno}"
    libraries = ("<", str(Path(__file__).parents[1]), *map(sysconfig.get_path, ("stdlib", "purelib", "platlib")))
    found = None
    for frame, line in walk_tb(error.__traceback__):
        own = str(frame.f_globals.get("__name__")).partition(".")[0] == module.partition(".")[0]
        file = frame.f_code.co_filename
        if own or (os.path.isfile(file) and not file.startswith(libraries)):  # none is that of compiled code, as pyarrow/table.pxi
            found = f"{file}:{line}"
    return found
