"""What the environment of a command says of the network between workers: the interface, for example, by which NCCL connects two machines."""

from __future__ import annotations

import os

_OF_THE_NETWORK = ("NCCL_", "TORCH_NCCL_", "GLOO_SOCKET_")


def network_env() -> dict[str, str]:
    """The variables of NCCL and gloo that are set here, for workers on nodes that were started without them."""
    return {name: value for name, value in os.environ.items() if name.startswith(_OF_THE_NETWORK)}
