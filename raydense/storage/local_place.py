"""A file or folder of this machine, or one that several machines mount."""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from raydense.errors import InputError, LostOutput
from raydense.storage.files import (
    alone,
    aside_of,
    is_aside,
    left_of,
    make_folder,
    move_new,
    open_lock,
    remove_left,
    settle,
    sha256_of,
    sync,
    take,
    walk,
    write_whole,
)
from raydense.storage.paths import scheme_of
from raydense.storage.place import Found, Place, delete_within

LOCK = "lock"
_TRIES = 100  # others would have to remove the folder as often, each in the instant before


@dataclass(frozen=True)
class LocalPlace(Place, schemes=("", "file")):
    """A path, or a `file:` URI. Files appear by renaming."""

    path: Path
    look_every_s = 0.1
    everywhere = False
    durable = False

    @classmethod
    def normalised(cls, text: str) -> str:
        scheme, _ = scheme_of(text)
        return _of_uri(text) if scheme == "file" else text

    @classmethod
    def parse(cls, text: str) -> LocalPlace:
        return cls(Path(text))

    def __truediv__(self, name: str) -> LocalPlace:
        return LocalPlace(self.path / name)

    def __fspath__(self) -> str:
        return str(self.path)

    __str__ = __fspath__

    @property
    def name(self) -> str:
        last = os.path.basename(os.path.normpath(self.path))
        return self.path.resolve().name if last in ("", ".", "..") else last

    @property
    def located(self) -> str:
        return os.path.abspath(self.path)

    def stat(self) -> Found | None:
        try:
            return _found(self.path) if self.path.is_file() else None
        except FileNotFoundError:
            return None

    def read(self) -> bytes | None:
        try:
            return self.path.read_bytes()
        except (FileNotFoundError, NotADirectoryError):
            return None

    def head(self, size: int) -> bytes:
        with open(self.path, "rb") as stream:
            return stream.read(size)

    def tail(self, offset: int, most: int) -> tuple[int, bytes]:
        try:
            with open(self.path, "rb") as stream:
                size = os.fstat(stream.fileno()).st_size
                begin = offset if size >= offset else 0
                stream.seek(begin)
                return begin, stream.read(min(most, size - begin))
        except FileNotFoundError:
            return 0, b""

    def write(self, content: bytes) -> None:
        make_folder(self.path.parent)
        write_whole(self.path, content)

    @contextmanager
    def writing(self, new: bool = False) -> Iterator[Path]:
        aside = aside_of(self.path)
        make_folder(aside.parent)
        remove_left(left_of(self.path))
        try:
            yield aside
            settle(aside)
            (move_new if new else os.replace)(aside, self.path)
            with suppress(PermissionError):  # it can be written to, and need not be readable
                sync(self.path.parent)
        finally:
            LocalPlace(aside).delete()

    def publish(self, file: Path, new: bool = False, keep: bool = True) -> str:
        if file != self.path:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            (move_new if new else os.replace)(file, self.path)
        return ""

    def sha256(self) -> str:
        return sha256_of(self.path)

    def is_folder(self) -> bool:
        return self.path.is_dir()

    def exists(self) -> bool:
        return self.path.exists()

    def entries(self) -> list[str]:
        try:
            return sorted(os.listdir(self.path))
        except (FileNotFoundError, NotADirectoryError):
            return []

    def files(self) -> dict[str, Found]:
        below = walk(self.path, lambda folder: os.access(folder, os.R_OK | os.X_OK))
        found = ((file, LocalPlace(file).stat()) for file in below)
        return {file.relative_to(self.path).as_posix(): known for file, known in found if known}

    def names(self, pattern: str) -> list[str]:
        found = (file for file in self.path.glob(pattern) if file.is_file() and not is_aside(file))
        return sorted(file.relative_to(self.path).as_posix() for file in found)

    def stats(self, names: list[str]) -> list[Found | None]:
        return [(self / name).stat() for name in names]

    def delete(self) -> None:
        if self.path.is_dir():
            shutil.rmtree(self.path, ignore_errors=True)
        else:
            self.path.unlink(missing_ok=True)

    def fetch(self, name: str = "", size: int | None = None, sha256: str | None = None, entry: str = "") -> Path:
        return self.path / name

    def reserve(self, entry: str, size: int) -> None:
        return

    def local(self) -> Path:
        return self.path

    def adopt(self, folder: Path, entry: str, sizes: dict[str, int]) -> None:
        return

    def working(self, key: str) -> Path:
        return self.path

    def forget(self, key: str = "") -> None:
        return

    def growing(self) -> Path:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        return self.path

    def sent(self) -> bytes | None:
        return None

    def send(self) -> None:
        return

    @contextmanager
    def lock(self) -> Iterator[None]:
        with alone(self.path.with_name(f"{self.path.name}.{LOCK}")):
            yield

    def hold(self) -> FileLock:
        return FileLock(self)

    def for_ray(self) -> dict[str, Any]:
        return {"storage_path": str(self.path)}


class FileLock:
    """A lock file in the work folder of an output; the end of the process releases it."""

    def __init__(self, work: LocalPlace) -> None:
        self._work = work
        for tries in range(_TRIES):
            try:
                self._descriptor = self._locked()
                return
            except (FileNotFoundError, FileExistsError) as error:  # the work folder was removed meanwhile, with what was locked
                if tries == _TRIES - 1:
                    raise InputError(f"cannot be made a folder ({error.strerror})", work.path.parent, "give another --output") from None

    def _locked(self) -> int:
        file = self._work.path / LOCK
        file.parent.mkdir(parents=True, exist_ok=True)
        descriptor = open_lock(file)
        try:
            take(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB, self._work.path.parent)
            if not os.path.samestat(os.fstat(descriptor), os.stat(file)):
                raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(file))
        except BaseException as error:
            os.close(descriptor)
            if isinstance(error, BlockingIOError):
                fix = "wait for it, or give another --output"
                raise LostOutput("another process is writing here", self._work.path.parent, fix) from None
            if isinstance(error, OSError) and error.errno == errno.ESTALE:  # of NFS, where another machine removed the file
                raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(file)) from None
            raise
        return descriptor

    def confirm(self) -> None:
        return

    def check(self) -> None:
        return

    def release(self) -> None:
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:  # it may be released already, and its number be another file's
            os.close(descriptor)

    def abandon(self) -> None:
        self.release()

    def end(self) -> None:
        try:
            delete_within(self._work, LOCK)
            (self._work / LOCK).delete()  # last: who opened it before looks again, and who comes later makes a new one
        finally:
            self.release()  # before the folder goes: NFS keeps in it a file that is open
        with suppress(OSError):  # who came later is there
            self._work.path.rmdir()
            self._work.path.parent.rmdir()


def _of_uri(uri: str) -> str:
    """The path of a `file:` URI. InputError if it names a machine or no path, or has options."""
    rest = uri.partition(":")[2]
    host, _, path = rest[2:].partition("/") if rest.startswith("//") else ("", "/", rest[1:])
    if host not in ("", "localhost") or "?" in path or "#" in path:
        what = "names a machine before the path" if host not in ("", "localhost") else "has '?' or '#' in it"
        raise InputError(what, "file://***", "give the whole path, as file:///data/corpus, or without file://")
    if not path:
        raise InputError("names no path", "file://", "give the whole path, as file:///data/corpus, or without file://")
    return "/" + unquote(path)


def _found(file: Path) -> Found:
    known = file.stat()
    return Found(known.st_size, str(known.st_mtime_ns), known.st_mtime)
