"""Lock files in folders that others may write in, and checksums."""

import errno
import hashlib
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from raydense.errors import fixable
from raydense.storage import Place, files, fingerprint_of


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


def test_a_lock_leaves_no_file_and_lets_one_after_another_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place, inside, waiting = Place.of(tmp_path / "out"), [], threading.Semaphore(0)
    take = files.take

    def counted(*given: object) -> None:
        waiting.release()
        take(*given)  # type: ignore[arg-type]

    def work() -> None:
        with place.lock():
            inside.append(1)
            assert len(inside) == 1
            inside.pop()

    monkeypatch.setattr(files, "take", counted)
    with ThreadPoolExecutor(4) as pool:
        with place.lock():
            others = [pool.submit(work) for _ in range(4)]
            for _ in range(5):
                assert waiting.acquire(timeout=60)
        for other in others:
            other.result()
    assert list(tmp_path.iterdir()) == []


def test_the_files_of_a_large_folder_are_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reads, digest = [], hashlib.file_digest
    monkeypatch.setattr(hashlib, "file_digest", lambda stream, name: reads.append(stream.name) or digest(stream, name))
    for part in range(4_200):
        (tmp_path / f"{part}.txt").touch()
    assert fingerprint_of(tmp_path) == fingerprint_of(tmp_path)
    assert len(reads) == 4_200
