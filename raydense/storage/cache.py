"""The cache of this machine: files of buckets, in groups, bounded; those that were not used for the longest time are removed first.

A file that a process has open or mapped may be removed: its bytes stay until the process lets go of it. One that was fetched in the
last minutes stays even where the cache is full, as its reader may not have opened it yet; so does a group that a stage reserves while it reads it.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, suppress
from pathlib import Path

from raydense.errors import InputError
from raydense.storage.abandoned import sweep
from raydense.storage.files import aside_of, is_aside, locked, take, walk
from raydense.storage.holds import read_until_end

DEFAULT_GB = 50.0
STAYS_S = 300.0
_TOUCHED_EVERY_S = 60.0  # writing the time of use changes the file's own times, which its checksum is remembered by
_LOCKS = 64
_READ = ".read"  # the lock file of a group, which its readers share


def cache() -> Path:
    """The folder of this machine's cache: RAYDENSE_CACHE, or ~/.cache/raydense."""
    return Path(os.environ.get("RAYDENSE_CACHE") or Path.home() / ".cache" / "raydense").absolute()


def limit() -> int:
    """The bytes that fetched files may take: RAYDENSE_CACHE_GB, or 50 GB."""
    text = os.environ.get("RAYDENSE_CACHE_GB") or str(DEFAULT_GB)
    try:
        limit = float(text)
    except ValueError:
        limit = -1.0
    if not limit >= 0:
        raise InputError(f"{text!r} is not a number of gigabytes", "RAYDENSE_CACHE_GB", f"give one, as {DEFAULT_GB:g}")
    return int(limit * 1e9)


def fetched(entry: str, name: str, size: int, download: Callable[[Path], None]) -> Path:
    """The file `name` of the group `entry`; if it is not cached with `size` bytes, `download` writes it to the path that it gets.

    If several processes need the same file, one fetches it and the others wait.
    """
    file = cache() / "files" / entry / name
    if _used(file, size):
        return file
    number = int(hashlib.sha256(f"{entry}/{name}".encode()).hexdigest(), 16) % _LOCKS
    with locked(cache() / "locks" / f"{number:02d}"):
        if _used(file, size):
            return file
        limit()  # refused before anything is fetched
        file.parent.mkdir(parents=True, exist_ok=True)
        aside = aside_of(file)
        try:
            download(aside)
            with _removal(shared=True):
                file.parent.mkdir(parents=True, exist_ok=True)
                os.replace(aside, file)
        finally:
            aside.unlink(missing_ok=True)
    trim()
    return file


def reserve(entry: str) -> None:
    """Let the files of a group stay until the stage of this thread ends, also where they are not used for a long time."""
    group = _group(cache() / "files" / entry)
    with _removal(shared=True):
        group.mkdir(parents=True, exist_ok=True)
        read_until_end(group / _READ)


def adopt(made: Path, entry: str, sizes: dict[str, int]) -> None:
    """Make a folder the group `entry`, if there is none yet and the folder has all files; otherwise remove it."""
    folder = cache() / "files" / entry
    if made.is_dir() and not folder.exists() and all(_is_there(made / name, size) for name, size in sizes.items()):
        for one in made.iterdir():
            if one.name.startswith("."):
                shutil.rmtree(one, ignore_errors=True)
        with _removal(shared=True):
            folder.parent.mkdir(parents=True, exist_ok=True)
            if not folder.exists():
                os.rename(made, folder)
        trim()
    shutil.rmtree(made, ignore_errors=True)


def trim() -> None:
    """Remove the files that were not used for the longest time, until the rest is within the limit, and what nobody goes on with."""
    with _removal():
        sweep(cache())
        found = sorted(_files(cache() / "files"))
        surplus, now = sum(size for _, size, _ in found) - limit(), time.time()
        for used, size, file in found:
            if surplus <= 0 or now - used < STAYS_S:
                return
            if _is_read(_group(file)):
                continue
            try:
                file.unlink(missing_ok=True)
            except PermissionError:  # in another user's folder
                continue
            _remove_empty(file.parent)
            surplus -= size


def _files(root: Path) -> Iterator[tuple[float, int, Path]]:
    """When each complete file was last used, its size, and the file."""
    for file in walk(root, lambda folder: not folder.is_symlink() and os.access(folder, os.R_OK | os.X_OK)):
        if file.name != _READ and not is_aside(file):
            with suppress(FileNotFoundError):
                known = file.stat()
                yield max(known.st_atime, known.st_mtime), known.st_size, file


def _group(path: Path) -> Path:
    """The folder of the group that a path in the cache is of."""
    files = cache() / "files"
    return files / path.relative_to(files).parts[0]


def _is_read(group: Path) -> bool:
    """Whether a stage of any process reads the group."""
    try:
        descriptor = os.open(group / _READ, os.O_RDWR | os.O_NOFOLLOW)
    except FileNotFoundError:
        return False
    except PermissionError:  # another user's, who may read it
        return True
    try:
        take(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB, group)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False


def _remove_empty(folder: Path) -> None:
    while folder != cache() / "files":
        try:
            if os.listdir(folder) == [_READ]:
                (folder / _READ).unlink()
            folder.rmdir()
        except OSError:
            return
        folder = folder.parent


def _used(file: Path, size: int) -> bool:
    """Whether the file exists; if so, it counts as used now."""
    if not _is_there(file, size):
        return False
    with _removal(shared=True):
        try:
            known = file.stat()
            if time.time() - max(known.st_atime, known.st_mtime) > _TOUCHED_EVERY_S:
                os.utime(file, ns=(time.time_ns(), known.st_mtime_ns))
        except FileNotFoundError:
            return False
    return True


def _removal(shared: bool = False) -> AbstractContextManager[int]:
    """A lock: exclusive while files are removed, shared while files are used."""
    return locked(cache() / "locks" / "removal", shared)


def _is_there(file: Path, size: int) -> bool:
    try:
        return file.stat().st_size == size
    except (FileNotFoundError, NotADirectoryError):
        return False
