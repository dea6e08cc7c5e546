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
    "SampleSettings": "raydense.settings",
    "ImportSettings": "raydense.settings",
    "ExportSettings": "raydense.settings",
    "SplitSettings": "raydense.settings",
    "TrainSettings": "raydense.settings",
    "PretrainSettings": "raydense.settings",
    "GenerateSettings": "raydense.settings",
    "EncodeSettings": "raydense.settings",
    "IndexSettings": "raydense.settings",
    "SearchSettings": "raydense.settings",
    "FilterSettings": "raydense.settings",
    "MineSettings": "raydense.settings",
    "LabelSettings": "raydense.settings",
    "RerankSettings": "raydense.settings",
    "EvaluateSettings": "raydense.settings",
}


def __getattr__(name: str) -> object:
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'raydense' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *_HOMES])
