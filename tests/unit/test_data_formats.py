"""Import and export: every family by exact field name, round trips, and each kind of bad input as one line with its place."""

import csv
import json
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from raydense.data import formats, importing
from raydense.data.exporting import export
from raydense.data.formats import distinct as distinct_format
from raydense.data.formats import dpr as dpr_format
from raydense.data.formats import lines
from raydense.data.formats import msmarco as msmarco_format
from raydense.data.formats import outlet as outlet_format
from raydense.data.formats import pyserini as pyserini_format
from raydense.data.formats import records as records_format
from raydense.data.formats import texts as texts_format
from raydense.data.formats import triples as triples_format
from raydense.data.formats.intake import Intake
from raydense.data.importing import import_corpus, import_dataset
from raydense.data.lookup import hash_strings
from raydense.data.settings import ExportSettings, ImportSettings
from raydense.data.store import CorpusWriter, PassageStore
from raydense.data.tables import commit_table, read_table, write_arrow
from raydense.errors import InputError
from raydense.retrieval.faiss_library import faiss
from raydense.runtime.tasks import shard_ranges
from raydense.storage import Artifact, Draft
from tests.damaged import damaged
from tests.embeddings import write_corpus, write_embeddings

SHARED = Path(__file__).parents[3] / "shared" / "data"


def put(path: Path, *rows: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(f"{row}\n" for row in rows), encoding="utf-8")
    return path


def put_json(path: Path, *rows: dict[str, Any]) -> Path:
    return put(path, *(json.dumps(row, ensure_ascii=False) for row in rows))


def imported(family: str, source: Path, output: Path, **more: Any) -> Path:
    return import_dataset(ImportSettings(format=family, input=str(source), output=str(output), **more)).path  # type: ignore[arg-type]


def exported(family: str, output: Path, **given: Any) -> Path:
    return export(ExportSettings(format=family, output=str(output), **{k: str(v) for k, v in given.items()}))  # type: ignore[arg-type]


def table(folder: Path, kind: str) -> list[dict[str, Any]]:
    return read_table(folder, kind).to_pylist()


def passages(folder: Path) -> list[tuple[str, str, str]]:
    store = PassageStore(folder)
    return [(p["passage_id"], p["title"], p["text"]) for p in store.take(np.arange(len(store))).to_pylist()]


def beir(folder: Path) -> Path:
    put_json(
        folder / "corpus.jsonl",
        {"_id": "d1", "title": "One", "text": "first\ttext\nnext line", "metadata": {"url": 1}},
        {"_id": 2, "text": "second"},
        {"_id": "d3", "title": None, "text": "drittes über 文本"},
    )
    put_json(folder / "queries.jsonl", {"_id": "q1", "text": "which one?", "metadata": {}}, {"_id": 7, "text": "which two?"})
    put(folder / "qrels" / "test.tsv", "query-id\tcorpus-id\tscore", "q1\td1\t2", "7\t2\t1", "q1\td3\t0")
    return folder


# --- BEIR ---


def test_beir(tmp_path: Path) -> None:
    out = imported("beir", beir(tmp_path / "in"), tmp_path / "out")
    assert passages(out / "corpus") == [("d1", "One", "first\ttext\nnext line"), ("2", "", "second"), ("d3", "", "drittes über 文本")]
    assert table(out / "queries", "queries") == [{"query_id": "q1", "text": "which one?"}, {"query_id": "7", "text": "which two?"}]
    assert table(out / "qrels" / "test", "qrels") == [
        {"query_id": "q1", "passage_id": "d1", "relevance": 2},
        {"query_id": "7", "passage_id": "2", "relevance": 1},
        {"query_id": "q1", "passage_id": "d3", "relevance": 0},
    ]
    root = Artifact.open(out, "dataset")
    assert root.rows == 3
    assert {n: p["rows"] for n, p in root.summary["parts"].items()} == {"corpus": 3, "queries": 2, "qrels/test": 3}
    assert imported("beir", tmp_path / "in", tmp_path / "out") == out


def test_answers_of_beir_queries_are_kept(tmp_path: Path) -> None:
    rows = [
        {"_id": "q1", "text": "who?", "answers": ["A. B.", "甲"]},
        {"_id": "q2", "text": "when?"},
        {"_id": "q3", "text": "why?", "answers": []},
    ]
    put_json(tmp_path / "in/queries.jsonl", *rows)
    out = imported("beir", tmp_path / "in/queries.jsonl", tmp_path / "out")
    assert [row["answers"] for row in table(out / "queries", "queries")] == [["A. B.", "甲"], [], []]
    again = exported("beir", tmp_path / "again", queries=out / "queries")
    assert [json.loads(line) for line in (again / "queries.jsonl").read_text().splitlines()] == [*rows[:2], {"_id": "q3", "text": "why?"}]


@pytest.mark.parametrize("answers", ['"one"', '["one", null]', '{"text": ["one"]}', "[1]"])
def test_answers_that_are_no_list_of_strings_are_refused(tmp_path: Path, answers: str) -> None:
    put(tmp_path / "queries.jsonl", '{"_id": "q1", "text": "who?"}', f'{{"_id": "q2", "text": "who?", "answers": {answers}}}')
    with pytest.raises(InputError, match=r"queries\.jsonl:2: 'answers' is .*, not a list of strings"):
        imported("beir", tmp_path / "queries.jsonl", tmp_path / "out")


def test_only_the_corpus(tmp_path: Path) -> None:
    corpus = import_corpus("beir", beir(tmp_path / "in"), tmp_path / "c", shard_rows=2)
    assert corpus.kind == "corpus"
    assert corpus.rows == 3
    assert PassageStore(corpus.path).shards == [(0, 2), (2, 3)]
    assert import_corpus("beir", tmp_path / "in/corpus.jsonl", tmp_path / "file", shard_rows=2).files == corpus.files
    with pytest.raises(InputError, match="format 'trec' has no corpus of its own"):
        import_corpus("trec", tmp_path / "in", tmp_path / "d")


def test_small_blocks_give_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put_json(tmp_path / "in/corpus.jsonl", *({"_id": f"d{i}", "title": "t" * (i % 5), "text": f"text {i}"} for i in range(500)))
    whole = import_corpus("beir", tmp_path / "in", tmp_path / "a")
    monkeypatch.setattr(lines, "BLOCK_BYTES", 700)
    assert import_corpus("beir", tmp_path / "in", tmp_path / "b").files == whole.files
    with open(tmp_path / "in/corpus.jsonl", "a") as stream:
        stream.write("{broken\n")
    with pytest.raises(InputError, match=r"corpus\.jsonl:501: not JSON"):
        import_corpus("beir", tmp_path / "in", tmp_path / "c")


