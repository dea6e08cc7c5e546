"""A served index under requests while its processes are killed and its index is switched; and its memory under many callers.

    PYTHONPATH=tests .venv/bin/python benchmarks/serving_faults.py --requests 10000 --faults 5

Callers ask an app of two processes, which hold the index (a tiny encoder, two indexes of one corpus in different orders), until so many requests are answered and all faults
were there. Meanwhile
a process is killed (kill -9) and the app is started anew with the other index, so many times each. Every answer is compared with the hits of the index that it
names, searched alone: `wrong` is an answer that is not these, `mixed` one that is neither index's. A request that gets 503 is sent again after its `Retry-After`; what
is neither 200 nor 503 counts as `failed`, as does a connection that breaks. Then `--crowd` callers ask at once, and the memory of each process of Serve is
printed at the quarters of their requests.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import signal
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import count, takewhile
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import numpy as np
import psutil
from embeddings import write_corpus, write_embeddings
from inference_world import WORDS
from nodes import free_ports
from ray import serve
from serving import answered, request_of

from raydense.inference.query_encoder import query_encoder
from raydense.models.tiny import make_tiny_encoder
from raydense.retrieval.held import HeldIndex
from raydense.retrieval.index import index
from raydense.retrieval.settings import IndexSettings
from raydense.serving.app import application
from raydense.serving.running import running
from raydense.serving.settings import ServeSettings
from raydense.storage import Artifact, fingerprint_of

K, NAME = 10, "faults"
_AFTER = 100  # requests after the last fault


@dataclass
class Asked:
    """What became of the requests."""

    statuses: Counter[int] = field(default_factory=Counter)
    failed: list[str] = field(default_factory=list)
    indexes: Counter[str] = field(default_factory=Counter)
    wrong: int = 0
    mixed: int = 0
    kills: int = 0
    switches: int = 0
    seconds: list[float] = field(default_factory=list)


class World:
    """Two indexes of one model, and what each answers to each text."""

    def __init__(self, root: Path, passages: int = 2_000) -> None:
        self.texts = [" ".join(WORDS[(i * 7 + j * j) % len(WORDS)] for j in range(1 + i % 9)) + f" {i}" for i in range(passages)]
        make_tiny_encoder(self.texts[:200], root / "model", seed=1)
        write_corpus(root / "corpus", self.texts)
        vectors = query_encoder(str(root / "model"))(self.texts)
        self.indexes = [self._index(root, name, vectors[::step]) for name, step in (("first", 1), ("second", -1))]
        self.settings = [ServeSettings(index=str(one.path), model=str(root / "model"), replicas=2) for one in self.indexes]
        self.texts = self.texts[:500]
        self.alone = {one.fingerprint: HeldIndex(one).search(vectors[:500], K) for one in self.indexes}

    def _index(self, root: Path, name: str, vectors: Any) -> Artifact:
        write_embeddings(root / f"{name}-vectors", np.ascontiguousarray(vectors), model=fingerprint_of(root / "model"))
        return index(IndexSettings(kind="faiss", embeddings=str(root / f"{name}-vectors"), shards=2, output=str(root / name)))

    def fits(self, answer: dict[str, Any], text: int, of: str) -> bool:
        """Whether an answer is that of the index `of`: equal scores, and the same passages but where their scores are the same to the last digits."""
        scores, rows = (part[text] for part in self.alone[of])
        found = answer["results"][0]
        close = np.allclose([one["score"] for one in found], scores, rtol=1e-5, atol=1e-5)
        apart = np.diff(scores, prepend=np.inf, append=-np.inf) < -1e-4
        clear = apart[:-1] & apart[1:]
        return bool(close and (np.array([one["id"] for one in found])[clear] == [f"p{row}" for row in rows[clear]]).all())


async def ask(url: str, world: World, callers: int, requests: int, asked: Asked, busy: Callable[[], bool] = lambda: False) -> None:
    """Send so many requests by so many callers, each until it is answered; and more while `busy`."""
    parts = urlsplit(url)
    bodies = [request_of(parts.netloc, parts.path, text) for text in world.texts]
    waiting = takewhile(lambda number: number < requests or busy(), count())

    async def call() -> None:
        reader, writer = await asyncio.open_connection(parts.hostname, parts.port)
        for number in waiting:
            text, status, begun = number % len(bodies), 503, time.perf_counter()
            while status == 503:
                writer.write(bodies[text])
                try:
                    status, body = await answered(reader)
                except (OSError, EOFError) as error:
                    asked.failed.append(f"{type(error).__name__}: {error}")
                    reader, writer = await asyncio.open_connection(parts.hostname, parts.port)
                    continue
                asked.statuses[status] += 1
                if status == 503:
                    await asyncio.sleep(1)
            asked.seconds.append(time.perf_counter() - begun)
            judge(world, asked, text, status, body)

    await asyncio.gather(*(call() for _ in range(callers)))


def judge(world: World, asked: Asked, text: int, status: int, body: bytes) -> None:
    """Count an answer."""
    if status != 200:
        asked.failed.append(f"{status}: {body.decode()[:200]}")
        return
    answer = json.loads(body)
    asked.indexes[answer["index"]] += 1
    if not world.fits(answer, text, answer["index"]):
        asked.wrong += 1
        asked.mixed += not any(world.fits(answer, text, of) for of in world.alone)


def serve_processes(*names: str) -> list[psutil.Process]:
    """The processes of Serve whose names begin so."""
    mine = psutil.Process().children(recursive=True)
    return [one for one in mine if one.is_running() and one.name().startswith(names)]


def inject(world: World, asked: Asked, requests: int, faults: int) -> None:
    """Kill a process and switch the index in turn, at equal distances of the requests that are answered."""
    draw = random.Random(1)
    for number in range(2 * faults):
        while len(asked.seconds) < (number + 0.5) / (2 * faults) * requests:
            time.sleep(0.05)
        begun = time.perf_counter()
        if number % 2:
            serve.run(application(world.settings[(number // 2 + 1) % 2]), name=NAME, route_prefix="/")
            asked.switches += 1
            print(f"  index switched in {time.perf_counter() - begun:.1f} s, at {len(asked.seconds):,} requests", flush=True)
        else:
            while not (there := serve_processes("ray::ServeRep")):  # all of them begin again
                time.sleep(0.05)
            victim = draw.choice(there)
            os.kill(victim.pid, signal.SIGKILL)
            asked.kills += 1
            print(f"  process {victim.pid} killed, at {len(asked.seconds):,} requests", flush=True)
    last = len(asked.seconds) + _AFTER
    while len(asked.seconds) < last:
        time.sleep(0.05)


def during(url: str, world: World, callers: int, requests: int, asked: Asked, other: Callable[[], None]) -> None:
    """Ask, while `other` runs in a thread; fails as it does."""
    raised: list[BaseException] = []

    def kept() -> None:
        try:
            other()
        except BaseException as error:
            raised.append(error)

    thread = threading.Thread(target=kept, daemon=True)
    thread.start()
    asyncio.run(ask(url, world, callers, requests, asked, thread.is_alive))
    thread.join()
    if raised:
        raise raised[0]


def watch_memory(asked: Asked, requests: int) -> None:
    """Print the memory of each process of Serve at the quarters of the requests."""
    for quarter in range(5):
        while len(asked.seconds) < quarter / 4 * requests:
            time.sleep(0.05)
        there = serve_processes("ray::ServeRep", "ray::ProxyAct", "ray::ServeCon")
        sizes = sorted((one.name()[5:17], one.memory_full_info().uss / 2**20) for one in there)
        print(f"  {len(asked.seconds):7,} requests: " + ", ".join(f"{name} {size:.0f} MiB" for name, size in sizes), flush=True)


def report(what: str, asked: Asked) -> None:
    p50, p99 = 1_000 * np.percentile(asked.seconds, [50, 99])
    print(
        f"{what}: {len(asked.seconds):,} requests, {len(asked.failed)} failed, {asked.wrong} wrong, {asked.mixed} mixed, {asked.statuses[503]} times 503, "
        f"{len(asked.indexes)} indexes, p50 {p50:.0f} ms, p99 {p99:.0f} ms, longest {max(asked.seconds):.1f} s",
        flush=True,
    )
    for line, times in Counter(asked.failed).most_common(3):
        print(f"  {times} times {line}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in {"requests": 10_000, "faults": 5, "callers": 16, "crowd": 256}.items():
        parser.add_argument(f"--{name}", type=int, default=default)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        world = World(Path(folder))
        with running(world.settings[0], NAME, "/", "127.0.0.1", free_ports(1)[0]) as url:
            hit, crowd = Asked(), Asked()
            during(url, world, args.callers, args.requests, hit, lambda: inject(world, hit, args.requests, args.faults))
            report(f"{hit.kills} kills, {hit.switches} switches", hit)
            during(url, world, args.crowd, args.requests, crowd, lambda: watch_memory(crowd, args.requests))
            report(f"{args.crowd} callers", crowd)


if __name__ == "__main__":
    main()
