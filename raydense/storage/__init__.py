"""Where folders lie: on this machine, or in a store (`s3://bucket/path`, `gs://bucket/path`) that is read through a mirror here.

What reads a corpus or an index maps its files into memory, so a folder of a store is mirrored: its files are fetched into the
cache (RAYDENSE_CACHE, by default ~/.cache/raydense), each appearing there whole. Every machine that opens a folder has a mirror
of its own. Credentials are those of the environment, as AWS and Google name them; a path that carries any is refused. What fails
now and then (an error of the store, a time-out, a lost connection) is tried again for a while, then said in one line.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import random
import re
import shutil
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path, PurePosixPath
from typing import Any, TypeVar
from urllib.parse import unquote, urlsplit

from raydense.errors import InputError, StorageError
from raydense.runtime.progress import say, size

PATIENCE_S = 120.0
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.2, 10.0
_CONNECT_S, _REPLY_S = 10.0, 30.0
_CHUNK = 8 << 20
_AT_ONCE = 8
_ATTEMPTS = 10  # at a request of what does not try again itself
_WHOLE = ".whole"  # the last file of a mirror
_TOLD_FROM = 256 << 20
_NAME = re.compile(r"^([A-Za-z][A-Za-z0-9+.-]*):/{1,3}(?=[^/])")
_STORES = ("s3", "gs")
_FINGERPRINT = re.compile(r"[0-9a-f]+")
# What the stores say when trying again is of no use, and the fix.
_FINAL = {
    r"NO_SUCH_BUCKET|bucket does not exist|Bucket '.*' not found": ("the store has no such bucket", "make the bucket, or correct the path"),
    r"ACCESS_DENIED|PermissionDenied|HTTP status 403": ("the store does not let us in", "give credentials that may"),
    r"INVALID_ACCESS_KEY_ID|INVALID_CLIENT_TOKEN_ID|UNRECOGNIZED_CLIENT": ("the store does not know the access key", "correct it"),
    r"SIGNATURE_DOES_NOT_MATCH|INVALID_SIGNATURE|HTTP status 401": ("the store refuses the secret key", "correct it"),
    r"EXPIRED_TOKEN|TokenExpired|REQUEST_EXPIRED": ("the credentials have expired", "renew them"),
    r"HTTP status 301|PERMANENT_REDIRECT|AuthorizationHeaderMalformed": ("the bucket is in another region", "set AWS_REGION to it"),
    r"InvalidBucketName": ("is no name of a bucket", "correct the path"),
}
_WHERE_CREDENTIALS = " in the environment (AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_PROFILE; GOOGLE_APPLICATION_CREDENTIALS)"
T = TypeVar("T")


@dataclass(frozen=True)
class Found:
    """A file of a store: its size, and when it was written (nanoseconds)."""

    size: int
    written: int


def is_remote(path: str | os.PathLike[str]) -> bool:
    """Whether `path` is of a store. A pathlib.Path of one, which has lost a slash, is known too."""
    found = _NAME.match(os.fspath(path))
    return found is not None and found[1].lower() in _STORES


def checked(path: str) -> str:
    """`path` as raydense uses it: `file:///folder` as that folder, `s3://bucket/path` without slashes too many, others as they are.

    InputError where it carries credentials or options, names no bucket, or is of a store that is not known.
    """
    found = _NAME.match(path)
    if found is None:
        return path
    scheme = found[1].lower()
    if scheme == "file":
        return _of_file(path)
    if scheme not in _STORES:
        return path if not path.startswith(f"{found[1]}://") else _unknown(path, scheme)
    rest = path[found.end() :]
    bucket, _, inner = rest.partition("/")
    if "@" in bucket or ":" in bucket or "?" in rest or "#" in rest:
        fix = f"credentials, region and endpoint stand{_WHERE_CREDENTIALS}"
        raise InputError("carries more than a bucket and a path", f"{scheme}://***", fix)
    parts = [part for part in inner.split("/") if part not in ("", ".")]
    if ".." in parts:
        raise InputError("has '..' in it", path, "give the whole path")
    return "/".join([f"{scheme}://{bucket}", *parts])


def _of_file(uri: str) -> str:
    """The path that a `file:` URI names. InputError where it names a machine before that, or has options after it."""
    rest = uri.partition(":")[2]
    host, _, path = rest[2:].partition("/") if rest.startswith("//") else ("", "/", rest[1:])
    if host not in ("", "localhost") or "?" in path or "#" in path:
        what = "names a machine before the path" if host not in ("", "localhost") else "has '?' or '#' in it"
        raise InputError(what, "file://***", "give the whole path, as file:///data/corpus, or without file://")
    return "/" + unquote(path)


def _unknown(path: str, scheme: str) -> str:
    raise InputError(f"{scheme}:// is no store that can be read", f"{scheme}://***", "give a folder, s3://bucket/path or gs://bucket/path")


def place_of(path: str | os.PathLike[str]) -> Path | str:
    """A folder of this machine as a Path, one of a store as its name."""
    name = checked(os.fspath(path))
    return name if is_remote(name) else Path(name)


def join(place: str | os.PathLike[str], *names: str) -> Path | str:
    """What lies under these names in a place."""
    inside = place_of(place)
    return "/".join([inside, *names]) if isinstance(inside, str) else inside.joinpath(*names)


def named(item: str) -> tuple[str, str]:
    """The name and the path of `NAME=path`; "" and `item` where it is a path alone, as `runs/lr=1e-5`: no name has a slash."""
    name, equals, path = item.partition("=")
    return (name, path) if equals and name and "/" not in name else ("", item)


def absolute(path: str | os.PathLike[str]) -> str:
    """`path` for a process in another working directory; of a store it is the same everywhere."""
    place = place_of(path)
    return place if isinstance(place, str) else os.path.abspath(place)


def exists(path: str | os.PathLike[str]) -> bool:
    """Whether there is a file or folder."""
    place = place_of(path)
    return bool(listing(place)) if isinstance(place, str) else place.exists()


def safe_name(name: object) -> bool:
    """Whether a file's name from a manifest or a store stays inside its folder."""
    path = PurePosixPath(str(name))
    return bool(path.parts) and not path.is_absolute() and ".." not in path.parts and "\\" not in str(name) and "\0" not in str(name)


