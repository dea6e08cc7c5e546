"""An artifact appears whole or not at all, continues, and is refused when stale, damaged, foreign or in use."""

import asyncio
import errno
import hashlib
import json
import os
import pickle
import re
import shutil
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from safetensors.numpy import save_file

from raydense.data.tables import commit_table
from raydense.errors import InputError, LostOutput, StorageError, fixable
from raydense.storage import (
    Artifact,
    Draft,
    Place,
    check_made_with,
    check_unchanged,
    commits,
    differences,
    fingerprint_of,
    holds,
    releases_outputs,
    stays_held,
    write_json,
)
from raydense.storage.files import locked
from tests.damaged import damaged


def put(draft: Draft, name: str, text: str = "text") -> None:
    draft.commit(name, lambda path: path.write_text(text), rows=1)


def make(folder: Path, kind: str = "run", made_from: dict | None = None) -> Artifact:
    draft = Draft.open(folder, kind, made_from or {"a": 1})
    put(draft, "one.txt")
    put(draft, "deep/two.txt", "two")
    return draft.finish(2, note="so")


_meanwhile: list[tuple[str, str | None, Callable[[], None]]] = []


def _audit(event: str, given: tuple) -> None:
    if _meanwhile and event == _meanwhile[0][0] and _meanwhile[0][1] in (None, str(given[0])):
        _meanwhile.pop()[2]()


sys.addaudithook(_audit)


@contextmanager
def before(event: str, first: str | None, another: Callable[[], None]) -> Iterator[None]:
    """What another process does just before this one's next call that Python audits as `event`, of the path `first`."""
    _meanwhile.append((event, first, another))
    yield
    assert not _meanwhile


