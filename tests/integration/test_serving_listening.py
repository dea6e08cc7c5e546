"""A Ray that raydense starts by itself: only this machine reaches it, its workers are as nice as the driver, and its logs are not shown unless verbose.

And a Ray Serve that it did not start, which has no front.
"""

from __future__ import annotations

import http.client
import ipaddress
import json
import signal
import subprocess
import sys
import urllib.request
from pathlib import Path

import forked
import psutil
from embeddings import write_corpus
from nodes import free_ports
from warm_worker import cold_environment

from raydense.retrieval.index import index
from raydense.retrieval.settings import IndexSettings

# An actor as those of a Ray Data pool: Ray warns that it cannot restart once the driver and the argument have gone.
WORK = """
import os, ray, sys
from raydense.runtime.session import ensure_ray

class Actor:
    def __init__(self, argument): print("a line of the actor", flush=True)
    def nice(self): return os.nice(0)

ensure_ray()
actor = ray.remote(max_restarts=1)(Actor).remote(ray.put(1))
nice = ray.get(actor.nice.remote())
"""
LOOK = """
import json, psutil, subprocess
ray.get([ray.remote(lambda: None).remote() for _ in range(2)])
processes = [psutil.Process(), *psutil.Process().children(recursive=True)]
found = []
for process in processes:
    found += [[process.name(), of.laddr.ip] for of in process.net_connections("inet") if of.status == psutil.CONN_LISTEN]
at = {**os.environ, "RAY_ADDRESS": ray.get_runtime_context().gcs_address, "RAYDENSE_VERBOSITY": "verbose"}
pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
joined, lines = subprocess.Popen([sys.executable, "-uc", sys.argv[1] + "sys.stdin.read()"], env=at, **pipes), []
for line in joined.stdout:
    lines.append(line)
    if "a line of the actor" in line:
        joined.stdin.close()
lines_of = [" ".join(process.cmdline()) for process in processes]
print(json.dumps({"found": found, "idle": [line for line in lines_of if "dashboard/dashboard.py" in line or "/monitor.py" in line], "nice": [os.nice(0), nice], "joined": "".join(lines), "code": joined.wait()}))
"""

# A Serve that somebody else started: its proxies stay as they are.
JOINED = """
import json, os, ray, sys, urllib.error, urllib.request
from ray import serve
from raydense.serving.running import running
from raydense.serving.settings import ServeSettings

port = int(sys.argv[2])
ray.init(address="local", log_to_driver=False, logging_level="error")
os.environ["RAY_ADDRESS"] = ray.get_runtime_context().gcs_address
serve.start(http_options={"host": "127.0.0.1", "port": port})

def asked(path, body, host="localhost"):
    try:
        with urllib.request.urlopen(urllib.request.Request(url + path, data=body, headers={"Host": host}), timeout=120) as answer:
            return [answer.status, json.loads(answer.read())]
    except urllib.error.HTTPError as error:
        return [error.code, json.loads(error.read())]

with running(ServeSettings(index=sys.argv[1]), "app", "/app", "127.0.0.1", port) as url:
    question = json.dumps({"query": "bridge", "k": 1}).encode()
    print(json.dumps([asked("/search", question), asked("/search", b" " * 2**21 + question), asked("/merged", b"[]\\n"), asked("/search", question, "evil.example"), asked("/health", None, "evil.example")[0]]))
"""


