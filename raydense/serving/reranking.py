"""The re-ranker of an app: a deployment of Ray Serve of its own, which the app's processes call by a handle.

Its replicas have GPUs of their own, and score what several callers ask in one batch. Those whose pairs are not all scored in time get 503, and what
is not begun of the work is dropped: the pairs of a call are sent in parts.
"""

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import product
from typing import Any

import numpy as np
from ray import serve

from raydense.data.store import PassageStore
from raydense.errors import why
from raydense.runtime.ray_internals import keep_serve_port_inside
from raydense.runtime.session import quiet_data
from raydense.serving.passage_scorer import PassageScorer, Rows, Scores
from raydense.serving.refusal import Unavailable
from raydense.serving.settings import ServeSettings

_PART = 128  # pairs of a part, which is scored as a whole
_BATCH = 8  # parts that are scored together
_WAITING = 256  # parts that may wait for a replica
# the logits float32 [n, m] of n questions and their passages' rows int64 [n, m]; NaN for what is not scored by a time of time.monotonic(), or after
# an error: the last ones
Rerank = Callable[[list[str], Rows, float], Scores]
_log = logging.getLogger("ray.serve")


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


def by_handle(handle: Any, replicas: int) -> Rerank:
    """What asks a deployment of `replicas`, by its handle, from a thread; Unavailable where there is no answer at all."""
    most_open = min(2 * _BATCH * replicas, _WAITING // 2)

    def rerank(questions: list[str], rows: Rows, end: float) -> Scores:
        wide = max(1, min(rows.shape[1], _PART))  # passages of a question in a part
        high = _PART // wide
        scores = np.full(rows.shape, np.nan, np.float32)
        open_: deque[tuple[tuple[slice, slice], Any]] = deque()

        def take_first() -> None:
            where, part = open_[0]
            scores[where] = part.result(timeout_s=max(0.0, end - time.monotonic()))
            open_.popleft()

        try:
            for at, left in product(range(0, len(rows), high), range(0, rows.shape[1], wide)):
                if len(open_) == most_open:
                    take_first()
                if time.monotonic() >= end:  # what is sent now is scored for nobody
                    break
                where = slice(at, at + high), slice(left, left + wide)
                open_.append((where, handle.scores.remote((questions[where[0]], rows[where]))))
            while open_:
                take_first()
        except Exception as error:
            for _, part in open_:  # the callers ask again: what they no longer wait for is not scored, too
                part.cancel()
            if not isinstance(error, TimeoutError):
                _log.warning(f"the re-ranker failed: {why(error)}", extra={"log_to_stderr": False})
            if np.isnan(scores).all():
                raise Unavailable(f"the re-ranker does not answer ({type(error).__name__})") from error
        return scores

    return rerank
