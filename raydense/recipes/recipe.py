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
import re
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from raydense.errors import InputError, did_you_mean
from raydense.recipes.content import REFERENCE, named_in, recipe_content
from raydense.recipes.inputs import wrong_input
from raydense.recipes.planning import needs_of
from raydense.recipes.stage import VERBS, Stage
from raydense.retrieval.settings import SearchSettings
from raydense.runtime.progress import duration, say
from raydense.settings import Settings, flat, put
from raydense.storage import (
    Artifact,
    Place,
    begun_from,
    commits_in,
    differences,
    digest_of,
    provenance_of,
    read_manifest,
)

_TOOK = "seconds.json"


@dataclass(frozen=True)
class Recipe:
    """Stages in order, with the folder that holds their outputs."""

    description: str
    output: Place
    stages: tuple[Stage, ...]

    @classmethod
    def read(cls, file: str | os.PathLike[str], output: str | os.PathLike[str], changes: tuple[str, ...] = ()) -> Recipe:
        """The recipe in a YAML file, with `changes` as `stage.key=value`, `given=value` or `seed=value`.

        InputError names the file and the key.
        """
        return cls.build(recipe_content(file, changes), output, str(file))

    @classmethod
    def build(cls, content: dict[str, Any], output: str | os.PathLike[str], file: str, shared: Place | None = None) -> Recipe:
        """The recipe of `content`; `file` is named in faults.

        Each stage has a folder of its name in `output`, or, where `shared` is given, in a folder of that one which is named by
        all that shapes the stage: recipes that build it from the same share it.
        """
        built: dict[str, Stage] = {}
        for name, values in content["stages"].items():
            built[name] = _stage(str(name), values, content, Place.of(output), built, file, shared)
        _refuse_unused(content.get("defaults") or {}, [type(stage.settings) for stage in built.values()], f"{file}: defaults")
        return cls(str(content.get("description", "")).strip(), Place.of(output), tuple(built.values()))


def _stage(
    name: str, values: Any, recipe: dict[str, Any], output: Place, earlier: dict[str, Stage], file: str, shared: Place | None
) -> Stage:
    where = f"{file}: stages.{name}"
    if not re.fullmatch(r"[A-Za-z0-9_-]+", name) or name in ("defaults", *recipe["given"]):
        raise InputError("a stage's name has only letters, digits, - and _, and is neither a given name nor defaults", where, "rename it")
    if not isinstance(values, dict) or not isinstance(values.get("do"), str):
        raise InputError("has no `do:`", where, f"give its verb: {', '.join(VERBS)}")
    values = dict(values)
    verb = values.pop("do")
    if verb == "export":
        raise InputError("its output is a plain file, not a stage's", f"{where}.do", "run `raydense export` after the recipe")
    if verb not in VERBS:
        raise InputError(f"unknown verb {verb!r}", f"{where}.do", did_you_mean(verb, VERBS))
    folders = {stage: built.settings.output for stage, built in earlier.items()}
    needs: list[str] = []
    values = {key: _resolve(value, recipe["given"], folders, needs, where) for key, value in values.items()}
    form = VERBS[verb].settings.chosen(values, f"{where}.")
    for key, value in _defaults_for(form, values, recipe.get("defaults") or {}, {*recipe["given"], *folders}).items():
        put(values, key, _resolve(value, recipe["given"], folders, needs, where))
    seed = recipe.get("seed")
    if seed is not None and "seed" in form.model_fields:
        values.setdefault("seed", seed)
    if shared and "output" in values:
        raise InputError("stages of a sweep are given their folders", f"{where}.output", "leave it out")
    if "output" in values and not _inside(values["output"], output):
        raise InputError("lies outside of the recipe's folder", f"{where}.output", "leave it out, or give a folder in it")
    values.setdefault("output", str(output / name))
    settings = form.read(values, f"{where}.")
    if isinstance(settings, SearchSettings) and not settings.index:
        raise InputError(
            "a recipe says which index its runs come from", f"{where}.index", "give it together with pool, which must answer from it"
        )
    if shared:
        settings = settings.model_copy(update={"output": str(shared / _identity(verb, settings, shared) / name)})
    needed = tuple(dict.fromkeys(needs))
    return Stage(name, verb, settings, needed, tuple(folders[need] for need in needed), where)


def _inside(path: Any, folder: Place) -> bool:
    there, around = Place.of(str(path)).located, Place.of(str(folder)).located
    return os.path.normpath(there).startswith(f"{os.path.normpath(around)}{os.sep}")


def _defaults_for(form: type[Settings], values: dict[str, Any], defaults: dict[str, Any], known: set[str]) -> dict[str, Any]:
    """Of the defaults of a recipe those that a stage has and does not say itself; none that names a stage that comes later."""
    own, has = flat(values), form.takes(values)
    left = {key: value for key, value in flat(defaults).items() if key in has and key not in own and key.partition(".")[0] not in own}
    return {key: value for key, value in left.items() if known.issuperset(named_in(value))}


def _refuse_unused(defaults: dict[str, Any], forms: list[type[Settings]], where: str) -> None:
    """InputError where no stage has the setting of a default."""
    known = {key for form in forms for key in form.all_fields()}
    for key in flat(defaults):
        if key not in known:
            raise InputError("no stage has this setting", f"{where}.{key}", did_you_mean(key, known))


