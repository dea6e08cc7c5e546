"""The settings of the stages that make, read and write data sets: `sample`, `import`, `mix`, `oracle`, `perturb` and `export`."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from raydense.data.formats import by_name, defines, format_code, formats_that, require
from raydense.data.splits import FillBy
from raydense.extensions.loading import as_fault_of_a_setting
from raydense.forecast import PROCESS_BYTES, QUERY_CHARACTERS, Forecast, Holds, Known, part_of, total
from raydense.settings import BaseSettings, Folder, FolderOrNone, Folders, Settings, Texts, Words, artifact, group, setting, words
from raydense.storage import named, named_folders


def _format_that(function: str) -> AfterValidator:
    def check(name: str) -> str:
        with as_fault_of_a_setting():
            require(name, function)
        return name

    return AfterValidator(check)


def _listed(function: str) -> str:
    return f"the family of formats: {', '.join(formats_that(function))}; or package.module:Class of a format of your own"


def _languages(codes: list[str]) -> list[str]:
    if wrong := next((code for code in codes if not re.fullmatch(r"[a-z]{2,3}(-[A-Za-z0-9]+)*", code)), None):
        raise ValueError(f"{wrong!r} is no code of a language: give one such as zh, en or pt-BR")
    return codes


def _license(name: str) -> str:
    if not re.fullmatch(r"[a-z0-9]+([.-][a-z0-9]+)*", name):
        raise ValueError(f"{name!r} is no name of a licence on the Hub: give one such as apache-2.0, cc-by-4.0 or other")
    return name


def _tag(name: str) -> str:
    if name.split() != [name]:
        raise ValueError(f"{name!r} is not one word without blanks, as a TREC run needs")
    return name


class SampleSettings(Settings):
    """Make a sample data set of any size: an invented world with similar entities, paraphrases and queries with several positives."""

    newer = ("unjudged",)

    passages: int = setting(5_000, "passages to make, rounded up to whole entities", ge=100)
    train_queries: int = setting(4_800, "training queries", ge=1)
    dev_queries: int = setting(300, "dev queries", ge=1)
    test_queries: int = setting(500, "test queries", ge=1)
    seed: int = setting(1, "random seed: another seed makes another world", ge=0, lt=2**63)
    notes: int = setting(
        1, "passages about each entity that repeat one of its six facts: with 12, most queries have three positives", ge=0, le=1_000
    )
    unjudged: float = setting(
        0.0,
        "the share of the notes that answer a training query and are not judged for it, which look like negatives: they become qrels/unjudged",
        ge=0,
        le=1,
    )
    shard_rows: int = setting(25_000, "passages a corpus file", ge=1)

    @model_validator(mode="after")
    def _has_what_is_unjudged(self) -> Self:
        if self.unjudged and not self.notes:
            raise ValueError("unjudged is a share of the notes, and notes is 0: give notes, or leave unjudged out")
        return self

    def forecast(self, known: Known) -> Forecast:
        """The time grows with the passages; 30 bytes of each stay in memory until the end."""
        asked = {"train": self.train_queries, "dev": self.dev_queries, "test": self.test_queries}
        corpus, queries = (
            Holds(self.passages, "about", 158, 182.0 * self.passages, files=-(-self.passages // self.shard_rows)),
            Holds(n := sum(asked.values()), "", 60, 19.0 * n),
        )
        splits = {f"qrels/{split}": Holds(n, "", 1.2, 9.0 * n) for split, n in asked.items()}
        if self.unjudged:
            splits["qrels/unjudged"] = Holds(self.train_queries, "at most", 1.2, 9.0 * self.train_queries)
        makes = {part_of(self.output, part): holds for part, holds in {"corpus": corpus, "queries": queries, **splits}.items()}
        needs = f"{corpus} passages and {queries} queries to make"
        work = {"passages": float(self.passages), "queries": float(n)}
        return Forecast(needs, makes, "sample", work, PROCESS_BYTES + 30 * self.passages)


class HiddenSettings(BaseSettings):
    """The training queries whose judgements are hidden: they become `qrels/hidden`, and `qrels/train` has the others."""

    share: float = setting(0.5, "the share of the training queries", gt=0, lt=1)
    seed: int = setting(0, "random seed of the draw", ge=0, lt=2**63)


class HardNegatives(BaseSettings):
    """Which negatives of a file that has them by system an import takes, as BEIR's train_msmarco_v3.py chooses (5 of each, margin 3)."""

    renamed: ClassVar[dict[str, str]] = {"margin": "absolute_margin"}

    per_system: int | None = setting(
        None, "of each system that found negatives at most so many, the first that no earlier system has", ge=1
    )
    absolute_margin: float | None = setting(
        None,
        "leave out negatives whose cross-encoder score in the file is not this much below that of the positive, the lowest of several",
        ge=0,
    )


