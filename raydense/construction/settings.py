"""The settings of the stages that build a retrieval data set and judge it."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any, ClassVar, Literal, Self

from pydantic import model_validator

from raydense.data.splits import FillBy
from raydense.forecast import PROCESS_BYTES, QUERY_CHARACTERS, TORCH_BYTES, Forecast, Holds, Known, fewest, part_of, tokens, total
from raydense.inference.settings import BATCH, SPREAD, Spread, pairs_forecast
from raydense.models.encoder_folder import is_reranker
from raydense.models.model_size import model_of
from raydense.settings import Folder, FolderOrNone, Folders, Settings, artifact, resource, setting
from raydense.storage import model_place, named, named_folders

LENGTHS = {"characters": 256, "words": 100}
BLOCK_BYTES = 16 << 20  # of the input, which one task reads, labels and keeps
TASK_BYTES = PROCESS_BYTES + 20 * BLOCK_BYTES


class ConstructSettings(Settings):
    """Build a retrieval data set from questions with documents and answers: paragraphs become passages, labelled by their spans (DuReader-retrieval).

    The input is a file or folder of JSON lines, a question each: {"question_id", "question", "answers": [...], "documents":
    [{"title", "paragraphs": [...]}]}, as DuReader 2.0 has them.
    """

    newer = ("fill_by",)

    input: Folder = artifact("source", "a file of questions, or a folder of such files, as JSON lines; `search.dev.json` is of split dev")
    unit: Literal["auto", "characters", "words"] = setting(
        "auto", "what spans and lengths are counted in; auto: characters where most letters are Chinese, Japanese or Korean, else words"
    )
    length: int | None = setting(
        None, "paragraphs of a document are joined until they are longer than this; by default 256 characters, or 100 words", ge=0
    )
    f1: float = setting(0.5, "a paragraph is positive if the F1 of one of its spans and an answer is at least this", gt=0, le=1)
    titles: bool = setting(False, "keep the titles of documents, which a retriever may match in place of the text")
    fill_splits: bool = setting(
        False, "make all of qrels/train, dev and test: those that are missing are drawn from the questions of one that is there, 7 : 1 : 2"
    )
    fill_by: FillBy = setting(
        "questions",
        "what fill_splits keeps together in one split: the queries of one text; or, with passages, also those that share a relevant passage,"
        " directly or through others, so that training sees no relevant passage of the dev and test queries that are drawn",
    )
    shard_rows: int = setting(25_000, "passages a corpus file", ge=1)
    concurrency: int = resource(0, "tasks at once; 0: as many as there are CPUs", ge=0)

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if not self.fill_splits:
            self._refuse_given(["fill_by"], "a construction without fill_splits")
        return self

    def forecast(self, known: Known) -> Forecast:
        """What it makes depends on the documents; the time grows with them."""
        return Forecast("what it holds shows when it has run", memory=TASK_BYTES)


_OF_MODEL = ("token_budget", "block", *SPREAD)  # what `annotate` uses only where re-rankers score the pool


class AnnotateSettings(Settings, Spread):
    """Pool the first passages of several runs, and write those that a re-ranker puts first as pages on which people judge them."""

    run: Folders = artifact("run", "the runs to pool, each a folder or NAME=folder", min_length=1)
    model: Folders = artifact(
        "model", "re-rankers that order the pool, by the mean of their probabilities; without one, reciprocal ranks order it", []
    )
    corpus: Folder = artifact("corpus", "the passages")
    queries: Folder = artifact("queries", "the queries")
    qrels: Folder = artifact("qrels", "what is judged so far; only passages of queries judged here are pooled")
    depth: int = setting(50, "first passages of each query and run that are pooled", ge=1)
    keep: int = setting(5, "passages of each query that people judge, the first of the pool", ge=1)
    package: int = setting(1_000, "pairs of a package, which one person judges", ge=1)
    review: int = setting(100, "pairs of a package, drawn at random, that reviewers judge again; 0: no page for reviewers", ge=0)
    seed: int = setting(42, "random seed of the pairs to review", ge=0, lt=2**63)
    token_budget: int = resource(0, BATCH, ge=0)
    block: int = setting(256, "queries that are scored and committed together", ge=1)

    @classmethod
    def takes(cls, values: dict[str, Any]) -> set[str]:
        """As for every stage; without models nothing that only they use, and no seed without pairs to review."""
        return super().takes(values) - (set() if values.get("model") else set(_OF_MODEL)) - (set() if values.get("review", 1) else {"seed"})

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if not self.model:
            self._refuse_given(_OF_MODEL, "annotate without model")
        if not self.review:
            self._refuse_given(["seed"], "review 0")
        self._refuse_same_names("run", "model")
        return self

    def forecast(self, known: Known) -> Forecast:
        """The time grows with the pairs that each re-ranker scores: at most `depth` of each run."""
        queries = fewest(known.of(self.qrels), known.of(self.queries))
        if not queries:
            return Forecast()
        made = Holds(queries.rows, "at most", self.keep, 3e3 * queries.rows * self.keep)
        pooled = self.model_copy(update={"depth": self.depth * len(self.run)})
        parts = [pairs_forecast(pooled, named(model)[1], made, known) for model in self.model]
        if not parts:
            needs, hits = f"{queries} queries x {self.keep} passages to judge", {"hits": float(queries.rows * self.depth * len(self.run))}
            return Forecast(needs, {self.output: made}, "fuse", hits, 2 * PROCESS_BYTES)
        if any(not part.kind for part in parts):
            return Forecast(parts[0].needs, parts[0].makes)
        work = {"flops": sum(part.work["flops"] for part in parts)}
        largest = max(parts, key=lambda part: part.memory)
        return Forecast(parts[0].needs, {self.output: made}, largest.kind, work, largest.memory, largest.gpus, largest.tasks)


class AdjudicateSettings(Settings):
    """Turn the answers of people, or a re-ranker's probabilities, into judgements: the old positives and those that were missing."""

    annotation: Folder = artifact("annotation", "the pairs, as `annotate` wrote them")
    qrels: Folder = artifact("qrels", "the judgements before, those that `annotate` was given")
    judgements: Folders = artifact("source", "the answers that people downloaded from the packages: files, or folders of them", [])
    reviews: Folders = artifact("source", "the answers of the reviewers: files, or folders of them", [])
    agreement: float = setting(0.93, "a package whose reviewers agree with less of it, on average, is refused", ge=0, le=1)
    final: FolderOrNone = artifact("source", "decisions on disputed pairs: `disputed.jsonl` with `relevance` filled in", None)
    threshold: float | None = setting(
        None,
        "take pairs that nobody judged as relevant if the re-rankers' mean probability is above it; by default people alone judge",
        ge=0,
        le=1,
    )
    run: Folders = artifact("run", "runs to measure before and after, each a folder or NAME=folder", [])

    @model_validator(mode="after")
    def _judged(self) -> Self:
        if not self.judgements and self.threshold is None:
            raise ValueError("nothing to judge by: give judgements, or a threshold for the re-rankers' probabilities")
        if not self.judgements:
            self._refuse_given(["reviews", "agreement", "final"], "an adjudication without judgements")
        elif not self.reviews:
            self._refuse_given(["agreement"], "an adjudication without reviews")
        self._refuse_same_names("run")
        return self

    def forecast(self, known: Known) -> Forecast:
        """The time grows with the hits of the runs to measure."""
        before, pairs = known.of(self.qrels), known.of(self.annotation)
        if not before or not pairs:
            return Forecast()
        each = before.each + pairs.rows / max(1, before.rows)
        made = Holds(before.rows, "at most", each, 20.0 * before.rows * each)
        runs = [known.of(named(run)[1]) for run in self.run]
        hits = 2.0 * sum(run.rows * run.each for run in runs if run)
        return Forecast(f"{pairs} pairs", {self.output: made}, "evaluate" if all(runs) else "", {"hits": hits}, 2 * PROCESS_BYTES)


