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
from functools import cached_property, lru_cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from raydense import storage
from raydense.errors import InputError

FORMAT_VERSION = 1
MANIFEST = "manifest.json"
WORK = ".work"
BEGUN = "made_from.json"
WRITER = "writer.json"  # of an output in a store: who is writing there
_MODELS = ("model", "joint")
_DAMAGED = "missing, or not of the size in the manifest"
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


@dataclass(frozen=True, repr=False)
class Artifact:
    """A finished folder, opened by `Artifact.open`; stands wherever the path of a folder is wanted.

    `place` is where it was opened, a folder or a name in a store.
    """

    place: Path | str
    manifest: dict[str, Any]

    @classmethod
    def open(cls, path: str | os.PathLike[str], kind: str | None = None, fingerprint: str | None = None) -> Artifact:
        """The artifact at `path`; InputError if it is missing, unfinished, damaged or not of `kind` ("one or another").

        With `fingerprint`, InputError too if another artifact lies there by now than the one that a stage began with.
        """
        folder = storage.place_of(path)
        wanted = f"a folder of kind {kind}" if kind else "an artifact folder"
        if isinstance(folder, Path) and not folder.is_dir():
            raise InputError("no such folder", folder, f"give {wanted}")
        manifest = read_manifest(folder)
        if manifest is None:
            if isinstance(folder, str) and not storage.listing(folder):
                raise InputError("no such folder", folder, f"give {wanted}")
            if _has_work(folder):
                raise InputError("unfinished", folder, "run the stage that makes it again: it continues")
            raise InputError(f"no {MANIFEST} of raydense", folder, f"give {wanted}, made by raydense")
        if kind and manifest["kind"] not in kind.split(" or "):
            raise InputError(f"holds {manifest['kind']}, not {kind}", folder, f"give {wanted}")
        if manifest["format_version"] != FORMAT_VERSION:
            raise InputError(f"format version {manifest['format_version']}, this raydense reads {FORMAT_VERSION}", folder, "make it again")
        opened = cls(folder, manifest)
        if fingerprint is not None and opened.fingerprint != fingerprint:
            raise _replaced(folder, fingerprint, opened.fingerprint)
        opened._check_files()
        return opened

    def __repr__(self) -> str:
        return f"Artifact(kind={self.kind!r}, rows={self.rows}, place={str(self.place)!r})"

    def _check_files(self) -> None:
        for file in self.manifest["files"]:
            if not storage.safe_name(file["path"]):
                raise InputError(
                    f"names a file outside its folder ({file['path']!r})", self.place, "do not use it: raydense did not make it so"
                )
        if isinstance(self.place, str):
            _refuse_altered(self.place, self.manifest)
            if not storage.is_mirrored(self.fingerprint):
                found = {name: of.size for name, of in storage.listing(self.place).items()}
                lacking = next((file["path"] for file in self.manifest["files"] if found.get(file["path"]) != file["bytes"]), None)
                if lacking is not None:
                    raise InputError(_DAMAGED, storage.join(self.place, lacking), "delete the folder and make it again")
            return
        for file in self.manifest["files"]:
            there = self.place / file["path"]
            if not there.is_file() or there.stat().st_size != file["bytes"]:
                raise InputError(_DAMAGED, there, "delete the folder and make it again")

    @cached_property
    def path(self) -> Path:
        """Its folder on this machine: itself, or the mirror of what the store holds, fetched at the first look."""
        if isinstance(self.place, Path):
            return self.place
        files = {file.path: (file.bytes, file.sha256) for file in self.files}
        return storage.mirror(self.place, self.fingerprint, files, as_json(self.manifest).encode())

    @property
    def located(self) -> str:
        """Its place for a process in another working directory, or on another machine."""
        return storage.absolute(self.place)

    def __reduce__(self) -> tuple[type[Artifact], tuple[Path | str, dict[str, Any]]]:
        return Artifact, (self.place, self.manifest)

    def __fspath__(self) -> str:
        return str(self.place)

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
    """An output folder under work; picklable, so that workers commit to it too.

    `folder` is where it is put together: the output itself, or, for one of a store, a folder of this machine's cache.
    """

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
        folder = storage.place_of(output)
        made_from = json.loads(json.dumps(made_from))
        if isinstance(folder, str):
            from raydense.storage.bucket_draft import StoreDraft  # which is a Draft itself

            return StoreDraft.begin(folder, kind, made_from)
        draft = cls(folder, kind, made_from)
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
        write_json(folder / WORK / BEGUN, draft.made_from)
        return draft

    def _take_lock(self) -> None:
        self.close()  # a stage that failed in this process may be run again in it
        lock = os.open(self.folder / WORK / "lock", os.O_CREAT | os.O_RDWR, 0o644)
        _LOCKS[self.folder.resolve()] = lock
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self.close()
            raise InputError("another process is writing here", self.place, "wait for it, or give another --output") from None

    def close(self) -> None:
        """Let another process write here; the end of this one does the same."""
        lock = _LOCKS.pop(self.folder.resolve(), None)
        if lock is not None:
            os.close(lock)

    def discard(self) -> None:
        """Remove the output, with all that was committed."""
        shutil.rmtree(self.folder, ignore_errors=True)

    def _refuse_other(self, there: dict[str, Any]) -> None:
        differing = differences(there, self.made_from)
        if differing:
            raise InputError(f"was made from something else ({differing})", self.place, "give another --output, or delete this folder")

    @property
    def place(self) -> Path | str:
        """Where the artifact will lie."""
        return self.folder

    @property
    def work(self) -> Path:
        """A folder of this machine for what is not finished, as spills; gone when the artifact is finished."""
        return self.folder / WORK

    @property
    def shared(self) -> Path | str:
        """As `work`, but where every machine that works on the artifact reaches it: a folder that all of them mount, or of the store.

        What a training leaves there (checkpoints, weights, history) is read and written by `raydense.storage.shared.Shared`.
        """
        return self.work.resolve()

    @property
    def located(self) -> Path | str:
        """As `place`, for a process in another working directory, or on another machine."""
        return self.folder.resolve()

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

    def read(self, path: str) -> Path:
        """A file that was committed, on whichever machine: its path on this one."""
        return self.folder / path

    def keep(self, name: str, write: Callable[[Path], object]) -> None:
        """Write one file of the work folder, for a later step of the stage: it appears under its name only when whole."""
        with self._aside() as aside:
            write(aside / name)
            storage.follow_umask(aside / name)
            os.replace(aside / name, self.work / name)

    def kept(self, name: str) -> Path | None:
        """What `keep` wrote, on whichever machine: its path on this one, or None where it was not written."""
        return self.work / name if (self.work / name).exists() else None

    @contextmanager
    def _aside(self) -> Iterator[Path]:
        aside = self.work / f"aside-{uuid.uuid4().hex}"
        aside.mkdir(parents=True)
        try:
            yield aside
        finally:
            shutil.rmtree(aside, ignore_errors=True)

    def _place(self, aside: Path, path: str, rows: int, note: dict[str, Any]) -> File:
        storage.follow_umask(aside)
        with open(aside, "rb") as stream:
            os.fsync(stream.fileno())
            digest = hashlib.file_digest(stream, "sha256").hexdigest()
        file = File(path, rows, aside.stat().st_size, digest, note)
        target = self.folder / path
        target.parent.mkdir(parents=True, exist_ok=True)
        os.replace(aside, target)
        write_json(self.work / "commits" / record_name(path), asdict(file))
        return file

    def finish(self, rows: int, **summary: Any) -> Artifact:
        """Write the manifest of what was committed: from here on the folder is an artifact, and its work folder is gone."""
        write_json(self.folder / MANIFEST, self._manifest(rows, summary), aside_in=self.work)
        shutil.rmtree(self.work, ignore_errors=True)
        self.close()
        return Artifact.open(self.folder, self.kind)

    def _manifest(self, rows: int, summary: dict[str, Any]) -> dict[str, Any]:
        files = [asdict(f) for _, f in sorted(self.committed().items())]
        return {
            "kind": self.kind,
            "format_version": FORMAT_VERSION,
            "rows": rows,
            "fingerprint": _fingerprint(self.kind, self.made_from, files),
            "made_from": self.made_from,
            "summary": summary,
            "files": files,
            "versions": versions(),
        }


