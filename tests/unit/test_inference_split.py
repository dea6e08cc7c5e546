"""The stage `split`: ids, titles and documents of passages, limits by the tokenizer, resume, refusals, and memory that stays flat."""

import shutil
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from transformers import AutoTokenizer

import raydense.inference.split as splitting
from raydense.cli import main
from raydense.data.sample import sample as make_sample
from raydense.data.settings import SampleSettings
from raydense.data.store import CorpusWriter, PassageStore
from raydense.errors import InputError
from raydense.inference import arrivals
from raydense.inference.settings import SplitSettings
from raydense.inference.split import split
from raydense.models.dual_encoder import DualEncoder
from raydense.storage import Artifact, Draft

DOCUMENTS = [
    {
        "passage_id": "fox",
        "title": "Foxes",
        "text": "What causes the fever? Rivers freeze in winter.  Old bridges of stone carry no one home! " * 9,
    },
    {"passage_id": "short", "title": "", "text": "  A red fox. "},
    {"passage_id": "zh", "title": "狐狸", "text": "狐狸过河。它冷吗？\u3000冷！" * 20},
]


def corpus_of(rows: list[dict[str, str | None]], folder: Path) -> str:
    writer = CorpusWriter(Draft.open(folder, "corpus", {"test": str(rows)}), 1_000)
    writer.add(pa.Table.from_pylist(rows))
    return str(writer.finish().path)


def raw_corpus_of(rows: list[dict[str, str | None]], folder: Path) -> str:
    """A corpus that our own writer would refuse."""
    draft, table = Draft.open(folder, "corpus", {"test": str(rows)}), pa.Table.from_pylist(rows)

    def write(path: Path) -> None:
        with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, table.schema) as writer:
            writer.write_table(table)

    draft.commit("corpus-00000.arrow", write, table.num_rows)
    return str(draft.finish(table.num_rows).path)


def rows_of(corpus: Artifact) -> list[dict[str, str]]:
    return PassageStore(corpus.path).slice(0, corpus.rows).to_pylist()


@pytest.fixture
def corpus(tmp_path: Path) -> str:
    return corpus_of(DOCUMENTS, tmp_path / "corpus")


def test_passages_by_tokens(corpus: str, tiny_folder: Path, tmp_path: Path) -> None:
    made = split(SplitSettings(corpus=corpus, model=str(tiny_folder), length=40, output=str(tmp_path / "made")))
    counter = AutoTokenizer.from_pretrained(str(tiny_folder), local_files_only=True)
    rows = rows_of(made)
    for document in DOCUMENTS:
        mine = [row for row in rows if row["doc_id"] == document["passage_id"]]
        assert [row["passage_id"] for row in mine] == [f"{document['passage_id']}-{n}" for n in range(len(mine))]
        assert {row["title"] for row in mine} == {document["title"]}
        assert "".join("".join(row["text"] for row in mine).split()) == "".join(document["text"].split())
        assert max(len(counter.tokenize(row["text"])) for row in mine) <= 40
    assert len({row["doc_id"] for row in rows}) == 3 < made.rows == len(rows)
    assert all(row["text"][-1] in ".?!" for row in rows if row["doc_id"] == "fox"), "whole sentences"
    assert made.summary == {"documents": 3, "empty": 0}


def test_passages_of_a_chinese_document_are_whole_sentences(corpus: str, tiny_folder: Path, tmp_path: Path) -> None:
    made = split(SplitSettings(corpus=corpus, model=str(tiny_folder), length=30, language="zh", output=str(tmp_path / "made")))
    texts = [row["text"] for row in rows_of(made) if row["doc_id"] == "zh"]
    assert len(texts) > 5
    assert all(text[-1] in "。？！" for text in texts)


