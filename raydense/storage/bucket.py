"""Access to buckets: obstore's client, retries, and one-line errors for what a retry does not solve.

Credentials are those of the environment, as AWS and Google name them. obstore (the Rust crate object_store) retries server errors, lost
connections and time-outs, resumes a download that broke off, aborts a multipart upload that fails, and puts on a condition. It
retries for a few seconds at a time, so that a person can interrupt; this module retries beyond that.
"""

from __future__ import annotations

import hashlib
import os
import random
import re
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import urlsplit

from raydense.errors import InputError, RefusedByStore, StorageError
from raydense.storage.credentials import credential_files, profile_options

if TYPE_CHECKING:
    from obstore.store import GCSStore, S3Store

WHERE_CREDENTIALS = " in the environment (AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_PROFILE; GOOGLE_APPLICATION_CREDENTIALS)"
_CONNECT_S, _REPLY_S = 10.0, 60.0
_NO_CREDENTIALS = r"169\.254\.169\.254|metadata\.google|missing credentials|NoCredentials"
# Errors of a bucket's service that a retry does not solve, each with the fix.
_FINAL = {
    r"<Code>NoSuchBucket|bucket does not exist|Bucket '.*' not found|NO_SUCH_BUCKET": (
        "no such bucket",
        "make the bucket, or correct the path",
    ),
    _NO_CREDENTIALS: ("no credentials were found", "give some"),
    r"<Code>InvalidAccessKeyId|<Code>InvalidClientTokenId|<Code>UnrecognizedClient": ("the access key is not known", "correct it"),
    r"<Code>SignatureDoesNotMatch|<Code>InvalidSignature|401 Unauthorized": ("the secret key is refused", "correct it"),
    r"<Code>ExpiredToken|<Code>TokenExpired|<Code>RequestExpired": ("the credentials have expired", "renew them"),
    r"<Code>AccessDenied|403 Forbidden|PermissionDenied": ("access is denied", "give credentials that may read and write it"),
    r"redirect without LOCATION|<Code>PermanentRedirect|<Code>AuthorizationHeaderMalformed": (
        "the bucket is in another region",
        "set AWS_REGION to it",
    ),
    r"<Code>InvalidBucketName": ("is not a name of a bucket", "correct the path"),
    r"performing HEAD .* status code: 400 Bad Request": (  # a reply to HEAD does not say why
        "the request is refused",
        "renew the credentials if they have expired, else set AWS_REGION to the bucket's region",
    ),
    r"<Code>EntityTooLarge": ("the file is larger than the service takes", "make smaller ones, as by more shards of an index"),
    r"<Code>InvalidArgument": ("the request is refused (InvalidArgument)", "use another service, or correct the credentials"),
    r"501 Not Implemented|<Code>NotImplemented": ("the service lacks a request that is needed (conditional put)", "use another service"),
}
T = TypeVar("T")


@dataclass(frozen=True)
class Retries:
    """For how long a request is retried, how much of that obstore does in one call, the pauses, and the clock."""

    patience_s: float = 120.0
    within_s: float = 10.0
    first_pause_s: float = 0.2
    longest_pause_s: float = 10.0
    now: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep


RETRIES = Retries()
_LONG_TRIES = 5
_clients: dict[tuple[str, str, int], tuple[object, S3Store | GCSStore]] = {}  # by scheme, bucket and process, with what each was made with
_answered: set[str] = set()  # the buckets from which this process had an answer, for which it needed credentials


def client(scheme: str, bucket: str) -> S3Store | GCSStore:
    """obstore's client of a bucket, with the credentials of now."""
    of, made_with = (scheme, bucket, os.getpid()), (endpoint(), _identity(), RETRIES)
    if of not in _clients or _clients[of][0] != made_with:
        _clients[of] = made_with, _client(scheme, bucket, endpoint(), RETRIES)
    return _clients[of][1]


def endpoint() -> str:
    """The address of an S3 service other than Amazon's, or the empty string."""
    return os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL") or ""


def _identity() -> str:
    """A digest of all that a client reads when it is made; other credentials need another client. It holds no secret, as an error may show it."""
    variables = sorted((name, value) for name, value in os.environ.items() if name.startswith(("AWS_", "GOOGLE_")))
    return hashlib.sha256(repr((variables, [*map(_written, credential_files())])).encode()).hexdigest()


def _written(file: Path) -> int:
    try:
        return file.stat().st_mtime_ns
    except OSError:
        return 0


def _client(scheme: str, bucket: str, endpoint: str, retries: Retries) -> S3Store | GCSStore:
    from obstore.store import GCSStore, S3Store

    kind = GCSStore if scheme == "gs" else S3Store
    return kind(bucket, **_options(scheme, bucket, endpoint, retries))


def _options(scheme: str, bucket: str, endpoint: str, retries: Retries) -> dict[str, Any]:
    first, longest = timedelta(seconds=retries.first_pause_s), timedelta(seconds=retries.longest_pause_s)
    backoff = {"init_backoff": first, "max_backoff": longest, "base": 2}
    retry = {"max_retries": 100, "retry_timeout": timedelta(seconds=retries.within_s), "backoff": backoff}
    # the time of a whole transfer is not bounded, the time without a byte of it is
    waits: dict[str, Any] = {"connect_timeout": timedelta(seconds=_CONNECT_S), "read_timeout": timedelta(seconds=_REPLY_S), "timeout": "7d"}
    config: dict[str, Any] = profile_options() if scheme == "s3" else {}
    if scheme == "s3" and endpoint:
        config["endpoint"] = "://".join(_address(endpoint))
        waits["allow_http"] = _address(endpoint)[0] == "http"
    if scheme == "s3" and (region := region_of(bucket, config.pop("region", None))):
        config["region"] = region
    return {"config": config, "client_options": waits, "retry_config": retry}


