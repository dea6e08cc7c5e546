"""Lock files in folders that others may write in."""

import errno
from collections.abc import Callable
from pathlib import Path

import pytest

from raydense.errors import fixable
from raydense.storage import Place


def lock(folder: Path) -> None:
    with Place.of(folder / "out").lock():
        pass


def hold(folder: Path) -> None:
    Place.of(folder).hold()


@pytest.mark.parametrize(("name", "taken"), [("out.lock", lock), ("lock", hold)])
def test_a_lock_that_is_a_link_is_refused_and_empties_no_file(tmp_path: Path, name: str, taken: Callable[[Path], None]) -> None:
    theirs, shared = tmp_path / "theirs", tmp_path / "shared"
    theirs.write_text("what another wrote")
    shared.mkdir()
    (shared / name).symlink_to(theirs)
    with pytest.raises(OSError, match=str(shared / name)) as caught:
        taken(shared)
    assert caught.value.errno == errno.ELOOP
    assert theirs.read_text() == "what another wrote"
    assert fixable(caught.value) == (2, f"{shared / name}: too many levels of symbolic links; give another path")
