"""The command line: `raydense VERB [--config file.yaml] [--key value ...]`, one verb per stage, its flags made from its settings.

Exit code 0 done, 2 bad input or settings (one line: what, where, the mend), 1 anything else, 130 interrupted.
"""

from __future__ import annotations

import json
import os
import sys
import typing
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from inspect import cleandoc
from pathlib import Path
from typing import Any, NoReturn, TextIO

import click
from pydantic.fields import FieldInfo

from raydense import __version__, storage, submit
from raydense.data.artifact import named_folder
from raydense.errors import InputError, mendable, why
from raydense.evaluation.table import comparison_table
from raydense.pipeline import VERBS, Recipe, Stage, Verb, load_yaml, plan, recipe_file, run, seconds_behind
from raydense.progress import duration, say
from raydense.settings import EvaluateSettings, Settings, SuiteSettings
from raydense.suite import Suite, run_suite
from raydense.suite import write_tables as write_suite
from raydense.sweep import Sweep, plan_sweep, run_sweep, write_tables

_SUITE = "With --suite: one table over many test sets, in place of runs"
_DASHBOARD = "the address of the cluster's dashboard, as http://HEAD:8265; by default RAY_ADDRESS"
_GROUPS = {"artifact": "Inputs", "resource": "How the work is spread (the output is the same)"}


