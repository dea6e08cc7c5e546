"""sentence-transformers' msmarco-hard-negatives.jsonl.gz, in both of its shapes, and the choice among its negatives."""

import gzip
import json
import random
import re
from pathlib import Path
from typing import Any

import pytest

from raydense.cli import main
from raydense.data.formats import sbert_negatives
from raydense.data.importing import import_corpus, import_dataset
from raydense.data.settings import ImportSettings
from raydense.data.store import PassageStore
from raydense.data.tables import read_table
from raydense.errors import InputError
from raydense.storage import Artifact

PLAIN = [
    {"qid": 7, "pos": [1], "neg": {"bm25": [2, 1, 3], "tas-b": [3, 4, 5, 6]}},
    {"qid": "8", "pos": [], "neg": {"bm25": [2]}},
    {"qid": 9, "pos": [4, 5], "neg": {"bm25": [], "tas-b": [6]}},
    {"qid": 10, "pos": [4], "neg": {"bm25": [], "tas-b": []}},
]


@pytest.fixture
def corpus(tmp_path: Path) -> str:
    folder = tmp_path / "collection"
    folder.mkdir()
    (folder / "collection.tsv").write_text("".join(f"{n}\tpassage {n}\n" for n in reversed(range(1, 41))))
    return str(import_corpus("msmarco", folder, tmp_path / "corpus").path)


def written(path: Path, lines: list[dict[str, Any]]) -> Path:
    path.write_bytes(gzip.compress("".join(f"{json.dumps(line)}\n" for line in lines).encode()))
    return path


def imported(source: Path, corpus: str, output: Path, **chosen: Any) -> list[dict[str, Any]]:
    """The examples, with ids of passages in place of rows."""
    more = {"hard_negatives": chosen} if chosen else {}
    settings = {"format": "sbert_negatives", "input": str(source), "corpus": corpus, "output": str(output), **more}
    made = import_dataset(ImportSettings.read(settings)).path
    rows = read_table(made / "examples/negatives", "examples").to_pylist()
    ids = PassageStore(corpus).ids
    return [{**row, **{side: ids(row[side]).to_pylist() for side in ("positives", "negatives")}} for row in rows]


def test_ids_alone_become_examples_with_each_passage_once(
    tmp_path: Path, corpus: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sbert_negatives, "_BLOCK", 1)
    source = written(tmp_path / "negatives.jsonl.gz", PLAIN)
    assert imported(source, corpus, tmp_path / "out") == [
        {"query_id": "7", "positives": ["1"], "negatives": ["2", "3", "4", "5", "6"]},
        {"query_id": "9", "positives": ["4", "5"], "negatives": ["6"]},
    ]
    told = capsys.readouterr().err
    assert "2 queries; left out without a negative: 1, left out without a positive: 1, negatives of bm25: 2, negatives of tas-b: 4" in told
    assert imported(source, corpus, tmp_path / "two", per_system=2)[0]["negatives"] == ["2", "3", "4", "5"]


def scored(rng: random.Random, passages: list[int]) -> list[dict[str, Any]]:
    return [{"pid": str(p), "ce-score": round(rng.uniform(-10, 10), 3)} for p in passages]


def chosen_as_by_beir(line: dict[str, Any], per_system: int, margin: float) -> list[str]:
    """An independent reading of BEIR's examples/retrieval/training/train_msmarco_v3.py: its loop over systems and their passages."""
    threshold = min(one["ce-score"] for one in line["pos"]) - margin
    chosen: list[str] = []
    for found in line["neg"].values():
        below = [one["pid"] for one in found if one["ce-score"] <= threshold]
        fresh = [p for n, p in enumerate(below) if p not in chosen and p not in below[:n]]
        chosen += fresh[:per_system]
    return chosen


