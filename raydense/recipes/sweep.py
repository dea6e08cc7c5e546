"""A recipe swept over a grid: trials that share the stages that are the same in them.

sweep:
  seed: [1, 2, 3]                  # a key as `--set` takes it, with the values to try
  retriever.temperature: [0.05, 1]
  variants:                        # and, crossed with them, named sets of changes
    complete: {}
    without hard negatives: {retriever.negatives: 0}

A trial is the recipe with the changes of one point of the grid. Its stages lie in OUTPUT/stages, in folders named by all that
shapes them: what is the same in several trials is the same folder, and is made once. `sweep_run` runs them, and `evaluation.trials`
makes the table.
"""

from __future__ import annotations

import copy
import json
import os
import re
from collections import Counter
from dataclasses import dataclass
from itertools import combinations, product
from pathlib import Path
from typing import Any

from raydense.errors import Faults, InputError, why
from raydense.evaluation.settings import EvaluateSettings
from raydense.evaluation.sweep_chart import Axis
from raydense.recipes.content import apply, recipe_content, without_nulls
from raydense.recipes.planning import Measured, Prices
from raydense.recipes.recipe import Recipe, plan, state
from raydense.recipes.stage import VERBS, Stage
from raydense.settings import flat
from raydense.storage import Artifact, Place, digest_of, named_folders

_LONGEST = 120  # characters of the name of a trial's folder
_ONLY = "recipe"  # what the one variant of a sweep over seeds alone is called


@dataclass(frozen=True)
class Trial:
    """The recipe at one point of the grid; trials of one variant differ only in their seed."""

    variant: str
    seed: str
    recipe: Recipe

    @property
    def name(self) -> str:
        return ", ".join(part for part in (self.variant, self.seed) if part)

    @property
    def report(self) -> Stage:
        """The last evaluate stage."""
        return [stage for stage in self.recipe.stages if isinstance(stage.settings, EvaluateSettings)][-1]


@dataclass(frozen=True)
class Sweep:
    """The trials of a recipe, those of a variant one after another, and the folder that holds all of it.

    `axis` is there where one key alone has several numbers: the chart is along it.
    """

    output: Place
    trials: tuple[Trial, ...]
    axis: Axis | None = None

    @classmethod
    def read(cls, file: str | os.PathLike[str], output: str | os.PathLike[str], changes: tuple[str, ...] = ()) -> Sweep | None:
        """The sweep in a recipe's file, or None where it has none; `changes` as for `Recipe.read`.

        InputError names file and key, also of faults that are no sweep's; where there is no sweep, `Recipe.read` raises these.
        """
        faults = Faults()
        content = recipe_content(file, changes, faults)
        grid = content.pop("sweep", None)
        if grid is None:
            return None
        where = f"{file}: sweep"
        root = Place.of(output)
        variants = _variants(grid, content, where, faults)
        variants = {name: by_hand for name, by_hand in variants.items() if isinstance(by_hand, dict)}
        _add_changed_twice([str(key) for key in grid if key != "variants"], variants, changes, where, file, faults)
        faults.refuse()
        rows = [_point(grid, keys) for keys in ([k for k in grid if k != "variants" and not _is_seed(k)], [k for k in grid if _is_seed(k)])]
        trials = []
        for (variant, by_hand), (point, of_row), (seed, of_seed) in product(variants.items(), *rows):
            named = ", ".join(part for part in (variant, point) if part) or _ONLY
            wheres = dict.fromkeys(by_hand, f"{where}.variants.{variant}") | dict.fromkeys((*of_row, *of_seed), where)
            trials.append(_trial(named, seed, by_hand | of_row | of_seed, wheres, content, root, file))
        _refuse_same(trials, where)
        return cls(root, tuple(trials), _axis(rows[0]) if list(variants) == [""] else None)


def _add_changed_twice(
    swept: list[str], variants: dict[str, dict[str, Any]], changes: tuple[str, ...], where: str, file: object, faults: Faults
) -> None:
    """Add a fault for each key that is changed in two places: swept, in a variant, or by `--set`."""
    for one, other in ((one, other) for one, other in combinations(swept, 2) if _overlap(one, other)):
        faults.add(f"is swept, as {other}", f"{where}.{one}", "leave one of them out")
    for name, by_hand in variants.items():
        for key, value in by_hand.items():
            for other in (one for one in swept if _hides(one, str(key), value)):
                faults.add(f"is swept, as {other}", f"{where}.variants.{name}.{key}", "leave one of them out")
    for change in changes:
        key = change.partition("=")[0]
        if any(_overlap(key, one) for one in swept):
            faults.add("is swept", f"--set {change}", f"change it in {file}")
        elif setting := [name for name, by_hand in variants.items() if any(_overlap(key, str(one)) for one in by_hand)]:
            faults.add(f"is what the variants {', '.join(setting)} set", f"--set {change}", f"change it in {file}")


