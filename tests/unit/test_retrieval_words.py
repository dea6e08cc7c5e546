"""BM25's words: ASCII as bm25s has them, Chinese, Japanese and Korean as Lucene's CJKAnalyzer, others by Unicode's categories and normal forms."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator
from itertools import groupby, pairwise
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
import regex
import Stemmer
from bm25s.tokenization import Tokenizer
from hypothesis import example, given
from hypothesis import strategies as st

from raydense.data.tables import write_arrow
from raydense.errors import InputError
from raydense.retrieval.kinds.bm25 import Kind as Bm25Kind
from raydense.retrieval.word_rules import RULES, places, plain
from raydense.retrieval.words import Words, positions
from raydense.retrieval.words import words_of as words_of_index
from raydense.storage import Artifact, Draft

PLAIN = Words("none", "none")


def words_of(text: str, words: Words = PLAIN) -> list[str]:
    vocabulary = words.vocabulary()
    ids, lengths = vocabulary.split([text.encode()])
    assert lengths.tolist() == [len(ids)]
    names = vocabulary.names()
    return [names[number] for number in ids.tolist()]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("一二三四", ["一二", "二三", "三四"]),
        ("糖尿病 type2 患者,肝?", ["糖尿", "尿病", "type2", "患者", "肝"]),
        ("ab糖尿病cd", ["ab", "糖尿", "尿病", "cd"]),
        ("こんにちは世界", ["こん", "んに", "にち", "ちは", "は世", "世界"]),
        ("안녕 하세요", ["안녕", "하세", "세요"]),
        ("𠮷野家", ["𠮷野", "野家"]),
        ("Été naïve x ab", ["été", "naïve", "ab"]),
        ("。，", []),
        ("佐々木さん", ["佐々", "々木", "木さ", "さん"]),
        ("二〇二四年", ["二〇", "〇二", "二四", "四年"]),
        ("アルベルト・アイ", ["アル", "ルベ", "ベル", "ルト", "アイ"]),
        ("ﾃﾞｰﾀ", ["デー", "ータ"]),
        ("テ\u3099ータ", ["デー", "ータ"]),
        ("ＷＨＯは１２３，中国", ["who", "は", "123", "中国"]),
        ("葛\U000e0100城市", ["葛城", "城市"]),
        ("⽇本", ["日本"]),
        (unicodedata.normalize("NFD", "한국어"), ["한국", "국어"]),
    ],
)
def test_neighbours_are_the_words_of_a_run(text: str, expected: list[str]) -> None:
    assert words_of(text) == expected
    assert words_of(f"{text} é 中国")[: len(expected)] == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("हिन्दी भाषा में खोज", ["हिन्दी", "भाषा", "में", "खोज"]),
        ("বাংলা ভাষা", ["বাংলা", "ভাষা"]),
        ("தமிழ் மொழி", ["தமிழ்", "மொழி"]),
        ("తెలుగు భాష", ["తెలుగు", "భాష"]),
        ("क्\u200dष क्ष", ["क्ष", "क्ष"]),
        ("كِتَابٌ كتاب", ["كِتَابٌ", "كتاب"]),
        ("שָׁלוֹם", [unicodedata.normalize("NFC", "שָׁלוֹם")]),
        ("کتاب\u200cها", ["کتاب", "ها"]),  # as Lucene's PersianAnalyzer has it
        ("ﻛﺘﺎب", ["كتاب"]),
        ("ภาษาไทย", ["ภา", "าษ", "ษา", "าไ", "ไท", "ทย"]),
        ("ใช้iPhone ที่น้ำ", ["ใช้", "iphone", "ที่น้", "น้ำ"]),
        ("ພາສາລາວ", ["ພາ", "າສ", "ສາ", "າລ", "ລາ", "າວ"]),
        ("ខ្មែរ", ["ខ្មែ", "មែរ"]),
        ("မြန်မာ", ["မြန်", "န်မာ"]),
        ("nai\u0308ve naïve", ["naïve", "naïve"]),
        ("exam\u00adple ﬁne", ["example", "fine"]),
        ("İstanbul ISTANBUL", ["istanbul", "istanbul"]),
        ("x² 3½ Foo™ a 1️⃣", ["x²", "3½", "foo", "1⃣"]),
    ],
)
def test_marks_are_in_words_whatever_the_normal_form(text: str, expected: list[str]) -> None:
    for form in ("NFC", "NFD"):
        assert words_of(unicodedata.normalize(form, text)) == expected


@pytest.mark.parametrize(("stemmer", "text", "stem"), [("arabic", "كِتَابٌ كتاب", "كتاب"), ("hindi", "किताबें किताब", "किताब")])
def test_stemmers_get_whole_words(stemmer: str, text: str, stem: str) -> None:
    assert words_of(text, Words(stemmer, "none")) == [stem, stem]


CJK = "\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uac00-\ud7a3\uf900-\ufaff\uff66-\uff9d\U00020000-\U0002fa1f"
# what Python's lower case, and its classes of characters, treat in ways of their own
SPECIAL = "ΣσςİıKſßΑ'.:_-\u0307\u00ad\u00a0\u2028\u3000ー゙一二肝ｱaAbB9 \n\x00\x1f\x85\U0010ffff"
TEXTS = st.lists(st.text(st.one_of(st.sampled_from(SPECIAL), st.characters(codec="utf-8")), max_size=30), max_size=6)
NAMES = st.sampled_from([("none", "none"), ("english", "en"), ("none", "fr"), ("german", "none")])


def neighbours(run: re.Match[str]) -> str:
    return " " + (" ".join(a + b for a, b in pairwise(run[0])) or run[0]) + " "


def same_as_bm25s(first: list[str], second: list[str], names: tuple[str, str], rules: int) -> None:
    stemmer, stopwords = (None if name == "none" else name for name in names)
    theirs = Tokenizer(splitter=rf"(?u)\b\w\w+\b|[{CJK}]", stopwords=stopwords, stemmer=Stemmer.Stemmer(stemmer) if stemmer else None)
    ours = Words(*names, rules).vocabulary()
    for texts in (first, second):
        marked = [re.sub(f"[{CJK}]+", neighbours, text) for text in texts]
        expected = list(theirs.streaming_tokenize(marked, update_vocab=True, allow_empty=False))
        flat, lengths = ours.split([text.encode() for text in texts])
        assert lengths.tolist() == [len(ids) for ids in expected]
        assert flat.tolist() == [number for ids in expected for number in ids]
    known = theirs.get_vocab_dict()
    assert ours.names() == sorted(known, key=known.__getitem__)


@given(TEXTS, TEXTS, NAMES)
def test_words_of_earlier_indexes_and_their_numbers_are_those_of_bm25s(first: list[str], second: list[str], names: tuple[str, str]) -> None:
    same_as_bm25s(first, second, names, 1)


# what European texts have: composed letters and signs of print
EUROPEAN = "éßÅøœžşıΣσςΆЖяё“”‘’–—…·°±×½²µ™€№«»¿\u00a0\u2009\u200b"
PRINT = st.one_of(st.characters(max_codepoint=127), st.characters(max_codepoint=127), st.sampled_from(EUROPEAN))


@given(st.lists(st.text(PRINT, max_size=40), max_size=6), st.lists(st.text(PRINT, max_size=40), max_size=6), NAMES)
def test_words_of_english_and_their_numbers_are_those_of_bm25s(first: list[str], second: list[str], names: tuple[str, str]) -> None:
    same_as_bm25s(first, second, names, RULES)


MARKED = (
    "กขเา่้ิำລ່ကျ်្កក़िं़্াஔبِّ\u200c\u200d\u00ad\u0301\u0308\u0327ë\u1e69がハ\u3099\u309aﾊﾞﾟ々〇・ー\ufe0f\U000e0100ﬁ１Ａ，￥豈⼀한\u1112\u1161\u11abÅK٠१"
)
ANY = st.characters(codec="utf-8", exclude_categories=["Cn", "Cs", "Co"])
SAMPLED = st.text(st.one_of(st.sampled_from(SPECIAL[:-1]), st.sampled_from(MARKED), st.sampled_from(MARKED), ANY), max_size=30)
IGNORED = (  # Default_Ignorable_Code_Point of Unicode's DerivedCoreProperties.txt, without the blank of no width
    "AD-AD 34F-34F 61C-61C 115F-1160 17B4-17B5 180B-180F 200C-200F 202A-202E 2060-206F 3164-3164 FE00-FE0F FEFF-FEFF FFA0-FFA0 FFF0-FFF8 "
    "1BCA0-1BCA3 1D173-1D17A E0000-E0FFF"
)
FORMS = "2F00-2FD5 FB00-FDFF FE10-FE1F FE30-FEFE FF00-FFEF"
IN_PAIRS = ("CJK UNIFIED", "CJK COMPATIBILITY IDEOGRAPH", "HIRAGANA", "KATAKANA", "HANGUL SYLLABLE", "HENTAIGANA", "HANGZHOU")


def within(char: str, ranges: str) -> bool:
    return any(int(low, 16) <= ord(char) <= int(high, 16) for low, high in (one.split("-") for one in ranges.split()))


def kind_by_unicode(char: str) -> str:
    name, category = unicodedata.name(char, ""), unicodedata.category(char)[0]
    if char in "々〆〇〻゛゜" or (name.startswith(IN_PAIRS) and char not in "・゠" and "MINNAN" not in name):
        return "pairs"
    if category == "L" and name.startswith(("THAI", "LAO", "KHMER", "MYANMAR", "TAI ", "NEW TAI", "AHOM")):
        return "clusters"
    return "letter" if category in "LN" or char == "_" else category


def words_by_unicode(text: str) -> list[str]:
    """The words as Unicode's own data have them, character by character."""
    kept = ""
    for number, char in enumerate(text := text.lower()):
        persian = char == "\u200c" and regex.match(r"\p{Arabic}", text[max(0, number - 1)])
        kept += "" if within(char, IGNORED) and not persian else char
    parts = [
        "".join(chars) if not form else unicodedata.normalize("NFKC", "".join(chars))
        for form, chars in groupby(kept, lambda c: within(c, FORMS))
    ]
    words: list[str] = []
    for kind, chars in groupby_kind(unicodedata.normalize("NFC", "".join(parts)).replace("i\u0307", "i")):
        if kind == "letter":
            words += ["".join(chars)] if len("".join(chars)) > 1 else []
        else:
            words += [a + b for a, b in pairwise(chars)] or chars
    return words


