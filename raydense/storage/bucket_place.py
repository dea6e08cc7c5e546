"""A file or folder of a bucket (`s3://bucket/path`, `gs://bucket/path`). A file appears whole; a file that is read by its path is cached.

Readers of a corpus or an index map its files into memory. So each file is fetched into the cache of the machine
(`raydense.storage.cache`) when it is first read, and checked against the size and checksum in its manifest.
"""

from __future__ import annotations

import hashlib
import json
import math
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

from raydense.errors import InputError
from raydense.storage import cache
from raydense.storage.artifact import MANIFEST, WORK, is_output
from raydense.storage.bucket import WHERE_CREDENTIALS, client, patiently, ray_filesystem
from raydense.storage.digest import as_json
from raydense.storage.download import CHUNK, FIX, download, recorded_sums, stream
from raydense.storage.files import alone, aside_of, walk
from raydense.storage.lease import CLOCK, WRITER, Lease
from raydense.storage.local_place import LocalPlace
from raydense.storage.paths import safe_name, scheme_of
from raydense.storage.place import Found, Place, together, visible

if TYPE_CHECKING:
    from obstore import UpdateVersion

UPLOADED = f"{WORK}/uploaded.json"
_PARTS_AT_ONCE = 4  # of an upload, so that each gets through a slow line in time
_MOST_PARTS = 9_000  # services take 10,000


