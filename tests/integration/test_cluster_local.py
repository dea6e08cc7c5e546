"""`make cluster-local` for real: encoding, generating and a search pool make the cluster grow, to three nodes, and leave it at one; Ctrl-C leaves nothing."""

import json
import os
import re
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from contextlib import suppress
from pathlib import Path

import numpy as np
import psutil
import pytest
import torch
from inference_world import make_corpus, make_retriever
from transformers import BertConfig, BertModel
from warm_worker import own_ray_environment

from raydense.inference.generate import generate
from raydense.inference.settings import GenerateSettings
from raydense.models.dual_encoder import DualEncoder
from raydense.models.tiny import make_tiny_generator
from raydense.retrieval.vectors import Vectors
from raydense.storage import Artifact

ROOT = Path(__file__).parents[2]
RAY = str(Path(sys.executable).parent / "ray")
WATCH = """
import sys, threading, time
import ray
from raydense.runtime.session import ensure_ray

def nodes():
    return sum(node["Alive"] for node in ray.nodes())

def nodes_while(work):
    ended, seen = threading.Event(), [nodes()]
    def watch():
        while not ended.wait(0.1):
            seen.append(nodes())
    threading.Thread(target=watch).start()
    work()
    ended.set()
    while nodes() > 1:
        time.sleep(0.2)
    print(f"nodes: {seen[0]}, {max(seen)}, {nodes()}")

ensure_ray()
model, corpus, output = sys.argv[1:]
"""
# No setting gives the number of actors: an actor takes one CPU, the head has two and each node one, and there are more files than that. Then two
# actors of the pool fit on a node, and five are asked for; and more than three nodes could hold.
ENCODE_AND_SEARCH = """
import numpy as np
from raydense.errors import InputError
from raydense.inference.encode import encode
from raydense.retrieval.index import index
from raydense.retrieval.pool import SearchPool
from raydense.retrieval.vectors import Vectors
from raydense.inference.settings import EncodeSettings
from raydense.retrieval.settings import IndexSettings

nodes_while(lambda: encode(EncodeSettings(model=model, corpus=corpus, output=output, dtype="float32", precision="fp32")))
made = index(IndexSettings(kind="faiss", embeddings=output, output=output + "-index"))
vectors = Vectors(output).take(np.arange(Vectors(output).rows))
with SearchPool.start(made, shard_replicas=5) as pool:
    scores, _ = pool.search(vectors[::100], 1)
    right = np.allclose(scores[:, 0], (vectors[::100] @ vectors.T).max(axis=1), rtol=1e-4)
    print(f"pool: {nodes()} nodes, {right}")
while nodes() > 1:
    time.sleep(0.2)
try:
    SearchPool.start(made, name="large", shard_replicas=20)
except InputError as error:
    print(f"refused: {error}")
"""
GENERATE = """
from raydense.inference.generate import generate
from raydense.inference.settings import GenerateSettings

nodes_while(lambda: generate(GenerateSettings(model=model, corpus=corpus, output=output)))
"""
PASSAGES = 4_000  # enough that a quick machine is not done before a node has come


