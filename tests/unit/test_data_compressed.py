"""Packed files: gzip is read as what it holds, whatever the family; other packings are named, with the fix."""

import bz2
import gzip
import io
import json
import lzma
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest

from raydense.data.importing import import_dataset
from raydense.data.settings import ImportSettings
from raydense.errors import InputError
from raydense.storage import Artifact

PASSAGE = {"docid": "p1", "title": "T", "text": "good"}
LEGACY = {"query_id": "q1", "query": "who?", "positive_passages": [PASSAGE], "negative_passages": [{**PASSAGE, "docid": "p2"}]}
CONTEXT = {"title": "T", "text": "text", "passage_id": "1"}
FAMILIES = {
    "beir": {
        "corpus.jsonl": '{"_id": "d1", "text": "first"}\n{"_id": "d2", "text": "zweites über 文本"}\n',
        "queries.jsonl": '{"_id": "q1", "text": "which?"}\n',
        "qrels/test.tsv": "query-id\tcorpus-id\tscore\nq1\td2\t1\n",
        "qrels/dev.tsv": "query-id\tcorpus-id\tscore\nq1\td1\t1\n",
    },
    "msmarco": {
        "collection.tsv": "1\tone\n2\ttwo\n",
        "queries.train.tsv": "10\tfirst\n11\tnext\n",
        "queries.train.small.tsv": "11\tnext\n",
        "qrels.train.tsv": "10\t0\t2\t1\n",
        "qidpidtriples.train.full.2.tsv": "10\t2\t1\n",
        "top1000.dev.tsv": "11\t2\tnext\ttwo\n",
    },
    "trec": {"bm25.run": "q1 Q0 d1 1 0.5 tag\n", "dense.run": "q1 Q0 d1 1 0.5 tag\n", "qrels.dev.txt": "q1 0 d1 1\n"},
    "dpr": {
        "psgs_w100.tsv": "id\ttext\ttitle\n1\ttext\tT\n",
        "nq-dev.csv": "who?\t['an answer']\n",
        "biencoder-nq-train.json": json.dumps([{"question": "what?", "answers": [], "positive_ctxs": [CONTEXT]}]),
    },
    "tevatron": {"train.jsonl": json.dumps(LEGACY) + "\n", "rank.txt": "q1\tp1\t1.5\n"},
    "query_as_context": {"a.json": '{"docid": "0", "anchor": "good", "query": ["who?"]}\n'},
    "condenser": {"a.json": '{"spans": ["good", "bad"]}\n'},
    "flagembedding": {"train.jsonl": '{"query": "who?", "pos": ["good"], "neg": ["bad"]}\n'},
}


def write(folder: Path, family: str, packed: bool = False) -> Path:
    for name, text in FAMILIES[family].items():
        path = folder / (f"{name}.gz" if packed else name)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(gzip.compress(text.encode(), mtime=0) if packed else text.encode())
    return folder


def imported(family: str, source: Path, output: Path) -> Artifact:
    return import_dataset(ImportSettings(format=family, input=str(source), output=str(output)))  # type: ignore[arg-type]


def contents(dataset: Artifact) -> dict[str, list[str]]:
    """The checksums of the files of each part."""
    return {part: [file.sha256 for file in Artifact.open(dataset.path / part).files] for part in dataset.summary["parts"]}


@pytest.mark.parametrize("family", FAMILIES)
def test_gzip_is_read_as_what_it_holds(tmp_path: Path, family: str) -> None:
    whole = contents(imported(family, write(tmp_path / "plain", family), tmp_path / "a"))
    assert whole
    packed = write(tmp_path / "packed", family, packed=True)
    assert contents(imported(family, packed, tmp_path / "b")) == whole
    assert contents(imported(family, write(packed, family), tmp_path / "c")) == whole, "NAME next to NAME.gz counts once"


def test_one_file_alone(tmp_path: Path) -> None:
    path = write(tmp_path / "in", "flagembedding", packed=True) / "train.jsonl.gz"
    assert set(contents(imported("flagembedding", path, tmp_path / "out"))) == {"corpus", "queries", "examples/train"}