# What a store does: each of these tries again what failed for a while.


def listing(uri: str) -> dict[str, Found]:
    """The files below `uri` by their path from it, or the file `uri` itself under the name ""; empty where nothing is."""
    from pyarrow import fs

    store, path = _store(uri)

    def look() -> dict[str, Found]:
        below = store.get_file_info(fs.FileSelector(path, recursive=True, allow_not_found=True))
        files = {one.path[len(path) + 1 :]: Found(one.size, one.mtime_ns or 0) for one in below if one.type == fs.FileType.File}
        if files or "/" not in path:
            return files
        itself = store.get_file_info(path)
        return {"": Found(itself.size, itself.mtime_ns or 0)} if itself.type == fs.FileType.File else {}

    return _again(look, uri)


def read(uri: str) -> bytes | None:
    """The bytes of a small file; None where there is none."""
    store, path = _store(uri)

    def get() -> bytes | None:
        try:
            with store.open_input_stream(path) as stream:
                return stream.read()
        except FileNotFoundError:
            return None

    return _again(get, uri)


def read_small(place: Path | str) -> bytes | None:
    """The bytes of a small file at a place; None where there is none."""
    if isinstance(place, str):
        return read(place)
    try:
        return place.read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        return None


def tail(place: Path | str, offset: int) -> tuple[int, bytes]:
    """What a file that grows holds from `offset` on, and that offset; all of it, and 0, where it is shorter than that by now."""

    def rest(stream: Any, size: int) -> tuple[int, bytes]:
        begin = offset if size >= offset else 0
        stream.seek(begin)
        return begin, stream.read(size - begin)

    if isinstance(place, Path):
        try:
            with open(place, "rb") as local_file:
                return rest(local_file, os.fstat(local_file.fileno()).st_size)
        except FileNotFoundError:
            return 0, b""
    store, path = _store(place)

    def get() -> tuple[int, bytes]:
        try:
            with store.open_input_file(path) as stream:
                return rest(stream, stream.size())
        except FileNotFoundError:
            return 0, b""

    return _again(get, place)


def put(uri: str, content: bytes) -> None:
    """Write a small file: it is the old one or the new one, never half."""
    store, path = _store(uri)

    def send() -> None:
        with store.open_output_stream(path) as stream:
            stream.write(content)

    _again(send, uri)


