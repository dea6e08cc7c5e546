"""Finds methods by name: built-in ones by their file, others by an entry point (`raydense.methods`) or as `package.module:Class`.

A method is a class that derives from `raydense.training.method.Method`. Settings look up their method here, so this file imports
neither.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from inspect import formatannotation
from pathlib import Path
from types import UnionType
from typing import Any, Literal, TypeVar, Union, get_args, get_origin

from raydense.errors import InputError, did_you_mean, short
from raydense.extensions.loading import Kind

_OUTSIDE = Kind("method", "raydense.methods", "package.module:Class")
_KEYS = {"train": "objective", "pretrain": "method"}
# The packages of the methods that come with raydense, by verb: a file for each method.
_PACKAGES = {"train": "raydense.training.methods", "pretrain": "raydense.training.methods.pretraining"}
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
    found = (None if ":" in name else _NAMED.get(name) or _built_in(name)) or _outside(name, where)
    if found is None:
        raise InputError(f"no method {name!r}", where, f"{did_you_mean(name, _names(verb))}; or give {_OUTSIDE.written}")
    other = found.Settings.verb
    if other != verb:
        raise InputError(f"{name} is a method of `{other}`", where, f"raydense {other} --{_KEYS[other]} {name}")
    return found


def _names(verb: str) -> list[str]:
    """The names that `load_method` finds: built-in ones, then those of installed packages."""
    return [*built_in(verb), *_OUTSIDE.installed]


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


def _outside(name: str, where: str) -> type[Any] | None:
    """The method that a name as `package.module:Class`, or an entry point, gives."""
    path = _OUTSIDE.path_of(name)
    return _checked(_OUTSIDE.load(path, where), path, where) if path else None


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
    _refuse_other_types(settings, f"{name}.Settings")
    return found


def _refuse_other_types(settings: type[Any], where: str) -> None:
    """InputError where a setting takes what it does not take in a base, whose code computes with it; it may take less."""
    for name, field in settings.model_fields.items():
        for base in settings.__mro__[1:]:
            of_base = getattr(base, "model_fields", {}).get(name)
            if of_base and not all(_among(kind, _kinds(of_base.annotation)) for kind in _kinds(field.annotation)):
                mine, theirs = map(formatannotation, (field.annotation, of_base.annotation))
                what = f"{name} is {mine}, and {theirs} in {base.__qualname__}"
                raise InputError(what, where, "give it that type, or the setting another name")


def _among(kind: Any, kinds: list[Any]) -> bool:
    return kind in kinds or any(isinstance(kind, type) and isinstance(one, type) and issubclass(kind, one) for one in kinds)


def _kinds(annotation: Any) -> list[Any]:
    """The types, or values, one of which a setting has."""
    if get_origin(annotation) in (Union, UnionType):
        return [kind for one in get_args(annotation) for kind in _kinds(one)]
    return list(get_args(annotation)) if get_origin(annotation) is Literal else [annotation]
