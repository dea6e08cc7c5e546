"""What benchmarks keep between runs: results of what is asked now alone, and folders that are whole."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).resolve().parents[2] / "benchmarks"))

from kept import made_whole, refuse_others


def test_the_same_is_taken_and_another_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "new" / "asked.json"
    asked = {"input": Path("/a"), "rates": (1e-5, 2e-5), "most": 400}
    refuse_others(file, asked)
    refuse_others(file, asked)
    with pytest.raises(SystemExit, match=r"asked.json: most was 400, and is 500; give another folder$"):
        refuse_others(file, {**asked, "most": 500})
    with pytest.raises(SystemExit, match="seed was None, and is 1"):
        refuse_others(file, {**asked, "seed": 1})
    with pytest.raises(SystemExit, match="most was 400, and is None"):
        refuse_others(file, {"input": "/a", "rates": [1e-5, 2e-5]})
    refuse_others(file, asked)


def test_results_that_do_not_say_what_they_are_of_are_refused(tmp_path: Path) -> None:
    results = tmp_path / "results.json"
    results.touch()
    with pytest.raises(SystemExit, match=r"results.json: is there, but asked.json, which says what it is of, is not"):
        refuse_others(tmp_path / "asked.json", {}, [tmp_path / "none", results])
    assert not (tmp_path / "asked.json").exists()


def test_a_folder_that_was_left_half_made_is_made_anew(tmp_path: Path) -> None:
    def make(folder: Path) -> None:
        (folder / "a").touch(exist_ok=False)
        if half:
            raise KeyboardInterrupt
        (folder / "b").touch()

    half = True
    with pytest.raises(KeyboardInterrupt):
        made_whole(tmp_path / "data", make)
    assert not (tmp_path / "data").exists()
    half = False
    for _ in range(2):  # the second time it is there
        assert sorted(one.name for one in made_whole(tmp_path / "data", make).iterdir()) == ["a", "b"]
