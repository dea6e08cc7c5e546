"""Finds before a training begins what its first refresh would find: after all the steps up to there, and an encoding of the corpus."""

from __future__ import annotations

from raydense.data.store import PassageStore
from raydense.data.tables import read_table
from raydense.errors import InputError
from raydense.forecast import Known
from raydense.models.cross_encoder import refuse_untrained
from raydense.models.model_size import model_of
from raydense.retrieval.faiss_shard import set_search_params
from raydense.retrieval.faiss_size import index_of
from raydense.retrieval.search_params import with_defaults
from raydense.storage import Artifact
from raydense.training.settings import RefreshSettings, TrainSettings


def check_refresh(settings: TrainSettings, refresh: RefreshSettings) -> None:
    """InputError if the examples are qrels, the re-ranker is not trained, FAISS cannot make the index or does not take the search
    parameters, or no passage of `refresh.qrels` is in the corpus."""
    Artifact.open(settings.examples, "examples")
    if refresh.reranker:
        refuse_untrained(refresh.reranker)
    if refresh.qrels:
        PassageStore(settings.corpus).known_judgements(read_table(refresh.qrels, "qrels"), refresh.qrels)
    if model := model_of(Known(), settings.model):
        widths = [times * int(model.each) for times in (1, 2, 3)]  # joined poolings have a multiple of the states' width
        faults = [fault for width in widths if (fault := _fault_of(refresh, width))]
        if len(faults) == len(widths):
            what, key, fix = faults[0].args
            raise InputError(what, f"refresh.{key}", fix)


def _fault_of(refresh: RefreshSettings, dimension: int) -> InputError | None:
    """What FAISS does not take of the index of vectors of a dimension."""
    try:
        index = index_of(refresh.factory, dimension)
        if params := with_defaults(refresh.search_params, refresh.factory):
            set_search_params(index, params)
    except InputError as error:
        return error
    return None
