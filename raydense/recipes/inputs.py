"""What is wrong with the inputs of a recipe's stages, as far as can be seen before they run."""

from __future__ import annotations

import os
from pathlib import Path

from raydense.construction.settings import OverlapSettings
from raydense.data.formats import call, defines
from raydense.data.settings import ImportSettings, MixSettings, SampleSettings
from raydense.data.splits import SHARES
from raydense.errors import InputError
from raydense.inference.expand_settings import ExpandSettings
from raydense.mining.settings import Shortage
from raydense.recipes.stage import VERBS, Stage
from raydense.settings import Settings
from raydense.storage import Artifact, Place, model_place, named, read_manifest
from raydense.training.loop_settings import LoopSettings
from raydense.training.method import method_of
from raydense.training.settings import TrainSettings

# What the models that a verb runs may be, as `Method.models` has it; every model will do for the others, such as one to start from.
_ENCODES, _SCORES, _WRITES = ("retriever", "encoder"), ("re-ranker",), ("generator",)
_RUNS: dict[tuple[str, str], tuple[str, ...]] = {
    ("encode", "model"): _ENCODES,
    ("search", "model"): _ENCODES,
    ("filter", "model"): _ENCODES,
    ("overlap", "encoder"): _ENCODES,
    ("rerank", "model"): _SCORES,
    ("label", "model"): _SCORES,
    ("annotate", "model"): _SCORES,
    ("train", "refresh.reranker"): _SCORES,
    ("overlap", "model"): _ENCODES + _SCORES,
    ("generate", "model"): _WRITES,
    ("expand", "model"): _WRITES,
}
_MODEL_FILES = {"config.json", "modules.json", "raydense.json", "query_encoder", "retriever"}  # the last two are folders of two models
_SAMPLE = {"corpus", "queries", "qrels/train", "qrels/dev", "qrels/test"}


def absolute_inputs(settings: Settings) -> Settings:
    """A copy of the settings of a stage, the paths of its inputs made absolute from the folder that we are in."""

    def absolute(key: str, kind: str, path: str) -> str:
        return Place.of(path).located if path and settings.is_path(key, path) else path

    return settings.with_inputs(absolute)


def wrong_input(stage: Stage, earlier: list[Stage]) -> str:
    """The first fault of a stage's inputs, else the empty string.

    An input that no earlier stage makes is not there, one is of another kind, a model is trained for something else, or examples lack what
    the method learns from, or as many negatives as it takes.
    """
    for key, kind, _, path in stage.settings.given_inputs():
        if (kind == "model" and path == "tiny") or (kind == "source" and not stage.settings.is_path(key, path)):
            continue
        fault = _fault(path, kind, earlier, curves=(stage.verb, key) == ("evaluate", "models"))
        fault = fault or _other_model(path, _RUNS.get((stage.verb, key), ()), earlier)
        if fault:
            fix = f"; give another by --set {stage.given[key]}=PATH" if key in stage.given else _forgotten(path, earlier)
            return f"{key}: {fault}{fix}"
    try:
        if isinstance(stage.settings, LoopSettings):
            method_of(stage.settings).check_examples(stage.settings)
    except InputError as error:
        return f"examples: {error}"
    return _fewer_negatives(stage.settings, earlier) if isinstance(stage.settings, TrainSettings) else ""


def _fault(path: str, kind: str, earlier: list[Stage], curves: bool) -> str:
    """What is wrong with one input; of a model of which only the `curves` are read, both that were trained together count as one."""
    producer = _producer(path, earlier)
    if producer is None or read_manifest(producer.settings.output) is not None:
        return _not_there(path, kind)
    part, makes = below(path, producer.settings.output) or "", _makes(producer)
    if not part and makes and makes not in kind.split(" or ") and not (curves and makes == "joint"):
        of = f"; name one of its parts, as ${producer.name}/{kind.split(' or ')[-1]}" if makes == "dataset" else ""
        return f"${producer.name} is {makes}, not {kind}{of}"
    if makes == "dataset" and part and part.split("/")[0] not in kind.split(" or "):
        return f"${producer.name}/{part} is {part.split('/')[0]}, not {kind}"
    folder = part.split("/")[0] if isinstance(producer.settings, LoopSettings) else part  # a model has folders of its own
    if folder and (parts := _parts(producer.settings)) and folder not in parts:
        return f"${producer.name} has no {part}; it has {', '.join(sorted(parts))}"
    return ""


