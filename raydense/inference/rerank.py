"""A run reordered by a cross-encoder: blocks of queries, each scored by a model actor and committed as one file.

Passages below the depth follow those that were scored, in the order of the first run (`reordering.py` says with which scores).
"""

from __future__ import annotations

import time
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import ArrayLike, NDArray

from raydense.data.lookup import IdLookup
from raydense.data.runs import RunReader
from raydense.data.store import PassageStore, store_of
from raydense.data.tables import commit_table, concat_parts, one_array, query_starts
from raydense.errors import InputError
from raydense.inference.device import Device
from raydense.inference.known_ids import passage_rows, query_places, refuse_unknown_ids
from raydense.inference.layout import Layout
from raydense.inference.live_line import Meter
from raydense.inference.loading import model_of_stage
from raydense.inference.packing import pack, token_columns, tokens_of, unpack
from raydense.inference.pipeline import run_parts
from raydense.inference.precision import precision_of, refuse_fp16_on_cpus
from raydense.inference.reordering import reordered
from raydense.inference.settings import RerankSettings
from raydense.inference.tokenising import kept_tokenizer
from raydense.models.model_kind import require_model
from raydense.ranges import ranges
from raydense.runtime.progress import say
from raydense.storage import Artifact, Draft, model_place, provenance, read_manifest, releases_outputs

if TYPE_CHECKING:
    from raydense.models.tokenizer import PairTokenizer

_PAIR = ("query_id", "passage_id")


@releases_outputs
def rerank(settings: RerankSettings) -> Artifact:
    """Score the first `depth` passages of each query of a run; the run by score falling, then corpus row rising, ranks from 1.

    The passages below `depth` follow in the order of the first run; the i-th of n has the query's least score - i / n, so that the run stays
    sorted by score, and its recall is that of the first run. `scored_depth` says which scores are logits.
    Blocks of queries that an earlier run committed are kept. InputError if the model is not a re-ranker, the run names an unknown
    query or passage or is of another corpus, or the output was made from other settings or inputs, or begun in a precision that a device lacks.
    """
    made_from = provenance("rerank", settings)
    require_model(settings.model, scores=True)
    candidates = RunReader(settings.run)
    draft = Draft.open(settings.output, "run", made_from)
    if draft.done:
        return draft.done
    if any("kept" not in file.note for file in draft.committed().values()):
        raise InputError("was begun by version 0.1, which left out the passages below depth", settings.output, "delete it")
    PassageStore(settings.corpus).refuse_rows_of_another(Artifact.open(settings.run, "run"))
    refuse_fp16_on_cpus(settings)
    loss = loss_of(settings.model)
    blocks = candidates.blocks(settings.block, settings.depth)
    there = draft.committed()
    pending = [b for b in blocks if _name(b["block"]) not in there]
    if pending:
        refuse_unknown_ids(settings, pending, made_from["inputs"])
        _score_blocks(settings, draft, pending, sum(b["pairs"] for b in blocks), made_from["inputs"])
    files = draft.committed().values()
    notes, rows = [file.note for file in files], sum(file.rows for file in files)
    tokens, padded = (sum(n[key] for n in notes) for key in ("tokens", "padded"))
    return draft.finish(
        rows,
        queries=sum(b["queries"] for b in blocks),
        depth=settings.depth,
        model=made_from["inputs"]["model"],
        loss=loss,
        precision=precision_of(files, draft),
        corpus=made_from["inputs"]["corpus"],
        kept=sum(n["kept"] for n in notes),
        tokens=tokens,
        padding_share=round(1 - tokens / padded, 4) if padded else 0.0,
        seconds=round(sum(n["seconds"] for n in notes), 2),
    )


def loss_of(model: str) -> str | None:
    """The loss that a re-ranker, in a folder, in a bucket or on the Hub, was trained with, if raydense trained it; None for a frozen teacher."""
    settings = ((read_manifest(model_place(model)) or {}).get("made_from") or {}).get("settings") or {}
    return None if settings.get("teacher") == "static" else settings.get("loss")


def warn_of_loss(stage: str, model: str, loss: str | None) -> None:
    """Warn, for a stage that reads scores as probabilities, of a `model` (in words) trained listwise.

    That loss does not change if all scores of a query shift, so its scores are not probabilities.
    """
    if loss == "listwise":
        say(f"{stage}: {model} was trained with loss listwise: its scores order passages and are no probabilities; pointwise makes them so")


def refuse_unscored(run: str, fix: str) -> None:
    """InputError, with this `fix`, unless `rerank` made the run: other scores are no logits."""
    if Artifact.open(run, "run").manifest["made_from"].get("stage") != "rerank":
        raise InputError("has no scores of a re-ranker", run, fix)


def probability(score: ArrayLike) -> NDArray[np.float64]:
    """The sigmoid of a re-ranker's scores, of any shape, in float64: the probability that the pointwise loss trains."""
    return 0.5 * (1 + np.tanh(np.asarray(score, dtype=np.float64) / 2))  # a form that never overflows


def _score_blocks(settings: RerankSettings, draft: Draft, pending: list[dict[str, int]], pairs: int, prints: dict[str, str]) -> None:
    there = list(draft.committed().values())
    actor = partial(BlockScorer, begun=precision_of(there, draft))
    sizes = [block["pairs"] for block in pending]
    run_parts(settings, draft, "pairs", pending, sizes, pairs, tokenise_block, actor, prints=prints)