def test_passages_by_words(corpus: str, tmp_path: Path) -> None:
    made = split(SplitSettings(corpus=corpus, unit="words", length=10, output=str(tmp_path / "made")))
    words = DOCUMENTS[0]["text"].split()
    texts = [row["text"].split() for row in rows_of(made) if row["doc_id"] == "fox"]
    assert texts == [words[i : i + 10] for i in range(0, len(words), 10)]


def test_lengths_are_those_of_the_papers() -> None:
    values = {"corpus": "c", "output": "o"}
    assert SplitSettings(**values, model="m").shaping()["length"] == 144
    assert SplitSettings(**values, unit="words").shaping()["length"] == 100


def test_a_document_keeps_its_own_doc_id(tmp_path: Path) -> None:
    sample = make_sample(SampleSettings(output=str(tmp_path / "s"), passages=100, train_queries=20, dev_queries=2, test_queries=2)).path
    made = split(SplitSettings(corpus=str(sample / "corpus"), unit="words", length=8, output=str(tmp_path / "made")))
    source = {row["passage_id"]: row for row in rows_of(Artifact.open(sample / "corpus"))}
    for row in rows_of(made):
        of = source[row["passage_id"].rpartition("-")[0]]
        assert (row["doc_id"], row["title"]) == (of["doc_id"], of["title"])
    assert made.rows > len(source)


def test_documents_without_text_make_no_passage_and_are_counted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = [{"passage_id": p, "title": None, "text": t, "doc_id": d} for p, t, d in (("a", "x", None), ("b", " \n", "d"), ("c", None, "d"))]
    made = split(SplitSettings(corpus=raw_corpus_of(rows, tmp_path / "c"), unit="words", output=str(tmp_path / "made")))
    assert rows_of(made) == [{"passage_id": "a-0", "title": "", "text": "x", "doc_id": "a"}]
    assert made.summary == {"documents": 3, "empty": 2}
    assert "split: 2 of 3 documents have no text, and make no passage" in capsys.readouterr().err


def test_an_id_that_is_there_twice_and_no_text_at_all(tmp_path: Path) -> None:
    rows = [{"passage_id": "a", "title": "", "text": t} for t in ("x", "y")]
    with pytest.raises(InputError, match=r"passage_id 'a-0' is repeated"):
        split(SplitSettings(corpus=raw_corpus_of(rows, tmp_path / "c"), unit="words", output=str(tmp_path / "made")))
    rows = [{"passage_id": "a", "title": "", "text": " "}]
    with pytest.raises(InputError, match="no passages"):
        split(SplitSettings(corpus=raw_corpus_of(rows, tmp_path / "blank"), unit="words", output=str(tmp_path / "none")))


def test_made_again_does_nothing_and_refuses_another_tokenizer_or_length(corpus: str, tiny_folder: Path, tmp_path: Path) -> None:
    values = {"corpus": corpus, "output": str(tmp_path / "made")}
    made = split(SplitSettings(**values, model=str(tiny_folder)))
    before = (made.path / "corpus-00000.arrow").stat().st_mtime_ns
    assert split(SplitSettings(**values, model=str(tiny_folder))).fingerprint == made.fingerprint
    assert (made.path / "corpus-00000.arrow").stat().st_mtime_ns == before
    with pytest.raises(InputError, match=r"settings.length: 144 -> 20"):
        split(SplitSettings(**values, model=str(tiny_folder), length=20))
    other = shutil.copytree(tiny_folder, tmp_path / "other")
    (other / "tokenizer.json").write_text((other / "tokenizer.json").read_text().replace("##", "@@"))
    with pytest.raises(InputError, match=r"inputs.model is another, or was changed"):
        split(SplitSettings(**values, model=str(other)))


def test_any_folder_with_a_tokenizer_will_do(corpus: str, tiny_folder: Path, tmp_path: Path) -> None:
    DualEncoder.load(tiny_folder, shared=False).save(tmp_path / "two encoders")
    AutoTokenizer.from_pretrained(str(tiny_folder), local_files_only=True).save_pretrained(str(tmp_path / "tokenizer alone"))
    made = []
    for model in (tiny_folder, tmp_path / "two encoders", tmp_path / "tokenizer alone"):
        made.append(rows_of(split(SplitSettings(corpus=corpus, model=str(model), length=20, output=str(tmp_path / f"by {model.name}")))))
    assert made[0] == made[1] == made[2]


