"""BM25's files are those of a reading that holds everything in memory, byte for byte, however small the parts and the ranges of words are."""

from __future__ import annotations

import io
import math
import resource
import shutil
from collections import Counter
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
import Stemmer
from bm25s.tokenization import Tokenizer
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from raydense.data.store import CorpusWriter, PassageStore
from raydense.errors import InputError
from raydense.forecast import Holds
from raydense.retrieval import bm25_build, bm25_counts, bm25_scores, bm25_vocabulary
from raydense.retrieval.bm25_counts import Inputs, Part, count, parts_of
from raydense.retrieval.bm25_scores import Weighting, score, shard_file, word_ranges
from raydense.retrieval.bm25_vocabulary import merge_vocabularies
from raydense.retrieval.kinds.bm25 import Kind
from raydense.retrieval.settings import IndexSettings
from raydense.retrieval.words import Words
from raydense.storage import Draft, provenance

WORDS = Words("english", "en")
ZIPF = ["rivers", "river", "of", "the", "land", "x", "Farmers", "farm;", "müde", "東京", "ix", "re-run", "its", "Σας"]
TEXTS = st.lists(st.lists(st.sampled_from(ZIPF), min_size=1, max_size=8).map(" ".join), min_size=4, max_size=40)


def corpus_of(folder: Path, texts: list[str]) -> PassageStore:
    writer = CorpusWriter(Draft.open(folder, "corpus", {"texts": texts}), 7)
    writer.add(pa.table({"passage_id": [f"p{i}" for i in range(len(texts))], "title": [""] * len(texts), "text": texts}))
    writer.finish()
    return PassageStore(folder)


def as_npy(array: np.ndarray) -> bytes:
    stream = io.BytesIO()
    np.save(stream, array)
    return stream.getvalue()


def expected_files(texts: list[str], ranges: list[tuple[int, int]], k1: float, b: float) -> dict[str, bytes]:
    """The files by their definition: every word of every passage counted in memory."""
    tokenizer = Tokenizer(splitter=r"(?u)\b\w\w+\b", stopwords="en", stemmer=Stemmer.Stemmer("english"))
    numbers = list(tokenizer.streaming_tokenize(texts, update_vocab=True, allow_empty=False))
    name = {number: word for word, number in tokenizer.get_vocab_dict().items()}
    counts = [Counter(name[number] for number in line) for line in numbers]
    vocabulary = sorted({word for line in counts for word in line}, key=str.encode)
    df = Counter(word for line in counts for word in line)
    idf = [np.float32(math.log(1 + (len(texts) - df[word] + 0.5) / (df[word] + 0.5))) for word in vocabulary]
    mean = sum(map(len, numbers)) / len(texts)
    files = {}
    for shard, (start, stop) in enumerate(ranges):
        scores, passages, starts = [], [], [0]
        for weight, word in zip(idf, vocabulary, strict=True):
            for row in (row for row in range(start, stop) if counts[row][word]):
                tf = float(counts[row][word])
                scores.append(np.float32(np.float64(weight) * (tf / (k1 * ((1 - b) + b * len(numbers[row]) / mean) + tf))))
                passages.append(row - start)
            starts.append(len(scores))
        files[shard_file(shard, "scores")] = as_npy(np.array(scores, np.float32))
        files[shard_file(shard, "passages")] = as_npy(np.array(passages, np.int32))
        files[shard_file(shard, "starts")] = as_npy(np.array(starts, np.int64))
    table = pa.table({"word": pa.array(vocabulary, pa.string()), "idf": pa.array(idf, pa.float32())})
    sink = io.BytesIO()
    with pa.ipc.new_file(sink, table.schema) as writer:
        writer.write_table(table)
    return files | {"vocabulary.arrow": sink.getvalue()}


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=20)
@given(TEXTS, st.integers(1, 3), st.integers(1, 200), st.integers(1, 40), st.integers(1, 20))
def test_files_do_not_depend_on_the_budgets(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, texts: list[str], shards: int, part_bytes: int, pairs: int, words: int
) -> None:
    shutil.rmtree(tmp_path)
    tmp_path.mkdir()
    monkeypatch.setattr(bm25_counts, "PART_BYTES", part_bytes)
    monkeypatch.setattr(bm25_counts, "_BLOCK_ROWS", 3)
    monkeypatch.setattr(bm25_counts, "_LARGEST_KEPT", words)
    monkeypatch.setattr(bm25_scores, "PAIRS", pairs)
    monkeypatch.setattr(bm25_vocabulary, "_MERGED_AT_ONCE", words)
    store = corpus_of(tmp_path / "corpus", texts)
    draft = Draft.open(tmp_path / "index", "index", {"inputs": {"corpus": store.fingerprint}})
    inputs = Inputs(str(tmp_path / "corpus"), None, {"corpus": store.fingerprint})
    ranges = bm25_build.shard_ranges(len(texts), shards)
    parts = parts_of(store, None, ranges)
    assert [row for part in parts for row in range(part.start, part.stop)] == list(range(len(texts)))
    lengths = sum(len(WORDS.vocabulary().split([text.encode()])[0]) for text in texts)
    assert sum(count(draft, inputs, WORDS, part) for part in reversed(parts)) == len(texts)
    merge_vocabularies(draft, parts, len(texts))
    for shard, (start, stop) in enumerate(ranges):
        mine = [part for part in parts if start <= part.start < stop]
        assert score(draft, mine, shard, Weighting(lengths / len(texts), 0.9, 0.4)) == stop - start
    expected = expected_files(texts, ranges, 0.9, 0.4)
    assert {name: draft.read(name).read_bytes() for name in draft.committed()} == expected


