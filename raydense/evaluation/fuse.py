"""The stage `fuse`: one run of several, block by block; its weights are given, equal, or tuned on dev queries (tuning.py)."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from raydense.data.lookup import IdLookup
from raydense.data.runs import BLOCK_ROWS, query_blocks
from raydense.data.store import Rows
from raydense.data.tables import SCHEMAS, commit_table, query_starts, read_table
from raydense.errors import InputError
from raydense.evaluation.metrics import Judgements
from raydense.evaluation.runs import Places
from raydense.evaluation.settings import FuseSettings
from raydense.evaluation.tuning import combinations, lambdas, tuned
from raydense.retrieval.fusion import Hits, spread
from raydense.retrieval.fusion_rule import Rule, in_order
from raydense.runtime.progress import Progress, say
from raydense.storage import Artifact, Draft, folders_by_name, provenance, releases_outputs

_WEIGHTS = "weights.json"  # those that were tuned, of a run that was stopped after it


class Block:
    """The hits of some queries in all runs: the ids of the queries and of the passages, to which the numbers of the hits point."""

    def __init__(self, places: list[Places], query_ids: pa.Array, numbers: Rows) -> None:
        self.query_ids = query_ids.take(pa.array(numbers))
        lookup, tables = IdLookup(self.query_ids), [each.rows_of(numbers) for each in places]
        words = pa.chunked_array([table["passage_id"].combine_chunks() for table in tables]).combine_chunks().dictionary_encode()
        order = pc.sort_indices(words.dictionary).to_numpy()
        self.passage_ids = words.dictionary.take(pa.array(order))
        passage, start, self.runs = np.argsort(order)[words.indices.to_numpy()], 0, []
        for each, table in zip(places, tables, strict=True):
            query = lookup.positions_of_rows(table["query_id"])
            hits = Hits(query, passage[start : start + len(table)], table["rank"].to_numpy(), table["score"].to_numpy())
            self._refuse_twice(hits, each.artifact.located)
            self.runs.append(hits)
            start += len(table)

    def _refuse_twice(self, hits: Hits, where: str) -> None:
        pairs = np.sort(hits.query * max(1, len(self.passage_ids)) + hits.passage)
        again = pairs[1:][pairs[1:] == pairs[:-1]]
        if len(again):
            query, passage = divmod(int(again[0]), len(self.passage_ids))
            what = f"names passage {self.passage_ids[passage].as_py()!r} twice for query {self.query_ids[query].as_py()!r}"
            raise InputError(what, where, "keep one")

    def table(self, hits: Hits) -> pa.Table:
        """Fused hits as rows of a run."""
        ids = self.query_ids.take(pa.array(hits.query)), self.passage_ids.take(pa.array(hits.passage))
        return pa.table([*ids, hits.rank, hits.score], schema=SCHEMAS["run"])


@releases_outputs
def fuse(settings: FuseSettings) -> Artifact:
    """Make one run of several: the queries of all, in the order of the first run that has them, each with at most `k` passages.

    Hits are in trec_eval's order: score falling, equal ones by passage id falling. A run that lacks a query adds nothing to it. Of one query the
    same hits come out whatever other queries the runs have. The summary has the weights, of each run its kind and depth, and with `qrels`
    the metric of each run and of the fused one on the dev queries. InputError where a run names a passage twice for a query, the runs are of different corpora,
    one of them has no judged query, or `weights_of` is no fusion of as many runs.
    """
    draft = Draft.open(settings.output, "run", provenance("fuse", settings))
    if draft.done:
        return draft.done
    runs = {name: Artifact.open(folder, "run") for name, folder in folders_by_name(settings.run, "run").items()}
    corpus = _corpus_of(runs)
    query_ids = _query_ids(list(runs.values()))
    places = [Places(IdLookup(query_ids), run) for run in runs.values()]
    for each in places:
        each.find()
    _say_lacking(list(runs), places, len(query_ids))
    _say_order(list(runs), places)
    rule, found = _rule(settings, list(runs), places, query_ids, draft)
    weights = ", ".join(f"{name} {weight:g}" for name, weight in zip(runs, rule.weights, strict=True))
    say(f"fuse: {rule.method}, weights {weights}")
    done, rows = draft.committed(), 0
    with Progress("fuse", len(query_ids), "queries") as progress:
        for number, numbers in enumerate(_blocks(places)):
            name = f"run-{number:05d}.parquet"
            if name not in done:
                block = Block(places, query_ids, numbers)
                commit_table(draft, name, block.table(rule.fused(block.runs, settings.k)))
            progress.add(len(numbers))
    rows = sum(file.rows for file in draft.committed().values())
    summary = {"kind": "fused", "queries": len(query_ids), "k": settings.k, "method": rule.method, "scale": rule.scale}
    summary |= {
        "weights": dict(zip(runs, rule.weights, strict=True)),
        "runs": {name: _about(each) for name, each in zip(runs, places, strict=True)},
    }
    return draft.finish(rows, **summary, **found, **({"corpus": corpus} if corpus else {}))


def _say_lacking(names: list[str], places: list[Places], queries: int) -> None:
    """Say which runs have no hits of some queries: the fused hits of these are those of the other runs."""
    for name, each in zip(names, places, strict=True):
        if (has := np.count_nonzero(each.count)) < queries:
            say(f"fuse: {name} has hits of {has:,} of the {queries:,} queries; of the others the fused hits are those of the other runs")


def _say_order(names: list[str], places: list[Places]) -> None:
    """Say of which large runs the queries stand in another order than in the first one: parts of their files are read again for each block."""
    blocks = sum(1 for _ in _blocks(places))
    for name, each in zip(names, places, strict=True):
        if blocks > 1 and (np.diff(each.first[(each.count > 0) & (places[0].count > 0)]) < 0).any():
            say(f"fuse: {name} has its queries in another order than {names[0]}, and takes longer to read in {blocks:,} blocks of queries")


def _about(places: Places) -> dict[str, Any]:
    """What pools that are to answer as the fused run need to know of one of its runs: its kind, and its hits of a query at most.

    The kind is that of its index, else the stage that made it; "" of an imported run.
    """
    stage = places.artifact.manifest["made_from"].get("stage", "")
    kind = places.artifact.summary.get("kind") or ("" if stage == "import" else stage)
    return {"kind": kind, "depth": int(places.count.max(initial=1))}


def _corpus_of(runs: dict[str, Artifact]) -> str | None:
    """The corpus that all runs name, if they do; InputError where they name different ones."""
    named = {name: str(run.summary["corpus"]) for name, run in runs.items() if run.summary.get("corpus")}
    if len(set(named.values())) > 1:
        raise InputError(f"{' and '.join(named)} are of different corpora", "run", "give runs of the same corpus")
    return next(iter(named.values()), None)


def _query_ids(runs: list[Artifact]) -> pa.Array:
    """The queries of all runs, each once."""
    heads = [SCHEMAS["run"].empty_table()["query_id"].combine_chunks()]
    for run in runs:
        for block in query_blocks(run.parts(".parquet"), BLOCK_ROWS, ["query_id"]):
            ids = block["query_id"].combine_chunks()
            heads.append(ids.take(pa.array(query_starts(block["query_id"])[:-1])))
    return pc.unique(pa.chunked_array(heads))


def _blocks(places: list[Places]) -> Iterator[Rows]:
    """The numbers of all queries in blocks of about `BLOCK_ROWS` hits."""
    hits = np.cumsum(np.sum([each.count for each in places], axis=0))
    if len(hits):
        yield from np.split(np.arange(len(hits)), np.flatnonzero(np.diff(hits // BLOCK_ROWS)) + 1)


def _rule(settings: FuseSettings, names: list[str], places: list[Places], query_ids: pa.Array, draft: Draft) -> tuple[Rule, dict[str, Any]]:
    """The rule, and what the summary says of how its weights were found."""
    equal = [1.0 / len(names)] * len(names) if settings.method == "sum" and settings.scale else [1.0] * len(names)
    if settings.weights_of:
        rule = Rule.of(settings.weights_of, names)
        _refuse_other_kinds(settings.weights_of, dict(zip(names, places, strict=True)))
        return rule, {}
    rule = Rule(str(settings.method), settings.scale, settings.weights or equal)
    if not settings.qrels:
        return rule, {}
    if kept := draft.kept(_WEIGHTS):
        found = json.loads(kept.read_text())
    else:
        found = _tuned(settings, rule, names, places, query_ids)
        draft.keep(_WEIGHTS, lambda path: path.write_text(json.dumps(found)))
    return Rule(rule.method, rule.scale, found["weights"]), {"dev": found["dev"]}


def _tuned(settings: FuseSettings, rule: Rule, names: list[str], places: list[Places], query_ids: pa.Array) -> dict[str, Any]:
    """The weights that are best on the dev queries, and what the summary says of them."""
    assert settings.qrels
    judgements = Judgements(read_table(settings.qrels, "qrels"), [settings.metric], settings.qrels, "metric")
    numbers = IdLookup(query_ids).positions(judgements.query_ids)
    numbers = np.sort(numbers[numbers >= 0])
    if not len(numbers):
        raise InputError("no run has a query that is judged here", settings.qrels, "give judgements of queries that the runs have")
    if lacking := [name for name, each in zip(names, places, strict=True) if not each.count[numbers].any()]:
        what = f"no weight can be found for {' and '.join(lacking)}: without hits of the {len(numbers):,} queries that are judged here"
        raise InputError(what, settings.qrels, "search these queries too, or leave the run out")
    pieces = _pieces(numbers, places)
    tried = combinations(len(names)) if rule.method == "reciprocal" or rule.scale else lambdas(_spreads(places, query_ids, pieces))
    blocks = (Block(places, query_ids, part) for part in pieces)
    with Progress("fuse weights", len(pieces) * len(tried), "fusions") as progress:
        weights, values = tuned(judgements, ((block, rule.pooled(block.runs)) for block in blocks), tried, settings.k, progress)
    alone = dict(zip(names, values["alone"], strict=True))
    if not any([values["fused"], *alone.values()]):
        what = f"no weight can be found: {settings.metric} is 0 for each run of the {len(numbers):,} queries that are judged here"
        raise InputError(what, settings.qrels, "give judgements of passages that the runs have, or another metric")
    measured = ", ".join(f"{name} {value:.4f}" for name, value in alone.items())
    say(f"fuse: {settings.metric} on {len(numbers):,} dev queries: {measured}, fused {values['fused']:.4f}")
    if values["fused"] - values["worst"] < 1e-12:
        say("fuse: all weights that were tried are equally good, so the first is taken")
    return {"weights": weights, "dev": {"metric": settings.metric, "runs": alone, "fused": values["fused"]}}


def _refuse_other_kinds(weights_of: str, places: dict[str, Places]) -> None:
    """InputError where the weight of a run of one kind (of an index, or of the stage that made it) would be given to one of another."""
    about = in_order(Artifact.open(weights_of, "run").summary.get("runs", {}), list(places), weights_of)
    for (name, each), one in zip(places.items(), about.values(), strict=False):
        here = _about(each)["kind"]
        if here and one["kind"] and here != one["kind"]:
            what = f"weighs a run of kind {one['kind']} where {name} is of kind {here}"
            raise InputError(what, weights_of, "give the runs in the order of that one's, or by their names")


def _spreads(places: list[Places], query_ids: pa.Array, pieces: list[Rows]) -> list[float]:
    """What the scores of each run span, summed over the queries."""
    blocks = (Block(places, query_ids, part) for part in pieces)
    return [sum(of_run) for of_run in zip(*([spread(hits) for hits in block.runs] for block in blocks), strict=True)]


def _pieces(numbers: Rows, places: list[Places]) -> list[Rows]:
    """Some queries in parts of about `BLOCK_ROWS` hits."""
    hits = np.cumsum(np.sum([each.count[numbers] for each in places], axis=0))
    return np.split(numbers, np.flatnonzero(np.diff(hits // BLOCK_ROWS)) + 1)