def test_a_malformed_object_is_refused_before_the_rest_of_the_file_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The last line is not UTF-8: a reader that gets that far reports it instead."""
    monkeypatch.setattr(lines, "BLOCK_BYTES", 1_000)
    path = put_json(tmp_path / "train.json", {"a": 1}, *({"text": "long " * 10} for _ in range(500)))
    path.write_bytes(path.read_bytes().replace(b'{"text"', b'{"text', 1) + b"\xff\n")
    objects = lines.json_objects(path)
    assert next(objects)[1] == {"a": 1}
    with pytest.raises(InputError, match=r"train\.json:2: not JSON"):
        next(objects)


def test_a_list_in_one_line_is_read_in_pieces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lines, "BLOCK_BYTES", 1_000)
    rows = [{"text": f"long 文本 {number} " * 10} for number in range(500)]
    path = tmp_path / "train.json"
    path.write_text("\ufeff" + json.dumps(rows, ensure_ascii=False), encoding="utf-8")
    size = path.stat().st_size
    objects, read = lines.json_objects(path), []
    monkeypatch.setattr(lines, "opened", _counting(lines.opened, read))
    assert next(objects)[1] == rows[0]
    assert sum(read) < size / 10
    assert [value for _, value in objects] == rows[1:]


@pytest.mark.parametrize("size", [8, 1_000])
@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('[{"a": 1},\n{"b": 2},', "train.json:2: a JSON list that does not end"),
        ('[{"a": 1}', "train.json:1: a JSON list that does not end"),
        ('{"a": 1}\n]', "train.json:2: not JSON"),
        ('[{"a": 1}]\n]', "train.json:1: not JSON"),
        ("[]", "train.json: holds no object"),
    ],
)
def test_a_list_that_is_cut_short_is_refused(text: str, message: str, size: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lines, "BLOCK_BYTES", size)
    path = tmp_path / "train.json"
    path.write_text(text)
    with pytest.raises(InputError, match=message):
        list(lines.json_objects(path))


@pytest.mark.parametrize("text", ['[{"a": 1}, {"b": 2}]', ' [ {"a": 1},\n{"b": 2} ]\n\n', '{"a": 1}\n{"b": 2}', '{"a": 1}\n\n{"b": 2}\n'])
def test_a_list_and_lines_of_objects(text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "train.json").write_text(text)
    for size in (2, 5, 8, 1_000):
        monkeypatch.setattr(lines, "BLOCK_BYTES", size)
        assert [value for _, value in lines.json_objects(tmp_path / "train.json")] == [{"a": 1}, {"b": 2}]


def _counting(opened: Callable[..., Any], read: list[int]) -> Callable[..., Any]:
    @contextmanager
    def counted(path: Path) -> Iterator[Any]:
        with opened(path) as stream:
            yield SimpleNamespace(read=lambda size: read.append(size) or stream.read(size))

    return counted


def test_a_line_that_does_not_end_is_refused_before_it_is_held(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lines, "BLOCK_BYTES", 1 << 18)
    monkeypatch.setattr(lines, "LONGEST_LINE", 1 << 20)
    path = put(tmp_path / "collection.tsv", "1\tone", "2\t" + "long " * (1 << 19), "3\tthree")
    with pytest.raises(InputError, match=r"collection\.tsv:2: a line of more than 1 MiB"):
        imported("msmarco", path, tmp_path / "out")


def test_windows_lines_blank_lines_and_a_byte_order_mark(tmp_path: Path) -> None:
    folder = beir(tmp_path / "in")
    for path in folder.rglob("*.*"):
        if path.is_file():
            rows = path.read_bytes().replace(b"\n", b"\r\n\r\n")
            path.write_bytes(rows if path.suffix == ".tsv" else b"\xef\xbb\xbf" + rows)
    out, plain = imported("beir", folder, tmp_path / "out"), imported("beir", beir(tmp_path / "plain"), tmp_path / "out2")
    assert passages(out / "corpus") == passages(plain / "corpus")
    assert table(out / "qrels/test", "qrels") == table(plain / "qrels/test", "qrels")


BAD = {
    "malformed line": ("corpus.jsonl", b'{"_id": "x", "text": "y"\n', r"corpus\.jsonl:4: not JSON"),
    "not an object": ("corpus.jsonl", b'["x"]\n', r"corpus\.jsonl:4: not a JSON object but list"),
    "missing id": ("corpus.jsonl", b'{"text": "y"}\n', r"corpus\.jsonl:4: no '_id'; each line needs it; this one has 'text'$"),
    "missing text": ("corpus.jsonl", b'{"_id": "x", "title": "y"}\n', r"corpus\.jsonl:4: no 'text'"),
    "text is null": ("corpus.jsonl", b'{"_id": "x", "text": null}\n', r"corpus\.jsonl:4: no 'text'"),
    "wrong type": ("corpus.jsonl", b'{"_id": "x", "text": ["y"]}\n', r"corpus\.jsonl:4: 'text' is \[\"y\"\], not a string"),
    "number as text": ("corpus.jsonl", b'{"_id": "x", "text": 5}\n', r"corpus\.jsonl:4: 'text' is 5, not a string"),
    "fraction as id": ("corpus.jsonl", b'{"_id": 1.5, "text": "y"}\n', r"corpus\.jsonl:4: '_id' is 1\.5, not a string or a whole number"),
    "truth as id": ("corpus.jsonl", b'{"_id": true, "text": "y"}\n', r"corpus\.jsonl:4: '_id' is true"),
    "duplicate id": ("corpus.jsonl", b'{"_id": "d1", "text": "y"}\n', r"corpus\.jsonl:4: passage_id 'd1' is repeated \(first at .*:1\)"),
    "number equal to a string": (
        "corpus.jsonl",
        b'{"_id": "2", "text": "y"}\n',
        r"corpus\.jsonl:4: passage_id '2' is repeated \(first at .*:2\)",
    ),
    "empty text": ("corpus.jsonl", b'{"_id": "x", "text": " "}\n', r"corpus\.jsonl:4: empty text"),
    "empty id": ("corpus.jsonl", b'{"_id": "", "text": "y"}\n', r"corpus\.jsonl:4: empty passage_id"),
    "not UTF-8": ("corpus.jsonl", b'{"_id": "x", "text": "\xfc"}\n', r"corpus\.jsonl:4: not UTF-8"),
    "half a surrogate": ("corpus.jsonl", b'{"_id": "x", "text": "\\ud800"}\n', r"corpus\.jsonl:4: 'text' holds half of a surrogate"),
    "bad title": ("corpus.jsonl", b'{"_id": "x", "title": 3, "text": "y"}\n', r"corpus\.jsonl:4: 'title' is 3, not a string"),
    "query twice": ("queries.jsonl", b'{"_id": "q1", "text": "y"}\n', r"queries\.jsonl:3: query_id 'q1' is repeated \(first at .*:1\)"),
    "empty query": ("queries.jsonl", b'{"_id": "q9", "text": ""}\n', r"queries\.jsonl:3: empty text"),
    "unknown query": ("qrels/test.tsv", b"q9\td1\t1\n", r"test\.tsv:5: names query 'q9', which the queries do not have"),
    "unknown passage": ("qrels/test.tsv", b"q1\td9\t1\n", r"test\.tsv:5: names passage 'd9', which the corpus does not have"),
    "relevance": ("qrels/test.tsv", b"7\td1\tx\n", r"test\.tsv:5: score is 'x', not a whole number"),
    "huge relevance": ("qrels/test.tsv", b"7\td1\t99999999999\n", r"test\.tsv:5: score is '99999999999', not a whole number of 32 bits"),
    "relevance in base 16": ("qrels/test.tsv", b"7\td1\t0x1\n", r"test\.tsv:5: score is '0x1', not a whole number"),
    "relevance with an underscore": ("qrels/test.tsv", b"7\td1\t1_0\n", r"test\.tsv:5: score is '1_0', not a whole number"),
    "relevance in other digits": ("qrels/test.tsv", "7\td1\t１\n".encode(), r"test\.tsv:5: score is '１', not a whole number"),
    "thousands of digits": (
        "corpus.jsonl",
        b'{"_id": %s, "text": "y"}\n' % (b"9" * 5_000),
        r"corpus\.jsonl:4: not JSON \(Exceeds the limit",
    ),
    "columns": ("qrels/test.tsv", b"7\td1\n", r"test\.tsv:5: 2 columns, not 3; lines are query-id<TAB>corpus-id<TAB>score"),
    "judged twice": ("qrels/test.tsv", b"q1\td1\t1\n", r"test\.tsv:5: judges query 'q1' and passage 'd1' twice, differently"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_input_is_one_line_with_its_place(tmp_path: Path, case: str) -> None:
    name, line, message = BAD[case]
    folder = beir(tmp_path / "in")
    good = (folder / name).read_bytes()
    (folder / name).write_bytes(good + line)
    with pytest.raises(InputError, match=message) as caught:
        imported("beir", folder, tmp_path / "out")
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "out").exists(), "nothing half-written is left"
    (folder / name).write_bytes(good)
    assert imported("beir", folder, tmp_path / "out").is_dir(), "the same output can be used once the input is corrected"


def test_what_public_sets_have_is_kept_where_it_is_not_strict(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    folder = beir(tmp_path / "in")
    with open(folder / "corpus.jsonl", "a") as corpus, open(folder / "qrels/test.tsv", "a") as qrels:
        corpus.write('{"_id": "blank", "title": "", "text": ""}\n{"_id": "titled", "title": "only a title", "text": " "}\n')
        corpus.write('{"_id": "null", "title": "another title", "text": null}\n{"_id": "without", "title": "a third"}\n')
        qrels.write("q1\td9\t1\nq1\tblank\t1\n")
    strict, loose = (ImportSettings(format="beir", input=str(folder), output=str(tmp_path / f"{s}"), strict=s) for s in (True, False))
    with pytest.raises(InputError, match=r"corpus\.jsonl:6: no 'text'"):
        import_dataset(strict)
    assert import_dataset(loose).rows == 7
    printed = capfd.readouterr().err
    assert "kept 4 passages without text" in printed
    assert "import qrels/test: judgements of passages that the corpus does not have: 1 kept" in printed
    assert [p[0] for p in passages(tmp_path / "False/corpus")][-4:] == ["blank", "titled", "null", "without"]
    store = PassageStore(tmp_path / "False/corpus")
    assert store.passages(np.arange(4, 7)) == ["only a title", "another title", "a third"]
    assert len(set(store.text_hash.tolist())) == 7, "those without text are distinguished by their titles"
    assert [row["passage_id"] for row in table(tmp_path / "False/qrels/test", "qrels")][-2:] == ["d9", "blank"]
    with open(folder / "qrels/test.tsv", "a") as qrels:
        qrels.write("q9\td1\t1\n")
    with pytest.raises(InputError, match=r"names query 'q9'"):
        import_dataset(loose.model_copy(update={"output": str(tmp_path / "again")}))
    assert "strict" not in strict.shaping(), "what was imported before this was a setting is still the same"


def test_without_titles_a_corpus_has_texts_alone(tmp_path: Path) -> None:
    folder = beir(tmp_path / "in")
    with open(folder / "corpus.jsonl", "a") as corpus:
        corpus.write('{"_id": "titled", "title": "only a title", "text": " "}\n')
    out = imported("beir", folder, tmp_path / "loose", titles=False, strict=False)
    texts = ["first\ttext\nnext line", "second", "drittes über 文本", "only a title"]
    assert passages(out / "corpus") == [(name, "", text) for name, text in zip(("d1", "2", "d3", "titled"), texts, strict=True)]
    store = PassageStore(out / "corpus")
    assert store.text_hash.tolist() == hash_strings(pa.array(texts)).tolist()
    with pytest.raises(InputError, match=r"corpus\.jsonl:4: empty text"):
        imported("beir", folder, tmp_path / "strict", titles=False)
    put(tmp_path / "dpr/psgs_w100.tsv", "id\ttext\ttitle", "1\twords\tOne")
    assert passages(imported("dpr", tmp_path / "dpr", tmp_path / "psgs", titles=False) / "corpus") == [("1", "", "words")]


def test_newer_settings_leave_earlier_imports_as_they_are() -> None:
    given = {"format": "beir", "input": "in", "output": "out"}
    assert not {"strict", "titles", "fill_splits"} & ImportSettings.read(given).shaping().keys()
    assert ImportSettings.read(given | {"titles": False}).shaping()["titles"] is False


def test_missing_and_empty_files(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="nowhere: no such file or folder"):
        imported("beir", tmp_path / "nowhere", tmp_path / "out")
    for name in ("corpus.jsonl", "queries.jsonl", "qrels/test.tsv"):
        folder = beir(tmp_path / name.replace("/", "-"))
        (folder / name).write_text("\n \n")
        with pytest.raises(InputError, match=f"{Path(name).name}: empty file"):
            imported("beir", folder, tmp_path / "out")
        (folder / name).unlink()
        with pytest.raises(InputError, match=r"no such file|holds no <split>\.tsv"):
            imported("beir", folder, tmp_path / "out")
    folder = beir(tmp_path / "alone")
    for content, fault in (
        ("query-id\tcorpus-id\tscore\n\n", "has a header and no line after it"),
        ("query-id\tcorpus-id\tscore\rq1\td1\t2\r", "its line ends are CR alone; convert them to LF"),
    ):
        (folder / "qrels/test.tsv").write_bytes(content.encode())
        with pytest.raises(InputError, match=rf"test\.tsv: {fault}"):
            imported("beir", folder, tmp_path / "out")
    folder = beir(tmp_path / "header")
    put(folder / "qrels/test.tsv", "q1\td1\t2")
    with pytest.raises(InputError, match=r"test\.tsv:1: begins with 'q1"):
        imported("beir", folder, tmp_path / "out")


def test_what_is_there_but_no_file_is_not_called_missing(tmp_path: Path) -> None:
    folder = beir(tmp_path / "in")
    corpus = folder / "corpus.jsonl"
    packed = corpus.rename(folder / "corpus.jsonl.zst")
    with pytest.raises(InputError, match=r"corpus\.jsonl\.zst: packed with zstd; unzstd .*\.zst"):
        imported("beir", folder, tmp_path / "out")
    packed.unlink()
    corpus.mkdir()
    with pytest.raises(InputError, match=r"corpus\.jsonl: is no file; give a file"):
        imported("beir", folder, tmp_path / "out")


def test_blank_lines_before_a_header_do_no_harm(tmp_path: Path) -> None:
    folder = beir(tmp_path / "in")
    rows = (folder / "qrels/test.tsv").read_bytes()
    (folder / "qrels/test.tsv").write_bytes(b"\r\n \n" + rows + b"\nq1\tnone\t1\n")
    with pytest.raises(InputError, match=r"test\.tsv:8: names passage 'none'"):
        imported("beir", folder, tmp_path / "out")
    (folder / "qrels/test.tsv").write_bytes(b"\r\n \n" + rows)
    assert len(table(imported("beir", folder, tmp_path / "out") / "qrels/test", "qrels")) == 3


words = st.text(st.characters(codec="utf-8", exclude_categories=["Cs", "Cc"]), min_size=1, max_size=20).filter(
    lambda s: s.strip() == s and s
)


@settings(max_examples=15, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(texts=st.lists(st.tuples(words, words), min_size=1, max_size=8), relevance=st.integers(-1, 3))
def test_beir_round_trip(tmp_path_factory: pytest.TempPathFactory, texts: list[tuple[str, str]], relevance: int) -> None:
    base = tmp_path_factory.mktemp("trip")
    put_json(base / "in/corpus.jsonl", *({"_id": f"d{i}", "title": t, "text": x} for i, (t, x) in enumerate(texts)))
    put_json(base / "in/queries.jsonl", *({"_id": f"q{i}", "text": t} for i, (t, _) in enumerate(texts)))
    put(base / "in/qrels/dev.tsv", "query-id\tcorpus-id\tscore", *(f"q{i}\td{i}\t{relevance}" for i in range(len(texts))))
    first = imported("beir", base / "in", base / "first")
    exported("beir", base / "files", corpus=first / "corpus", queries=first / "queries", qrels=first / "qrels/dev")
    second = imported("beir", base / "files", base / "second")
    ends = [{n: p["rows"] for n, p in Artifact.open(d).summary["parts"].items()} for d in (first, second)]
    assert ends[0] == ends[1]
    assert [(t, x) for _, t, x in passages(second / "corpus")] == texts
    for part, kind in (("queries", "queries"), ("qrels/dev", "qrels")):
        assert table(first / part, kind) == table(second / part, kind)


@pytest.mark.parametrize("name", ["scifact", "medquad", "cmed-mini-zh", "squad-train-sent"])
def test_real_folders(tmp_path: Path, name: str) -> None:
    if not (SHARED / name).is_dir():
        pytest.skip("needs ../shared/data")
    out = imported("beir", SHARED / name, tmp_path / "out")
    with open(SHARED / name / "corpus.jsonl", encoding="utf-8") as stream:
        plain = [(d["_id"], d.get("title") or "", d["text"]) for d in map(json.loads, stream)]
    assert passages(out / "corpus") == plain
    judged = sum(1 for p in (SHARED / name / "qrels").glob("*.tsv") for _ in p.open()) - len(list((SHARED / name / "qrels").glob("*.tsv")))
    assert sum(len(table(p, "qrels")) for p in (out / "qrels").iterdir()) == judged
    written = exported("beir", tmp_path / "again", qrels=out / "qrels/train")
    assert (written / "qrels/train.tsv").read_text().splitlines() == (SHARED / name / "qrels/train.tsv").read_text().splitlines()


@pytest.mark.parametrize("corpus_alone", [False, True])
def test_a_source_that_changes_while_it_is_read_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, corpus_alone: bool) -> None:
    source = msmarco(tmp_path / "in")
    format = importing.load_format("msmarco")

    def grows(read: Callable[..., Any]) -> Callable[..., Any]:
        def reading(*given: Any) -> Any:
            found = read(*given)
            with open(source / "collection.tsv", "a") as stream:
                stream.write("4\ta download goes on\n")
            return found

        return reading

    monkeypatch.setattr(format, "passages" if corpus_alone else "read", grows(format.passages if corpus_alone else format.read))
    begin = import_corpus if corpus_alone else imported
    with pytest.raises(InputError, match="was replaced while a stage was reading it"):
        begin("msmarco", source, tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("output", ["out", "a/b/out", ".hidden/out", "../link/out"])
def test_an_output_in_its_own_source_is_no_part_of_it(tmp_path: Path, output: str) -> None:
    """The same command finds it finished, and one that was interrupted goes on."""
    source = msmarco(tmp_path / "in")
    (tmp_path / "link").symlink_to(source)
    made = Artifact.open(imported("msmarco", source, source / output))
    assert Artifact.open(imported("msmarco", source, source / output)).fingerprint == made.fingerprint
    (source / output / "manifest.json").unlink()
    (source / output / ".work").mkdir()
    (source / output / ".work/made_from.json").write_text(json.dumps(made.manifest["made_from"]))
    assert Artifact.open(imported("msmarco", source, source / output)).fingerprint == made.fingerprint


# --- MS MARCO ---


def msmarco(folder: Path) -> Path:
    put(folder / "collection.tsv", '1\ta "quoted passage', "2\tsecond", "3\tthird")
    put(folder / "queries.train.tsv", "10\tfirst query", "11\tnext")
    put(folder / "queries.dev.small.tsv", "11\tnext")
    put(folder / "qrels.dev.small.tsv", "11\t0\t2\t1")
    put(folder / "qidpidtriples.train.tsv", "10\t1\t2", "10\t1\t3", "11\t2\t1")
    put(folder / "top1000.dev.tsv", "11\t3\tnext\tthird", "11\t2\tnext\tsecond")
    return folder


def test_msmarco(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = imported("msmarco", msmarco(tmp_path / "in"), tmp_path / "out")
    assert passages(out / "corpus")[0] == ("1", "", 'a "quoted passage')
    assert [q["query_id"] for q in table(out / "queries", "queries")] == ["11", "10"]
    assert table(out / "qrels/dev.small", "qrels") == [{"query_id": "11", "passage_id": "2", "relevance": 1}]
    assert table(out / "examples/train", "examples") == [
        {"query_id": "10", "positives": [0], "negatives": [1, 2]},
        {"query_id": "11", "positives": [1], "negatives": [0]},
    ]
    assert [(r["passage_id"], r["rank"], r["score"]) for r in table(out / "run", "run")] == [("3", 1, 1.0), ("2", 2, 0.5)]
    assert "top1000.dev.tsv: its candidates have no ranking; re-rank all of them" in capsys.readouterr().err
    blanks = imported("msmarco", put(tmp_path / "trec" / "qrels.dev.small.tsv", "11 0 2 1"), tmp_path / "blanks")  # as TREC writes them
    assert table(blanks / "qrels/dev.small", "qrels") == table(out / "qrels/dev.small", "qrels")


def test_examples_are_written_as_triples_of_ids_of_msmarco(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """All passages of an example are there, the shorter list again and again."""
    put(tmp_path / "in" / "collection.tsv", *(f"{pid}\ttext {pid}" for pid in range(6)))
    put(tmp_path / "in" / "queries.train.tsv", "10\tone", "11\ttwo")
    triples = ["10\t0\t1", "10\t0\t2", "10\t0\t3", "11\t4\t0", "11\t5\t0"]
    put(tmp_path / "in" / "qidpidtriples.train.tsv", *triples)
    out = imported("msmarco", tmp_path / "in", tmp_path / "out")
    given = {"corpus": out / "corpus", "queries": out / "queries"}
    written = exported("msmarco", tmp_path / "qidpidtriples.train.tsv", examples=out / "examples/train", **given)
    assert written.read_text().splitlines() == triples
    trained = {"query_id": "10", "query_text": "one", "positive_document_ids": [0], "negative_document_ids": []}
    bare = imported("tevatron", put_json(tmp_path / "train.jsonl", trained), tmp_path / "bare", corpus=str(out / "corpus"))
    assert exported("msmarco", tmp_path / "none.tsv", examples=bare / "examples/train", **given).read_text() == ""
    assert "export train: leaves out 1 examples without a negative" in capfd.readouterr().err


def test_msmarco_triples_of_ids_are_never_held_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """MS MARCO's own file has more ids than one Arrow array can hold."""
    rng, folder = np.random.default_rng(0), tmp_path / "in"
    put(folder / "collection.tsv", *(f"{i}\tpassage {i}" for i in range(60)))
    put(folder / "queries.train.tsv", *(f"{i}\tquery {i}" for i in range(20)))
    triples = [(rng.integers(20), rng.integers(30), rng.integers(30, 60)) for _ in range(400)]
    put(folder / "qidpidtriples.train.tsv", *("\t".join(map(str, triple)) for triple in triples))
    expected: dict[str, tuple[dict[int, None], dict[int, None]]] = {}
    for query, *sides in triples:
        for side, passage in zip(expected.setdefault(str(query), ({}, {})), sides, strict=True):
            side[int(passage)] = None
    monkeypatch.setattr(lines, "BLOCK_BYTES", 100)
    order: list[str] = []
    read, check = msmarco_format.columns, Intake.check_ids
    monkeypatch.setattr(msmarco_format, "columns", lambda *args: (order.append(args[0].name) or block for block in read(*args)))
    monkeypatch.setattr(Intake, "check_ids", lambda self, *args: order.append("check") or check(self, *args))
    out = imported("msmarco", folder, tmp_path / "out")
    assert [(e["query_id"], e["positives"], e["negatives"]) for e in table(out / "examples/train", "examples")] == [
        (query, list(positives), list(negatives)) for query, (positives, negatives) in expected.items()
    ]
    blocks = "".join(order).split("qidpidtriples.train.tsv")[1:]
    assert len(blocks) > 10
    assert all(one.startswith("checkcheck") for one in blocks)

    put(folder / "qidpidtriples.train.tsv", *("\t".join(map(str, triple)) for triple in triples), "1\t1\t99")
    with pytest.raises(InputError, match=r"qidpidtriples\.train\.tsv:401: names passage '99'"):
        imported("msmarco", folder, tmp_path / "bad")
    put(tmp_path / "alone/qidpidtriples.train.tsv", "1\t1\t2")
    with pytest.raises(InputError, match=r"qidpidtriples\.train\.tsv:1: has no corpus to look its passages up in"):
        imported("msmarco", tmp_path / "alone", tmp_path / "bad")


