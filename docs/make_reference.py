"""Writes docs/reference.md from the settings, so that the reference always matches the code."""

import typing
from inspect import cleandoc
from pathlib import Path

from pydantic.fields import FieldInfo

from raydense.cli.flags import default_of
from raydense.evaluation.settings import SuiteSettings
from raydense.fields import range_of, takes_words
from raydense.recipes.stage import VERBS
from raydense.serving.settings import ServeSettings
from raydense.settings import BaseSettings
from raydense.training.registry import built_in_methods

_HEAD = """# Reference of the stages

Generated from the settings of the stages (`settings.py` of each package) by `make docs`. A key here is a key of a recipe and a flag of the command line
(`passage_length` is `--passage-length`). *Input*: a folder, whose [fingerprint](formats.md#manifestjson) is part of
the output's. *Resource*: where and how the work is done (workers, memory, limits, logs). It is no part of the fingerprint, so it may differ when a stage
continues. Every other setting shapes the output: with another value the stage refuses to continue in the same folder. `evaluate --suite` consists of many stages and is no stage of a recipe. `serve` makes no artifact: its keys are also
the `args` of an app in a configuration file of Ray Serve.
"""


def reference() -> str:
    """The whole page."""
    stages = {name: verb.settings for name, verb in VERBS.items()} | {"evaluate --suite": SuiteSettings, "serve": ServeSettings}
    return _HEAD + "".join(_stage(name, settings) + _methods(name, settings) for name, settings in stages.items())


def _methods(verb: str, settings: type[BaseSettings]) -> str:
    """A table for each method of a training: the keys that it has beyond those of all methods, or of the method that it derives from."""
    made, shown = "", {settings: "every method"}
    for method in built_in_methods(verb) if settings.chosen_by else []:
        own = method.Settings
        of = next(one for one in own.__mro__ if one in shown)
        made += _stage(f"{verb} --{settings.chosen_by} {method.name}", own, of, f"All keys of {shown[of]}, and:")
        shown[own] = f"`{method.name}`"
    return made.replace("\n## ", "\n### ")


def _stage(name: str, settings: type[BaseSettings], beyond: type[BaseSettings] | None = None, head: str = "") -> str:
    known = beyond.all_fields() if beyond else {}
    new = {key: field for key, field in settings.all_fields().items() if key not in known or field.default != known[key].default}
    rows = [_row(key, field, settings.required(key)) for key, field in new.items()]
    lead = f"{cleandoc(str(settings.__doc__))}\n\n{head}".strip()
    if not rows:
        return f"\n## {name}\n\n{lead.removesuffix(', and:')}.\n"
    head = f"\n## {name}\n\n{lead}\n\n| key | is | default | meaning |\n| --- | --- | --- | --- |\n"
    return head + "\n".join(rows) + "\n"


def _row(key: str, field: FieldInfo, required: str) -> str:
    default = f"`{default_of(field)}`" if default_of(field) else ""
    return (
        f"| `{key}` | {', '.join(filter(None, (_kind(field), range_of(field))))} | {required or default} | {field.description} |".replace(
            "|'", "'"
        )
    )


def _kind(field: FieldInfo) -> str:
    extra = field.json_schema_extra if isinstance(field.json_schema_extra, dict) else {}
    if "artifact" in extra:
        return f"input: {extra['artifact']}"
    if "resource" in extra:
        return "resource"
    return "texts" if field.annotation == list[str] and not takes_words(field) else _type(field.annotation)


def _type(annotation: object) -> str:
    if typing.get_origin(annotation) is typing.Literal:
        return " or ".join(f"`{value}`" for value in typing.get_args(annotation))
    parts = [part for part in typing.get_args(annotation) if part is not type(None)]
    if parts and typing.get_origin(annotation) not in (list, tuple):
        return _type(parts[0])
    if typing.get_origin(annotation) is list:
        return "words"
    return {int: "whole number", float: "number", str: "text", bool: "yes or no"}.get(annotation, "numbers")  # type: ignore[call-overload]


if __name__ == "__main__":
    (Path(__file__).parent / "reference.md").write_text(reference(), encoding="utf-8")
