"""Flags made from settings, the settings read from what was given, and flags that several commands have."""

from __future__ import annotations

import os
import typing
from functools import partial
from typing import Any, TypeVar

import click
from click.shell_completion import CompletionItem
from pydantic.fields import FieldInfo

from raydense.errors import InputErrors
from raydense.fields import range_of, takes_words
from raydense.recipes.content import load_yaml
from raydense.runtime.verbosity import QUIET, VARIABLE, VERBOSE
from raydense.settings import BaseSettings, put

SomeSettings = TypeVar("SomeSettings", bound=BaseSettings)
_SECTIONS = {"artifact": "Inputs", "resource": "Resources and operation (no part of the fingerprint of the output)"}

_ARTIFACTS, _FOLDER = {"source": "PATH", "model": "MODEL"}, "FOLDER"  # a model may be one of the Hub, a source a file

_FLAGS = f"{__name__}.flags"
AS_JSON = "print the result as one JSON object on standard output"
ADDRESS = "the Ray cluster to join; by default RAY_ADDRESS, else Ray is started on this machine"
CONFIG = "a YAML file with keys of the command, or leave --config out"


class Command(click.Command):
    """A verb whose flags are made from its `settings` when it is called, and listed in its help by what they are.

    If one key decides which others exist, as the objective of a training does, the flags are those of the given value. A verb whose flags
    are made by itself names with `renamed_by` the settings that know the old ones.
    """

    def __init__(
        self, name: str, settings: type[BaseSettings] | None = None, renamed_by: type[BaseSettings] | None = None, **rest: Any
    ) -> None:
        super().__init__(name, **rest)
        self.settings, self.renamed_by = settings, renamed_by

    def get_params(self, ctx: click.Context) -> list[click.Parameter]:
        if self.settings and _FLAGS not in ctx.meta:
            ctx.meta[_FLAGS] = flags_of(self.settings)
        return [*ctx.meta.get(_FLAGS, []), *super().get_params(ctx)]

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        settings_class = self._chosen(args)
        if settings_class:
            ctx.meta[_FLAGS] = flags_of(settings_class)
        try:
            return super().parse_args(ctx, args)
        except click.NoSuchOption as wrong:
            if knows := settings_class or self.renamed_by:
                knows.refuse_renamed(wrong.option_name.lstrip("-").replace("-", "_"), "--")
            raise

    def _chosen(self, args: list[str]) -> type[BaseSettings] | None:
        """The settings that the words of a command line ask for."""
        if self.settings is None or not self.settings.chosen_by:
            return self.settings
        key = self.settings.chosen_by
        config, given = _word_of(args, "config"), _word_of(args, key.replace("_", "-"))
        found = {key: given} if given else load_yaml(config, CONFIG) if config else {}
        return self.settings.chosen(found, "--" if given else f"{config}: ")

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        sections: dict[str, list[tuple[str, str]]] = {"Inputs": [], "Settings": []}
        last: dict[str, list[tuple[str, str]]] = {_SECTIONS["resource"]: [], "Options": []}
        for param in self.get_params(ctx):
            record, section = param.get_help_record(ctx), getattr(param, "section", "Options")
            if record:
                (last if section in last else sections).setdefault(section, []).append(record)
        for title, records in (sections | last).items():
            if records:
                with formatter.section(title):
                    formatter.write_dl(records)


def _word_of(args: list[str], flag: str) -> str | None:
    """The value of a flag among the words of a command line, as far as can be seen before they are parsed."""
    for place, word in enumerate(args):
        if word == f"--{flag}":
            return next(iter(args[place + 1 :]), None)
        if word.startswith(f"--{flag}="):
            return word.partition("=")[2]
    return None


class Flag(click.Option):
    """An option that remembers the section of the help that it belongs to."""

    section = "Options"


def _flag(key: str, field: FieldInfo, section: str, required: str) -> Flag:
    dashed = key.replace("_", "-")
    if _holds(field.annotation, bool):
        flag = Flag([f"--{dashed}/--no-{dashed}", "value"], default=None, help=_help(field, required))
    else:
        flag = Flag(
            [f"--{dashed}", "value"],
            default=None,
            multiple=_holds(field.annotation, list),
            metavar=_metavar(field),
            help=_help(field, required),
            shell_complete=partial(_complete, field),
        )
    flag.name, flag.section = key, section  # click takes no name with a dot from its list
    return flag


