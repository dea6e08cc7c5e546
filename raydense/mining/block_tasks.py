"""Mines the blocks of a large run as Ray tasks: each commits the file of its block, the same as one process would."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa

from raydense.data.runs import RunReader, query_blocks
from raydense.data.store import Rows
from raydense.data.tables import commit_table
from raydense.mining.hybrid import HybridMiner
from raydense.mining.miner import Miner
from raydense.mining.settings import MineSettings
from raydense.storage import Artifact, Draft, check_unchanged, digest_of

Queries = tuple[pa.Array, Rows, Rows]
_OPENED: dict[str, tuple[Miner, RunReader]] = {}  # what a worker process keeps open from block to block


def miner_of(settings: MineSettings, run: Artifact) -> Miner:
    """The miner that the settings ask for."""
    return (HybridMiner if settings.hybrid else Miner)(settings, run)


def file_of(number: int) -> str:
    """The file of a block."""
    return f"examples-{number:05d}.parquet"


def mine_by_tasks(draft: Draft, settings: MineSettings, run: Artifact, miner: Miner, rows: int) -> Iterator[int]:
    """Mine the missing blocks of about `rows` rows; yields the rows of each block, finished ones first.

    This process reads the queries of the run alone, and notes in `miner` which it has.
    """
    done, calls, start = draft.committed(), [], 0
    for number, block in enumerate(query_blocks(run.parts(".parquet"), rows, ["query_id"])):
        queries, name = miner.judged.queries_of(block), file_of(number)
        if name in done:
            yield block.num_rows
        else:
            calls.append((draft, settings.located(), name, start, start + block.num_rows, queries))
        start += block.num_rows
    if calls:
        from raydense.runtime.session import ensure_ray
        from raydense.runtime.tasks import run_tasks  # only here: importing Ray takes seconds

        ensure_ray()
        yield from run_tasks("mine", _mine_block, calls)


def _mine_block(draft: Draft, settings: MineSettings, name: str, start: int, stop: int, queries: Queries) -> int:
    miner, reader = _opened(draft, settings)
    table, counts = miner.examples(reader.read(start, stop).combine_chunks(), *queries)
    commit_table(draft, name, table, counts=counts)
    return stop - start


def _opened(draft: Draft, settings: MineSettings) -> tuple[Miner, RunReader]:
    """The miner and the run; InputError if an input was replaced since the stage began."""
    key, prints = digest_of(draft.made_from), draft.made_from["inputs"]
    if key not in _OPENED:
        for name, print_ in prints.items():
            check_unchanged(settings.value_of(name), print_)
        _OPENED.clear()
        _OPENED[key] = miner_of(settings, Artifact.open(settings.run, "run")), RunReader(settings.run, prints["run"])
    return _OPENED[key]
