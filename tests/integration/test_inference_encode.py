"""Encoding on Ray Data against the encoder called in this process."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
import ray
import torch
from ray.data import DataContext

from raydense.data.tables import read_table
from raydense.errors import InputError
from raydense.inference.encode import encode
from raydense.inference.settings import EncodeSettings
from raydense.models.dual_encoder import DualEncoder
from raydense.recipes.stage import VERBS
from raydense.retrieval.index import index
from raydense.retrieval.search import search
from raydense.retrieval.settings import IndexSettings, SearchSettings
from raydense.storage import Artifact, Draft, provenance
from tests.inference_world import file_bytes, make_corpus, make_queries, make_reranker, make_retriever

pytestmark = pytest.mark.usefixtures("ray_cluster")

PASSAGES = 330


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("encode")
    make_retriever(root / "model")
    make_corpus(root / "corpus", PASSAGES, shard_rows=100)
    return root


def settings(world: Path, output: Path, **more: object) -> EncodeSettings:
    return EncodeSettings.read(
        {"output": str(output), "model": str(world / "model"), "corpus": str(world / "corpus"), "precision": "fp32"} | more
    )


@pytest.fixture(scope="module")
def embeddings(world: Path) -> Artifact:
    return encode(settings(world, world / "emb", concurrency=(1, 1), precision="fp32"))


def in_this_process(model: DualEncoder, texts: list[str]) -> np.ndarray:
    """One text a batch: no padding, no order, no batching of ours."""
    with torch.inference_mode():
        return np.concatenate([model.encode_passages(model.tokenize_passages([t]).pad(model.tokenizer.pad_id)).numpy() for t in texts])


def read(path: Path) -> pa.Table:
    return pa.ipc.open_file(pa.memory_map(str(path))).read_all()


def test_fp16_without_a_gpu_is_refused_and_leaves_nothing(world: Path, tmp_path: Path) -> None:
    """Otherwise its precision would refuse the one that the message names."""
    with pytest.raises(InputError, match=r"precision: fp16 is for GPUs, and the actors have none; give auto, fp32 or bf16"):
        VERBS["encode"].run(settings(world, tmp_path / "emb", precision="fp16", gpus_per_actor=0))
    assert not (tmp_path / "emb").exists()


def test_rows_and_vectors_are_those_of_the_encoder(world: Path, embeddings: Artifact) -> None:
    from raydense.data.store import PassageStore

    store = PassageStore(world / "corpus")
    tables = [read(part) for part in embeddings.parts(".arrow", "embeddings-")]
    assert [t.num_rows for t in tables] == [100, 100, 100, 30]
    assert np.concatenate([t["row"].to_numpy() for t in tables]).tolist() == list(range(PASSAGES))
    found = np.concatenate([t["embedding"].combine_chunks().flatten().to_numpy().reshape(-1, 128) for t in tables])
    expected = in_this_process(DualEncoder.load(world / "model"), store.passages(np.arange(PASSAGES)))
    np.testing.assert_allclose(found.astype(np.float32), expected, rtol=1e-3, atol=1e-4)
    ids = read(world / "emb" / "passage_ids.arrow")["passage_id"].to_pylist()
    assert ids == [f"p{i}" for i in range(PASSAGES)]
    assert embeddings.summary["dimension"] == 128
    assert embeddings.summary["corpus"] == store.artifact.fingerprint
    assert 0 <= embeddings.summary["padding_share"] < 0.35


def test_several_actors_write_the_same_bytes_and_half_precision_reads_without_a_copy(
    world: Path, embeddings: Artifact, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As many actors as CPUs are asked for, which would leave none to tokenise; and each takes longer than Ray Data would wait by itself."""
    monkeypatch.setattr(DataContext.get_current(), "execution_no_progress_timeout_s", 0.2)
    several = encode(settings(world, world / "several", concurrency=(4, 4), precision="fp32"))
    assert file_bytes(several.path) == file_bytes(embeddings.path)
    assert several.fingerprint == embeddings.fingerprint
    column = read(several.path / "embeddings-00000.arrow")["embedding"]
    assert column.type == pa.list_(pa.float16(), 128)
    assert column.num_chunks == 1
    view = column.chunk(0).flatten().to_numpy(zero_copy_only=True)
    assert view.dtype == np.float16
    assert not view.flags.owndata