def groupby_kind(text: str) -> Iterator[tuple[str, list[str]]]:
    """The runs of one kind, by characters; of clusters and letters each with its marks."""
    run: list[str] = []
    kind = ""
    for char in text:
        now = kind_by_unicode(char)
        if now == "M" and kind in ("clusters", "letter"):
            run[-1] += char
        elif now == kind:
            run.append(char)
        else:
            if kind in ("pairs", "clusters", "letter"):
                yield kind, run
            kind, run = now, [char]
    if kind in ("pairs", "clusters", "letter"):
        yield kind, run


@given(st.lists(SAMPLED, min_size=1, max_size=4))
@example(["Σ\u200dａ中ﾊﾟ", "\u0301ハ\u3099"])
def test_words_are_those_of_unicode_s_categories_and_normal_forms(texts: list[str]) -> None:
    vocabulary = PLAIN.vocabulary()
    ids, lengths = vocabulary.split([text.encode() for text in texts])
    names = vocabulary.names()
    expected = [words_by_unicode(text) for text in texts]
    assert [names[number] for number in ids.tolist()] == [word for words in expected for word in words]
    assert lengths.tolist() == list(map(len, expected))


@given(SAMPLED)
def test_words_stand_where_they_are(text: str) -> None:
    """In a text in NFC the words of its places are its words."""
    text = plain(text.lower())
    found = [word for start, stop, _ in places(text) for word in words_of(text[start:stop])]
    assert found == words_of(text)


