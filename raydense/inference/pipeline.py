"""What encode, generate and rerank share: the Ray Data pipeline of tokenise tasks and model actors, its layout, errors and live line.

A pipeline has one row per file that is still to be committed. A task on the CPU reads and tokenises what belongs to it, an
actor of the pool computes it and commits the file, and only a small record comes back to the driver.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import pyarrow as pa

from raydense.errors import InputError, fixable
from raydense.inference.settings import Spread
from raydense.models.encoder_config import input_module, read_encoder_config
from raydense.models.encoder_folder import encoder_folders, require_folder, said_in, weights_folder
from raydense.runtime.allocator import cpu_worker_env
from raydense.runtime.metrics import show
from raydense.runtime.progress import Progress, say
from raydense.runtime.ray_internals import actors_of
from raydense.runtime.session import autoscales, ensure_ray, joins_cluster, physical_cpus
from raydense.runtime.waiting import Waiting
from raydense.storage import Draft, File, Place

if TYPE_CHECKING:
    from raydense.models.tokens import Tokens

_TOKENISE_CPUS = 0.5
_LOOK_EVERY_S = 0.2
_FAULT = "fault"
_PRECISION = "precision"  # of the files that actors leave in a draft, one a precision
_PRECISIONS = ("fp32", "bf16", "fp16")
# On the CPU small batches were the faster ones (MiniLM, two cores); the GPU's is a guess, to be measured with benchmarks/gpu.py.
_CPU_BUDGET, _GPU_BUDGET = 2_048, 65_536


@dataclass(frozen=True)
class Layout:
    """How the actors lie on the cluster: from `fewest` to `most`, each with `gpus` or `cpus`; on the CPU with `threads`, 0 for a share.

    That share is of the machine's cores, which `per_node` actors have together.
    """

    fewest: int
    most: int
    gpus: float
    cpus: float
    per_node: int
    threads: int = 0
    background: bool = False

    @classmethod
    def of(cls, spread: Spread, pending: int) -> Layout:
        """The layout for `pending` files on the running cluster.

        On one machine an actor on the CPU uses every core, so "as many as there is room for" is one. A cluster may grow when more actors
        wait than it has room for, so there it is one a file; an actor on the CPU uses as many cores as it claims. InputError where no
        node has what an actor claims, and none comes by itself.
        """
        import ray

        alive = [node["Resources"] for node in ray.nodes() if node["Alive"]]
        nodes = len(alive)
        there, joined = ray.cluster_resources(), joins_cluster()
        gpus = spread.gpus_per_actor if spread.gpus_per_actor >= 0 else float(there.get("GPU", 0.0) > 0)
        if (lacking := lack(alive, gpus, spread.cpus_per_actor)) and not (joined and autoscales()):
            raise lacking
        low, high = spread.concurrency
        most_there = room(alive, gpus, spread.cpus_per_actor)
        wanted = high or (pending if joined else max(most_there if gpus else nodes, low))
        # a pool without room for its fewest would wait for ever, and so would what tokenises where actors hold all CPUs
        most = max(1, min(wanted, pending) if joined else min(wanted, pending, most_there))
        fewest = max(1, min(low, most, most_there))
        threads = max(1, int(spread.cpus_per_actor)) if joined else 0
        return cls(fewest, most, gpus, spread.cpus_per_actor, -(-most // nodes), threads, spread.background)


def room(nodes: list[dict[str, float]], gpus: float, cpus: float) -> int:
    """How many actors the nodes have room for, by the resources of each; on CPUs with room left on one of them for what tokenises."""
    kind, claimed = ("GPU", gpus) if gpus else ("CPU", cpus)
    has = [node.get(kind, 0.0) for node in nodes]
    fit = [int(one / claimed) for one in has]
    beside = [most - int((one - _TOKENISE_CPUS) / claimed) for one, most in zip(has, fit, strict=True) if one >= _TOKENISE_CPUS]
    return sum(fit) - (0 if gpus else min(beside, default=0))


def lack(nodes: list[dict[str, float]], gpus: float, cpus: float) -> InputError | None:
    """The fault where no node has the GPUs that an actor claims, or the CPUs where it computes on these, by the resources of each.

    An actor that leaves no CPU for what tokenises would wait for it for ever.
    """
    kind, claimed = ("GPU", gpus) if gpus else ("CPU", cpus)
    has = [node.get(kind, 0.0) for node in nodes]
    if max(has, default=0.0) < claimed:
        what = f"and of {len(nodes)} nodes none has more than {max(has, default=0.0):g}"
    elif not gpus and sum(has) < claimed + _TOKENISE_CPUS:
        what = f"which leaves {sum(has) - claimed:g} to tokenise, and that needs {_TOKENISE_CPUS:g}"
    else:
        return None
    return InputError(
        f"an actor is to have {claimed:g} {kind}s, {what}", f"{kind.lower()}s_per_actor", "give less, or nodes that have them"
    )


def require_model(folder: str, scores: bool, **changes: int) -> None:
    """InputError unless `folder` holds weights of a re-ranker (`scores`) or of a retriever that `changes` fit; reads no weights."""
    root = Place.of(folder).local()
    require_folder(root)
    for part in encoder_folders(root):
        inner = weights_folder(part) if scores else input_module(part)[1]
        named = said_in(inner / "config.json").get("architectures") or []
        if scores != any(name.endswith("ForSequenceClassification") for name in named):
            found, wanted = ("a re-ranker", "a retriever") if not scores else ("an encoder without a head that scores", "a re-ranker")
            raise InputError(f"holds {found}", folder, f"give {wanted}")
    if not scores:
        read_encoder_config(root, **changes)


def run(
    spread: Spread, parts: list[dict[str, Any]], tokenise: Callable[..., pa.Table], actor: Callable[..., Any], **arguments: Any
) -> Iterator[dict[str, Any]]:
    """Send each part through `tokenise(table, **arguments)` and an `actor(**arguments, layout=...)`; yield the actors' records.

    A part whose worker was killed is computed again by Ray. An error that a person can fix is raised here as it was raised
    there; any other comes as Ray wraps it. Neither is retried.
    """
    import ray.data

    ensure_ray()
    layout = Layout.of(spread, len(parts))
    (arguments["draft"].shared / _PRECISION).delete()  # of a run before: what it committed says its own
    common: dict[str, Any] = {"batch_size": 1, "batch_format": "pyarrow"}
    rows = ray.data.from_items(parts, override_num_blocks=len(parts))
    # a file that takes longer than Ray's half an hour, or a node that comes later, is waited for
    rows.context.execution_no_progress_timeout_s = -1
    tokens = rows.map_batches(
        cast(Any, _tokenise),
        fn_kwargs={"step": tokenise, "arguments": arguments},
        num_cpus=_TOKENISE_CPUS,
        compute=ray.data.TaskPoolStrategy(size=layout.most),
        **common,
    )
    records = tokens.map_batches(
        cast(Any, _Actor),
        fn_constructor_kwargs={"actor": actor, "arguments": {**arguments, "layout": layout}},
        compute=ray.data.ActorPoolStrategy(min_size=layout.fewest, max_size=layout.most),
        num_gpus=layout.gpus or None,
        num_cpus=None if layout.gpus else layout.cpus,
        runtime_env=None if layout.gpus else {"env_vars": cpu_worker_env()},
        **common,
    )
    stage = arguments["draft"].made_from["stage"]
    job = ray.get_runtime_context().get_job_id()
    with Waiting(stage, lambda: _waits(job)):
        for done, record in enumerate(records.iter_rows(), 1):
            if _FAULT in record:
                raise pickle.loads(record[_FAULT])
            show("files_open", len(parts) - done, stage=stage)
            yield record


def _waits(job: str) -> bool:
    """Whether no actor of the job's pools has a process on a node yet, or any more."""
    return not any(
        "MapWorker" in actor["ActorClassName"] and actor["State"] != "DEAD" and actor["Address"]["Port"] for actor in actors_of(job)
    )


