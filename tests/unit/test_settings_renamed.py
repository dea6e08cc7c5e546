"""Settings that were renamed: the old names are refused with the new ones, and what is recorded of outputs stays as it was."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from raydense.construction.settings import OverlapSettings
from raydense.data.settings import HardNegatives, ImportSettings
from raydense.errors import InputError
from raydense.evaluation.settings import EvaluateSettings
from raydense.inference.expand_settings import ExpandSettings
from raydense.inference.settings import GenerateSettings
from raydense.mining.settings import FilterSettings, MineSettings
from raydense.recipes.building import _digest
from raydense.recipes.stage import VERBS
from raydense.retrieval.settings import CompareSettings, IndexSettings, SearchSettings
from raydense.serving.settings import ServeSettings
from raydense.settings import BaseSettings
from raydense.storage import Draft, provenance

MINE: dict[str, Any] = {"run": "r", "corpus": "c", "queries": "q", "qrels": "j", "output": "o"}
MEASURED: dict[str, Any] = {"run": ["r"], "qrels": "j", "queries": "q", "corpus": "c", "models": ["m"], "output": "o"}
IMPORT: dict[str, Any] = {"format": "sbert_negatives", "input": "i", "output": "o"}
ENDPOINT = {"url": "http://h/v1", "model": "m"}
SEARCH: dict[str, Any] = {"index": "i", "queries": "q", "output": "o"}
FAISS: dict[str, Any] = {"kind": "faiss", "embeddings": "e", "output": "o"}


@pytest.mark.parametrize(
    ("of", "given", "old", "new"),
    [
        (SearchSettings, SEARCH, {"background": True}, "queries_on_cpu"),
        (SearchSettings, SEARCH, {"replicas": 2}, "shard_replicas"),
        (FilterSettings, {"generated": "g", "corpus": "c", "index": "i", "output": "o"}, {"replicas": 2}, "shard_replicas"),
        (IndexSettings, {"kind": "bm25", "corpus": "c", "output": "o"}, {"expand": "e"}, "generated"),
        (ServeSettings, {"index": ["i"]}, {"most_queries": 5}, "max_queries"),
        (ServeSettings, {"index": ["i"]}, {"seconds": 5}, "timeout"),
        (ServeSettings, {"index": ["i"]}, {"most_hits": 5}, "max_hits"),
        (GenerateSettings, {"corpus": "c", "output": "o"}, {"endpoint": {"most_refused": 1, **ENDPOINT}}, "endpoint.max_refused"),
        (ExpandSettings, {"queries": "q", "output": "o"}, {"endpoint": {"most_refused": 1, **ENDPOINT}}, "endpoint.max_refused"),
        (IndexSettings, FAISS, {"elsewhere": True}, "skip_memory_check"),
        (CompareSettings, {"embeddings": "e", "output": "o"}, {"queries": 5}, "query_sample"),
        (EvaluateSettings, MEASURED, {"similarity": {"queries": 5}}, "similarity.query_sample"),
        (OverlapSettings, {"queries": "q", "against": ["d"], "output": "o"}, {"train": "t"}, "train_qrels"),
        (ImportSettings, IMPORT, {"hard_negatives": {"margin": 3}}, "hard_negatives.absolute_margin"),
        (HardNegatives, {}, {"margin": 3}, "absolute_margin"),
        (MineSettings, MINE, {"teacher": True}, "keep_scores"),
        (IndexSettings, FAISS, {"background": True}, "single_core"),
    ],
)
def test_an_old_name_is_refused_with_the_new_one(of: type[BaseSettings], given: dict[str, Any], old: dict[str, Any], new: str) -> None:
    with pytest.raises(InputError) as caught:
        of.read({**given, **old}, "stage.")
    (key, value), group = next(iter(old.items())), ""
    if isinstance(value, dict):
        group = f"{key}."
        key = next(iter(value))
    assert str(caught.value).splitlines()[0] == f"stage.{group}{key}: was renamed; write {new}"


@pytest.mark.parametrize("of", [*(verb.settings for verb in VERBS.values()), ServeSettings], ids=lambda of: of.__name__)
def test_what_old_names_lead_to_is_there(of: type[BaseSettings]) -> None:
    assert not of.renamed.keys() & of.all_fields().keys()
    assert of.chosen_by or set(of.renamed.values()) <= of.all_fields().keys() | of.model_fields.keys()


def artifact(folder: Path, kind: str) -> str:
    Draft.open(folder, kind, {"stage": "test"}).finish(0)
    return str(folder)


def test_an_index_that_was_made_with_the_old_name_is_still_finished(tmp_path: Path) -> None:
    given = {"corpus": artifact(tmp_path / "c", "corpus"), "generated": artifact(tmp_path / "g", "generated"), "output": "o"}
    assert provenance("index", IndexSettings.read({"kind": "bm25", **given}))["inputs"].keys() == {"corpus", "expand"}


@pytest.mark.parametrize(
    ("verb", "given", "digest"),
    [
        ("index", {"kind": "bm25", "corpus": "c", "generated": "g", "output": "o"}, "155510f3163e"),
        ("overlap", {"queries": "q", "train_qrels": "t", "against": ["d"], "output": "o"}, "67c817ce7007"),
        ("mine", {**MINE, "keep_scores": True}, "e3e8a2e45b2c"),
        ("import", {**IMPORT, "hard_negatives": {"absolute_margin": 3}}, "4489361a00c4"),
        ("compare", {"embeddings": "e", "query_sample": 500, "output": "o"}, "cc756d0fa7de"),
        ("evaluate", {**MEASURED, "similarity": {"query_sample": 5}}, "f19a62cad3fc"),
    ],
)
def test_trials_find_what_was_made_with_the_old_names(verb: str, given: dict[str, Any], digest: str) -> None:
    """The digests are those of the version before."""
    assert _digest(verb, VERBS[verb].settings.read(given), "x") == digest


def test_settings_are_recorded_with_their_old_names() -> None:
    assert MineSettings.read({**MINE, "keep_scores": True}).shaping()["teacher"] is True
    assert not {"teacher", "keep_scores"} & MineSettings.read(MINE).shaping().keys()