def test_a_folder_is_finished_without_reading_its_records_once_more(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise AssertionError("read again")

    monkeypatch.setattr(commits.Commits, "made_here", refuse)
    make(tmp_path / "x")


def test_made_and_opened(tmp_path: Path) -> None:
    made = make(tmp_path / "x")
    there = Artifact.open(tmp_path / "x", "run")
    assert (there.rows, there.summary, there.fingerprint) == (2, {"note": "so"}, made.fingerprint)
    assert [p.read_text() for p in there.parts(".txt")] == ["two", "text"]
    assert sorted(p.name for p in (tmp_path / "x").iterdir()) == ["deep", "manifest.json", "one.txt"]


def test_fingerprint_follows_content_and_origin(tmp_path: Path) -> None:
    same, again, other = make(tmp_path / "a"), make(tmp_path / "b"), make(tmp_path / "c", made_from={"a": 2})
    assert same.fingerprint == again.fingerprint != other.fingerprint


def test_finished_is_found_done_and_stale_is_refused(tmp_path: Path) -> None:
    make(tmp_path / "x", made_from={"settings": {"k": 5}, "inputs": {}})
    assert Draft.open(tmp_path / "x", "run", {"settings": {"k": 5}, "inputs": {}}).done
    with pytest.raises(InputError, match=r"made from something else \(settings\.k: 5 -> 6\); give another --output"):
        Draft.open(tmp_path / "x", "run", {"settings": {"k": 6}, "inputs": {}})
    with pytest.raises(InputError, match="holds run, and this makes corpus"):
        Draft.open(tmp_path / "x", "corpus", {"settings": {"k": 5}, "inputs": {}})


def test_unfinished_continues_and_is_not_an_artifact(tmp_path: Path) -> None:
    draft = Draft.open(tmp_path / "x", "run", {"a": 1})
    put(draft, "one.txt")
    with pytest.raises(InputError, match="unfinished"):
        Artifact.open(tmp_path / "x")
    draft.close()
    again = Draft.open(tmp_path / "x", "run", {"a": 1})
    assert again.done is None
    assert list(again.committed()) == ["one.txt"]


def test_what_made_nothing_yet_may_begin_from_something_else(tmp_path: Path) -> None:
    """A stage that refused its settings can be run with better ones; once something is committed it cannot."""
    Draft.open(tmp_path / "x", "run", {"a": 1}).close()
    draft = Draft.open(tmp_path / "x", "run", {"a": 2})
    put(draft, "one.txt")
    draft.close()
    with pytest.raises(InputError, match="a: 2 -> 3"):
        Draft.open(tmp_path / "x", "run", {"a": 3})


def test_a_manifest_of_another_tool_is_none(tmp_path: Path) -> None:
    (tmp_path / "manifest.json").write_text('{"files": []}')
    with pytest.raises(InputError, match="no manifest"):
        Artifact.open(tmp_path, "corpus")
    assert fingerprint_of(tmp_path)


def test_a_worker_finds_the_folder_from_anywhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    sent = pickle.dumps(Draft.open("x", "run", {}))
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    put(pickle.loads(sent), "one.txt")
    assert (tmp_path / "x" / "one.txt").is_file()


def test_an_artifact_is_read_after_the_working_directory_has_changed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that was opened by a relative path, which messages keep."""
    make(tmp_path / "here" / "a")
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    artifact = Artifact.open("a")
    assert artifact.file("one.txt") == Path("a/one.txt")
    monkeypatch.chdir(tmp_path / "elsewhere")
    for found in (artifact, pickle.loads(pickle.dumps(artifact)), Artifact.open(artifact)):
        assert found.file("one.txt").read_text() == "text"
        assert found.path == tmp_path / "here" / "a"
        assert found.located == os.fspath(found) == str(tmp_path / "here" / "a")
        assert not found.damaged()
    assert repr(artifact).endswith("place='a')")
    with pytest.raises(InputError, match=r"^a/three: is not among the files"):
        artifact.file("three")


def test_a_stage_that_failed_may_run_again_in_the_same_process(tmp_path: Path) -> None:
    failed = Draft.open(tmp_path / "x", "run", {"a": 1})
    put(failed, "one.txt")
    again = Draft.open(tmp_path / "x", "run", {"a": 1})
    assert list(again.committed()) == ["one.txt"]
    assert again.finish(1).rows == 1


def test_failed_write_leaves_nothing(tmp_path: Path) -> None:
    draft = Draft.open(tmp_path / "x", "run", {})

    def fail(path: Path) -> None:
        path.write_text("half")
        raise RuntimeError("stop")

    with pytest.raises(RuntimeError):
        draft.commit("one.txt", fail, 1)
    assert not draft.committed()
    assert not list((tmp_path / "x").rglob("one.txt"))


def test_truncated_missing_and_unreadable_are_refused(tmp_path: Path) -> None:
    make(tmp_path / "x")
    os.truncate(tmp_path / "x" / "one.txt", 2)
    with pytest.raises(InputError, match=r"x/one.txt: missing, or not of the size"):
        Artifact.open(tmp_path / "x")
    (tmp_path / "x" / "one.txt").unlink()
    with pytest.raises(InputError, match="missing"):
        Artifact.open(tmp_path / "x")
    for content in ("[" * 100_000, '{"kind": "run", "form'):
        (tmp_path / "x" / "manifest.json").write_text(content)
        with pytest.raises(InputError, match="not readable as JSON"):
            Artifact.open(tmp_path / "x")
    with pytest.raises(InputError, match="not readable as JSON"):
        Artifact.open(tmp_path / "x")


def _written(file: Path) -> tuple[int, int, int]:
    """Which file it is, and when it was written; not when it was read, which a check of its bytes changes."""
    found = file.stat()
    return found.st_ino, found.st_mtime_ns, found.st_size


@pytest.mark.parametrize("damage", ["gone", "truncated"])
def test_a_damaged_file_alone_is_made_again(tmp_path: Path, damage: str) -> None:
    made = make(tmp_path / "x")
    kept = _written(tmp_path / "x" / "deep" / "two.txt")
    if damage == "gone":
        (tmp_path / "x" / "one.txt").unlink()
    else:
        os.truncate(tmp_path / "x" / "one.txt", 2)
    draft = Draft.open(tmp_path / "x", "run", {"a": 1})
    assert draft.done is None
    assert list(draft.committed()) == ["deep/two.txt"]
    put(draft, "one.txt")
    assert draft.finish(2, note="so").manifest == made.manifest
    assert _written(tmp_path / "x" / "deep" / "two.txt") == kept


@pytest.mark.parametrize("damage", ["gone", "truncated", "altered"])
def test_a_damaged_file_of_unfinished_work_is_made_again(tmp_path: Path, damage: str) -> None:
    draft = Draft.open(tmp_path / "x", "run", {"a": 1})
    put(draft, "one.txt")
    put(draft, "two.txt")
    draft.close()
    if damage == "gone":
        (tmp_path / "x" / "one.txt").unlink()
    else:
        (tmp_path / "x" / "one.txt").write_text("te" if damage == "truncated" else "TEXT")
    assert list(Draft.open(tmp_path / "x", "run", {"a": 1}).committed()) == ["two.txt"]


def test_an_altered_file_is_found_where_another_is_gone(tmp_path: Path) -> None:
    make(tmp_path / "x")
    (tmp_path / "x" / "one.txt").unlink()
    (tmp_path / "x" / "deep" / "two.txt").write_text("TWO")
    assert Draft.open(tmp_path / "x", "run", {"a": 1}).committed() == {}


def test_reading_large_committed_files_again_shows_how_far_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for shown_from, message in ((1_000, ""), (8, "check committed files: 2 files in 0s")):
        monkeypatch.setattr(commits, "_SHOWN_FROM", shown_from)
        draft = Draft.open(tmp_path / "x", "run", {})
        for name in ("one.txt", "two.txt"):
            draft.commit(name, lambda path: path.write_text("text"), 1)
        draft.close()
        capsys.readouterr()
        resumed = Draft.open(tmp_path / "x", "run", {})
        assert capsys.readouterr().err.partition(",")[0].strip() == message
        resumed.close()


def test_verify_names_each_damaged_file(tmp_path: Path) -> None:
    made = make(tmp_path / "x")
    assert damaged(tmp_path / "x") == []
    (tmp_path / "x" / "one.txt").write_text("TEXT")
    assert damaged(made) == [("one.txt", "holds other bytes than were written (sha256)")]
    (tmp_path / "x" / "deep" / "two.txt").unlink()
    assert damaged(made) == [("deep/two.txt", "missing"), ("one.txt", "holds other bytes than were written (sha256)")]


def test_verify_sees_through_links_to_folders(tmp_path: Path) -> None:
    made = make(tmp_path / "elsewhere/x")
    (tmp_path / "out").mkdir()
    (tmp_path / "out/linked").symlink_to(made.place)
    (tmp_path / "elsewhere/x/back").symlink_to(tmp_path / "out")
    (tmp_path / "elsewhere/x/one.txt").write_text("TEXT")
    assert damaged(tmp_path / "out") == [("one.txt", "holds other bytes than were written (sha256)")]


def test_verify_leaves_out_what_a_stage_is_at_work_on(tmp_path: Path) -> None:
    make(tmp_path / "x")
    work = tmp_path / "x/.work"
    (work / "aside-0").mkdir(parents=True)
    (work / "aside-0/half").write_text("half")
    (work / "manifest.json").write_bytes((tmp_path / "x/manifest.json").read_bytes())
    with before("os.listdir", str(work / "aside-0"), lambda: shutil.rmtree(work / "aside-0")):
        assert damaged(tmp_path) == []


def test_other_kind_no_folder_no_manifest_and_newer_format(tmp_path: Path) -> None:
    make(tmp_path / "x")
    with pytest.raises(InputError, match="holds run, not corpus"):
        Artifact.open(tmp_path / "x", "corpus")
    with pytest.raises(InputError, match="no such folder"):
        Artifact.open(tmp_path / "none")
    (tmp_path / "plain").mkdir()
    with pytest.raises(InputError, match=r"no manifest\.json"):
        Artifact.open(tmp_path / "plain")
    manifest = json.loads((tmp_path / "x" / "manifest.json").read_text())
    (tmp_path / "x" / "manifest.json").write_text(json.dumps({**manifest, "format_version": 99}))
    with pytest.raises(InputError, match="format version 99"):
        Artifact.open(tmp_path / "x")


def test_a_foreign_folder_is_not_written_into(tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("dear")
    with pytest.raises(InputError, match="is not an artifact of raydense"):
        Draft.open(tmp_path, "run", {})
    assert [p.name for p in tmp_path.iterdir()] == ["mine.txt"]


def test_workers_commit_through_a_pickled_draft(tmp_path: Path) -> None:
    draft = Draft.open(tmp_path / "x", "run", {})
    put(pickle.loads(pickle.dumps(draft)), "one.txt")
    assert list(draft.committed()) == ["one.txt"]


def test_a_small_file_is_the_old_one_or_the_new_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    writers = [lambda text: Place.of(tmp_path / "table.md").write(text.encode()), lambda text: write_json(tmp_path / "table.json", text)]
    for write in writers:
        write("old")
    monkeypatch.setattr(os, "fsync", lambda _: (_ for _ in ()).throw(OSError(errno.ENOSPC, "No space left on device")))
    for write in writers:
        with pytest.raises(OSError, match="No space"):
            write("new")
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == {"table.md": "old", "table.json": '"old"'}


def test_no_space_is_reported_in_one_line() -> None:
    assert fixable(OSError(errno.ENOSPC, "No space left on device", "/d/f")) == (
        1,
        "/d/f: no space left; free some and run again, what was committed is kept",
    )


def test_fingerprint_of_files_and_folders(tmp_path: Path) -> None:
    (tmp_path / "d").mkdir()
    (tmp_path / "d" / "w").write_text("1")
    before = fingerprint_of(tmp_path / "d")
    assert before == fingerprint_of(str(tmp_path / "d"))
    (tmp_path / "d" / "w").write_text("2")
    assert fingerprint_of(tmp_path / "d") != before
    with pytest.raises(InputError, match="no such file or folder"):
        fingerprint_of(tmp_path / "none")


def test_a_name_that_is_not_utf8_is_part_of_a_fingerprint(tmp_path: Path) -> None:
    """As archives of other systems have them."""
    found = set()
    for name in (b"caf\xe9.txt", b"caf\xe8.txt"):
        file = tmp_path / os.fsdecode(name)
        file.write_text("x")
        found.add(fingerprint_of(tmp_path))
        file.unlink()
    assert len(found) == 2


def test_a_fingerprint_sees_through_links_to_folders(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "real" / "f").write_text("a")
    (tmp_path / "d").mkdir()
    (tmp_path / "d" / "inner").symlink_to(tmp_path / "real")
    (tmp_path / "real" / "back").symlink_to(tmp_path / "d")
    before = fingerprint_of(tmp_path / "d")
    (tmp_path / "real" / "f").write_text("b")
    assert fingerprint_of(tmp_path / "d") != before


@pytest.mark.parametrize("kind", ["model", "joint"])
def test_weights_trained_on_in_place_are_refused_though_they_are_as_large(tmp_path: Path, kind: str) -> None:
    made = make(tmp_path / "m", kind)
    assert fingerprint_of(tmp_path / "m") == made.fingerprint
    (tmp_path / "m" / "one.txt").write_text("TEXT")
    with pytest.raises(InputError, match=r"one\.txt: was written to after raydense made it; make the model again"):
        fingerprint_of(tmp_path / "m")
    (tmp_path / "m" / "manifest.json").unlink()  # the other fix
    foreign = fingerprint_of(tmp_path / "m")
    (tmp_path / "m" / "one.txt").write_text("tExt")
    assert made.fingerprint != foreign != fingerprint_of(tmp_path / "m")


def test_a_file_that_stays_as_it_is_is_hashed_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make(tmp_path / "m", "model")
    hashed: list[str] = []
    digest = hashlib.file_digest
    monkeypatch.setattr(hashlib, "file_digest", lambda stream, kind: hashed.append(stream.name) or digest(stream, kind))
    assert fingerprint_of(tmp_path / "m") == fingerprint_of(tmp_path / "m")
    assert sorted(Path(name).name for name in hashed) == ["one.txt", "two.txt"]


def test_an_input_that_was_replaced_is_refused_where_it_is_opened(tmp_path: Path) -> None:
    begun = make(tmp_path / "x")
    assert Artifact.open(tmp_path / "x", "run", fingerprint=begun.fingerprint).rows == 2
    shutil.rmtree(tmp_path / "x")
    make(tmp_path / "x", made_from={"a": 2})
    line = r"x: was replaced while a stage was reading it \(fingerprint \w{8} at the start, \w{8} now\); leave inputs as they are"
    with pytest.raises(InputError, match=line):
        Artifact.open(tmp_path / "x", "run", fingerprint=begun.fingerprint)
    with pytest.raises(InputError, match=line):
        check_unchanged(tmp_path / "x", begun.fingerprint)


def test_no_file_comes_from_an_artifact_that_took_the_place_of_the_opened_one(tmp_path: Path) -> None:
    """Files are opened one by one, hours apart: those of two artifacts would be mixed without a word."""
    opened = make(tmp_path / "x")
    assert opened.file("one.txt").read_text() == "text"
    shutil.rmtree(tmp_path / "x")
    with pytest.raises(InputError, match="was replaced while a stage was reading it"):
        opened.file("deep/two.txt")
    assert make(tmp_path / "x").fingerprint == opened.fingerprint
    assert pickle.loads(pickle.dumps(opened)).file("deep/two.txt").read_text() == opened.file("deep/two.txt").read_text() == "two"
    shutil.rmtree(tmp_path / "x")
    make(tmp_path / "x", made_from={"a": 2})
    for reader in (opened, pickle.loads(pickle.dumps(opened))):
        with pytest.raises(InputError, match="was replaced while a stage was reading it"):
            reader.file("deep/two.txt")


def test_a_model_from_elsewhere_that_was_replaced_is_refused(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").write_text("1")
    begun = fingerprint_of(tmp_path)
    check_unchanged(tmp_path, begun)
    (tmp_path / "model.safetensors").write_text("2")
    with pytest.raises(InputError, match="was replaced while a stage was reading it"):
        check_unchanged(tmp_path, begun)


def test_what_a_stage_had_made_from_an_input_that_was_replaced_is_refused(tmp_path: Path) -> None:
    made = make(tmp_path / "scored", made_from={"inputs": {"model": "a" * 64}})
    check_made_with(made, "model", tmp_path / "model", "a" * 64)
    with pytest.raises(
        InputError, match=r"model: was replaced while a stage was reading it \(fingerprint bbbbbbbb at the start, aaaaaaaa now\)"
    ):
        check_made_with(made, "model", tmp_path / "model", "b" * 64)


def test_the_first_rows_are_a_data_frame_read_no_further_than_needed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    draft = Draft.open(tmp_path / "run", "run", {})
    for number, ids in enumerate((["a", "b", "c"], ["<d>"])):
        table = pa.table({"query_id": ids, "passage_id": ids, "rank": [1] * len(ids), "score": [0.5] * len(ids)})
        commit_table(draft, f"run-{number}.parquet", table)
    run = draft.finish(4)
    assert run.head()["query_id"].tolist() == ["a", "b", "c", "<d>"]
    assert "&lt;d&gt;" in run._repr_html_()
    asked: list[str] = []
    monkeypatch.setattr(Artifact, "file", lambda self, name: asked.append(name) or self.place.path / name)
    assert run.head(2).to_dict("list") == {"query_id": ["a", "b"], "passage_id": ["a", "b"], "rank": [1, 1], "score": [0.5, 0.5]}
    assert list(run.head(0).columns) == ["query_id", "passage_id", "rank", "score"]
    assert set(asked) == {"run-0.parquet"}

    folder = Draft.open(tmp_path / "index", "index", {})
    folder.commit("a.faiss", lambda path: path.write_bytes(b"1"), 1)
    index = folder.finish(1)
    assert "<td>a.faiss</td>" in index._repr_html_()
    with pytest.raises(InputError, match="has no rows to show: it is of kind index"):
        index.head()


def test_a_report_without_queries_shows_its_files(tmp_path: Path) -> None:
    draft = Draft.open(tmp_path / "compared", "report", {})
    draft.commit("metrics.json", lambda path: path.write_text("{}"), 2)
    report = draft.finish(2)
    assert "<td>metrics.json</td>" in report._repr_html_()
    with pytest.raises(InputError, match="has no files with rows"):
        report.head()


def test_a_repr_shows_kind_rows_and_place(tmp_path: Path) -> None:
    assert repr(make(tmp_path / "x")) == f"Artifact(kind='run', rows=2, place='{tmp_path}/x')"


@pytest.mark.parametrize("umask", [0o022, 0o077, 0o002])
def test_files_have_the_permissions_that_the_umask_gives(tmp_path: Path, umask: int) -> None:
    before = os.umask(umask)
    try:
        draft = Draft.open(tmp_path / "m", "model", {})
        draft.commit_tree(lambda folder: save_file({"w": np.ones(2, np.float32)}, folder / "model.safetensors"))
        draft.keep("kept", lambda path: save_file({"w": np.ones(2, np.float32)}, path))
        with (draft.shared / "shared").writing() as path:
            save_file({"w": np.ones(2, np.float32)}, path)
        files = [draft.folder / "model.safetensors", draft.work / "kept", draft.work / "shared"]
        assert {file.stat().st_mode & 0o777 for file in files} == {0o666 & ~umask}
    finally:
        os.umask(before)


@pytest.mark.parametrize("damage", [b"", b"0123456", b"01234567X9", b"0123456789more"], ids=["empty", "cut", "changed", "longer"])
def test_a_kept_file_that_a_crash_damaged_is_not_there(tmp_path: Path, damage: bytes) -> None:
    draft = Draft.open(tmp_path / "out", "run", {})
    draft.keep("counts", lambda path: path.write_bytes(b"0123456789"))
    kept = draft.kept("counts")
    assert kept is not None
    kept.write_bytes(damage)
    assert draft.kept("counts") is None
    draft.keep("counts", lambda path: path.write_bytes(b"0123456789"))
    assert draft.kept("counts") == kept
    (draft.work / "counts.sha256").unlink()
    assert draft.kept("counts") is None, "a kill came before its record"


def test_a_file_that_is_not_whole_has_no_name(tmp_path: Path) -> None:
    place = Place.of(tmp_path)
    (place / "whole").write(b"")
    with (place / "half").writing() as path:
        path.touch()
        assert place.names("*") == ["whole"]
    assert place.names("*") == ["half", "whole"]


def test_differences_names_keys() -> None:
    assert differences({"a": {"b": 1, "c": 2}}, {"a": {"b": 1, "c": 3}, "d": 4}) == "a.c: 2 -> 3, d: None -> 4"


def test_an_output_that_was_refused_before_anything_was_made_is_gone(tmp_path: Path) -> None:
    made_from = {"stage": "test"}
    begun = Draft.open(tmp_path / "begun", "run", made_from)
    committed = Draft.open(tmp_path / "committed", "run", made_from)
    committed.commit("part", lambda path: path.write_text("x"), 1)
    kept = Draft.open(tmp_path / "kept", "run", made_from)
    kept.keep("spill", lambda path: path.write_text("x"))
    elsewhere = Draft.open(tmp_path / "elsewhere", "run", made_from)
    elsewhere.close()  # as another process's, which this one has no lock of
    for draft in (begun, committed, kept, elsewhere):
        draft.discard_untouched()
    assert sorted(one.name for one in tmp_path.iterdir()) == ["committed", "elsewhere", "kept"]
    assert Draft.open(tmp_path / "begun", "run", {"stage": "another"}).done is None, "and can be used"


@releases_outputs
def _fail(folder: Path, error: Exception, name: str = "") -> None:
    draft = Draft.open(folder, "run", {"a": 1})
    if name:
        put(draft, name)
    raise error


def test_a_stage_that_fails_lets_other_processes_write(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError):
        _fail(tmp_path / "x", RuntimeError("no memory"), "one.txt")
    Place.of(tmp_path / "x/.work").hold().release()
    assert list(Draft.open(tmp_path / "x", "run", {"a": 1}).committed()) == ["one.txt"]


def test_a_stage_that_refuses_its_input_leaves_nothing(tmp_path: Path) -> None:
    for name, error, left in (("x", InputError("bad"), False), ("y", LostOutput("another's"), True), ("z", OSError("full"), True)):
        with pytest.raises(type(error)):
            _fail(tmp_path / name, error)
        assert (tmp_path / name).exists() == left
    with pytest.raises(InputError):
        _fail(tmp_path / "kept", InputError("bad"), "one.txt")
    assert (tmp_path / "kept/one.txt").exists()


def test_a_stage_releases_only_what_it_opened(tmp_path: Path) -> None:
    outer = Draft.open(tmp_path / "outer", "run", {"a": 1})
    with pytest.raises(RuntimeError):
        _fail(tmp_path / "inner", RuntimeError())
    with pytest.raises(LostOutput):
        Place.of(tmp_path / "outer/.work").hold()
    outer.finish(0)


def test_a_stage_releases_what_its_threads_opened(tmp_path: Path) -> None:
    @releases_outputs
    def stage() -> None:
        with ThreadPoolExecutor(1) as pool:
            pool.submit(Draft.open, tmp_path / "x", "run", {"a": 1}).result()
        raise RuntimeError("no memory")

    with pytest.raises(RuntimeError):
        stage()
    Place.of(tmp_path / "x/.work").hold().release()


def test_the_end_of_a_stage_leaves_what_another_one_opened(tmp_path: Path) -> None:
    """Though the thread that opened it has ended, as one of asyncio's executor has."""
    opened, ended = threading.Event(), threading.Event()

    @releases_outputs
    def one() -> None:
        asyncio.run(asyncio.to_thread(Draft.open, tmp_path / "x", "run", {"a": 1}))
        opened.set()
        assert ended.wait(60)

    thread = threading.Thread(target=one)

    @releases_outputs
    def other() -> None:
        thread.start()
        assert opened.wait(60)

    other()
    with pytest.raises(LostOutput, match="is writing here"):
        Place.of(tmp_path / "x/.work").hold()
    ended.set()
    thread.join(60)
    Place.of(tmp_path / "x/.work").hold().release()


@pytest.mark.parametrize("error", [KeyboardInterrupt, InputError, StorageError])
def test_what_a_stage_left_behind_keeps_its_output_until_it_ends(tmp_path: Path, error: type[BaseException]) -> None:
    ended = threading.Event()
    left = threading.Thread(target=ended.wait, daemon=True)

    @releases_outputs
    def stage() -> None:
        draft = Draft.open(tmp_path / "x", "run", {"a": 1})
        left.start()
        stays_held(draft.located, left)
        raise error("stop")

    try:
        with pytest.raises(error):
            stage()
        with pytest.raises(LostOutput, match="another process is writing here"):
            Place.of(tmp_path / "x/.work").hold()
        with pytest.raises(LostOutput, match="another thread of this process is writing here"):
            Draft.open(tmp_path / "x", "run", {"a": 1})
    finally:
        ended.set()
    for thread in threading.enumerate():
        if thread.name == "release":
            thread.join(60)
    Place.of(tmp_path / "x/.work").hold().release()
    assert Draft.open(tmp_path / "x", "run", {"a": 1}).finish(0).rows == 0


def test_an_interrupt_while_an_output_is_removed_releases_it(tmp_path: Path) -> None:
    def interrupt() -> None:
        raise KeyboardInterrupt

    draft = Draft.open(tmp_path / "x", "run", {"a": 1})
    with before("os.remove", str(tmp_path / "x/.work/lock"), interrupt), pytest.raises(KeyboardInterrupt):
        draft.discard()
    assert holds.hold_of(draft.place) is None
    Place.of(tmp_path / "x/.work").hold().release()


def test_two_threads_do_not_write_one_output(tmp_path: Path) -> None:
    opened, ended = threading.Event(), threading.Event()

    def write() -> None:
        draft = Draft.open(tmp_path / "x", "run", {"a": 1})
        opened.set()
        ended.wait()
        put(draft, "one.txt")  # and ends without a word

    thread = threading.Thread(target=write)
    thread.start()
    opened.wait()
    try:
        with pytest.raises(LostOutput, match="another thread of this process is writing here; wait for it"):
            Draft.open(tmp_path / "x", "run", {"a": 1})
    finally:
        ended.set()
        thread.join()
    assert list(Draft.open(tmp_path / "x", "run", {"a": 1}).committed()) == ["one.txt"]


def test_nothing_is_discarded_that_another_process_may_have_written(tmp_path: Path) -> None:
    released = Draft.open(tmp_path / "released", "run", {"a": 1})
    released.close()
    finished = Draft.open(tmp_path / "finished", "run", {"a": 1})
    (tmp_path / "finished/manifest.json").write_text("{}")  # another process's
    for draft in (released, finished):
        draft.discard()
        assert draft.folder.exists()
    own = Draft.open(tmp_path / "own", "run", {"a": 1})
    put(own, "deep/one.txt")
    own.discard()
    assert not (tmp_path / "own").exists()


def test_a_finished_output_is_never_replaced(tmp_path: Path) -> None:
    draft = Draft.open(tmp_path / "x", "run", {"a": 1})
    (tmp_path / "x/manifest.json").write_text("{}")
    with pytest.raises(LostOutput, match="another process has finished this output; run the same command again"):
        draft.finish(0)
    assert (tmp_path / "x/manifest.json").read_text() == "{}"


def test_what_another_process_finishes_while_it_is_opened_is_found_done(tmp_path: Path) -> None:
    made, first = make(tmp_path / "made"), Draft.open(tmp_path / "x", "run", {"a": 1})
    put(first, "one.txt")
    first.close()

    def finish() -> None:  # and lets go of its lock
        shutil.rmtree(tmp_path / "x/.work")
        shutil.copytree(tmp_path / "made", tmp_path / "x", dirs_exist_ok=True)

    with before("open", str(tmp_path / "x/.work/lock"), finish):
        again = Draft.open(tmp_path / "x", "run", {"a": 1})
    assert again.done is not None
    assert again.done.fingerprint == made.fingerprint
    assert not (tmp_path / "x/.work").exists()


def test_what_another_process_begins_while_it_is_opened_is_not_adopted(tmp_path: Path) -> None:
    other = Draft.open(tmp_path / "other", "run", {"a": 2})
    put(other, "one.txt")

    def begin() -> None:
        shutil.copytree(tmp_path / "other", tmp_path / "x", dirs_exist_ok=True)

    with before("open", str(tmp_path / "x/.work/lock"), begin), pytest.raises(InputError, match="a: 2 -> 1"):
        Draft.open(tmp_path / "x", "run", {"a": 1})
    assert list(Draft.open(tmp_path / "x", "run", {"a": 2}).committed()) == ["one.txt"]


def test_a_lock_in_a_folder_that_was_removed_is_none(tmp_path: Path) -> None:
    work = Place.of(tmp_path / "x/.work")
    with before("fcntl.flock", None, lambda: shutil.rmtree(tmp_path / "x")):
        hold = work.hold()
    with pytest.raises(LostOutput, match="another process is writing here"):
        work.hold()
    hold.end()
    assert not (tmp_path / "x").exists()


def test_a_folder_that_comes_and_goes_is_no_error(tmp_path: Path) -> None:
    """Another process ends, and removes its empty output, while this one makes, lists or locks it."""
    output, work = tmp_path / "x", Place.of(tmp_path / "x/.work")
    with before("os.mkdir", str(output), lambda: None), before("os.mkdir", f"{output}/.work", lambda: output.rmdir()):
        work.hold().release()
    with before("os.mkdir", f"{output}/.work", lambda: shutil.rmtree(output)):
        work.hold().release()
    with before("os.listdir", str(output), lambda: shutil.rmtree(output)):
        assert Place.of(output).entries() == []
    with pytest.raises(InputError, match="/proc/none: cannot be made a folder"):
        Place.of("/proc/none/.work").hold()


@pytest.mark.parametrize("code", [errno.EIO, errno.ESTALE])
def test_a_lock_that_fails_leaves_no_open_file(tmp_path: Path, code: int) -> None:
    work = Place.of(tmp_path / "x/.work")

    def fail() -> None:
        shutil.rmtree(tmp_path / "x")
        raise OSError(code, os.strerror(code))

    def locks() -> list[str]:
        return [name for name in map(_read_link, Path("/proc/self/fd").iterdir()) if name.startswith(str(tmp_path))]

    with before("fcntl.flock", None, fail):
        if code == errno.ESTALE:  # what NFS says of a file that another machine removed
            work.hold().release()
        else:
            with pytest.raises(OSError, match=os.strerror(code)):
                work.hold()
    assert locks() == []


@pytest.mark.parametrize("code", [errno.ENOSYS, errno.ENOTSUP, errno.ENOLCK])
def test_a_file_system_without_locks_is_named(tmp_path: Path, code: int) -> None:
    def fail() -> None:
        raise OSError(code, os.strerror(code))

    what = "its file system has no locks (flock: "
    with before("fcntl.flock", None, fail), pytest.raises(InputError, match=re.escape(f"{tmp_path}/x: {what}")):
        Place.of(tmp_path / "x/.work").hold()
    with (
        before("fcntl.flock", None, fail),
        pytest.raises(InputError, match=re.escape(f"{tmp_path}/cache: {what}")),
        locked(tmp_path / "cache/removal"),
    ):
        pass


def _read_link(link: Path) -> str:
    try:
        return os.readlink(link)
    except FileNotFoundError:  # the one by which they are listed
        return ""


def test_a_work_folder_is_removed_when_its_lock_is_closed(tmp_path: Path) -> None:
    """NFS keeps a removed file that is open, under another name, and with it its folder."""
    hold, still = Place.of(tmp_path / "x/.work").hold(), []

    def look() -> None:
        still.extend(name for name in map(_read_link, Path("/proc/self/fd").iterdir()) if name.startswith(str(tmp_path)))

    with before("os.rmdir", str(tmp_path / "x/.work"), look):
        hold.end()
    assert still == []
    assert not (tmp_path / "x").exists()


def test_a_manifest_that_is_there_already_is_no_other_one(tmp_path: Path) -> None:
    """As where the answer to a first try was lost, over NFS."""
    made, target = tmp_path / "made", tmp_path / "manifest.json"
    for _ in range(2):
        made.write_text("{}")
        Place.of(target).publish(made, new=True)
        assert not made.exists()
    made.write_text("[]")
    with pytest.raises(FileExistsError):
        Place.of(target).publish(made, new=True)
    assert target.read_text() == "{}"


def test_what_is_written_whole_need_not_have_a_parent_that_can_be_read(tmp_path: Path) -> None:
    def refuse() -> None:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(tmp_path))

    with before("open", str(tmp_path), refuse), Place.of(tmp_path / "x").writing(new=True) as aside:
        aside.write_text("1")
    assert (tmp_path / "x").read_text() == "1"


