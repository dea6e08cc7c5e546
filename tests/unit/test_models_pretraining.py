"""The models of pre-training against a NumPy reading of BERT, of Condenser's head and of CoT-MAE's decoder, text by text."""

import shutil
from contextlib import contextmanager

import numpy as np
import pytest
import torch
from scipy.special import erf
from transformers import (
    AlbertConfig,
    AlbertModel,
    AutoModel,
    BertConfig,
    BertForMaskedLM,
    DistilBertConfig,
    DistilBertForMaskedLM,
    ElectraConfig,
    ElectraForMaskedLM,
    ModernBertConfig,
    MPNetConfig,
    MPNetForMaskedLM,
    PreTrainedTokenizerFast,
    RobertaConfig,
    RobertaForMaskedLM,
)

from raydense.errors import InputError
from raydense.models.dual_encoder import DualEncoder
from raydense.models.losses import masked_tokens, span_contrastive
from raydense.models.masking import NOT_MASKED
from raydense.models.mlm_head import input_embeddings
from raydense.models.pretraining import Condenser, CotMae, PretrainModel, run_layers
from raydense.training.activation_checkpointing import checkpoint_activations
from raydense.training.engine import make_engine
from raydense.training.settings import TrainSettings
from raydense.training.step import forward_and_backward

KINDS = {"mlm": PretrainModel, "condenser": Condenser, "cotmae": CotMae}
SMALL = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64}
FAMILIES = {
    "bert": (BertForMaskedLM, BertConfig, SMALL),
    "roberta": (RobertaForMaskedLM, RobertaConfig, {**SMALL, "pad_token_id": 0}),
    "mpnet": (MPNetForMaskedLM, MPNetConfig, {**SMALL, "pad_token_id": 0}),
    "electra": (ElectraForMaskedLM, ElectraConfig, {**SMALL, "embedding_size": 32}),
    "distilbert": (DistilBertForMaskedLM, DistilBertConfig, {"dim": 32, "n_layers": 2, "n_heads": 2, "hidden_dim": 64}),
}


@pytest.fixture(scope="module")
def family_folders(tiny_folder, tmp_path_factory):
    """A folder of each family, with its head for masked tokens, whose bias is not zero."""
    tokenizer = PreTrainedTokenizerFast.from_pretrained(str(tiny_folder))
    root = tmp_path_factory.mktemp("families")
    for name, (model, config, shape) in FAMILIES.items():
        torch.manual_seed(5)
        whole = model(config(vocab_size=len(tokenizer), **shape))
        torch.nn.init.normal_(whole.get_output_embeddings().bias)
        whole.save_pretrained(str(root / name))
        tokenizer.save_pretrained(str(root / name))
    return root


def loaded(kind, folder, **changes):
    torch.manual_seed(2)
    model = KINDS[kind].load(folder, passage_length=60, **changes)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if not name.startswith("retriever."):
                parameter.add_(torch.randn_like(parameter), alpha=0.1)  # else a bias or a norm that is left out would show nowhere
    return model


def masked_batch(model, texts, share=0.3, seed=0):
    tokens = model.tokenizer.passages(texts)
    batch = tokens.pad(model.tokenizer.pad_id)
    return model.mask(batch, share, torch.tensor(np.random.default_rng(seed).random((len(texts), 60))))


def both(model, texts, n=6):
    """Passages, and as many contexts of other lengths."""
    return {"passages": masked_batch(model, texts[3 : 3 + n]), "contexts": masked_batch(model, texts[1 : 1 + n], 0.45, 1)}


def given(kind, model, texts):
    return {"passages": both(model, texts)["passages"]} if kind == "mlm" else both(model, texts)


def arrays(module):
    return {name: value.detach().double().numpy() for name, value in module.state_dict().items()}


def normed(x, w, name, eps):
    mean = x.mean(axis=-1, keepdims=True)
    return (x - mean) / np.sqrt(((x - mean) ** 2).mean(axis=-1, keepdims=True) + eps) * w[f"{name}.weight"] + w[f"{name}.bias"]


