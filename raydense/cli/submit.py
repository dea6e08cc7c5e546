"""`raydense submit`: the verbs, and `run`, as jobs of a Ray cluster; their state, their output, and how to stop them."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from typing import Any, NoReturn, TextIO

import click

from raydense.cli import jobs
from raydense.cli.asking import SECTION
from raydense.cli.flags import Command, Flag, read
from raydense.cli.job_process import JobProcess
from raydense.cli.recipes import read_recipe, stages_of
from raydense.cli.suite import read_evaluate
from raydense.cli.visibility import refuse_local
from raydense.cli.work import Work, announce, recipe_work, verb_work
from raydense.errors import InputError
from raydense.recipes.content import recipe_named
from raydense.recipes.stage import VERBS
from raydense.runtime.progress import say, say_error
from raydense.storage import Place

_RESERVED = "for the job's own process, which else runs on the head"
_DASHBOARD = "the address of the cluster's dashboard, as http://HEAD:8265; by default RAY_ADDRESS"


@click.group("submit")
def submit_group() -> None:
    """Submit a verb, or `run`, as a job of a Ray cluster; follow it here, and end with its exit code.

    `raydense submit train ... --address http://HEAD:8265` is `raydense train ...` there.

    The code of this machine is sent, with the recipe; data is not. Relative paths are resolved from the current folder;
    in a recipe, inputs must be absolute. What a job reads and writes is in a bucket (s3://, gs://), or on storage
    that all nodes mount, at the same path: a path in the home folder or /tmp on a disk of this machine is refused at once, unless the cluster is at an address
    of this machine; and the job first checks every node that is up, and is refused if one does not see an input, or the
    output's folder.

    The job is named by what it makes. Submitted again while it runs, it is followed from its start; when it has ended, it is submitted
    again as NAME-2 and so on, and continues. Ctrl-C leaves it running. The settings are checked before anything is
    sent. The job has the nodes' own environment, and of this machine's --env NAME alone, with --quiet or --verbose and the variables of NCCL and gloo.
    Its own process runs on the head, unless --entrypoint-memory, or another of these, reserves room for it on a node. If the cluster wants a token, set RAY_AUTH_MODE=token and RAY_AUTH_TOKEN.
    """


def _submit_options() -> list[click.Parameter]:
    """The options of a submission in addition to those of what it submits."""
    return [
        Flag(["--address"], metavar="URL", help=_DASHBOARD),
        Flag(["--no-wait"], is_flag=True, help="print the job's name, and do not follow it"),
        Flag(["--python"], default="python", metavar="PATH", help="the Python of the cluster, which has raydense's requirements  [python]"),
        Flag(
            ["--env"],
            multiple=True,
            metavar="NAME[=VALUE]",
            help="a variable of the job and its workers, by default as it is set here; no secrets",
        ),
        Flag(["--entrypoint-num-cpus"], type=click.FloatRange(0), metavar="NUMBER", help=f"CPUs {_RESERVED}, on whichever node has them"),
        Flag(["--entrypoint-memory"], type=click.IntRange(0), metavar="BYTES", help=f"memory {_RESERVED}"),
        Flag(["--entrypoint-resources"], metavar="JSON", help=f"""other resources {_RESERVED}, as '{{"big": 1}}'"""),
    ]


def _submit_verb(name: str, command: click.Command) -> click.Command:
    def call(config: str | None, as_json: bool, **flags: Any) -> None:
        where = {str(option.name): flags.pop(str(option.name)) for option in _submit_options()}
        reading = read_evaluate if name == "evaluate" else lambda config, flags: read(VERBS[name].settings, config, flags)
        settings = reading(config, flags)
        work = verb_work(name, settings)
        again = command.make_context(name, list(work.words[1:])).params
        again = {key: value for key, value in again.items() if key not in ("config", "as_json", "address")}
        if reading(None, again).model_dump() != work.stages[0].settings.model_dump():
            raise InputError("contains a value that flags cannot express, as an empty list", name, "write it as a recipe")
        announce(work, settings)
        _submit(work, as_json, **where)

    params = [param for param in command.params if param.name != "address" and not _asks(param)]
    words = f"Submit `raydense {name}` as a job of a cluster; see `raydense submit --help`."
    settings_class = command.settings if isinstance(command, Command) else None
    return Command(
        name, settings_class, params=[*params, *_submit_options()], callback=call, help=words, short_help=f"`raydense {name}` as a job."
    )


def _asks(param: click.Parameter) -> bool:
    """Whether it is for the questions that `search` answers in its own process: a job has none."""
    return isinstance(param, click.Argument) or getattr(param, "section", "") == SECTION


def _submit_run(command: click.Command) -> click.Command:
    def call(recipe: str, output: str, changes: tuple[str, ...], as_json: bool, concurrent: int, **where: Any) -> None:
        recipe, whole = recipe_named(recipe), Place.of(output).located if output else ""
        words = [word for change in changes for word in ("--set", change)] + ["--concurrent", str(concurrent)] * (concurrent > 1)
        work = recipe_work(recipe, whole, stages_of(read_recipe(recipe, whole, changes, concurrent)), words)
        if whole != output:
            say(f"submit: --output is {whole}")
        _submit(work, as_json, **where)

    params = [param for param in command.params if param.name != "address"]
    words = "Submit `raydense run RECIPE` as a job of a cluster; see `raydense submit --help`."
    return click.Command("run", params=[*params, *_submit_options()], callback=call, help=words, short_help="`raydense run` as a job.")


def _submit(work: Work, as_json: bool, address: str | None, no_wait: bool, **started: Any) -> None:
    process = JobProcess.read(**started)
    where = jobs.dashboard(address)
    refuse_local(work, where)
    if as_json:
        work = replace(work, words=(*work.words, "--json"))
    client = jobs.connect(where)
    name, happened = jobs.start(client, work, process)
    say(f"{name}: {happened}")
    if not no_wait:
        _follow(client, name, where, as_json, sys.stderr)
    print(json.dumps(jobs.record(jobs.job_of(client, name))) if as_json else name)
    say(jobs.wait_words(name, where))


def _follow(client: Any, name: str, address: str, as_json: bool, out: TextIO) -> NoReturn:
    """Pass on what a job prints, and exit with its code."""
    output = _Output(out)
    try:
        job = jobs.Follower(client, name, output.write).follow()
    except KeyboardInterrupt:
        say(f"\n{jobs.wait_words(name, address)}")
        sys.exit(130)
    code = jobs.exit_code(job)
    (say_error if code else say)(f"{name}: {jobs.outcome(job)}")
    if as_json:
        print(json.dumps(jobs.record(job) | {"result": output.result()}, ensure_ascii=False))
    sys.exit(code)


class _Output:
    """Passes on what a job prints; keeps the last line that may be its result as JSON."""

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


def submissions_of(app: click.Group) -> click.Group:
    """The group `submit`, with the verbs of `app` and its `run`."""
    for name in VERBS:
        submit_group.add_command(_submit_verb(name, app.commands[name]))
    submit_group.add_command(_submit_run(app.commands["run"]))
    return submit_group


_NAME = click.argument("name")
_WHERE = click.option("--address", metavar="URL", help=_DASHBOARD)
_AS_JSON = click.option("--json", "as_json", is_flag=True, help="print the result as JSON on standard output")


def _print_job(job: Any, as_json: bool) -> None:
    print(json.dumps(jobs.record(job)) if as_json else jobs.line(job))


@submit_group.command("status")
@_NAME
@_WHERE
@_AS_JSON
def job_status(name: str, address: str | None, as_json: bool) -> None:
    """Print the state of the job NAME, or how it ended."""
    _print_job(jobs.job_of(jobs.connect(jobs.dashboard(address)), name), as_json)


@submit_group.command("stop")
@_NAME
@_WHERE
@_AS_JSON
def job_stop(name: str, address: str | None, as_json: bool) -> None:
    """End the job NAME. What its stages committed is kept: submitted again, they continue."""
    job, ran = jobs.stop(jobs.connect(jobs.dashboard(address)), name)
    if not ran:
        say(f"{name}: had ended before")
    _print_job(job, as_json)


@submit_group.command("list")
@_WHERE
@_AS_JSON
def job_list(address: str | None, as_json: bool) -> None:
    """Print the state of all jobs that raydense submitted, the oldest first."""
    rows = jobs.submissions(jobs.connect(jobs.dashboard(address)))
    if as_json:
        print(json.dumps([jobs.record(job) for job in rows]))
    for job in () if as_json else rows:
        print(jobs.line(job))


@submit_group.command("logs")
@_NAME
@_WHERE
@click.option("--no-wait", is_flag=True, help="only what it printed so far")
def job_logs(name: str, address: str | None, no_wait: bool) -> None:
    """Print the output of the job NAME, from its start, until it ends; the exit code is the job's."""
    where = jobs.dashboard(address)
    client = jobs.connect(where)
    jobs.job_of(client, name)
    if not no_wait:
        _follow(client, name, where, False, sys.stdout)
    with jobs.reached():
        text = client.get_job_logs(name)
    print(text, end="")
