"""Submits work to a Ray cluster through its dashboard: sends the code of this machine, follows the job, returns its exit code.

A submission is named by what it makes: verb, settings, paths and code. Submitted again while it runs, the job is followed, not
started twice. The job first checks that every node sees its paths (`refuse_unseen`).
"""

from __future__ import annotations

import asyncio
import hashlib
import ipaddress
import json
import logging
import os
import re
import shlex
import shutil
import socket
import tempfile
import time
import uuid
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import yaml

from raydense.data.settings import ImportSettings
from raydense.errors import InputError
from raydense.recipes.content import load_recipe
from raydense.recipes.stage import Stage
from raydense.runtime.progress import duration, say
from raydense.runtime.session import ensure_ray
from raydense.settings import Settings
from raydense.storage import Place, digest_of, is_hub_name, named, named_folder

_SUBMISSION = "RAYDENSE_SUBMISSION"  # is set in a job: the name of its submission
_HEADERS = "RAY_JOB_HEADERS"
_PATIENCE_S = 120.0
_AGAIN_S = 2.0
_SHARE = "put it on storage that all nodes mount, and give its path there"
_DISKS = {"apfs", "btrfs", "exfat", "ext2", "ext3", "ext4", "f2fs", "hfs", "ntfs", "overlay", "ramfs", "tmpfs", "vfat", "xfs", "zfs"}


class JobError(Exception):
    """The cluster did not take a job, or was lost while a job was followed; not an error of the input."""


@dataclass(frozen=True)
class Work:
    """What is submitted: a verb or `run`, the stages of it, the words after `raydense` on the job's command line.

    `file` is the recipe that travels with the code: its name and its text.
    """

    verb: str
    stages: tuple[Stage, ...]
    words: tuple[str, ...]
    file: tuple[str, str] | None = None


def verb_work(verb: str, settings: Settings) -> Work:
    """One stage, its paths made absolute from the folder that we are in."""
    whole = _absolute(settings)
    return Work(verb, (Stage(verb, verb, whole, ()),), (verb, *words_of(whole)))


def recipe_work(file: str, output: str, stages: Iterable[Stage], words: Iterable[str]) -> Work:
    """A recipe merged with its bases; `stages` as it was read for `output`, and `words` the other flags of `raydense run`.

    InputError where a stage reads from a relative path: the job runs in another folder.
    """
    once = tuple({stage.settings.output: stage for stage in stages}.values())
    for stage in once:
        for key, path in (*_inputs(stage.settings), ("output", stage.settings.output)):
            if not (Place.of(path).everywhere or os.path.isabs(path)):
                what = f"{path!r} is a relative path, and the job runs in another folder"
                raise InputError(what, f"{file}: stages.{stage.name}.{key}", "give the absolute path, there or with --set")
    name = f"{Path(file).stem}.yaml"
    text = yaml.safe_dump(load_recipe(file), sort_keys=False, allow_unicode=True)
    return Work("run", once, ("run", name, "--output", output, *words), (name, text))


def words_of(settings: Settings) -> list[str]:
    """The flags for the settings that were given."""
    words: list[str] = []
    given = settings.given_keys()
    for key in settings.all_fields():
        value = settings.value_of(key)
        if key not in given or value is None:
            continue
        flag = key.replace("_", "-")
        if isinstance(value, bool):
            words.append(f"--{flag}" if value else f"--no-{flag}")
        elif isinstance(value, tuple):
            words += [f"--{flag}", ",".join(map(str, value))]
        else:
            words += [word for item in (value if isinstance(value, list) else [value]) for word in (f"--{flag}", str(item))]
    return words


def _inputs(settings: Settings) -> Iterator[tuple[str, str]]:
    """Each path that a stage reads, with its key; a data set's id, a model of the Hub and `tiny` are not paths."""
    for key in settings.inputs():
        value = settings.value_of(key)
        if isinstance(value, list):
            yield from ((key, named_folder(item)[1]) for item in value)
        elif value is not None and _is_path(settings, key, value):
            yield key, value


def _is_path(settings: Settings, key: str, value: str) -> bool:
    if settings.inputs()[key] == "model":
        return value != "tiny" and not is_hub_name(value)
    return not (isinstance(settings, ImportSettings) and settings.by_name and key == "input")


