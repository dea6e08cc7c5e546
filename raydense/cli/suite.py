"""`raydense evaluate`: with --suite a table over many test sets, without it a report on runs."""

from __future__ import annotations

import json
from typing import Any

import click

from raydense.cli.flags import CONFIG, flags_of, read
from raydense.errors import InputError
from raydense.evaluation.settings import EvaluateSettings, SuiteSettings
from raydense.recipes.content import load_yaml
from raydense.recipes.suite import tables_of
from raydense.runtime.progress import say

_SECTION = "With --suite: one table over many test sets, in place of runs"


def read_evaluate(config: str | None, flags: dict[str, Any]) -> EvaluateSettings | SuiteSettings:
    """As `flags.read`, for `evaluate`: the settings with --suite are others; InputError if a flag belongs to the other kind."""
    runs, suite = EvaluateSettings.model_fields, SuiteSettings.model_fields
    given = [*(load_yaml(config, CONFIG) if config else {}), *(key for key, value in flags.items() if value not in (None, ()))]
    settings_class: type[EvaluateSettings] | type[SuiteSettings]
    settings_class, other = (SuiteSettings, runs) if "suite" in given else (EvaluateSettings, suite)
    for key in given:
        name = key.partition(".")[0]
        if name in other and name not in settings_class.model_fields:
            what, fix = ("does not go", "leave it or --suite out") if other is runs else ("goes", "give --suite, or leave it out")
            raise InputError(f"{what} with --suite", f"--{key.replace('_', '-')}", fix)
    return read(settings_class, config, {key: value for key, value in flags.items() if key in settings_class.all_fields()})


def evaluate_flags() -> list[click.Parameter]:
    """The flags of a report on runs, and those that a suite alone has."""
    runs, suite = EvaluateSettings.model_fields, SuiteSettings.model_fields
    of_runs, of_suite = flags_of(EvaluateSettings), [flag for flag in flags_of(SuiteSettings) if flag.name not in runs]
    for flag in of_suite:
        flag.section = _SECTION
    for flag in of_runs:
        if flag.name == "metrics":
            flag.help = f"{flag.help}; with --suite  [{' '.join(suite['metrics'].default)}]"
    for flag in (*of_runs, *of_suite):
        if flag.name != "output":
            flag.help = str(flag.help).replace("  [required]", "")
    return [*of_runs, *of_suite]


def print_suite(settings: SuiteSettings, as_json: bool) -> None:
    """Run a suite and print its table; the error of its first part that failed is raised afterwards."""
    summary, table, fault = tables_of(settings)
    print(json.dumps(summary, ensure_ascii=False) if as_json else f"\n{table}\n", flush=True)
    say(f"table: {settings.output}/suite.md")
    if fault:
        raise fault
