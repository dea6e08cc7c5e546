"""One local Ray for all tests of this folder."""

from collections.abc import Iterator

import pytest
import ray


@pytest.fixture(scope="session", autouse=True)
def ray_cluster() -> Iterator[None]:
    ray.init(address="local", num_cpus=4, include_dashboard=False, log_to_driver=False)
    yield
    ray.shutdown()