class Command(click.Command):
    """A verb whose help lists its flags by what they are: inputs, settings, resources."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        sections: dict[str, list[tuple[str, str]]] = {}
        for param in self.get_params(ctx):
            record = param.get_help_record(ctx)
            if record:
                sections.setdefault(getattr(param, "section", "Options"), []).append(record)
        for title in ("Inputs", "Settings", _GROUPS["resource"], _SUITE, "Options"):
            if title in sections:
                with formatter.section(title):
                    formatter.write_dl(sections[title])


class Flag(click.Option):
    """An option that remembers the section of the help that it belongs to."""

    section = "Options"


def _flag(name: str, field: FieldInfo) -> Flag:
    extra = field.json_schema_extra
    kind = next((k for k in _GROUPS if isinstance(extra, dict) and k in extra), None)
    dashed = name.replace("_", "-")
    if _holds(field.annotation, bool):
        flag = Flag([f"--{dashed}/--no-{dashed}", name], default=None, help=_help(field))
    else:
        flag = Flag(
            [f"--{dashed}", name], default=None, multiple=_holds(field.annotation, list), metavar=_metavar(field), help=_help(field)
        )
    flag.section = _GROUPS[kind] if kind else "Settings"
    return flag


def _holds(annotation: Any, kind: type) -> bool:
    """Whether the annotation is `kind`, or `kind | None`."""
    parts = typing.get_args(annotation) if typing.get_origin(annotation) is not list else ()
    return annotation is kind or typing.get_origin(annotation) is kind or any(_holds(p, kind) for p in parts if p is not type(None))


def _metavar(field: FieldInfo) -> str:
    annotation = field.annotation
    choices = [a for a in _literals(annotation) if isinstance(a, str)]
    if choices:
        return "|".join([*choices, "INT"] if _holds(annotation, int) else choices)
    for kind, word in ((list, "WORDS"), (tuple, "MIN,MAX"), (int, "INT"), (float, "NUMBER")):
        if _holds(annotation, kind):
            return word
    return "PATH" if field.json_schema_extra or (field.description or "").startswith("the folder to make") else "TEXT"


def _literals(annotation: Any) -> list[Any]:
    if typing.get_origin(annotation) is typing.Literal:
        return list(typing.get_args(annotation))
    return [value for part in typing.get_args(annotation) for value in _literals(part)]


def _help(field: FieldInfo) -> str:
    words = field.description or ""
    if field.is_required():
        return f"{words}  [required]"
    default = " ".join(map(str, field.default)) if isinstance(field.default, list) else field.default
    return words if default in (None, "") else f"{words}  [{default}]"


def _verb_command(name: str, verb: Verb) -> click.Command:
    def call(config: str | None, as_json: bool, address: str | None, **flags: Any) -> None:
        settings = _read(verb.settings, config, flags)
        _join(address)
        submit.refuse_unseen([Stage(name, name, settings, ())])
        _tell(name, verb.run(settings), as_json)

    return Command(name, params=[*_flags(verb.settings), *_common()], callback=call, help=verb.settings.__doc__)


def _flags(form: type[Settings]) -> list[Flag]:
    fields = form.model_fields
    required_first = sorted(fields, key=lambda key: (key != "output", not fields[key].is_required()))
    return [_flag(key, fields[key]) for key in required_first]


def _read(form: type[Settings], config: str | None, flags: dict[str, Any]) -> Settings:
    """The settings in a file, those that were given as flags in their place."""
    values = load_yaml(config) if config else {}
    if config:
        form.read({"output": "-", **values, **{k: v for k, v in flags.items() if v not in (None, ())}}, f"{config}: ")
    for key, value in flags.items():
        if value is not None and value != ():
            values[key] = value[0] if isinstance(value, tuple) and len(value) == 1 else value
    return form.read(values, "--")


def _evaluate_command() -> click.Command:
    """The verb `evaluate`, which with --suite has settings of its own."""
    runs, suite = EvaluateSettings.model_fields, SuiteSettings.model_fields

    def call(config: str | None, as_json: bool, address: str | None, **flags: Any) -> None:
        settings = _read_evaluate(config, flags)
        _join(address)
        submit.refuse_unseen([Stage("evaluate", "evaluate", settings, ())])
        if isinstance(settings, SuiteSettings):
            _run_suite(Suite.read(settings), as_json)
        else:
            _tell("evaluate", VERBS["evaluate"].run(settings), as_json)

    of_runs, of_suite = _flags(EvaluateSettings), [flag for flag in _flags(SuiteSettings) if flag.name not in runs]
    for flag in of_suite:
        flag.section = _SUITE
    for flag in of_runs:
        if flag.name == "metrics":
            flag.help = f"{flag.help}; with --suite  [{' '.join(suite['metrics'].default)}]"
    for flag in (*of_runs, *of_suite):
        if flag.name != "output":
            flag.help = str(flag.help).replace("  [required]", "")
    words = "\n\n".join(cleandoc(str(form.__doc__)) for form in (EvaluateSettings, SuiteSettings))
    return Command("evaluate", params=[*of_runs, *of_suite, *_common()], callback=call, help=words)


def _read_evaluate(config: str | None, flags: dict[str, Any]) -> Settings:
    runs, suite = EvaluateSettings.model_fields, SuiteSettings.model_fields
    given = [*(load_yaml(config) if config else {}), *(key for key, value in flags.items() if value not in (None, ()))]
    form, other = (SuiteSettings, runs) if "suite" in given else (EvaluateSettings, suite)
    for key in given:
        if key in other and key not in form.model_fields:
            what, mend = ("does not go", "leave it or --suite out") if other is runs else ("goes", "give --suite, or leave it out")
            raise InputError(f"{what} with --suite", f"--{key.replace('_', '-')}", mend)
    return _read(form, config, {key: value for key, value in flags.items() if key in form.model_fields})


def _common() -> list[click.Parameter]:
    return [
        Flag(["--config"], metavar="FILE", help="YAML with any of these keys; flags override it"),
        Flag(["--json", "as_json"], is_flag=True, help="print the result as one JSON object on standard output"),
        Flag(["--address"], metavar="ADDRESS", help="the Ray cluster to join; by default RAY_ADDRESS, else Ray is started on this machine"),
    ]


def _join(address: str | None) -> None:
    if address:
        os.environ["RAY_ADDRESS"] = address  # as Ray itself says it inside a job; a stage joins when it needs Ray


def _tell(verb: str, result: Any, as_json: bool) -> None:
    """Print what a stage made: JSON for programs, a line (or a table of metrics) for people."""
    if isinstance(result, Path | str):
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
        print(f"report: {storage.join(result.place, 'report.html')}")
    else:
        print(f"{verb}: {result.place} ({result.kind}{f', {result.rows:,} rows' if result.rows else ''})")


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 120})
@click.version_option(__version__, message="raydense %(version)s")
def app() -> None:
    """Train and serve dense passage retrieval on Ray.

    Begin with `raydense demo`. A stage reads artifact folders and makes one; it can be stopped at any moment and run again.
    `raydense VERB --help` tells each stage's inputs and settings.
    """


def _recipe_options(command: Callable[..., None]) -> Callable[..., None]:
    command = click.option(
        "--set", "changes", multiple=True, metavar="STAGE.KEY=VALUE", help="change a setting of the recipe (also seed=N)"
    )(command)
    command = click.option("--json", "as_json", is_flag=True, help="print the result as one JSON object on standard output")(command)
    return click.option("--output", required=True, metavar="PATH", help="the folder for the outputs of all stages")(command)


@app.command("run")
@click.argument("recipe")
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
    """Run the stages of RECIPE in order, going on where an earlier run stopped; of a recipe with `sweep:`, every trial's."""
    _join(address)
    read = _read_recipe(recipe, output, changes)
    submit.refuse_unseen(_stages(read))
    if isinstance(read, Recipe):
        _run(read, as_json)
    else:
        _run_sweep(read, concurrent, as_json)


