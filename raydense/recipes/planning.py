"""What the stages of a recipe will need, as far as that is known before they run.

Counts flow through the stages in order: what a folder holds stands in its manifest, and for one that is not there yet it
follows from the settings of the stage that will make it. Nothing is computed, no passage is read.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from raydense.data.settings import ImportSettings, SampleSettings
from raydense.evaluation.settings import EvaluateSettings
from raydense.inference.settings import EncodeSettings, GenerateSettings, RerankSettings, SplitSettings
from raydense.mining.settings import FilterSettings, LabelSettings, MineSettings
from raydense.retrieval.gpu import actor_bytes, check_gpu_index, copy_bytes
from raydense.retrieval.settings import IndexSettings, SearchSettings
from raydense.retrieval.sharding import with_shards
from raydense.runtime.progress import say, size
from raydense.settings import Settings, flat
from raydense.storage import Artifact, read_manifest
from raydense.training.loop_settings import LoopSettings
from raydense.training.method import method_of
from raydense.training.settings import TrainSettings

_ESTIMATES: dict[str, str] = {}  # of this process: the trials of a sweep, or seeds, are often alike


@dataclass(frozen=True)
class Count:
    """How many; `word` is "about" or "at most" where it is not exact."""

    number: int
    word: str = ""

    def __str__(self) -> str:
        return f"{self.word} {self.number:,}".lstrip()


Of = Callable[[str | None], Count | None]


def needs_of(stages: Iterable[Settings]) -> Iterator[str]:
    """What each stage will need, in words; empty where that depends on inputs that are yet to be made."""
    expected: dict[Path, Count] = {}

    def of(folder: str | None) -> Count | None:
        manifest = read_manifest(Path(folder)) if folder else None
        return _held(manifest) if manifest else expected.get(Path(folder)) if folder else None

    for settings in stages:
        yield _need(settings, of)
        expected |= {Path(folder): count for folder, count in _makes(settings, of).items() if count}


def _held(manifest: dict[str, Any]) -> Count:
    """Passages of a corpus, its embeddings or its index; queries of all else. A query has one row of qrels or of a run, or more."""
    if manifest["kind"] in ("qrels", "run"):
        return Count(manifest["summary"].get("queries", manifest["rows"]), "at most")
    return Count(manifest["rows"])


def _fewest(*counts: Count | None) -> Count | None:
    """At most the smallest of those that are known."""
    return Count(min(known), "at most") if (known := [count.number for count in counts if count]) else None


def _queries(settings: SearchSettings | MineSettings | LabelSettings | RerankSettings, of: Of) -> Count | None:
    """The queries that a stage takes."""
    match settings:
        case SearchSettings(qrels=None):
            return of(settings.queries)
        case SearchSettings():
            return _fewest(of(settings.queries), of(settings.qrels))
        case MineSettings():
            return _fewest(of(settings.run), of(settings.queries), of(settings.qrels))
    return _fewest(of(settings.run), of(settings.queries))


def _makes(settings: Settings, of: Of) -> dict[str, Count | None]:
    """What the folders of a stage's output will hold."""
    output = settings.output
    match settings:
        case SampleSettings(train_queries=train, dev_queries=dev, test_queries=test):
            splits = {f"{output}/qrels/{split}": Count(n) for split, n in (("train", train), ("dev", dev), ("test", test))}
            return {f"{output}/corpus": Count(settings.passages, "about"), f"{output}/queries": Count(train + dev + test), **splits}
        case EncodeSettings() | GenerateSettings() | FilterSettings() | IndexSettings(kind="bm25"):
            return {output: of(settings.corpus)}
        case IndexSettings():
            return {output: of(settings.embeddings)}
        case SearchSettings() | MineSettings() | LabelSettings() | RerankSettings():
            return {output: _fewest(_queries(settings, of))}
    return {}


