"""Finds methods by name: built-in ones by their file, others by an entry point (`raydense.methods`) or as `package.module:Class`.

A method is a class that derives from `raydense.training.method.Method`. Settings look up their method here, so this file imports
neither.
"""

from __future__ import annotations

import os
import sysconfig
from collections.abc import Callable
from importlib import import_module
from importlib.metadata import entry_points
from operator import attrgetter
from pathlib import Path
from traceback import walk_tb
from types import ModuleType
from typing import Any, TypeVar

from raydense.errors import InputError, did_you_mean, short

GROUP = "raydense.methods"
_KEYS = {"train": "objective", "pretrain": "method"}
# The packages of the methods that come with raydense, by verb: a file for each method.
_PACKAGES = {"train": "raydense.training.methods", "pretrain": "raydense.training.methods.pretraining"}
_INSTALL = "install its package, or put its folder on PYTHONPATH; for a submitted job see docs/methods.md, A new method"
_NAMED: dict[str, type[Any]] = {}

SomeMethod = TypeVar("SomeMethod", bound=type[Any])


def method(name: str) -> Callable[[SomeMethod], SomeMethod]:
    """Register the name of a method, for `--objective NAME` (pre-training: `--method NAME`) and `TrainSettings(objective=NAME)`.

    InputError if a method that comes with raydense has that name.
    """

    def named(cls: SomeMethod) -> SomeMethod:
        if not cls.__module__.startswith(tuple(_PACKAGES.values())) and any(name in built_in(verb) for verb in _PACKAGES):
            raise InputError(f"{name} is a method of raydense", f"{cls.__module__}.{cls.__qualname__}", "give it another name")
        cls.name = name
        _NAMED[name] = cls
        return cls

    return named


def built_in(verb: str) -> list[str]:
    """The names of the methods of `train` or `pretrain` that come with raydense, from their files."""
    return sorted(file.stem.replace("_", "-") for file in _folder(_PACKAGES[verb]).glob("[a-z]*.py"))


def load_method(verb: str, name: str, where: str = "") -> type[Any]:
    """The method of `train` or `pretrain` with this name; InputError, at `where`, if there is none."""
    where = where or _KEYS[verb]
    found = _by_path(name, where) if ":" in name else _NAMED.get(name) or _built_in(name) or _installed(name, where)
    if found is None:
        raise InputError(f"no method {name!r}", where, f"{did_you_mean(name, _names(verb))}; or give package.module:Class")
    other = found.Settings.verb
    if other != verb:
        raise InputError(f"{name} is a method of `{other}`", where, f"raydense {other} --{_KEYS[other]} {name}")
    return found


def _names(verb: str) -> list[str]:
    """The names that `load_method` finds: built-in ones, then those of installed packages."""
    return [*built_in(verb), *(entry.name for entry in entry_points(group=GROUP))]


def built_in_methods(verb: str) -> list[type[Any]]:
    """The methods that come with raydense, base classes first."""
    found = [load_method(verb, name) for name in built_in(verb)]
    return sorted(found, key=lambda one: len(one.__mro__))


def _built_in(name: str) -> type[Any] | None:
    stem = name.replace("-", "_")
    for package in _PACKAGES.values():
        if (_folder(package) / f"{stem}.py").is_file():
            import_module(f"{package}.{stem}")
    return _NAMED.get(name)


def _folder(package: str) -> Path:
    return Path(__file__).parent.joinpath(*package.split(".")[2:])


def _installed(name: str, where: str) -> type[Any] | None:
    for entry in entry_points(group=GROUP, name=name):
        return _by_path(f"{entry.module}:{entry.attr}", where)
    return None


def _by_path(name: str, where: str) -> type[Any]:
    module, _, attribute = name.partition(":")
    if not module or module.startswith(".") or not attribute:
        raise InputError(f"no method {name!r}", where, "give package.module:Class")
    there = _imported(module, where)
    try:
        found = attrgetter(attribute)(there)
    except AttributeError:
        raise InputError(f"{module} has no {attribute}", where, "give package.module:Class") from None
    return _checked(found, name, where)


def _imported(module: str, where: str) -> ModuleType:
    """The module of a user's method; InputError with file and line where it has a fault."""
    try:
        return import_module(module)
    except InputError:
        raise
    except ModuleNotFoundError as error:
        itself = f"{module}.".startswith(f"{error.name}.")
        raise InputError(f"no module {error.name!r}", where if itself else _line_of(error, module), _INSTALL) from None
    except Exception as error:
        fix = f"correct it: python -c 'import {module}' shows the whole traceback"
        raise InputError(short(error), _line_of(error, module), fix) from error


def _line_of(error: Exception, module: str) -> str:
    """The file and line of a fault in a user's code: not those of the libraries that it calls."""
    if isinstance(error, SyntaxError) and os.path.isfile(error.filename or ""):
        return f"{error.filename}:{error.lineno}"
    libraries = ("<", str(Path(__file__).parents[1]), *map(sysconfig.get_path, ("stdlib", "purelib", "platlib")))
    found = module
    for frame, line in walk_tb(error.__traceback__):
        own = str(frame.f_globals.get("__name__")).partition(".")[0] == module.partition(".")[0]
        if own or not frame.f_code.co_filename.startswith(libraries):
            found = f"{frame.f_code.co_filename}:{line}"
    return found


def _checked(found: Any, name: str, where: str) -> type[Any]:
    settings: Any = getattr(found, "Settings", None)
    if not isinstance(found, type) or getattr(settings, "trains", None) != found:
        raise InputError(f"{name} is no raydense.training.method.Method", where, "give a class that derives from one")
    if getattr(settings, "verb", None) not in _KEYS:
        raise InputError("its Settings are not those of a method", name, "derive them from the Settings of the class that it derives from")
    if missing := sorted(getattr(found, "__abstractmethods__", ())):
        raise InputError(f"it has no {missing[0]}", name, "write it: docs/methods.md, A new method, has an example")
    try:
        settings.model_rebuild()
    except Exception as error:  # a type that its module does not define
        raise InputError(short(error), f"{name}.Settings", "define it in the module, or import it there") from error
    return found
