"""Positions of ids: as pyarrow's `index_in` gives them, also where all ids have one hash."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from raydense.data import lookup
from raydense.data.lookup import IdLookup

IDS = pa.array([f"q{i}" for i in range(50)])
WANTED = pa.chunked_array([["q7", "none", "q49"], ["q0", "q7"]])


@pytest.mark.parametrize("collide", [False, True])
def test_positions_are_those_of_index_in(monkeypatch: pytest.MonkeyPatch, collide: bool) -> None:
    if collide:
        monkeypatch.setattr(lookup, "hash_strings", lambda ids: np.zeros(len(ids), dtype=np.uint64))
    expected = pc.fill_null(pc.index_in(WANTED, value_set=IDS), -1).to_numpy().tolist()
    assert IdLookup(IDS).positions(WANTED).tolist() == expected == [7, -1, 49, 0, 7]
    assert IdLookup(pa.chunked_array([IDS.slice(0, 9), IDS.slice(9)])).positions(WANTED).tolist() == expected


def test_nothing_is_in_an_empty_list_and_nothing_is_asked() -> None:
    assert IdLookup(pa.array([], pa.string())).positions(pa.array(["a"])).tolist() == [-1]
    assert IdLookup(IDS).positions(pa.array([], pa.string())).tolist() == []