def linear(x, w, name):
    return x @ w[f"{name}.weight"].T + w[f"{name}.bias"]


def gelu(x):
    return x * 0.5 * (1 + erf(x / np.sqrt(2)))


def layer_reading(x, projections, w, names, heads, eps=1e-12):
    """Attention, add and norm, feed forward, add and norm (Vaswani et al. 2017), of one text without padding."""
    out, norm1, up, down, norm2 = names
    size = x.shape[1] // heads
    found = []
    for h in range(heads):
        q, k, v = (p[:, h * size : (h + 1) * size] for p in projections)
        scores = q @ k.T / np.sqrt(size)
        share = np.exp(scores - scores.max(axis=1, keepdims=True))
        found.append(share / share.sum(axis=1, keepdims=True) @ v)
    x = normed(x + linear(np.hstack(found), w, out), w, norm1, eps)
    return normed(x + linear(gelu(linear(x, w, up)), w, down), w, norm2, eps)


def embeddings_reading(ids, w):
    places = w["embeddings.position_embeddings.weight"][: len(ids)] + w["embeddings.token_type_embeddings.weight"][0]
    return normed(w["embeddings.word_embeddings.weight"][ids] + places, w, "embeddings.LayerNorm", 1e-12)


def states_reading(ids, model):
    """h^0 .. h^L of one text by the weights of its BERT."""
    w, heads = arrays(model.retriever.encoder), model.retriever.encoder.config.num_attention_heads
    states = [embeddings_reading(ids, w)]
    for i in range(model.retriever.encoder.config.num_hidden_layers):
        at = f"encoder.layer.{i}."
        projections = [linear(states[-1], w, f"{at}attention.self.{n}") for n in ("query", "key", "value")]
        parts = ("attention.output.dense", "attention.output.LayerNorm", "intermediate.dense", "output.dense", "output.LayerNorm")
        states.append(layer_reading(states[-1], projections, w, [at + n for n in parts], heads))
    return states


def layers_reading(x, layers, heads):
    w = arrays(layers)
    for i in range(len(layers.layers)):
        at = f"layers.{i}."
        projections = np.split(x @ w[f"{at}self_attn.in_proj_weight"].T + w[f"{at}self_attn.in_proj_bias"], 3, axis=1)
        x = layer_reading(x, projections, w, [at + n for n in ("self_attn.out_proj", "norm1", "linear1", "linear2", "norm2")], heads)
    return x


def shares_reading(states, model):
    """The softmax of phi over the vocabulary, of each state; and its log."""
    w, table = arrays(model.mlm_head), arrays(model.retriever.encoder)["embeddings.word_embeddings.weight"]
    logits = normed(gelu(linear(states, w, "dense")), w, "norm", 1e-12) @ table.T + w["bias"]
    top = logits.max(axis=-1, keepdims=True)
    log = logits - top - np.log(np.exp(logits - top).sum(axis=-1, keepdims=True))
    return np.exp(log), log


def likelihood_reading(states, labels, model):
    chosen = np.flatnonzero(labels != NOT_MASKED)
    return shares_reading(states[chosen], model)[1][np.arange(len(chosen)), labels[chosen]].sum()


def each_text(batch):
    """Ids and labels of each text without its padding."""
    for ids, real, labels in zip(batch["input_ids"], batch["attention_mask"], batch["labels"], strict=True):
        yield ids[real != 0].numpy(), labels[real != 0].numpy()


def assert_same(got, wanted):
    np.testing.assert_allclose(got.detach().numpy(), wanted, rtol=1e-9, atol=1e-9)


def test_mlm_is_the_reading(tiny_folder, texts):
    model = loaded("mlm", tiny_folder).double()
    batch = masked_batch(model, texts[:9])
    assert (batch["labels"] == NOT_MASKED).all(dim=1).any(), "a text with nothing masked is among them"
    (found,) = model(passages=batch)
    wanted = [((b != NOT_MASKED).sum(), likelihood_reading(states_reading(a, model)[-1], b, model)) for a, b in each_text(batch)]
    assert_same(found, np.array(wanted))


