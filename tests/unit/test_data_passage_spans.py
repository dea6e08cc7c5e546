"""Where texts are cut: nothing but white space is lost, limits hold for each passage by itself, sentences stay whole."""

import re
from collections.abc import Iterator
from functools import partial
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import settings as effort
from hypothesis import strategies as st
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from raydense.data.passage_spans import sentence_ends, token_spans, word_spans
from raydense.models.tokenizer import splits_words_first, starts_of_long

SENTENCES = [
    "Dr. Fox met J. R. at 3.5 km.",
    "Was it cold? ",
    "“Yes!” he said.",
    "狐狸过河。",
    "它冷吗？",
    "“冷！”它说。",
    "no end",
    "\n\n",
    "- item\n",
]
LETTERS = "aB1.!?。！？“”\"'() \t\n\r\x85\u2028\u3000\u00a0\u200b\u0301😀é中ﬁİ…㎏"
TEXTS = st.lists(st.sampled_from(SENTENCES) | st.text(LETTERS, max_size=30) | st.text(max_size=8), max_size=12).map("".join)


def tokenizer(kind: str) -> PreTrainedTokenizerFast:
    """Tokenizers of three families: a byte-level one, one that puts a mark before words, and one of words and single characters."""
    if kind == "bytes":
        core = Tokenizer(models.BPE(vocab={c: i for i, c in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}, merges=[]))
        core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
    elif kind == "marked":
        pieces = ["<pad>", "<unk>", "▁", "▁no", "▁it", "▁Dr.", "end", "狐狸", "。它", "!”", "▁“", *LETTERS, *"abcdefghijklmnopqrstuvwxyz"]
        core = Tokenizer(
            models.Unigram([(piece, -float(len(pieces) - i)) for i, piece in enumerate(pieces)], unk_id=1, byte_fallback=False)
        )
        core.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="always")
    else:
        core = Tokenizer(models.WordPiece({"[UNK]": 0, "Fox": 1, "it": 2, "##it": 3, "i": 4, "##t": 5, "狐": 6}, unk_token="[UNK]"))
        core.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
        core.normalizer = normalizers.BertNormalizer() if kind == "bert" else None
    return PreTrainedTokenizerFast(tokenizer_object=core, pad_token="<pad>")


KINDS = {kind: tokenizer(kind) for kind in ("bytes", "marked", "pieces", "bert")}


def cut(kind: str, texts: list[str], length: int, language: str = "en") -> list[list[tuple[int, int]]]:
    return token_spans(texts, language, length, partial(starts_of_long, KINDS[kind], length=length), splits_words_first(KINDS[kind]))


def counted(kind: str, text: str) -> int:
    return len(KINDS[kind](text, add_special_tokens=False)["input_ids"])


def bare(text: str) -> str:
    return "".join(text.split())


def check_spans(text: str, spans: list[tuple[int, int]]) -> None:
    """In order, apart, without white space at their ends, and all that is between them is white space."""
    assert all(a < b and text[a:b] == text[a:b].strip() for a, b in spans)
    assert all(before[1] <= after[0] for before, after in pairwise(spans))
    assert bare("".join(text[a:b] for a, b in spans)) == bare(text)


@effort(max_examples=200)
@given(TEXTS, st.integers(1, 9))
def test_blocks_of_words_are_the_words_in_order(text: str, length: int) -> None:
    (spans,) = word_spans([text], length)
    check_spans(text, spans)
    words = text.split()
    assert [text[a:b].split() for a, b in spans] == [words[i : i + length] for i in range(0, len(words), length)]


@effort(max_examples=150)
@pytest.mark.parametrize("kind", KINDS)
@given(texts=st.lists(TEXTS, max_size=3), length=st.integers(1, 40), language=st.sampled_from(["en", "zh", "xx"]))
def test_no_character_is_lost_and_no_passage_is_too_long(kind: str, texts: list[str], length: int, language: str) -> None:
    for text, spans in zip(texts, cut(kind, texts, length, language), strict=True):
        check_spans(text, spans)
        for a, b in spans:
            assert counted(kind, text[a:b]) <= length or b - a == 1 or one_start(kind, text[a:b])


def test_only_a_tokenizer_of_words_spares_the_second_count() -> None:
    assert [kind for kind in KINDS if splits_words_first(KINDS[kind])] == ["pieces", "bert"]
    assert not splits_words_first(PreTrainedTokenizerFast(tokenizer_object=Tokenizer(models.WordPiece()), pad_token="<pad>"))


