"""The terms of texts and in how many passages they are, misspelt terms, and numbers, against slow readings."""

from __future__ import annotations

import math
import tempfile
from itertools import product
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import raydense.construction.terms as terms_module
from raydense.construction.error_kinds import _is_year, merged, numbers_of
from raydense.construction.misspelt import candidates, corrections, edits
from raydense.construction.terms import Frequencies, Splitter, counting, from_index
from raydense.data.store import CorpusWriter, PassageStore
from raydense.data.tables import write_arrow
from raydense.errors import InputError
from raydense.retrieval.words import Words
from raydense.storage import Artifact, Draft

WORDS = st.sampled_from(["kidney", "kidneys", "stones", "the", "x", "B12", "淘宝", "宝贝", "手", "wow邮件", "naïve", "—", "?"])
TEXTS = st.lists(WORDS, min_size=1, max_size=8).map(" ".join)


def store_of(folder: Path, texts: list[str], shard_rows: int = 3) -> PassageStore:
    writer = CorpusWriter(Draft.open(folder / "corpus", "corpus", {"test": "corpus"}), shard_rows)
    writer.add(pa.table({"passage_id": [f"p{i}" for i in range(len(texts))], "title": ["kidney"] + [""] * (len(texts) - 1), "text": texts}))
    writer.finish()
    return PassageStore(folder / "corpus")


def test_terms_stand_where_they_are():
    text = "The Kidneys of wow邮件发 and B12"
    found = [(term.word, text[term.start : term.end], term.paired) for term in Splitter().terms(text)]
    assert found == [
        ("kidney", "Kidneys", False),
        ("wow", "wow", False),
        ("邮件", "邮件", True),
        ("件发", "件发", True),
        ("b12", "B12", False),
    ]
    assert [term.word for term in Splitter().terms("怎么去 手")] == ["么去", "手"]
    assert [(term.word, term.start, term.end) for term in Splitter().terms("में ﾃﾞｰﾀ")] == [("में", 0, 3), ("デー", 4, 7), ("ータ", 6, 8)]


@given(TEXTS)
def test_terms_are_the_words_of_bm25_but_for_chinese_stop_words(text):
    vocabulary = Words("english", "en_plus").vocabulary()
    numbers, _ = vocabulary.split([text.encode()])
    assert [term.word for term in Splitter().terms(text)] == [vocabulary.names()[number] for number in numbers.tolist()]


@given(texts=st.lists(TEXTS, min_size=1, max_size=12), block=st.integers(1, 5), kept=st.integers(1, 8))
@settings(max_examples=30, deadline=None)
def test_passages_are_counted_as_a_slow_reading_counts(texts, block, kept):
    splitter = Splitter()
    wanted = ["kidney", "stone", "b12", "淘宝", "宝贝", "手", "wow", "邮件", "nowhere"]
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr(terms_module, "_BLOCK_ROWS", block)
        patch.setattr(terms_module, "_LARGEST_KEPT", kept)
        found = counting(store_of(Path(folder), texts), splitter.words)(wanted)
    passages = [{term.word for term in splitter.terms(text)} for text in [f"kidney {texts[0]}", *texts[1:]]]
    assert found == {word: sum(word in one for one in passages) for word in wanted}


def index_of(folder: Path, store: PassageStore, rows: int, df: dict[str, int], kind: str = "bm25", expand: str | None = None) -> Artifact:
    """The vocabulary as `index --kind bm25` writes it."""
    words = sorted(df)
    idf = np.array([math.log(1 + (rows - df[word] + 0.5) / (df[word] + 0.5)) for word in words], dtype=np.float32)
    draft = Draft.open(folder / "index", "index", {"test": "index"})
    draft.commit("vocabulary.arrow", lambda path: write_arrow(path, pa.table({"word": words, "idf": idf})), len(words))
    return draft.finish(rows, kind=kind, corpus=store.fingerprint, stemmer="english", stopwords="en", expand=expand)


class Sized(PassageStore):
    """A corpus that says it is larger than it is: only its number of passages is read here."""

    size = 1

    def __len__(self) -> int:
        return self.size


@given(rows=st.sampled_from([1, 10, 8_841_823, 21_015_324]), data=st.data())
@settings(max_examples=40, deadline=None)
def test_an_index_gives_the_exact_number_of_passages(rows, data):
    df = {f"word{i}": data.draw(st.integers(1, rows)) for i in range(5)}
    with tempfile.TemporaryDirectory() as folder:
        store_of(Path(folder), ["a"])
        store = Sized(Path(folder) / "corpus")
        store.size = rows
        words, count = from_index(index_of(Path(folder), store, rows, df), store)
        found = count([*df, "other"])
    assert words == Words("english", "en_plus", rules=1)
    assert found.pop("other") == 0
    for word, exact in df.items():
        assert abs(found[word] - exact) <= 4e-6 * rows  # idf is of float32


