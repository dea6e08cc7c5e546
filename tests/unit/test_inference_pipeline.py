"""What the actors of a pipeline do where memory runs out: a line in place of a traceback, or of restarts without end. Without Ray's processes."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
import ray
import torch

from raydense.errors import InputError
from raydense.inference import pipeline
from raydense.inference.growth import Growth
from raydense.inference.pipeline import _FAULT, Restarts, _Actor, _waits
from raydense.inference.settings import EncodeSettings, GenerateSettings, RerankSettings, Spread

INPUTS = {"model": "m", "corpus": "c", "run": "r", "queries": "q", "output": "o"}


def inputs(*names: str) -> dict[str, str]:
    return {name: INPUTS[name] for name in (*names, "model", "corpus", "output")}


@pytest.mark.parametrize(
    ("settings", "fault"),
    [
        (
            EncodeSettings.read(inputs()),
            "token_budget: {} of 65,536 tokens; give less, such as 32768, or GPUs with more; {}; what was committed is kept",
        ),
        (
            RerankSettings.read({**inputs("run", "queries"), "token_budget": 900}),
            "token_budget: {} of 900 tokens; give less, such as 450, or GPUs with more; {}; what was committed is kept",
        ),
        (
            GenerateSettings.read(inputs()),
            "token_budget: {} of 16,384 tokens; give less, such as 8192, or GPUs with more; {}; in another --output",
        ),
        (None, "{}; free some of it, or give GPUs with more: {}"),
    ],
)
def test_a_gpu_without_room_for_a_batch_is_one_line(settings: EncodeSettings | None, fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def of_stage(**arguments: object) -> Callable[[pa.Table], pa.Table]:
        def step(table: pa.Table) -> pa.Table:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 MiB")

        return step

    monkeypatch.setattr(ray, "get_runtime_context", lambda: SimpleNamespace(get_job_id=lambda: "01000000"))
    actor = _Actor(of_stage, "encode", {"settings": settings} if settings else {})
    error = pickle.loads(actor(pa.table({"part": [0]}))[_FAULT][0].as_py())
    assert isinstance(error, InputError)
    assert str(error) == fault.format("the GPU's memory does not hold the model and its batches", "nvidia-smi shows who else uses it")


def counted(restarts: Restarts, **of_actors: int) -> None:
    restarts.count(of_actors)
    restarts.refuse()


@pytest.mark.parametrize(
    ("settings", "less"),
    [
        (EncodeSettings.read(inputs()), ", or less at once by --concurrency 1,1 or --token-budget"),
        (
            RerankSettings.read(inputs("run", "queries")),
            ", or less at once by --concurrency 1,1 or --token-budget, or in another --output by a smaller --block",
        ),
        (GenerateSettings.read(inputs()), ", or less at once by --concurrency 1,1, or in another --output by a smaller --token-budget"),
        (Spread(), ""),
    ],
)
def test_an_actor_that_ends_again_and_again_ends_the_stage(settings: Spread, less: str) -> None:
    restarts = Restarts("rerank", settings)
    for number in range(5):
        counted(restarts, a=number, b=0)
    with pytest.raises(InputError) as caught:
        counted(restarts, a=5, b=0)
    what = "rerank: its processes end before one has finished a part, 5 times in a row, most likely for lack of memory"
    assert str(caught.value) == f"{what}; give machines with more memory{less}; what was committed is kept"


def test_actors_that_end_now_and_then_or_together_do_not() -> None:
    restarts = Restarts("rerank", Spread())
    for number in range(20):  # as by nodes that leave, each with all its actors
        counted(restarts, **{f"actor {actor}": number // 4 for actor in range(10)})
    for number in range(20):
        restarts.progress()
        counted(restarts, **{f"actor {actor}": 4 + number for actor in range(10)})
    counted(Restarts("encode", Spread()), another=100)  # of another stage of the job, or from before


def test_the_actors_of_another_pipeline_of_the_job_are_none_of_this_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a sweep, whose trials are one job."""
    restarts, growth = Restarts("encode", Spread()), Growth("encode", 1)

    def actor(pool: str, restarts: int, port: int) -> dict[str, Any]:
        known = {"ActorClassName": f"MapWorker(MapBatches({pool}))", "State": "ALIVE"}
        return {**known, "ActorID": pool, "NumRestarts": restarts, "Address": {"Port": port}}

    for number in range(7):
        there = [actor("_Actor_1", 0, port=0), actor("_Actor_2", number, port=9)]
        monkeypatch.setattr(pipeline, "actors_of", lambda job, there=there: there)
        assert _waits("01", "_Actor_1", restarts, growth)
        restarts.refuse()
    assert not _waits("01", "_Actor_2", restarts, growth)
