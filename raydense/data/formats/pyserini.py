"""Pyserini: corpus JSON lines {id, contents}, the contents being title and text."""

from __future__ import annotations

from raydense.data.formats.outlet import Outlet
from raydense.data.json_lines import write_json_lines
from raydense.data.store import full_text


def write(outlet: Outlet) -> None:
    """Write the corpus."""
    outlet.choose("corpus")
    write_json_lines(
        outlet.path,
        (
            {"id": name, "contents": text}
            for table in outlet.passages()
            for name, text in zip(table["passage_id"].to_pylist(), full_text(table).to_pylist(), strict=True)
        ),
    )
