"""A pool with a name while nodes come and go: a replica moves to a node that has come, and comes back when that is lost."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import ray
from ray.cluster_utils import Cluster
from search_versions import K, make_versions

from raydense.retrieval.pool import SearchPool

NODE = {"num_cpus": 4, "memory": 4 * 2**30, "object_store_memory": 100 * 2**20}


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    ray.shutdown()  # the one of the session: the next module that uses it starts another
    cluster = Cluster(initialize_head=True, head_node_args={**NODE, "include_dashboard": False})
    ray.init(address=cluster.address, log_to_driver=False)
    yield cluster
    ray.shutdown()
    cluster.shutdown()


@pytest.mark.long
def test_replicas_go_to_a_node_that_has_come_and_come_back(cluster: Cluster, tmp_path: Path) -> None:
    versions = make_versions(tmp_path)
    with SearchPool.start(versions.indexes[0], name="nodes") as pool:

        def asked_until(there: Callable[[set[str]], bool], what: str) -> set[str]:
            end = time.monotonic() + 240
            while True:
                assert versions.is_right(pool.answer(versions.queries, K), slice(None))
                actors = pool.status()["actors"]
                nodes = {actor["node"] for actor in actors if actor["state"] == "ready"}
                if len({actor["shard"] for actor in actors if actor["state"] == "ready"}) == 2 and there(nodes):
                    return nodes
                assert time.monotonic() < end, what

        first = asked_until(lambda nodes: len(nodes) == 1, "the actors are not on the only node")
        second = cluster.add_node(**NODE)
        asked_until(lambda nodes: len(nodes) == 2, "no actor has moved to the new node")
        cluster.remove_node(second, allow_graceful=False)
        asked_until(lambda nodes: nodes == first, "the actor of the lost node is not back")
