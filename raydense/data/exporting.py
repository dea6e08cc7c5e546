"""Export: artifacts become files of another tool, with its exact field names; an existing file is never overwritten."""

from __future__ import annotations

from raydense.data.formats import call
from raydense.data.formats.outlet import Outlet
from raydense.data.settings import ExportSettings
from raydense.errors import InputError
from raydense.storage import Place


def export(settings: ExportSettings) -> Place:
    """Write artifacts in another tool's format; returns the place written.

    The output is one file (a run, training examples) or a folder (BEIR), as the format has it. InputError if
    the output exists, if the format cannot hold what is given, or if something that it needs is missing.
    """
    output = Place.of(settings.output)
    exists = InputError("exists already", output, "give another --output, or delete it")
    if output.exists() and not output.half_written():
        raise exists
    try:
        with output.writing(new=True) as aside:
            call(settings.format, "write", Outlet(settings, aside))
    except FileExistsError:
        if not output.exists():
            raise
        raise exists from None
    return output
