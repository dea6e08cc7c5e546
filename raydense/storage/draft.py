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
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

from raydense.errors import InputError, LostOutput, StorageError
from raydense.storage import holds
from raydense.storage.artifact import ASIDE, FORMAT_VERSION, MANIFEST, WORK, Artifact, File, fingerprint_of_files, read_manifest
from raydense.storage.commits import COMMITS, Commits, log_damaged
from raydense.storage.digest import as_json, digest_of, write_json
from raydense.storage.files import ASIDES, follow_umask, sha256_of
from raydense.storage.place import Place, delete_within, together
from raydense.storage.provenance import differences, versions
from raydense.storage.unfinished import BEGUN, OURS, begun_from, made_something


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
        other settings or inputs, or if another process is writing to it. A finished output is only read.
        """
        draft = cls(Place.of(output), kind, json.loads(json.dumps(made_from)))
        there, _ = draft._found()
        if there is not None and not there.damaged():
            draft.done = Artifact.open(draft.place, kind)
            if not (draft.work.is_dir() or (draft.place / WORK).is_folder()):
                return draft
        try:  # where the stage was killed in its last lines, its work folder is removed
            holds.acquire(draft, draft.place / WORK)
        except (InputError, OSError):
            if draft.done:  # another process is in these lines, or the folder is read-only
                return draft
            raise
        draft._continue()
        return draft

    def _found(self) -> tuple[Artifact | None, dict[str, Any] | None]:
        """The finished output, or what an unfinished one was made from. InputError if it is of something else."""
        manifest = read_manifest(self.place)
        if manifest is not None:
            self._refuse_other(manifest["made_from"] if manifest["kind"] == self.kind else {"kind": manifest["kind"]})
            return Artifact(self.place, manifest), None
        begun = begun_from(self.place)
        if begun is not None:
            self._refuse_other(begun)
        elif (self.place.stat() or set(self.place.entries()) - {WORK}) and read_manifest(self.place) is None:  # nor finished meanwhile
            raise InputError("exists and is not an artifact of raydense", self.place, "give another --output")
        return None, begun

    def _continue(self, reopen: bool = False) -> None:
        """Look again, now that no other process writes, and go on from what is there; with `reopen` also where it is finished."""
        try:
            there, begun = self._found()
            damaged = there.damaged() if there else []
            if there and not (damaged or reopen):
                self.done = Artifact.open(self.place, self.kind)
                self.forget()
                holds.end(self.place)
                return
            self.done = None
            self._make_folder()
            self._sweep()
            if there:
                self._restore(there, damaged)
            else:
                self._resume(begun is not None)
        except BaseException:
            self.close()
            raise

    def _sweep(self) -> None:
        """Remove what kills left incomplete: here, where no task of this stage runs yet."""
        for aside in self.work.glob(f"{ASIDE}*"):
            shutil.rmtree(aside, ignore_errors=True)
        for file in self.work.glob(ASIDES):
            file.unlink(missing_ok=True)

    def _resume(self, begun: bool) -> None:
        if not begun:
            marked = (self.place / WORK / BEGUN).read()
            if marked is None or json.loads(marked) != self.made_from:
                self.forget()  # of an earlier output of the same name
                self._make_folder()
            self._mark()
        self._commits.send_left()
        self._commits.drop_damaged()

    def _restore(self, there: Artifact, damaged: list[File]) -> None:
        """Turn an artifact back into the draft that it was, without its damaged files."""
        if damaged:
            log_damaged(self.place, damaged)
        self._mark()
        self._commits.restore([file for file in there.files if file not in damaged])
        self._commits.drop_damaged()
        (self.place / MANIFEST).delete()

    def _make_folder(self) -> None:
        (self.work / COMMITS).mkdir(parents=True, exist_ok=True)

    def _mark(self) -> None:
        (self.place / WORK / BEGUN).write_text(as_json(self.made_from))

    def reopen(self) -> None:
        """Continue a finished output and keep its files: `done` is None from now on, and `finish` must be called again."""
        if self.done is not None:
            holds.acquire(self, self.place / WORK)
            self._continue(reopen=True)

    def close(self) -> None:
        """Release the right to write here; the end of the stage releases it too (`releases_outputs`), and that of the process."""
        holds.release(self.place)

    def discard(self) -> None:
        """Remove the output, with all that was committed; nothing that another process may have written or finished.

        The work folder goes last: after a kill the same command continues.
        """
        if self._is_own():
            delete_within(self.place, WORK)
            self.forget()
            holds.forget_within(self.place)
            holds.end(self.place)

    def _is_own(self) -> bool:
        hold = holds.hold_of(self.place)
        try:
            if hold is not None:
                hold.confirm()
        except (InputError, StorageError):
            return False
        return hold is not None and (self.place / MANIFEST).stat() is None

    def discard_untouched(self) -> None:
        """Remove the output if nothing was written to it, as when inputs are refused."""
        here = {one.name for one in self.work.glob("*")}
        if not made_something(self.place) and here <= OURS and not any((self.work / COMMITS).glob("*")):
            self.discard()

    def forget(self) -> None:
        """Remove the folder of this machine's cache in which an output in a bucket is assembled."""
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

    def kept_whole(self, name: str) -> Path:
        """As `kept`; InputError where the file is not there or damaged."""
        path = self.kept(name)
        if path is None:
            raise self._gone(name)
        return path

    def kept_head(self, name: str, size: int) -> bytes:
        """The first `size` bytes of what `keep` wrote on any machine: of a bucket without the rest. InputError as `kept_whole`."""
        if not self.place.durable:
            with open(self.kept_whole(name), "rb") as stream:
                return stream.read(size)
        try:
            found = (self.place / WORK / name).head(size)
        except FileNotFoundError:
            found = b""
        if len(found) < size:
            raise self._gone(name)
        return found

    def lacks(self, names: Iterable[str]) -> set[str]:
        """Those of these names that `kept` would not find on another machine; of a bucket, which protects its bytes, none is fetched for that."""
        if not self.place.durable:
            return {name for name in names if self.kept(name) is None}
        there = (self.place / WORK).files().keys()
        return {name for name in names if not {name, f"{name}.sha256"} <= there}

    def has_kept(self, name: str) -> bool:
        """Whether `kept` may find this file here: it was written and is there; what it holds is not read."""
        if self._kept_record(name).read_text() is None:
            return False
        there = self.place / WORK / name
        return (self.work / name).is_file() or (there.durable and there.stat() is not None)

    def first(self, name: str, text: str) -> str:
        """Write `text` under this name of the shared folder, unless a process of any machine has: its text then."""
        with self.aside() as aside:
            (aside / name).write_text(text)
            try:
                (self.shared / name).publish(aside / name, new=True)
            except FileExistsError:
                return (self.shared / name).read_text() or text
        return text

    def _gone(self, name: str) -> InputError:
        return InputError("is gone or damaged since it was written", self.place / WORK / name, "run the same command again")

    def _kept_record(self, name: str) -> Place:
        return self.place / WORK / f"{name}.sha256"

    @contextmanager
    def aside(self) -> Iterator[Path]:
        """A new folder of this machine for files that are about to be committed; removed afterwards."""
        aside = self.work / f"{ASIDE}{uuid.uuid4().hex}"
        aside.mkdir(parents=True)
        try:
            yield aside
        finally:
            shutil.rmtree(aside, ignore_errors=True)

    def _place(self, aside: Path, path: str, rows: int, note: dict[str, Any]) -> File:
        hold = holds.hold_of(self.place)
        if hold is not None:
            hold.check()
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

        LostOutput if another process took over the output, or finished it.
        """
        hold = holds.hold_of(self.place)
        if hold is not None:
            hold.confirm()
        manifest = self._manifest(rows, summary)
        self._make_folder()  # in a bucket all files may be other machines', and an empty folder here be removed after a week
        write_json(self.work / MANIFEST, manifest)
        try:
            (self.place / MANIFEST).publish(self.work / MANIFEST, new=True)
        except FileExistsError:
            fix = "run the same command again: it finds the output finished, or reports what differs"
            raise LostOutput("another process has finished this output", self.place, fix) from None
        self._keep_copy(manifest)
        if hold is None:
            (self.place / WORK).delete()
        else:
            holds.end(self.place)
        return Artifact.open(self.place, self.kind)

    def _keep_copy(self, manifest: dict[str, Any]) -> None:
        """Let the files that this machine made be its cached copy of an output in a bucket, if all are those of the manifest: another may have made some again."""
        if not self.place.durable:
            return
        sizes = {file["path"]: file["bytes"] for file in manifest["files"]}
        made = together(self._commits.made_here, sizes)
        if [file and file.sha256 for file in made] == [file["sha256"] for file in manifest["files"]]:
            self.place.adopt(self.folder, manifest["fingerprint"], sizes)
        else:
            self.forget()

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