@pytest.mark.parametrize(("skip_from", "layers"), [(None, 2), (0, 1), (1, 3)])
def test_condenser_is_the_reading(tiny_folder, texts, skip_from, layers):
    model = loaded("condenser", tiny_folder, skip_from=skip_from, layers=layers).double()
    below = 1 if skip_from is None else skip_from
    assert (model.skip_from, len(model.head.layers)) == (below, layers)
    batches = both(model, texts)
    for batch, found in zip(batches.values(), model(**batches), strict=True):
        wanted = []
        for ids, labels in each_text(batch):
            states = states_reading(ids, model)
            again = layers_reading(np.concatenate([states[-1][:1], states[below][1:]]), model.head, 4)
            late, aux = (likelihood_reading(s, labels, model) for s in (states[-1], again))
            wanted.append([(labels != NOT_MASKED).sum(), late, aux, *states[-1][0]])
        assert_same(found, np.array(wanted))


def test_cotmae_is_the_reading(tiny_folder, texts):
    model = loaded("cotmae", tiny_folder).double()
    batches = both(model, texts)
    of_x, of_y = model(**batches)
    wanted_x, wanted_y = [], []
    for (x, x_labels), (y, y_labels) in zip(*map(each_text, batches.values()), strict=True):
        states = states_reading(x, model)[-1]
        embedded = embeddings_reading(y, arrays(model.retriever.encoder))
        decoded = layers_reading(np.concatenate([states[:1], embedded[1:]]), model.decoder, 4)
        wanted_x.append([(x_labels != NOT_MASKED).sum(), likelihood_reading(states, x_labels, model)])
        wanted_y.append([(y_labels != NOT_MASKED).sum(), likelihood_reading(decoded, y_labels, model)])
    assert_same(of_x, np.array(wanted_x))
    assert_same(of_y, np.array(wanted_y))


def test_the_gradient_of_the_cross_entropy_is_softmax_minus_one_hot(tiny_folder, texts):
    """By the bias of the head, which is added to the logits; the mean over the masked tokens of all texts."""
    model = loaded("mlm", tiny_folder).double()
    batch = masked_batch(model, texts[:9])
    (found,) = model(passages=batch)
    masked_tokens(found[:, 1], found[:, 0]).backward()
    wanted, count = 0.0, 0
    for ids, labels in each_text(batch):
        chosen = np.flatnonzero(labels != NOT_MASKED)
        share, _ = shares_reading(states_reading(ids, model)[-1][chosen], model)
        share[np.arange(len(chosen)), labels[chosen]] -= 1
        wanted, count = wanted + share.sum(axis=0), count + len(chosen)
    np.testing.assert_allclose(model.mlm_head.bias.grad.numpy(), wanted / count, rtol=1e-6, atol=1e-12)


def test_twelve_layers_skip_from_the_sixth(tiny_folder, tmp_path):
    BertForMaskedLM(BertConfig(vocab_size=99, **{**SMALL, "num_hidden_layers": 12})).save_pretrained(str(tmp_path))
    PreTrainedTokenizerFast.from_pretrained(str(tiny_folder)).save_pretrained(str(tmp_path))
    assert Condenser.load(tmp_path).skip_from == 6


@contextmanager
def outputs_of(layers, change=lambda i, states: states):
    """What each layer gives, changed on its way."""
    found = {}

    def hook(i):
        def run(module, inputs, states):
            found[i] = change(i, states)
            if found[i].requires_grad:
                found[i].retain_grad()
            return found[i]

        return run

    handles = [layer.register_forward_hook(hook(i + 1)) for i, layer in enumerate(layers)]
    try:
        yield found
    finally:
        for handle in handles:
            handle.remove()