@pytest.fixture
def started():
    """The script as `make cluster-local` runs it, and its output once the cluster is up."""
    command = [sys.executable, str(ROOT / "cluster" / "local.py"), "--workers", "2", "--memory", "0.8", "--idle", "2"]
    environment = own_ray_environment() | {"PATH": "/usr/bin:/bin"}
    process = subprocess.Popen(command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    lines = []
    for line in process.stdout:
        lines.append(line)
        if line.startswith("Ctrl-C"):
            break
    yield process, "".join(lines)
    if process.poll() is None:
        process.send_signal(signal.SIGINT)
        process.wait(60)


def test_it_listens_at_the_loopback_to_who_has_its_token_and_nothing_is_left_of_it(started):
    process, printed = started
    assert process.poll() is None, printed
    url, address, access = given(printed)
    with pytest.raises(urllib.error.HTTPError, match="401"):
        urllib.request.urlopen(f"{url}/api/jobs/")
    status = [sys.executable, "-m", "raydense", "pool", "status", "--address", address, "--json"]
    assert json.loads(subprocess.run(status, env=os.environ | access, capture_output=True, text=True, check=True).stdout) == []
    folder = str(Path(access["RAY_AUTH_TOKEN_PATH"]).parent)
    assert _processes_of(folder)
    assert _addresses(folder) == {"127.0.0.1"}
    process.send_signal(signal.SIGINT)
    assert process.wait(60) == 0
    assert _processes_of(folder) == []
    assert not Path(folder).exists()


@pytest.mark.long
def test_work_makes_the_cluster_grow_and_shrink(started, tmp_path):
    process, printed = started
    texts, model = make_corpus(tmp_path / "corpus", PASSAGES, 60), slow_retriever(tmp_path / "model")
    assert process.poll() is None, printed
    url, _, access = given(printed)
    logs = submitted(url, access, tmp_path, ENCODE_AND_SEARCH)
    assert re.search("nodes: 1, [23], 1", logs), logs  # on a quick machine the work is done before the third node is there
    assert "pool: 3 nodes, True" in logs, logs
    assert "refused: search: the cluster's autoscaler has no node for an actor of" in logs, logs
    vectors, wanted = Vectors(tmp_path / "made"), np.arange(0, PASSAGES, 100)
    assert vectors.rows == PASSAGES  # and each in its place, or `take` raises
    with torch.no_grad():
        tokens = model.tokenize_passages([texts[row] for row in wanted]).pad(model.tokenizer.pad_id, "cpu")
        np.testing.assert_allclose(vectors.take(wanted), model.encode_passages(tokens).numpy(), atol=1e-5)


@pytest.mark.long
def test_generating_makes_it_grow_too_and_writes_what_one_machine_writes(started, tmp_path):
    _, printed = started
    texts = make_corpus(tmp_path / "corpus", PASSAGES, 60)
    make_tiny_generator(texts, tmp_path / "model", seed=3)
    url, _, access = given(printed)
    logs = submitted(url, access, tmp_path, GENERATE)
    assert "nodes: 1, 3, 1" in logs, logs
    alone = generate(GenerateSettings(model=str(tmp_path / "model"), corpus=str(tmp_path / "corpus"), output=str(tmp_path / "alone")))
    assert [(file.path, file.sha256) for file in Artifact.open(tmp_path / "made").files] == [
        (file.path, file.sha256) for file in alone.files
    ]


def given(printed):
    """What the script prints: the dashboard's URL, the address to join, and the environment variables that both need."""
    (url,), (address,) = re.findall(r"`ray job`: (\S+)", printed), re.findall(r"every other command: (\S+)", printed)
    return url, address, dict(re.findall(r"(RAY_AUTH\w+)=(\S+)", printed))


def submitted(url, access, folder, job):
    """The logs of a job that is submitted to the cluster, with the model, the corpus and the output in `folder`; its `python` has raydense."""
    (folder / "job.py").write_text(WATCH + job)
    words = ["python", *(f"{folder}/{name}" for name in ("job.py", "model", "corpus", "made"))]
    submit = [RAY, "job", "submit", "--address", url, "--", *words]
    done = subprocess.run(submit, env=os.environ | access, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return done.stdout


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


def _addresses(folder):
    """Where the cluster listens: the processes of its head and whatever these have started, and workers, forked from another, by their logs."""
    found = set()
    for one in psutil.process_iter():
        with suppress(psutil.Error):
            if any(folder in value for value in (*one.environ().values(), *(file.path for file in one.open_files()))):
                found |= {of.laddr.ip.removeprefix("::ffff:") for of in one.net_connections("inet") if of.status == psutil.CONN_LISTEN}
    return found