def test_a_fault_in_a_packed_file_has_its_line(tmp_path: Path) -> None:
    folder = write(tmp_path / "in", "beir", packed=True)
    text = FAMILIES["beir"]["corpus.jsonl"]
    for more, message in (('{"_id": "d1", "text": "again"}', r"corpus\.jsonl\.gz:3: passage_id 'd1' is repeated"), ("{", "gz:3: not JSON")):
        (folder / "corpus.jsonl.gz").write_bytes(gzip.compress((text + more).encode()))
        with pytest.raises(InputError, match=message):
            imported("beir", folder, tmp_path / "out")
    (folder / "corpus.jsonl.gz").write_bytes(gzip.compress(b'{"_id": "d1", "text": "\xfc"}\n'))
    with pytest.raises(InputError, match=r"corpus\.jsonl\.gz:1: not UTF-8 \(byte 0x\w\w\); convert the file"):
        imported("beir", folder, tmp_path / "out")


@pytest.mark.parametrize(
    "broken",
    [lambda whole: whole[:-9], lambda whole: whole[:20] + b"\xff\xff\xff" + whole[23:], lambda whole: b"plain text\n"],
    ids=["cut off", "damaged", "not packed"],
)
def test_a_broken_gzip_file_is_one_line(tmp_path: Path, broken: Callable[[bytes], bytes]) -> None:
    folder = write(tmp_path / "in", "beir")
    whole = gzip.compress((folder / "corpus.jsonl").read_bytes() * 1_000)
    (folder / "corpus.jsonl").unlink()
    (folder / "corpus.jsonl.gz").write_bytes(broken(whole))
    with pytest.raises(InputError, match=r"corpus\.jsonl\.gz: not a complete gzip file \(.*\); get it again") as caught:
        imported("beir", folder, tmp_path / "out")
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "out").exists()


def zipped(data: bytes) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("corpus.jsonl", data)
    return buffer.getvalue()


@pytest.mark.parametrize(
    ("pack", "message"),
    [
        (gzip.compress, r"corpus\.jsonl: packed with gzip; name it corpus\.jsonl\.gz, and it is decompressed while it is read"),
        (bz2.compress, r"corpus\.jsonl: packed with bzip2; bunzip2 \S*corpus\.jsonl"),
        (lzma.compress, r"corpus\.jsonl: packed with xz; unxz \S*corpus\.jsonl"),
        (lambda data: pa.compress(data, "zstd", asbytes=True), r"corpus\.jsonl: packed with zstd; unzstd \S*corpus\.jsonl"),
        (zipped, r"corpus\.jsonl: packed with zip; unzip \S*corpus\.jsonl"),
    ],
    ids=["gzip", "bzip2", "xz", "zstd", "zip"],
)
def test_another_compression_is_named_with_the_fix(tmp_path: Path, pack: Callable[[bytes], bytes], message: str) -> None:
    folder = write(tmp_path / "in", "beir")
    (folder / "corpus.jsonl").write_bytes(pack((folder / "corpus.jsonl").read_bytes() * 100))
    with pytest.raises(InputError, match=message):
        imported("beir", folder, tmp_path / "out")


@pytest.mark.parametrize("name", ["queries.tar.gz", "queries.tgz"])
def test_an_archive_of_several_files_is_to_be_unpacked(tmp_path: Path, name: str) -> None:
    """As MS MARCO is downloaded."""
    folder = write(tmp_path / "in", "msmarco")
    with tarfile.open(folder / name, "w:gz") as archive:
        archive.add(folder / "queries.train.tsv", "queries.train.tsv")
    with pytest.raises(InputError, match=rf"{name}: packed with gzip; tar -xf \S*{name}, and move it elsewhere"):
        imported("msmarco", folder, tmp_path / "out")


def test_text_that_begins_like_a_packed_file(tmp_path: Path) -> None:
    (tmp_path / "collection.tsv").write_text("BZh\tbyzantine history\nPK\x03\x04\tplayer kills\n")
    assert imported("msmarco", tmp_path, tmp_path / "out").rows == 2
