"""The folder by which processes of several machines leave each other files, as the workers of a training: one that all see, or of a store.

Each file appears there whole. A file that grows is written on the writer's machine; in a store it lies as it was last sent.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from raydense import storage
from raydense.errors import InputError


@dataclass(frozen=True)
class Shared:
    """A folder, or one of a store; nothing need be there."""

    place: Path | str

    @property
    def look_every_s(self) -> float:
        """How often who waits for something looks whether it is there: each look at a store is a request."""
        return 2.0 if self.remote else 0.1

    @property
    def remote(self) -> bool:
        return isinstance(self.place, str)

    @property
    def _here(self) -> Path:
        """Where this machine puts together what goes to a store."""
        return storage.workplace(self.place, "shared") if isinstance(self.place, str) else self.place

    def at(self, *names: str) -> Path | str:
        """The place of what lies under these names."""
        return storage.join(self.place, *names)

    def has(self, name: str) -> bool:
        return storage.exists(self.at(name))

    def names(self, pattern: str) -> list[str]:
        """The files whose paths match, as `run/*/state.json`, in order."""
        if isinstance(self.place, Path):
            return sorted(file.relative_to(self.place).as_posix() for file in self.place.glob(pattern) if file.is_file())
        depth = len(PurePosixPath(pattern).parts)
        found = (PurePosixPath(name) for name in storage.listing(self.place))
        return sorted(str(name) for name in found if len(name.parts) == depth and name.match(pattern))

    def read(self, name: str) -> str | None:
        """The text of a small file; None where there is none."""
        content = storage.read_small(self.at(name))
        return None if content is None else content.decode()

    def write(self, name: str, text: str) -> None:
        """Write a small file."""
        storage.write(self.at(name), text.encode())

    def entries(self) -> list[str]:
        """The names of the files and folders that lie in it."""
        if isinstance(self.place, Path):
            return sorted(one.name for one in self.place.iterdir()) if self.place.is_dir() else []
        return sorted({name.partition("/")[0] for name in storage.listing(self.place)})

    def remove(self, name: str) -> None:
        """Remove a file, or a folder with all that is in it; neither need be there."""
        _remove(self.at(name))

    def clear(self) -> None:
        """Remove it with all that is in it."""
        _remove(self.place)

    @contextmanager
    def writing(self, name: str) -> Iterator[Path]:
        """The path at which to write a file, which appears under its name when the block ends."""
        aside, place = self._here / f"{name}.aside", self.at(name)
        aside.parent.mkdir(parents=True, exist_ok=True)
        try:
            yield aside
            storage.follow_umask(aside)
            if isinstance(place, str):
                storage.put_file(place, aside)
            else:
                os.replace(aside, place)
        finally:
            aside.unlink(missing_ok=True)

    def fetched(self, name: str) -> Path:
        """The path on this machine of a file that is there, for reading."""
        place, file = self.at(name), self._here / name
        if isinstance(place, str):
            found = storage.listing(place).get("")
            if found is None:
                raise InputError("missing", place, "delete the folder and make it again")
            storage.fetch(place, file, found.size, None)
        return file

    def growing(self, name: str) -> Path:
        """The path on this machine of a file to add to, which need not be there yet; `send` shows others what it holds."""
        file = self._here / name
        file.parent.mkdir(parents=True, exist_ok=True)
        return file

    def sent(self, name: str) -> bytes | None:
        """What others see of a file that grows, where that is not the file itself; None in a folder."""
        return (storage.read_small(self.at(name)) or b"") if self.remote else None

    def send(self, name: str) -> None:
        """Let others see what a file that grows holds by now; in a folder they see it anyway."""
        place = self.at(name)
        if isinstance(place, str):
            storage.put_file(place, self._here / name)

    def for_ray(self) -> dict[str, Any]:
        """The folder as Ray Train takes it."""
        if isinstance(self.place, Path):
            return {"storage_path": str(self.place)}
        filesystem, path = storage.for_others(self.place)
        return {"storage_path": path, "storage_filesystem": filesystem}

    def forget(self) -> None:
        """Remove what this machine put together for a store."""
        if self.remote:
            storage.forget(self._here)


def _remove(place: Path | str) -> None:
    if isinstance(place, str):
        storage.remove(place)
    elif place.is_dir():
        shutil.rmtree(place, ignore_errors=True)
    else:
        place.unlink(missing_ok=True)
