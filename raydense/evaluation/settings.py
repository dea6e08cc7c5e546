"""The settings of `evaluate`, of runs and, with --suite, of a retriever on many test sets."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal, Self

from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from raydense.extensions.loading import as_fault_of_a_setting
from raydense.forecast import PROCESS_BYTES, Forecast, Holds, Known, fewest
from raydense.inference.settings import QueryPrompt
from raydense.retrieval.settings import BM25Settings
from raydense.settings import (
    BaseSettings,
    Folder,
    FolderOrNone,
    Folders,
    OneOrMore,
    Settings,
    Texts,
    Words,
    artifact,
    group,
    setting,
    words,
)
from raydense.storage import named, named_folders


def _known(names: list[str]) -> list[str]:
    from raydense.evaluation.metrics import parse_metrics  # only here: `raydense --help` does not need the metrics' library

    with as_fault_of_a_setting():
        parse_metrics(names, "")
    return names


def _code_of(metrics: list[str]) -> dict[str, str]:
    from raydense.evaluation.own_metrics import metrics_code  # only here, as above

    return {"metrics_code": metrics_code(metrics)}


Metrics = Annotated[Words, AfterValidator(_known)]
_JUDGEMENT_BYTES = 64.0  # of a training judgement: two ids, a grade and what is chosen of them
MOST_TUNED = 4  # runs: 286 combinations of weights in steps of a tenth


class AnswerSettings(BaseSettings):
    """Answer accuracy: the share of the queries of which one of the first k passages holds an answer."""

    match: Literal["token", "regex"] = setting(
        "token", "the tokens of an answer, one after another, in any case; or the answer as a regular expression"
    )
    k: Annotated[list[Annotated[int, Field(ge=1)]], BeforeValidator(words)] = setting(
        [1, 5, 20, 100], "how many passages are looked at", min_length=1
    )


class SimilaritySettings(BaseSettings):
    """How near positives are to their queries, and to the first passages that are no positives (PAIR, figure 4)."""

    renamed: ClassVar[dict[str, str]] = {"queries": "query_sample"}

    query_sample: int = setting(100, "how many judged queries to take, evenly chosen; 0: all, as in the paper", ge=0)
    passages: int = setting(10, "how many of a query's first passages that are no positives to compare with; 100 in the paper", ge=1)


class EvaluateSettings(Settings):
    """Measure runs against judgements, or by the answers that they hold (give run and qrels, run and answers, or suite).

    Writes metrics.json and report.html.
    """

    newer = ("train_qrels",)
    renamed: ClassVar[dict[str, str]] = {
        "answers": "answers.match",
        "answer_k": "answers.k",
        "similarity.queries": "similarity.query_sample",
    }
    recorded: ClassVar[dict[str, str]] = {"similarity.query_sample": "similarity.queries"}

    run: Folders = artifact(
        "run", "the runs, each a folder or NAME=folder (a name has no slash); the first is what the others are compared with", min_length=1
    )
    qrels: FolderOrNone = artifact(
        "qrels", "the judgements; without them answers alone are measured, over all queries that have some", None
    )
    train_qrels: OneOrMore = artifact(
        "qrels",
        "the judgements that models were trained on, one or more. The report then has each metric for two halves, too: queries with a relevant"
        " passage that is also relevant to a training query, and the others. On these no gain comes from a passage learned by heart",
        None,
    )
    metrics: Metrics = setting(
        ["nDCG@10", "RR@10", "R@50", "R@100"],
        "what to measure, in the names of ir-measures, such as nDCG@10, RR(rel=2)@10, Success@5 or AP, or package.module:function@10 of your own; passages are relevant from grade 1 on",
    )
    queries: FolderOrNone = artifact("queries", "for example queries in the report, and for their answers", None)
    corpus: FolderOrNone = artifact("corpus", "for the texts in the report, and for answer accuracy", None)
    models: Folders = artifact("model", "trained models whose curves the report draws", [])
    answers: AnswerSettings | None = group("also measure whether the first k passages hold an answer of the query")
    similarity: SimilaritySettings | None = group(
        "PAIR, figure 4, in the report: how near positives are to queries and to other passages, for runs that one of `models` made"
    )
    title: str = setting("raydense report", "the headline of the report")

    @model_validator(mode="after")
    def _measures(self) -> Self:
        if self.similarity is not None and not (self.qrels and self.queries and self.corpus and self.models):
            raise ValueError("similarity needs qrels, queries, corpus and models, of which one found a run")
        if self.qrels is None:
            if self.answers is None:
                raise ValueError("nothing to measure by: give qrels; or answers.match, with queries that have answers, and corpus")
            self._refuse_given(["metrics", "train_qrels"], "an evaluation without qrels")
        for needed in ("queries", "corpus") if self.answers else ():
            if getattr(self, needed) is None:
                raise ValueError(f"{needed}: missing; answers.match needs it")
        self._refuse_same_names("run", "models", "train_qrels")
        return self

    def outside_code(self) -> dict[str, str]:
        """As for every stage: that of the metrics of a user."""
        return _code_of(self.metrics)

    @property
    def trained_on(self) -> dict[str, str]:
        """The folders of `train_qrels` by name."""
        given = self.train_qrels
        return dict(named_folders(given)) if isinstance(given, list) else {"": given} if given else {}

    def forecast(self, known: Known) -> Forecast:
        """The time grows with the hits of all runs."""
        queries = known.of(self.qrels) or fewest(known.of(self.queries))
        if not queries:
            return Forecast()
        runs = [known.of(named(run)[1]) for run in self.run]
        hits = sum(run.rows * run.each for run in runs if run)
        makes = {self.output: Holds(queries.rows, bytes=3e4 + 25.0 * queries.rows)}
        needs = f"{len(self.run)} run(s) over {queries} queries"
        trained = sum(held.rows * held.each for folder in self.trained_on.values() if (held := known.of(folder)))
        memory = 2 * PROCESS_BYTES + _JUDGEMENT_BYTES * trained
        return Forecast(needs, makes, "evaluate" if all(runs) else "", {"hits": float(hits)}, memory)


class SuiteSettings(Settings, QueryPrompt):
    """With --suite: measure a retriever, or BM25, on every test set of a folder; one table, and the mean of all.

    Each set is imported, encoded, indexed, searched and measured in a folder of its own; if stopped, it continues.
    """

    output: Folder = setting(..., "the folder for the outputs of all sets, and for the table", min_length=1)
    suite: Folder = artifact(
        "suite",
        "the folder of the test sets, at any depth: BEIR folders, or what `raydense import` made; those of a sub-folder count as one",
    )
    model: FolderOrNone = artifact("model", "faiss: the retriever", None)
    prefixes: Texts = setting([], "SET=text: query_prefix of one set, or of those below a sub-folder, in place of what is for all")
    reranker: FolderOrNone = artifact("model", "a re-ranker for the first passages of each query, which is measured, too", None)
    sets: Words = setting([], "only these sets, or those below these sub-folders; by default all")
    splits: Words = setting(
        ["test"],
        "the qrels to measure against: each set on the first that it has of `test/dev/train`, on all that it has of `dl19 dl20`",
        min_length=1,
    )
    kind: Literal["faiss", "bm25"] = setting("faiss", "the retriever's vectors, or BM25, which needs no model")
    metrics: Metrics = setting(
        ["nDCG@10", "R@100"],
        "what to measure, in the names of ir-measures, such as RR(rel=2)@10, or package.module:function@10 of your own; passages are relevant from grade 1 on",
        min_length=1,
    )
    k: int = setting(100, "passages of each query; the query itself does not count if it is in the corpus", ge=1)
    depth: int = setting(100, "of these, how many the re-ranker scores; the rest follows in its order", ge=1)
    factory: str = setting("Flat", "faiss: index factory string, as Flat, SQfp16, IVF4096,Flat or HNSW32")
    search_params: str = setting("", "FAISS search parameters, as nprobe=32 or efSearch=128; nprobe is the index's own by default")
    bm25: BM25Settings = group("how texts are split into words, and words weighted", BM25Settings)
    shards: int = setting(0, "parts of each index, each held by its own actor; 0: so many that a part is at most about 2 GiB", ge=0)

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if self.kind == "bm25":
            self._refuse_given(["model", "prefixes", "factory", "search_params"], "kind bm25")
        elif not self.model:
            raise ValueError("a suite needs model, the retriever to measure, or kind bm25")
        else:
            self._refuse_given(["bm25"], "kind faiss")
        if not self.reranker:
            self._refuse_given(["depth"], "a suite without a reranker")
        if without := [prefix for prefix in self.prefixes if "=" not in prefix]:
            raise ValueError(f"prefixes: {without[0]!r} is of no set: write SET=text")
        named = [prefix.partition("=")[0] for prefix in self.prefixes]
        if twice := next((name for name in named if named.count(name) > 1), None):
            raise ValueError(f"prefixes: set {twice!r} has two: leave one out")
        return self


class FuseSettings(Settings):
    """Fuse runs of the same queries into one, for example BM25 with a retriever: by reciprocal ranks, or by a weighted sum of scores.

    With the judgements of dev queries the weights are tuned; `weights_of` uses those of another fused run.
    """

    run: Folders = artifact("run", "the runs, each a folder or NAME=folder", min_length=2)
    method: Literal["reciprocal", "sum"] | None = setting(
        None,
        "reciprocal: weight / (60 + rank), which needs no tuning; sum: weight x score; by default sum if qrels are given, else reciprocal",
    )
    scale: bool = setting(
        True,
        "sum: scores from 0 to 1 in the list of each query and run; false takes them as they are, as DPR's hybrid, and qrels then tune its lambda",
    )
    weights: Annotated[list[Annotated[float, Field(ge=0, le=1e6)]], BeforeValidator(words)] = setting(
        [], "the weight of each run, as '0.3 0.7'; by default equal"
    )
    qrels: FolderOrNone = artifact("qrels", "judgements of dev queries: the weights with the best `metric` on them are taken", None)
    metric: Annotated[str, AfterValidator(lambda name: _known([name])[0])] = setting(
        "nDCG@10", "what the weights are tuned for, as ir-measures names it, or package.module:function@10 of your own"
    )
    weights_of: FolderOrNone = artifact(
        "run",
        "a fused run of the same number of runs: its method, scale and weights are used, by the runs' names if they are the same, else in order",
        None,
    )
    k: int = setting(1_000, "passages of each query", ge=1)

    @model_validator(mode="after")
    def _fits(self) -> Self:
        given = [name for name in ("weights", "qrels", "weights_of") if getattr(self, name)]
        if len(given) > 1:
            raise ValueError(f"{' and '.join(given)} both give the weights: leave one out")
        if self.weights_of:
            self._refuse_given(["method", "scale"], "a fusion with weights_of")
        if self.weights and len(self.weights) != len(self.run):
            raise ValueError(f"{len(self.weights)} weights for {len(self.run)} runs: give one for each")
        if self.weights and not sum(self.weights):
            raise ValueError("all weights are 0")
        if not self.qrels:
            self._refuse_given(["metric"], "a fusion without qrels")
        elif not self.scale and len(self.run) > 2:
            raise ValueError("qrels tune the weights of scores as they are for two runs only: leave out scale, or give weights")
        elif len(self.run) > MOST_TUNED:
            raise ValueError(f"qrels tune the weights of at most {MOST_TUNED} runs: fuse some first, or give weights")
        if self.method is None:
            self.__dict__["method"] = "sum" if self.qrels else "reciprocal"
        if self.method == "reciprocal":
            self._refuse_given(["scale"], "method reciprocal")
        self._refuse_same_names("run")
        return self

    def outside_code(self) -> dict[str, str]:
        """As for every stage: that of a user's metric."""
        return _code_of([self.metric])

    def forecast(self, known: Known) -> Forecast:
        """The time grows with the hits of all runs; with qrels those of the judged queries are fused once more for each weights that are tried."""
        runs = [held for run in self.run if (held := known.of(named(run)[1]))]
        if len(runs) < len(self.run):
            return Forecast()
        each = min(float(self.k), sum(run.each for run in runs))
        rows = max(run.rows for run in runs)
        made = Holds(rows, "at most", each, rows * each * 8.0)
        needs, hits = f"{len(runs)} runs over {made} queries", sum(run.rows * run.each for run in runs)
        memory = 2.0 * PROCESS_BYTES
        if self.qrels:
            from raydense.evaluation.tuning import combinations, lambdas  # only here, as the metrics above

            tried = len(combinations(len(runs)) if self.method == "reciprocal" or self.scale else lambdas([1.0, 1.0]))
            judged = known.of(self.qrels)
            hits += tried * sum(min(run.rows, judged.rows if judged else run.rows) * run.each for run in runs)
            needs = f"{needs}, {tried} weights tried"
            memory += tried * 9.0 * (judged.rows if judged else rows)  # the metric of each query with each weights
        return Forecast(needs, {self.output: made}, "fuse", {"hits": hits}, memory)
