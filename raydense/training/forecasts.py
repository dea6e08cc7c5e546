"""What a training will need, from its settings and the sizes of what it reads."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from raydense.forecast import PASSAGE_CHARACTERS, QUERY_CHARACTERS, Forecast, Holds, Known, Model, fewest, part_of, tokens, total
from raydense.models.model_size import model_of
from raydense.runtime.progress import say
from raydense.settings import flat
from raydense.storage import read_manifest
from raydense.training.loop_settings import LoopSettings
from raydense.training.method import dev_interval, method_of
from raydense.training.piece_count import accumulates, pieces_of, texts_of
from raydense.training.settings import TrainSettings, dev_of, refresh_of

_ESTIMATES: dict[str, tuple[str, int]] = {}  # of this process: the trials of a sweep, or seeds, are often alike
_BACKWARD = 3.0  # forward and backward, in forward passes


def training_forecast(settings: LoopSettings, known: Known) -> Forecast:
    """The time grows with the tokens of all steps, of what is measured meanwhile, and of the corpus at each refresh."""
    examples, starts = _examples(settings, known), [model_of(known, folder) for folder in method_of(settings).starts_from(settings)]
    start = starts[0]
    steps = _steps(settings, examples)
    memory, memory_bytes = _worker(settings)
    made = Model(0, "about", start.each, start.bytes, flops=start.flops, **_lengths(settings, start)) if start else None
    needs = ", ".join(part for part in (_said(settings, steps, examples), memory) if part)
    makes: dict[str, Holds] = {settings.output: made} if made else {}
    if made and method_of(settings).artifact == "joint":
        makes |= {part_of(settings.output, part): replace(made, bytes=0.0) for part in ("retriever", "reranker")}
    if steps is None or made is None:
        return Forecast(needs, makes)
    models = [made, *(replace(other, passage_length=_lengths(settings, other)["passage_length"]) for other in starts[1:] if other)]
    work = {"flops": _flops(settings, steps, examples, models, known), "steps": float(steps.rows)}
    if times := _refreshes(settings, steps, examples):
        work["refreshes"] = float(times)  # each starts workers
    return Forecast(needs, makes, f"train {made.scale}", work, memory_bytes, settings.workers if settings.gpus_per_worker else 0)


def _lengths(settings: LoopSettings, start: Model) -> dict[str, int]:
    pair = getattr(settings, "pair_length", None)
    return {name: int(getattr(settings, name, None) or pair or getattr(start, name)) for name in ("query_length", "passage_length")}


def _flops(settings: LoopSettings, steps: Holds, examples: Holds | None, models: list[Model], known: Known) -> float:
    """The floating-point operations of all steps, the measurements and the refreshes; pairs are read by the last of `models`."""
    corpus, queries = known.of(settings.corpus), known.of(getattr(settings, "queries", None))
    model, scorer = models[0], models[-1]
    passage = model.flops * tokens(corpus.each if corpus else PASSAGE_CHARACTERS, model.passage_length)
    query = model.flops * tokens(queries.each if queries else QUERY_CHARACTERS, model.query_length)
    both = (corpus.each if corpus else PASSAGE_CHARACTERS) + QUERY_CHARACTERS
    each = {"queries": query, "pairs": scorer.flops * tokens(both, scorer.passage_length)}
    method, learned = method_of(settings), _BACKWARD + _again(settings)
    runs = dict.fromkeys(method.without_gradient(settings), 1.0)
    texts = texts_of(settings).items()
    part = (
        sum(count * each.get(kind, passage) * runs.get(kind, learned) for kind, count in texts) * settings.workers * settings.accumulation
    )
    once = _measured(settings, steps, {**each, "passages": passage}) + _renewed(settings, steps, examples, passage, both, known)
    return steps.rows * part + once


def _again(settings: LoopSettings) -> float:
    """The forward passes of a step that are made again: by gradient caching, for which `micro_batch: auto` may find no need, and in the backward pass."""
    caches = settings.micro_batch != "auto" and pieces_of(settings) > 1 and not accumulates(settings)
    return float(caches) + float(settings.activation_checkpointing)


def _measured(settings: LoopSettings, steps: Holds, each: Mapping[str, float]) -> float:
    """What it takes to encode the passages that dev queries are searched in, and to score the pairs of a re-ranker, of all measurements."""
    dev = dev_of(settings)
    if not dev:
        return 0.0
    method, kinds = method_of(settings), {"passages", "pairs"} if dev.run else {"passages"}
    measured = (kinds & texts_of(settings).keys()) - method.without_gradient(settings)
    times = 1 + math.ceil(steps.rows / dev_interval(settings, int(steps.rows)))  # before the first step, too, and after the last
    return times * dev.passages * sum(each[kind] for kind in measured)


def _renewed(settings: LoopSettings, steps: Holds, examples: Holds | None, passage: float, both: float, known: Known) -> float:
    """What it takes to encode the corpus at each refresh, and to score the candidates of its queries where a re-ranker denoises them."""
    refresh, corpus = refresh_of(settings), known.of(settings.corpus)
    if not (refresh and corpus):
        return 0.0
    queries = examples.rows if examples else 0
    denoises = model_of(known, refresh.reranker) if refresh.reranker else None
    pairs = refresh.fraction * queries * refresh.depth * denoises.flops * tokens(both, denoises.passage_length) if denoises else 0.0
    return _refreshes(settings, steps, examples) * (corpus.rows * passage + pairs)


def _refreshes(settings: LoopSettings, steps: Holds, examples: Holds | None) -> int:
    """How often the negatives are renewed: `Generations.last`, in which the first boundary is after `every` steps or epochs."""
    refresh = refresh_of(settings)
    if refresh is None:
        return 0
    epoch = max(1, examples.rows // settings.batch_size) if examples else 1
    every = max(1, round(refresh.every * (epoch if refresh.unit == "epochs" else 1)))
    return max(0, (steps.rows - 1) // every - int(refresh.mode == "async"))


def _examples(settings: LoopSettings, known: Known) -> Holds | None:
    """What a training's epoch is made of; what siblings a passage has, only the corpus shows."""
    if isinstance(settings, TrainSettings):
        found = [known.of(path) for path in (settings.examples, settings.more_examples) if path]
        return total(one and replace(one, rows=one.drawn or one.rows) for one in found)
    context = getattr(settings, "context", None)
    if context == "query":
        return fewest(known.of(settings.corpus))  # some passages may have no query
    return known.of(settings.corpus) if context is None else None


