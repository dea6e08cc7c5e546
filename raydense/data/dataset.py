"""Writes a data set: a folder of artifacts that belong together (corpus, queries, qrels, ...), itself an artifact of kind `dataset`."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Container, Iterator
from contextlib import contextmanager
from typing import Any

import pyarrow as pa

from raydense.data.tables import commit_table
from raydense.errors import InputError, LostOutput
from raydense.storage import MANIFEST, Artifact, Draft, Place


def refuse_part_name(name: str, where: Callable[[], object]) -> None:
    """InputError where the name of a part (`qrels/<split>`), which may come from the input, is no path of plain names below the data set.

    `where` gives the place in the input; it is called for the message alone.
    """
    names = name.split("/")
    if len(names) > 2 or not all(re.fullmatch(r"[\w.-]+", each) and each not in (".", "..") for each in names):
        fix = "rename it: a name has letters, digits, _, - and . alone, and is not . or .."
        raise InputError(f"{name!r} cannot be the name of a part of a data set", where(), fix)


def parts_of(dataset: Artifact, without: Container[str] = ()) -> dict[str, str]:
    """The folder of each part of a data set, by name; those in `without` are not looked at.

    InputError where the manifest names a folder elsewhere, or where a part is missing or was replaced since the data set was made.
    """
    found = {}
    for name, made in dataset.summary["parts"].items():
        refuse_part_name(name, lambda: dataset.place / MANIFEST)
        found[name] = str(dataset.place / name)
        if name not in without and (there := Artifact.open(found[name], made["kind"]).fingerprint) != made["fingerprint"]:
            what = f"is not the {name} that the data set was made with (fingerprint {there[:8]}, not {made['fingerprint'][:8]})"
            give = "give this one to `export --dataset` as" if made["kind"] == "qrels" else "export the parts one by one, this one as"
            flag = f"--qrels {name.partition('/')[2]}={found[name]}" if made["kind"] == "qrels" else f"--{made['kind']} {found[name]}"
            raise InputError(what, found[name], f"put that back, or {give} {flag}")
    return found


@contextmanager
def gone_if_refused(draft: Draft, stays: Callable[[InputError], bool]) -> Iterator[None]:
    """Remove an output whose input is refused, so that the corrected input can have the same output.

    Not where it `stays` after the error, nor one of another process.
    """
    try:
        yield
    except InputError as error:
        if not isinstance(error, LostOutput) and not stays(error):
            draft.discard()
        raise


class DatasetDraft:
    """Opens and finishes the parts of a data set; `done` is the data set if an earlier run finished it.

    Parts that an earlier, interrupted run finished are kept. Parts that are damaged or missing are made again.
    """

    def __init__(self, output: str | os.PathLike[str], made_from: dict[str, Any]) -> None:
        self.made_from = made_from
        self.draft = Draft.open(output, "dataset", made_from)
        self._parts: dict[str, Artifact] = {}
        if self.draft.done and any(_is_damaged(self.draft.place / name) for name in self.draft.done.summary["parts"]):
            self.draft.reopen()
        self.done = self.draft.done

    def part(self, name: str, kind: str) -> Draft:
        """The draft of the part in the folder `name`; pass its artifact to `keep` when it is finished.

        InputError for a second of that name, and for a name that `refuse_part_name` refuses.
        """
        refuse_part_name(name, lambda: self.draft.place)
        if name in self._parts:
            raise InputError(f"two files of the input would both be {name}", self.draft.place, "rename or remove one")
        return Draft.open(self.draft.place / name, kind, {**self.made_from, "part": name})

    def keep(self, name: str, artifact: Artifact) -> Artifact:
        """Add a finished part to the data set."""
        self._parts[name] = artifact
        return artifact

    def table(self, name: str, kind: str, table: pa.Table, **summary: Any) -> Artifact:
        """Write queries, qrels, examples or a run as the part `name`; `summary` goes into its manifest."""
        draft = self.part(name, kind)
        if draft.done:
            return self.keep(name, draft.done)
        commit_table(draft, f"{kind}.parquet", table)
        return self.keep(name, draft.finish(table.num_rows, **summary))

    def finish(self, **summary: Any) -> Artifact:
        """Finish the data set; its rows are those of the corpus, if it has one. `summary` goes into its manifest."""
        parts = {name: {"kind": a.kind, "rows": a.rows, "fingerprint": a.fingerprint} for name, a in sorted(self._parts.items())}
        rows = self._parts["corpus"].rows if "corpus" in self._parts else max(a.rows for a in self._parts.values())
        return self.draft.finish(rows, parts=parts, **summary)


def _is_damaged(place: Place) -> bool:
    try:
        Artifact.open(place)
    except InputError:
        return True
    return False
