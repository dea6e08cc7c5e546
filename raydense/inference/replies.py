"""A stage's questions to an endpoint, for one file after another: replies are kept as they come, so that none is paid for twice."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from types import TracebackType
from typing import Any, Self

from raydense.inference.endpoint import Body, Endpoint, Reply
from raydense.inference.endpoint_settings import EndpointSettings
from raydense.runtime.progress import Progress, say
from raydense.storage import Draft, File

COUNTS = ("prompt_tokens", "completion_tokens", "cut", "unmetered", "refused")


@dataclass
class Replies:
    """The replies for one file: by number, and those that cost tokens and were no answer."""

    of: dict[int, Reply] = field(default_factory=dict)
    broken: list[Reply] = field(default_factory=list)

    def add(self, number: int | None, reply: Reply) -> None:
        """Add one; None as the number of one that is no answer."""
        if number is None:
            self.broken.append(reply)
        else:
            self.of[number] = reply

    def note(self) -> dict[str, Any]:
        """What the record of a file says of its replies: tokens, how many a limit cut, came without counts or are refusals, the models named."""
        replies = [*self.of.values(), *self.broken]
        return {
            "prompt_tokens": sum(reply.prompt_tokens for reply in replies),
            "completion_tokens": sum(reply.completion_tokens for reply in replies),
            "cut": sum(reply.cut for reply in replies),
            "unmetered": sum(not reply.metered for reply in replies),
            "refused": sum(bool(reply.refused) for reply in replies),
            "answered_by": sorted({reply.model for reply in replies if reply.model}),
        }


@dataclass(frozen=True)
class Questions:
    """The requests for one file of a draft: `body` gives that of each number below `count`, `text` the words for what it asks about, as `passage 'p7'`,
    and `commit` writes the file from the replies and a note of them."""

    name: str
    count: int
    body: Callable[[int], Body]
    text: Callable[[int], str]
    commit: Callable[[list[Reply], dict[str, Any]], object]


@dataclass(frozen=True)
class _Question:
    """One request of a file; as text it is what the request asks about."""

    file: Questions
    number: int

    def __str__(self) -> str:
        return self.file.text(self.number)


class Journal:
    """The replies for one file of a draft until it is committed: a line of JSON each in the draft's work folder, on this machine."""

    def __init__(self, draft: Draft, name: str) -> None:
        self._path = draft.work / "replies" / f"{name}.jsonl"

    def read(self) -> Replies:
        """The replies so far. A last line that a kill left incomplete is removed; one that a crash of the machine damaged is left out."""
        if not self._path.exists():
            return Replies()
        written = self._path.read_bytes()
        whole = written[: written.rfind(b"\n") + 1]
        if len(whole) < len(written):
            with open(self._path, "r+b") as stream:
                stream.truncate(len(whole))
        found = Replies()
        for line in whole.splitlines():
            with suppress(ValueError, TypeError, KeyError, AttributeError):
                entry = json.loads(line)
                found.add(entry.pop("number"), Reply(**entry))
        return found

    def add(self, number: int | None, reply: Reply) -> None:
        """Write one more reply; None as the number of one that costs tokens and answers nothing."""
        self._path.parent.mkdir(parents=True, exist_ok=True)
        with open(self._path, "ab") as stream:
            stream.write(json.dumps({"number": number, **asdict(reply)}).encode() + b"\n")

    def delete(self) -> None:
        """Remove the file: what was made from it is committed."""
        self._path.unlink(missing_ok=True)


