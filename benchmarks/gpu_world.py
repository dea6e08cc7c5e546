"""What the rows of `gpu.py` work on: models of random weights, random tokens and vectors, and examples of every method, made on the spot."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import torch
from embeddings import write_corpus, write_embeddings
from kept import made_whole
from transformers import BertConfig, BertModel, T5Config, T5ForConditionalGeneration

from raydense.data.generated import commit_queries
from raydense.data.store import PassageStore
from raydense.data.tables import commit_table
from raydense.models.cross_encoder import CrossEncoder
from raydense.models.dual_encoder import DualEncoder
from raydense.models.generator import Generator
from raydense.models.tiny import make_tiny_encoder, make_tiny_generator
from raydense.models.tokens import Tokens
from raydense.models.weights import save_weights
from raydense.storage import Draft

if TYPE_CHECKING:
    from gpu_rows import Place

    from raydense.training.method import Batch, Method

__all__ = ["encoder", "generator", "index_file", "random_tokens", "training", "training_settings", "vectors", "write_embeddings"]

_LISTED = 8  # passages of a query: a positive and seven negatives, of which a method takes some
_STEPS = 2


def random_tokens(count: int, shortest: int, longest: int) -> Tokens:
    """Texts of random length and content."""
    rng = np.random.default_rng(1)
    offsets = np.concatenate([[0], np.cumsum(rng.integers(shortest, longest + 1, count))]).astype(np.int64)
    return Tokens(rng.integers(5, 30, offsets[-1]).astype(np.int32), offsets)


@lru_cache(maxsize=4)
def vectors(rows: int, dimension: int, half: bool, seed: int = 1) -> np.ndarray:
    """Random vectors of length 1, float32; with `half` they are numbers of float16."""
    drawn = np.random.default_rng(seed).standard_normal((rows, dimension), dtype=np.float32)
    drawn /= np.linalg.norm(drawn, axis=1, keepdims=True)
    return drawn.astype(np.float16).astype(np.float32) if half and seed == 1 else drawn


def index_file(place: Place, factory: str, held: np.ndarray) -> Path:
    """The file of an index of these vectors, next to it `empty.faiss`, as `raydense index` leaves them."""
    from raydense.retrieval.faiss_library import faiss

    def make(folder: Path) -> None:
        index = faiss.index_factory(held.shape[1], factory, faiss.METRIC_INNER_PRODUCT)
        index.train(held[:100_000])
        faiss.write_index(index, str(folder / "empty.faiss"))
        index.add(held)
        faiss.write_index(index, str(folder / "shard-00000.faiss"))

    return made_whole(place.folder / f"{factory}-{held[0, 0]}", make) / "shard-00000.faiss"


def _texts(place: Place) -> list[str]:
    """Passages of 90 random words of three letters, about 128 tokens with their vocabulary."""
    rng = np.random.default_rng(1)
    words = ["".join(letters) for letters in rng.choice(list("abcdefghij"), (500, 3))]
    return [" ".join(rng.choice(words, 90)) for _ in range(place.many(2_000, 100))]


def _folder(place: Place, kind: str) -> Path:
    """The folder of a model: `encoder`, `reranker` or `generator`, of the sizes of BERT-base and T5-base, or tiny."""
    return made_whole(place.folder / kind, lambda folder: _make_model(place, kind, folder))


def _make_model(place: Place, kind: str, folder: Path) -> None:
    torch.manual_seed(1)
    if kind == "generator":
        make_tiny_generator(_texts(place), folder, seed=1)
        if not place.tiny:
            sizes = {"d_model": 768, "d_kv": 64, "d_ff": 3_072, "num_layers": 12, "num_heads": 12}
            config = T5Config.from_pretrained(folder, **sizes, num_decoder_layers=12, vocab_size=32_128)
            save_weights(T5ForConditionalGeneration(config), folder)
    elif kind == "reranker":
        CrossEncoder.load(_folder(place, "encoder")).save(folder)
    else:
        make_tiny_encoder(_texts(place), folder, seed=1)
        if not place.tiny:
            save_weights(BertModel(BertConfig(), add_pooling_layer=False), folder)


def encoder(place: Place) -> DualEncoder:
    return DualEncoder.load(_folder(place, "encoder"), query_length=32, passage_length=128).to(place.device).eval()


def generator(place: Place) -> Generator:
    return Generator.load(_folder(place, "generator"), query_length=place.many(32, 4)).to(place.device).eval()


@dataclass(frozen=True)
class Training:
    """A method with its settings, texts, and the prepared batches of some steps."""

    settings: Any
    kind: type[Method]
    texts: Any
    batches: list[Batch]

    def method_for(self, model: Any) -> Method:
        return self.kind(self.settings, model, self.texts, 0, 1)


def training(place: Place, verb: str, name: str, **more: Any) -> Training:
    """A training by the method of this name, with `more` settings or its defaults: 128 queries (or passages) a step, of 128 tokens a passage."""
    from raydense.training.batches import Sampler
    from raydense.training.method import load_model, method_of

    settings = training_settings(place, verb, name, **{"engine": {"name": "ddp"}, **more})
    kind = method_of(settings)
    examples, texts = kind.read(settings, PassageStore(settings.corpus))
    sampler, method = Sampler(examples, settings), kind(settings, load_model(settings, settings.model), texts, 0, 1)
    return Training(settings, kind, texts, [method.prepare(sampler.step(step)[0]) for step in range(_STEPS)])


def training_settings(place: Place, verb: str, name: str, **more: Any) -> Any:
    """The settings of a training by the method of this name."""
    from raydense.training.registry import load_method
    from raydense.training.settings import PretrainSettings, TrainSettings

    kind, data = load_method(verb, name), _data(place)
    known = kind.Settings.model_fields
    own: dict[str, Any] = {
        "passage_length": 128,
        "pair_length": 160,
        "negatives": 2,
        "context": "query",
        "reranker": str(_folder(place, "reranker")),
    }
    given = {key: value for key, value in own.items() if key in known}
    given |= {key: str(data / key) for key in ("corpus", "queries", "examples", "generated") if key in known}
    model = _folder(place, "generator" if name == "generator" else "encoder")
    given |= {"model": str(model), "output": "none", "batch_size": place.many(128, 4)}
    read, chosen = (TrainSettings, "objective") if verb == "train" else (PretrainSettings, "method")
    return read.read({**given, chosen: name, **more})


def _data(place: Place) -> Path:
    """A corpus, queries, examples with a teacher's scores, and generated queries."""
    return made_whole(place.folder / "data", lambda folder: _make_data(place, folder))


