"""The history of a training: one line of JSON per step, and the same numbers for TensorBoard.

Both files contain no times and nothing of the machine, so that the same training writes the same bytes. TensorBoard shows the number
of the step as the time of day. What is measured of the machines (`usage.jsonl`) is not part of the artifact.
"""

from __future__ import annotations

import fcntl
import json
import os
import threading
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, BinaryIO

from raydense.storage import Place
from raydense.storage.files import take
from raydense.training.outage import Latest, outlasting

HISTORY = "history.jsonl"
EVENTS = "logs/events.out.tfevents.0.raydense"  # TensorBoard wants its files in a folder
USAGE, USAGE_EVENTS = "usage.jsonl", "logs/usage/events.out.tfevents.0.raydense"
_SENT_EVERY_S, _SENDING_AT_MOST = 2.0, 0.05  # how often a history goes to a store, and the share of the time that this may take
_READ = 2**20  # bytes that are followed at once: some thousands of lines
Line = dict[str, Any]


class History:
    """The writer of a history file, on worker 0. It first waits for the writer of an earlier attempt to end."""

    def __init__(self, shared: Place, done: int, name: str = HISTORY, events: str = EVENTS) -> None:
        """Open the history `name` in `shared`, and keep the lines of the first `done` steps, those before the checkpoint."""
        self._file, self._event_file, self._next_sending = shared / name, shared / events, 0.0
        self._sending, self._one_at_a_time = Latest("history"), threading.Lock()
        self._stream = open(self._file.growing(), "a+")  # noqa: SIM115 - held as long as the run
        take(self._stream.fileno(), fcntl.LOCK_EX, self._file.growing().parent)
        sent = self._file.sent()
        if sent is not None:
            self._stream.truncate(0)
            self._stream.write(sent.decode())
        self._events = _Events(open(self._event_file.growing(), "wb"))  # noqa: SIM115 - as above
        self._keep(done)
        self.send()

    def _keep(self, done: int) -> None:
        """Cut off the lines after step `done`, in place: a kill here loses nothing. One line is held at a time: there may be a million."""
        size = 0

        def kept() -> Iterator[Line]:
            nonlocal size
            self._stream.seek(0)
            for text in self._stream:
                if not text.endswith("\n") or (line := json.loads(text))["step"] > done:
                    return
                size += len(text)
                yield line

        self._events.add(kept())
        self._stream.truncate(size)

    def add(self, lines: list[Line]) -> None:
        """Append the lines of some steps, and flush them to the disk; they are sent to a bucket at intervals, in a thread."""
        self._stream.writelines(map(_as_text, lines))
        self._stream.flush()
        os.fsync(self._stream.fileno())
        self._events.add(lines)
        if time.monotonic() >= self._next_sending:
            self._sending.do(self.send)

    def send(self) -> None:
        """Make all lines visible to others; called before the upload of each checkpoint, which needs them, in its thread."""
        with self._one_at_a_time:  # an older version never replaces a newer one
            begun = time.monotonic()
            self._file.send()
            ended = time.monotonic()
            self._next_sending = ended + max(_SENT_EVERY_S, (ended - begun) / _SENDING_AT_MOST)

    def close(self) -> None:
        """Close both files, and send them."""
        if not self._stream.closed:
            self._sending.close()
            self._stream.close()
            self._events.close()
            outlasting(self.send, "sending the history")
            outlasting(self._event_file.send, "sending the history")


def lines_of(path: Path) -> Iterator[Line]:
    """The lines of a history file, one after another; a last line that a kill cut off is left out."""
    with open(path) as stream:
        yield from (json.loads(text) for text in stream if text.endswith("\n"))


def read_history(path: Path) -> list[Line]:
    """As `lines_of`, all at once."""
    return list(lines_of(path))


class Follower:
    """Reads a history file while another process writes it; follows when the writer starts again from a checkpoint."""

    def __init__(self, place: Place) -> None:
        self.place, self._offset = place, 0

    def new_lines(self) -> Iterator[Line]:
        """The whole lines after the last one that was taken; after a new start, all of them. A long history takes several calls."""
        begin, new = self.place.tail(max(0, self._offset - 1), _READ)
        if begin and new[:1] == b"\n":
            begin, new = begin + 1, new[1:]
        elif begin:  # a new history, already longer than what was read of the last one
            begin, new = self.place.tail(0, _READ)
        self._offset = begin
        for line in new.splitlines(keepends=True):
            if line.endswith(b"\n"):
                self._offset += len(line)
                yield json.loads(line)


def _as_text(line: Line) -> str:
    """A line as it stands in the file, all of it ASCII."""
    return json.dumps(line) + "\n"


class _Events:
    """A TensorBoard event file: each number of a line is a scalar."""

    def __init__(self, stream: BinaryIO) -> None:
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.summary.writer.record_writer import RecordWriter

        self._event, self._records = Event, RecordWriter(stream)
        self._records.write(Event(wall_time=0, file_version="brain.Event:2").SerializeToString())

    def add(self, lines: Iterable[Line]) -> None:
        for line in lines:
            event = self._event(wall_time=float(line["step"]), step=line["step"])
            for name, value in line.items():
                if name != "step":
                    event.summary.value.add(tag=name, simple_value=value)
            self._records.write(event.SerializeToString())
        self._records.flush()

    def close(self) -> None:
        self._records.close()
