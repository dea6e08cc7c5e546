"""Periodic refresh: during training a retriever's own weights find the hard negatives that it learns from next (ANCE, Xiong et al. 2021).

To make a generation, the weights of a boundary encode the corpus, the vectors are indexed, the queries of the examples are searched,
and negatives are mined, or denoised by a re-ranker. Each phase is a stage with its own artifact, so that a kill costs at most one phase.
The generation itself is an artifact too: the examples with new negatives.
"""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from safetensors.torch import load_file

from raydense.data.store import PassageStore
from raydense.data.tables import commit_table, concat_parts, positives_of, read_table
from raydense.inference.encode import encode
from raydense.inference.settings import EncodeSettings
from raydense.mining.counts import listed
from raydense.mining.label import label
from raydense.mining.mine import mine
from raydense.mining.negatives import Flags
from raydense.mining.settings import LabelSettings, MineSettings
from raydense.models.dual_encoder import DualEncoder
from raydense.refresh.changed import changed, standing
from raydense.refresh.renewed import renewed, share_new
from raydense.refresh.training_pool import TrainingPool
from raydense.retrieval.index import index
from raydense.retrieval.search import search
from raydense.retrieval.settings import IndexSettings, SearchSettings
from raydense.runtime.metrics import show
from raydense.runtime.progress import duration, say
from raydense.runtime.session import joins_cluster
from raydense.storage import Artifact, Draft, Place, fingerprint_of, read_manifest, releases_outputs
from raydense.training.capacity import refresh_actors
from raydense.training.generations import Generations
from raydense.training.loop_settings import LoopSettings
from raydense.training.method import load_model, method_of
from raydense.training.ragged import Ragged
from raydense.training.settings import RefreshSettings, TrainSettings, refresh_of

_SERVING = ("index", "retriever")  # the folders that a pool and its callers need while it answers from a generation


@releases_outputs
def make_generation(pool: TrainingPool, settings: LoopSettings, start: str, generations: Generations, number: int) -> None:
    """Make generation `number` of the examples from the weights that were handed over for it; finished phases are not repeated.

    `pool` answers from the generation until the next one is made, and ends with the last one. InputError before the next phase where
    nobody waits for the generation any more.
    """
    refresh = refresh_of(settings)
    assert isinstance(settings, TrainSettings)
    assert refresh is not None
    begun, work = time.monotonic(), generations.work(number)
    step = generations.made_of(number)
    model = _retriever(settings, start, generations, number, work / "retriever")
    corpus, queries = settings.corpus, settings.queries
    before = settings.examples if number == 1 else str(generations.examples(number - 1))
    known = _positives(settings, refresh, before, number, work / "positives")
    concurrent = generations.behind > 0
    spread = _spread(settings, concurrent)
    generations.refuse_given_up()
    vectors = encode(EncodeSettings.read({"output": work / "vectors", "model": model, "corpus": corpus, **spread}))
    generations.refuse_given_up()
    dense = index(index_settings(refresh, work / "index", vectors))
    asked = {"queries": queries, "qrels": known, "k": refresh.depth, "queries_on_cpu": concurrent}
    generations.refuse_given_up()
    found = _found(pool, refresh, dense, {"output": generations.run(number), "model": model, **asked}, number == generations.last)
    earlier = Artifact.open(generations.run(number - 1), "run") if refresh.only_changed and number > 1 else None
    drawn_from, stands = _candidates(found, earlier, before, PassageStore(corpus), work / "changed")
    generations.refuse_given_up()
    mined = _negatives(settings, refresh, drawn_from, known, number, work / "negatives", concurrent) if drawn_from.rows else None
    generations.refuse_given_up()
    made = _renewed(settings, refresh, before, mined, stands, model, step, generations.examples(number))
    generations.close(number, _SERVING if pool.name else ())
    show("refresh_seconds", time.monotonic() - begun, output=generations.output.name)
    _say_made(made.summary, number, step, time.monotonic() - begun)
    if pool.name and joins_cluster():
        say(f"refresh {number}: the search pool {pool.name} answers from these weights, {work / 'retriever'}")


def _candidates(found: Artifact, earlier: Artifact | None, examples: str, store: PassageStore, output: Place) -> tuple[Artifact, Flags]:
    """The run that new negatives are drawn from, and which of the examples' negatives stand: none where there is no `earlier` run to compare with."""
    table = read_table(examples, "examples")
    if earlier is None:
        return found, np.zeros(len(Ragged.of_column(table["negatives"]).values), dtype=bool)
    return changed(found, earlier, output), standing(table, found, earlier, store)


def _say_made(summary: dict[str, Any], number: int, step: int, seconds: float) -> None:
    which = f"{summary['queries']:,} queries have new negatives of the weights after step {step:,}"
    say(f"refresh {number}: {which}, {summary['new']:.0%} of their negatives differ from before; {duration(seconds)}")
    say(f"refresh {number}: {summary['candidates']:,} candidates seen; removed: {listed(summary['removed'])}")


def _spread(settings: TrainSettings, concurrent: bool) -> dict[str, Any]:
    """The actors of a generation: of the kind of the workers and, while these train, as many as find a place next to them."""
    spread: dict[str, Any] = {"background": concurrent, "gpus_per_actor": settings.gpus_per_worker, "accelerator": settings.accelerator}
    most = refresh_actors(settings) if concurrent else 0
    return spread | ({"concurrency": (1, most)} if most else {})


