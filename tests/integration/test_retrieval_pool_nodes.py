"""A pool with a name while nodes come and go: a replica moves to a node that has come, and comes back when that is lost."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import ray
from ray._private.ray_constants import DEBUG_AUTOSCALING_STATUS
from ray.cluster_utils import Cluster
from search_versions import K, make_versions, until

from raydense.retrieval.pool import SearchPool
from raydense.runtime.ray_internals import kv_put

NODE = {"num_cpus": 4, "memory": 4 * 2**30, "object_store_memory": 100 * 2**20}


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    ray.shutdown()  # the one of the session: the next module that uses it starts another
    cluster = Cluster(initialize_head=True, head_node_args={**NODE, "include_dashboard": False, "no_monitor": True})
    ray.init(address=cluster.address, log_to_driver=False)
    yield cluster
    ray.shutdown()
    cluster.shutdown()


def _grows() -> None:
    """From now on the cluster is one that adds nodes, as far as its autoscaler reports."""
    report = {"autoscaler_report": {"node_type_mapping": {"127.0.0.1": "small"}}}
    kv_put(DEBUG_AUTOSCALING_STATUS, json.dumps(report).encode())


@pytest.mark.long
def test_replicas_leave_nodes_with_gpus_of_a_cluster_that_grows(cluster: Cluster, tmp_path: Path) -> None:
    """Which they keep up; and what starts later goes to the nodes without at once."""
    versions = make_versions(tmp_path)
    without = {node["NodeID"] for node in ray.nodes()}
    cluster.add_node(**NODE, num_gpus=2)
    until(lambda: len(ray.nodes()) == 2, "the node has not joined")

    def nodes(pool: SearchPool) -> set[str]:
        actors = pool.status()["actors"]
        return {actor["node"] for actor in actors} if all(actor["state"] == "ready" for actor in actors) else set()

    with SearchPool.start(versions.indexes[0], name="leaving") as pool:
        until(lambda: len(nodes(pool)) == 2, "the actors are not spread")
        _grows()
        until(lambda: nodes(pool) == without, "an actor stays on the node with GPUs")
        assert versions.is_right(pool.answer(versions.queries, K), slice(None))
        pool.swap(versions.indexes[1])
        assert nodes(pool) == without
        with SearchPool.start(versions.indexes[0], name="apart", shard_replicas=2) as other:
            until(lambda: bool(nodes(other)), "it does not load")
            assert nodes(other) == without
        with SearchPool.start(versions.indexes[0], shard_replicas=2) as brief:  # it ends with its stage, and is faster on more nodes
            held = ray.get([actor.health.remote() for replicas in brief.actors for actor in replicas])
            assert len({one["node"] for one in held}) == 2


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
