"""An artifact: a folder with a manifest, whose files are those that the manifest records."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property, partial
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

from raydense.errors import InputError
from raydense.storage.digest import digest_of
from raydense.storage.foreign import how_to_import
from raydense.storage.paths import safe_name
from raydense.storage.place import Found, Place, streamed, together

if TYPE_CHECKING:
    import pandas

FORMAT_VERSION = 1
MANIFEST = "manifest.json"
WORK = ".work"
ASIDE = "aside-"  # begins the name of a folder in the work folder for files that are about to be committed
DAMAGED = "missing, or not of the size in the manifest"


@dataclass(frozen=True)
class File:
    """One committed file: its path inside the folder, rows, bytes and sha256; `note` holds what its stage adds."""

    path: str
    rows: int
    bytes: int
    sha256: str
    note: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, repr=False)
class Artifact:
    """A finished folder, opened by `Artifact.open`; accepted wherever the path of a folder is. `place` is where it was opened."""

    place: Place
    manifest: dict[str, Any]

    def __post_init__(self) -> None:
        self.__dict__["_located"] = self.place.located

    @classmethod
    def open(cls, path: str | os.PathLike[str], kind: str | None = None, fingerprint: str | None = None) -> Artifact:
        """The artifact at `path`; InputError if it is missing, unfinished, damaged or not of `kind` ("one or another").

        With `fingerprint`, InputError also if the artifact has another one: it was replaced since a stage began to read it.
        """
        place = Place.of(path)
        wanted = f"a folder of kind {kind}" if kind else "an artifact folder"
        manifest = read_manifest(place)
        if manifest is None:
            raise _no_artifact(place, wanted, kind)
        if kind and manifest["kind"] not in kind.split(" or "):
            raise InputError(f"holds {manifest['kind']}, not {kind}", place, _in_dataset(place, kind) or f"give {wanted}")
        if manifest["format_version"] != FORMAT_VERSION:
            raise InputError(f"format version {manifest['format_version']}, this raydense reads {FORMAT_VERSION}", place, "make it again")
        opened = cls(place, manifest)
        if fingerprint is not None and opened.fingerprint != fingerprint:
            raise replaced(place, fingerprint, opened.fingerprint)
        opened._check_files()
        return opened

    def _check_files(self) -> None:
        for file in self.files:
            if not safe_name(file.path):
                what = f"names a file outside its folder ({file.path!r})"
                raise InputError(what, self.place, "do not use it: raydense never writes that")
        made_from, files = self.manifest["made_from"], self.manifest["files"]
        if self.fingerprint != fingerprint_of_files(self.kind, made_from, files):  # which names it in the cache
            raise InputError("its fingerprint is not that of its files", self.place / MANIFEST, "delete the folder and make it again")
        damaged = next(iter(self.damaged()), None)
        if damaged is not None:
            fix = "run the stage that makes it again: it makes only this file"
            raise InputError(DAMAGED, self.place / damaged.path, fix)

    def damaged(self) -> list[File]:
        """The files that are missing, or whose size is not that in the manifest."""
        found = self._there.stats([file.path for file in self.files])
        return [file for file, there in zip(self.files, found, strict=True) if there is None or there.size != file.bytes]

    def __repr__(self) -> str:
        return f"Artifact(kind={self.kind!r}, rows={self.rows}, place={str(self.place)!r})"

    def head(self, n: int = 10) -> pandas.DataFrame:
        """The first `n` rows as a DataFrame, in the artifact's order; `head(artifact.rows)` gives all of them, in memory.

        Reads only the files that hold these rows. InputError for a kind without rows, such as an index or a model.
        """
        from raydense.storage.rows import first_rows

        return first_rows(self, n).to_pandas()

    def _repr_html_(self) -> str:
        """What a notebook shows."""
        from raydense.storage.rows import as_html

        return as_html(self)

    def file(self, name: str) -> Path:
        """The path on this machine of one of its files; a file of a bucket is fetched and checked.

        Open it at once: the cache may remove it minutes later. InputError if the folder holds another artifact now.
        """
        file = self._by_path.get(name)
        if file is None:
            raise InputError("is not among the files of its manifest", self.place / name, "make the artifact again")
        if not self.place.durable:  # of a bucket each file is checked as it is fetched
            self._refuse_replaced()
        return self._there.fetch(name, file.bytes, file.sha256, self.fingerprint)

    def _refuse_replaced(self) -> None:
        """InputError if the folder was made again from something else: its files do not belong to those that were opened before."""
        found = (self._there / MANIFEST).stat()
        if found is None or found.version != self.__dict__.get("_seen"):
            now = (read_manifest(self._there) or {}).get("fingerprint", "none")
            if now != self.fingerprint:
                raise replaced(self.place, self.fingerprint, now)
            self.__dict__["_seen"] = found.version if found else None

    def parts(self, suffix: str, prefix: str = "") -> list[Path]:
        """The paths of the files whose names begin and end so, in the manifest's order."""
        return self._paths([f.path for f in self.files if f.path.startswith(prefix) and f.path.endswith(suffix)])

    @property
    def path(self) -> Path:
        """Its folder on this machine, with all of its files; a stage that reads only a few of them uses `file`."""
        paths = self._paths([file.path for file in self.files])
        return paths[0].parents[self.files[0].path.count("/")] if paths else self._there.local()

    def _paths(self, names: list[str]) -> list[Path]:
        self._there.reserve(self.fingerprint, sum(self._by_path[name].bytes for name in names))
        return together(self.file, names)

    @cached_property
    def _by_path(self) -> dict[str, File]:
        return {file.path: file for file in self.files}

    @property
    def located(self) -> str:
        """Its absolute path, for a process in another working directory or on another machine."""
        return self.__dict__["_located"]

    @property
    def _there(self) -> Place:
        """Its place, as it was given unless the working directory has changed since."""
        return self.place if self.place.located == self.located else Place.of(self.located)

    def __reduce__(self) -> tuple[type[Artifact], tuple[Place, dict[str, Any]]]:
        return Artifact, (self._there, self.manifest)

    def __fspath__(self) -> str:
        return str(self._there)

    @property
    def kind(self) -> str:
        return self.manifest["kind"]

    @property
    def rows(self) -> int:
        return self.manifest["rows"]

    @property
    def summary(self) -> dict[str, Any]:
        """What the stage records of its output (counts, dimensions, the fingerprints it depends on)."""
        return self.manifest["summary"]

    @property
    def fingerprint(self) -> str:
        return self.manifest["fingerprint"]

    @cached_property
    def files(self) -> list[File]:
        return [File(**file) for file in self.manifest["files"]]


