"""The scripts of `jobs/`: how they end on what a user can fix, and what they leave behind."""

import json
import runpy
import sys
from pathlib import Path

import pytest

import raydense as rd
from raydense.errors import StorageError

JOBS = Path(__file__).parents[2] / "jobs"
GIVEN = {
    "encode_wikipedia": ["--passages", "p", "--model", "m", "--output", "o"],
    "search_client": ["--pool", "p", "--corpus", "c", "--questions", "q", "--output", "o"],
    "static_encoder": ["--model", "m", "--output", "o"],
    "train_with_refresh": ["--data", "d", "--model", "m", "--output", "o"],
}
FIRST = {  # what a script calls first
    "encode_wikipedia": "raydense.import_corpus",
    "search_client": "raydense.PassageStore",
    "static_encoder": "raydense.storage.model_place",
    "train_with_refresh": "raydense.index",
}


def _run(name, words, monkeypatch):
    monkeypatch.setattr(sys, "argv", [f"{name}.py", *words])
    runpy.run_path(str(JOBS / f"{name}.py"), run_name="__main__")


@pytest.mark.parametrize("name", GIVEN)
@pytest.mark.parametrize(
    ("error", "code", "line"),
    [
        (rd.InputError("no such folder", "m", "give another"), 2, "m: no such folder; give another"),
        (StorageError("s3://b: the service failed"), 1, "s3://b: the service failed"),
    ],
)
def test_a_script_ends_as_a_command_does(name, error, code, line, monkeypatch, capsys):
    def fails(*_, **__):
        raise error

    monkeypatch.setattr(FIRST[name], fails, raising=False)
    with pytest.raises(SystemExit) as ended:
        _run(name, GIVEN[name], monkeypatch)
    assert ended.value.code == code
    assert capsys.readouterr().err == f"{name}: {line}\n"


def test_a_concurrency_of_more_than_the_most_is_refused_before_the_import(monkeypatch, capsys):
    monkeypatch.setattr(rd, "import_corpus", None, raising=False)
    with pytest.raises(SystemExit, match="2"):
        _run("encode_wikipedia", [*GIVEN["encode_wikipedia"], "--concurrency", "8,1"], monkeypatch)
    assert "MIN,MAX" in capsys.readouterr().err


def test_a_client_that_ends_early_leaves_the_hits_of_before(tmp_path, monkeypatch):
    class Pool:
        index = "i"

        def answers(self, blocks, k):
            yield from ()
            raise StorageError("the pool was closed")

    class Store:
        refuse_rows_of_another = staticmethod(lambda index: None)

    (tmp_path / "q").write_text("one\ntwo\n")
    hits = tmp_path / "hits.jsonl"
    hits.write_text(json.dumps({"question": "one"}))
    monkeypatch.setattr(rd, "PassageStore", lambda corpus: Store(), raising=False)
    monkeypatch.setattr(rd.SearchPool, "connect", lambda name: Pool())
    monkeypatch.setattr("raydense.retrieval.query_vectors.check_model", lambda *_: None)
    with pytest.raises(SystemExit, match="1"):
        _run("search_client", ["--pool", "p", "--corpus", "c", "--questions", str(tmp_path / "q"), "--output", str(hits)], monkeypatch)
    assert json.loads(hits.read_text()) == {"question": "one"}
