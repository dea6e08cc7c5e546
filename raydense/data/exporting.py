"""Export: artifacts become files of another tool, by exact field name; written under another name and renamed, never over an existing file."""

from __future__ import annotations

import os
import shutil
import tempfile
import uuid
from collections.abc import Callable
from pathlib import Path

from raydense import storage
from raydense.data.formats import beir, dpr, flagembedding, msmarco, pyserini, tevatron, trec
from raydense.data.formats.outlet import Outlet
from raydense.data.settings import ExportSettings
from raydense.errors import InputError

_WRITE: dict[str, Callable[[Outlet], None]] = {
    "beir": beir.write,
    "msmarco": msmarco.write,
    "trec": trec.write,
    "dpr": dpr.write,
    "tevatron": tevatron.write,
    "flagembedding": flagembedding.write,
    "pyserini": pyserini.write,
}


def export(settings: ExportSettings) -> Path | str:
    """Write artifacts in another tool's format; returns the path written.

    One file where the format has one for the given artifacts (a run, training examples), else a folder (BEIR). InputError where
    the output exists, where the format cannot hold what is given, or lacks what it needs.
    """
    place = storage.place_of(settings.output)
    if isinstance(place, str):
        return _export_to_store(settings, place)
    output = place
    if output.exists():
        raise InputError("exists already", output, "give another --output, or delete it")
    output.parent.mkdir(parents=True, exist_ok=True)
    aside = output.with_name(f".{output.name}.{uuid.uuid4().hex}.aside")
    try:
        _WRITE[settings.format](Outlet(settings, aside))
        os.rename(aside, output)
    finally:
        if aside.is_dir():
            shutil.rmtree(aside, ignore_errors=True)
        else:
            aside.unlink(missing_ok=True)
    return output


def _export_to_store(settings: ExportSettings, uri: str) -> str:
    """Writes on this machine first; the files of a folder then appear one after another."""
    if storage.exists(uri):
        raise InputError("exists already", uri, "give another --output, or delete it")
    with tempfile.TemporaryDirectory(prefix="raydense-export-") as aside:
        made = Path(aside) / uri.rpartition("/")[2]
        _WRITE[settings.format](Outlet(settings, made))
        if made.is_file():
            storage.put_file(uri, made)
        for file in made.rglob("*") if made.is_dir() else ():
            if file.is_file():
                storage.put_file(f"{uri}/{file.relative_to(made).as_posix()}", file)
    return uri
