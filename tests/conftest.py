"""Shared by all tests: one thread, no deadline for hypothesis (CI machines are slow and shared), a tiny encoder on disk."""

import os
from pathlib import Path

# Tiny models gain nothing from threads, and two processes of tests share the cores; must be set before torch is imported.
os.environ.setdefault("OMP_NUM_THREADS", "1")
# What they start, too: two threads that wait for each other on cores that others use were four times as slow as one.
if processes := os.environ.get("PYTEST_XDIST_WORKER_COUNT"):
    os.environ["RAYDENSE_SHARERS"] = processes

import pytest
from hypothesis import settings

settings.register_profile("raydense", deadline=None)
settings.load_profile("raydense")

# Files are given out in this order, and the one that takes longest must not be among the last: two of three processes would wait for it.
LONGEST = ("test_training_memory", "test_recipes_recipe", "test_recipes_constants", "test_retrieval_faiss_size", "test_recipes_sweep")
LONGEST += ("test_retrieval_faiss_fill",)

SENTENCE = "what causes the fever of a red fox in winter when rivers freeze and old bridges of stone carry no one home"


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The longest files of unit tests come first among these."""
    first = {file: place for place, file in enumerate(LONGEST)}
    unit = Path(__file__).parent / "unit"
    places = [place for place, item in enumerate(items) if unit in item.path.parents]
    in_order = sorted((items[place] for place in places), key=lambda item: first.get(item.path.stem, len(first)))
    for place, item in zip(places, in_order, strict=True):
        items[place] = item


@pytest.fixture(scope="session")
def texts() -> list[str]:
    """Fifty texts of 1 to 99 words."""
    words = SENTENCE.split()
    return [" ".join(words[(i * 7 + j * j) % len(words)] for j in range(1 + i * 2)) for i in range(50)]


@pytest.fixture(scope="session")
def tiny_folder(tmp_path_factory: pytest.TempPathFactory, texts: list[str]) -> Path:
    """The folder of a tiny encoder made from `texts`; not to be written to."""
    from raydense.models.tiny import make_tiny_encoder

    folder = tmp_path_factory.mktemp("tiny")
    make_tiny_encoder(texts, folder, seed=3)
    return folder
