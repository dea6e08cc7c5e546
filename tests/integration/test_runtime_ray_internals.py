"""What raydense takes from Ray's private modules still is what it was: this fails first where another version of Ray changes it."""

from __future__ import annotations

import importlib
import inspect
import os
import subprocess
import sys
import time

import pytest
import ray
import ray.data

from raydense.runtime import ray_internals

pytestmark = pytest.mark.usefixtures("ray_cluster")


@ray.remote(num_cpus=0)
class Sleeper:
    def answer(self) -> int:
        return 42


def test_nodes_and_actors() -> None:
    (node,) = [node for node in ray.nodes() if node["Alive"]]
    assert 0 < ray_internals.free_by_node()[node["NodeID"]]["memory"] <= node["Resources"]["memory"]
    actor = Sleeper.remote()
    assert ray.get(actor.answer.remote()) == 42
    assert ray_internals.is_started(actor)
    (known,) = [one for one in ray_internals.actors_of(ray.get_runtime_context().get_job_id()) if one["ActorClassName"] == "Sleeper"]
    assert known["State"] == "ALIVE"
    assert known["Address"]["Port"] > 0
    ray.kill(actor)


def test_what_a_pipeline_calls_at_each_step() -> None:
    """`test_inference_pool_start.py` ends one."""
    calls: list[str] = []
    ray_internals.at_each_step(lambda: calls.append("step"))().on_execution_step(None)
    assert calls == ["step"]
    assert "custom_execution_callback_classes" in ray.data.DataContext.__dataclass_fields__


def test_what_a_training_hears_of_its_nodes() -> None:
    """`test_training_node_taken.py` drains one."""
    from ray.train.v2._internal.execution import context, preemption

    assert "preemption_context" in context.TrainContext.__dataclass_fields__
    assert preemption.PreemptionContext().preemption_info is None
    assert callable(context.get_train_context)


def test_how_a_training_uploads_a_checkpoint() -> None:
    """`test_training_upload.py` does it."""
    from ray.train.v2._internal.execution import context, storage

    assert list(inspect.signature(storage.StorageContext.persist_current_checkpoint).parameters) == [
        "self",
        "checkpoint",
        "checkpoint_dir_name",
    ]
    assert "storage_context" in context.TrainContext.__dataclass_fields__
    assert context.MAX_CHECKPOINT_UPLOAD_THREADS == 1, "uploads are registered in their order"


def test_a_short_training_does_not_wait_for_a_dashboard() -> None:
    """Where there is one, Ray's cleaner of reservations stays."""
    from ray._private.ray_constants import DASHBOARD_ADDRESS

    def callbacks(dashboard: bytes) -> list[str]:
        ray_internals.kv_put(DASHBOARD_ADDRESS, dashboard, namespace="dashboard")
        return [type(one).__name__ for one in ray_internals.trainer_type()(lambda: None)._create_default_callbacks()]

    address = ray_internals.kv_get(DASHBOARD_ADDRESS, namespace="dashboard") or b""
    without, with_dashboard = callbacks(b""), callbacks(b"127.0.0.1:1")
    ray_internals.kv_put(DASHBOARD_ADDRESS, address, namespace="dashboard")
    assert [one for one in with_dashboard if one not in without] == ["PlacementGroupCleanerCallback"]
    assert "BackendSetupCallback" in without
    assert "DatasetsCallback" not in with_dashboard, "its actor hands out Ray datasets, which no training has"


@ray.remote(num_cpus=0)
class Reserves:
    def begin(self) -> str:
        group = ray.util.placement_group([{"CPU": 1}])
        ray.get(group.ready())
        return str(group.id.hex())


