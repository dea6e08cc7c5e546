"""`plan`: what a run of a recipe would do, and what it needs: time, GPU hours, memory, storage and money."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

import click

from raydense.cli.flags import join
from raydense.cli.recipes import read_recipe, recipe_argument, recipe_options
from raydense.errors import InputError
from raydense.recipes.content import described, recipe_named, recipe_names
from raydense.recipes.planning import Measured, Prices, total_of
from raydense.recipes.recipe import Recipe, plan
from raydense.recipes.sweep import Sweep, plan_sweep, trial_to_calibrate
from raydense.runtime.progress import duration, size

_HEADS = ("stage", "time", "GPU hours", "memory", "storage", "cost")
_CALIBRATE_S = 180.0


def _list_recipes(ctx: click.Context, param: click.Parameter, wanted: bool) -> None:
    if not wanted or ctx.resilient_parsing:
        return
    for name in recipe_names():
        sentence, given = described(name)
        names = f"  [{', '.join(given)}]" if given else ""
        print(f"{name}{names}\n    {sentence}")
    ctx.exit()


@click.command("plan")
@recipe_argument
@recipe_options
@click.option(
    "--list",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_list_recipes,
    help="only name the recipes that come with raydense, each with what it does and the names in its `given:`",
)
@click.option(
    "--calibrate", is_flag=True, help="first run every stage on small slices, on the cluster at hand, and estimate from what they took"
)
@click.option(
    "--calibrate-seconds",
    metavar="NUMBER",
    type=click.FloatRange(0, min_open=True),
    help="about how long that may take; more is more exact  [180]",
)
@click.option(
    "--address", metavar="ADDRESS", help="the Ray cluster to calibrate on; by default RAY_ADDRESS, else Ray is started on this machine"
)
@click.option(
    "--price-gpu-hour",
    default=0.0,
    metavar="NUMBER",
    type=click.FloatRange(0),
    help="what an hour of one GPU costs, for the column cost  [0]",
)
@click.option("--price-cpu-hour", default=0.0, metavar="NUMBER", type=click.FloatRange(0), help="what an hour of one CPU costs  [0]")
def plan_command(
    recipe: str,
    output: str,
    changes: tuple[str, ...],
    as_json: bool,
    calibrate: bool,
    calibrate_seconds: float | None,
    address: str | None,
    price_gpu_hour: float,
    price_cpu_hour: float,
) -> None:
    """Show what a run of RECIPE would do: each stage, whether it is done, begun or to do, and what it needs.

    A table gives time, GPU hours, memory of the largest process, and storage of each stage that is left. Sizes follow from the inputs;
    the time from stored rates, of the cluster that is named below the table; those that come with raydense are rough. With --calibrate they are
    measured now, by small runs of every stage in a folder that is removed afterwards, and the time has an error (twice the standard
    deviation); they are kept for later plans. Cost is that of the whole cluster, idle GPUs too.
    """
    for flag, given in (("--address", address), ("--calibrate-seconds", calibrate_seconds)):
        if given is not None and not calibrate:
            raise InputError("nothing is measured without --calibrate", flag, "leave it out, or give --calibrate")
    recipe = recipe_named(recipe)
    read, prices = read_recipe(recipe, output, changes), Prices(price_gpu_hour, price_cpu_hour)
    rows = _planned(read, None, prices)
    if calibrate and not any(row["stops"] for row in rows) and any(row["state"] != "done" for row in rows):
        from raydense.recipes.calibration import calibrate as measure

        join(address)
        small = read if isinstance(read, Recipe) else trial_to_calibrate(read, rows).recipe
        rows = _planned(read, measure(small, calibrate_seconds or _CALIBRATE_S), prices)
    if as_json:
        trials = {} if isinstance(read, Recipe) else {"trials": [trial.name for trial in read.trials]}
        print(json.dumps({**trials, "stages": rows, "total": total_of(rows)}, ensure_ascii=False))
    else:
        if isinstance(read, Recipe):
            _print_stages(rows)
        else:
            _print_trials(read, rows)
        _print_figures(rows, total_of(rows), bool(prices))
    if wrong := {row["stage"]: row["note"] for row in rows if row["stops"]}:
        raise InputError(f"a run would stop at stage{'s' * (len(wrong) > 1)} {', '.join(wrong)}", recipe, next(iter(wrong.values())))


def _planned(read: Recipe | Sweep, measured: Measured | None, prices: Prices) -> list[dict[str, Any]]:
    return plan(read, measured, prices) if isinstance(read, Recipe) else plan_sweep(read, measured, prices)


def _print_stages(rows: list[dict[str, Any]]) -> None:
    width = max(len(row["stage"]) for row in rows)
    for row in rows:
        took = f" ({duration(row['seconds'])})" if row["seconds"] and row["state"] == "done" else ""
        words = "; ".join(part for part in (row["note"], row["needs"]) if part)
        print(f"{row['stage'].ljust(width)}  {row['verb']:9} {row['state']:8}{took} {words}".rstrip())


def _print_trials(sweep: Sweep, rows: list[dict[str, Any]]) -> None:
    """One line per trial, then one line per stage of the recipe: how many different ones the trials share, and their states."""
    for number, trial in enumerate(sweep.trials, 1):
        done = sum(row["state"] == "done" for row in rows if number in row["trials"])
        print(f"{number}. {trial.name}: {done} of {len(trial.recipe.stages)} stages done")
    print(f"\n{len(rows)} stages for all {len(sweep.trials)} trials, where trials share those that are the same:\n")
    names = list(dict.fromkeys(row["stage"] for row in rows))
    for name in names:
        of = [row for row in rows if row["stage"] == name]
        states = ", ".join(f"{count} {word}" for word, count in Counter(row["state"] for row in of).items())
        needs = next((f"; each {row['needs']}" for row in of if row["needs"]), "")
        needs += "".join(f"; {note}" for note in dict.fromkeys(row["note"] for row in of if row["stops"]))
        print(f"{name.ljust(max(map(len, names)))}  {of[0]['verb']:9} {len(of):3} for {sum(len(r['trials']) for r in of)}: {states}{needs}")


def _print_figures(rows: list[dict[str, Any]], total: dict[str, Any], priced: bool) -> None:
    """A table of what is left to do, its total, and where its rates were measured; nothing where all is done."""
    waiting = [row for row in rows if row["state"] != "done"]
    left = [(row["stage"], row["estimate"]) for row in waiting]
    if not left:
        return
    lines = [_HEADS, *_lines_of_stages(waiting), _line("total", total)]
    nothing = {"GPU hours": ("", "0.00")}
    shown = [column for column, head in enumerate(_HEADS) if any(line[column] not in nothing.get(head, ("",)) for line in lines[1:])]
    widths = {column: max(len(line[column]) for line in lines) for column in shown}
    if len(shown) > 1:
        print()
        for line in lines:
            print("  ".join(line[c].rjust(widths[c]) if c else line[c].ljust(widths[c]) for c in shown).rstrip())
    if total["unknown"]:
        print(f"no time of these, since nothing is known of their inputs or rates: {', '.join(dict.fromkeys(total['unknown']))}")
    free = list(dict.fromkeys(name for name, figures in left if "measured" in figures and "cost" not in figures))
    if priced and free:
        of = "" if "cost" not in total else f" of {', '.join(free)}"
        print(f"no cost{of}: the rates are of machines without GPUs: give --calibrate on a cluster with GPUs, or --price-cpu-hour")
    for source in dict.fromkeys(figures["measured"] for _, figures in left if "measured" in figures):
        names = list(dict.fromkeys(name for name, figures in left if figures.get("measured") == source))
        whose = "" if len(names) == len({name for name, _ in left}) else f" of {', '.join(names)}"
        print(f"time{whose} by the rates of {source}")


def _lines_of_stages(rows: list[dict[str, Any]]) -> list[tuple[str, ...]]:
    """A line per stage; of one that a sweep makes several times, their number and their total."""
    rows_of: dict[str, list[dict[str, Any]]] = {}
    for row in rows:
        rows_of.setdefault(row["stage"], []).append(row)
    return [_line(name, of[0]["estimate"]) if len(of) == 1 else _line(f"{name} ({len(of)})", total_of(of)) for name, of in rows_of.items()]


def _line(name: str, figures: dict[str, Any]) -> tuple[str, ...]:
    """A stage's cells; a figure that is not known is empty."""
    time = ""
    if "seconds" in figures:
        time = (
            f"{duration(figures['seconds'])} ± {duration(figures['error'])}"
            if figures["error"] is not None
            else f"about {duration(figures['seconds'])}"
        )
    hours = f"{figures['gpu_hours']:.2f}" if "gpu_hours" in figures else ""
    memory, disk = (size(figures[key]) if figures.get(key) else "" for key in ("memory_bytes", "output_bytes"))
    return name, time, hours, memory, disk, f"{figures['cost']:,.2f}" if "cost" in figures else ""
