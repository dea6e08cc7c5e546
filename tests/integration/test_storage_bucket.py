"""Folders of a bucket, over real HTTP: names, the cache, drafts that continue elsewhere, and intermittent faults."""

from __future__ import annotations

import itertools
import json
import os
import pickle
import shutil
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace

import forked
import numpy as np
import pyarrow as pa
import pytest
from pyarrow import fs

from raydense.cli.work import verb_work
from raydense.data.dataset import DatasetDraft
from raydense.data.exporting import export
from raydense.data.importing import import_corpus, import_dataset
from raydense.data.settings import ExportSettings, ImportSettings
from raydense.data.store import CorpusWriter, PassageStore
from raydense.errors import InputError, LostOutput, RefusedByStore, StorageError, fixable
from raydense.evaluation.settings import EvaluateSettings
from raydense.inference.endpoint import Reply
from raydense.inference.replies import Journal
from raydense.inference.rerank import loss_of
from raydense.retrieval.bm25_counts import Inputs, count, parts_of
from raydense.retrieval.bm25_scores import Weighting, score, shard_file
from raydense.retrieval.bm25_shard import PARTS
from raydense.retrieval.bm25_vocabulary import VOCABULARY, merge_vocabularies
from raydense.retrieval.nprobe import Sample, Shard, index_hits
from raydense.retrieval.settings import SearchSettings
from raydense.retrieval.vectors import Vectors
from raydense.retrieval.words import Words
from raydense.storage import (
    Artifact,
    Draft,
    Place,
    bucket,
    cache,
    checked,
    fingerprint_of,
    holds,
    lease,
    named,
    named_folders,
)
from raydense.storage.bucket_place import BucketPlace
from raydense.storage.credentials import profile_options
from raydense.storage.lease import Lease
from tests.damaged import damaged
from tests.embeddings import write_embeddings
from tests.mining_world import write_trained
from tests.s3_server import BUCKET, SECRET, environment, proxy

ROOT = f"s3://{BUCKET}"


