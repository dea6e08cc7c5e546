"""A stage's questions to an endpoint, file by file: replies are kept as they come, so that none is paid for twice."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict
from types import TracebackType
from typing import Any, Self

from raydense.inference.endpoint import Body, Endpoint, Reply
from raydense.inference.endpoint_settings import EndpointSettings
from raydense.runtime.progress import Progress, say
from raydense.storage import Draft, File

COUNTS = ("prompt_tokens", "completion_tokens", "cut", "unmetered")


class Journal:
    """The replies for one file of a draft until it is committed: a line of JSON each in the draft's work folder, on this machine."""

    def __init__(self, draft: Draft, name: str) -> None:
        self._path = draft.work / "replies" / f"{name}.jsonl"

    def read(self) -> dict[int, Reply]:
        """The replies by number; a last line that a kill left incomplete is removed."""
        if not self._path.exists():
            return {}
        written = self._path.read_bytes()
        whole = written[: written.rfind(b"\n") + 1]
        if len(whole) < len(written):
            with open(self._path, "r+b") as stream:
                stream.truncate(len(whole))
        found = map(json.loads, whole.splitlines())
        return {line.pop("number"): Reply(**line) for line in found}

    def add(self, number: int, reply: Reply) -> None:
        """Write one more reply."""
        self._path.parent.mkdir(parents=True, exist_ok=True)
        with open(self._path, "ab") as stream:
            stream.write(json.dumps({"number": number, **asdict(reply)}).encode() + b"\n")

    def delete(self) -> None:
        """Remove the file: what was made from it is committed."""
        self._path.unlink(missing_ok=True)


class Asker:
    """`with Asker(settings, "generate", total, "passages") as asker:` asks an endpoint, and shows progress, tokens and dollars.

    Call `count` for each file before the first question: what earlier runs asked is part of the progress and of the budget.
    """

    def __init__(self, settings: EndpointSettings, stage: str, total: int, unit: str) -> None:
        self.settings = settings
        self._endpoint = Endpoint(settings, stage)
        self._shown = (stage, total, unit)
        self._before = 0

    def count(self, draft: Draft, name: str, committed: File | None) -> None:
        """Count what an earlier run asked for a file."""
        if committed:
            self._endpoint.count(*(committed.note[key] for key in COUNTS[:2]))
            self._before += committed.rows
        else:
            replies = Journal(draft, name).read().values()
            self._endpoint.count(*(sum(getattr(reply, key) for reply in replies) for key in COUNTS[:2]))
            self._before += len(replies)

    def __enter__(self) -> Self:
        self._progress = Progress(*self._shown, self._before).__enter__()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._progress.__exit__(kind, error, trace)

    def replies(self, draft: Draft, name: str, count: int, body: Callable[[int], Body]) -> list[Reply]:
        """The replies to `count` requests for the file `name`; those that were there are not sent again. Errors as `Endpoint.ask`."""
        journal = Journal(draft, name)
        found = journal.read()
        there = set(found)

        def got(number: int, reply: Reply) -> None:
            journal.add(number, reply)
            found[number] = reply
            self._progress.add(1, self._spent())

        self._endpoint.ask(((number, body(number)) for number in range(count) if number not in there), got)
        return [found[number] for number in range(count)]

    def _spent(self) -> str:
        counted = f"{self._endpoint.prompt_tokens:,} tokens in, {self._endpoint.completion_tokens:,} out"
        return f"{counted}, ${self._endpoint.cost:,.2f}" if self.settings.price_in or self.settings.price_out else counted


def note_of(replies: Sequence[Reply]) -> dict[str, Any]:
    """What the record of a file says of its replies: tokens, how many a limit cut, how many came without counts, the models named."""
    return {
        "prompt_tokens": sum(reply.prompt_tokens for reply in replies),
        "completion_tokens": sum(reply.completion_tokens for reply in replies),
        "cut": sum(reply.cut for reply in replies),
        "unmetered": sum(not reply.metered for reply in replies),
        "answered_by": sorted({reply.model for reply in replies if reply.model}),
    }


def summed(notes: Iterable[dict[str, Any]]) -> dict[str, Any]:
    """Several notes, or summaries, as one."""
    notes = list(notes)
    found: dict[str, Any] = {key: sum(note[key] for note in notes) for key in COUNTS}
    found["answered_by"] = sorted({model for note in notes for model in note["answered_by"]})
    return found | ({"cost": sum(note["cost"] for note in notes)} if any("cost" in note for note in notes) else {})


def say_spent(stage: str, words: str, found: dict[str, Any]) -> None:
    """Print what a stage made, in `words`, and what its replies took, of their summary `found`."""
    cost = f", ${found['cost']:,.4f}" if "cost" in found else ""
    say(f"{stage}: {words}; {found['prompt_tokens']:,} tokens in, {found['completion_tokens']:,} out{cost}")
    if found["cut"]:
        say(
            f"{stage}: the limit of tokens cut {found['cut']:,} replies: allow more of them, or see `endpoint.extra_body` for models that think"
        )


def summary_of(settings: EndpointSettings, notes: Iterable[dict[str, Any]]) -> dict[str, Any]:
    """What the summary of an output says of its replies: as `note_of`, of all files, and the cost where prices are given."""
    found: dict[str, Any] = {"writer": "endpoint", "model": settings.model, **summed(notes)}
    if settings.price_in or settings.price_out:
        found["cost"] = round(settings.cost(found["prompt_tokens"], found["completion_tokens"]), 6)
    return found