@dataclass(frozen=True)
class BucketPlace(Place, schemes=("s3", "gs")):
    """`scheme`://`bucket`/`key`."""

    scheme: str
    bucket: str
    key: str
    look_every_s = 2.0  # each look is a request
    everywhere = True
    durable = True

    @classmethod
    def normalised(cls, text: str) -> str:
        """Without surplus slashes; InputError if it contains credentials or options, or names no bucket."""
        scheme, rest = scheme_of(text)
        bucket, _, inner = rest.partition("/")
        if "@" in bucket or ":" in bucket or "?" in rest or "#" in rest:
            fix = f"give credentials, region and endpoint{WHERE_CREDENTIALS}"
            raise InputError("carries more than a bucket and a path", f"{scheme}://***", fix)
        if not bucket:
            raise InputError("names no bucket", text, f"give {scheme}://bucket/path")
        parts = [part for part in inner.split("/") if part not in ("", ".")]
        if ".." in parts:
            raise InputError("has '..' in it", text, "give the whole path")
        return "/".join([f"{scheme}://{bucket}", *parts])

    @classmethod
    def parse(cls, text: str) -> BucketPlace:
        scheme, _, path = text.partition("://")
        bucket, _, key = path.partition("/")
        return cls(scheme, bucket, key)

    def __truediv__(self, name: str) -> BucketPlace:
        return BucketPlace(self.scheme, self.bucket, "/".join(part for part in (self.key, name) if part))

    def __fspath__(self) -> str:
        return f"{self.scheme}://{self.bucket}" + (f"/{self.key}" if self.key else "")

    __str__ = __fspath__

    @property
    def name(self) -> str:
        return self.key.rpartition("/")[2] or self.bucket

    @property
    def located(self) -> str:
        return str(self)

    # A file

    def stat(self) -> Found | None:
        import obstore

        try:
            return _found(patiently(lambda: obstore.head(self.client, self.key), str(self))) if self.key else None
        except FileNotFoundError:
            return None

    def read(self) -> bytes | None:
        content, _ = self.read_version()
        return content

    def read_version(self) -> tuple[bytes | None, UpdateVersion | None]:
        """The bytes of a small file, and its version."""
        import obstore

        def get() -> tuple[bytes, UpdateVersion]:
            found = obstore.get(self.client, self.key)
            return bytes(found.bytes()), _version(found.meta)

        try:
            return patiently(get, str(self))
        except FileNotFoundError:
            return None, None

    def head(self, size: int) -> bytes:
        import obstore

        found = self.stat()
        end = min(size, found.size) if found else size
        return bytes(patiently(lambda: obstore.get_range(self.client, self.key, start=0, end=end), str(self))) if end else b""

    def tail(self, offset: int, most: int) -> tuple[int, bytes]:
        import obstore

        found = self.stat()
        if found is None:
            return 0, b""
        begin = offset if found.size >= offset else 0
        if begin == found.size:
            return begin, b""
        end = min(found.size, begin + most)
        try:
            return begin, bytes(patiently(lambda: obstore.get_range(self.client, self.key, start=begin, end=end), str(self)))
        except FileNotFoundError:
            return 0, b""

    def write(self, content: bytes) -> None:
        self._put(content)

    def replace(self, content: bytes, version: UpdateVersion | None) -> UpdateVersion | None:
        """Write the file if its version is still `version` (None: it does not exist). Returns the new version, or None if it is not."""
        from obstore.exceptions import AlreadyExistsError, PreconditionError

        try:
            return self._put(content, "create" if version is None else version)
        except (AlreadyExistsError, PreconditionError, FileNotFoundError):
            there, now = self.read_version()
            return now if there == content else None  # where the answer to the first try was lost

    def _put(self, content: bytes | Path, mode: Any = "overwrite") -> UpdateVersion:
        import obstore

        def put() -> UpdateVersion:
            given: dict[str, Any] = {"use_multipart": False}
            if isinstance(content, Path):
                part = max(CHUNK, math.ceil(content.stat().st_size / _MOST_PARTS))
                given = {"chunk_size": part, "max_concurrency": _PARTS_AT_ONCE}
            return _version(obstore.put(self.client, self.key, content, mode=mode, **given))

        # an upload of parts whose last answer was lost is "not found" when it is completed again
        return patiently(put, str(self), (FileNotFoundError,) if mode == "overwrite" else ())

    @contextmanager
    def writing(self, new: bool = False) -> Iterator[Path]:
        aside = aside_of(cache.cache() / "work" / "writing" / self.name)
        aside.parent.mkdir(parents=True, exist_ok=True)
        try:
            yield aside
            made = {file.relative_to(aside).as_posix(): file for file in walk(aside)} if aside.is_dir() else {"": aside}
            if new and self.exists() and not self.half_written():
                raise self._another()
            with self._appearing(list(made)) if new and aside.is_dir() else nullcontext():
                together(lambda name: (self / name)._put(made[name]), made)
        finally:
            LocalPlace(aside).delete()

    @contextmanager
    def _appearing(self, names: list[str]) -> Iterator[None]:
        """Hold a new folder while these files are uploaded to it. A list of them is there until the last one is, by which an upload that was killed
        is known, and is deleted before it begins again."""
        hold, listed = (self / WORK).hold(), self / UPLOADED
        try:
            together(lambda name: (self / name).delete(), json.loads(listed.read() or b"[]"))
            if self.entries() != [WORK]:
                raise self._another()
            listed.write_text(as_json(names))
            yield
        except FileExistsError:
            hold.end()
            raise
        except BaseException:  # no request: where the store fails, each is tried for minutes
            hold.abandon()
            raise
        hold.end()
        hold.check()

    def half_written(self) -> bool:
        found = self.files().keys()
        return UPLOADED in found or (bool(found) and found <= {f"{WORK}/{WRITER}", f"{WORK}/{CLOCK}"})

    def _another(self) -> FileExistsError:
        return FileExistsError(f"{self} was written by another process")

    def publish(self, file: Path, new: bool = False, keep: bool = True) -> str:
        put = self.replace(file.read_bytes(), None) if new else self._put(file)
        if put is None:
            raise self._another()
        if not keep:
            file.unlink()
        return str(put.get("e_tag") or put.get("version") or "")

    def sha256(self) -> str:
        return stream(self)

    # A folder

    def is_folder(self) -> bool:
        return bool(self.entries())

    def exists(self) -> bool:
        return self.stat() is not None or self.is_folder()

    def entries(self) -> list[str]:
        import obstore

        def look() -> list[str]:
            found = obstore.list_with_delimiter(self.client, self.key or None)
            paths = [*found["common_prefixes"], *(one["path"] for one in found["objects"])]
            return sorted({path[len(self.key) :].strip("/") for path in paths} - {""})

        return patiently(look, str(self))

    def files(self) -> dict[str, Found]:
        import obstore

        def look() -> dict[str, Found]:
            found = (one for batch in obstore.list(self.client, self.key or None) for one in batch)
            return {one["path"][len(self.key) :].lstrip("/"): _found(one) for one in found}

        listed = sorted(patiently(look, str(self)).items())
        # pyarrow's client of S3, and consoles, mark a folder by an empty object whose name ends in a slash, which the list leaves out
        empty = [name for name, found in listed if not found.size]
        marks = {name for name, found in zip(empty, together(lambda name: name and (self / name).stat(), empty), strict=True) if not found}
        return {name: found for name, found in listed if name not in marks}

    def names(self, pattern: str) -> list[str]:
        depth = len(PurePosixPath(pattern).parts)
        found = (PurePosixPath(name) for name in self.files())
        return sorted(str(name) for name in found if len(name.parts) == depth and name.match(pattern))

    def stats(self, names: list[str]) -> list[Found | None]:
        found = self.files()
        return [found.get(name) for name in names]

    def delete(self) -> None:
        import obstore

        def delete(key: str) -> None:
            try:
                patiently(lambda: obstore.delete(self.client, key), str(self))
            except FileNotFoundError:
                return

        together(delete, [*(f"{self.key}/{name}" for name in self.files()), *([self.key] if self.key else [])])

    # Files as paths of this machine

    def fetch(self, name: str = "", size: int | None = None, sha256: str | None = None, entry: str = "") -> Path:
        place = self / name
        if size is None:
            found = place.stat()
            if found is None:
                raise InputError("missing", place, FIX)
            size, entry = found.size, entry or _short(f"{place} {found}")
        return cache.fetched(entry or _short(f"{self}"), name or self.name, size, lambda aside: download(place, aside, size, sha256))

    def reserve(self, entry: str, size: int) -> None:
        if size > cache.limit():
            what = f"needs {size / 1e9:,.2f} GB in this machine's cache, which may take {cache.limit() / 1e9:g}"
            raise InputError(what, self, "set RAYDENSE_CACHE_GB to more")
        cache.reserve(entry)

    def local(self) -> Path:
        found = self.files()
        return self._fetched(found, list(visible(found)))

    def source(self) -> Path:
        found = self.files()
        marked = sorted({name.partition(f"/{mark}")[0] for name in found for mark in (WORK, MANIFEST) if f"/{mark}" in name})
        outputs = {folder for folder, ours in zip(marked, together(lambda name: is_output(self / name), marked), strict=True) if ours}
        return self._fetched(found, [name for name in visible(found) if outputs.isdisjoint(map(str, PurePosixPath(name).parents))])

    def _fetched(self, found: dict[str, Found], names: list[str]) -> Path:
        """The path of these files of the folder, or of the file. A folder with a manifest is checked by it; in messages it ends in its own name."""
        half = next((name for name in found if f"/{name}".endswith(f"/{UPLOADED}")), None)
        if half is not None:
            where = self / half.removesuffix(UPLOADED).rstrip("/")
            raise InputError("was not written to its end", where, "run the command that writes it again")
        if not names:
            file = self.stat()
            if file is None:
                raise InputError("holds no file to read" if found else "no such file or folder", self, "check the path")
            entry = _short(f"{self} {file}")
            self.reserve(entry, file.size)
            return self.fetch(size=file.size, entry=entry)
        unsafe = next((name for name in names if not safe_name(name)), None)
        if unsafe is not None:
            raise InputError(f"holds a file of the name {unsafe!r}", self, "rename or remove it")
        sums = recorded_sums(self, names)
        entry = f"{_short(str([str(self), *((name, found[name].size, found[name].version) for name in names)]))}/{self.name}"
        self.reserve(entry, sum(found[name].size for name in names))
        together(lambda name: self.fetch(name, found[name].size, sums.get(name), entry), names)
        return cache.cache() / "files" / entry

    def adopt(self, folder: Path, entry: str, sizes: dict[str, int]) -> None:
        cache.adopt(folder, entry, sizes)

    def working(self, key: str) -> Path:
        return cache.cache() / "work" / _short(f"{self}\n{key}")

    def forget(self, key: str = "") -> None:
        shutil.rmtree(self.working(key) if key else self._growing, ignore_errors=True)

    @property
    def _growing(self) -> Path:
        return cache.cache() / "work" / self.scheme / self.bucket / self.key

    def growing(self) -> Path:
        self._growing.parent.mkdir(parents=True, exist_ok=True)
        return self._growing

    def sent(self) -> bytes | None:
        return self.read() or b""

    def send(self) -> None:
        self._put(self._growing)

    # Several processes

    @contextmanager
    def lock(self) -> Iterator[None]:
        with alone(cache.cache() / "work" / f"{_short(str(self))}.lock"):
            yield

    def hold(self) -> Lease:
        return Lease(self)

    def for_ray(self) -> dict[str, Any]:
        return {"storage_path": f"{self.bucket}/{self.key}", "storage_filesystem": ray_filesystem(self.scheme, self.bucket)}

    @property
    def client(self) -> Any:
        """Obstore's client of the bucket."""
        return client(self.scheme, self.bucket)


def _found(meta: Any) -> Found:
    return Found(meta["size"], str(meta["e_tag"] or meta["version"] or meta["last_modified"]), meta["last_modified"].timestamp())


def _version(meta: Any) -> UpdateVersion:
    return {key: meta[key] for key in ("e_tag", "version") if meta[key] is not None}  # type: ignore[return-value]


def _short(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:32]