def _absolute(settings: Settings) -> Settings:
    changed: dict[str, Any] = {"output": Place.of(settings.output).located}
    for key in settings.inputs():
        value = settings.value_of(key)
        if isinstance(value, list):
            pairs = map(named, value)
            changed[key] = [f"{name}={Place.of(path).located}" if name else Place.of(path).located for name, path in pairs]
        elif value is not None and _is_path(settings, key, value):
            changed[key] = Place.of(value).located
    given = settings.given_keys()
    return settings.replaced({key: value for key, value in changed.items() if key in given})


def needed(stages: Iterable[Stage]) -> list[str]:
    """The paths that stages read and none of them writes."""
    stages = list(stages)
    made = [Path(stage.settings.output) for stage in stages]
    paths = {path: Path(path) for stage in stages for _, path in _inputs(stage.settings)}
    paths = {path: there for path, there in paths.items() if not Place.of(path).everywhere}  # every machine reads a store by itself
    return [path for path, there in paths.items() if not any(there.is_relative_to(folder) for folder in made)]


def submission_name(work: Work) -> str:
    """`raydense-VERB-DIGEST`: a digest of what shapes the output of each stage, of all paths, and of the code."""
    stages = [[s.name, s.verb, s.settings.shaping(), _paths(s.settings), s.settings.output] for s in work.stages]
    return f"raydense-{work.verb}-{digest_of([work.verb, stages, code_digest()])[:12]}"


def _paths(settings: Settings) -> dict[str, Any]:
    return {key: settings.value_of(key) for key in settings.inputs()}


def code_digest(package: Path = Path(__file__).parents[1]) -> str:
    """A digest of the files of a package, without Python's caches."""
    whole = hashlib.sha256()
    for file in sorted(_code(package)):
        whole.update(f"{file.relative_to(package)}\0{hashlib.sha256(file.read_bytes()).hexdigest()}\n".encode())
    return whole.hexdigest()


def _code(package: Path) -> Iterator[Path]:
    return (file for file in package.rglob("*") if file.is_file() and "__pycache__" not in file.parts)


def entrypoint(work: Work, python: str) -> str:
    """The command line of the job, quoted for the shell that Ray gives it to."""
    return shlex.join([python, "-m", "raydense", *work.words])


@contextmanager
def packed(work: Work) -> Iterator[Path]:
    """A folder with what is sent: this package (about a megabyte) and the recipe; never data."""
    with tempfile.TemporaryDirectory(prefix="raydense-submit-") as folder:
        package = Path(__file__).parents[1]
        shutil.copytree(package, Path(folder) / package.name, ignore=shutil.ignore_patterns("__pycache__"))
        if work.file:
            (Path(folder) / work.file[0]).write_text(work.file[1], encoding="utf-8")
        yield Path(folder)


def dashboard(address: str | None) -> str:
    """The http address of a dashboard: as given, else RAY_ADDRESS. InputError if there is none, it has another form, or contains credentials."""
    where = address or os.environ.get("RAY_ADDRESS", "")
    fix = "give that of the cluster's dashboard, as http://HEAD:8265"
    if not where:
        raise InputError("missing", "--address", f"{fix}, or set RAY_ADDRESS to it")
    if "@" in where:
        what = "contains credentials, which logs would show"
        raise InputError(
            what, "--address" if address else "RAY_ADDRESS", f"set {_HEADERS} to the header that the cluster asks for, as JSON"
        )
    if urlsplit(where).scheme not in ("http", "https") or not urlsplit(where).hostname:
        raise InputError("is no http address", f"--address {where}" if address else f"RAY_ADDRESS {where}", fix)
    return where.rstrip("/")


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


def _headers() -> dict[str, str] | None:
    """What goes with each request, for a proxy before the dashboard, from the environment as `ray job` takes it. InputError where it is no JSON object."""
    text = os.environ.get(_HEADERS)
    try:
        found = json.loads(text) if text else None
    except ValueError:
        found = text
    if found is not None and not isinstance(found, dict):
        raise InputError("is no JSON object", _HEADERS, """give it as {"Authorization": "..."}""")
    return found