def test_five_of_each_system_below_the_margin_as_beir_takes_them(tmp_path: Path, corpus: str) -> None:
    rng = random.Random(3)
    lines = []
    for query in range(60):
        pool = rng.sample(range(1, 41), 40)
        positives = scored(rng, pool[: rng.choice([1, 1, 2])])
        systems = {f"system {n}": scored(rng, rng.sample(pool[2:], 12)) for n in range(3)}
        lines.append({"qid": str(query), "pos": positives, "neg": systems})
    found = imported(written(tmp_path / "negatives.jsonl.gz", lines), corpus, tmp_path / "out", per_system=5, absolute_margin=3)
    wanted = {line["qid"]: chosen_as_by_beir(line, 5, 3.0) for line in lines}
    assert {row["query_id"]: row["negatives"] for row in found} == {query: ids for query, ids in wanted.items() if ids}
    assert 0 < len(found) < 60, "some queries keep no negative, and are left out"
    scores = {(line["qid"], one["pid"]): one["ce-score"] for line in reversed(lines) for one in line["pos"]}
    assert found[0]["positive_scores"] == pytest.approx([scores[found[0]["query_id"], p] for p in found[0]["positives"]])
    assert all(len(row["negative_scores"]) == len(row["negatives"]) for row in found)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ({"pos": [1], "neg": {}}, "no 'qid'"),
        ({"qid": 1, "neg": {"bm25": [2]}}, "no list 'pos'"),
        ({"qid": 1, "pos": [1], "neg": [2]}, "no object 'neg'"),
        ({"qid": 1, "pos": [1], "neg": {"bm25": 2}}, "no list 'bm25'"),
        ({"qid": 1, "pos": [1], "neg": {"bm25": [2.5]}}, "'bm25' is 2.5, not a string or a whole number"),
        ({"qid": 1, "pos": [1], "neg": {"bm25": [99]}}, "names passage '99', which the corpus does not have"),
        ({"qid": 1, "pos": [1], "neg": {"bm25": [{"pid": 2, "ce-score": 1}]}}, "some passages have a 'ce-score' and others have none"),
        ({"qid": 1, "pos": [{"pid": 1}], "neg": {"bm25": []}}, "no 'ce-score'"),
        ({"qid": 1, "pos": [{"pid": 1, "ce-score": None}], "neg": {"bm25": [2]}}, "no 'ce-score'"),
    ],
)
def test_a_bad_line_is_named_and_nothing_is_left(tmp_path: Path, corpus: str, line: dict[str, Any], message: str) -> None:
    source = written(tmp_path / "negatives.jsonl.gz", [PLAIN[0], line])
    with pytest.raises(InputError, match=rf"negatives\.jsonl\.gz:2: {re.escape(message)}"):
        imported(source, corpus, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_margin_without_scores_and_a_file_without_a_corpus_are_refused(tmp_path: Path, corpus: str) -> None:
    source = written(tmp_path / "negatives.jsonl.gz", PLAIN)
    with pytest.raises(
        InputError, match=r"negatives\.jsonl\.gz:1: has no 'ce-score' to keep the margin by; leave hard_negatives\.absolute_margin out"
    ):
        imported(source, corpus, tmp_path / "out", absolute_margin=3)
    with pytest.raises(InputError, match="holds ids of passages, and no texts; import MS MARCO's collection, and give it as --corpus"):
        import_dataset(ImportSettings(format="sbert_negatives", input=str(source), output=str(tmp_path / "out")))
    with pytest.raises(InputError, match="hard_negatives is for the format sbert_negatives, not for beir"):
        ImportSettings.read({"format": "beir", "input": "x", "output": "y", "hard_negatives": {"absolute_margin": 3}})


def test_the_command_line(tmp_path: Path, corpus: str, capsys: pytest.CaptureFixture[str]) -> None:
    source = written(tmp_path / "negatives.jsonl.gz", [PLAIN[0], {"qid": 1}])
    command = ["import", "--format", "sbert_negatives", "--input", str(source), "--corpus", corpus, "--output", str(tmp_path / "out")]
    with pytest.raises(SystemExit) as ended:
        main(command)
    assert ended.value.code == 2
    assert "negatives.jsonl.gz:2: no object 'neg'" in capsys.readouterr().err
    written(source, PLAIN)
    with pytest.raises(SystemExit) as ended:
        main([*command, "--hard-negatives.per-system", "1"])
    assert not ended.value.code
    assert read_table(tmp_path / "out/examples/negatives", "examples")["negatives"].to_pylist()[0] == [38, 37]


def test_given_in_place_of_examples_it_is_recognised(tmp_path: Path) -> None:
    source = written(tmp_path / "negatives.jsonl.gz", PLAIN)
    with pytest.raises(InputError, match=r"--format sbert_negatives --input .* --corpus CORPUS`, and give data/negatives/examples/SPLIT"):
        Artifact.open(source, "examples")
