"""What a run measured, step by step: one line of JSON a step, of which TensorBoard's file is another form.

Both hold nothing of the clock or the machine, so that the same run gives the same bytes. TensorBoard shows the number of the
step as the time of day.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any, BinaryIO

Line = dict[str, Any]


class History:
    """The writer of a history file, on worker 0. It waits for a dying writer of an earlier attempt to be gone."""

    def __init__(self, path: Path, logs: Path, done: int) -> None:
        """Open `path`, and keep the lines of the first `done` steps: what a checkpoint holds. `logs` is TensorBoard's folder."""
        self._stream = open(path, "a+")  # noqa: SIM115 - held as long as the run
        fcntl.flock(self._stream, fcntl.LOCK_EX)
        self._stream.seek(0)
        kept = [line for line in _whole_lines(self._stream) if line["step"] <= done]
        # cut, not written anew: a kill here loses nothing
        self._stream.truncate(sum(len(_as_text(line)) for line in kept))
        logs.mkdir(parents=True, exist_ok=True)
        self._events = _Events(open(logs / EVENTS, "wb"))  # noqa: SIM115 - as above
        self._events.add(kept)

    def add(self, lines: list[Line]) -> None:
        """Append the lines of some steps, and flush them to the disk."""
        self._write(lines)
        self._events.add(lines)

    def _write(self, lines: Iterable[Line]) -> None:
        self._stream.writelines(map(_as_text, lines))
        self._stream.flush()
        os.fsync(self._stream.fileno())

    def close(self) -> None:
        self._stream.close()
        self._events.close()


def read_history(path: Path) -> list[Line]:
    """The lines of a history file; a last line that a kill cut off is left out."""
    with open(path) as stream:
        return list(_whole_lines(stream))


class Follower:
    """Reads a history file while another process writes it; where that begins anew, at a checkpoint, so does this."""

    def __init__(self, path: Path) -> None:
        self.path, self._offset = path, 0

    def new_lines(self) -> list[Line]:
        """The whole lines since the last call; after a new beginning, all of them."""
        if not self.path.exists():
            return []
        with open(self.path, "rb") as stream:
            if stream.seek(0, os.SEEK_END) < self._offset:
                self._offset = 0
            stream.seek(self._offset)
            whole, newline, _ = stream.read().rpartition(b"\n")
        self._offset += len(whole) + len(newline)
        return [json.loads(line) for line in whole.splitlines()]


def _as_text(line: Line) -> str:
    """A line as it stands in the file, all of it ASCII."""
    return json.dumps(line) + "\n"


def _whole_lines(stream: Iterable[str]) -> Iterable[Line]:
    return (json.loads(line) for line in stream if line.endswith("\n"))


EVENTS = "events.out.tfevents.0.raydense"


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