def test_nothing_listens_beyond_the_loopback_where_another_process_can_join() -> None:
    command = [sys.executable, "-c", "import os; os.nice(2)" + WORK + LOOK, WORK]
    done = forked.run(command, env=cold_environment(), capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    found = result["found"]
    assert {name for name, _ in found} & {"raylet", "gcs_server"}
    assert [one for one in found if one[1].removeprefix("::ffff:") not in ("127.0.0.1", "::1")] == []
    assert result["idle"] == [], "neither a dashboard nor an autoscaler"
    assert result["nice"][0] == result["nice"][1]
    assert done.stderr == ""
    assert result["code"] == 0, result["joined"]
    assert "a line of the actor" in result["joined"]
    assert "constructor arguments in the object store" in result["joined"]


def test_a_served_index_listens_at_the_loopback_and_goes_with_ctrl_c(tmp_path: Path) -> None:
    """Proxy, controller, replica and shards; the port that Serve opens in each replica takes pickles."""
    write_corpus(tmp_path / "corpus", ["the red fox", "a stone bridge"])
    index(IndexSettings(kind="bm25", corpus=str(tmp_path / "corpus"), output=str(tmp_path / "words")))
    port = str(free_ports(1)[0])
    command = [sys.executable, "-m", "raydense", "serve", "--index", str(tmp_path / "words"), "--port", port]
    streams = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    server = forked.Popen(command, env=cold_environment(), **streams)
    assert server.stdout is not None
    try:
        line = server.stdout.readline()
        assert line == f"serve: http://127.0.0.1:{port}/search  (Ctrl-C ends it)\n", server.stderr
        assert server.stdout.readline().startswith(f"curl http://127.0.0.1:{port}/search -d ")
        asked = urllib.request.Request(f"http://127.0.0.1:{port}/search", data=b'{"query": "bridge", "k": 1}')
        with urllib.request.urlopen(asked, timeout=120) as answer:
            assert [one["id"] for one in json.loads(answer.read())["results"][0]] == ["p1"]
        hosts = [f"127.0.0.1:{port}", f"localhost:{port}", "[::1]", f"evil.example:{port}", "localhost.evil.example"]
        assert [_statuses(port, host) for host in hosts] == [[200, 200, 200, 200, 404, 200]] * 3 + [[403] * 5 + [200]] * 2
        processes = [psutil.Process(server.pid), *psutil.Process(server.pid).children(recursive=True)]
        found = [(one.name(), of.laddr) for one in processes for of in one.net_connections("inet") if of.status == psutil.CONN_LISTEN]
        assert int(port) in {at.port for _, at in found}
        assert {name for name, _ in found if name.startswith(("ray::ServeRep", "ray::ServeCon", "ray::ProxyAct", "ray::ShardAct"))}
        assert [one for one in found if not ipaddress.ip_address(one[1].ip.removeprefix("::ffff:")).is_loopback] == []
        server.send_signal(signal.SIGINT)
        printed, logged = server.communicate(timeout=120)
    finally:
        server.kill()
    assert server.returncode == 0, logged
    assert printed == ""
    assert logged.endswith("serve: ended\n")
    assert "infinite retries" not in logged
    assert [one for one in processes if one.is_running() and one.status() != psutil.STATUS_ZOMBIE] == []


def _statuses(port: str, host: str) -> list[int]:
    """Of requests that reach the loopback by the name `host`, as those of a page do whose name leads there; redirects are not followed. The last is Serve's own, for probes."""
    found = []
    for method, path in (
        ("GET", "/"),
        ("GET", "/health"),
        ("GET", "/docs"),
        ("POST", "/search"),
        ("POST", "/search/"),
        ("GET", "/-/healthz"),
    ):
        connection = http.client.HTTPConnection("127.0.0.1", int(port), timeout=120)
        connection.request(method, path, b'{"query": "bridge", "k": 1}' if method == "POST" else None, {"Host": host})
        found.append(connection.getresponse().status)
        connection.close()
    return found


def test_a_serve_without_the_front_is_named_and_answers(tmp_path: Path) -> None:
    write_corpus(tmp_path / "corpus", ["the red fox", "a stone bridge"])
    index(IndexSettings(kind="bm25", corpus=str(tmp_path / "corpus"), output=str(tmp_path / "words")))
    command = [sys.executable, "-c", JOINED, str(tmp_path / "words"), str(free_ports(1)[0])]
    done = forked.run(command, env=cold_environment(), capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    (status, found), (refused, error), merged, *elsewhere = json.loads(done.stdout.splitlines()[0])
    assert (status, [one["id"] for one in found["results"][0]]) == (200, ["p1"])
    assert (refused, error) == (413, {"error": "the body is larger than 1,048,576 bytes; send fewer queries at once"})
    assert merged == [404, {"error": "no such route"}], "its reply says the hash of the token"
    assert [elsewhere[0][0], elsewhere[1]] == [403, 403]
    assert (
        "serve: this Ray Serve was started without raydense's front, so bodies have no limit there: set RAY_SERVE_HTTP_PROXY" in done.stderr
    )
