"""kill -9 of a writer at every point where it touches a file.

The writers are forked from a process of this file's, which has one thread: one forked from a process of Ray's many could wait for a lock for ever.
"""

import itertools
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from raydense.storage import Draft


def make(folder: Path) -> None:
    draft = Draft.open(folder, "run", {"a": 1})
    draft.commit("one.txt", lambda path: path.write_text("text"), rows=1)
    draft.commit("deep/two.txt", lambda path: path.write_text("two"), rows=1)
    draft.finish(2, note="so")


def test_killed_before_any_touch_of_a_file_it_is_made_as_if_it_never_was(tmp_path: Path) -> None:
    """kill -9 at the n-th event that Python audits within the folder, for every n until none is left."""
    assert points_of_kills(tmp_path, "make") > 30


def test_killed_anywhere_while_it_is_discarded_it_is_made_as_if_it_never_was(tmp_path: Path) -> None:
    assert points_of_kills(tmp_path, "discard", "begin") > 10


def points_of_kills(tmp_path: Path, *names: str) -> int:
    """`killed_everywhere` in a process of its own; the names are of functions in this file."""
    return int(subprocess.run([sys.executable, __file__, tmp_path, *names], check=True, stdout=subprocess.PIPE, text=True).stdout)


def begin(folder: Path) -> None:
    draft = Draft.open(folder, "run", {"a": 1})
    draft.commit("one.txt", lambda path: path.write_text("text"), rows=1)
    draft.commit("deep/two.txt", lambda path: path.write_text("two"), rows=1)
    draft.close()


def discard(folder: Path) -> None:
    Draft.open(folder, "run", {"a": 1}).discard()


def killed_everywhere(tmp_path: Path, work: Callable[[Path], None], before: Callable[[Path], None] | None = None) -> int:
    """The number of points at which `work` was killed; after each the output is made, and is what it is without a kill."""
    make(tmp_path / "whole")
    for nth in itertools.count(1):
        folder = tmp_path / str(nth)
        if before:
            before(folder)
        child = os.fork()
        if not child:
            sys.addaudithook(killer(str(folder), nth))
            try:
                work(folder)
            finally:
                os._exit(0)
        killed = os.WIFSIGNALED(os.waitpid(child, 0)[1])
        make_again(folder)
        assert files_of(folder) == files_of(tmp_path / "whole"), nth
        if not killed:
            return nth
    raise AssertionError


def killer(folder: str, nth: int) -> Callable[[str, tuple], None]:
    left = itertools.count(nth - 1, -1)

    def hook(event: str, given: tuple) -> None:
        if any(str(part).startswith(folder) for part in given) and next(left) == 0:
            os.kill(os.getpid(), signal.SIGKILL)

    return hook


def make_again(folder: Path) -> None:
    if not Draft.open(folder, "run", {"a": 1}).done:
        make(folder)


def files_of(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


if __name__ == "__main__":
    print(killed_everywhere(Path(sys.argv[1]), *(globals()[name] for name in sys.argv[2:])))
