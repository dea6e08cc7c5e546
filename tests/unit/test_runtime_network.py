"""The variables of NCCL and gloo that go from a command to its workers."""

import pytest

from raydense.runtime.network import network_env


def test_those_of_the_network_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("NCCL_DEBUG", "TORCH_NCCL_BLOCKING_WAIT", "GLOO_SOCKET_IFNAME", "NCCLX", "HOME"):
        monkeypatch.setenv(name, "1")
    assert network_env() == {"NCCL_DEBUG": "1", "TORCH_NCCL_BLOCKING_WAIT": "1", "GLOO_SOCKET_IFNAME": "1"}
