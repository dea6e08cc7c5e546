"""Provenance of an output: settings, fingerprints of inputs, versions; and the check that inputs have not changed when they are read."""

from __future__ import annotations

import os
import platform
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path, PurePath
from typing import Any

from raydense.errors import InputError
from raydense.storage.artifact import MANIFEST, Artifact, is_output, read_manifest, replaced
from raydense.storage.digest import digest_of
from raydense.storage.files import sha256_of, walk
from raydense.storage.hub_place import is_hub_name, model_place
from raydense.storage.paths import named
from raydense.storage.place import Place

_MODELS = ("model", "joint")
_PACKAGES = (
    "raydense",
    "ray",
    "torch",
    "transformers",
    "deepspeed",
    "faiss-cpu",
    "faiss-gpu",
    "pyarrow",
    "bm25s",
    "PyStemmer",
    "sentencex",
)


def fingerprint_of(path: str | os.PathLike[str]) -> str:
    """What identifies an input: the fingerprint of an artifact, else a digest of the bytes of the file or of the folder's files.

    InputError for a model of raydense whose files were changed since: other tools write weights in place.
    """
    place = Place.of(path)
    if read_manifest(place) is not None:
        found = Artifact.open(place)
        if not place.durable:
            _refuse_rewritten(found)
        return found.fingerprint
    source = place.source()
    if source.is_dir():
        files = [file for file in walk(source, _enters) if not file.name.startswith(".")]
        files = [file for file in files if place.is_part(file.relative_to(source).as_posix())]
    elif source.is_file():
        files = [source]
    else:
        raise InputError("no such file or folder", place, "check the path")
    return digest_of([[str(file.relative_to(source)), sha256_of(file)] for file in files])


def check_unchanged(path: str | os.PathLike[str], fingerprint: str) -> None:
    """Raise InputError unless `path` (an artifact, or any file or folder) still has the fingerprint that a stage began with.

    An actor calls it after it has loaded a model, to confirm that it loaded the model that the stage began with. A file is hashed
    once per process, as long as its size and times stay the same.
    """
    now = fingerprint_of(path)
    if now != fingerprint:
        raise replaced(Place.of(path), fingerprint, now)


def check_made_with(made: Artifact, key: str, path: str | os.PathLike[str], fingerprint: str) -> None:
    """Raise InputError unless the input `key` of `made` had the fingerprint that the stage which had it made began with.

    A stage that runs another one calls it: the other one takes the fingerprint of `path` by itself, perhaps hours later.
    """
    now = made.manifest["made_from"]["inputs"][key]
    if now != fingerprint:
        raise replaced(Place.of(path), fingerprint, now)


def _refuse_rewritten(found: Artifact) -> None:
    for file in found.files if found.kind in _MODELS else ():
        if (found.place / file.path).sha256() != file.sha256:
            fix = f"make the model again; or remove its {MANIFEST}, if it is to be used as a model from elsewhere"
            raise InputError("was written to after raydense made it", found.place / file.path, fix)


def _enters(folder: Path) -> bool:
    """Whether a folder in a source is a part of it: not if it is hidden or raydense made it."""
    return not folder.name.startswith(".") and not is_output(folder)


def provenance(stage: str, settings: Any) -> dict[str, Any]:
    """The provenance of a stage's output: the stage, the settings that shape it, and the fingerprint of each input.

    The names of inputs in a list are part of it, since the output shows them; so are the commit of a model of the Hub (not of those in a
    list, whose files' fingerprints are), and the code of a training method, a format or a metric that is not raydense's.
    Raises InputError if an input is missing, unfinished, or not of the kind that its setting takes.
    """
    inputs, given = input_fingerprints(settings), list(settings.given_inputs())
    names = [name for _, _, name, _ in given if name]
    commits = {key: model_place(path).located for key, kind, name, path in given if kind == "model" and not name and is_hub_name(path)}
    more = {"names": names, "commits": commits} | settings.outside_code()
    return {"stage": stage, "settings": settings.shaping(), "inputs": inputs} | {key: value for key, value in more.items() if value}


def input_fingerprints(settings: Any) -> dict[str, Any]:
    """The fingerprint of each input that is given, by its key as it is `recorded`; of a list of folders the list of theirs. InputError as `provenance`."""
    found: dict[str, Any] = {}
    for key, kind in settings.inputs().items():
        value = settings.value_of(key)
        if isinstance(value, list):
            found[settings.recorded.get(key, key)] = [_input_fingerprint(folder, kind) for _, folder in named_folders(value)]
        elif value is not None:
            found[settings.recorded.get(key, key)] = _input_fingerprint(value, kind)
    return found


