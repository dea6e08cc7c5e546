"""A Ray that raydense starts by itself is reached from this machine alone."""

from __future__ import annotations

import json
import subprocess
import sys

from tests.s3_server import with_environment

LOOK = """
import ipaddress, json, psutil, ray
from raydense.ray_session import ensure_ray

ensure_ray()
ray.get([ray.remote(lambda: None).remote() for _ in range(2)])
processes = [psutil.Process(), *psutil.Process().children(recursive=True)]
found = []
for process in processes:
    found += [[process.name(), of.laddr.ip] for of in process.net_connections("inet") if of.status == psutil.CONN_LISTEN]
print(json.dumps(found))
"""


def test_nothing_listens_beyond_the_loopback() -> None:
    said = subprocess.run([sys.executable, "-c", LOOK], env=with_environment({}), capture_output=True, text=True, timeout=300)
    assert said.returncode == 0, said.stderr
    found = json.loads(said.stdout.splitlines()[-1])
    assert {name for name, _ in found} & {"raylet", "gcs_server"}
    assert [one for one in found if one[1].removeprefix("::ffff:") not in ("127.0.0.1", "::1")] == []