def damaged_file(place: Place) -> str | None:
    """A file of a finished artifact, or of a part of a data set, that is missing or not of its size: the same command makes it again."""
    manifest = read_manifest(place)
    if manifest is None:
        return MANIFEST
    artifact = Artifact(place, manifest)
    own = next((file.path for file in artifact.damaged()), None)
    parts = artifact.summary.get("parts", ()) if artifact.kind == "dataset" and own is None else ()
    return own or next((f"{name}/{found}" for name in parts if (found := damaged_file(place / name))), None)


def verify_all(folder: str | os.PathLike[str]) -> Iterator[tuple[Place, str, str]]:
    """Read every file of the artifacts at and below `folder`: the artifact's place, the file, and what is wrong with it or "".

    A part of a data set that is missing, or was replaced since, comes as a file of the data set.
    """
    root = Place.of(folder)
    manifests = (name for name in map(PurePosixPath, root.files()) if name.name == MANIFEST and WORK not in name.parts)
    places = [root / str(name.parent) if name.parent.name else root for name in manifests]
    found = [(place, manifest) for place in places if (manifest := read_manifest(place)) is not None]
    if not found:
        raise _no_artifact(root, "an artifact folder, or one with artifacts in it")
    for place, manifest in found:
        files = [File(**file) for file in manifest["files"]]
        stats = place.stats([file.path for file in files])
        checked = streamed(partial(_wrong, place), zip(files, stats, strict=True))
        yield from ((place, file.path, wrong) for file, wrong in zip(files, checked, strict=True))
        yield from _wrong_parts(place, manifest)


def _wrong_parts(place: Place, manifest: dict[str, Any]) -> Iterator[tuple[Place, str, str]]:
    """The parts of a data set that are not those that it was made with."""
    parts = manifest["summary"].get("parts", {}) if manifest["kind"] == "dataset" else {}
    for name, made in parts.items():
        if not safe_name(name):
            yield place, name, "lies outside its folder"
        elif (there := read_manifest(place / name)) is None:
            yield place, name, "missing"
        elif there.get("fingerprint") != made["fingerprint"]:
            yield place, name, f"is not the {name} that the data set was made with (fingerprint)"