def _fingerprint(kind: str, made_from: dict[str, Any], files: list[dict[str, Any]]) -> str:
    return digest_of([kind, FORMAT_VERSION, made_from, [(f["path"], f["sha256"]) for f in files]])


def _refuse_altered(place: str, manifest: dict[str, Any]) -> None:
    """The mirror of an artifact is named by its fingerprint, which must be that of its files."""
    if manifest["fingerprint"] != _fingerprint(manifest["kind"], manifest["made_from"], manifest["files"]):
        raise InputError("its fingerprint is not that of its files", storage.join(place, MANIFEST), "delete the folder and make it again")


def record_name(path: str) -> str:
    """The name of the record of a commit."""
    return f"{Path(path).name}-{hashlib.sha256(path.encode()).hexdigest()[:12]}.json"


def read_manifest(folder: Path | str) -> dict[str, Any] | None:
    """The manifest of a folder, or None where there is none of ours; InputError if it cannot be read."""
    place = storage.place_of(folder)
    try:
        text = storage.read(f"{place}/{MANIFEST}") if isinstance(place, str) else (place / MANIFEST).read_bytes()
        if text is None:
            return None
        manifest = json.loads(text.decode())
        return manifest if isinstance(manifest, dict) and {"kind", "format_version", "made_from"} <= manifest.keys() else None
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (json.JSONDecodeError, UnicodeDecodeError):
        raise InputError("not readable as JSON", storage.join(place, MANIFEST), "delete the folder and make it again") from None


