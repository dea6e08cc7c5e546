"""A served index under many callers: requests a second, and what a request takes.

    .venv/bin/raydense serve --index ix --model model &
    .venv/bin/python benchmarks/serving.py --queries data/queries --callers 16 --requests 2000

Callers are threads of this process, each with a connection that it keeps; each asks one query a request, k 10, when it has the answer to its
last one. Prints the requests that were not answered with 200, requests a second, p50 and p99 of a request's milliseconds, and the longest.
"""

from __future__ import annotations

import argparse
import http.client
import json
import threading
import time
from urllib.parse import urlsplit

import numpy as np

from raydense.data.tables import read_table


def ask(url: str, texts: list[str], taken: list[float], failed: list[int]) -> None:
    """Ask each text; the seconds of each request go to `taken`, a status that is not 200 to `failed`."""
    parts = urlsplit(url)
    connection = http.client.HTTPConnection(parts.netloc, timeout=300)
    for text in texts:
        begun = time.perf_counter()
        connection.request("POST", f"{parts.path}/search", json.dumps({"query": text, "k": 10}))
        answer = connection.getresponse()
        answer.read()
        taken.append(time.perf_counter() - begun)
        failed.extend([answer.status] * (answer.status != 200))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--url", default="http://127.0.0.1:8000")
    parser.add_argument("--queries", required=True)
    parser.add_argument("--callers", type=int, nargs="+", default=[1, 4, 16, 64])
    parser.add_argument("--requests", type=int, default=2_000)
    args = parser.parse_args()
    texts = read_table(args.queries, "queries", ["text"])["text"].to_pylist()
    ask(args.url, texts[:20], [], [])
    print(f"{'callers':>8} {'requests':>9} {'failed':>7} {'requests/s':>11} {'p50 ms':>8} {'p99 ms':>8} {'longest ms':>11}")
    for callers in args.callers:
        taken: list[float] = []
        failed: list[int] = []
        each = -(-args.requests // callers)
        mine = [[texts[(caller * each + i) % len(texts)] for i in range(each)] for caller in range(callers)]
        threads = [threading.Thread(target=ask, args=(args.url, asked, taken, failed)) for asked in mine]
        begun = time.perf_counter()
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        seconds = time.perf_counter() - begun
        p50, p99 = 1_000 * np.percentile(taken, [50, 99])
        print(
            f"{callers:8} {len(taken):9,} {len(failed):7} {len(taken) / seconds:11.0f} {p50:8.1f} {p99:8.1f} {1_000 * max(taken):11.0f}",
            flush=True,
        )


if __name__ == "__main__":
    main()
