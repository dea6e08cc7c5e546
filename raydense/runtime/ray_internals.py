"""All that raydense takes from Ray's private modules, each with the reason; Ray is pinned below its next minor version for these.

`tests/integration/test_runtime_ray_internals.py` fails where Ray changes one of them.
"""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from traceback import walk_tb
from typing import Any


def free_by_node() -> dict[str, dict[str, float]]:
    """What nobody has reserved of each node, by the node's id. Ray's public call gives the sum over nodes alone."""
    from ray._private.state import available_resources_per_node

    return available_resources_per_node()


def actors_of(job: str) -> list[dict[str, Any]]:
    """The actors of a job (its id as hex) as Ray's controller knows them; the public list needs a dashboard, which we do not start."""
    import ray
    from ray._private.state import actors

    return list(actors(job_id=ray.JobID.from_hex(job)).values())


def is_started(actor: Any) -> bool:
    """Whether an actor's process is up; no public call tells without waiting for it."""
    from ray._private.state import actors

    return actors(actor._actor_id.hex()).get("State") == "ALIVE"


def autoscaler_state() -> Any:
    """What Ray's autoscaler has last reported (`AutoscalingState` of Ray); public is only the text of `ray status`."""
    import ray
    from ray._raylet import GcsClient  # type: ignore[attr-defined]
    from ray.core.generated import autoscaler_pb2

    reply = autoscaler_pb2.GetClusterStatusReply()  # type: ignore[attr-defined]
    reply.ParseFromString(GcsClient(ray.get_runtime_context().gcs_address).get_cluster_status(timeout_s=30))
    return reply.autoscaling_state


# Ray's key-value store, which lives as long as detached actors do: nothing public outlives the process that wrote it.


def kv_put(key: str, value: bytes, namespace: str | None = None) -> None:
    """Keep `value` under `key`, in place of what is there."""
    from ray.experimental.internal_kv import _internal_kv_put

    _internal_kv_put(key.encode(), value, overwrite=True, namespace=_bytes(namespace))


def kv_get(key: str, namespace: str | None = None) -> bytes | None:
    """What is kept under `key`; None where nothing is."""
    from ray.experimental.internal_kv import _internal_kv_get

    value: bytes | None = _internal_kv_get(key.encode(), namespace=_bytes(namespace))
    return value


def kv_delete(key: str, namespace: str | None = None) -> None:
    """Keep nothing under `key` any more."""
    from ray.experimental.internal_kv import _internal_kv_del

    _internal_kv_del(key.encode(), namespace=_bytes(namespace))


def _bytes(namespace: str | None) -> bytes | None:
    return None if namespace is None else namespace.encode()


def end_half_started(error: Exception) -> None:
    """End the processes of a Ray that did not start, given what `ray.init` raised: Ray leaves them as long as this process lives."""
    from ray._private.node import Node

    for frame, _ in walk_tb(error.__traceback__):
        if isinstance(node := frame.f_locals.get("self"), Node):
            node.kill_all_processes(check_alive=False, allow_graceful=False)


def only_on_loopback(address: str) -> bool:
    """Whether `address` is of a Ray that listens at the loopback alone, as the embedded one of another process does.

    Ray would look for it at the machine's own address, for ever.
    """
    from ray._private.services import get_node_ip_address, is_localhost, parse_address

    host, port = parse_address(address) or ("", "")
    if not is_localhost(host):
        return False
    try:
        socket.create_connection((get_node_ip_address(), int(port)), timeout=1).close()
    except OSError:
        return True
    return False


@contextmanager
def on_loopback() -> Iterator[None]:
    """A Ray that is started inside is this machine's alone: it listens at 127.0.0.1, as Ray itself does it on a laptop.

    Ray takes no address of the loopback from its caller, and would listen at all of the machine's addresses.
    """
    from ray._private import ray_constants

    name = ray_constants.ENABLE_RAY_CLUSTERS_ENV_VAR
    before, enabled = os.environ.get(name), ray_constants.ENABLE_RAY_CLUSTER
    os.environ[name], ray_constants.ENABLE_RAY_CLUSTER = "0", False
    try:
        yield
    finally:
        ray_constants.ENABLE_RAY_CLUSTER = enabled
        os.environ.pop(name)
        os.environ.update({name: before} if before is not None else {})


def quiet_token_notes() -> None:
    """Keep Ray's note on its authentication token, which every start would log, out of the output."""
    logging.getLogger("ray._private.authentication.authentication_token_setup").setLevel(logging.ERROR)


def serve_http_config() -> Any:
    """How Ray Serve of this cluster listens; None where it does not run. The public status leaves host and port out."""
    from ray.serve.context import _get_global_client

    client = _get_global_client(raise_if_no_controller_running=False)
    return None if client is None else client.http_config


def keep_serve_port_inside() -> None:
    """Have the port that this Serve replica will open listen at the loopback: it unpickles what comes, and Serve would open it to all.

    It is for traffic between deployments by gRPC, which is off unless Serve is set up otherwise; its address cannot be set.
    """
    from ray.serve._private import constants, replica

    if constants.RAY_SERVE_USE_GRPC_BY_DEFAULT or constants.RAY_SERVE_PROXY_USE_GRPC:
        return
    add_port = replica.add_port_to_grpc_server
    replica.add_port_to_grpc_server = lambda server, address: add_port(server, address.replace("[::]", "127.0.0.1"))
