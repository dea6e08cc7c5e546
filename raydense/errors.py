"""The errors that a user can fix: each is one line with what is wrong, where, and the fix."""

import difflib
import errno
import os
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

_KEPT = "what was committed is kept"
_CACHES = {"RAYDENSE_CACHE": "~/.cache/raydense", "HF_HOME": "~/.cache/huggingface"}  # where they are without the variable


class InputError(Exception):
    """Bad input or settings; the command line prints it as one line and exits with 2.

    `what` is wrong, `where` (a file and line, a folder, or a key), and the `fix`.
    """

    def __init__(self, what: str, where: object = "", fix: str = "") -> None:
        super().__init__(what, str(where), fix)

    def __str__(self) -> str:
        what, where, fix = self.args
        line = f"{where}: {what}" if where else what
        line = f"{line}; {fix}" if fix else line
        return " ".join(line.split())


class DownloadError(InputError):
    """A source that could not be read to its end now: the same command, later, goes on."""


class RefusedByStore(InputError):
    """A request to a bucket that the service refuses, as for its credentials: no fault of what is read."""


class LostOutput(InputError):
    """The output is another process's, which writes it, took it over or finished it: nothing there may be removed."""


class InputErrors(InputError):
    """Several faults of one input, found in one reading; the command line prints a line for each."""

    def __init__(self, *faults: InputError) -> None:
        Exception.__init__(self, *faults)

    def __str__(self) -> str:
        return "\n".join(map(str, self.args))


class Faults:
    """Collects the faults of one input."""

    def __init__(self) -> None:
        self._found: list[InputError] = []

    def add(self, what: str, where: object, fix: str) -> None:
        """One more fault; the arguments are those of InputError."""
        self._found.append(InputError(what, where, fix))

    @contextmanager
    def collected(self) -> Iterator[None]:
        """An InputError ends the block and is collected, unless there is a fault of the same place, from which it follows."""
        try:
            yield
        except InputError as error:
            before = {fault.args[1] for fault in self._found}
            self._found += [fault for fault in faults_of(error) if fault.args[1] not in before]

    def refuse(self) -> None:
        """Raise what was collected: one InputError, or InputErrors."""
        if self._found:
            raise self._found[0] if len(self._found) == 1 else InputErrors(*self._found)


def faults_of(error: InputError) -> list[InputError]:
    """The single faults of an InputError."""
    return list(error.args) if isinstance(error, InputErrors) else [error]


class StorageError(OSError):
    """A store that failed for longer than the retries last; the command line prints its one line and exits with 1."""


class EndpointError(OSError):
    """A language model's endpoint that gave no answer in all attempts, or cost what it may; the command line prints its one line and exits with 1."""


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """A fix for an unknown word: the nearest known one, or all of them."""
    known = sorted(map(str, known))  # a key of YAML may be a number
    near = difflib.get_close_matches(str(word), known, n=1)
    return f"did you mean {near[0]!r}?" if near else f"known: {', '.join(known) or 'none'}"


def why(error: BaseException) -> str:
    """An error as one line, for a log in which other work continues."""
    found = fixable(error)
    return " | ".join(found[1].splitlines()) if found else (str(error).strip() or type(error).__name__).splitlines()[-1]


def short(error: Exception) -> str:
    """The kind and the first line of another library's error, short enough for an InputError."""
    return f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0][:200]}"


def fixable(error: BaseException) -> tuple[int, str] | None:
    """The exit code and the line for an error that a user can fix; None for other errors.

    Ray wraps what a worker raised, so the whole chain of causes is searched.
    """
    seen: set[int] = set()
    chain: list[BaseException | None] = [error]
    while chain:
        link = chain.pop()
        if link is None or id(link) in seen:
            continue
        seen.add(id(link))
        if isinstance(link, InputError) and not hasattr(link, "cause"):  # what Ray wraps is of both kinds, and its text is Ray's
            return 2, str(link)
        if isinstance(link, (StorageError, EndpointError)) and not hasattr(link, "cause"):
            return 1, str(link)
        if isinstance(link, OSError) and link.errno in (errno.ENOSPC, errno.EDQUOT):
            return 1, f"{link.filename or 'disk'}: no space left; free some and run again, {_KEPT}"
        if isinstance(link, OSError) and link.errno == errno.EFBIG:
            return 1, f"{link.filename or 'output'}: larger than a file may be here; raise the limit (ulimit -f) and run again, {_KEPT}"
        if isinstance(link, OSError) and link.errno == errno.EMFILE:
            return 1, f"{link.filename or 'files'}: too many are open; raise the limit (ulimit -n) and run again, {_KEPT}"
        if isinstance(link, OSError) and link.errno in (errno.EROFS, errno.EACCES, errno.EPERM):
            return 2, f"{link.filename or 'output'}: {(link.strerror or 'not permitted').lower()}; {_elsewhere(link.filename)}"
        if isinstance(link, OSError) and link.errno in (errno.ENOTDIR, errno.EISDIR, errno.ENAMETOOLONG, errno.ELOOP):
            return 2, f"{link.filename or 'path'}: {(link.strerror or 'not usable').lower()}; give another path"
        chain += [link.__cause__, link.__context__, getattr(link, "cause", None)]
        chain += list(getattr(link, "exceptions", None) or ())
        chain += [one for one in link.args if isinstance(one, BaseException)]  # what ended an actor when it started
        chain += list((getattr(link, "worker_failures", None) or {}).values())
    return None


def _elsewhere(path: object) -> str:
    """The fix for a path that may not be read or written: of a cache, which no flag names, the variable that does."""
    if isinstance(path, str | bytes | os.PathLike):
        refused = Path(os.fsdecode(path)).absolute()
        caches = {name: Path(os.environ.get(name) or os.path.expanduser(default)).absolute() for name, default in _CACHES.items()}
        missing = not os.path.exists(refused)  # a folder above a cache is to be made, too
        found = [name for name, cache in caches.items() if refused.is_relative_to(cache) or (missing and cache.is_relative_to(refused))]
        if found:
            return f"set {' and '.join(found)} to a folder that can be written"
    return "give another path, or yourself the right to read and write it"


@contextmanager
def one_line_errors(name: str) -> Iterator[None]:
    """For a script: what a user can fix ends it as it ends a command, with one line after `name` and the exit code 2 or 1; no traceback."""
    try:
        yield
    except Exception as error:
        found = fixable(error)
        if found is None:
            raise
        for line in found[1].splitlines():
            print(f"{name}: {line}", file=sys.stderr)
        sys.exit(found[0])
