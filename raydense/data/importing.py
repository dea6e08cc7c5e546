"""Import: a data set of another tool becomes a folder of artifacts."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from raydense.data.dataset import DatasetDraft, gone_if_refused
from raydense.data.formats import call, defines, faults_of, formats_that, load_format
from raydense.data.formats.intake import Intake, write_corpus
from raydense.data.settings import ImportSettings
from raydense.errors import DownloadError, InputError, RefusedByStore, did_you_mean
from raydense.storage import Artifact, Draft, Place, check_unchanged, provenance, read_manifest, releases_outputs, visible

if TYPE_CHECKING:
    import pyarrow as pa


@releases_outputs
def import_dataset(settings: ImportSettings) -> Artifact:
    """Import a data set: an artifact of kind `dataset`, whose parts are those of `corpus`, `queries`, `qrels/<split>`,
    `examples/<split>` and `run` that the input has.

    InputError names the file and line of a fault; the output is then removed, unless it was finished before or a download failed.
    """
    _check_there(settings)
    made_from = provenance("import", settings)
    finished = read_manifest(settings.output) is not None
    dataset = DatasetDraft(settings.output, made_from)
    if dataset.done:
        return dataset.done
    intake = Intake(dataset, settings)
    with gone_if_refused(dataset.draft, partial(_stays, dataset.draft, finished)):
        call(settings.format, "read", _source(settings), intake)
        if not intake.parts:
            raise InputError("nothing to import", settings.input, "check the format")
        _refuse_changed(settings, made_from)
        return intake.finish()


@releases_outputs
def import_corpus(format: str, input: str | os.PathLike[str], output: str | os.PathLike[str], shard_rows: int = 25_000) -> Artifact:
    """Import only the passages: an artifact of kind `corpus` in the folder `output`.

    `format` is one that has a corpus of its own; the error of another one lists them. InputError as in `import_dataset`.
    """
    values = {"format": format, "input": str(input), "output": str(output), "shard_rows": shard_rows}
    settings = ImportSettings.read(values)
    if not defines(format, "passages"):
        what = f"format {format!r} has no corpus of its own"
        raise InputError(what, "format", did_you_mean(format, formats_that("passages")))
    _check_there(settings)
    made_from = provenance("import_corpus", settings)
    finished = read_manifest(output) is not None
    draft = Draft.open(output, "corpus", made_from)
    with gone_if_refused(draft, partial(_stays, draft, finished)), faults_of(format):
        tables, at = load_format(format).passages(_source(settings))
        return write_corpus(draft, (_checked(tables, settings, made_from), at), shard_rows)


def _check_there(settings: ImportSettings) -> None:
    if not settings.by_name and not Place.of(settings.input).exists():
        raise InputError("no such file or folder", settings.input, "check the path")


def _source(settings: ImportSettings) -> Path:
    return Path(settings.input) if settings.by_name else Place.of(settings.input).source()


def _checked(tables: Iterable[pa.Table], settings: ImportSettings, made_from: dict[str, Any]) -> Iterator[pa.Table]:
    """The tables; InputError at one without a column, and after the last one, before anything is finished, as `_refuse_changed`."""
    for table in tables:
        for name in ("passage_id", "title", "text"):
            if name not in table.column_names:
                what = f"a table of {', '.join(table.column_names)} has no {name}"
                raise InputError(what, f"{settings.format}.passages", "add the column")
        yield table
    _refuse_changed(settings, made_from)


def _refuse_changed(settings: ImportSettings, made_from: dict[str, Any]) -> None:
    """InputError where files changed while they were read, as by a download that still runs."""
    if not settings.by_name:
        check_unchanged(settings.input, made_from["inputs"]["input"])


def _stays(draft: Draft, finished: bool, error: InputError) -> bool:
    """Whether an output was `finished` before and is repaired, or a download failed or a bucket refused a request, and the same command continues it."""
    return finished or (isinstance(error, (DownloadError, RefusedByStore)) and any(visible(draft.place.files())))