def _read_recipe(file: str, output: str, changes: tuple[str, ...]) -> Recipe | Sweep:
    sweep = Sweep.read(file, output, changes)
    return Recipe.read(file, output, changes) if sweep is None else sweep


def _stages(work: Recipe | Sweep) -> list[Stage]:
    recipes = [work] if isinstance(work, Recipe) else [trial.recipe for trial in work.trials]
    return [stage for recipe in recipes for stage in recipe.stages]


def _run_sweep(sweep: Sweep, concurrent: int, as_json: bool) -> None:
    failed = run_sweep(sweep, concurrent)
    for name, error in failed.items():
        say(f"{name}: failed: {why(error)}")
    if len(failed) < len(sweep.trials):
        summary, table = write_tables(sweep, failed)
        print(json.dumps(summary, ensure_ascii=False) if as_json else f"\n{table}\n", flush=True)
        chart = sweep.output / "sweep.svg"
        say(f"table: {sweep.output / 'sweep.md'}{f', chart: {chart}' if sweep.axis and chart.is_file() else ''}")
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
            report = {"result": result, "report": str(storage.join(artifact.place, "report.html"))}
            if not as_json:
                print(f"\n{comparison_table(artifact, _row_seconds(recipe, stage.settings.run))}\n", flush=True)
                print(f"report: {report['report']}")
    if as_json:
        print(json.dumps({"stages": made, **report}, ensure_ascii=False))
    return report


def _row_seconds(recipe: Recipe, runs: list[str]) -> dict[str, float]:
    """Of each run of a report, the seconds of all that was needed to make it."""
    of_folder = {str(stage.settings.output): stage.name for stage in recipe.stages}
    rows = {}
    for item in runs:
        name, folder = named_folder(item)
        if folder in of_folder:
            rows[name] = seconds_behind(recipe, of_folder[folder])
    return rows


@app.command("plan")
@click.argument("recipe")
@_recipe_options
def plan_command(recipe: str, output: str, changes: tuple[str, ...], as_json: bool) -> None:
    """Say what a run of RECIPE would do: each stage, whether it is done, begun or to do, and what it will need."""
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
    """A line a trial, then a line a stage of the recipe: how many different ones the trials share, and how far these are."""
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
    """Make a sample data set and run the whole house on it: BM25, two retrievers, a re-ranker, a report. About five minutes on two cores.

    Run it again and nothing is computed twice; stop it anywhere and run it again, and it goes on.
    """
    file = recipe_file("quickstart")
    report = _run(Recipe.read(file, output, (f"seed={seed}",)), as_json)
    if not as_json:
        print(f"\nOpen {report['report']} in a browser. What to try next:")
        print(f"  raydense plan {file} --output {output}      each stage, and what it took")
        print(
            f"  raydense search --index {output}/dense-2 --model {output}/retriever-2 --queries {output}/data/queries --k 10 --output {output}/my-run"
        )
        print("  raydense import --format beir --input FOLDER --output data/mine      your own data; README: Own data in five minutes")


@app.command("doctor")
@click.option("--json", "as_json", is_flag=True, help="print the findings as one JSON object on standard output")
def doctor_command(as_json: bool) -> None:
    """Look over this machine: versions, Ray, GPUs, compiler, storage. Each fault comes with its mend; exit code 1 if there is one."""
    from raydense.doctor import examine

    findings = list(examine(None if as_json else lambda finding: print(finding.line(), flush=True)))
    if as_json:
        print(json.dumps({"findings": [finding.__dict__ for finding in findings]}))
    if any(finding.state == "fault" for finding in findings):
        sys.exit(1)


