"""Finds methods by name: built-in ones by their file, others by an entry point (`raydense.methods`) or as `package.module:Class`."""

from __future__ import annotations

from importlib import import_module
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

from raydense.errors import InputError, did_you_mean
from raydense.training.method import NAMED, Method
from raydense.training.settings import METHODS, PretrainSettings, built_in

GROUP = "raydense.methods"
_KEYS = {"train": "objective", "pretrain": "method"}


def load_method(verb: str, name: str, where: str = "") -> type[Method]:
    """The method of `train` or `pretrain` with this name; InputError, at `where`, where there is none."""
    where = where or _KEYS[verb]
    found = _by_path(name, where) if ":" in name else NAMED.get(name) or _built_in(name) or _installed(name, where)
    if found is None:
        raise InputError(f"no method {name!r}", where, did_you_mean(name, names(verb)) or "give package.module:Class")
    if _verb_of(found) != verb:
        other = _verb_of(found)
        raise InputError(f"{name} is a method of `{other}`", where, f"raydense {other} --{_KEYS[other]} {name}")
    return found


def names(verb: str) -> list[str]:
    """The names that `load_method` finds: built-in ones, then those of installed packages."""
    return [*built_in(verb), *(entry.name for entry in entry_points(group=GROUP))]


def built_in_methods(verb: str) -> list[type[Method]]:
    """The methods that come with raydense, those first that others derive from."""
    found = [load_method(verb, name) for name in built_in(verb)]
    return sorted(found, key=lambda one: len(one.__mro__))


def _built_in(name: str) -> type[Method] | None:
    stem = name.replace("-", "_")
    for package in METHODS.values():
        if (_folder(package) / f"{stem}.py").is_file():
            import_module(f"{package}.{stem}")
    return NAMED.get(name)


def _folder(package: str) -> Path:
    return Path(__file__).parent.joinpath(*package.split(".")[2:])


def _installed(name: str, where: str) -> type[Method] | None:
    for entry in entry_points(group=GROUP, name=name):
        return _checked(entry.load(), name, where)
    return None


def _by_path(name: str, where: str) -> type[Method]:
    module, _, attribute = name.partition(":")
    try:
        return _checked(getattr(import_module(module), attribute), name, where)
    except ModuleNotFoundError as error:
        raise InputError(f"no module {error.name!r}", where, "install the package, or put its folder on PYTHONPATH") from None
    except AttributeError:
        raise InputError(f"{module} has no {attribute}", where, "give package.module:Class") from None


def _checked(found: Any, name: str, where: str) -> type[Method]:
    if not (isinstance(found, type) and issubclass(found, Method)):
        raise InputError(f"{name} is no raydense.training.method.Method", where, "give a class that derives from one")
    return found


def _verb_of(found: type[Method]) -> str:
    return "pretrain" if issubclass(found.Settings, PretrainSettings) else "train"
