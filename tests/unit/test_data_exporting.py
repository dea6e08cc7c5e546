"""export(): a data set with other judgements in place of its own, as `adjudicate` and `overlap` make them; parts that are not its own."""

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from raydense.cli import main
from raydense.data.exporting import export
from raydense.data.importing import import_dataset
from raydense.data.settings import ExportSettings, ImportSettings
from raydense.data.tables import commit_table, read_table
from raydense.errors import InputError
from raydense.storage import Artifact, Draft, verify_all

SPLITS = {"train": [("q0", "d0", 1), ("q1", "d1", 1), ("q2", "d2", 1)], "test": [("q3", "d3", 1)]}


@pytest.fixture
def dataset(tmp_path: Path) -> Path:
    """Five queries; q4 is judged nowhere."""
    source = tmp_path / "source"
    (source / "qrels").mkdir(parents=True)
    (source / "corpus.jsonl").write_text("".join(json.dumps({"_id": f"d{i}", "text": f"text {i}"}) + "\n" for i in range(6)))
    (source / "queries.jsonl").write_text("".join(json.dumps({"_id": f"q{i}", "text": f"what is {i}"}) + "\n" for i in range(5)))
    for split, rows in SPLITS.items():
        lines = ["query-id\tcorpus-id\tscore", *("\t".join(map(str, row)) for row in rows)]
        (source / "qrels" / f"{split}.tsv").write_text("\n".join(lines) + "\n")
    import_dataset(ImportSettings(format="beir", input=str(source), output=str(tmp_path / "data")))
    return tmp_path / "data"


def judged(folder: Path, *rows: tuple[str, str, int]) -> Path:
    """Judgements by themselves, as `adjudicate` makes them."""
    draft = Draft.open(folder, "qrels", {"test": [list(row) for row in rows]})
    columns = dict(zip(("query_id", "passage_id", "relevance"), map(list, zip(*rows, strict=True)), strict=True))
    commit_table(draft, "qrels.parquet", pa.table(columns))
    draft.finish(len(rows))
    return folder


def exported(output: Path, format: str = "beir", **given: Any) -> Path:
    export(ExportSettings(format=format, output=str(output), **given))
    return output


def imported(format: str, source: Path) -> dict[str, list[tuple]]:
    """The judgements of each split, and the ids of the queries, of an export that was imported again."""
    made = import_dataset(ImportSettings(format=format, input=str(source), output=f"{source}-again"))
    parts = {name.removeprefix("qrels/"): f"{made.place}/{name}" for name in made.summary["parts"] if name.startswith("qrels/")}
    found = {name: [tuple(row.values()) for row in read_table(path, "qrels").to_pylist()] for name, path in parts.items()}
    return {**found, "queries": [tuple(read_table(f"{made.place}/queries", "queries")["query_id"].to_pylist())]}


NEW_TEST = [("q3", "d3", 1), ("q3", "d4", 1)]


@pytest.mark.parametrize("format", ["beir", "huggingface", "dureader"])
def test_checked_judgements_and_cleaned_training_queries_become_a_new_data_set(format, dataset, tmp_path, capfd):
    checked, clean = judged(tmp_path / "checked", *NEW_TEST), judged(tmp_path / "clean/qrels/train", *SPLITS["train"][1:])
    before = imported(format, exported(tmp_path / "before", format, dataset=dataset))
    after = imported(format, exported(tmp_path / "after", format, dataset=dataset, qrels=[f"test={checked}", f"train={clean}"]))
    assert (before["train"], before["test"]) == (SPLITS["train"], SPLITS["test"])
    assert (after["train"], after["test"]) == (SPLITS["train"][1:], NEW_TEST)
    assert sorted(before["queries"][0]) == ["q0", "q1", "q2", "q3", "q4"]
    assert sorted(after["queries"][0]) == ["q1", "q2", "q3", "q4"], "q0 was removed with its judgements; q4 never had any"
    assert "export: leaves out 1 queries that only the judgements named in whose place others are given" in capfd.readouterr().err


def test_judgements_of_another_name_are_one_more_split(dataset, tmp_path):
    half = judged(tmp_path / "half", ("q3", "d3", 1))
    found = imported("beir", exported(tmp_path / "files", dataset=dataset, qrels=[f"test-others={half}"]))
    assert found["test-others"] == [("q3", "d3", 1)]
    assert (found["train"], found["test"], len(found["queries"][0])) == (SPLITS["train"], SPLITS["test"], 5)


def test_the_card_says_where_the_other_judgements_come_from(dataset, tmp_path):
    checked = judged(tmp_path / "checked", *NEW_TEST)
    card = (exported(tmp_path / "hub", "huggingface", dataset=dataset, qrels=[f"test={checked}"]) / "README.md").read_text("utf-8")
    assert Artifact.open(dataset).fingerprint in card
    assert Artifact.open(checked).fingerprint in card


def test_several_sets_of_judgements_without_a_data_set(dataset, tmp_path):
    sets = [str(dataset / "qrels" / split) for split in SPLITS]
    folder = exported(tmp_path / "files", qrels=sets)
    assert sorted(path.name for path in (folder / "qrels").iterdir()) == ["test.tsv", "train.tsv"]
    with pytest.raises(InputError, match="format trec writes one file, and 2 sets of qrels are given; give one of them"):
        exported(tmp_path / "one", "trec", qrels=sets)
    assert exported(tmp_path / "one", "trec", qrels=Path(sets[0])).read_text().startswith("q0 0 d0 1\n")


