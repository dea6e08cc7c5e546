"""Jobs of a Ray cluster through its dashboard: start one, follow its output, stop it, and read how it ended.

A job that is submitted again while it runs is followed, not started twice.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any
from urllib.parse import urlsplit

from raydense.cli.job_process import JobProcess
from raydense.cli.visibility import SUBMISSION
from raydense.cli.work import Work, entrypoint, packed, submission_name
from raydense.errors import InputError
from raydense.runtime.progress import duration, say
from raydense.runtime.session import TOKEN
from raydense.runtime.verbosity import limit_logs

_HEADERS = "RAY_JOB_HEADERS"
_PATIENCE_S = 120.0
_AGAIN_S = 2.0
_SILENT_S = 300.0  # a stage prints a line each half a minute


class JobError(Exception):
    """The cluster did not take a job, or was lost while a job was followed; not an error of the input."""


def dashboard(address: str | None) -> str:
    """The http address of a dashboard: as given, else RAY_ADDRESS. InputError if there is none, it is not of this form, or contains credentials."""
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
        limit_logs(f"ray.{module}")
    os.environ["RAY_API_SERVER_ADDRESS"] = address  # else RAY_ADDRESS would take precedence
    try:
        return JobSubmissionClient(address, headers=_headers())
    except AuthenticationError:
        raise InputError("the cluster requires its token", address, TOKEN) from None
    except (ConnectionError, RuntimeError, requests.RequestException) as error:
        fix = "check --address: it is that of the dashboard, as http://HEAD:8265"
        raise InputError(f"no dashboard of Ray answers ({_last_line(error)})", address, fix) from error


def start(client: Any, work: Work, process: JobProcess | None = None) -> tuple[str, str]:
    """The submission's name, and what happened: a running job of this name is used, otherwise one is started.

    JobError if the cluster does not accept it.
    """
    process = process or JobProcess()
    deadline = time.monotonic() + _PATIENCE_S
    while True:
        name, earlier, runs = _named(client, submission_name(work))
        if runs:
            return name, "runs already"
        try:
            with packed(work) as folder:
                environment = {"working_dir": str(folder), "env_vars": {**process.environment(), SUBMISSION: name}}
                command = entrypoint(work, process.python)
                client.submit_job(entrypoint=command, submission_id=name, runtime_env=environment, **process.reserved)
            return name, f"submitted again: {earlier}" if earlier else "submitted"
        except (RuntimeError, OSError) as error:
            # the first if another process was quicker, the second while the cluster starts
            again = any(words in str(error) for words in ("already exists", "No available agent"))
            if not again or time.monotonic() > deadline:
                raise JobError(f"the cluster did not take the job: {_last_line(error)}") from error
        time.sleep(_AGAIN_S)


def _named(client: Any, base: str) -> tuple[str, str, bool]:
    """The name to submit `base` under, the state of the last job of that base, and whether it runs."""
    jobs = {}
    with reached():
        known = client.list_jobs()
    for job in known:
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
    """Ray's record of a submission; InputError if there is none of this name, JobError if the cluster does not answer."""
    with reached():
        try:
            return client.get_job_info(name)
        except RuntimeError as error:
            if "404" not in str(error):
                raise
            raise InputError("no such job", name, "`raydense submit list` shows all") from None


def submissions(client: Any) -> list[Any]:
    """Ray's records of all submissions of raydense, the oldest first; JobError if the cluster does not answer."""
    with reached():
        named = [job for job in client.list_jobs() if (job.submission_id or "").startswith("raydense-")]
    return sorted(named, key=lambda job: job.start_time or 0)


@contextmanager
def reached() -> Iterator[None]:
    """For calls of a client: JobError where the cluster does not answer, or answers with an error."""
    try:
        yield
    except (RuntimeError, OSError) as error:  # those of requests are OSErrors
        what = "does not answer" if isinstance(error, OSError) else "answers with an error"
        raise JobError(f"the cluster {what} ({_last_line(error)})") from error


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
            except (JobError, RuntimeError, OSError, aiohttp.ClientError) as error:
                if self._lost is None:
                    say(f"{self.name}: the connection is lost and retried; the job continues")
                    self._lost = time.monotonic()
                if time.monotonic() - self._lost > _PATIENCE_S:
                    raise JobError(f"{self.name}: the cluster cannot be reached ({_last_line(error)}); the job may continue") from error
            time.sleep(_AGAIN_S)

    async def _tail(self) -> None:
        """Pass on what is new until the job or the connection ends; a connection that is lost in silence counts as ended after a while."""
        self._unread.again()
        pieces = aiter(self.client.tail_job_logs(self.name))
        with suppress(StopAsyncIteration, TimeoutError):
            while True:
                text = await asyncio.wait_for(anext(pieces), _SILENT_S)
                self._lost = None
                self.write(self._unread.of(text))


def stop(client: Any, name: str) -> tuple[Any, bool]:
    """End a job; returns it, and whether it ran. What its stages committed is kept."""
    if job_of(client, name).status.is_terminal():
        return job_of(client, name), False
    with reached():
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
    return code if code >= 0 else 128 - code  # ended by a signal, as a shell reports it


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


def wait_words(name: str, address: str) -> str:
    """The commands that follow and stop a job that continues on its own."""
    return f"{name} continues; `raydense submit logs {name} --address {address}` follows it, `submit stop` ends it"


def record(job: Any) -> dict[str, Any]:
    """A job as JSON, for `status` and `list`."""
    done = job.status.is_terminal()
    return {
        "submission_id": job.submission_id,
        "status": str(job.status),
        "exit_code": exit_code(job) if done else None,
        "entrypoint": job.entrypoint,
    }


def line(job: Any) -> str:
    """A job as one line of text."""
    return f"{job.submission_id}  {outcome(job)}  {job.entrypoint}"
