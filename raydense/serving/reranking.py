"""The re-ranker of an app: a deployment of Ray Serve of its own, which the app's processes call by a handle.

Its replicas have GPUs of their own, and score what several callers ask in one batch. Where it does not answer, the caller gets 503, and what
is not begun of the work is dropped: the pairs of a call are sent in parts.
"""

import asyncio
import time
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from itertools import product
from typing import Any

import numpy as np
from ray import serve

from raydense.data.store import PassageStore
from raydense.runtime.ray_internals import keep_serve_port_inside
from raydense.runtime.session import quiet_data
from raydense.serving.passage_scorer import PassageScorer, Rerank, Rows, Scores
from raydense.serving.refusal import Unavailable
from raydense.serving.settings import ServeSettings

_PART = 128  # pairs of a part, which is scored as a whole
_BATCH = 8  # parts that are scored together
_WAITING = 256  # parts that may wait for a replica


@serve.deployment(name="Reranker", max_ongoing_requests=8 * _BATCH, max_queued_requests=_WAITING, max_surge_percent=100)
class Reranker:
    """One process that scores passages; InputError unless model and corpus, each a folder and its fingerprint, are the same still."""

    def __init__(self, model: tuple[str, str], corpus: tuple[str, str], gpu: bool) -> None:
        keep_serve_port_inside()
        quiet_data()
        self._scorer = PassageScorer(model[0], PassageStore(*corpus), model[1], gpu)
        self._scoring = ThreadPoolExecutor(1)

    @serve.batch(max_batch_size=_BATCH, batch_wait_timeout_s=0.0, max_concurrent_batches=1)
    async def scores(self, asked: list[tuple[list[str], Rows]]) -> list[Scores]:
        """The logits of passages, by their rows int64 [n, m], for n questions: float32 [n, m], NaN for a row of -1."""
        return await asyncio.get_running_loop().run_in_executor(self._scoring, self._scorer.several, asked)


def reranking(settings: ServeSettings, fingerprints: dict[str, Any]) -> Any:
    """The deployment, not yet started: what an application gives to its ingress. `fingerprints` are those of the inputs at the app's start."""
    deployment: Any = Reranker
    resources = {"num_cpus": 1, "num_gpus": settings.gpus_per_reranker}
    options = deployment.options(num_replicas=settings.reranker_replicas, ray_actor_options=resources)
    model, corpus = (settings.reranker, fingerprints["reranker"]), (settings.corpus, fingerprints["corpus"])
    return options.bind(model, corpus, settings.gpus_per_reranker > 0)


def by_handle(handle: Any, replicas: int, seconds: float) -> Rerank:
    """What asks a deployment of `replicas`, by its handle, from a thread; Unavailable where there is no answer within so many seconds."""
    most_open = min(2 * _BATCH * replicas, _WAITING // 2)

    def rerank(questions: list[str], rows: Rows) -> Scores:
        end = time.monotonic() + seconds
        wide = max(1, min(rows.shape[1], _PART))  # passages of a question in a part
        high, across = _PART // wide, range(0, max(1, rows.shape[1]), wide)
        open_: deque[Any] = deque()
        found: list[Scores] = []
        try:
            for at, left in product(range(0, len(rows), high), across):
                if len(open_) == most_open:
                    found.append(_scores(open_, end))
                open_.append(handle.scores.remote((questions[at : at + high], rows[at : at + high, left : left + wide])))
            while open_:
                found.append(_scores(open_, end))
        except Exception as error:
            for part in open_:  # the callers ask again: what they no longer wait for is not scored, too
                part.cancel()
            raise Unavailable(f"the re-ranker does not answer ({type(error).__name__})") from error
        lines = [np.concatenate(found[at : at + len(across)], axis=1) for at in range(0, len(found), len(across))]
        return np.concatenate(lines)

    return rerank


def _scores(open_: deque[Any], end: float) -> Scores:
    """Those of the first of the open parts, which is no longer open then; TimeoutError after `end`."""
    scores: Scores = open_[0].result(timeout_s=max(0.0, end - time.monotonic()))
    open_.popleft()
    return scores
