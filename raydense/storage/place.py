"""A file or folder, on this machine or in a bucket. Code that uses a `Place` never asks which of the two it is."""

from __future__ import annotations

import os
from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Protocol, Self, TypeVar

from raydense.errors import InputError
from raydense.storage.paths import scheme_of

_AT_ONCE = 8
T = TypeVar("T")
R = TypeVar("R")


@dataclass(frozen=True)
class Found:
    """A file: its size in bytes, its version (which changes with its bytes), and when it was written (seconds since 1970)."""

    size: int
    version: str
    written: float


class Hold(Protocol):
    """The right of one process to write an output."""

    def confirm(self) -> None:
        """Raise LostOutput if another process has taken over the output."""

    def check(self) -> None:
        """As `confirm`, but by what this process knows already, without a request."""

    def release(self) -> None:
        """Let another process write."""

    def abandon(self) -> None:
        """As `release`, but with no new request: where that is needed, another process waits for a minute."""

    def end(self) -> None:
        """Delete the work folder, and an output that is empty without it, and release; nothing that another process has taken over."""


class Place(os.PathLike[str]):
    """A file or folder, which need not exist. `Place.of(text)` gives the one that a path or `s3://bucket/path` names.

    `str(place)` is the text that it was made from.
    """

    look_every_s: ClassVar[float]
    """How often a process that waits for a file looks for it."""
    everywhere: ClassVar[bool]
    """Whether every machine reaches it under this name."""
    durable: ClassVar[bool]
    """Whether its store protects bytes against damage, so that a file of the same version has the same bytes."""
    _of_scheme: ClassVar[dict[str, type[Place]]] = {}

    def __init_subclass__(cls, schemes: Iterable[str] = (), **given: Any) -> None:
        super().__init_subclass__(**given)
        Place._of_scheme |= dict.fromkeys(schemes, cls)

    @staticmethod
    def of(path: str | os.PathLike[str]) -> Place:
        """The place that `path` names; InputError as `checked`."""
        if isinstance(path, Place):
            return path
        text = checked(os.fspath(path))
        return _kind_of(text).parse(text)

    @staticmethod
    def name_of(path: str | os.PathLike[str]) -> str:
        """The name of the place that `path` names, as settings ask for it: nothing is fetched."""
        text = checked(os.fspath(path))
        return _kind_of(text).last_part(text)

    @classmethod
    def normalised(cls, text: str) -> str:
        """`text`, which names a place of this kind, in the form that settings keep; InputError if it does not name one."""
        return text

    @classmethod
    @abstractmethod
    def parse(cls, text: str) -> Self:
        """The place of a text that `normalised` returned."""

    @classmethod
    def last_part(cls, text: str) -> str:
        """The `name` of the place of such a text."""
        return cls.parse(text).name

    @abstractmethod
    def __truediv__(self, name: str) -> Self:
        """The file or folder in it of that name or relative path."""

    @abstractmethod
    def __fspath__(self) -> str: ...

    def __str__(self) -> str:
        return self.__fspath__()

    @property
    @abstractmethod
    def name(self) -> str:
        """The last part of its path."""

    @property
    @abstractmethod
    def located(self) -> str:
        """Its absolute path, for a process in another working directory."""

    # A file

    @abstractmethod
    def stat(self) -> Found | None:
        """The file; None where there is none."""

    @abstractmethod
    def read(self) -> bytes | None:
        """The bytes of a small file; None where there is none."""

    @abstractmethod
    def head(self, size: int) -> bytes:
        """The first `size` bytes of a file, or all of it; FileNotFoundError where there is none."""

    @abstractmethod
    def tail(self, offset: int, most: int) -> tuple[int, bytes]:
        """At most `most` bytes of a growing file from `offset` on, and that offset; those from 0 on, and 0, if the file has become shorter."""

    @abstractmethod
    def write(self, content: bytes) -> None:
        """Write a small file and the folders above it: readers see the old one or the new one."""

    @abstractmethod
    def writing(self, new: bool = False) -> AbstractContextManager[Path]:
        """A path of this machine to write at, a file or a folder, which appears here when the block ends without an exception.

        A folder appears in a bucket file after file, `half_written` meanwhile if it is `new`. With `new`, FileExistsError if something else exists
        here by then, which stays; in a bucket it is looked for just before the upload."""

    def half_written(self) -> bool:
        """Whether it is a part of a `new` folder, which is being uploaded, or whose upload was ended: `writing` begins again."""
        return False

    @abstractmethod
    def publish(self, file: Path, new: bool = False, keep: bool = True) -> str:
        """Publish a complete file of this machine here. With `new`, FileExistsError if a file with other bytes exists, which stays.

        In a folder `file` is moved here; in a bucket it is uploaded, and with `keep` also stays where it is. Returns its version,
        as `stat` gives it, if the place is `durable`; otherwise "".
        """

    @abstractmethod
    def sha256(self) -> str:
        """The sha256 of the file's bytes, read again; FileNotFoundError where there is none."""

    # A folder

    @abstractmethod
    def is_folder(self) -> bool:
        """Whether it is a folder: in a bucket, whether anything lies below."""

    @abstractmethod
    def exists(self) -> bool:
        """Whether there is a file or folder."""

    @abstractmethod
    def entries(self) -> list[str]:
        """The names of the files and folders directly in it, sorted; none if it is not a folder."""

    @abstractmethod
    def files(self) -> dict[str, Found]:
        """The files below it, at any depth, by their path from it."""

    @abstractmethod
    def names(self, pattern: str) -> list[str]:
        """The files below it whose paths match, as `run/*/state.json`, sorted."""

    @abstractmethod
    def stats(self, names: list[str]) -> list[Found | None]:
        """Each of these files; None for a file that does not exist."""

    @abstractmethod
    def delete(self) -> None:
        """Delete the file, or the folder with all that is in it; no error if neither exists."""

    # Files as paths of this machine, for what is mapped into memory or read by other libraries

    @abstractmethod
    def fetch(self, name: str = "", size: int | None = None, sha256: str | None = None, entry: str = "") -> Path:
        """The path on this machine of the file, or of the file `name` in it; a file of a bucket is cached, and stays as long as it is used.

        `size` and `sha256` are those of its manifest, and `entry` is its group in the cache. InputError if it is missing or differs.
        """

    @abstractmethod
    def reserve(self, entry: str, size: int) -> None:
        """Let what is fetched into the group `entry` of the cache stay until the stage ends. InputError if it may not take `size` bytes."""

    @abstractmethod
    def local(self) -> Path:
        """The path on this machine of the file, or of the folder with all its files. InputError if a bucket has nothing there."""

    def is_part(self, name: str) -> bool:
        """Whether raydense reads the file `name` in the folder."""
        return True

    def source(self) -> Path:
        """As `local`, for what is made from it: of a bucket without the outputs of raydense in the folder, which are no part of it."""
        return self.local()

    @abstractmethod
    def adopt(self, folder: Path, entry: str, sizes: dict[str, int]) -> None:
        """Turn the folder where an output was assembled into the group `entry` of the cache, so that it need not be fetched."""

    @abstractmethod
    def working(self, key: str) -> Path:
        """The folder of this machine where an output is assembled: itself, or, for a bucket, one that is named by `key`."""

    @abstractmethod
    def forget(self, key: str = "") -> None:
        """Remove the local copy that this machine made for a bucket: `working(key)`, and the files that `growing` returned below it."""

    @abstractmethod
    def growing(self) -> Path:
        """The path on this machine of a file to append to, which need not exist yet; `send` makes its content visible to others."""

    @abstractmethod
    def sent(self) -> bytes | None:
        """What others see of a growing file; None if they see the file itself."""

    @abstractmethod
    def send(self) -> None:
        """Make the present content of a growing file visible to others."""

    # Several processes

    @abstractmethod
    def lock(self) -> AbstractContextManager[None]:
        """A lock for one process of this machine at a time; released when the process ends."""

    @abstractmethod
    def hold(self) -> Hold:
        """The exclusive right to write the output whose work folder is here, among processes of all machines; LostOutput if another has it."""

    @abstractmethod
    def for_ray(self) -> dict[str, Any]:
        """The folder as Ray Train takes it."""

    # Text

    def read_text(self) -> str | None:
        """The text of a small file; None where there is none."""
        content = self.read()
        return None if content is None else content.decode()

    def write_text(self, text: str) -> None:
        """Write a small file of text, as `write`."""
        self.write(text.encode())