class ImportSettings(Settings):
    """Read a data set of another tool into corpus, queries, qrels, examples and runs."""

    newer = ("strict", "titles", "fill_splits", "fill_by")  # of `strict`: what a strict import takes, the other takes as it is
    renamed: ClassVar[dict[str, str]] = {"hard_negatives.margin": "hard_negatives.absolute_margin"}
    recorded: ClassVar[dict[str, str]] = {"hard_negatives.absolute_margin": "hard_negatives.margin"}

    format: Annotated[str, _format_that("read")] = setting(..., _listed("read"), examples=list(formats_that("read")))
    input: Folder = artifact("source", "the folder or file to read; for ir_datasets a data set id")
    corpus: FolderOrNone = artifact(
        "corpus", "the corpus whose passages a run, qrels or examples file names, if the input has no corpus", None
    )
    shard_rows: int = setting(25_000, "passages a corpus file: also what one commit of `encode` holds", ge=1)
    strict: bool = setting(
        True,
        "refuse passages without text, and judgements of passages that the corpus lacks; otherwise both are kept and counted:"
        " `evaluate` reads such judgements, `mine`, `label` and the dev measurements of `train` leave them out",
    )
    titles: bool = setting(
        True,
        "keep the passages' titles; otherwise models and BM25 see the texts alone, where a passage without text has its title as text",
    )
    fill_splits: bool = setting(
        False,
        "make all of qrels/train, dev and test: those that the source lacks are drawn from the queries of one that it has, 7 : 1 : 2",
    )
    fill_by: FillBy = setting(
        "questions",
        "what fill_splits keeps together in one split: the queries of one text; or, with passages, also those that share a relevant passage,"
        " directly or through others, so that training sees no relevant passage of the dev and test queries that are drawn",
    )
    hidden: HiddenSettings | None = group(
        "hide the judgements of some training queries: those become qrels/hidden, and qrels/train has the others"
    )
    hard_negatives: HardNegatives | None = group("which negatives to take of a file that has those of several systems: sbert_negatives")

    @model_validator(mode="after")
    def _fits_format(self) -> Self:
        if self.hard_negatives is not None and not defines(self.format, "chosen"):
            raise ValueError(f"hard_negatives is for the format {', '.join(formats_that('chosen'))}, not for {self.format}: leave it out")
        if not self.fill_splits:
            self._refuse_given(["fill_by"], "an import without fill_splits")
        return self

    def outside_code(self) -> dict[str, str]:
        """As for every stage: that of a user's format."""
        return {"format_code": format_code(self.format)}

    @property
    def by_name(self) -> bool:
        """Whether `input` is a library's name of a data set, not a path."""
        return by_name(self.format)

    def is_path(self, key: str, value: str) -> bool:
        """As for every stage; the id of a data set of a library is none."""
        return super().is_path(key, value) and not (self.by_name and key == "input")

    def forecast(self, known: Known) -> Forecast:
        """The parts of a format that names their files, by the lines of these; the time grows with their bytes."""
        from raydense.data.source_size import parts_held

        parts, source = parts_held(self)
        unknown = "what it holds shows when it has run"
        if not parts:
            return Forecast(unknown)
        makes = {part_of(self.output, part): holds for part, holds in parts.items()}
        passages = parts.get("corpus", Holds(0))
        what = ", ".join(f"{parts[part]} {word}" for part, word in (("corpus", "passages"), ("queries", "queries")) if part in parts)
        return Forecast(f"{what} to read" if what else unknown, makes, "import", {"bytes": source}, PROCESS_BYTES + 30 * passages.rows)


