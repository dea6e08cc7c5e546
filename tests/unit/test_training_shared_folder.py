"""A worker compares the folder that it sees with the driver's, by a mark that the driver leaves there."""

from pathlib import Path

import pytest

from raydense.errors import InputError
from raydense.storage import Place
from raydense.training import shared_folder
from raydense.training.shared_folder import mark, refuse_other_folder


def test_the_driver_s_folder_is_taken(tmp_path: Path) -> None:
    shared = Place.of(tmp_path / "model/.work")
    refuse_other_folder(shared, mark(shared), "model")


def test_another_folder_of_the_name_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """That of a training which this node had begun by itself, and one that is not there."""
    monkeypatch.setattr(shared_folder, "_APPEARS_S", 0.0)
    marked = mark(Place.of(tmp_path / "one"))
    mark(Place.of(tmp_path / "other"))
    for seen in ("other", "none"):
        with pytest.raises(InputError, match="model: is another folder on the node"):
            refuse_other_folder(Place.of(tmp_path / seen), marked, "model")
