"""A Ray that raydense starts by itself is reached from this machine alone."""

from __future__ import annotations

import ipaddress
import json
import signal
import subprocess
import sys
import urllib.request
from pathlib import Path

import psutil
from embeddings import write_corpus
from killing import heeds_ctrl_c
from nodes import free_ports

from raydense.retrieval.index import index
from raydense.retrieval.settings import IndexSettings
from tests.s3_server import with_environment

LOOK = """
import json, os, psutil, ray, subprocess, sys
from raydense.runtime.session import ensure_ray

ensure_ray()
ray.get([ray.remote(lambda: None).remote() for _ in range(2)])
processes = [psutil.Process(), *psutil.Process().children(recursive=True)]
found = []
for process in processes:
    found += [[process.name(), of.laddr.ip] for of in process.net_connections("inet") if of.status == psutil.CONN_LISTEN]
join = "from raydense.runtime.session import ensure_ray; ensure_ray(); import ray; print(ray.nodes()[0]['NodeID'])"
at = {**os.environ, "RAY_ADDRESS": ray.get_runtime_context().gcs_address}
joined = subprocess.run([sys.executable, "-c", join], env=at, stdout=subprocess.PIPE, text=True, timeout=120, check=True)
print(json.dumps({"found": found, "node": ray.nodes()[0]["NodeID"], "joined": joined.stdout.strip()}))
"""


def test_nothing_listens_beyond_the_loopback_where_another_process_can_join() -> None:
    said = subprocess.run([sys.executable, "-c", LOOK], env=with_environment({}), capture_output=True, text=True, timeout=300)
    assert said.returncode == 0, said.stderr
    told = json.loads(said.stdout.splitlines()[-1])
    found = told["found"]
    assert {name for name, _ in found} & {"raylet", "gcs_server"}
    assert [one for one in found if one[1].removeprefix("::ffff:") not in ("127.0.0.1", "::1")] == []
    assert told["joined"] == told["node"]


def test_a_served_index_listens_at_the_loopback_and_goes_with_ctrl_c(tmp_path: Path) -> None:
    """Proxy, controller, replica and shards; the port that Serve opens in each replica takes pickles."""
    write_corpus(tmp_path / "corpus", ["the red fox", "a stone bridge"])
    index(IndexSettings(kind="bm25", corpus=str(tmp_path / "corpus"), output=str(tmp_path / "words")))
    port = str(free_ports(1)[0])
    command = [sys.executable, "-m", "raydense", "serve", "--index", str(tmp_path / "words"), "--port", port]
    streams = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    server = subprocess.Popen(command, env=with_environment({}), preexec_fn=heeds_ctrl_c, **streams)
    assert server.stdout is not None
    try:
        line = server.stdout.readline()
        assert line == f"serve: http://127.0.0.1:{port}/search  (Ctrl-C ends it)\n", server.stderr
        asked = urllib.request.Request(f"http://127.0.0.1:{port}/search", data=b'{"query": "bridge", "k": 1}')
        with urllib.request.urlopen(asked, timeout=120) as answer:
            assert [one["id"] for one in json.loads(answer.read())["results"][0]] == ["p1"]
        processes = [psutil.Process(server.pid), *psutil.Process(server.pid).children(recursive=True)]
        found = [(one.name(), of.laddr) for one in processes for of in one.net_connections("inet") if of.status == psutil.CONN_LISTEN]
        assert int(port) in {at.port for _, at in found}
        assert {name for name, _ in found if name.startswith(("ray::ServeRep", "ray::ServeCon", "ray::ProxyAct", "ray::ShardAct"))}
        assert [one for one in found if not ipaddress.ip_address(one[1].ip.removeprefix("::ffff:")).is_loopback] == []
        server.send_signal(signal.SIGINT)
        _, said = server.communicate(timeout=120)
    finally:
        server.kill()
    assert server.returncode == 0, said
    assert said.endswith("serve: ended\n")
    assert [one for one in processes if one.is_running() and one.status() != psutil.STATUS_ZOMBIE] == []
