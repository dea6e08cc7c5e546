"""Unit tests start no process, and keep nothing for after a power cut."""

import os
import sys

import pytest

# What Python audits when a process is started, and what libraries ask of the system when they are imported.
_STARTS = ("os.fork", "os.forkpty", "os.posix_spawn", "subprocess.Popen")
_running: list[str] = []


def _refuse(event: str, given: tuple) -> None:
    if event in _STARTS and _running:
        if given[:1] == ("fc-list",):  # Matplotlib makes its list of fonts, once for a user
            return
        raise AssertionError(f"{_running[0]} starts a process ({event} {given[:1]}): its place is tests/integration")


sys.addaudithook(_refuse)


@pytest.fixture(autouse=True)
def _alone(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch):
    """A test that starts a process fails; `fsync`, most of the time of a small artifact, does nothing."""
    monkeypatch.setattr(os, "fsync", lambda _: None)
    _running.append(request.node.nodeid)
    yield
    _running.clear()