class MixSettings(Settings):
    """Mix the queries and examples of several sources into one data set, to train on all of them: labelled with pseudo-labelled, or several sets.

    Its parts are queries, examples, qrels and run (if some are given) and corpus (if several are given).
    """

    examples: Folders = artifact("examples", "the examples of each source, as NAME=folder", min_length=2)
    queries: Folders = artifact(
        "queries", "the queries that they name: NAME=folder of each source, or one folder, without a name, for all", min_length=1
    )
    corpus: Folders = artifact("corpus", "the corpus of each source, as NAME=folder, or one, without a name, for all", min_length=1)
    qrels: Folders = artifact("qrels", "judgements to measure the training with, as NAME=folder, of some or all sources", [])
    run: Folders = artifact(
        "run",
        "what was found for the queries of qrels, as NAME=folder, of some or all of these: the first 100 hits, for `dev.run` of a training",
        [],
    )
    weights: Annotated[list[Annotated[float, Field(gt=0, le=1e6)]], BeforeValidator(words)] = setting(
        [], "how often an epoch has the examples of each source: 2 for twice, 0.5 for half of them, drawn anew each epoch; by default once"
    )
    prefixes: Texts = setting([], "text put before the queries of each source, in their order")

    @model_validator(mode="after")
    def _fits_sources(self) -> Self:
        for key in ("weights", "prefixes"):
            if (given := len(getattr(self, key))) not in (0, len(self.examples)):
                raise ValueError(f"{given} {key} for {len(self.examples)} sources: give one for each")
        self._refuse_same_names("examples", "queries", "corpus", "qrels", "run")
        self._refuse_names()
        return self

    def _refuse_names(self) -> None:
        """ValueError unless each source has queries and a corpus, each judgement a source, and each run judgements."""
        names = [name for name, _ in named_folders(self.examples)]
        if with_colon := [name for name in names if ":" in name]:
            raise ValueError(f"examples: the source {with_colon[0]!r} has a colon, which ends its name in the ids; write it as NAME=folder")
        for key in ("queries", "corpus", "qrels", "run"):
            self._refuse_names_of(key, names)
        judged = dict(named_folders(self.qrels))
        if without := [name for name, _ in named_folders(self.run) if name not in judged]:
            raise ValueError(f"run: {without[0]!r} has a run, and no qrels; give the judgements of its queries, too")

    def _refuse_names_of(self, key: str, names: list[str]) -> None:
        """ValueError unless the folders of `key` are of the sources called `names`: of all, but qrels and run may be of some."""
        folders, some = getattr(self, key), key in ("qrels", "run")
        given = [name for name, _ in named_folders(folders)]
        if not some and shared_folder(folders):
            return
        missing, unknown = [name for name in names if name not in given], [name for name in given if name not in names]
        if unknown or (missing and not some):
            what = f"has nothing called {missing[0]!r}" if not unknown else f"{unknown[0]!r} is no source: they are {', '.join(names)}"
            raise ValueError(f"{key}: {what}; name each as in examples, NAME=folder; one folder without a name is for all")

    def forecast(self, known: Known) -> Forecast:
        """The time grows with the examples."""
        of_source = [known.of(named(folder)[1]) for folder in self.examples]
        examples = total(of_source)
        queries = total(known.of(named(folder)[1]) for folder in self.queries)
        if not examples or not queries:
            return Forecast()
        if len(self.queries) == 1:
            queries = replace(queries, rows=queries.rows * len(self.examples))
        weights = self.weights or [1.0] * len(of_source)
        drawn = sum(round(weight * one.rows) for weight, one in zip(weights, of_source, strict=True) if one)
        examples = replace(examples, drawn=drawn)
        makes = {part_of(self.output, "examples"): examples, part_of(self.output, "queries"): queries}
        corpora = [known.of(named(folder)[1]) for folder in self.corpus]
        if len(corpora) > 1 and (corpus := total(corpora)):
            makes[part_of(self.output, "corpus")] = replace(corpus, word="at most")
        needs = f"{examples} examples of {len(self.examples)} sources"
        return Forecast(needs, makes, "mix", {"examples": float(examples.rows)}, 2 * PROCESS_BYTES)


def shared_folder(folders: list[str]) -> str | None:
    """The folder for all sources of a mix: the only one, if it is given without a name."""
    return folders[0] if len(folders) == 1 and not named(folders[0])[0] else None


class OracleSettings(Settings):
    """Give every passage the queries judged relevant for it, or for its document, in place of queries that `generate` writes."""

    corpus: Folder = artifact("corpus", "the passages; those of `split` also get the queries judged for their document")
    queries: Folder = artifact("queries", "the queries")
    qrels: Folder = artifact("qrels", "the judgements: those of training queries, since test queries would be known before the test")

    def forecast(self, known: Known) -> Forecast:
        """At most as many queries as are judged, each at all passages of a document; the time grows with the passages."""
        passages, judged = known.of(self.corpus), known.of(self.qrels)
        if not passages or not judged:
            return Forecast()
        each = QUERY_CHARACTERS * judged.rows * judged.each / passages.rows
        made = Holds(passages.rows, passages.word, each, passages.rows * (each + 12))
        needs = f"{passages} passages, {judged} judged queries"
        return Forecast(needs, {self.output: made}, "oracle", {"passages": float(passages.rows)}, PROCESS_BYTES)


