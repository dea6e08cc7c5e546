"""What the scores of a re-ranker are: probabilities, or not."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.special import expit

from raydense.errors import InputError
from raydense.inference.rerank import loss_of, probability, refuse_unscored, warn_of_loss
from tests.mining_world import write_table, write_trained


@given(st.lists(st.floats(-(2.0**40), 2.0**40, width=32, allow_subnormal=False), max_size=20))
def test_a_probability_is_the_sigmoid_in_float64_without_a_warning(scores: list[float]) -> None:
    given_ = np.array(scores, dtype=np.float32)
    with np.errstate(all="raise", under="ignore"):
        found = probability(given_)
    assert found.dtype == np.float64
    np.testing.assert_allclose(found, expit(given_.astype(np.float64)), rtol=0, atol=1e-15)
    assert [float(probability(score)) for score in scores] == found.tolist()


def test_unknown_scores_stay_unknown() -> None:
    assert np.isnan(probability(np.array([np.nan]))).all()


@pytest.mark.parametrize(("loss", "warned"), [("listwise", True), ("pointwise", False), (None, False)])
def test_a_model_trained_listwise_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str], loss: str | None, warned: bool) -> None:
    found = loss_of(str(write_trained(tmp_path / "model", loss)))
    assert found == loss
    warn_of_loss("annotate", "re-ranker ce", found)
    said = capsys.readouterr().err
    assert ("annotate: re-ranker ce was trained with loss listwise: " in said) == warned
    assert bool(said) == warned


def test_the_frozen_teacher_of_a_joint_training_was_not_trained_with_its_loss(tmp_path: Path) -> None:
    """`joint` records the default, which a static teacher refuses to be given, beside the re-ranker as it was before."""
    assert loss_of(str(write_trained(tmp_path / "frozen", "listwise", teacher="static"))) is None
    assert loss_of(str(write_trained(tmp_path / "learned", "listwise", teacher="dynamic"))) == "listwise"


def test_only_a_run_of_rerank_has_scores_of_a_reranker(tmp_path: Path) -> None:
    for stage in ("search", "rerank"):
        write_table(tmp_path / stage, "run", [], stage=stage)
    refuse_unscored(str(tmp_path / "rerank"), "give another")
    with pytest.raises(InputError, match=r"search: has no scores of a re-ranker; give another"):
        refuse_unscored(str(tmp_path / "search"), "give another")