@lru_cache(maxsize=1)
def _reader(path: str, fingerprint: str) -> RunReader:
    """The run, kept open by a worker process: to open it reads the end of each of its files."""
    return RunReader(path, fingerprint)


def tokenise_block(table: pa.Table, settings: RerankSettings, draft: Draft, prints: dict[str, str]) -> pa.Table:
    """The tokens of the pairs of the block that `table` names, with their ids and corpus rows, and the ids below `depth`, packed into one row."""
    block = {name: table[name][0].as_py() for name in ("block", "start", "stop")}
    every = _reader(settings.run, prints["run"]).read(block["start"], block["stop"])
    first = pc.less_equal(every["rank"], settings.depth)
    found, below = every.filter(first).combine_chunks(), every.filter(pc.invert(first))
    texts = _queries(settings.queries, prints["queries"]).texts(found["query_id"], settings.run)
    store = store_of(settings.corpus, prints["corpus"])
    rows = passage_rows(store, found["passage_id"], settings.run)
    tokens = kept_tokenizer(_load_tokenizer, settings.model, prints["model"]).pairs(texts, store.passages(rows))
    ids = {name: found[name].combine_chunks() for name in _PAIR}
    kept = {f"kept_{name}": below[name].combine_chunks() for name in _PAIR}
    return pack({"block": [block["block"]], **ids, **kept, "row": rows, **token_columns(tokens)})


class _Queries:
    """The texts of queries by id, whose ids are hashed once, not for each block."""

    def __init__(self, table: pa.Table) -> None:
        self._ids, self._texts = IdLookup(table["query_id"]), one_array(table["text"])

    def texts(self, ids: pa.ChunkedArray, where: str) -> list[str]:
        """The text of each query; InputError that names the first unknown one and `where` it is."""
        found: list[str] = self._texts.take(pa.array(query_places(self._ids, ids, where))).to_pylist()
        return found


@lru_cache(maxsize=1)
def _queries(folder: str, print_: str) -> _Queries:
    """The queries, kept open by a worker process; InputError if they do not have the fingerprint `print_`."""
    return _Queries(concat_parts(Artifact.open(folder, "queries", print_).parts(".parquet"), "queries", ["query_id", "text"]))


def _load_tokenizer(folder: str) -> PairTokenizer:
    from raydense.models.cross_encoder import load_pair_tokenizer

    return load_pair_tokenizer(folder)


class BlockScorer:
    """A model actor: takes the pairs of a block, commits its part of the run, and returns the record of the commit."""

    def __init__(self, settings: RerankSettings, draft: Draft, prints: dict[str, str], layout: Layout, begun: str | None) -> None:
        self._draft, self._model = draft, settings.model
        self._device = Device(layout, settings.token_budget, settings.precision, begun, cpu_bf16=True)
        self._loading = model_of_stage(self._device, draft, begun, settings.model, prints["model"], self._load)

    def _load(self) -> Any:
        from raydense.models.cross_encoder import CrossEncoder

        return self._device.place(CrossEncoder.load(self._model))

    def __call__(self, table: pa.Table) -> pa.Table:
        """Score and commit one block as `tokenise_block` packed it."""
        model = self._loading.result()
        columns = unpack(table)
        name, tokens = _name(columns["block"][0].as_py()), tokens_of(columns)
        begun = time.perf_counter()
        meter = Meter(self._draft, name)
        scores, padded = self._device.run(tokens, model.tokenizer.pad_id, model, meter.count)
        taken = {"precision": self._device.precision, "seconds": round(time.perf_counter() - begun, 3)}
        below = len(columns["kept_query_id"])
        note = {"tokens": len(tokens.ids), "padded": padded, **taken, "kept": below}
        query_ids = pa.concat_arrays([columns["query_id"], columns["kept_query_id"]])
        passage_ids = pa.concat_arrays([columns["passage_id"], columns["kept_passage_id"]])
        rows, scores = np.append(columns["row"].to_numpy(), np.full(below, -1)), np.append(scores, np.full(below, np.nan, np.float32))
        commit_table(self._draft, name, ordered(query_ids, passage_ids, rows, scores), **note)
        return pa.Table.from_pylist([note])


def ordered(query_ids: pa.Array, passage_ids: pa.Array, rows: NDArray[np.int64], scores: NDArray[np.float32]) -> pa.Table:
    """A run of these pairs: queries in their order, each one's passages by score falling, then row rising, ranked from 1.

    Pairs whose score is NaN come below the others of their query, as `reordered` says.
    """
    order, scores = reordered(pc.dictionary_encode(query_ids).indices.to_numpy().astype(np.int64), rows, scores)
    take = pa.array(order)
    query_ids = query_ids.take(take)
    starts = query_starts(pa.chunked_array([query_ids]))
    return pa.table(
        {
            "query_id": query_ids,
            "passage_id": passage_ids.take(take),
            "rank": pa.array(ranges(np.ones_like(starts[1:]), np.diff(starts)), pa.int32()),
            "score": pa.array(scores, pa.float32()),
        }
    )


def _name(block: int) -> str:
    return f"run-{block:05d}.parquet"