def connect(address: str) -> Any:
    """A client of Ray's job API; Ray takes the token from RAY_AUTH_TOKEN. InputError if no dashboard answers, or it denies access."""
    import requests
    from ray.exceptions import AuthenticationError
    from ray.job_submission import JobSubmissionClient

    for module in ("dashboard.modules.dashboard_sdk", "dashboard.modules.job.sdk", "_private.runtime_env.packaging"):
        logging.getLogger(f"ray.{module}").setLevel(logging.WARNING)
    os.environ["RAY_API_SERVER_ADDRESS"] = address  # else RAY_ADDRESS would take precedence
    try:
        return JobSubmissionClient(address, headers=_headers())
    except AuthenticationError:
        fix = "set RAY_AUTH_MODE=token, and RAY_AUTH_TOKEN to the cluster's"
        raise InputError("the cluster requires its token", address, fix) from None
    except (ConnectionError, RuntimeError, requests.RequestException) as error:
        fix = "check --address: it is that of the dashboard, as http://HEAD:8265"
        raise InputError(f"no dashboard of Ray answers ({_last_line(error)})", address, fix) from error


def start(client: Any, work: Work, python: str = "python") -> tuple[str, str]:
    """The submission's name, and what happened: a running job of this name is used, otherwise one is started.

    JobError if the cluster does not accept it.
    """
    deadline = time.monotonic() + _PATIENCE_S
    while True:
        name, earlier, runs = _named(client, submission_name(work))
        if runs:
            return name, "runs already"
        try:
            with packed(work) as folder:
                environment = {"working_dir": str(folder), "env_vars": {_SUBMISSION: name}}
                client.submit_job(entrypoint=entrypoint(work, python), submission_id=name, runtime_env=environment)
            return name, f"submitted again: {earlier}" if earlier else "submitted"
        except (RuntimeError, OSError) as error:
            # The first: somebody else was quicker; the second: the cluster has only begun.
            again = any(words in str(error) for words in ("already exists", "No available agent"))
            if not again or time.monotonic() > deadline:
                raise JobError(f"the cluster did not take the job: {_last_line(error)}") from error
        time.sleep(_AGAIN_S)


def _named(client: Any, base: str) -> tuple[str, str, bool]:
    """The name to submit `base` under, the state of the last job of that base, and whether it runs."""
    jobs = {}
    for job in client.list_jobs():
        number = re.fullmatch(re.escape(base) + r"(?:-(\d+))?", job.submission_id or "")
        if number:
            jobs[int(number[1] or 1)] = job
    if not jobs:
        return base, "", False
    last = max(jobs)
    if not jobs[last].status.is_terminal():
        return jobs[last].submission_id, "", True
    return f"{base}-{last + 1}", f"{jobs[last].submission_id} {outcome(jobs[last])}", False


def job_of(client: Any, name: str) -> Any:
    """Ray's record of a submission; InputError if there is none of this name."""
    try:
        return client.get_job_info(name)
    except RuntimeError as error:
        if "404" not in str(error):
            raise
        raise InputError("no such job", name, "`raydense submit list` shows all") from None


def jobs(client: Any) -> list[Any]:
    """Ray's records of all submissions of raydense, the oldest first."""
    named = [job for job in client.list_jobs() if (job.submission_id or "").startswith("raydense-")]
    return sorted(named, key=lambda job: job.start_time or 0)


class Unread:
    """The new part of a text that is read again and again from its start, in pieces of any size."""

    def __init__(self) -> None:
        self._read = self._passed = 0

    def again(self) -> None:
        """The next piece is the first."""
        self._passed = 0

    def of(self, piece: str) -> str:
        """The part of the next piece that is new."""
        new = piece[max(0, self._read - self._passed) :]
        self._passed += len(piece)
        self._read = max(self._read, self._passed)
        return new