@pytest.mark.parametrize(
    ("format", "name", "line"),
    [
        ("msmarco", "triples.train.tsv", "query\tgood\tbad"),
        ("flagembedding", "train.jsonl", '{"query": "q", "pos": ["p"], "neg": ["n"]}'),
    ],
)
def test_a_corpus_is_refused_where_the_texts_of_the_file_become_one(format: str, name: str, line: str, tmp_path: Path) -> None:
    corpus = import_corpus("beir", beir(tmp_path / "in"), tmp_path / "c")
    source = put(tmp_path / "training" / name, line)
    with pytest.raises(InputError, match=f"{name}: makes a corpus of its own texts; leave --corpus out"):
        imported(format, source, tmp_path / "out", corpus=str(corpus.path))
    assert not (tmp_path / "out").exists()


def test_msmarco_text_triples(tmp_path: Path) -> None:
    put(tmp_path / "in/triples.train.tsv", "query\tgood\tbad", "query\tgood\tworse", "other\tbad\tgood")
    out = imported("msmarco", tmp_path / "in", tmp_path / "out")
    assert [text for _, _, text in passages(out / "corpus")] == ["good", "bad", "worse"]
    assert [e["negatives"] for e in table(out / "examples/train", "examples")] == [[1, 2], [0]]


def test_msmarco_text_triples_are_the_same_however_they_are_cut(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(5)
    rows = [f"query {q}\tpassage {p}\tpassage {n}" for q, p, n in rng.integers(0, [20, 40, 60], (400, 3)).tolist()]
    put(tmp_path / "in/triples.train.tsv", *rows)
    put(tmp_path / "in/triples.dev.tsv", *rows[::-3])
    whole = imported("msmarco", tmp_path / "in", tmp_path / "whole")
    monkeypatch.setattr(lines, "BLOCK_BYTES", 500)
    cut = imported("msmarco", tmp_path / "in", tmp_path / "cut")
    expected: dict[str, dict[str, list[str]]] = {}  # by the slow reading, a line at a time
    for query, positive, negative in (row.split("\t") for row in rows):
        lists = expected.setdefault(query, {"positives": [], "negatives": []})
        for side, text in (("positives", positive), ("negatives", negative)):
            lists[side] += [text] if text not in lists[side] else []
    for lists in expected.values():
        lists["negatives"] = [text for text in lists["negatives"] if text not in lists["positives"]]
    for out in (whole, cut):
        texts = [text for _, _, text in passages(out / "corpus")]
        assert texts == list(dict.fromkeys(t for row in [*rows[::-3], *rows] for t in row.split("\t")[1:]))
        names = {q["query_id"]: q["text"] for q in table(out / "queries", "queries")}
        found = {
            names[e["query_id"]]: {side: [texts[row] for row in e[side]] for side in ("positives", "negatives")}
            for e in table(out / "examples/train", "examples")
        }
        assert found == expected
        assert list(found) == list(expected)
    for name in ("corpus", "queries", "examples/train", "examples/dev"):
        assert [f.sha256 for f in Artifact.open(whole / name).files] == [f.sha256 for f in Artifact.open(cut / name).files]


@pytest.mark.parametrize("block", [8, 1 << 20])
def test_msmarco_has_the_titles_of_the_file_of_rocketqa(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], block: int
) -> None:
    """`corpus/marco/para.title.txt`: pid and title, here in another order than the passages, and without one of them."""
    monkeypatch.setattr(lines, "BLOCK_BYTES", block)
    source = msmarco(tmp_path / "in")
    put(source / "para.title.txt", "3\tThe third's title", '1\ta "quoted title')
    out = imported("msmarco", source, tmp_path / "out")
    assert passages(out / "corpus") == [
        ("1", 'a "quoted title', 'a "quoted passage'),
        ("2", "", "second"),
        ("3", "The third's title", "third"),
    ]
    assert "import corpus: 2 of 3 passages have a title of para.title.txt" in capsys.readouterr().err
    assert passages(import_corpus("msmarco", source, tmp_path / "alone").path) == passages(out / "corpus")
    assert [title for _, title, _ in passages(imported("msmarco", source, tmp_path / "off", titles=False) / "corpus")] == [""] * 3
    put(source / "para.title.txt", "1\ttwo\ttabs")
    with pytest.raises(InputError, match=r"para\.title\.txt:1: 3 columns, not 2; lines are pid<TAB>title"):
        imported("msmarco", source, tmp_path / "bad")


