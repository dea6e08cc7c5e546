"""Hard negatives from a run: what a retriever ranks high and is not a positive of the query, nor has the text of one.

DPR, RocketQA and ANCE draw them so. The run is read a block of whole queries at a time; each block becomes one committed
file of examples, with what was counted in its note.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from raydense.data.artifact import Artifact, Draft, provenance
from raydense.data.store import PassageStore, Rows, hash_strings
from raydense.data.tables import commit_table, query_positions, query_starts, read_table
from raydense.errors import InputError
from raydense.mining.negatives import Candidates, Positives, draw, first_of_each, repeats
from raydense.progress import Progress, say
from raydense.settings import MineSettings

BLOCK_ROWS = 1 << 18
_SOURCES = {"bm25": "bm25", "faiss": "dense", "dense": "dense"}


def mine(settings: MineSettings) -> Artifact:
    """Examples for training: of each judged query of the run all its positives and up to `negatives` hard negatives.

    Candidates are the passages at ranks skip+1..depth. Left out are the query's positives (relevance >= 1), passages whose
    text equals that of one, and repeats of a text. Examples come in the order of the run; positives by relevance falling, then
    row; negatives in the order of the draw (`random`) or of the ranks (`top`). The summary counts what was kept and dropped.
    Raises InputError on an unknown passage or query id, when nothing is left, and on a shortage if `shortage` is "fail".
    """
    if settings.skip >= settings.depth:
        raise InputError(f"skip {settings.skip} leaves nothing of depth {settings.depth}", "skip", "give a larger depth")
    draft = Draft.open(settings.output, "examples", provenance("mine", settings))
    if draft.done:
        return draft.done
    run = Artifact.open(settings.run, "run")
    miner = _Miner(settings, run)
    done = draft.committed()
    with Progress("mine", run.rows, "candidates") as progress:
        for number, block in enumerate(query_blocks(run.parts(".parquet"), BLOCK_ROWS)):
            name = f"examples-{number:05d}.parquet"
            heads, numbers = miner.queries_of(block)
            if name not in done:
                table, counts = miner.examples(block, heads, numbers)
                commit_table(draft, name, table, counts=counts)
            progress.add(block.num_rows)
    summary = _sum_up(settings, miner, [f.note["counts"] for f in draft.committed().values()])
    _say(settings, summary)
    return draft.finish(summary["kept"], **summary)


def query_blocks(parts: list[Path], rows: int) -> Iterator[pa.Table]:
    """The rows of a run's files in order, in tables of whole queries of about `rows` rows; holds little more than one."""
    held: pa.Table | None = None
    for part in parts:
        for batch in pq.ParquetFile(part).iter_batches(rows):
            table = pa.Table.from_batches([batch])
            held = pa.concat_tables([held, table]).combine_chunks() if held else table
            cut = int(query_starts(held["query_id"])[-2]) if held.num_rows else 0
            if cut and held.num_rows >= rows:
                yield held.slice(0, cut)
                held = held.slice(cut)
    if held is not None and held.num_rows:
        yield held


