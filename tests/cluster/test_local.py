"""`make cluster-local` for real: encoding, then a search pool, make the cluster grow to three nodes and leave it at one; Ctrl-C leaves nothing."""

import os
import re
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path

import numpy as np
import psutil
import pytest
import torch
from inference_world import make_corpus, make_retriever
from transformers import BertConfig, BertModel

from raydense.models.dual_encoder import DualEncoder
from raydense.search.vectors import Vectors

ROOT = Path(__file__).parents[2]
RAY = str(Path(sys.executable).parent / "ray")
# Nothing says how many actors: an actor takes one CPU, the head has two and each node one, and there are more files than that. Then two
# actors of the pool have room on a node, and five are asked for; and more than three nodes could hold.
JOB = """
import sys, threading, time
import numpy as np
import ray
from raydense.errors import InputError
from raydense.inference.encode import encode
from raydense.ray_session import ensure_ray
from raydense.search.index import index
from raydense.search.pool import SearchPool
from raydense.search.vectors import Vectors
from raydense.settings import EncodeSettings, IndexSettings

def nodes():
    return sum(node["Alive"] for node in ray.nodes())

def watch():
    while not ended.wait(0.1):
        seen.append(nodes())

ensure_ray()
ended, seen = threading.Event(), [nodes()]
threading.Thread(target=watch).start()
model, corpus, output = sys.argv[1:]
encode(EncodeSettings(model=model, corpus=corpus, output=output, dtype="float32"))
ended.set()
while nodes() > 1:
    time.sleep(0.2)
print(f"nodes: {seen[0]}, {max(seen)}, {nodes()}")

made = index(IndexSettings(kind="faiss", embeddings=output, output=output + "-index"))
vectors = Vectors(output).take(np.arange(Vectors(output).rows))
with SearchPool.start(made, replicas=5) as pool:
    scores, _ = pool.search(vectors[::100], 1)
    right = np.allclose(scores[:, 0], (vectors[::100] @ vectors.T).max(axis=1), rtol=1e-4)
    print(f"pool: {nodes()} nodes, {right}")
while nodes() > 1:
    time.sleep(0.2)
try:
    SearchPool.start(made, name="large", replicas=20)
except InputError as error:
    print(f"refused: {error}")
"""
PASSAGES = 1_200


@pytest.fixture
def started():
    """The script as `make cluster-local` runs it, and what it says once the cluster is up."""
    kept = {key: value for key, value in os.environ.items() if key != "RAY_ADDRESS"}
    command = [sys.executable, str(ROOT / "cluster" / "local.py"), "--workers", "2", "--memory", "0.7", "--idle", "2"]
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


def test_work_makes_the_cluster_grow_and_shrink_and_nothing_is_left_of_it(started, tmp_path):
    process, said = started
    texts, model = make_corpus(tmp_path / "corpus", PASSAGES, 60), slow_retriever(tmp_path / "model")
    assert process.poll() is None, said
    told = dict(re.findall(r"(RAY_\w+)=(\S+)", said))
    with pytest.raises(urllib.error.HTTPError, match="401"):
        urllib.request.urlopen(f"{told['RAY_ADDRESS']}/api/jobs/")
    (tmp_path / "job.py").write_text(JOB)
    submit = [RAY, "job", "submit", "--", sys.executable, *(f"{tmp_path}/{name}" for name in ("job.py", "model", "corpus", "vectors"))]
    done = subprocess.run(submit, env=os.environ | told, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    assert "nodes: 1, 3, 1" in done.stdout, done.stdout
    assert "pool: 3 nodes, True" in done.stdout, done.stdout
    assert "refused: search: the cluster's autoscaler has no node for an actor of" in done.stdout, done.stdout
    vectors, wanted = Vectors(tmp_path / "vectors"), np.arange(0, PASSAGES, 100)
    assert vectors.rows == PASSAGES  # and each in its place, or `take` says so
    with torch.no_grad():
        tokens = model.tokenize_passages([texts[row] for row in wanted]).pad(model.tokenizer.pad_id, "cpu")
        np.testing.assert_allclose(vectors.take(wanted), model.encode_passages(tokens).numpy(), atol=1e-5)

    folder = str(Path(told["RAY_AUTH_TOKEN_PATH"]).parent)
    assert _processes_of(folder)
    process.send_signal(signal.SIGINT)
    assert process.wait(60) == 0
    assert _processes_of(folder) == []
    assert not Path(folder).exists()


def slow_retriever(folder):
    """With the layers of a small real model, so that there is work while nodes start."""
    make_retriever(folder)
    vocabulary = DualEncoder.load(folder).encoder.config.vocab_size
    torch.manual_seed(1)
    shape = {"hidden_size": 384, "num_hidden_layers": 6, "num_attention_heads": 12, "intermediate_size": 1_536}
    BertModel(BertConfig(vocab_size=vocabulary, **shape), add_pooling_layer=False).save_pretrained(folder)
    return DualEncoder.load(folder).eval()


def _processes_of(folder):
    return [
        one.info["name"] for one in psutil.process_iter(["name", "cmdline"]) if any(folder in word for word in one.info["cmdline"] or [])
    ]
