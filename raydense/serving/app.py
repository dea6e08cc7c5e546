"""The Ray Serve application: HTTP in front of `answering`, with the queries of many callers in one batch, and a limit on waiting requests.

No `from __future__ import annotations` here: FastAPI reads the annotations in each process, which gets the class by pickle.
`build` is what Serve's configuration files name: `import_path: raydense.serving.app:build`, with ServeSettings as `args`.
"""

import asyncio
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse
from ray import serve

from raydense.errors import InputError
from raydense.runtime.ray_internals import keep_serve_port_inside
from raydense.runtime.session import quiet_data
from raydense.serving.answering import Answering
from raydense.serving.question import Question
from raydense.serving.searching import Reply, Unavailable
from raydense.serving.settings import ServeSettings

_BATCH = 64  # requests whose queries are encoded together
_AT_ONCE = 2  # batches: one is encoded while the other is searched
_WAITING = 256  # requests that may wait for a process, of each proxy: more get status 503
_HEALTH_S = 5.0

api = FastAPI(title="raydense", docs_url=None, redoc_url=None, openapi_url=None)


@api.exception_handler(InputError)
async def _refused(request: Request, error: InputError) -> JSONResponse:
    return JSONResponse({"error": str(error)[:1_000]}, 400)


@api.exception_handler(Unavailable)
async def _unavailable(request: Request, error: Unavailable) -> JSONResponse:
    return JSONResponse({"error": str(error)}, 503)


# max_surge_percent: where settings change, processes with the new ones answer before the old ones end
@serve.deployment(name="Search", max_ongoing_requests=_BATCH * _AT_ONCE, max_queued_requests=_WAITING, max_surge_percent=100)
@serve.ingress(api)
class Search:
    """One process of the app: `POST /search`, `GET /health`."""

    def __init__(self, settings: ServeSettings) -> None:
        keep_serve_port_inside()
        quiet_data()
        self._answering = Answering(settings, serve.get_replica_context().app_name)
        self._asking, self._looking = ThreadPoolExecutor(_AT_ONCE), ThreadPoolExecutor(1)

    @api.post("/search")
    async def search(self, request: Request) -> JSONResponse:
        """The best passages of each query, all of one version of the index."""
        question = Question.parse(await request.body())
        if question.texts and not self._answering.settings.corpus:
            raise InputError("this server has no corpus", "texts", "leave it out, or start the server with --corpus")
        reply = await self._batch(question)
        if isinstance(reply, Unavailable):
            raise reply
        return JSONResponse(reply)

    @api.get("/health")
    async def health(self) -> JSONResponse:
        """Whether it answers now, and from which index."""
        loop = asyncio.get_running_loop()
        try:
            found = await asyncio.wait_for(loop.run_in_executor(self._looking, self._answering.health), _HEALTH_S)
        except TimeoutError:
            found = {"ready": False, "why": "the search pool does not report its state"}
        return JSONResponse(found, 200 if found["ready"] else 503)

    @serve.batch(max_batch_size=_BATCH, batch_wait_timeout_s=0.0, max_concurrent_batches=_AT_ONCE)
    async def _batch(self, questions: list[Question]) -> list[Reply | Unavailable]:
        return await asyncio.get_running_loop().run_in_executor(self._asking, self._answering.answer, questions)


def build(args: dict[str, Any]) -> serve.Application:
    """The application with `args` as its settings; InputError that names the first fault."""
    return application(ServeSettings.read(args, "args."))


def application(settings: ServeSettings) -> serve.Application:
    """The application, not yet started."""
    resources = {"num_cpus": 1, "num_gpus": settings.gpus_per_replica}
    deployment: Any = Search
    bound: serve.Application = deployment.options(num_replicas=settings.replicas, ray_actor_options=resources).bind(settings.located())
    return bound
