"""What ir_datasets gives that no file could: texts that are null, and downloads that fail."""

import errno
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pytest

from raydense.data.formats import ir_datasets as ir_datasets_format
from raydense.data.formats.ir_datasets import fetched, title_and_text
from raydense.data.formats.lines import refuse_blank
from raydense.data.tables import read_table
from raydense.errors import InputError, fixable


@pytest.mark.parametrize("texts", [["who", None], ["who", "  "], [None, None]])
def test_a_null_text_is_an_empty_one(texts: list[str | None]) -> None:
    table = pa.table({"query_id": ["a", "b"], "text": texts})
    with pytest.raises(InputError, match=r"query [01]: empty text; fill it"):
        refuse_blank(table, ["query_id", "text"], lambda row: f"query {row}")


class OfMarco(NamedTuple):
    doc_id: str
    url: str
    title: str
    body: str

    def default_text(self) -> str:
        return f"{self.title} {self.body}"


class OfTimes(NamedTuple):
    doc_id: str
    headline: str
    body: str

    def default_text(self) -> str:
        return f"{self.headline} {self.body}"


class OfWeb(NamedTuple):
    doc_id: str
    body: bytes

    def default_text(self) -> str:
        return self.body.decode().removeprefix("<p>")


class OfBeir(NamedTuple):
    doc_id: str
    text: str
    title: str

    def default_text(self) -> str:
        return f"{self.title} {self.text}"


def test_no_title_is_there_twice_and_no_text_is_lost() -> None:
    """Documents of the shapes that ir_datasets has: of msmarco-document, nyt, clueweb and beir."""
    assert title_and_text(OfMarco("d", "https://a", "Stone", "Old bridges.")) == ("Stone", "Old bridges.")
    assert title_and_text(OfMarco("d", "https://a", "Stone", "")) == ("", "Stone")
    assert title_and_text(OfMarco("d", "https://a", "", "Old bridges.")) == ("", "Old bridges.")
    assert title_and_text(OfTimes("d", "Stone", "Old bridges.")) == ("", "Stone Old bridges.")
    assert title_and_text(OfWeb("d", b"<p>Old bridges.")) == ("", "Old bridges.")
    assert title_and_text(OfBeir("d", "Old bridges.", "Stone")) == ("Stone", "Old bridges.")


def broken(error: Exception) -> Iterator[int]:
    yield 1
    raise error


def test_a_download_that_fails_is_one_line() -> None:
    records = fetched("beir/scifact", lambda: broken(RuntimeError("All download sources failed", ["a\nb", ConnectionError("no route")])))
    assert next(records) == 1
    with pytest.raises(InputError) as caught:
        next(records)
    message = str(caught.value)
    assert message.startswith("beir/scifact: ir_datasets could not read it (RuntimeError: ('All download sources failed'")
    assert "\n" not in message
    assert "check that this machine can download its files" in message


def test_a_full_disk_while_downloading_stays_one() -> None:
    with pytest.raises(OSError, match="No space") as caught:
        list(fetched("beir/scifact", lambda: broken(OSError(errno.ENOSPC, "No space left on device", "/cache/f"))))
    assert fixable(caught.value) == (1, "/cache/f: no space left; free some and run again, what was committed is kept")


