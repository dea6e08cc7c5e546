"""mix(): ids, rows, texts and judgements of several sources in one data set, over one corpus or several."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from raydense.data import mixing
from raydense.data.mixing import mix
from raydense.data.settings import MixSettings
from raydense.data.store import CorpusWriter, PassageStore
from raydense.data.tables import commit_table, read_table
from raydense.errors import InputError
from raydense.storage import Artifact, Draft


def corpus(folder: Path, word: str, count: int) -> PassageStore:
    writer = CorpusWriter(Draft.open(folder, "corpus", {}), 7)
    numbers = range(count)
    columns = {"passage_id": [f"p{n}" for n in numbers], "title": [f"{word} {n % 3}" for n in numbers]}
    writer.add(pa.table({**columns, "text": [f"{word} text {n}" for n in numbers]}))
    writer.finish()
    return PassageStore(folder)


def table(folder: Path, kind: str, columns: dict[str, Any], **summary: Any) -> str:
    draft = Draft.open(folder, kind, {})
    made = pa.table(columns)
    commit_table(draft, f"{kind}.parquet", made)
    draft.finish(made.num_rows, **summary)
    return str(folder)


def source(folder: Path, word: str, store: PassageStore, count: int, scored: bool = False) -> dict[str, str]:
    rng, numbers = np.random.default_rng(len(word)), range(count)
    lists = [rng.choice(len(store), 4, replace=False) for _ in numbers]
    examples = {"query_id": [f"q{n}" for n in numbers], "positives": [row[:1] for row in lists], "negatives": [row[1:] for row in lists]}
    if scored:
        examples |= {"positive_scores": [[1.0]] * count, "negative_scores": [[0.1, 0.2, 0.3]] * count}
    judged = {
        "query_id": [f"q{n}" for n in numbers],
        "passage_id": store.ids(np.array([row[0] for row in lists])),
        "relevance": [1] * count,
    }
    return {
        "queries": table(
            folder / "queries", "queries", {"query_id": [f"q{n}" for n in numbers], "text": [f"{word} query {n}" for n in numbers]}
        ),
        "examples": table(folder / "examples", "examples", examples, corpus=store.fingerprint),
        "qrels": table(folder / "qrels", "qrels", judged),
    }


def texts_named(folder: Path | str, queries: str, store: PassageStore) -> dict[str, tuple[list[str], list[str]]]:
    """The texts of positives and negatives by the text of the query."""
    text = dict(zip(*(read_table(queries, "queries")[name].to_pylist() for name in ("query_id", "text")), strict=True))
    rows = read_table(folder, "examples").to_pylist()
    return {text[row["query_id"]]: tuple(store.passages(np.array(row[name])) for name in ("positives", "negatives")) for row in rows}


@pytest.fixture
def two(tmp_path: Path) -> dict[str, Any]:
    stores = [corpus(tmp_path / "sea", "sea", 40), corpus(tmp_path / "land", "land", 30)]
    parts = [source(tmp_path / name, name, store, 9, name == "b") for name, store in zip("ab", stores, strict=True)]
    return {"stores": stores, "parts": parts}


def mixed(two: dict[str, Any], output: Path, **more: Any) -> Artifact:
    named = {
        kind: [f"{name}={part[kind]}" for name, part in zip("ab", two["parts"], strict=True)] for kind in ("queries", "examples", "qrels")
    }
    folders = [f"{name}={store.path}" for name, store in zip("ab", two["stores"], strict=True)]
    return mix(MixSettings(output=str(output), **{"corpus": folders, **named, **more}))


def test_sources_of_different_corpora_keep_their_texts(two: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made = mixed(two, tmp_path / "out", prefixes=["", "land: "], weights="1 0.5")
    assert "mix: b: 9 queries, 9 examples, weight 0.5, each query begins with 'land: '" in capsys.readouterr().err.splitlines()
    store = PassageStore(tmp_path / "out" / "corpus")
    found = texts_named(tmp_path / "out" / "examples", str(tmp_path / "out" / "queries"), store)
    expected: dict[str, Any] = {}
    for part, of, prefix in zip(two["parts"], two["stores"], ("", "land: "), strict=True):
        expected |= {f"{prefix}{text}": lists for text, lists in texts_named(part["examples"], part["queries"], of).items()}
    assert found == expected
    queries = read_table(tmp_path / "out" / "queries", "queries")
    assert queries["query_id"].to_pylist() == [f"{name}:q{n}" for name in "ab" for n in range(9)]
    assert queries["source"].to_pylist() == ["a"] * 9 + ["b"] * 9
    assert Artifact.open(tmp_path / "out" / "queries").summary["weights"] == {"a": 1.0, "b": 0.5}
    rows = read_table(tmp_path / "out" / "examples", "examples")
    positive = dict(
        zip(rows["query_id"].to_pylist(), (store.ids(np.array(r))[0].as_py() for r in rows["positives"].to_pylist()), strict=True)
    )
    judged = read_table(tmp_path / "out" / "qrels", "qrels").to_pylist()
    assert {row["query_id"]: row["passage_id"] for row in judged} == positive
    named = {row for lists in (rows["positives"], rows["negatives"]) for one in lists.to_pylist() for row in one}
    assert named == set(range(len(store)))
    assert rows["positive_scores"].to_pylist() == [None] * 9 + [[1.0]] * 9
    assert set(made.summary["parts"]) == {"queries", "examples", "qrels", "corpus"}


@pytest.mark.parametrize("corpora", [1, 2])
def test_judgements_of_passages_that_a_corpus_lacks(corpora: int, two: dict[str, Any], tmp_path: Path, capsys) -> None:
    """As `import --no-strict` keeps them: in a joined corpus no passage can have their ids."""
    if corpora == 1:
        two["stores"] = [two["stores"][0]] * 2
        two["parts"] = [two["parts"][0]] * 2
    rows = read_table(two["parts"][0]["qrels"], "qrels").to_pylist()
    lacking = {"query_id": "q0", "passage_id": "elsewhere", "relevance": 1}
    judged = pa.Table.from_pylist([*rows, lacking])
    two["parts"] = [{**two["parts"][0], "qrels": table(tmp_path / "more", "qrels", judged.to_pydict())}, two["parts"][1]]
    mixed(two, tmp_path / "out", **({"corpus": str(two["stores"][0].path)} if corpora == 1 else {}))
    found = [row["passage_id"] for row in read_table(tmp_path / "out/qrels", "qrels").to_pylist() if row["query_id"] == "a:q0"]
    said = f"mix: 1 of 10 judgements of {tmp_path / 'more'} name passages that the corpus lacks: left out"
    assert (said in capsys.readouterr().err) == (corpora == 2)
    assert found == ([rows[0]["passage_id"], "elsewhere"] if corpora == 1 else [f"a:{rows[0]['passage_id']}"])
    two["parts"][0]["qrels"] = table(tmp_path / "none", "qrels", pa.Table.from_pylist([lacking]).to_pydict())
    with pytest.raises(InputError, match=r"none: names passage 'elsewhere', which the corpus .*sea does not have"):
        mixed(two, tmp_path / "again", **({"corpus": str(two["stores"][0].path)} if corpora == 1 else {}))


def test_sources_of_one_corpus_keep_it(tmp_path: Path) -> None:
    store = corpus(tmp_path / "corpus", "sea", 40)
    parts = {name: source(tmp_path / name, name, store, 9) for name in ("gold", "pseudo")}
    named = {kind: [f"{name}={part[kind]}" for name, part in parts.items()] for kind in ("queries", "examples")}
    made = mix(MixSettings(output=str(tmp_path / "out"), corpus=str(store.path), **named))
    assert set(made.summary["parts"]) == {"queries", "examples"}
    examples = Artifact.open(tmp_path / "out" / "examples")
    assert examples.summary["corpus"] == store.fingerprint
    assert read_table(examples.path, "examples").column_names == ["query_id", "positives", "negatives"]
    whole = [read_table(part["examples"], "examples")["positives"].to_pylist() for part in parts.values()]
    assert read_table(examples.path, "examples")["positives"].to_pylist() == whole[0] + whole[1]


def write_run(folder: Path, store: PassageStore, queries: int, first: int = 0, **summary: Any) -> str:
    """Three hits of each query, in two files of which one ends within a query."""
    rows = [
        (f"q{n}", store.ids(np.array([(first + n * 3 + rank) % len(store)]))[0].as_py(), rank + 1, 3.0 - rank)
        for n in range(queries)
        for rank in range(3)
    ]
    names = ["query_id", "passage_id", "rank", "score"]
    draft = Draft.open(folder, "run", {})
    for part, piece in enumerate((rows[:5], rows[5:])):
        of_part = pa.table(dict(zip(names, map(list, zip(*piece, strict=True)), strict=True)))
        commit_table(
            draft,
            f"run-{part:05d}.parquet",
            of_part.set_column(2, "rank", of_part["rank"].cast(pa.int32())).set_column(3, "score", of_part["score"].cast(pa.float32())),
        )
    draft.finish(len(rows), **summary)
    return str(folder)


@pytest.mark.parametrize("corpora", [1, 2])
def test_a_run_has_the_hits_of_the_judged_queries(corpora: int, two: dict[str, Any], tmp_path: Path) -> None:
    stores, parts = two["stores"], two["parts"]
    judged = read_table(parts[0]["qrels"], "qrels").slice(0, 4)
    parts[0]["qrels"] = table(tmp_path / "few", "qrels", judged.to_pydict())
    more: dict[str, Any] = {"run": [f"a={write_run(tmp_path / 'run', stores[0], 9)}"]}
    if corpora == 1:
        parts[1] = source(tmp_path / "same", "same", stores[0], 9)
        more |= {"corpus": str(stores[0].path)}
    made = mixed(two, tmp_path / "out", **more)
    whole = read_table(tmp_path / "run", "run").slice(0, 12).to_pylist()
    prefix = "a:" if corpora == 2 else ""
    expected = [{**row, "query_id": f"a:{row['query_id']}", "passage_id": prefix + row["passage_id"]} for row in whole]
    run = read_table(tmp_path / "out" / "run", "run")
    assert run.to_pylist() == expected
    assert set(made.summary["parts"]) == {"queries", "examples", "qrels", "run", *(["corpus"] if corpora == 2 else [])}
    store = PassageStore(tmp_path / "out" / "corpus") if corpora == 2 else stores[0]
    rows = store.known_rows(run["passage_id"], "run")
    assert store.passages(rows) == stores[0].passages(
        stores[0].known_rows(read_table(tmp_path / "run", "run").slice(0, 12)["passage_id"], "run")
    )
    assert Artifact.open(tmp_path / "out" / "run").summary["corpus"] == store.fingerprint


def test_a_run_is_the_same_however_it_is_cut(two: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    runs = [f"{name}={write_run(tmp_path / f'run-{name}', store, 9)}" for name, store in zip("ab", two["stores"], strict=True)]
    whole = mixed(two, tmp_path / "whole", run=runs)
    monkeypatch.setattr(mixing, "BLOCK_ROWS", 4)
    cut = mixed(two, tmp_path / "cut", run=runs)
    assert [row["query_id"][0] for row in read_table(cut.path / "run", "run").to_pylist()] == ["a"] * 27 + ["b"] * 27
    for part in ("corpus", "run"):
        assert [f.sha256 for f in Artifact.open(whole.path / part).files] == [f.sha256 for f in Artifact.open(cut.path / part).files]


def test_a_run_without_a_judged_query_is_refused(two: dict[str, Any], tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", two["stores"][1], 9)
    judged = {"query_id": ["q8"], "passage_id": ["p1"], "relevance": [1]}
    two["parts"][1]["qrels"] = table(tmp_path / "few", "qrels", judged)
    rows = read_table(run, "run").slice(0, 6).to_pydict()
    few = table(
        tmp_path / "other", "run", {**rows, "rank": pa.array(rows["rank"], pa.int32()), "score": pa.array(rows["score"], pa.float32())}
    )
    with pytest.raises(InputError, match="other: has no query of those that are judged"):
        mixed(two, tmp_path / "out", run=[f"b={few}"])


def test_a_run_of_another_corpus_is_refused(two: dict[str, Any], tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", two["stores"][0], 9, first=10)
    with pytest.raises(InputError, match=r"run: names passage 'p30', which the corpus \S+land does not have"):
        mixed(two, tmp_path / "out", run=[f"b={run}"])


def test_a_run_that_records_another_corpus_is_refused(two: dict[str, Any], tmp_path: Path) -> None:
    own, other = two["stores"]
    run = write_run(tmp_path / "run", own, 9, corpus=other.fingerprint)
    with pytest.raises(InputError, match=r"run: was made with another corpus than \S+sea"):
        mixed(two, tmp_path / "out", run=[f"a={run}"])
    mixed(two, tmp_path / "again", run=[f"a={write_run(tmp_path / 'own', own, 9, corpus=own.fingerprint)}"])


@pytest.mark.parametrize(
    ("change", "what"),
    [
        ({"qrels": [], "run": ["a=x"]}, "'a' has a run, and no qrels"),
        ({"run": ["c=x"]}, "'c' is no source"),
        ({"queries": ["a=x", "c=x"]}, "'c' is no source"),
        ({"queries": ["a=x"]}, "nothing called 'b'"),
        ({"examples": ["a=x", "a=y"]}, "two of examples have the same name, 'a'"),
        ({"qrels": ["a=x", "a=y"]}, "two of qrels have the same name, 'a'"),
        ({"examples": ["a=x", "a:b=y"]}, "the source 'a:b' has a colon"),
        ({"weights": "1 2 3"}, "3 weights for 2 sources"),
        ({"prefixes": ["x"]}, "1 prefixes for 2 sources"),
        ({"weights": "0 1"}, "greater than 0"),
        ({"weights": "1 2e6"}, "less than or equal to 1000000"),
    ],
)
def test_what_does_not_fit_is_refused(change: dict[str, Any], what: str, two: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(InputError, match=what):
        mixed(two, tmp_path / "out", **change)


@pytest.mark.parametrize("key", ["queries", "corpus"])
@pytest.mark.parametrize(
    ("name", "what"), [("a=", "{key}: has nothing called 'b'"), ("c=", "{key}: 'c' is no source: they are a, b"), ("", None)]
)
def test_one_folder_serves_all_sources_only_without_a_name(key: str, name: str, what: str | None, tmp_path: Path) -> None:
    store = corpus(tmp_path / "corpus", "sea", 40)
    parts = [source(tmp_path / word, word, store, 9) for word in "ab"]
    one = {"queries": parts[0]["queries"], "corpus": str(store.path)}
    given = one | {key: f"{name}{one[key]}"}
    examples = [f"{word}={part['examples']}" for word, part in zip("ab", parts, strict=True)]
    if what is None:
        assert mix(MixSettings(output=str(tmp_path / "out"), examples=examples, **given)).kind == "dataset"
        return
    with pytest.raises(InputError, match=what.format(key=key)):
        MixSettings(output=str(tmp_path / "out"), examples=examples, **given)


@pytest.mark.parametrize("corpora", [1, 2])
def test_rows_that_the_corpus_does_not_have_are_refused(corpora: int, two: dict[str, Any], tmp_path: Path) -> None:
    store = two["stores"][0]
    rows = {"query_id": ["q0", "q1"], "positives": [[0], [1]], "negatives": [[2, 3], [4, 99]]}
    two["parts"][0]["examples"] = table(tmp_path / "wrong", "examples", rows, corpus=store.fingerprint)
    if corpora == 1:
        two["parts"][1] = source(tmp_path / "same", "same", store, 9)
    with pytest.raises(InputError, match="negatives of query 'q1' name row 99, the corpus has 40"):
        mixed(two, tmp_path / "out", **({"corpus": str(store.path)} if corpora == 1 else {}))


def test_examples_without_negatives_may_have_null_for_their_list(two: dict[str, Any], tmp_path: Path) -> None:
    lists = pa.array([[1, 2], None, [3]], pa.list_(pa.int64()))
    rows = {"query_id": ["q0", "q1", "q2"], "positives": [[0], [5], [6]], "negatives": lists}
    two["parts"][0]["examples"] = table(tmp_path / "null", "examples", rows, corpus=two["stores"][0].fingerprint)
    mixed(two, tmp_path / "out")
    made, store = read_table(tmp_path / "out" / "examples", "examples").slice(0, 3), PassageStore(tmp_path / "out" / "corpus")
    assert [len(one) for one in made["negatives"].to_pylist()] == [2, 0, 1]
    assert store.ids(np.array([one[0] for one in made["positives"].to_pylist()])).to_pylist() == ["a:p0", "a:p5", "a:p6"]


def test_examples_of_another_corpus_are_refused(two: dict[str, Any], tmp_path: Path) -> None:
    two["stores"].reverse()
    with pytest.raises(InputError, match="another corpus"):
        mixed(two, tmp_path / "out")
