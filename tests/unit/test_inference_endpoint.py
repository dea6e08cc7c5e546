"""Queries from an OpenAI-compatible endpoint, against a real HTTP server that speaks the protocol and fails as real ones do."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections import Counter
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from chat_server import ChatServer, Fault, chat_server
from hypothesis import given
from hypothesis import strategies as st

import raydense.inference.endpoint as endpoint_module
from raydense.cli import main
from raydense.data.generated import Generated
from raydense.data.store import CorpusWriter, PassageStore
from raydense.errors import EndpointError, InputError
from raydense.forecast import Known, tokens
from raydense.inference.endpoint import Pace, retry_after
from raydense.inference.endpoint_settings import EndpointSettings
from raydense.inference.generate import generate
from raydense.inference.reply_text import queries_of
from raydense.inference.settings import PROMPT, GenerateSettings
from raydense.recipes.recipe import Recipe
from raydense.recipes.small import NoSlice, Small
from raydense.recipes.stage import Stage
from raydense.storage import Artifact, Draft, Place, read_manifest

PASSAGES, SHARD = 23, 10
KEY = "sk-test-3f9a1c77d2"


def make_corpus(folder: Path) -> Path:
    writer = CorpusWriter(Draft.open(folder, "corpus", {"test": "corpus"}), SHARD)
    texts = [f"The number {n} is of {{queries}} and {{passage}} {n * n}." for n in range(PASSAGES)]
    writer.add(
        pa.table({"passage_id": [f"p{n}" for n in range(PASSAGES)], "title": [f"Title {n}" for n in range(PASSAGES)], "text": texts})
    )
    writer.finish()
    return folder


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_corpus(tmp_path_factory.mktemp("endpoint") / "corpus")


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(endpoint_module, "_BACKOFF_S", (0.001, 0.01))
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)


def number_of(body: dict[str, Any]) -> int:
    """The number of the passage that a request is about."""
    return int(body["messages"][0]["content"].rsplit(" ", 1)[1].rstrip("."))


def three_lines(body: dict[str, Any]) -> str:
    square = number_of(body)
    return f"1. what is {square}\n2. who wrote {square}?\n\n3) what is {square}"


def settings(corpus: Path, output: Path, server: ChatServer, **more: Any) -> GenerateSettings:
    endpoint = {"url": server.url, "model": "small", **more.pop("endpoint", {})}
    return GenerateSettings.read({"corpus": str(corpus), "output": str(output), "queries_each": 3, "endpoint": endpoint, **more})


def lists(artifact: Artifact) -> list[list[str]]:
    return Generated(artifact.path).slice(0, len(Generated(artifact.path))).to_pylist()


def test_every_passage_has_the_queries_of_its_reply(corpus: Path, tmp_path: Path) -> None:
    with chat_server(three_lines) as server:
        made = generate(settings(corpus, tmp_path / "out", server, seed=7, sampling={"temperature": 0.5}))
    assert lists(made) == [[f"what is {n * n}", f"who wrote {n * n}?"] for n in range(PASSAGES)]
    assert [file.rows for file in made.files] == [10, 10, 3]
    store = PassageStore(corpus)
    before, after = PROMPT.replace("{queries}", "3").split("{passage}")
    texts = store.passages(np.arange(PASSAGES))
    assert sorted(asked.prompt for asked in server.asked) == sorted(f"{before}{text}{after}" for text in texts)
    for asked in server.asked:
        row = texts.index(asked.prompt.removeprefix(before))
        fixed = {"model": "small", "max_tokens": 3 * 64, "temperature": 0.5, "top_p": 0.95, "seed": 7 + row}
        assert {key: value for key, value in asked.body.items() if key != "messages"} == fixed
        assert "Authorization" not in asked.headers
    # the words of every message and reply, counted here again
    read = sum(len(asked.prompt.split()) for asked in server.asked)
    wrote = sum(len(three_lines(asked.body).split()) for asked in server.asked)
    found = made.summary
    assert (found["prompt_tokens"], found["completion_tokens"], found["unmetered"], found["cut"]) == (read, wrote, 0, 0)
    assert (found["queries"], found["repeated"], found["empty"], found["surplus"]) == (2 * PASSAGES, PASSAGES, 0, 0)
    assert (found["writer"], found["model"], found["answered_by"]) == ("endpoint", "small", ["small-2026"])
    assert "cost" not in found
    assert Generated(made.path, store).artifact.fingerprint == made.fingerprint
    made_from = read_manifest(made.path)["made_from"]["settings"]
    assert made_from["endpoint.model"] == "small"
    assert made_from["prompt"] == PROMPT
    assert not {"endpoint.url", "token_budget", "precision", "sampling.top_k"} & made_from.keys()


def test_a_prompt_may_name_the_passage_twice(corpus: Path, tmp_path: Path) -> None:
    with chat_server(three_lines) as server:
        generate(settings(corpus, tmp_path / "out", server, prompt="{queries} of {queries} {x}: {passage} Again: {passage}"))
    texts = PassageStore(corpus).passages(np.arange(PASSAGES))
    assert sorted(asked.prompt for asked in server.asked) == sorted(f"3 of 3 {{x}}: {text} Again: {text}" for text in texts)


FAULTS = {
    1: (429, {"Retry-After": "0.02"}, b'{"error": {"message": "Rate limit reached"}}'),
    2: (500, {}, b"oops"),
    3: "drop",
    4: "half",
    6: (503, {}, b'{"detail": "loading"}'),
    7: (429, {}, b""),
    8: (529, {}, b"overloaded"),
    9: (520, {}, b"a proxy's own"),
    10: (524, {}, b"a proxy's own, too"),
}


def test_failures_that_pass_leave_no_trace(corpus: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with chat_server(three_lines) as server:
        undisturbed = generate(settings(corpus, tmp_path / "a", server))
    with chat_server(three_lines, fault=FAULTS.get) as server:
        made = generate(settings(corpus, tmp_path / "b", server, endpoint={"requests_at_once": 3}))
        assert len(server.asked) == PASSAGES + len(FAULTS)
        assert 1 <= server.open_at_once <= 3
    said = [line for line in capsys.readouterr().err.splitlines() if "is asked again" in line]
    assert len(said) == 1  # of many failures one line every half a minute
    assert f"generate: {server.url}/chat/completions: " in said[0]
    assert made.fingerprint == undisturbed.fingerprint
    assert made.summary == undisturbed.summary


@pytest.mark.parametrize("status", [501, 505])
def test_what_a_server_cannot_do_is_asked_once(corpus: Path, tmp_path: Path, status: int) -> None:
    with chat_server(three_lines, fault=lambda number: (status, {}, b"never")) as server:
        with pytest.raises(InputError, match=rf"refuses the request \({status} never\)"):
            generate(settings(corpus, tmp_path / "out", server, endpoint={"requests_at_once": 1}))
        assert len(server.asked) == 1


def test_the_number_of_open_requests_changes_no_byte_and_is_kept(corpus: Path, tmp_path: Path) -> None:
    found = []
    for at_once in (1, 8):
        with chat_server(three_lines) as server:
            found.append(generate(settings(corpus, tmp_path / str(at_once), server, endpoint={"requests_at_once": at_once})))
            assert server.open_at_once <= at_once
    assert found[0].fingerprint == found[1].fingerprint


def test_an_endpoint_that_stays_away_is_one_line_and_what_it_answered_is_kept(corpus: Path, tmp_path: Path) -> None:
    output = tmp_path / "out"
    with chat_server(three_lines, fault=lambda number: (502, {}, b"bad gateway\nlong page") if number >= 14 else None) as server:
        one = settings(corpus, output, server, endpoint={"requests_at_once": 1, "attempts": 4})
        with pytest.raises(EndpointError) as caught:
            generate(one)
        assert len(server.asked) == 14 + 4
        first = f"{server.url}/chat/completions: passage 'p14' failed 4 times (the last time: 502 bad gateway)"
        assert str(caught.value) == f"{first}; what was answered is kept: run the same command again to continue"
    with chat_server(three_lines) as server:  # at another port: where the endpoint is shapes nothing
        made = generate(settings(corpus, output, server))
        assert len(server.asked) == PASSAGES - 14

    with chat_server(three_lines) as server:
        again = generate(settings(corpus, tmp_path / "again", server))
    assert (made.fingerprint, made.summary) == (again.fingerprint, again.summary)
    assert not (output / ".work").exists()


def test_a_line_that_a_kill_left_incomplete_is_asked_again(corpus: Path, tmp_path: Path) -> None:
    output = tmp_path / "out"
    refused = pytest.raises(InputError, match=r"refuses the request \(403 not now\)")
    with chat_server(three_lines, fault=lambda number: (403, {}, b"not now") if number >= 5 else None) as server, refused:
        generate(settings(corpus, output, server, endpoint={"requests_at_once": 1}))
    journal = output / ".work" / "replies" / "generated-00000.arrow.jsonl"
    written = journal.read_bytes()
    assert written.count(b"\n") == 5
    journal.write_bytes(written[:-9])
    with chat_server(three_lines) as server:
        made = generate(settings(corpus, output, server))
        assert len(server.asked) == PASSAGES - 4
    assert lists(made) == [[f"what is {n * n}", f"who wrote {n * n}?"] for n in range(PASSAGES)]


def test_a_reply_that_came_broken_is_asked_again(corpus: Path, tmp_path: Path) -> None:
    """As a router sends one now and then. Of an endpoint that has not answered yet it is a fault of the address (below)."""
    billed = b'{"choices": [], "usage": {"prompt_tokens": 1000, "completion_tokens": 100}}'
    broken = {3: b'{"choices": [', 5: billed, 8: b"<html>busy</html>"}
    with chat_server(three_lines, fault=lambda number: (200, {}, broken[number]) if number in broken else None) as server:
        made = generate(settings(corpus, tmp_path / "out", server, endpoint={"requests_at_once": 1}))
        assert len(server.asked) == PASSAGES + len(broken)
    assert lists(made) == [[f"what is {n * n}", f"who wrote {n * n}?"] for n in range(PASSAGES)]
    sent = sum(len(one.prompt.split()) for number, one in enumerate(server.asked) if number not in broken)
    assert made.summary["prompt_tokens"] == sent + 1000


def test_a_slow_reply_does_not_hold_up_the_next_file(corpus: Path, tmp_path: Path) -> None:
    later = threading.Event()

    def answer(body: dict[str, Any]) -> str:
        if number_of(body) == 0:
            assert later.wait(60), "the next file was not asked for"
        elif number_of(body) >= (2 * SHARD) ** 2:
            later.set()
        return three_lines(body)

    with chat_server(answer) as server:
        made = generate(settings(corpus, tmp_path / "out", server, endpoint={"requests_at_once": 2}))
    assert lists(made) == [[f"what is {n * n}", f"who wrote {n * n}?"] for n in range(PASSAGES)]


def test_what_a_broken_reply_cost_counts_in_the_next_run_too(corpus: Path, tmp_path: Path) -> None:
    billed = b'{"choices": [], "usage": {"prompt_tokens": 1000000, "completion_tokens": 0}}'
    costs = {"requests_at_once": 1, "price_in": 1.0, "max_cost": 1.0}
    with chat_server(three_lines, fault=lambda number: (200, {}, billed) if number == 3 else None) as server:
        for _ in range(2):
            with pytest.raises(EndpointError, match=r"the replies so far cost \$1\.0"):
                generate(settings(corpus, tmp_path / "out", server, endpoint=costs))
        assert len(server.asked) == 4
        made = generate(settings(corpus, tmp_path / "out", server, endpoint={**costs, "max_cost": 2.0}))
    assert made.summary["prompt_tokens"] == 1000000 + sum(len(one.prompt.split()) for one in server.asked[:3] + server.asked[4:])


def test_a_line_that_a_crash_of_the_machine_damaged_is_asked_again(corpus: Path, tmp_path: Path) -> None:
    output = tmp_path / "out"
    with (
        chat_server(three_lines, fault=lambda number: (403, {}, b"not now") if number >= 5 else None) as server,
        pytest.raises(InputError),
    ):
        generate(settings(corpus, output, server, endpoint={"requests_at_once": 1}))
    journal = output / ".work" / "replies" / "generated-00000.arrow.jsonl"
    lines = journal.read_bytes().splitlines(keepends=True)
    journal.write_bytes(b"".join([*lines[:3], bytes(len(lines[3]) - 1) + b"\n", lines[4]]))
    with chat_server(three_lines) as server:
        made = generate(settings(corpus, output, server))
        assert len(server.asked) == PASSAGES - 4
    assert lists(made) == [[f"what is {n * n}", f"who wrote {n * n}?"] for n in range(PASSAGES)]


@pytest.mark.parametrize(
    ("fault", "says"),
    [
        ((404, {}, b'{"error": {"message": "The model `small` does not exist\\nmore"}}'), "(404 The model `small` does not exist); check"),
        ((403, {}, b"forbidden\nhere"), "refuses the request (403 forbidden); see what it says"),
        ((400, {}, b"no field seed"), "refuses the request for passage 'p0' (400 no field seed); shorten what is asked"),
        ((302, {"Location": "http://elsewhere/"}, b""), "refuses the request (302); see what it says"),
        ((200, {}, b"<html>\nhello"), "does not answer with a chat completion (200 <html>); check endpoint.url"),
        ((200, {}, b'{"choices": []}'), "does not answer with a chat completion (200 {'choices': []}); check"),
        (
            (429, {}, b'{"error": {"message": "Pay", "code": "insufficient_quota"}}'),
            "refuses the request (429 Pay (insufficient_quota)); see",
        ),
    ],
)
def test_what_does_not_pass_is_refused_at_once_in_one_line(corpus: Path, tmp_path: Path, fault: Any, says: str) -> None:
    with chat_server(three_lines, fault=lambda number: fault) as server:
        with pytest.raises(InputError) as caught:
            generate(settings(corpus, tmp_path / "out", server, endpoint={"requests_at_once": 1}))
        assert len(server.asked) == 1
        assert f"{server.url}/chat/completions: " in str(caught.value)
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_text_that_is_refused_stays_empty(corpus: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    refused = {4: (400, {}, b"too long"), 7: (422, {}, b"filtered"), 15: (413, {}, b"")}
    with chat_server(three_lines, fault=refused.get) as server:
        more = {"requests_at_once": 1, "price_in": 1, "max_cost": 100}
        made = generate(settings(corpus, tmp_path / "out", server, endpoint=more))
        assert len(server.asked) == PASSAGES
    assert lists(made) == [[] if n in refused else [f"what is {n * n}", f"who wrote {n * n}?"] for n in range(PASSAGES)]
    assert (made.summary["refused"], made.summary["unmetered"], made.summary["empty"]) == (3, 0, 9)
    said = [line.partition("generate: ")[2] for line in capsys.readouterr().err.splitlines() if "refuse" in line]
    assert said == [
        "the endpoint refuses passage 'p4' (400 too long): it stays empty, as others that are refused",
        "the endpoint refused 3 requests: what they asked for is empty",
    ]


def fails_at_one(server: ChatServer, fault: Fault) -> Callable[[int], Fault | None]:
    """A fault of each request for passage p5. The second one waits until others are answered: it is not the endpoint that is away."""
    answered: list[int] = []

    def fails(number: int) -> Fault | None:
        if number_of(server.asked[number].body) != 5 * 5:
            return None
        answered.append(len(server.answered()))
        end = time.monotonic() + 60
        while len(answered) == 2 and len(server.answered()) < answered[0] + 2 and time.monotonic() < end:
            time.sleep(0.005)
        return fault

    return fails


@pytest.mark.parametrize("fault", [(500, {}, b"a template's fault"), (200, {}, b'{"choices": []}')])
def test_a_text_at_which_an_endpoint_always_fails_stays_empty(
    corpus: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], fault: Fault
) -> None:
    with chat_server(three_lines) as server:
        server.fault = fails_at_one(server, fault)
        made = generate(settings(corpus, tmp_path / "out", server, endpoint={"requests_at_once": 2, "attempts": 3}))
        assert len(server.asked) == PASSAGES + 2
    assert lists(made) == [[] if n == 5 else [f"what is {n * n}", f"who wrote {n * n}?"] for n in range(PASSAGES)]
    assert made.summary["refused"] == 1
    said = [line for line in capsys.readouterr().err.splitlines() if "passage 'p5'" in line]
    assert len(said) == 1
    assert "the endpoint refuses passage 'p5' (failed 3 times (the last time: " in said[0]


def three_lines_or_hello(body: dict[str, Any]) -> str:
    return "Hi!" if body["messages"][0]["content"] == "Hello" else three_lines(body)


@pytest.mark.parametrize("failing", [[PASSAGES - 1], [PASSAGES - 2, PASSAGES - 1]])
@pytest.mark.parametrize("at_once", [1, 8])
def test_a_text_at_which_it_fails_last_stays_empty(corpus: Path, tmp_path: Path, failing: list[int], at_once: int) -> None:
    """Nothing else is answered meanwhile: neither in this run, nor in one that asks for it alone."""
    output, numbers = tmp_path / "out", {n * n for n in failing}
    with chat_server(three_lines_or_hello) as server:

        def fails(number: int) -> Fault | None:
            asked = server.asked[number]
            return (500, {}, b"a template's fault") if asked.prompt != "Hello" and number_of(asked.body) in numbers else None

        server.fault = lambda number: fails(number) and (403, {}, b"not now")
        with pytest.raises(InputError, match="403 not now"):
            generate(settings(corpus, output, server, endpoint={"requests_at_once": 1}))
        server.fault = fails
        made = generate(settings(corpus, output, server, endpoint={"requests_at_once": at_once, "attempts": 3}))
        paid = sum(len(one.prompt.split()) for one in server.answered())
    assert lists(made) == [[] if n in failing else [f"what is {n * n}", f"who wrote {n * n}?"] for n in range(PASSAGES)]
    assert (made.summary["refused"], made.summary["prompt_tokens"]) == (len(failing), paid)


def test_an_endpoint_that_fails_at_all_from_now_on_leaves_nothing_empty(corpus: Path, tmp_path: Path) -> None:
    output = tmp_path / "out"
    with chat_server(three_lines, fault=lambda number: (500, {}, b"engine is dead") if number >= 14 else None) as server:
        one = settings(corpus, output, server, endpoint={"requests_at_once": 1, "attempts": 2})
        with pytest.raises(EndpointError, match=r"passage 'p14' failed 2 times \(the last time: 500 engine is dead\); what was answered"):
            generate(one)
    with chat_server(three_lines) as server:
        assert generate(settings(corpus, output, server)).summary["refused"] == 0


@pytest.mark.parametrize("fault", [(503, {}, b"loading"), (429, {}, b""), "drop"])
def test_an_endpoint_that_is_busy_or_away_does_not_refuse_a_text(corpus: Path, tmp_path: Path, fault: Fault) -> None:
    with chat_server(three_lines) as server:
        server.fault = fails_at_one(server, fault)
        one = settings(corpus, tmp_path / "out", server, endpoint={"requests_at_once": 2, "attempts": 3})
        with pytest.raises(
            EndpointError, match=r"completions: passage 'p5' failed 3 times \(the last time: .*\); what was answered is kept"
        ):
            generate(one)


def test_where_many_texts_are_refused_it_stops_and_goes_on(corpus: Path, tmp_path: Path) -> None:
    one, output = {"requests_at_once": 1}, tmp_path / "out"
    with chat_server(three_lines, fault=lambda number: (400, {}, b"too long") if number >= 2 else None) as server:
        with pytest.raises(
            InputError, match=r"has refused 11 of 13 requests, the last for passage 'p12' \(400 too long\); raise endpoint.max_refused"
        ):
            generate(settings(corpus, output, server, endpoint=one))
        # the first file is committed, with those refused; of the next only what was answered is kept, which is nothing
        made = generate(settings(corpus, output, server, endpoint={**one, "max_refused": 1.0}))
        assert len(server.asked) == 13 + PASSAGES - SHARD
    assert (made.summary["refused"], made.rows) == (PASSAGES - 2, PASSAGES)


class Command:
    """The command line, called in this process: its exit code, and what it printed."""

    def __init__(self, capsys: pytest.CaptureFixture[str], corpus: Path) -> None:
        self._capsys, self._corpus = capsys, corpus

    def __call__(self, output: Path, server: ChatServer, *more: str) -> tuple[int, str]:
        words = [
            "generate",
            "--endpoint.url",
            server.url,
            "--endpoint.model",
            "small",
            "--corpus",
            str(self._corpus),
            "--queries-each",
            "3",
        ]
        with pytest.raises(SystemExit) as stopped:
            main([*words, "--output", str(output), *more])
        printed = self._capsys.readouterr()
        return int(str(stopped.value.code)), printed.out + printed.err


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], corpus: Path) -> Command:
    return Command(capsys, corpus)


def test_the_key_is_sent_and_stays_in_no_file_and_no_line(
    run: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    monkeypatch.setenv("MY_KEY", f"{KEY}\n")
    faults = {1: (500, {}, f"failed for {KEY}".encode()), 3: "drop"}
    with chat_server(three_lines, key=KEY, fault=faults.get) as server:
        done = run(tmp_path / "out", server, "--endpoint.key-variable", "MY_KEY", "--json")
        assert done[0] == 0, done[1]
        assert {asked.headers["Authorization"] for asked in server.asked} == {f"Bearer {KEY}"}
        monkeypatch.setenv("MY_KEY", "sk-wrong-5511")
        wrong = run(tmp_path / "wrong", server, "--endpoint.key-variable", "MY_KEY")
        none = run(tmp_path / "none", server)
        server.fault = lambda number: (500, {}, f"failed for {KEY}".encode())
        monkeypatch.setenv("OPENAI_API_KEY", KEY)
        failed = run(tmp_path / "failed", server, "--endpoint.attempts", "2")
    refused = f"raydense: {server.url}/chat/completions: refuses the request (401 Incorrect API key provided: "
    assert wrong == (2, f"{refused}***.); check the key in MY_KEY\n")
    assert none == (2, f"{refused}.); put the key into OPENAI_API_KEY\n")
    assert not (tmp_path / "wrong").exists()
    assert failed[0] == 1
    assert "failed 2 times (the last time: 500 failed for ***)" in failed[1]
    everything = [path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()]
    assert len(everything) > 4
    spoken = [done[1], wrong[1], none[1], failed[1], caplog.text]
    for secret in (KEY, "sk-wrong-5511"):
        assert not any(secret.encode() in content for content in everything)
        assert not any(secret in text for text in spoken)


def test_no_more_requests_a_minute_than_allowed(corpus: Path, tmp_path: Path) -> None:
    with chat_server(three_lines, fault={2: (500, {}, b"")}.get) as server:
        begun = time.monotonic()
        generate(settings(corpus, tmp_path / "out", server, endpoint={"requests_per_minute": 3_000}))
        times = [asked.at for asked in server.asked]
    assert len(times) == PASSAGES + 1
    # request n is not sent before its turn; when it arrives later, that is the machine's
    assert all(at - begun >= number * 60 / 3_000 - 0.001 for number, at in enumerate(times))


def test_a_pause_that_is_asked_for_holds_for_all(corpus: Path, tmp_path: Path) -> None:
    with chat_server(three_lines, fault={4: (429, {"Retry-After": "0.4"}, b"")}.get) as server:
        generate(settings(corpus, tmp_path / "out", server, endpoint={"requests_at_once": 1}))
    gaps = np.diff([asked.at for asked in server.asked])
    assert gaps[4] >= 0.39


def test_a_pause_holds_for_requests_that_had_their_turn_before_it(monkeypatch: pytest.MonkeyPatch) -> None:
    now, waits = [100.0], list[float]()
    monkeypatch.setattr(endpoint_module.time, "monotonic", lambda: now[0])
    endpoint = endpoint_module.Endpoint(EndpointSettings(url="http://h/v1", model="m", requests_per_minute=60), "generate")

    async def sleep(seconds: float) -> None:
        waits.append(seconds)
        now[0] += seconds
        if len(waits) == 2:  # while the second request waits for its turn, the first one is refused for 5 s
            endpoint._pace.pause(5)

    async def turns() -> None:
        await endpoint._turn()
        await endpoint._turn()

    monkeypatch.setattr(endpoint, "_sleep", sleep)
    asyncio.run(turns())
    assert waits == [0, 1, 5]


def test_a_budget_stops_and_goes_on_with_a_greater_one(run: Command, tmp_path: Path) -> None:
    prices = ("--endpoint.price-in", "100", "--endpoint.price-out", "1000", "--endpoint.requests-at-once", "1")
    with chat_server(three_lines) as server:
        stopped = run(tmp_path / "out", server, *prices, "--endpoint.max-cost", "0.1")
        spent = len(server.asked)
        cost = [100e-6 * len(one.prompt.split()) + 1000e-6 * len(three_lines(one.body).split()) for one in server.asked]
        assert stopped[0] == 1
        assert sum(cost[:-1]) < 0.1 <= sum(cost)  # it stops at the reply that reaches it
        line = f"the replies so far cost ${sum(cost):,.4f}, and max_cost is $0.1; what was answered is kept"
        assert line in stopped[1].splitlines()[-1]
        assert not (tmp_path / "out" / "manifest.json").exists()
        again = run(tmp_path / "out", server, *prices, "--endpoint.max-cost", "0.1")
        assert (again[0], len(server.asked)) == (1, spent)  # what was spent before counts
        done = run(tmp_path / "out", server, *prices, "--endpoint.max-cost", "100", "--json")
        assert done[0] == 0, done[1]
        assert len(server.asked) == PASSAGES
        total = sum(100e-6 * len(one.prompt.split()) + 1000e-6 * len(three_lines(one.body).split()) for one in server.asked)
    assert Artifact.open(tmp_path / "out").summary["cost"] == pytest.approx(total, abs=1e-6)


def test_a_budget_needs_prices_and_counts(corpus: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="max_cost needs price_in or price_out"):
        EndpointSettings(url="http://h/v1", model="m", max_cost=1)
    with chat_server(three_lines, usage=False) as server:
        with pytest.raises(InputError, match=r"counts no tokens \(usage\)"):
            generate(settings(corpus, tmp_path / "a", server, endpoint={"price_in": 1, "max_cost": 1}))
        made = generate(settings(corpus, tmp_path / "b", server))
    assert (made.summary["unmetered"], made.summary["prompt_tokens"]) == (PASSAGES, 0)


def test_more_fields_of_a_request(corpus: Path, tmp_path: Path) -> None:
    with chat_server(three_lines) as server:
        more = {"max_tokens": None, "max_completion_tokens": 900, "chat_template_kwargs": {"enable_thinking": False}}
        made = generate(settings(corpus, tmp_path / "a", server, endpoint={"extra_body": more}))
        text = '{"chat_template_kwargs": {"enable_thinking": false}, "max_completion_tokens": 900, "max_tokens": null}'
        assert generate(settings(corpus, tmp_path / "a", server, endpoint={"extra_body": text})).fingerprint == made.fingerprint
    assert len(server.asked) == PASSAGES
    for asked in server.asked:
        assert "max_tokens" not in asked.body
        assert (asked.body["max_completion_tokens"], asked.body["chat_template_kwargs"]) == (900, {"enable_thinking": False})


def test_a_proxy_of_the_environment_is_used(corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with chat_server(three_lines) as server:
        monkeypatch.setenv("http_proxy", server.url.removesuffix("/v1").replace("http://", "http://user:word-of-proxy@"))
        made = generate(settings(corpus, tmp_path / "a", server, endpoint={"url": "http://model.invalid/v1"}))
        assert {asked.headers["Host"] for asked in server.asked} == {"model.invalid"}
        monkeypatch.setenv("no_proxy", "127.0.0.1")
        again = generate(settings(corpus, tmp_path / "b", server))
        assert len(server.asked) == 2 * PASSAGES
        server.fault = lambda number: (400, {}, b"not for word-of-proxy")
        with pytest.raises(InputError, match=r"\(400 not for \*\*\*\)"):
            generate(settings(corpus, tmp_path / "c", server, endpoint={"url": "http://model.invalid/v1"}))
    assert made.fingerprint == again.fingerprint


def test_it_can_be_called_where_a_loop_runs_already(corpus: Path, tmp_path: Path) -> None:
    async def notebook() -> Artifact:
        return generate(settings(corpus, tmp_path / "out", server))

    with chat_server(three_lines) as server:
        made = asyncio.run(notebook())
    assert made.rows == PASSAGES


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"model": "m", "endpoint": {"url": "http://h/v1", "model": "m"}}, "give either model or endpoint"),
        ({}, "give either model or endpoint"),
        ({"model": "m", "prompt": "{passage}"}, "generate with model does not use prompt"),
        ({"endpoint": {"url": "http://h/v1", "model": "m"}, "token_budget": 5}, "generate with endpoint does not use token_budget"),
        ({"endpoint": {"url": "http://h/v1", "model": "m"}, "sampling": {"top_k": 5}}, "does not use sampling.top_k"),
        ({"endpoint": {"url": "http://h/v1", "model": "m"}, "prompt": "write"}, "prompt must contain {passage}"),
        ({"endpoint": {"url": "h/v1", "model": "m"}}, "must begin with http:// or https:// and a host"),
        ({"endpoint": {"url": "http://h/v1"}}, "endpoint.model: missing"),
        ({"endpoint": {"url": f"https://u:{KEY}@h/v1", "model": "m"}}, "endpoint.url: https://***: contains more than a host and a path"),
        ({"endpoint": {"url": f"https://h/v1?key={KEY}", "model": "m"}}, "endpoint.url: https://***: contains more"),
        ({"endpoint": {"url": "http://h/v1", "model": "m", "key_variable": KEY}}, "is no name of an environment variable"),
        ({"endpoint": {"url": "http://h/v1", "model": "m", "extra_body": "[1]"}}, "extra_body: must be a JSON object"),
        ({"endpoint": {"url": "http://h/v1", "model": "m", "extra_body": '{"n": 2}'}}, "must not have n"),
    ],
)
def test_wrong_settings_are_one_line_without_a_secret(given: dict[str, Any], says: str) -> None:
    with pytest.raises(InputError) as caught:
        GenerateSettings.read({"corpus": "c", "output": "o", **given})
    assert says in str(caught.value)
    assert KEY not in str(caught.value)


def test_a_key_that_cannot_be_sent_is_refused_and_not_repeated(corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-ab cd\nef")
    with chat_server(three_lines) as server:
        with pytest.raises(InputError) as caught:
            generate(settings(corpus, tmp_path / "out", server))
        assert not server.asked
    assert str(caught.value) == "OPENAI_API_KEY: holds characters that no API key has; copy the key again"


@pytest.mark.parametrize(
    ("reply", "cut", "found", "counts"),
    [
        ("a b\nc d\ne", False, ["a b", "c d", "e"], (0, 0, 0)),
        ("Here are three queries:\n\n1. a\n2) b\n(3) c", False, ["a", "b", "c"], (0, 0, 0)),
        ('- "what is it?"\n* “who?”\n• c', False, ["what is it?", "who?", "c"], (0, 0, 0)),
        ("Query 1: a\nQ2. b\nquestion 3) c\n4: d", False, ["a", "b", "c"], (0, 0, 1)),
        ("1.什么是狐狸\n2.what is it\n**3.** who\n4.“哪里”", False, ["什么是狐狸", "what is it", "who"], (0, 0, 1)),
        ("3.5 mm jack\n90% of what\n1984 by whom", False, ["3.5 mm jack", "90% of what", "1984 by whom"], (0, 0, 0)),
        ("以下是三个查询：\n1、谁\n2．什么\n（3）哪里", False, ["谁", "什么", "哪里"], (0, 0, 0)),
        ("a\na\nb\na", False, ["a", "b"], (0, 2, 0)),
        ("a\nb\nhow is the unfin", True, ["a", "b"], (1, 0, 0)),
        ("<think>\nq?\n1. no\n</think>\n\na\nb\nc", False, ["a", "b", "c"], (0, 0, 0)),
        ("<think>I wonder", True, [], (3, 0, 0)),
        ("```\na\n```", False, ["a"], (2, 0, 0)),
        ("  \n", False, [], (3, 0, 0)),
        ('"a" or "b"', False, ['"a" or "b"'], (2, 0, 0)),
    ],
)
def test_the_lines_of_a_reply(reply: str, cut: bool, found: list[str], counts: tuple[int, int, int]) -> None:
    queries, without = queries_of(reply, cut, 3, True)
    assert queries == found
    assert (without["empty"], without["repeated"], without["surplus"]) == counts


@given(st.text(), st.booleans(), st.integers(1, 6), st.booleans())
def test_any_reply_gives_queries_of_one_line(reply: str, cut: bool, most: int, once: bool) -> None:
    queries, counts = queries_of(reply, cut, most, once)
    assert len(queries) <= most
    assert all(query == query.strip() and query and len(query.splitlines()) == 1 for query in queries)
    assert not once or max(Counter(queries).values(), default=1) == 1
    assert min(counts.values()) >= 0


@given(st.lists(st.floats(0, 5), min_size=2, max_size=30), st.floats(1, 1000), st.floats(0, 20))
def test_turns_are_apart_and_after_a_pause(gaps: list[float], per_minute: float, pause: float) -> None:
    now = [100.0]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(endpoint_module.time, "monotonic", lambda: now[0])
        pace, sent, asked = Pace(per_minute), [], []
        for number, gap in enumerate(gaps):
            now[0] += gap
            if number == 1:
                pace.pause(pause)
                paused = now[0] + pause
            asked.append(now[0])
            sent.append(now[0] + pace.turn())
    assert all(at >= wanted for at, wanted in zip(sent, asked, strict=True))
    assert all(at >= paused for at in sent[1:])
    assert np.diff(sent).min() >= 60 / per_minute - 1e-9


def test_retry_after_in_both_forms() -> None:
    assert retry_after("7") == 7
    assert retry_after("0.5") == 0.5
    assert retry_after("999999") == 600
    assert retry_after(format_datetime(datetime.now(UTC) + timedelta(days=9), usegmt=True)) == 600
    assert 50 < retry_after(format_datetime(datetime.now(UTC) + timedelta(minutes=1), usegmt=True)) <= 60
    assert [retry_after(value) for value in (None, "", "soon", "-3", "nan", "inf", "Mon, 01 Jan 2001 00:00:00 GMT")] == [0.0] * 7


def test_the_plan_says_what_it_will_cost(corpus: Path) -> None:
    given = {"url": "http://h/v1", "model": "m", "price_in": 0.15, "price_out": 0.6}
    settings = GenerateSettings.read({"corpus": str(corpus), "output": "o", "endpoint": given})
    found, known = settings.forecast(Known()), Known().of(str(corpus))
    read = PASSAGES * tokens(known.each + len(PROMPT) + 40, 2**31)
    wrote = PASSAGES * tokens(5 * 40, 2**31)
    asked = f"{PASSAGES} requests, about {read:,.0f} tokens in and {wrote:,.0f} out, ${(0.15 * read + 0.6 * wrote) / 1e6:,.2f}"
    assert found.needs == f"{PASSAGES} passages x 5 queries: {asked}"
    given = {"url": "http://h/v1", "model": "m", "requests_per_minute": 2}
    slow = GenerateSettings.read({"corpus": str(corpus), "output": "o", "endpoint": given}).forecast(Known())
    assert slow.needs.endswith(f"out, at least {PASSAGES * 30 // 60}m30s")


def test_an_endpoint_of_the_defaults_of_a_recipe(corpus: Path, tmp_path: Path) -> None:
    (tmp_path / "recipe.yaml").write_text(
        f"""
defaults: {{endpoint: {{url: http://h/v1, model: m, extra_body: '{{"top_k": 5}}'}}, corpus: {corpus}}}
stages:
  written: {{do: generate, queries_each: 2}}
  drawn: {{do: generate, model: ./folder}}
  words: {{do: index, kind: bm25, generated: $written}}
"""
    )
    written, drawn, _ = Recipe.read(tmp_path / "recipe.yaml", tmp_path / "out").stages
    assert written.settings.endpoint == EndpointSettings(url="http://h/v1", model="m", extra_body='{"top_k": 5}')
    assert (written.settings.model, drawn.settings.endpoint, drawn.settings.model) == (None, None, "./folder")


def test_no_endpoint_is_asked_to_calibrate_a_plan(corpus: Path, tmp_path: Path) -> None:
    with chat_server(three_lines) as server:
        stage = Stage("written", "generate", settings(corpus, tmp_path / "out", server), ())
        with pytest.raises(NoSlice, match="asks an endpoint"):
            Small(Place.of(tmp_path), (stage,), Known(), 0.5, 0.5, 1).settings(stage)
        assert not server.asked
