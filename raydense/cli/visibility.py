"""Refuses a job whose paths the nodes of the cluster do not see, before it is submitted and again inside the job, or whose tracking would be lost."""

from __future__ import annotations

import ipaddress
import os
import socket
import tempfile
import time
import uuid
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

from raydense.cli.work import Work, needed
from raydense.errors import InputError
from raydense.recipes.stage import Stage
from raydense.runtime.session import ensure_ray
from raydense.storage import Place

SUBMISSION = "RAYDENSE_SUBMISSION"  # is set in a job: the name of its submission
_SHARE = "correct it, or put it on storage that all nodes mount, and give its path there"
_ANSWERS_S = 120.0
_DISKS = {"apfs", "btrfs", "exfat", "ext2", "ext3", "ext4", "f2fs", "hfs", "ntfs", "overlay", "ramfs", "tmpfs", "vfat", "xfs", "zfs"}


def refuse_local(work: Work, address: str) -> None:
    """InputError where the cluster is not on this machine, and a path is on a local disk: in the home folder or /tmp.

    An address of this machine may be a tunnel to a cluster elsewhere: then the job's own check decides.
    """
    if _is_here(str(urlsplit(address).hostname)):
        return
    for path in (*needed(work.stages), *(stage.settings.output for stage in work.stages)):
        if not Place.of(path).everywhere and _on_own_disk(path):
            raise InputError("lies on a disk of this machine, which the cluster does not see", path, _SHARE)


def _is_here(host: str) -> bool:
    import psutil

    try:
        found = {str(info[4][0]) for info in socket.getaddrinfo(host, None)}
    except OSError:
        return False
    own = {one.address.partition("%")[0] for every in psutil.net_if_addrs().values() for one in every}
    return any(one in own or ipaddress.ip_address(one.partition("%")[0]).is_loopback for one in found)


def _on_own_disk(path: str) -> bool:
    import psutil

    there = Path(path).resolve()
    if not any(there.is_relative_to(Path(root).resolve()) for root in (tempfile.gettempdir(), "/tmp", "/var/tmp", Path.home())):
        return False
    mounts = [part for part in psutil.disk_partitions(all=True) if there.is_relative_to(part.mountpoint)]
    return bool(mounts) and max(mounts, key=lambda part: len(part.mountpoint)).fstype in _DISKS


def check_submission(stages: Iterable[Stage]) -> None:
    """In a submitted job: InputError if a node of the cluster does not see a path of the stages, or what a training tracks would be lost."""
    if SUBMISSION in os.environ:
        stages = list(stages)
        _refuse_untracked(stages)
        _refuse_unseen(stages)


def _refuse_untracked(stages: list[Stage]) -> None:
    """InputError where mlflow would write into the folder that the job runs in, which is deleted after the job."""
    for stage in stages:
        if getattr(stage.settings, "track", "none") == "mlflow" and not os.environ.get("MLFLOW_TRACKING_URI"):
            fix = "give `raydense submit` --env MLFLOW_TRACKING_URI=..., or set it for the nodes"
            raise InputError(
                "MLFLOW_TRACKING_URI is not set in the job, and mlflow would write where the job's files are deleted", "track", fix
            )


def _refuse_unseen(stages: list[Stage]) -> None:
    ensure_ray()
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    nodes = {node["NodeID"]: node["NodeManagerHostname"] for node in ray.nodes() if node["Alive"]}
    with _witnesses(stages if len(nodes) > 1 else []) as witnesses:
        paths = [*needed(stages), *witnesses]
        if not paths:  # all lies in buckets
            return
        look = ray.remote(num_cpus=0)(_missing)
        deadline = time.monotonic() + _ANSWERS_S
        asked = {node: look.options(scheduling_strategy=NodeAffinitySchedulingStrategy(node, soft=False)).remote(paths) for node in nodes}
        for node, answer in asked.items():
            try:
                missing = ray.get(answer, timeout=max(0.0, deadline - time.monotonic()))
            except ray.exceptions.GetTimeoutError as error:
                what = f"the cluster's node {nodes[node]} did not say within {_ANSWERS_S:.0f} s whether it sees the paths"
                raise InputError(
                    what, fix="is a mount there hung (ls answers)? repair it, or take the node out, and submit again"
                ) from error
            except ray.exceptions.RayError:  # the node has left
                continue
            for path in missing:
                if path in witnesses:
                    raise InputError(f"what one node writes there is not seen by the cluster's node {nodes[node]}", witnesses[path], _SHARE)
                raise InputError(f"is not seen by the cluster's node {nodes[node]}", path, _SHARE)


def _missing(paths: list[str]) -> list[str]:
    return [path for path in paths if not os.path.exists(path)]


@contextmanager
def _witnesses(stages: list[Stage]) -> Iterator[dict[str, str]]:
    """Empty files in the folders that will hold the outputs, by which other nodes check that they see these; removed afterwards."""
    files: dict[str, str] = {}
    try:
        for stage in stages:
            if Place.of(stage.settings.output).everywhere:
                continue
            output = Path(stage.settings.output)
            folder = next((above for above in output.parents if above.is_dir()), None)
            if folder is None or str(folder) in {os.path.dirname(file) for file in files}:
                continue
            file = folder / f".raydense-{uuid.uuid4().hex}"
            try:
                file.touch(exist_ok=False)
            except OSError:  # the stage itself reports that it may not write there
                continue
            files[str(file)] = str(output)
        yield files
    finally:
        for name in files:
            Path(name).unlink(missing_ok=True)
