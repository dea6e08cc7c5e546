"""The tokens of a training step, padding included: passages as they come, and in pieces of about one length.

    python benchmarks/padding.py [--corpus CORPUS --model MODEL] [--passages 2560] [--length 128] [--micro-batch 32]

Passages drawn from a corpus, cut into tokens by the model; without a corpus, lengths are drawn from a gamma distribution with the mean of MS MARCO's passages
(75 tokens, as a review of this project found). "As they come" is padded to the longest of each piece.
"""

from __future__ import annotations

import argparse

import numpy as np
import torch
from numpy.typing import NDArray

from raydense.data.store import PassageStore
from raydense.models.tokenizer import load_tokenizer
from raydense.training.pieces import cut_up, rows_of
from raydense.training.settings import TrainSettings


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("corpus", "model"):
        parser.add_argument(f"--{name}")
    for name, default in (("passages", 2_560), ("length", 128), ("micro-batch", 32)):
        parser.add_argument(f"--{name}", type=int, default=default)
    given = parser.parse_args()
    lengths = of_corpus(given) if given.corpus else like_ms_marco(given)
    batch = {"passages": {"attention_mask": (torch.arange(int(lengths.max())) < torch.from_numpy(lengths)[:, None]).long()}}
    pieces = -(-given.passages // given.micro_batch)
    print(f"real: {lengths.sum():,} tokens of {given.passages:,} passages, {lengths.mean():.1f} each")
    print(f"as they come, one piece: {lengths.max() * len(lengths):,}")
    print(f"as they come, {pieces} pieces: {padded(batch['passages']['attention_mask'], pieces):,}")
    for name, count in ((f"by length, {pieces} pieces", pieces), ("at once, cut by length", 1)):
        cut = cut_up(settings(given), batch, count)
        print(f"{name} ({len(cut.texts)} forwards): {sum(one['passages']['attention_mask'].numel() for one in cut.texts):,}")


def like_ms_marco(given: argparse.Namespace) -> NDArray[np.int64]:
    drawn = np.random.default_rng(0).gamma(6.0, 75 / 6.0, given.passages)
    return drawn.round().clip(8, given.length).astype(np.int64)


def of_corpus(given: argparse.Namespace) -> NDArray[np.int64]:
    store = PassageStore(given.corpus)
    rows = np.random.default_rng(0).choice(len(store), given.passages, replace=len(store) < given.passages)
    tokenizer = load_tokenizer(given.model, passage_length=given.length)
    return tokenizer.passages(store.passages(rows)).lengths.astype(np.int64)


def padded(mask: torch.Tensor, pieces: int) -> int:
    """The tokens of rows cut in the order they come, each piece padded to its longest."""
    cut = [mask[rows_of(len(mask), i, pieces)] for i in range(pieces)]
    return sum(len(one) * int(one.sum(dim=1).max()) for one in cut)


def settings(given: argparse.Namespace) -> TrainSettings:
    own = {"objective": "retriever", "model": "m", "corpus": "c", "queries": "q", "examples": "e", "output": "o"}
    return TrainSettings.read({**own, "batch_size": given.passages // 2, "micro_batch": given.micro_batch})


if __name__ == "__main__":
    main()