def _overlap(one: str, other: str) -> bool:
    """Whether two keys are the same, or one is of a group that the other changes as a whole."""
    return f"{one}.".startswith(f"{other}.") or f"{other}.".startswith(f"{one}.")


def _hides(swept: str, key: str, value: Any) -> bool:
    """Whether the swept key takes the place of what a variant gives `key`: a group that lacks it is filled in."""
    if swept.startswith(f"{key}.") and isinstance(value, dict):
        return swept[len(key) + 1 :] in flat(value)
    return _overlap(swept, key)


def _is_seed(key: object) -> bool:
    return key == "seed" or str(key).endswith(".seed")


def _variants(grid: Any, content: dict[str, Any], where: str, faults: Faults) -> dict[str, dict[str, Any]]:
    """The named variants, one without a name where there are none; checks every key and list of the grid."""
    if not isinstance(grid, dict) or not grid:
        raise InputError("is empty", where, "give KEY: [VALUES] lines, or `variants:`, or both")
    for key, values in grid.items():
        if key != "variants":
            with faults.collected():
                _check_key(str(key), content, where)
            if not isinstance(values, list) or not values:
                faults.add("holds no values", f"{where}.{key}", "give a list of them, as [1, 2, 3]")
    variants = grid.get("variants", {"": {}})
    if not isinstance(variants, dict) or not variants:
        raise InputError("holds no variants", f"{where}.variants", "give NAME: {KEY: VALUE} lines")
    variants = {str(name): changes or {} for name, changes in variants.items()}
    for name, changes in variants.items():
        if not isinstance(changes, dict):
            faults.add("holds no keys", f"{where}.variants.{name}", "give {KEY: VALUE}, or {} for no change")
            continue
        for key in changes:
            with faults.collected():
                _check_key(str(key), content, f"{where}.variants.{name}")
    return variants


def _check_key(key: str, content: dict[str, Any], where: str) -> None:
    """InputError where `--set` would not take a key."""
    apply(key, None, copy.deepcopy(content), f"{where}.{key}")


def _refuse_unknown(key: str, content: dict[str, Any], where: str) -> None:
    """InputError where the stage that a key names does not have it; `content` has all changes, of which one may choose its keys."""
    stage, dot, field = key.partition(".")
    values = without_nulls(content["stages"].get(stage, {})) if dot else {}
    verb = values.get("do")
    if field != "do" and verb in VERBS:
        settings_class = VERBS[verb].settings.chosen(values, f"{where}.{stage}.")
        settings_class.refuse_unknown(field, f"{where}.{stage}.")


def _point(grid: dict[str, Any], keys: list[str]) -> list[tuple[str, dict[str, Any]]]:
    """The points of a part of the grid, each with its name."""
    points = [dict(zip(keys, values, strict=True)) for values in product(*(grid[key] for key in keys))]
    return [(", ".join(f"{key}={_word(value)}" for key, value in point.items()), point) for point in points]


def _axis(points: list[tuple[str, dict[str, Any]]]) -> Axis | None:
    """The one key of the points that has several numbers, where no other has; the other keys that differ name the lines of the chart."""
    every = {key: list({_word(point[key]): point[key] for _, point in points}.values()) for key in points[0][1]}
    numbers = [key for key, values in every.items() if len(values) > 1 and None not in map(_number, values)]
    if len(numbers) != 1:
        return None
    others = [key for key, values in every.items() if key not in numbers and len(values) > 1]
    lines = {name: ", ".join(_word(point[key]) for key in others) for name, point in points}
    return Axis(numbers[0], {name: _number(point[numbers[0]]) for name, point in points}, lines)


def _number(value: Any) -> Any:
    """The number that a value is, or that its text is: YAML reads 1e-5 as text; None for others."""
    if isinstance(value, str):
        return float(value) if re.fullmatch(r"[-+]?(\d+\.?\d*|\.\d+)(e[-+]?\d+)?", value, re.IGNORECASE) else None
    return value if isinstance(value, (int, float)) and not isinstance(value, bool) else None


def _word(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, default=str)  # YAML reads dates, too


