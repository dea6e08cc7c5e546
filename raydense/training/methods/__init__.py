"""What is trained: a method is one small class in a file of its own, named here, and a recipe.

The loop knows an `Objective` and never which paper it is.
"""

from __future__ import annotations

from raydense.training.methods.generator import GeneratorTraining
from raydense.training.methods.joint import JointTraining
from raydense.training.methods.method import Batch, Metrics, Objective, Outputs, Texts, load_model, pad
from raydense.training.methods.multi_positive import MultiPositive
from raydense.training.methods.pair import Pair
from raydense.training.methods.pretraining import CoCondenserTraining, CondenserTraining, CotMaeTraining, Pretraining
from raydense.training.methods.reranker import Reranker
from raydense.training.methods.retriever import Retriever
from raydense.training.settings import Training

__all__ = ["Batch", "Metrics", "Objective", "Outputs", "Texts", "load_model", "objective_of", "pad"]

_OBJECTIVES: dict[str, type[Objective]] = {
    "retriever": Retriever,
    "pair": Pair,
    "multi-positive": MultiPositive,
    "reranker": Reranker,
    "joint": JointTraining,
    "generator": GeneratorTraining,
    "mlm": Pretraining,
    "condenser": CondenserTraining,
    "cocondenser": CoCondenserTraining,
    "cotmae": CotMaeTraining,
}


def objective_of(settings: Training) -> type[Objective]:
    """The objective that the settings name."""
    return _OBJECTIVES[settings.objective]