BAD = {
    "no name": (["{0}"], r"with dataset qrels need the name of the split that they are: write SPLIT=.*checked"),
    "one name twice": (["a={0}", "a={0}"], "two of qrels have the same name: write SPLIT=folder"),
    "a name elsewhere": (["..={0}"], r"qrels: 'qrels/\.\.' cannot be the name of a part of a data set"),
    "no qrels": (["test={1}/corpus"], "corpus: holds corpus, not qrels"),
    "no folder": (["test={1}/none"], "none: no such folder"),
}


@pytest.mark.parametrize("case", BAD)
@pytest.mark.parametrize("format", ["beir", "dureader", "huggingface"])
def test_bad_judgements_are_refused_before_anything_is_written(case, format, dataset, tmp_path):
    given, message = BAD[case]
    checked = judged(tmp_path / "checked", *NEW_TEST)
    with pytest.raises(InputError, match=message):
        exported(tmp_path / "deep/files", format, dataset=dataset, qrels=[one.format(checked, dataset) for one in given])
    assert not list((tmp_path / "deep").rglob("*.*"))


def replace_test(dataset: Path, tmp_path: Path) -> None:
    (dataset / "qrels/test").rename(tmp_path / "old")
    judged(dataset / "qrels/test", *NEW_TEST)


def test_a_part_that_was_replaced_by_hand_is_named_with_the_way_on(dataset, tmp_path):
    replace_test(dataset, tmp_path)
    what = r"data/qrels/test: is not the qrels/test that the data set was made with \(fingerprint \w{8}, not \w{8}\)"
    flag = f"--qrels test={dataset}/qrels/test"
    with pytest.raises(InputError, match=rf"{what}; put that back, or give this one to `export --dataset` as {flag}"):
        exported(tmp_path / "files", dataset=dataset)
    assert imported("beir", exported(tmp_path / "files", dataset=dataset, qrels=[flag.removeprefix("--qrels ")]))["test"] == NEW_TEST


def test_verify_reports_a_part_that_was_replaced_or_is_missing(dataset, tmp_path, capsys):
    assert not [wrong for _, _, wrong in verify_all(dataset) if wrong]
    replace_test(dataset, tmp_path)
    (dataset / "qrels/train").rename(tmp_path / "train")
    with pytest.raises(SystemExit) as ended:
        main(["verify", str(dataset)])
    assert ended.value.code == 1
    fix = f"run the stage that made {dataset} again: it makes only this"
    assert capsys.readouterr().out.splitlines() == [
        f"{dataset}/qrels/test: is not the qrels/test that the data set was made with (fingerprint); delete it, and {fix}",
        f"{dataset}/qrels/train: missing; {fix}",
    ]


def test_what_verify_advises_gives_the_data_set_back(dataset, tmp_path):
    before = Artifact.open(dataset).fingerprint
    (dataset / "qrels/test").rename(tmp_path / "old")
    import_dataset(ImportSettings(format="beir", input=str(tmp_path / "source"), output=str(dataset)))
    assert not [wrong for _, _, wrong in verify_all(dataset) if wrong]
    assert Artifact.open(dataset).fingerprint == before


@pytest.mark.parametrize("name", ["../x", "qrels/../../x", "qrels/..", "/tmp/x", "qrels//x"])
@pytest.mark.parametrize("format", ["beir", "dureader", "huggingface"])
def test_a_manifest_that_names_a_part_elsewhere_is_refused(name, format, dataset, tmp_path):
    manifest = json.loads((dataset / "manifest.json").read_text())
    manifest["summary"]["parts"][name] = manifest["summary"]["parts"]["qrels/test"]
    (dataset / "manifest.json").write_text(json.dumps(manifest))
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(InputError, match=r"manifest\.json: '.*' cannot be the name of a part of a data set"):
        exported(tmp_path / "deep/files", format, dataset=dataset)
    assert [path for path in sorted(tmp_path.rglob("*")) if path.name != "deep"] == before


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"format": "beir", "tag": "zzz", "license": "mit"}, "format beir does not use tag, license: leave them out"),
        ({"format": "msmarco", "language": "en"}, "format msmarco does not use language: leave it out"),
        ({"format": "trec", "qrels": ["test=q"], "tag": "mine"}, "format trec without run does not use tag: leave it out"),
        ({"format": "hub", "model": "m", "tag": "mine"}, "format hub does not use tag"),
    ],
)
def test_what_a_format_has_no_place_for_is_refused(given: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        ExportSettings(output="o", **given)


def test_the_defaults_of_a_recipe_are_applied_to_the_exports_that_use_them() -> None:
    own = {"tag", "license", "language", "trained_on"}
    assert ExportSettings.takes({"format": "beir"}) & own == set()
    assert ExportSettings.takes({"format": "huggingface"}) & own == {"license", "language"}
    assert ExportSettings.takes({"format": "trec", "run": "r"}) & own == {"tag"}
