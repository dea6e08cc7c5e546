"""The kinds of modules that an encoder is made of, one file each: a file here is a kind; no list exists.

`modules.json` of a folder names them by the types of sentence-transformers.
"""

from __future__ import annotations

import pkgutil
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from pathlib import Path

from raydense.errors import InputError
from raydense.models.encoder_folder import MODULES, module_entries, weights_folder
from raydense.models.modules.module import Module

_LIBRARY = "sentence_transformers."


@dataclass(frozen=True)
class Part:
    """A module of a folder, not loaded: its kind, and the folder that it is in."""

    kind: type[Module]
    folder: Path


@cache
def kinds() -> dict[str, type[Module]]:
    """The kinds by name, from the files of this package."""
    found: dict[str, type[Module]] = {}
    for file in pkgutil.iter_modules(__path__, f"{__name__}."):
        defined = (value for value in vars(import_module(file.name)).values() if isinstance(value, type) and value.__module__ == file.name)
        found |= {cls.__name__: cls for cls in defined if issubclass(cls, Module) and not cls.__abstractmethods__}
    return found


def parts_of(folder: Path) -> list[Part]:
    """The modules of one encoder's folder in order; a plain Hugging Face folder has only the model.

    InputError if a module is of an unknown kind, or the modules do not turn tokens into vectors.
    """
    if not (folder / MODULES).is_file():
        return [Part(kinds()["Transformer"], weights_folder(folder))]
    parts, names = [], []
    for entry in module_entries(folder):
        name = str(entry["type"]).rsplit(".", 1)[-1]
        names.append(name if str(entry["type"]).startswith(_LIBRARY) else str(entry["type"]))
        if names[-1] in kinds():
            parts.append(Part(kinds()[name], folder / str(entry["path"])))
    if len(parts) < len(names) or not _is_chain([part.kind for part in parts]):
        known = "; ".join(f"{name} takes {kind.takes}" for name, kind in sorted(kinds().items()))
        raise InputError(f"is made of {', '.join(names)}", folder / MODULES, f"what can be read makes vectors of tokens: {known}")
    return parts


def _is_chain(found: list[type[Module]]) -> bool:
    """Whether each module takes what the one before it gives, from tokens to vectors."""
    return [kind.takes for kind in found] + ["vectors"] == ["tokens"] + [kind.gives for kind in found]
