"""What the building of an index fetches from a bucket, and on which machine; the bucket is in memory, and each task runs on a machine of its own."""

from __future__ import annotations

import pickle
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from embeddings import write_corpus, write_embeddings
from obstore.store import MemoryStore

from raydense.errors import InputError
from raydense.retrieval import bm25_build, bm25_counts, bm25_scores, faiss_build, nprobe
from raydense.retrieval.settings import IndexSettings
from raydense.storage import Artifact, Draft, Place, bucket_place, cache, holds, provenance
from raydense.storage.bucket_place import BucketPlace

HEAD = "head"
TEXTS = [f"river w{i % 5} land of the farmers {'farm ' * (i % 3)}" for i in range(60)]


@dataclass
class Machines:
    """The machines of a cluster, each with a cache; `fetched` has the machine, the task ("" on the head) and the name of each file that one fetched."""

    folder: Path
    patch: pytest.MonkeyPatch
    fetched: list[tuple[str, str, str]] = field(default_factory=list)
    at: str = HEAD
    task: str = ""
    started: int = 0

    def on(self, machine: str) -> None:
        self.at = machine
        self.patch.setenv("RAYDENSE_CACHE", str(self.folder / machine))
        self.patch.setattr("socket.gethostname", lambda: machine)

    def run_tasks(self, stage: str, function: Callable[..., Any], calls: list[tuple[Any, ...]], *_: int, **__: int) -> Iterator[Any]:
        """Each on a new machine, the last one first."""
        for call in reversed(calls):
            given, self.started, self.task, head = pickle.dumps(call), self.started + 1, function.__name__, self.at
            self.on(f"worker-{self.started}")
            found = pickle.dumps(function(*pickle.loads(given)))
            self.on(head)
            self.task = ""
            yield pickle.loads(found)

    def download(self, place: BucketPlace, *given: Any) -> None:
        self.fetched.append((self.at, self.task, place.name))
        download(place, *given)

    def names(self, machine: str = "", task: str | None = None) -> list[str]:
        """The files that were fetched on a machine, or in all tasks of a name."""
        return sorted(name for at, of, name in self.fetched if machine in ("", at) and task in (None, of))


download = bucket_place.download


@pytest.fixture
def machines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Machines]:
    store = MemoryStore()
    monkeypatch.setattr(bucket_place, "client", lambda *_: store)
    monkeypatch.setenv("RAY_ADDRESS", "head:6379")
    made = Machines(tmp_path, monkeypatch)
    made.on(HEAD)
    monkeypatch.setattr(bucket_place, "download", made.download)
    for module in (bm25_build, faiss_build, nprobe):
        monkeypatch.setattr(module, "run_tasks", made.run_tasks)
    yield made
    for held in [holds._HELD.pop(located) for located in list(holds._HELD)]:
        held.hold.abandon()


def bm25_settings(corpus: Path, output: str) -> IndexSettings:
    return IndexSettings(kind="bm25", corpus=str(corpus), shards=2, output=output)


def built(settings: IndexSettings) -> Artifact:
    return bm25_build.build_bm25(Draft.open(settings.output, "index", provenance("index", settings)), settings)


def digests(index: Artifact) -> dict[str, str]:
    return {file.path: file.sha256 for file in index.files}


@pytest.fixture
def corpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Of several parts in each shard."""
    monkeypatch.setattr(bm25_counts, "PART_BYTES", 500)
    write_corpus(tmp_path / "corpus", TEXTS)
    return tmp_path / "corpus"


def test_counts_that_the_cache_deletes_are_read_to_their_end(machines: Machines, corpus: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A shard is read for longer than a file stays in a full cache."""
    local = built(bm25_settings(corpus, str(corpus.parent / "local")))
    ranges, deleted = bm25_scores.word_ranges, []

    def late(starts: bm25_scores.Longs) -> bm25_scores.Longs:
        """Between the first reading of the files and the next ones."""
        deleted.append(machines.at)
        shutil.rmtree(cache.cache() / "files")
        return ranges(starts)

    monkeypatch.setattr(bm25_scores, "word_ranges", late)
    made = built(bm25_settings(corpus, "s3://there/index"))
    assert len(deleted) == 2
    assert all(at.startswith("worker-") for at in deleted)
    assert digests(made) == digests(local)