def index_of(folder: Path, summary: dict[str, object], stemmers: str | None = None) -> Artifact:
    draft = Draft.open(folder, "index", {"test": "index"})
    draft.commit("vocabulary.arrow", lambda path: write_arrow(path, pa.table({"word": ["na", "ve", "naïve"]})), 3)
    made = draft.finish(1, kind="bm25", stopwords="none", **summary)
    made.manifest["versions"] |= {"PyStemmer": stemmers} if stemmers else {}
    return made


def test_an_index_is_asked_by_the_rules_that_it_was_built_with(tmp_path: Path) -> None:
    query = "nai\u0308ve ﬁne"
    old, new = ({"stemmer": "none"}, {"stemmer": "none", "rules": RULES})
    assert words_of(query, words_of_index(index_of(tmp_path / "old", old))) == ["nai", "ve", "ﬁne"]
    assert words_of(query, words_of_index(index_of(tmp_path / "new", new))) == ["naïve", "fine"]
    newer = index_of(tmp_path / "newer", {"stemmer": "none", "rules": 99})
    with pytest.raises(InputError, match="unknown rules of words, 99; update raydense, or build the index again"):
        Bm25Kind(newer).prepare([query])


def test_another_version_of_the_stemmers_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words_of_index(index_of(tmp_path / "same", {"stemmer": "english"}))
    words_of_index(index_of(tmp_path / "none", {"stemmer": "none"}, "2.2.0"))
    assert not capsys.readouterr().err
    words_of_index(index_of(tmp_path / "other", {"stemmer": "english"}, "2.2.0"))
    (line,) = capsys.readouterr().err.splitlines()
    assert "other: was built with PyStemmer 2.2.0, here is " in line
    assert line.endswith("words whose stems differ are not found; build it again, or install PyStemmer 2.2.0")


