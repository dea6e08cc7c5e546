"""Shared by integration tests: one Ray and one S3 server for the whole session, since both take seconds to start."""

import os
import signal
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
import ray
from s3_server import empty, s3_server
from warm_worker import warm_workers

from raydense.runtime.ray_internals import actors_of


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """A test of real processes that fails runs once more, and the summary names it: another process of the machine may have been the cause."""
    here = Path(__file__).parent
    for item in items:
        if here in item.path.parents:
            item.add_marker(pytest.mark.flaky(reruns=1))


@pytest.fixture(scope="session", autouse=True)
def _hears_ctrl_c() -> None:
    """What a shell starts in the background is deaf to Ctrl-C, and so would be its children; tests send it to both."""
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session", autouse=True)
def _warm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with warm_workers(tmp_path_factory.mktemp("warm")):
        yield


# The namespaces of actors of Ray Data that stay for the next job, and take a hundredth of a core each while they wait.
STAYING = {"AutoscalingCoordinator", "ActorLocationTracker", "_dataset_stats_actor"}


@pytest.fixture(scope="module")
def ray_cluster() -> Iterator[None]:
    """A Ray of this process with four logical CPUs, started by the first module that uses it; it ends with the process.

    A module starts with all of them free: actors of the module before may still be ending.
    """
    if not ray.is_initialized():
        ray.init(address="local", num_cpus=4, include_dashboard=False, log_to_driver=False)
    end = time.monotonic() + 60
    while ray.available_resources().get("CPU", 0) < 4:
        assert time.monotonic() < end, [one for one in actors_of() if one["State"] != "DEAD"]
        time.sleep(0.05)
    yield
    for actor in ray.util.list_named_actors(all_namespaces=True):
        if actor["namespace"] in STAYING:
            with suppress(ValueError):  # it ended by itself
                ray.kill(ray.get_actor(**actor))


@pytest.fixture
def joining(ray_cluster: None) -> dict[str, str]:
    """The environment of another process that joins this Ray, where starting one more would take seconds."""
    return {**os.environ, "RAY_ADDRESS": ray.get_runtime_context().gcs_address}


@pytest.fixture(scope="session")
def _server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    with s3_server(tmp_path_factory.mktemp("moto") / "log") as port:
        yield port


@pytest.fixture(scope="module")
def port(_server: int) -> int:
    """The port of an S3 server whose bucket is empty when the module starts."""
    empty(_server)
    return _server