class _Miner:
    """What all blocks of a run share: the corpus, the positives, and which queries were met."""

    def __init__(self, settings: MineSettings, run: Artifact) -> None:
        self.settings = settings
        self.store = PassageStore(settings.corpus)
        self.queries = read_table(settings.queries, "queries", ["query_id"])
        qrels = read_table(settings.qrels, "qrels")
        query_positions(qrels["query_id"], self.queries, settings.qrels)
        self.positives = Positives.of(qrels, self.store, settings.qrels)
        if not len(self.positives.rows):
            raise InputError("no query has a positive", settings.qrels, "give qrels with a relevance of at least 1")
        self.met = np.zeros(self.queries.num_rows, dtype=bool)
        self.judged_met = np.zeros(len(self.positives), dtype=bool)
        self.source = _SOURCES.get(str(run.summary.get("kind")), "run")

    def queries_of(self, block: pa.Table) -> tuple[Rows, Rows]:
        """Where each query of a block begins, and its number among the judged queries, or -1."""
        heads = query_starts(block["query_id"])[:-1]
        ids = block["query_id"].take(pa.array(heads))
        known = query_positions(ids, self.queries, self.settings.run)
        again = self.met[known]
        again[np.setdiff1d(np.arange(len(known)), np.unique(known, return_index=True)[1])] = True
        if again.any():
            query = ids[int(np.argmax(again))].as_py()
            raise InputError(f"the rows of query {query!r} do not stand together", self.settings.run, "sort the run by query and rank")
        self.met[known] = True
        numbers = pc.fill_null(pc.index_in(ids, value_set=self.positives.query_ids), -1).to_numpy().astype(np.int64)
        self.judged_met[numbers[numbers >= 0]] = True
        return heads, numbers

    def examples(self, block: pa.Table, heads: Rows, numbers: Rows) -> tuple[pa.Table, dict[str, Any]]:
        """The examples of one block of the run, and what was counted."""
        wanted = np.flatnonzero((numbers >= 0) & (self.positives.counts[numbers] > 0))
        place = np.full(len(heads), -1, dtype=np.int64)
        place[wanted] = np.arange(len(wanted))
        wanted = numbers[wanted]
        counts: dict[str, Any] = {"unjudged": int((numbers < 0).sum())}
        lengths = np.diff(np.append(heads, block.num_rows))
        found = self._candidates(block, np.repeat(place, lengths), wanted, counts)
        chosen = found.at(self._pick(found, wanted))
        per_query = np.bincount(chosen.query, minlength=len(wanted))
        short = per_query < self.settings.negatives
        kept = ~short if self.settings.shortage == "drop" else np.ones(len(wanted), dtype=bool)
        counts["first_short"] = self.positives.query_ids[int(wanted[np.argmax(short)])].as_py() if short.any() else None
        counts |= {"short": int(short.sum()), "kept": int(kept.sum())}
        counts["histogram"] = np.bincount(per_query[kept], minlength=self.settings.negatives + 1).tolist()
        return self._table(wanted[kept], per_query[kept], chosen.at(kept[chosen.query])), counts

    def _candidates(self, block: pa.Table, query: Rows, wanted: Rows, counts: dict[str, Any]) -> Candidates:
        """What may be drawn for each query, in the order of the run; counts what is left out, by cause."""
        rank = block["rank"].to_numpy()
        inside = (query >= 0) & (rank <= self.settings.depth)
        taken = inside & (rank > self.settings.skip)
        counts |= {"candidates": int(inside.sum()), "skipped": int(inside.sum() - taken.sum())}
        row = self.store.known_rows(block["passage_id"].filter(pa.array(taken)), self.settings.run)
        found = Candidates(query[taken], row, rank[taken], block["score"].to_numpy()[taken])
        text_hash = self.store.text_hash[found.row]
        positive = self.positives.hold(wanted[found.query], found.row)
        like_positive = self.positives.hold_text(wanted[found.query], text_hash)
        free = ~positive & ~like_positive
        repeated = np.zeros(len(found), dtype=bool)
        repeated[free] = repeats(found.query[free], text_hash[free])
        counts |= {"positives": int(positive.sum()), "same_text": int((like_positive & ~positive).sum()), "repeated": int(repeated.sum())}
        return found.at(free & ~repeated)

    def _pick(self, found: Candidates, wanted: Rows) -> Rows:
        """The positions of the chosen candidates, by query."""
        if self.settings.pick == "top":
            return first_of_each(found.query, found.rank, self.settings.negatives)
        query_hash = hash_strings(self.positives.query_ids.take(pa.array(wanted)))
        lots = draw(self.settings.seed, query_hash[found.query], found.row)
        return first_of_each(found.query, lots, self.settings.negatives)

    def _table(self, wanted: Rows, per_query: Rows, chosen: Candidates) -> pa.Table:
        offsets = pa.array(np.append(0, np.cumsum(per_query)), pa.int32())
        positives, positive_offsets = self.positives.lists(wanted)
        sources = pa.DictionaryArray.from_arrays(np.zeros(len(chosen), dtype=np.int32), pa.array([self.source]))
        return pa.table(
            {
                "query_id": self.positives.query_ids.take(pa.array(wanted)),
                "positives": pa.ListArray.from_arrays(pa.array(positive_offsets, pa.int32()), pa.array(positives)),
                "negatives": pa.ListArray.from_arrays(offsets, pa.array(chosen.row)),
                "negative_scores": pa.ListArray.from_arrays(offsets, pa.array(chosen.score, pa.float32())),
                "negative_sources": pa.ListArray.from_arrays(offsets, sources.cast(pa.string())),
            }
        )


def _sum_up(settings: MineSettings, miner: _Miner, blocks: list[dict[str, Any]]) -> dict[str, Any]:
    """The summary of the artifact from the notes of its files; InputError on a shortage that must fail, or when nothing is left."""

    def total(name: str) -> int:
        return sum(block[name] for block in blocks)

    positives = miner.positives
    unmet = (positives.counts > 0) & ~miner.judged_met
    short = total("short") + int(unmet.sum())
    if settings.shortage == "fail" and short:
        first = next((b["first_short"] for b in blocks if b["first_short"] is not None), None)
        first = first if first is not None else positives.query_ids[int(np.argmax(unmet))].as_py()
        what = f"{short:,} queries have fewer than {settings.negatives} negatives, the first is {first!r}"
        raise InputError(what, settings.run, "give a deeper run, fewer negatives, or shortage keep or drop")
    if not total("kept"):
        raise InputError("no example is left", settings.run, "give a run of the queries that the qrels judge, or a greater depth")
    histogram = np.sum([block["histogram"] for block in blocks], axis=0).tolist()
    return {
        "queries": len(positives),
        "kept": total("kept"),
        "dropped": {
            "no positive": int((positives.counts == 0).sum()),
            "not in the run": int(unmet.sum()),
            "too few negatives": total("short") if settings.shortage == "drop" else 0,
        },
        "run_queries_not_judged": total("unjudged"),
        "candidates": total("candidates"),
        "removed": {
            "skipped rank": total("skipped"),
            "positive": total("positives"),
            "text of a positive": total("same_text"),
            "repeated text": total("repeated"),
        },
        "short": short,
        "negatives": histogram,
        "corpus": miner.store.fingerprint,
    }


def _say(settings: MineSettings, summary: dict[str, Any]) -> None:
    def listed(counts: dict[str, int]) -> str:
        return ", ".join(f"{count:,} {cause}" for cause, count in counts.items() if count) or "none"

    drawn = sum(size * queries for size, queries in enumerate(summary["negatives"]))
    say(f"mine: {summary['kept']:,} of {summary['queries']:,} queries kept, {drawn:,} negatives; dropped: {listed(summary['dropped'])}")
    say(f"mine: {summary['candidates']:,} candidates seen; removed: {listed(summary['removed'])}")
    if summary["short"]:
        say(f"mine: {summary['short']:,} queries have fewer than {settings.negatives} negatives; nothing was filled in")
