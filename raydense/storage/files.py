"""Files of this machine: written whole, locked, hashed."""

from __future__ import annotations

import errno
import fcntl
import filecmp
import glob
import hashlib
import os
import shutil
import time
import uuid
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from functools import lru_cache
from pathlib import Path

from raydense.errors import InputError

ASIDES = ".*.aside"  # the names that `aside_of` gives
LEFT_S = 86_400.0


def aside_of(file: Path) -> Path:
    """A temporary name in the folder of `file`, under which it is written until it is complete."""
    return file.parent / f".{file.name[-60:]}.{uuid.uuid4().hex}.aside"


def is_aside(file: Path) -> bool:
    """Whether it is a file that is still being written, or that a kill left incomplete."""
    return file.name.startswith(".") and file.name.endswith(".aside")


def left_of(file: Path) -> Iterator[Path]:
    """What is being written, or a kill left incomplete, of a file or folder."""
    return file.parent.glob(f".{glob.escape(file.name[-60:])}{ASIDES}")


def remove_left(asides: Iterable[Path]) -> None:
    """Remove files and folders that are incomplete and were not written to for a day."""
    for aside in asides:
        with suppress(OSError):  # it has become complete, or is another user's
            written = max(one.stat().st_mtime for one in (aside, *aside.rglob("*")))  # a folder's own time is not that of its files
            if time.time() - written > LEFT_S:
                shutil.rmtree(aside) if aside.is_dir() else aside.unlink()


def walk(folder: Path, enters: Callable[[Path], bool] = lambda _: True, above: frozenset[Path] = frozenset()) -> Iterator[Path]:
    """The files below a folder, sorted. It follows links to folders, but not back to one `above`, and leaves out what vanishes meanwhile.

    `enters` says of each inner folder whether to look into it. PermissionError where a folder cannot be read.
    """
    above |= {folder.resolve()}
    try:
        found = sorted(folder.iterdir())
    except (FileNotFoundError, NotADirectoryError):
        return
    for path in found:
        if path.is_file():
            yield path
        elif path.is_dir() and enters(path) and path.resolve() not in above:
            yield from walk(path, enters, above)


def write_whole(file: Path, content: bytes) -> None:
    """Write a small file: readers see the old one or the new one."""
    aside = aside_of(file)
    try:
        with open(aside, "wb") as stream:
            stream.write(content)
            stream.flush()
            os.fsync(stream.fileno())
        os.replace(aside, file)
    finally:
        aside.unlink(missing_ok=True)


def follow_umask(file: Path) -> None:
    """Give a file the permissions that the umask asks for: some libraries, such as safetensors, make files that only their owner can read."""
    fresh = aside_of(file)
    fresh.touch()
    try:
        os.chmod(file, fresh.stat().st_mode & 0o777)
    finally:
        fresh.unlink()


def settle(made: Path) -> None:
    """Let a new file, or a new folder with all that is in it, reach the disk; a file with the permissions that the umask asks for."""
    if made.is_file():
        follow_umask(made)
    for one in (made, *made.rglob("*")):
        sync(one)


def sync(path: Path) -> None:
    """Let a file, or the names in a folder, reach the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:  # some mounts cannot do so for a folder
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):
            raise
    finally:
        os.close(descriptor)


def move_new(made: Path, target: Path) -> None:
    """Move a file or a folder to a name; FileExistsError if that exists, which stays, and is no file of the same bytes."""
    exists = FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(target))
    try:
        if made.is_file():
            os.link(made, target)
            made.unlink()
            return
    except FileExistsError:
        if not _is_same(made, target):
            raise
        made.unlink()
        return
    except OSError:  # a file system without links
        pass
    if target.exists() and not _is_same(made, target):  # to rename onto a file or an empty folder is no error
        raise exists
    try:
        os.rename(made, target)
    except OSError as error:
        raise exists if error.errno in (errno.ENOTEMPTY, errno.EEXIST) else error from None


def _is_same(made: Path, target: Path) -> bool:
    """Whether both are files of the same bytes, as where the answer to a first try was lost."""
    return target.is_file() and filecmp.cmp(made, target, shallow=False)


def make_folder(folder: Path) -> None:
    """Make a folder, and those above it; InputError where one of these is a file."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except (FileExistsError, NotADirectoryError) as error:
        raise InputError(f"cannot be made a folder ({str(error.strerror).lower()})", folder, "give another path") from None


@contextmanager
def locked(file: Path, shared: bool = False) -> Iterator[int]:
    """Hold a lock file, whose descriptor it gives: one process of this machine at a time, or several that share it. The end of a process releases it."""
    file.parent.mkdir(parents=True, exist_ok=True)
    descriptor = open_lock(file)
    try:
        take(descriptor, fcntl.LOCK_SH if shared else fcntl.LOCK_EX, file.parent)
        yield descriptor
    finally:
        os.close(descriptor)


@contextmanager
def alone(file: Path) -> Iterator[None]:
    """As `locked`, for one process at a time; the lock file is removed at the end."""
    while True:
        with locked(file) as descriptor:
            if not _names(file, descriptor):  # who had it has removed it, and another may hold a new one
                continue
            try:
                yield
            finally:
                file.unlink(missing_ok=True)
            return


def _names(path: Path, descriptor: int) -> bool:
    """Whether a path is that of an open file."""
    try:
        return os.path.samestat(os.fstat(descriptor), path.stat())
    except FileNotFoundError:
        return False


def open_lock(file: Path) -> int:
    """The descriptor of a lock file, which is made if there is none. OSError if it is a link: in a shared folder it could be another's."""
    return os.open(file, os.O_CREAT | os.O_RDWR | os.O_NOFOLLOW, 0o666)


def take(descriptor: int, how: int, folder: Path) -> None:
    """Lock an open file, as `fcntl.flock`; InputError where the file system of `folder` has no locks, as Lustre's without `-o flock`."""
    try:
        fcntl.flock(descriptor, how)
    except OSError as error:
        if error.errno in (errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOLCK):
            fix = "mount it with flock, or give a folder elsewhere (--output; RAYDENSE_CACHE for the cache)"
            raise InputError(f"its file system has no locks (flock: {str(error.strerror).lower()})", folder, fix) from None
        raise


def sha256_of(file: Path) -> str:
    """The sha256 of a file's bytes. A process reads a file once as long as its size and times stay as they are."""
    known = file.stat()
    return _sha256(file.absolute(), known.st_size, known.st_mtime_ns, known.st_ctime_ns)


@lru_cache(maxsize=2**17)  # a folder of more files than this would be hashed anew each time
def _sha256(file: Path, size: int, written: int, changed: int) -> str:
    with open(file, "rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()
