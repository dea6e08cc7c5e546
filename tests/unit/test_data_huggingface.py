"""A data set as a folder of the Hugging Face Hub: what its card says is what a reader finds; and whole data sets as BEIR's folder."""

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml
from huggingface_hub import DatasetCard
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from raydense.data.exporting import export
from raydense.data.formats import huggingface
from raydense.data.formats.data_card import _made, front_matter, hub_split
from raydense.data.importing import import_corpus, import_dataset
from raydense.data.settings import ExportSettings, ImportSettings
from raydense.data.store import PassageStore
from raydense.data.tables import read_table
from raydense.errors import InputError
from raydense.storage import Artifact


def put(path: Path, *lines: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8", newline="\n")
    return path


def beir(folder: Path) -> Path:
    put(folder / "corpus.jsonl", *(json.dumps({"_id": f"d{i}", "title": "甲" * (i % 2), "text": f"text `{i}`\nnext"}) for i in range(9)))
    put(folder / "queries.jsonl", *(json.dumps({"_id": f"q{i}", "text": f"what is {i}?", "answers": ["a"] * i}) for i in range(3)))
    put(folder / "qrels/test.tsv", "query-id\tcorpus-id\tscore", "q0\td1\t0", "q1\td3\t2", "q1\td4\t1")
    put(folder / "qrels/dev-small.tsv", "query-id\tcorpus-id\tscore", "q2\td0\t1")
    return folder


def imported(format: str, source: Path, output: Path, **more: Any) -> Path:
    import_dataset(ImportSettings(format=format, input=str(source), output=str(output), **more))
    return output


def exported(format: str, output: Path, **given: Any) -> Path:
    export(ExportSettings(format=format, output=str(output), **{k: str(v) for k, v in given.items()}))
    return output


def digests(dataset: Path) -> dict[str, list[str]]:
    """The sha256 of each file of each part."""
    return {name: [file.sha256 for file in Artifact.open(dataset / name).files] for name in Artifact.open(dataset).summary["parts"]}


def as_the_card_says(folder: Path) -> dict[tuple[str, str], list[dict[str, Any]]]:
    """The rows of each configuration and split, by the front matter alone."""
    head = yaml.safe_load(re.match(r"---\n(.*?)---\n", (folder / "README.md").read_text("utf-8"), re.DOTALL)[1])
    splits = [(config["config_name"], entry["split"], entry["path"]) for config in head["configs"] for entry in config["data_files"]]
    return {(c, s): [row for file in sorted(folder.glob(path)) for row in pq.read_table(file).to_pylist()] for c, s, path in splits}


def test_a_whole_data_set_both_ways(tmp_path, capfd):
    first = imported("beir", beir(tmp_path / "in"), tmp_path / "first")
    folder = exported("huggingface", tmp_path / "hub", dataset=first, license="cc-by-4.0")
    found = as_the_card_says(folder)
    lines = {name: [json.loads(line) for line in (tmp_path / f"in/{name}.jsonl").open()] for name in ("corpus", "queries")}
    assert found.pop(("corpus", "corpus")) == lines["corpus"]
    assert found.pop(("queries", "queries")) == lines["queries"]
    judged = {name: [dict(zip(("query-id", "corpus-id", "score"), pair, strict=True)) for pair in pairs] for name, pairs in {
        "test": [("q0", "d1", 0), ("q1", "d3", 2), ("q1", "d4", 1)], "dev_small": [("q2", "d0", 1)]
    }.items()}  # fmt: skip
    assert found == {("qrels", name): rows for name, rows in judged.items()}
    assert "the split dev-small becomes dev_small" in capfd.readouterr().err
    again = imported("huggingface", folder, tmp_path / "again")
    assert digests(again) == {name.replace("dev-small", "dev_small"): files for name, files in digests(first).items()}
    assert import_corpus("huggingface", folder, tmp_path / "alone").files == Artifact.open(again / "corpus").files


def test_the_card(tmp_path, capfd):
    first = imported("beir", beir(tmp_path / "in"), tmp_path / "first")
    folder = exported("huggingface", tmp_path / "hub", dataset=first, license="cc-by-4.0", language="en,zh")
    assert "export: the data card" not in capfd.readouterr().err
    head = front_matter(folder / "README.md")
    assert (head["license"], head["size_categories"], head["task_categories"]) == ("cc-by-4.0", ["n<1K"], ["text-retrieval"])
    text = (folder / "README.md").read_text("utf-8")
    size = (folder / "qrels/test.parquet").stat().st_size
    holds = "judgements of 2 queries, 1 of score 0, 1 of score 1, 1 of score 2: `query-id`, `corpus-id`, `score`"
    assert f"| qrels | test | 3 | {size:,} | {holds} |" in text
    size = (folder / "corpus/corpus-00000.parquet").stat().st_size
    assert f"| corpus | corpus | 9 | {size:,} | passages: `_id`, `title`, `text` |" in text
    assert "| queries: `_id`, `text`, `answers` |" in text
    shown = json.loads(re.search(r"## An example\n\n    (.*)\n", text)[1])
    assert shown in (
        {"query": "what is 1?", "title": "甲", "text": "text `3`\nnext", "score": 2},
        {"query": "what is 2?", "title": "", "text": "text `0`\nnext", "score": 1},
    )
    manifest = Artifact.open(first).manifest
    for row in (
        "| stage | `import` |",
        f"| fingerprint | `{manifest['fingerprint']}` |",
        "| setting format | `beir` |",
        f"| fingerprint of input | `{manifest['made_from']['inputs']['input']}` |",
    ):
        assert row in text.splitlines()
    assert "{" not in text.partition("## Where it comes from")[2], "no raw manifest"
    assert f"pyarrow {manifest['versions']['pyarrow']}" in text
    assert str(tmp_path) not in text
    twice = exported("huggingface", tmp_path / "more/hub", dataset=first, license="cc-by-4.0", language="en,zh")
    files = sorted(p.relative_to(folder) for p in folder.rglob("*") if p.is_file())
    assert [(folder / f).read_bytes() for f in files] == [(twice / f).read_bytes() for f in files], "the same bytes"


def test_the_hubs_own_parser_reads_the_card(tmp_path, capfd):
    """Language, licence, and of each configuration the columns, types and rows that the files have."""
    given = {"dataset": imported("beir", beir(tmp_path / "in"), tmp_path / "first")}
    folder = exported("huggingface", tmp_path / "hub", **given, license="cc-by-4.0", language="no,pt-BR")
    card = DatasetCard.load(folder / "README.md").data
    assert (card.language, card.license, card.task_categories) == (["no", "pt-BR"], "cc-by-4.0", ["text-retrieval"])
    infos = {info["config_name"]: info for info in card.dataset_info}
    assert list(infos) == [config["config_name"] for config in card.configs] == ["corpus", "queries", "qrels"]
    for (config, split), rows in as_the_card_says(folder).items():
        (said,) = [one for one in infos[config]["splits"] if one["name"] == split]
        assert said["num_examples"] == len(rows)
        assert 0 < said["num_bytes"] <= infos[config]["dataset_size"]
        assert [column["name"] for column in infos[config]["features"]] == list(rows[0])
    types = {column["name"]: column.get("dtype") or [column["sequence"]] for info in infos.values() for column in info["features"]}
    strings = dict.fromkeys(("_id", "title", "text", "query-id", "corpus-id"), "string")
    assert types == {**strings, "answers": ["string"], "score": "int32"}
    assert infos["queries"]["download_size"] == (folder / "queries/queries.parquet").stat().st_size
    capfd.readouterr()
    bare = exported("huggingface", tmp_path / "bare", **given)
    assert "the data card lacks what raydense cannot know: give --language and --license, or add it" in capfd.readouterr().err
    assert DatasetCard.load(bare / "README.md").data.language is None
    with pytest.raises(InputError, match="'English' is no code of a language: give one such as zh, en or pt-BR"):
        exported("huggingface", tmp_path / "none", **given, language="English")
    with pytest.raises(InputError, match="'Apache 2' is no name of a licence on the Hub"):
        exported("huggingface", tmp_path / "none", **given, license="Apache 2")


@settings(max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(value=st.text(max_size=20) | st.integers() | st.lists(st.text(max_size=5)) | st.none())
def test_no_value_breaks_the_table_of_the_card(value):
    manifest = {"fingerprint": "f", "made_from": {"stage": "s", "settings": {"key": value}}, "summary": {"parts": {"a": {"b": 1}}}}
    lines = list(_made(json.loads(json.dumps(manifest))))
    assert all(re.fullmatch(r"\| [^|]* \| `([^|`]|\\\|)*` \|", line) for line in lines)
    assert [line.split(" | ")[0] for line in lines] == ["| stage", "| fingerprint", "| setting key"]


def test_the_library_loads_it(tmp_path, monkeypatch, caplog):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    datasets = pytest.importorskip("datasets")
    folder = exported("huggingface", tmp_path / "hub", dataset=imported("beir", beir(tmp_path / "in"), tmp_path / "first"))
    assert datasets.get_dataset_config_names(str(folder)) == ["corpus", "queries", "qrels"]
    for (config, split), rows in as_the_card_says(folder).items():
        loaded = datasets.load_dataset(str(folder), config, split=split, cache_dir=str(tmp_path / "cache"))
        assert loaded.to_list() == rows
    assert "dataset card" not in caplog.text, "nothing of the card is ignored"


def test_a_large_corpus_is_several_files(tmp_path, monkeypatch):
    monkeypatch.setattr(huggingface, "FILE_BYTES", 3_000)
    monkeypatch.setattr(huggingface, "_GROUP_BYTES", 1_000)
    monkeypatch.setattr("raydense.data.formats.outlet._STEP", 16)
    rows = [{"_id": f"d{i}", "title": "", "text": f"some text of passage {i}"} for i in range(500)]
    put(tmp_path / "in/corpus.jsonl", *map(json.dumps, rows))
    put(tmp_path / "in/queries.jsonl", '{"_id": "q", "text": "?"}')
    first = imported("beir", tmp_path / "in", tmp_path / "first", shard_rows=70)
    folder = exported("huggingface", tmp_path / "hub", dataset=first)
    files = sorted((folder / "corpus").iterdir())
    assert [file.name for file in files] == [f"corpus-{i:05d}.parquet" for i in range(len(files))]
    sizes = [pq.read_table(file).nbytes for file in files]
    assert len(files) > 3
    assert all(3_000 <= size < 5_500 for size in sizes[:-1])
    assert as_the_card_says(folder)["corpus", "corpus"] == rows
    stores = [PassageStore(made / "corpus") for made in (first, imported("huggingface", folder, tmp_path / "again", shard_rows=70))]
    assert stores[0].shards == stores[1].shards
    assert stores[0].slice(0, 500).to_pylist() == stores[1].slice(0, 500).to_pylist()


def hub(folder: Path, **columns: dict[str, Any]) -> Path:
    """A folder without a card, as others upload them: these columns in place of the right ones."""
    tables: dict[str, dict[str, Any]] = {
        "corpus/corpus-00000-of-00001": {"_id": [1, 2], "title": ["a", None], "text": ["x", "y"], "url": ["u", "v"]},
        "queries/queries-00000-of-00001": {"_id": ["q"], "text": ["?"]},
        "qrels/test-00000-of-00001": {"query-id": ["q"], "corpus-id": [2], "score": [1.0]},
    }
    for name, table in tables.items():
        path = folder / f"{name}.parquet"
        path.parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(pa.table(columns.get(name.split("/")[0], table)), path)
    return folder


def test_a_folder_without_a_card(tmp_path):
    out = imported("huggingface", hub(tmp_path / "in"), tmp_path / "out")
    again = as_the_card_says(exported("huggingface", tmp_path / "hub", dataset=out))
    assert again["corpus", "corpus"] == [{"_id": "1", "title": "a", "text": "x"}, {"_id": "2", "title": "", "text": "y"}]
    assert again["qrels", "test"] == [{"query-id": "q", "corpus-id": "2", "score": 1}]


def test_the_files_of_a_split_without_a_card_are_one_split(tmp_path):
    hub(tmp_path / "in")
    names = ("test-00000-of-00002", "test-00001-of-00002", "dev-0", "dev-0.5", "dev-00000")
    for number, name in enumerate(names):
        judgement = {"query-id": ["q"], "corpus-id": [1 + number % 2], "score": [number]}
        pq.write_table(pa.table(judgement), tmp_path / "in/qrels" / f"{name}.parquet")
    (tmp_path / "in/qrels/test-00000-of-00001.parquet").unlink()
    out = imported("huggingface", tmp_path / "in", tmp_path / "out")
    found = {name: read_table(out / name, "qrels").to_pydict() for name in Artifact.open(out).summary["parts"] if name.startswith("qrels/")}
    assert {name: list(zip(of["passage_id"], of["relevance"], strict=True)) for name, of in found.items()} == {
        "qrels/test": [("1", 0), ("2", 1)], "qrels/dev-0": [("1", 2)], "qrels/dev-0.5": [("2", 3)], "qrels/dev-00000": [("1", 4)],
    }  # fmt: skip


BAD = {
    "no text": ({"corpus": {"_id": ["1"]}}, r"corpus-00000-of-00001\.parquet: has no column 'text'"),
    "a null text": ({"corpus": {"_id": ["1", "2"], "text": ["x", None]}}, r"corpus-00000-of-00001\.parquet, row 2: no 'text'"),
    "an empty text": ({"corpus": {"_id": ["1", "2"], "text": ["x", " "]}}, r"corpus-00000-of-00001\.parquet, row 2: empty text"),
    "an id twice": (
        {"corpus": {"_id": ["1", "1"], "text": ["x", "y"]}},
        r"parquet, row 2: passage_id '1' is repeated \(first at .*parquet, row 1\)",
    ),
    "a text that is a number": ({"corpus": {"_id": ["1"], "text": [5]}}, r"parquet: column 'text' is int64, which does not become string"),
    "a list as id": ({"corpus": {"_id": [["1"]], "text": ["x"]}}, r"parquet: column '_id' is list.*, which does not become string"),
    "half a grade": (
        {"qrels": {"query-id": ["q"], "corpus-id": [2], "score": [0.5]}},
        r"parquet: column 'score' is double, which does not become int32",
    ),
    "an unknown passage": (
        {"qrels": {"query-id": ["q", "q"], "corpus-id": [2, 3], "score": [1, 1]}},
        r"test-00000-of-00001\.parquet, row 2: names passage '3', which the corpus does not have",
    ),
    "answers that are a text": (
        {"queries": {"_id": ["q"], "text": ["?"], "answers": ["x"]}},
        r"column 'answers' is string, which does not",
    ),
    "a null among answers": (
        {"queries": {"_id": ["q", "r"], "text": ["?", "!"], "answers": [["x"], ["y", None]]}},
        r"queries-00000-of-00001\.parquet, row 2: 'answers' has a null; give a list of strings",
    ),
    "no queries": ({"queries": {"_id": pa.array([], pa.string()), "text": pa.array([], pa.string())}}, r"names query 'q'"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_input_is_one_line_with_its_place(case, tmp_path):
    columns, message = BAD[case]
    with pytest.raises(InputError, match=message) as caught:
        imported("huggingface", hub(tmp_path / "in", **columns), tmp_path / "out")
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "out").exists()


CARDS = {
    "other files": (
        "configs:\n- config_name: corpus\n  data_files: ../x.parquet\n",
        r"README\.md: data_files names files elsewhere: \.\./x",
    ),
    "files of the machine": ("configs:\n- config_name: corpus\n  data_files: /etc/*\n", r"README\.md: data_files names files elsewhere"),
    "files that are gone": (
        "configs:\n- config_name: corpus\n  data_files: c/*\n",
        r"README\.md: data_files names c/\*, which is not there",
    ),
    "a pattern that is none": (
        "configs:\n- config_name: corpus\n  data_files: c/**.parquet\n",
        r"README\.md: data_files names '?c/\*\*\.parquet'?(: Invalid pattern|, which is not there)",  # which it is to Python 3.13
    ),
    "no pattern": ("configs:\n- config_name: corpus\n  data_files: ''\n", r"README\.md: data_files names '': Unacceptable pattern"),
    "no paths": ("configs:\n- config_name: corpus\n  data_files: [{split: x}]\n", r"README\.md: data_files has \{'split': 'x'\}"),
    "no corpus": ("configs: []\n", r"holds no corpus; add corpus/\*\.parquet"),
    "no YAML": ("configs: [\n", r"README\.md: its front matter is not YAML"),
}


@pytest.mark.parametrize("case", CARDS)
def test_a_bad_card_is_refused(case, tmp_path):
    text, message = CARDS[case]
    put(hub(tmp_path / "in") / "README.md", "---", text.rstrip("\n"), "---", "text")
    with pytest.raises(InputError, match=message) as caught:
        imported("huggingface", tmp_path / "in", tmp_path / "out")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("split", ["../../../escaped", "..", ".", "a/../b", "/tmp/escaped", "", " ", "a b", "a\\b", "a\n", "a//b"])
def test_a_split_that_is_no_name_is_refused(split, tmp_path):
    listed = [{"config_name": c, "data_files": [{"split": "x", "path": f"{c}/*.parquet"}]} for c in ("corpus", "queries")]
    listed.append({"config_name": "qrels", "data_files": [{"split": split, "path": "qrels/*.parquet"}]})
    put(hub(tmp_path / "deep/in") / "README.md", "---", yaml.safe_dump({"configs": listed}).rstrip("\n"), "---")
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(InputError, match=r"parquet: .* cannot be the name of a part of a data set; rename it") as caught:
        imported("huggingface", tmp_path / "deep/in", tmp_path / "deep/out")
    assert repr(f"qrels/{split}") in str(caught.value)
    assert sorted(tmp_path.rglob("*")) == before, "nothing is left, in the output or elsewhere"


def test_a_file_that_is_no_parquet(tmp_path):
    file = hub(tmp_path / "in") / "queries/queries-00000-of-00001.parquet"
    file.write_bytes(file.read_bytes()[:-10])
    with pytest.raises(InputError, match=r"queries-00000-of-00001\.parquet: is not a whole Parquet file"):
        imported("huggingface", tmp_path / "in", tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_two_splits_of_one_name_are_refused(tmp_path):
    put(beir(tmp_path / "in") / "qrels/dev_small.tsv", "query-id\tcorpus-id\tscore", "q2\td0\t1")
    first = imported("beir", tmp_path / "in", tmp_path / "first")
    with pytest.raises(InputError, match="two splits would both be dev_small"):
        exported("huggingface", tmp_path / "hub", dataset=first)
    assert not (tmp_path / "hub").exists()


@settings(max_examples=200)
@given(name=st.text(st.characters(codec="ascii", categories=["L", "N", "P"]), min_size=1, max_size=8))
def test_every_split_has_a_name_that_the_library_takes(name):
    made = hub_split(name)
    assert re.fullmatch(r"\w+(\.\w+)*", made)
    assert len(made) == len(name)
    assert made == name or not re.fullmatch(r"\w+(\.\w+)*", name)


TEXT = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=12).filter(str.strip)


@settings(max_examples=8, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(texts=st.lists(st.tuples(TEXT, TEXT, TEXT), min_size=1, max_size=6), seed=st.integers(0, 99))
def test_any_text_comes_back(texts, seed, tmp_path_factory):
    base = tmp_path_factory.mktemp("trip")
    put(base / "in/corpus.jsonl", *(json.dumps({"_id": f"d{i}", "title": t, "text": x}) for i, (t, x, _) in enumerate(texts)))
    put(base / "in/queries.jsonl", *(json.dumps({"_id": f"q{i}", "text": x}) for i, (_, _, x) in enumerate(texts)))
    relevance = np.random.default_rng(seed).integers(0, 4, len(texts))
    put(base / "in/qrels/a.tsv", "query-id\tcorpus-id\tscore", *(f"q{i}\td{i}\t{r}" for i, r in enumerate(relevance)))
    first = imported("beir", base / "in", base / "first")
    second = imported("huggingface", exported("huggingface", base / "hub", dataset=first), base / "second")
    third = imported("beir", exported("beir", base / "beir", dataset=second), base / "third")
    assert digests(first) == digests(second) == digests(third)


# --- whole data sets in other formats ---


def test_beir_of_a_whole_data_set(tmp_path):
    first = imported("beir", beir(tmp_path / "in"), tmp_path / "first")
    folder = exported("beir", tmp_path / "files", dataset=first)
    files = sorted(str(p.relative_to(folder)) for p in folder.rglob("*") if p.is_file())
    assert files == ["corpus.jsonl", "qrels/dev-small.tsv", "qrels/test.tsv", "queries.jsonl"]
    assert [(folder / f).read_bytes() for f in files[1:3]] == [(tmp_path / "in" / f).read_bytes() for f in files[1:3]]
    assert digests(imported("beir", folder, tmp_path / "again")) == digests(first)


def test_parts_that_a_format_does_not_hold_are_named(tmp_path, capfd):
    put(tmp_path / "in/qrels.dev.tsv", "q\t0\t1\t1")
    put(tmp_path / "in/run.bm25.tsv", "q\t1\t1")
    first = imported("msmarco", tmp_path / "in", tmp_path / "first")
    folder = exported("beir", tmp_path / "files", dataset=first)
    assert [str(p.relative_to(folder)) for p in folder.rglob("*.*")] == ["qrels/dev.tsv"]
    assert "export: leaves out run, which the format beir does not hold" in capfd.readouterr().err


def test_a_data_set_is_refused_where_it_does_not_fit(tmp_path):
    first = imported("beir", beir(tmp_path / "in"), tmp_path / "first")
    with pytest.raises(InputError, match="dataset and corpus are both given: give the data set or its parts"):
        exported("beir", tmp_path / "files", dataset=first, corpus=first / "corpus")
    with pytest.raises(InputError, match="format trec does not write dataset; give one of: run, qrels"):
        exported("trec", tmp_path / "files", dataset=first)
    with pytest.raises(InputError, match="format huggingface does not write run; give corpus, queries, qrels, or a dataset"):
        exported("huggingface", tmp_path / "files", run=first)
    with pytest.raises(InputError, match="holds corpus, not dataset"):
        exported("beir", tmp_path / "files", dataset=first / "corpus")
    imported("beir", tmp_path / "in", tmp_path / "other", titles=False)
    (first / "corpus").rename(tmp_path / "moved")
    (tmp_path / "other/corpus").rename(first / "corpus")
    with pytest.raises(InputError, match="corpus"):
        exported("beir", tmp_path / "files", dataset=first)
    assert not (tmp_path / "files").exists()