def test_the_counts_of_all_words_stay_away_from_the_head(machines: Machines, corpus: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They are larger than the index; of the head's disk nothing is asked either, and another head that goes on fetches none."""
    local = built(bm25_settings(corpus, str(corpus.parent / "local")))
    monkeypatch.setattr(shutil, "disk_usage", lambda _: shutil._ntuple_diskusage(0, 0, 0))  # type: ignore[attr-defined]
    scored = bm25_build._score_shards

    def killed(*_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(bm25_build, "_score_shards", killed)
    with pytest.raises(KeyboardInterrupt):
        built(bm25_settings(corpus, "s3://there/index"))
    Place.of("s3://there/index/.work/writer.json").delete()  # as a minute later
    monkeypatch.setattr(bm25_build, "_score_shards", scored)
    machines.on("another-head")
    made = built(bm25_settings(corpus, "s3://there/index"))
    assert digests(made) == digests(local)
    assert {task for _, task, name in machines.fetched if name.startswith(("counts", "ids"))} == {"score"}
    assert not [name for name in machines.names("another-head") if name.startswith("words")], "its vocabulary was committed"


@pytest.mark.parametrize("gone", ["counts", "words", "ids"])
def test_what_a_bucket_lost_of_pass_1_is_made_again(machines: Machines, corpus: Path, monkeypatch: pytest.MonkeyPatch, gone: str) -> None:
    local = built(bm25_settings(corpus, str(corpus.parent / "local")))
    scored = bm25_build._score_shards
    monkeypatch.setattr(bm25_build, "_score_shards", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        built(bm25_settings(corpus, "s3://there/index"))
    monkeypatch.setattr(bm25_build, "_score_shards", scored)
    work = Place.of("s3://there/index/.work")
    lost = [name for name in work.files() if name.startswith(gone) and not name.endswith(".sha256")]
    (work / lost[0]).delete()
    assert digests(built(bm25_settings(corpus, "s3://there/index"))) == digests(local)


def test_a_part_that_is_lost_while_it_is_scored_is_one_line(machines: Machines, corpus: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    scored = bm25_build._score_shards

    def late(draft: Draft, *given: Any) -> None:
        (draft.place / ".work" / given[1][0].counts).delete()
        scored(draft, *given)

    monkeypatch.setattr(bm25_build, "_score_shards", late)
    with pytest.raises(
        InputError, match=r"s3://there/index/\.work/counts.* is gone or damaged since it was written; run the same command again"
    ):
        built(bm25_settings(corpus, "s3://there/index"))


ROWS, DIMENSION, FILES, SHARDS = 3_000, 16, 30, 3


def test_the_vectors_of_a_corpus_are_fetched_by_few_tasks_that_choose_nprobe(machines: Machines, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those that scan them, and once those that take the queries and their answers; a search of the index needs none."""
    rng = np.random.default_rng(0)
    vectors = rng.standard_normal((60, DIMENSION))[rng.integers(0, 60, ROWS)] + 0.7 * rng.standard_normal((ROWS, DIMENSION))
    vectors = (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(np.float16)
    monkeypatch.setattr(nprobe, "QUERIES", 8)
    monkeypatch.setattr(faiss_build, "check_build", lambda *_: None)
    monkeypatch.setattr(faiss_build, "with_threads", lambda plan, *_: plan)
    monkeypatch.setattr(faiss_build, "training_threads", lambda *_: 1)
    monkeypatch.setattr("ray.put", lambda one: one)
    summaries = []
    for place in (str(machines.folder), "s3://there"):
        write_embeddings(f"{place}/vectors", vectors, files=FILES)  # type: ignore[arg-type]
        given = {"kind": "faiss", "embeddings": f"{place}/vectors", "factory": "IVF20,SQ8", "train_sample": 2_000, "shards": SHARDS}
        asked = IndexSettings.read({**given, "output": f"{place}/ix"})
        machines.fetched.clear()
        summaries.append(faiss_build.build_faiss(Draft.open(asked.output, "index", provenance("index", asked)), asked).summary)
    assert summaries[0] == summaries[1]
    of_vectors = [(at, task, name) for at, task, name in machines.fetched if name.startswith("embeddings-")]
    by_task = {task: [name for _, of, name in of_vectors if of == task] for task in {task for _, task, _ in of_vectors}}
    assert machines.names(task="index_hits").count("empty.faiss") >= SHARDS, "it was searched"
    assert set(by_task) == {"_make_empty", "_fill", "exact_hits", "taken"}
    assert len(by_task["exact_hits"]) == len(by_task["_fill"]) == FILES, "each file once"
    assert FILES < len(by_task["taken"]) <= FILES + 8, "each file once for the answers, and those that hold the eight queries"
