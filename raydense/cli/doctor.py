"""Checks a machine before work begins: versions, Ray, GPUs, compiler, storage. Each finding that is not ok has a fix."""

from __future__ import annotations

import fcntl
import os
import shlex
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, requires, version
from pathlib import Path

from raydense.errors import InputError

_LOW_DISK_GIB = 10
_LOW_SHARED_MEMORY_GIB = 2


@dataclass(frozen=True)
class Finding:
    """What was checked, its state (`ok`, `note` or `fault`), what was found, and the fix."""

    subject: str
    state: str
    found: str
    fix: str = ""

    def line(self) -> str:
        return f"{self.state:5}  {self.subject}: {self.found}" + (f"; {self.fix}" if self.fix else "")


def examine(report: Callable[[Finding], None] | None = None) -> list[Finding]:
    """All findings; `report` is called with each in turn."""
    findings = []
    for look in (_python, _packages, _processor, _torch, _faiss, _compiler, _storage, _shared_memory, _ray):
        for finding in _guarded(look):
            findings.append(finding)
            if report:
                report(finding)
    return findings


def _guarded(look: Callable[[], Iterator[Finding]]) -> Iterator[Finding]:
    """What one look finds; an error of any kind is a finding, too: libraries that do not load are what is looked for."""
    try:
        yield from look()
    except Exception as error:
        broken = look in (_torch, _faiss) and isinstance(error, (ImportError, OSError))
        fix = "install it again: pip uninstall it, then install it" if broken else ""
        yield Finding(look.__name__.strip("_").replace("_", " "), "fault", _in_a_line(error), fix)


def _python() -> Iterator[Finding]:
    yield Finding("python", "ok", sys.version.split()[0])


def _packages() -> Iterator[Finding]:
    from packaging.requirements import Requirement

    wrong, lacking = [], []
    try:
        listed = requires("raydense") or []
    except PackageNotFoundError:  # the code came to a job with its working directory, where the requirements alone are installed
        yield Finding("packages", "note", "raydense is not installed, so its requirements are not checked")
        return
    needed = [Requirement(line) for line in listed if "extra ==" not in line]
    for requirement in needed:
        try:
            there = version(requirement.name)
        except PackageNotFoundError:
            if requirement.name == "faiss-cpu":
                continue  # the `gpu` extra brings faiss-gpu in its place, which the look at FAISS sees
            wrong.append(f"{requirement.name} is missing")
            lacking.append(requirement)
            continue
        if not requirement.specifier.contains(there, prereleases=True):
            wrong.append(f"{requirement.name} {there} is not {requirement.specifier}")
            lacking.append(requirement)
    if wrong:
        yield Finding("packages", "fault", ", ".join(wrong), f"pip install {shlex.join(map(str, lacking))}")
    else:
        yield Finding("packages", "ok", f"{len(needed)} requirements met")


def _processor() -> Iterator[Finding]:
    from raydense.runtime.allocator import cpu_worker_env, shipped
    from raydense.runtime.processor import cpuinfo, gains_by_bf16
    from raydense.runtime.session import physical_cpus

    yield Finding("processor", "ok", f"{physical_cpus()} cores, which compute fastest in {'bf16' if gains_by_bf16(cpuinfo()) else 'fp32'}")
    if library := cpu_worker_env().get("LD_PRELOAD"):
        yield Finding("allocator", "ok", f"workers on CPUs use jemalloc ({library}); LD_PRELOAD= turns it off")
    elif (chosen := os.environ.get("LD_PRELOAD")) is not None:
        yield Finding("allocator", "ok", f"workers on CPUs use {chosen or 'that of the system'}, as LD_PRELOAD is set")
    else:
        there = shipped()
        why = f"{there} cannot be preloaded, as its path has a blank or a colon" if there else "this Ray ships no jemalloc"
        fix = "make the environment in another folder, or preload one" if there else "preload one"
        yield Finding("allocator", "note", why, f"{fix} with LD_PRELOAD: workers on CPUs are 1.04 to 1.25 times as fast")


