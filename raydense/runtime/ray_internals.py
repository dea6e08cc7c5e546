"""All that raydense takes from Ray's private modules, each with the reason; Ray is pinned below its next minor version for these.

`tests/integration/test_runtime_ray_internals.py` fails where Ray changes one of them.
"""

from __future__ import annotations

import json
import logging
import os
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import cache, partial
from traceback import walk_tb
from typing import Any

_LOG_LEVEL = "RAY_BACKEND_LOG_LEVEL"
_NEED_NO_ACTION = ("infinite retries remaining", "worker processes have been started on node")  # errors of a raylet


def free_by_node() -> dict[str, dict[str, float]]:
    """The unreserved resources of each node, by the node's id. Ray's public call gives only the sum over all nodes."""
    from ray._private.state import available_resources_per_node

    return available_resources_per_node()


def actors_of(job: str | None = None) -> list[dict[str, Any]]:
    """The actors of a job (its id as hex), or of all jobs, as Ray's control service lists them; the public list needs a dashboard."""
    import ray
    from ray._private.state import actors

    return list(actors(job_id=None if job is None else ray.JobID.from_hex(job)).values())


def kill_actors() -> None:
    """Kill the actors that this process has started, except detached ones; the controller of Ray Train, too, of which it has no handle."""
    import ray
    from ray._private.worker import global_worker
    from ray.exceptions import RayError

    worker: Any = global_worker
    if not ray.is_initialized():
        return
    for actor in actors_of(ray.get_runtime_context().get_job_id()):
        if actor["State"] != "DEAD" and not actor["IsDetached"]:
            with suppress(RayError):  # of this job, but started by another of its processes
                worker.core_worker.kill_actor(ray.ActorID.from_hex(actor["ActorID"]), True)


def driver_of(job: str) -> str:
    """The process that a job (its id as hex) belongs to, in words; "" once it has ended. The public list of jobs needs a dashboard."""
    from ray._private.state import jobs

    runs = (one for one in jobs() if one["JobID"] == job and not one["IsDead"])
    return next((f"process {one['DriverPid']} of {one['DriverIPAddress']}" for one in runs), "")


def is_started(actor: Any) -> bool:
    """Whether an actor's process runs; every public call waits for it."""
    from ray._private.state import actors

    return actors(actor._actor_id.hex()).get("State") == "ALIVE"


def node_leaves() -> bool:
    """Whether Ray notified this worker of a training that a node of its workers is going to be taken away.

    Ray's public call is a meeting of all workers, through an actor, each time.
    """
    from ray.train.v2._internal.execution.context import get_train_context

    return get_train_context().preemption_context.preemption_info is not None


def persist_checkpoint(checkpoint: Any, name: str) -> Any:
    """Upload a checkpoint of a worker of a training as Ray does; returns the one in the store.

    Ray's public call gives an upload function of ours the local checkpoint and the name alone. Where it uploads itself, an error ends
    the workers at once.
    """
    from ray.train import get_context

    return get_context().get_storage().persist_current_checkpoint(checkpoint, name)


def persisted_checkpoint(name: str) -> Any:
    """The checkpoint of this name in the store of this worker's training, for one whose files are there already."""
    from ray.train import Checkpoint, get_context

    storage = get_context().get_storage()
    return Checkpoint(filesystem=storage.storage_filesystem, path=storage.build_checkpoint_path_from_name(name))


def trainer_type() -> Any:
    """Ray Train's `TorchTrainer`, without the actors of its own that serve no training of ours; no setting leaves them out.

    One hands out Ray datasets, which no training of ours has: a process that takes seconds to start, and 200 MB. The other frees what a dead
    controller reserved, and finds out from the dashboard alone whether the controller lives: where there is no dashboard it learns nothing in 40 s, then
    dies; a training that ended before that waited for it, up to 12 s. `remove_left_groups` does it there.
    """
    from ray._private import ray_constants
    from ray.train.torch import TorchTrainer
    from ray.train.v2._internal.callbacks.datasets import DatasetsCallback
    from ray.train.v2._internal.callbacks.placement_group_callback import PlacementGroupCleanerCallback

    class Trainer(TorchTrainer):
        def _create_default_callbacks(self) -> list[Any]:
            dashboard = kv_get(ray_constants.DASHBOARD_ADDRESS, ray_constants.KV_NAMESPACE_DASHBOARD.decode())
            idle = (DatasetsCallback,) if dashboard else (DatasetsCallback, PlacementGroupCleanerCallback)
            callbacks: list[Any] = super()._create_default_callbacks()  # type: ignore[misc]  # Ray's stubs are of another trainer
            return [one for one in callbacks if not isinstance(one, idle)]

    return Trainer


