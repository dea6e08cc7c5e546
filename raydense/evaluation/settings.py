"""The settings of `evaluate`, of runs and, with --suite, of a retriever on many test sets."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal, Self

from pydantic import BeforeValidator, Field, model_validator

from raydense.forecast import PROCESS_BYTES, Forecast, Holds, Known, fewest
from raydense.settings import BaseSettings, Folder, FolderOrNone, Folders, Settings, Words, artifact, group, setting, words
from raydense.storage import named


class AnswerSettings(BaseSettings):
    """Answer accuracy: the share of the queries of which one of the first k passages holds an answer."""

    match: Literal["token", "regex"] = setting(
        "token", "the tokens of an answer, one after another, in any case; or the answer as a regular expression"
    )
    k: Annotated[list[Annotated[int, Field(ge=1)]], BeforeValidator(words)] = setting(
        [1, 5, 20, 100], "how many passages are looked at", min_length=1
    )


class EvaluateSettings(Settings):
    """Measure runs against judgements, or by the answers that they hold (give run and qrels, run and answers, or suite).

    Writes metrics.json and report.html.
    """

    renamed: ClassVar[dict[str, str]] = {"answers": "answers.match", "answer_k": "answers.k"}

    run: Folders = artifact(
        "run", "the runs, each a folder or NAME=folder (a name has no slash); the first is what the others are compared with", min_length=1
    )
    qrels: FolderOrNone = artifact(
        "qrels", "the judgements; without them answers alone are measured, over all queries that have some", None
    )
    metrics: Words = setting(["nDCG@10", "RR@10", "R@50", "R@100"], "as ir-measures names them")
    queries: FolderOrNone = artifact("queries", "for example queries in the report, and for their answers", None)
    corpus: FolderOrNone = artifact("corpus", "for the texts in the report, and for answer accuracy", None)
    models: Folders = artifact("model", "trained models whose curves the report draws", [])
    answers: AnswerSettings | None = group("also measure whether the first k passages hold an answer of the query")
    title: str = setting("raydense report", "the headline of the report")

    @model_validator(mode="after")
    def _measures(self) -> Self:
        if self.qrels is None:
            if self.answers is None:
                raise ValueError("nothing to measure by: give qrels; or answers.match, with queries that have answers, and corpus")
            self._refuse_given(["metrics"], "an evaluation without qrels")
        return self

    def forecast(self, known: Known) -> Forecast:
        """The time grows with the hits of all runs."""
        queries = known.of(self.qrels) or fewest(known.of(self.queries))
        if not queries:
            return Forecast()
        runs = [known.of(named(run)[1]) for run in self.run]
        hits = sum(run.rows * run.each for run in runs if run)
        makes = {self.output: Holds(queries.rows, bytes=3e4 + 25.0 * queries.rows)}
        needs = f"{len(self.run)} run(s) over {queries} queries"
        return Forecast(needs, makes, "evaluate" if all(runs) else "", {"hits": float(hits)}, 2 * PROCESS_BYTES)


class SuiteSettings(Settings):
    """With --suite: measure a retriever, or BM25, on every test set of a folder; one table, and the mean of all.

    Each set is imported, encoded, indexed, searched and measured in a folder of its own; if stopped, it continues.
    """

    output: Folder = setting(..., "the folder for the outputs of all sets, and for the table", min_length=1)
    suite: Folder = artifact(
        "suite",
        "the folder of the test sets, at any depth: BEIR folders, or what `raydense import` made; those of a sub-folder count as one",
    )
    model: FolderOrNone = artifact("model", "faiss: the retriever", None)
    reranker: FolderOrNone = artifact("model", "a re-ranker for the first passages of each query, which is measured, too", None)
    sets: Words = setting([], "only these sets, or those below these sub-folders; by default all")
    splits: Words = setting(["test"], "the qrels to measure against; a set that has some of several is measured on those", min_length=1)
    kind: Literal["faiss", "bm25"] = setting("faiss", "the retriever's vectors, or BM25, which needs no model")
    metrics: Words = setting(["nDCG@10", "R@100"], "as ir-measures names them, as RR(rel=2)@10", min_length=1)
    k: int = setting(100, "passages of each query; the query itself does not count if it is in the corpus", ge=1)
    depth: int = setting(100, "of these, how many the re-ranker scores; the rest is left out, also of what R@100 counts", ge=1)
    factory: str = setting("Flat", "faiss: index factory string, as Flat, SQfp16, IVF4096,Flat or HNSW32")
    search_params: str = setting("", "FAISS search parameters, as nprobe=32 or efSearch=128; nprobe is the index's own by default")
    shards: int = setting(0, "parts of each index, each held by its own actor; 0: so many that a part is at most about 2 GiB", ge=0)

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if self.kind == "bm25":
            self._refuse_given(["model", "factory", "search_params"], "kind bm25")
        elif not self.model:
            raise ValueError("a suite needs model, the retriever to measure, or kind bm25")
        if not self.reranker:
            self._refuse_given(["depth"], "a suite without a reranker")
        return self
