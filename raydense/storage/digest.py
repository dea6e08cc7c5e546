"""JSON as artifacts write it, and the short digest that is the same on every machine."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

from raydense.storage.files import write_whole


def as_json(value: object) -> str:
    """The text of our JSON files."""
    return json.dumps(value, indent=1, ensure_ascii=False)


def write_json(path: Path, value: object) -> None:
    """Write a JSON file of this machine; it is the old one or the new one, never half."""
    write_whole(path, as_json(value).encode())


def digest_of(value: object) -> str:
    """A short digest of a JSON value, the same on every machine."""
    canonical = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    # names of files whose bytes are not UTF-8 have halves of surrogate pairs
    return hashlib.sha256(canonical.encode(errors="surrogatepass")).hexdigest()[:32]