def test_what_dead_actors_reserved_is_freed_and_nothing_else() -> None:
    """As of a controller of Ray Train that was killed: a training that starts again would wait for it."""
    dead, alive = Reserves.remote(), Reserves.remote()
    left, kept = ray.get([dead.begin.remote(), alive.begin.remote()])
    own = ray.util.placement_group([{"CPU": 1}])

    def states() -> list[str]:
        return [ray.util.placement_group_table()[name]["state"] for name in (left, kept, own.id.hex())]

    ray.kill(dead)
    while {one["ActorID"]: one["State"] for one in ray_internals.actors_of()}[dead._actor_id.hex()] != "DEAD":
        time.sleep(0.01)
    ray.get(own.ready())
    assert states() == ["CREATED"] * 3, "Ray itself keeps it"
    ray_internals.remove_left_groups()
    while states()[0] != "REMOVED":
        time.sleep(0.01)
    assert states()[1:] == ["CREATED"] * 2
    ray.kill(alive)
    ray_internals.remove_left_groups()
    ray.util.remove_placement_group(own)


def test_without_an_autoscaler_its_state_is_empty() -> None:
    state = ray_internals.autoscaler_state()
    assert state.autoscaler_state_version == 0
    assert list(state.infeasible_resource_requests) == []
    while (adds := ray_internals.adds_nodes()) is None:  # until version 1 has looked once; it runs on every cluster
        time.sleep(0.2)
    assert adds is False


@pytest.mark.parametrize("namespace", [None, "raydense"])
def test_the_key_value_store(namespace: str | None) -> None:
    assert ray_internals.kv_get("test", namespace) is None
    for value in (b"one", b"two"):
        ray_internals.kv_put("test", value, namespace)
        assert ray_internals.kv_get("test", namespace) == value
    assert not ray_internals.kv_add("test", b"three", namespace)
    assert ray_internals.kv_get("test", namespace) == b"two"
    ray_internals.kv_delete("test", namespace)
    assert ray_internals.kv_get("test", namespace) is None
    assert ray_internals.kv_add("test", b"three", namespace)
    assert ray_internals.kv_get("test", namespace) == b"three"
    ray_internals.kv_delete("test", namespace)


def test_the_driver_of_a_job() -> None:
    """`test_serving_command.py` kills one."""
    context = ray.get_runtime_context()
    assert ray_internals.driver_of(context.get_job_id()) == f"process {os.getpid()} of {context.gcs_address.rpartition(':')[0]}"
    assert ray_internals.driver_of("ffffffff") == ""


def test_what_starting_and_serving_need() -> None:
    from ray._private import parameter, ray_constants, services, worker
    from ray._private.node import Node
    from ray.serve._private import constants, replica

    assert {"check_alive", "allow_graceful"} <= inspect.signature(Node.kill_all_processes).parameters.keys()
    before = ray_constants.ENABLE_RAY_CLUSTER
    with ray_internals.on_loopback():
        assert os.environ[ray_constants.ENABLE_RAY_CLUSTERS_ENV_VAR] == "0"
        assert not ray_constants.ENABLE_RAY_CLUSTER
    assert before == ray_constants.ENABLE_RAY_CLUSTER
    with ray_internals.only_what_works():
        assert parameter.RayParams(num_cpus=1).no_monitor
        assert services.start_api_server(False, port=1) == ("", None)
    assert not parameter.RayParams().no_monitor
    assert services.start_api_server.__name__ == "start_api_server"
    assert "ray._private.parameter.RayParams(" in inspect.getsource(worker.init)
    assert "self._webui_url, process_info = ray._private.services.start_api_server(" in inspect.getsource(Node.start_api_server)
    with ray_internals.in_groups_of_their_own(), services.ConsolePopen(["sleep", "60"]) as process:
        assert os.getpgid(process.pid) == process.pid
        process.kill()
    assert inspect.isclass(services.ConsolePopen)
    assert "process = ConsolePopen(" in inspect.getsource(services.start_ray_process)
    assert not ray_internals.only_on_loopback("10.0.0.1:6379")
    assert ray_internals.serve_http_config() is None
    assert {"data", "ignore_prefix"} == inspect.signature(worker.print_to_stdstream).parameters.keys()
    assert "print_to_stdstream(" in inspect.getsource(worker.listen_error_messages)
    assert "ray._raylet.CoreWorker(" in inspect.getsource(worker.connect)
    assert importlib.import_module("ray._private.authentication.authentication_token_setup").logger
    assert callable(replica.add_port_to_grpc_server)
    assert not constants.RAY_SERVE_USE_GRPC_BY_DEFAULT


