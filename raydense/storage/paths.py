"""Checks the text that names a place, and reads `NAME=path`."""

from __future__ import annotations

import re
from pathlib import PurePosixPath
from urllib.parse import unquote

from raydense.errors import InputError

BUCKETS = ("s3", "gs")
HUB = "hf"
WHERE_CREDENTIALS = " in the environment (AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_PROFILE; GOOGLE_APPLICATION_CREDENTIALS)"
_SCHEME = re.compile(r"^([A-Za-z][A-Za-z0-9+.-]*):/{1,3}(?=[^/])")


def checked(path: str) -> str:
    """`path` normalised: `file:///folder` becomes that folder, `s3://bucket/path` loses surplus slashes, others stay.

    A bucket's path that lost a slash in a pathlib.Path is recognised. InputError if it contains credentials or options, names
    no bucket, or has an unknown scheme.
    """
    found = _SCHEME.match(path)
    if found is None:
        return path
    scheme = found[1].lower()
    if scheme == "file":
        return _of_file(path)
    if scheme == HUB:
        return f"{HUB}://{path[found.end() :]}"
    if scheme not in BUCKETS:
        if not path.startswith(f"{found[1]}://"):
            return path
        fix = "give a folder, s3://bucket/path or gs://bucket/path"
        raise InputError(f"{scheme}:// is not a place that can be read", f"{scheme}://***", fix)
    rest = path[found.end() :]
    bucket, _, inner = rest.partition("/")
    if "@" in bucket or ":" in bucket or "?" in rest or "#" in rest:
        fix = f"give credentials, region and endpoint{WHERE_CREDENTIALS}"
        raise InputError("carries more than a bucket and a path", f"{scheme}://***", fix)
    parts = [part for part in inner.split("/") if part not in ("", ".")]
    if ".." in parts:
        raise InputError("has '..' in it", path, "give the whole path")
    return "/".join([f"{scheme}://{bucket}", *parts])


def _of_file(uri: str) -> str:
    """The path of a `file:` URI. InputError if it names a machine, or has options."""
    rest = uri.partition(":")[2]
    host, _, path = rest[2:].partition("/") if rest.startswith("//") else ("", "/", rest[1:])
    if host not in ("", "localhost") or "?" in path or "#" in path:
        what = "names a machine before the path" if host not in ("", "localhost") else "has '?' or '#' in it"
        raise InputError(what, "file://***", "give the whole path, as file:///data/corpus, or without file://")
    return "/" + unquote(path)


def named(item: str) -> tuple[str, str]:
    """The name and the path of `NAME=path`; "" and `item` for a path alone, such as `runs/lr=1e-5`: no name has a slash."""
    name, equals, path = item.partition("=")
    return (name, path) if equals and name and "/" not in name else ("", item)


def safe_name(name: object) -> bool:
    """Whether a file's name from a manifest or a bucket stays inside its folder."""
    path = PurePosixPath(str(name))
    return bool(path.parts) and not path.is_absolute() and ".." not in path.parts and "\\" not in str(name) and "\0" not in str(name)
