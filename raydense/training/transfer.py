"""Batches go to a GPU while an earlier step runs on it: pinned by the thread that makes them, copied on a stream of their own."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from raydense.training.pieces import Cut


@dataclass(frozen=True)
class Sent:
    """The parts of a step on their way to the device, and the event of their arrival; None on a CPU, where they are as they were."""

    parts: list[Cut]
    arrival: torch.cuda.Event | None = None


class Transfer:
    """Sends in one thread, receives in another."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream = torch.cuda.Stream(device) if device.type == "cuda" else None

    def send(self, parts: list[Cut]) -> Sent:
        """Begin to copy; PyTorch keeps the pinned memory until the copies are done."""
        if self._stream is None:
            return Sent(parts)
        with torch.cuda.stream(self._stream):  # which also makes its GPU the thread's
            moved = [part.moved(lambda tensor: tensor.pin_memory().to(self._device, non_blocking=True)) for part in parts]
            return Sent(moved, self._stream.record_event())

    def receive(self, sent: Sent) -> list[Cut]:
        """The parts; what the current stream runs from now on finds them copied."""
        if sent.arrival is not None:
            running = torch.cuda.current_stream(self._device)
            running.wait_event(sent.arrival)
            for part in sent.parts:
                for tensor in part.tensors():
                    tensor.record_stream(running)  # its memory is of the other stream, which would reuse it too soon
        return sent.parts