def test_what_a_kill_in_the_last_lines_left_goes_where_nobody_writes(tmp_path: Path) -> None:
    make(tmp_path / "x")
    hold = Place.of(tmp_path / "x/.work").hold()
    (tmp_path / "x/.work/spill").touch()
    assert Draft.open(tmp_path / "x", "run", {"a": 1}).done, "a process in its last lines, or before it reopens"
    assert (tmp_path / "x/.work/spill").exists()
    hold.release()
    assert Draft.open(tmp_path / "x", "run", {"a": 1}).done
    assert not (tmp_path / "x/.work").exists()


def test_what_kills_left_incomplete_goes_when_work_goes_on(tmp_path: Path) -> None:
    draft = Draft.open(tmp_path / "x", "run", {"a": 1})
    put(draft, "one.txt")
    draft.close()
    (tmp_path / "x/.work/aside-0123").mkdir()
    (tmp_path / "x/.work/aside-0123/half").write_text("half")
    (tmp_path / "x/.work/.weights-1200.safetensors.0123.aside").write_text("half")
    assert list(Draft.open(tmp_path / "x", "run", {"a": 1}).committed()) == ["one.txt"]
    assert not list((tmp_path / "x/.work").glob("*aside*"))


def test_what_a_kill_left_of_a_file_or_folder_goes_a_day_later_when_it_is_written_again(tmp_path: Path) -> None:
    for name, hours in ((".out[1].0.aside", 25), (".out[1].1.aside", 23), (".out.2.aside", 25)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "half").write_text("half")
        for one in (tmp_path / name / "half", tmp_path / name):
            os.utime(one, (time.time() - hours * 3_600,) * 2)
    with Place.of(tmp_path / "out[1]").writing(new=True) as aside:
        aside.mkdir()
    assert sorted(os.listdir(tmp_path)) == [".out.2.aside", ".out[1].1.aside", "out[1]"]


