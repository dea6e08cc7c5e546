import hashlib
from pathlib import Path

import torch
from transformers import AutoModel

from raydense.models.dual_encoder import DualEncoder
from raydense.models.tiny import make_tiny_encoder, make_vocabulary


def digests(folder: Path) -> dict[str, str]:
    files = sorted(p for p in folder.rglob("*") if p.is_file())
    return {str(p.relative_to(folder)): hashlib.sha256(p.read_bytes()).hexdigest() for p in files}


def test_another_seed_gives_other_weights_and_leaves_torch_alone(tiny_folder, texts, tmp_path):
    torch.manual_seed(1)
    wanted = torch.rand(3)
    torch.manual_seed(1)
    make_tiny_encoder(texts, tmp_path, seed=4)
    assert torch.equal(torch.rand(3), wanted)
    differing = {name for name, digest in digests(tmp_path).items() if digest != digests(tiny_folder)[name]}
    assert differing == {"model.safetensors"}


def test_every_vocabulary_has_single_characters_of_any_script(texts):
    vocabulary = make_vocabulary([*texts, "Élan vital", "北京 的 冬天"])
    assert {"e", "##e", "##l", "北", "[PAD]", "[MASK]"} <= vocabulary.keys()
    assert sorted(vocabulary.values()) == list(range(len(vocabulary)))
    assert vocabulary["[PAD]"] == 0
    assert not any(
        c.isspace() or c.isupper() for piece in vocabulary.keys() - {"[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"} for c in piece
    )


def test_it_is_a_small_bert_that_others_load(tiny_folder):
    model = AutoModel.from_pretrained(str(tiny_folder), local_files_only=True)
    assert (model.config.model_type, model.config.hidden_size, model.config.num_hidden_layers) == ("bert", 128, 2)
    ours = DualEncoder.load(tiny_folder)
    assert ours.dimension == 128
    assert (ours.config.pooling, ours.config.normalize, ours.config.shared) == ("mean", False, True)