class OverlapSettings(Settings, Spread):
    """Remove the training queries that ask the same as a dev or test query: by their texts, and by a model's similarity of the two."""

    renamed: ClassVar[dict[str, str]] = {"train": "train_qrels"}
    recorded: ClassVar[dict[str, str]] = {"train_qrels": "train"}

    queries: Folder = artifact("queries", "the texts of all queries")
    train_qrels: Folder = artifact("qrels", "the judgements of the training queries")
    against: Folders = artifact("qrels", "the judgements of a dev or test set, as NAME=folder; may be given several times", min_length=1)
    model: FolderOrNone = artifact(
        "model",
        "a retriever, for the cosine of two queries, or a re-ranker, for the probability of a pair; without it only queries of the same text",
        None,
    )
    encoder: FolderOrNone = artifact(
        "model", "with a re-ranker: the retriever that finds the candidates, in place of BM25 over the training queries", None
    )
    depth: int = setting(10, "candidates of each dev or test query: different texts of training queries", ge=1)
    threshold: float | None = setting(
        None,
        "with a model: a pair of a higher similarity asks the same; 0.5 suits a re-ranker, whose similarity is a probability;"
        " a cosine needs more, such as 0.9: read report.md",
        ge=0,
        le=1,
    )
    token_budget: int = resource(0, BATCH, ge=0)

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if not self.model:
            self._refuse_given(["encoder", "depth", "threshold", "token_budget"], "a comparison of the texts alone, without model,")
        elif self.threshold is None:
            raise ValueError("a model needs threshold: 0.5 for a re-ranker's probability, more for a cosine, such as 0.9")
        names = self.splits
        if len(names) < len(self.against):
            raise ValueError("two sets of against have the same name: write NAME=folder, each with another name")
        if wrong := next((name for name in names if not re.fullmatch(r"[\w.-]+", name)), None):
            raise ValueError(f"{wrong!r} of against cannot be the name of a part: write NAME=folder")
        return self

    @property
    def splits(self) -> dict[str, str]:
        """The folders of the dev and test judgements, by name."""
        return dict(named_folders(self.against))

    @property
    def parts(self) -> dict[str, str]:
        """The parts of the output, each with the folder whose judgements it has some of."""
        halves = {f"qrels/{name}-{half}": folder for name, folder in self.splits.items() for half in ("overlap", "others")}
        return {"qrels/train": self.train_qrels, **halves}

    def forecast(self, known: Known) -> Forecast:
        """The time grows with the queries to encode, or with the pairs to score."""
        train, asked = known.of(self.train_qrels), total(map(known.of, self.splits.values()))
        if not train or not asked:
            return Forecast()
        makes = {part_of(self.output, part): replace(found, word="at most") for part, of in self.parts.items() if (found := known.of(of))}
        needs, both = f"{asked} queries against {train} training queries", train.rows + asked.rows
        if not self.model:
            return Forecast(needs, makes, "overlap", {"queries": float(both)}, PROCESS_BYTES)
        model, texts = model_of(known, self.model), known.of(self.queries)
        if not model:
            return Forecast(needs, makes)
        each, pairs = texts.each if texts and texts.each else QUERY_CHARACTERS, 2 * asked.rows * min(self.depth, train.rows)
        scores = bool(self.encoder) or is_reranker(model_place(self.model).local())
        amount = (pairs if scores else both) * (tokens(each, model.query_length) * model.flops if model.flops else each)
        kind, work = f"{'score' if scores else 'encode'} {model.scale}", {"flops" if model.flops else "characters": amount}
        return Forecast(needs, makes, kind, work, TORCH_BYTES + 2 * model.bytes, -1)


