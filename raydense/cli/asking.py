"""`raydense search`: with a question its hits to read, without one a prompt; with queries and an output the stage."""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click

from raydense.cli.flags import flags_of, join, read
from raydense.errors import InputError
from raydense.retrieval.settings import SearchSettings
from raydense.runtime.progress import say, say_error
from raydense.serving.settings import RetrieverSettings
from raydense.settings import BaseSettings, setting

if TYPE_CHECKING:
    from raydense.serving.hits import HitList
    from raydense.serving.retriever import Retriever

SECTION = "To ask questions"
_STAGE = ("output", "queries", "qrels", "vectors")  # one of these, or a file of settings, asks for the stage


class AskSettings(RetrieverSettings):
    """With a question, or without queries and output: answer it from an index in this process, and print the hits; nothing is written.

    Without a question, a prompt reads one a line, until Ctrl-D.
    """

    k: int = setting(10, "passages of each question", ge=1)


def read_search(config: str | None, flags: dict[str, Any]) -> SearchSettings | AskSettings:
    """As `flags.read`, for `search`: the settings of the stage where it has queries or an output, otherwise those of a question."""
    question, given = flags.get("question"), {key: value for key, value in flags.items() if key != "question" and value not in (None, ())}
    if config and question:
        raise InputError("a question takes no file of settings", "--config", "leave out the file, or the question")
    if config or (given.keys() & set(_STAGE) and not question):
        fix = "leave it out, or ask a question without queries and output"
        _refuse_others(given, SearchSettings, "is for questions", fix)
        return read(SearchSettings, config, given)
    fix = f"leave it out, or {'leave out the question' if question else 'give --queries and --output'}"
    _refuse_others(given, AskSettings, "is for many queries", fix)
    return read(AskSettings, None, given)


def _refuse_others(given: dict[str, Any], settings_class: type[BaseSettings], what: str, fix: str) -> None:
    """InputError on a flag that the other form of `search` alone has."""
    if other := next((key for key in given if key not in settings_class.all_fields()), None):
        raise InputError(what, f"--{other.replace('_', '-')}", fix)


def search_flags() -> list[click.Parameter]:
    """The question, the flags of the stage, and those that a question alone has."""
    stage, known = flags_of(SearchSettings), SearchSettings.all_fields()
    asking = [flag for flag in flags_of(AskSettings) if flag.name not in known]
    for flag in asking:
        flag.section = SECTION
    for flag in stage:
        flag.help = str(flag.help).replace("  [required]", "")
        if flag.name == "k":
            flag.help = f"{flag.help}; of a question  [{AskSettings.all_fields()['k'].default}]"
    words = click.Argument(["question"], required=False)
    return [words, *stage, *asking]


def answer(settings: AskSettings, question: str | None, as_json: bool, address: str | None) -> None:
    """Print the hits of a question, or of each line that is typed or piped in."""
    join(address)
    from raydense.serving.retriever import Retriever

    with Retriever(RetrieverSettings(**settings.model_dump(exclude={"k"}, exclude_unset=True))) as retriever:
        show = _as_json if as_json else _as_table
        if question is not None:
            print(show(retriever.search(question, settings.k)))
        else:
            _converse(retriever, settings.k, show)


def _converse(retriever: Retriever, k: int, show: Callable[[HitList], str]) -> None:
    failed, named = False, show is _as_table and not sys.stdin.isatty()  # at a terminal the question stands above its hits
    for question in _questions():
        try:
            found = show(retriever.search(question, k))
            print(f"{question}\n{found}\n" if named else found, flush=True)
        except InputError as error:
            say_error(f"raydense: {error}")
            failed = True
    if failed and not sys.stdin.isatty():
        sys.exit(2)


def _questions() -> Iterator[str]:
    """The lines of standard input that are not blank; at a terminal with a prompt, line editing and a history."""
    typed = sys.stdin.isatty()
    if typed:
        import readline  # noqa: F401 - gives `input` line editing and its history

        say("search: write a question; Ctrl-D ends")
    elif isinstance(sys.stdin, io.TextIOWrapper):
        sys.stdin.reconfigure(errors="surrogateescape")  # a line that is no text is refused, and the others are answered
    while True:
        try:
            line = input("? ") if typed else next(sys.stdin)
        except (EOFError, StopIteration):
            if typed:
                print()
            return
        except KeyboardInterrupt:  # as in a shell: the line is given up
            if not typed:
                raise
            print()
            continue
        if line.strip():
            yield line.strip()


def _as_table(hits: HitList) -> str:
    from raydense.cli.hit_table import hit_table

    return hit_table(hits)


def _as_json(hits: HitList) -> str:
    return json.dumps({"question": hits.question, "hits": [asdict(hit) for hit in hits]}, ensure_ascii=False)