def test_is_done_once_and_refused_when_the_model_changed(world: Path, embeddings: Artifact, tmp_path: Path) -> None:
    before = (world / "emb" / "manifest.json").stat().st_mtime_ns
    assert encode(settings(world, world / "emb", precision="fp32")).fingerprint == embeddings.fingerprint
    assert (world / "emb" / "manifest.json").stat().st_mtime_ns == before
    other = make_retriever(tmp_path / "other", seed=4)
    with pytest.raises(InputError, match=r"made from something else \(inputs.model"):
        encode(settings(world, world / "emb", precision="fp32", model=str(other)))
    with pytest.raises(InputError, match=r"settings.dtype: float16 -> float32"):
        encode(settings(world, world / "emb", precision="fp32", dtype="float32"))


def begun(asked: EncodeSettings, embeddings: Artifact, precision: str) -> EncodeSettings:
    """`asked`, with an output that has the first file of `embeddings`, recorded as computed in `precision`."""
    draft = Draft.open(asked.output, "embeddings", provenance("encode", asked))
    part = embeddings.path / "embeddings-00000.arrow"
    [note] = [file.note for file in embeddings.files if file.path == part.name]
    draft.commit(part.name, lambda path: shutil.copy(part, path), 100, **{**note, "precision": precision})
    draft.close()
    return asked


def test_auto_continues_in_the_precision_that_is_recorded_and_refuses_one_that_the_device_lacks(
    world: Path, embeddings: Artifact, tmp_path: Path
) -> None:
    assert embeddings.summary["precision"] == embeddings.files[0].note["precision"] == "fp32"
    continued = encode(begun(settings(world, tmp_path / "fp32"), embeddings, "fp32"))  # on every CPU
    assert continued.summary["precision"] == "fp32"
    assert file_bytes(continued.path) == file_bytes(embeddings.path)
    with pytest.raises(InputError, match=r"fp16: what is there was computed in fp16, and this device would continue in (fp32|bf16)"):
        encode(begun(settings(world, tmp_path / "fp16"), embeddings, "fp16"))


def test_half_precision_gives_the_same_bytes_for_any_actors_and_finds_the_same_passages(
    world: Path, embeddings: Artifact, tmp_path: Path
) -> None:
    """On a CPU without products in bf16, too: torch computes them in another way."""
    made = encode(settings(world, tmp_path / "one", concurrency=(1, 1), precision="bf16"))
    assert made.summary["precision"] == "bf16"
    several = encode(begun(settings(world, tmp_path / "several", concurrency=(4, 4), precision="bf16"), made, "bf16"))
    assert file_bytes(several.path) == file_bytes(made.path)
    make_queries(tmp_path / "queries", 11)
    found = {}
    for vectors in (embeddings, made):
        dense = index(IndexSettings.read({"kind": "faiss", "embeddings": vectors, "output": str(tmp_path / f"index-{len(found)}")}))
        given = {"index": dense, "model": str(world / "model"), "queries": str(tmp_path / "queries"), "k": 20}
        run = search(SearchSettings.read({**given, "output": str(tmp_path / f"run-{len(found)}")}))
        found[vectors.summary["precision"]] = read_table(run.path, "run", ["query_id", "passage_id", "score"])
    by_precision = {name: {(q, p): s for q, p, s in zip(*table.to_pydict().values(), strict=True)} for name, table in found.items()}
    both = by_precision["fp32"].keys() & by_precision["bf16"].keys()
    assert len(both) > 0.9 * len(by_precision["fp32"])
    largest = max(by_precision["fp32"].values())
    assert all(abs(by_precision["fp32"][pair] - by_precision["bf16"][pair]) < 0.01 * largest for pair in both)


