"""A stage of a recipe, and the verbs: each has settings, and a function that is imported when it runs."""

from __future__ import annotations

from dataclasses import dataclass, field
from importlib import import_module
from typing import Any

from raydense.construction.settings import AdjudicateSettings, AnalyseSettings, AnnotateSettings, ConstructSettings, OverlapSettings
from raydense.data.settings import ExportSettings, ImportSettings, MixSettings, OracleSettings, PerturbSettings, SampleSettings
from raydense.errors import InputError, StorageError, fixable, why
from raydense.evaluation.settings import EvaluateSettings, FuseSettings
from raydense.inference.expand_settings import ExpandSettings
from raydense.inference.settings import EncodeSettings, GenerateSettings, RerankSettings, SplitSettings
from raydense.mining.settings import FilterSettings, LabelSettings, MineSettings
from raydense.retrieval.settings import CompareSettings, IndexSettings, SearchSettings, TopicsSettings
from raydense.runtime.progress import say_error
from raydense.settings import Settings
from raydense.training.settings import PretrainSettings, TrainSettings


@dataclass(frozen=True)
class Verb:
    """A stage that the command line and recipes know: its settings, and where its function lives (imported when run)."""

    settings: type[Settings]
    home: str
    makes: str = ""
    """The kind of what it makes, unless its method decides it, or it is a plain file; a data set has parts, which can be inputs."""

    def run(self, settings: Settings) -> Any:
        module, function = self.home.split(":")
        return getattr(import_module(module), function)(settings)


VERBS: dict[str, Verb] = {
    "sample": Verb(SampleSettings, "raydense.data.sample:sample", "dataset"),
    "import": Verb(ImportSettings, "raydense.data.importing:import_dataset", "dataset"),
    "construct": Verb(ConstructSettings, "raydense.construction.construct:construct", "dataset"),
    "split": Verb(SplitSettings, "raydense.inference.split:split", "corpus"),
    "export": Verb(ExportSettings, "raydense.data.exporting:export"),
    "train": Verb(TrainSettings, "raydense.refresh.train:train"),
    "generate": Verb(GenerateSettings, "raydense.inference.generate:generate", "generated"),
    "expand": Verb(ExpandSettings, "raydense.inference.expand:expand", "dataset"),
    "oracle": Verb(OracleSettings, "raydense.data.oracle:oracle", "generated"),
    "pretrain": Verb(PretrainSettings, "raydense.training.pretrain:pretrain"),
    "encode": Verb(EncodeSettings, "raydense.inference.encode:encode", "embeddings"),
    "index": Verb(IndexSettings, "raydense.retrieval.index:index", "index"),
    "compare": Verb(CompareSettings, "raydense.retrieval.compare:compare", "report"),
    "topics": Verb(TopicsSettings, "raydense.retrieval.topics:topics", "topics"),
    "search": Verb(SearchSettings, "raydense.retrieval.search:search", "run"),
    "fuse": Verb(FuseSettings, "raydense.evaluation.fuse:fuse", "run"),
    "filter": Verb(FilterSettings, "raydense.mining.consistency:filter", "generated"),
    "mine": Verb(MineSettings, "raydense.mining.mine:mine", "examples"),
    "label": Verb(LabelSettings, "raydense.mining.label:label", "examples"),
    "rerank": Verb(RerankSettings, "raydense.inference.rerank:rerank", "run"),
    "perturb": Verb(PerturbSettings, "raydense.data.perturbing:perturb", "queries"),
    "mix": Verb(MixSettings, "raydense.data.mixing:mix", "dataset"),
    "annotate": Verb(AnnotateSettings, "raydense.construction.annotate:annotate", "annotation"),
    "adjudicate": Verb(AdjudicateSettings, "raydense.construction.adjudicate:adjudicate", "qrels"),
    "overlap": Verb(OverlapSettings, "raydense.construction.overlap:overlap", "dataset"),
    "analyse": Verb(AnalyseSettings, "raydense.construction.analyse:analyse", "report"),
    "evaluate": Verb(EvaluateSettings, "raydense.evaluation.evaluate:evaluate", "report"),
}


@dataclass(frozen=True)
class Stage:
    """One stage of a recipe, ready to run."""

    name: str
    verb: str
    settings: Settings
    needs: tuple[str, ...]
    folders: tuple[str, ...] = ()
    """The outputs of the stages that it needs."""
    given: dict[str, str] = field(default_factory=dict, compare=False)
    """The keys whose values the recipe is given, with the names that `--set` changes them by."""
    where: str = field(default="", compare=False)
    """What errors name it by: the recipe and its key there."""

    def run(self) -> Any:
        """Its artifact; every error names the stage."""
        try:
            return VERBS[self.verb].run(self.settings)
        except Exception as error:
            found = fixable(error)
            if found is None:
                say_error(f"{self.where}: {why(error)}")
                raise
            code, line = found
            raise (InputError(line, self.where) if code == 2 else StorageError(f"{self.where}: {line}")) from error
