"""Starts the app and stops it again: on a local Ray, or on a cluster, where other apps may run next to it."""

from __future__ import annotations

import re
import socket
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

from ray import serve
from ray.serve.exceptions import RayServeException

from raydense.errors import InputError
from raydense.models.model_kind import require_model
from raydense.runtime.progress import say
from raydense.runtime.ray_internals import serve_http_config
from raydense.runtime.session import ensure_ray, joins_cluster
from raydense.runtime.verbosity import limit_logs
from raydense.serving.app import application
from raydense.serving.front import MIDDLEWARES
from raydense.serving.holding import held_bytes
from raydense.serving.merged import ROUTE
from raydense.serving.searching import Source, connected, sources
from raydense.serving.searching_all import check_corpus, fusion_of
from raydense.serving.settings import ServeSettings
from raydense.storage import Artifact


@contextmanager
def running(settings: ServeSettings, name: str, route: str, host: str, port: int) -> Iterator[str]:
    """Runs the app `name` under `route` of a server at host:port during the block; yields its URL.

    A running app of that name is updated, and stays if that fails. At the end the app and its own pools are stopped, and Serve too if no
    other app is left. InputError if the port or the route is taken, the cluster's Serve listens elsewhere, model, corpus, indexes or pools, and
    fused run do not fit, or a pool cannot be started.
    """
    if not re.fullmatch(r"/([^{}]*[^/{}])?", route):
        raise InputError(f"{route!r} is no route", "--route", "give / or one like /nq")
    if settings.corpus:
        Artifact.open(settings.corpus, "corpus")
    settings = settings.located()
    places = sources(settings, name)
    if own := [index for source in places if (index := source.check_own())]:
        _check_together(settings, own)
    if not joins_cluster():
        _check_port(host, port)
    ensure_ray()
    limit_logs("ray.serve")
    if (listens := serve_http_config()) is not None:
        _check_listens(listens, host, port)
    held = held_bytes(settings)
    if not held:
        found = [pool.index for pool in connected(places)]  # an error is raised here, as one line, before a running app is touched
        if settings.pool:
            for source, index in zip(places, found, strict=True):
                source.check(index)
            _check_together(settings, found)
    serve.start(http_options={"host": host, "port": port}, controller_options={"runtime_env": {"env_vars": MIDDLEWARES}})
    limit_logs("ray.serve")
    stays = name in serve.status().applications
    try:
        serve.run(application(settings, held), name=name, route_prefix=route)
        stays = False
        if listens is not None:
            _warn_without_front(f"http://{host}:{port}{route.rstrip('/')}")
        yield f"http://{host}:{port}{route.rstrip('/')}"
    except RayServeException as error:
        raise InputError(str(getattr(error, "cause", error)), f"app {name!r}", "give another --route") from error
    finally:
        if not stays:
            _end(places, name)


def _check_together(settings: ServeSettings, indexes: list[Artifact]) -> None:
    """InputError unless indexes that each fit the model are of one corpus, the server's if it has one, and fit the fused run."""
    fusion_of(settings, indexes)
    check_corpus(settings.corpus, indexes[0])
    if settings.reranker:
        require_model(settings.reranker, scores=True)


def _warn_without_front(url: str) -> None:
    """Say so where the proxies of a Serve that ran already have no front, which alone answers a GET of its route with 404."""
    with suppress(OSError):  # this machine may not reach it
        try:
            urllib.request.urlopen(f"{url}{ROUTE}", timeout=10).close()
        except urllib.error.HTTPError as error:
            with error:
                if error.code == 405:
                    say(
                        f"serve: this Ray Serve was started without raydense's front, so bodies have no limit there: set {next(iter(MIDDLEWARES))} for its nodes"
                    )


def _end(places: list[Source], name: str) -> None:
    """Stop the app; other apps stay."""
    apps = serve.status().applications
    if name in apps:
        serve.delete(name)
    if not apps.keys() - {name}:
        serve.shutdown()
    for source in places:
        source.close_own()


def _check_port(host: str, port: int) -> None:
    try:
        with socket.socket() as one:
            one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            one.bind((host, port))
    except OSError as error:
        raise InputError(f"cannot listen there ({error.strerror or error})", f"{host}:{port}", "give another --port or --host") from None


def _check_listens(there: Any, host: str, port: int) -> None:
    if (there.host, there.port) != (host, port):
        what = f"Ray Serve of this cluster listens at {there.host}:{there.port} already"
        raise InputError(what, f"{host}:{port}", f"give --host {there.host} --port {there.port}, or end it with `serve shutdown`")