def checked(path: str) -> str:
    """`path` as the kind of place that it names writes it; InputError if it names none, or its scheme is unknown."""
    return _kind_of(path).normalised(path)


def _kind_of(text: str) -> type[Place]:
    scheme, _ = scheme_of(text)
    known = Place._of_scheme
    if scheme in known:
        return known[scheme]
    if text.lower().startswith(f"{scheme}://"):
        fix = "give a folder, s3://bucket/path or gs://bucket/path"
        raise InputError(f"{scheme}:// is not a place that can be read", f"{scheme}://***", fix)
    return known[""]


def together(work: Callable[[T], R], items: Iterable[T]) -> list[R]:
    """What `work` returns for each item, several at once, in their order."""
    return list(streamed(work, items))


def streamed(work: Callable[[T], R], items: Iterable[T]) -> Iterator[R]:
    """As `together`, but yields each result as soon as it and those before it are ready."""
    queued = list(items)
    if len(queued) < 2:  # a thread takes longer to start than a small file to read
        yield from map(work, queued)
        return
    with ThreadPoolExecutor(min(_AT_ONCE, len(queued))) as pool:
        yield from pool.map(work, queued)


def delete_within(folder: Place, but: str) -> None:
    """Delete all that is in a folder, except its entry `but`."""
    together(lambda name: (folder / name).delete(), [name for name in folder.entries() if name != but])


def visible(names: Iterable[str]) -> Iterator[str]:
    """The paths that are not hidden and lie in no hidden folder."""
    return (name for name in names if not any(part.startswith(".") for part in name.split("/")))
