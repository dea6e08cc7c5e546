"""The passage store: random access equals a plain list, ids are found without a dict, and it stays small."""

import pickle
import shutil
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from raydense.data import lookup
from raydense.data import store as data_store
from raydense.data.lookup import IdLookup, hash_strings
from raydense.data.store import CorpusWriter, PassageStore, store_of
from raydense.errors import InputError
from raydense.storage import Draft

COUNT = 20_011
PASSAGES = [(f"p{i}", f"Title {i}" if i % 3 else "", f"text of passage {i} über 文本", f"d{i // 4}") for i in range(COUNT)]


def write(folder: Path, passages: list[tuple[str, ...]], shard_rows: int = 9_000, step: int = 1_000) -> None:
    names = ["passage_id", "title", "text", "doc_id"][: len(passages[0])]
    writer = CorpusWriter(Draft.open(folder, "corpus", {}), shard_rows)
    for start in range(0, len(passages), step):
        writer.add(pa.table(list(map(list, zip(*passages[start : start + step], strict=True))), names=names))
    writer.finish()


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> PassageStore:
    folder = tmp_path_factory.mktemp("corpus") / "c"
    write(folder, PASSAGES)
    return PassageStore(folder)


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(rows=st.lists(st.integers(0, COUNT - 1), max_size=50))
def test_take_equals_a_list(store: PassageStore, rows: list[int]) -> None:
    found = store.take(np.array(rows, dtype=np.int64))
    assert [tuple(row.values()) for row in found.to_pylist()] == [PASSAGES[r] for r in rows]
    assert store.ids(np.array(rows, dtype=np.int64)).to_pylist() == [PASSAGES[r][0] for r in rows]


@settings(max_examples=40, deadline=None)
@given(ends=st.tuples(st.integers(0, COUNT), st.integers(0, COUNT)))
def test_slice_equals_a_list(store: PassageStore, ends: tuple[int, int]) -> None:
    start, stop = sorted(ends)
    if start < stop:
        assert store.slice(start, stop, ["text"])["text"].to_pylist() == [p[2] for p in PASSAGES[start:stop]]


