"""The code of users, as of a training method: what comes out depends on it, as on an input."""

from __future__ import annotations

import ast
import inspect
import sys
import tokenize
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from raydense.storage import digest_of

_OTHERS = {"raydense", "__main__", "torch", "pydantic", *sys.stdlib_module_names}


def code_of(method: Any) -> str:
    """A digest of the source of the module of a class or function, of those of its bases, and of what these import from the folder that has it.

    Without raydense's own; "" where nothing is left. Nor is the code of a script or notebook that is run: most of it is other than the method.
    """
    sources = {}
    for name in dict.fromkeys(cls.__module__ for cls in getattr(method, "__mro__", [method])):
        if _is_own(name):
            with suppress(OSError, TypeError, KeyError):  # a module without source
                sources[name] = inspect.getsource(sys.modules[name])
    imported = _imported(method.__module__, sources) if method.__module__ in sources else {}
    return digest_of([*sources.values(), *(imported[name] for name in sorted(imported))]) if sources else ""


def _is_own(name: str) -> bool:
    return name.partition(".")[0] not in _OTHERS


def _imported(method: str, sources: dict[str, str]) -> dict[str, str]:
    """The sources of the modules that those of `sources` import, directly or not, and that lie where the module of the method does.

    That is the folder which Python searched for it, or among installed packages the method's own. Read from the files alone: what
    a function of the method imports is there before it is called.
    """
    root, found = _searched(method), dict(sources)
    only = method.partition(".")[0] if next(root.glob("*.dist-info"), None) else ""
    waiting = [name for name in sources if _file(root, name)]
    while waiting:
        name = waiting.pop()
        for other in _names(root, name, found[name]):
            file = _file(root, other) if _is_own(other) and only in ("", other.partition(".")[0]) else None
            if file and other not in found:
                with suppress(OSError, UnicodeDecodeError, SyntaxError), tokenize.open(file) as opened:
                    found[other] = opened.read()
                    waiting.append(other)
    return {name: source for name, source in found.items() if name not in sources}


def _searched(name: str) -> Path:
    """The folder on Python's path that has this module, or the package it is in."""
    file = Path(inspect.getfile(sys.modules[name])).absolute()
    return file.parents[name.count(".") + (file.name == "__init__.py")]


def _file(root: Path, name: str) -> Path | None:
    """The file of a module; none of a package without code."""
    place = root.joinpath(*name.split("."))
    return next((file for file in (place / "__init__.py", place.with_name(f"{place.name}.py")) if file.is_file()), None)


def _names(root: Path, name: str, source: str) -> Iterator[str]:
    """The modules that the source of a module names in its imports, also in those within functions."""
    try:
        parsed = ast.parse(source)
    except (SyntaxError, ValueError):
        return
    file = _file(root, name)
    package = name.split(".") if file and file.name == "__init__.py" else name.split(".")[:-1]
    for node in ast.walk(parsed):
        if isinstance(node, ast.Import):
            yield from (one.name for one in node.names)
        elif isinstance(node, ast.ImportFrom):
            near = package[: len(package) + 1 - node.level] if node.level else []
            module = ".".join([*near, *filter(None, [node.module])])
            for one in node.names:
                inside = f"{module}.{one.name}"
                yield inside if _file(root, inside) else module
