"""The number format of the vectors that `encode` writes, without Ray."""

from __future__ import annotations

import numpy as np
import pytest

from raydense.errors import InputError
from raydense.inference.encode import _as_dtype


def test_vectors_too_large_for_float16_are_refused() -> None:
    vectors = np.array([[1.0, -65_504.0], [0.5, 70_000.0]], np.float32)
    assert _as_dtype(vectors[:1], np.dtype("float16")).tolist() == [[1.0, -65_504.0]]
    with pytest.raises(InputError, match=r"is 70000, too large for float16; give dtype float32"):
        _as_dtype(vectors, np.dtype("float16"))
    assert _as_dtype(vectors, np.dtype("float32")).tolist() == vectors.tolist()
