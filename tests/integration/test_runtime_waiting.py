"""A stage on a cluster whose CPUs are taken reports it, and continues when they are free."""

import threading
from collections.abc import Callable
from pathlib import Path

import pytest
import ray

from raydense.inference.encode import encode
from raydense.inference.settings import EncodeSettings
from raydense.retrieval.index import index
from raydense.retrieval.settings import IndexSettings
from raydense.runtime import waiting
from tests.inference_world import make_corpus, make_retriever

pytestmark = pytest.mark.usefixtures("ray_cluster")

LINE = ": waits for CPUs, GPUs or memory in use by others, or for new nodes (see `ray status`)"


@ray.remote
class Holder:
    def ready(self) -> None:
        pass


def while_others_hold_all(stage: str, work: Callable[[], object], monkeypatch: pytest.MonkeyPatch) -> None:
    """`work` with all CPUs taken until it has reported that it waits, which is all that `stage` prints."""
    heard = threading.Event()
    printed: list[str] = []

    def say(line: str) -> None:
        printed.append(line)
        heard.set()

    monkeypatch.setattr(waiting, "say", say)
    monkeypatch.setattr(waiting, "_WAITS_S", 1.0)
    monkeypatch.setattr(waiting, "_LOOK_S", 0.2)
    holder = Holder.options(num_cpus=ray.cluster_resources()["CPU"]).remote()
    ray.get(holder.ready.remote())
    worker = threading.Thread(target=work)
    worker.start()
    try:
        assert heard.wait(120)
    finally:
        monkeypatch.setattr(waiting, "_WAITS_S", 30.0)
        ray.kill(holder)
    worker.join(240)
    assert not worker.is_alive()
    assert printed == [f"{stage}{LINE}"]


def test_a_stage_that_waits_for_others_reports_so_once_and_continues(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_retriever(tmp_path / "model")
    make_corpus(tmp_path / "corpus", 40, shard_rows=20)
    encoding = EncodeSettings.read({"output": str(tmp_path / "emb"), "model": str(tmp_path / "model"), "corpus": str(tmp_path / "corpus")})
    while_others_hold_all("encode", lambda: encode(encoding), monkeypatch)
    indexing = IndexSettings.read({"kind": "faiss", "output": str(tmp_path / "index"), "embeddings": str(tmp_path / "emb"), "shards": 2})
    while_others_hold_all("index", lambda: index(indexing), monkeypatch)
    assert (tmp_path / "index" / "manifest.json").exists()