def index_settings(refresh: RefreshSettings, output: Place | str, vectors: Artifact | str) -> IndexSettings:
    """How the index of a generation is made."""
    shape = {"kind": "faiss", "factory": refresh.factory, "shards": refresh.shards}
    # a task that claims all cores of a node would wait for a training that waits for its negatives
    spread = {"single_core": refresh.mode == "async"}
    return IndexSettings.read({"output": output, "embeddings": vectors, **shape, **spread})


def _found(pool: TrainingPool, refresh: RefreshSettings, dense: Artifact, asked: dict[str, Any], last: bool) -> Artifact:
    """The run of the queries; the pool is not needed for one that was finished before."""
    if read_manifest(asked["output"]):
        found = search(SearchSettings.read({**asked, "index": dense, "search_params": refresh.search_params}))
    else:
        name = pool.on(dense, 1 if asked["queries_on_cpu"] else 0, refresh.search_params)
        found = search(SearchSettings.read({**asked, "index": dense, "pool": name}))
    pool.close() if last else pool.rest()
    return found


def _retriever(settings: TrainSettings, start: str, generations: Generations, number: int, output: Place) -> Artifact:
    """The model folder of the weights that were handed over for a generation."""
    draft = Draft.open(output, "model", {"stage": "refresh"})
    if draft.done:
        return draft.done
    model = load_model(settings, start)
    model.load_state_dict({**model.state_dict(), **load_file(generations.weights(number))})
    retriever = next(part for part in model.modules() if isinstance(part, DualEncoder))
    draft.commit_tree(retriever.save)
    return draft.finish(0)


def _positives(settings: TrainSettings, refresh: RefreshSettings, examples: str, number: int, output: Place) -> Artifact:
    """Qrels of the passages that are never new negatives of the refreshed queries: positives of their examples and of `refresh.qrels`."""
    draft = Draft.open(output, "qrels", {"stage": "refresh", "generation": number})
    if draft.done:
        return draft.done
    store, table = PassageStore(settings.corpus), read_table(examples, "examples", ["query_id", "positives"])
    queries = pc.unique(table["query_id"])  # with all examples of each, whose positives are none of its negatives
    drawn = np.random.default_rng([settings.seed, number]).random(len(queries))
    table = table.filter(pc.is_in(table["query_id"], value_set=queries.filter(pa.array(drawn <= np.quantile(drawn, refresh.fraction)))))
    lists = Ragged.of_column(table["positives"])
    ids = table["query_id"].take(pa.array(lists.owner))
    known = pa.table({"query_id": ids, "passage_id": store.ids(lists.values)})
    if refresh.qrels:
        more = positives_of(read_table(refresh.qrels, "qrels"))
        known = pa.concat_tables([known, more.filter(pc.is_in(more["query_id"], value_set=table["query_id"])).select(known.column_names)])
    known = known.group_by(["query_id", "passage_id"], use_threads=False).aggregate([])
    commit_table(draft, "qrels.parquet", known.append_column("relevance", pa.array(np.ones(len(known), np.int32))))
    return draft.finish(known.num_rows, queries=len(pc.unique(known["query_id"])))


def _negatives(
    settings: TrainSettings, refresh: RefreshSettings, found: Artifact, known: Artifact, number: int, output: Place, concurrent: bool
) -> Artifact:
    """Examples with the new negatives; a query may have fewer than wanted."""
    common = {
        "output": output,
        "run": found,
        "corpus": settings.corpus,
        "queries": settings.queries,
        "qrels": known,
        "depth": refresh.depth,
        "negatives": refresh.negatives,
        "without_answers": refresh.without_answers,
        "seed": int(np.random.SeedSequence([settings.seed, number]).generate_state(1)[0]),
    }
    if refresh.reranker is None:
        return mine(MineSettings.read({**common, "skip": refresh.skip, **refresh.margins}))
    asked = {"model": refresh.reranker, "s_pos": 1.0, "s_neg": refresh.s_neg, **_spread(settings, concurrent)}
    return label(LabelSettings.read({**common, **asked}))


def _renewed(
    settings: TrainSettings,
    refresh: RefreshSettings,
    before: str,
    mined: Artifact | None,
    stands: Flags,
    model: Artifact,
    step: int,
    output: Place,
) -> Artifact:
    """The examples of the generation before; queries of `mined` get its negatives if there are enough of them."""
    inputs = {"examples": fingerprint_of(before), "model": model.fingerprint} | ({"negatives": mined.fingerprint} if mined else {})
    draft = Draft.open(output, "examples", {"stage": "refresh", "inputs": inputs})
    if draft.done:
        return draft.done
    old, store = read_table(before, "examples"), PassageStore(settings.corpus)
    new = concat_parts(mined.parts(".parquet") if mined else [], "examples")
    table, replaced = renewed(old, new, stands, store.text_hash, method_of(settings).draws(settings).negatives, refresh.negatives)
    commit_table(draft, "examples.parquet", table)
    summary = {"step": step, "queries": int(replaced.sum()), "new": share_new(old, table, replaced), **_counts(mined)}
    return draft.finish(len(table), **summary, model=model.fingerprint, corpus=store.fingerprint)


def _counts(mined: Artifact | None) -> dict[str, Any]:
    """The candidates that were seen, and how many were removed by each rule of `mine`, or by the re-ranker of `label`."""
    counts: dict[str, Any] = mined.summary if mined else {"candidates": 0, "removed": {}}
    if "removed" in counts:
        return {key: counts[key] for key in ("candidates", "removed")}
    seen = counts["candidates"]
    return {"candidates": sum(seen.values()), "removed": {why: count for why, count in seen.items() if why != "confident negatives"}}
