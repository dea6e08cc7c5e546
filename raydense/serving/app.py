"""The Ray Serve application: HTTP routes over `answering`, with the queries of many callers in one batch.

No `from __future__ import annotations` here: FastAPI reads the annotations in each process, which gets the class by pickle.
`build` is what Serve's configuration files name: `import_path: raydense.serving.app:build`, with ServeSettings as `args`.
"""

import asyncio
import json
import logging
import time
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from typing import Any, TypeVar

from fastapi import FastAPI, Request, Response
from ray import serve
from starlette.exceptions import HTTPException
from starlette.responses import RedirectResponse

from raydense.errors import InputError
from raydense.runtime.ray_internals import keep_serve_port_inside, most_replicas, serve_http_config
from raydense.runtime.session import quiet_data
from raydense.serving.answering import Answering
from raydense.serving.body import read_body
from raydense.serving.docs_page import body_of, docs_page, responses
from raydense.serving.holding import held_bytes
from raydense.serving.host import is_local, require_local
from raydense.serving.merged import MOST, ROUTE, Asked, pack_replies, unpack_requests
from raydense.serving.merging import LIMITS, Limits
from raydense.serving.page import search_page
from raydense.serving.question import Question
from raydense.serving.readiness import Readiness
from raydense.serving.refusal import Refused, Reply, Unavailable, not_too_large, refusal
from raydense.serving.request_metrics import TEXT, RequestMetrics
from raydense.serving.reranking import by_handle, reranking
from raydense.serving.search_r1 import Retrieval
from raydense.serving.searching import AT_ONCE
from raydense.serving.settings import ServeSettings
from raydense.serving.token import expected, require
from raydense.storage import input_fingerprints

_BATCH = 64  # requests whose queries are encoded together
_WAITING = 256  # requests that may wait for a process, of each proxy: more get status 503
_HEALTH_S = 5.0
_HTML = "text/html; charset=utf-8"
_NO_CORPUS = InputError("this server has no corpus", "texts", "leave it out, or start the server with --corpus")
_log = logging.getLogger("ray.serve")
_T = TypeVar("_T")

api = FastAPI(
    title="raydense", description=str(ServeSettings.__doc__), docs_url=None, redoc_url=None, openapi_url=None, redirect_slashes=False
)
_REFUSED = 401, 403, 413, 422, 503, 504


def _response(reply: Reply) -> Response:
    return Response(reply.body, reply.status, reply.headers, reply.kind)


async def _of_artifacts(answer: Awaitable[_T]) -> _T:
    """What is read of the server's artifacts; Unavailable where they cannot be read, or were replaced: the question is valid."""
    try:
        return await answer
    except TimeoutError:  # it is an OSError, too
        raise
    except (InputError, OSError) as error:
        raise Unavailable(str(error)) from error


@api.exception_handler(HTTPException)
async def _unrouted(request: Request, error: HTTPException) -> Response:
    # the page of an app under a route; FastAPI itself would send the caller to the Host that it named
    if request.url.path == request.scope.get("root_path"):
        return RedirectResponse(f"{request.url.path}/")
    return _response(Reply.of(error.status_code, {"error": str(error.detail).lower()}))


