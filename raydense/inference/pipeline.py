"""The Ray Data pipeline of encode, generate, rerank and of the queries of a search: tokenise tasks, then a pool of model actors.

A pipeline has one row for each part of the work. A task on the CPU reads and tokenises the part, and an actor of the pool
computes it. The driver gets back a record: what the actor committed, or the vectors of a block of queries.
"""

from __future__ import annotations

import pickle
import time
from collections.abc import Callable, Iterator
from itertools import accumulate
from typing import Any, cast
from uuid import uuid4

import pyarrow as pa

from raydense.errors import InputError, fixable
from raydense.inference.arrivals import Arrivals
from raydense.inference.device import GPU_BUDGET
from raydense.inference.growth import Growth
from raydense.inference.layout import TOKENISE_CPUS, Layout
from raydense.inference.live_line import live_line
from raydense.inference.precision import forget_precision
from raydense.inference.settings import Spread
from raydense.runtime.allocator import cpu_worker_env
from raydense.runtime.metrics import show
from raydense.runtime.progress import say
from raydense.runtime.ray_internals import actors_of, at_each_step
from raydense.runtime.session import ensure_ray
from raydense.runtime.waiting import Waiting
from raydense.settings import Settings
from raydense.storage import Draft

_FAULT = "fault"
_MOST_RESTARTS = 5  # of one actor before any has finished a part: more than nodes that leave one after another cause


def run(
    stage: str,
    spread: Spread,
    parts: list[dict[str, Any]],
    tokenise: Callable[..., pa.Table],
    actor: Callable[..., Any],
    in_order: bool = False,
    **arguments: Any,
) -> Iterator[dict[str, Any]]:
    """Send each part through `tokenise(table, **arguments)` and an `actor(**arguments, layout=...)`; yield the actors' records.

    Records come as they are ready, or `in_order` of the parts. Ray computes a part again if its worker was killed. InputError if one is killed again and again. An error that
    a user can fix is raised here as the worker raised it; others are wrapped by Ray. Neither is retried.
    """
    import ray.data

    ensure_ray()
    layout = Layout.of(spread, len(parts))
    common: dict[str, Any] = {"batch_size": 1, "batch_format": "pyarrow"}
    rows = ray.data.from_items(parts, override_num_blocks=len(parts))
    rows.context.execution_options.preserve_order = in_order
    rows.context.issue_detectors_config.detectors = []  # they advise the author of a pipeline, in its user's terminal, every half minute
    # wait for a file that takes longer than Ray's half an hour, or for a node that joins later
    rows.context.execution_no_progress_timeout_s = -1
    restarts, pool = Restarts(stage, spread), f"{_Actor.__name__}_{uuid4().hex[:8]}"
    rows.context.custom_execution_callback_classes = [at_each_step(restarts.refuse)]
    tokens = rows.map_batches(
        cast(Any, _tokenise),
        fn_kwargs={"step": tokenise, "arguments": arguments},
        num_cpus=TOKENISE_CPUS,
        compute=ray.data.TaskPoolStrategy(size=layout.most),
        **common,
    )
    records = tokens.map_batches(
        cast(Any, type(pool, (_Actor,), {})),  # Ray names the actors by it
        fn_constructor_kwargs={"actor": actor, "stage": stage, "arguments": {**arguments, "layout": layout}},
        compute=ray.data.ActorPoolStrategy(min_size=layout.fewest, initial_size=layout.first, max_size=layout.most),
        num_gpus=layout.gpus or None,
        accelerator_type=spread.accelerator or None,
        # Ray Data's default takes a CPU with a GPU, and the tokenise tasks could be left without.
        num_cpus=0 if layout.gpus else layout.cpus,
        runtime_env=None if layout.gpus else {"env_vars": cpu_worker_env()},
        **common,
    )
    job = ray.get_runtime_context().get_job_id()
    growth = Growth(stage, layout.most)
    with Waiting(stage, lambda: _waits(job, pool, restarts, growth)):
        for done, record in enumerate(records.iter_rows(), 1):
            restarts.progress()
            if _FAULT in record:
                raise pickle.loads(record[_FAULT])
            show("files_open", len(parts) - done, stage=stage)
            yield record


def _waits(job: str, pool: str, restarts: Restarts, growth: Growth) -> bool:
    """Whether no actor of the pool has a running process; their restarts are counted, and their number is looked at. The trials of a sweep are one job."""
    there = [actor for actor in actors_of(job) if pool in actor["ActorClassName"] and actor["State"] != "DEAD"]
    restarts.count({actor["ActorID"]: actor["NumRestarts"] for actor in there})
    waits = not any(actor["Address"]["Port"] for actor in there)
    growth.look(0 if waits else len(there))
    return waits