def remove_left_groups() -> None:
    """Remove the placement groups that dead actors of this job made, as a killed controller of Ray Train: Ray keeps them until the job ends.

    The public table of groups does not tell who made them.
    """
    import ray
    from ray._private.state import state
    from ray.core.generated import gcs_pb2
    from ray.util.placement_group import PlacementGroup, remove_placement_group

    job, none = ray.get_runtime_context().get_job_id(), (b"", ray.ActorID.nil().binary())
    for content in state._connect_and_get_accessor().get_placement_group_table():
        group = gcs_pb2.PlacementGroupTableData.FromString(content)  # type: ignore[attr-defined]
        left = group.creator_actor_dead and group.creator_actor_id not in none and not group.is_detached
        if left and group.creator_job_id.hex() == job:
            remove_placement_group(PlacementGroup(ray.PlacementGroupID(group.placement_group_id)))


def at_each_step(check: Callable[[], None]) -> type:
    """A class for the callbacks of a Ray Data pipeline that calls `check` several times a second; what it raises ends the pipeline.

    Ray's public settings can end a pipeline that stands still for a time, none one whose actors end again and again.
    """
    from ray.data._internal.execution.execution_callback import ExecutionCallback

    class Checked(ExecutionCallback):
        def on_execution_step(self, executor: Any) -> None:
            check()

    return Checked


def autoscaler_state() -> Any:
    """The last report of Ray's autoscaler (Ray's `AutoscalingState`); only the text of `ray status` is public. An error if no Ray runs."""
    from ray._raylet import GcsClient  # type: ignore[attr-defined]
    from ray.core.generated import autoscaler_pb2
    from ray.runtime_context import get_runtime_context  # `ray.get_runtime_context` would start a Ray

    reply = autoscaler_pb2.GetClusterStatusReply()  # type: ignore[attr-defined]
    reply.ParseFromString(GcsClient(get_runtime_context().gcs_address).get_cluster_status(timeout_s=30))
    return reply.autoscaling_state


def adds_nodes() -> bool | None:
    """Whether the autoscaler of this cluster starts nodes; None while none has reported. An error if no Ray runs.

    Version 2 reports only where it does. Version 1, which is Ray's default, runs on every cluster: where it starts no nodes, it reports each node as a
    type of its own.
    """
    from ray._private.ray_constants import DEBUG_AUTOSCALING_STATUS
    from ray.autoscaler._private.util import format_readonly_node_type

    if autoscaler_state().autoscaler_state_version > 0:
        return True
    report = json.loads(kv_get(DEBUG_AUTOSCALING_STATUS) or b"{}").get("autoscaler_report") or {}
    types = report.get("node_type_mapping") or {}
    return any(kind != format_readonly_node_type(node) for node, kind in types.items()) if types else None


# Ray's key-value store, which lives as long as detached actors do: every public store ends with the process that wrote it.


def kv_put(key: str, value: bytes, namespace: str | None = None) -> None:
    """Store `value` under `key`; it replaces an earlier one."""
    from ray.experimental.internal_kv import _internal_kv_put

    _internal_kv_put(key.encode(), value, overwrite=True, namespace=_bytes(namespace))


def kv_add(key: str, value: bytes, namespace: str | None = None) -> bool:
    """Store `value` under `key` unless there is one; whether it was stored. Of several processes at once one succeeds."""
    from ray.experimental.internal_kv import _internal_kv_put

    return not _internal_kv_put(key.encode(), value, overwrite=False, namespace=_bytes(namespace))


def kv_get(key: str, namespace: str | None = None) -> bytes | None:
    """The value under `key`, or None."""
    from ray.experimental.internal_kv import _internal_kv_get

    value: bytes | None = _internal_kv_get(key.encode(), namespace=_bytes(namespace))
    return value


def kv_delete(key: str, namespace: str | None = None) -> None:
    """Delete the value under `key`."""
    from ray.experimental.internal_kv import _internal_kv_del

    _internal_kv_del(key.encode(), namespace=_bytes(namespace))


def _bytes(namespace: str | None) -> bytes | None:
    return None if namespace is None else namespace.encode()


def memory_seen() -> int:
    """The bytes of this machine's memory as a Ray that starts sees them: by the outermost control group alone."""
    from ray._common.utils import get_system_memory

    return int(get_system_memory())


def store_memory(free: int) -> int:
    """The bytes that Ray's object store takes where no more than `free` are: a share, no more than /dev/shm has, or Ray refuses to start."""
    from ray._private.utils import estimate_available_memory, resolve_object_store_memory

    return int(resolve_object_store_memory(min(free, estimate_available_memory())))