# max_surge_percent: where settings change, processes with the new ones answer before the old ones end
@serve.deployment(name="Search", max_ongoing_requests=_BATCH * AT_ONCE, max_queued_requests=_WAITING, max_surge_percent=100)
@serve.ingress(api)
class Search:
    """One process of the app. `fingerprints` are those of the inputs at the app's start, `token` is what `token.expected` gave; `held`: the process
    holds the indexes; `reranker`: a handle of `reranking`.
    """

    def __init__(self, settings: ServeSettings, fingerprints: dict[str, Any], token: str, held: bool, reranker: Any) -> None:
        keep_serve_port_inside()
        quiet_data()
        self._settings, self._token = settings, token
        self._local = not token and is_local(serve_http_config().host)
        rerank = by_handle(reranker, settings.reranker_replicas) if reranker is not None else None
        self._answering = Answering(settings, serve.get_replica_context().app_name, held, rerank, fingerprints)
        self._depth = settings.rerank_depth if reranker is not None else 0
        self._asking, self._looking = ThreadPoolExecutor(AT_ONCE), ThreadPoolExecutor(1)
        self._health_asking = ThreadPoolExecutor(1)  # a probe does not wait for passages that are read
        self._metrics, self._readiness = RequestMetrics(), Readiness(self._found_ready)

    @api.post("/search", openapi_extra=body_of(Question), responses=responses("/search", *_REFUSED))
    async def search(self, request: Request) -> Response:
        """The best passages of each query, all of one version of the index; `truncated` names the queries whose ends were not read."""
        return await self._posted(request)

    @api.post("/retrieve", openapi_extra=body_of(Retrieval), responses=responses("/retrieve", *_REFUSED))
    async def retrieve(self, request: Request) -> Response:
        """The same, as the retrieval server of Search-R1 is asked and answers. Needs a corpus."""
        return await self._posted(request)

    @api.get("/", include_in_schema=False)
    async def search_page(self, request: Request) -> Response:
        """The page on which people search."""
        return await self._given(request, self._searched, closed=False)

    @api.get("/passages/{passage_id:path}", responses=responses("/passages", 401, 403, 404, 422, 503, 504))
    async def passage(self, request: Request, passage_id: str) -> Response:
        """The title and text of a passage; 404 if there is none of that id."""
        return await self._given(request, lambda: self._passage(passage_id))

    @api.get("/health", responses=responses("/health", 403, 503))
    async def health(self, request: Request) -> Response:
        """Whether the index is there, and which."""
        return await self._given(request, self._health, closed=False)

    @api.get("/ready", responses=responses("/health", 403, 503))
    async def ready(self, request: Request) -> Response:
        """200 if a query is answered now, else 503: a readiness probe."""
        return await self._given(request, self._ready, closed=False)

    @api.get("/metrics", responses=responses("", 401, 403, 503))
    async def metrics(self, request: Request) -> Response:
        """Requests by route and status, their seconds, batches and what waits, for Prometheus."""
        return await self._given(request, self._counted)

    @api.get("/openapi.json")
    async def openapi(self, request: Request) -> Response:
        """This description."""
        return await self._given(request, lambda: self._described(request.scope.get("root_path") or "/"))

    @api.get("/docs")
    async def docs(self, request: Request) -> Response:
        """This description, to read."""
        return await self._given(request, self._page)

    @api.post(ROUTE, include_in_schema=False)
    async def merged(self, request: Request) -> Response:
        """Requests that the front merged; nobody else is told the app's limits, with the hash of its token."""
        if request.client is not None:  # it came over a connection
            return _response(Reply.of(404, {"error": "no such route"}))
        try:
            asked = unpack_requests(await request.body())
        except ValueError:
            return _response(Reply.of(422, {"error": "not a merged request"}))
        if len(asked) > MOST:
            return _response(Reply.of(422, {"error": f"more than {MOST} requests"}))
        replies = await asyncio.gather(*(self._timed(one.route, self._answered(one)) for one in asked))
        limits = Limits(self._settings.timeout, AT_ONCE * most_replicas(), self._settings.max_hits, self._depth, self._token, self._local)
        return Response(pack_replies(replies), headers={LIMITS: json.dumps(asdict(limits))})

    async def _posted(self, request: Request) -> Response:
        route, authorization = request.scope["path"].rpartition("/")[2], request.headers.get("authorization", "")

        async def answered() -> Reply:
            self._require_host(request)
            return await self._answered(Asked(f"/{route}", authorization, await read_body(request.scope, request.receive)))

        return _response(await self._timed(f"/{route}", answered()))

    async def _given(self, request: Request, what: Callable[[], Awaitable[Reply]], closed: bool = True) -> Response:
        async def given() -> Reply:
            self._require_host(request)
            if closed:
                require(self._token, request.headers.get("authorization", ""))
            return await what()

        return _response(await self._timed(request.url.path.removeprefix(request.scope.get("root_path", "")), given()))

    def _require_host(self, request: Request) -> None:
        if self._local:
            require_local(request.headers.get("host", ""))

    async def _timed(self, path: str, reply: Awaitable[Reply]) -> Reply:
        """The reply, or what became of it, and counted."""
        begun = time.perf_counter()
        self._metrics.waiting.inc()
        try:
            async with asyncio.timeout(self._settings.timeout):
                found = await reply
        except Exception as error:
            refused = refusal(error, self._settings.timeout)
            if refused is None:
                _log.exception("a request to raydense failed", extra={"log_to_stderr": False})
            elif refused.status == 503:
                _log.warning(f"503: {error}", extra={"log_to_stderr": False})
            found = refused or Reply.of(500, {"error": "internal error: the server's log has more"})
        finally:
            self._metrics.waiting.dec()
        self._metrics.answered(path, found.status, time.perf_counter() - begun)
        return found

    async def _answered(self, asked: Asked) -> Reply:
        require(self._token, asked.authorization)
        if asked.route != "/retrieve":
            return not_too_large(Reply.of(200, await self._checked(asked.route, Question.parse(asked.body))))
        retrieval = Retrieval.parse(asked.body)
        question = retrieval.question
        found = (await self._checked(asked.route, question))["results"] if question else []
        return not_too_large(Reply.of(200, retrieval.reply(found)))

    async def _checked(self, route: str, question: Question) -> dict[str, Any]:
        question.check(self._settings.max_queries, self._settings.max_hits, self._depth)
        if question.texts and not self._settings.corpus:
            raise _NO_CORPUS
        if self._settings.log_queries:
            _log.info(f"{route} {json.dumps(question.asked)}", extra={"log_to_stderr": False})
        return await self._found(question)

    async def _found(self, question: Question) -> dict[str, Any]:
        found = await _of_artifacts(self._batch(question))
        if isinstance(found, Unavailable):
            raise found
        return found

    @serve.batch(max_batch_size=_BATCH, batch_wait_timeout_s=0.0, max_concurrent_batches=AT_ONCE)
    async def _batch(self, questions: list[Question]) -> list[Any]:
        self._metrics.batch(len(questions))
        return await asyncio.get_running_loop().run_in_executor(self._asking, self._answering.answer, questions)

    async def _passage(self, passage_id: str) -> Reply:
        if not self._settings.corpus:
            raise Refused(404, "this server has no corpus")
        loop = asyncio.get_running_loop()
        found = await _of_artifacts(loop.run_in_executor(self._looking, self._answering.passage, passage_id))
        return Reply.of(200, found) if found else Reply.of(404, {"error": "no passage has this id"})

    async def _health(self) -> Reply:
        loop = asyncio.get_running_loop()
        try:
            found = await asyncio.wait_for(loop.run_in_executor(self._health_asking, self._answering.health), _HEALTH_S)
        except TimeoutError:
            found = {"ready": False, "why": "the search pool does not report its state"}
        return Reply.of(200 if found["ready"] else 503, found)

    async def _ready(self) -> Reply:
        health = await self._health()
        if health.status == 200:
            await self._readiness.check()
        return health

    async def _found_ready(self) -> None:
        async with asyncio.timeout(self._settings.timeout):
            await self._found(Question(query="ready", k=1))

    async def _counted(self) -> Reply:
        return Reply(200, self._metrics.text(), kind=TEXT)

    async def _described(self, route: str) -> Reply:
        return Reply.of(200, api.openapi() | {"servers": [{"url": route}]})

    async def _searched(self) -> Reply:
        page = search_page(self._settings.names, bool(self._settings.corpus))
        return Reply(200, page.encode(), kind=_HTML)

    async def _page(self) -> Reply:
        return Reply(200, docs_page(api.openapi()).encode(), kind=_HTML)


def build(args: dict[str, Any]) -> serve.Application:
    """The application with `args` as its settings; InputError that names the first fault."""
    return application(ServeSettings.read(args, "args."))


def application(settings: ServeSettings, held: int | None = None, fingerprints: dict[str, Any] | None = None) -> serve.Application:
    """The application, not yet started; its processes hold the indexes in so many bytes, 0 if pools answer, by default as `held_bytes` finds.

    It asks for the token that RAYDENSE_TOKEN has here. `fingerprints` are those of its inputs, by default as they are now: a process that
    starts later, in place of one that died, answers from the same inputs or not at all.
    """
    memory = held_bytes(settings) if held is None else held
    resources = {"num_cpus": 1, "num_gpus": settings.gpus_per_replica, **({"memory": memory} if memory else {})}
    deployment: Any = Search
    options = deployment.options(num_replicas=settings.replicas, ray_actor_options=resources)
    settings, fingerprints = settings.located(), fingerprints or input_fingerprints(settings)
    reranker = reranking(settings, fingerprints) if settings.reranker else None
    bound: serve.Application = options.bind(settings, fingerprints, expected(), bool(memory), reranker)
    return bound
