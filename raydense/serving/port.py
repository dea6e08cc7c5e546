"""Keeps the port that Ray Serve opens in each of its replicas within the machine."""

from __future__ import annotations


def keep_port_inside() -> None:
    """Have the port that this replica will open listen at the loopback: it unpickles what comes, and Serve would open it to all.

    It is for traffic between deployments by gRPC, which is off unless Serve is told otherwise; its address cannot be set.
    """
    from ray.serve._private import constants, replica

    if constants.RAY_SERVE_USE_GRPC_BY_DEFAULT or constants.RAY_SERVE_PROXY_USE_GRPC:
        return
    add_port = replica.add_port_to_grpc_server
    replica.add_port_to_grpc_server = lambda server, address: add_port(server, address.replace("[::]", "127.0.0.1"))