def test_an_index_of_another_kind_or_corpus_is_refused(tmp_path):
    store, other = store_of(tmp_path / "one", ["a"]), store_of(tmp_path / "two", ["b"])
    with pytest.raises(InputError, match="no bm25 index"):
        from_index(index_of(tmp_path / "faiss", store, 1, {}, "faiss"), store)
    with pytest.raises(InputError, match="another corpus"):
        from_index(index_of(tmp_path / "other", other, 1, {}), store)
    with pytest.raises(InputError, match="has the words of generated queries too; give an index of the passages alone"):
        from_index(index_of(tmp_path / "expanded", store, 1, {}, expand="of these queries"), store)


def test_a_stop_word_that_an_index_has_counts_as_in_no_passage(tmp_path):
    store = store_of(tmp_path, ["a"])
    _, count = from_index(index_of(tmp_path / "index", store, 1, {"ware": 1, "were": 1}), store)
    assert count(["ware", "were"]) == {"ware": 1, "were": 0}


def distance(a: str, b: str) -> int:
    """The optimal string alignment distance, cell by cell."""
    cell = {(i, j): max(i, j) for i in range(len(a) + 1) for j in range(len(b) + 1) if not i or not j}
    for i, j in product(range(1, len(a) + 1), range(1, len(b) + 1)):
        cell[i, j] = min(cell[i - 1, j] + 1, cell[i, j - 1] + 1, cell[i - 1, j - 1] + (a[i - 1] != b[j - 1]))
        if i > 1 and j > 1 and a[i - 1] == b[j - 2] and a[i - 2] == b[j - 1]:
            cell[i, j] = min(cell[i, j], cell[i - 2, j - 2] + 1)
    return cell[len(a), len(b)]


@given(st.text("abé", min_size=1, max_size=3))
@settings(deadline=None)
def test_edits_are_all_words_at_distance_1(word):
    every = {"".join(letters) for length in range(5) for letters in product("abé", repeat=length)}
    found = {other for other in edits(word) if set(other) <= set("abé")}
    reachable = {other for other in every if distance(word, other) == 1 and set(other) <= {*"ab", *word}}
    assert found == reachable


def test_a_correction_is_frequent_and_of_a_word_that_no_passage_has():
    splitter = Splitter()
    df = {"kidney": 50, "kidnap": 2, "stone": 9, "stoned": 3, "牛奶": 9, "奶粉": 9}
    frequencies = Frequencies(1_000, lambda words: {word: df.get(word, 0) for word in words})
    texts = ("kidey stones", "kidney kidnxp 7890a", "牛乃", "牛乃粉", "奶奶", "Kidey kiDey", "哪里乃粉")
    queries = [(text, splitter.terms(text)) for text in texts]
    asked = {term.word for _, terms in queries for term in terms}
    frequencies.ask(asked)
    found = corrections(queries, frequencies)
    passes = []
    ahead = Frequencies(1_000, lambda words: passes.append(words) or {word: df.get(word, 0) for word in words})
    ahead.ask(asked | candidates(queries))
    assert corrections(queries, ahead) == found
    assert len(passes) == 1
    assert found == [
        {"kidey": "kidney"},
        {},
        {"牛乃": "牛奶"},
        {"牛乃": "牛奶", "乃粉": "奶粉"},
        {},
        {"kidey": "kidney"},
        {"乃粉": "奶粉"},
    ]


@pytest.mark.parametrize(
    ("text", "numbers"),
    [
        ("in 2016 and 2016", ["2016"]),
        ("1,500 or 1500.0 or 01500", ["1500"]),
        ("B12, IL-2, 2-photon and CX3CR1", []),
        ("5mg, 2.50 and 3.0", ["5", "2.5", "3"]),
        ("２０１６年 5岁", ["2016", "5"]),
        ("1990-2000", ["1990", "2000"]),
        ("v1.2.3 of 0", ["0"]),
        ("no number", []),
    ],
)
def test_numbers(text, numbers):
    assert numbers_of(text) == numbers


def test_a_blob_is_no_year_and_no_misspelt_word():
    assert not _is_year("1" * 5_000)
    assert [_is_year(number) for number in ("1999", "999", "2100")] == [True, False, False]
    texts = ["acgt" * 500]
    assert candidates([(text, Splitter().terms(text)) for text in texts]) == set()


def test_overlapping_pairs_are_one_text():
    text = "淘宝修改 and 密码 and kidney"
    assert merged(text, Splitter().terms(text)) == ["淘宝修改", "密码", "kidney"]
