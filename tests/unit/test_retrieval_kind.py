"""How the kind of an index is found."""

from pathlib import Path

import pytest

from raydense.errors import InputError
from raydense.retrieval.kind import kind_of, kinds
from raydense.storage import Draft


def test_the_kinds_are_their_files() -> None:
    assert kinds() == ["bm25", "faiss"]


@pytest.mark.parametrize("kind", ["sparse", "..settings", "__init__"])
def test_an_index_of_a_kind_that_is_not_known_is_refused(tmp_path: Path, kind: str) -> None:
    made = Draft.open(tmp_path / "index", "index", {"test": "index"}).finish(0, kind=kind)
    with pytest.raises(InputError, match=r"index: is of kind .*, which this raydense does not know; use the version that made it"):
        kind_of(made)
