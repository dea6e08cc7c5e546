"""Plans the building of a FAISS index before anything is computed: threads and memory of a task, and whether the finished index fits."""

from __future__ import annotations

import math
import shutil
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import ray

from raydense.errors import InputError
from raydense.retrieval.faiss_fill import MOST_ROWS
from raydense.retrieval.faiss_size import IndexFacts, facts_of, size_of
from raydense.retrieval.memory import PROCESS_BYTES, MemoryPlan
from raydense.retrieval.nodes import claims, shard_nodes
from raydense.retrieval.nprobe import DEPTH, QUERIES
from raydense.retrieval.settings import IndexSettings
from raydense.retrieval.sharding import shards_for
from raydense.retrieval.vectors import BLOCK_ROWS
from raydense.runtime.progress import size
from raydense.runtime.ray_internals import free_by_node
from raydense.runtime.session import autoscales, joins_cluster, physical_cpus
from raydense.runtime.tasks import shard_ranges
from raydense.storage import Draft, Place

_TRAINED = 3  # the sample in float32, what a transformation or the residuals make of it, and FAISS's own selection
_SMALLER = ("SQfp16", "SQ8", "RaBitQ,Refine(SQ8)", "RaBitQ,Refine(SQ4)", "RaBitQ")
_ROW_BYTES = 4  # the number of a vector's inverted list, between the two passes
_ONE_BY_ONE = 0.1  # of a task's work, about: its files are read and written by one thread
_RELEASE_S = 3.0  # until what has ended gives its cores back, and its memory with them


@dataclass(frozen=True)
class BuildPlan:
    """What an index of `rows` vectors needs: `ranges` [start, stop) of the rows of each shard, and tasks of some threads.

    `sample` of its vectors train it. `group` is what the names of its settings begin with, as "refresh." where another stage makes the index.
    """

    factory: str
    dimension: int
    ranges: list[tuple[int, int]]
    facts: IndexFacts
    threads: int = 1
    group: str = ""
    sample: int = 0

    @property
    def rows(self) -> int:
        return self.ranges[-1][1]

    @property
    def largest(self) -> int:
        """The vectors of the largest shard."""
        return max(stop - start for start, stop in self.ranges)

    @property
    def file_bytes(self) -> list[int]:
        """The bytes of each shard's file, and of the memory that searches it."""
        return [self.facts.size.of(stop - start) for start, stop in self.ranges]

    @property
    def task_bytes(self) -> int:
        """The memory of the task that fills the largest shard: the shard, the blocks in work, and the process."""
        blocks = 5 * min(self.threads * MOST_ROWS, self.largest) * self.dimension * 4
        return max(self.file_bytes) + _ROW_BYTES * self.largest + blocks + PROCESS_BYTES

    @property
    def train_bytes(self) -> int:
        """The memory of the task that trains the index: the sample, FAISS's copies of it, what is learnt, and the process."""
        if not self.sample or self.facts.trained:
            return 0
        return _TRAINED * min(self.sample, self.rows) * self.dimension * 4 + self.facts.size.fixed + PROCESS_BYTES

    @property
    def nprobe_bytes(self) -> int:
        """The memory of a task that helps to choose nprobe: the shard's file, or a block of vectors; those of the answers, and the process."""
        if not self.facts.lists:
            return 0
        blocks, answers = 6 * min(BLOCK_ROWS, self.largest), 8 * min(QUERIES * DEPTH, self.rows)
        return max(*self.file_bytes, blocks * self.dimension) + answers * self.dimension + PROCESS_BYTES

    @property
    def largest_task(self) -> int:
        """The memory of the largest task of the stage."""
        return max(self.task_bytes, self.train_bytes, self.nprobe_bytes)

    @property
    def search_bytes(self) -> MemoryPlan:
        """The memory of a pool that searches the index."""
        return MemoryPlan([one + PROCESS_BYTES for one in self.file_bytes], 1)