def _has_work(folder: Path | str) -> bool:
    if isinstance(folder, Path):
        return (folder / WORK).is_dir()
    return bool(storage.listing(f"{folder}/{WORK}"))


def begun_from(folder: Path | str) -> dict[str, Any] | None:
    """What unfinished work in a folder is made from; None where nothing was made yet, as by a stage that refused its input."""
    if isinstance(folder, str):
        return _begun_in_store(folder)
    work = folder / WORK
    if not (work / BEGUN).is_file():
        return None
    made = any(p.name != WORK for p in folder.iterdir()) or any(p.name not in (BEGUN, "lock", "commits") for p in work.iterdir())
    return json.loads((work / BEGUN).read_text()) if made or any((work / "commits").iterdir()) else None


def _begun_in_store(uri: str) -> dict[str, Any] | None:
    begun = f"{WORK}/{BEGUN}"
    there = set(storage.listing(uri))
    content = storage.read(f"{uri}/{begun}") if begun in there and there - {begun, f"{WORK}/{WRITER}"} else None
    return json.loads(content) if content else None


def commits_in(folder: Path | str) -> int:
    """How many files unfinished work in a folder has committed."""
    if isinstance(folder, str):
        return len(storage.listing(f"{folder}/{WORK}/commits"))
    return len(list((folder / WORK / "commits").glob("*.json")))


def digest_of(value: object) -> str:
    """A short digest of a JSON value, the same on every machine."""
    canonical = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return hashlib.sha256(canonical.encode()).hexdigest()[:32]


def fingerprint_of(path: str | os.PathLike[str]) -> str:
    """What identifies an input: the fingerprint of an artifact, else a digest of the bytes of the file or of the folder's files.

    InputError on a model of ours whose files are not those that it was finished with: other tools write weights in place.
    """
    place = storage.place_of(path)
    if isinstance(place, str) and read_manifest(place) is not None:
        return Artifact.open(place).fingerprint
    source = storage.local(place)
    if source.is_dir():
        manifest = read_manifest(source) if isinstance(place, Path) else None
        if manifest is not None:
            found = Artifact.open(source)
            _refuse_rewritten(found)
            return found.fingerprint
        files = sorted(_files_in(source, frozenset()))
    elif source.is_file():
        files = [source]
    else:
        raise InputError("no such file or folder", source, "check the path")
    return digest_of([[str(file.relative_to(source)), _sha256(file)] for file in files])


