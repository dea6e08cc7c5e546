"""The nodes of `local.py`: those that Ray simulates, each with as much memory as the autoscaler was told, which Ray's own leave out."""

from __future__ import annotations

import functools
from typing import Any

from ray._private import parameter
from ray.autoscaler._private.fake_multi_node.node_provider import FakeMultiNodeProvider


class LocalNodes(FakeMultiNodeProvider):
    """A node provider for Ray's autoscaler: a node is a raylet on this machine."""

    def _create_node_with_resources_and_labels(
        self, node_config: dict[str, Any], tags: dict[str, str], count: int, resources: dict[str, float], labels: dict[str, str]
    ) -> None:
        others = {name: amount for name, amount in resources.items() if name != "memory"}
        theirs = parameter.RayParams
        parameter.RayParams = functools.partial(theirs, memory=resources["memory"])  # there is no other way in
        try:
            super()._create_node_with_resources_and_labels(node_config, tags, count, others, labels)
        finally:
            parameter.RayParams = theirs