@settings(max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(
    texts=st.lists(st.text("ab \u00fc\u6587", min_size=1, max_size=9).map(lambda t: t + "."), min_size=1, max_size=40),
    step=st.integers(1, 40),
    rows=st.integers(1, 12),
)
def test_the_same_passages_give_the_same_files_in_any_blocks(tmp_path: Path, texts: list[str], step: int, rows: int) -> None:
    passages = [(f"p{row}", text[::-1], text) for row, text in enumerate(texts)]
    files = []
    for name, size in (("one", 1), ("other", step)):
        shutil.rmtree(tmp_path / name, ignore_errors=True)
        write(tmp_path / name, passages, rows, size)
        files.append([path.read_bytes() for path in sorted((tmp_path / name).glob("*.arrow"))])
    assert files[0] == files[1]


def test_long_passages_are_written_and_taken_in_chunks_that_arrow_holds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A string column of a batch, and an array of strings, hold at most 2 GiB: here the limit is 1,000 bytes."""
    monkeypatch.setattr(data_store, "_BATCH_BYTES", 1_000)
    passages = [(f"p{row}", f"T {row}", chr(97 + row) * (900 if row == 4 else 300), f"d{row}") for row in range(12)]
    write(tmp_path / "c", passages, shard_rows=9, step=5)
    store = PassageStore(tmp_path / "c")
    written = [pa.ipc.open_file(path).read_all()["text"].chunks for path in sorted((tmp_path / "c").glob("*.arrow"))]
    assert [[len(chunk) for chunk in chunks] for chunks in written] == [[3, 1, 3, 2], [3]]
    rows = np.array([4, 4, 3, 0, 3, 3, 3, 11, 2, 4])
    found = store.take(rows)
    assert [tuple(row.values()) for row in found.to_pylist()] == [passages[row] for row in rows]
    assert [len(chunk) for chunk in found["text"].chunks] == [1, 1, 3, 3, 1, 1]
    assert store.take(rows[:1])["text"].num_chunks == store.take(rows[2:5])["text"].num_chunks == 1
    assert store.passages(rows) == [" ".join(passages[row][1:3]) for row in rows]
    assert store.rows_of_texts(found["text"]).tolist() == rows.tolist()


def test_more_files_than_their_names_can_order_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(data_store, "_MOST_FILES", 3)
    write(tmp_path / "three", PASSAGES[:6], shard_rows=2, step=6)
    with pytest.raises(InputError, match="shard_rows: more than 3 files of 2 passages; give a greater one"):
        write(tmp_path / "four", PASSAGES[:7], shard_rows=2, step=7)


def test_only_the_files_that_are_read_are_mapped(store: PassageStore, monkeypatch: pytest.MonkeyPatch) -> None:
    mapped: list[str] = []
    memory_map = pa.memory_map
    monkeypatch.setattr(pa, "memory_map", lambda path: mapped.append(Path(path).name) or memory_map(path))
    fresh = PassageStore(store.path)
    fresh.slice(9_100, 17_900)
    fresh.take(np.array([17_999, 9_000]))
    assert mapped == ["corpus-00001.arrow"]
    fresh.slice(8_999, 9_001)
    assert mapped == ["corpus-00001.arrow", "corpus-00000.arrow"]


def test_a_worker_keeps_its_store_and_knows_another_corpus(tmp_path: Path) -> None:
    write(tmp_path / "c", PASSAGES[:9])
    before = PassageStore(tmp_path / "c").fingerprint
    assert store_of(str(tmp_path / "c"), before) is store_of(str(tmp_path / "c"), before)
    shutil.rmtree(tmp_path / "c")
    write(tmp_path / "c", PASSAGES[:8])
    after = PassageStore(tmp_path / "c").fingerprint
    assert len(store_of(str(tmp_path / "c"), after)) == 8
    with pytest.raises(InputError, match="was replaced while a stage was reading it"):
        store_of(str(tmp_path / "c"), before)


def test_shards_and_length(store: PassageStore) -> None:
    assert len(store) == COUNT
    assert store.shards == [(0, 9_000), (9_000, 18_000), (18_000, COUNT)]


def test_ids_are_written_by_row(store: PassageStore, tmp_path: Path) -> None:
    store.write_ids(tmp_path / "ids.arrow")
    written = pa.ipc.open_file(pa.memory_map(str(tmp_path / "ids.arrow"))).read_all()
    assert written.column_names == ["passage_id"]
    assert written["passage_id"].to_pylist() == [p[0] for p in PASSAGES]


def test_passages_join_title_and_text(store: PassageStore) -> None:
    assert store.passages(np.array([1, 0])) == ["Title 1 text of passage 1 über 文本", "text of passage 0 über 文本"]


def test_rows_of_every_id_and_of_unknown_ones(store: PassageStore) -> None:
    order = np.random.default_rng(0).permutation(COUNT)
    assert np.array_equal(store.rows_of(pa.array([PASSAGES[i][0] for i in order])), order)
    assert store.rows_of(pa.array(["p5", "", "p", "P5", "p99999999", "p0"])).tolist() == [5, -1, -1, -1, -1, 0]
    assert store.rows_of(pa.array([], pa.string())).size == 0
    for ids in (["p3", "none", "p0"], ("p3", "none", "p0"), np.array(["p3", "none", "p0"])):
        assert store.rows_of(ids).tolist() == [3, -1, 0]
    assert store.rows_of([]).size == 0


def test_ids_of_more_bytes_than_an_array_can_hold_are_found_in_parts(store: PassageStore, monkeypatch: pytest.MonkeyPatch) -> None:
    names = [[PASSAGES[i][0] for i in part] for part in ([3, 1, 3], [], [0], [2, 3])]
    ids = pa.chunked_array([pa.array(part, pa.string()) for part in names])
    whole = [part.to_pylist() for part in lookup.joined(ids)]
    assert whole == [[name for part in names for name in part]]
    monkeypatch.setattr(lookup, "_JOINED_BYTES", ids.chunk(0).nbytes + ids.chunk(2).nbytes)
    assert [len(part) for part in lookup.joined(ids)] == [4, 2]
    positions = IdLookup(pa.array([PASSAGES[i][0] for i in range(9)])).positions_of_rows
    for find in (store.rows_of, lambda wanted: store.known_rows(wanted, "run"), positions):
        assert find(ids).tolist() == [3, 1, 3, 0, 2, 3]
        assert find(pa.chunked_array([], pa.string())).tolist() == []


@settings(max_examples=30, deadline=None)
@given(texts=st.lists(st.sampled_from("abcd"), min_size=1, max_size=9), wanted=st.lists(st.sampled_from("abcdef"), max_size=9))
def test_rows_of_texts_are_the_first_with_each(texts: list[str], wanted: list[str], tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = tmp_path_factory.mktemp("texts") / "c"
    write(folder, [(f"p{i}", "title", text) for i, text in enumerate(texts)], shard_rows=3)
    found = PassageStore(folder).rows_of_texts(pa.chunked_array([wanted], pa.string()))
    assert found.tolist() == [texts.index(text) if text in texts else -1 for text in wanted]


def test_rows_out_of_range(store: PassageStore) -> None:
    for row in (-1, COUNT):
        with pytest.raises(IndexError, match="rows must be in"):
            store.take(np.array([row]))


def test_text_hash_is_equal_for_equal_texts(tmp_path: Path) -> None:
    write(tmp_path / "c", [("a", "", "same"), ("b", "T", "same"), ("c", "", "other")])
    hashes = PassageStore(tmp_path / "c").text_hash
    assert hashes[0] == hashes[1] != hashes[2]


def test_pickled_store_reads_the_same(store: PassageStore) -> None:
    again = pickle.loads(pickle.dumps(store))
    assert len(pickle.dumps(store)) < 1_000
    assert again.passages(np.array([COUNT - 1])) == store.passages(np.array([COUNT - 1]))


def test_ids_whose_hashes_are_equal(tmp_path: Path) -> None:
    write(tmp_path / "c", [("a", "", "one"), ("b", "", "two"), ("c", "", "three")])
    # a real index in which the hash of "b" stands for "a" and "c" too: what a collision leaves on disk
    path = tmp_path / "c"
    hashed = hash_strings(pa.array(["b"]))[0]
    np.save(path / "id_hash.npy", np.array([hashed] * 3, dtype=np.uint64))
    np.save(path / "id_row.npy", np.array([0, 2, 1], dtype=np.int64))
    assert PassageStore(path).rows_of(pa.array(["b", "b", "zzz"])).tolist() == [1, 1, -1]


def test_duplicate_ids_are_refused_with_both_places(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"passage 2501: passage_id 'p7' is repeated \(first at passage 7\)"):
        write(tmp_path / "c", [*PASSAGES[:2501], PASSAGES[7], *PASSAGES[2501:3000]], shard_rows=1_000)


@pytest.mark.parametrize(
    ("passage", "message"), [(("x", "", "  "), "passage 2: empty text"), ((" ", "", "y"), "passage 2: empty passage_id")]
)
def test_empty_fields_are_refused(tmp_path: Path, passage: tuple[str, str, str], message: str) -> None:
    with pytest.raises(InputError, match=message):
        write(tmp_path / "c", [("a", "", "one"), ("b", "", "two"), passage])


def test_an_empty_corpus_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no passages"):
        CorpusWriter(Draft.open(tmp_path / "c", "corpus", {}), 10).finish()