def _make_data(place: Place, folder: Path) -> None:
    texts, rng = _texts(place), np.random.default_rng(2)
    corpus = write_corpus(folder / "corpus", texts, shard_rows=25_000)
    count = len(texts) // 2
    ids, asked = [f"q{i}" for i in range(count)], [" ".join(text.split()[:12]) for text in texts[:count]]
    draft = Draft.open(folder / "queries", "queries", {"of": "gpu"})
    commit_table(draft, "queries.parquet", pa.table({"query_id": ids, "text": asked}))
    draft.finish(count)
    others = count + rng.integers(0, len(texts) - count - _LISTED, count)[:, None] + np.arange(_LISTED - 1)
    table = {"query_id": pa.array(ids)}
    for key, values, kind in (
        ("positives", np.arange(count)[:, None], pa.int64()),
        ("negatives", others, pa.int64()),
        ("positive_scores", rng.random((count, 1), np.float32) + 1, pa.float32()),
        ("negative_scores", rng.random(others.shape, np.float32), pa.float32()),
    ):
        table[key] = pa.array(values.tolist(), pa.list_(kind))
    draft = Draft.open(folder / "examples", "examples", {"of": "gpu"})
    commit_table(draft, "examples.parquet", pa.table(table))
    draft.finish(count, corpus=corpus.fingerprint)
    draft = Draft.open(folder / "generated", "generated", {"of": "gpu"})
    commit_queries(draft, "generated-00000.arrow", 0, [[" ".join(text.split()[:12])] for text in texts])
    draft.finish(len(texts), corpus=corpus.fingerprint)
