"""A served index under many callers: requests a second, and what a request takes; alone, or next to a bare server and another tree's.

    .venv/bin/raydense serve --index ix --model model &
    .venv/bin/python benchmarks/serving.py --queries data/queries --callers 16 --requests 2000
    .venv/bin/python benchmarks/serving.py --queries data/queries --against-bare --index ix --model model [--tree OTHER_CHECKOUT] [--rounds 3]

Callers are connections of this process, which it keeps; each asks one query a request, k 10, when it has the answer to its last one, whose bytes it
does not parse. Prints the requests that were not answered with 200, requests a second, p50 and p99 of a request's milliseconds, the longest, and the
CPU milliseconds a request of the server, all its processes, and of the callers: where others use the machine, these stay as they are. `--against-bare` starts one server after the other on the same index: this tree's, the one at `--tree`, and
`serving_bare.py`'s, answering one request on all cores, and two at once; and prints the ratios of the medians over the rounds.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from itertools import cycle
from pathlib import Path
from urllib.parse import urlsplit

import numpy as np
import psutil

from raydense.data.tables import read_table

_TREE = Path(__file__).parents[1]
_HEAD = f"{'server':>15} {'callers':>8} {'requests':>9} {'failed':>7} {'requests/s':>11} {'p50 ms':>8} {'p99 ms':>8} {'longest ms':>11} {'server CPU ms':>14} {'callers':>8}"


@dataclass(frozen=True)
class Measured:
    """Requests of some callers: the seconds of each, all together, and the statuses other than 200, 0 for a connection that broke."""

    callers: int
    taken: list[float]
    seconds: float
    failed: list[int]
    cpu: float
    server_cpu: float

    @property
    def rate(self) -> float:
        return len(self.taken) / self.seconds

    def line(self, server: str) -> str:
        p50, p99 = 1_000 * np.percentile(self.taken, [50, 99])
        longest = 1_000 * max(self.taken)
        return (
            f"{server:>15} {self.callers:8} {len(self.taken):9,} {len(self.failed):7} {self.rate:11.0f} {p50:8.1f} {p99:8.1f} {longest:11.0f} "
            f"{1_000 * self.server_cpu / len(self.taken):14.2f} {1_000 * self.cpu / len(self.taken):8.2f}"
        )


def measure(url: str, texts: list[str], callers: int, requests: int, server: int | None = None) -> Measured:
    """Ask `requests` of the texts, by so many callers at once; the process id of the server, if its CPU time counts."""
    cpu = _cpu_of(server)
    found = asyncio.run(_measure(url, texts, callers, requests))
    return replace(found, server_cpu=_cpu_of(server) - cpu)


def _cpu_of(server: int | None) -> float:
    """The CPU seconds of a process and its descendants."""
    seconds = 0.0
    for one in [] if server is None else [psutil.Process(server), *psutil.Process(server).children(recursive=True)]:
        with suppress(psutil.NoSuchProcess):
            seconds += sum(one.cpu_times()[:2])
    return seconds


async def _measure(url: str, texts: list[str], callers: int, requests: int) -> Measured:
    parts = urlsplit(url)
    asked = [request_of(parts.netloc, parts.path, text) for text in texts]
    waiting = iter([one for one, _ in zip(cycle(asked), range(requests), strict=False)])
    taken: list[float] = []
    failed: list[int] = []

    async def call() -> None:
        reader, writer = await asyncio.open_connection(parts.hostname, parts.port)
        for request in waiting:
            begun = time.perf_counter()
            writer.write(request)
            try:
                status, _ = await answered(reader)
            except (OSError, EOFError):  # the server closed the connection
                status = 0
                reader, writer = await asyncio.open_connection(parts.hostname, parts.port)
            taken.append(time.perf_counter() - begun)
            if status != 200:
                failed.append(status)
        writer.close()

    begun, cpu = time.perf_counter(), time.process_time()
    await asyncio.gather(*(call() for _ in range(callers)))
    return Measured(callers, taken, time.perf_counter() - begun, failed, time.process_time() - cpu, 0.0)


def request_of(host: str, path: str, text: str) -> bytes:
    """A request for the best ten passages of a text."""
    body = json.dumps({"query": text, "k": 10}).encode()
    head = f"POST {path}/search HTTP/1.1\r\nHost: {host}\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    return head.encode() + body


async def answered(reader: asyncio.StreamReader) -> tuple[int, bytes]:
    """The status and the body of the next answer of a connection."""
    head = (await reader.readuntil(b"\r\n\r\n")).lower()
    return int(head[9:12]), await reader.readexactly(int(head.partition(b"content-length:")[2].partition(b"\r\n")[0]))


@contextmanager
def started(command: list[str], tree: Path, port: int) -> Iterator[tuple[str, int]]:
    """A server, which answers when the block begins; its URL and process id."""
    url = f"http://127.0.0.1:{port}"
    server = subprocess.Popen(command, cwd=tree, env=os.environ | {"PYTHONPATH": str(tree)}, stdout=subprocess.DEVNULL)
    try:
        _wait(server, url)
        yield url, server.pid
    finally:
        server.send_signal(signal.SIGTERM)
        server.wait()


def _wait(server: subprocess.Popen[bytes], url: str) -> None:
    asked = urllib.request.Request(f"{url}/search", b'{"query": "a"}', {"Content-Type": "application/json"})
    while server.poll() is None:
        with suppress(OSError), urllib.request.urlopen(asked, timeout=60):
            return
        time.sleep(0.5)
    raise SystemExit(f"the server ended: {server.args}")


def servers(args: argparse.Namespace) -> dict[str, tuple[list[str], Path]]:
    """The command and the tree of each server."""
    of = ["--index", str(Path(args.index).resolve()), "--model", str(Path(args.model).resolve()), "--port", str(args.port)]
    ours, bare = [sys.executable, "-m", "raydense", "serve", *of], [sys.executable, str(_TREE / "benchmarks" / "serving_bare.py"), *of]
    other = {"other tree": (ours, Path(args.tree).resolve())} if args.tree else {}
    return {"raydense": (ours, _TREE), **other, "bare": (bare, _TREE), "bare, 2 at once": ([*bare, "--threads", "2"], _TREE)}


def compare(args: argparse.Namespace, texts: list[str]) -> None:
    """Each server in turn, in each round; the ratios of the medians."""
    rates: dict[tuple[str, int], list[tuple[float, float]]] = {}
    for _ in range(args.rounds):
        for name, (command, tree) in servers(args).items():
            if args.servers and name not in args.servers:
                continue
            with started(command, tree, args.port) as (url, server):
                measure(url, texts, 8, 100)
                for callers in args.callers:
                    found = measure(url, texts, callers, args.requests, server)
                    print(found.line(name), flush=True)
                    rates.setdefault((name, callers), []).append((found.rate, found.server_cpu))
    for (name, callers), found in rates.items():
        if name != "raydense" and ("raydense", callers) in rates:
            rate, cpu = np.median(rates["raydense", callers], axis=0) / np.median(found, axis=0)
            print(f"{callers} callers, raydense to {name}: requests a second {rate:.2f}, CPU a request {cpu:.2f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--url", default="http://127.0.0.1:8000")
    parser.add_argument("--queries", required=True)
    parser.add_argument("--callers", type=int, nargs="+", default=[1, 8, 32])
    parser.add_argument("--requests", type=int, default=2_000)
    parser.add_argument("--against-bare", action="store_true")
    parser.add_argument("--index")
    parser.add_argument("--model")
    parser.add_argument("--tree")
    parser.add_argument("--servers", nargs="+", help="only these, by their names in the table")
    parser.add_argument("--port", type=int, default=8123)
    parser.add_argument("--rounds", type=int, default=1)
    args = parser.parse_args()
    if args.against_bare and not (args.index and args.model):
        parser.error("--against-bare needs --index and --model")
    texts = read_table(args.queries, "queries", ["text"])["text"].to_pylist()
    print(_HEAD)
    if args.against_bare:
        return compare(args, texts)
    measure(args.url, texts, 1, 20)
    for callers in args.callers:
        print(measure(args.url, texts, callers, args.requests).line("raydense"), flush=True)


if __name__ == "__main__":
    main()
