"""The names of the parts of a data set: plain names below its folder, whatever an input calls them."""

import os
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from raydense.data.dataset import DatasetDraft, refuse_part_name
from raydense.errors import InputError

JUDGED = pa.table({"query_id": ["q"], "passage_id": ["p"], "relevance": pa.array([1], pa.int32())})


@settings(max_examples=300)
@given(st.text(st.sampled_from("./a-_ \\\0\n\t~é文٣"), max_size=8))
@example("a/..")
@example("a\n")
def test_a_name_that_is_taken_stays_below_the_folder(name: str) -> None:
    try:
        refuse_part_name(name, lambda: "x")
    except InputError:
        return
    assert os.path.normpath(f"/data/{name}") == f"/data/{name}"
    assert not set(name) & set(" \\\0\n\t~")


@pytest.mark.parametrize(
    "name", ["run", "qrels/dev-small", "qrels/dev.small", "qrels/2019_test", "examples/dual.train", "qrels/训练", "qrels/..a"]
)
def test_ordinary_names_are_taken(name: str) -> None:
    refuse_part_name(name, lambda: "x")


@settings(max_examples=20, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(up=st.integers(1, 4))
def test_a_draft_refuses_a_part_elsewhere(tmp_path: Path, up: int) -> None:
    output = tmp_path / "a/b/out"
    draft = DatasetDraft(output, {"stage": "test"})
    with pytest.raises(InputError, match=r"out: .*\.\./evil' cannot be the name of a part of a data set; rename it"):
        draft.table(f"qrels/{'../' * up}evil", "qrels", JUDGED)
    assert not list(tmp_path.rglob("evil"))
