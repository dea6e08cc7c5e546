"""`make cluster-local` for real: encoding makes the cluster grow to three nodes, it shrinks to one, and Ctrl-C leaves nothing behind."""

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
# Nothing says how many actors: an actor takes one CPU, the head has two and each node one, and there are more files than that.
JOB = """
import sys, threading, time
import ray
from raydense.inference.encode import encode
from raydense.ray_session import ensure_ray
from raydense.settings import EncodeSettings

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
"""
PASSAGES = 1_200


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


def test_encoding_makes_the_cluster_grow_and_shrink_and_nothing_is_left_of_it(started, tmp_path):
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
    assert "nodes: 1, 3, 1" in done.stdout
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
