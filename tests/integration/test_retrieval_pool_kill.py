"""A pool with a name while its actors, its controller and the job that switches it are killed: no call fails, none is mixed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import forked
import pytest
import ray
from search_versions import ask_at_once, kill_one, make_versions, start_callers

from raydense.retrieval.pool import SearchPool
from raydense.runtime.session import ensure_ray

CALLS = 400
SWAP = "import sys; from raydense.retrieval.pool import SearchPool; SearchPool.connect('killed').swap(sys.argv[1])"


@pytest.mark.long
@pytest.mark.usefixtures("ray_cluster")
def test_actors_killed_and_the_index_switched_under_calls(tmp_path: Path) -> None:
    """Three shard actors are killed, the index is switched twice here, and once by a job that is killed while it waits for that."""
    ensure_ray()
    versions = make_versions(tmp_path)
    first, second = versions.indexes
    with SearchPool.start(first, name="killed") as pool:
        callers = start_callers("killed", versions, 2)

        def switched_by_a_job_that_dies() -> None:
            environment = {**os.environ, "RAY_ADDRESS": ray.get_runtime_context().gcs_address}
            job = forked.Popen([sys.executable, "-c", SWAP, str(second.path)], env=environment, stderr=subprocess.DEVNULL)
            while not pool.status()["swapping"]:
                assert job.poll() is None, "it ended before it could be killed"
                time.sleep(0.005)
            os.kill(job.pid, signal.SIGKILL)
            assert job.wait() == -signal.SIGKILL

        faults = [partial(kill_one, pool, 0), lambda: pool.swap(second), partial(kill_one, pool, 1)]
        faults += [lambda: pool.swap(first), switched_by_a_job_that_dies, partial(kill_one, pool, 0)]
        asked = ask_at_once(callers, CALLS, faults)
        assert len(asked.seconds) == CALLS
        assert asked.failed == []
        assert asked.mixed == 0
        assert asked.indexes == {first.fingerprint, second.fingerprint}
        pool.swap(second)
        answer = pool.answer(versions.queries, 10)
        assert answer.index == second.fingerprint
        assert versions.is_right(answer, slice(None))