def end_half_started(error: Exception) -> None:
    """End the processes of a Ray that did not start, given the error of `ray.init`: Ray leaves them running until this process ends."""
    from ray._private.node import Node

    for frame, _ in walk_tb(error.__traceback__):
        if isinstance(node := frame.f_locals.get("self"), Node):
            node.kill_all_processes(check_alive=False, allow_graceful=False)


def own_node() -> Any:
    """The node of the Ray that this process started; None where there is none."""
    from ray._private import worker

    return worker._global_node


def own_node_ended(node: Any) -> bool | None:
    """Whether the node of a Ray that this process started has ended by itself; None where this Ray was shut down."""
    import ray

    if node is not own_node() or not ray.is_initialized():
        return None
    needed = [one.process for kind in ("raylet", "gcs_server") for one in node.all_processes.get(kind, ())]
    return any(process.poll() is not None for process in needed)


def only_on_loopback(address: str) -> bool:
    """Whether the Ray at `address` listens only at the loopback, as the embedded Ray of another process does.

    Ray would look for it at the machine's own address, without end.
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
    """In the block, a Ray that starts listens at 127.0.0.1, as Ray does on a laptop.

    Ray accepts no loopback address from its caller, and would listen at all addresses of the machine.
    """
    from ray._private import ray_constants

    enabled = ray_constants.ENABLE_RAY_CLUSTER
    ray_constants.ENABLE_RAY_CLUSTER = False
    try:
        with _environment(ray_constants.ENABLE_RAY_CLUSTERS_ENV_VAR, "0"):
            yield
    finally:
        ray_constants.ENABLE_RAY_CLUSTER = enabled


@contextmanager
def only_what_works() -> Iterator[None]:
    """In the block, a Ray that starts has neither an autoscaler nor a dashboard process, which `include_dashboard=False` leaves there.

    An embedded Ray uses neither: together 120 MiB, a third of the CPU time of the start, and the start waits for the second.
    `ray.init` has no arguments for them.
    """
    from ray._private import parameter, services

    params, start_api_server = parameter.RayParams, services.start_api_server
    modules: tuple[Any, Any] = parameter, services
    modules[0].RayParams = partial(params, no_monitor=True)
    modules[1].start_api_server = lambda *given, **named: ("", None)  # its address and process
    try:
        yield
    finally:
        modules[0].RayParams, modules[1].start_api_server = params, start_api_server


@contextmanager
def in_groups_of_their_own() -> Iterator[None]:
    """In the block, the processes of a Ray that starts are in process groups of their own: a signal to the driver's group does not end them.

    `timeout`, a closed terminal and schedulers signal the group. Only where the kernel ends Ray's processes with the driver: elsewhere Ray ends the group.
    """
    from ray._private import services
    from ray._private.utils import detect_fate_sharing_support

    module: Any = services
    popen = module.ConsolePopen
    if detect_fate_sharing_support():
        module.ConsolePopen = partial(popen, process_group=0)
    try:
        yield
    finally:
        module.ConsolePopen = popen


@contextmanager
def own_sigterm() -> Iterator[None]:
    """In the block and after it, `ray.init` leaves a program's handler of SIGTERM; where there is none, Ray sets its own, which exits.

    Ray's C++ part sets another below Python, which prints a stack trace: the program's is set again.
    """
    from ray._private import utils

    module: Any = utils
    replace, handler = module.set_sigterm_handler, signal.getsignal(signal.SIGTERM)
    kept = handler not in (None, signal.SIG_DFL) and threading.current_thread() is threading.main_thread()
    if kept:
        module.set_sigterm_handler = lambda handler: None
    try:
        yield
    finally:
        module.set_sigterm_handler = replace
        if kept:
            signal.signal(signal.SIGTERM, handler)


@contextmanager
def quiet_driver() -> Iterator[None]:
    """In the block, a driver that `ray.init` connects does not print Ray's lines that need no action.

    These are a note on the authentication token; the driver's own C++ log, which for every actor pool of Ray Data warns that constructor
    arguments end with the driver (so does the pool); retries of calls that Ray repeats without limit, as Serve makes them while it
    shuts down; and that it has more workers than CPUs, as stages have that wait for others. Other errors go to standard error: Ray prints
    them to standard output, which is for results.
    """
    from ray import _raylet

    logging.getLogger("ray._private.authentication.authentication_token_setup").setLevel(logging.ERROR)
    _filter_errors()
    module: Any = _raylet
    core_worker = module.CoreWorker
    module.CoreWorker = partial(_quiet_core_worker, core_worker)
    try:
        yield
    finally:
        module.CoreWorker = core_worker


def _quiet_core_worker(core_worker: Any, *args: Any) -> Any:
    """Ray's C++ part reads the level of its log once, here, and prints that it did; the cluster's own processes keep their level."""
    if _LOG_LEVEL in os.environ:
        return core_worker(*args)
    with _environment(_LOG_LEVEL, "fatal"), _without_stderr():
        return core_worker(*args)


@contextmanager
def _without_stderr() -> Iterator[None]:
    """Discard what this process writes to standard error in the block, from C++ too."""
    stderr, nowhere = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 2)
    try:
        yield
    finally:
        os.dup2(stderr, 2)
        os.close(stderr)
        os.close(nowhere)


@cache
def _filter_errors() -> None:
    """Replace the function that prints a cluster's errors, once per process: the printing thread looks it up for each error."""
    from ray._private import worker

    show = worker.print_to_stdstream

    def show_error(data: Any, ignore_prefix: bool) -> None:
        if data.get("pid") != "raylet" or not any(words in line for line in data["lines"] for words in _NEED_NO_ACTION):
            show({**data, "is_err": True}, ignore_prefix)

    worker.print_to_stdstream = show_error


