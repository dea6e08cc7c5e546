"""`raydense serve` as processes: two at one port, and several on one cluster, which is the session's Ray."""

from __future__ import annotations

import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import forked
import psutil
import pytest
from embeddings import write_corpus
from nodes import free_ports
from ray import serve
from search_versions import until
from warm_worker import own_ray_environment

from raydense.retrieval.index import index
from raydense.retrieval.named import pools
from raydense.retrieval.settings import IndexSettings


@pytest.fixture(scope="module")
def words(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("command")
    write_corpus(folder / "corpus", ["the red fox", "a stone bridge"])
    return str(index(IndexSettings(kind="bm25", corpus=str(folder / "corpus"), output=str(folder / "words"))).path)


@contextmanager
def _serving(words: str, port: int, environment: dict[str, str], *flags: str) -> Iterator[Any]:
    """A command that serves under the default name; killed at the end if it still runs."""
    command = [sys.executable, "-m", "raydense", "serve", "--index", words, "--port", str(port), *flags]
    with forked.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as server:
        try:
            yield server
        finally:
            server.kill()


def _runs(server: Any) -> bool:
    """Whether it says where it listens; not if it ends before."""
    return bool(server.stdout.readline().startswith("serve: http://"))


def _answers(port: int) -> bool:
    asked = urllib.request.Request(f"http://127.0.0.1:{port}/search", data=b'{"query": "bridge", "k": 1}')
    with urllib.request.urlopen(asked, timeout=120) as answer:
        return bool(answer.status == 200)


def _address(joining: dict[str, str]) -> str:
    return joining["RAY_ADDRESS"].rpartition(":")[0]


def test_of_two_that_start_at_one_port_one_runs(words: str) -> None:
    """Their proxies would share the port, and each caller be answered by either."""
    port = free_ports(1)[0]
    with ExitStack() as stack:
        both = [stack.enter_context(_serving(words, port, own_ray_environment())) for _ in range(2)]
        runs = [_runs(one) for one in both]
        assert sorted(runs) == [False, True]
        refused, running = both[runs.index(False)], both[runs.index(True)]
        _, logged = refused.communicate(timeout=120)
        assert (refused.returncode, logged.splitlines()[-1]) == (
            2,
            f"raydense: 127.0.0.1:{port}: cannot listen there (Address already in use); give another --port or --host",
        )
        running.send_signal(signal.SIGINT)
        assert running.communicate(timeout=120)[1].endswith("serve: ended\n")
    assert running.returncode == 0


def test_an_app_is_one_command_s_until_that_is_killed(words: str, joining: dict[str, str]) -> None:
    """The name is refused to another while it runs; what a kill leaves is taken over, and whoever ended Serve is no cause for a traceback."""
    port = free_ports(1)[0]
    with _serving(words, port, joining) as first:
        assert _runs(first)
        with _serving(words, port, joining, "--shard-replicas", "2") as second:
            _, logged = second.communicate(timeout=120)
        assert (second.returncode, logged) == (
            2,
            f"raydense: --name search: process {first.pid} of {_address(joining)} serves an app of this name; give another, or end that one\n",
        )
        assert _answers(port)
        assert pools() == [], "the second starts nothing"
    assert first.returncode == -signal.SIGKILL
    assert _answers(port), "the app stays"
    with _serving(words, port, joining) as third:
        assert _runs(third)
        assert _answers(port)
        serve.shutdown()
        _, logged = third.communicate(timeout=120)
    assert logged.splitlines() == [
        "serve: takes over the app 'search', which was left here",
        "serve: ended, since another process ended the app 'search'",
    ]
    assert third.returncode == 1


def test_an_app_of_another_kind_keeps_its_name(words: str, joining: dict[str, str]) -> None:
    @serve.deployment
    def hello() -> str:
        return "hello"

    port = free_ports(1)[0]
    serve.start(http_options={"host": "127.0.0.1", "port": port})
    serve.run(hello.bind(), name="search", route_prefix="/hello")
    with _serving(words, port, joining) as refused:
        _, logged = refused.communicate(timeout=120)
    try:
        assert refused.returncode == 2, logged
        assert "--name search: an app of this name runs, which no `raydense serve` started; give another" in logged
        assert serve.status().applications["search"].status == "RUNNING"
    finally:
        serve.shutdown()


def _controllers() -> list[psutil.Process]:
    mine = psutil.Process().children(recursive=True)
    return [one for one in mine if one.is_running() and one.name().startswith("ray::ServeCon")]


def test_the_death_of_serve_s_controller_is_no_end(words: str, joining: dict[str, str]) -> None:
    """Ray starts another, which knows the app."""
    port = free_ports(1)[0]
    with _serving(words, port, joining) as server:
        assert _runs(server)
        (first,) = _controllers()
        first.kill()
        until(lambda: [one for one in _controllers() if one != first] != [], "Ray starts no other controller")
        assert _answers(port)
        server.send_signal(signal.SIGINT)
        _, logged = server.communicate(timeout=120)
    assert (server.returncode, logged.splitlines()[-1]) == (0, "serve: ended")


def test_an_end_that_is_cut_off_says_what_stays(words: str, joining: dict[str, str]) -> None:
    port = free_ports(1)[0]
    with _serving(words, port, joining) as server:
        assert _runs(server)
        controller = _controllers()[0]
        server.send_signal(signal.SIGTERM)
        assert server.stderr.readline() == "serve: stops the app 'search'\n"
        controller.suspend()
        try:
            server.send_signal(signal.SIGTERM)
            _, logged = server.communicate(timeout=120)
        finally:
            controller.resume()
    serve.shutdown()
    assert server.returncode == 130
    assert [line for line in logged.splitlines() if line] == [
        "serve: cut off: the app 'search' may still run; the same command takes it over, `serve shutdown` ends it",
        "raydense: interrupted; the same command continues from here",
    ]
