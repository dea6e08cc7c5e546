"""The re-ranker against the real sentence-transformers CrossEncoder, and what it refuses."""

import json
import shutil

import numpy as np
import pytest
import torch
from sentence_transformers import CrossEncoder as TheirCrossEncoder
from transformers import AutoTokenizer, BertConfig, BertForSequenceClassification, Qwen2Config, Qwen2Model

from raydense.errors import InputError
from raydense.models.cross_encoder import CrossEncoder, load_pair_tokenizer
from raydense.models.dual_encoder import DualEncoder


def scores(model: CrossEncoder, queries: list[str], passages: list[str]) -> np.ndarray:
    with torch.no_grad():
        return model(model.tokenize_pairs(queries, passages).pad(model.tokenizer.pad_id)).numpy()


def fresh(folder, seed=0, **kwargs) -> CrossEncoder:
    torch.manual_seed(seed)
    return CrossEncoder.load(folder, **kwargs)


@pytest.fixture(scope="module")
def queries(texts) -> list[str]:
    return [texts[1 + i % 5] for i in range(len(texts))]


def test_ours_gives_the_same_scores_in_sentence_transformers(tiny_folder, texts, queries, tmp_path):
    model = fresh(tiny_folder, length=48)
    with torch.no_grad():
        model.model.classifier.weight.mul_(50)
    model.save(tmp_path)
    ours = scores(model, queries, texts)
    theirs = TheirCrossEncoder(str(tmp_path), device="cpu", local_files_only=True)
    np.testing.assert_allclose(theirs.predict(list(zip(queries, texts, strict=True))), ours, atol=1e-5)
    of_long_queries = theirs.predict(list(zip(texts, queries, strict=True)))
    np.testing.assert_allclose(of_long_queries, scores(model, texts, queries), atol=1e-5)
    assert ours.std() > 0.001  # far more than the tolerance above
    assert np.ptp(ours) > 0
    again = CrossEncoder.load(tmp_path)
    assert again.length == 48
    for (name, kept), saved in zip(again.model.state_dict().items(), model.model.state_dict().values(), strict=True):
        assert torch.equal(kept, saved), name
    np.testing.assert_allclose(scores(again, queries, texts), ours, atol=1e-6)  # where weights lie in memory may change the last bits


def test_a_cross_encoder_with_a_prompt_is_refused(tiny_folder, tmp_path):
    fresh(tiny_folder, length=48).save(tmp_path)
    (tmp_path / "config_sentence_transformers.json").write_text(json.dumps({"prompts": {"q": "find: "}, "default_prompt_name": "q"}))
    with pytest.raises(InputError, match="puts the prompt 'q' before its texts; write it into the texts"):
        load_pair_tokenizer(tmp_path)
    (tmp_path / "config_sentence_transformers.json").write_text(json.dumps({"prompts": {"q": "find: "}, "default_prompt_name": None}))
    assert load_pair_tokenizer(tmp_path).length == 48


def test_a_decoder_gets_the_padding_token_of_its_tokenizer(tiny_folder, texts, queries, tmp_path):
    torch.manual_seed(5)
    tokenizer = AutoTokenizer.from_pretrained(str(tiny_folder), local_files_only=True)
    size = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 2, "intermediate_size": 64}
    Qwen2Model(Qwen2Config(vocab_size=len(tokenizer), max_position_embeddings=300, pad_token_id=None, **size)).save_pretrained(
        str(tmp_path)
    )
    tokenizer.save_pretrained(str(tmp_path))
    model = fresh(tmp_path, length=48)
    together = scores(model, queries, texts)
    alone = np.concatenate([scores(model, [query], [text]) for query, text in zip(queries, texts, strict=True)])
    np.testing.assert_allclose(together, alone, atol=1e-5)


def test_theirs_gives_the_same_scores_in_ours(tiny_folder, texts, queries, tmp_path):
    torch.manual_seed(5)
    size = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 64, "max_position_embeddings": 300}
    tokenizer = AutoTokenizer.from_pretrained(str(tiny_folder), local_files_only=True)
    config = BertConfig(vocab_size=len(tokenizer), num_labels=1, initializer_range=0.5, **size)
    BertForSequenceClassification(config).save_pretrained(str(tmp_path))
    tokenizer.save_pretrained(str(tmp_path))
    theirs = TheirCrossEncoder(str(tmp_path), device="cpu", local_files_only=True)
    wanted = theirs.predict(list(zip(queries, texts, strict=True)), activation_fn=torch.nn.Identity())
    model = CrossEncoder.load(tmp_path)
    assert model.length == 300
    np.testing.assert_allclose(scores(model, queries, texts), wanted, atol=1e-5)


