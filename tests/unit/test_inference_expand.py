"""expand() by an endpoint: each query with its context, per kind; resumed, refused and counted, against a real HTTP server."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from chat_server import ChatServer, chat_server

import raydense.inference.endpoint as endpoint_module
import raydense.inference.expand as expand_module
from raydense.data.tables import commit_table, read_table
from raydense.errors import EndpointError, InputError
from raydense.inference.expand import expand
from raydense.inference.expand_settings import PROMPTS, ExpandSettings
from raydense.inference.packing import tokens_of, unpack
from raydense.models.generator import Generator
from raydense.models.tiny import make_tiny_generator
from raydense.storage import Artifact, Draft, read_manifest

KINDS, QUERIES, BLOCK = ("answer", "title", "sentence"), 11, 4
TEXTS = [f"who wrote {{query}} {n}" for n in range(QUERIES)]


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(endpoint_module, "_BACKOFF_S", (0.001, 0.01))
    monkeypatch.setattr(expand_module, "QUERIES_A_FILE", BLOCK)
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    answers = [[f"a{n}"] if n % 2 else None for n in range(QUERIES)]
    columns = {"query_id": [f"q{n}" for n in range(QUERIES)], "text": TEXTS, "answers": pa.array(answers, pa.list_(pa.string()))}
    write(tmp_path / "queries", "queries", columns)
    write(tmp_path / "qrels", "qrels", {"query_id": ["q7", "q2", "q7"], "passage_id": ["x", "y", "z"], "relevance": [1, 1, 0]})
    return tmp_path


def write(folder: Path, kind: str, columns: dict[str, Any]) -> None:
    draft, table = Draft.open(folder, kind, {"test": kind}), pa.table(columns)
    commit_table(draft, f"{kind}.parquet", table)
    draft.finish(len(table))


def settings(root: Path, output: str, server: ChatServer, **more: Any) -> ExpandSettings:
    endpoint = {"url": server.url, "model": "small", **more.pop("endpoint", {})}
    return ExpandSettings.read({"queries": str(root / "queries"), "output": str(root / output), "endpoint": endpoint, **more})


def kind_of(prompt: str) -> str:
    return next(kind for kind in KINDS if prompt.startswith(PROMPTS[kind].split("{query}")[0]))


def reply(body: dict[str, Any]) -> str:
    """A context of two lines; none as title of an even query."""
    prompt = body["messages"][0]["content"]
    number, kind = int(prompt.rsplit(" ", 1)[1]), kind_of(prompt)
    return "<think>well</think>\n" if kind == "title" and number % 2 == 0 else f"<think>hm</think> the {kind}\n of  {number} "


def texts(artifact: Artifact, kind: str) -> list[str]:
    return read_table(artifact.path / "queries" / kind, "queries")["text"].to_pylist()


def test_each_query_has_its_context(root: Path) -> None:
    with chat_server(reply) as server:
        made = expand(settings(root, "out", server, length=20, seed=5))
    for kind in KINDS:
        contexts = ["" if kind == "title" and n % 2 == 0 else f" the {kind} of {n}" for n in range(QUERIES)]
        assert texts(made, kind) == [text + context for text, context in zip(TEXTS, contexts, strict=True)]
        part = Artifact.open(made.path / "queries" / kind, "queries")
        assert part.summary["empty"] == contexts.count("")
        assert [file.rows for file in part.files] == [4, 4, 3]
        table, before = (read_table(folder, "queries") for folder in (part.path, root / "queries"))
        assert table.drop_columns(["text"]).equals(before.drop_columns(["text"]))
        read = sum(len(asked.prompt.split()) for asked in server.asked if kind_of(asked.prompt) == kind)
        assert (part.summary["prompt_tokens"], part.summary["writer"], part.summary["answered_by"]) == (read, "endpoint", ["small-2026"])
    assert made.summary["kinds"] == list(KINDS)
    wanted = {(PROMPTS[kind].replace("{query}", text, 1), 5 + row) for kind in KINDS for row, text in enumerate(TEXTS)}
    assert {(asked.prompt, asked.body["seed"]) for asked in server.asked} == wanted
    assert {(asked.body["max_tokens"], asked.body["temperature"]) for asked in server.asked} == {(20, 0.0)}
    made_from = read_manifest(made.path)["made_from"]["settings"]
    assert made_from["prompts.title"] == PROMPTS["title"]
    assert not {"precision", "token_budget", "endpoint.url"} & made_from.keys()


def test_only_the_judged_queries_and_some_kinds_with_a_prompt_of_ones_own(root: Path) -> None:
    with chat_server(lambda body: "Paris") as server:
        own = {"kinds": "answer", "prompts": {"answer": "Q: {query} A:"}, "qrels": str(root / "qrels")}
        made = expand(settings(root, "out", server, **own))
    assert texts(made, "answer") == [f"{TEXTS[n]} Paris" for n in (2, 7)]
    assert sorted(asked.prompt for asked in server.asked) == [f"Q: {TEXTS[n]} A:" for n in (2, 7)]
    assert sorted(made.summary["parts"]) == ["queries/answer"]


def test_a_prompt_may_name_the_query_twice(root: Path) -> None:
    with chat_server(lambda body: "Paris") as server:
        expand(settings(root, "out", server, kinds="answer", prompts={"answer": "{query}\nAgain: {query} {x}"}, qrels=str(root / "qrels")))
    assert sorted(asked.prompt for asked in server.asked) == [f"{TEXTS[n]}\nAgain: {TEXTS[n]} {{x}}" for n in (2, 7)]


@pytest.mark.parametrize("answered", [0, 3, 13, 27])
def test_an_interrupted_run_continues_with_what_is_missing(root: Path, answered: int) -> None:
    with chat_server(reply, fault=lambda number: (503, {}, b"") if number >= answered else None) as server, pytest.raises(EndpointError):
        expand(settings(root, "out", server, endpoint={"requests_at_once": 1, "attempts": 2}))
    with chat_server(reply) as server:
        made = expand(settings(root, "out", server, endpoint={"requests_at_once": 5}))
        assert len(server.asked) == 3 * QUERIES - answered
        whole = expand(settings(root, "whole", server))
        again = expand(settings(root, "out", server))
        assert len(server.asked) == 6 * QUERIES - answered
    assert {name: part["fingerprint"] for name, part in made.summary["parts"].items()} == {
        name: part["fingerprint"] for name, part in whole.summary["parts"].items()
    }
    assert again.fingerprint == made.fingerprint
    assert not list((root / "out").rglob("*.jsonl"))


def test_the_records_of_a_part_are_not_read_again_for_each_of_its_files(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with chat_server(reply, fault=lambda number: (503, {}, b"") if number >= 27 else None) as server, pytest.raises(EndpointError):
        expand(settings(root, "out", server, endpoint={"requests_at_once": 1, "attempts": 2}))
    read, committed = [], Draft.committed
    monkeypatch.setattr(Draft, "committed", lambda draft: read.append(draft.place.name) or committed(draft))
    with chat_server(reply) as server:
        expand(settings(root, "out", server))
    assert {kind: read.count(kind) for kind in KINDS} == dict.fromkeys(KINDS, 3), "where it continues, and twice where it finishes"


def test_a_refused_key_leaves_nothing(root: Path) -> None:
    with chat_server(reply, key="k") as server:
        from raydense.recipes.stage import VERBS

        with pytest.raises(InputError, match="put the key into OPENAI_API_KEY"):
            VERBS["expand"].run(settings(root, "out", server))
    assert not (root / "out").exists()


def test_the_budget_counts_all_kinds(root: Path) -> None:
    with chat_server(reply) as server:
        given = {"price_in": 1e6, "max_cost": 400, "requests_at_once": 1}  # a dollar a token
        with pytest.raises(EndpointError, match=r"and max_cost is \$400"):
            expand(settings(root, "out", server, endpoint=given))
        costs = [len(asked.prompt.split()) for asked in server.asked]
    assert sum(costs[:-1]) < 400 <= sum(costs)
    assert len(costs) > QUERIES


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({}, "give either model or endpoint"),
        ({"model": "m", "kinds": "answer abstract"}, "kinds are answer, title and sentence, not abstract"),
        ({"model": "m", "kinds": "answer answer"}, "kinds names one twice"),
        ({"model": "m", "kinds": []}, "kinds: needs 1 or more"),
        ({"model": "m", "kinds": "title", "prompts": {"answer": "{query}"}}, "does not use prompts.answer"),
        ({"model": "m", "prompts": {"answer": "what?"}}, "prompts.answer must contain {query}"),
        ({"model": "m"}, "answer, title and sentence ask the same: give kinds, or a prompt for each"),
        ({"model": "m", "prompts": {"answer": "{query}?"}}, "title and sentence ask the same: give kinds"),
        ({"endpoint": {"url": "http://h/v1", "model": "m"}, "precision": "fp32"}, "expand with endpoint does not use precision"),
    ],
)
def test_wrong_settings_are_one_line(given: dict[str, Any], says: str) -> None:
    with pytest.raises(InputError) as caught:
        ExpandSettings.read({"queries": "q", "output": "o", **given})
    assert says in str(caught.value)


def test_given_prompts_are_not_changed() -> None:
    from raydense import PromptSettings

    prompts = PromptSettings(answer="{query}?")
    settings = ExpandSettings(queries="q", output="o", model="m", kinds="answer title", prompts=prompts)
    assert (settings.prompts.answer, settings.prompts.title, prompts.title) == ("{query}?", "{query}", None)


@pytest.mark.parametrize("trained", [None, 20])
def test_a_model_reads_as_much_as_it_can_or_was_trained_with(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], trained: int | None
) -> None:
    model = tmp_path / "model"
    make_tiny_generator(["who wrote it"] * 3, model, seed=1)
    if trained:
        Generator.load(model, passage_prefix="write: ", passage_length=trained).save(model := tmp_path / "trained")
    longest = trained or 512
    write(tmp_path / "queries", "queries", {"query_id": ["short", "long"], "text": ["who wrote it", "who wrote it " * 200]})
    given = {"queries": str(tmp_path / "queries"), "output": str(tmp_path / "out"), "model": str(model), "kinds": ["answer"]}
    one, read = ExpandSettings.read(given), {}

    def drawn(stage: str, spread: Any, rows: list[dict[str, Any]], tokenise: Any, actor: Any, **arguments: Any) -> Iterator[dict[str, Any]]:
        for row in rows:
            columns = unpack(tokenise(pa.Table.from_pylist([row]), **arguments))
            tokens = tokens_of(columns)
            read["lengths"] = tokens.lengths.tolist()
            yield {
                "part": row["part"],
                "contexts": json.dumps(["me"] * len(row["texts"])),
                "prompts_cut": columns["prompts_cut"][0].as_py(),
                "tokens": 0,
                "seconds": 0.0,
                "precision": "fp32",
            }

    monkeypatch.setattr(expand_module, "run", drawn)
    made = expand(one)
    assert Artifact.open(made.path / "queries" / "answer").summary["prompts_cut"] == 1
    assert read["lengths"][1] == longest > read["lengths"][0]
    said = f"expand: the model reads the first {longest} tokens of 1 of 2 prompts, which are longer"
    assert said in capsys.readouterr().err
