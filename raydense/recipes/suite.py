"""One table over many test sets, as BEIR's: each set is a recipe that imports, encodes, indexes, searches and measures it.

A set is a folder at any depth of the suite: a BEIR folder (corpus.jsonl, queries.jsonl, qrels/SPLIT.tsv), or what `raydense import`
made. It is called by its path in the suite, and its stages lie in a folder of that path in the output. `evaluation.means` makes
the table.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from raydense.data.formats.files import either, files_of, plain
from raydense.errors import InputError, did_you_mean, why
from raydense.evaluation.settings import SuiteSettings
from raydense.forecast import Known
from raydense.recipes.recipe import Recipe, open_stages, run_stage, state
from raydense.recipes.stage import Stage
from raydense.runtime.progress import say, say_error
from raydense.runtime.session import ensure_ray
from raydense.storage import WORK, Artifact, Place, model_place, read_manifest


@dataclass(frozen=True)
class Source:
    """A test set as it was found: its name, folder and splits; `lacks` is what is missing, if it is incomplete."""

    name: str
    folder: Path
    imported: bool
    splits: tuple[str, ...]
    lacks: str


@dataclass(frozen=True)
class Member:
    """A test set of a suite: its recipe, whose last stages are the reports, one of each split that is measured."""

    name: str
    reports: dict[str, Stage]
    recipe: Recipe


@dataclass(frozen=True)
class Suite:
    """The test sets to measure, by their names, and the settings of it all."""

    settings: SuiteSettings
    members: tuple[Member, ...]

    @classmethod
    def read(cls, settings: SuiteSettings) -> Suite:
        """Find the sets; InputError where there is none, or where a chosen one is not whole or has none of the splits asked for."""
        suite, output = Place.of(settings.suite), Place.of(settings.output)
        root = suite.local()
        if f"{output.located}/".startswith(f"{suite.located}/"):
            raise InputError(f"lies in the suite {root}, where the next run would take it for test sets", output, "give another --output")
        choices = _choices(settings.splits)
        members = []
        for source in _chosen(find_sets(root), settings):
            found = (next((split for split in choice if split in source.splits), None) for choice in choices)
            held = [split for split in found if split]
            if not held:
                there = f"has qrels of {', '.join(source.splits)}, not of {' or '.join(split for choice in choices for split in choice)}"
                fix = f"measure it on one of them by --splits {'/'.join([*choices[0], source.splits[0]])}, or leave the set out with --sets"
                raise InputError(there, source.folder, fix)
            members.append(_member(source, held, settings))
        return cls(settings, tuple(members))

    @property
    def asked(self) -> list[tuple[str, str]]:
        """Each set with each split that it is measured on."""
        return [(member.name, split) for member in self.members for split in member.reports]


def _choices(words: list[str]) -> list[list[str]]:
    """The splits to measure: of each inner list the first that a set has. InputError where they cannot be told apart."""
    choices = [word.split("/") for word in dict.fromkeys(words)]
    splits = [split for choice in choices for split in choice]
    if twice := next((split for split in splits if splits.count(split) > 1), None):
        raise InputError(f"{twice} is named twice", "splits", "name each split once")
    if len({_folder(split) for split in splits}) < len(splits):
        raise InputError(f"{' and '.join(splits)} would be measured in the same folder", "splits", "measure them in two suites")
    return choices


def find_sets(root: Path) -> list[Source]:
    """The test sets in a folder at any depth, by their paths; a set is not looked into. InputError where there is none."""
    if not root.is_dir():
        raise InputError("no such folder", root, "give the folder that holds the test sets")
    found = list(_below(root, "", frozenset()))
    if not found:
        raise InputError("holds no test set", root, "a set is a folder with corpus.jsonl, queries.jsonl and qrels/SPLIT.tsv")
    return found


def _below(folder: Path, name: str, above: frozenset[Path]) -> Iterator[Source]:
    source = _source(folder, name or folder.resolve().name)
    if source:
        yield source
        return
    above |= {folder.resolve()}
    for child in sorted(folder.iterdir()):
        if child.is_dir() and not child.name.startswith(".") and child.resolve() not in above:  # a link may lead back
            yield from _below(child, f"{name}/{child.name}" if name else child.name, above)


def _source(folder: Path, name: str) -> Source | None:
    """The test set in a folder; None where there is no corpus."""
    qrels = folder / "qrels"
    imported = (read_manifest(folder / "corpus") or {}).get("kind") == "corpus"
    if imported:
        queries = read_manifest(folder / "queries") is not None
        splits = sorted(path.name for path in qrels.iterdir() if read_manifest(path)) if qrels.is_dir() else []
    elif either(folder / "corpus.jsonl").is_file():
        queries = either(folder / "queries.jsonl").is_file()
        splits = [plain(path).stem for path in files_of(qrels, "*.tsv")] if qrels.is_dir() else []
    else:
        return None
    lacks = "is begun, and its import was not finished" if (folder / WORK).is_dir() else ""
    missing = "queries" if not queries else "qrels" if not splits else ""
    return Source(name, folder, imported, tuple(splits), lacks or (missing and f"has a corpus, but no {missing}"))


def _chosen(found: list[Source], settings: SuiteSettings) -> list[Source]:
    wanted = [name.rstrip("/") for name in settings.sets]
    for name in wanted:
        if not any(_is_of(source, name) for source in found):
            raise InputError(f"no set {name!r} in {settings.suite}", "sets", did_you_mean(name, [source.name for source in found]))
    chosen = [source for source in found if not wanted or any(_is_of(source, name) for name in wanted)]
    for prefix in settings.prefixes:
        name = prefix.partition("=")[0].rstrip("/")
        if not any(_is_of(source, name) for source in chosen):
            raise InputError(f"no set {name!r} is measured", "prefixes", did_you_mean(name, [source.name for source in chosen]))
    for source in chosen:
        if source.lacks:
            raise InputError(source.lacks, source.folder, "complete it, or leave the set out with --sets")
    return chosen


def _is_of(source: Source, name: str) -> bool:
    return source.name == name or source.name.startswith(f"{name}/")


def _prompt(name: str, settings: SuiteSettings) -> dict[str, str]:
    """What says the prompt of a set's queries: of several texts that are of the set that of the longest name."""
    texts = {of.rstrip("/"): text for of, _, text in (prefix.partition("=") for prefix in settings.prefixes)}
    own = [of for of in texts if name == of or name.startswith(f"{of}/")]
    return {"query_prefix": texts[max(own, key=len)]} if own else dict(settings.prompt)


