"""Export: artifacts become files of another tool, by exact field name; written under another name and renamed, never over an existing file."""

from __future__ import annotations

from raydense.data.formats import load_format
from raydense.data.formats.outlet import Outlet
from raydense.data.settings import ExportSettings
from raydense.errors import InputError
from raydense.storage import Place


def export(settings: ExportSettings) -> Place:
    """Write artifacts in another tool's format; returns the place written.

    One file where the format has one for the given artifacts (a run, training examples), else a folder (BEIR). InputError where
    the output exists, where the format cannot hold what is given, or lacks what it needs.
    """
    output = Place.of(settings.output)
    if output.exists():
        raise InputError("exists already", output, "give another --output, or delete it")
    with output.writing() as aside:
        load_format(settings.format).write(Outlet(settings, aside))
    return output
