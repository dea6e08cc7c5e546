"""Passages per second of a static encoder on one core: tokenising and the mean of token vectors, in CPU seconds of one process.

    python benchmarks/static_encoder.py [--passages 20000] [--corpus corpus.jsonl] [--dimension 256] [--length 128]

The vocabulary is made from the passages (8,192 pieces), the table is random: speed does not depend on what it holds. Without a
corpus the passages are those of `raydense sample`.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import time
from itertools import chain, islice
from pathlib import Path

os.environ |= {"RAYON_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false", "OMP_NUM_THREADS": "1"}

import numpy as np
import torch
from turns import Ratio, in_turns, ratios

from raydense.data.sample import sample
from raydense.data.settings import SampleSettings
from raydense.data.store import PassageStore
from raydense.models.dual_encoder import DualEncoder
from raydense.models.encoder import Encoder, save_alone
from raydense.models.encoder_config import EncoderConfig
from raydense.models.modules.normalize import Normalize
from raydense.models.modules.static_embedding import StaticEmbedding
from raydense.models.tiny import make_tiny_encoder
from raydense.models.tokens import batches_by_token_budget

BUDGET = 65_536


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--passages", type=int, default=20_000)
    parser.add_argument("--corpus", type=Path)
    parser.add_argument("--dimension", type=int, default=256)
    parser.add_argument("--length", type=int, default=128)
    given = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as work:
        measure(read(given.corpus, given.passages, Path(work)), given.dimension, given.length, Path(work))


def read(corpus: Path | None, passages: int, work: Path) -> list[str]:
    if corpus is None:
        sample(SampleSettings(output=str(work / "sample"), passages=passages))
        return PassageStore(work / "sample/corpus").passages(np.arange(passages))
    with open(corpus, encoding="utf-8") as lines:
        rows = [json.loads(line) for line in islice(lines, passages)]
    return [f"{row.get('title', '')} {row['text']}".strip() for row in rows]


def static_model(texts: list[str], dimension: int, length: int, work: Path) -> DualEncoder:
    """A static encoder with a random table, and the vocabulary of the texts."""
    make_tiny_encoder(texts, work / "tiny", seed=1)
    source = DualEncoder.load(work / "tiny").tokenizer.passage_source
    parts = [StaticEmbedding(torch.randn(len(source), dimension)), Normalize(dimension)]
    save_alone(Encoder(parts, EncoderConfig(normalize=True, passage_length=length)), source, work / "static")
    return DualEncoder.load(work / "static")


def encoded(model: DualEncoder, texts: list[str]) -> tuple[int, float]:
    """Encode the texts, as a model actor does; the number of their tokens, and the CPU seconds of tokenising them."""
    begun = time.process_time()
    tokens = model.tokenize_passages(texts)
    tokenised = time.process_time() - begun
    with torch.inference_mode():
        for batch in batches_by_token_budget(tokens.lengths, BUDGET):
            model.encode_passages(tokens.select(batch).pad(model.tokenizer.pad_id))
    return len(tokens.ids), tokenised


def measure(texts: list[str], dimension: int, length: int, work: Path) -> None:
    model = static_model(texts, dimension, length, work)
    begun = time.process_time()
    tokens, tokenised = encoded(model, texts)
    taken = time.process_time() - begun
    found = {
        "passages": len(texts),
        "tokens_each": round(tokens / len(texts), 1),
        "dimension": dimension,
        "tokenised_per_s": round(len(texts) / tokenised),
        "encoded_per_s": round(len(texts) / (taken - tokenised)),
        "passages_per_s": round(len(texts) / taken),
    }
    print(json.dumps(found))


def small(work: Path) -> dict[str, Ratio]:
    """20,000 passages on one core, against `tokenizers` and torch's `embedding_bag` without anything between."""
    torch.set_num_threads(1)
    texts = read(None, 20_000, work)
    model = static_model(texts, 256, 128, work)
    tokenizer, table = model.tokenizer.passage_source.backend_tokenizer, model.state_dict()
    weights = next(value for name, value in table.items() if name.endswith("table"))

    def bare() -> None:
        ids = [one.ids[:128] for one in tokenizer.encode_batch_fast(texts, add_special_tokens=False)]
        starts = np.cumsum([0, *map(len, ids[:-1])])
        vectors = torch.nn.functional.embedding_bag(
            torch.tensor(list(chain.from_iterable(ids))), weights, torch.from_numpy(starts), mode="mean"
        )
        torch.nn.functional.normalize(vectors)

    taken = in_turns({"encode": lambda: encoded(model, texts), "tokenizers and embedding_bag": bare}, 4, time.process_time)
    return ratios(taken, "tokenizers and embedding_bag")


if __name__ == "__main__":
    main()
