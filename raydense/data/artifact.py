"""An artifact: a folder with a manifest, that appears whole, knows what it was made from, and is refused when that changed.

A stage opens a `Draft` of its output, commits files to it one by one, and finishes it. Whatever was committed survives a
kill; `manifest.json` is written last and is what makes the folder an artifact.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import platform
import shutil
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from functools import cached_property
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from raydense.errors import InputError

FORMAT_VERSION = 1
MANIFEST = "manifest.json"
WORK = ".work"
_BEGUN = "made_from.json"
# The lock files that this process holds open, by output folder: the end of the process, however it comes, lets them go.
_LOCKS: dict[Path, int] = {}
_PACKAGES = ("raydense", "ray", "torch", "transformers", "deepspeed", "faiss-cpu", "faiss-gpu", "pyarrow", "bm25s", "sentencex")


@dataclass(frozen=True)
class File:
    """One committed file: its path inside the folder, rows, bytes and sha256; `note` holds what its stage adds."""

    path: str
    rows: int
    bytes: int
    sha256: str
    note: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Artifact:
    """A finished folder, opened by `Artifact.open`; stands wherever the path of a folder is wanted."""

    path: Path
    manifest: dict[str, Any]

    @classmethod
    def open(cls, path: str | os.PathLike[str], kind: str | None = None) -> Artifact:
        """The artifact in folder `path`; InputError if it is missing, unfinished, damaged or not of `kind` ("one or another")."""
        folder = Path(path)
        wanted = f"a folder of kind {kind}" if kind else "an artifact folder"
        if not folder.is_dir():
            raise InputError("no such folder", folder, f"give {wanted}")
        manifest = read_manifest(folder)
        if manifest is None:
            if (folder / WORK).is_dir():
                raise InputError("unfinished", folder, "run the stage that makes it again: it continues")
            raise InputError(f"no {MANIFEST} of raydense", folder, f"give {wanted}, made by raydense")
        if kind and manifest["kind"] not in kind.split(" or "):
            raise InputError(f"holds {manifest['kind']}, not {kind}", folder, f"give {wanted}")
        if manifest["format_version"] != FORMAT_VERSION:
            raise InputError(f"format version {manifest['format_version']}, this raydense reads {FORMAT_VERSION}", folder, "make it again")
        for file in manifest["files"]:
            there = folder / file["path"]
            if not there.is_file() or there.stat().st_size != file["bytes"]:
                raise InputError("missing, or not of the size in the manifest", there, "delete the folder and make it again")
        return cls(folder, manifest)

    def __fspath__(self) -> str:
        return str(self.path)

    @property
    def kind(self) -> str:
        return self.manifest["kind"]

    @property
    def rows(self) -> int:
        return self.manifest["rows"]

    @property
    def summary(self) -> dict[str, Any]:
        """What the stage says of its output (counts, dimensions, the fingerprints it depends on)."""
        return self.manifest["summary"]

    @property
    def fingerprint(self) -> str:
        return self.manifest["fingerprint"]

    @cached_property
    def files(self) -> list[File]:
        return [File(**file) for file in self.manifest["files"]]

    def parts(self, suffix: str, prefix: str = "") -> list[Path]:
        """The paths of the files whose names begin and end so, in the manifest's order."""
        return [self.path / f.path for f in self.files if f.path.startswith(prefix) and f.path.endswith(suffix)]