for _name, _verb in VERBS.items():
    app.add_command(_verb_command(_name, _verb) if _name != "evaluate" else _evaluate_command())


@app.group("submit")
def submit_group() -> None:
    """Submit a verb, or `run`, as a job of a Ray cluster; follow it here, and end with its exit code.

    `raydense submit train ... --address http://HEAD:8265` is `raydense train ...` there.

    The code that runs is this machine's: it travels, with the recipe. Data does not. Relative paths are made whole from the folder
    that you are in; in a recipe, inputs must be whole already. What a job reads and writes lies on storage that all nodes mount, at
    the same path: a path in the home folder or /tmp on a disk of this machine is refused at once, unless the cluster is at an address
    of this machine; and the job begins with a look on every node that is up, and is refused if one does not see an input, or the
    output's folder.

    The job is named by what it makes. Submitted again while it runs, it is followed from its start; when it has ended, it is submitted
    anew as NAME-2 and so on, and goes on where it was. Ctrl-C leaves it running. The settings are looked over before anything is
    sent. If the cluster wants a token, set RAY_AUTH_MODE=token and RAY_AUTH_TOKEN.
    """


def _submit_options() -> list[click.Parameter]:
    """The options that a submission has beside those of what it submits."""
    return [
        Flag(["--address"], metavar="URL", help=_DASHBOARD),
        Flag(["--no-wait"], is_flag=True, help="print the job's name, and do not follow it"),
        Flag(["--python"], default="python", metavar="PATH", help="the Python of the cluster, which has raydense's requirements  [python]"),
    ]


def _submit_verb(name: str, command: click.Command) -> click.Command:
    def call(config: str | None, as_json: bool, address: str | None, python: str, no_wait: bool, **flags: Any) -> None:
        read = _read_evaluate if name == "evaluate" else lambda config, flags: _read(VERBS[name].settings, config, flags)
        settings = read(config, flags)
        work = submit.verb_work(name, settings)
        again = command.make_context(name, list(work.words[1:])).params
        again = {key: value for key, value in again.items() if key not in ("config", "as_json", "address")}
        if read(None, again).model_dump() != work.stages[0].settings.model_dump():
            raise InputError("holds what flags cannot say, as a list of one path with a space", name, "write it as a recipe")
        submit.announce(work, settings)
        _submit(work, address, python, no_wait, as_json)

    params = [param for param in command.params if param.name != "address"]
    words = f"Submit `raydense {name}` as a job of a cluster; see `raydense submit --help`."
    return Command(name, params=[*params, *_submit_options()], callback=call, help=words, short_help=f"`raydense {name}` as a job.")


def _submit_run() -> click.Command:
    def call(recipe: str, output: str, changes: tuple[str, ...], as_json: bool, concurrent: int, **where: Any) -> None:
        whole = storage.absolute(output)
        words = [word for change in changes for word in ("--set", change)] + ["--concurrent", str(concurrent)] * (concurrent > 1)
        work = submit.recipe_work(recipe, whole, _stages(_read_recipe(recipe, whole, changes)), words)
        if whole != output:
            say(f"submit: --output is {whole}")
        _submit(work, as_json=as_json, **where)

    params = [param for param in run_command.params if param.name != "address"]
    words = "Submit `raydense run RECIPE` as a job of a cluster; see `raydense submit --help`."
    return click.Command("run", params=[*params, *_submit_options()], callback=call, help=words, short_help="`raydense run` as a job.")


def _submit(work: submit.Work, address: str | None, python: str, no_wait: bool, as_json: bool) -> None:
    where = submit.dashboard(address)
    submit.refuse_local(work, where)
    if as_json:
        work = replace(work, words=(*work.words, "--json"))
    client = submit.connect(where)
    name, became = submit.start(client, work, python)
    say(f"{name}: {became}")
    if not no_wait:
        _follow(client, name, where, as_json, sys.stderr)
    print(json.dumps(submit.show(submit.job_of(client, name))) if as_json else name)
    say(submit.wait_words(name, where))


