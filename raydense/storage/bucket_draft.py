"""The draft of an output in a store: put together in a folder of this machine, each committed file sent when it is whole.

The store has, in this order, a file, the record of its commit (`.work/commits/`), and at the end `manifest.json`; so another
machine goes on from the records, and fetches a file only where a later step reads it. Local locks do not reach other machines:
who writes says so in `.work/writer.json`, again and again, and whoever finds that fresh is refused.
"""

from __future__ import annotations

import json
import os
import socket
import threading
import time
import uuid
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

import psutil

from raydense import storage
from raydense.errors import InputError
from raydense.storage.artifact import (
    BEGUN,
    MANIFEST,
    WORK,
    WRITER,
    Artifact,
    Draft,
    File,
    as_json,
    begun_from,
    digest_of,
    read_manifest,
    record_name,
    write_json,
)

_RENEWED_EVERY_S, FRESH_S = 15.0, 60.0
# What this process says of itself, by output; the end of the process ends it.
_WRITERS: dict[str, _Writer] = {}


class StoreDraft(Draft):
    """A `Draft` whose artifact will lie in a store; `folder` is another one on each machine."""

    def __init__(self, uri: str, kind: str, made_from: dict[str, Any]) -> None:
        super().__init__(storage.workplace(uri, digest_of(made_from)), kind, made_from)
        self.uri, self._host = uri, socket.gethostname()

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self.folder = storage.workplace(self.uri, digest_of(self.made_from))  # this machine's

    @classmethod
    def begin(cls, uri: str, kind: str, made_from: dict[str, Any]) -> StoreDraft:
        """As `Draft.open`."""
        draft = cls(uri, kind, made_from)
        manifest = read_manifest(uri)
        if manifest is not None:
            draft._refuse_other(manifest["made_from"] if manifest["kind"] == kind else {"kind": manifest["kind"]})
            storage.remove(draft._in_work())
            draft.done = Artifact.open(uri, kind)
            return draft
        begun = begun_from(uri)
        if begun is None and any(not name.startswith(f"{WORK}/") for name in storage.listing(uri)):
            raise InputError("exists and is not an artifact of raydense", uri, "give another --output")
        if begun is not None:
            draft._refuse_other(begun)
        (draft.work / "commits").mkdir(parents=True, exist_ok=True)
        draft._take_lock()
        said = storage.read(draft._in_work(BEGUN))
        if said is None or json.loads(said) != made_from:
            draft._forget()
            storage.put(draft._in_work(BEGUN), as_json(made_from).encode())
        draft._send_left()
        return draft

    @property
    def place(self) -> str:
        return self.uri

    @property
    def shared(self) -> str:
        return self._in_work()

    @property
    def located(self) -> str:
        return self.uri

    def _in_work(self, *names: str) -> str:
        return str(storage.join(self.uri, WORK, *names))

    def _take_lock(self) -> None:
        super()._take_lock()
        try:
            # what lies in an output of this process is nobody else's, whatever the last one said of it
            inside = any(self.uri.startswith(f"{other}/") for other in _WRITERS)
            _WRITERS[self.uri] = _Writer(self._in_work(WRITER), alone=inside)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        super().close()
        writer = _WRITERS.pop(self.uri, None)
        if writer is not None:
            writer.end()

    def discard(self) -> None:
        self.close()
        storage.remove(self.uri)
        storage.forget(self.folder)

    @classmethod
    def discard_untouched(cls, uri: str) -> None:
        """Remove what this process began at `uri` and put nothing into."""
        begun = {f"{WORK}/{name}" for name in (BEGUN, WRITER)}
        if uri not in _WRITERS or not set(storage.listing(uri)) <= begun:
            return
        draft = cls(uri, "", json.loads(storage.read(f"{uri}/{WORK}/{BEGUN}") or b"{}"))
        if {path.name for path in draft.work.iterdir()} <= {"lock", "commits"}:
            draft.discard()

    def _forget(self) -> None:
        """Remove what this machine has of an earlier output of the same name, which the store has no more."""
        for file in self.folder.rglob("*"):
            if file.is_file() and file != self.work / "lock":
                file.unlink()

    def _send_left(self) -> None:
        """Send what this machine had committed when it was stopped on the way to the store."""
        there = set(storage.listing(self._in_work("commits")))
        for record in sorted((self.work / "commits").glob("*.json")):
            file = File(**json.loads(record.read_text()))
            data = self.folder / file.path
            if record.name not in there and data.is_file() and data.stat().st_size == file.bytes:
                self._send(file)

    def committed(self) -> dict[str, File]:
        commits = self._in_work("commits")
        records = storage.together(storage.read, [f"{commits}/{name}" for name in sorted(storage.listing(commits))])
        return {file.path: file for file in (self._recorded(record) for record in records if record)}

    def _recorded(self, record: bytes) -> File:
        """The file that a record of the store tells of. InputError where it names one outside of the output: anybody may have written it."""
        file = File(**json.loads(record))
        if not storage.safe_name(file.path):
            raise InputError("a record of it names a file outside its folder", self.uri, "delete the folder and make it again")
        return file

    def _place(self, aside: Path, path: str, rows: int, note: dict[str, Any]) -> File:
        (self.work / "commits").mkdir(parents=True, exist_ok=True)
        file = super()._place(aside, path, rows, note)
        self._send(file)
        if socket.gethostname() != self._host:  # nothing reads it here again
            (self.folder / path).unlink(missing_ok=True)
        return file

    def _send(self, file: File) -> None:
        storage.put_file(f"{self.uri}/{file.path}", self.folder / file.path)
        record = as_json(asdict(file))
        storage.put(self._in_work("commits", record_name(file.path)), record.encode())

    def read(self, path: str) -> Path:
        here, name = self.folder / path, record_name(path)
        record = storage.read(self._in_work("commits", name))
        if record is None:
            raise InputError("was not committed", storage.join(self.uri, path), "delete the folder and make it again")
        file, own = self._recorded(record), self.work / "commits" / name
        with storage.locked(self.work / f"read-{name}"):
            same = own.is_file() and File(**json.loads(own.read_text())).sha256 == file.sha256
            if not same or not here.is_file() or here.stat().st_size != file.bytes:
                storage.fetch(f"{self.uri}/{path}", here, file.bytes, file.sha256)
                own.parent.mkdir(parents=True, exist_ok=True)
                write_json(own, asdict(file))
        return here

    def keep(self, name: str, write: Callable[[Path], object]) -> None:
        super().keep(name, write)
        storage.put_file(self._in_work(name), self.work / name)

    def kept(self, name: str) -> Path | None:
        found = storage.listing(self._in_work(name)).get("")
        if found is None:
            return None
        here = self.work / name
        with storage.locked(self.work / f"read-{name}"):
            if not here.is_file() or here.stat().st_size != found.size:
                storage.fetch(self._in_work(name), here, found.size, None)
        return here

    def finish(self, rows: int, **summary: Any) -> Artifact:
        manifest = self._manifest(rows, summary)
        content = as_json(manifest).encode()
        storage.put(f"{self.uri}/{MANIFEST}", content)
        self.close()
        storage.remove(self._in_work())
        storage.adopt(self.folder, manifest["fingerprint"], {f["path"]: f["bytes"] for f in manifest["files"]}, content)
        return Artifact.open(self.uri, self.kind)


