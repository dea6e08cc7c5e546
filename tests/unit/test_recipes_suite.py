"""A suite of test sets: which are found, what each is made by, the means, and one line for every fault."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from beir_sets import make_set

from raydense.cli import main
from raydense.data.importing import import_dataset
from raydense.data.settings import ImportSettings
from raydense.errors import InputError
from raydense.evaluation.means import markdown_table, summarise, text_table
from raydense.evaluation.settings import SuiteSettings
from raydense.recipes.suite import Suite, find_sets, run_suite
from raydense.retrieval.settings import BM25Settings


def read(root: Path, **given: object) -> Suite:
    model = {} if given.get("kind") == "bm25" else {"model": "m"}
    return Suite.read(SuiteSettings.read({"suite": str(root), "output": f"{root}-out", **model, **given}, "--"))


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Six sets: plain, packed, nested, linked, imported, and one without qrels of test."""
    root = tmp_path / "suite"
    make_set(root / "plain")
    make_set(root / "packed", packed=True)
    make_set(root / "forum" / "b")
    make_set(root / "forum" / "a", splits=("dev.small", "test"))
    make_set(tmp_path / "elsewhere")
    (root / "linked").symlink_to(tmp_path / "elsewhere")
    import_dataset(ImportSettings(format="beir", input=str(tmp_path / "elsewhere"), output=str(root / "imported")))
    make_set(root / "trained", splits=("train",))
    make_set(root / ".hidden")
    (root / "notes").mkdir()
    (root / "notes" / "back").symlink_to(root)
    return root


def test_sets_are_found_at_any_depth(root: Path):
    found = {source.name: source for source in find_sets(root)}
    assert list(found) == ["forum/a", "forum/b", "imported", "linked", "packed", "plain", "trained"]
    assert [name for name, source in found.items() if source.imported] == ["imported"]
    assert {name: source.splits for name, source in found.items() if source.splits != ("test",)} == {
        "forum/a": ("dev.small", "test"),
        "trained": ("train",),
    }
    assert [source.name for source in find_sets(root / "linked")] == ["elsewhere"], "one set alone is a suite too"


def test_sets_and_splits_are_chosen(root: Path):
    def asked(**given: object) -> list[tuple[str, str]]:
        return read(root, **given).asked

    test = [(name, "test") for name in ("forum/a", "forum/b", "imported", "linked", "packed", "plain")]
    assert asked(sets="forum/ imported linked packed plain") == test
    assert asked(sets="forum", splits="dev.small test") == [("forum/a", "dev.small"), *test[:2]]
    assert asked(splits="test train") == [*test, ("trained", "train")]
    assert asked(splits="train/test") == [*test, ("trained", "train")]
    assert asked(sets="forum", splits="dev.small/test") == [("forum/a", "dev.small"), ("forum/b", "test")], "the first that a set has"


def test_the_stages_of_a_set(root: Path):
    def stages(name: str, **given: object) -> dict[str, str]:
        return {stage.name: stage.verb for stage in read(root, sets=name, **given).members[0].recipe.stages}

    dense = {"passages": "encode", "index": "index"}
    of_test = {"found-test": "search", "report-test": "evaluate"}
    assert stages("plain") == {"data": "import", **dense, **of_test}
    assert stages("imported") == {**dense, **of_test}
    assert stages("plain", kind="bm25") == {"data": "import", "index": "index", **of_test}
    names = ["data", "index", *(f"{stage}-{split}" for split in ("dev-small", "test") for stage in ("found", "reranked", "report"))]
    assert list(stages("forum/a", kind="bm25", reranker="r", splits="dev.small test")) == names
    member = read(root, sets="forum/a", kind="bm25", splits="dev.small").members[0]
    folder = f"{root}-out/forum/a"
    report = member.reports["dev.small"].settings
    assert (report.output, report.qrels, report.run) == (
        f"{folder}/report-dev-small",
        f"{folder}/data/qrels/dev.small",
        [f"BM25={folder}/found-dev-small"],
    )


def test_the_words_of_bm25_are_those_that_were_asked_for(root: Path):
    german = {"stemmer": "german", "stopwords": "de"}
    member = read(root, sets="plain", kind="bm25", bm25=german).members[0]
    index = next(stage.settings for stage in member.recipe.stages if stage.name == "index")
    assert index.bm25 == BM25Settings(**german)


