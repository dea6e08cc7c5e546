"""Re-ranking on Ray Data against the cross-encoder called in this process."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
import torch

from raydense.data.runs import RunReader
from raydense.data.tables import commit_table, read_table
from raydense.errors import InputError
from raydense.inference.rerank import ordered, rerank
from raydense.inference.settings import RerankSettings
from raydense.models.cross_encoder import CrossEncoder
from raydense.recipes.stage import VERBS
from raydense.storage import Draft, provenance
from tests.inference_world import file_bytes, make_corpus, make_queries, make_reranker, make_retriever, write_table

pytestmark = pytest.mark.usefixtures("ray_cluster")

QUERIES, K, DEPTH, PASSAGES = 11, 9, 6, 120


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("rerank")
    make_reranker(root / "model", make_retriever(root / "encoder"))
    make_corpus(root / "corpus", PASSAGES, shard_rows=50)
    make_queries(root / "queries", QUERIES)
    write_table(root / "run", "run", *a_run())
    return root


def a_run() -> list[pa.Table]:
    """Two files; the second begins in the middle of a query."""
    rng = np.random.default_rng(11)
    hits = np.concatenate([rng.permutation(PASSAGES)[:K] for _ in range(QUERIES)])
    rank = np.tile(np.arange(1, K + 1), QUERIES)
    ids = [f"q{i}" for i in np.repeat(np.arange(QUERIES), K)]
    run = pa.table({"query_id": ids, "passage_id": [f"p{i}" for i in hits], "rank": rank, "score": -rank.astype(float)})
    return [run.slice(0, 31), run.slice(31)]


def settings(world: Path, output: Path, **more: object) -> RerankSettings:
    inputs = {name: str(world / name) for name in ("model", "run", "corpus", "queries")}
    return RerankSettings.read({"output": str(output), "depth": DEPTH, "block": 4, "precision": "fp32", **inputs, **more})


def below(world: Path) -> dict[str, list[str]]:
    """The passages below the depth, in the order of the run."""
    found: dict[str, list[str]] = {}
    for row in read_table(world / "run", "run").to_pylist():
        found.setdefault(row["query_id"], []).extend([row["passage_id"]] * (row["rank"] > DEPTH))
    return found


def expected(world: Path, texts: list[str], queries: list[str]) -> dict[str, list[tuple[str, float]]]:
    """One pair a batch, sorted by Python."""
    model = CrossEncoder.load(world / "model")
    found: dict[str, list[tuple[float, int]]] = {}
    for row in read_table(world / "run", "run").to_pylist():
        if row["rank"] <= DEPTH:
            passage, query = int(row["passage_id"][1:]), int(row["query_id"][1:])
            batch = model.tokenize_pairs([queries[query]], [texts[passage]]).pad(model.tokenizer.pad_id)
            with torch.inference_mode():
                found.setdefault(row["query_id"], []).append((-model(batch).item(), passage))
    return {q: [(f"p{passage}", -score) for score, passage in sorted(pairs)] for q, pairs in found.items()}


def test_fp16_without_a_gpu_is_refused_and_leaves_nothing(world: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"precision: fp16 is for GPUs, and the actors have none; give auto, fp32 or bf16"):
        VERBS["rerank"].run(settings(world, tmp_path / "run", precision="fp16", gpus_per_actor=0))
    assert not (tmp_path / "run").exists()


def test_order_and_scores_are_those_of_the_cross_encoder(world: Path) -> None:
    from raydense.data.store import PassageStore

    made = rerank(settings(world, world / "out", concurrency=(1, 1)))
    assert [file.rows for file in made.files] == [4 * K, 4 * K, 3 * K]
    assert (made.summary["kept"], made.summary["depth"]) == (QUERIES * (K - DEPTH), DEPTH)
    queries = read_table(world / "queries", "queries")["text"].to_pylist()
    wanted = expected(world, PassageStore(world / "corpus").passages(np.arange(PASSAGES)), queries)
    table = read_table(world / "out", "run").to_pydict()
    rest = below(world)
    assert table["query_id"] == [q for q in wanted for _ in range(K)]
    assert table["rank"] == list(range(1, K + 1)) * QUERIES
    assert table["passage_id"] == [p for q, pairs in wanted.items() for p in [*(p for p, _ in pairs), *rest[q]]]
    steps = [(place + 1) / (K - DEPTH) for place in range(K - DEPTH)]
    scores = [s for pairs in wanted.values() for s in [*(s for _, s in pairs), *(pairs[-1][1] - step for step in steps)]]
    np.testing.assert_allclose(table["score"], scores, rtol=0, atol=1e-5)
    again = rerank(settings(world, world / "again", concurrency=(2, 2)))
    assert file_bytes(again.path) == file_bytes(made.path)


def test_ties_fall_to_the_lower_corpus_row() -> None:
    scores = np.array([1, 2, 2, 2, 5, 5], dtype=np.float32)
    rows = np.array([0, 9, 3, 5, 8, 7])
    table = ordered(pa.array(["b"] * 4 + ["a"] * 2), pa.array([f"p{r}" for r in rows]), rows, scores)
    assert table["query_id"].to_pylist() == ["b"] * 4 + ["a"] * 2
    assert table["passage_id"].to_pylist() == ["p3", "p5", "p9", "p0", "p7", "p8"]
    assert table["rank"].to_pylist() == [1, 2, 3, 4, 1, 2]


@pytest.mark.parametrize("size", [1, 4, 100])
def test_blocks_hold_whole_queries_wherever_the_files_of_the_run_are_cut(world: Path, size: int) -> None:
    reader = RunReader(str(world / "run"))
    blocks = reader.blocks(size, DEPTH)
    tables = [reader.read(b["start"], b["stop"]) for b in blocks]
    assert [len(set(t["query_id"].to_pylist())) for t in tables] == [b["queries"] for b in blocks]
    assert [b["pairs"] for b in blocks] == [b["queries"] * DEPTH for b in blocks]
    assert pa.concat_tables(tables).equals(read_table(world / "run", "run"))


@pytest.mark.parametrize(("column", "message"), [("passage_id", "passage 'nobody'"), ("query_id", "query 'nobody'")])
def test_an_unknown_id_is_named_with_the_run_before_anything_is_scored(world: Path, tmp_path: Path, column: str, message: str) -> None:
    """It is in the last block, whose turn comes when all others are scored."""
    hit = {"query_id": ["q9"], "passage_id": ["p0"], "rank": [1], "score": [1.0], column: ["nobody"]}
    write_table(tmp_path / "run", "run", a_run()[0], pa.table(hit))
    with pytest.raises(InputError, match=f"run: names {message}") as caught:
        VERBS["rerank"].run(settings(world, tmp_path / "out", run=str(tmp_path / "run"), block=1, concurrency=(1, 1)))
    assert str(tmp_path / "run") in str(caught.value)
    assert not (tmp_path / "out").exists()


def test_a_run_of_another_corpus_is_refused(world: Path, tmp_path: Path) -> None:
    """Its ids are those of this one, too: a passage that was cut in another way, for instance."""
    draft = Draft.open(tmp_path / "run", "run", {})
    commit_table(draft, "run.parquet", a_run()[0])
    draft.finish(31, corpus="f" * 64)
    with pytest.raises(InputError, match="run: was made with another corpus"):
        rerank(settings(world, tmp_path / "out", run=str(tmp_path / "run")))


def test_what_version_0_1_began_is_refused(world: Path, tmp_path: Path) -> None:
    """Its blocks lack the passages below the depth, and the number of them."""
    asked = settings(world, tmp_path / "run")
    draft = Draft.open(asked.output, "run", provenance("rerank", asked))
    draft.commit("run-00000.parquet", lambda path: path.write_bytes(b"rows"), 24, tokens=1, padded=1, seconds=1.0)
    with pytest.raises(InputError, match=r"run: was begun by version 0.1, which left out the passages below depth; delete it"):
        rerank(asked)


def test_refuses_a_retriever(world: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="without a head that scores"):
        rerank(settings(world, tmp_path / "out", model=str(world / "encoder")))
