"""The parts of the text that names a place: its scheme, and `NAME=path`."""

from __future__ import annotations

import re
from pathlib import PurePosixPath

_SCHEME = re.compile(r"^([A-Za-z][A-Za-z0-9+.-]*):(?:/{1,3}(?=[^/])|//)")


def scheme_of(text: str) -> tuple[str, str]:
    """The scheme of a text such as `s3://bucket/path` and what follows its slashes; "" and `text` for a path.

    A text that lost a slash in a pathlib.Path, `s3:/bucket/path`, is recognised.
    """
    found = _SCHEME.match(text)
    return (found[1].lower(), text[found.end() :]) if found else ("", text)


def named(item: str) -> tuple[str, str]:
    """The name and the path of `NAME=path`; "" and `item` for a path alone, such as `runs/lr=1e-5`: no name has a slash."""
    name, equals, path = item.partition("=")
    return (name, path) if equals and name and "/" not in name else ("", item)


def safe_name(name: object) -> bool:
    """Whether a file's name from a manifest or a bucket stays inside its folder."""
    path = PurePosixPath(str(name))
    return bool(path.parts) and not path.is_absolute() and ".." not in path.parts and "\\" not in str(name) and "\0" not in str(name)
