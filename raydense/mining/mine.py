"""The stage `mine`: makes examples from a run only (miner.py), or from a run and labels (hybrid.py).

The run is read in blocks of complete queries; each block becomes one committed file of examples, with its counts in the note. Blocks of a
large run are Ray tasks.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from raydense.data.runs import BLOCK_ROWS, query_blocks
from raydense.data.tables import commit_table
from raydense.errors import InputError
from raydense.mining.block_tasks import file_of, mine_by_tasks, miner_of
from raydense.mining.blocks import say_depth
from raydense.mining.counts import added, added_sources, listed, say_answers, say_shortage
from raydense.mining.miner import Miner
from raydense.mining.settings import MineSettings
from raydense.runtime.metrics import show
from raydense.runtime.progress import Progress, say
from raydense.storage import Artifact, Draft, provenance, releases_outputs

_FEW = 64  # blocks that are mined here rather than by Ray, whose start takes seconds: 16 million rows, half a minute


@releases_outputs
def mine(settings: MineSettings) -> Artifact:
    """Examples for training: for each judged query of the run all its positives and up to `negatives` hard negatives.

    Candidates are the passages at ranks skip+1..depth, without the query's positives (relevance >= 1), passages with the
    text of one, repeated texts, and with `without_answers` without passages that hold an answer. Examples come in the order of the run; positives by relevance falling, then
    row; negatives in the order of the draw (`random`) or of the ranks (`top`). The summary counts what was kept and dropped.
    After them come `random` passages of the whole corpus, without a score, the same for every run of the query.
    With `hybrid` some of the negatives, and more positives, come from `labels`: see `HybridMiner`. Negatives have their score in
    the run; with `keep_scores` positives do too, null if the run does not contain them.
    Judgements of passages that the corpus lacks are left out, and counted.
    Raises InputError on an unknown passage of the run or query id, if nothing is left, and on a shortage if `shortage` is "fail".
    """
    draft = Draft.open(settings.output, "examples", provenance("mine", settings))
    if draft.done:
        return draft.done
    run = Artifact.open(settings.run, "run")
    miner = miner_of(settings, run)
    miner.judged.say_lacking("mine")
    say_depth("mine", settings.run, miner.depth, settings.depth)
    with Progress("mine", run.rows, "candidates") as progress:
        many = run.rows > _FEW * BLOCK_ROWS
        for rows in mine_by_tasks(draft, settings, run, miner, BLOCK_ROWS) if many else _mine_here(draft, run, miner):
            progress.add(rows)
    counts = [file.note["counts"] for file in draft.committed().values()]
    try:
        summary = _sum_up(settings, miner, counts)
    except InputError:  # the settings that fix it make other blocks
        draft.discard()
        raise
    _report(settings, summary)
    return draft.finish(summary["kept"], **summary)


def _mine_here(draft: Draft, run: Artifact, miner: Miner) -> Iterator[int]:
    """Mine the missing blocks in this process; yields the rows of each block."""
    done = draft.committed()
    for number, block in enumerate(query_blocks(run.parts(".parquet"), BLOCK_ROWS)):
        queries = miner.judged.queries_of(block)
        if file_of(number) not in done:
            table, counts = miner.examples(block, *queries)
            commit_table(draft, file_of(number), table, counts=counts)
        yield block.num_rows


def _sum_up(settings: MineSettings, miner: Miner, blocks: list[dict[str, Any]]) -> dict[str, Any]:
    """The summary of the artifact from the notes of its files; InputError on a shortage that must fail, or if nothing is left."""

    def total(name: str) -> int:
        return sum(block[name] for block in blocks)

    removed = _removed(settings, blocks)
    positives, unmet = miner.positives, miner.judged.unmet
    short = total("short") + int(unmet.sum())
    if settings.shortage == "fail" and short:
        first = next((b["first_short"] for b in blocks if b["first_short"] is not None), None)
        first = first if first is not None else positives.query_ids[int(np.argmax(unmet))].as_py()
        what = f"{short:,} queries have fewer than {settings.enough} negatives, the first is {first!r}"
        raise InputError(what, settings.run, "give a deeper run, a lower min_negatives, or shortage keep or drop")
    if not total("kept"):
        fix = "give a run of the queries that the qrels judge, a greater depth, smaller margins, or shortage keep"
        fix += ", or leave without_answers out" if settings.without_answers else ""
        raise InputError(f"no example is left: of {total('candidates'):,} candidates {listed(removed)} were removed", settings.run, fix)
    histogram = np.sum([block["histogram"] for block in blocks], axis=0).tolist()
    answers = {"answers": added(block["answers"] for block in blocks)} if settings.without_answers else {}
    hybrid = {"hybrid": added(block["hybrid"] for block in blocks)} if settings.hybrid else {}
    return {
        "queries": len(positives),
        "kept": total("kept"),
        "dropped": {
            "no positive": int((positives.counts == 0).sum()),
            "not in the run": int(unmet.sum()),
            "too few negatives": total("short") if settings.shortage == "drop" else 0,
        },
        "run_queries_not_judged": total("unjudged"),
        "depth": miner.depth,
        "candidates": total("candidates"),
        "removed": removed,
        "short": short,
        "sources": added_sources(blocks),
        **hybrid,
        **answers,
        "negatives": histogram,
        "corpus": miner.store.fingerprint,
    }


def _removed(settings: MineSettings, blocks: list[dict[str, Any]]) -> dict[str, int]:
    """How many candidates were left out, by cause."""
    names = {"skipped": "skipped rank", "positives": "positive", "same_text": "text of a positive", "repeated": "repeated text"}
    removed = {name: sum(block[key] for block in blocks) for key, name in names.items()}
    removed |= added({name.replace("_", " "): count for name, count in block.get("margins", {}).items()} for block in blocks)
    if settings.without_answers:
        removed["holds an answer"] = sum(block["answered"] for block in blocks)
    return removed | added(block.get("hybrid_removed", {}) for block in blocks)


def _report(settings: MineSettings, summary: dict[str, Any]) -> None:
    drawn = sum(size * queries for size, queries in enumerate(summary["negatives"]))
    show("negatives_kept", drawn, output=Path(settings.output).name)
    say(f"mine: {summary['kept']:,} of {summary['queries']:,} queries kept, {drawn:,} negatives; dropped: {listed(summary['dropped'])}")
    say(f"mine: {summary['candidates']:,} candidates seen; removed: {listed(summary['removed'])}")
    if settings.hybrid:
        say(
            f"mine: sources: {listed(summary['sources']['positives'])}; {listed(summary['sources']['negatives'])}; {listed(summary['hybrid'])}"
        )
    elif settings.random:
        say(f"mine: negatives by source: {listed(summary['sources']['negatives'])}")
    say_answers("mine", summary)
    say_shortage("mine", summary, settings.enough, "negatives")