def _wrong(place: Place, found: tuple[File, Found | None]) -> str:
    file, there = found
    if not safe_name(file.path):
        return "lies outside its folder"
    if there is None:
        return "missing"
    if there.size != file.bytes:
        return f"holds {there.size:,} bytes, not {file.bytes:,}"
    return "" if (place / file.path).sha256() == file.sha256 else "holds other bytes than were written (sha256)"


def read_manifest(path: str | os.PathLike[str]) -> dict[str, Any] | None:
    """The manifest of a folder, or None if it has no manifest of raydense; InputError if it cannot be read."""
    place = Place.of(path) / MANIFEST
    content = place.read()
    if content is None:
        return None
    try:
        manifest = json.loads(content.decode())
    except (json.JSONDecodeError, UnicodeDecodeError, RecursionError):
        raise InputError("not readable as JSON", place, "delete the folder and make it again") from None
    return manifest if isinstance(manifest, dict) and {"kind", "format_version", "made_from"} <= manifest.keys() else None


def is_output(folder: str | os.PathLike[str]) -> bool:
    """Whether raydense made the folder, or is making it: an output in its own source is no part of that."""
    place = Place.of(folder)
    if (place / WORK).is_folder():
        return True
    with suppress(InputError):  # a file of that name by another tool
        return (place / MANIFEST).stat() is not None and read_manifest(place) is not None
    return False


def fingerprint_of_files(kind: str, made_from: dict[str, Any], files: list[dict[str, Any]]) -> str:
    """The fingerprint of an artifact: of its kind, what it was made from, and its files."""
    return digest_of([kind, FORMAT_VERSION, made_from, [(f["path"], f["sha256"]) for f in files]])


def replaced(place: Place, begun: str, now: str) -> InputError:
    """The error of an input that was replaced while a stage was reading it."""
    what = f"was replaced while a stage was reading it (fingerprint {begun[:8]} at the start, {now[:8]} now)"
    return InputError(what, place, "leave inputs as they are while a stage runs; give a new --output, and run the stage again")


def _no_artifact(place: Place, wanted: str, kind: str | None = None) -> InputError:
    if not place.is_folder() and place.exists():
        return InputError("is a file, not an artifact of raydense", place, how_to_import(place, kind))
    if not place.is_folder():
        return InputError("no such folder", place, _in_dataset(place, kind) or f"give {wanted}")
    if (place / WORK).is_folder():
        return InputError("unfinished", place, "run the stage that makes it again: it continues")
    return InputError(f"no {MANIFEST} of raydense", place, _in_dataset(place, kind) or f"give {wanted}, made by raydense")


def _in_dataset(place: Place, kind: str | None) -> str:
    """What the data set around `place` has of `kind`, as a fix: `place` is the data set, a folder of it, another part, or a part that it lacks."""
    path, below, parts = _dataset_around(place)
    given = not below or below in parts
    fit = [
        name
        for name in parts
        if name != below and (given or name.startswith(f"{below}/")) and parts[name]["kind"] in f"{kind}".split(" or ")
    ]
    if fit:
        return f"did you mean {' or '.join(os.path.join(path, name) for name in fit)}?"
    if given or not parts:
        return ""
    around, _, last = below.rpartition("/")
    near = [name.removeprefix(f"{around}/") for name in parts if around and name.startswith(f"{around}/")]
    return f"{os.path.join(path, around)} has {', '.join(near)}: no {last}" if near else f"{path} has {', '.join(parts)}: no {below}"


def _dataset_around(place: Place) -> tuple[str, str, dict[str, Any]]:
    """The path of the data set at `place`, or one or two folders above; the rest of the path; its parts. Without parts where there is none."""
    path, below = str(place).rstrip("/"), ""
    for _ in range(3):
        try:
            manifest = read_manifest(path or ".") or {}
        except InputError:  # another tool's
            manifest = {}
        if manifest.get("kind") == "dataset":
            return path or ".", below, manifest["summary"].get("parts", {})
        path, name = os.path.split(path)
        below = os.path.join(name, below) if below else name
        if not name or path.endswith((":", "/")):
            break
    return path, below, {}