def write(place: Path | str, content: bytes) -> None:
    """Write a small file at a place, its folder made where there is none: it is the old one or the new one, never half."""
    if isinstance(place, str):
        return put(place, content)
    place.parent.mkdir(parents=True, exist_ok=True)
    write_whole(place, content)


def put_file(uri: str, file: Path) -> None:
    """Write what a local file holds; it appears whole, as a store has it."""
    store, path = _store(uri)

    def send() -> None:
        with open(file, "rb") as source, store.open_output_stream(path) as stream:
            while chunk := source.read(_CHUNK):
                stream.write(chunk)
        if store.get_file_info(path).size != file.stat().st_size:
            raise OSError("the store holds another number of bytes than were sent")

    _again(send, uri)


def fetch(uri: str, file: Path, size: int, sha256: str | None) -> None:
    """Write a file of a store to `file`, which appears whole; InputError where it is missing, or not of that size and sha256."""
    store, path = _store(uri)
    aside = file.with_name(f".{file.name[-60:]}.{uuid.uuid4().hex}.aside")
    file.parent.mkdir(parents=True, exist_ok=True)

    def get() -> None:
        digest, count = hashlib.sha256(), 0
        try:
            with store.open_input_stream(path) as stream, open(aside, "wb") as sink:
                while chunk := stream.read(_CHUNK):
                    digest.update(chunk)
                    count += sink.write(chunk)
                sink.flush()
                os.fsync(sink.fileno())
        except FileNotFoundError:
            raise InputError("missing", uri, "delete the folder and make it again") from None
        if count < size:
            raise OSError("the store sent fewer bytes than the file has")
        if count != size or sha256 not in (None, digest.hexdigest()):
            raise InputError("is not the file that its manifest tells of", uri, "delete the folder and make it again")

    try:
        _again(get, uri)
        os.replace(aside, file)
    finally:
        aside.unlink(missing_ok=True)


def remove(uri: str) -> None:
    """Delete all that lies below `uri`."""
    store, path = _store(uri)
    together(lambda name: _again(lambda: _gone(store, f"{path}/{name}".rstrip("/")), uri), listing(uri))


def _gone(store: Any, path: str) -> None:
    try:
        store.delete_file(path)
    except FileNotFoundError:
        return


def together(work: Callable[[T], Any], items: Iterable[T]) -> list[Any]:
    """What `work` gives for each item, several at once, in their order."""
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        return list(pool.map(work, items))


def for_others(uri: str) -> tuple[Any, str]:
    """The file system of a store for what does not try again itself, as Ray Train, and the path in it."""
    scheme, _, path = checked(uri).partition("://")
    return _patient(scheme, path.partition("/")[0]), path


def _patient(scheme: str, bucket: str) -> Any:
    """A file system that tries each request again for a while, in the processes that it is sent to too."""
    from pyarrow import fs

    if scheme == "gs":
        return _gcs(PATIENCE_S)

    class Patient(fs.S3FileSystem):
        def __reduce__(self) -> Any:  # pyarrow's own forgets how often to try
            return _patient, (scheme, bucket)

    return Patient(retry_strategy=fs.AwsStandardS3RetryStrategy(max_attempts=_ATTEMPTS), **_s3_options(bucket, _endpoint()))


def _store(uri: str) -> tuple[Any, str]:
    """The file system of a store, and the path in it."""
    name = checked(uri)
    scheme, _, path = name.partition("://")
    return _filesystem(scheme, path.partition("/")[0], _endpoint(), os.getpid()), path


def _endpoint() -> str:
    return os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL") or ""


@lru_cache(maxsize=32)
def _filesystem(scheme: str, bucket: str, endpoint: str, process: int) -> Any:
    from pyarrow import fs

    if scheme == "gs":
        return _gcs(_REPLY_S)
    return fs.S3FileSystem(**_s3_options(bucket, endpoint))


def _gcs(patience_s: float) -> Any:
    from datetime import timedelta

    from pyarrow import fs

    return fs.GcsFileSystem(retry_time_limit=timedelta(seconds=patience_s))