def test_a_part_that_was_cut_is_not_cut_again(corpus: str, tiny_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    values = {"corpus": corpus, "model": str(tiny_folder), "length": 20}
    whole = split(SplitSettings(**values, output=str(tmp_path / "whole")))
    monkeypatch.setattr(splitting, "_ROWS", 1)
    cut, done = splitting._cut_part, []

    def stopping(draft: Draft, settings: SplitSettings, part: Any, prints: dict[str, str]) -> int:
        if len(done) == 2:
            done.append("stopped")
            raise KeyboardInterrupt
        done.append(part.name)
        return cut(draft, settings, part, prints)

    monkeypatch.setattr(splitting, "_cut_part", stopping)
    settings = SplitSettings(**values, output=str(tmp_path / "parts"))
    with pytest.raises(KeyboardInterrupt):
        split(settings)
    assert split(settings).files == whole.files
    assert done == ["cuts-00000.npz", "cuts-00001.npz", "stopped", "cuts-00002.npz"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--corpus", "c"], "raydense: unit tokens needs model, the folder whose tokenizer counts them"),
        (["--corpus", "c", "--model", "tiny"], "write ./tiny for a folder of that name"),
        (
            ["--corpus", "c", "--unit", "words", "--model", "m", "--language", "zh"],
            "unit words does not use model, language: leave them out",
        ),
        (["--corpus", "c", "--model", "m", "--language", "English"], "--language: string should match pattern"),
        (["--corpus", "c", "--model", "m", "--length", "-1"], "--length: input should be greater than or equal to 0"),
        (["--corpus", "c", "--unit", "words"], "c: no such folder; give a folder of kind corpus"),
        (["--corpus", "../corpus", "--model", "../empty"], "empty: no config.json"),
        (["--corpus", "../corpus", "--model", "../broken"], "broken: its tokenizer cannot be read"),
    ],
)
def test_bad_input_is_one_line_and_2(
    arguments: list[str], message: str, corpus: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "tokenizer.json").write_text("{}")
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    with pytest.raises(SystemExit) as stopped:
        main(["split", *arguments, "--output", "made"])
    error = capsys.readouterr().err
    assert stopped.value.code == 2
    assert message in error
    assert len(error.strip().splitlines()) == 1
    assert not list((tmp_path / "here").iterdir()), "nothing is left of the output"


def test_parts_that_stay_on_another_machine_are_one_line(corpus: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As where a node of the cluster does not share the output's folder."""
    monkeypatch.setattr(arrivals, "_ARRIVES_S", 0.0)
    monkeypatch.setattr(splitting, "_ROWS", 1)
    monkeypatch.setattr(splitting, "_cut_part", lambda draft, settings, part, prints: part.stop - part.start)
    line = r"made: of 3 files that the workers wrote, 0 are there: a node .*; give a folder that all nodes share, or a bucket"
    with pytest.raises(InputError, match=line):
        split(SplitSettings(corpus=corpus, unit="words", output=str(tmp_path / "made")))


def test_a_part_that_is_damaged_before_it_is_read_is_one_line(corpus: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write = splitting._write

    def damaged(draft: Draft, *rest: Any) -> Artifact:
        (draft.work / "cuts-00000.npz").write_bytes(b"")
        return write(draft, *rest)

    monkeypatch.setattr(splitting, "_write", damaged)
    settings = SplitSettings(corpus=corpus, unit="words", output=str(tmp_path / "made"))
    with pytest.raises(InputError, match=r"cuts-00000.npz: is gone or damaged since it was written; run the same command again"):
        split(settings)
    monkeypatch.undo()
    assert split(settings).summary["documents"] == 3
