"""What a process that makes one training step at a time is given, and what it says of each: for the ways of `train_peers.py`.

Of the standard library alone, as is what it imports: the process of a peer has none of raydense.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from watched import held_at_most

SCALE = 20.0  # 1 / temperature
LR = 1e-30  # the weights stay as they are, so that the losses of all steps compare

Clocks = tuple[float, float]


@dataclass(frozen=True)
class Job:
    """The same for all ways. `texts` is the file with the texts of each step and of one more, for those that are not ours.

    `sampled` are the steps of our sampler. `threads` 0: as many as a way takes by itself.
    `device` is cpu or cuda.
    """

    method: str
    corpus: str
    queries: str
    examples: str
    model: str
    reranker: str
    texts: str
    sampled: list[int]
    batch_size: int
    negatives: int
    length: int
    precision: str
    engine: str
    micro_batch: int
    threads: int
    device: str

    @classmethod
    def given(cls) -> Job:
        """The job of this process: its file is the first argument."""
        return cls(**json.loads(Path(sys.argv[1]).read_text()))

    def write(self, path: Path) -> None:
        """Write the file that `given` reads."""
        path.write_text(json.dumps(asdict(self)))

    def steps(self) -> list[dict[str, Any]]:
        """The texts of each step, and of one more."""
        found: list[dict[str, Any]] = json.loads(Path(self.texts).read_text())
        return found

    def asked(self) -> Iterator[Clocks]:
        """When each step was asked for, by a line of standard input."""
        for _ in sys.stdin:
            yield clocks()

    def say(self, begun: Clocks, loss: float) -> None:
        """Say what the step cost that was asked for at `begun`, on the wall and on all cores, and the most memory so far.

        On a GPU the step ends when the GPU has done it, and the memory is that of its tensors.
        """
        if self.device == "cuda":
            import torch

            torch.cuda.synchronize()
            held = torch.cuda.max_memory_allocated() / 2**30
        else:
            held = held_at_most() / 2**30
        seconds, cpu = (now - then for now, then in zip(clocks(), begun, strict=True))
        print(json.dumps({"seconds": seconds, "cpu": cpu, "loss": loss, "gib": held}), flush=True)


def clocks() -> Clocks:
    """Seconds of the wall, and CPU seconds of this process."""
    return time.perf_counter(), time.process_time()
