"""What one GPU gives: encoding, a retriever's train step and flat search, each as a share of the card's measured matrix rate.

    python benchmarks/gpu.py

A BERT-base with random weights and random tokens, so nothing is downloaded; no Ray. Exits with 2 where there is no GPU.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import BertConfig, BertModel, PretrainedConfig

from raydense.models.dual_encoder import DualEncoder
from raydense.models.losses import query_centric
from raydense.models.tiny import make_tiny_encoder
from raydense.models.tokens import Tokens, batches_by_token_budget
from raydense.models.weights import save_weights

QUERY_LENGTH, PASSAGE_LENGTH = 32, 128
TRAIN_QUERIES, PASSAGES_EACH = 128, 2
SEARCH_ROWS, SEARCH_QUERIES, K = 2_000_000, 2_048, 100
Row = tuple[str, str, float]


def main() -> int:
    if not torch.cuda.is_available():
        print("no CUDA device on this machine: nothing measured", file=sys.stderr)
        return 2
    device = torch.device("cuda")
    half = torch.bfloat16 if torch.cuda.is_bf16_supported(including_emulation=False) else torch.float16
    rate = matrix_rate(device, half, 8_192)
    with tempfile.TemporaryDirectory() as folder:
        model = bert_base(Path(folder)).to(device)
    rows = [
        encoding(model, device, half, passages=8_192),
        train_step(model, device, half, queries=TRAIN_QUERIES),
        flat_search(device, half, SEARCH_ROWS, SEARCH_QUERIES, model.dimension),
    ]
    print(f"{torch.cuda.get_device_name(device)}, torch {torch.__version__}, {str(half).removeprefix('torch.')}")
    print(f"matrix product {rate / 1e12:,.0f} TFLOP/s")
    for name, speed, flops in rows:
        print(f"{name:<58} {speed:>22} {100 * flops / rate:>6.1f} % of the matrix rate")
    return 0


def bert_base(folder: Path, config: BertConfig | None = None) -> DualEncoder:
    """A retriever with the sizes of BERT-base and random weights."""
    make_tiny_encoder(["a tokenizer is needed to load a folder, and never used here"], folder, seed=1)
    save_weights(BertModel(config or BertConfig(), add_pooling_layer=False), folder)
    return DualEncoder.load(folder, query_length=QUERY_LENGTH, passage_length=PASSAGE_LENGTH)


def seconds(work: Callable[[], object], device: torch.device, least: float = 3.0) -> float:
    """The median time of one call, over at least `least` seconds, after two calls that do not count."""
    taken: list[float] = []
    for call in range(1_000):
        _wait(device)
        start = time.perf_counter()
        work()
        _wait(device)
        if call >= 2:
            taken.append(time.perf_counter() - start)
        if sum(taken) >= least and len(taken) >= 3:
            break
    return float(np.median(taken))


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def matrix_rate(device: torch.device, half: torch.dtype, size: int) -> float:
    """FLOP/s of one large matrix product: what the shares below are measured against."""
    a, b = (torch.randn(size, size, device=device, dtype=half) for _ in range(2))
    return 2 * size**3 / seconds(lambda: a @ b, device)


def random_tokens(n: int, shortest: int, longest: int, seed: int) -> Tokens:
    """n texts of random length and content."""
    rng = np.random.default_rng(seed)
    offsets = np.concatenate([[0], np.cumsum(rng.integers(shortest, longest + 1, n))]).astype(np.int64)
    return Tokens(rng.integers(1_000, 8_000, offsets[-1]).astype(np.int32), offsets)


def forward_flops(config: PretrainedConfig, lengths: np.ndarray) -> float:
    """Multiply-adds of the layers counted as two, for real tokens only: projections, feed-forward, attention scores and sums."""
    width, inner = config.hidden_size, config.intermediate_size
    a_token = 2 * (4 * width * width + 2 * width * inner)
    return config.num_hidden_layers * float((lengths * a_token + 4 * width * lengths.astype(np.float64) ** 2).sum())


def encoding(model: DualEncoder, device: torch.device, half: torch.dtype, passages: int) -> Row:
    """Encode passages of 64 to 128 tokens, in batches of a token budget, padding and copying to the device included."""
    tokens = random_tokens(passages, PASSAGE_LENGTH // 2, PASSAGE_LENGTH, seed=1)
    batches = batches_by_token_budget(tokens.lengths, 65_536)
    weights = {p.dtype for p in model.parameters()}
    model.eval().to(half)

    def work() -> None:
        with torch.inference_mode():
            for batch in batches:
                model.encode_passages(tokens.select(batch).pad(0, device))

    taken = seconds(work, device)
    model.to(weights.pop())
    flops = forward_flops(model.encoder.config, tokens.lengths) / taken
    return f"encode, {PASSAGE_LENGTH // 2} to {PASSAGE_LENGTH} tokens", f"{passages / taken:,.0f} passages/s", flops


def train_step(model: DualEncoder, device: torch.device, half: torch.dtype, queries: int) -> Row:
    """Forward, backward and AdamW of a retriever under autocast: each query with a positive and a hard negative, all in-batch."""
    asked = random_tokens(queries, QUERY_LENGTH // 2, QUERY_LENGTH, seed=2)
    read = random_tokens(queries * PASSAGES_EACH, PASSAGE_LENGTH // 2, PASSAGE_LENGTH, seed=3)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5, fused=device.type == "cuda")
    positive = torch.arange(queries, device=device)
    model.train()

    def work() -> None:
        with torch.autocast(device.type, dtype=half):
            a, b = model(asked.pad(0, device), read.pad(0, device))
        query_centric(a @ b.T, positive).backward()
        optimizer.step()
        optimizer.zero_grad()

    taken = seconds(work, device)
    lengths = np.concatenate([asked.lengths, read.lengths])
    flops = 3 * forward_flops(model.encoder.config, lengths) / taken
    return f"train step, {queries} queries, {PASSAGES_EACH} passages each", f"{queries / taken:,.0f} queries/s", flops


def flat_search(device: torch.device, half: torch.dtype, rows: int, queries: int, dimension: int) -> Row:
    """Exact inner-product search: FAISS on the GPU where faiss-gpu is installed, else a torch matrix product and top-k."""
    vectors = torch.randn(rows, dimension, device=device, dtype=torch.float16)
    asked = torch.randn(queries, dimension, device=device, dtype=torch.float16)
    index = _faiss_index(vectors) if device.type == "cuda" else None
    if index is None:
        name, wanted = "torch matmul + top-k", asked

        def work() -> None:
            for start in range(0, queries, 256):
                (wanted[start : start + 256] @ vectors.T).topk(K, dim=1)
    else:
        name, sent = f"faiss {type(index).__name__}, float16", asked.float().cpu().numpy()

        def work() -> None:
            index.search(sent, K)

    taken = seconds(work, device)
    return f"search, {name}, {rows:,} x {dimension}, k {K}", f"{queries / taken:,.0f} queries/s", 2.0 * rows * dimension * queries / taken


def _faiss_index(vectors: torch.Tensor) -> Any:
    try:
        import faiss
    except ImportError:
        return None
    if not hasattr(faiss, "StandardGpuResources"):
        return None
    config = faiss.GpuIndexFlatConfig()
    config.useFloat16 = True
    index = faiss.GpuIndexFlatIP(faiss.StandardGpuResources(), vectors.shape[1], config)
    for part in vectors.split(100_000):
        index.add(part.float().cpu().numpy())
    return index


if __name__ == "__main__":
    sys.exit(main())