def test_msmarco_text_triples_are_never_held_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put(tmp_path / "triples.train.tsv", *(f"query\tpassage {i}\tpassage {i + 1}" for i in range(300)))
    monkeypatch.setattr(lines, "BLOCK_BYTES", 1_000)
    order: list[str] = []
    read, add = triples_format.columns, CorpusWriter.add
    monkeypatch.setattr(triples_format, "columns", lambda *args: (order.append("read") or block for block in read(*args)))
    monkeypatch.setattr(CorpusWriter, "add", lambda self, table: order.append("write") or add(self, table))
    imported("msmarco", tmp_path / "triples.train.tsv", tmp_path / "out")
    assert len(order) > 10
    assert order == ["read", "write"] * (len(order) // 2)


def test_msmarco_text_triples_go_on_after_the_corpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = put(tmp_path / "triples.train.tsv", "query\tgood\tbad", "query\tgood\tworse", "other\tbad\tgood")
    whole = imported("msmarco", source, tmp_path / "whole")
    with monkeypatch.context() as patch:
        patch.setattr(Intake, "queries", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            imported("msmarco", source, tmp_path / "out")
    assert (tmp_path / "out/corpus/manifest.json").exists()
    out = imported("msmarco", source, tmp_path / "out")
    assert Artifact.open(out).fingerprint == Artifact.open(whole).fingerprint


def test_bad_msmarco_text_triples(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = put(tmp_path / "triples.train.tsv", *["query\tgood\tbad"] * 40, "query\t \tworse")
    monkeypatch.setattr(lines, "BLOCK_BYTES", 100)
    with pytest.raises(InputError, match=r"triples\.train\.tsv:41: empty positive; fill it"):
        imported("msmarco", source, tmp_path / "out")
    source = put(tmp_path / "triples.train.tsv", *["query\tgood\tbad"] * 40)
    monkeypatch.setattr(
        texts_format, "hash_strings", lambda texts, key="": hash_strings(texts, key) if key else np.zeros(len(texts), np.uint64)
    )
    with pytest.raises(InputError, match=r"triples\.train\.tsv: two of its texts have the same 64-bit hash"):
        imported("msmarco", source, tmp_path / "out")


def test_msmarco_run_round_trip_and_bad_lines(tmp_path: Path) -> None:
    out = imported("msmarco", put(tmp_path / "dev.run", "10\t2\t2", "10\t1\t1", "11\t3\t1"), tmp_path / "out")
    assert [(r["query_id"], r["passage_id"], r["rank"]) for r in table(out / "run", "run")] == [
        ("10", "1", 1),
        ("10", "2", 2),
        ("11", "3", 1),
    ]
    assert exported("msmarco", tmp_path / "again.tsv", run=out / "run").read_text() == "10\t1\t1\n10\t2\t2\n11\t3\t1\n"
    folder = msmarco(tmp_path / "in")
    put(folder / "qidpidtriples.train.tsv", "10\t1\t2", "10\t9\t3")
    with pytest.raises(InputError, match=r"qidpidtriples\.train\.tsv:2: names passage '9'"):
        imported("msmarco", folder, tmp_path / "bad")
    put(folder / "collection.tsv", "1\tone\ttwo")
    with pytest.raises(InputError, match=r"collection\.tsv:1: 3 columns, not 2"):
        imported("msmarco", folder, tmp_path / "bad")


# --- TREC ---


@settings(max_examples=15)
@given(scores=st.lists(st.floats(-1e6, 1e6, width=32), min_size=1, max_size=12, unique=True))
def test_trec_run_round_trip(tmp_path_factory: pytest.TempPathFactory, scores: list[float]) -> None:
    base = tmp_path_factory.mktemp("trec")
    falling = sorted(scores, reverse=True)
    draft = Draft.open(base / "run", "run", {})
    columns = {"query_id": ["q"] * len(falling), "passage_id": [f"p{i}" for i in range(len(falling))], "rank": range(1, len(falling) + 1)}
    commit_table(draft, "run.parquet", pa.table({**{k: list(v) for k, v in columns.items()}, "score": pa.array(falling, pa.float32())}))
    draft.finish(len(falling))
    written = exported("trec", base / "dense.trec", run=base / "run")
    assert all(len(line.split(" ")) == 6 and line.endswith(" raydense") for line in written.read_text().splitlines())
    assert table(imported("trec", written, base / "back") / "run", "run") == table(base / "run", "run")


def test_trec_ranks_by_score_and_reads_qrels(tmp_path: Path) -> None:
    put(tmp_path / "in/a.run", "q1 Q0 d1 1 0.5 tag", "q1\tQ0  d2 2 0.7 tag", " q2 Q0 d1 1 -1e-3 tag ")
    put(tmp_path / "in/qrels.test.txt", "q1 0 d1 1", "q1 0 d2 0", "q2 0 d1 -1")
    out = imported("trec", tmp_path / "in", tmp_path / "out")
    assert [(r["query_id"], r["passage_id"], r["rank"]) for r in table(out / "run", "run")] == [
        ("q1", "d2", 1),
        ("q1", "d1", 2),
        ("q2", "d1", 1),
    ]
    assert [r["relevance"] for r in table(out / "qrels/test", "qrels")] == [1, 0, -1]
    assert exported("trec", tmp_path / "q.txt", qrels=out / "qrels/test").read_text() == "q1 0 d1 1\nq1 0 d2 0\nq2 0 d1 -1\n"


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("q1 Q0 d2 2 high tag", r":2: score is 'high', not a finite number"),
        ("q1 Q0 d2 2 nan tag", r":2: score is 'nan', not a finite number"),
        ("q1 Q0 d2 2 1e39 tag", r":2: score is '1e39', not a finite number"),
        ("q1 Q0 d2 2 1_0 tag", r":2: score is '1_0', not a finite number"),
        ("q1 Q0 d2 0x2 0.5 tag", r":2: rank is '0x2', not a whole number"),
        ("q1 Q0 d2 2 0.5", r":2: 5 columns, not 6"),
        ("q1 Q0 d1 2 0.4 tag", r":2: names passage 'd1' twice for query 'q1'"),
    ],
)
def test_bad_trec_runs(tmp_path: Path, line: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        imported("trec", put(tmp_path / "a.run", "q1 Q0 d1 1 0.5 tag", line), tmp_path / "out")


@pytest.mark.parametrize("rank", ["2", "+2"])
def test_the_largest_number_of_32_bits_is_one(tmp_path: Path, rank: str) -> None:
    """As it is written, 3.4028235e+38, it is a little above itself; a rank of +2 is read line by line."""
    out = imported("trec", put(tmp_path / "a.run", "q1 Q0 d1 1 3.4028235e+38 tag", f"q1 Q0 d2 {rank} -3.4028235e+38 tag"), tmp_path / "out")
    assert [row["score"] for row in table(out / "run", "run")] == [np.finfo(np.float32).max, np.finfo(np.float32).min]


@pytest.mark.parametrize("first", [True, False])
def test_a_blank_beyond_ascii_is_part_of_an_id_wherever_it_stands(tmp_path: Path, first: bool) -> None:
    rows = ["q1 0 文書\u3000一 1", "q1\t0  d\u00a01 2"]
    out = imported("trec", put(tmp_path / "a.qrels", *(rows if first else rows[::-1])), tmp_path / "out")
    assert {row["passage_id"] for row in table(out / "qrels/a", "qrels")} == {"文書\u3000一", "d\u00a01"}
    with pytest.raises(InputError, match="a cell with a blank or line break that the format cannot hold"):
        exported("trec", tmp_path / "q.txt", qrels=out / "qrels/a")
    assert not (tmp_path / "q.txt").exists()


_DPR, _LEGACY = '{"question": "q", "positive_ctxs": []}', '{"query_id": "1", "query": "q", "positive_passages": [{"docid": "d"}]}'
_WRONG_NAME = "cannot be the name of a part of a data set; rename it"


@pytest.mark.parametrize(
    ("format", "files", "message"),
    [
        (
            "msmarco",
            {"collection.tsv": "1", "triples.train.tsv": ""},
            r"/triples\.train\.tsv: makes .*, and collection\.tsv is in the folder",
        ),
        ("msmarco", {"collection.tsv": "1", "qrels.a b.tsv": ""}, rf"/qrels\.a b\.tsv: 'qrels/a b' {_WRONG_NAME}"),
        (
            "msmarco",
            {"collection.tsv": "1", "run.x.tsv": "", "top1000.x.tsv": ""},
            r"/top1000\.x\.tsv: two files .* be run/x, this and .*/run",
        ),
        ("dpr", {"psgs_w100.tsv": "1", "nq (1).json": _DPR}, rf"/nq \(1\)\.json: 'examples/nq \(1\)' {_WRONG_NAME}"),
        ("dpr", {"psgs_w100.tsv": "1", "t.json": _DPR, "t.jsonl": _DPR}, r"/t\.jsonl: two files .* be examples/t, this and .*/t\.json;"),
        ("tevatron", {"c.jsonl": '{"docid": 1}', "t (1).json": _LEGACY}, rf"/t \(1\)\.json: 'examples/t \(1\)' {_WRONG_NAME}"),
        ("beir", {"corpus.jsonl": "1", "qrels/a b.tsv": ""}, rf"/a b\.tsv: 'qrels/a b' {_WRONG_NAME}"),
        ("flagembedding", {"t.json": "1", "t.jsonl": "1"}, r"/t\.jsonl: two files .* be examples/t"),
        ("dureader", {"part-00": "1", "passage2id.map.json": "1", "a/dual.t.tsv": "", "b/dual.t.tsv": ""}, r"/dual\.t\.tsv: two files"),
    ],
)
def test_names_of_parts_are_refused_before_the_corpus_is_read(format: str, files: dict[str, str], message: str, tmp_path: Path) -> None:
    """What would be the corpus is faulty, too, which shows when it is read."""
    for name, line in files.items():
        put(tmp_path / "in" / name, line)
    with pytest.raises(InputError, match=message):
        imported(format, tmp_path / "in", tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_two_files_for_one_part(tmp_path: Path) -> None:
    put(tmp_path / "in/dev.qrels", "q1 0 d1 1")
    put(tmp_path / "in/qrels.dev.txt", "q1 0 d2 1")
    with pytest.raises(InputError, match=r"two files of the input would both be qrels/dev"):
        imported("trec", tmp_path / "in", tmp_path / "out")


def test_trec_against_a_corpus(tmp_path: Path) -> None:
    corpus = import_corpus("beir", beir(tmp_path / "in"), tmp_path / "c")
    run = put(tmp_path / "a.run", "q1 Q0 d1 1 0.5 tag", "q1 Q0 d9 2 0.4 tag")
    with pytest.raises(InputError, match=r"a\.run:2: names passage 'd9'"):
        imported("trec", run, tmp_path / "out", corpus=str(corpus.path))


# --- training files ---

CTX = {"title": "T", "text": "passage", "score": "12.5"}


def dpr_entry(question: str, positive: str, *hard: str) -> dict[str, Any]:
    return {
        "dataset": "nq",
        "question": question,
        "answers": ["an answer", "it's"],
        "positive_ctxs": [{**CTX, "text": positive, "passage_id": f"id-{positive}"}],
        "negative_ctxs": [],
        "hard_negative_ctxs": [{**CTX, "text": text, "psg_id": f"id-{text}"} for text in hard],
    }


@pytest.mark.parametrize("indent", [None, 4])
def test_dpr_training_without_a_corpus(tmp_path: Path, indent: int | None, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "train.json").write_text(json.dumps([dpr_entry("who?", "a", "b", "c"), dpr_entry("what?", "b", "a")], indent=indent))
    out = imported("dpr", tmp_path / "train.json", tmp_path / "out")
    assert "the passages of train.json and others like it become the corpus" in capsys.readouterr().err
    assert passages(out / "corpus") == [(f"id-{t}", "T", t) for t in "abc"]
    assert [(q["text"], q["answers"]) for q in table(out / "queries", "queries")] == [
        ("who?", ["an answer", "it's"]),
        ("what?", ["an answer", "it's"]),
    ]
    assert [(e["positives"], e["negatives"], e["negative_sources"]) for e in table(out / "examples/train", "examples")] == [
        ([0], [1, 2], ["hard", "hard"]),
        ([1], [0], ["hard"]),
    ]
    judged = table(out / "qrels/train", "qrels")
    assert [(q["passage_id"], q["relevance"]) for q in judged] == [("id-a", 1), ("id-b", 1)]
    assert [q["query_id"] for q in judged] == [e["query_id"] for e in table(out / "examples/train", "examples")]
    again = exported("dpr", tmp_path / "again.json", corpus=out / "corpus", queries=out / "queries", examples=out / "examples/train")
    entries = json.loads(again.read_text())
    assert entries[0]["hard_negative_ctxs"][0] == {"title": "T", "text": "b", "passage_id": "id-b"}
    assert entries[0]["negative_ctxs"] == []
    back = imported("dpr", again, tmp_path / "back")
    assert passages(back / "corpus") == passages(out / "corpus")
    assert table(back / "examples/again", "examples") == table(out / "examples/train", "examples")


def test_dpr_entries_that_cannot_be_trained_on_are_left_out(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    none = {**dpr_entry("why?", "x", "y"), "positive_ctxs": []}
    alone = dpr_entry("when?", "d")
    own = dpr_entry("where?", "e", "e")
    (tmp_path / "train.json").write_text(json.dumps([none, alone, dpr_entry("who?", "a", "b"), own, none]))
    out = imported("dpr", tmp_path / "train.json", tmp_path / "out")
    said = capfd.readouterr().err
    assert "import train.json: 2 of 5 entries have no positive passage, and are left out" in said
    assert "import examples/train: 2 of 3 entries have no negative passage, and are judgements alone" in said
    assert passages(out / "corpus") == [(f"id-{t}", "T", t) for t in "dabe"]
    asked = {q["query_id"]: q["text"] for q in table(out / "queries", "queries")}
    assert list(asked.values()) == ["when?", "who?", "where?"]
    assert [(asked[e["query_id"]], e["positives"], e["negatives"]) for e in table(out / "examples/train", "examples")] == [
        ("who?", [1], [2])
    ]
    judged = [(asked[q["query_id"]], q["passage_id"]) for q in table(out / "qrels/train", "qrels")]
    assert judged == [("when?", "id-d"), ("who?", "id-a"), ("where?", "id-e")]

    (tmp_path / "train.json").write_text(json.dumps([alone]))
    out = imported("dpr", tmp_path / "train.json", tmp_path / "positives")
    assert [e["positives"] for e in table(out / "examples/train", "examples")] == [[0]], "they train with --negatives 0"
    (tmp_path / "train.json").write_text(json.dumps([none]))
    with pytest.raises(InputError, match=r"train\.json: no entry has a positive passage"):
        imported("dpr", tmp_path / "train.json", tmp_path / "none")


@pytest.mark.parametrize("order", [1, -1])
def test_the_first_answers_that_a_question_has_count(order: int, tmp_path: Path) -> None:
    given_: list[list[str]] = [[], ["x"], ["y"]][::order]
    for number, answers in enumerate(given_):
        put_json(tmp_path / f"in/{number}.json", {**dpr_entry("who?", "a", "b"), "answers": answers})
    out = imported("dpr", tmp_path / "in", tmp_path / "out")
    assert [row["answers"] for row in table(out / "queries", "queries")] == [next(filter(None, given_))]


def test_dpr_files_are_the_same_in_blocks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    (folder / "train.json").write_text(json.dumps([dpr_entry(f"q{i}?", "a", "b", f"c{i}") for i in range(5)]))
    hits = [
        {"question": f"q{i}?", "ctxs": [{**CTX, "text": t, "psg_id": f"id-{t}", "score": n} for n, t in enumerate("abd")]} for i in range(3)
    ]
    (folder / "dev.json").write_text(json.dumps(hits, indent=1))
    whole = imported("dpr", folder, tmp_path / "whole")
    monkeypatch.setattr(dpr_format, "BLOCK_ROWS", 2)
    monkeypatch.setattr(records_format, "_BLOCK", 2)
    blocks = imported("dpr", folder, tmp_path / "blocks")
    for part in ("examples/train/examples", "qrels/train/qrels", "run/run", "queries/queries"):
        assert (whole / f"{part}.parquet").read_bytes() == (blocks / f"{part}.parquet").read_bytes()
    assert [r["passage_id"] for r in table(blocks / "run", "run")] == ["id-d", "id-b", "id-a"] * 3
    assert dpr_format.parts(folder) == set(Artifact.open(whole).summary["parts"]), "those that `plan` is told"

    hits[1]["ctxs"].append(hits[1]["ctxs"][0])
    (folder / "dev.json").write_text(json.dumps(hits))
    with pytest.raises(InputError, match=r"dev\.json:1: names passage 'id-a' twice for query"):
        imported("dpr", folder, tmp_path / "twice")
    hits[2]["ctxs"][0]["score"] = "much"
    (folder / "dev.json").write_text(json.dumps(hits))
    with pytest.raises(InputError, match=r"dev\.json:1: 'score' is"):
        imported("dpr", folder, tmp_path / "bad")
    assert not (tmp_path / "bad" / "corpus").exists(), "what is wrong in a file is found before anything is written"


def test_an_example_has_each_passage_once(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    rows = [
        {"query": "one", "pos": ["a", "b", "a"], "neg": ["c", "b", "d", "c"], "pos_scores": [1, 2, 3], "neg_scores": [4, 5, 6, 7]},
        {"query": "two", "pos": ["b"], "neg": ["a"]},
        {"query": "three", "pos": ["d"], "neg": ["d"], "pos_scores": [1], "neg_scores": [2]},
    ]
    put_json(tmp_path / "in.jsonl", *rows)
    out = imported("flagembedding", tmp_path / "in.jsonl", tmp_path / "out")
    said = capfd.readouterr().err
    assert "import examples/in: left out 4 passages" in said
    assert "import examples/in: left out 1 of 3 examples whose negatives are all positives" in said
    ids = PassageStore(out / "corpus").ids(np.arange(4)).to_pylist()
    found = table(out / "examples/in", "examples")
    text = dict(zip(ids, (p[2] for p in passages(out / "corpus")), strict=True))
    sides = [[[text[ids[row]] for row in e[side]] for side in ("positives", "negatives")] for e in found]
    assert sides == [[["a", "b"], ["c", "d"]], [["b"], ["a"]]]
    assert [(e["positive_scores"], e["negative_scores"]) for e in found] == [([1, 2], [4, 6]), (None, None)]


@settings(deadline=None)
@given(st.lists(st.tuples(st.lists(st.integers(0, 5), max_size=5), st.lists(st.integers(0, 5), max_size=5), st.booleans()), max_size=9))
def test_distinct_is_as_a_slow_reading_has_it(examples: list[tuple[list[int], list[int], bool]]) -> None:
    given_ = {side: [e[i] for e in examples] for i, side in enumerate(("positives", "negatives"))}
    scores = [[float(n) for n in range(len(e[1]))] if e[2] else None for e in examples]
    lists, floats = pa.list_(pa.int64()), pa.list_(pa.float32())
    columns = {side: pa.array(values, lists) for side, values in given_.items()}
    before = pa.table({"query_id": [str(i) for i in range(len(examples))], **columns, "negative_scores": pa.array(scores, floats)})
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(distinct_format, "_BLOCK", 4)
        found, left = distinct_format.distinct(before, 6)
    for row, (positives, negatives, scored) in zip(found.to_pylist(), examples, strict=True):
        places = [i for i, passage in enumerate(negatives) if passage not in positives and passage not in negatives[:i]]
        assert row["positives"] == list(dict.fromkeys(positives))
        assert row["negatives"] == [negatives[i] for i in places]
        assert row["negative_scores"] == ([float(i) for i in places] if scored else None)
    assert left == sum(len(p) + len(n) for p, n, _ in examples) - sum(len(r["positives"]) + len(r["negatives"]) for r in found.to_pylist())
    assert found.column_names == before.column_names


def test_dpr_corpus_questions_and_results(tmp_path: Path) -> None:
    folder = tmp_path / "in"
    put(folder / "psgs_w100.tsv", "id\ttext\ttitle", '1\t"said ""yes"" to"\tOne', "2\tplain\tTwo")
    with open(folder / "nq-test.csv", "w", newline="") as stream:
        csv.writer(stream, delimiter="\t").writerows([["who?", str(["it's", 'a "b"'])], ["when?", str(["[0-9]+"])]])
    results = [
        {
            "question": "who?",
            "answers": ["it's", 'a "b"'],
            "ctxs": [{"id": "2", "title": "", "text": "", "score": "9.5", "has_answer": True}],
        }
    ]
    (folder / "dev.json").write_text(json.dumps(results))
    out = imported("dpr", folder, tmp_path / "out")
    assert passages(out / "corpus") == [("1", "One", 'said "yes" to'), ("2", "Two", "plain")]
    assert [q["answers"] for q in table(out / "queries", "queries")] == [["it's", 'a "b"'], ["[0-9]+"]]
    assert [(r["passage_id"], r["rank"], r["score"]) for r in table(out / "run", "run")] == [("2", 1, 9.5)]
    written = exported("dpr", tmp_path / "psgs.tsv", corpus=out / "corpus")
    assert passages(import_corpus("dpr", written, tmp_path / "c").path) == passages(out / "corpus")


def test_a_run_is_written_as_results_of_dpr_and_read_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Of a file's many queries some are in memory at a time."""
    texts = {"d1": ("Paris", "Capital of  France"), "d2": ("", "the U.S.A. is big"), "d3": ("Rome", 'in Italy, "Paris-like"')}
    asked = {"q2": ("what is big?", ["u.s.a", "USA"]), "q1": ("which city?", ["paris", "Rome"]), "q3": ("no answer?", [])}
    put_json(tmp_path / "in" / "corpus.jsonl", *({"_id": i, "title": t, "text": x} for i, (t, x) in texts.items()))
    put_json(tmp_path / "in" / "queries.jsonl", *({"_id": i, "text": t, "answers": a} for i, (t, a) in asked.items()))
    data = imported("beir", tmp_path / "in", tmp_path / "data")
    hits = [("q1", "d3", 2.5), ("q1", "d1", 0.1), ("q2", "d1", 1e-5), ("q2", "d2", -3.25), ("q3", "d2", 7.0)]
    lines_ = (f"{q} Q0 {d} 1 {s} t" for q, d, s in hits)
    run = imported("trec", put(tmp_path / "a.run", *lines_), tmp_path / "run") / "run"
    given = {"run": run, "corpus": data / "corpus", "queries": data / "queries"}
    out = exported("dpr", tmp_path / "whole.json", **given)
    assert "export: 1 queries have no answers" in capfd.readouterr().err
    holds = {("q1", "d3"), ("q2", "d2")}  # of q1's answers the titles of both passages have one, which counts for nothing
    assert json.loads(out.read_text()) == [
        {
            "question": asked[query][0],
            "answers": asked[query][1],
            "ctxs": [
                {"id": d, "title": texts[d][0], "text": texts[d][1], "score": str(np.float32(s)), "has_answer": (q, d) in holds}
                for q, d, s in hits
                if q == query
            ],
        }
        for query in ("q1", "q2", "q3")
    ]
    monkeypatch.setattr(outlet_format, "_STEP", 1)
    assert exported("dpr", tmp_path / "pieces.json", **given).read_text() == out.read_text()
    again = imported("dpr", Path(str(out)), tmp_path / "again")
    names = {q["query_id"]: q["text"] for q in table(again / "queries", "queries")}
    assert [q["answers"] for q in table(again / "queries", "queries")] == [asked[q][1] for q in ("q1", "q2", "q3")]
    before, after = table(run, "run"), table(again / "run", "run")
    assert [{**row, "query_id": names[row["query_id"]]} for row in after] == [{**r, "query_id": asked[r["query_id"]][0]} for r in before]


def test_results_of_dpr_need_the_texts_of_all_ids(tmp_path: Path) -> None:
    data = imported("beir", beir(tmp_path / "in"), tmp_path / "data")
    run = imported("trec", put(tmp_path / "a.run", "q1 Q0 d1 1 2 t", "q9 Q0 d9 1 2 t"), tmp_path / "run") / "run"
    given = {"corpus": data / "corpus", "queries": data / "queries"}
    with pytest.raises(InputError, match="export: run without the texts of its ids; give --corpus and --queries too"):
        exported("dpr", tmp_path / "x", run=run, corpus=data / "corpus")
    with pytest.raises(InputError, match="run: names query 'q9', which the queries do not have"):
        exported("dpr", tmp_path / "x", run=run, **given)
    other = imported("trec", put(tmp_path / "b.run", "q1 Q0 d9 1 2 t"), tmp_path / "other") / "run"
    with pytest.raises(InputError, match=r"run: names passage 'd9', which the corpus .* does not have"):
        exported("dpr", tmp_path / "x", run=other, **given)
    with pytest.raises(InputError, match=r"format dpr does not write run with .*examples; give one of: examples, run, corpus"):
        exported("dpr", tmp_path / "x", run=run, examples=run, **given)
    assert not (tmp_path / "x").exists()


def test_dpr_questions_have_quotes_where_a_cell_holds_one(tmp_path: Path) -> None:
    rows = [["who?", ["a"]], ['"Fings Ain\'t" was by whom?', ['Lionel "Bart"']], ['a 5" disk?', ["b"]], ['said "so"?', ["it's"]]]
    with open(tmp_path / "qa.csv", "w", newline="") as stream:
        csv.writer(stream, delimiter="\t").writerows([question, str(answers)] for question, answers in rows)
    lines = (tmp_path / "qa.csv").read_text().splitlines()
    assert lines[0] == "who?\t['a']"
    assert lines[1].startswith('"""Fings Ain\'t"" was by whom?"\t')
    out = imported("dpr", tmp_path / "qa.csv", tmp_path / "out")
    found = read_table(out / "queries", "queries").to_pylist()
    assert [[row["text"], row["answers"]] for row in found] == rows


def test_dpr_questions_without_csv_quotes_keep_those_within_a_cell(tmp_path: Path) -> None:
    put(tmp_path / "qa.csv", 'a 5" disk?\t["it\'s"]', "who \"said\" so?\t['x']")
    out = imported("dpr", tmp_path / "qa.csv", tmp_path / "out")
    found = read_table(out / "queries", "queries").to_pylist()
    assert [(row["text"], row["answers"]) for row in found] == [('a 5" disk?', ["it's"]), ('who "said" so?', ["x"])]
    put(tmp_path / "open.csv", "who?\t['x']", "\"never closed\t['x']", "when?\t['x']")
    with pytest.raises(InputError, match=r"open\.csv:2: quotes do not match"):
        imported("dpr", tmp_path / "open.csv", tmp_path / "none")


def test_bad_dpr(tmp_path: Path) -> None:
    entry = dpr_entry("who?", "a", "b")
    for bad, message in (
        ({**entry, "question": ""}, r"empty query"),
        ({**entry, "answers": "one"}, r"'answers' is \"one\", not a list of strings"),
        ({k: v for k, v in entry.items() if k != "positive_ctxs"}, r"no 'positive_ctxs'"),
        (
            {**entry, "positive_ctxs": [{"title": "", "text": "other", "passage_id": "id-a"}]},
            r"passage 'id-a' has another text than at .*train\.json:2",
        ),
    ):
        (tmp_path / "train.json").write_text(json.dumps([entry, bad], indent=1))
        with pytest.raises(InputError, match=message):
            imported("dpr", tmp_path / "train.json", tmp_path / "out")
    for wrong, message in (
        ("\ud800", "'passage_id' holds half of a surrogate pair"),
        (["x"], r"'passage_id' is \[\"x\"\], not a string or a whole number"),
        (True, "'passage_id' is true, not a string or a whole number"),
    ):
        (tmp_path / "train.json").write_text(json.dumps([{**entry, "positive_ctxs": [{"title": "", "text": "a", "passage_id": wrong}]}]))
        with pytest.raises(InputError, match=rf"train\.json:1: {message}"):
            imported("dpr", tmp_path / "train.json", tmp_path / "out")
    put(tmp_path / "qa.csv", "what?\t['a']", "who?\t['\\ud800']")
    with pytest.raises(InputError, match=r"qa\.csv:2: the answers are .*, not a list of strings"):
        imported("dpr", tmp_path / "qa.csv", tmp_path / "out")
    (tmp_path / "train.json").write_text(json.dumps([entry])[:-20])
    with pytest.raises(InputError, match=r"train\.json:1: not JSON"):
        imported("dpr", tmp_path / "train.json", tmp_path / "out")
    put(tmp_path / "qa.csv", "who?\t__import__('os').getcwd()")
    with pytest.raises(InputError, match=r"qa\.csv:1: the answers are .*, not a list of strings"):
        imported("dpr", tmp_path / "qa.csv", tmp_path / "out")


def test_tevatron_by_ids_and_run(tmp_path: Path) -> None:
    folder = tmp_path / "in"
    put_json(folder / "corpus.jsonl", {"docid": 1, "title": "T", "text": "one"}, {"docid": "2", "text": "two"})
    train = {"query_id": "q", "query_text": "which", "positive_document_ids": ["1"], "negative_document_ids": [2], "answer": "x"}
    put_json(folder / "train.jsonl", train)
    put(folder / "rank.txt", "q\t2\t1.5", "q\t1\t2.5")
    out = imported("tevatron", folder, tmp_path / "out")
    assert table(out / "examples/train", "examples") == [{"query_id": "q", "positives": [0], "negatives": [1]}]
    assert exported("tevatron", tmp_path / "r.txt", run=out / "run").read_text() == "q\t1\t2.5\nq\t2\t1.5\n"
    assert (
        exported("tevatron", tmp_path / "c.jsonl", corpus=out / "corpus").read_text().splitlines()[0]
        == '{"docid": "1", "title": "T", "text": "one"}'
    )
    put_json(folder / "train.jsonl", {**train, "negative_document_ids": ["9"]})
    with pytest.raises(InputError, match=r"train\.jsonl:1: names passage '9', which the corpus does not have"):
        imported("tevatron", folder, tmp_path / "bad")


def test_tevatron_legacy_round_trip(tmp_path: Path) -> None:
    entries = [
        {
            "query_id": f"q{i}",
            "query": f"query {i}",
            "positive_passages": [{"docid": f"p{i}", "title": "T", "text": f"good {i}"}],
            "negative_passages": [{"docid": "n", "title": "", "text": "bad"}],
        }
        for i in range(3)
    ]
    out = imported("tevatron", put_json(tmp_path / "train.jsonl", *entries), tmp_path / "out")
    again = exported("tevatron", tmp_path / "a.jsonl", corpus=out / "corpus", queries=out / "queries", examples=out / "examples/train")
    assert [json.loads(line) for line in again.read_text().splitlines()] == entries


def test_flagembedding_round_trip(tmp_path: Path) -> None:
    entries = [
        {"query": "one", "pos": ["good"], "neg": ["bad", "worse"], "pos_scores": [0.98], "neg_scores": [0.25, -1.3e-05]},
        {"query": "two", "pos": ["bad"], "neg": ["good"], "pos_scores": [1.0], "neg_scores": [0.0]},
    ]
    source = put_json(tmp_path / "train.jsonl", *({**e, "prompt": "p", "type": "t"} for e in entries))
    out = imported("flagembedding", source, tmp_path / "out")
    assert [text for _, _, text in passages(out / "corpus")] == ["good", "bad", "worse"]
    again = exported("flagembedding", tmp_path / "a.jsonl", corpus=out / "corpus", queries=out / "queries", examples=out / "examples/train")
    assert [json.loads(line) for line in again.read_text().splitlines()] == entries
    put_json(source, {**entries[0], "neg_scores": [1.0]})
    with pytest.raises(InputError, match=r"train\.jsonl:1: 'neg_scores' has 1 numbers for 2 passages"):
        imported("flagembedding", source, tmp_path / "bad")


def test_pyserini(tmp_path: Path) -> None:
    corpus = import_corpus("beir", beir(tmp_path / "in"), tmp_path / "c")
    rows = [json.loads(line) for line in exported("pyserini", tmp_path / "p.jsonl", corpus=corpus.path).read_text().splitlines()]
    assert rows[:2] == [{"id": "d1", "contents": "One first\ttext\nnext line"}, {"id": "2", "contents": "second"}]


@pytest.mark.parametrize("dtype", [np.float16, np.float32])
def test_vectors_are_written_for_pyserini_with_their_texts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, dtype: Any) -> None:
    corpus = write_corpus(tmp_path / "corpus", ["one", "two", "drei"], ["T", "", "文"])
    vectors = (np.random.default_rng(0).normal(size=(3, 5)) * [[1e-6], [1], [1e4]]).astype(dtype)
    vectors[1, :2] = 0, 1
    made = write_embeddings(tmp_path / "vectors", vectors, corpus=corpus.fingerprint)
    monkeypatch.setattr(pyserini_format, "_STEP", 1)
    given = {"embeddings": made.path, "corpus": corpus.path}
    found = [json.loads(line) for line in exported("pyserini", tmp_path / "e.jsonl", **given).read_text().splitlines()]
    assert [(row["id"], row["contents"]) for row in found] == [("p0", "T one"), ("p1", "two"), ("p2", "文 drei")]
    assert np.array_equal(np.array([row["vector"] for row in found], np.float32), vectors.astype(np.float32))
    assert [list(row) for row in found] == [["id", "contents", "vector"]] * 3


def faiss_index(folder: Path, vectors: Any, shards: int = 1, ids: list[str] | None = None, **more: Any) -> Path:
    draft = Draft.open(folder, "index", {"ids": ids, **more})
    ranges = shard_ranges(len(vectors), shards)
    for shard, (start, stop) in enumerate(ranges):
        index = faiss.IndexFlatIP(vectors.shape[1])
        index.add(vectors[start:stop])
        draft.commit(f"shard-{shard:05d}.faiss", lambda path, index=index: faiss.write_index(index, str(path)), stop - start)
    names = pa.table({"passage_id": ids or [f"p{row}" for row in range(len(vectors))]})
    draft.commit("passage_ids.arrow", lambda path: write_arrow(path, names), len(vectors))
    return draft.finish(len(vectors), **{"kind": "faiss", "shards": ranges, **more}).path


def test_an_index_is_written_as_pyserini_reads_it(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    vectors = np.random.default_rng(0).normal(size=(20, 4)).astype(np.float32)
    out = Path(exported("pyserini", tmp_path / "out", index=faiss_index(tmp_path / "ix", vectors)))
    assert sorted(path.name for path in out.iterdir()) == ["docid", "index"]
    ids = [line.rstrip() for line in (out / "docid").read_text().splitlines()]
    found = faiss.read_index(str(out / "index")).search(vectors[:3], 5)[1]
    best = np.argsort(-(vectors[:3] @ vectors.T), axis=1)[:, :5]
    assert [[ids[row] for row in rows] for rows in found] == [[f"p{row}" for row in rows] for rows in best]
    assert "nprobe" not in capfd.readouterr().err
    exported("pyserini", tmp_path / "lists", index=faiss_index(tmp_path / "of-lists", vectors, nprobe=16))
    assert "set nprobe of the index that Pyserini reads to 16" in capfd.readouterr().err


def test_pyserini_refuses_what_it_cannot_hold(tmp_path: Path) -> None:
    vectors = np.eye(6, 4, dtype=np.float32)
    corpus, other = write_corpus(tmp_path / "c", ["x"] * 6), write_corpus(tmp_path / "d", ["y"] * 6)
    ours = write_embeddings(tmp_path / "e", vectors, corpus=corpus.fingerprint)
    asked = write_embeddings(tmp_path / "q", vectors, queries="f")
    for wrong, message in (
        ({"index": faiss_index(tmp_path / "s", vectors, shards=3)}, r"/s: has 3 shards, and Pyserini reads one file; make one with"),
        ({"index": faiss_index(tmp_path / "w", vectors, kind="bm25")}, r"/w: is an index of kind bm25, not of FAISS"),
        ({"index": faiss_index(tmp_path / "i", vectors, ids=[*"abcde", "f g"])}, r"'f g' has a cell with a blank"),
        ({"embeddings": ours.path}, r"export: embeddings without the texts of their ids; give --corpus too"),
        ({"embeddings": ours.path, "corpus": other.path}, r"/e: was made with another corpus"),
        ({"embeddings": asked.path, "corpus": corpus.path}, r"/q: holds vectors of queries, not of passages"),
        ({"embeddings": ours.path, "index": ours.path}, r"does not write index with embeddings; give one of: corpus, index, embeddings"),
    ):
        with pytest.raises(InputError, match=message):
            exported("pyserini", tmp_path / "out", **wrong)
        assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("family", "name", "lines"),
    [("msmarco", "collection.{}.tsv", ["{}\ttext"]), ("dpr", "psgs_{}.tsv", ["id\ttext\ttitle", "{}\ttext\tTitle"])],
)
def test_several_corpus_files_are_refused(tmp_path: Path, family: str, name: str, lines: list[str]) -> None:
    """One of them alone would be half the corpus, without a message."""
    for part in "ab":
        put(tmp_path / "in" / name.format(part), *(line.format(part) for line in lines))
    with pytest.raises(InputError, match="holds 2 corpus files"):
        imported(family, tmp_path / "in", tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_ir_datasets(tmp_path: Path) -> None:
    try:
        import ir_datasets
    except ImportError:
        with pytest.raises(InputError, match="pip install ir_datasets"):
            imported("ir_datasets", Path("beir/scifact/test"), tmp_path / "out")
        return
    docs, asked = put(tmp_path / "d.tsv", "d1\tone", "d2\ttwo"), put(tmp_path / "q.tsv", "q1\twhich")
    judged = put(tmp_path / "r.txt", "q1 0 d2 1")
    ir_datasets.registry.register(
        "here/test", ir_datasets.create_dataset(docs_tsv=str(docs), queries_tsv=str(asked), qrels_trec=str(judged))
    )
    out = imported("ir_datasets", Path("here/test"), tmp_path / "out")
    assert passages(out / "corpus") == [("d1", "", "one"), ("d2", "", "two")]
    assert table(out / "qrels/test", "qrels") == [{"query_id": "q1", "passage_id": "d2", "relevance": 1}]
    with pytest.raises(InputError, match="knows no data set"):
        imported("ir_datasets", Path("no/such/thing"), tmp_path / "none")


def test_a_file_makes_a_format(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One file in the package, and nothing else changes."""
    put(
        tmp_path / "formats" / "pairs.py",
        "import pyarrow as pa",
        "def read(source, intake):",
        "    rows = [line.split('=') for line in source.read_text().splitlines()]",
        "    intake.queries(pa.table({'query_id': [r[0] for r in rows], 'text': [r[1] for r in rows]}), str)",
    )
    monkeypatch.setattr(formats, "__path__", [*formats.__path__, str(tmp_path / "formats")])
    formats._texts.cache_clear()
    try:
        out = imported("pairs", put(tmp_path / "in", "q1=which one?"), tmp_path / "out")
        with pytest.raises(InputError, match=r"no such format .*it is: the family of formats: beir"):
            exported("pairs", tmp_path / "none", queries=out / "queries")
    finally:
        formats._texts.cache_clear()
    assert table(out / "queries", "queries") == [{"query_id": "q1", "text": "which one?"}]


# --- export refuses ---


def test_export_refuses(tmp_path: Path) -> None:
    out = imported("beir", beir(tmp_path / "in"), tmp_path / "out")
    there = put(tmp_path / "there.txt", "dear")
    with pytest.raises(InputError, match=r"there\.txt: exists already"):
        exported("trec", there, qrels=out / "qrels/test")
    assert there.read_text() == "dear\n"
    with pytest.raises(InputError, match=r"there\.txt: cannot be made a folder \(.*\); give another path"):
        exported("trec", there / "x", qrels=out / "qrels/test")
    with pytest.raises(InputError, match="format trec does not write corpus"):
        exported("trec", tmp_path / "x", corpus=out / "corpus")
    with pytest.raises(InputError, match="format beir does not write nothing"):
        exported("beir", tmp_path / "x")
    with pytest.raises(InputError, match="line break that the format cannot hold"):
        exported("msmarco", tmp_path / "x", corpus=out / "corpus")
    with pytest.raises(InputError, match="holds queries, not corpus"):
        exported("pyserini", tmp_path / "x", corpus=out / "queries")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["in", "out", "there.txt"], "nothing half-written is left"


def test_export_refuses_examples_of_another_corpus(tmp_path: Path) -> None:
    """Examples hold rows: with another corpus of the same size they would be spelled out with its passages."""
    trained = put_json(tmp_path / "train.jsonl", {"query": "one", "pos": ["good"], "neg": ["bad"]})
    other = put_json(tmp_path / "other.jsonl", {"query": "one", "pos": ["x"], "neg": ["y"]})
    own, foreign = imported("flagembedding", trained, tmp_path / "own"), imported("flagembedding", other, tmp_path / "foreign")
    with pytest.raises(InputError, match="examples/train: was made with another corpus"):
        exported("flagembedding", tmp_path / "x", corpus=foreign / "corpus", queries=own / "queries", examples=own / "examples/train")


def test_examples_are_exported_by_blocks_and_their_queries_hashed_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    entries = [{"query": f"query {n}", "pos": [f"good {n}"], "neg": [f"bad {n}"]} for n in range(40)]
    out = imported("flagembedding", put_json(tmp_path / "train.jsonl", *entries), tmp_path / "out")
    other = imported("flagembedding", put_json(tmp_path / "other.jsonl", *entries[:20]), tmp_path / "other")
    hashed: list[int] = []

    def counted(values: Any, value_set: Any, **rest: Any) -> Any:
        hashed.append(len(value_set))
        return index_in(values, value_set=value_set, **rest)

    index_in = pc.index_in
    monkeypatch.setattr(pc, "index_in", counted)
    monkeypatch.setattr(outlet_format, "_STEP", 16)  # two examples a block
    given = {"corpus": out / "corpus", "examples": out / "examples/train"}
    again = exported("flagembedding", tmp_path / "a.jsonl", queries=out / "queries", **given)
    assert [json.loads(line) for line in again.read_text().splitlines()] == entries
    assert hashed.count(40) <= 1
    first = read_table(out / "examples/train", "examples")["query_id"][20].as_py()
    with pytest.raises(InputError, match=f"examples/train: names query '{first}', which the queries do not have"):
        exported("flagembedding", tmp_path / "b.jsonl", queries=other / "queries", **given)


@pytest.mark.parametrize("tag", ["my run", " run", "run\n", ""])
def test_a_tag_that_a_trec_run_cannot_hold_is_named(tmp_path: Path, tag: str) -> None:
    out = imported("trec", put(tmp_path / "a.run", "q1 Q0 d1 1 0.5 tag"), tmp_path / "out")
    with pytest.raises(InputError, match=r"tag: .* is not one word without blanks") as caught:
        exported("trec", tmp_path / "x.trec", run=out / "run", tag=tag)
    assert repr(tag) in str(caught.value)
    assert not (tmp_path / "x.trec").exists()
    exported("trec", tmp_path / "x.trec", run=out / "run", tag="mine")
    assert (tmp_path / "x.trec").read_text() == "q1 Q0 d1 1 0.5 mine\n"


def test_a_damaged_part_of_a_data_set_alone_is_made_again(tmp_path: Path) -> None:
    source = tmp_path / "beir"
    (source / "qrels").mkdir(parents=True)
    (source / "corpus.jsonl").write_text('{"_id": "p1", "title": "Kiwi", "text": "a bird"}\n')
    (source / "queries.jsonl").write_text('{"_id": "q1", "text": "which bird"}\n')
    (source / "qrels" / "test.tsv").write_text("query-id\tcorpus-id\tscore\nq1\tp1\t1\n")
    settings = ImportSettings(format="beir", input=str(source), output=str(tmp_path / "data"))
    made = import_dataset(settings)
    kept = (tmp_path / "data" / "queries" / "queries.parquet").stat().st_mtime_ns
    (tmp_path / "data" / "corpus" / "corpus-00000.arrow").unlink()
    shutil.rmtree(tmp_path / "data" / "qrels")
    assert import_dataset(settings).manifest == made.manifest
    assert (tmp_path / "data" / "queries" / "queries.parquet").stat().st_mtime_ns == kept
    assert damaged(tmp_path / "data") == []
