"""The cache: a file is fetched once, and what kills left is removed."""

import json
import os
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from raydense.storage import Place, cache, releases_outputs


def test_what_kills_left_incomplete_goes_after_a_day(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAYDENSE_CACHE", str(tmp_path))
    day_ago = (time.time() - 2 * 86_400,) * 2
    for name in ("old", "new"):
        download, folder, upload = (
            tmp_path / "files/entry" / f".{name}.0.aside",
            tmp_path / "work/writing" / f".{name}.1.aside",
            tmp_path / "work/writing" / f".{name}.2.aside",
        )
        for made in (download.parent, folder):
            made.mkdir(parents=True, exist_ok=True)
        for file in (download, folder / "part", upload):
            file.write_text("half")
        if name == "old":
            for aside in (download, folder / "part", folder, upload):
                os.utime(aside, day_ago)
    growing = tmp_path / "work/writing/.growing.0.aside"
    (growing / "deep").mkdir(parents=True)
    (growing / "deep/part").write_text("half")
    for one in (growing / "deep", growing):  # only the times of the file in it change
        os.utime(one, day_ago)
    whole = tmp_path / "files/entry/whole"
    whole.write_text("all")
    os.utime(whole, day_ago)
    cache.trim()
    left = sorted(file.name for file in tmp_path.rglob("*") if file.name.endswith("aside") or file == whole)
    assert left == [".growing.0.aside", ".new.0.aside", ".new.1.aside", ".new.2.aside", "whole"]


def test_files_of_an_output_that_nobody_went_on_with_go_after_a_week(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAYDENSE_CACHE", str(tmp_path))
    of_bucket = ["deep/part.bin", ".work/aside-0/half"]
    records = {"part": {"path": "deep/part.bin", "version": "1"}, "other": {"path": "other.bin"}}
    texts = {f".work/commits/{name}.json": json.dumps(record) for name, record in records.items()}
    texts[".work/commits/damaged.json"] = "{"
    uploaded = ".work/commits/part.json"
    here_alone = ["other.bin", ".work/kept.parquet", ".work/replies/part.jsonl", *(text for text in texts if text != uploaded)]
    for age in (8, 6):
        for name in (*of_bucket, uploaded, *here_alone):
            file = tmp_path / "work" / f"{age:032x}" / name
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(texts.get(name, "x"))
            os.utime(file, (time.time() - age * 86_400,) * 2)
    cache.trim()
    left = sorted(file.relative_to(tmp_path / "work").as_posix() for file in (tmp_path / "work").rglob("*") if file.is_file())
    assert left == sorted(
        [f"{8:032x}/{name}" for name in here_alone] + [f"{6:032x}/{name}" for name in (*of_bucket, uploaded, *here_alone)]
    )


def test_a_growing_file_that_nobody_writes_goes_after_a_week(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAYDENSE_CACHE", str(tmp_path))
    files = {(age, scheme): Place.of(f"{scheme}://bucket/{age}/history.jsonl").growing() for age in (6, 8) for scheme in ("s3", "gs")}
    for (age, _), file in files.items():
        file.write_text("{}")
        os.utime(file, (time.time() - age * 86_400,) * 2)
    cache.trim()
    assert {age for (age, _), file in files.items() if file.exists()} == {6}


def test_an_empty_folder_of_an_output_goes_after_a_week_and_is_looked_for_once_an_hour(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RAYDENSE_CACHE", str(tmp_path))
    swept = tmp_path / "locks/swept"
    for looked, left in ((None, []), (60, ["work/one"]), (3_700, [])):
        commits = tmp_path / "work/one/.work/commits"
        commits.mkdir(parents=True, exist_ok=True)
        for folder in (commits, commits.parent):
            os.utime(folder, (time.time() - 8 * 86_400,) * 2)
        if looked:
            os.utime(swept, (time.time() - looked,) * 2)
        cache.trim()
        assert [str(one.relative_to(tmp_path)) for one in tmp_path.glob("work/*")] == left


def test_a_file_that_another_fetches_is_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAYDENSE_CACHE", str(tmp_path))
    first, second, fetched = threading.Event(), threading.Event(), []
    locked = cache.locked

    def asked(file: Path, shared: bool = False) -> Any:
        if first.is_set():
            second.set()
        return locked(file, shared)

    def download(path: Path) -> None:
        fetched.append(path)
        if first.is_set():
            second.set()
        first.set()
        assert second.wait(60)
        path.write_bytes(b"content")

    monkeypatch.setattr(cache, "locked", asked)
    with ThreadPoolExecutor(2) as both:
        one = both.submit(cache.fetched, "group", "name", 7, download)
        assert first.wait(60)
        other = both.submit(cache.fetched, "group", "name", 7, download)
        assert one.result() == other.result()
    assert one.result().read_bytes() == b"content"
    assert len(fetched) == 1


def test_a_group_that_a_stage_reads_stays_whole_until_the_stage_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAYDENSE_CACHE", str(tmp_path))
    monkeypatch.setenv("RAYDENSE_CACHE_GB", "0.0000025")
    hour_ago = (time.time() - 3_600,) * 2

    def fetch(entry: str, name: str) -> None:
        os.utime(cache.fetched(entry, name, 1_000, lambda path: path.write_bytes(b"x" * 1_000)), hour_ago)

    @releases_outputs
    def stage(entry: str) -> list[str]:
        cache.reserve(entry)
        for name in "abc":
            fetch(entry, name)
        cache.trim()
        return there()

    def there() -> list[str]:
        return sorted(str(file.relative_to(tmp_path / "files")) for file in (tmp_path / "files").rglob("[abc]"))

    assert stage("one/deep") == ["one/deep/a", "one/deep/b", "one/deep/c"]
    assert stage("two") == ["two/a", "two/b", "two/c"], "its readers have ended"
    cache.trim()
    assert len(there()) == 2
    monkeypatch.setenv("RAYDENSE_CACHE_GB", "0")
    cache.trim()
    assert list((tmp_path / "files").iterdir()) == []


@pytest.mark.parametrize("call", ["listdir", "open", "unlink"])
def test_what_is_another_users_in_a_shared_cache_stays(call: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its folder may not be read, its lock file not be opened, or its file not be removed; a test may run as root, to whom all is allowed."""
    monkeypatch.setenv("RAYDENSE_CACHE", str(tmp_path))
    monkeypatch.setenv("RAYDENSE_CACHE_GB", "0")
    for name in ("files/others/a", "files/others/.read", "files/own/a"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("x")
        os.utime(tmp_path / name, (time.time() - 3_600,) * 2)
    others, allowed = tmp_path / "files/others", getattr(os, call)

    def refused(path: Any, *given: Any, **named: Any) -> Any:
        if others in (Path(path), Path(path).parent):
            raise PermissionError(path)
        return allowed(path, *given, **named)

    access = os.access
    monkeypatch.setattr(os, "access", lambda path, mode: (call != "listdir" or Path(path) != others) and access(path, mode))
    monkeypatch.setattr(os, call, refused)
    cache.trim()
    monkeypatch.undo()
    assert sorted(file.relative_to(tmp_path / "files").as_posix() for file in (tmp_path / "files").rglob("*")) == [
        "others",
        "others/.read",
        "others/a",
    ]
