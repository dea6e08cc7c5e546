"""The stage `compare`: a row for each factory, measured once; the command line prints them."""

import json
from pathlib import Path

import numpy as np
import pytest
import ray
from embeddings import write_embeddings

import raydense as rd
import raydense.retrieval.compare as comparing
from raydense.cli import main
from raydense.errors import InputError
from raydense.retrieval.memory import PROCESS_BYTES
from raydense.retrieval.vectors import Vectors

pytestmark = pytest.mark.usefixtures("ray_cluster")


@pytest.fixture(scope="module")
def embeddings(tmp_path_factory: pytest.TempPathFactory) -> str:
    rng = np.random.default_rng(0)
    vectors = rng.standard_normal((40, 16))[rng.integers(0, 40, 3_000)] + 0.7 * rng.standard_normal((3_000, 16))
    folder = tmp_path_factory.mktemp("compare") / "vectors"
    write_embeddings(folder, vectors.astype(np.float32))
    return str(folder)


def test_a_row_for_each_factory(embeddings: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """The second command measures nothing again: the times in the report stay."""
    given = {"embeddings": embeddings, "sample": 2_000, "query_sample": 100, "k": 20, "recall": 0.9, "output": str(tmp_path / "report")}
    factories = ["Flat", "SQ8", "IVF16,Flat", "IVF16,RaBitQ,Refine(SQ8)"]
    report = rd.compare(rd.CompareSettings.read({**given, "factories": " ; ".join(factories)}))
    rows = json.loads((report.path / "metrics.json").read_text())["runs"]
    assert list(rows) == factories
    of = {name: row["metrics"] for name, row in rows.items()}
    assert of["Flat"]["recall@20"] == 1
    assert 0.97 < of["SQ8"]["recall@20"] < 1
    assert 0.9 <= of["IVF16,Flat"]["recall@20"] < 1
    assert 1 < of["IVF16,Flat"]["nprobe"] < 16
    assert of["Flat"]["MiB"] == pytest.approx(2_000 * 64 / 2**20, abs=0.1)
    assert of["Flat"]["GiB of all"] == pytest.approx(3_000 * 64 / 2**30, abs=0.001)
    assert all(row["queries/s"] > 0 and row["build s"] >= 0 for row in of.values())
    page = (report.path / "report.html").read_text()
    assert "<svg" in page
    assert "IVF16,RaBitQ,Refine(SQ8)" in page
    assert "2,000 of 3,000 vectors of 16 dimensions" in page
    before = {path.name: path.read_bytes() for path in report.path.glob("*.json")}
    (report.path / "index-002.json").unlink()
    flags = [
        word for key, value in {**given, "factories": " ; ".join(factories)}.items() for word in (f"--{key.replace('_', '-')}", str(value))
    ]
    capfd.readouterr()
    with pytest.raises(SystemExit) as ended:
        main(["compare", *flags])
    assert ended.value.code == 0
    printed = capfd.readouterr().out
    assert all(name in printed for name in [*factories, "recall@20", "queries/s"])
    assert {p.name for p in (tmp_path / "report").glob("index-*.json") if p.read_bytes() == before[p.name]} >= {
        f"index-00{i}.json" for i in (0, 1, 3)
    }


def test_what_faiss_cannot_make_is_one_line(embeddings: str, tmp_path: Path) -> None:
    """Before a factory is measured: a report of others is another one."""
    many = str(tmp_path / "many")
    write_embeddings(Path(many), np.ones((10_010, 2), np.float32))
    for wrong, message in (
        ({"factories": "Flat Flatt"}, "factories: FAISS cannot make 'Flatt'"),
        ({"factories": "Flat;IVF2800,Flat"}, "factories: 2,700 vectors do not train 'IVF2800,Flat', which needs 2,800; leave it out"),
        ({"factories": "Flat IVF300,Flat", "train_sample": 256}, "factories: 256 vectors do not train 'IVF300,Flat'"),
        ({"factories": "Flat IDMap,Flat"}, "factories: 'IDMap,Flat' brings its own ids"),
        ({"factories": "Flat", "k": 400}, "give at most 300"),
        ({"factories": "Flat", "k": 1_001, "sample": 1_000, "embeddings": many}, "give at most 1000, or a larger sample"),
    ):
        with pytest.raises(InputError, match=message):
            rd.compare(rd.CompareSettings.read({"embeddings": embeddings, "output": str(tmp_path / "report"), **wrong}))
        assert not (tmp_path / "report").exists()


def test_what_fits_on_no_node_is_refused_before_the_first_is_measured(
    embeddings: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The sample, and what `index` reserves for the largest factory: three times what trains it, or the index and the blocks in work."""
    settings = rd.CompareSettings.read({"embeddings": embeddings, "factories": "SQ8 Flat", "output": str(tmp_path / "report")})
    assert comparing.task_bytes(settings, Vectors(embeddings)) >= (2_700 + 300 + 2_700 + 5 * 2_700) * 16 * 4
    trained = settings.model_copy(update={"factories": "IVF64,SQ8"})
    assert comparing.task_bytes(trained, Vectors(embeddings)) - PROCESS_BYTES >= (2_700 + 300 + 3 * 2_700) * 16 * 4
    monkeypatch.setattr(ray, "nodes", lambda: [{"Alive": True, "Resources": {"CPU": 1.0, "memory": 1000.0}}])
    with pytest.raises(InputError, match=r"compare: a task needs .* give a smaller sample"):
        rd.compare(settings)
    assert not (tmp_path / "report").exists()