def _torch() -> Iterator[Finding]:
    import torch

    if not torch.cuda.is_available():
        yield Finding(
            "gpu", "note", f"none seen by torch {torch.__version__}", "work runs on the CPU; on a GPU machine install a CUDA build of torch"
        )
        return
    from raydense.training.precision import check_kernels

    built_for = torch.cuda.get_arch_list()
    for number in range(torch.cuda.device_count()):
        gpu = torch.cuda.get_device_properties(number)  # which makes no context: a GPU in exclusive mode may be busy
        try:
            check_kernels(gpu.major, gpu.minor, built_for)
        except InputError as error:
            yield Finding(f"gpu {number}", "fault", f"{gpu.name}: {error.args[0]}", error.args[2])
        else:
            half = "bf16" if gpu.major >= 8 else "fp16 only"
            yield Finding(f"gpu {number}", "ok", f"{gpu.name}, sm_{gpu.major}{gpu.minor}, {gpu.total_memory / 2**30:.0f} GiB, {half}")


def _faiss() -> Iterator[Finding]:
    there = []
    for package in ("faiss-cpu", "faiss-gpu"):
        try:
            there.append(f"{package} {version(package)}")
        except PackageNotFoundError:
            continue
    if len(there) != 1:
        found = " and ".join(there) or "missing"
        yield Finding("faiss", "fault", found, "exactly one of faiss-cpu and faiss-gpu: pip uninstall both, then install one")
        return
    from raydense.retrieval.faiss_library import faiss

    gpus = faiss.get_num_gpus() if hasattr(faiss, "get_num_gpus") else 0
    yield Finding("faiss", "ok", f"{there[0]}, {gpus} GPU(s)")


def _compiler() -> Iterator[Finding]:
    compiler = shutil.which("g++") or shutil.which("c++") or shutil.which("clang++")
    if compiler:
        yield Finding("compiler", "ok", compiler)
    else:
        yield Finding("compiler", "note", "no C++ compiler", "only DeepSpeed's own fused optimisers need one; raydense uses torch's")


def _storage() -> Iterator[Finding]:
    for subject, folder in (("this folder", Path.cwd()), ("temporary files", Path(tempfile.gettempdir()))):
        free = shutil.disk_usage(folder).free / 2**30
        try:
            with tempfile.TemporaryDirectory(dir=folder) as inside:
                first = Path(inside) / "a"
                first.write_text("x")
                os.replace(first, Path(inside) / "b")
                with open(Path(inside) / "b") as stream:
                    fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            yield Finding(subject, "fault", f"{folder}: {error.strerror}", "work in a folder that can be written, renamed in and locked")
            continue
        if free < _LOW_DISK_GIB:
            yield Finding(
                subject, "note", f"{folder}: {free:.0f} GiB free", "21 million passages need about 32 GiB for float16 vectors of 768"
            )
        else:
            yield Finding(subject, "ok", f"{folder}: {free:.0f} GiB free, renames and locks work")


def _shared_memory() -> Iterator[Finding]:
    folder = Path("/dev/shm")
    if not folder.is_dir():
        yield Finding("shared memory", "note", "no /dev/shm", "Ray keeps its objects on disk instead, which is slower")
        return
    free = shutil.disk_usage(folder).free / 2**30
    if free < _LOW_SHARED_MEMORY_GIB:
        yield Finding("shared memory", "note", f"{free:.1f} GiB in /dev/shm", "in a container give it more, as docker run --shm-size=8g")
    else:
        yield Finding("shared memory", "ok", f"{free:.1f} GiB in /dev/shm")


def _ray() -> Iterator[Finding]:
    import ray

    from raydense.runtime.session import ensure_ray

    try:
        ensure_ray()
        # no CPU: a head has none where the cluster starts its machines for the work, and none is to be started for this
        answered = ray.get(ray.remote(num_cpus=0)(_process_id).remote(), timeout=60)
    except Exception as error:
        yield Finding(
            "ray",
            "fault",
            f"{ray.__version__} does not run a task: {_in_a_line(error)}",
            "see the logs in /tmp/ray/session_latest/logs",
        )
        return
    resources = ray.cluster_resources()
    total = f"{resources.get('CPU', 0):.0f} CPUs, {resources.get('GPU', 0):.0f} GPUs, {resources.get('memory', 0) / 2**30:.0f} GiB"
    nodes = sum(node["Alive"] for node in ray.nodes())
    yield Finding("ray", "ok", f"{ray.__version__} ran a task in process {answered}; {nodes} node(s) with {total}")


def _in_a_line(error: Exception) -> str:
    """The first line of an error's message, or its name if it has none."""
    return next(iter(str(error).strip().splitlines()), type(error).__name__)


def _process_id() -> int:
    return os.getpid()