def _s3_options(bucket: str, endpoint: str) -> dict[str, Any]:
    from pyarrow import fs

    more: dict[str, Any] = {}
    if endpoint:
        parts = urlsplit(endpoint)
        if parts.scheme not in ("http", "https") or not parts.hostname or parts.username or parts.password:
            raise InputError("is not the address of a store", "AWS_ENDPOINT_URL", "give it as https://HOST:PORT")
        more = {"scheme": parts.scheme, "endpoint_override": parts.netloc}
    region = os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION")
    if not region and not endpoint:
        region = _again(lambda: fs.resolve_s3_region(bucket), f"s3://{bucket}")
    waits = {"connect_timeout": _CONNECT_S, "request_timeout": _REPLY_S, "allow_delayed_open": True}
    return {"region": region, **waits, **more}


def _again(work: Callable[[], T], uri: str) -> T:
    """What `work` gives, tried again where it fails as a store does now and then; StorageError when patience is at its end."""
    begun, pause = time.monotonic(), _FIRST_PAUSE_S
    while True:
        try:
            return work()
        except OSError as error:
            if error.errno is not None:  # of this machine's disk, as no space left
                raise
            reason = str(error)
            _refuse_final(reason, uri)
            if time.monotonic() - begun + pause > PATIENCE_S:
                waited = f"failed for {time.monotonic() - begun:.0f} s ({_said(reason)})"
                raise StorageError(f"{uri}: the store {waited}; run the same command again, what was committed is kept") from None
        time.sleep(pause * random.uniform(0.5, 1.0))
        pause = min(2 * pause, _LONGEST_PAUSE_S)


def _refuse_final(reason: str, uri: str) -> None:
    for pattern, (what, fix) in _FINAL.items():
        if re.search(pattern, reason):
            where = _WHERE_CREDENTIALS if "credentials" in what + fix or "key" in what else ""
            raise InputError(what, uri, fix + where) from None


def _said(reason: str) -> str:
    """What a store's error says, without what may be of the request: only names of errors and numbers."""
    found = re.search(r"AWS Error ([A-Z_]+(?: \(HTTP status \d+\))?)|(curlCode: \d+)|(HTTP status \d+)", reason)
    return next(part for part in found.groups() if part) if found else "it does not answer as it should"


# The cache of this machine.


def cache() -> Path:
    """The folder of this machine's mirrors: RAYDENSE_CACHE, or ~/.cache/raydense."""
    return Path(os.environ.get("RAYDENSE_CACHE") or Path.home() / ".cache" / "raydense").absolute()


def workplace(uri: str, made_from: str) -> Path:
    """The folder where this machine puts together what will lie at `uri`; another one for what is made from something else."""
    return cache() / "work" / _short(f"{checked(uri)}\n{made_from}")


def mirror(uri: str, name: str, files: Mapping[str, tuple[int, str | None]], manifest: bytes | None = None) -> Path:
    """The folder `name` of the cache with `files` (size and sha256 of each) of the folder `uri`, fetched where they are not there yet.

    Several processes may want the same: one fetches, the others wait. `manifest` is written last, as manifest.json.
    """
    folder = cache() / "mirrors" / name
    last = folder / _WHOLE
    if last.is_file() and all(_is_there(folder / file, size) for file, (size, _) in files.items()):
        return folder
    with locked(folder):
        missing = {file: of for file, of in files.items() if not _is_there(folder / file, of[0])}
        if sum(count for count, _ in missing.values()) >= _TOLD_FROM:
            say(f"storage: fetching {uri} ({size(sum(count for count, _ in missing.values()))}) into {folder}")
        together(lambda file: fetch(f"{uri}/{file}", folder / file, *missing[file]), missing)
        folder.mkdir(parents=True, exist_ok=True)
        if manifest is not None:
            write_whole(folder / "manifest.json", manifest)
        write_whole(last, b"")
    return folder


def _is_there(file: Path, size: int) -> bool:
    return file.is_file() and file.stat().st_size == size


def adopt(made: Path, name: str, sizes: dict[str, int], manifest: bytes) -> None:
    """Make the folder where something was put together its mirror, so that it need not be fetched; or remove it."""
    folder = cache() / "mirrors" / name
    with locked(folder):
        if not folder.exists() and all(_is_there(made / file, size) for file, size in sizes.items()):
            shutil.rmtree(made / ".work", ignore_errors=True)
            folder.parent.mkdir(parents=True, exist_ok=True)
            write_whole(made / "manifest.json", manifest)
            write_whole(made / _WHOLE, b"")
            os.rename(made, folder)
    shutil.rmtree(made, ignore_errors=True)