def test_refuses_a_reranker_and_a_folder_without_weights(world: Path, tmp_path: Path) -> None:
    reranker = make_reranker(tmp_path / "reranker", world / "model")
    with pytest.raises(InputError, match="holds a re-ranker"):
        encode(settings(world, tmp_path / "out", model=str(reranker)))
    bare = shutil.copytree(world / "model", tmp_path / "bare")
    (bare / "model.safetensors").unlink()
    with pytest.raises(InputError, match="no weights"):
        encode(settings(world, tmp_path / "out", model=str(bare)))
    assert not (tmp_path / "out").exists()
    refused = {"cpus_per_actor": 64} | ({} if ray.cluster_resources().get("GPU") else {"gpus_per_actor": 1})
    for claimed, number in refused.items():
        what = f"{claimed}: an actor is to have {number} [CG]PUs, and of 1 nodes none has more than [04]; give"
        with pytest.raises(InputError, match=what):
            encode(settings(world, tmp_path / "out", **{claimed: number}))


@pytest.mark.parametrize("broken", ["model.safetensors", "tokenizer.json"])
def test_an_error_in_a_worker_is_one_line_and_ends_the_run(world: Path, tmp_path: Path, broken: str) -> None:
    model = shutil.copytree(world / "model", tmp_path / "model")
    (model / broken).write_bytes(b"nonsense")
    with pytest.raises(InputError, match=r"cannot be (loaded|read)") as caught:
        encode(settings(world, tmp_path / "out", model=str(model)))
    assert str(model) in str(caught.value)
    assert "\n" not in str(caught.value)
    assert json.loads((tmp_path / "out" / ".work" / "made_from.json").read_text())["stage"] == "encode"
    assert not (tmp_path / "out" / "manifest.json").exists()


def test_queries_are_encoded_by_the_same_actors_at_their_own_length_and_in_fewer_dimensions(world: Path, tmp_path: Path) -> None:
    texts = make_queries(tmp_path / "queries", 11)
    asked = {"model": str(world / "model"), "queries": str(tmp_path / "queries"), "dtype": "float32", "query_length": 3, "dimension": 16}
    made = encode(EncodeSettings.read({**asked, "output": str(tmp_path / "vectors")}))
    table = read(made.path / "embeddings-00000.arrow")
    model = DualEncoder.load(world / "model", query_length=3)
    with torch.inference_mode():
        wanted = np.concatenate([model.encode_queries(model.tokenize_queries([t]).pad(model.tokenizer.pad_id)).numpy() for t in texts])
    found = table["embedding"].combine_chunks().flatten().to_numpy().reshape(-1, 16)
    np.testing.assert_allclose(found, wanted[:, :16], rtol=1e-4, atol=1e-5)
    assert read(made.path / "query_ids.arrow")["query_id"].to_pylist() == [f"q{i}" for i in range(11)]
    assert (made.rows, made.summary["of"], made.summary["dimension"]) == (11, "queries", 16)
    assert made.summary["queries"] == Artifact.open(tmp_path / "queries").fingerprint
    with pytest.raises(InputError, match="holds vectors of queries, not of passages; encode with --corpus"):
        index(IndexSettings.read({"kind": "faiss", "embeddings": made, "output": str(tmp_path / "index")}))
    with pytest.raises(InputError, match="encode with queries does not use passage_length"):
        EncodeSettings.read({**asked, "output": "o", "passage_length": 9})
    with pytest.raises(InputError, match="dimension 129 is more than the 128 of the model"):
        encode(EncodeSettings.read({**asked, "output": str(tmp_path / "wide"), "dimension": 129}))