def plan_build(factory: str, dimension: int, rows: int, shards: int, group: str = "", sample: int = 0) -> BuildPlan:
    """The plan of an index, by tasks of one thread; InputError on a factory string that FAISS does not know."""
    return BuildPlan(factory, dimension, shard_ranges(rows, shards), facts_of(factory, dimension), 1, group, sample)


def with_threads(plan: BuildPlan, settings: IndexSettings, tasks: int) -> BuildPlan:
    """The plan for `tasks` that are left to fill shards, with the threads of each."""
    if settings.single_core or not plan.facts.parallel:
        return plan
    return replace(plan, threads=threads_each(tasks, settings.concurrency, lambda threads: replace(plan, threads=threads).task_bytes))


def training_threads(plan: BuildPlan, settings: IndexSettings) -> int:
    """The threads of the task that trains the index."""
    needed = plan.train_bytes
    return 1 if settings.single_core else threads_each(1, 0, lambda threads: needed)


def threads_each(tasks: int, concurrency: int, task_bytes: Callable[[int], int]) -> int:
    """The threads of each of `tasks` with which they end first, on what others leave of the nodes' cores and memory; at least 1.

    A task claims as many CPUs: it would wait for ever for one that a server holds. `task_bytes` is its memory by its threads.
    """
    nodes = _unclaimed()

    def time_taken(threads: int) -> float:
        needed = max(1, task_bytes(threads))
        at_once = min(concurrency or tasks, sum(min(cpus // threads, memory // needed) for cpus, memory in nodes))
        return math.ceil(tasks / at_once) * (1 / threads + _ONE_BY_ONE) if at_once else math.inf

    return min(range(1, max((cpus for cpus, _ in nodes), default=1) + 1), key=time_taken, default=1)


def _unclaimed() -> list[tuple[int, int]]:
    """The CPUs and the memory of each node that nobody has claimed; waits a while for what has ended to release its own.

    The sliver of a CPU that an actor of a pool claims stays free.
    """
    nodes, end = shard_nodes(False), time.monotonic() + _RELEASE_S
    sliver, most = (claims(False, ray.nodes())["num_cpus"], math.inf) if joins_cluster() else (0, physical_cpus())

    def cpus(resources: dict[str, float]) -> int:
        return int(min(most, resources.get("CPU", 0) - sliver))

    while True:
        unclaimed = free_by_node()
        free = [unclaimed.get(node["NodeID"], node["Resources"]) for node in nodes]
        all_free = all(cpus(left) == cpus(node["Resources"]) for left, node in zip(free, nodes, strict=True))
        if all_free or time.monotonic() > end:
            return [(cpus(left), int(left.get("memory", 0))) for left in free]
        time.sleep(0.2)


def check_shards(shards: int, rows: int) -> None:
    """InputError if a shard would be empty."""
    if shards > rows:
        raise InputError(f"{shards} shards of {rows} vectors", "shards", f"give at most {rows}")


def check_training(plan: BuildPlan, sample: int) -> None:
    """InputError if `sample` vectors, or all if they are fewer, do not train the index."""
    drawn, least = min(sample, plan.rows), plan.facts.least
    if drawn < least:
        larger = "a larger train_sample, " if sample < plan.rows and not plan.group else ""
        what = f"{drawn:,} vectors do not train {plan.factory!r}, which needs {least:,}"
        raise InputError(what, "factory", f"use fewer lists or bits, {larger}or Flat")


def check_build(settings: IndexSettings, plan: BuildPlan, draft: Draft, missing: list[int]) -> None:
    """InputError, before anything is computed, if the `missing` shards can not be made here, or the finished index not be searched."""
    if missing:
        check_memory(plan, settings.skip_memory_check)
        check_disk(plan, draft.place, draft.folder, missing)


def check_memory(plan: BuildPlan, elsewhere: bool = False) -> None:
    """InputError if these nodes could not make the index, or not hold it unless it is searched elsewhere; not on a cluster that adds nodes."""
    nodes = [int(node["Resources"].get("memory", 0)) for node in shard_nodes(False)]
    try:
        _check_nodes(plan, nodes, elsewhere)
    except InputError:
        if not autoscales():
            raise


def check_disk(plan: BuildPlan, place: Place, folder: Path, shards: Iterable[int]) -> None:
    """InputError if the disk of `folder`, where the output `place` is assembled, has no room for some shards."""
    if place.durable and joins_cluster():
        return  # other machines assemble the shards, and none keeps them
    there = next(one for one in (folder, *folder.absolute().parents) if one.exists())
    needed, free = sum(plan.file_bytes[shard] for shard in shards), shutil.disk_usage(there).free
    if needed > free:
        what = f"{_named(plan)} needs {size(needed)} of disk, and {size(free)} are free"
        raise InputError(what, folder, f"free some, give another --output, or {_smaller(plan, disk=free)}")


def _check_nodes(plan: BuildPlan, nodes: list[int], elsewhere: bool) -> None:
    """InputError if no node could train the index or run the task of the largest shard, or the nodes not hold it unless it is searched elsewhere."""
    if plan.train_bytes > max(nodes, default=0):
        what = f"to train {plan.factory} with {min(plan.sample, plan.rows):,} vectors of {plan.dimension} needs {size(plan.train_bytes)} of memory"
        fix = "give a larger machine, or a factory that is not trained" if plan.group else "give a smaller one, or a larger machine"
        raise InputError(
            f"{what}, and the largest node has {size(max(nodes, default=0))}", "factory" if plan.group else "train_sample", fix
        )
    if not _fills(plan, nodes):
        what = f"a task of {_named(plan)} needs {size(plan.largest_task)} of memory, and the largest node has {size(max(nodes, default=0))}"
        raise InputError(what, "index", " or ".join([*_more_shards(plan, nodes, elsewhere), _smaller(plan, nodes)]))
    if not (elsewhere or _searchable(plan, nodes)):
        what = f"a search of {_named(plan)} needs {size(plan.search_bytes.total)} of memory, and there are {len(nodes)} nodes with {size(sum(nodes))}"
        fixes = [*_more_shards(plan, nodes, elsewhere), _smaller(plan, nodes)]
        fixes += [] if plan.group else ["--skip-memory-check if other machines search it"]
        raise InputError(what, "index", " or ".join(fixes))


def _named(plan: BuildPlan) -> str:
    shards = f"{len(plan.ranges)} shard{'s' * (len(plan.ranges) > 1)}"
    return f"an index {plan.factory} of {plan.rows:,} x {plan.dimension} in {shards}"


def _fills(plan: BuildPlan, nodes: list[int]) -> bool:
    return plan.largest_task <= max(nodes, default=0)


def _searchable(plan: BuildPlan, nodes: list[int]) -> bool:
    try:
        plan.search_bytes.check(nodes, plan.factory)
    except InputError:
        return False
    return True


def _more_shards(plan: BuildPlan, nodes: list[int], elsewhere: bool) -> Iterator[str]:
    """The least power of two times as many shards that fit, if any do."""
    shards = 2 * len(plan.ranges)
    while shards <= min(plan.rows, 4_096):
        other = plan_build(plan.factory, plan.dimension, plan.rows, shards)
        if _fills(other, nodes) and (elsewhere or _searchable(other, nodes)):
            yield f"--{plan.group}shards {shards}"
            return
        shards *= 2


def _smaller(plan: BuildPlan, nodes: list[int] | None = None, disk: int = 0) -> str:
    """Factories of the same lists and fewer bytes that fit the memory of `nodes`, or `disk`, each with its size."""
    lists = f"{plan.factory.partition(',')[0]}," if plan.factory.startswith("IVF") else ""
    found = []
    for codes in _SMALLER:
        each = size_of(lists + codes, plan.dimension)
        other = plan_build(lists + codes, plan.dimension, plan.rows, max(len(plan.ranges), shards_for(each.vector, plan.rows)))
        fits = sum(other.file_bytes) <= disk if nodes is None else _fills(other, nodes) and _searchable(other, nodes)
        if fits and each.vector < plan.facts.size.vector:
            found.append(f"{lists}{codes} ({size(sum(other.file_bytes))})")
    return f"--{plan.group}factory {', '.join(found[:3])}" if found else "more or larger machines"