def test_the_prompt_of_a_set(root: Path):
    def prompts(**given: object) -> dict[str, tuple[str | None, str | None]]:
        stages = {
            m.name: {stage.name: stage.settings for stage in m.recipe.stages} for m in read(root, sets="forum plain", **given).members
        }
        return {name: (of["found-test"].query_prefix, of["found-test"].prompt_name) for name, of in stages.items()}

    assert prompts(prompt_name="web") == dict.fromkeys(("forum/a", "forum/b", "plain"), (None, "web"))
    given = ["forum=a $data:\nQuery: ", "forum/b/="]
    assert prompts(prompt_name="web", prefixes=given) == {
        "forum/a": ("a $data:\nQuery: ", None),
        "forum/b": ("", None),
        "plain": (None, "web"),
    }


def test_a_folder_without_sets_or_with_half_a_set_is_refused(root: Path, tmp_path: Path):
    with pytest.raises(InputError, match=r"nowhere: no such folder"):
        read(tmp_path / "nowhere")
    (tmp_path / "empty" / "inner").mkdir(parents=True)
    with pytest.raises(InputError, match=r"empty: holds no test set; a set is a folder with corpus\.jsonl"):
        read(tmp_path / "empty")
    (root / "packed" / "queries.jsonl").unlink()
    (root / "plain" / "qrels" / "test.tsv").unlink()
    for name, lacks in {"packed": "queries", "plain": "qrels"}.items():
        with pytest.raises(InputError, match=f"{name}: has a corpus, but no {lacks}; complete it, or leave the set out with --sets"):
            read(root, sets=name)
    assert len(read(root, sets="forum linked").members) == 3
    (root / "imported" / ".work").mkdir()
    with pytest.raises(InputError, match=r"imported: is begun, and its import was not finished; complete it, or leave the set out"):
        read(root, sets="imported")


def test_a_name_is_no_reference(tmp_path: Path):
    for name in ("$index", "$nothing", "x=$index"):
        make_set(tmp_path / "suite" / name)
    titles = [member.reports["test"].settings.title for member in read(tmp_path / "suite").members]
    assert titles == ["$index, test", "$nothing, test", "x=$index, test"]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({}, r"suite/trained: has qrels of train, not of test; measure it on one of them by --splits test/train, or leave the set out"),
        ({"sets": "plain", "splits": "test/dev dev"}, r"splits: dev is named twice; name each split once"),
        ({"sets": "plian"}, r"sets: no set 'plian' in .*suite; did you mean 'plain'\?"),
        ({"sets": "plain", "splits": "dev.small dev-small"}, r"splits: dev\.small and dev-small would be measured in the same folder"),
        ({"sets": "plain", "model": None}, r"a suite needs model, the retriever to measure, or kind bm25"),
        ({"sets": "plain", "kind": "bm25", "factory": "Flat"}, r"kind bm25 does not use factory"),
        ({"sets": "plain", "depth": 10}, r"a suite without a reranker does not use depth"),
        ({"sets": "plain", "prefixes": ["q: "]}, r"prefixes: 'q: ' is of no set: write SET=text"),
        ({"sets": "plain", "prefixes": ["plain=a", "plain=b"]}, r"prefixes: set 'plain' has two: leave one out"),
        ({"sets": "plain", "prefixes": ["plian=q: "]}, r"prefixes: no set 'plian' is measured; did you mean 'plain'\?"),
        ({"sets": "plain", "kind": "bm25", "prefixes": ["plain=q: "]}, r"kind bm25 does not use prefixes"),
        ({"sets": "plain", "kind": "bm25", "query_prefix": "q: "}, r"a search without model does not use query_prefix"),
    ],
)
def test_a_fault_is_reported_before_anything_starts(root: Path, given: dict[str, object], message: str):
    with pytest.raises(InputError, match=message):
        read(root, **given)
    with pytest.raises(InputError, match=r"out: lies in the suite .*, where the next run would take it for test sets"):
        read(root, sets="plain", output=str(root / "out"))
    assert not Path(f"{root}-out").exists()


