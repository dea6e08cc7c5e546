"""An index of inverted lists brings its nprobe: the least that reaches the recall, whatever the workers; a search uses it."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import faiss
import numpy as np
import pytest
from embeddings import write_embeddings

from raydense.errors import InputError
from raydense.retrieval import nprobe
from raydense.retrieval.faiss_plan import plan_build
from raydense.retrieval.index import index
from raydense.retrieval.pool import SearchPool
from raydense.retrieval.settings import IndexSettings
from raydense.runtime.tasks import run_tasks
from raydense.storage import Artifact

pytestmark = pytest.mark.usefixtures("ray_cluster")

ROWS, DIMENSION = 3_000, 32


@pytest.fixture(scope="module")
def vectors(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, np.ndarray]:
    """Vectors in 60 overlapping clusters."""
    rng = np.random.default_rng(0)
    made = rng.standard_normal((60, DIMENSION))[rng.integers(0, 60, ROWS)] + 0.7 * rng.standard_normal((ROWS, DIMENSION))
    made = (made / np.linalg.norm(made, axis=1, keepdims=True)).astype(np.float32)
    folder = tmp_path_factory.mktemp("nprobe") / "vectors"
    write_embeddings(folder, made)
    return str(folder), made


def made(vectors: tuple[str, np.ndarray], output: Path, factory: str, **more: object) -> Artifact:
    given = {"kind": "faiss", "embeddings": vectors[0], "factory": factory, "train_sample": 3_000, "output": str(output), **more}
    return index(IndexSettings.read(given))


def recall_of(artifact: Artifact, vectors: np.ndarray, nprobe: int) -> float:
    """recall@100 of 300 passages, themselves left out, by plain FAISS over one shard."""
    plain = faiss.read_index(str(artifact.parts(".faiss", "shard-")[0]))
    plain.nprobe = nprobe
    queries = np.arange(0, ROWS, 10)
    found = plain.search(vectors[queries], 101)[1]
    scores = vectors[queries] @ vectors.T
    scores[np.arange(len(queries)), queries] = -np.inf
    best = np.argsort(-scores, axis=1)[:, :100]
    return float(np.mean([np.isin(true, line).mean() for true, line in zip(best, found, strict=True)]))


def test_it_reaches_the_recall_whatever_the_shards_and_workers(vectors: tuple[str, np.ndarray], tmp_path: Path) -> None:
    one = made(vectors, tmp_path / "one", "IVF40,Flat", recall=0.9)
    assert 1 < one.summary["nprobe"] < 40
    assert 0.9 <= one.summary["recall"] < 0.95
    assert recall_of(one, vectors[1], one.summary["nprobe"]) == pytest.approx(one.summary["recall"], abs=0.03)
    several = [made(vectors, tmp_path / f"several-{n}", "IVF40,Flat", recall=0.9, shards=3, concurrency=n) for n in (1, 3)]
    for each in several:
        assert [each.summary[key] for key in ("nprobe", "recall")] == [one.summary[key] for key in ("nprobe", "recall")]
    assert made(vectors, tmp_path / "more", "IVF40,Flat").summary["nprobe"] > one.summary["nprobe"]
    assert "nprobe" not in made(vectors, tmp_path / "flat", "Flat").summary


def test_its_tasks_reserve_memory(vectors: tuple[str, np.ndarray], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reserved: dict[str, set[float]] = {}

    def noted(stage: str, function: Callable[..., Any], calls: list[tuple[Any, ...]], at_once: int = 0, memory: int = 0) -> Iterator[Any]:
        reserved.setdefault(function.__name__, set()).add(memory)
        return run_tasks(stage, function, calls, at_once, memory)

    monkeypatch.setattr(nprobe, "run_tasks", noted)
    made(vectors, tmp_path / "index", "IVF16,SQ8", shards=2)
    needed = {plan_build("IVF16,SQ8", DIMENSION, ROWS, 2).nprobe_bytes}
    assert reserved == dict.fromkeys(("taken", "exact_hits", "held_by_lists", "index_hits"), needed)


def test_a_search_uses_it_unless_another_is_given(
    vectors: tuple[str, np.ndarray], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Codes that are refined, too: the index is mapped, and finds what plain FAISS finds with the same parameters."""
    artifact = made(vectors, tmp_path / "index", "IVF16,RaBitQ,Refine(SQ8)", shards=2)
    chosen = artifact.summary["nprobe"]
    assert artifact.summary["recall"] >= 0.95
    assert f"index: nprobe={chosen} finds {artifact.summary['recall']:.3f} of the exact best 100 of 256 passages" in capfd.readouterr().err
    queries = vectors[1][:50]
    for given, used in (("", f"nprobe={chosen},k_factor_rf=10"), ("nprobe=1", "k_factor_rf=10,nprobe=1"), ("k_factor_rf=2", None)):
        with SearchPool.start(artifact, search_params=given, threads=1) as pool:
            _, rows = pool.search(queries, 20)
        params = used or f"nprobe={chosen},k_factor_rf=2"
        assert f"3,000 passages, {params}, 2 actors" in capfd.readouterr().err
        parts = [faiss.read_index(str(path)) for path in artifact.parts(".faiss", "shard-")]
        for part in parts:
            faiss.ParameterSpace().set_index_parameters(part, params)
        hits = [part.search(queries, 20) for part in parts]
        scores, merged = np.hstack([s for s, _ in hits]), np.hstack([r + 1_500 * i for i, (_, r) in enumerate(hits)])
        best = np.take_along_axis(merged, np.argsort(-scores, axis=1, kind="stable")[:, :20], axis=1)
        assert np.mean([np.isin(a, b).mean() for a, b in zip(best, rows, strict=True)]) > 0.99


def test_a_recall_that_codes_cannot_reach_is_reported(
    vectors: tuple[str, np.ndarray], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    artifact = made(vectors, tmp_path / "index", "IVF16,RaBitQ")
    assert artifact.summary["recall"] < 0.95
    assert "more does not reach 0.95: the codes of IVF16,RaBitQ lose it" in capfd.readouterr().err


def test_without_one_a_search_must_give_it(vectors: tuple[str, np.ndarray], tmp_path: Path) -> None:
    artifact = made(vectors, tmp_path / "index", "IVF16,Flat", recall=0)
    assert "nprobe" not in artifact.summary
    with pytest.raises(InputError, match="give --search-params nprobe=32"):
        SearchPool.start(artifact)