def test_a_shard_of_more_parts_than_a_process_may_open_files_is_scored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A shell allows 1,024, and `ray start` leaves that to the tasks."""
    texts = [f"river w{i % 7} land" for i in range(150)]
    monkeypatch.setattr(bm25_counts, "PART_BYTES", 1)
    store = corpus_of(tmp_path / "corpus", texts)
    draft = Draft.open(tmp_path / "index", "index", {"inputs": {"corpus": store.fingerprint}})
    parts = parts_of(store, None, [(0, 150)])
    for part in parts:
        count(draft, Inputs(str(tmp_path / "corpus"), None, {"corpus": store.fingerprint}), WORDS, part)
    merge_vocabularies(draft, parts, 150)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (256, hard))
    try:
        assert score(draft, parts, 0, Weighting(3.0, 0.9, 0.4)) == len(parts) == 150
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@given(st.lists(st.integers(0, 30), max_size=30), st.integers(1, 40))
def test_a_range_of_words_has_no_more_pairs_than_fit_in_memory(sizes: list[int], pairs: int) -> None:
    starts = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(bm25_scores, "PAIRS", pairs)
        edges = word_ranges(starts)
    assert edges[0] == 0
    assert edges[-1] == len(sizes)
    for low, high in pairwise(edges.tolist()):
        assert low < high
        assert high - low == 1 or starts[high] - starts[low] <= pairs


def test_files_of_pass_1_by_other_rules_have_other_names(monkeypatch: pytest.MonkeyPatch) -> None:
    """A kill between two of them would else leave words by one rule and lengths by another."""
    part = Part(0, 0, 4)
    before = {part.words, part.counts, part.ids}
    monkeypatch.setattr(bm25_counts, "RULES", 99)
    assert len(before | {part.words, part.counts, part.ids}) == 6


def test_what_an_earlier_version_counted_is_not_continued(tmp_path: Path) -> None:
    corpus_of(tmp_path / "corpus", ["naïve"] * 4)
    asked = IndexSettings(kind="bm25", corpus=str(tmp_path / "corpus"), output=str(tmp_path / "index"))
    draft = Draft.open(asked.output, "index", provenance("index", asked))
    draft.commit("vocabulary.arrow", lambda path: path.write_bytes(b"words of rules 1"), 1)
    with pytest.raises(InputError, match=r"index: was begun by another version of raydense, .*; delete this folder and build it again"):
        bm25_build.build_bm25(draft, asked)
    draft.close()


def test_an_index_that_does_not_fit_on_the_disk_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    draft = Draft.open(tmp_path / "index", "index", {})
    free = shutil.disk_usage(tmp_path)._replace(free=18 * 2**30)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: free)
    bm25_build.check_disk(draft, 2**30 * 18 // 19)
    with pytest.raises(InputError, match=r"needs about 8\.0 GiB of index and 10\.5 GiB of temporary files, and 18\.0 GiB are free"):
        bm25_build.check_disk(draft, 2**30)


def test_what_is_there_already_needs_no_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    draft = Draft.open(tmp_path / "index", "index", {})
    draft.keep("counts", lambda path: path.write_bytes(bytes(10_500)))
    monkeypatch.setattr(shutil, "disk_usage", lambda _: shutil._ntuple_diskusage(0, 0, 8_000))  # type: ignore[attr-defined]
    bm25_build.check_disk(draft, 1_000)
    with pytest.raises(InputError, match="free some"):
        bm25_build.check_disk(draft, 1_100)


def test_the_pairs_of_a_corpus_are_estimated_from_a_sample(tmp_path: Path) -> None:
    store = corpus_of(tmp_path / "corpus", [f"river land river w{i % 7}" for i in range(5_000)])
    assert bm25_counts.sampled_pairs(store, None, WORDS) == 15_000


@pytest.mark.parametrize("damaged", ["counts*", "words*"])
def test_what_a_crash_damaged_of_pass_1_is_counted_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, damaged: str) -> None:
    corpus_of(tmp_path / "corpus", [f"river w{i % 5} land" for i in range(30)])
    monkeypatch.setattr(bm25_counts, "PART_BYTES", 200)

    def tasks(stage: str, function: Callable[..., int], calls: list[tuple[object, ...]], *rest: int) -> Iterator[int]:
        for call in calls:
            if function is score and stop:
                raise KeyboardInterrupt
            yield function(*call)

    monkeypatch.setattr(bm25_build, "run_tasks", tasks)
    built, stop = [], True
    for name in ("damaged", "clean"):
        given = IndexSettings(kind="bm25", corpus=str(tmp_path / "corpus"), shards=2, output=str(tmp_path / name))
        made_from = provenance("index", given)
        if name == "damaged":
            with pytest.raises(KeyboardInterrupt):
                bm25_build.build_bm25(Draft.open(tmp_path / name, "index", made_from), given)
            assert list((tmp_path / name / ".work").glob(damaged))
            for file in (tmp_path / name / ".work").glob(damaged):
                if file.suffix != ".sha256":
                    file.write_bytes(bytes(file.stat().st_size))
        stop = False
        built.append(bm25_build.build_bm25(Draft.open(tmp_path / name, "index", made_from), given))
    assert [(file.path, file.sha256) for file in built[0].files] == [(file.path, file.sha256) for file in built[1].files]


def test_a_second_run_counts_only_the_parts_that_a_stopped_one_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    corpus_of(tmp_path / "corpus", [f"river w{i % 5} land" for i in range(30)])
    monkeypatch.setattr(bm25_counts, "PART_BYTES", 200)
    begun: list[str] = []

    def tasks(stage: str, function: Callable[..., int], calls: list[tuple[object, ...]], at_once: int, memory: int) -> Iterator[int]:
        for call in calls:
            if len(begun) == 3:
                raise KeyboardInterrupt
            begun.append(f"{function.__name__} {call[-1]}")
            yield function(*call)

    monkeypatch.setattr(bm25_build, "run_tasks", tasks)
    given = IndexSettings(kind="bm25", corpus=str(tmp_path / "corpus"), shards=2, output=str(tmp_path / "index"))
    made_from = provenance("index", given)
    with pytest.raises(KeyboardInterrupt):
        bm25_build.build_bm25(Draft.open(tmp_path / "index", "index", made_from), given)
    first = begun.copy()
    begun[:] = [*first, "resumed"]
    made = bm25_build.build_bm25(Draft.open(tmp_path / "index", "index", made_from), given)
    assert len(first) == 3
    counted = [each for each in begun if each.startswith("count")]
    assert len(counted) == len(set(counted)) > 3
    assert sum(each.startswith("score") for each in begun) == 2
    assert not (tmp_path / "index" / ".work").exists()
    assert made.rows == 30


@pytest.mark.parametrize(("passages", "counted"), [(1_000, 350_000), (10**7, 32 * 2**20)])
def test_the_plan_has_the_memory_of_a_task_which_counts_a_part_of_the_texts(passages: int, counted: int) -> None:
    asked = IndexSettings(kind="bm25", corpus="c", shards=4, output="i")
    assert Kind.forecast(asked, Holds(passages, each=350.0)).memory == 320 * 2**20 + 20 * counted