class _Asked:
    """A file that is asked for, with the replies so far, those of earlier runs among them."""

    def __init__(self, file: Questions, journal: Journal) -> None:
        self._file, self._journal, self._there = file, journal, journal.read()

    @property
    def whole(self) -> bool:
        return len(self._there.of) == self._file.count

    def requests(self) -> Iterator[tuple[_Question, Body]]:
        missing = [number for number in range(self._file.count) if number not in self._there.of]
        return ((_Question(self._file, number), self._file.body(number)) for number in missing)

    def add(self, number: int | None, reply: Reply) -> None:
        if not reply.refused:  # it cost nothing, and an endpoint that allows more by the next run may answer it
            self._journal.add(number, reply)
        self._there.add(number, reply)

    def commit(self) -> None:
        self._file.commit([self._there.of[number] for number in range(self._file.count)], self._there.note())
        self._journal.delete()


class Asker:
    """`with Asker(settings, "generate", total, "passages") as asker:` asks an endpoint, and shows progress, tokens and dollars.

    Call `count` for each file before the first question: what earlier runs asked is part of the progress and of the budget.
    """

    def __init__(self, settings: EndpointSettings, stage: str, total: int, unit: str) -> None:
        self._settings = settings
        self._endpoint = Endpoint(settings, stage)
        self._shown = (stage, total, unit)
        self._before, self._named = 0, False

    def count(self, draft: Draft, name: str, committed: File | None) -> None:
        """Count what an earlier run asked for a file."""
        if committed:
            note, rows = committed.note, committed.rows
        else:
            there = Journal(draft, name).read()
            note, rows = there.note(), len(there.of)
        refused = note.get("refused", 0)
        self._endpoint.count(note["prompt_tokens"], note["completion_tokens"], rows - refused, refused)
        self._before += rows

    def __enter__(self) -> Self:
        self._progress = Progress(*self._shown, self._before).__enter__()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._progress.__exit__(kind, error, trace)

    def ask(self, draft: Draft, files: Iterable[Questions]) -> None:
        """Ask for all files, and commit each as soon as its last reply is there, while the next ones' requests are open.

        Replies that were there are not asked for again. Errors as `Endpoint.ask`; a file whose replies are complete is committed all the same.
        """
        asked: dict[str, _Asked] = {}

        def requests() -> Iterator[Iterator[tuple[_Question, Body]]]:
            for file in files:
                one = _Asked(file, Journal(draft, file.name))
                if one.whole:
                    one.commit()
                else:
                    asked[file.name] = one
                    yield one.requests()

        def got(question: _Question, reply: Reply) -> Callable[[], None] | None:
            name = question.file.name
            asked[name].add(question.number, reply)
            self._progress.add(1, self._spent())
            if reply.refused and not self._named:
                self._named = True
                say(f"{self._shown[0]}: the endpoint refuses {question} ({reply.refused}): it stays empty, as others that are refused")
            return asked.pop(name).commit if asked[name].whole else None

        def broken(question: _Question, reply: Reply) -> None:
            asked[question.file.name].add(None, reply)

        self._endpoint.ask(requests(), got, broken)

    def _spent(self) -> str:
        counted = f"{self._endpoint.prompt_tokens:,} tokens in, {self._endpoint.completion_tokens:,} out"
        return f"{counted}, ${self._endpoint.cost:,.2f}" if self._settings.price_in or self._settings.price_out else counted


def summed(notes: Iterable[dict[str, Any]]) -> dict[str, Any]:
    """Several notes, or summaries, as one."""
    notes = list(notes)
    found: dict[str, Any] = {key: sum(note.get(key, 0) for note in notes) for key in COUNTS}  # an earlier version had no `refused`
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
    if found["refused"]:
        say(f"{stage}: the endpoint refused {found['refused']:,} requests: what they asked for is empty")


def summary_of(settings: EndpointSettings, notes: Iterable[dict[str, Any]]) -> dict[str, Any]:
    """What the summary of an output says of its replies: as `Replies.note`, of all files, and the cost where prices are given."""
    found: dict[str, Any] = {"writer": "endpoint", "model": settings.model, **summed(notes)}
    if settings.price_in or settings.price_out:
        found["cost"] = round(settings.cost(found["prompt_tokens"], found["completion_tokens"]), 6)
    return found
