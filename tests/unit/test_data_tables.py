"""Tables of more text than Arrow joins to one array of its usual strings."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from raydense.data.tables import first_of_text, first_repeated, one_array, query_positions
from raydense.training.ragged import Ragged

MANY, EACH = 9, 2**27


@pytest.fixture
def strings() -> pa.ChunkedArray:
    """More than 2 GiB in two chunks, all zeros, which take no memory, and three short strings."""
    zeros = pa.py_buffer(np.zeros(MANY * EACH, np.uint8))
    chunk = pa.StringArray.from_buffers(MANY, pa.py_buffer(np.arange(MANY + 1, dtype=np.int32) * EACH), zeros)
    made = pa.chunked_array([chunk, chunk, pa.array(["a", "b", "a"])])
    with pytest.raises(pa.ArrowInvalid, match="offset overflow"):
        made.combine_chunks()
    return made


def test_the_first_of_each_is_found_in_more_than_two_gibibytes(strings: pa.ChunkedArray) -> None:
    assert first_of_text(strings).tolist() == [0] * (2 * MANY) + [2 * MANY, 2 * MANY + 1, 2 * MANY]


def test_ids_are_found_in_more_than_two_gibibytes(strings: pa.ChunkedArray) -> None:
    found = query_positions(pa.chunked_array([["b", "a"]]), pa.table({"query_id": strings}), "qrels")
    assert found.tolist() == [2 * MANY + 1, 2 * MANY]


def test_a_repeated_id_is_found_across_chunks() -> None:
    assert first_repeated(pa.chunked_array([["a", "b"], ["c", "b", "a"]])) == (3, 1)
    assert first_repeated(pa.chunked_array([["a", "b"], ["c"]])) is None
    assert first_repeated(pa.chunked_array([], pa.string())) is None


def test_joined_columns_have_offsets_of_eight_bytes() -> None:
    """As those of more than 2 GiB need."""
    assert one_array(pa.chunked_array([["a"], ["b"]])).equals(pa.array(["a", "b"], pa.large_string()))
    lists = Ragged.of_column(pa.chunked_array([[[1, 2]], [[], [3]]]))
    assert lists.offsets.tolist() == [0, 2, 2, 3]
    assert lists.offsets.dtype == np.int64
