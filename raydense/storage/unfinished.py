"""What lies in the work folder of an unfinished output."""

from __future__ import annotations

import json
import os
from typing import Any

from raydense.storage.artifact import WORK, read_manifest
from raydense.storage.commits import COMMITS
from raydense.storage.lease import CLOCK, WRITER
from raydense.storage.local_place import LOCK
from raydense.storage.place import Place

BEGUN = "made_from.json"
OURS = {BEGUN, COMMITS, LOCK, WRITER, CLOCK}  # in a work folder in which nothing was made yet


def begun_from(output: str | os.PathLike[str]) -> dict[str, Any] | None:
    """The provenance of unfinished work in a folder; None if nothing was made yet, as by a stage that refused its input."""
    place = Place.of(output)
    begun = (place / WORK / BEGUN).read()
    return json.loads(begun) if begun is not None and made_something(place) else None


def made_or_begun_from(output: str | os.PathLike[str]) -> dict[str, Any]:
    """The provenance of what is in a folder, finished or not; {} if nothing was made yet."""
    manifest = read_manifest(output)
    return manifest["made_from"] if manifest else begun_from(output) or {}


def made_something(place: Place) -> bool:
    """Whether an output holds more than the work folder of a stage that has only begun."""
    work = place / WORK
    return set(place.entries()) != {WORK} or not set(work.entries()) <= OURS or bool((work / COMMITS).entries())


def commits_in(output: str | os.PathLike[str]) -> int:
    """How many files unfinished work in a folder has committed."""
    return len((Place.of(output) / WORK / COMMITS).names("*.json"))