def _follow(client: Any, name: str, address: str, as_json: bool, out: TextIO) -> NoReturn:
    """Hand on what a job says, and exit as it does."""
    said = _Said(out)
    try:
        job = submit.Follower(client, name, said.write).follow()
    except KeyboardInterrupt:
        say(f"\n{submit.wait_words(name, address)}")
        sys.exit(130)
    say(f"{name}: {submit.outcome(job)}")
    if as_json:
        print(json.dumps(submit.show(job) | {"result": said.result()}, ensure_ascii=False))
    sys.exit(submit.exit_code(job))


class _Said:
    """What a job says, handed on; keeps the last line that may be its result as JSON."""

    def __init__(self, out: TextIO) -> None:
        self.out, self._rest, self._last = out, "", ""

    def write(self, text: str) -> None:
        self.out.write(text)
        self.out.flush()
        *lines, self._rest = (self._rest + text).split("\n")
        self._last = next((line for line in reversed(lines) if line.startswith("{")), self._last)

    def result(self) -> Any:
        try:
            return json.loads(self._last)
        except json.JSONDecodeError:
            return None


for _name, _command in [(name, app.commands[name]) for name in VERBS]:
    submit_group.add_command(_submit_verb(_name, _command))
submit_group.add_command(_submit_run())


_NAME = click.argument("name")
_WHERE = click.option("--address", metavar="URL", help=_DASHBOARD)
_AS_JSON = click.option("--json", "as_json", is_flag=True, help="print the result as JSON on standard output")


def _print_job(job: Any, as_json: bool) -> None:
    print(json.dumps(submit.show(job)) if as_json else submit.line(job))


@submit_group.command("status")
@_NAME
@_WHERE
@_AS_JSON
def job_status(name: str, address: str | None, as_json: bool) -> None:
    """Say how far the job NAME is, or how it ended."""
    _print_job(submit.job_of(submit.connect(submit.dashboard(address)), name), as_json)


@submit_group.command("stop")
@_NAME
@_WHERE
@_AS_JSON
def job_stop(name: str, address: str | None, as_json: bool) -> None:
    """End the job NAME. What its stages committed is kept: submitted again, they go on."""
    job, ran = submit.stop(submit.connect(submit.dashboard(address)), name)
    if not ran:
        say(f"{name}: had ended before")
    _print_job(job, as_json)


@submit_group.command("list")
@_WHERE
@_AS_JSON
def job_list(address: str | None, as_json: bool) -> None:
    """Say how far the jobs are that raydense submitted, the oldest first."""
    rows = submit.jobs(submit.connect(submit.dashboard(address)))
    if as_json:
        print(json.dumps([submit.show(job) for job in rows]))
    for job in () if as_json else rows:
        print(submit.line(job))


@submit_group.command("logs")
@_NAME
@_WHERE
@click.option("--no-wait", is_flag=True, help="only what it said so far")
def job_logs(name: str, address: str | None, no_wait: bool) -> None:
    """Print what the job NAME says, from its start, until it ends; the exit code is the job's."""
    where = submit.dashboard(address)
    client = submit.connect(where)
    submit.job_of(client, name)
    if not no_wait:
        _follow(client, name, where, False, sys.stdout)
    print(client.get_job_logs(name), end="")


def main(arguments: list[str] | None = None) -> NoReturn:
    """Run the command line and exit; every error that a person can mend is one line."""
    try:
        app.main(arguments, prog_name="raydense", standalone_mode=False)
        sys.exit(0)
    except click.exceptions.Exit as done:
        sys.exit(done.exit_code)
    except click.exceptions.NoArgsIsHelpError as empty:
        say(empty.format_message())
        sys.exit(2)
    except click.ClickException as wrong:
        verb = wrong.ctx.command_path if isinstance(wrong, click.UsageError) and wrong.ctx else "raydense"
        say(f"{verb}: {' '.join(wrong.format_message().split())} See `{verb} --help`.")
        sys.exit(2)
    except (KeyboardInterrupt, click.Abort):
        say("raydense: interrupted; the same command goes on from here")
        sys.exit(130)
    except submit.JobError as error:
        say(f"raydense: {error}")
        sys.exit(1)
    except Exception as error:
        found = mendable(error)
        if found is None:
            raise
        say(f"raydense: {found[1]}")
        sys.exit(found[0])
