"""A folder of a data set given in place of one of its parts: the error says which part was meant, or what there is."""

from __future__ import annotations

from pathlib import Path

import pytest

from raydense.data.dataset import DatasetDraft
from raydense.errors import InputError
from raydense.recipes.stage import VERBS
from raydense.serving.running import running
from raydense.serving.settings import ServeSettings
from raydense.storage import Artifact

PARTS = {"corpus": "corpus", "queries": "queries", "qrels/dev": "qrels", "qrels/train": "qrels"}


@pytest.fixture(autouse=True)
def dataset(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """`data/zh`, from the folder that we are in."""
    monkeypatch.chdir(tmp_path)
    made = DatasetDraft("data/zh", {"stage": "test"})
    for name, kind in PARTS.items():
        draft = made.part(name, kind)
        draft.commit(f"{kind}.parquet", lambda path: path.write_text("text"), 1)
        made.keep(name, draft.finish(1))
    made.finish()
    return tmp_path / "data" / "zh"


CASES = {
    ("data/zh", "corpus"): "data/zh: holds dataset, not corpus; did you mean data/zh/corpus?",
    ("data/zh/", "queries"): "data/zh: holds dataset, not queries; did you mean data/zh/queries?",
    ("data/zh", "qrels"): "data/zh: holds dataset, not qrels; did you mean data/zh/qrels/dev or data/zh/qrels/train?",
    ("data/zh", "run"): "data/zh: holds dataset, not run; give a folder of kind run",
    ("data/zh/qrels", "qrels"): "data/zh/qrels: no manifest.json of raydense; did you mean data/zh/qrels/dev or data/zh/qrels/train?",
    ("data/zh/corpus", "queries"): "data/zh/corpus: holds corpus, not queries; did you mean data/zh/queries?",
    ("data/zh/corpus", "dataset"): "data/zh/corpus: holds corpus, not dataset; give a folder of kind dataset",
    ("data/zh/qrels/test", "qrels"): "data/zh/qrels/test: no such folder; data/zh/qrels has dev, train: no test",
    ("data/zh/run", "run"): "data/zh/run: no such folder; data/zh has corpus, qrels/dev, qrels/train, queries: no run",
    ("data/other/corpus", "corpus"): "data/other/corpus: no such folder; give a folder of kind corpus",
    ("none", "qrels"): "none: no such folder; give a folder of kind qrels",
}


@pytest.mark.parametrize(("given", "kind"), CASES)
def test_the_part_that_was_meant_is_named(given: str, kind: str) -> None:
    with pytest.raises(InputError) as caught:
        Artifact.open(given, kind)
    assert str(caught.value) == CASES[given, kind]


def test_paths_from_the_root_and_from_within_the_data_set(dataset: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InputError, match=f"{dataset}/qrels has dev, train: no test"):
        Artifact.open(dataset / "qrels" / "test", "qrels")
    monkeypatch.chdir(dataset)
    with pytest.raises(InputError, match=r"qrels/test: no such folder; \./qrels has dev, train: no test"):
        Artifact.open("qrels/test", "qrels")


def test_a_manifest_of_another_tool_above_is_no_data_set(tmp_path: Path) -> None:
    (tmp_path / "app").mkdir()
    (tmp_path / "app" / "manifest.json").write_text("not JSON")
    with pytest.raises(InputError, match="app/corpus: no such folder; give a folder of kind corpus"):
        Artifact.open("app/corpus", "corpus")


def test_a_part_that_the_manifest_records_and_that_is_gone(dataset: Path, tmp_path: Path) -> None:
    (dataset / "queries").rename(tmp_path / "moved")
    with pytest.raises(InputError, match="data/zh/queries: no such folder; give a folder of kind queries"):
        Artifact.open("data/zh/queries", "queries")


VALUES = {
    "encode": {"corpus": "data/zh"},
    "generate": {"model": "data/zh"},
    "expand": {"model": "data/zh", "kinds": "answer"},
    "index": {"kind": "bm25", "corpus": "data/zh"},
    "search": {"index": "data/zh"},
    "filter": {"index": "data/zh", "model": "data/zh"},
    "annotate": {"run": "data/zh"},
    "adjudicate": {"judgements": "data"},
    "overlap": {"against": "data/zh"},
    "perturb": {"kind": "typo"},
    "train": {"objective": "retriever", "model": "tiny"},
    "pretrain": {"method": "mlm", "model": "tiny"},
    "fuse": {"run": ["a=data/zh", "b=data/zh"]},
    "mix": {name: ["a=data/zh", "b=data/zh"] for name in ("examples", "queries", "corpus")},
    "evaluate": {"run": "data/zh", "qrels": "data/zh"},
    "export": {"format": "beir", "corpus": "data/zh"},
    "split": {"unit": "words", "length": 5},
    "topics": {"embeddings": "data/zh"},
}


@pytest.mark.parametrize("verb", [verb for verb in VERBS if verb not in ("sample", "import", "construct")])
def test_every_verb_refuses_a_data_set_without_starting_anything(verb: str, tmp_path: Path) -> None:
    """A test of this folder fails where a process is started, as Ray is one."""
    of, given = VERBS[verb], {"output": "out", **VALUES.get(verb, {})}
    kind = of.settings.chosen(given)
    required = {key: "data/zh" for key in kind.inputs() if "." not in key and kind.all_fields()[key].is_required()}
    with pytest.raises(InputError, match="data/zh: holds dataset, not "):
        of.run(of.settings.read({**required, **given}))
    assert not (tmp_path / "out").exists()


def test_a_server_refuses_one_before_it_connects_to_a_pool() -> None:
    settings = ServeSettings(pool="none", corpus="data/zh")
    with pytest.raises(InputError, match=r"holds dataset, not corpus; did you mean data/zh/corpus\?"), running(settings, "x", "/", "", 0):
        pass
