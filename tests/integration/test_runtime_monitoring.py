"""What a Prometheus reads from the node's port while stages run, and what workers log."""

from __future__ import annotations

import re
import time
import urllib.request
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import ray
from embeddings import write_embeddings
from inference_world import make_corpus, make_retriever
from search_versions import until

from raydense.inference.encode import encode
from raydense.inference.settings import EncodeSettings
from raydense.retrieval.index import index
from raydense.retrieval.pool import SearchPool
from raydense.retrieval.settings import IndexSettings
from raydense.runtime.metrics import GAUGES, TIMES, show

pytestmark = pytest.mark.usefixtures("ray_cluster")


def scraped(wanted: str) -> dict[str, float]:
    """The gauges of ours that hold `wanted`, as soon as there are any: Ray sends them every ten seconds."""
    node, end = ray.nodes()[0], time.monotonic() + 60
    address = f"http://{node['NodeManagerAddress']}:{node['MetricsExportPort']}/metrics"
    while time.monotonic() < end:
        lines = urllib.request.urlopen(address, timeout=30).read().decode().splitlines()
        found = {line.rsplit(" ", 1)[0]: float(line.rsplit(" ", 1)[1]) for line in lines if line.startswith("ray_raydense_")}
        if any(wanted in name for name in found):
            return found
        time.sleep(0.5)
    raise AssertionError(f"no gauge with {wanted} in a minute")


def test_how_far_a_stage_is(tmp_path: Path) -> None:
    make_corpus(tmp_path / "corpus", 120, 40)
    encode(EncodeSettings(output=str(tmp_path / "vectors"), model=str(make_retriever(tmp_path / "model")), corpus=str(tmp_path / "corpus")))
    show("train", 0.25, output="how-far", name="loss")
    wanted = {("ray_raydense_done", 120), ("ray_raydense_total", 120), ("ray_raydense_files_open", 0)}
    found: dict[str, float] = {}

    def all_sent() -> bool:  # not all gauges come at once, and earlier drivers of the same Ray have left theirs
        found.update(scraped('output="how-far"'))
        return wanted <= {(name.split("{")[0], value) for name, value in found.items() if 'stage="encode"' in name}

    until(all_sent, "the gauges of encode are not those of 120 passages")
    known = tuple(f"ray_raydense_{name}" for name in (*GAUGES, *TIMES))
    assert [name for name in found if not name.startswith(known)] == []


def test_how_quick_a_shard_answers(tmp_path: Path) -> None:
    vectors = np.random.default_rng(1).standard_normal((50, 8)).astype(np.float32)
    made = index(
        IndexSettings(kind="faiss", embeddings=str(write_embeddings(tmp_path / "vectors", vectors).path), output=str(tmp_path / "ix"))
    )
    with SearchPool.start(made) as pool:
        for at in range(3):
            pool.search(vectors[at : at + 1], 5)
        mine = f'index="{made.fingerprint[:12]}"'

        def counts() -> list[float]:
            found = {name: value for name, value in scraped(mine).items() if mine in name}
            return [value for part in ("shard_seconds_count", "searches_waiting") for name, value in found.items() if part in name]

        until(lambda: counts() == [3, 0], "the shard does not report three finished searches")


def test_the_log_of_a_worker_has_job_stage_and_shard(tmp_path: Path) -> None:
    make_corpus(tmp_path / "corpus", 120, 40)
    before = logged_shards()
    encode(EncodeSettings(output=str(tmp_path / "vectors"), model=str(make_retriever(tmp_path / "model")), corpus=str(tmp_path / "corpus")))
    assert logged_shards() - before == Counter({"0": 1, "1": 1, "2": 1})


def logged_shards() -> Counter[str]:
    """How often each shard stands in the logs of this job's workers."""
    job = ray.get_runtime_context().get_job_id()
    logs = Path(ray._private.worker.global_worker.node.get_logs_dir_path())
    printed = "".join(log.read_text(errors="replace") for log in logs.glob("worker-*.err"))
    return Counter(re.findall(rf"job {job}, encode: part (\d+)", printed))
