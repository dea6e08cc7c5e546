"""The command line: `raydense VERB [--config file.yaml] [--key value ...]`, one verb per stage, with flags made from its settings.

Exit code 0 done, 2 bad input or settings (one line: what, where, the fix), 1 anything else, 130 interrupted.
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Callable
from inspect import cleandoc
from typing import Any, NoReturn

import click
from click.shell_completion import CompletionItem

from raydense import __version__
from raydense.cli.flags import SUITE, Command, add_verbosity, common_flags, flags_of, join, read, read_evaluate, read_recipe, stages_of
from raydense.cli.jobs import JobError
from raydense.cli.pools import pool_group
from raydense.cli.serving import serve_command
from raydense.cli.submit import submissions_of
from raydense.cli.visibility import refuse_unseen
from raydense.errors import fixable, why
from raydense.evaluation.settings import EvaluateSettings, SuiteSettings
from raydense.evaluation.table import comparison_table
from raydense.recipes.content import recipe_file, recipe_named, recipe_names
from raydense.recipes.recipe import Recipe, plan, run, seconds_behind
from raydense.recipes.stage import VERBS, Stage, Verb
from raydense.recipes.suite import Suite, run_suite
from raydense.recipes.suite import write_tables as write_suite
from raydense.recipes.sweep import Sweep, plan_sweep, write_tables
from raydense.recipes.sweep_run import run_sweep
from raydense.runtime.progress import Progress, duration, say, say_error
from raydense.storage import Place, named_folder, verify_all


def _verb_command(name: str, verb: Verb) -> click.Command:
    def call(config: str | None, as_json: bool, address: str | None, **flags: Any) -> None:
        settings = read(verb.settings, config, flags)
        join(address)
        refuse_unseen([Stage(name, name, settings, ())])
        _print_result(name, verb.run(settings), as_json)

    return Command(name, settings=verb.settings, params=common_flags(), callback=call, help=verb.settings.__doc__)


def _evaluate_command() -> click.Command:
    """The verb `evaluate`, which with --suite has settings of its own."""
    runs, suite = EvaluateSettings.model_fields, SuiteSettings.model_fields

    def call(config: str | None, as_json: bool, address: str | None, **flags: Any) -> None:
        settings = read_evaluate(config, flags)
        join(address)
        refuse_unseen([Stage("evaluate", "evaluate", settings, ())])
        if isinstance(settings, SuiteSettings):
            _run_suite(Suite.read(settings), as_json)
        else:
            _print_result("evaluate", VERBS["evaluate"].run(settings), as_json)

    of_runs, of_suite = flags_of(EvaluateSettings), [flag for flag in flags_of(SuiteSettings) if flag.name not in runs]
    for flag in of_suite:
        flag.section = SUITE
    for flag in of_runs:
        if flag.name == "metrics":
            flag.help = f"{flag.help}; with --suite  [{' '.join(suite['metrics'].default)}]"
    for flag in (*of_runs, *of_suite):
        if flag.name != "output":
            flag.help = str(flag.help).replace("  [required]", "")
    words = "\n\n".join(cleandoc(str(form.__doc__)) for form in (EvaluateSettings, SuiteSettings))
    return Command("evaluate", params=[*of_runs, *of_suite, *common_flags()], callback=call, help=words)


def _print_result(verb: str, result: Any, as_json: bool) -> None:
    """Print what a stage made: as JSON, or as a line (or a table of metrics) to read."""
    if isinstance(result, Place):
        print(json.dumps({"output": str(result)}) if as_json else f"{verb}: {result}")
        return
    if as_json:
        whole = {
            "output": str(result.place),
            "kind": result.kind,
            "rows": result.rows,
            "fingerprint": result.fingerprint,
            "summary": result.summary,
        }
        print(json.dumps(result.summary.get("result", whole), ensure_ascii=False))
    elif result.kind == "report":
        print(comparison_table(result))
        print(f"report: {result.place / 'report.html'}")
    else:
        print(f"{verb}: {result.place} ({result.kind}{f', {result.rows:,} rows' if result.rows else ''})")


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 120})
@click.version_option(__version__, message="raydense %(version)s")
def app() -> None:
    """Train and serve dense passage retrieval on Ray.

    Begin with `raydense demo`. A stage reads artifact folders and writes one; it can be stopped at any moment and run again.
    `raydense VERB --help` lists the inputs and settings of a stage.
    """


def _recipes(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    return [CompletionItem(name) for name in recipe_names() if name.startswith(incomplete)] or [CompletionItem(incomplete, type="file")]


_recipe_argument = click.argument("recipe", shell_complete=_recipes)


def _recipe_options(command: Callable[..., None]) -> Callable[..., None]:
    command = click.option(
        "--set", "changes", multiple=True, metavar="STAGE.KEY=VALUE", help="change a setting of the recipe (also seed=N)"
    )(command)
    command = click.option("--json", "as_json", is_flag=True, help="print the result as one JSON object on standard output")(command)
    return click.option("--output", required=True, metavar="PATH", help="the folder for the outputs of all stages")(command)


@app.command("run")
@_recipe_argument
@_recipe_options
@click.option("--address", metavar="ADDRESS", help="the Ray cluster to join; by default RAY_ADDRESS, else Ray is started on this machine")
@click.option(
    "--concurrent",
    default=1,
    metavar="INT",
    type=click.IntRange(1),
    help="trials at once, of a recipe with `sweep:`; on one machine trainings share its cores  [1]",
)
def run_command(recipe: str, output: str, changes: tuple[str, ...], as_json: bool, address: str | None, concurrent: int) -> None:
    """Run the stages of RECIPE, a file or the name of one that comes with raydense, in order, continuing where an earlier run stopped; with `sweep:`, the stages of every trial."""
    join(address)
    recipe = recipe_named(recipe)
    read = read_recipe(recipe, output, changes)
    refuse_unseen(stages_of(read))
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


def _run_suite(suite: Suite, as_json: bool) -> None:
    failed = run_suite(suite)
    summary, table = write_suite(suite, failed)
    print(json.dumps(summary, ensure_ascii=False) if as_json else f"\n{table}\n", flush=True)
    say(f"table: {suite.settings.output}/suite.md")
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
    return report


def _row_seconds(recipe: Recipe, runs: list[str]) -> dict[str, float]:
    """For each run of a report, the seconds of all stages that it depends on."""
    of_folder = {str(stage.settings.output): stage.name for stage in recipe.stages}
    rows = {}
    for item in runs:
        name, folder = named_folder(item)
        if folder in of_folder:
            rows[name] = seconds_behind(recipe, of_folder[folder])
    return rows


@app.command("plan")
@_recipe_argument
@_recipe_options
def plan_command(recipe: str, output: str, changes: tuple[str, ...], as_json: bool) -> None:
    """Show what a run of RECIPE would do: each stage, whether it is done, begun or to do, and what it needs."""
    recipe = recipe_named(recipe)
    sweep = Sweep.read(recipe, output, changes)
    rows = plan(Recipe.read(recipe, output, changes)) if sweep is None else plan_sweep(sweep)
    if as_json:
        trials = {} if sweep is None else {"trials": [trial.name for trial in sweep.trials]}
        print(json.dumps({**trials, "stages": rows}, ensure_ascii=False))
    elif sweep is None:
        _print_stages(rows)
    else:
        _print_trials(sweep, rows)


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
        print(f"{trial.name}: {done} of {len(trial.recipe.stages)} stages done")
    print(f"\n{len(rows)} stages for all {len(sweep.trials)} trials, where trials share those that are the same:\n")
    names = list(dict.fromkeys(row["stage"] for row in rows))
    for name in names:
        of = [row for row in rows if row["stage"] == name]
        states = ", ".join(f"{count} {word}" for word, count in Counter(row["state"] for row in of).items())
        needs = next((f"; each {row['needs']}" for row in of if row["needs"]), "")
        print(f"{name.ljust(max(map(len, names)))}  {of[0]['verb']:9} {len(of):3} for {sum(len(r['trials']) for r in of)}: {states}{needs}")


@app.command("demo")
@click.option("--output", default="demo", metavar="PATH", help="the folder for the outputs  [demo]")
@click.option("--seed", default=1, metavar="INT", type=int, help="another seed, another sample data set  [1]")
@click.option("--json", "as_json", is_flag=True, help="print the result as one JSON object on standard output")
def demo_command(output: str, seed: int, as_json: bool) -> None:
    """Make a sample data set and run the whole chain on it: BM25, two retrievers, a re-ranker, a report. About five minutes on two cores.

    Run it again and nothing is computed twice; stop it anywhere, run it again, and it continues.
    """
    file = recipe_file("quickstart")
    report = _run(Recipe.read(file, output, (f"seed={seed}",)), as_json)
    if not as_json:
        print(f"\nOpen {report['report']} in a browser. What to try next:")
        print(f"  raydense plan quickstart --output {output}      each stage, and what it took")
        print(
            f"  raydense search --index {output}/dense-2 --model {output}/retriever-2 --queries {output}/data/queries --k 10 --output {output}/my-run"
        )
        print("  raydense import --format beir --input FOLDER --output data/mine      your own data; README: Own data in five minutes")


@app.command("doctor")
@click.option("--json", "as_json", is_flag=True, help="print the findings as one JSON object on standard output")
def doctor_command(as_json: bool) -> None:
    """Check this machine: versions, Ray, GPUs, compiler, storage. Each fault is printed with its fix; exit code 1 if there is one."""
    from raydense.cli.doctor import examine

    findings = list(examine(None if as_json else lambda finding: print(finding.line(), flush=True)))
    if as_json:
        print(json.dumps({"findings": [finding.__dict__ for finding in findings]}))
    if any(finding.state == "fault" for finding in findings):
        sys.exit(1)


@app.command("verify")
@click.argument("folder")
def verify_command(folder: str) -> None:
    """Read the checksums of every artifact in FOLDER (an output of a stage, or of a recipe); exit code 1 if a file is damaged."""
    damaged = False
    with Progress("verify", 0, "files") as progress:
        for artifact, file, wrong in verify_all(folder):
            progress.add(1)
            if wrong:
                damaged = True
                progress.clear()
                fix = "run" if wrong == "missing" else "delete it, and run"
                print(f"{artifact / file}: {wrong}; {fix} the stage that made {artifact} again: it makes only this file", flush=True)
    if damaged:
        sys.exit(1)
    print(f"verify: {folder}: {progress.done:,} files are as they were written")


for _name, _verb in VERBS.items():
    app.add_command(_verb_command(_name, _verb) if _name != "evaluate" else _evaluate_command())


app.add_command(pool_group)
app.add_command(serve_command())
app.add_command(submissions_of(app))
add_verbosity(app)


def main(arguments: list[str] | None = None) -> NoReturn:
    """Run the command line and exit; every error that the user can fix is one line."""
    try:
        app.main(arguments, prog_name="raydense", standalone_mode=False)
        sys.exit(0)
    except click.exceptions.Exit as done:
        sys.exit(done.exit_code)
    except click.exceptions.NoArgsIsHelpError as empty:
        say_error(empty.format_message())
        sys.exit(2)
    except click.ClickException as wrong:
        verb = wrong.ctx.command_path if isinstance(wrong, click.UsageError) and wrong.ctx else "raydense"
        say_error(f"{verb}: {' '.join(wrong.format_message().split())} See `{verb} --help`.")
        sys.exit(2)
    except (KeyboardInterrupt, click.Abort):
        say_error("raydense: interrupted; the same command continues from here")
        sys.exit(130)
    except JobError as error:
        say_error(f"raydense: {error}")
        sys.exit(1)
    except Exception as error:
        found = fixable(error)
        if found is None:
            raise
        say_error(f"raydense: {found[1]}")
        sys.exit(found[0])
