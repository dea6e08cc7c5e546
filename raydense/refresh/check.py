"""Finds before a training begins what its first refresh would find: after all the steps up to there, and an encoding of the corpus."""

from __future__ import annotations

from functools import partial

import pyarrow.compute as pc

from raydense.data.answers import answers_of
from raydense.data.store import PassageStore
from raydense.data.tables import read_table
from raydense.errors import InputError
from raydense.forecast import Known
from raydense.models.cross_encoder import refuse_untrained
from raydense.models.model_size import check_dimensions, model_of
from raydense.refresh.generation import index_settings
from raydense.retrieval.faiss_plan import check_disk, check_memory, check_shards, check_training, plan_build
from raydense.retrieval.faiss_size import check_factory, size_of
from raydense.retrieval.sharding import shards_for
from raydense.runtime.session import ensure_ray
from raydense.storage import Artifact, Place, begun_from, model_place
from raydense.training.method import method_of
from raydense.training.settings import RefreshSettings, TrainSettings


def check_refresh(settings: TrainSettings, refresh: RefreshSettings) -> None:
    """InputError if the examples are qrels, their queries lack answers, the re-ranker is not trained, no passage of `refresh.qrels` is
    in the corpus, new negatives would have no scores for a method that learns from them, or the index of the corpus can not be made,
    held or searched as the settings ask."""
    if method_of(settings).needs_scores and not refresh.reranker:
        what = f"objective {settings.objective} learns from a teacher's scores, and new negatives have none"
        raise InputError(what, "refresh.reranker", "name a trained re-ranker, whose scores they get, or leave refresh out")
    Artifact.open(settings.examples, "examples")
    if refresh.without_answers:
        asked = read_table(settings.examples, "examples", ["query_id"])["query_id"]
        queries = read_table(settings.queries, "queries")
        answers_of(queries.filter(pc.is_in(queries["query_id"], value_set=asked)), settings.queries, "refresh.without_answers")
    if refresh.reranker:
        refuse_untrained(refresh.reranker)
    store = PassageStore(settings.corpus)
    if refresh.qrels:
        store.known_judgements(read_table(refresh.qrels, "qrels"), refresh.qrels)
    try:
        check_shards(refresh.shards, len(store))
        _check_index(settings, refresh, len(store))
    except InputError as error:
        what, where, fix = error.args
        raise InputError(what, f"refresh.{where}" if where in RefreshSettings.model_fields else where, fix) from None


def _check_index(settings: TrainSettings, refresh: RefreshSettings, rows: int) -> None:
    """InputError if no dimension that the model's vectors may have passes; what model this is may not be known."""
    model = model_of(Known(), settings.model if settings.model == "tiny" else str(model_place(settings.model).local()))
    if model is None:
        return
    check_dimensions(model, partial(_check_of, settings, refresh, rows))


def _check_of(settings: TrainSettings, refresh: RefreshSettings, rows: int, dimension: int) -> None:
    """InputError on what `index` or a search would refuse of vectors of a dimension."""
    check_factory(refresh.factory, refresh.search_params, dimension)
    asked = index_settings(refresh, settings.output, "vectors")
    shards = asked.shards or shards_for(size_of(asked.factory, dimension).vector, rows)
    plan = plan_build(asked.factory, dimension, rows, shards, "refresh.", asked.train_sample)
    check_training(plan, asked.train_sample)
    ensure_ray()
    check_memory(plan)
    if begun_from(settings.output) is None:  # later, what takes the room may be the index itself, or one that it replaces
        output = Place.of(settings.output)
        check_disk(plan, output, output.working(""), range(shards))
