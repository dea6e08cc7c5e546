"""Formats of other tools, one file each: a file here that defines one of these functions is a format, named as the file. No list exists.

`read(source, intake)` is what `import` calls, `passages(source)` what `import_corpus` calls, `write(outlet)` what `export` calls.
`plan` asks a folder for the parts that it becomes: `files(source)` gives the files of each, a line a row, by which it counts and cuts
them, too; `parts(source)` the names alone.
A format that defines `chosen` chooses among its negatives by the settings `hard_negatives` of an import.
`source` is a file or folder of this machine; in a format with `BY_NAME = True` it is a library's name of a data set.
"""

from __future__ import annotations

import re
from functools import cache
from importlib import import_module
from pathlib import Path
from types import ModuleType


def formats_that(function: str) -> tuple[str, ...]:
    """The names of the formats that define `read`, `passages`, `write`, `files`, `parts` or `chosen`."""
    return tuple(name for name, text in _texts().items() if re.search(rf"^def {function}\(", text, re.MULTILINE))


def by_name(format: str) -> bool:
    """Whether a format reads data sets that a library knows by name, not files."""
    return bool(re.search("^BY_NAME = True$", _texts()[format], re.MULTILINE))


def load_format(name: str) -> ModuleType:
    """The module of a format."""
    return import_module(f"{__name__}.{name}")


@cache
def _texts() -> dict[str, str]:
    """The text of each file: importing the files is slow, and settings need only their names."""
    files = (file for folder in __path__ for file in Path(folder).glob("[a-z]*.py"))
    return {file.stem: file.read_text("utf-8") for file in sorted(files)}