def test_the_object_store_takes_what_ray_would_take_of_less() -> None:
    assert ray_internals.memory_seen() > 2**28
    assert ray_internals.store_memory(2**28) == int(0.3 * 2**28)
    assert ray_internals.store_memory(2**60) < ray_internals.memory_seen()


def test_errors_of_the_cluster_go_to_standard_error_without_those_that_need_no_action(capsys: pytest.CaptureFixture[str]) -> None:
    from ray._private import worker
    from ray._raylet import CoreWorker

    with ray_internals.quiet_driver():
        assert ray._raylet.CoreWorker is not CoreWorker
    assert ray._raylet.CoreWorker is CoreWorker
    many = "WARNING: 8 PYTHON worker processes have been started on node: 8a3e, which is 4x the maximum expected startup concurrency (2)."
    for line in ("a call failed, with infinite retries remaining", many, "a node is out of memory"):
        worker.print_to_stdstream({"lines": [line], "pid": "raylet", "is_err": False}, ignore_prefix=True)
    printed = capsys.readouterr()
    assert (printed.out, printed.err) == ("", "a node is out of memory\n")


def test_simulated_nodes_have_the_memory_of_their_type(monkeypatch: pytest.MonkeyPatch) -> None:
    provider = ray_internals.simulated_nodes()
    seen = {}

    def create(self: object, config: dict, tags: dict, count: int, resources: dict, labels: dict) -> None:
        from ray._private import parameter

        seen.update(resources, memory=parameter.RayParams().memory)

    monkeypatch.setattr(provider.__base__, "_create_node_with_resources_and_labels", create)
    provider._create_node_with_resources_and_labels(object.__new__(provider), {}, {}, 1, {"CPU": 1.0, "memory": 7e8}, {})
    assert seen == {"CPU": 1.0, "memory": 7e8}
    assert len(ray_internals.simulated_head()) == 56


def test_what_the_front_of_serve_needs() -> None:
    """`test_serving_http.py` asks through it."""
    from ray.serve._private import constants, http_util, proxy, proxy_router
    from ray.serve.config import AutoscalingConfig
    from ray.serve.context import ReplicaContext

    assert hasattr(constants, "RAY_SERVE_HTTP_PROXY_CALLBACK_IMPORT_PATH")
    assert "_app" in vars(http_util.RequestIdMiddleware(None))
    assert "proxy_router" in inspect.signature(proxy.HTTPProxy).parameters
    router = proxy_router.ProxyRouter(lambda *given: None)
    assert router.match_route("/any") is None
    assert router.route_patterns == {}
    assert "_deployment_config" in ReplicaContext.__dataclass_fields__
    assert "max_replicas" in AutoscalingConfig.model_fields


def test_ray_fits_limits_that_it_does_not_see_and_waits_for_its_workers() -> None:
    """As `ulimit -v` on a shared machine: the raylet maps the object store twice, and died in the middle of a stage; and a scheduler's group.

    Workers that took more than a minute to start, as they do on a machine that is busy enough, let no driver in: it waited for ever.
    """
    code = (
        "import resource; resource.setrlimit(resource.RLIMIT_AS, (12 << 30, 12 << 30)); from raydense.runtime import session;"
        "session.memory_total, session.memory_free = lambda: 2 << 30, lambda: 1 << 30; session.ensure_ray(); import ray;"
        "print(*(ray.cluster_resources()[name] for name in ('object_store_memory', 'memory')));"
        "pid = ray._private.worker._global_node.all_processes['raylet'][0].process.pid; print(open(f'/proc/{pid}/environ').read())"
    )
    left_out = ("RAY_ADDRESS", "RAY_worker_register_timeout_seconds")
    environment = {key: value for key, value in os.environ.items() if key not in left_out}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    memory, _, of_raylet = done.stdout.partition("\n")
    store, tasks = map(float, memory.split())
    assert 0 < store <= 0.3 * 2**30
    assert store + tasks == 2**30
    assert "RAY_worker_register_timeout_seconds=180" in of_raylet.split("\0")
