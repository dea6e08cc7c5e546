"""An input that is made again under an app: a process that starts later refuses it, as the others answer from the first one."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from inference_world import make_corpus, make_reranker, make_retriever

from raydense.errors import InputError
from raydense.serving.answering import Answering
from raydense.serving.app import application
from raydense.serving.reranking import Reranker, reranking
from raydense.serving.searching import sources
from raydense.serving.settings import ServeSettings
from raydense.storage import Draft, input_fingerprints


def _index(folder: Path, of: str) -> str:
    shutil.rmtree(folder, ignore_errors=True)
    Draft.open(folder, "index", {"made_of": of}).finish(1, kind="bm25", shards=[[0, 1]])
    return str(folder)


def test_a_re_ranker(tmp_path: Path) -> None:
    make_corpus(tmp_path / "corpus", 9, 9)
    make_reranker(tmp_path / "reranker", make_retriever(tmp_path / "one", seed=1))
    settings = ServeSettings(index=["i"], corpus=str(tmp_path / "corpus"), reranker=str(tmp_path / "reranker"))
    started = reranking(settings, input_fingerprints(settings.replaced({"index": []})))._bound_deployment.init_args
    Reranker.func_or_class(*started)
    shutil.rmtree(tmp_path / "reranker")
    make_reranker(tmp_path / "reranker", make_retriever(tmp_path / "two", seed=2))
    with pytest.raises(InputError, match="reranker: was replaced"):
        Reranker.func_or_class(*started)


def test_an_index(tmp_path: Path) -> None:
    settings = ServeSettings(index=[_index(tmp_path / "ix", "one")])
    located, fingerprints, *_ = application(settings, 1)._bound_deployment.init_args
    _index(tmp_path / "ix", "two")
    with pytest.raises(InputError, match="ix: was replaced"):
        Answering(located, "app", True, None, fingerprints)


def test_the_name_of_an_apps_own_pool_stays(tmp_path: Path) -> None:
    """So that the command that ends the app closes it."""
    settings = ServeSettings(index=[_index(tmp_path / "ix", "one")])
    fingerprints = input_fingerprints(settings)
    (before,) = sources(settings, "app")
    _index(tmp_path / "ix", "two")
    (after,) = sources(settings, "app", False, fingerprints["index"])
    assert after == before
    assert after != sources(settings, "app")[0]
