"""A recipe is stages in order; this reads one, says what is done and what is left (`plan`), and runs it (`run`).

seed: 42                      # the seed of every stage that has one and does not give its own
defaults:                     # and so each of these settings
  queries: $data/queries
stages:
  data:                       # a stage's name, and the name of its folder in the output
    do: sample                # its verb
    passages: 5000            # its settings; $data names the folder of an earlier stage
  words:
    do: index
    kind: bm25
    corpus: $data/corpus
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from raydense.errors import Faults, InputError
from raydense.recipes.building import Builder
from raydense.recipes.content import recipe_content
from raydense.recipes.inputs import wrong_input
from raydense.recipes.planning import Measured, Prices, estimate_of, forecasts_of
from raydense.recipes.rates import Rates, stored_rates
from raydense.recipes.stage import Stage
from raydense.recipes.unfinished import left, progress
from raydense.runtime.progress import duration, say
from raydense.storage import (
    Artifact,
    Place,
    begun_from,
    damaged_file,
    differences,
    provenance_of,
    read_manifest,
    refuse_inside,
)

_TOOK = "seconds.json"
_TRAININGS = ("train", "pretrain")  # a lost file costs a whole training: that is not begun unasked


@dataclass(frozen=True)
class Recipe:
    """Stages in order, with the folder that holds their outputs."""

    description: str
    output: Place
    stages: tuple[Stage, ...]

    @classmethod
    def read(cls, file: str | os.PathLike[str], output: str | os.PathLike[str], changes: tuple[str, ...] = ()) -> Recipe:
        """The recipe in a YAML file, with `changes` as `stage.key=value`, `given=value` or `seed=value`.

        InputError, or InputErrors where there are several faults, that name the file and the key.
        """
        faults = Faults()
        return cls.build(recipe_content(file, changes, faults), output, str(file), faults=faults)

    @classmethod
    def build(
        cls,
        content: dict[str, Any],
        output: str | os.PathLike[str],
        file: str,
        shared: Place | None = None,
        faults: Faults | None = None,
    ) -> Recipe:
        """The recipe of `content`; `file` is named in `faults`, which are raised with those that it has already.

        Each stage has a folder of its name in `output`, or, where `shared` is given, in a folder of that one which is named by
        all that shapes the stage: recipes that build it from the same share it.
        """
        faults = faults or Faults()
        stages = Builder(content, Place.of(output), file, shared, faults).stages()
        faults.refuse()
        return cls(str(content.get("description", "")).strip(), Place.of(output), stages)


def state(stage: Stage) -> tuple[str, str]:
    """`done`, `changed`, `begun`, `ready`, `waits` or `wrong`, with a few words on it; looks at folders and computes nothing."""
    try:
        refuse_inside(stage.settings)
    except InputError as error:
        return "wrong", str(error)
    folder = Place.of(stage.settings.output)
    manifest = read_manifest(folder)
    begun = None if manifest else begun_from(folder)
    there = manifest["made_from"] if manifest else begun or {}
    try:
        _refuse_unmade(stage)
        made_from = json.loads(json.dumps(provenance_of(there, stage.verb, stage.settings)))
    except InputError as error:
        return ("changed", "its inputs are gone: " + str(error)) if manifest else ("waits", f"for {', '.join(stage.needs) or error}")
    if manifest:
        return _state_of_made(stage, manifest, made_from)
    return ("ready", "") if begun is None else _state_of_begun(stage, begun, made_from)


def _state_of_made(stage: Stage, manifest: dict[str, Any], made_from: dict[str, Any]) -> tuple[str, str]:
    """The `state` of a stage whose output is finished; `made_from` is what it would be made from now."""
    there, gone = manifest["made_from"], _gone_source(stage)
    if gone:  # what was made of it is here: it need not be
        made_from["inputs"] |= {key: there["inputs"].get(key) for key, path in _sources(stage) if path == gone}
    if other := differences(there, made_from):
        return "changed", f"made from something else ({other}); {_remedy(stage, there, made_from, gone)}"
    if stage.verb not in _TRAININGS and (damaged := damaged_file(Place.of(stage.settings.output))):
        return "begun", f"as {damaged} is missing or damaged"
    words = (f"{manifest['rows']:,} rows" if manifest["rows"] else "", f"its source {gone} is gone" if gone else "")
    return "done", "; ".join(word for word in words if word)


def _state_of_begun(stage: Stage, begun: dict[str, Any], made_from: dict[str, Any]) -> tuple[str, str]:
    """The `state` of a stage whose output was begun from `begun`; `made_from` is what it would be made from now."""
    if gone := _gone_source(stage):
        return "changed", f"begun, and its source {gone} is gone: put it back to go on"
    if other := differences(begun, made_from):
        return "changed", f"begun from something else ({other}); delete {Place.of(stage.settings.output)} to start over"
    return "begun", progress(stage)


def _sources(stage: Stage) -> Iterator[tuple[str, str]]:
    """The files from elsewhere that a stage reads as a whole, with their keys; not those of a list."""
    for key, kind, name, path in stage.settings.given_inputs():
        if kind == "source" and not name and stage.settings.is_path(key, path):
            yield key, path


def _gone_source(stage: Stage) -> str:
    """The source that is not there, else the empty string."""
    return next((path for _, path in _sources(stage) if not Place.of(path).exists()), "")


def _remedy(stage: Stage, there: dict[str, Any], here: dict[str, Any], gone: str) -> str:
    """What to do about an output that was made from something else: without its source it cannot be made again."""
    if gone:
        return f"its source {gone} is gone: give what it was made with"
    again = f"delete {stage.settings.output} to make it again"
    changed = next((path for key, path in _sources(stage) if there["inputs"].get(key) != here["inputs"][key]), "")
    return f"{changed} has other files than before: take back what was added or changed, or {again}" if changed else again


def _refuse_unmade(stage: Stage) -> None:
    """InputError where an earlier stage has not made what this one reads, whose folder may look like the name of a model on the Hub."""
    for folder in stage.folders:
        if read_manifest(folder) is None:
            raise InputError("is not finished", folder, "run the stage that makes it")


def open_stages(recipe: Recipe) -> list[Stage]:
    """The stages that are not done; InputError where a folder holds something made from something else."""
    states = {stage.name: state(stage) for stage in recipe.stages}
    done = {name for name, (status, _) in states.items() if status == "done"}
    for stage in recipe.stages:
        status, words = states[stage.name]
        if _stops(stage, status, done):
            raise _refused(recipe, stage, words)
    return [stage for stage in recipe.stages if stage.name not in done]


def _stops(stage: Stage, status: str, done: set[str]) -> bool:
    """Whether a run ends at a stage before it begins the first.

    A changed stage whose inputs are yet to be made is checked when they are: made again, they may be what they were.
    """
    return status == "wrong" or (status == "changed" and done.issuperset(stage.needs))


def _refused(recipe: Recipe, stage: Stage, words: str) -> InputError:
    """The error of a stage whose folder holds something made from something else: it names what was made from it, which is to go, too."""
    made = [one.settings.output for one in _dependants(recipe, stage) if _is_there(one)]
    also = f"; with it what was made from it: {', '.join(made)}" if made else ""
    return InputError(words + also, stage.where, "or give another --output")


def _dependants(recipe: Recipe, stage: Stage) -> list[Stage]:
    """The stages that read what this one makes, and those that read what they make."""
    found: dict[str, Stage] = {}
    for one in recipe.stages:
        if any(need == stage.name or need in found for need in one.needs):
            found[one.name] = one
    return list(found.values())


def _is_there(stage: Stage) -> bool:
    return read_manifest(stage.settings.output) is not None or begun_from(Place.of(stage.settings.output)) is not None


def refuse_wrong(recipe: Recipe) -> None:
    """InputError, or InputErrors, where stages have inputs that are not there and will not be made, or are of another kind."""
    faults = Faults()
    for stage, (status, words) in zip(recipe.stages, _judged(recipe), strict=True):
        if status == "wrong":
            faults.add(words, stage.where, "")
    faults.refuse()


def _judged(recipe: Recipe) -> Iterator[tuple[str, str]]:
    """The `state` of each stage, or `wrong` with the fault of an input that no stage will make good."""
    for place, stage in enumerate(recipe.stages):
        status, words = state(stage)
        fault = wrong_input(stage, list(recipe.stages[:place])) if status in ("ready", "waits") else ""
        yield ("wrong", fault) if fault else (status, words)


def _with_changed_inputs(recipe: Recipe, judged: list[tuple[str, str]]) -> list[tuple[str, str]]:
    """The same, where what is done is `changed` if something that it was made from is: a run would make it again."""
    changed: set[str] = set()
    found = []
    for stage, (status, words) in zip(recipe.stages, judged, strict=True):
        from_ = next((need for need in stage.needs if need in changed), "")
        if status == "done" and from_:
            status, words = "changed", f"made from {from_}, which may change"
        if status == "changed":
            changed.add(stage.name)
        found.append((status, words))
    return found


def plan(recipe: Recipe, measured: Measured | None = None, prices: Prices | None = None) -> list[dict[str, Any]]:
    """A row per stage: name, verb, state, whether a run stops there, words on it, what it will need, and the seconds that it took so far.

    `estimate` has the figures of a stage that is not done, by the stored rates unless others were measured; see `estimate_of`.
    """
    measured = measured or Measured(Rates(stored_rates()))
    took, judged = _seconds(recipe.output), _with_changed_inputs(recipe, list(_judged(recipe)))
    done = {stage.name for stage, (status, _) in zip(recipe.stages, judged, strict=True) if status == "done"}
    rows = []
    settings, names = [stage.settings for stage in recipe.stages], [stage.name for stage in recipe.stages]
    foreseen = forecasts_of(settings, names, measured.corrections)
    for stage, (status, words), forecast in zip(recipe.stages, judged, foreseen, strict=True):
        row: dict[str, Any] = {
            "stage": stage.name,
            "verb": stage.verb,
            "state": status,
            "stops": _stops(stage, status, done),
            "note": words,
        }
        row |= {"needs": "" if status == "done" else forecast.needs, "seconds": took.get(stage.name)}
        forecast = left(stage, forecast) if status == "begun" else forecast
        rows.append(row | {"estimate": {} if status == "done" else estimate_of(forecast, measured.rates, stage.name, prices or Prices())})
    return rows


def run(recipe: Recipe) -> Iterator[tuple[Stage, Any, float]]:
    """Run the stages in order, yielding each with its artifact and its seconds; what is done already is not run again.

    Stopping anywhere is safe: the next run continues where this one stopped. InputError, before the first stage where that is
    known by then, where a stage's folder was made from something else, or an input is wrong.
    """
    open_stages(recipe)
    refuse_wrong(recipe)
    for number, stage in enumerate(recipe.stages, 1):
        yield stage, *run_stage(stage, recipe, f"[{number}/{len(recipe.stages)}] {stage.name}")


def run_stage(stage: Stage, recipe: Recipe, label: str) -> tuple[Any, float]:
    """One stage's artifact and its seconds, which are kept in the recipe's output; see `run`."""
    took = _seconds(recipe.output)
    status, words = state(stage)
    if status == "done":
        say(f"{label}: done before")
        return Artifact.open(stage.settings.output), took.get(stage.name, 0.0)
    if status == "changed":
        raise _refused(recipe, stage, words)
    say(f"{label}: {stage.verb}{' continues, ' + words if status == 'begun' else ''}")
    begun = time.monotonic()
    try:
        artifact = stage.run()
    finally:
        before = took.get(stage.name, 0.0) if status == "begun" else 0.0
        took[stage.name] = before + time.monotonic() - begun
        _keep_seconds(recipe.output, took)
    say(f"{label}: done in {duration(time.monotonic() - begun)}")
    return artifact, took[stage.name]


def seconds_behind(recipe: Recipe, name: str) -> float:
    """The seconds of a stage and of everything that it was made from."""
    took, stages = _seconds(recipe.output), {stage.name: stage for stage in recipe.stages}
    behind, open_ = set(), [name]
    while open_:
        current = open_.pop()
        if current not in behind:
            behind.add(current)
            open_ += stages[current].needs
    return sum(took.get(stage, 0.0) for stage in behind)


def _seconds(output: Place) -> dict[str, float]:
    try:
        return json.loads((output / _TOOK).read() or b"{}")
    except json.JSONDecodeError:
        return {}


def _keep_seconds(output: Place, took: dict[str, float]) -> None:
    (output / _TOOK).write(json.dumps({name: round(seconds, 1) for name, seconds in took.items()}, indent=1).encode())
