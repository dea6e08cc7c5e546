"""The script for GPUs runs every row, here in its tiny form on the CPU; keeps what it has done, and says what failed or had no time."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from raydense.training.registry import built_in

sys.path.append(str(Path(__file__).resolve().parents[2] / "benchmarks"))

import gpu
import gpu_rows

TINY = ["--all", "--device", "cpu", "--tiny", "--out"]


def read(out: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in out.read_text().splitlines()]


def test_some_rows_run(tmp_path: Path) -> None:
    """One of each kind that Ray does not run; all of them in the test below."""
    some = ["encode bf16", "train step retriever", "pretrain step mlm", "search SQfp16", "generate"]
    assert gpu.main(["--rows", *some, *TINY[1:], str(tmp_path / "gpu.jsonl")]) == 0
    assert [row["row"] for row in read(tmp_path / "gpu.jsonl")[1:]] == [
        "encode bf16",
        "search SQfp16",
        "train step retriever",
        "pretrain step mlm",
        "generate",
    ]


@pytest.mark.long
@pytest.mark.usefixtures("ray_cluster")
def test_every_row_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "gpu.jsonl"
    status = gpu.main([*TINY, str(out)])
    machine, *rows = read(out)
    assert [row for row in rows if "ratio" not in row] == []
    assert status == 0
    assert machine["tiny"]
    assert machine["machine"]["packages"]["torch"]
    names = {row["row"] for row in rows}
    assert names > {f"train step {name}" for name in built_in("train")} | {f"pretrain step {name}" for name in built_in("pretrain")}
    assert names > {"encode bf16", "encode fp16", "generate", "search Flat, float16", "search SQfp16"}
    assert all(row["more"]["least_cosine"] > 0.999 for row in rows if row["row"].startswith("encode"))
    assert all(row["more"]["hits_of_the_cpu"] == 1 for row in rows if "hits_of_the_cpu" in row["more"])
    assert gpu.main([*TINY, str(out)]) == 0
    assert len(read(out)) == len(rows) + 2, "only the machine is written again"
    assert "| train step retriever |" in capsys.readouterr().out


def test_rows_that_fail_or_have_no_time_are_named_and_tried_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out, fails = tmp_path / "gpu.jsonl", [True]

    def failing(place: Any) -> dict[str, Any]:
        if fails:
            raise RuntimeError("CUDA out of memory")
        return gpu_rows.matrix_product(place)

    monkeypatch.setattr(gpu_rows, "rows", lambda place: {"a": failing, "b": gpu_rows.matrix_product})
    assert gpu.main([*TINY, str(out)]) == 1
    _, a, b = read(out)
    assert a["error"] == "RuntimeError: CUDA out of memory"
    assert a["at"].startswith("test_benchmarks_gpu.py:")
    assert b["ratio"] > 0
    fails.clear()
    assert gpu.main([*TINY, str(out), "--minutes", "0"]) == 1
    assert read(out)[-1] == {"row": "a", "left_out": "after 0.0 minutes"}
    assert gpu.main([*TINY, str(out)]) == 0
    assert read(out)[-1]["row"] == "a"
    with pytest.raises(SystemExit, match="tiny was True, and is False"):
        gpu.main(["--all", "--device", "cpu", "--out", str(out)])


def test_without_a_gpu_nothing_is_measured(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    assert gpu.main(["--all", "--out", str(tmp_path / "gpu.jsonl")]) == 2
    assert "no CUDA device" in capsys.readouterr().err