class Restarts:
    """How often each actor of a pool was started again since a part was finished: Ray starts one that memory never suffices for without end."""

    def __init__(self, stage: str, spread: Spread) -> None:
        self._stage, self._spread = stage, spread
        self._now: dict[str, int] = {}
        self._before: dict[str, int] = {}

    def count(self, restarts: dict[str, int]) -> None:
        """The restarts of each actor so far; those of an actor that was not there before do not count."""
        self._now = restarts
        self._before = {**restarts, **self._before}

    def progress(self) -> None:
        """A part is finished."""
        self._before = self._now

    def refuse(self) -> None:
        """InputError if one actor ends again and again while no part is finished."""
        again = max((number - self._before.get(actor, number) for actor, number in self._now.items()), default=0)
        if again >= _MOST_RESTARTS:
            what = f"its processes end before one has finished a part, {again} times in a row, most likely for lack of memory"
            raise InputError(what, self._stage, f"give machines with more memory{_or_less(self._spread)}; what was committed is kept")


def _or_less(spread: Spread) -> str:
    """How a stage of these settings computes less at once: nothing where they are of no stage, as for the queries of a search."""
    if not isinstance(spread, Settings):
        return ""
    there = {name: f"--{name.replace('_', '-')}" for name in ("token_budget", "block") if name in type(spread).model_fields}
    anew = [flag for name, flag in there.items() if name in spread.shaping()]
    goes_on = " or ".join(["--concurrency 1,1", *(flag for flag in there.values() if flag not in anew)])
    return f", or less at once by {goes_on}" + (f", or in another --output by a smaller {' or '.join(anew)}" if anew else "")


def run_parts(
    settings: Any,
    draft: Draft,
    unit: str,
    pending: list[dict[str, Any]],
    sizes: list[int],
    total: int,
    tokenise: Callable[..., pa.Table],
    actor: Callable[..., Any],
    **more: Any,
) -> None:
    """`run` over all `pending` parts of these `sizes`, whose actors commit a file each; the live line counts in `unit` up to `total`.

    InputError if the files of an actor do not appear in the output, as on a node that does not share its folder.
    """
    settings, stage = settings.located(), draft.made_from["stage"]
    forget_precision(draft)
    least = list(accumulate(sorted(sizes)))  # of so many parts, whichever they are
    arrivals = Arrivals(draft)
    with live_line(stage, draft, unit, total, total - sum(sizes)) as committed:
        for number, _ in enumerate(run(stage, settings, pending, tokenise, actor, settings=settings, draft=draft, **more)):
            committed(least[number])
            arrivals.check(number + 1)
        arrivals.end(len(pending))


def _tokenise(table: pa.Table, step: Callable[..., pa.Table], arguments: dict[str, Any]) -> pa.Table:
    return _guarded(lambda: step(table, **arguments))


class _Actor:
    """An actor of the pool: calls the stage's actor, and turns its errors into records."""

    def __init__(self, actor: Callable[..., Any], stage: str, arguments: dict[str, Any]) -> None:
        import ray

        self._step, self._settings = actor(**arguments), arguments.get("settings")
        self._where = f"job {ray.get_runtime_context().get_job_id()}, {stage}"

    def __call__(self, table: pa.Table) -> pa.Table:
        if _FAULT in table.column_names:
            return table
        done = _guarded(lambda: self._computed(table))
        record = ", ".join(f"{name} {value}" for name, value in done.slice(0, 1).to_pylist()[0].items() if not isinstance(value, bytes))
        say(f"{time.strftime('%F %T')} {self._where}: {record}")  # into the log of this worker, which Ray keeps
        return done

    def _computed(self, table: pa.Table) -> pa.Table:
        import torch

        try:
            return self._step(table)
        except torch.OutOfMemoryError as error:
            raise _out_of_memory(self._settings) from error


def _out_of_memory(settings: Any) -> InputError:
    """The error if a GPU runs out of memory in a stage of these settings; they are None where batches have a fixed size."""
    others, what = "nvidia-smi shows who else uses it", "the GPU's memory does not hold the model and its batches"
    if settings is None:
        return InputError(what, "", f"free some of it, or give GPUs with more: {others}")
    tokens = settings.token_budget or GPU_BUDGET
    goes_on = "in another --output" if "token_budget" in settings.shaping() else "what was committed is kept"
    fix = f"give less, such as {tokens // 2}, or GPUs with more; {others}; {goes_on}"
    return InputError(f"{what} of {tokens:,} tokens", "token_budget", fix)


def _guarded(step: Callable[[], pa.Table]) -> pa.Table:
    """The result of `step`, or a row with an error that a user can fix: Ray would lose its cause and print a traceback."""
    try:
        return step()
    except (InputError, OSError) as error:
        if fixable(error) is None:
            raise
        return pa.table({_FAULT: [pickle.dumps(error)]})