def test_what_is_written_has_reached_the_disk_before_it_has_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[tuple[str, bool]] = []
    target = tmp_path / "weights"
    monkeypatch.setattr(os, "fsync", lambda open_: synced.append((Path(os.readlink(f"/proc/self/fd/{open_}")).name, target.exists())))
    with Place.of(target).writing() as aside:
        aside.mkdir()
        (aside / "one").write_text("1")
    assert sorted(synced[:-1]) == [(aside.name, False), ("one", False)]
    assert synced[-1] == (tmp_path.name, True)
    synced.clear()
    target = tmp_path / "file"
    with Place.of(target).writing() as aside:
        aside.write_text("1")
    assert synced == [(aside.name, False), (tmp_path.name, True)]


@pytest.mark.parametrize("folder", [False, True])
def test_what_appeared_meanwhile_is_not_overwritten(tmp_path: Path, folder: bool) -> None:
    place = Place.of(tmp_path / "x")

    def write() -> None:
        with place.writing(new=True) as aside:
            if folder:
                aside.mkdir()
            (aside / "one" if folder else aside).write_text("mine")
            place.write(b"another's")

    with pytest.raises(FileExistsError):
        write()
    assert (tmp_path / "x").read_text() == "another's"
    assert [one.name for one in tmp_path.iterdir()] == ["x"]
    with Place.of(tmp_path / "y").writing(new=True) as aside:
        aside.write_text("mine")
    assert (tmp_path / "y").read_text() == "mine"


def test_an_output_of_another_kind_is_refused_with_its_kind(tmp_path):
    Draft.open(tmp_path / "c", "corpus", {"stage": "import_corpus"}).finish(0)
    with pytest.raises(InputError, match=r"c: holds corpus, and this makes dataset; give another --output, or delete this folder$"):
        Draft.open(tmp_path / "c", "dataset", {"stage": "import"})