class Draft:
    """An output folder under work; picklable, so that workers commit to it too."""

    def __init__(self, folder: Path, kind: str, made_from: dict[str, Any]) -> None:
        self.folder, self.kind, self.made_from = folder, kind, made_from
        self.done: Artifact | None = None

    def __getstate__(self) -> dict[str, Any]:
        # a worker may have another working directory
        return {**self.__dict__, "folder": self.folder.absolute()}

    @classmethod
    def open(cls, output: str | os.PathLike[str], kind: str, made_from: dict[str, Any]) -> Draft:
        """Start, continue or find finished (`draft.done`) the output of a stage.

        `made_from` is JSON: the stage, its settings, its inputs' fingerprints. InputError when the folder holds something
        made from something else, or when another process is at work in it.
        """
        folder = Path(output)
        draft = cls(folder, kind, json.loads(json.dumps(made_from)))
        manifest = read_manifest(folder)
        if manifest is not None:
            draft._refuse_other(manifest["made_from"] if manifest["kind"] == kind else {"kind": manifest["kind"]})
            shutil.rmtree(draft.work, ignore_errors=True)  # where its maker was killed on its last lines
            draft.done = Artifact.open(folder, kind)
            return draft
        begun = begun_from(folder)
        if begun is not None:
            draft._take_lock()
            draft._refuse_other(begun)
            return draft
        if folder.exists() and (not folder.is_dir() or any(p.name != WORK for p in folder.iterdir())):
            raise InputError("exists and is not an artifact of raydense", folder, "give another --output")
        (folder / WORK / "commits").mkdir(parents=True, exist_ok=True)
        draft._take_lock()
        _write_json(folder / WORK / _BEGUN, draft.made_from)
        return draft

    def _take_lock(self) -> None:
        self.close()  # a stage that failed in this process may be run again in it
        lock = os.open(self.folder / WORK / "lock", os.O_CREAT | os.O_RDWR, 0o644)
        _LOCKS[self.folder.resolve()] = lock
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self.close()
            raise InputError("another process is writing here", self.folder, "wait for it, or give another --output") from None

    def close(self) -> None:
        """Let another process write here; the end of this one does the same."""
        lock = _LOCKS.pop(self.folder.resolve(), None)
        if lock is not None:
            os.close(lock)

    def _refuse_other(self, there: dict[str, Any]) -> None:
        differing = differences(there, self.made_from)
        if differing:
            raise InputError(f"was made from something else ({differing})", self.folder, "give another --output, or delete this folder")

    @property
    def work(self) -> Path:
        """A folder for what is not finished (checkpoints, spills); gone when the artifact is finished."""
        return self.folder / WORK

    def committed(self) -> dict[str, File]:
        """The files committed so far, by path."""
        records = (json.loads(p.read_text()) for p in sorted((self.work / "commits").glob("*.json")))
        return {r["path"]: File(**r) for r in records}

    def commit(self, path: str, write: Callable[[Path], object], rows: int, **note: Any) -> File:
        """Write one file of the artifact: `write` gets a path aside; the file appears under its own name only when whole."""
        with self._aside() as aside:
            write(aside / Path(path).name)
            return self._place(aside / Path(path).name, path, rows, note)

    def commit_tree(self, write: Callable[[Path], object]) -> list[File]:
        """Write several files that belong together (a model): `write` gets an empty folder, and all that it holds is committed."""
        with self._aside() as aside:
            write(aside)
            inner = sorted(p for p in aside.rglob("*") if p.is_file())
            return [self._place(p, str(p.relative_to(aside)), 0, {}) for p in inner]

    def keep(self, name: str, write: Callable[[Path], object]) -> None:
        """Write one file of the work folder, for a later step of the stage: it appears under its name only when whole."""
        with self._aside() as aside:
            write(aside / name)
            os.replace(aside / name, self.work / name)

    @contextmanager
    def _aside(self) -> Iterator[Path]:
        aside = self.work / f"aside-{uuid.uuid4().hex}"
        aside.mkdir(parents=True)
        try:
            yield aside
        finally:
            shutil.rmtree(aside, ignore_errors=True)

    def _place(self, aside: Path, path: str, rows: int, note: dict[str, Any]) -> File:
        with open(aside, "rb") as stream:
            os.fsync(stream.fileno())
            digest = hashlib.file_digest(stream, "sha256").hexdigest()
        file = File(path, rows, aside.stat().st_size, digest, note)
        target = self.folder / path
        target.parent.mkdir(parents=True, exist_ok=True)
        os.replace(aside, target)
        name = hashlib.sha256(path.encode()).hexdigest()[:12]
        _write_json(self.work / "commits" / f"{Path(path).name}-{name}.json", asdict(file))
        return file

    def finish(self, rows: int, **summary: Any) -> Artifact:
        """Write the manifest of what was committed: from here on the folder is an artifact, and its work folder is gone."""
        files = [asdict(f) for _, f in sorted(self.committed().items())]
        made = [self.kind, FORMAT_VERSION, self.made_from, [(f["path"], f["sha256"]) for f in files]]
        manifest = {
            "kind": self.kind,
            "format_version": FORMAT_VERSION,
            "rows": rows,
            "fingerprint": digest_of(made),
            "made_from": self.made_from,
            "summary": summary,
            "files": files,
            "versions": versions(),
        }
        _write_json(self.folder / MANIFEST, manifest, aside_in=self.work)
        shutil.rmtree(self.work, ignore_errors=True)
        self.close()
        return Artifact.open(self.folder, self.kind)


def read_manifest(folder: Path) -> dict[str, Any] | None:
    """The manifest of a folder, or None where there is none of ours; InputError if it cannot be read."""
    try:
        manifest = json.loads((folder / MANIFEST).read_text())
        return manifest if isinstance(manifest, dict) and {"kind", "format_version", "made_from"} <= manifest.keys() else None
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (json.JSONDecodeError, UnicodeDecodeError):
        raise InputError("not readable as JSON", folder / MANIFEST, "delete the folder and make it again") from None


def begun_from(folder: Path) -> dict[str, Any] | None:
    """What unfinished work in a folder is made from; None where nothing was made yet, as by a stage that refused its input."""
    work = folder / WORK
    if not (work / _BEGUN).is_file():
        return None
    made = any(p.name != WORK for p in folder.iterdir()) or any(p.name not in (_BEGUN, "lock", "commits") for p in work.iterdir())
    return json.loads((work / _BEGUN).read_text()) if made or any((work / "commits").iterdir()) else None


