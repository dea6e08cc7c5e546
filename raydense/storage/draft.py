"""A draft: the unfinished output of a stage. It appears whole, and work on it resumes after a kill.

A stage opens a `Draft`, commits files to it one by one, and finishes it. Each committed file has a record in the work folder, written
after it; `manifest.json` is written last, and makes the folder an artifact. In a bucket both are uploaded when they are complete, so
that another machine can continue from the records; it fetches a file only if a later step reads it.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import socket
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

from raydense.errors import InputError
from raydense.storage.artifact import FORMAT_VERSION, MANIFEST, WORK, Artifact, File, fingerprint_of_files, read_manifest
from raydense.storage.commits import COMMITS, Commits, log_damaged
from raydense.storage.digest import as_json, digest_of, write_json
from raydense.storage.files import follow_umask, sha256_of
from raydense.storage.lease import WRITER
from raydense.storage.local_place import LOCK
from raydense.storage.place import Hold, Place
from raydense.storage.provenance import differences, versions

BEGUN = "made_from.json"
_OURS = {BEGUN, COMMITS, LOCK, WRITER}  # in a work folder in which nothing was made yet
# The outputs that this process writes; they are released when the process ends.
_HELD: dict[str, Hold] = {}


class Draft:
    """An unfinished output folder; picklable, so that workers can commit to it too.

    `folder` is where it is assembled: the output itself, or, for an output in a bucket, a folder of this machine's cache.
    """

    def __init__(self, place: Place, kind: str, made_from: dict[str, Any]) -> None:
        self.place, self.kind, self.made_from = place, kind, made_from
        self.folder = place.working(digest_of(made_from))
        self.done: Artifact | None = None
        self._host = socket.gethostname()

    def __getstate__(self) -> dict[str, Any]:
        # a worker may have another working directory, and another machine's cache
        return {**self.__dict__, "place": self.located, "folder": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self.folder = self.place.working(digest_of(self.made_from))

    @classmethod
    def open(cls, output: str | os.PathLike[str], kind: str, made_from: dict[str, Any]) -> Draft:
        """Start the output of a stage, or continue it; `draft.done` is the artifact if it is finished. Damaged files are dropped.

        `made_from` is JSON: the stage, its settings, its inputs' fingerprints. InputError if the folder was made from
        other settings or inputs, or if another process is writing to it.
        """
        draft = cls(Place.of(output), kind, json.loads(json.dumps(made_from)))
        manifest = read_manifest(draft.place)
        if manifest is not None:
            draft._refuse_other(manifest["made_from"] if manifest["kind"] == kind else {"kind": manifest["kind"]})
            there = Artifact(draft.place, manifest)
            damaged = there.damaged()
            if damaged:
                log_damaged(draft.place, damaged)
                draft._reopen(there, damaged)
            else:
                (draft.place / WORK).delete()  # where the stage was killed in its last lines
                draft.done = Artifact.open(draft.place, kind)
            return draft
        begun, marked = begun_from(draft.place), (draft.place / WORK / BEGUN).read()
        if begun is not None:
            draft._refuse_other(begun)
        elif draft.place.stat() is not None or any(name != WORK for name in draft.place.entries()):
            raise InputError("exists and is not an artifact of raydense", draft.place, "give another --output")
        draft._begin()
        if begun is None:
            if marked is None or json.loads(marked) != draft.made_from:
                draft.place.forget(digest_of(draft.made_from))  # of an earlier output of the same name
            draft._mark()
        draft._commits.send_left()
        draft._commits.drop_damaged()
        return draft

    def _begin(self) -> None:
        """Acquire the right to write here."""
        (self.work / COMMITS).mkdir(parents=True, exist_ok=True)
        self.close()  # a stage that failed in this process may be run again in it
        _HELD[self.place.located] = (self.place / WORK).hold()

    def _mark(self) -> None:
        (self.work / COMMITS).mkdir(parents=True, exist_ok=True)
        (self.place / WORK / BEGUN).write_text(as_json(self.made_from))

    def reopen(self) -> None:
        """Continue a finished output and keep its files: `done` is None from now on, and `finish` must be called again."""
        if self.done is not None:
            self._reopen(self.done, [])
            self.done = None

    def _reopen(self, there: Artifact, damaged: list[File]) -> None:
        """Turn an artifact back into the draft that it was, without its damaged files."""
        self._begin()
        self._mark()
        self._commits.restore([file for file in there.files if file not in damaged])
        self._commits.drop_damaged()
        (self.place / MANIFEST).delete()

    def close(self) -> None:
        """Release the right to write here; the end of the process releases it too."""
        hold = _HELD.pop(self.place.located, None)
        if hold is not None:
            hold.release()

    def discard(self) -> None:
        """Remove the output, with all that was committed."""
        self.close()
        self.place.delete()
        self.place.forget(digest_of(self.made_from))

    def _refuse_other(self, there: dict[str, Any]) -> None:
        if "kind" in there:
            what = f"holds {there['kind']}, and this makes {self.kind}"
            raise InputError(what, self.place, "give another --output, or delete this folder")
        differing = differences(there, self.made_from)
        if differing:
            raise InputError(f"was made from something else ({differing})", self.place, "give another --output, or delete this folder")

    @property
    def work(self) -> Path:
        """A folder of this machine for temporary files; removed when the artifact is finished."""
        return self.folder / WORK

    @property
    def shared(self) -> Place:
        """As `work`, but visible to every machine that works on the artifact: on storage that all mount, or in the bucket.

        A training keeps there what its workers share: checkpoints, weights, history.
        """
        return self.located / WORK

    @property
    def located(self) -> Place:
        """`place` by its absolute path, for a process in another working directory or on another machine."""
        return Place.of(self.place.located)

    @property
    def _commits(self) -> Commits:
        return Commits(self.place, self.folder)

    def committed(self) -> dict[str, File]:
        """The files committed so far, by path."""
        return {commit.file.path: commit.file for commit in self._commits.all()}

    def commit(self, path: str, write: Callable[[Path], object], rows: int, **note: Any) -> File:
        """Write one file of the artifact: `write` gets a temporary path; the file appears under its own name only when it is complete."""
        with self.aside() as aside:
            write(aside / Path(path).name)
            return self._place(aside / Path(path).name, path, rows, note)

    def commit_tree(self, write: Callable[[Path], object]) -> list[File]:
        """Write several files that belong together (a model): `write` gets an empty folder, and all that it holds is committed."""
        with self.aside() as aside:
            write(aside)
            inner = sorted(p for p in aside.rglob("*") if p.is_file())
            return [self._place(p, str(p.relative_to(aside)), 0, {}) for p in inner]

    def read(self, path: str) -> Path:
        """The path on this machine of a file that any machine committed."""
        file, here = self._commits.of(path), self.folder / path
        if file is None:
            raise InputError("was not committed", self.place / path, "delete the folder and make it again")
        made = self._commits.made_here(path)
        if here.is_file() and made is not None and made.sha256 == file.sha256:
            return here
        return self.place.fetch(path, file.bytes, file.sha256, file.sha256)

    def keep(self, name: str, write: Callable[[Path], object]) -> None:
        """Write one file of the work folder, for a later step of the stage; it appears under its name only when it is complete."""
        with self.aside() as aside:
            write(aside / name)
            digest = _settled(aside / name)
            os.replace(aside / name, self.work / name)
        (self.place / WORK / name).publish(self.work / name, keep=self._on_own_machine())
        self._kept_record(name).write_text(digest)

    def kept(self, name: str) -> Path | None:
        """The path on this machine of what `keep` wrote on any machine, or None if it was not written, or is damaged."""
        digest, here = self._kept_record(name).read_text(), self.work / name
        if digest is None:
            return None
        if here.is_file() and sha256_of(here) == digest:
            return here
        there = self.place / WORK / name
        return there.fetch(sha256=digest) if there.durable and there.stat() is not None else None

    def _kept_record(self, name: str) -> Place:
        return self.place / WORK / f"{name}.sha256"

    @contextmanager
    def aside(self) -> Iterator[Path]:
        """A new folder of this machine for files that are about to be committed; removed afterwards."""
        aside = self.work / f"aside-{uuid.uuid4().hex}"
        aside.mkdir(parents=True)
        try:
            yield aside
        finally:
            shutil.rmtree(aside, ignore_errors=True)

    def _place(self, aside: Path, path: str, rows: int, note: dict[str, Any]) -> File:
        digest = _settled(aside)
        file = File(path, rows, aside.stat().st_size, digest, note)
        target = self.folder / path
        target.parent.mkdir(parents=True, exist_ok=True)
        os.replace(aside, target)
        self._commits.begin(file)
        self._commits.publish(file, keep=self._on_own_machine())
        return file

    def _on_own_machine(self) -> bool:
        """Whether this process is where the draft was opened: files that another machine sent to a bucket are removed there, as nothing else would."""
        return socket.gethostname() == self._host

    def finish(self, rows: int, **summary: Any) -> Artifact:
        """Write the manifest of the committed files: the folder is then an artifact, and its work folder is removed.

        InputError if another process took over the output, or finished it.
        """
        hold = _HELD.get(self.place.located)
        if hold is not None:
            hold.confirm()
        manifest = self._manifest(rows, summary)
        write_json(self.work / MANIFEST, manifest)
        try:
            (self.place / MANIFEST).publish(self.work / MANIFEST, new=True)
        except FileExistsError:
            fix = "run the same command again: it finds the output finished, or reports what differs"
            raise InputError("another process has finished this output", self.place, fix) from None
        self.close()
        (self.place / WORK).delete()
        self.place.adopt(self.folder, manifest["fingerprint"], {file["path"]: file["bytes"] for file in manifest["files"]})
        return Artifact.open(self.place, self.kind)

    def _manifest(self, rows: int, summary: dict[str, Any]) -> dict[str, Any]:
        files = [asdict(f) for _, f in sorted(self.committed().items())]
        return {
            "kind": self.kind,
            "format_version": FORMAT_VERSION,
            "rows": rows,
            "fingerprint": fingerprint_of_files(self.kind, self.made_from, files),
            "made_from": self.made_from,
            "summary": summary,
            "files": files,
            "versions": versions(),
        }


def _settled(file: Path) -> str:
    """Let a new file reach the disk, with the permissions that the umask asks for; its sha256."""
    follow_umask(file)
    with open(file, "rb") as stream:
        os.fsync(stream.fileno())
        return hashlib.file_digest(stream, "sha256").hexdigest()


def begun_from(output: str | os.PathLike[str]) -> dict[str, Any] | None:
    """The provenance of unfinished work in a folder; None if nothing was made yet, as by a stage that refused its input."""
    place = Place.of(output)
    begun = (place / WORK / BEGUN).read()
    return json.loads(begun) if begun is not None and _made_something(place) else None


def _made_something(place: Place) -> bool:
    work = place / WORK
    return set(place.entries()) != {WORK} or not set(work.entries()) <= _OURS or bool((work / COMMITS).entries())


def commits_in(output: str | os.PathLike[str]) -> int:
    """How many files unfinished work in a folder has committed."""
    return len((Place.of(output) / WORK / COMMITS).names("*.json"))


def discard_untouched(output: str | os.PathLike[str]) -> None:
    """Remove an output that this process opened and wrote nothing to, as when its inputs are refused."""
    place = Place.of(output)
    begun = (place / WORK / BEGUN).read() if place.located in _HELD else None
    if begun is None or _made_something(place):
        return
    draft = Draft(place, "", json.loads(begun))
    if set(os.listdir(draft.work)) <= _OURS and not os.listdir(draft.work / COMMITS):
        draft.discard()