def test_what_would_stop_every_set_is_reported_before_the_first(root: Path, tiny_folder: Path):
    for given, message in [
        ({"model": "nowhere"}, "nowhere: no such model folder"),
        ({"model": str(tiny_folder), "metrics": "nDCG@10 R@1000"}, "metrics: R@1000 looks deeper than the 100 passages"),
        ({"model": str(tiny_folder), "metrics": "nDCGG@10"}, r"metrics: unknown metric 'nDCGG@10'; did you mean 'nDCG@10'\?"),
        ({"model": str(tiny_folder), "reranker": str(tiny_folder)}, "holds an encoder without a head that scores"),
        ({"model": str(tiny_folder), "prompt_name": "web"}, "has no prompt 'web'; there are query, document"),
        ({"model": str(tiny_folder), "factory": "Flatt"}, r"factory: FAISS cannot make 'Flatt': .*; as Flat, SQfp16"),
        ({"model": str(tiny_folder), "factory": "PQ37x4"}, "factory: FAISS cannot make 'PQ37x4'"),  # not by the model's dimension
        ({"model": str(tiny_folder), "factory": "IDMap,Flat"}, "factory: 'IDMap,Flat' brings its own ids"),
        ({"model": str(tiny_folder), "search_params": "nprobe=4"}, "search_params: a IndexFlat.* does not take 'nprobe=4'"),
        ({"model": str(tiny_folder), "factory": "HNSW32", "search_params": "efsearch=4"}, "search_params: a IndexHNSW.* does not take"),
    ]:
        with pytest.raises(InputError, match=message):
            run_suite(read(root, sets="plain", **given))
    assert not Path(f"{root}-out").exists()


@pytest.mark.parametrize(
    ("factory", "search_params"),
    [("Flat", ""), ("IVF4,Flat", ""), ("IVF4,SQ8", "nprobe=2"), ("RaBitQ,Refine(SQ8)", "k_factor_rf=4"), ("HNSW32", "efSearch=64")],
)
def test_what_an_index_takes_is_no_fault(root: Path, tiny_folder: Path, factory: str, search_params: str):
    """The fault of the re-ranker is found after those of the index."""
    given = {"model": str(tiny_folder), "reranker": str(tiny_folder), "factory": factory, "search_params": search_params}
    with pytest.raises(InputError, match="holds an encoder without a head that scores"):
        run_suite(read(root, sets="plain", **given))


def rows(values: dict[tuple[str, str], list[float]]) -> list[dict[str, object]]:
    return [
        {"set": s, "split": split, "queries": 5, "passages": 1_000, "report": "r", "runs": {"dense": {"nDCG@10": v[0], "R@100": v[1]}}}
        for (s, split), v in values.items()
    ]


def test_sets_of_a_sub_folder_count_as_one():
    names = ["arguana", "cqa/android", "cqa/english", "cqa/gis", "one/alone", "scifact"]
    values = {(name, "test"): np.random.default_rng(len(name)).random(2).tolist() for name in names}
    of = summarise(rows(values), list(values))["runs"]["dense"]
    table = np.array(list(values.values()))
    group = table[1:4].mean(0)
    assert len(of["groups"]) == 1, "a set alone in its folder is no group"
    assert list(of["groups"][0]["metrics"].values()) == pytest.approx(group)
    assert (of["groups"][0]["group"], of["groups"][0]["count"]) == ("cqa", 3)
    mean = of["means"][0]
    assert (mean["count"], mean["of"]) == (4, 4)
    assert list(mean["metrics"].values()) == pytest.approx(np.stack([table[0], group, table[4], table[5]]).mean(0))


def test_sets_that_are_measured_on_the_first_split_that_they_have_share_one_mean():
    values = {("a", "test"): [0.2, 0.4], ("g/x", "test"): [0.6, 0.6], ("g/y", "dev"): [0.2, 0.2], ("m", "dev"): [0.9, 0.8]}
    summary = summarise(rows(values), list(values), ["test/dev"])
    of = summary["runs"]["dense"]
    assert of["means"] == [{"split": "test/dev", "count": 3, "of": 3, "metrics": pytest.approx({"nDCG@10": 0.5, "R@100": 1.6 / 3})}]
    assert [(group["group"], group["metrics"]["nDCG@10"]) for group in of["groups"]] == [("g", pytest.approx(0.4))]
    lines = [line.split() for line in text_table(summary).splitlines()]
    assert lines[0][1] == "split"
    assert [(line[0], line[1]) for line in lines[2:5]] == [("a", "test"), ("g/x", "test"), ("g/y", "dev")]
    assert lines[-1][:4] == ["mean", "of", "3", "test/dev"]


