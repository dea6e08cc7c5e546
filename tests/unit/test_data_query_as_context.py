"""The files of query-as-context's and Condenser's scripts: documents are known again, and generated queries stay with their passages."""

import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import raydense as rd
from raydense.data.formats import intake, lines
from raydense.data.generated import Generated, commit_queries
from raydense.errors import InputError
from raydense.training.contexts import Contexts


def put(path: Path, *rows: dict[str, Any]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(f"{json.dumps(row, ensure_ascii=False)}\n" for row in rows), encoding="utf-8")
    return path


def imported(family: str, source: Path, output: Path, **more: Any) -> Path:
    return rd.import_dataset(rd.ImportSettings(format=family, input=str(source), output=str(output), **more)).path


def corpus(folder: Path) -> list[tuple[str, str, str]]:
    store = rd.PassageStore(folder)
    return [(p["passage_id"], p["text"], p["doc_id"]) for p in store.take(np.arange(len(store))).to_pylist()]


def generated(folder: Path) -> list[list[str]]:
    made = Generated(folder / "generated", rd.PassageStore(folder / "corpus"))
    return made.slice(0, len(made)).to_pylist()


def contexts(document: list[list[str]], draw: random.Random) -> list[dict[str, str]]:
    """The passages of a document, each a list of sentences, with contexts as the authors' README and comments describe them.

    `nearby` is the passage before or after, `random_sampled` one of five on each side, `overlap` sentences of its end and those that
    follow, of the last passage those before and some of its beginning. A passage alone is its own context.
    """
    texts = [" ".join(sentences) for sentences in document]
    made = []
    for at, sentences in enumerate(document):
        others = [i for i in range(max(0, at - 5), min(len(document), at + 6)) if i != at] or [at]
        beside = [i for i in others if abs(i - at) <= 1]
        some = draw.randint(1, max(1, len(sentences) // 2))
        following = [one for passage in document[at + 1 :] for one in passage][: draw.randint(1, 12)]
        before = [one for passage in document[:at] for one in passage][-draw.randint(1, 12) :] if at else []
        overlap = sentences[-some:] + following if at + 1 < len(document) else before + sentences[:some]
        made.append(
            {
                "anchor": texts[at],
                "random_sampled": texts[draw.choice(others)],
                "nearby": texts[draw.choice(beside)],
                "overlap": " ".join(overlap),
            }
        )
    return made


def documents(draw: random.Random, count: int) -> list[list[list[str]]]:
    def sentence() -> str:
        return " ".join(draw.choice(["river", "stone", "old", "the", "bridge", "of", "in"]) for _ in range(draw.randint(3, 9))) + "."

    return [[[sentence() for _ in range(draw.randint(1, 6))] for _ in range(draw.randint(1, 7))] for _ in range(count)]


@pytest.mark.parametrize("block", [lines.BLOCK_BYTES, 3_000])
def test_passages_of_a_document_are_found_and_keep_their_queries(block: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lines, "BLOCK_BYTES", block)
    draw = random.Random(7)
    made = [contexts(document, draw) for document in documents(draw, 60)]
    rows = [{"docid": str(n), **row, "query": [f"{n} a", f"{n} b"]} for n, row in enumerate(row for rows in made for row in rows)]
    rows[3]["query"], rows[4]["query"], rows[5]["query"] = ["", " ", "3"], [], ["5", "5"]
    half = len(rows) // 2
    put(tmp_path / "in/a.json", *rows[:half])
    put(tmp_path / "in/b.jsonl", *rows[half:])
    out = imported("query_as_context", tmp_path / "in", tmp_path / "out", shard_rows=50)
    firsts = np.cumsum([0, *(len(rows) for rows in made)])
    own = [str(firsts[n]) for n, rows in enumerate(made) for _ in rows]
    assert corpus(out / "corpus") == [(row["docid"], row["anchor"], doc) for row, doc in zip(rows, own, strict=True)]
    lists = generated(out)
    assert lists == [row["query"] if n != 3 else ["3"] for n, row in enumerate(rows)]
    summary = Generated(out / "generated").artifact.summary
    assert summary == {"corpus": rd.PassageStore(out / "corpus").fingerprint, "queries": sum(map(len, lists)), "empty": 2}
    mixed = Contexts(rd.PassageStore(out / "corpus"), "mixed", str(out / "generated"))
    assert len(mixed.examples()) == len(rows) - (own.count(own[4]) == 1)
    again = rd.import_dataset(rd.ImportSettings(format="query_as_context", input=tmp_path / "in", output=out, shard_rows=50))
    assert set(again.summary["parts"]) == {"corpus", "generated"}


def test_an_import_that_was_stopped_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = put(tmp_path / "in.json", *({"docid": str(n), "anchor": f"a {n}", "query": [f"q {n}"]} for n in range(5)))
    whole = rd.import_dataset(rd.ImportSettings(format="query_as_context", input=source, output=tmp_path / "whole", shard_rows=2))

    def stopped(draft: Any, name: str, start: int, *given: Any, **note: Any) -> None:
        if start:
            raise KeyboardInterrupt
        commit_queries(draft, name, start, *given, **note)

    with monkeypatch.context() as patched:
        patched.setattr(intake, "commit_queries", stopped)
        with pytest.raises(KeyboardInterrupt):
            imported("query_as_context", source, tmp_path / "out", shard_rows=2)
    again = rd.import_dataset(rd.ImportSettings(format="query_as_context", input=source, output=tmp_path / "out", shard_rows=2))
    assert again.fingerprint == whole.fingerprint
    assert generated(tmp_path / "out") == [[f"q {n}"] for n in range(5)]


def test_documents_of_equal_texts_stay_apart(tmp_path: Path) -> None:
    """A passage that is alone in its document is its own context."""
    same = dict.fromkeys(("anchor", "nearby", "random_sampled", "overlap"), "Page not found.")
    source = put(tmp_path / "in.json", *({"docid": str(n), **same} for n in range(3)))
    out = imported("query_as_context", source, tmp_path / "out")
    assert [doc for _, _, doc in corpus(out / "corpus")] == ["0", "1", "2"]
    assert not (out / "generated").exists(), "CoT-MAE's have no queries"


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"anchor": [2023, 2003], "query": [[101]]}, r"in\.json:2: no 'docid'; each line needs it; this one has 'anchor', 'query'"),
        ({"docid": "1", "anchor": [2023]}, r"in\.json:2: 'anchor' is \[2023\], not a string"),
        ({"docid": "0", "anchor": "b"}, r"in\.json:2: .*'0'"),
        ({"docid": "1", "anchor": " "}, r"in\.json:2: empty text"),
        ({"docid": "1", "anchor": "b", "query": "one"}, r"in\.json:2: 'query' is \"one\", not a list of strings"),
    ],
)
def test_a_line_that_is_wrong_is_named(row: dict[str, Any], message: str, tmp_path: Path) -> None:
    source = put(tmp_path / "in.json", {"docid": "0", "anchor": "a", "query": ["q"]}, row)
    with pytest.raises(InputError, match=message):
        imported("query_as_context", source, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_spans_of_condenser(tmp_path: Path) -> None:
    put(tmp_path / "in/a.json", {"spans": ["a", "b"]}, {"spans": []}, {"spans": ["c"]})
    put(tmp_path / "in/b.json", {"spans": ["d", "a"]})
    out = imported("condenser", tmp_path / "in", tmp_path / "out")
    assert corpus(out / "corpus") == [("0-0", "a", "0"), ("0-1", "b", "0"), ("2-0", "c", "2"), ("3-0", "d", "3"), ("3-1", "a", "3")]
    assert rd.import_corpus("condenser", tmp_path / "in", tmp_path / "alone").files == rd.Artifact.open(out / "corpus").files


@pytest.mark.parametrize(
    ("spans", "message"),
    [(["e", ""], r"b\.json:2: empty text"), ([[2023, 2003]], r"b\.json:2: 'spans' is \[\[2023, 2003\]\], not a list of strings")],
)
def test_a_document_that_is_wrong_is_named(spans: list[Any], message: str, tmp_path: Path) -> None:
    put(tmp_path / "in/a.json", {"spans": ["a", "b"]})
    put(tmp_path / "in/b.json", {"spans": ["c", "d"]}, {"spans": spans})
    with pytest.raises(InputError, match=message):
        imported("condenser", tmp_path / "in", tmp_path / "out")


@pytest.mark.parametrize("family", ["query_as_context", "condenser"])
def test_a_corpus_that_is_there_is_refused(family: str, tmp_path: Path) -> None:
    source = put(tmp_path / "in.json", {"docid": "0", "anchor": "a", "spans": ["a"]})
    first = imported(family, source, tmp_path / "out")
    with pytest.raises(InputError, match="makes a corpus of its own texts"):
        imported(family, source, tmp_path / "other", corpus=str(first / "corpus"))