def _need(settings: Settings, of: Of) -> str:
    match settings:
        case SampleSettings():
            made = _makes(settings, of)
            return f"{made[f'{settings.output}/corpus']} passages and {made[f'{settings.output}/queries']} queries to make"
        case ImportSettings():
            return "what it holds shows when it has run"
        case SplitSettings() if documents := of(settings.corpus):
            return f"{documents} documents to split"
        case EncodeSettings() if passages := of(settings.corpus):
            return f"{passages} passages to encode"
        case GenerateSettings() if passages := of(settings.corpus):
            return f"{passages} passages x {settings.queries_each} queries"
        case IndexSettings(kind="bm25") if passages := of(settings.corpus):
            return f"{passages} passages to count words of"
        case IndexSettings() if vectors := of(settings.embeddings):
            return f"{vectors} vectors{_index_size(settings)}"
        case SearchSettings() if queries := _queries(settings, of):
            return f"{queries} queries x {settings.k}{_on_gpus(settings)}"
        case FilterSettings() if passages := of(settings.generated):
            return f"the queries of {passages} passages x {settings.k}{_on_gpus(settings)}"
        case MineSettings() if queries := _queries(settings, of):
            return f"{queries} queries x {settings.negatives} negatives"
        case LoopSettings():
            return ", ".join(part for part in (_steps(settings, _examples(settings, of)), _worker(settings)) if part)
        case LabelSettings(model=None) if queries := _queries(settings, of):
            return f"{queries} queries to label"
        case LabelSettings() | RerankSettings() if queries := _queries(settings, of):
            return f"{queries} queries x {settings.depth} pairs to score"
        case EvaluateSettings() if queries := of(settings.qrels) or _fewest(of(settings.queries)):
            return f"{len(settings.run)} run(s) over {queries} queries"
    return ""


def _examples(settings: LoopSettings, of: Of) -> Count | None:
    """What a training's epoch is made of; what siblings a passage has, only the corpus shows."""
    if isinstance(settings, TrainSettings):
        found = [of(path) for path in (settings.examples, settings.more_examples) if path]
        return (
            Count(sum(one.number for one in found if one), next((one.word for one in found if one and one.word), ""))
            if all(found)
            else None
        )
    context = getattr(settings, "context", None)
    if context == "query":
        return _fewest(of(settings.corpus))  # some passages may have no query
    return of(settings.corpus) if context is None else None


def _steps(settings: LoopSettings, examples: Count | None) -> str:
    """The steps of a training, as its sampler counts them: an epoch leaves out its last, incomplete batch."""
    batch = settings.batch_size
    if examples and examples.number < batch:
        return f"{examples} examples, fewer than one batch of {batch:,}"
    if settings.max_steps:
        steps = Count(settings.max_steps)
    elif examples:
        steps = Count(max(1, int(settings.epochs * (examples.number // batch))), examples.word)
    else:
        return ""
    each = "queries" if isinstance(settings, TrainSettings) else "passages"
    return f"{steps} steps of {batch:,} {each}, {settings.workers} worker(s)"


def _worker(settings: LoopSettings) -> str:
    """The memory of a training's worker, where it is yet to run and its start models are there."""
    starts = [Path(folder) for folder in method_of(settings).starts_from(settings) if folder != "tiny"]
    if read_manifest(Path(settings.output)) or not all(folder.is_dir() for folder in starts):
        return ""
    shape = {key: value for key, value in flat(settings.model_dump(mode="json")).items() if _shapes_memory(settings, key)}
    alike = json.dumps([shape, [folder.stat().st_mtime_ns for folder in starts]])
    if alike not in _ESTIMATES:
        say(f"plan: estimates the memory of {Path(settings.output).name}, which takes some seconds")
        from raydense.training.memory import describe  # only here: importing torch takes seconds

        _ESTIMATES[alike] = describe(settings)
    return _ESTIMATES[alike]


def _shapes_memory(settings: LoopSettings, key: str) -> bool:
    return key not in ("output", "seed", "lr", "epochs", "max_steps") and settings.inputs().get(key, "model") == "model"


def _index_size(settings: IndexSettings) -> str:
    """The shards of an index, and its memory and disk where its vectors are there."""
    if read_manifest(Path(str(settings.embeddings))) is None:
        return f" over {settings.shards} shard(s)" if settings.shards else ""
    from raydense.retrieval.faiss_plan import plan_build  # only here: importing Ray and FAISS takes a second

    vectors, settings = Artifact.open(str(settings.embeddings), "embeddings"), with_shards(settings)
    plan = plan_build(settings.factory, int(vectors.summary["dimension"]), vectors.rows, settings.shards)
    task = f"{size(plan.task_bytes)} for each task that fills one"
    return f" over {settings.shards} shard(s), about {size(sum(plan.file_bytes))} of memory and as much disk, {task}"


def _on_gpus(settings: SearchSettings | FilterSettings) -> str:
    """The GPU memory of a search, where its index is there; InputError if that does not go to GPUs."""
    if not settings.gpu or not settings.index or read_manifest(Path(settings.index)) is None:
        return ""
    summary = Artifact.open(settings.index, "index").summary
    check_gpu_index(summary["factory"] or "BM25", settings.search_params)
    copies = [copy_bytes(summary, stop - start) for start, stop in summary["shards"]]
    needed = settings.replicas * sum(actor_bytes(copy, 1) for copy in copies)
    return f", about {size(needed)} of GPU memory in {settings.replicas * len(copies)} actors"