def _other_model(path: str, wanted: tuple[str, ...], earlier: list[Stage]) -> str:
    """What is wrong with a model that an earlier stage trains, or has trained, where one of the `wanted` is run; () for any."""
    producer = _producer(path, earlier)
    if not wanted or producer is None or not isinstance(producer.settings, LoopSettings):
        return ""
    part = below(path, producer.settings.output) or ""
    made = method_of(producer.settings).models.get(part)
    if made is None or made in wanted:
        return ""
    return f"${producer.name}{'/' if part else ''}{part} is {made}, not {' or '.join(wanted)}"


def _fewer_negatives(settings: TrainSettings, earlier: list[Stage]) -> str:
    """What is wrong with examples that an earlier stage will make, if it is to keep queries with fewer negatives than the training takes."""
    takes = method_of(settings).draws(settings).negatives
    for path in (settings.examples, settings.more_examples):
        for maker in _examples_from(path, earlier) if path else ():
            made = maker.settings
            assert isinstance(made, Shortage)
            has = made.negatives if made.shortage == "keep" else made.enough
            if has < takes:
                key = "negatives" if has == made.negatives else "min_negatives"
                return f"negatives: takes {takes} of each query, and ${maker.name} has {key} {has}: give it {takes}, or take fewer"
    return ""


def _examples_from(path: str, earlier: list[Stage]) -> list[Stage]:
    """The stages, not run yet, that choose the negatives of these examples, also of those that are mixed."""
    producer = _producer(path, earlier)
    if producer is None or read_manifest(producer.settings.output) is not None:
        return []
    if isinstance(producer.settings, MixSettings):
        return [one for item in producer.settings.examples for one in _examples_from(named(item)[1], earlier)]
    return [producer] if isinstance(producer.settings, Shortage) else []


def _producer(path: str, earlier: list[Stage]) -> Stage | None:
    return next((one for one in earlier if below(path, one.settings.output) is not None), None)


def _parts(settings: Settings) -> set[str]:
    """The parts of a data set or of a joint training that a stage will make, as far as that is known before it runs."""
    if isinstance(settings, LoopSettings):
        models = set(method_of(settings).models)
        return set() if "" in models else models
    if isinstance(settings, SampleSettings):
        return _SAMPLE | ({"qrels/unjudged"} if settings.unjudged else set())
    if isinstance(settings, ExpandSettings):
        return {f"queries/{kind}" for kind in settings.kinds}
    if isinstance(settings, OverlapSettings):
        return set(settings.parts)
    if isinstance(settings, MixSettings):
        given = {"qrels": settings.qrels, "run": settings.run, "corpus": settings.corpus[1:]}
        return {"queries", "examples", *(part for part, folders in given.items() if folders)}
    return _imported(settings) if isinstance(settings, ImportSettings) else set()


def _imported(settings: ImportSettings) -> set[str]:
    """The parts of an import of a folder whose format tells them; none of a folder that the import will refuse."""
    tells = next((function for function in ("files", "parts") if defines(settings.format, function)), None)
    if tells is None or not Path(settings.input).is_dir():
        return set()
    try:
        parts = set(call(settings.format, tells, Path(settings.input)))
    except InputError:
        return set()
    drawn = {f"qrels/{split}" for split in SHARES} if settings.fill_splits else set()
    return parts | drawn | ({"qrels/hidden"} if settings.hidden else set())


def _makes(stage: Stage) -> str:
    return method_of(stage.settings).artifact if isinstance(stage.settings, LoopSettings) else VERBS[stage.verb].makes


def _forgotten(path: str, earlier: list[Stage]) -> str:
    """What to say of a path that begins with the name of a stage, where it is not the stage's output."""
    of_stage = not os.path.isabs(path) and Path(path).parts[0] in {stage.name for stage in earlier} and _producer(path, earlier) is None
    return f"; the output of a stage is written ${path}" if of_stage else ""


def _not_there(path: str, kind: str) -> str:
    """The fault of an input that is there or will never be."""
    fault = ""
    try:
        if kind in ("model", "source"):
            place = model_place(path) if kind == "model" else Place.of(path)
            fault = "" if place.exists() else f"{path}: no such file or folder"
            if kind == "model" and not fault and not _MODEL_FILES & set(place.entries()):
                fault = f"{path}: no config.json; give a model folder of Hugging Face or sentence-transformers"
        else:
            Artifact.open(path, kind)
    except InputError as error:
        fault = str(error)
    return fault


def below(path: str, folder: str) -> str | None:
    """What of a path stands below a folder; None where it lies elsewhere."""
    there, around = os.path.normpath(Place.of(path).located), os.path.normpath(Place.of(folder).located)
    return "" if there == around else there[len(around) + 1 :] if there.startswith(f"{around}{os.sep}") else None
