"""`make cluster-local` for real: a job makes the cluster grow to three nodes, it shrinks to one, and Ctrl-C leaves nothing behind."""

import os
import re
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path

import psutil
import pytest

ROOT = Path(__file__).parents[2]
RAY = str(Path(sys.executable).parent / "ray")
# The head has two CPUs and each node one, so that four actors are all up on three nodes only.
JOB = """
import time, ray
ray.init()
def nodes():
    return sum(node["Alive"] for node in ray.nodes())
begun = nodes()
actor = ray.remote(num_cpus=1)(type("Held", (), {"place": lambda self: ray.get_runtime_context().get_node_id()}))
held = [actor.remote() for _ in range(4)]
at_work = len(set(ray.get([one.place.remote() for one in held], timeout=100)))
for one in held:
    ray.kill(one)
while nodes() > 1:
    time.sleep(0.2)
print(f"nodes: {begun}, {at_work}, {nodes()}")
"""


@pytest.fixture
def started():
    """The script as `make cluster-local` runs it, and what it says once the cluster is up."""
    kept = {key: value for key, value in os.environ.items() if key != "RAY_ADDRESS"}
    command = [sys.executable, str(ROOT / "cluster" / "local.py"), "--workers", "2", "--idle", "2"]
    process = subprocess.Popen(command, cwd=ROOT, env=kept, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    said = []
    for line in process.stdout:
        said.append(line)
        if line.startswith("Ctrl-C"):
            break
    yield process, "".join(said)
    if process.poll() is None:
        process.send_signal(signal.SIGINT)
        process.wait(60)


def test_a_job_makes_the_cluster_grow_and_shrink_and_nothing_is_left_of_it(started, tmp_path):
    process, said = started
    assert process.poll() is None, said
    told = dict(re.findall(r"(RAY_\w+)=(\S+)", said))
    with pytest.raises(urllib.error.HTTPError, match="401"):
        urllib.request.urlopen(f"{told['RAY_ADDRESS']}/api/jobs/")
    (tmp_path / "job.py").write_text(JOB)
    submit = [RAY, "job", "submit", "--", sys.executable, str(tmp_path / "job.py")]
    done = subprocess.run(submit, env=os.environ | told, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    assert "nodes: 1, 3, 1" in done.stdout

    folder = str(Path(told["RAY_AUTH_TOKEN_PATH"]).parent)
    assert _processes_of(folder)
    process.send_signal(signal.SIGINT)
    assert process.wait(60) == 0
    assert _processes_of(folder) == []
    assert not Path(folder).exists()


def _processes_of(folder):
    return [
        one.info["name"] for one in psutil.process_iter(["name", "cmdline"]) if any(folder in word for word in one.info["cmdline"] or [])
    ]