def _folder(split: str) -> str:
    """A split as a stage's name can have it."""
    return re.sub(r"[^A-Za-z0-9_-]", "-", split)


def _member(source: Source, splits: list[str], settings: SuiteSettings) -> Member:
    here = "$set" if source.imported else "$data"
    stages = _index_stages(source, here, settings)
    prompt = _prompt(source.name, settings)
    for split in splits:
        stages |= _split_stages(here, split, settings, list(prompt))
    given = {"set": str(source.folder), "model": settings.model, "reranker": settings.reranker, **prompt}
    given |= {f"title-{split}": f"{source.name}, {split}" for split in splits}  # given, so that a $ in a name is no reference
    recipe = Recipe.build({"given": given, "stages": stages}, Place.of(settings.output) / source.name, source.name)
    named = {stage.name: stage for stage in recipe.stages}
    return Member(source.name, {split: named[f"report-{_folder(split)}"] for split in splits}, recipe)


def _index_stages(source: Source, here: str, settings: SuiteSettings) -> dict[str, Any]:
    stages: dict[str, Any] = {}
    if not source.imported:
        stages["data"] = {"do": "import", "format": "beir", "input": "$set", "strict": False}  # BEIR's own sets are not all whole
    shared = {"do": "index", "kind": settings.kind, "shards": settings.shards}
    if settings.kind == "bm25":
        return stages | {"index": shared | {"corpus": f"{here}/corpus", "bm25": settings.bm25.model_dump()}}
    stages["passages"] = {"do": "encode", "model": "$model", "corpus": f"{here}/corpus"}
    return stages | {"index": shared | {"embeddings": "$passages", "factory": settings.factory}}


def _split_stages(here: str, split: str, settings: SuiteSettings, prompt: list[str]) -> dict[str, Any]:
    """What finds the passages of a split's queries, and measures them; a query that stands in the corpus finds itself, which is no hit."""
    found, reranked = f"found-{_folder(split)}", f"reranked-{_folder(split)}"
    texts, qrels = {"queries": f"{here}/queries"}, f"{here}/qrels/{split}"
    search = {"do": "search", "index": "$index", "qrels": qrels, "k": settings.k, "drop_identical": True, **texts}
    if settings.kind == "faiss":
        search |= {"model": "$model", "search_params": settings.search_params, **{key: f"${key}" for key in prompt}}
    stages: dict[str, Any] = {found: search}
    runs = [f"{'BM25' if settings.kind == 'bm25' else 'dense'}=${found}"]
    texts["corpus"] = f"{here}/corpus"
    if settings.reranker:
        stages[reranked] = {"do": "rerank", "model": "$reranker", "run": f"${found}", "depth": settings.depth, **texts}
        runs.append(f"re-ranked=${reranked}")
    report = {"do": "evaluate", "run": runs, "qrels": qrels, "metrics": settings.metrics, **texts}
    return stages | {f"report-{_folder(split)}": report | {"title": f"$title-{split}"}}