def test_a_query_of_half_a_character_is_split_like_any_other() -> None:
    ids, starts = PLAIN.query_ids(["ab\ud800cd"], pa.array(["ab", "cd"]))
    assert (ids.tolist(), starts.tolist()) == ([0, 1], [0, 2])


def test_a_query_finds_the_words_of_a_passage() -> None:
    vocabulary = pa.array(["尿病", "糖尿", "高血"])
    ids, starts = PLAIN.query_ids(["高血压", "感冒", "我有糖尿病"], vocabulary)
    assert ids.tolist() == [2, 1, 0]
    assert np.diff(starts).tolist() == [1, 0, 2]


WORDS = st.lists(st.text(st.characters(codec="utf-8"), max_size=4), max_size=40)


@given(WORDS, WORDS, st.sampled_from([1, 40]))
def test_words_are_found_in_the_order_in_which_an_index_sorts_them(vocabulary: list[str], words: list[str], times: int) -> None:
    """Arrow's order of strings is that of their bytes, in `sort_by` of the build as in the comparison here; Python's is the same."""
    ordered = pa.table({"word": pa.array(sorted(set(vocabulary)), pa.string())}).sort_by("word")["word"].to_pylist()
    words = [*words, *vocabulary[:5]] * times
    found = positions(pa.array(words, pa.string()), pa.array(ordered, pa.string()))
    assert found.tolist() == [ordered.index(word) if word in ordered else -1 for word in words]


def test_a_long_query_does_not_read_the_whole_vocabulary(monkeypatch: pytest.MonkeyPatch) -> None:
    """Twenty bits of words are halved twenty times, of the few that are asked for; nothing is hashed."""
    vocabulary = pa.array([f"w{number:07d}" for number in range(1_000_000)])
    taken: list[int] = []

    def counted(words: pa.Array, at: np.ndarray) -> pa.Array:
        taken.append(len(at))
        return words.take(pa.array(np.minimum(at, len(words) - 1)))

    monkeypatch.setattr("raydense.retrieval.words._taken", counted)
    unknown = [f"unknown{number}" for number in range(40)]
    ids, starts = PLAIN.query_ids([f"w0000007 {' '.join(unknown)} w0999999"], vocabulary)
    assert ids.tolist() == [7, 999_999]
    assert starts.tolist() == [0, 2]
    assert len(taken) <= 22
    assert sum(taken) <= 42 * 22
