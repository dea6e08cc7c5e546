"""The generator and its sampling, against transformers, NumPy and the laws of the draw."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers import AutoModelForSeq2SeqLM, BartConfig, BartForConditionalGeneration, BertTokenizer
from transformers.generation.logits_process import TopKLogitsWarper, TopPLogitsWarper

from raydense.data import draws
from raydense.errors import InputError
from raydense.models.generator import Generator, decode
from raydense.models.sampling import draw, gumbel, mixed, sample_queries
from raydense.models.tiny import make_tiny_generator

PASSAGES = ["a red fox in winter", "old bridges of stone carry no one home when rivers freeze", "fever"]
QUERIES = ["what causes the fever", "stone", "when rivers freeze and no one"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, texts: list[str]) -> Path:
    made = tmp_path_factory.mktemp("generator") / "tiny"
    make_tiny_generator(texts, made, seed=3)
    return made


@pytest.fixture(scope="module")
def model(folder: Path) -> Generator:
    return Generator.load(folder, query_length=12)


def batch(model: Generator, texts: list[str], side: str = "passages") -> dict[str, torch.Tensor]:
    return getattr(model, f"tokenize_{side}")(texts).pad(model.tokenizer.pad_id)


def test_surprise_is_that_of_each_token_given_those_before_it(model: Generator, folder: Path) -> None:
    """Against transformers' model, asked for one token after another, without padding."""
    theirs = AutoModelForSeq2SeqLM.from_pretrained(folder).eval()
    with torch.inference_mode():
        surprise, tokens = model(batch(model, QUERIES, "queries"), batch(model, PASSAGES))
        for i, (query, passage) in enumerate(zip(QUERIES, PASSAGES, strict=True)):
            ids, read = batch(model, [query], "queries")["input_ids"][0].tolist(), batch(model, [passage])["input_ids"]
            written, total = [theirs.config.decoder_start_token_id], 0.0
            for token in ids:
                logits = theirs(input_ids=read, decoder_input_ids=torch.tensor([written])).logits[0, -1].double()
                total -= float(logits[token] - logits.logsumexp(0))
                written.append(token)
            assert float(surprise[i]) == pytest.approx(total, rel=1e-5)
            assert float(tokens[i]) == len(ids)


def test_saved_it_is_the_same_with_its_lengths_and_prefix(folder: Path, tmp_path: Path) -> None:
    one = Generator.load(folder, passage_prefix="text2query: ", passage_length=20, query_length=9)
    one.save(tmp_path / "saved")
    again = Generator.load(tmp_path / "saved")
    assert (again.config.passage_prefix, again.config.passage_length, again.config.query_length) == ("text2query: ", 20, 9)
    assert np.array_equal(again.tokenize_passages(PASSAGES).ids, one.tokenize_passages(PASSAGES).ids)
    theirs = AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "saved").eval()
    read = batch(one, PASSAGES)
    with torch.inference_mode():
        assert torch.equal(theirs.get_encoder()(**read).last_hidden_state, one.model.get_encoder()(**read).last_hidden_state)  # type: ignore[operator]


def test_a_length_of_before_is_no_limit(folder: Path, tmp_path: Path) -> None:
    """The length that a folder gives other tools is not the most that its model allows."""
    Generator.load(folder, passage_length=20, query_length=30).save(tmp_path / "short")
    assert Generator.load(tmp_path / "short").config.query_length == 30
    assert Generator.load(tmp_path / "short", passage_length=300).config.passage_length == 300


@pytest.mark.parametrize(("name", "does"), [("decoder_start_token_id", "begins"), ("eos_token_id", "ends")])
def test_a_start_or_end_token_that_another_file_names_or_none(folder: Path, tmp_path: Path, name: str, does: str) -> None:
    shutil.copytree(folder, tmp_path / "m")
    config = json.loads((folder / "config.json").read_text())
    token = config[name]
    (tmp_path / "m/config.json").write_text(json.dumps(config | {name: None}))
    (tmp_path / "m/generation_config.json").write_text(json.dumps({name: token}))
    found = Generator.load(tmp_path / "m")
    assert (found.start_id if does == "begins" else found.end_ids) == (token if does == "begins" else [token])
    (tmp_path / "m/generation_config.json").write_text("{}")
    with pytest.raises(InputError, match=f"has no token that {does} a query"):
        Generator.load(tmp_path / "m")


def test_a_length_that_is_no_number_is_refused(folder: Path, tmp_path: Path) -> None:
    shutil.copytree(folder, tmp_path / "m")
    (tmp_path / "m" / "raydense.json").write_text('{"passage_prefix": "", "passage_length": "128", "query_length": 64}')
    with pytest.raises(InputError, match=r"raydense\.json: passage_length is '128', and no int"):
        Generator.load(tmp_path / "m")


def test_an_encoder_is_refused(tiny_folder: Path, folder: Path) -> None:
    with pytest.raises(InputError, match="is no sequence-to-sequence model; give one such as T5 or BART"):
        Generator.load(tiny_folder)
    with pytest.raises(InputError, match="query_length 600 is more than the 512 tokens of its tokenizer"):
        Generator.load(folder, query_length=600)


def test_the_hash_is_splitmix64() -> None:
    numbers = torch.tensor([0, 1, -1, 2**63 - 1, -(2**63), 123_456_789])
    assert np.array_equal(mixed(numbers).numpy().view(np.uint64), draws.mixed(numbers.numpy().view(np.uint64)))


def test_gumbel_noise_has_its_mean_and_deviation() -> None:
    noise = gumbel(mixed(torch.arange(200_000)))
    assert noise.isfinite().all()
    assert float(noise.mean()) == pytest.approx(np.euler_gamma, abs=0.02)
    assert float(noise.std()) == pytest.approx(np.pi / np.sqrt(6), abs=0.02)


