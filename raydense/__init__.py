"""raydense: training and serving dense passage retrieval on Ray.

The names below are imported when first used, so that `import raydense` stays quick.
"""

from importlib import import_module

__version__ = "0.1.0"

_HOMES = {
    "Artifact": "raydense.storage.artifact",
    "InputError": "raydense.errors",
    "PassageStore": "raydense.data.store",
    "make_sample": "raydense.data.sample",
    "import_corpus": "raydense.data.importing",
    "import_dataset": "raydense.data.importing",
    "export": "raydense.data.exporting",
    "split": "raydense.inference.split",
    "train": "raydense.refresh.refresh",
    "generate": "raydense.inference.generate",
    "encode": "raydense.inference.encode",
    "rerank": "raydense.inference.rerank",
    "index": "raydense.retrieval.index",
    "filter_queries": "raydense.mining.consistency",
    "mine": "raydense.mining.mine",
    "label": "raydense.mining.label",
    "evaluate": "raydense.evaluation.evaluate",
    "SearchPool": "raydense.retrieval.pool",
    "DualEncoder": "raydense.models.dual_encoder",
    "CrossEncoder": "raydense.models.cross_encoder",
    "Generator": "raydense.models.generator",
    "SampleSettings": "raydense.data.settings",
    "ImportSettings": "raydense.data.settings",
    "ExportSettings": "raydense.data.settings",
    "SplitSettings": "raydense.inference.settings",
    "TrainSettings": "raydense.training.settings",
    "PretrainSettings": "raydense.training.settings",
    "GenerateSettings": "raydense.inference.settings",
    "EncodeSettings": "raydense.inference.settings",
    "IndexSettings": "raydense.retrieval.settings",
    "SearchSettings": "raydense.retrieval.settings",
    "FilterSettings": "raydense.mining.settings",
    "MineSettings": "raydense.mining.settings",
    "LabelSettings": "raydense.mining.settings",
    "RerankSettings": "raydense.inference.settings",
    "EvaluateSettings": "raydense.evaluation.settings",
}


def __getattr__(name: str) -> object:
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'raydense' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *_HOMES])
