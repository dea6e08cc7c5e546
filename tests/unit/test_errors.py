"""What a person can fix is found wherever it is wrapped, and is one line."""

import errno

import pytest
from hypothesis import given
from hypothesis import strategies as st

from raydense.errors import InputError, did_you_mean, fixable


class Wrapped(Exception):
    """As Ray's RayTaskError: holds what the worker raised in `cause`."""

    def __init__(self, cause):
        super().__init__("worker failed")
        self.cause = cause


@given(st.text(max_size=40), st.text(max_size=40), st.text(max_size=40))
def test_always_one_line(what, where, fix):
    assert len(str(InputError(what, where, fix)).splitlines()) <= 1


def test_found_through_causes_and_groups():
    deep = InputError("empty text", "corpus.jsonl:3", "fill it")
    outer = RuntimeError("the stage failed")
    outer.__cause__ = Wrapped(deep)
    assert fixable(outer) == (2, "corpus.jsonl:3: empty text; fill it")
    assert fixable(ExceptionGroup("many", [ValueError("x"), deep])) == (2, str(deep))


def test_a_full_disk_is_1_and_a_forbidden_folder_is_2():
    assert fixable(OSError(errno.ENOSPC, "No space left on device", "/out/f"))[0] == 1
    assert fixable(OSError(errno.EMFILE, "Failed to open local file '/out/f'")) == (
        1,
        "files: too many are open; raise the limit (ulimit -n) and run again, what was committed is kept",
    )
    assert fixable(PermissionError(errno.EACCES, "Permission denied", "/out/f")) == (
        2,
        "/out/f: permission denied; give another path, or yourself the right to read and write it",
    )


@pytest.mark.parametrize(
    ("path", "variables"),
    [
        (".cache/raydense/locks/07", "RAYDENSE_CACHE"),
        (".cache/huggingface/hub", "HF_HOME"),
        (".cache", "RAYDENSE_CACHE and HF_HOME"),
    ],
)
def test_a_cache_that_cannot_be_written_is_named_by_its_variable(path, variables, tmp_path, monkeypatch):
    """No flag names its path; the folder above it is to be made, too."""
    for variable in ("RAYDENSE_CACHE", "HF_HOME"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    line = f"{tmp_path / path}: read-only file system; set {variables} to a folder that can be written"
    for one in (tmp_path / path, str(tmp_path / path)):
        assert fixable(OSError(errno.EROFS, "Read-only file system", one)) == (2, line)
    monkeypatch.setenv("RAYDENSE_CACHE", "/disk/cache")
    for one, fix in (
        ("/disk/cache/work/x", "set RAYDENSE_CACHE"),
        ("/disk/out", "give another path"),
        (str(tmp_path), "give another path"),
    ):
        assert fix in fixable(PermissionError(errno.EACCES, "Permission denied", one))[1]


def test_a_file_where_a_folder_is_wanted_is_2(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(NotADirectoryError) as caught:
        (tmp_path / "file" / "out").mkdir()
    assert fixable(caught.value) == (2, f"{tmp_path}/file/out: not a directory; give another path")


def test_anything_else_is_not_mendable():
    assert fixable(ValueError("a fault of ours")) is None


def test_the_nearest_word_or_all():
    assert did_you_mean("shard", ["shards", "k1"]) == "did you mean 'shards'?"
    assert did_you_mean("zzz", ["b", "a"]) == "known: a, b"
    assert did_you_mean(True, ["a", 1, None]) == "known: 1, None, a", "the keys of YAML are not all text"  # type: ignore[arg-type, list-item]
