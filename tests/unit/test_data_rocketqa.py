"""RocketQA's own files: training lines, runs and questions, in and out, as its scripts read and write them."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from raydense.data.exporting import export
from raydense.data.formats import outlet as outlet_format
from raydense.data.importing import import_dataset
from raydense.data.settings import ExportSettings, ImportSettings
from raydense.data.tables import read_table
from raydense.errors import InputError
from raydense.storage import Place
from raydense.storage.foreign import how_to_import

PASSAGES = [("p0", "Kiwi", "a bird"), ("p1", "Kiwi", "a fruit"), ("p2", "", "penguins swim"), ("p3", "Emu", "runs")]
QUERIES = {"q7": "which bird?", "q3": "what swims?"}


def put(path: Path, *lines: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return path


def imported(source: Path, output: Path, **more: Any) -> Path:
    given = {"format": "rocketqa", "input": str(source), "output": str(output), **more}
    return import_dataset(ImportSettings(**given)).path


def exported(output: Path, **given: Any) -> str:
    export(ExportSettings(format="rocketqa", output=str(output), **{name: str(path) for name, path in given.items()}))  # type: ignore[arg-type]
    return output.read_text(encoding="utf-8")


def rows(folder: Path, kind: str) -> list[dict[str, Any]]:
    return read_table(folder, kind).to_pylist()


@pytest.fixture
def corpus(tmp_path: Path) -> str:
    put(tmp_path / "beir" / "corpus.jsonl", *(json.dumps({"_id": i, "title": t, "text": x}) for i, t, x in PASSAGES))
    put(tmp_path / "beir" / "queries.jsonl", json.dumps({"_id": "q", "text": "q"}))
    given = {"format": "beir", "input": str(tmp_path / "beir"), "output": str(tmp_path / "data")}
    return str(import_dataset(ImportSettings(**given)).path / "corpus")  # type: ignore[arg-type]


def dual(query: str, positive: int, negative: int) -> str:
    (_, good, answer), (_, bad, other) = PASSAGES[positive], PASSAGES[negative]
    return f"{query}\t{good or '-'}\t{answer}\t{bad or '-'}\t{other}\t0"


LINES = [dual(QUERIES["q7"], 0, 1), dual(QUERIES["q7"], 0, 2), dual("unheard of", 3, 0), dual(QUERIES["q3"], 2, 1)]


def test_training_files_have_the_passages_of_the_corpus_and_the_ids_of_the_questions(tmp_path: Path, corpus: str) -> None:
    put(tmp_path / "in" / "marco_de1_denoise.tsv", *LINES)
    put(tmp_path / "in" / "train.query.txt", *(f"{i}\t{text}" for i, text in QUERIES.items()))
    put(tmp_path / "in" / "dev.query.txt", "d1\tanother?")
    out = imported(tmp_path / "in", tmp_path / "out", corpus=corpus)
    names = {q["text"]: q["query_id"] for q in rows(out / "queries", "queries")}
    assert {text: names[text] for text in (*QUERIES.values(), "another?")} == {text: i for i, text in QUERIES.items()} | {"another?": "d1"}
    assert rows(out / "examples/marco_de1_denoise", "examples") == [
        {"query_id": "q7", "positives": [0], "negatives": [1, 2]},
        {"query_id": names["unheard of"], "positives": [3], "negatives": [0]},
        {"query_id": "q3", "positives": [2], "negatives": [1]},
    ]


def test_lines_of_a_cross_encoder_and_of_joint_training(tmp_path: Path, corpus: str) -> None:
    """Their titles may be empty, and queries without a positive are left out."""
    lines = ["which?\tKiwi\ta bird\t1", "which?\t\tpenguins swim\t0", "what?\tEmu\truns\t0", "which?\tKiwi\ta fruit\t0"]
    out = imported(put(tmp_path / "marco_joint.rand8", *lines), tmp_path / "out", corpus=corpus)
    asked = {q["query_id"]: q["text"] for q in rows(out / "queries", "queries")}
    found = rows(out / "examples/marco_joint", "examples")
    assert [(asked[e["query_id"]], e["positives"], e["negatives"]) for e in found] == [("which?", [0], [2, 1])]


def test_examples_come_back_as_the_lines_that_they_were(tmp_path: Path, corpus: str) -> None:
    out = imported(put(tmp_path / "train.tsv", *LINES), tmp_path / "out", corpus=corpus)
    text = exported(tmp_path / "again.tsv", examples=out / "examples/train", corpus=corpus, queries=out / "queries")
    assert text.splitlines() == LINES


def test_the_shorter_list_is_repeated_and_what_has_no_negative_left_out(tmp_path: Path, corpus: str, capfd: Any, monkeypatch: Any) -> None:
    lines = [f"which?\tt\t{PASSAGES[row][2]}\t{label}" for row, label in ((0, 1), (1, 1), (2, 0), (3, 0))]
    lines += ["which?\tt\ta fruit\t1", "alone?\tt\truns\t1", "one?\tt\truns\t1", "one?\tt\ta bird\t0", "one?\tt\ta fruit\t0"]
    out = imported(put(tmp_path / "train.tsv", *lines), tmp_path / "out", corpus=corpus)
    monkeypatch.setattr(outlet_format, "_STEP", 8)
    text = exported(tmp_path / "again.tsv", examples=out / "examples/train", corpus=corpus, queries=out / "queries")
    assert text.splitlines() == [dual("which?", 0, 2), dual("which?", 1, 3), dual("one?", 3, 0), dual("one?", 3, 1)]
    assert "export train: leaves out 1 examples without a negative" in capfd.readouterr().err


def test_a_run_comes_back_as_it_was(tmp_path: Path, corpus: str) -> None:
    lines = ["q7\tp1\t1\t71.25", "q7\tp0\t2\t-0.1", "q3\tp2\t1\t3e-05", "q3\tp9\t2\t1e-06"]
    out = imported(put(tmp_path / "res.top2", *lines), tmp_path / "out")
    assert [r["score"] for r in rows(out / "run", "run")] == [float(np.float32(s)) for s in (71.25, -0.1, 3e-5, 1e-6)]
    assert exported(tmp_path / "again", run=out / "run").splitlines() == lines
    with pytest.raises(InputError, match=r"res\.top2:4: names passage 'p9', which the corpus does not have"):
        imported(tmp_path / "res.top2", tmp_path / "none", corpus=corpus)


def test_a_run_is_ranked_by_its_scores(tmp_path: Path) -> None:
    out = imported(put(tmp_path / "res", "q\ta\t1\t1.5", "q\tb\t2\t2.5"), tmp_path / "out")
    assert [(r["passage_id"], r["rank"]) for r in rows(out / "run", "run")] == [("b", 1), ("a", 2)]


def test_what_cannot_be_read_is_refused_in_a_line(tmp_path: Path, corpus: str) -> None:
    training = put(tmp_path / "train.tsv", *LINES, dual("new", 0, 1).replace("a fruit", "a vegetable"))
    for source, message, given in (
        (training, r"train\.tsv: has texts, no ids: it needs the corpus to look them up in; give --corpus", {}),
        (training, r"train\.tsv:5: has a text that no passage of the corpus has: 'a vegetable'; .*--no-strict", {"corpus": corpus}),
        (put(tmp_path / "qrels.train.tsv", "q7\tp0"), r"qrels\.train\.tsv:1: 2 columns; lines are query<TAB>title_pos<TAB>para_pos", {}),
        (put(tmp_path / "empty.tsv", dual(" ", 0, 1)), r"empty\.tsv:1: empty query", {"corpus": corpus}),
        (put(tmp_path / "ce.tsv", "which?\tt\ta bird\tyes"), r"ce\.tsv:1: label is 'yes', not a whole number", {"corpus": corpus}),
        (put(tmp_path / "res", "q\tp\t1\tnan"), r"res:1: score is 'nan', not a finite number", {}),
    ):
        with pytest.raises(InputError, match=message):
            imported(source, tmp_path / "out", **given)
        assert not (tmp_path / "out").exists()
    out = imported(training, tmp_path / "out", corpus=corpus, strict=False)
    assert [e["negatives"] for e in rows(out / "examples/train", "examples")] == [[1, 2], [0], [1], []]


def test_a_text_that_lines_cannot_hold_is_refused(tmp_path: Path) -> None:
    entry = {"query": "which?", "pos": ["a bird"], "neg": ["two\nlines"]}
    given = {"format": "flagembedding", "input": str(put(tmp_path / "train.jsonl", json.dumps(entry))), "output": str(tmp_path / "data")}
    data = import_dataset(ImportSettings(**given)).path  # type: ignore[arg-type]
    with pytest.raises(InputError, match="'which\\?' has a cell with a blank or line break that the format cannot hold"):
        exported(tmp_path / "x.tsv", examples=data / "examples/train", corpus=data / "corpus", queries=data / "queries")
    assert not (tmp_path / "x.tsv").exists()


def test_a_file_of_rocketqa_in_place_of_an_artifact_is_known(tmp_path: Path) -> None:
    said = how_to_import(Place.of(put(tmp_path / "res.tsv", "q7\tp1\t1\t71.25")), "run")
    assert "raydense import --format rocketqa --input" in said
    assert said.endswith("/run")
    said = how_to_import(Place.of(put(tmp_path / "train.tsv", *LINES)), "examples")
    assert "--format rocketqa" in said
    assert "--corpus CORPUS" in said