def test_the_head_hears_of_the_late_layers_through_the_cls_alone(tiny_folder, texts):
    model = loaded("condenser", tiny_folder)
    batch = both(model, texts)["passages"]
    with outputs_of(model.retriever.encoder.encoder.layer) as states:
        (found,) = model(passages=batch)
    found[:, 2].sum().backward()
    real = batch["attention_mask"] != 0
    masked_texts = (batch["labels"] != NOT_MASKED).any(dim=1)
    assert masked_texts.sum() > 2
    assert (states[2].grad[masked_texts, 0].abs().sum(dim=1) > 0).all()
    assert not states[2].grad[:, 1:].any()
    assert (states[1].grad[masked_texts].abs().sum(dim=2) > 0)[real[masked_texts]].all()
    # cut the way through the late layers: what is left comes by the skip, which leaves the early [CLS] out
    model.zero_grad()
    with outputs_of(model.retriever.encoder.encoder.layer, lambda i, s: s.detach() if i == 2 else s) as states:
        (found,) = model(passages=batch)
    found[:, 2].sum().backward()
    assert not states[1].grad[:, 0].any()
    assert (states[1].grad[masked_texts, 1].abs().sum(dim=1) > 0).all()


def test_the_decoder_sees_nothing_of_the_passage_but_its_cls(tiny_folder, texts):
    model = loaded("cotmae", tiny_folder)
    batches = both(model, texts)
    with outputs_of(model.retriever.encoder.encoder.layer) as states:
        _, of_y = model(**batches)
    of_y[:, 1].sum().backward()
    assert (states[2].grad[:, 0].abs().sum(dim=1) > 0)[of_y[:, 0] > 0].all()
    assert not states[2].grad[:, 1:].any()
    cls = torch.randn(6, 128)

    def same_cls(i, states):
        return torch.cat([cls.unsqueeze(1), states[:, 1:]], dim=1) if i == 2 else states

    found = []
    for passages in (batches["passages"], masked_batch(model, texts[20:26])):
        with outputs_of(model.retriever.encoder.encoder.layer, same_cls):
            found.append(model(passages=passages, contexts=batches["contexts"]))
    assert not torch.equal(found[0][0][:, 1], found[1][0][:, 1])
    assert torch.equal(found[0][1], found[1][1])
    assert not torch.allclose(found[0][1][:, 1], of_y[:, 1])


def test_logits_are_made_for_masked_tokens_only(tiny_folder, texts):
    model = loaded("condenser", tiny_folder)
    batch = both(model, texts)["passages"]
    shapes = []
    model.mlm_head.register_forward_hook(lambda module, inputs, logits: shapes.append(tuple(logits.shape)))
    model(passages=batch)
    masked, vocabulary = int((batch["labels"] != NOT_MASKED).sum()), model.retriever.encoder.config.vocab_size
    assert shapes == [(masked, vocabulary)] * 2


@pytest.mark.parametrize("kind", KINDS)
def test_dropping_the_heads_leaves_the_encoder_as_it_is(tiny_folder, texts, tmp_path, kind):
    model = loaded(kind, tiny_folder).train()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(2):
        loss = sum(masked_tokens(o[:, 1], o[:, 0]) for o in model(**given(kind, model, texts)))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    model.eval().save(tmp_path)
    plain = both(model, texts)["passages"]
    with torch.no_grad():
        wanted = model.retriever.encoder(plain["input_ids"], attention_mask=plain["attention_mask"]).last_hidden_state
        for encoder in (
            AutoModel.from_pretrained(str(tmp_path), local_files_only=True, add_pooling_layer=False),
            DualEncoder.load(tmp_path).encoder,
        ):
            assert torch.equal(encoder.eval()(plain["input_ids"], attention_mask=plain["attention_mask"]).last_hidden_state, wanted)
            assert encoder.state_dict().keys() == model.retriever.encoder.state_dict().keys()
    before = DualEncoder.load(tiny_folder)
    assert not torch.equal(before.encoder.get_input_embeddings().weight, encoder.get_input_embeddings().weight)
    config = DualEncoder.load(tmp_path).config
    assert (config.pooling, config.passage_length) == ("mean" if kind == "mlm" else "cls", 60)
    assert {p.name for p in tmp_path.iterdir()} == {p.name for p in tiny_folder.iterdir()}