def _trial(
    variant: str, seed: str, changes: dict[str, Any], wheres: dict[str, str], content: dict[str, Any], output: Place, file: Any
) -> Trial:
    own = copy.deepcopy(content)
    for key, value in changes.items():
        apply(key, value, own, f"{wheres[key]}.{key}")
    for key in changes:
        _refuse_unknown(key, own, wheres[key])
    folder = _folder(", ".join(part for part in (variant, seed) if part))
    trial = Trial(variant, seed, Recipe.build(own, output / "trials" / folder, str(file), shared=output / "stages"))
    if not any(isinstance(stage.settings, EvaluateSettings) for stage in trial.recipe.stages):
        raise InputError("a swept recipe has no evaluate stage", file, "end it with one: the table is made of what it measures")
    return trial


def _folder(name: str) -> str:
    """A name of a folder for a trial; of long values it has a digest, as file systems take 255 bytes."""
    plain = re.sub(r"[^\w.=-]+", "-", name)
    if len(plain.encode()) <= _LONGEST:
        return plain
    return f"{plain.encode()[: _LONGEST - 9].decode(errors='ignore')}-{digest_of(name)[:8]}"


def _refuse_same(trials: list[Trial], where: str) -> None:
    made: dict[tuple[str, ...], Trial] = {}
    called: dict[Place, Trial] = {}
    for trial in trials:
        other = made.setdefault(tuple(stage.settings.output for stage in trial.recipe.stages), trial)
        if other is not trial:
            raise InputError(f"({trial.name}) makes the same as ({other.name})", where, "leave one of them out, or fix its changes")
        if called.setdefault(trial.recipe.output, trial) is not trial:
            raise InputError(f"two trials are called {Path(trial.recipe.output).name!r}", where, "give variants other names")


def plan_sweep(sweep: Sweep, measured: Measured | None = None, prices: Prices | None = None) -> list[dict[str, Any]]:
    """A row for each distinct stage, as `recipe.plan` makes it, with its folder and the numbers (from 1) of its trials."""
    rows: dict[str, dict[str, Any]] = {}
    for number, trial in enumerate(sweep.trials, 1):
        for stage, row in zip(trial.recipe.stages, plan(trial.recipe, measured, prices), strict=True):
            there = rows.setdefault(stage.settings.output, row | {"output": stage.settings.output, "trials": [], "seconds": 0.0})
            there["trials"].append(number)
            there["seconds"] += row["seconds"] or 0.0
    return list(rows.values())


def trial_to_calibrate(sweep: Sweep, rows: list[dict[str, Any]]) -> Trial:
    """The first trial of those with the most to do, by the rows of `plan_sweep`."""
    left = Counter(number for row in rows if row["state"] != "done" for number in row["trials"])
    return max(enumerate(sweep.trials, 1), key=lambda numbered: left[numbered[0]])[1]


def write_tables(sweep: Sweep, failed: dict[str, Exception]) -> tuple[dict[str, Any], str]:
    """Put what the finished trials measured into sweep.json, sweep.md and sweep.svg.

    Returns the object of sweep.json, and the table as text.
    """
    from raydense.evaluation.trials import markdown_table, summarise, text_table

    reports: dict[str, dict[str, Artifact]] = {trial.variant: {} for trial in sweep.trials}
    for trial in sweep.trials:
        if state(trial.report)[0] == "done":
            reports[trial.variant][trial.seed] = Artifact.open(trial.report.settings.output, "report")
    summary = summarise(reports)
    summary["trials"] = [{"name": t.name, "variant": t.variant, "seed": t.seed, "report": t.report.settings.output} for t in sweep.trials]
    summary["failed"] = {name: why(error) for name, error in failed.items()}
    once = _made_once(sweep)
    (sweep.output / "sweep.json").write_text(json.dumps(summary, indent=1, ensure_ascii=False) + "\n")
    (sweep.output / "sweep.md").write_text(markdown_table(summary, once))
    if svg := _chart(sweep, summary["runs"], once):
        (sweep.output / "sweep.svg").write_text(svg)
    return summary, text_table(summary, once)


def _chart(sweep: Sweep, runs: dict[str, Any], once: set[str]) -> str:
    from raydense.evaluation.sweep_chart import bars_svg, chart_svg

    if not sweep.axis:
        return bars_svg({run: dict([*rows.items()][:1]) if run in once else rows for run, rows in runs.items()})
    return chart_svg({run: rows for run, rows in runs.items() if run not in once}, sweep.axis)


def _made_once(sweep: Sweep) -> set[str]:
    """The runs that all trials share and measure in the same way, as that of BM25 where only training is swept."""
    settings: list[Any] = [trial.report.settings for trial in sweep.trials]
    if len(settings) == 1 or len({(each.qrels, *each.metrics) for each in settings}) > 1:
        return set()
    return {name for name, _ in set.intersection(*(set(named_folders(each.run)) for each in settings))}
