"""The re-ranker of an app: a deployment of Ray Serve of its own, which the app's processes call by a handle.

Its replicas have GPUs of their own, and score what several callers ask in one batch. Where it does not answer, the caller gets 503.
"""

import asyncio
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from ray import serve

from raydense.data.store import PassageStore
from raydense.runtime.ray_internals import keep_serve_port_inside
from raydense.runtime.session import quiet_data
from raydense.serving.passage_scorer import PassageScorer, Rerank, Rows, Scores
from raydense.serving.refusal import Unavailable

_BATCH = 64  # calls that are scored together
_WAITING = 256  # calls that may wait for a replica


@serve.deployment(name="Reranker", max_ongoing_requests=2 * _BATCH, max_queued_requests=_WAITING, max_surge_percent=100)
class Reranker:
    """One process that scores passages of the corpus that has this fingerprint."""

    def __init__(self, model: str, corpus: str, fingerprint: str) -> None:
        keep_serve_port_inside()
        quiet_data()
        self._scorer = PassageScorer(model, PassageStore(corpus, fingerprint))
        self._scoring = ThreadPoolExecutor(1)

    @serve.batch(max_batch_size=_BATCH, batch_wait_timeout_s=0.0, max_concurrent_batches=1)
    async def scores(self, asked: list[tuple[list[str], Rows]]) -> list[Scores]:
        """The logits of passages, by their rows int64 [n, m], for n questions: float32 [n, m], NaN for a row of -1."""
        return await asyncio.get_running_loop().run_in_executor(self._scoring, self._scorer.several, asked)


def reranking(model: str, corpus: str, replicas: int, gpus: float) -> Any:
    """The deployment with `replicas` processes of `gpus` each, not yet started: what an application gives to its ingress."""
    deployment: Any = Reranker
    options = deployment.options(num_replicas=replicas, ray_actor_options={"num_cpus": 1, "num_gpus": gpus})
    return options.bind(model, corpus, PassageStore(corpus).fingerprint)


def by_handle(handle: Any, seconds: float) -> Rerank:
    """What asks a deployment, by its handle, from a thread; Unavailable where there is no answer within so many seconds."""

    def rerank(questions: list[str], rows: Rows) -> Scores:
        try:
            found: Scores = handle.scores.remote((questions, rows)).result(timeout_s=seconds)
        except Exception as error:
            raise Unavailable(f"the re-ranker does not answer ({type(error).__name__})") from error
        return found

    return rerank
