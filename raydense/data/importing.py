"""Import: a data set of another tool becomes a folder of artifacts."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from raydense.data.dataset import DatasetDraft
from raydense.data.formats import beir, dpr, flagembedding, irdatasets, msmarco, tevatron, trec
from raydense.data.formats.intake import Intake, Passages, write_corpus
from raydense.data.settings import ImportSettings
from raydense.errors import InputError, did_you_mean
from raydense.storage import Artifact, Draft, Place, provenance

_READ: dict[str, Callable[[Path, Intake], None]] = {
    "beir": beir.read,
    "msmarco": msmarco.read,
    "trec": trec.read,
    "dpr": dpr.read,
    "tevatron": tevatron.read,
    "flagembedding": flagembedding.read,
}
_PASSAGES: dict[str, Callable[[Path], Passages]] = {
    "beir": beir.passages,
    "msmarco": msmarco.passages,
    "dpr": dpr.passages,
    "tevatron": tevatron.passages,
}


def import_dataset(settings: ImportSettings) -> Artifact:
    """Import a data set: an artifact of kind `dataset`, whose parts are folders `corpus`, `queries`, `qrels/<split>`,
    `examples/<split>` and `run`, as far as the input has them.

    InputError names the file and line of what is wrong; nothing is left of the output then.
    """
    if settings.format != "ir_datasets":
        _check_there(settings.input)
    dataset = DatasetDraft(settings.output, provenance("import", settings))
    if dataset.done:
        return dataset.done
    intake = Intake(dataset, settings.shard_rows, settings.corpus, settings.strict)
    with _gone_if_refused(dataset.draft):
        if settings.format == "ir_datasets":
            irdatasets.read(settings.input, intake)
        else:
            _READ[settings.format](Place.of(settings.input).local(), intake)
        if not intake.parts:
            raise InputError("nothing to import", settings.input, "check the format")
        return dataset.finish()


def import_corpus(format: str, input: str | os.PathLike[str], output: str | os.PathLike[str], shard_rows: int = 25_000) -> Artifact:
    """Import only the passages: an artifact of kind `corpus` in the folder `output`.

    `format` is beir, msmarco, dpr, tevatron or ir_datasets. InputError as in `import_dataset`.
    """
    known = [*_PASSAGES, "ir_datasets"]
    if format not in known:
        raise InputError(f"format {format!r} has no corpus of its own", "format", did_you_mean(format, known))
    values = {"format": format, "input": str(input), "output": str(output), "shard_rows": shard_rows}
    settings = ImportSettings.read(values)
    if format != "ir_datasets":
        _check_there(input)
    draft = Draft.open(output, "corpus", provenance("import_corpus", settings))
    with _gone_if_refused(draft):
        found = irdatasets.passages(settings.input) if format == "ir_datasets" else _PASSAGES[format](Place.of(input).local())
        return write_corpus(draft, found, shard_rows)


def _check_there(source: str | os.PathLike[str]) -> None:
    if not Place.of(source).exists():
        raise InputError("no such file or folder", source, "check the path")


@contextmanager
def _gone_if_refused(draft: Draft) -> Iterator[None]:
    """Remove an output whose input was refused, so that the corrected input can be imported to the same place."""
    try:
        yield
    except InputError:
        if draft.done is None:
            draft.discard()
        raise
