"""Tasks reserve memory of their node, and end with the stage that runs them."""

import os
from pathlib import Path

import psutil
import pytest
import ray

from raydense.errors import InputError
from raydense.runtime.tasks import run_tasks
from tests.search_versions import until

pytestmark = pytest.mark.usefixtures("ray_cluster")


def test_a_task_reserves_its_memory() -> None:
    def reserved() -> float:
        return ray.get_runtime_context().get_assigned_resources().get("memory", 0)

    assert list(run_tasks("index", reserved, [()] * 3, memory=300 * 2**20)) == [300 * 2**20] * 3
    assert list(run_tasks("index", reserved, [()])) == [0]


def test_a_task_larger_than_any_node_is_refused_before_one_starts() -> None:
    with pytest.raises(InputError, match="a task needs"):
        next(run_tasks("index", print, [()], memory=2**60))


def ended(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def test_a_failed_stage_leaves_no_task_running(tmp_path: Path) -> None:
    """One that went on would write to an output that the next command has begun again."""

    def write(number: int) -> None:
        (tmp_path / f"pid-{number}").write_text(str(os.getpid()))
        if number == 0:
            until(lambda: (tmp_path / "pid-1").exists(), "the other task")
            raise ValueError("no space")
        until(lambda: (tmp_path / "end").exists(), "the end")
        (tmp_path / "written").touch()

    with pytest.raises(ValueError, match="no space"):
        list(run_tasks("index", write, [(0,), (1,)], at_once=2))

    (tmp_path / "end").touch()
    pid = int((tmp_path / "pid-1").read_text())
    until(lambda: ended(pid), "the end of the task")
    assert not (tmp_path / "written").exists()
