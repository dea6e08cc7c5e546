"""Queries are encoded in the same batches wherever a stage runs, and shared among the threads where somebody waits for them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from inference_world import WORDS

from raydense.errors import InputError
from raydense.inference.device import Device
from raydense.inference.layout import Layout
from raydense.inference.packing import pack, token_columns
from raydense.inference.query_encoder import QueryEncoder, _BlockEncoder, _Encoder, _tokenise, query_encoder
from raydense.models.tiny import make_tiny_encoder
from raydense.retrieval.query_vectors import _texts
from raydense.storage import fingerprint_of

TEXTS = [" ".join(WORDS[(i * 7 + j) % len(WORDS)] for j in range(1 + i % 12)) for i in range(150)]


@pytest.fixture
def budgets(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The tokens that each call of a device gave a batch."""
    seen: list[int] = []
    run = Device.run

    def watched(self: Device, *args: Any) -> Any:
        seen.append(args[-1])
        return run(self, *args)

    monkeypatch.setattr(Device, "run", watched)
    return seen


@pytest.mark.parametrize(("sees", "gpu", "gpus"), [(True, None, 1), (True, False, 0), (False, None, 0), (True, True, 1)])
def test_a_process_uses_the_gpu_that_it_is_to_use(sees: bool, gpu: bool | None, gpus: float, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: sees)
    assert Layout.alone(gpu).gpus == gpus


def test_a_gpu_that_torch_does_not_see_is_refused_with_the_fix(monkeypatch: pytest.MonkeyPatch) -> None:
    """A build of torch for the CPU on a node whose GPU Ray counts."""
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    with pytest.raises(InputError, match="to compute on a GPU, and torch sees none; install a torch with CUDA"):
        Layout.alone(True)


def test_what_a_stage_writes_does_not_depend_on_the_cores(tmp_path: Path, budgets: list[int]) -> None:
    make_tiny_encoder(TEXTS, tmp_path / "model", seed=1)
    model = str(tmp_path / "model")
    made = []
    for threads in (1, 3, 16):
        layout = Layout(fewest=1, first=1, most=1, gpus=0.0, cpus=1.0, per_node=1, threads=threads)
        encoder = _Encoder(model, None, None, layout)
        packed = pack(token_columns(encoder.tokenizer.queries(TEXTS)))
        block = _BlockEncoder(model, None, None, None, layout)  # type: ignore[arg-type]
        made.append(block(packed)["vectors"][0].as_py())
    assert made[0] == made[1] == made[2]
    assert len(set(budgets)) == 1


def test_questions_that_wait_are_shared_among_the_threads(tmp_path: Path, budgets: list[int]) -> None:
    make_tiny_encoder(TEXTS, tmp_path / "model", seed=1)
    found = []
    for threads in (1, 4, 100):
        layout = Layout(fewest=1, first=1, most=1, gpus=0.0, cpus=1.0, per_node=1, threads=threads)
        found.append(QueryEncoder(_Encoder(str(tmp_path / "model"), None, None, layout))(TEXTS[:60]))
    tokens = sum(len(text.split()) + 2 for text in TEXTS[:60])
    assert budgets[0] == 256
    assert budgets[1] == pytest.approx(tokens / 4, rel=0.3)
    assert budgets[2] == 64
    np.testing.assert_allclose(found[1], found[0], rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(found[2], found[0], rtol=1e-4, atol=1e-5)


def test_a_block_is_a_table_of_its_vectors(tmp_path: Path) -> None:
    make_tiny_encoder(TEXTS, tmp_path / "model", seed=1)
    layout = Layout(fewest=1, first=1, most=1, gpus=0.0, cpus=1.0, per_node=1, threads=2)
    encoder = _Encoder(str(tmp_path / "model"), None, None, layout)
    block = _BlockEncoder(str(tmp_path / "model"), None, None, None, layout)  # type: ignore[arg-type]
    table: pa.Table = block(pack(token_columns(encoder.tokenizer.queries(TEXTS[:5]))))
    vectors = np.frombuffer(table["vectors"][0].as_py(), np.float32).reshape(5, -1)
    np.testing.assert_allclose(vectors, QueryEncoder(encoder)(TEXTS[:5]), rtol=1e-5, atol=1e-6)


def test_a_prompt_is_what_texts_with_it_give(tmp_path: Path) -> None:
    """In the process that asks, and in the tasks of a stage."""
    make_tiny_encoder(TEXTS, tmp_path / "model", seed=1)
    model, prefix = str(tmp_path / "model"), f"{WORDS[3]} {WORDS[5]} "
    given = (("query_prefix", prefix),)
    texts = [prefix + text for text in TEXTS]
    np.testing.assert_array_equal(query_encoder(model, prompt=given)(TEXTS), query_encoder(model)(texts))
    table = pa.table({"texts": [TEXTS]})
    packed = _tokenise(table, model, fingerprint_of(model), 128, _texts, given)
    assert packed.equals(_tokenise(pa.table({"texts": [texts]}), model, fingerprint_of(model), 128, _texts, ()))