def refuse_inside(settings: Any) -> None:
    """InputError where a stage of a recipe lies in a folder of files that it is made from: what else the recipe writes there would be a part of it.

    Not where it is hidden there, as hidden files are no part; nor in an artifact, which is known by its manifest.
    """
    output = _real(settings.output)
    for source in (path for _, kind, _, path in settings.given_inputs() if kind == "source" and path):
        inside = output.is_relative_to(_real(source)) and not any(part.startswith(".") for part in output.relative_to(_real(source)).parts)
        if inside and Place.of(source).exists() and read_manifest(source) is None:
            raise InputError(f"lies in {source}, which it is made from", settings.output, "give an --output outside of it")


def _real(path: str) -> PurePath:
    place = Place.of(path)
    return PurePath(place.located if place.everywhere else os.path.realpath(place.located))


def provenance_of(there: dict[str, Any], stage: str, settings: Any) -> dict[str, Any]:
    """As `provenance`, but values that `settings` leave open (`left_open`) are taken from `there`, an output's provenance."""
    made_from = provenance(stage, settings)
    for part in ("settings", "inputs"):
        made_from[part] |= {key: value for key, value in there.get(part, {}).items() if key in settings.left_open()}
    return made_from


def differences(there: dict[str, Any], here: dict[str, Any], prefix: str = "") -> str:
    """The differences of two provenances as `key: there -> here`; empty if they are equal."""
    found = []
    for key in sorted(there.keys() | here.keys()):
        a, b = there.get(key), here.get(key)
        if isinstance(a, dict) and isinstance(b, dict):
            found.append(differences(a, b, f"{prefix}{key}."))
        elif a != b and prefix.startswith("inputs."):  # their fingerprints say nothing to a reader
            found.append(f"{prefix}{key} {'is new' if a is None else 'is left out' if b is None else 'is another, or was changed'}")
        elif a != b:
            found.append(f"{prefix}{key}: {_short(a)} -> {_short(b)}")
    return ", ".join(f for f in found if f)


def _short(value: object) -> str:
    text = str(value)
    return text if len(text) <= 40 else f"{text[:37]}..."


@cache
def versions() -> dict[str, str]:
    """The versions of the packages that shape an artifact."""
    found = {"python": platform.python_version()}
    for package in _PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found


def named_folders(items: list[str]) -> list[tuple[str, str]]:
    """The name and the folder of each `NAME=folder`; a `folder` alone is named by its own last part.

    Different folders with the same last part are named by the shortest ends of their paths, as given, that differ: the names do not change
    when all folders move to another one.
    """
    pairs = [named(item) for item in items]
    paths: dict[str, set[str]] = {}  # of the folders without a name, by last part
    for name, folder in pairs:
        if not name:
            paths.setdefault(Place.name_of(folder), set()).add(os.path.normpath(folder))
    return [(name or _end_that_differs(folder, paths[Place.name_of(folder)]), folder) for name, folder in pairs]


def folders_by_name(items: list[str], key: str) -> dict[str, str]:
    """The folder of each name of `named_folders`; InputError where two of `key` have the same name."""
    pairs = named_folders(items)
    names = [name for name, _ in pairs]
    if len(set(names)) < len(names):
        what = f"two of {key} have the same name, {max(names, key=names.count)!r}"
        raise InputError(what, key, "write NAME=folder, each with another name")
    return dict(pairs)


def _end_that_differs(folder: str, paths: set[str]) -> str:
    path = os.path.normpath(folder)
    if len(paths) == 1:
        return Place.name_of(folder)
    parts = path.strip("/").split("/")
    ends = ("/".join(parts[-count:]) for count in range(1, len(parts) + 1))
    return next((end for end in ends if not any(f"/{other}".endswith(f"/{end}") for other in paths - {path})), path)


def _input_fingerprint(value: str, kind: str) -> str:
    if kind == "model":
        return value if value == "tiny" else fingerprint_of(model_place(value))
    if kind == "source":
        return fingerprint_of(value) if Place.of(value).exists() else value
    return Artifact.open(value, kind).fingerprint
