"""The command line: `raydense VERB [--config file.yaml] [--key value ...]`, one verb per stage, with flags made from its settings.

Exit code 0 done, 2 bad input or settings (one line: what, where, the fix), 1 anything else, 130 interrupted, 143 ended by SIGTERM,
129 by a closed terminal.
"""

from __future__ import annotations

import json
import signal
import sys
import threading
from inspect import cleandoc
from types import FrameType
from typing import Any, NoReturn

import click

from raydense import __version__
from raydense.cli.asking import AskSettings, answer, read_search, search_flags
from raydense.cli.examples import example_of
from raydense.cli.flags import AS_JSON, Command, add_verbosity, common_flags, join, read
from raydense.cli.jobs import JobError
from raydense.cli.plan import plan_command
from raydense.cli.pools import pool_group
from raydense.cli.recipes import demo_command, run_command
from raydense.cli.serving import serve_command
from raydense.cli.submit import submissions_of
from raydense.cli.suite import evaluate_flags, print_suite, read_evaluate
from raydense.cli.visibility import check_submission
from raydense.errors import fixable
from raydense.evaluation.settings import EvaluateSettings, SuiteSettings
from raydense.evaluation.table import comparison_table, measures_runs
from raydense.recipes.stage import VERBS, Stage, Verb
from raydense.retrieval.settings import SearchSettings
from raydense.runtime.own_ray import end_with_own_ray
from raydense.runtime.progress import Progress, say_error
from raydense.runtime.signals import handle
from raydense.storage import Place, verify_all


def _verb_command(name: str, verb: Verb) -> click.Command:
    def call(config: str | None, as_json: bool, address: str | None, **flags: Any) -> None:
        settings = read(verb.settings, config, flags)
        join(address)
        check_submission([Stage(name, name, settings, ())])
        _print_result(name, verb.run(settings), as_json)

    more: dict[str, Any] = {"help": verb.settings.__doc__, "epilog": example_of(name)}
    return Command(name, settings=verb.settings, params=common_flags(), callback=call, **more)


def _evaluate_command() -> click.Command:
    """The verb `evaluate`, which with --suite has settings of its own."""

    def call(config: str | None, as_json: bool, address: str | None, **flags: Any) -> None:
        settings = read_evaluate(config, flags)
        join(address)
        check_submission([Stage("evaluate", "evaluate", settings, ())])
        if isinstance(settings, SuiteSettings):
            print_suite(settings, as_json)
        else:
            _print_result("evaluate", VERBS["evaluate"].run(settings), as_json)

    words = "\n\n".join(cleandoc(str(kind.__doc__)) for kind in (EvaluateSettings, SuiteSettings))
    params = [*evaluate_flags(), *common_flags()]
    return Command("evaluate", renamed_by=EvaluateSettings, params=params, callback=call, help=words, epilog=example_of("evaluate"))


def _search_command() -> click.Command:
    """The verb `search`, which with a question prints its hits."""

    def call(config: str | None, as_json: bool, address: str | None, question: str | None, **flags: Any) -> None:
        settings = read_search(config, {**flags, "question": question})
        if isinstance(settings, AskSettings):
            answer(settings, question, as_json, address)
            return
        join(address)
        check_submission([Stage("search", "search", settings, ())])
        _print_result("search", VERBS["search"].run(settings), as_json)

    words = "\n\n".join(cleandoc(str(kind.__doc__)) for kind in (SearchSettings, AskSettings))
    return Command("search", params=[*search_flags(), *common_flags()], callback=call, help=words, epilog=example_of("search"))


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
        if measures_runs(result):
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
@click.option("--json", "as_json", is_flag=True, help=AS_JSON)
def verify_command(folder: str, as_json: bool) -> None:
    """Read the checksums of every artifact in FOLDER (an output of a stage, or of a recipe); exit code 1 if a file is damaged."""
    damaged: list[dict[str, str]] = []
    progress = Progress("verify", 0, "files")
    try:
        for artifact, file, wrong in verify_all(folder):
            progress.add(1)
            if not wrong:
                continue
            damaged.append({"artifact": str(artifact), "file": file, "wrong": wrong})
            if not as_json:
                progress.clear()
                fix = "run" if wrong == "missing" else "delete it, and run"
                print(f"{artifact / file}: {wrong}; {fix} the stage that made {artifact} again: it makes only this", flush=True)
    finally:
        progress.clear()
    if as_json:
        print(json.dumps({"folder": folder, "files": progress.done, "damaged": damaged}, ensure_ascii=False))
    elif not damaged:
        print(f"verify: {folder}: {progress.done:,} files are as they were written")
    if damaged:
        sys.exit(1)


_OWN = {"evaluate": _evaluate_command, "search": _search_command}  # verbs that have a second form
for _name, _verb in VERBS.items():
    app.add_command(_OWN[_name]() if _name in _OWN else _verb_command(_name, _verb))


for _command in (run_command, plan_command, demo_command, pool_group, serve_command()):
    app.add_command(_command)
app.add_command(submissions_of(app))
add_verbosity(app)


def main(arguments: list[str] | None = None) -> NoReturn:
    """Run the command line and exit; every error that the user can fix is one line, each fault of a recipe too."""
    heard: list[int] = []  # an exit code is lost where Ray waits: it exits with 1 there

    def end(number: int, frame: FrameType | None) -> NoReturn:
        heard.append(number)
        sys.exit(128 + number)

    if threading.current_thread() is threading.main_thread():
        handle((signal.SIGTERM, signal.SIGHUP), end)
    end_with_own_ray()
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
    except SystemExit:
        if not heard:
            raise
        say_error(f"raydense: ended by {signal.Signals(heard[0]).name}; the same command continues from here")
        sys.exit(128 + heard[0])
    except JobError as error:
        say_error(f"raydense: {error}")
        sys.exit(1)
    except Exception as error:
        found = fixable(error)
        if found is None:
            raise
        for line in found[1].splitlines():
            say_error(f"raydense: {line}")
        sys.exit(found[0])