def _complete(field: FieldInfo, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """What a shell offers for the value of a flag: its choices, or the paths there are."""
    if choices := [value for value in (*_literals(field.annotation), *(field.examples or [])) if isinstance(value, str)]:
        return [CompletionItem(choice) for choice in choices if choice.startswith(incomplete)]
    return [CompletionItem(incomplete, type="file")] if _metavar(field) in ("PATH", *_ARTIFACTS.values(), _FOLDER) else []


def _holds(annotation: Any, kind: type) -> bool:
    """Whether the annotation is `kind`, or `kind | None`."""
    parts = typing.get_args(annotation) if typing.get_origin(annotation) is not list else ()
    return annotation is kind or typing.get_origin(annotation) is kind or any(_holds(p, kind) for p in parts if p is not type(None))


def _metavar(field: FieldInfo) -> str:
    annotation = field.annotation
    choices = [a for a in _literals(annotation) if isinstance(a, str)]
    if choices:
        return "|".join([*choices, "INT"] if _holds(annotation, int) else choices)
    if isinstance(field.json_schema_extra, dict) and "artifact" in field.json_schema_extra:
        return _ARTIFACTS.get(str(field.json_schema_extra["artifact"]), _FOLDER)
    if _holds(annotation, list):
        return "WORDS" if takes_words(field) else "TEXT"
    for kind, word in ((tuple, "MIN,MAX"), (int, "INT"), (float, "NUMBER")):
        if _holds(annotation, kind):
            return word
    return "PATH" if (field.description or "").startswith("the folder to make") else "TEXT"


def _literals(annotation: Any) -> list[Any]:
    if typing.get_origin(annotation) is typing.Literal:
        return list(typing.get_args(annotation))
    return [value for part in typing.get_args(annotation) for value in _literals(part)]


def _help(field: FieldInfo, required: str) -> str:
    words, said = field.description or "", required or "; ".join(filter(None, (default_of(field), range_of(field))))
    return f"{words}  [{said}]" if said else words


def default_of(field: FieldInfo) -> str:
    """The default of a field as it is typed, or ""."""
    default = field.default
    if isinstance(default, list | tuple):
        return ("," if isinstance(default, tuple) else " ").join(map(str, default))
    return "" if default is None else str(default)


def flags_of(settings_class: type[BaseSettings]) -> list[Flag]:
    """A flag for each key of the settings, those that must be given first, and those of groups last."""
    fields = settings_class.all_fields()
    required_first = sorted(fields, key=lambda key: ("." in key, key != "output", not fields[key].is_required()))
    return [_flag(key, fields[key], _section(settings_class, key, fields[key]), settings_class.required(key)) for key in required_first]


def _section(settings_class: type[BaseSettings], key: str, field: FieldInfo) -> str:
    """The section of the help that lists a flag."""
    group, dot, _ = key.partition(".")
    if dot:
        return f"{group}: {settings_class.model_fields[group].description}"
    extra = field.json_schema_extra
    return next((title for kind, title in _SECTIONS.items() if isinstance(extra, dict) and kind in extra), "Settings")


def read(settings_class: type[SomeSettings], config: str | None, flags: dict[str, Any]) -> SomeSettings:
    """The settings of a file, overridden by those given as flags."""
    values = load_yaml(config, CONFIG) if config else {}
    given = {key: value[0] if isinstance(value, tuple) and len(value) == 1 else value for key, value in flags.items()}
    given = {key: value for key, value in given.items() if value is not None and value != ()}
    as_flags = given.keys() | {"output"} - values.keys()  # a file that many outputs share has none
    for key, value in given.items():
        put(values, key, value)
    try:
        return settings_class.read(values, f"{config}: " if config else "--", as_flags)
    except InputErrors as several:
        raise several.args[0] from None  # of flags the first fault alone: the help shows the rest


def config_flag() -> Flag:
    """The flag of a file of settings."""
    return Flag(["--config"], metavar="FILE", help="YAML with any of these keys; flags override it")


def common_flags() -> list[click.Parameter]:
    """The flags that every stage has."""
    return [
        config_flag(),
        Flag(["--json", "as_json"], is_flag=True, help=AS_JSON),
        Flag(["--address"], metavar="ADDRESS", help=ADDRESS),
    ]


def add_verbosity(command: click.Command) -> None:
    """Give --quiet and --verbose to a command, and to all below it where it is a group."""
    if isinstance(command, click.Group):
        for below in command.commands.values():
            add_verbosity(below)
        return
    texts = {QUIET: "print only results and errors", VERBOSE: "print the logs of Ray and other libraries too"}
    for level, words in texts.items():
        command.params.append(Flag([f"--{level}"], is_flag=True, expose_value=False, callback=_set_verbosity, help=words))


def _set_verbosity(ctx: click.Context, param: click.Parameter, value: bool) -> None:
    if not value:
        return
    if ctx.meta.setdefault(VARIABLE, param.name) != param.name:
        raise click.UsageError("--quiet and --verbose exclude each other: leave one out.", ctx)
    os.environ[VARIABLE] = str(param.name)


def join(address: str | None) -> None:
    """Have this process join the Ray cluster at `address` when it needs Ray, where one is given."""
    if address:
        os.environ["RAY_ADDRESS"] = address  # as Ray itself sets it inside a job; a stage joins when it needs Ray