def _steps(settings: LoopSettings, examples: Holds | None) -> Holds | None:
    """The steps of a training, as its sampler counts them: an epoch leaves out its last, incomplete batch; None where unknown."""
    batch = settings.batch_size
    if examples and examples.rows < batch:
        return None
    if settings.max_steps:
        return Holds(settings.max_steps)
    return Holds(max(1, int(settings.epochs * (examples.rows // batch))), examples.word) if examples else None


def _said(settings: LoopSettings, steps: Holds | None, examples: Holds | None) -> str:
    if examples and examples.rows < settings.batch_size:
        return f"{examples} examples, fewer than one batch of {settings.batch_size:,}"
    each = "queries" if isinstance(settings, TrainSettings) else "passages"
    return f"{steps} steps of {settings.batch_size:,} {each}, {settings.workers} worker(s)" if steps else ""


def _worker(settings: LoopSettings) -> tuple[str, int]:
    """The memory of a training's worker in words and bytes, where it is yet to run and its start models are there."""
    starts = [Path(folder) for folder in method_of(settings).starts_from(settings) if folder != "tiny"]
    if read_manifest(Path(settings.output)) or not all(folder.is_dir() for folder in starts):
        return "", 0
    shape = {key: value for key, value in flat(settings.model_dump(mode="json")).items() if _shapes_memory(settings, key)}
    alike = json.dumps([shape, [folder.stat().st_mtime_ns for folder in starts]])
    if alike not in _ESTIMATES:
        say(f"plan: estimates the memory of {Path(settings.output).name}, which takes some seconds")
        from raydense.training.memory import describe  # only here: importing torch takes seconds

        _ESTIMATES[alike] = describe(settings)
    return _ESTIMATES[alike]


def _shapes_memory(settings: LoopSettings, key: str) -> bool:
    return key not in ("output", "seed", "lr", "epochs", "max_steps") and settings.inputs().get(key, "model") == "model"