def _identity(verb: str, settings: Settings, shared: Place) -> str:
    """A digest of what shapes a stage: its verb, its settings, and its inputs, whose folders are named so themselves."""
    given = {key: settings.value_of(key) for key in settings.inputs()}
    given = {key: value for key, value in given.items() if key not in settings.newer or value is not None}
    inputs = json.dumps(given, ensure_ascii=False)
    return digest_of([verb, settings.shaping(), inputs.replace(f"{shared}{os.sep}", "")])[:12]


def _resolve(value: Any, given: dict[str, Any], folders: dict[str, str], needs: list[str], where: str) -> Any:
    """`value` with $names put in: what the recipe is given, or the folder of an earlier stage (noted in `needs`)."""
    if isinstance(value, list):
        return [_resolve(item, given, folders, needs, where) for item in value]
    if isinstance(value, dict):
        return {key: _resolve(inner, given, folders, needs, where) for key, inner in value.items()}
    if not isinstance(value, str):
        return value
    if value.startswith("$") and value[1:] in given:
        return given[value[1:]]

    def put_in(match: re.Match[str]) -> str:
        name = match[1]
        if name in given:
            return str(given[name])
        if name not in folders:
            raise InputError(f"${name} is no earlier stage and not given", where, did_you_mean(name, [*folders, *given]))
        needs.append(name)
        return folders[name]

    return REFERENCE.sub(put_in, value)


def state(stage: Stage) -> tuple[str, str]:
    """`done`, `changed`, `begun`, `ready` or `waits`, with a few words on it; looks at folders and computes nothing."""
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
        other = differences(there, made_from)
        if other:
            return "changed", f"made from something else ({other}); delete {folder} to make it again"
        return "done", f"{manifest['rows']:,} rows" if manifest["rows"] else ""
    if begun is not None:
        other = differences(there, made_from)
        if other:
            return "changed", f"begun from something else ({other}); delete {folder} to start over"
        return "begun", f"{commits_in(folder)} files committed"
    return "ready", ""


def _refuse_unmade(stage: Stage) -> None:
    """InputError where an earlier stage has not made what this one reads, whose folder may look like the name of a model on the Hub."""
    for folder in stage.folders:
        if read_manifest(folder) is None:
            raise InputError("is not finished", folder, "run the stage that makes it")


def open_stages(recipe: Recipe) -> list[Stage]:
    """The stages that are not done; InputError where a folder holds something made from something else.

    A stage whose inputs are yet to be made is checked when they are: made again, they may be what they were.
    """
    states = {stage.name: state(stage) for stage in recipe.stages}
    for stage in recipe.stages:
        status, words = states[stage.name]
        if status == "changed" and all(states[need][0] == "done" for need in stage.needs):
            raise InputError(words, stage.where, "or give another --output")
    return [stage for stage in recipe.stages if states[stage.name][0] != "done"]


def refuse_wrong(recipe: Recipe) -> None:
    """InputError where a stage has an input that is not there and will not be made, or is of another kind."""
    for stage, (status, words) in zip(recipe.stages, _judged(recipe), strict=True):
        if status == "wrong":
            raise InputError(words, stage.where)


def _judged(recipe: Recipe) -> Iterator[tuple[str, str]]:
    """The `state` of each stage, or `wrong` with the fault of an input that no stage will make good."""
    for place, stage in enumerate(recipe.stages):
        status, words = state(stage)
        fault = wrong_input(stage, list(recipe.stages[:place])) if status in ("ready", "waits") else ""
        yield ("wrong", fault) if fault else (status, words)


def plan(recipe: Recipe) -> list[dict[str, Any]]:
    """A row per stage: name, verb, state, a few words on it, what it will need, and the seconds that it took so far."""
    took = _seconds(recipe.output)
    rows = []
    needed = needs_of(stage.settings for stage in recipe.stages)
    for stage, (status, words), needs in zip(recipe.stages, _judged(recipe), needed, strict=True):
        row: dict[str, Any] = {"stage": stage.name, "verb": stage.verb, "state": status, "note": words}
        rows.append(row | {"needs": "" if status == "done" else needs, "seconds": took.get(stage.name)})
    return rows


def run(recipe: Recipe) -> Iterator[tuple[Stage, Any, float]]:
    """Run the stages in order, yielding each with its artifact and its seconds; what is done already is not run again.

    Stopping anywhere is safe: the next run continues where this one stopped. InputError, before the first stage where that is
    known by then, where a stage's folder was made from something else, or an input is wrong.
    """
    open_stages(recipe)
    refuse_wrong(recipe)
    for number, stage in enumerate(recipe.stages, 1):
        yield stage, *run_stage(stage, recipe.output, f"[{number}/{len(recipe.stages)}] {stage.name}")


def run_stage(stage: Stage, output: Place, label: str) -> tuple[Any, float]:
    """One stage's artifact and its seconds, which are kept in `output`; see `run`."""
    took = _seconds(output)
    status, words = state(stage)
    if status == "done":
        say(f"{label}: done before")
        return Artifact.open(stage.settings.output), took.get(stage.name, 0.0)
    if status == "changed":
        raise InputError(words, stage.where, "or give another --output")
    say(f"{label}: {stage.verb}{' continues, ' + words if status == 'begun' else ''}")
    begun = time.monotonic()
    try:
        artifact = stage.run()
    finally:
        took[stage.name] = took.get(stage.name, 0.0) + time.monotonic() - begun
        _keep_seconds(output, took)
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
