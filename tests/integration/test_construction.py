"""The verb `construct` on files of questions: its data set against a plain reading of the paper's rules, and after kill -9."""

from __future__ import annotations

import gzip
import json
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

import forked
import numpy as np
import pytest
from killing import kill_once_committed

import raydense.construction.construct as stage
from raydense.construction.construct import construct
from raydense.construction.settings import ConstructSettings
from raydense.data.store import PassageStore
from raydense.data.tables import read_table
from raydense.errors import InputError
from raydense.storage import Artifact

DEMO = Path(__file__).parents[3] / "shared" / "data" / "dureader-demo" / "raw"
WORDS = [f"w{n}" for n in range(60)]
BLOCK = 4_000
KILLED = """
import sys
import raydense.construction.construct as stage
from raydense.construction.settings import ConstructSettings
stage.BLOCK_BYTES = int(sys.argv[3])
stage.construct(ConstructSettings(input=sys.argv[1], length=30, output=sys.argv[2], concurrency=1))
"""


def write_questions(folder: Path, questions: int) -> list[dict]:
    """Files of three splits; an answer is words of a paragraph in another order, or of none."""
    rng = np.random.default_rng(0)
    folder.mkdir()
    rows = []
    for n in range(questions):
        documents = [
            {"title": f"t{d}", "paragraphs": [" ".join(rng.choice(WORDS, rng.integers(3, 25))) for _ in range(rng.integers(1, 6))]}
            for d in range(3)
        ]
        said = documents[0]["paragraphs"][-1].split()[:8]
        answers = [] if n % 7 == 0 else [" ".join(rng.permutation(said))] if n % 3 else ["nothing of these paragraphs"]
        rows.append({"question_id": n, "question": f"what is {n % 70}?", "answers": answers, "documents": documents, "split": ""})
    for at, split in enumerate(("train", "dev", "test")):
        part = rows[at * questions // 3 : (at + 1) * questions // 3]
        (folder / f"some.{split}.json").write_text("".join(json.dumps(row) + "\n" for row in part))
        for row in part:
            row["split"] = split
    return rows


def f1_of(span: list[str], answer: list[str]) -> float:
    common = sum((Counter(span) & Counter(answer)).values())
    return 2 * common / (len(span) + len(answer))


def is_positive(paragraph: str, answers: list[str]) -> bool:
    words = paragraph.split()
    spans = [words[a:b] for a in range(len(words)) for b in range(a + 1, len(words) + 1)]
    return any(f1_of(span, answer.split()) >= 0.5 for span in spans for answer in answers)


def plain_reading(rows: list[dict], length: int) -> tuple[list[str], dict[str, set[tuple[str, str]]]]:
    """The texts of the corpus in order, and the positive pairs (question text, passage text) of each split."""
    texts, pairs, split_of = [], {}, {}
    for row in sorted(rows, key=lambda row: ["train", "dev", "test"].index(row["split"])):
        split_of[row["question"]] = row["split"]  # the last is the most held out
    for row in rows:
        for document in row["documents"]:
            held, positive = [], False
            for n, paragraph in enumerate(document["paragraphs"], 1):
                held.append(paragraph)
                positive |= is_positive(paragraph, row["answers"])
                if len(" ".join(held).split()) > length or n == len(document["paragraphs"]):
                    text = " ".join(held)
                    texts.append(text)
                    if positive:
                        pairs.setdefault(split_of[row["question"]], set()).add((row["question"], text))
                    held, positive = [], False
    return list(dict.fromkeys(texts)), pairs


@pytest.fixture(scope="module")
def asked(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[dict]]:
    folder = tmp_path_factory.mktemp("construct") / "questions"
    return folder, write_questions(folder, 90)


@pytest.mark.usefixtures("ray_cluster")
def test_it_is_what_a_plain_reading_gives(asked, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, rows = asked
    monkeypatch.setattr(stage, "BLOCK_BYTES", BLOCK)
    made = construct(ConstructSettings(input=str(folder), length=30, output=str(tmp_path / "data")))
    rows = sorted(rows, key=lambda row: row["split"])  # files are read by name
    texts, expected = plain_reading(rows, 30)
    store = PassageStore(made.path / "corpus")
    assert store.slice(0, len(store), ["text"])["text"].to_pylist() == texts
    assert store.slice(0, len(store), ["title"])["title"].to_pylist() == [""] * len(store)
    text_of = dict(zip(store.ids(np.arange(len(store))).to_pylist(), texts, strict=True))
    asked_of = {row["query_id"]: row["text"] for row in read_table(made.path / "queries", "queries").to_pylist()}
    found = {
        split: {(asked_of[pair["query_id"]], text_of[pair["passage_id"]]) for pair in read_table(made.path / part, "qrels").to_pylist()}
        for part in made.summary["parts"]
        if (split := part.removeprefix("qrels/")) != part
    }
    assert found == expected
    assert len(expected) == 3, "questions of three splits"
    dropped = [json.loads(line) for line in (made.path / "dropped.jsonl").read_text().splitlines()]
    assert len(dropped) + len(asked_of) == 70 == len({row["question"] for row in rows})
    assert {one["why"] for one in dropped} == {"no answer", "no passage is positive"}
    assert made.summary["steps"]["questions of the same text, now one"] == 20
    assert (made.path / "report.md").read_text().count("\n| ") > 20
    monkeypatch.setattr(stage, "BLOCK_BYTES", 10**9)
    whole = construct(ConstructSettings(input=str(folder), length=30, output=str(tmp_path / "whole")))
    assert whole.fingerprint == made.fingerprint, "the blocks of the input show in the output"


def test_killed_and_run_again_it_is_the_same(
    asked, tmp_path: Path, joining: dict[str, str], monkeypatch: pytest.MonkeyPatch, capfd
) -> None:
    folder, output = asked[0], tmp_path / "killed"
    driver = forked.Popen([sys.executable, "-c", KILLED, str(folder), str(output), str(BLOCK)], env=joining, stderr=subprocess.DEVNULL)
    kill_once_committed(driver, output / ".work", "questions-*.parquet.sha256", 3)
    with pytest.raises(InputError, match="unfinished"):
        Artifact.open(output)
    monkeypatch.setattr(stage, "BLOCK_BYTES", BLOCK)
    kept = {path.name: path.stat().st_mtime_ns for path in (output / ".work").glob("questions-*.parquet")}
    whole = {path.stem for path in (output / ".work").glob("questions-*.parquet.sha256")}
    with monkeypatch.context() as away:
        away.setattr(stage, "ensure_ray", _away)
        with pytest.raises(InputError, match="no cluster answers"):
            construct(ConstructSettings(input=str(folder), length=30, output=str(output)))
    with monkeypatch.context() as small:
        small.setattr(stage, "TASK_BYTES", 2**60)
        with pytest.raises(InputError, match="give a larger machine"):
            construct(ConstructSettings(input=str(folder), length=30, output=str(output)))
    assert kept == {path.name: path.stat().st_mtime_ns for path in (output / ".work").glob("questions-*.parquet")}
    seen: list[int] = []
    monkeypatch.setattr(stage, "run_tasks", lambda verb, function, calls, *rest: _counted(seen, verb, function, calls, *rest))
    again = construct(ConstructSettings(input=str(folder), length=30, output=str(output)))
    assert re.search(r"^construct: continues after [\d,]+ of [\d,]+ bytes$", capfd.readouterr().err, re.MULTILINE)
    undisturbed = construct(ConstructSettings(input=str(folder), length=30, output=str(tmp_path / "undisturbed")))
    assert again.fingerprint == undisturbed.fingerprint
    recorded = [name for name in kept if name in whole]
    assert len(recorded) >= 3
    assert seen[0] == seen[1] - len(recorded), "blocks that were labelled before are labelled again"


def _away() -> None:
    raise InputError("no cluster answers", "RAY_ADDRESS", "start it")


def _counted(seen: list[int], verb, function, calls, *rest):
    from raydense.runtime.tasks import run_tasks

    seen.append(len(calls))
    return run_tasks(verb, function, calls, *rest)


@pytest.mark.usefixtures("ray_cluster")
def test_a_gzip_file_is_one_block_of_many_pieces(asked, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "packed").mkdir()
    for file in asked[0].iterdir():
        (tmp_path / "packed" / f"{file.name}.gz").write_bytes(gzip.compress(file.read_bytes()))
    made = [
        construct(ConstructSettings(input=str(folder), length=30, output=str(tmp_path / name)))
        for folder, name in ((asked[0], "whole"), (tmp_path / "packed", "from-packed"))
    ]
    whole, packed = ([(file.path, file.sha256) for file in Artifact.open(one.path / "corpus").files] for one in made)
    assert whole == packed
    assert made[0].summary["splits"] == made[1].summary["splits"]


@pytest.mark.usefixtures("ray_cluster")
def test_a_fault_leaves_nothing_and_names_its_line(tmp_path: Path) -> None:
    source, output = tmp_path / "asked.jsonl", tmp_path / "data"
    good = {"id": "a", "question": "who", "answers": ["he"], "documents": [{"paragraphs": ["he did"]}]}
    for second, message in (
        ('{"id": "b", "question": "wh', "asked.jsonl:2: not JSON"),
        (json.dumps(good), "asked.jsonl:2: question_id 'a' is repeated"),
        (json.dumps(good | {"id": "b", "answers": [3]}), "asked.jsonl:2: "),
        (json.dumps(good | {"id": "b", "split": "../../evil"}), r"asked.jsonl:2: 'qrels/\.\./\.\./evil' cannot be the name of a part"),
    ):
        source.write_text(f"{json.dumps(good)}\n{second}\n")
        with pytest.raises(InputError, match=message):
            construct(ConstructSettings(input=str(source), output=str(output)))
        assert not output.exists()
    source.write_text(json.dumps(good | {"answers": []}) + "\n")
    with pytest.raises(InputError, match="no question has a positive passage"):
        construct(ConstructSettings(input=str(source), output=str(output)))
    source.write_text(json.dumps(good) + "\n")
    assert construct(ConstructSettings(input=str(source), output=str(output))).rows == 1


@pytest.mark.skipif(not DEMO.exists(), reason="DuReader's demo data is not there")
@pytest.mark.usefixtures("ray_cluster")
def test_dureaders_own_files(tmp_path: Path) -> None:
    """Counted from the files by the rules of the paper, with one line of Python each."""
    rows = [json.loads(line) for file in sorted(DEMO.glob("*.json")) for line in file.open(encoding="utf-8")]
    made = construct(ConstructSettings(input=str(DEMO), output=str(tmp_path / "data")))
    steps = made.summary["steps"]
    assert steps["questions"] == len(rows) == 200
    assert steps["documents"] == sum(len(row["documents"]) for row in rows)
    assert steps["paragraphs"] + steps["empty paragraphs"] == sum(len(doc["paragraphs"]) for row in rows for doc in row["documents"])
    assert made.summary["unit"] == "characters"
    assert set(made.summary["splits"]) == {"train", "dev"}
    store = PassageStore(made.path / "corpus")
    assert len(set(store.slice(0, len(store), ["text"])["text"].to_pylist())) == len(store) == steps["passages in the corpus"]


def test_splits_that_are_missing_or_empty_are_named_with_the_flag_that_draws_them(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    rows = write_questions(tmp_path / "in", 90)
    (tmp_path / "in" / "some.test.json").unlink()
    empty = [{**row, "answers": []} for row in rows if row["split"] == "dev"]
    (tmp_path / "in" / "some.dev.json").write_text("".join(json.dumps(row) + "\n" for row in empty))
    settings = {"input": str(tmp_path / "in"), "length": 30}
    construct(ConstructSettings(**settings, output=str(tmp_path / "bare")))
    why = f"(dev: {len(empty):,} questions, none has a positive passage; test: 0 questions)"
    assert f"construct: no qrels/dev, qrels/test {why}; --fill-splits draws dev, test from train" in capfd.readouterr().err
    construct(ConstructSettings(**settings, fill_splits=True, output=str(tmp_path / "filled")))
    construct(ConstructSettings(**settings, fill_splits=True, fill_by="passages", output=str(tmp_path / "by-passages")))
    assert "construct: no qrels" not in capfd.readouterr().err
    with pytest.raises(InputError, match=r"qrels/test: no such folder; .*/bare/qrels has train: no test"):
        Artifact.open(tmp_path / "bare" / "qrels" / "test", "qrels")