class _Writer:
    """Says in a store that this process writes there, until `end`; InputError where another one says so, but for who is `alone`."""

    def __init__(self, uri: str, alone: bool) -> None:
        self._uri, self._ended, self._speaking = uri, threading.Event(), threading.Lock()
        self._own = {"host": socket.gethostname(), "pid": os.getpid(), "token": uuid.uuid4().hex}
        if not alone:
            self._refuse(self._read())
        self._say()
        if not alone:
            self._refuse(self._read())  # of two who began at once, the one who spoke last stays
        threading.Thread(target=self._renew, name="writer", daemon=True).start()

    def _read(self) -> dict[str, Any] | None:
        try:
            return json.loads(storage.read(self._uri) or b"null")
        except ValueError:
            return None

    def _refuse(self, other: dict[str, Any] | None) -> None:
        if other is None or other["token"] == self._own["token"]:
            return
        here = other["host"] == self._own["host"]
        gone = here and (other["pid"] == self._own["pid"] or not psutil.pid_exists(other["pid"]))
        age = time.time() - other["time"]
        if not gone and age < FRESH_S:
            what = f"another process is writing here (process {other['pid']} of {other['host']}, {max(age, 0):.0f} s ago)"
            place = self._uri.removesuffix(f"/{WORK}/{WRITER}")
            raise InputError(what, place, f"wait for it, or, where it is gone, {FRESH_S:.0f} s; or give another --output")

    def _say(self) -> None:
        storage.put(self._uri, json.dumps({**self._own, "time": time.time()}).encode())

    def _renew(self) -> None:
        while not self._ended.wait(_RENEWED_EVERY_S):
            with self._speaking:
                if not self._ended.is_set():
                    with suppress(Exception):  # the work itself will say it; at the end of the process pyarrow says more
                        self._say()

    def end(self) -> None:
        """Stop saying it, and take it back."""
        self._ended.set()
        with self._speaking:
            storage.remove(self._uri)
