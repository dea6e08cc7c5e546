"""The arithmetic of the benchmarks' small forms: ratios, their noise, and what counts as a drop. What they measure is not run here."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).resolve().parents[2] / "benchmarks"
sys.path.append(str(HERE))

import bench  # noqa: E402
from turns import Ratio, between_commits, in_turns, ratio, ratios  # noqa: E402


def entry(machine: str = "a", failed: dict[str, str] | None = None, flags: tuple[str, ...] = ("avx2",), **ratios: float) -> dict[str, Any]:
    facts = {"name": machine, "flags": list(flags), "commit": "c", "date": "d"}
    return {"machine": facts, "ratios": {name: [value, 0.05] for name, value in ratios.items()}, "failed": failed or {}}


def test_a_ratio_is_of_the_best_turns_and_its_noise_of_the_second_best() -> None:
    assert ratio([2.0, 2.2, 9.0], [4.0, 8.0, 4.4]) == Ratio(2.0, pytest.approx(0.1))
    assert ratio([2.0, 3.0], [4.0, 4.0]) == Ratio(2.0, 0.5)
    assert ratio([2.0], [3.0]) == Ratio(1.5, None)


def test_ways_take_turns_and_the_first_does_not_count() -> None:
    done: list[str] = []
    clock = iter(range(100))
    seconds = in_turns({"a": lambda: done.append("a"), "b": lambda: 7.0}, 2, lambda: float(next(clock)))
    assert done == ["a"] * 3
    assert seconds == {"a": [1.0, 1.0], "b": [7.0, 7.0]}
    assert ratios(seconds, "b") == {"a / b": Ratio(7.0, 0.0)}


def test_seconds_between_commits_leave_out_the_start(tmp_path: Path) -> None:
    for number, at in enumerate((100, 102, 104, 106)):
        (tmp_path / f"part-{number}").touch()
        os.utime(tmp_path / f"part-{number}", (at, at))
    assert between_commits(tmp_path, "part-*", 40) == pytest.approx(0.2)


def test_a_drop_is_more_than_15_percent_below_the_median_of_the_same_machine() -> None:
    earlier = [entry(x=1.0, y=1.0), entry(x=1.2, y=1.0), entry(x=1.1, z=3.0), entry("b", x=9.0, y=9.0)]
    found = bench.compare(entry(x=0.93, y=0.86, z=2.5, new=1.0), earlier)
    assert found.dropped == {"x": (pytest.approx(1.1), 0.93), "z": (3.0, 2.5)}
    assert found.others == {"y": (1.0, 0.86), "new": (None, 1.0)}


def test_of_a_long_history_the_last_five_count() -> None:
    earlier = [entry(x=9.0)] * 20 + [entry(x=1.0)] * 5
    assert not bench.compare(entry(x=0.9), earlier).dropped


@pytest.mark.parametrize(
    ("now", "status", "line"),
    [
        (entry(x=0.95), 0, "x: 1 -> 0.95 (-5%)"),
        (entry(x=0.5), 1, "DROPPED x: 1 -> 0.5 (-50%; noise 5%)"),
        (entry(failed={"search": "ended with 1"}), 1, "FAILED  search: ended with 1"),
        (entry("another", x=0.5), 0, "x: 0.5, for the first time"),
        (entry(x=0.5, flags=("avx2", "avx512_bf16")), 0, "x: 0.5, for the first time"),
        (entry(y=1.0), 0, "x: not measured this time"),
        (
            entry(x=1.0) | {"left_out": {"hard_negatives": "needs the package datasets"}},
            0,
            "left out hard_negatives: needs the package datasets",
        ),
    ],
)
def test_the_last_line_is_compared(now: dict[str, Any], status: int, line: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    history = tmp_path / "history.jsonl"
    history.write_text("".join(json.dumps(one) + "\n" for one in (entry(x=1.0), now)))
    assert bench.report(history) == status
    assert line in capsys.readouterr().out


def test_what_cannot_be_imported_of_the_checkout_is_no_missing_package() -> None:
    assert all(map(bench.is_ours, ("raydense.retrieval.gone", "embeddings", "turns.gone")))
    assert not any(map(bench.is_ours, ("datasets", "sentence_transformers.util")))


def test_no_history(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert bench.report(tmp_path / "none.jsonl") == 2
    assert "run `make bench` first" in capsys.readouterr().err


def test_every_part_of_the_system_has_a_small_form_and_a_line_in_the_documents() -> None:
    wanted = "encode search bm25 hard_negatives mine evaluate run_files split index train_peers static_encoder generate pool"
    assert set(bench.names()) >= {*wanted.split(), "wikipedia_scale"}
    listed = (HERE.parent / "docs/benchmarks/README.md").read_text()
    assert [name for name in bench.names() if f"| `{name}` |" not in listed] == []


def test_the_history_can_be_read() -> None:
    lines = bench.HISTORY.read_text().splitlines()
    assert lines
    for line in lines:
        kept = json.loads(line)
        assert {"machine", "ratios", "failed", "left_out", "seconds", "peak_mib"} <= kept.keys()
