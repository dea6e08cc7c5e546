"""What tests of faults share: a Ray for those that run a stage in their own process."""

from collections.abc import Iterator

import pytest
import ray

from raydense.runtime.session import ensure_ray


@pytest.fixture(scope="module")
def own_ray() -> Iterator[None]:
    """Ray as a stage starts it, ended with the module where this started it."""
    there = ray.is_initialized()
    ensure_ray()
    yield
    if not there:
        ray.shutdown()
