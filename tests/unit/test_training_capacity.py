"""What the workers of a training claim, held against what nodes have, without Ray."""

from __future__ import annotations

from typing import Any

import pytest

from raydense.training.capacity import lack
from raydense.training.settings import TrainSettings

HEAD, EIGHT, V100 = {"memory": 8.0}, {"CPU": 8.0}, {"CPU": 4.0, "GPU": 1.0}


def settings(**changes: Any) -> TrainSettings:
    values = {"objective": "retriever", "model": "tiny", "corpus": "c", "queries": "q", "examples": "e", "output": "o", "batch_size": 48}
    return TrainSettings(**{**values, **changes})


@pytest.mark.parametrize(
    ("nodes", "gpu", "changes", "message"),
    [
        ([EIGHT], False, {"workers": 12}, "12 workers x 1 CPU is more than the 8 here; give fewer workers, or --cpus-per-worker less"),
        ([EIGHT, EIGHT], False, {"cpus_per_worker": 12.0}, "1 workers, each with 12 CPU of one node: 0 fit on the 2 nodes here"),
        ([EIGHT], True, {}, "1 workers x 1 GPU is more than the 0 here; give fewer workers, or --gpus-per-worker 0"),
        ([V100, EIGHT], True, {"cpus_per_worker": 6.0}, "1 workers, each with 6 CPU and 1 GPU of one node: 0 fit on the 2 nodes here"),
        (
            [EIGHT],
            False,
            {"workers": 8, "refresh": {"every": 2, "mode": "async"}},
            "8 workers x 1 CPU, and 1.5 for what finds negatives meanwhile, is more than the 8 here",
        ),
    ],
)
def test_what_no_nodes_have_is_reported(nodes: list[dict[str, float]], gpu: bool, changes: dict[str, Any], message: str) -> None:
    fault = lack(settings(**changes), gpu, nodes)
    assert message in str(fault)


@pytest.mark.parametrize(
    ("nodes", "gpu", "changes"),
    [
        ([HEAD, EIGHT], False, {"workers": 8}),
        ([EIGHT, EIGHT], False, {"workers": 3, "cpus_per_worker": 4.0}),
        ([HEAD, V100, V100], True, {"workers": 2, "cpus_per_worker": 4.0}),
        ([EIGHT], False, {"workers": 6, "refresh": {"every": 2, "mode": "async"}}),
        ([EIGHT], False, {"workers": 8, "refresh": {"every": 2}}),
        ([{"CPU": 4.5, "GPU": 5.0}], True, {"workers": 4, "refresh": {"every": 2, "mode": "async"}}),  # what encodes has a GPU, and no CPU
        ([{"CPU": 55.0}], False, {"workers": 25, "cpus_per_worker": 2.2, "batch_size": 50}),
        ([{"CPU": 33.0}], False, {"workers": 30, "cpus_per_worker": 1.1, "batch_size": 60}),
    ],
)
def test_what_nodes_have_together_is_enough(nodes: list[dict[str, float]], gpu: bool, changes: dict[str, Any]) -> None:
    assert lack(settings(**changes), gpu, nodes) is None
