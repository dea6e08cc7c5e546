"""Make a static encoder of a transformer encoder: a vector a token, as model2vec does; tens of thousands of passages a second.

    ray job submit --address http://HEAD:8265 --working-dir . -- python jobs/static_encoder.py --model /shared/model --output /shared/static --dimension 256

The transformer reads each token of its vocabulary alone; the first principal components of its vectors, weighted by rank in the
vocabulary, become the table. The folder is a retriever for `encode`, `search` and `train`, and loads in sentence-transformers.
"""

from __future__ import annotations

import argparse

import numpy as np
import torch
from numpy.typing import NDArray

from raydense.errors import InputError, one_line_errors
from raydense.models.dual_encoder import DualEncoder
from raydense.models.encoder import Encoder, save_alone
from raydense.models.encoder_config import EncoderConfig
from raydense.models.modules.normalize import Normalize
from raydense.models.modules.static_embedding import StaticEmbedding, distilled
from raydense.models.tokens import Tokens
from raydense.runtime.progress import Progress
from raydense.storage import Draft, fingerprint_of, model_place

BATCH = 512


def main() -> None:
    """Make the folder that the arguments describe."""
    given = _arguments()
    make(given.model, given.output, given.dimension, given.passage_length)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True, help="the folder of the transformer encoder")
    parser.add_argument("--output", required=True, help="the folder to make")
    parser.add_argument("--dimension", type=int, default=256, help="of the vectors")
    parser.add_argument("--passage-length", type=int, default=512, help="most tokens of a passage")
    return parser.parse_args()


def make(model: str, output: str, dimension: int, passage_length: int) -> None:
    """Write the folder, or find it made; InputError where `model` is no encoder, or its vectors are shorter than `dimension`."""
    settings = {"dimension": dimension, "passage_length": passage_length}
    draft = Draft.open(
        output, "model", {"stage": "static_encoder", "settings": settings, "inputs": {"model": fingerprint_of(model_place(model))}}
    )
    if draft.done:
        return
    teacher = DualEncoder.load(model)
    if dimension > teacher.dimension:
        raise InputError(f"{dimension} is more than the {teacher.dimension} of the model", "dimension", "make it smaller")
    config = EncoderConfig(normalize=True, query_length=passage_length, passage_length=passage_length)
    parts = [StaticEmbedding(torch.from_numpy(distilled(token_vectors(teacher), dimension))), Normalize(dimension)]
    draft.commit_tree(lambda folder: save_alone(Encoder(parts, config), teacher.tokenizer.passage_source, folder))
    draft.finish(0, dimension=dimension)


def token_vectors(teacher: DualEncoder) -> NDArray[np.float32]:
    """What the teacher gives for each token of its vocabulary alone, between its special tokens, float32 [vocabulary, d]."""
    source = teacher.tokenizer.passage_source
    shown = source.backend_tokenizer.encode("a")
    first = shown.special_tokens_mask.index(0)
    before, after = (
        shown.ids[:first],
        [t for t, special in zip(shown.ids[first:], shown.special_tokens_mask[first:], strict=True) if special],
    )
    size, found = len(source), []
    with torch.inference_mode(), Progress("static_encoder", size, "tokens") as progress:
        for start in range(0, size, BATCH):
            ids = np.array([[*before, token, *after] for token in range(start, min(start + BATCH, size))], np.int32)
            tokens = Tokens(ids.ravel(), np.arange(len(ids) + 1, dtype=np.int64) * ids.shape[1])
            found.append(teacher.encode_passages(tokens.pad(teacher.tokenizer.pad_id)).numpy())
            progress.add(len(ids))
    return np.concatenate(found)


if __name__ == "__main__":
    with one_line_errors("static_encoder"):
        main()