def run_parts(
    settings: Any,
    draft: Draft,
    unit: str,
    pending: dict[int, int],
    total: int,
    tokenise: Callable[..., pa.Table],
    actor: Callable[..., Any],
    **more: Any,
) -> None:
    """`run` over the `pending` parts of a source, with the rows of each, to the last, with a live line in `unit` of `total`."""
    settings = settings.located()
    with live_line(draft.made_from["stage"], draft, unit, total, total - sum(pending.values())):
        for _ in run(settings, [{"part": part} for part in pending], tokenise, actor, settings=settings, draft=draft, **more):
            pass


def _tokenise(table: pa.Table, step: Callable[..., pa.Table], arguments: dict[str, Any]) -> pa.Table:
    return _guarded(lambda: step(table, **arguments))


class _Actor:
    """What the pool holds: the actor of the stage, and what it raises turned into a record."""

    def __init__(self, actor: Callable[..., Any], arguments: dict[str, Any]) -> None:
        import ray

        self._step = actor(**arguments)
        self._where = f"job {ray.get_runtime_context().get_job_id()}, {arguments['draft'].made_from['stage']}"

    def __call__(self, table: pa.Table) -> pa.Table:
        if _FAULT in table.column_names:
            return table
        done = _guarded(lambda: self._step(table))
        record = ", ".join(f"{name} {value}" for name, value in done.slice(0, 1).to_pylist()[0].items() if name != _FAULT)
        say(f"{time.strftime('%F %T')} {self._where}: {record}")  # into the log of this worker, which Ray keeps
        return done


