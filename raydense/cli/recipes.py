"""`run` and `demo`: the stages of a recipe, or of every trial of a sweep, on the command line."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import click
from click.shell_completion import CompletionItem

from raydense.cli.flags import ADDRESS, AS_JSON, join
from raydense.cli.visibility import check_submission
from raydense.errors import InputError, why
from raydense.evaluation.settings import EvaluateSettings
from raydense.evaluation.table import comparison_table
from raydense.recipes.content import recipe_file, recipe_named, recipe_names
from raydense.recipes.recipe import Recipe, run, seconds_behind
from raydense.recipes.stage import Stage
from raydense.recipes.sweep import Sweep, write_tables
from raydense.recipes.sweep_run import run_sweep
from raydense.runtime.progress import say, say_error
from raydense.storage import named_folders


def _recipes(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    return [CompletionItem(name) for name in recipe_names() if name.startswith(incomplete)] or [CompletionItem(incomplete, type="file")]


recipe_argument = click.argument("recipe", shell_complete=_recipes)


def recipe_options(command: Callable[..., None]) -> Callable[..., None]:
    command = click.option(
        "--set",
        "changes",
        multiple=True,
        metavar="NAME=VALUE",
        help="change a value of the recipe, as often as needed: NAME=VALUE of its `given:` (source=FOLDER), STAGE.KEY=VALUE, defaults.KEY=VALUE,"
        " or seed=N; the value null removes a key",
    )(command)
    command = click.option("--json", "as_json", is_flag=True, help=AS_JSON)(command)
    return click.option("--output", required=True, metavar="PATH", help="the folder for the outputs of all stages")(command)


def read_recipe(file: str, output: str, changes: tuple[str, ...], concurrent: int = 1) -> Recipe | Sweep:
    """The recipe in a file, or the sweep where it has `sweep:`; InputError where several trials are to be concurrent and there is one."""
    _refuse_no_output(output)
    sweep = Sweep.read(file, output, changes)
    if sweep is None and concurrent > 1:
        raise InputError("there is one trial, as the recipe has no `sweep:`", "--concurrent", "leave it out")
    return Recipe.read(file, output, changes) if sweep is None else sweep


def _refuse_no_output(output: str) -> None:
    """InputError on an empty path, which would be the current folder."""
    if not output:
        raise InputError("is empty", "--output", "give the folder for the outputs of all stages")


def stages_of(work: Recipe | Sweep) -> list[Stage]:
    """All stages of a recipe, or of all trials of a sweep."""
    recipes = [work] if isinstance(work, Recipe) else [trial.recipe for trial in work.trials]
    return [stage for recipe in recipes for stage in recipe.stages]


@click.command("run")
@recipe_argument
@recipe_options
@click.option("--address", metavar="ADDRESS", help=ADDRESS)
@click.option(
    "--concurrent",
    default=1,
    metavar="INT",
    type=click.IntRange(1),
    help="trials at once, of a recipe with `sweep:`; on one machine trainings share its cores  [1]",
)
def run_command(recipe: str, output: str, changes: tuple[str, ...], as_json: bool, address: str | None, concurrent: int) -> None:
    """Run the stages of RECIPE, a file or the name of one that comes with raydense (`raydense plan --list`), in order, continuing where an earlier run stopped; with `sweep:`, the stages of every trial."""
    join(address)
    recipe = recipe_named(recipe)
    read = read_recipe(recipe, output, changes, concurrent)
    check_submission(stages_of(read))
    if isinstance(read, Recipe):
        _run(read, as_json)
    else:
        _run_sweep(read, concurrent, as_json)


def _run_sweep(sweep: Sweep, concurrent: int, as_json: bool) -> None:
    failed = run_sweep(sweep, concurrent)
    for name, error in failed.items():
        say_error(f"{name}: failed: {why(error)}")
    if len(failed) < len(sweep.trials):
        summary, table = write_tables(sweep, failed)
        print(json.dumps(summary, ensure_ascii=False) if as_json else f"\n{table}\n", flush=True)
        chart = sweep.output / "sweep.svg"
        say(f"table: {sweep.output / 'sweep.md'}{f', chart: {chart}' if sweep.axis and chart.exists() else ''}")
    if failed:
        raise next(iter(failed.values()))


def _run(recipe: Recipe, as_json: bool) -> dict[str, Any]:
    report: dict[str, Any] = {}
    made: list[dict[str, Any]] = []
    for stage, artifact, seconds in run(recipe):
        made.append({"stage": stage.name, "output": str(stage.settings.output), "seconds": round(seconds, 1)})
        if isinstance(stage.settings, EvaluateSettings):
            result = artifact.summary["result"]
            report = {"result": result, "report": str(artifact.place / "report.html")}
            if not as_json:
                print(f"\n{comparison_table(artifact, _row_seconds(recipe, stage.settings.run))}\n", flush=True)
                print(f"report: {report['report']}")
    if as_json:
        print(json.dumps({"stages": made, **report}, ensure_ascii=False))
    elif not report:
        print(f"run: {recipe.output} ({', '.join(stage.name for stage in recipe.stages)})")
    return report


def _row_seconds(recipe: Recipe, runs: list[str]) -> dict[str, float]:
    """For each run of a report, the seconds of all stages that it depends on."""
    of_folder = {str(stage.settings.output): stage.name for stage in recipe.stages}
    rows = {}
    for name, folder in named_folders(runs):
        if folder in of_folder:
            rows[name] = seconds_behind(recipe, of_folder[folder])
    return rows


@click.command("demo")
@click.option("--output", default="demo", metavar="PATH", help="the folder for the outputs  [demo]")
@click.option("--seed", default=1, metavar="INT", type=int, help="another seed, another sample data set  [1]")
@click.option("--json", "as_json", is_flag=True, help=AS_JSON)
def demo_command(output: str, seed: int, as_json: bool) -> None:
    """Make a sample data set and run the whole chain on it: BM25, two retrievers, a re-ranker, a report. 4 to 10 minutes on two cores.

    Run it again and nothing is computed twice; stop it anywhere, run it again, and it continues.
    """
    _refuse_no_output(output)
    file = recipe_file("quickstart")
    report = _run(Recipe.read(file, output, (f"seed={seed}",)), as_json)
    if not as_json:
        print(f"\nOpen {report['report']} in a browser. What to try next:")
        print(f"  raydense plan quickstart --output {output}      each stage, and what it took")
        print(
            f"  raydense search --index {output}/dense-2 --model {output}/retriever-2 --queries {output}/data/queries --k 10 --output {output}/my-run"
        )
        print("  raydense import --format beir --input FOLDER --output data/mine      your own data; README: Your own data")