@given(st.integers(0, 10_000), st.sampled_from([0, 1, 3, 8]), st.sampled_from([0.05, 0.5, 0.9, 1.0]), st.sampled_from([0.5, 1.0, 2.0]))
def test_tokens_are_drawn_from_those_that_transformers_keeps(seed: int, top_k: int, top_p: float, temperature: float) -> None:
    logits = torch.randn(20, generator=torch.Generator().manual_seed(seed)) * 2
    kept = logits[None] / temperature
    kept = TopKLogitsWarper(top_k)(None, kept) if top_k else kept  # type: ignore[arg-type]
    kept = TopPLogitsWarper(top_p)(None, kept)[0] if top_p < 1 else kept[0]  # type: ignore[arg-type]
    streams = mixed(torch.arange(20_000) + seed)
    drawn = draw(logits.expand(len(streams), -1), streams, top_p, top_k, temperature)
    shares = torch.bincount(drawn, minlength=20) / len(streams)
    assert set(drawn.tolist()) <= set(np.flatnonzero(kept.isfinite()).tolist())
    assert float((shares - kept.softmax(0)).abs().max()) < 0.02, "five standard deviations of a share of 0.5"


def test_what_is_drawn_for_a_passage_is_its_own(model: Generator) -> None:
    """Alone, among others, in another order: the same queries; with another key, others."""
    keys = torch.tensor([5, 6, 7])
    with torch.inference_mode():
        together = sample_queries(model, batch(model, PASSAGES), keys, 4)
        reversed_order = sample_queries(model, batch(model, PASSAGES[::-1]), keys.flip(0), 4).flip(0)
        alone = torch.cat([sample_queries(model, batch(model, [p]), keys[i : i + 1], 4) for i, p in enumerate(PASSAGES)])
        other = sample_queries(model, batch(model, PASSAGES), keys + 1, 4)
        fewer = sample_queries(model, batch(model, PASSAGES), keys, 2)
    assert together.shape == (3, 4, 12)
    assert torch.equal(together, reversed_order)
    assert torch.equal(together, alone)
    assert torch.equal(together[:, :2], fewer)
    assert not torch.equal(together, other)
    assert len({tuple(q) for q in together[0].tolist()}) == 4


def test_numbers_that_are_none_are_refused(folder: Path) -> None:
    broken = Generator.load(folder, query_length=12)
    with torch.no_grad():
        next(broken.model.get_encoder().parameters()).fill_(float("nan"))  # type: ignore[operator]
    with torch.inference_mode(), pytest.raises(InputError, match=r"^the model gives numbers that are not finite; give --precision fp32"):
        sample_queries(broken, batch(broken, PASSAGES), torch.arange(3), 2)


def test_nothing_follows_the_end(model: Generator) -> None:
    keys = torch.arange(40)
    with torch.inference_mode():
        drawn = sample_queries(model, batch(model, ["fever"] * 40), keys, 3, top_k=0, top_p=1.0, temperature=50.0).flatten(0, 1)
    (end,) = model.end_ids
    ended = [row for row in drawn.tolist() if end in row]
    assert ended
    for row in ended:
        assert set(row[row.index(end) + 1 :]) <= {model.tokenizer.pad_id}
    assert all("[SEP]" not in text and "[PAD]" not in text for text in decode(model.tokenizer, drawn))


def test_the_likeliest_is_what_transformers_writes_greedily(model: Generator) -> None:
    read = batch(model, PASSAGES)
    with torch.inference_mode():
        drawn = sample_queries(model, read, torch.arange(3), 1, top_k=1)[:, 0]
        theirs = model.model.generate(**read, do_sample=False, max_new_tokens=12)[:, 1:]  # type: ignore[operator]
    assert torch.equal(drawn[:, : theirs.shape[1]], theirs)


def test_bart_too(tmp_path: Path, folder: Path) -> None:
    """Another family: positions of its own, and a start token that is not the padding."""
    tokenizer = BertTokenizer.from_pretrained(folder)
    sizes = {"d_model": 16, "encoder_layers": 1, "decoder_layers": 1, "encoder_attention_heads": 2, "decoder_attention_heads": 2}
    tokens = {"pad_token_id": tokenizer.pad_token_id, "eos_token_id": tokenizer.sep_token_id, "bos_token_id": tokenizer.cls_token_id}
    config = BartConfig(vocab_size=len(tokenizer), encoder_ffn_dim=32, decoder_ffn_dim=32, max_position_embeddings=64, **sizes, **tokens)
    config.decoder_start_token_id, config.forced_eos_token_id = tokenizer.sep_token_id, None
    BartForConditionalGeneration(config).save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    bart = Generator.load(tmp_path, passage_length=40, query_length=10)
    read = batch(bart, PASSAGES)
    with torch.inference_mode():
        drawn = sample_queries(bart, read, torch.arange(3), 1, top_k=1)[:, 0]
        theirs = bart.model.generate(**read, do_sample=False, max_new_tokens=10)[:, 1:]  # type: ignore[operator]
    assert torch.equal(drawn[:, : theirs.shape[1]], theirs)
    with pytest.raises(InputError, match="passage_length 128 is more than the 64 positions"):
        Generator.load(tmp_path)


def test_the_same_texts_and_seed_make_the_same_generator(texts: list[str], folder: Path, tmp_path: Path) -> None:
    make_tiny_generator(texts, tmp_path / "again", seed=3)
    for name in ("model.safetensors", "config.json", "tokenizer.json"):
        assert (tmp_path / "again" / name).read_bytes() == (folder / name).read_bytes()
    assert json.loads((folder / "config.json").read_text())["is_encoder_decoder"]