def _guarded(step: Callable[[], pa.Table]) -> pa.Table:
    """What `step` gives, or a row with the error that a person can fix: Ray would lose its cause, and print its trace."""
    try:
        return step()
    except (InputError, OSError) as error:
        if fixable(error) is None:
            raise
        return pa.table({_FAULT: [pickle.dumps(error)]})


def pack(columns: Mapping[str, Any]) -> pa.Table:
    """A table of one row whose cell `name` is the whole of column `name`: so Ray Data neither cuts nor joins it."""
    arrays = {name: pa.array(values) for name, values in columns.items()}
    return pa.table({name: pa.LargeListArray.from_arrays(np.array([0, len(a)]), a) for name, a in arrays.items()})


def unpack(table: pa.Table) -> dict[str, pa.Array]:
    """Back from `pack`, without a copy."""
    return {name: table[name].combine_chunks().flatten() for name in table.column_names}


def token_columns(tokens: Tokens) -> dict[str, Any]:
    """Tokens as columns for `pack`."""
    types = {} if tokens.types is None else {"types": tokens.types}
    return {"ids": tokens.ids, "offsets": tokens.offsets, **types}


def tokens_of(columns: Mapping[str, pa.Array]) -> Tokens:
    """Back from `token_columns`."""
    from raydense.models.tokens import Tokens

    types = columns["types"].to_numpy() if "types" in columns else None
    return Tokens(columns["ids"].to_numpy(), columns["offsets"].to_numpy(), types)


