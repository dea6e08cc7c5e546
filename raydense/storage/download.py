"""Downloads of a bucket's files, whole, and checked against the size and the checksum in their manifest."""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, BinaryIO

from raydense.errors import InputError
from raydense.runtime.progress import say
from raydense.runtime.progress import size as in_words
from raydense.storage import cache
from raydense.storage.bucket import patiently

if TYPE_CHECKING:
    from raydense.storage.bucket_place import BucketPlace

CHUNK = 8 << 20
FIX = "run `raydense verify` on its folder"
_LOGGED_FROM = 256 << 20


def download(place: BucketPlace, aside: Path, size: int, sha256: str | None) -> None:
    """Write the file at `place` to `aside`; InputError where it is not there, or not of `size` and, if given, `sha256`."""
    if size >= _LOGGED_FROM:
        say(f"storage: fetching {place} ({in_words(size)}) into {cache.cache()}")
    with open(aside, "wb") as sink:
        try:
            digest = stream(place, sink)
        except FileNotFoundError:
            raise InputError("missing", place, FIX) from None
        sink.flush()
        os.fsync(sink.fileno())
    if aside.stat().st_size != size or sha256 not in (None, digest):
        raise InputError("is not the file that its manifest records", place, FIX)


def stream(place: BucketPlace, sink: BinaryIO | None = None) -> str:
    """Read the file into `sink`, from the start again where that breaks off, and return the sha256 of its bytes."""
    import obstore

    def get() -> str:
        digest = hashlib.sha256()
        if sink is not None:
            sink.seek(0)
            sink.truncate()
        for chunk in obstore.get(place.client, place.key).stream(min_chunk_size=CHUNK):
            digest.update(chunk)
            if sink is not None:
                sink.write(chunk)
        return digest.hexdigest()

    return patiently(get, str(place))


def recorded_sums(place: BucketPlace, names: list[str]) -> dict[str, str]:
    """The sha256 of those files in a folder that a manifest among them records."""
    sums: dict[str, str] = {}
    for name in (name for name in names if PurePosixPath(name).name == "manifest.json"):
        try:
            recorded = json.loads((place / name).read() or b"")["files"]
            sums |= {str(PurePosixPath(name).parent / file["path"]): str(file["sha256"]) for file in recorded}
        except (ValueError, TypeError, KeyError):  # another tool's manifest
            continue
    return sums
