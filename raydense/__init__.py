"""raydense: training and serving dense passage retrieval on Ray.

A stage is a function of its settings: `encode(EncodeSettings(...))` makes an artifact. The names below are imported when first
used, so that `import raydense` stays quick; type checkers see them all.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from raydense.construction.adjudicate import adjudicate
    from raydense.construction.analyse import analyse
    from raydense.construction.annotate import annotate
    from raydense.construction.construct import construct
    from raydense.construction.overlap import overlap
    from raydense.construction.settings import AdjudicateSettings, AnalyseSettings, AnnotateSettings, ConstructSettings, OverlapSettings
    from raydense.data.exporting import export
    from raydense.data.importing import import_corpus, import_dataset
    from raydense.data.mixing import mix
    from raydense.data.oracle import oracle
    from raydense.data.perturbing import perturb
    from raydense.data.sample import sample
    from raydense.data.settings import (
        ExportSettings,
        HardNegatives,
        HiddenSettings,
        ImportSettings,
        MixSettings,
        OracleSettings,
        PerturbSettings,
        SampleSettings,
    )
    from raydense.data.store import PassageStore
    from raydense.errors import InputError, one_line_errors
    from raydense.evaluation.evaluate import evaluate
    from raydense.evaluation.fuse import fuse
    from raydense.evaluation.mteb_search import MtebSearch
    from raydense.evaluation.settings import AnswerSettings, EvaluateSettings, FuseSettings, SimilaritySettings, SuiteSettings
    from raydense.inference.encode import encode
    from raydense.inference.endpoint_settings import EndpointSettings
    from raydense.inference.expand import expand
    from raydense.inference.expand_settings import ExpandSettings, PromptSettings
    from raydense.inference.generate import generate
    from raydense.inference.pair_scorer import pair_scorer
    from raydense.inference.query_encoder import query_encoder
    from raydense.inference.rerank import rerank
    from raydense.inference.settings import EncodeSettings, GenerateSettings, RerankSettings, SamplingSettings, SplitSettings
    from raydense.inference.split import split
    from raydense.mining.consistency import filter
    from raydense.mining.label import label
    from raydense.mining.mine import mine
    from raydense.mining.settings import FilterSettings, HybridSettings, LabelSettings, MineSettings
    from raydense.models.cross_encoder import CrossEncoder
    from raydense.models.dual_encoder import DualEncoder
    from raydense.models.generator import Generator
    from raydense.recipes.suite import evaluate_suite
    from raydense.refresh.train import train
    from raydense.retrieval.compare import compare
    from raydense.retrieval.index import index
    from raydense.retrieval.pool import SearchPool
    from raydense.retrieval.search import search
    from raydense.retrieval.settings import BM25Settings, CompareSettings, IndexSettings, SearchSettings, TopicsSettings
    from raydense.retrieval.topics import topics
    from raydense.serving.retriever import Retriever
    from raydense.serving.settings import RetrieverSettings
    from raydense.storage import Artifact
    from raydense.training.loop_settings import EngineSettings
    from raydense.training.pretrain import pretrain
    from raydense.training.settings import DevSettings, PretrainSettings, RefreshSettings, TrainSettings

__version__ = "0.2.0"

_HOMES = {
    "raydense.construction.adjudicate": ["adjudicate"],
    "raydense.construction.analyse": ["analyse"],
    "raydense.construction.annotate": ["annotate"],
    "raydense.construction.construct": ["construct"],
    "raydense.construction.overlap": ["overlap"],
    "raydense.construction.settings": ["AdjudicateSettings", "AnalyseSettings", "AnnotateSettings", "ConstructSettings", "OverlapSettings"],
    "raydense.data.exporting": ["export"],
    "raydense.data.importing": ["import_corpus", "import_dataset"],
    "raydense.data.mixing": ["mix"],
    "raydense.data.oracle": ["oracle"],
    "raydense.data.perturbing": ["perturb"],
    "raydense.data.sample": ["sample"],
    "raydense.data.settings": [
        "ExportSettings",
        "HardNegatives",
        "HiddenSettings",
        "ImportSettings",
        "MixSettings",
        "OracleSettings",
        "PerturbSettings",
        "SampleSettings",
    ],
    "raydense.data.store": ["PassageStore"],
    "raydense.errors": ["InputError", "one_line_errors"],
    "raydense.evaluation.evaluate": ["evaluate"],
    "raydense.evaluation.fuse": ["fuse"],
    "raydense.evaluation.mteb_search": ["MtebSearch"],
    "raydense.evaluation.settings": ["AnswerSettings", "EvaluateSettings", "FuseSettings", "SimilaritySettings", "SuiteSettings"],
    "raydense.inference.encode": ["encode"],
    "raydense.inference.endpoint_settings": ["EndpointSettings"],
    "raydense.inference.expand": ["expand"],
    "raydense.inference.expand_settings": ["ExpandSettings", "PromptSettings"],
    "raydense.inference.generate": ["generate"],
    "raydense.inference.pair_scorer": ["pair_scorer"],
    "raydense.inference.query_encoder": ["query_encoder"],
    "raydense.inference.rerank": ["rerank"],
    "raydense.inference.settings": ["EncodeSettings", "GenerateSettings", "RerankSettings", "SamplingSettings", "SplitSettings"],
    "raydense.inference.split": ["split"],
    "raydense.mining.consistency": ["filter"],
    "raydense.mining.label": ["label"],
    "raydense.mining.mine": ["mine"],
    "raydense.mining.settings": ["FilterSettings", "HybridSettings", "LabelSettings", "MineSettings"],
    "raydense.models.cross_encoder": ["CrossEncoder"],
    "raydense.models.dual_encoder": ["DualEncoder"],
    "raydense.models.generator": ["Generator"],
    "raydense.recipes.suite": ["evaluate_suite"],
    "raydense.refresh.train": ["train"],
    "raydense.retrieval.compare": ["compare"],
    "raydense.retrieval.index": ["index"],
    "raydense.retrieval.pool": ["SearchPool"],
    "raydense.retrieval.search": ["search"],
    "raydense.retrieval.settings": ["BM25Settings", "CompareSettings", "IndexSettings", "SearchSettings", "TopicsSettings"],
    "raydense.retrieval.topics": ["topics"],
    "raydense.serving.retriever": ["Retriever"],
    "raydense.serving.settings": ["RetrieverSettings"],
    "raydense.storage": ["Artifact"],
    "raydense.training.loop_settings": ["EngineSettings"],
    "raydense.training.pretrain": ["pretrain"],
    "raydense.training.settings": ["DevSettings", "PretrainSettings", "RefreshSettings", "TrainSettings"],
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}

__all__ = [
    "AdjudicateSettings",
    "AnalyseSettings",
    "AnnotateSettings",
    "AnswerSettings",
    "Artifact",
    "BM25Settings",
    "CompareSettings",
    "ConstructSettings",
    "CrossEncoder",
    "DevSettings",
    "DualEncoder",
    "EncodeSettings",
    "EndpointSettings",
    "EngineSettings",
    "EvaluateSettings",
    "ExpandSettings",
    "ExportSettings",
    "FilterSettings",
    "FuseSettings",
    "GenerateSettings",
    "Generator",
    "HardNegatives",
    "HiddenSettings",
    "HybridSettings",
    "ImportSettings",
    "IndexSettings",
    "InputError",
    "LabelSettings",
    "MineSettings",
    "MixSettings",
    "MtebSearch",
    "OracleSettings",
    "OverlapSettings",
    "PassageStore",
    "PerturbSettings",
    "PretrainSettings",
    "PromptSettings",
    "RefreshSettings",
    "RerankSettings",
    "Retriever",
    "RetrieverSettings",
    "SampleSettings",
    "SamplingSettings",
    "SearchPool",
    "SearchSettings",
    "SimilaritySettings",
    "SplitSettings",
    "SuiteSettings",
    "TopicsSettings",
    "TrainSettings",
    "adjudicate",
    "analyse",
    "annotate",
    "compare",
    "construct",
    "encode",
    "evaluate",
    "evaluate_suite",
    "expand",
    "export",
    "filter",
    "fuse",
    "generate",
    "import_corpus",
    "import_dataset",
    "index",
    "label",
    "mine",
    "mix",
    "one_line_errors",
    "oracle",
    "overlap",
    "pair_scorer",
    "perturb",
    "pretrain",
    "query_encoder",
    "rerank",
    "sample",
    "search",
    "split",
    "topics",
    "train",
]

if not TYPE_CHECKING:

    def __getattr__(name):
        if name in _HOME_OF:
            return getattr(import_module(_HOME_OF[name]), name)
        raise AttributeError(f"module 'raydense' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
