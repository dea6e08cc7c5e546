import pickle
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from tokenizers import Tokenizer, models
from tokenizers.pre_tokenizers import ByteLevel, Whitespace
from tokenizers.processors import RobertaProcessing, TemplateProcessing
from transformers import AutoTokenizer, ByT5Tokenizer, PreTrainedTokenizerFast

from raydense.errors import InputError
from raydense.models.cross_encoder import load_pair_tokenizer
from raydense.models.encoder_config import EncoderConfig
from raydense.models.tokenizer import PairTokenizer, TextTokenizer, load_tokenizer
from raydense.models.tokenizer_folder import read_tokenizer


def rows(tokens):
    return [tokens.ids[a:b].tolist() for a, b in zip(tokens.offsets[:-1], tokens.offsets[1:], strict=True)]


def test_tokens_are_those_of_hugging_face(tiny_folder, texts):
    theirs = AutoTokenizer.from_pretrained(str(tiny_folder), local_files_only=True)
    ours = load_tokenizer(tiny_folder, query_length=9, passage_length=40, query_prefix="what: ", passage_prefix="home ")
    wanted = theirs(["what: " + t for t in texts], truncation=True, max_length=9)["input_ids"]
    assert rows(ours.queries(texts)) == wanted
    wanted = theirs(["home " + t for t in texts], truncation=True, max_length=40)["input_ids"]
    assert rows(ours.passages(texts)) == wanted
    assert max(map(len, wanted)) == 40


def test_a_tokenizer_that_cuts_at_the_left_keeps_the_ends(tiny_folder, texts):
    query, pair = (AutoTokenizer.from_pretrained(str(tiny_folder), local_files_only=True, truncation_side="left") for _ in range(2))
    ours = TextTokenizer(query, query, EncoderConfig(query_length=9, passage_length=12))
    assert rows(ours.queries(texts)) == query(texts, truncation=True, max_length=9)["input_ids"]
    assert rows(ours.passages(texts)) == query(texts, truncation=True, max_length=12)["input_ids"]
    wanted = pair(texts, texts[::-1], truncation=True, max_length=20)["input_ids"]
    assert rows(PairTokenizer(pair, 20).pairs(texts, texts[::-1])) == wanted


def test_token_types_of_a_text_are_kept_where_they_are_not_0(tiny_folder, texts):
    """As XLNet's, whose last token has type 2."""
    tokenizer = AutoTokenizer.from_pretrained(str(tiny_folder), local_files_only=True)
    config = EncoderConfig(query_length=30, passage_length=30)
    assert TextTokenizer(tokenizer, tokenizer, config).passages(texts).types is None
    special = [(token, tokenizer.convert_tokens_to_ids(token)) for token in ("[SEP]", "[CLS]")]
    tokenizer.backend_tokenizer.post_processor = TemplateProcessing(single="$A:0 [SEP]:0 [CLS]:2", special_tokens=special)
    ours, wanted = TextTokenizer(tokenizer, tokenizer, config), tokenizer(texts, truncation=True, max_length=30)["token_type_ids"]
    for found in (ours.queries(texts), ours.passages(texts)):
        assert found.types.tolist() == [kind for kinds in wanted for kind in kinds]


def test_more_texts_than_a_chunk_keep_their_order(tiny_folder, texts):
    ours = load_tokenizer(tiny_folder)
    once, often = rows(ours.passages(texts)), rows(ours.passages(texts * 90))
    assert often == once * 90


def test_threads_do_not_race_for_the_truncation(tiny_folder, texts):
    ours = load_tokenizer(tiny_folder, query_length=5, passage_length=60)
    queries, passages = rows(ours.queries(texts)), rows(ours.passages(texts))
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda i: (i % 2, rows((ours.passages if i % 2 else ours.queries)(texts))), range(80)))
    assert all(got == (passages if odd else queries) for odd, got in found)


def test_a_query_of_few_characters_and_many_tokens_is_truncated():
    """A tokenizer of bytes makes three tokens of a Chinese character."""
    byte_level = Tokenizer(models.BPE({char: number for number, char in enumerate(["<pad>", *ByteLevel.alphabet()])}, []))
    byte_level.pre_tokenizer = ByteLevel(add_prefix_space=False)
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=byte_level, pad_token="<pad>")
    ours = TextTokenizer(tokenizer, tokenizer, EncoderConfig(query_length=16, passage_length=16))
    assert ours.truncates(["\u706f" * 10, "\u706f" * 5, "a" * 16, "a" * 17, ""]) == [True, False, False, True, False]