class Follower:
    """Passes on what a job prints, from its start; a lost connection is retried, and no line is repeated."""

    def __init__(self, client: Any, name: str, write: Callable[[str], object]) -> None:
        self.client, self.name, self.write = client, name, write
        self._unread = Unread()
        self._lost: float | None = None  # since when

    def follow(self) -> Any:
        """Returns when the job has ended, with Ray's record of it; JobError if the cluster cannot be reached for long."""
        import aiohttp

        while True:
            try:
                asyncio.run(self._tail())
                job = job_of(self.client, self.name)
                if job.status.is_terminal():
                    return job
                self._lost = None
            except (RuntimeError, OSError, aiohttp.ClientError) as error:
                if self._lost is None:
                    say(f"{self.name}: the connection is lost and retried; the job continues")
                    self._lost = time.monotonic()
                if time.monotonic() - self._lost > _PATIENCE_S:
                    raise JobError(f"{self.name}: the cluster cannot be reached ({_last_line(error)}); the job may continue") from error
            time.sleep(_AGAIN_S)

    async def _tail(self) -> None:
        self._unread.again()
        async for text in self.client.tail_job_logs(self.name):
            self._lost = None
            self.write(self._unread.of(text))


def stop(client: Any, name: str) -> tuple[Any, bool]:
    """End a job; returns it, and whether it ran. What its stages committed is kept."""
    if job_of(client, name).status.is_terminal():
        return job_of(client, name), False
    client.stop_job(name)
    deadline = time.monotonic() + _PATIENCE_S
    while not (job := job_of(client, name)).status.is_terminal():
        if time.monotonic() > deadline:
            raise JobError(f"{name}: was asked to stop, and has not stopped yet")
        time.sleep(_AGAIN_S / 4)
    return job, True


def exit_code(job: Any) -> int:
    """The exit code of a job's command; 1 if it has none and did not succeed."""
    code = job.driver_exit_code
    if code is None:
        return 0 if str(job.status) == "SUCCEEDED" else 1
    return code if code >= 0 else 128 - code  # ended by a signal, as a shell says it


def outcome(job: Any) -> str:
    """The state of a job in a few words."""
    status = str(job.status)
    if status == "FAILED" and job.driver_exit_code is None:
        return f"failed: {_last_line(job.message or '')}"
    words = {"FAILED": f"failed with exit code {exit_code(job)}", "RUNNING": "runs", "PENDING": "waits"}.get(status, status.lower())
    took = (job.end_time or time.time() * 1000) - job.start_time if job.start_time else 0
    return f"{words}{' for' if job.end_time is None else ' after'} {duration(max(took, 0) / 1000)}" if took else words


def _last_line(error: object) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[-1].strip()


def refuse_unseen(stages: Iterable[Stage]) -> None:
    """In a submitted job: InputError if a node of the cluster does not see a path that the stages read or write."""
    if _SUBMISSION not in os.environ:
        return
    ensure_ray()
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    stages = list(stages)
    nodes = {node["NodeID"]: node["NodeManagerHostname"] for node in ray.nodes() if node["Alive"]}
    look = ray.remote(num_cpus=0)(_missing)
    with _witnesses(stages if len(nodes) > 1 else []) as witnesses:
        paths = [*needed(stages), *witnesses]
        asked = {node: look.options(scheduling_strategy=NodeAffinitySchedulingStrategy(node, soft=False)).remote(paths) for node in nodes}
        for node, answer in asked.items():
            try:
                missing = ray.get(answer)
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


def wait_words(name: str, address: str) -> str:
    """How to follow and stop a job that continues on its own."""
    return f"{name} continues; `raydense submit logs {name} --address {address}` follows it, `submit stop` ends it"


def show(job: Any) -> dict[str, Any]:
    """What `status` and `list` print about a job."""
    done = job.status.is_terminal()
    return {
        "submission_id": job.submission_id,
        "status": str(job.status),
        "exit_code": exit_code(job) if done else None,
        "entrypoint": job.entrypoint,
    }


def line(job: Any) -> str:
    """The same as one line to read."""
    return f"{job.submission_id}  {outcome(job)}  {job.entrypoint}"


def announce(work: Work, settings: Settings) -> None:
    """Print which path on the cluster each given path stands for."""
    whole = work.stages[0].settings
    given = [*_inputs(settings), ("output", settings.output)]
    paths = [*_inputs(whole), ("output", whole.output)]
    moved = [f"--{key.replace('_', '-')} {new}" for (key, old), (_, new) in zip(given, paths, strict=True) if old != new]
    if moved:
        say(f"submit: relative paths are resolved from the current folder: {', '.join(moved)}")
