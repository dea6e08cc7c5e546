"""How the kind of an index is found."""

from pathlib import Path

import pytest

from raydense.errors import InputError
from raydense.retrieval.kind import kind_named, kind_of
from raydense.retrieval.settings import KINDS
from raydense.storage import Draft


def test_each_kind_has_its_file() -> None:
    assert [kind_named(name).title for name in KINDS] == ["FAISS", "BM25"]


@pytest.mark.parametrize("kind", ["sparse", "..settings", "__init__"])
def test_an_index_of_a_kind_that_is_not_known_is_refused(tmp_path: Path, kind: str) -> None:
    made = Draft.open(tmp_path / "index", "index", {"test": "index"}).finish(0, kind=kind)
    with pytest.raises(InputError, match=r"index: is of kind .*, which this raydense does not know; use the version that made it"):
        kind_of(made)