@pytest.fixture
def store(port: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A folder of its own in the store, and this process on a machine with an empty cache; leases of a test are not renewed in the next one."""
    _on_machine("a", port, tmp_path, monkeypatch)
    yield f"{ROOT}/{tmp_path.name}"
    for held in [holds._HELD.pop(located) for located in list(holds._HELD)]:
        held.hold.abandon()


def _on_machine(name: str, port: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for key, value in environment(port, tmp_path / name).items():
        monkeypatch.setenv(key, value)


@dataclass
class Clock:
    """A clock that jumps: what sleeps by it returns at once."""

    time: float = 0.0
    pauses: list[float] = field(default_factory=list)

    def sleep(self, seconds: float) -> None:
        self.pauses.append(seconds)
        self.time += seconds


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """The clock of all retries; those of obstore itself, which has its own, end within milliseconds."""
    clock = Clock()
    fast = replace(bucket.RETRIES, within_s=0.02, first_pause_s=0.001, now=lambda: clock.time, sleep=clock.sleep)
    monkeypatch.setattr(bucket, "RETRIES", fast)
    return clock


def _corpus(place: str | Path, rows: int = 7) -> Artifact:
    writer = CorpusWriter(Draft.open(place, "corpus", {"test": rows}), 3)
    writer.add(pa.table({"passage_id": [f"p{i}" for i in range(rows)], "title": [""] * rows, "text": [f"text {i}" for i in range(rows)]}))
    return writer.finish()


def _commit(draft: Draft, name: str) -> None:
    draft.commit(name, lambda path: path.write_text(f"content of {name}"), 1)


WRITER = """
import sys, threading
from raydense.storage import Draft

draft = Draft.open(sys.argv[1], "report", {"x": 1})
draft.commit("a.txt", lambda path: path.write_text("content of a.txt"), 1)
threading.Event().wait()
"""


def test_names(tmp_path: Path) -> None:
    assert checked("s3://b//x/./y/") == "s3://b/x/y"
    assert checked(f"file://{tmp_path}/with%20blank") == f"{tmp_path}/with blank"
    assert checked("file://localhost/a/b") == checked("file:/a/b") == "/a/b"
    for path in ("plain/folder", "a:/b", "C:/data/x", "corpus:/x%20y"):
        assert checked(path) == path
    assert Place.of(Path("s3://b/x")) == Place.of("s3://b/x")
    assert str(Place.of("gs://b/x") / "y" / "z") == "gs://b/x/y/z"
    assert Place.of("s3://b/x").located == "s3://b/x"
    settings = SearchSettings(index="s3://b/ix/", queries=f"file://{tmp_path}", output=Path("s3://b/run"))
    assert (settings.index, settings.queries, settings.output) == ("s3://b/ix", str(tmp_path), "s3://b/run")
    assert EvaluateSettings(run=["BM25=s3://b//r"], qrels="q", output="o").run == ["BM25=s3://b/r"]
    for bad in (
        "s3://",
        "file://",
        "s3:////b/x",
        "gs://",
        "s3://b/../x",
        "http://b/x",
        "s3://b/x?endpoint_override=h",
        "file://out",
        "file://out/ix",
        "file:///d/run#2",
    ):
        with pytest.raises(InputError):
            checked(bad)


def test_the_loss_of_a_reranker_in_a_bucket_is_known(store: str) -> None:
    write_trained(f"{store}/model", "listwise")
    assert loss_of(f"{store}/model") == "listwise"
    assert loss_of(f"{store}/none") is None


def test_a_data_set_in_a_bucket_says_which_part_was_meant_or_missing(store: str) -> None:
    made = DatasetDraft(f"{store}/data", {"test": 1})
    made.table("qrels/dev", "qrels", pa.table({"query_id": ["q"], "passage_id": ["p"], "relevance": [1]}))
    made.finish()
    for given, message in (
        ("data", f"holds dataset, not qrels; did you mean {store}/data/qrels/dev?"),
        ("data/qrels/test", f"no such folder; {store}/data/qrels has dev: no test"),
        ("other/qrels/test", "no such folder; give a folder of kind qrels"),
    ):
        with pytest.raises(InputError) as caught:
            Artifact.open(f"{store}/{given}", "qrels")
        assert str(caught.value) == f"{store}/{given}: {message}"


@pytest.mark.parametrize(
    ("item", "name", "path"),
    [
        ("BM25=runs/bm25", "BM25", "runs/bm25"),
        ("dense=runs/lr=1e-5/dense", "dense", "runs/lr=1e-5/dense"),
        ("runs/lr=1e-5/dense", "", "runs/lr=1e-5/dense"),
        ("./lr=1e-5", "", "./lr=1e-5"),
        ("s3://bucket/lr=1e-5", "", "s3://bucket/lr=1e-5"),
        ("a=s3://bucket/lr=1e-5", "a", "s3://bucket/lr=1e-5"),
        ("runs/dense", "", "runs/dense"),
    ],
)
def test_a_name_before_a_path_has_no_slash(item: str, name: str, path: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert named(item) == (name, path)
    assert named_folders([item]) == [(name or Path(path).name, path)]
    settings = EvaluateSettings.read({"run": [item], "qrels": "q", "output": "o"})
    there = path if path.startswith("s3:") else str(tmp_path / path)
    assert settings.run == [item]
    assert verb_work("evaluate", settings).stages[0].settings.run == [f"{name}={there}" if name else there]


def test_an_artifact_is_the_same_in_a_store(store: str, tmp_path: Path) -> None:
    made, local = _corpus(f"{store}/corpus"), _corpus(tmp_path / "corpus")
    assert made.fingerprint == local.fingerprint
    assert set(Place.of(f"{store}/corpus").files()) == {file.path for file in local.files} | {"manifest.json"}
    assert fingerprint_of(f"{store}/corpus") == local.fingerprint
    passages = PassageStore(f"{store}/corpus")
    assert passages.passages(passages.rows_of(pa.array(["p6", "p0"]))) == ["text 6", "text 0"]


def test_another_machine_reads_it(store: str, port: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _corpus(f"{store}/corpus")
    _on_machine("b", port, tmp_path, monkeypatch)
    opened = Artifact.open(f"{store}/corpus", "corpus")
    assert not (tmp_path / "b" / "files").exists(), "fetched before it was needed"
    local = _corpus(tmp_path / "corpus")
    for file in local.files:
        assert (opened.path / file.path).read_bytes() == (local.path / file.path).read_bytes()
    assert opened.path.is_relative_to(tmp_path / "b")


def test_processes_that_want_the_same_file_share_it(store: str, port: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = _corpus(f"{store}/corpus")
    _on_machine("b", port, tmp_path, monkeypatch)
    reader = (
        "import sys; from raydense.data.store import PassageStore; s = PassageStore(sys.argv[1]); print(len(s.passages(range(len(s)))))"
    )
    started = [forked.Popen([sys.executable, "-c", reader, f"{store}/corpus"], stdout=subprocess.PIPE, text=True) for _ in range(2)]
    assert [process.communicate(timeout=240)[0].strip() for process in started] == ["7", "7"]
    groups = list((tmp_path / "b" / "files").iterdir())
    assert [path.name for path in groups] == [whole.fingerprint]
    assert not list(groups[0].rglob("*.aside"))


def test_a_draft_goes_on_on_another_machine(store: str, port: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    draft = Draft.open(f"{store}/out", "report", {"x": 1})
    _commit(draft, "a.txt")
    draft.keep("counts", lambda path: path.write_text("3"))
    draft.close()
    assert not Place.of(f"{store}/out/manifest.json").exists()
    with pytest.raises(InputError, match="unfinished"):
        Artifact.open(f"{store}/out")
    _on_machine("b", port, tmp_path, monkeypatch)
    with pytest.raises(InputError, match="made from something else"):
        Draft.open(f"{store}/out", "report", {"x": 2})
    resumed = Draft.open(f"{store}/out", "report", {"x": 1})
    assert list(resumed.committed()) == ["a.txt"]
    assert not (resumed.folder / "a.txt").exists(), "fetched, and not needed"
    kept = resumed.kept("counts")
    assert kept is not None
    assert kept.read_text() == "3"
    assert resumed.read("a.txt").read_text() == "content of a.txt"
    assert resumed.kept("other") is None
    _commit(resumed, "b.txt")
    made = resumed.finish(2, note="so")
    assert (made.path / "a.txt").read_text() == "content of a.txt"
    assert set(Place.of(f"{store}/out").files()) == {"a.txt", "b.txt", "manifest.json"}
    again = Draft.open(f"{store}/out", "report", {"x": 1})
    assert again.done is not None
    assert again.done.fingerprint == made.fingerprint
    with pytest.raises(InputError, match="made from something else"):
        Draft.open(f"{store}/out", "report", {"x": 2})


@pytest.mark.parametrize("name", ["/etc/passwd", "../outside.txt"])
def test_a_record_names_no_file_outside(store: str, name: str) -> None:
    draft = Draft.open(f"{store}/out", "report", {"x": 1})
    _commit(draft, "a.txt")
    (record,) = Place.of(f"{store}/out/.work/commits").files()
    there = f"{store}/out/.work/commits/{record}"
    Place.of(there).write(json.dumps({**json.loads(Place.of(there).read() or b""), "path": name}).encode())
    for read in (draft.committed, lambda: draft.read("a.txt")):
        with pytest.raises(InputError, match="names a file outside its folder"):
            read()


def test_a_draft_that_lacks_nothing_is_finished_on_another_machine(
    store: str, port: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    draft = Draft.open(f"{store}/out", "report", {"x": 1})
    _commit(draft, "a.txt")
    draft.close()
    _on_machine("b", port, tmp_path, monkeypatch)
    assert Draft.open(f"{store}/out", "report", {"x": 1}).finish(1).rows == 1


def test_a_file_that_another_machine_made_again_is_not_cached_from_here(
    store: str, port: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def commit(draft: Draft, name: str, content: str) -> None:
        draft.commit(name, lambda path: path.write_text(content), 1)

    draft = Draft.open(f"{store}/out", "report", {"x": 1})
    commit(draft, "a.txt", "made on a")
    (draft.place / "a.txt").delete()  # as if this machine had stopped before it was uploaded
    (draft.place / ".work/commits").delete()
    draft.close()
    _on_machine("b", port, tmp_path, monkeypatch)
    draft = Draft.open(f"{store}/out", "report", {"x": 1})
    commit(draft, "a.txt", "made on b")
    draft.close()
    _on_machine("a", port, tmp_path, monkeypatch)
    made = Draft.open(f"{store}/out", "report", {"x": 1}).finish(1)
    assert made.file("a.txt").read_text() == "made on b"


def test_a_damaged_record_of_this_machine_ends_nothing(store: str) -> None:
    draft = Draft.open(f"{store}/out", "report", {"x": 1})
    for name in ("a.txt", "b.txt"):
        _commit(draft, name)
    for record in (draft.work / "commits").iterdir():
        record.write_text("{")
        if record.name.startswith("b.txt"):
            (draft.shared / "commits" / record.name).delete()  # as if it was on its way
    draft.close()
    draft = Draft.open(f"{store}/out", "report", {"x": 1})
    assert list(draft.committed()) == ["a.txt"]
    assert draft.read("a.txt").exists()
    assert [file.path for file in draft.finish(1).files] == ["a.txt"]


def test_a_file_that_was_on_its_way_is_sent(store: str) -> None:
    draft = Draft.open(f"{store}/out", "report", {"x": 1})
    _commit(draft, "a.txt")
    record = next(iter(Place.of(f"{store}/out/.work/commits").files()))
    Place.of(f"{store}/out/.work/commits/{record}").delete()  # as if it was stopped before
    draft.close()
    assert list(Draft.open(f"{store}/out", "report", {"x": 1}).committed()) == ["a.txt"]


def test_what_was_made_before_the_first_file_is_kept(store: str) -> None:
    """Replies that were paid for, and a first file whose upload was cut."""
    draft = Draft.open(f"{store}/out", "report", {"x": 1})
    Journal(draft, "a.txt").add(0, Reply("an answer", 3, 2))
    draft.close()
    resumed = Draft.open(f"{store}/out", "report", {"x": 1})
    assert Journal(resumed, "a.txt").read().of[0].text == "an answer"
    resumed.close()
    other = Draft.open(f"{store}/out", "report", {"x": 2})
    assert Journal(other, "a.txt").read().of == {}


def test_an_index_of_shards_from_several_machines_is_opened(store: str, port: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file that another machine made lies in a folder of its own in the cache, not next to the shard."""
    import faiss

    vectors = np.random.default_rng(0).standard_normal((400, 8)).astype(np.float32)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    trained = faiss.index_factory(8, "IVF4,Flat", faiss.METRIC_INNER_PRODUCT)
    trained.train(vectors)
    draft = Draft.open(f"{store}/ix", "index", {"x": 1})
    draft.commit("empty.faiss", lambda path: faiss.write_index(trained, str(path)), 0)
    trained.add(vectors)
    draft.commit("shard-00000.faiss", lambda path: faiss.write_index(trained, str(path)), 400)
    sent = pickle.dumps(draft)
    _on_machine("b", port, tmp_path, monkeypatch)
    sample = Sample(np.arange(5), vectors[:5], 3)
    rows = index_hits(pickle.loads(sent), "empty.faiss", sample, Shard("shard-00000.faiss", 0, 400), "nprobe=4")[1]
    assert rows[:, 0].tolist() == list(range(5))


def test_a_machine_that_counted_no_words_scores_a_shard(store: str, port: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A node that joined later, or all of them where a killed index goes on elsewhere."""
    writer = CorpusWriter(Draft.open(tmp_path / "corpus", "corpus", {}), 9)
    writer.add(pa.table({"passage_id": ["a", "b"], "title": ["", ""], "text": ["rivers of the land", "farmers farm"]}))
    writer.finish()
    corpus, draft, words = PassageStore(tmp_path / "corpus"), Draft.open(f"{store}/ix", "index", {"x": 1}), Words("english", "en")
    parts = parts_of(corpus, None, [(0, 2)])
    for part in parts:
        count(draft, Inputs(str(tmp_path / "corpus"), None, {"corpus": corpus.fingerprint}), words, part)
    merge_vocabularies(draft, parts, 2)
    sent = pickle.dumps(draft)
    _on_machine("b", port, tmp_path, monkeypatch)
    there = pickle.loads(sent)
    assert score(there, parts, 0, Weighting(2.0, 0.9, 0.4)) == 2
    assert set(there.committed()) == {VOCABULARY, *(shard_file(0, name) for name in PARTS)}


def test_what_another_machine_keeps_for_a_stage_lies_in_the_bucket_alone(store: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing would remove it there when the output is finished."""
    draft = Draft.open(f"{store}/out", "report", {"x": 1})
    draft.keep("own", lambda path: path.write_text("3"))
    monkeypatch.setattr("socket.gethostname", lambda: "worker-7")
    draft.keep("counts", lambda path: path.write_text("4"))
    _commit(draft, "a.txt")
    assert not [file for file in draft.folder.rglob("*") if file.name.startswith("a.txt")], "nor its record"
    assert (draft.work / "own").exists()
    assert not (draft.work / "counts").exists()
    kept = draft.kept("counts")
    assert kept is not None
    assert kept.read_text() == "4"


def test_an_output_that_was_deleted_starts_again(store: str) -> None:
    draft = Draft.open(f"{store}/out", "report", {"x": 1})
    _commit(draft, "a.txt")
    draft.close()
    Place.of(f"{store}/out").delete()
    assert Draft.open(f"{store}/out", "report", {"x": 1}).committed() == {}


def test_only_one_writes(store: str, port: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    writer = forked.Popen([sys.executable, "-c", WRITER, f"{store}/out"])
    try:
        end = time.monotonic() + 240
        while not Place.of(f"{store}/out/a.txt").exists():
            assert writer.poll() is None
            assert time.monotonic() < end
            time.sleep(0.02)
        for machine in ("a", "b"):
            _on_machine(machine, port, tmp_path, monkeypatch)
            with pytest.raises(InputError, match="another process is writing here"):
                Draft.open(f"{store}/out", "report", {"x": 1})
    finally:
        writer.kill()
        writer.wait()
    assert Draft.open(f"{store}/out", "report", {"x": 1}).committed()


def _renews(file: Place, content: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever waits to see whether a lease is renewed finds that it is."""
    monkeypatch.setattr(lease, "time", SimpleNamespace(time=time.time, sleep=lambda _: file.write(content)))


def test_a_writer_of_another_host_is_waited_for_by_the_clock_of_the_bucket(store: str, monkeypatch: pytest.MonkeyPatch) -> None:
    draft = Draft.open(f"{store}/out", "report", {"x": 1})
    _commit(draft, "a.txt")
    draft.close()
    other, file = {"host": "elsewhere", "pid": os.getpid(), "token": "t"}, Place.of(f"{store}/out/.work/writer.json")
    for wrong in (-3_600, 3_600):
        content = json.dumps({**other, "time": time.time() + wrong}).encode()
        file.write(content)
        _renews(file, content + b" ", monkeypatch)
        with pytest.raises(InputError, match=f"process {os.getpid()} of elsewhere"):
            Draft.open(f"{store}/out", "report", {"x": 1})
    monkeypatch.setattr(lease, "FRESH_S", 0)
    assert Draft.open(f"{store}/out", "report", {"x": 1}).committed()
    assert not Place.of(f"{store}/out/.work/clock").exists()


@pytest.mark.parametrize("elsewhere", [False, True])
def test_a_process_number_of_another_container_says_nothing(store: str, elsewhere: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two containers of one machine may have the same host name, and each knows only its own processes."""
    draft, file = Draft.open(f"{store}/out", "report", {"x": 1}), Place.of(f"{store}/out/.work/writer.json")
    _commit(draft, "a.txt")
    there = json.loads(file.read() or b"")
    draft.close()
    gone = {"pid": 2**22 + 1, "started": "1", "system": f"{there['system']}{elsewhere}" if elsewhere else there["system"]}
    file.write(content := json.dumps({**there, **gone}).encode())
    if elsewhere:
        _renews(file, content + b" ", monkeypatch)
        with pytest.raises(LostOutput, match="another process is writing here"):
            Draft.open(f"{store}/out", "report", {"x": 1})
    else:
        assert Draft.open(f"{store}/out", "report", {"x": 1}).committed()


def test_a_process_number_that_was_given_again_is_another_process(store: str) -> None:
    draft, file = Draft.open(f"{store}/out", "report", {"x": 1}), Place.of(f"{store}/out/.work/writer.json")
    _commit(draft, "a.txt")
    there = json.loads(file.read() or b"")
    draft.close()
    file.write(json.dumps({**there, "pid": 1}).encode())
    assert Draft.open(f"{store}/out", "report", {"x": 1}).committed()


def test_what_is_not_ours_is_left_alone(store: str) -> None:
    Place.of(f"{store}/out/notes.txt").write(b"mine")
    with pytest.raises(InputError, match="not an artifact of raydense"):
        Draft.open(f"{store}/out", "report", {"x": 1})
    assert set(Place.of(f"{store}/out").files()) == {"notes.txt"}


def test_import_and_export(store: str, tmp_path: Path) -> None:
    source = tmp_path / "beir"
    (source / "qrels").mkdir(parents=True)
    (source / "corpus.jsonl").write_text('{"_id": "p1", "title": "Kiwi", "text": "a bird"}\n')
    (source / "queries.jsonl").write_text('{"_id": "q1", "text": "which bird"}\n')
    (source / "qrels" / "test.tsv").write_text("query-id\tcorpus-id\tscore\nq1\tp1\t1\n")
    for file in source.rglob("*.*"):
        Place.of(f"{store}/beir/{file.relative_to(source)}").publish(file)
    made = import_dataset(ImportSettings(format="beir", input=f"{store}/beir", output=f"{store}/data"))
    local = import_dataset(ImportSettings(format="beir", input=str(source), output=str(tmp_path / "data")))
    assert made.fingerprint == local.fingerprint
    assert import_dataset(ImportSettings(format="beir", input=f"{store}/beir", output=f"{store}/data")).fingerprint == made.fingerprint
    parts = {"corpus": f"{store}/data/corpus", "queries": f"{store}/data/queries", "qrels": f"{store}/data/qrels/test"}
    assert export(ExportSettings(format="beir", output=f"{store}/out/beir", **parts)) == Place.of(f"{store}/out/beir")
    for file in source.rglob("*.tsv"):
        assert Place.of(f"{store}/out/beir/{file.relative_to(source)}").read() == file.read_bytes()
    with pytest.raises(InputError, match="exists already"):
        export(ExportSettings(format="beir", output=f"{store}/out/beir", **parts))


def test_an_export_that_ended_in_the_middle_begins_again(store: str, monkeypatch: pytest.MonkeyPatch) -> None:
    output = Place.of(f"{store}/out")
    settings = ExportSettings(format="beir", output=str(output), corpus=str(_corpus(f"{store}/corpus").place))
    put = BucketPlace._put

    def fails(place: BucketPlace, *given: object) -> object:
        if place.name == "second":
            raise StorageError("the store failed")
        return put(place, *given)  # type: ignore[arg-type]

    with monkeypatch.context() as patched:
        patched.setattr(BucketPlace, "_put", fails)
        with pytest.raises(StorageError):
            _write_folder(output, "first", "second")
    assert set(output.entries()) == {".work", "first"}
    assert Place.of(f"{store}/out").half_written()
    Place.of(f"{store}/began/.work/writer.json").write(b"{}")
    assert Place.of(f"{store}/began").half_written()
    assert not Place.of(f"{store}/corpus").half_written()
    with pytest.raises(InputError, match="out: was not written to its end; run the command that writes it again"):
        output.local()
    with pytest.raises(InputError, match="/out: was not written to its end; run the command that writes it again"):
        Place.of(store).source()
    assert export(settings) == output
    assert set(output.files()) == {"corpus.jsonl"}
    with pytest.raises(InputError, match="exists already"):
        export(settings)


def _write_folder(place: Place, *names: str) -> None:
    with place.writing(new=True) as aside:
        aside.mkdir()
        for name in names:
            (aside / name).write_text(name)


@pytest.mark.parametrize("output", ["out", "a/b/out"])
def test_an_output_in_its_own_source_is_no_part_of_it(
    store: str, port: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, output: str
) -> None:
    source, out = f"{store}/in", Place.of(f"{store}/in/{output}")
    rows = "".join(f'{{"_id": "p{i}", "title": "", "text": "text {i}"}}\n' for i in range(3))
    Place.of(f"{source}/corpus.jsonl").write(rows.encode())
    Place.of(f"{source}/queries.jsonl").write(b'{"_id": "q1", "text": "which"}\n')
    Place.of(f"{source}/qrels/test.tsv").write(b"query-id\tcorpus-id\tscore\nq1\tp1\t1\n")
    settings = ImportSettings(format="beir", input=source, output=str(out))
    made = import_dataset(settings)
    (out / "manifest.json").delete()
    (out / ".work/made_from.json").write(json.dumps(made.manifest["made_from"]).encode())
    _on_machine("b", port, tmp_path, monkeypatch)
    assert import_dataset(settings).fingerprint == made.fingerprint
    assert import_corpus("beir", source, f"{source}/corpus-alone", shard_rows=1).rows == 3
    fetched = {file.name for file in (tmp_path / "b/files").rglob("in/**/*") if file.is_file()}
    assert fetched == {"corpus.jsonl", "queries.jsonl", "test.tsv"}


def test_a_refused_input_leaves_nothing(store: str) -> None:
    Place.of(f"{store}/beir/corpus.jsonl").write(b'{"_id": "p1", "title": "", "text": ""}\n')
    Place.of(f"{store}/beir/queries.jsonl").write(b'{"_id": "q1", "text": "x"}\n')
    with pytest.raises(InputError, match="empty text"):
        import_dataset(ImportSettings(format="beir", input=f"{store}/beir", output=f"{store}/data"))
    assert Place.of(f"{store}/data").files() == {}


def test_damage_is_refused(store: str, port: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = _corpus(f"{store}/corpus")
    name = made.files[0].path
    content = Place.of(f"{store}/corpus/{name}").read()
    assert content is not None
    _on_machine("b", port, tmp_path, monkeypatch)
    Place.of(f"{store}/corpus/{name}").write(content[:-1])
    with pytest.raises(InputError, match="missing, or not of the size"):
        Artifact.open(f"{store}/corpus")
    Place.of(f"{store}/corpus/{name}").write(bytes([content[0] ^ 1]) + content[1:])
    with pytest.raises(InputError, match="is not the file that its manifest records"):
        _ = Artifact.open(f"{store}/corpus").path
    assert not [path for path in (tmp_path / "b" / "files" / made.fingerprint).glob("*") if path.name == name]
    altered = {**made.manifest, "made_from": {"test": 8}}
    Place.of(f"{store}/corpus/manifest.json").write(json.dumps(altered).encode())
    with pytest.raises(InputError, match="its fingerprint is not that of its files"):
        Artifact.open(f"{store}/corpus")


def test_faults_are_tried_again(store: str, port: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, clock: Clock) -> None:
    plan = {3: "500", 5: "reset", 11: "cut"}
    with proxy(port, lambda number, _: plan.get(number % 13)) as before:
        _on_machine("b", before.port, tmp_path, monkeypatch)
        made = _corpus(f"{store}/corpus", rows=31)
        _on_machine("c", before.port, tmp_path, monkeypatch)
        opened = Artifact.open(f"{store}/corpus")
        local = _corpus(tmp_path / "corpus", rows=31)
        assert made.fingerprint == local.fingerprint
        for file in local.files:
            assert (opened.path / file.path).read_bytes() == (local.path / file.path).read_bytes()
        assert set(before.happened) == set(plan.values())


def test_what_ray_train_is_given_tries_again_where_it_is_sent_too(
    store: str, port: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with proxy(port, lambda number, _: "500" if number <= 5 else None) as before:
        _on_machine("b", before.port, tmp_path, monkeypatch)
        given = Place.of(f"{store}/x").for_ray()
        pickled = pickle.dumps(given["storage_filesystem"])
        assert SECRET.encode() not in pickled
        sent = pickle.loads(pickled)
        with sent.open_output_stream(given["storage_path"]) as stream:
            stream.write(b"whole")
        assert before.happened.count("500") == 5
        assert Place.of(f"{store}/x").read() == b"whole"


def test_a_request_of_ray_train_that_waits_holds_up_no_other(
    store: str, port: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked, go_on = threading.Event(), threading.Event()
    with proxy(port, lambda *_: None, hold=lambda *_: (asked.set(), go_on.wait(300))) as slow:
        _on_machine("b", slow.port, tmp_path, monkeypatch)
        given = Place.of(f"{store}/x").for_ray()
        waits = threading.Thread(target=given["storage_filesystem"].get_file_info, args=(given["storage_path"],), daemon=True)
        waits.start()
        assert asked.wait(60)
        _on_machine("c", port, tmp_path, monkeypatch)
        other = threading.Thread(target=lambda: _written(f"{store}/y"), daemon=True)
        other.start()
        other.join(120)
        stuck = other.is_alive()
        go_on.set()
        waits.join(60)
        assert not stuck
    assert Place.of(f"{store}/y").read() == b"whole"


def _written(place: str) -> None:
    given = Place.of(place).for_ray()
    with given["storage_filesystem"].open_output_stream(given["storage_path"]) as stream:
        stream.write(b"whole")


def test_ray_train_deletes_a_folder(store: str) -> None:
    given = Place.of(f"{store}/x").for_ray()
    for name in ("a", "b/c"):
        _written(f"{store}/x/{name}")
    given["storage_filesystem"].delete_dir(given["storage_path"])
    assert Place.of(f"{store}/x").files() == {}


def test_a_mark_of_a_folder_is_no_file(store: str) -> None:
    made = fs.S3FileSystem(endpoint_override=os.environ["AWS_ENDPOINT_URL"])
    made.create_dir(f"{store.removeprefix('s3://')}/x/run")
    assert made.get_file_info(f"{store.removeprefix('s3://')}/x/run").type == fs.FileType.Directory
    Place.of(f"{store}/x/empty").write(b"")
    assert set(Place.of(f"{store}/x").files()) == {"empty"}


def test_a_store_that_is_down_is_one_line(store: str, port: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, clock: Clock) -> None:
    with proxy(port, lambda *_: "500") as before:
        _on_machine("b", before.port, tmp_path, monkeypatch)
        with pytest.raises(StorageError) as caught:
            Place.of(f"{store}/x").read()
    found = fixable(caught.value)
    assert found is not None
    assert found[0] == 1
    assert found[1].startswith(f"{store}/x: the bucket's service failed for 1")
    assert 100 < sum(clock.pauses) <= 120, "two minutes of patience"
    assert max(clock.pauses) <= 10
    assert "run the same command again" in found[1]
    assert "\n" not in found[1]


def test_the_time_of_a_long_transfer_is_not_one_of_failures(clock: Clock) -> None:
    tries = []

    def transfer(good: int) -> str:
        tries.append(clock.time)
        clock.time += 150
        if len(tries) < good:
            raise OSError("503 Slow Down")
        return "sent"

    assert bucket.patiently(lambda: transfer(4), "s3://b/x") == "sent"
    assert len(tries) == 4
    tries.clear()
    with pytest.raises(StorageError, match="s3://b/x: the bucket's service failed for"):
        bucket.patiently(lambda: transfer(100), "s3://b/x")
    assert len(tries) == 6


def test_what_no_trying_fixes_is_reported_at_once(store: str) -> None:
    with pytest.raises(InputError, match="no such bucket; make the bucket"):
        Place.of("s3://no-such-bucket/x").write(b"x")
    with pytest.raises(InputError, match="no such folder"):
        Artifact.open(f"{store}/nothing")
    with pytest.raises(InputError, match="check the path"):
        Place.of(f"{store}/nothing").local()


def test_a_refusal_is_one_line_with_the_fix_at_once(
    store: str, port: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, clock: Clock
) -> None:
    """Whatever is asked; the statuses and codes are those of S3, whose replies to HEAD have no code."""
    expired, key, region = (
        "the credentials have expired; renew",
        "the access key is not known; correct",
        "the bucket is in another region; set AWS_REGION",
    )
    given = {
        (400, "ExpiredToken"): expired,
        (400, "TokenExpired"): expired,
        (403, "RequestExpired"): expired,
        (403, "InvalidAccessKeyId"): key,
        (403, "InvalidClientTokenId"): key,
        (403, "SignatureDoesNotMatch"): "the secret key is refused; correct it",
        (403, "AccessDenied"): "access is denied; give credentials",
        (301, "PermanentRedirect"): region,
        (400, "AuthorizationHeaderMalformed"): region,
        (404, "NoSuchBucket"): "no such bucket; make the bucket",
        (400, "InvalidBucketName"): "is not a name of a bucket; correct the path",
        (400, "EntityTooLarge"): "the file is larger than the service takes; make smaller ones",
        (
            400,
            "InvalidArgument",
        ): "the request is refused (InvalidArgument); use another service, or correct the credentials in the environment",
        (501, "NotImplemented"): "the service lacks a request that is needed (conditional put); use another",
    }
    of_head = {403: "access is denied; give credentials", 400: "the request is refused; renew the credentials if they have expired"}
    with proxy(port, lambda *_: None, refuses=lambda *_: True) as before:
        _on_machine("b", before.port, tmp_path, monkeypatch)
        place = Place.of(f"{store}/x")
        for (status, code), line in given.items():
            before.refusal = status, code
            for ask in (place.read, place.files, lambda: place.write(b"x"), lambda: place.replace(b"x", None)):
                assert _refused(ask).startswith(f"{place}: {line}"), code
            if status != 404:
                assert _refused(place.stat).startswith(f"{place}: {of_head.get(status, line)}"), code
    assert clock.pauses == []


def _refused(ask: Callable[[], object]) -> str:
    with pytest.raises(RefusedByStore) as refused:
        ask()
    found = fixable(refused.value)
    assert found is not None
    assert found[0] == 2
    return found[1]


def test_a_look_at_one_file_fetches_that_file(store: str, port: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = _corpus(f"{store}/corpus")
    _on_machine("b", port, tmp_path, monkeypatch)
    passages = PassageStore(f"{store}/corpus")
    assert passages.passages([0]) == ["text 0"]
    fetched = [file.name for file in (tmp_path / "b" / "files").rglob("*") if file.is_file()]
    assert fetched == ["corpus-00000.arrow"]
    assert len(made.files) > 3


def test_the_cache_is_bounded_and_drops_what_was_used_longest_ago(
    store: str, port: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    draft = Draft.open(f"{store}/out", "report", {"x": 1})
    for name in "abc":
        draft.commit(name, lambda path: path.write_bytes(b"x" * 1_000), 1)
    draft.finish(3)
    _on_machine("b", port, tmp_path, monkeypatch)
    monkeypatch.setenv("RAYDENSE_CACHE_GB", "0.0000025")
    monkeypatch.setattr(cache, "STAYS_S", 0.0)
    opened = Artifact.open(f"{store}/out")
    for age, name in ((300, "a"), (600, "b")):
        os.utime(opened.file(name), (time.time() - age,) * 2)
    mapped = np.memmap(opened.file("b"), mode="r")
    os.utime(opened.file("b"), (time.time() - 600,) * 2)
    opened.file("a")  # used now
    opened.file("c")
    left = {file.name for file in (tmp_path / "b" / "files").rglob("*") if file.is_file()}
    assert left == {"a", "c"}
    assert bytes(mapped) == b"x" * 1_000, "a file that is mapped is read to its end"
    assert opened.file("b").read_bytes() == b"x" * 1_000, "and is fetched again"
    monkeypatch.setenv("RAYDENSE_CACHE_GB", "much")
    with pytest.raises(InputError, match="RAYDENSE_CACHE_GB: 'much' is not a number of gigabytes"):
        cache.trim()


def test_what_a_stage_reads_stays_in_the_cache_or_is_refused_at_once(
    store: str, port: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    draft = Draft.open(f"{store}/out", "report", {"x": 1})
    for name in "abc":
        draft.commit(name, lambda path: path.write_bytes(b"x" * 1_000), 1)
        Place.of(f"{store}/source/{name}").write(b"x" * 1_000)
    draft.finish(3)
    _on_machine("b", port, tmp_path, monkeypatch)
    monkeypatch.setenv("RAYDENSE_CACHE_GB", "0")
    monkeypatch.setattr(cache, "STAYS_S", 0.0)
    refused = "needs 0.00 GB in this machine's cache, which may take 0; set RAYDENSE_CACHE_GB to more"
    with pytest.raises(InputError, match=f"{store}/source: {refused}"):
        Place.of(f"{store}/source").local()
    with pytest.raises(InputError, match=f"{store}/out: {refused}"):
        _ = Artifact.open(f"{store}/out").path
    assert not [file for file in (tmp_path / "b" / "files").rglob("*") if file.is_file()]
    monkeypatch.setenv("RAYDENSE_CACHE_GB", "0.0000035")
    here = [Place.of(f"{store}/source").local(), Place.of(f"{store}/source/a").local(), Artifact.open(f"{store}/out").path]
    assert sorted(file.name for folder in here for file in (folder, *folder.glob("[a-z]")) if file.is_file()) == sorted("abcaabc")


def test_an_upload_that_fails_in_the_middle_leaves_nothing(
    store: str, port: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, clock: Clock
) -> None:
    monkeypatch.setattr(bucket, "RETRIES", replace(bucket.RETRIES, patience_s=0.01))
    (tmp_path / "large").write_bytes(os.urandom(20 << 20))
    parts, asked = itertools.count(), []
    with proxy(
        port,
        lambda _, method: "500" if method == "PUT" and next(parts) > 0 else None,
        hold=lambda method, path: asked.append((method, path)),
    ) as before:
        _on_machine("b", before.port, tmp_path, monkeypatch)
        with pytest.raises(StorageError):
            Place.of(f"{store}/large").publish(tmp_path / "large")
        assert any(method == "POST" and path.endswith("/large?uploads=") for method, path in asked)
        assert f"{tmp_path.name}/large" not in _open_uploads(port), "parts that no list of files has, and that are paid for"
        assert Place.of(f"{store}/large").stat() is None
    with pytest.raises(RuntimeError, match="in the middle"), Place.of(f"{store}/half").writing() as path:
        _write_half(path)
    _on_machine("a", port, tmp_path, monkeypatch)
    assert Place.of(store).files() == {}


def _open_uploads(port: int) -> str:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/{BUCKET}?uploads", timeout=60) as reply:
        listed: str = reply.read().decode()
    assert "ListMultipartUploadsResult" in listed
    return listed


def _write_half(path: Path) -> None:
    path.write_bytes(b"half")
    raise RuntimeError("in the middle")


def test_a_file_that_was_on_its_way_and_is_another_now_is_not_sent(store: str) -> None:
    draft = Draft.open(f"{store}/out", "report", {"x": 1})
    _commit(draft, "a.txt")
    _commit(draft, "b.txt")
    Place.of(f"{store}/out/.work/commits").delete()
    kept = draft.folder / "a.txt"
    kept.write_bytes(b"X" * kept.stat().st_size)
    draft.close()
    assert list(Draft.open(f"{store}/out", "report", {"x": 1}).committed()) == ["b.txt"]


@pytest.mark.parametrize("damage", ["gone", "truncated"])
def test_a_damaged_file_alone_is_made_again(store: str, damage: str) -> None:
    draft = Draft.open(f"{store}/out", "report", {"x": 1})
    _commit(draft, "a.txt")
    _commit(draft, "b.txt")
    made, place = draft.finish(2), Place.of(f"{store}/out")
    before = place.files()["b.txt"]
    if damage == "gone":
        (place / "a.txt").delete()
    else:
        (place / "a.txt").write(b"con")
    with pytest.raises(InputError, match=r"a\.txt: missing, or not of the size in the manifest; run the stage that makes it again"):
        Artifact.open(place)
    again = Draft.open(place, "report", {"x": 1})
    assert again.done is None
    assert list(again.committed()) == ["b.txt"]
    _commit(again, "a.txt")
    assert again.finish(2).fingerprint == made.fingerprint
    assert place.files()["b.txt"] == before


def test_what_was_replaced_is_found_where_another_file_is_gone(store: str) -> None:
    draft, place = Draft.open(f"{store}/out", "report", {"x": 1}), Place.of(f"{store}/out")
    for name in ("same.txt", "other.txt", "gone.txt"):
        _commit(draft, name)
    made = draft.finish(3)
    (place / "gone.txt").delete()
    (place / "other.txt").write(b"CONTENT OF other.txt")  # of the same size
    again = Draft.open(place, "report", {"x": 1})
    again.close()
    again = Draft.open(place, "report", {"x": 1})
    assert list(again.committed()) == ["same.txt"]
    _commit(again, "other.txt")
    _commit(again, "gone.txt")
    assert again.finish(3).fingerprint == made.fingerprint
    assert damaged(place) == []


def test_a_replaced_file_of_unfinished_work_is_made_again_and_only_doubtful_ones_are_read(
    store: str, port: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    draft, place = Draft.open(f"{store}/out", "report", {"x": 1}), Place.of(f"{store}/out")
    for name in ("same.txt", "other.txt", "copied.txt"):
        _commit(draft, name)
    draft.close()
    (place / "other.txt").write(b"CONTENT OF other.txt")  # of the same size
    (record,) = (place / ".work/commits").names("copied*")
    fields = json.loads((place / ".work/commits" / record).read() or b"")
    (place / ".work/commits" / record).write(json.dumps({**fields, "version": "of another bucket"}).encode())
    read: list[str] = []
    digest = BucketPlace.sha256
    monkeypatch.setattr(BucketPlace, "sha256", lambda file: read.append(file.name) or digest(file))
    _on_machine("b", port, tmp_path, monkeypatch)
    resumed = Draft.open(place, "report", {"x": 1})
    assert set(resumed.committed()) == {"same.txt", "copied.txt"}
    assert sorted(read) == ["copied.txt", "other.txt"]
    _commit(resumed, "other.txt")
    assert damaged(resumed.finish(3).place) == []


def test_verify_reads_the_checksums_of_a_bucket(store: str) -> None:
    made = _corpus(f"{store}/corpus")
    assert damaged(made.place) == []
    content = (made.place / made.files[0].path).read()
    assert content is not None
    (made.place / made.files[0].path).write(bytes([content[0] ^ 1]) + content[1:])
    assert damaged(made.place) == [(made.files[0].path, "holds other bytes than were written (sha256)")]


def test_of_two_writers_after_an_outage_one_finishes(store: str) -> None:
    first = Draft.open(f"{store}/out", "report", {"x": 1})
    _commit(first, "a.txt")
    taken = Lease(Place.of(f"{store}/out/.work"))  # as another process's, which found the first one's older than a minute
    with pytest.raises(InputError, match="another process has taken this output over"):
        first.finish(1)
    assert not Place.of(f"{store}/out/manifest.json").exists()
    first.close()
    taken.confirm()
    taken.release()


def test_a_writer_that_lost_its_output_removes_nothing_of_it(store: str) -> None:
    first, place = Draft.open(f"{store}/out", "report", {"x": 1}), Place.of(f"{store}/out")
    _commit(first, "a.txt")
    taken = Lease(place / ".work")  # as another process's, which found the first one's older than a minute
    before = place.files()
    first.discard()
    assert place.files() == before
    (place / "manifest.json").write(b"{}")
    taken.end()
    first.discard()
    assert set(place.files()) == {"a.txt", "manifest.json"}


def test_a_writer_that_knows_that_it_lost_its_output_commits_nothing_more(store: str) -> None:
    first, place = Draft.open(f"{store}/out", "report", {"x": 1}), Place.of(f"{store}/out")
    taken = Lease(place / ".work")
    hold = holds.hold_of(place)
    assert hold is not None
    with pytest.raises(LostOutput):
        hold.confirm()  # as it does every 15 s
    with pytest.raises(LostOutput, match="another process has taken this output over"):
        _commit(first, "a.txt")
    assert not (place / "a.txt").exists()
    taken.release()


def test_an_output_that_is_finished_is_confirmed_once_before_and_once_after(
    store: str, port: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    puts: list[str] = []

    def hold(method: str, path: str) -> None:
        puts.extend([path] if method == "PUT" and path.endswith(f"{tmp_path.name}/out/.work/writer.json") else [])

    with proxy(port, lambda *_: None, hold=hold) as before:
        _on_machine("b", before.port, tmp_path, monkeypatch)
        draft = Draft.open(f"{store}/out", "report", {"x": 1})
        _commit(draft, "a.txt")
        puts.clear()
        draft.finish(1)
    assert len(puts) == 2
    assert set(Place.of(f"{store}/out").files()) == {"a.txt", "manifest.json"}


def test_a_lease_that_is_given_up_waits_for_its_renewal(store: str, port: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise the lease of the next command of this process would be refused, or be lost at once."""
    begun, leases = threading.Event(), []

    def hold(method: str, path: str) -> None:
        if leases and method == "PUT" and path.endswith(f"{tmp_path.name}/out/.work/writer.json"):
            begun.set()
            leases[0]._ended.wait(60)

    with proxy(port, lambda *_: None, hold=hold) as before:
        _on_machine("b", before.port, tmp_path, monkeypatch)
        leases.append(Lease(Place.of(f"{store}/out/.work")))
        version = leases[0]._version
        renewal = threading.Thread(target=leases[0].confirm)
        renewal.start()
        assert begun.wait(60)
        leases[0].abandon()
        assert leases[0]._version != version
        renewal.join(60)


def test_a_lease_that_cannot_end_is_given_up(store: str, port: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    refused: list[bool] = []
    with proxy(port, lambda *_: None, refuses=lambda method, _: bool(refused) and method in ("POST", "DELETE")) as before:
        _on_machine("b", before.port, tmp_path, monkeypatch)
        draft = Draft.open(f"{store}/out", "report", {"x": 1})
        hold = holds.hold_of(draft.place)
        refused.append(True)
        with pytest.raises(RefusedByStore):
            holds.end(draft.place)
        refused.clear()
        assert isinstance(hold, Lease)
        assert hold._ended.is_set()
        assert holds.hold_of(draft.place) is None
        Draft.open(f"{store}/out", "report", {"x": 1}).finish(0)


def test_an_output_is_discarded_with_its_parts(store: str, tmp_path: Path) -> None:
    made = DatasetDraft(f"{store}/out", {"x": 1})
    _commit(made.part("corpus", "corpus"), "a.txt")
    made.draft.discard()
    assert Place.of(f"{store}/out").files() == {}
    assert [one for one in (tmp_path / "a/work").rglob("*") if one.is_file()] == []
    assert holds.hold_of(Place.of(f"{store}/out/corpus")) is None


def test_what_a_kill_in_the_last_lines_left_goes(store: str) -> None:
    draft, place = Draft.open(f"{store}/out", "report", {"x": 1}), Place.of(f"{store}/out")
    _commit(draft, "a.txt")
    shutil.copytree(draft.folder, draft.folder.with_name("copy"))
    draft.finish(1)
    draft.folder.with_name("copy").rename(draft.folder)
    (place / ".work/made_from.json").write(b"{}")
    assert Draft.open(f"{store}/out", "report", {"x": 1}).done
    assert not draft.folder.exists()
    assert set(place.files()) == {"a.txt", "manifest.json"}


def test_what_appeared_meanwhile_is_not_overwritten(store: str) -> None:
    place = Place.of(f"{store}/out")

    def write() -> None:
        with place.writing(new=True) as aside:
            aside.write_text("mine")
            place.write(b"another's")

    with pytest.raises(FileExistsError):
        write()
    assert place.read() == b"another's"


def test_a_request_that_is_refused_is_no_fault_of_an_input(store: str) -> None:
    with pytest.raises(RefusedByStore, match="no such bucket"):
        Place.of("s3://none-of-this-name/x").read()


def test_of_two_that_finish_one_manifest_stays(store: str) -> None:
    draft = Draft.open(f"{store}/out", "report", {"x": 1})
    _commit(draft, "a.txt")
    Place.of(f"{store}/out/manifest.json").write(b"{}")
    with pytest.raises(InputError, match="another process has finished this output"):
        draft.finish(1)
    assert Place.of(f"{store}/out/manifest.json").read() == b"{}"


def test_keys_of_a_profile_are_used(store: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "credentials"))
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    monkeypatch.setenv("AWS_PROFILE", "tests")
    with pytest.raises(InputError, match="has no profile 'tests'; correct AWS_PROFILE"):
        Place.of(f"{store}/x").write(b"x")
    (tmp_path / "credentials").write_text("[tests]\naws_access_key_id = of-the-profile\naws_secret_access_key = secret\n")
    Place.of(f"{store}/x").write(b"x")
    assert Place.of(f"{store}/x").read() == b"x"
    assert profile_options()["access_key_id"] == "of-the-profile"


def test_vectors_fetch_the_files_that_hold_the_rows(store: str, port: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    drawn = np.random.default_rng(0).standard_normal((50, 4)).astype(np.float32)
    write_embeddings(f"{store}/emb", drawn, files=5)
    _on_machine("b", port, tmp_path, monkeypatch)
    vectors = Vectors(f"{store}/emb")
    rows = np.array([12, 17, 31])
    assert (vectors.take(rows) == drawn[rows]).all()
    assert (np.concatenate(list(pickle.loads(pickle.dumps(vectors)).blocks(15, 35))) == drawn[15:35]).all()
    fetched = sorted(file.name for file in (tmp_path / "b" / "files").rglob("*") if file.is_file())
    assert fetched == [f"embeddings-{part:05d}.arrow" for part in (1, 2, 3)]