def forget_mirrors(names: Iterable[str]) -> None:
    """Remove mirrors from the cache of this machine."""
    for folder in (cache() / "mirrors" / name for name in names):
        if folder.exists():
            with locked(folder):
                shutil.rmtree(folder, ignore_errors=True)


def forget(made: Path) -> None:
    """Remove a folder where something was put together."""
    shutil.rmtree(made, ignore_errors=True)


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """One process of this machine at a time; the end of a process, however it comes, lets the next one in."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    with open(folder.with_name(f"{folder.name}.lock"), "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def write_whole(file: Path, content: bytes, aside_in: Path | None = None) -> None:
    """Write a small file of this machine: it is the old one or the new one, never half; put together in `aside_in`, or beside it."""
    aside = (aside_in or file.parent) / f".{file.name[-60:]}.{uuid.uuid4().hex}.aside"
    try:
        with open(aside, "wb") as stream:
            stream.write(content)
            stream.flush()
            os.fsync(stream.fileno())
        os.replace(aside, file)
    finally:
        aside.unlink(missing_ok=True)


def follow_umask(file: Path) -> None:
    """Give a file the permissions of any new file next to it: some libraries, as safetensors, make files that only their owner can read."""
    fresh = file.with_name(f".{uuid.uuid4().hex}.aside")
    fresh.touch()
    try:
        os.chmod(file, fresh.stat().st_mode & 0o777)
    finally:
        fresh.unlink()


def _short(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def local(path: str | os.PathLike[str]) -> Path:
    """The file or folder as this machine sees it: `path` itself, or the mirror of what the store holds now.

    InputError where a store has nothing there. A folder with a manifest is mirrored by it, any other by names, sizes and times.
    """
    place = place_of(path)
    if not isinstance(place, str):
        return place
    files = _in_sight(listing(place))
    if not files:
        raise InputError("no such file or folder", place, "check the path")
    unsafe = next((name for name in files if name and not safe_name(name)), None)
    if unsafe is not None:
        raise InputError(f"holds a file of the name {unsafe!r}", place, "rename or remove it")
    above, _, last = place.rpartition("/")
    name = _mirror_of(place, files)
    if "" in files:
        return mirror(above, name, {last: (files[""].size, None)}) / last
    sums = {} if is_mirrored(name) else _sums(place, files)
    return mirror(place, name, {name: (of.size, sums.get(name)) for name, of in files.items()})


def _in_sight(found: dict[str, Found]) -> dict[str, Found]:
    """The files whose names are not hidden, nor those of the folders that they are in."""
    return {name: of for name, of in found.items() if not any(part.startswith(".") for part in PurePosixPath(name).parts)}


def _mirror_of(uri: str, files: dict[str, Found]) -> str:
    """The name of the mirror of what a store holds now, in messages the folder's own."""
    identity = _short("\n".join([uri, *(f"{name} {of.size} {of.written}" for name, of in sorted(files.items()))]))
    return identity if "" in files else f"{identity}/{uri.rpartition('/')[2]}"


def mirrors_of(uri: str) -> list[str]:
    """The names of the mirrors that a machine may have of what a store holds at `uri` now, as an artifact or as any folder."""
    manifest = read(f"{uri}/manifest.json")
    fingerprint = str(json.loads(manifest).get("fingerprint", "")) if manifest else ""
    return [_mirror_of(uri, _in_sight(listing(uri))), *([fingerprint] if _FINGERPRINT.fullmatch(fingerprint) else [])]


def _sums(uri: str, files: Iterable[str]) -> dict[str, str]:
    """The sha256 of those files that a manifest among them tells of."""
    sums: dict[str, str] = {}
    for name in files:
        if PurePosixPath(name).name == "manifest.json":
            try:
                told = json.loads(read(f"{uri}/{name}") or b"")["files"]
                sums |= {str(PurePosixPath(name).parent / file["path"]): str(file["sha256"]) for file in told}
            except (ValueError, TypeError, KeyError):  # another tool's manifest
                continue
    return sums


def is_mirrored(name: str) -> bool:
    """Whether the cache has all of the mirror `name`."""
    return (cache() / "mirrors" / name / _WHOLE).is_file()