@effort(max_examples=150)
@pytest.mark.parametrize("kind", ["pieces", "bert"])
@given(texts=st.lists(TEXTS, max_size=3), length=st.integers(1, 40), language=st.sampled_from(["en", "zh"]))
def test_the_second_count_of_words_changes_nothing(kind: str, texts: list[str], length: int, language: str) -> None:
    starts = partial(starts_of_long, KINDS[kind], length=length)
    assert token_spans(texts, language, length, starts, True) == token_spans(texts, language, length, starts)


def test_groups_of_separated_words_are_counted_once() -> None:
    given: list[list[str]] = []

    def starts(texts: list[str]) -> Iterator[np.ndarray | None]:
        given.append(texts)
        return starts_of_long(KINDS["bert"], texts, 8)

    text = "Fox it is. Was it cold? “Yes!” he said. 狐狸过河。它冷吗？ " * 5
    (spans,) = token_spans([text], "en", 8, starts, True)
    assert len(spans) > 10
    assert given == [[text.strip()]]


def one_start(kind: str, text: str) -> bool:
    """Whether all tokens of a text begin at one character, so that there is nowhere to cut it."""
    return len({a for a, _ in KINDS[kind](text, add_special_tokens=False, return_offsets_mapping=True)["offset_mapping"]}) == 1


@effort(max_examples=150)
@given(st.lists(st.sampled_from(SENTENCES), max_size=12).map(" ".join), st.integers(20, 60), st.sampled_from(["en", "zh"]))
def test_sentences_stay_whole_and_passages_are_as_full_as_they_can_be(text: str, length: int, language: str) -> None:
    """An independent reading: sentence by sentence, with counts of single characters' tokens, which simply add up."""
    ends = sentence_ends(text, language).tolist()
    sentences = [text[a:b] for a, b in zip([0, *ends], ends, strict=False)]
    sizes = [counted("pieces", sentence) for sentence in sentences]
    assert sum(sizes) == counted("pieces", text)
    if any(size > length for size in sizes):
        return
    wanted, held = [], ""
    for sentence in sentences:
        if held and counted("pieces", held + sentence) > length:
            wanted, held = [*wanted, held], ""
        held += sentence
    wanted += [held] if held else []
    (spans,) = cut("pieces", [text], length, language)
    assert [text[a:b] for a, b in spans] == [part.strip() for part in wanted]


def test_a_long_sentence_is_cut_at_tokens_and_its_rest_goes_on_with_the_next() -> None:
    text = "It is. Fox Fox Fox Fox Fox Fox Fox Fox Fox Fox. It is. It is."
    (spans,) = cut("pieces", [text], 4)
    assert [text[a:b] for a, b in spans] == ["It is.", "Fox Fox Fox Fox", "Fox Fox Fox Fox", "Fox Fox.", "It is.", "It is."]
    (spans,) = cut("pieces", [text], 6)
    assert [text[a:b] for a, b in spans] == ["It is.", "Fox Fox Fox Fox Fox Fox", "Fox Fox Fox Fox.", "It is. It is."]


def test_a_word_is_cut_where_a_token_begins() -> None:
    (spans,) = cut("pieces", ["itititit"], 3)
    assert spans == [(0, 6), (6, 8)]


def test_a_character_of_more_tokens_than_allowed_stays_whole() -> None:
    text = "a😀b"
    (spans,) = cut("bytes", [text], 2)
    assert [text[a:b] for a, b in spans] == ["a", "😀", "b"]
    assert counted("bytes", "😀") == 5, "a blank before and four bytes"


@pytest.mark.parametrize(
    ("language", "text", "wanted"),
    [
        (
            "en",
            "Dr. Fox came at 3.5 p.m. on Monday. He left!  Why? No one knows",
            ["Dr. Fox came at 3.5 p.m. on Monday.", "He left!", "Why?", "No one knows"],
        ),
        ("zh", "狐狸过河。它冷吗？冷！\n\n新的一段；还有", ["狐狸过河。", "它冷吗？", "冷！", "新的一段；还有"]),
        ("en", " \n ", []),
        ("en", "", []),
    ],
)
def test_ends_of_sentences(language: str, text: str, wanted: list[str]) -> None:
    ends = sentence_ends(text, language).tolist()
    assert [text[a:b].strip() for a, b in zip([0, *ends], ends, strict=False)] == wanted


@effort(max_examples=300)
@given(TEXTS, st.sampled_from(["en", "zh", "fr", "ar", "xx"]))
def test_ends_rise_and_the_last_is_that_of_the_text(text: str, language: str) -> None:
    ends = sentence_ends(text, language)
    assert (np.diff(ends) > 0).all()
    assert (ends[-1] if len(ends) else 0) == len(text.rstrip())
    assert all(re.search(r"\S\Z", text[:end]) for end in ends.tolist())