def check_unchanged(path: str | os.PathLike[str], fingerprint: str) -> None:
    """Raise InputError unless `path` (an artifact, or any file or folder) still has the fingerprint that a stage began with.

    An actor calls it after it has loaded a model: what was loaded is then what the stage was asked for. A file that a process has
    hashed once is not read again while its size and times stay as they are.
    """
    now = fingerprint_of(path)
    if now != fingerprint:
        raise _replaced(storage.place_of(path), fingerprint, now)


def _replaced(place: Path | str, begun: str, now: str) -> InputError:
    what = f"was replaced while a stage was reading it (fingerprint {begun[:8]} at the start, {now[:8]} now)"
    return InputError(what, place, "leave inputs as they are while a stage runs; give a new --output, and run the stage again")


def _refuse_rewritten(found: Artifact) -> None:
    for file in found.files if found.kind in _MODELS else ():
        if _sha256(found.path / file.path) != file.sha256:
            fix = f"make the model again; or remove its {MANIFEST}, if it is to be used as a model from elsewhere"
            raise InputError("was written to after raydense made it", found.path / file.path, fix)


def _sha256(file: Path) -> str:
    known = file.stat()
    return _sha256_of(file.absolute(), known.st_size, known.st_mtime_ns, known.st_ctime_ns)


@lru_cache(maxsize=4_096)
def _sha256_of(file: Path, size: int, written: int, changed: int) -> str:
    """Once a process for a file that stays as it is: a recipe asks for the same model before each of its stages."""
    with open(file, "rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


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
    folder = storage.place_of(output)
    if isinstance(folder, str):
        from raydense.storage.bucket_draft import StoreDraft  # as in Draft.open

        StoreDraft.discard_untouched(folder)
        return
    begun = {folder / WORK / name for name in ("lock", "commits", BEGUN)}
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


def as_json(value: object) -> str:
    """The text of our JSON files."""
    return json.dumps(value, indent=1, ensure_ascii=False)


def write_json(path: Path, value: object, aside_in: Path | None = None) -> None:
    """Write a JSON file; it is the old one or the new one, never half."""
    storage.write_whole(path, as_json(value).encode(), aside_in)


def provenance(stage: str, settings: Any) -> dict[str, Any]:
    """What the output of a stage is made from: the stage, the settings that shape it, and the fingerprint of each input.

    Inputs that are lists have names, which the output shows: these belong to it. Raises InputError where an input is missing,
    unfinished, or of another kind than its setting says.
    """
    inputs: dict[str, Any] = {}
    names: list[str] = []
    for key, kind in settings.inputs().items():
        value = settings.value_of(key)
        if isinstance(value, list):
            named = [named_folder(item) for item in value]
            inputs[key] = [_input_fingerprint(folder, kind) for _, folder in named]
            names += [name for name, _ in named]
        elif value is not None:
            inputs[key] = _input_fingerprint(value, kind)
    return {"stage": stage, "settings": settings.shaping(), "inputs": inputs} | ({"names": names} if names else {})


def provenance_of(there: dict[str, Any], stage: str, settings: Any) -> dict[str, Any]:
    """As `provenance`, with what `settings` leave open (`left_open`) as `there` has it, which is what an output was made from."""
    made_from = provenance(stage, settings)
    for part in ("settings", "inputs"):
        made_from[part] |= {key: value for key, value in there.get(part, {}).items() if key in settings.left_open()}
    return made_from


def named_folder(item: str) -> tuple[str, str]:
    """The name and the folder of `NAME=folder` or of `folder`, which is called as it is itself called."""
    name, folder = storage.named(item)
    return name or Path(folder).resolve().name, folder


def _input_fingerprint(value: str, kind: str) -> str:
    if kind == "model":
        return value if value == "tiny" else fingerprint_of(value)
    if kind == "source":
        return fingerprint_of(value) if storage.exists(value) else value
    return Artifact.open(value, kind).fingerprint