def _address(endpoint: str) -> tuple[str, str]:
    parts = urlsplit(endpoint)
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.username or parts.password:
        raise InputError("is not the address of a service", "AWS_ENDPOINT_URL", "give it as https://HOST:PORT")
    return parts.scheme, parts.netloc


def region_of(bucket: str, profile: str | None = None) -> str | None:
    """The region that the environment or the profile names, else the bucket's own; None where an endpoint is given."""
    region = os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION") or profile
    if region or endpoint():
        return region
    return _own_region(bucket)


@lru_cache(maxsize=32)
def _own_region(bucket: str) -> str:
    from pyarrow import fs

    try:
        found: str = patiently(lambda: fs.resolve_s3_region(bucket), f"s3://{bucket}", signed=False)
    except StorageError as error:  # the service of all regions is asked, which a network that reaches the bucket may not reach
        raise StorageError(f"{error}; or set AWS_REGION to the bucket's region, which was being looked for") from None
    return found


def patiently(work: Callable[[], T], uri: str, again: tuple[type[Exception], ...] = (), signed: bool = True) -> T:
    """What `work` returns; it is retried while a bucket's service fails, StorageError after `RETRIES.patience_s` of failures.

    The time of a transfer that runs for longer and then fails does not count; it is begun again a few times. RefusedByStore at once where no trying
    helps; so it is without credentials, unless this process had some for the bucket before (`signed`: it needs them): then they are being renewed.

    FileNotFoundError and obstore's errors for a failed condition go to the caller, except those in `again`, which are retried.
    """
    failing, long, pause = None, 0, RETRIES.first_pause_s
    bucket = urlsplit(uri).netloc
    while True:
        begun = RETRIES.now()
        try:
            done = work()
            if signed:
                _answered.add(bucket)
            return done
        except Exception as error:
            if not _of_service(error, again):
                raise
            reason = str(error)
            _refuse_final(reason, uri, bucket in _answered)
            if isinstance(error, FileNotFoundError) and not again:
                raise
            now = RETRIES.now()
            if now - begun > RETRIES.patience_s and long < _LONG_TRIES:  # a large file was on its way meanwhile
                failing, long = now, long + 1
            failing = begun if failing is None else failing
            if now - failing + pause > RETRIES.patience_s:
                waited = f"failed for {now - failing:.0f} s ({_short(reason)})"
                raise StorageError(
                    f"{uri}: the bucket's service {waited}; run the same command again, what was committed is kept"
                ) from None
        RETRIES.sleep(pause * random.uniform(0.5, 1.0))
        pause = min(2 * pause, RETRIES.longest_pause_s)


def _of_service(error: Exception, again: tuple[type[Exception], ...]) -> bool:
    from obstore import exceptions

    if isinstance(error, exceptions.AlreadyExistsError | exceptions.PreconditionError):
        return False
    if isinstance(error, FileNotFoundError):
        return error.errno is None
    if isinstance(error, OSError) and error.errno is not None:  # of this machine's disk, as no space left
        return False
    return isinstance(error, (exceptions.BaseError, OSError, *again))


def _refuse_final(reason: str, uri: str, had_credentials: bool) -> None:
    if had_credentials and re.search(_NO_CREDENTIALS, reason):
        return
    for pattern, (what, fix) in _FINAL.items():
        if re.search(pattern, reason):
            where = WHERE_CREDENTIALS if "credentials" in what + fix or "key" in what else ""
            raise RefusedByStore(what, uri, fix + where) from None


def _short(reason: str) -> str:
    """A service's error without parts of the request, which may be secret: only names of errors and numbers."""
    if re.search(_NO_CREDENTIALS, reason):
        return "the credentials of this machine could not be renewed"
    found = re.search(r"<Code>([A-Za-z]+)</Code>|status code: (\d+ [A-Za-z ]+)|HTTP error: ([a-z ]+)|AWS Error ([A-Z_]+)", reason)
    return next(part for part in found.groups() if part).strip() if found else "it does not answer as it should"


def ray_filesystem(scheme: str, bucket: str) -> Any:
    """The pyarrow file system for Ray Train: obstore's client, which retries each request, also in the processes that it is sent to.

    Not pyarrow's own client of S3: while one of its requests waits for a service, no other client can be made in the process, and the
    process does not end (one lock for all clients; apache/arrow#50188). Files are not to be copied to it by `pyarrow.fs.copy_files`, which
    ignores that the service did not take one.
    """
    from pyarrow.fs import FSSpecHandler, PyFileSystem

    return PyFileSystem(FSSpecHandler(_files(scheme, bucket)))


def _files(scheme: str, bucket: str) -> Any:
    from obstore.fsspec import BufferedFile, FsspecStore

    class File(BufferedFile):
        def write(self, data: Any) -> int:  # pyarrow's buffers are of signed bytes, which obstore refuses
            given: Any = memoryview(data).cast("B")
            return super().write(given)

    class Files(FsspecStore):
        cachable = False

        def _open(self, path: str, mode: Any = "rb", *_: Any, **__: Any) -> BufferedFile:
            return File(self, path, mode)

        async def _rm_file(self, path: str, **_: Any) -> None:
            with suppress(FileNotFoundError):  # a folder is no object
                await super()._rm_file(path)

        def __reduce__(self) -> Any:  # each process takes its own credentials: none is sent
            return _files, (scheme, bucket)

    made: Any = Files
    return made(scheme, **_options(scheme, bucket, endpoint(), replace(RETRIES, within_s=RETRIES.patience_s)))
