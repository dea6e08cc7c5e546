"""Tasks reserve memory of their node; Ray then runs only as many at once as fit."""

import pytest
import ray

from raydense.errors import InputError
from raydense.runtime.tasks import run_tasks

pytestmark = pytest.mark.usefixtures("ray_cluster")


def test_a_task_reserves_its_memory() -> None:
    def reserved() -> float:
        return ray.get_runtime_context().get_assigned_resources().get("memory", 0)

    assert list(run_tasks("index", reserved, [()] * 3, memory=300 * 2**20)) == [300 * 2**20] * 3
    assert list(run_tasks("index", reserved, [()])) == [0]


def test_a_task_larger_than_any_node_is_refused_before_one_starts() -> None:
    with pytest.raises(InputError, match="a task needs"):
        next(run_tasks("index", print, [()], memory=2**60))
