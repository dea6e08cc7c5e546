"""An index that does not fit into the memory that a process may take is refused before it is read."""

from __future__ import annotations

from pathlib import Path

import pytest

import raydense as rd
from raydense.errors import InputError
from raydense.serving import retriever
from raydense.storage import Draft


def test_an_index_larger_than_the_limit_of_the_control_group_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Draft.open(tmp_path / "ix", "index", {}).finish(1, kind="bm25", shards=[[0, 1]])
    monkeypatch.setattr(retriever, "memory_total", lambda: 2**20)
    with pytest.raises(InputError, match=r"^index: needs .* of memory, and this machine has 1 MiB; start a pool"):
        rd.Retriever.load(index=tmp_path / "ix")
