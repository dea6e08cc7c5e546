"""Files that actors report and that are not in the output end the stage."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from raydense.errors import InputError
from raydense.inference import arrivals
from raydense.inference.arrivals import Arrivals, arriving
from raydense.storage import Draft


def draft_of(folder: Path) -> Draft:
    """Whose folder has a file of an earlier run, which is no arrival."""
    draft = Draft.open(folder, "embeddings", {})
    draft.commit("ids", lambda path: path.write_text("ids"), 1)
    return draft


def commit(draft: Draft, number: int) -> None:
    draft.commit(f"part-{number}", lambda path: path.write_text("part"), 1)


def test_files_that_are_there_or_come_late_are_no_fault(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arrivals, "_LOOK_S", 0.0)
    monkeypatch.setattr(arrivals, "_ARRIVES_S", 0.0)
    draft = draft_of(tmp_path / "out")
    seen = Arrivals(draft)
    for number in range(5):  # each is there when the next is reported
        seen.check(number + 1)
        commit(draft, number)
    seen.end(5)


@pytest.mark.parametrize("there", [0, 1])
def test_files_that_do_not_come_are_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, there: int) -> None:
    monkeypatch.setattr(arrivals, "_LOOK_S", 0.0)
    monkeypatch.setattr(arrivals, "_ARRIVES_S", 0.0)
    draft = draft_of(tmp_path / "out")
    seen = Arrivals(draft)
    for number in range(there):
        commit(draft, number)
    seen.check(2)
    line = rf"out: of 2 files that the workers wrote, {there} are there: a node .* its own of this name; give a folder that all nodes share"
    with pytest.raises(InputError, match=line):
        seen.check(3)
    with pytest.raises(InputError, match="of 3 files"):
        seen.end(3)


def test_kept_files_that_do_not_come_end_what_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that was damaged and is written again is no fault."""
    monkeypatch.setattr(arrivals, "_LOOK_S", 0.0)
    monkeypatch.setattr(arrivals, "_ARRIVES_S", 0.0)
    draft, names = draft_of(tmp_path / "out"), ["a", "b"]
    draft.keep("a", lambda path: path.write_text("a"))
    (draft.work / "a").write_text("damaged")
    assert draft.has_kept("a")
    with pytest.raises(InputError, match="is gone or damaged since it was written; run the same command again"):
        draft.kept_whole("a")

    def written(names: list[str]) -> Iterator[str]:
        for name in names:
            draft.keep(name, lambda path, name=name: path.write_text(name))
            yield name

    assert list(arriving(draft, names, written(names))) == names
    assert draft.kept_whole("b").read_text() == "b"
    reported = arriving(draft, ["c", "d"], written(["c"]))
    assert next(reported) == "c"
    with pytest.raises(InputError, match="of 2 files that the workers wrote, 1 are there"):
        list(reported)