def test_a_length_of_their_folder_is_read_as_they_read_it(tiny_folder, texts, queries, tmp_path):
    fresh(tiny_folder, length=48).save(tmp_path / "ours")
    theirs = TheirCrossEncoder(str(tmp_path / "ours"), device="cpu", local_files_only=True)
    theirs[0].processing_kwargs = {"text": {"max_length": 20}}
    theirs.save(str(tmp_path / "theirs"))
    model = CrossEncoder.load(tmp_path / "theirs")
    assert model.length == 20
    np.testing.assert_allclose(scores(model, queries, texts), theirs.predict(list(zip(queries, texts, strict=True))), atol=1e-5)


def test_a_new_head_is_drawn_from_the_seed_over_the_encoder_of_the_folder(tiny_folder):
    one, same, other = fresh(tiny_folder, 1), fresh(tiny_folder, 1), fresh(tiny_folder, 2)
    for (name, a), b, c in zip(one.model.named_parameters(), same.model.parameters(), other.model.parameters(), strict=True):
        assert torch.equal(a, b), name
        head = name.startswith("classifier.weight") or name == "bert.pooler.dense.weight"
        assert torch.equal(a, c) != head, name
    encoder = DualEncoder.load(tiny_folder).encoder.state_dict()
    inner = one.model.bert.state_dict()
    assert all(torch.equal(inner[name], weight) for name, weight in encoder.items())


def test_separate_encoders_give_the_passage_encoder(tiny_folder, tmp_path):
    dual = DualEncoder.load(tiny_folder, shared=False, passage_length=60)
    with torch.no_grad():
        dual.encoder.embeddings.word_embeddings.weight.add_(1)
    dual.save(tmp_path)
    model = fresh(tmp_path)
    assert torch.equal(model.model.bert.embeddings.word_embeddings.weight, dual.encoder.embeddings.word_embeddings.weight)
    assert model.length == 60


def test_every_weight_gets_a_gradient_and_dropout_is_set(tiny_folder, texts, queries):
    model = fresh(tiny_folder, dropout=0.2).train()
    assert {m.p for m in model.modules() if isinstance(m, torch.nn.Dropout)} == {0.2}
    model(model.tokenize_pairs(queries, texts).pad(0)).sum().backward()
    assert [n for n, p in model.named_parameters() if p.grad is None] == []


def test_padding_changes_no_score(tiny_folder, texts, queries):
    model = fresh(tiny_folder)
    alone = np.concatenate([scores(model, [q], [t]) for q, t in zip(queries, texts, strict=True)])
    np.testing.assert_allclose(scores(model, queries, texts), alone, atol=2e-6)


def test_a_length_override_wins(tiny_folder, tmp_path):
    fresh(tiny_folder, length=40).save(tmp_path)
    assert CrossEncoder.load(tmp_path, length=24).length == 24
    assert load_pair_tokenizer(tmp_path).length == 40


def test_a_pair_length_that_is_no_number_is_refused(tiny_folder, tmp_path):
    fresh(tiny_folder, length=40).save(tmp_path)
    (tmp_path / "raydense.json").write_text('{"pair_length": [40]}')
    with pytest.raises(InputError, match=r"raydense\.json: pair_length is \[40\], and no int"):
        load_pair_tokenizer(tmp_path)


def test_several_labels_are_refused(tiny_folder, tmp_path):
    fresh(tiny_folder).save(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    config.update(id2label={"0": "no", "1": "yes"}, label2id={"no": 0, "yes": 1})
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(InputError, match="head gives 2 labels; give a cross-encoder of one score"):
        CrossEncoder.load(tmp_path)


def test_missing_layers_are_refused_for_an_encoder_too(tiny_folder, tmp_path):
    shutil.copytree(tiny_folder, tmp_path / "m")
    config = json.loads((tmp_path / "m" / "config.json").read_text())
    (tmp_path / "m" / "config.json").write_text(json.dumps({**config, "num_hidden_layers": 3}))
    with pytest.raises(InputError, match="weights are missing"):
        CrossEncoder.load(tmp_path / "m")


def test_a_re_ranker_is_no_retriever_and_a_word_is_no_name_of_the_hub(tiny_folder, tmp_path):
    fresh(tiny_folder).save(tmp_path)
    with pytest.raises(InputError, match="not what this raydense writes for an encoder"):
        DualEncoder.load(tmp_path)
    with pytest.raises(InputError, match="no such model folder"):
        CrossEncoder.load("ms-marco-MiniLM-L6-v2")