def evaluate_suite(settings: SuiteSettings) -> dict[str, Any]:
    """`evaluate --suite`: measure a retriever on every test set of a folder; returns the object of suite.json.

    As in `run_suite` a set that fails does not stop the others; the first fault is raised when the tables are written.
    """
    summary, _, fault = tables_of(settings)
    if fault:
        raise fault
    return summary


def tables_of(settings: SuiteSettings) -> tuple[dict[str, Any], str, Exception | None]:
    """Run the suite: the object of suite.json, the table, which are both written, and the first fault, if a set failed."""
    suite = Suite.read(settings)
    failed = run_suite(suite)
    return *write_tables(suite, failed), next(iter(failed.values()), None)


def run_suite(suite: Suite) -> dict[str, Exception]:
    """Run what is not done of every set; returns what went wrong, by the set's name.

    A set that fails does not stop the others. Stopping anywhere is safe: the next call continues where this one stopped. InputError,
    before anything starts, where a folder was made from something else, or on models, metrics and index settings that no set could use.
    """
    members = suite.members
    left = _left(suite)
    say(f"suite: {len(members)} test set{'s' * (len(members) > 1)}, {len(members) - len(left)} done before")
    if left:
        _check(suite.settings)
        ensure_ray()
    failed: dict[str, Exception] = {}
    for number, member in enumerate(members, 1):
        label = f"[{number}/{len(members)}] {member.name}"
        if member.name not in left:
            say(f"{label}: done before")
            continue
        try:
            for stage in member.recipe.stages:
                run_stage(stage, member.recipe, f"{label}: {stage.name}")
        except Exception as error:
            failed[member.name] = error
            say_error(f"{label}: failed: {why(error)}")
    return failed


def _left(suite: Suite) -> set[str]:
    """The sets that are not done; InputError where a folder was made from something else, for all that were in one line."""
    left, refused = set(), []
    for member in suite.members:
        try:
            if open_stages(member.recipe):
                left.add(member.name)
        except InputError as error:
            refused.append(error)
    if len(refused) > 1:
        what, where, fix = refused[0].args
        raise InputError(f"{what}; and so with {len(refused) - 1} more of the sets", where, fix)
    if refused:
        raise refused[0]
    return left


def _check(settings: SuiteSettings) -> None:
    """Find what would stop every set before the first is begun."""
    from raydense.evaluation.metrics import parse_metrics
    from raydense.models.model_kind import require_model

    for measure in parse_metrics(settings.metrics):
        if measure.params.get("cutoff", 0) > settings.k:
            raise InputError(f"{measure} looks deeper than the {settings.k:,} passages of a query", "metrics", "give a greater --k")
    if settings.model:
        for prompt in (dict(settings.prompt), *({"query_prefix": text.partition("=")[2]} for text in settings.prefixes)):
            require_model(settings.model, scores=False, **prompt)
        _check_index(settings)
    if settings.reranker:
        require_model(settings.reranker, scores=True)


def _check_index(settings: SuiteSettings) -> None:
    """InputError where FAISS cannot make the index of the retriever's vectors, or it does not take the search parameters."""
    from raydense.models.model_size import check_dimensions, model_of
    from raydense.retrieval.faiss_size import check_factory

    model = model_of(Known(), str(model_place(str(settings.model)).local()))
    if model is not None:  # without the dimension of its vectors nothing can be said
        check_dimensions(model, partial(check_factory, settings.factory, settings.search_params))


def write_tables(suite: Suite, failed: dict[str, Exception]) -> tuple[dict[str, Any], str]:
    """Put what the finished sets measured into suite.json and suite.md; returns the object of suite.json, and the table as text."""
    from raydense.evaluation.means import markdown_table, summarise, text_table

    measured = [
        _row(member.name, split, report)
        for member in suite.members
        for split, report in member.reports.items()
        if state(report)[0] == "done"
    ]
    settings = suite.settings.model_dump(mode="json", exclude={"output"})
    summary = {
        **summarise(measured, suite.asked, suite.settings.splits),
        "failed": {name: why(error) for name, error in failed.items()},
        "settings": settings,
    }
    for name, text in (("suite.json", json.dumps(summary, indent=1, ensure_ascii=False) + "\n"), ("suite.md", markdown_table(summary))):
        (Place.of(suite.settings.output) / name).write_text(text)
    return summary, text_table(summary)


def _row(name: str, split: str, stage: Stage) -> dict[str, Any]:
    from raydense.evaluation.table import metrics_of

    settings: Any = stage.settings
    report, passages = Artifact.open(settings.output, "report"), Artifact.open(settings.corpus, "corpus").rows
    runs = metrics_of(report)
    return {"set": name, "split": split, "queries": report.rows, "passages": passages, "report": str(report.place), "runs": runs}
