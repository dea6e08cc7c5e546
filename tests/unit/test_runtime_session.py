"""A local Ray that is slow to start: how long it took, and the attempts that are left. A cluster that does not answer."""

from __future__ import annotations

import json

import pytest
import ray
from ray.core.generated.autoscaler_pb2 import AutoscalingState

from raydense.errors import InputError
from raydense.runtime import ray_internals, session


def test_each_attempt_to_start_is_counted(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    clock = [0.0]

    def init(**_: object) -> None:
        clock[0] += 60.4
        raise RuntimeError("The current node timed out during startup.")

    monkeypatch.setattr(session.time, "monotonic", lambda: clock[0])
    monkeypatch.setattr(ray, "init", init)
    with pytest.raises(InputError, match="did not start in time in 3 attempts"):
        session._start()
    assert capsys.readouterr().err.splitlines() == [
        "Ray did not start within 1m00s, as happens on a very busy machine: attempt 2 of 3",
        "Ray did not start within 1m00s, as happens on a very busy machine: attempt 3 of 3",
    ]


GIB = 2**30
NONE = session.resource.RLIM_INFINITY


@pytest.mark.parametrize(
    ("space", "total", "given"),
    [
        (NONE, 512, {}),
        (NONE, 16, {"object_store_memory": 3 * GIB, "_memory": 7 * GIB}),
        (12 * GIB, 512, {"object_store_memory": 3 * GIB // 2}),
        (GIB // 8, 512, {"object_store_memory": 80 * 2**20}),
        (4096 * GIB, 512, {"object_store_memory": 3 * GIB}),
        (12 * GIB, 16, {"object_store_memory": 3 * GIB // 2, "_memory": 17 * GIB // 2}),
    ],
)
def test_ray_takes_no_more_memory_than_limits_leave_that_it_does_not_see(
    space: int, total: int, given: dict[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A machine of 512 GiB, a limit of so much address space, and a control group of `total` GiB of which ten are free."""
    monkeypatch.setattr(session.resource, "getrlimit", lambda _: (space, NONE))
    monkeypatch.setattr(session, "memory_seen", lambda: 512 * GIB)
    monkeypatch.setattr(session, "memory_total", lambda: total * GIB)
    monkeypatch.setattr(session, "memory_free", lambda: 10 * GIB)
    monkeypatch.setattr(session, "store_memory", lambda free: 3 * free // 10)
    assert session._memory() == given


def _given(monkeypatch: pytest.MonkeyPatch, address: str, otherwise: str) -> None:
    """The address of a cluster, which is refused before Ray is asked; `otherwise` is what Ray would do."""

    def init(**_: object) -> None:
        raise AssertionError(otherwise)

    monkeypatch.setenv("RAY_ADDRESS", address)
    monkeypatch.setattr(ray, "init", init)


@pytest.mark.parametrize("address", ["127.0.0.1:1", "192.0.2.2:6379"])
def test_a_cluster_that_does_not_answer_is_refused_in_seconds(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second is of a network that is reserved for documents."""

    _given(monkeypatch, address, "Ray would look for it for minutes")
    monkeypatch.setattr(session, "_ANSWERS_S", 1.0)
    with pytest.raises(InputError, match=r"no Ray cluster answers"):
        session._connect()


def _reports(monkeypatch: pytest.MonkeyPatch, version: int, status: dict[str, object] | None) -> None:
    """What the two versions of Ray's autoscaler have reported."""
    monkeypatch.setattr(ray_internals, "autoscaler_state", lambda: AutoscalingState(autoscaler_state_version=version))
    monkeypatch.setattr(ray_internals, "kv_get", lambda key: None if status is None else json.dumps(status).encode())


@pytest.mark.parametrize(
    ("version", "types", "adds"),
    [
        (3, None, True),
        (0, None, None),
        (0, {}, None),
        (0, {"1f": "node_1f"}, False),
        (0, {"10.0.0.1": "head"}, True),
        (0, {"10.0.0.1": "node_1f"}, True),
    ],
)
def test_either_version_of_the_autoscaler_counts_where_it_manages_the_nodes(
    monkeypatch: pytest.MonkeyPatch, version: int, types: dict[str, str] | None, adds: bool | None
) -> None:
    _reports(monkeypatch, version, {"time": 1.0} if types is None else {"autoscaler_report": {"node_type_mapping": types}})
    assert ray_internals.adds_nodes() is adds
    assert session.autoscales() is bool(adds)


def test_before_any_report_a_cluster_adds_no_nodes(monkeypatch: pytest.MonkeyPatch) -> None:
    _reports(monkeypatch, 0, None)
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    assert session.autoscales() is False


@pytest.mark.parametrize("address", ["ray://head:10001", "http://head:8265"])
def test_a_url_is_refused_with_what_to_give_in_its_place(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ray would connect as a client, which cannot read the state of the cluster."""

    _given(monkeypatch, address, "Ray would connect as a client")
    with pytest.raises(
        InputError, match=rf"^{address}: raydense joins a cluster from one of its nodes.*`raydense submit`.*http://HEAD:8265$"
    ):
        session._connect()
    monkeypatch.setenv("RAY_ADDRESS", "ray://me:secret@head:10001")
    with pytest.raises(InputError) as refused:
        session._connect()
    assert "secret" not in str(refused.value)