def test_a_metric_that_some_sets_lack_has_no_mean():
    names = [("a", "test"), ("b", "test")]
    measured = rows({name: [0.2, 0.4] for name in names})
    measured[0]["runs"] = {"dense": {"nDCG@10": 0.4}}
    summary = summarise(measured, names)
    assert summary["runs"]["dense"]["means"][0]["metrics"] == pytest.approx({"nDCG@10": 0.3})
    assert [line.split()[-2:] for line in text_table(summary).splitlines()[2:]] == [["0.4000", "-"], ["0.2000", "0.4000"], ["0.3000", "-"]]


def test_a_mean_over_less_than_all_is_marked():
    values = {("a", "test"): [0.2, 0.4], ("b", "dev"): [1.0, 1.0], ("b", "test"): [0.4, 0.8], ("g/x", "test"): [0.9, 0.9]}
    summary = summarise(rows(values), [*values, ("g/y", "test"), ("z", "test")])
    of = summary["runs"]["dense"]
    assert summary["missing"] == [{"set": "g/y", "split": "test"}, {"set": "z", "split": "test"}]
    assert [(mean["split"], mean["count"], mean["of"]) for mean in of["means"]] == [("test", 2, 4), ("dev", 1, 1)]
    assert of["means"][0]["metrics"] == pytest.approx({"nDCG@10": 0.3, "R@100": 0.6}), "half a group does not count"
    assert [(group["count"], group["of"]) for group in of["groups"]] == [(1, 2)]
    table = text_table(summary).splitlines()
    assert [line.split("  ")[0] for line in table[2:8]] == ["a", "b", "g/x", "g: mean of 1 of 2", "mean of 2 of 4", "b"]
    assert table[-1] == "Incomplete: g/y, z could not be measured; means are over the measured sets."
    page = markdown_table(summary)
    assert page.startswith("## dense\n\n| dense | split | queries | passages | nDCG@10 | R@100 |\n| --- |")
    assert "| g: mean of 1 of 2 | test |  |  | 0.9000 | 0.9000 |" in page


def test_nothing_measured_is_no_table():
    summary = summarise([], [("a", "test")])
    assert summary == {"runs": {}, "missing": [{"set": "a", "split": "test"}]}
    assert text_table(summary).startswith("Incomplete: a ")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--suite", "s", "--run", "r", "--model", "m"], "--run: does not go with --suite; leave it or --suite out"),
        (["--run", "r", "--qrels", "q", "--kind", "bm25"], "--kind: goes with --suite; give --suite, or leave it out"),
        (["--suite", "s", "--model", "m", "--answers.match", "token"], "--answers.match: does not go with --suite"),
        (["--suite", "s", "--model", "m", "--similarity.query-sample", "5"], "--similarity.query-sample: does not go with --suite"),
        (["--run", "r", "--answers", "token"], "--answers: was renamed; write --answers.match"),
        (["--suite", "s", "--model", "m", "--bm25.k1", "1.2"], "kind faiss does not use bm25: leave it out"),
        (["--run", "r", "--qrels", "q", "--bm25.k1", "1.2"], "--bm25.k1: goes with --suite"),
        (["--suite", "s"], "a suite needs model, the retriever to measure, or kind bm25"),
        (["--suite", "s", "--model", "m", "--k", "0"], "--k: input should be greater than or equal to 1"),
        (["--suite", "s", "--model", "m", "--prefixes", "nq=q: "], "s: no such folder"),
        (["--suite", "s", "--model", "m"], "s: no such folder; give the folder that holds the test sets"),
        (["--config", "c.yaml", "--qrels", "q"], "--qrels: does not go with --suite"),
    ],
)
def test_flags_of_the_other_use_are_refused(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "c.yaml").write_text("suite: s\nmodel: m\n")
    with pytest.raises(SystemExit) as stopped:
        main(["evaluate", "--output", "o", *arguments])
    error = capsys.readouterr().err
    assert (stopped.value.code, len(error.splitlines())) == (2, 1)
    assert message in error
    assert not (tmp_path / "o").exists()


def test_help_teaches_both_forms(capsys: pytest.CaptureFixture[str]):
    with pytest.raises(SystemExit):
        main(["evaluate", "--help"])
    printed = capsys.readouterr().out
    before, _, after = printed.partition("With --suite: one table over many test sets")
    for name in SuiteSettings.all_fields():
        flag = f"--{name.replace('_', '-')} "
        assert flag in printed
        assert (f"\n  {flag}" in after) == (name not in ("output", "metrics"))
    assert "--qrels" in before
    assert "--prefixes TEXT " in after
    assert "--sets WORDS " in after