def digest_of(value: object) -> str:
    """A short digest of a JSON value, the same on every machine."""
    canonical = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return hashlib.sha256(canonical.encode()).hexdigest()[:32]


def fingerprint_of(path: str | os.PathLike[str]) -> str:
    """What identifies an input: the fingerprint of an artifact, else a digest of the bytes of the file or of the folder's files."""
    source = Path(path)
    if source.is_dir():
        manifest = read_manifest(source)
        if manifest is not None:
            return Artifact.open(source).fingerprint
        files = sorted(_files_in(source, frozenset()))
    elif source.is_file():
        files = [source]
    else:
        raise InputError("no such file or folder", source, "check the path")
    digests = []
    for file in files:
        with open(file, "rb") as stream:
            digests.append([str(file.relative_to(source)), hashlib.file_digest(stream, "sha256").hexdigest()])
    return digest_of(digests)


def _files_in(folder: Path, above: frozenset[Path]) -> Iterator[Path]:
    """The files in a folder at any depth, hidden ones left out; links to folders are followed, but not back to one `above`."""
    above |= {folder.resolve()}
    for path in folder.iterdir():
        if path.is_file() and not path.name.startswith("."):
            yield path
        elif path.is_dir() and not path.name.startswith(".") and path.resolve() not in above:
            yield from _files_in(path, above)


def discard_untouched(output: str | os.PathLike[str]) -> None:
    """Remove an output that this process began and put nothing into, as where its inputs were refused after it was opened."""
    folder = Path(output)
    begun = {folder / WORK / name for name in ("lock", "commits", _BEGUN)}
    if folder.resolve() in _LOCKS and set(folder.rglob("*")) <= {folder / WORK, *begun}:
        Draft(folder, "", {}).close()
        shutil.rmtree(folder)


def differences(there: dict[str, Any], here: dict[str, Any], prefix: str = "") -> str:
    """What differs between two `made_from`, as `key: there -> here`, or the empty string."""
    found = []
    for key in sorted(there.keys() | here.keys()):
        a, b = there.get(key), here.get(key)
        if isinstance(a, dict) and isinstance(b, dict):
            found.append(differences(a, b, f"{prefix}{key}."))
        elif a != b:
            found.append(f"{prefix}{key}: {_short(a)} -> {_short(b)}")
    return ", ".join(f for f in found if f)


def versions() -> dict[str, str]:
    """The versions of the packages that shape an artifact."""
    found = {"python": platform.python_version()}
    for package in _PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found


def _short(value: object) -> str:
    text = str(value)
    return text if len(text) <= 40 else f"{text[:37]}..."


def _write_json(path: Path, value: object, aside_in: Path | None = None) -> None:
    aside = (aside_in or path.parent) / f"{path.name}.{uuid.uuid4().hex}.aside"
    try:
        with open(aside, "w") as stream:
            json.dump(value, stream, indent=1, ensure_ascii=False)
            stream.flush()
            os.fsync(stream.fileno())
        os.replace(aside, path)
    finally:
        aside.unlink(missing_ok=True)


def write_whole(file: Path, text: str) -> None:
    """Write a file that is no part of an artifact, as a table of what was measured: it is the old one or the new one, never half."""
    aside = file.with_name(f"{file.name}.aside")
    aside.write_text(text, encoding="utf-8")
    aside.replace(file)


def provenance(stage: str, settings: Any) -> dict[str, Any]:
    """What the output of a stage is made from: the stage, the settings that shape it, and the fingerprint of each input.

    Inputs that are lists have names, which the output shows: these belong to it. Raises InputError where an input is missing,
    unfinished, or of another kind than its setting says.
    """
    inputs: dict[str, Any] = {}
    names: list[str] = []
    for key, kind in settings.inputs().items():
        value = getattr(settings, key)
        if isinstance(value, list):
            named = [named_folder(item) for item in value]
            inputs[key] = [_input_fingerprint(folder, kind) for _, folder in named]
            names += [name for name, _ in named]
        elif value is not None:
            inputs[key] = _input_fingerprint(value, kind)
    return {"stage": stage, "settings": settings.shaping(), "inputs": inputs} | ({"names": names} if names else {})


def named_folder(item: str) -> tuple[str, str]:
    """The name and the folder of `NAME=folder` or of `folder`, which is called as it is itself called."""
    name, equals, folder = item.partition("=")
    return (name, folder) if equals else (Path(item).resolve().name, item)


def _input_fingerprint(value: str, kind: str) -> str:
    if kind == "model":
        return value if value == "tiny" else fingerprint_of(value)
    if kind == "source":
        return fingerprint_of(value) if Path(value).exists() else value
    return Artifact.open(value, kind).fingerprint