class Device:
    """Where an actor computes: its GPU, or the cores of its machine that fall to it.

    On the CPU each batch is computed by one thread, and the threads take different batches: no thread
    waits for another inside a batch, and the bits are the same whatever the number of threads.
    """

    def __init__(self, layout: Layout, budget: int, precision: str = "auto") -> None:
        import torch

        self.name = "cuda" if layout.gpus else "cpu"
        self._asked = precision
        self.budget = budget or (_GPU_BUDGET if layout.gpus else _CPU_BUDGET)
        # On a GPU, one thread pads while the other waits for its batch to be taken.
        threads = 2 if layout.gpus else layout.threads or max(1, physical_cpus() // layout.per_node)
        torch.set_num_threads(1)
        if layout.background and not layout.gpus and hasattr(os, "SCHED_IDLE"):
            os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))  # before its threads, which inherit it
        self._pool = ThreadPoolExecutor(threads, initializer=torch.set_num_threads, initargs=(1,))

    def run(self, tokens: Tokens, pad_id: int, forward: Callable[[dict[str, Any]], Any], count: Callable[[int], None]) -> tuple[Any, int]:
        """What `forward` gives for each text, float32 [n, ...] in the texts' order, and the tokens computed, padding included.

        `count` hears how many texts each finished batch had.
        """
        import torch

        from raydense.models.tokens import batches_by_token_budget

        lengths = tokens.lengths
        batches = batches_by_token_budget(lengths, self.budget)
        parts = self.each(batches, lambda batch: forward(tokens.select(batch).pad(pad_id, self.name)).float(), count)
        found = torch.cat(list(parts)).cpu().numpy()
        ordered = np.empty_like(found)
        ordered[np.concatenate(batches)] = found
        if not np.isfinite(ordered).all():
            raise InputError("the model gives numbers that are not finite", "", "train it anew, or give another model")
        return ordered, sum(len(b) * int(lengths[b].max()) for b in batches)

    def each(self, batches: list[Any], compute: Callable[[Any], Any], count: Callable[[int], None]) -> Iterator[Any]:
        """What `compute` gives for each batch, an array of texts' numbers, in the batches' order and without gradients."""
        import torch

        def one(batch: Any) -> Any:
            with torch.inference_mode(), self._precision():
                found = compute(batch)
            count(len(batch))
            return found

        return self._pool.map(one, batches)

    def _precision(self) -> Any:
        import torch

        kind = {"bf16": torch.bfloat16, "fp16": torch.float16}.get(self.precision)
        return torch.autocast(self.name, dtype=kind) if kind else contextlib.nullcontext()

    @property
    def precision(self) -> str:
        """What was asked for; of auto half precision on a GPU: bf16 where it has it (compute capability 8), else fp16."""
        import torch

        if self._asked != "auto":
            return self._asked
        if self.name == "cpu":
            return "fp32"
        return "bf16" if torch.cuda.is_bf16_supported(including_emulation=False) else "fp16"

    def fix_precision(self, begun: str | None, draft: Draft) -> None:
        """Record the precision of this device in the draft: `auto` depends on the machine, and an output has one precision.

        InputError where files that are there were computed in another (`begun`), or where another actor of this run computes in another.
        """
        if begun not in (None, self.precision):
            raise InputError(
                f"what is there was computed in {begun}, and on this device it would go on in {self.precision}",
                draft.place,
                f"go on where the device does {begun}, or delete the folder to start anew",
            )
        kept = draft.shared / _PRECISION
        (kept / self.precision).write(b"")
        # each actor writes before it looks: of two that differ, one at least sees both
        refuse_several([name for name in kept.names("*") if name in _PRECISIONS], draft)  # and none that is half written


def refuse_several(precisions: list[str], draft: Draft) -> None:
    """InputError where a draft is, or would be, computed in several precisions."""
    if len(precisions) > 1:
        what = f"its files would be computed in {' and '.join(sorted(precisions))}: the devices of the cluster differ"
        raise InputError(what, draft.place, "delete the folder, and give --precision fp32, or devices that do the same")


def precision_of(files: Iterable[File], draft: Draft) -> str | None:
    """What committed files were computed in, None where none of them says; InputError where they differ."""
    found = sorted({file.note["precision"] for file in files if "precision" in file.note})
    refuse_several(found, draft)
    return found[0] if found else None


class Meter:
    """Counts what is done of one file where the driver sees it: the size of an empty (sparse) file in the draft's work folder."""

    def __init__(self, draft: Draft, name: str) -> None:
        self._path = meters(draft) / name
        self._done = 0
        self._lock = threading.Lock()
        self._path.parent.mkdir(parents=True, exist_ok=True)
        self._path.touch()
        os.truncate(self._path, 0)

    def count(self, n: int) -> None:
        """Count `n` more; may be called from any thread."""
        with self._lock:
            self._done += n
            os.truncate(self._path, self._done)


def meters(draft: Draft) -> Path:
    """The folder of the meters of a draft."""
    return draft.work / "meters"


@contextlib.contextmanager
def live_line(name: str, draft: Draft, unit: str, total: int, done_before: int) -> Iterator[None]:
    """Show how far the actors are, from their meters, until the block ends."""
    folder = meters(draft)
    for left in folder.glob("*"):
        left.unlink()
    stop = threading.Event()
    with Progress(name, total, unit, done_before) as progress:

        def look() -> None:
            while not stop.wait(_LOOK_EVERY_S):
                progress.set(min(total, done_before + _sizes(folder.glob("*"))))

        watcher = threading.Thread(target=look, name="live line", daemon=True)
        watcher.start()
        try:
            yield
        finally:
            stop.set()
            watcher.join()
        progress.set(total)


def _sizes(paths: Iterable[Path]) -> int:
    return sum(path.stat().st_size for path in paths)
