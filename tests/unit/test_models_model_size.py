"""The dimensions that a model's vectors may have, by its size alone."""

from functools import partial

import pytest

from raydense.errors import InputError
from raydense.models.model_size import TINY, check_dimensions
from raydense.retrieval.faiss_size import check_factory


def test_vectors_of_joined_poolings_are_a_multiple_of_the_states_as_wide() -> None:
    with pytest.raises(InputError, match="FAISS cannot make 'PQ256'"):
        check_factory("PQ256", "", int(TINY.each))
    check_dimensions(TINY, partial(check_factory, "PQ256", ""))
    for factory, params, message in (("PQ37x4", "", "FAISS cannot make 'PQ37x4'"), ("Flat", "nprobe=2", "does not take 'nprobe=2'")):
        with pytest.raises(InputError, match=message):
            check_dimensions(TINY, partial(check_factory, factory, params))