@contextmanager
def _environment(name: str, value: str) -> Iterator[None]:
    """The environment of this process with one variable set, in the block."""
    before = os.environ.get(name)
    os.environ[name] = value
    try:
        yield
    finally:
        os.environ.pop(name)
        os.environ.update({name: before} if before is not None else {})


def simulated_head() -> str:
    """The node id of the head among Ray's simulated nodes; their provider knows it only by this id."""
    from ray.autoscaler._private.fake_multi_node.node_provider import FAKE_HEAD_NODE_ID

    return str(FAKE_HEAD_NODE_ID)


def simulated_nodes() -> type:
    """A node provider for Ray's autoscaler whose nodes are raylets on this machine, each with the memory of its node type.

    Ray's own provider, which has no public counterpart, drops the memory.
    """
    from ray._private import parameter
    from ray.autoscaler._private.fake_multi_node.node_provider import FakeMultiNodeProvider

    class LocalNodes(FakeMultiNodeProvider):
        def _create_node_with_resources_and_labels(
            self, node_config: dict[str, Any], tags: dict[str, str], count: int, resources: dict[str, float], labels: dict[str, str]
        ) -> None:
            others = {name: amount for name, amount in resources.items() if name != "memory"}
            params = parameter.RayParams
            module: Any = parameter
            module.RayParams = partial(params, memory=resources["memory"])  # the method that calls it passes no memory
            try:
                super()._create_node_with_resources_and_labels(node_config, tags, count, others, labels)
            finally:
                module.RayParams = params

    return LocalNodes


def serve_http_config() -> Any:
    """The HTTP options of this cluster's Ray Serve; None if it does not run. The public status lacks host and port."""
    from ray.serve.context import _get_global_client

    client = _get_global_client(raise_if_no_controller_running=False)
    return None if client is None else client.http_config


def keep_serve_port_inside() -> None:
    """Make the port that this Serve replica opens listen at the loopback: it unpickles its input, and Serve opens it to the network.

    It is for gRPC between deployments, which is off by default; no setting changes its address.
    """
    from ray.serve._private import constants, replica

    if constants.RAY_SERVE_USE_GRPC_BY_DEFAULT or constants.RAY_SERVE_PROXY_USE_GRPC:
        return
    add_port = replica.add_port_to_grpc_server
    replica.add_port_to_grpc_server = lambda server, address: add_port(server, address.replace("[::]", "127.0.0.1"))


def served_path(proxy: Any, scope: Any, marked: str) -> tuple[str, str] | None:
    """The route prefix of the app that a Serve proxy would ask, and the path below it; None unless the app has a route `marked`.

    `proxy` is what Serve gives to the middlewares of its proxies. Only the proxy knows which apps there are; its public list is a request.
    """
    if scope["type"] != "http":
        return None
    path = scope["path"].removeprefix(scope.get("root_path", ""))
    router = proxy._app.proxy_router
    matched = router.match_route(path)
    if matched is None or not any(pattern.path == marked for pattern in router.route_patterns.get(matched[0], [])):
        return None
    return matched[0], path[len(matched[0].rstrip("/")) :] or "/"


def most_replicas() -> int:
    """How many replicas the deployment of this Serve replica may have. The public context has no limits of autoscaling."""
    from ray import serve

    config = serve.get_replica_context()._deployment_config
    scaling = config.autoscaling_config
    return int(scaling.max_replicas if scaling else config.num_replicas or 1)