def test_a_data_set_that_cannot_be_downloaded(tmp_path, monkeypatch) -> None:
    """With the library itself, its home empty and every address redirected to a closed port."""
    pytest.importorskip("ir_datasets")
    from raydense.data.importing import import_dataset
    from raydense.data.settings import ImportSettings

    monkeypatch.setenv("IR_DATASETS_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("IR_DATASETS_DL_TRIES", "1")
    for name in ("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    with pytest.raises(InputError, match="beir/scifact: ir_datasets could not read it"):
        import_dataset(ImportSettings(format="ir_datasets", input="beir/scifact", output=str(tmp_path / "out")))
    assert not (tmp_path / "out").exists()


def test_a_repair_whose_download_fails_keeps_what_is_there(tmp_path, monkeypatch) -> None:
    ir_datasets = pytest.importorskip("ir_datasets")
    import raydense as rd

    monkeypatch.setenv("IR_DATASETS_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(ir_datasets.registry, "_registered", {**ir_datasets.registry._registered})
    for name, text in (("docs.tsv", "p1\tone\np2\ttwo\n"), ("queries.tsv", "q\twhich\n")):
        (tmp_path / name).write_text(text)
    dataset = ir_datasets.create_dataset(docs_tsv=str(tmp_path / "docs.tsv"), queries_tsv=str(tmp_path / "queries.tsv"))
    ir_datasets.registry.register("mine/test", dataset)
    settings = rd.ImportSettings(format="ir_datasets", input="mine/test", output=str(tmp_path / "out"))
    made = rd.import_dataset(settings)
    (tmp_path / "out/queries/queries.parquet").unlink()
    (tmp_path / "queries.tsv").rename(tmp_path / "away.tsv")
    with pytest.raises(InputError, match="mine/test: ir_datasets could not read it"):
        rd.import_dataset(settings)
    assert (tmp_path / "out/corpus/manifest.json").exists()
    (tmp_path / "away.tsv").rename(tmp_path / "queries.tsv")
    assert rd.import_dataset(settings).fingerprint == made.fingerprint


def test_what_is_refused_for_its_content_leaves_nothing(tmp_path, monkeypatch) -> None:
    ir_datasets = pytest.importorskip("ir_datasets")
    import raydense as rd

    monkeypatch.setenv("IR_DATASETS_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(ir_datasets.registry, "_registered", {**ir_datasets.registry._registered})
    files = {"docs_tsv": "p1\tone\n", "queries_tsv": "q\twhich\n", "qrels_trec": "q 0 p1 1\nq 0 p9 1\n"}
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    ir_datasets.registry.register("mine/test", ir_datasets.create_dataset(**{name: str(tmp_path / name) for name in files}))
    settings = {"format": "ir_datasets", "input": "mine/test", "output": str(tmp_path / "out")}
    with pytest.raises(InputError, match="p9"):
        rd.import_dataset(rd.ImportSettings(**settings))
    assert rd.import_dataset(rd.ImportSettings(**settings, strict=False)).rows == 1


def test_what_is_exported_loads_in_the_library_and_comes_back(tmp_path, monkeypatch) -> None:
    """A corpus and queries as msmarco and qrels as trec make a data set of ir_datasets; imported again, nothing is lost."""
    ir_datasets = pytest.importorskip("ir_datasets")
    import raydense as rd
    from raydense.data.tables import read_table

    monkeypatch.setenv("IR_DATASETS_HOME", str(tmp_path / "home"))
    data = rd.sample(rd.SampleSettings(passages=100, train_queries=12, dev_queries=4, test_queries=4, output=tmp_path / "data")).path
    given = {"docs_tsv": ("msmarco", "corpus"), "queries_tsv": ("msmarco", "queries"), "qrels_trec": ("trec", "qrels")}
    files = {}
    for name, (format, kind) in given.items():
        part = data / ("qrels/test" if kind == "qrels" else kind)
        files[name] = str(rd.export(rd.ExportSettings(format=format, output=tmp_path / name, **{kind: part})))
    there = ir_datasets.create_dataset(**files)
    store = rd.PassageStore(data / "corpus")
    rows = np.arange(len(store))
    assert [(d.doc_id, d.text) for d in there.docs_iter()] == list(zip(store.ids(rows).to_pylist(), store.passages(rows), strict=True))
    monkeypatch.setattr(ir_datasets.registry, "_registered", {**ir_datasets.registry._registered})
    ir_datasets.registry.register("back/test", there)
    again = rd.import_dataset(rd.ImportSettings(format="ir_datasets", input="back/test", output=tmp_path / "again")).path
    assert rd.PassageStore(again / "corpus").passages(rows) == store.passages(rows)
    assert rd.PassageStore(again / "corpus").ids(rows) == store.ids(rows)
    for part, kind in (("queries", "queries"), ("qrels/test", "qrels")):
        columns = ["query_id", "text"] if kind == "queries" else ["query_id", "passage_id", "relevance"]
        assert read_table(again / part, kind, columns).equals(read_table(data / part, kind, columns))


@pytest.fixture
def registered(tmp_path, monkeypatch) -> Callable[..., Path]:
    """Registers a data set of the library's own classes, whose files are here; gives what an import makes of it."""
    ir_datasets = pytest.importorskip("ir_datasets")
    from raydense.data.importing import import_dataset
    from raydense.data.settings import ImportSettings

    monkeypatch.setenv("IR_DATASETS_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(ir_datasets.registry, "_registered", {**ir_datasets.registry._registered})

    def make(name: str, *parts: Any, **more: Any) -> Path:
        ir_datasets.registry.register(name, ir_datasets.Dataset(*parts))
        return import_dataset(ImportSettings(format="ir_datasets", input=name, output=str(tmp_path / "out"), **more)).path

    return make


def local(path: Path, *lines: str) -> Any:
    from ir_datasets.util import LocalDownload

    path.write_text("".join(f"{line}\n" for line in lines))
    return LocalDownload(path)


def dpr_parts(folder: Path, judged: list[str]) -> list[Any]:
    """Documents, questions and qrels as dpr-w100 has them, by its own classes and grades."""
    from ir_datasets.datasets.dpr_w100 import QREL_DEFS, DprW100Doc, DprW100Queries
    from ir_datasets.formats import TrecQrels, TsvDocs

    docs = local(folder / "docs.tsv", "id\ttext\ttitle", *(f"{n}\ttext {n}\tTitle {n}" for n in range(6)))
    asked = local(folder / "queries.tsv", "0\twho\tA. Kiwi\tKiwi", "1\twhere\tBruges", "2\twhen", "3\twhy\tbecause")
    documents = TsvDocs(docs, doc_cls=DprW100Doc, namespace="dpr", lang="en", skip_first_line=True)
    return [documents, DprW100Queries(asked), TrecQrels(local(folder / "qrels", *judged), QREL_DEFS)]


def test_answers_and_negatives_of_dpr_are_kept(registered, tmp_path, capsys) -> None:
    """As `dpr` reads the files that this data set is made of: hard negatives, and those drawn at random only where there is no hard one."""
    judged = ["0 0 0 2", "0 0 1 1", "0 0 2 0", "0 0 3 0", "0 0 4 -1", "1 0 5 1", "1 0 4 -1", "2 0 3 0", "3 0 1 1"]
    out = registered("mine/train", *dpr_parts(tmp_path, judged))
    assert read_table(out / "queries", "queries")["answers"].to_pylist() == [["A. Kiwi", "Kiwi"], ["Bruges"], [], ["because"]]
    assert read_table(out / "examples/train", "examples").to_pylist() == [
        {"query_id": "0", "positives": [0, 1], "negatives": [2, 3], "negative_sources": ["hard", "hard"]},
        {"query_id": "1", "positives": [5], "negatives": [4], "negative_sources": ["negative"]},
    ]
    assert read_table(out / "qrels/train", "qrels")["relevance"].to_pylist() == [2, 1, 0, 0, -1, 1, -1, 0, 1]
    said = capsys.readouterr().err
    assert "import examples/train: 1 of 4 queries have no positive passage, and are left out" in said
    assert "import examples/train: 1 of 3 entries have no negative passage, and are judgements alone" in said


def test_grades_that_people_gave_make_no_examples(registered, tmp_path) -> None:
    """Of passages that were judged and found wanting a training is not told: they are of a test set."""
    from ir_datasets.formats import TrecQrels

    documents, asked, _ = dpr_parts(tmp_path, [])
    grades = TrecQrels(local(tmp_path / "r", "0 0 1 1", "0 0 2 0", "0 0 3 -2"), {1: "relevant", 0: "not relevant", -2: "spam"})
    out = registered("mine/test", documents, asked, grades)
    assert sorted(path.name for path in out.iterdir() if not path.name.startswith(".")) == ["corpus", "manifest.json", "qrels", "queries"]
    assert read_table(out / "qrels/test", "qrels")["relevance"].to_pylist() == [1, 0, -2]


def test_document_pairs_are_examples(registered, tmp_path, monkeypatch) -> None:
    """As the triples of MS MARCO's own file: an example a query, in blocks."""
    from ir_datasets.formats import TsvDocPairs

    monkeypatch.setattr(ir_datasets_format, "_PAIRS", 2)
    pairs = ["1\t0\t1", "0\t2\t3", "1\t0\t4", "0\t2\t3", "0\t5\t1"]
    parts = dpr_parts(tmp_path, ["0 0 2 1"])
    out = registered("mine/triples", *parts[:2], TsvDocPairs(local(tmp_path / "pairs.tsv", *pairs)))
    assert read_table(out / "examples/triples", "examples").to_pylist() == [
        {"query_id": "1", "positives": [0], "negatives": [1, 4]},
        {"query_id": "0", "positives": [2, 5], "negatives": [3, 1]},
    ]


def test_a_pair_of_a_passage_that_is_not_there_is_refused(registered, tmp_path) -> None:
    from ir_datasets.formats import TsvDocPairs

    pairs = TsvDocPairs(local(tmp_path / "pairs.tsv", "0\t0\t1", "0\t0\t9"))
    with pytest.raises(InputError, match="mine/triples, pair 2: names passage '9', which the corpus does not have"):
        registered("mine/triples", *dpr_parts(tmp_path, [])[:2], pairs)


def test_more_pairs_than_an_import_takes_are_left_out(capsys) -> None:
    import ir_datasets

    many = ir_datasets.load("msmarco-passage/train")  # which downloads nothing
    assert ir_datasets_format._too_many_pairs("msmarco-passage/train", many)
    assert "import msmarco-passage/train: leaves out its 269,919,004 document pairs, more than 50,000,000" in capsys.readouterr().err
