"""The committed files of an unfinished output: each has a record, written after it; when work resumes, files are checked by their records."""

from __future__ import annotations

import hashlib
import json
from contextlib import nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path

from raydense.errors import InputError
from raydense.runtime.progress import Progress, muted, say
from raydense.storage.artifact import WORK, File
from raydense.storage.digest import as_json, write_json
from raydense.storage.files import sha256_of
from raydense.storage.paths import safe_name
from raydense.storage.place import Place, streamed, together

COMMITS = "commits"
_SHOWN_FROM = 256 << 20  # bytes to read again


@dataclass(frozen=True)
class Commit:
    """A committed file, and the version that its place gave it ("" where it gives none)."""

    file: File
    version: str = ""

    def as_record(self) -> dict[str, object]:
        return asdict(self.file) | ({"version": self.version} if self.version else {})


@dataclass(frozen=True)
class Commits:
    """The commits of the output at `place`, which this machine assembles in `folder`."""

    place: Place
    folder: Path

    @property
    def _records(self) -> Place:
        return self.place / WORK / COMMITS

    def _own(self, file: str) -> Path:
        return self.folder / WORK / COMMITS / record_name(file)

    def all(self) -> list[Commit]:
        """The commits of all machines."""
        names = self._records.names("*.json")
        return [self._read(record) for record in together(lambda name: (self._records / name).read(), names) if record]

    def of(self, path: str) -> File | None:
        """The file that any machine committed under a path."""
        record = (self._records / record_name(path)).read()
        return None if record is None else self._read(record).file

    def made_here(self, path: str) -> File | None:
        """The file that this machine committed under a path, or was about to."""
        return self._made(self._own(path))

    def _made(self, own: Path) -> File | None:
        try:
            return self._read(own.read_bytes()).file
        except (FileNotFoundError, ValueError, TypeError):  # damaged by a crash: the file is fetched or made again
            return None

    def _read(self, record: bytes) -> Commit:
        """The commit of a record. InputError where that names a file outside of the output: anybody may have written it."""
        fields = json.loads(record)
        commit = Commit(version=fields.pop("version", ""), file=File(**fields))
        if not safe_name(commit.file.path):
            raise InputError("a record of it names a file outside its folder", self.place, "delete the folder and make it again")
        return commit

    def begin(self, file: File) -> None:
        """Record on this machine a complete file in `folder`, so that an interrupted upload to a bucket is resumed later."""
        own = self._own(file.path)
        own.parent.mkdir(parents=True, exist_ok=True)
        write_json(own, Commit(file).as_record())

    def publish(self, file: File, keep: bool = True) -> None:
        """Let a file that `begin` recorded appear in the output, and then its record."""
        version = (self.place / file.path).publish(self.folder / file.path, keep=keep)
        own = self._own(file.path)
        if version:
            write_json(own, Commit(file, version).as_record())
        (self._records / own.name).publish(own, keep=keep)

    def send_left(self) -> None:
        """Upload the files that this machine committed and did not finish uploading, if they are unchanged."""
        there = set(self._records.names("*.json"))
        for own in sorted((self.folder / WORK / COMMITS).glob("*.json")):
            if own.name not in there:
                file = self._made(own)
                made = self.folder / file.path if file else None
                if file and made and made.is_file() and made.stat().st_size == file.bytes and sha256_of(made) == file.sha256:
                    self.publish(file)

    def restore(self, files: list[File]) -> None:
        """Record the files of a finished output, so that work on it can continue; without versions, since their content was not checked."""
        together(lambda file: (self._records / record_name(file.path)).write_text(as_json(Commit(file).as_record())), files)

    def drop_damaged(self) -> None:
        """Drop the records of files that are missing or have changed: these files are made again, the others stay.

        A file of a bucket whose version is that of its commit is unchanged; other files are read and hashed (sha256).
        """
        commits = self.all()
        found = self.place.stats([commit.file.path for commit in commits]) if commits else []
        damaged, doubtful = [], []
        for commit, there in zip(commits, found, strict=True):
            if there is None or there.size != commit.file.bytes:
                damaged.append(commit.file)
            elif not self.place.durable or there.version != commit.version:
                doubtful.append(commit.file)
        damaged += self._changed(doubtful)
        if damaged:
            log_damaged(self.place, damaged)
        together(lambda file: (self._records / record_name(file.path)).delete(), damaged)
        for file in damaged:
            self._own(file.path).unlink(missing_ok=True)

    def _changed(self, files: list[File]) -> list[File]:
        """The files whose bytes differ from what was committed; reads all of them."""
        large = sum(file.bytes for file in files) >= _SHOWN_FROM
        with nullcontext() if large else muted(), Progress("check committed files", len(files), "files") as progress:
            changed = []
            for file, same in zip(files, streamed(self._is_same, files), strict=True):
                progress.add(1)
                changed += [] if same else [file]
            return changed

    def _is_same(self, file: File) -> bool:
        try:
            return (self.place / file.path).sha256() == file.sha256
        except FileNotFoundError:
            return False


def record_name(path: str) -> str:
    """The name of the record of a commit."""
    return f"{Path(path).name}-{hashlib.sha256(path.encode()).hexdigest()[:12]}.json"


def log_damaged(place: Place, damaged: list[File]) -> None:
    """Log that files are made again."""
    names = ", ".join(file.path for file in damaged[:3]) + (f" and {len(damaged) - 3} more" if len(damaged) > 3 else "")
    say(f"storage: {place}: {names} missing or damaged: made again, the other files stay")