class AnalyseSettings(Settings):
    """Sort a retriever's errors into kinds by rules: the first hits of queries that have no positive among them."""

    run: Folder = artifact("run", "the run whose errors are looked at")
    corpus: Folder = artifact("corpus", "the passages")
    queries: Folder = artifact("queries", "the queries")
    qrels: Folder = artifact("qrels", "the judgements: of the judged queries those without a positive among the first hits are looked at")
    index: FolderOrNone = artifact(
        "index", "a bm25 index of this corpus, which has the number of passages of each word; without it the corpus is counted", None
    )
    teacher: FolderOrNone = artifact("run", "a run of `rerank`: what it scores high is a possible false negative", None)
    s_pos: float = setting(0.9, "a teacher's probability above it makes a possible false negative", ge=0, le=1)
    k: int = setting(5, "how many of the first hits are looked at", ge=1)
    sample: int = setting(100, "how many of the queries are looked at, drawn at random", ge=1)
    seed: int = setting(42, "random seed of the draw", ge=0, lt=2**63)

    @model_validator(mode="after")
    def _fits_itself(self) -> Self:
        if self.teacher is None:
            self._refuse_given(["s_pos"], "an analysis without a teacher")
        return self

    def forecast(self, known: Known) -> Forecast:
        """The time grows with the hits to read, and with the passages to count where no index is given."""
        run, corpus = known.of(self.run), known.of(self.corpus)
        queries = fewest(run, known.of(self.queries), known.of(self.qrels))
        if not queries or not run or not corpus:
            return Forecast()
        pairs = min(self.sample, queries.rows) * self.k
        work = {"hits": float(run.rows * run.each), "passages": 0.0 if self.index else float(corpus.rows)}
        made = Holds(pairs, "at most", bytes=1_000.0 * pairs)
        return Forecast(f"{pairs:,} pairs at most", {self.output: made}, "analyse", work, 2 * PROCESS_BYTES)