def test_a_tokenizer_without_padding_is_refused_with_a_fix_that_helps(tiny_folder, tmp_path):
    core = Tokenizer(models.BPE({char: number for number, char in enumerate(["<end>", *ByteLevel.alphabet()])}, []))
    for name in ("config.json", "model.safetensors"):
        (tmp_path / name).symlink_to(tiny_folder / name)
    PreTrainedTokenizerFast(tokenizer_object=core, eos_token="<end>").save_pretrained(str(tmp_path))
    with pytest.raises(InputError, match=r"its tokenizer has no padding token; set pad_token of the tokenizer \(to its eos_token"):
        load_tokenizer(tmp_path)
    tokenizer = AutoTokenizer.from_pretrained(str(tmp_path))
    tokenizer.pad_token = tokenizer.eos_token
    tokenizer.save_pretrained(str(tmp_path))
    assert load_tokenizer(tmp_path).pad_id == 0


def test_a_slow_tokenizer_is_refused(tmp_path):
    ByT5Tokenizer().save_pretrained(str(tmp_path))
    with pytest.raises(InputError, match=r"its tokenizer is not a fast one; save a tokenizer\.json there"):
        read_tokenizer(tmp_path)


def test_a_pickled_tokenizer_gives_the_same_tokens(tiny_folder, texts):
    ours = load_tokenizer(tiny_folder, query_length=7)
    again = pickle.loads(pickle.dumps(ours))
    assert rows(again.queries(texts)) == rows(ours.queries(texts))
    assert again.config == ours.config
    pair = load_pair_tokenizer(tiny_folder, 30)
    assert rows(pickle.loads(pickle.dumps(pair)).pairs(texts, texts)) == rows(pair.pairs(texts, texts))


@pytest.mark.parametrize("length", [20, 32, 33, 512])
def test_pairs_are_cut_as_by_hugging_face(tiny_folder, texts, length):
    """Texts of 1 to 100 words, each as a query with each as a passage: whole where the pair fits, else the longer is cut first."""
    texts = [*texts[:20], *texts[20::6]]  # of 1 to 39 words, which a length of 33 can cut to any length, and longer ones
    theirs = AutoTokenizer.from_pretrained(str(tiny_folder), local_files_only=True)
    queries, passages = [text for text in texts for _ in texts], texts * len(texts)
    tokens = load_pair_tokenizer(tiny_folder, length).pairs(queries, passages)
    wanted = theirs(queries, passages, truncation=True, max_length=length)
    assert rows(tokens) == wanted["input_ids"]
    assert [part.tolist() for part in np.split(tokens.types, tokens.offsets[1:-1])] == wanted["token_type_ids"]
    assert tokens.lengths.max() == min(length, max(len(ids) for ids in theirs(queries, passages)["input_ids"]))


def test_pairs_need_as_many_queries_as_passages(tiny_folder, texts):
    with pytest.raises(ValueError, match="zip"):
        load_pair_tokenizer(tiny_folder, 20).pairs(texts[:2], texts[:3])


@pytest.mark.parametrize("key", ["query_length", "passage_length"])
def test_a_length_beyond_the_positions_is_refused(tiny_folder, key):
    with pytest.raises(InputError, match=f"{key} 513 is more than the 512 positions"):
        load_tokenizer(tiny_folder, **{key: 513})


def test_a_pair_length_beyond_the_positions_is_refused(tiny_folder):
    with pytest.raises(InputError, match="length 513 is more than the 512 positions"):
        load_pair_tokenizer(tiny_folder, 513)


def roberta_like(folder, tiny_folder):
    """Four special tokens in a pair, where BERT has three."""
    core = Tokenizer(models.WordLevel({w: n for n, w in enumerate(["<s>", "<pad>", "</s>", "<unk>", *"abcdef"])}, unk_token="<unk>"))
    core.pre_tokenizer, core.post_processor = Whitespace(), RobertaProcessing(("</s>", 2), ("<s>", 0))
    for name in ("config.json", "model.safetensors"):
        (folder / name).symlink_to(tiny_folder / name)
    PreTrainedTokenizerFast(tokenizer_object=core, pad_token="<pad>", unk_token="<unk>").save_pretrained(str(folder))
    return folder


@pytest.mark.parametrize("special", [3, 4])
def test_a_length_that_special_tokens_fill_is_refused_and_the_next_one_holds(special, tiny_folder, texts, tmp_path):
    """tokenizers does not cut at all to fewer tokens than the special ones."""
    folder = tiny_folder if special == 3 else roberta_like(tmp_path, tiny_folder)
    for key in ("query_length", "passage_length"):
        for length in (1, 2):
            with pytest.raises(InputError, match=f"{key} {length} leaves no room next to 2 special tokens; make it at least 3"):
                load_tokenizer(folder, **{key: length})
        lengths = load_tokenizer(folder, **{key: 3})
        assert (lengths.queries if key[0] == "q" else lengths.passages)(texts).lengths.max() == 3
    least = special + 2
    for length in (1, special, special + 1):
        with pytest.raises(InputError, match=f"length {length} leaves no room next to {special} special tokens; make it at least {least}"):
            load_pair_tokenizer(folder, length)
    long = "a b c d e f " * 9
    tokens = load_pair_tokenizer(folder, least).pairs([long, "a", long, ""], [long, long, "a", ""])
    assert tokens.lengths.tolist() == [least, least, least, special]