@pytest.mark.parametrize("family", FAMILIES)
def test_the_head_of_a_folder_gives_its_family_s_own_logits(family_folders, texts, family):
    folder = family_folders / family
    theirs = FAMILIES[family][0].from_pretrained(str(folder), local_files_only=True).eval()
    model = PretrainModel.load(folder, passage_length=60)
    batch = masked_batch(model, texts[:9])
    masked = batch["labels"] != NOT_MASKED
    with torch.no_grad():
        ours = model.mlm_head(model.states(batch)[-1][masked], input_embeddings(model.retriever.encoder))
        wanted = theirs(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"]).logits[masked]
    torch.testing.assert_close(ours, wanted, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("family", FAMILIES)
def test_every_weight_of_any_family_learns(family_folders, texts, family, kind):
    model = KINDS[kind].load(family_folders / family, passage_length=19, dropout=0.0)
    found = model(**given(kind, model, texts))
    sum(o.sum() for o in found).backward()
    idle = [n for n, p in model.named_parameters() if p.grad is None or not torch.isfinite(p.grad).all()]
    assert not idle


@pytest.mark.parametrize("dropout", [0.0, 0.25])
@pytest.mark.parametrize("family", [*FAMILIES, "modernbert"])
def test_the_layers_of_a_head_have_the_dropout_that_is_asked_for(family_folders, tiny_folder, tmp_path, family, dropout):
    folder = family_folders / family
    if family == "modernbert":
        folder = tmp_path
        tokenizer = PreTrainedTokenizerFast.from_pretrained(str(tiny_folder))
        AutoModel.from_config(ModernBertConfig(vocab_size=len(tokenizer), pad_token_id=0, **SMALL)).save_pretrained(str(folder))
        tokenizer.save_pretrained(str(folder))
    head = Condenser.load(folder, passage_length=19, dropout=dropout).head
    found = {m.p for m in head.modules() if isinstance(m, torch.nn.Dropout)} | {layer.self_attn.dropout for layer in head.layers}
    assert found == {dropout}


def test_a_folder_without_a_head_gets_a_new_one_from_torch_s_random_state(tiny_folder):
    def weights(seed):
        torch.manual_seed(seed)
        return Condenser.load(tiny_folder).state_dict()

    one, same, other = weights(1), weights(1), weights(2)
    new = {n for n in one if n.startswith(("mlm_head.", "head."))}
    assert all(torch.equal(one[n], same[n]) for n in one)
    drawn = {n for n in new if one[n].dim() > 1}
    assert {n for n in one if not torch.equal(one[n], other[n])} == drawn
    assert len(drawn) == 1 + 2 * 4
    assert all(0.018 < one[n].std() < 0.022 and abs(one[n].mean()) < 0.002 for n in drawn)
    assert all(bool((one[n] == (1 if "norm" in n and n.endswith("weight") else 0)).all()) for n in new - drawn)


class Sum:
    """The losses of all outputs, with coCondenser's over the [CLS] where they have them."""

    def __init__(self, settings):
        self.settings = settings

    def loss(self, outputs, batch):
        loss = sum(masked_tokens(o[:, c], o[:, 0]) for o in outputs for c in range(1, min(3, o.shape[1])))
        if outputs[0].shape[1] > 3:
            spans = torch.nn.functional.normalize(torch.cat([o[:, 3:] for o in outputs]), dim=1)
            own = torch.arange(len(spans))
            loss = loss + span_contrastive(spans @ spans.T, own.roll(len(spans) // 2), torch.eye(len(spans), dtype=torch.bool), 0.1)
        return loss, {}


def gradients(model, folder, batches, pieces=1):
    model.zero_grad()
    asked = TrainSettings(
        objective="retriever", engine={"name": "ddp"}, corpus="c", queries="q", examples="e", model=str(folder), output="o"
    )
    engine = make_engine(model.train(), asked, torch.device("cpu"), "fp32", pieces)
    metrics = forward_and_backward(engine, Sum(asked), batches, pieces, list(range(pieces)))
    return metrics["loss"], {n: p.grad.clone() for n, p in model.named_parameters()}


@pytest.mark.parametrize("kind", KINDS)
def test_pieces_and_recomputed_activations_give_the_gradients_of_the_whole(tiny_folder, texts, kind):
    model = loaded(kind, tiny_folder)
    batches = given(kind, model, texts)
    loss, wanted = gradients(model, tiny_folder, batches)
    cases = [gradients(model, tiny_folder, batches, 4)]
    checkpoint_activations(model)
    cases.append(gradients(model, tiny_folder, batches))
    for value, found in cases:
        assert value.item() == pytest.approx(loss.item(), rel=1e-5)
        for name, gradient in found.items():
            torch.testing.assert_close(gradient, wanted[name], rtol=1e-3, atol=2e-6, msg=lambda m, name=name: f"{name}: {m}")


@pytest.mark.parametrize("kind", KINDS)
def test_nothing_masked_costs_nothing(tiny_folder, texts, kind):
    model = loaded(kind, tiny_folder)
    batches = {n: {**b, "labels": torch.full_like(b["labels"], NOT_MASKED)} for n, b in given(kind, model, texts).items()}
    found = model(**batches)
    loss = sum(masked_tokens(o[:, 1], o[:, 0]) for o in found)
    loss.backward()
    assert loss.item() == 0.0
    assert all(not p.grad.any() for p in model.parameters() if p.grad is not None)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_extreme_weights_and_half_precision_give_numbers(tiny_folder, texts, kind, dtype):
    model = loaded(kind, tiny_folder).train()
    with torch.no_grad():
        model.mlm_head.norm.weight.mul_(1e3)
        model.mlm_head.bias.mul_(1e5)
    with torch.autocast("cpu", torch.bfloat16, enabled=dtype == torch.bfloat16):
        found = model(**given(kind, model, texts))
    sum(o.sum() for o in found).backward()
    assert all(o.dtype == torch.float32 and torch.isfinite(o).all() and (o[:, 1] <= 0).all() for o in found)
    assert max(-o[:, 1].min() for o in found) > 1e3
    assert all(torch.isfinite(p.grad).all() for p in model.parameters())


def test_padding_is_never_attended_to(tiny_folder, texts):
    model = loaded("condenser", tiny_folder)
    mask = torch.tensor([[1, 1, 1, 0]])
    first, states = torch.randn(1, 128), torch.randn(1, 4, 128)
    other = torch.cat([states[:, :3], torch.randn(1, 1, 128)], dim=1)
    assert torch.equal(*(run_layers(model.head, first, s, mask)[:, :3] for s in (states, other)))


def test_what_does_not_fit_is_refused(tiny_folder, tmp_path):
    for skip_from in (-1, 2):
        with pytest.raises(InputError, match=r"skip_from .* make it smaller"):
            Condenser.load(tiny_folder, skip_from=skip_from)
    DualEncoder.load(tiny_folder, shared=False).save(tmp_path / "two")
    with pytest.raises(InputError, match="two separate encoders"):
        PretrainModel.load(tmp_path / "two")
    tokenizer = PreTrainedTokenizerFast.from_pretrained(str(tiny_folder))
    AlbertModel(AlbertConfig(vocab_size=len(tokenizer), embedding_size=16, **SMALL)).save_pretrained(str(tmp_path / "albert"))
    tokenizer.save_pretrained(str(tmp_path / "albert"))
    with pytest.raises(InputError, match="cotmae cannot use the embeddings of albert"):
        CotMae.load(tmp_path / "albert")
    assert Condenser.load(tmp_path / "albert").mlm_head.dense.out_features == 16
    shutil.copytree(tiny_folder, tmp_path / "unmasked")
    tokenizer.mask_token = None
    tokenizer.save_pretrained(str(tmp_path / "unmasked"))
    with pytest.raises(InputError, match="no mask token"):
        PretrainModel.load(tmp_path / "unmasked")
