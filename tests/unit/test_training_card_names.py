"""The names of inputs that an exported card shows: never where the files of a user lie."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from raydense.training.card import shown_inputs
from raydense.training.settings import TrainSettings

PARTS = st.lists(st.sampled_from(["home", "alice", "..", "data", "corpus"]), min_size=1, max_size=4).filter(lambda parts: parts[-1] != "..")


def shown(path: str, model: str = "tiny") -> dict[str, str]:
    given = {"objective": "retriever", "model": model, "queries": "data/queries", "examples": "ex", "output": "out"}
    return shown_inputs(TrainSettings.read({**given, "corpus": path}))


@given(PARTS, st.booleans())
def test_of_a_path_the_last_part_is_shown(parts, absolute):
    path = ("/" if absolute else "") + "/".join(parts)
    assert shown(path) == {"model": "tiny", "corpus": parts[-1], "queries": "queries", "examples": "ex"}


@pytest.mark.parametrize(
    ("path", "wanted"), [("s3://private/team/corpus", "corpus"), ("./data/corpus", "corpus"), ("file:///home/a/corpus", "corpus")]
)
def test_of_a_bucket_the_last_part(path, wanted):
    assert shown(path)["corpus"] == wanted


def test_a_model_of_the_hub_has_its_name():
    assert shown("corpus", "owner/base@v1")["model"] == "owner/base@v1"
    assert shown("corpus", "hf://owner/base")["model"] == "hf://owner/base"
