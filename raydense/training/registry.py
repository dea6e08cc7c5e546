"""Finds methods by name: built-in ones by their file, others by an entry point (`raydense.methods`) or as `package.module:Class`.

A method is a class that derives from `raydense.training.method.Method`. Settings look up their method here, so this file imports
neither.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any, TypeVar

from raydense.errors import InputError, did_you_mean

GROUP = "raydense.methods"
_KEYS = {"train": "objective", "pretrain": "method"}
# The packages of the methods that come with raydense, by verb: a file for each method.
_PACKAGES = {"train": "raydense.training.methods", "pretrain": "raydense.training.methods.pretraining"}
_INSTALL = "install its package (for a submitted job on every machine), or put its folder on PYTHONPATH"
_NAMED: dict[str, type[Any]] = {}

SomeMethod = TypeVar("SomeMethod", bound=type[Any])


def method(name: str) -> Callable[[SomeMethod], SomeMethod]:
    """Register the name of a method, for `--objective NAME` (pre-training: `--method NAME`) and `TrainSettings(objective=NAME)`."""

    def named(cls: SomeMethod) -> SomeMethod:
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
        return _checked(entry.load(), name, where)
    return None


def _by_path(name: str, where: str) -> type[Any]:
    module, _, attribute = name.partition(":")
    try:
        there = import_module(module)
    except ModuleNotFoundError as error:
        raise InputError(f"no module {error.name!r}", where, _INSTALL) from None
    found = getattr(there, attribute, None)
    if found is None:
        raise InputError(f"{module} has no {attribute}", where, "give package.module:Class")
    return _checked(found, name, where)


def _checked(found: Any, name: str, where: str) -> type[Any]:
    if isinstance(found, type) and getattr(getattr(found, "Settings", None), "trains", None) == found:
        return found
    raise InputError(f"{name} is no raydense.training.method.Method", where, "give a class that derives from one")
