"""What a submission sends: a verb or a recipe with its paths made absolute, the job's name and command line, and the code.

A submission is named by what it makes: verb, settings, paths and code.
"""

from __future__ import annotations

import hashlib
import os
import shlex
import shutil
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from raydense.errors import InputError
from raydense.recipes.content import load_recipe
from raydense.recipes.inputs import absolute_inputs
from raydense.recipes.stage import Stage
from raydense.runtime.progress import say
from raydense.settings import Settings
from raydense.storage import Place, digest_of


@dataclass(frozen=True)
class Work:
    """What is submitted: a verb or `run`, the stages of it, the words after `raydense` on the job's command line.

    `file` is the recipe that travels with the code: its name and its text.
    """

    verb: str
    stages: tuple[Stage, ...]
    words: tuple[str, ...]
    file: tuple[str, str] | None = None


def verb_work(verb: str, settings: Settings) -> Work:
    """One stage, its paths made absolute from the folder that we are in."""
    whole = absolute_inputs(settings).replaced({"output": Place.of(settings.output).located})
    return Work(verb, (Stage(verb, verb, whole, ()),), (verb, *words_of(whole)))


def recipe_work(file: str, output: str, stages: Iterable[Stage], words: Iterable[str]) -> Work:
    """A recipe merged with its bases; `stages` as it was read for `output`, and `words` the other flags of `raydense run`.

    InputError where a stage reads from a relative path: the job runs in another folder.
    """
    once = tuple({stage.settings.output: stage for stage in stages}.values())
    for stage in once:
        for key, path in (*input_paths(stage.settings), ("output", stage.settings.output)):
            if not (Place.of(path).everywhere or os.path.isabs(path)):
                what = f"{path!r} is a relative path, and the job runs in another folder"
                raise InputError(what, f"{file}: stages.{stage.name}.{key}", "give the absolute path, there or with --set")
    name = f"{Path(file).stem}.yaml"
    text = yaml.safe_dump(load_recipe(file), sort_keys=False, allow_unicode=True)
    return Work("run", once, ("run", name, "--output", output, *words), (name, text))


def words_of(settings: Settings) -> list[str]:
    """The flags for the settings that were given."""
    words: list[str] = []
    given = settings.given_keys()
    for key in settings.all_fields():
        value = settings.value_of(key)
        if key not in given or value is None:
            continue
        flag = key.replace("_", "-")
        if isinstance(value, bool):
            words.append(f"--{flag}" if value else f"--no-{flag}")
        elif isinstance(value, tuple):
            words += [f"--{flag}", ",".join(map(str, value))]
        else:
            words += [word for item in (value if isinstance(value, list) else [value]) for word in (f"--{flag}", str(item))]
    return words


def input_paths(settings: Settings) -> Iterator[tuple[str, str]]:
    """Each path that a stage reads, with its key; a data set's id, a model of the Hub and `tiny` are not paths."""
    return ((key, path) for key, _, _, path in settings.given_inputs() if settings.is_path(key, path))


def needed(stages: Iterable[Stage]) -> list[str]:
    """The paths that stages read and none of them writes."""
    stages = list(stages)
    made = [Path(stage.settings.output) for stage in stages]
    paths = {path: Path(path) for stage in stages for _, path in input_paths(stage.settings)}
    paths = {path: there for path, there in paths.items() if not Place.of(path).everywhere}  # every machine reads a store by itself
    return [path for path, there in paths.items() if not any(there.is_relative_to(folder) for folder in made)]


def submission_name(work: Work) -> str:
    """`raydense-VERB-DIGEST`: a digest of what shapes the output of each stage, of all paths, and of the code."""
    stages = [[s.name, s.verb, s.settings.shaping(), _paths(s.settings), s.settings.output] for s in work.stages]
    return f"raydense-{work.verb}-{digest_of([work.verb, stages, code_digest()])[:12]}"


def _paths(settings: Settings) -> dict[str, Any]:
    return {key: settings.value_of(key) for key in settings.inputs()}


def code_digest(package: Path = Path(__file__).parents[1]) -> str:
    """A digest of the files of a package, without Python's caches."""
    whole = hashlib.sha256()
    for file in sorted(_code(package)):
        whole.update(f"{file.relative_to(package)}\0{hashlib.sha256(file.read_bytes()).hexdigest()}\n".encode())
    return whole.hexdigest()


def _code(package: Path) -> Iterator[Path]:
    return (file for file in package.rglob("*") if file.is_file() and "__pycache__" not in file.parts)


def entrypoint(work: Work, python: str) -> str:
    """The command line of the job, quoted for the shell that Ray gives it to."""
    return shlex.join([python, "-m", "raydense", *work.words])


@contextmanager
def packed(work: Work) -> Iterator[Path]:
    """A folder with what is sent: this package (about a megabyte) and the recipe; never data."""
    with tempfile.TemporaryDirectory(prefix="raydense-submit-") as folder:
        package = Path(__file__).parents[1]
        shutil.copytree(package, Path(folder) / package.name, ignore=shutil.ignore_patterns("__pycache__"))
        if work.file:
            (Path(folder) / work.file[0]).write_text(work.file[1], encoding="utf-8")
        yield Path(folder)


def announce(work: Work, settings: Settings) -> None:
    """Print which path on the cluster each given path stands for."""
    whole = work.stages[0].settings
    given = [*input_paths(settings), ("output", settings.output)]
    paths = [*input_paths(whole), ("output", whole.output)]
    moved = [f"--{key.replace('_', '-')} {new}" for (key, old), (_, new) in zip(given, paths, strict=True) if old != new]
    if moved:
        say(f"submit: relative paths are resolved from the current folder: {', '.join(moved)}")