class PerturbSettings(Settings):
    """Put noise into queries (typos, swapped characters, shuffled or dropped terms), to measure how robust a retriever is."""

    queries: Folder = artifact("queries", "the queries")
    kind: Literal["typo", "swap", "shuffle", "drop"] = setting(
        ...,
        "typo: characters hit wrongly, doubled or left out; swap: a character and the next one; shuffle: terms in another order; drop: terms"
        " left out; a term is a word, and in Chinese, Japanese and Korean a pair of characters",
    )
    rate: float = setting(
        0.1, "the share of the characters (typo, swap) or of the terms (shuffle, drop); a higher one adds to a lower one", ge=0, le=1
    )
    seed: int = setting(42, "random seed of the draw, which is one of its own for each query", ge=0, lt=2**63)

    def forecast(self, known: Known) -> Forecast:
        """As many queries, of the same length; the time grows with them."""
        queries = known.of(self.queries)
        if not queries:
            return Forecast()
        work = {"queries": float(queries.rows)}
        return Forecast(f"{queries} queries", {self.output: queries}, "perturb", work, PROCESS_BYTES + 4 * queries.bytes)


class ExportSettings(Settings):
    """Write artifacts in another tool's format."""

    newer = ("license", "language", "model", "report", "trained_on", "index", "embeddings")

    format: Annotated[str, _format_that("write")] = setting(..., _listed("write"), examples=list(formats_that("write")))
    run: FolderOrNone = artifact("run", "the run to write", None)
    corpus: FolderOrNone = artifact("corpus", "the corpus to write, or to take texts from", None)
    queries: FolderOrNone = artifact("queries", "the queries to write, or to take texts from", None)
    qrels: Folders = artifact(
        "qrels",
        "the judgements to write, as SPLIT=folder, or a folder whose name is the split; may be given several times; with a data set they"
        " stand in place of its split of that name, or are one more",
        [],
    )
    examples: FolderOrNone = artifact("examples", "the training examples to write", None)
    index: FolderOrNone = artifact("index", "pyserini: the FAISS index to write, of one shard", None)
    embeddings: FolderOrNone = artifact("embeddings", "pyserini: the vectors to write, with the texts of corpus", None)
    dataset: FolderOrNone = artifact(
        "dataset", "a whole data set, in place of single parts: all its parts that the format holds are written, the others are named", None
    )
    tag: Annotated[str, AfterValidator(_tag)] = setting("raydense", "trec: the name in the last column of a run")
    license: Annotated[str, AfterValidator(_license)] = setting(
        "unknown", "the licence in the card of huggingface and hub, by the Hub's name for it, such as apache-2.0"
    )
    language: Annotated[Words, AfterValidator(_languages)] = setting(
        [], "the languages in the card of huggingface and hub, by their ISO 639 codes: zh, or en,fr"
    )
    model: FolderOrNone = artifact("model", "hub: the trained model to write", None)
    report: FolderOrNone = artifact("report", "hub: a report of one run of the model; its title names the data set in the card", None)
    trained_on: Words = setting([], "hub: the data sets of the Hub that it was trained on, for the card, as mteb/scifact")

    @classmethod
    def takes(cls, values: dict[str, Any]) -> set[str]:
        """As for every stage, without what the format has no place for."""
        return super().takes(values) - set(_unused(str(values.get("format")), "run" in values))

    @model_validator(mode="after")
    def _one_or_the_parts(self) -> Self:
        parts = [name for name in ("run", "corpus", "queries", "examples", "index", "embeddings") if getattr(self, name)]
        if self.dataset and parts:
            raise ValueError(f"dataset and {parts[0]} are both given: give the data set or its parts")
        by = f"format {self.format} without run" if self.format == "trec" and not self.run else f"format {self.format}"
        self._refuse_given(_unused(self.format, bool(self.run)), by)
        if self.dataset and (bare := next((path for name, path in map(named, self.qrels) if not name), None)):
            raise ValueError(f"with dataset qrels need the name of the split that they are: write SPLIT={bare}")
        if len(self.splits) < len(self.qrels) or any("/" in name for name in self.splits):
            raise ValueError("two of qrels have the same name: write SPLIT=folder, each with another name")
        return self

    @property
    def splits(self) -> dict[str, str]:
        """The folders of the given judgements, by split."""
        return dict(named_folders(self.qrels))


def _unused(format: str, run: bool) -> list[str]:
    """The settings that an export in this format, of a run or of something else, has no place for; a user's format may read them all."""
    if format not in formats_that("write"):
        return []
    users = {"tag": format == "trec" and run, "trained_on": format == "hub"}
    users |= dict.fromkeys(("license", "language"), format in ("huggingface", "hub"))
    return [name for name, used in users.items() if not used]
