"""Starts the app and stops it again: on a local Ray, or on a cluster, where other apps may run next to it."""

from __future__ import annotations

import re
import socket
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from typing import Any

from ray import serve
from ray.exceptions import ActorDiedError, ActorUnavailableError
from ray.serve.exceptions import RayServeException

from raydense.errors import InputError
from raydense.models.model_kind import require_model
from raydense.runtime.progress import say
from raydense.runtime.ray_internals import serve_http_config
from raydense.runtime.session import ensure_ray, joins_cluster
from raydense.runtime.verbosity import limit_logs
from raydense.runtime.waiting import Waiting
from raydense.serving.app import application
from raydense.serving.app_name import keep_name, release_name, take_name
from raydense.serving.front import MIDDLEWARES
from raydense.serving.holding import held_bytes
from raydense.serving.merged import ROUTE
from raydense.serving.processes import any_unplaced, check_processes, start_fault
from raydense.serving.searching import Source, connected, sources
from raydense.serving.searching_all import check_corpus, fusion_of
from raydense.serving.settings import ServeSettings
from raydense.storage import Artifact, input_fingerprints

_LOOK_S = 2.0
_FAILED = ("UNHEALTHY", "DEPLOY_FAILED")  # of a deployment; others have messages, too, as of a start that takes long


@contextmanager
def running(settings: ServeSettings, name: str, route: str, host: str, port: int) -> Iterator[str]:
    """Runs the app `name` under `route` of a server at host:port during the block; yields its URL.

    An app of that name that a killed process left is updated, and stays if that fails. At the end the app and its own pools are stopped, and Serve
    too if no other app is left. InputError if the port, the name or the route is taken, the cluster's Serve listens elsewhere, model, corpus,
    indexes or pools, and fused run do not fit, or a pool cannot be started.
    """
    if not re.fullmatch(r"/([^{}]*[^/{}])?", route):
        raise InputError(f"{route!r} is no route", "--route", "give / or one like /nq")
    if settings.corpus:
        Artifact.open(settings.corpus, "corpus")
    settings = settings.located()
    fingerprints = input_fingerprints(settings)
    places = sources(settings, name, fingerprints=fingerprints["index"])
    if own := [index for source in places if (index := source.check_own())]:
        _check_together(settings, own)
    with nullcontext() if joins_cluster() else _having_port(host, port):
        ensure_ray()
        limit_logs("ray.serve")
        if (listens := serve_http_config()) is not None:
            _check_listens(listens, host, port)
        with _deployed(settings, fingerprints, places, name, route, {"host": host, "port": port}):
            url = f"http://{host}:{port}{route.rstrip('/')}"
            if listens is not None:
                _warn_without_front(url)
            yield url


def until_gone(name: str) -> None:
    """Returns once the app is not there any more: another process deleted it, or ended Ray Serve."""
    while name in _apps():
        time.sleep(_LOOK_S)


@contextmanager
def _deployed(
    settings: ServeSettings, fingerprints: dict[str, Any], places: list[Source], name: str, route: str, http: dict[str, Any]
) -> Iterator[None]:
    """The app runs during the block, under a name that is this process's."""
    stays, begun = take_name(name), False
    try:
        check_processes(settings)
        held = held_bytes(settings)
        if not held:
            _check_pools(settings, places)
        app = application(settings, held, fingerprints)
        begun = True
        if stays:
            say(f"serve: takes over the app {name!r}, which was left here")
        serve.start(http_options=http, controller_options={"runtime_env": {"env_vars": MIDDLEWARES}})
        limit_logs("ray.serve")
        _run(app, name, route)
        stays = False
        keep_name(name)
        yield
    finally:
        if begun and not stays:
            _end(places, name)
        elif not stays:
            release_name(name)


def _run(app: serve.Application, name: str, route: str) -> None:
    """Start the app, and wait until all its processes answer; InputError if its route is taken, or one of them does not start."""
    where = f"app {name!r}"
    try:
        with Waiting("serve", lambda: any_unplaced(name)):
            serve.run(app, name=name, route_prefix=route)
    except RayServeException as error:
        raise InputError(str(getattr(error, "cause", error)), where, "give another --route") from error
    except RuntimeError as error:  # Ray Serve's, which has the reason in its report alone
        there = _apps().get(name)
        failed = [one.message for one in there.deployments.values() if one.status in _FAILED] if there else []
        fault = start_fault("\n".join(failed).strip() or str(error))
        raise InputError(f"does not start: {fault}", where) from error


def _check_pools(settings: ServeSettings, places: list[Source]) -> None:
    """Connect to the pools, and start the app's own, here, so that an error is raised as one line, before a running app is touched."""
    found = [pool.index for pool in connected(places)]
    if settings.pool:
        for source, index in zip(places, found, strict=True):
            source.check(index)
        _check_together(settings, found)


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
    try:
        apps = _apps()
        with suppress(ActorDiedError):  # another process ends Serve
            if name in apps:
                say(f"serve: stops the app {name!r}")
                serve.delete(name)
            if not apps.keys() - {name}:
                serve.shutdown()
        for source in places:
            source.close_own()
        release_name(name)
    except BaseException:  # as a second Ctrl-C
        if joins_cluster():
            say(f"serve: cut off: the app {name!r} may still run; the same command takes it over, `serve shutdown` ends it")
        raise


def _apps() -> dict[str, Any]:
    """The apps of this Serve by their names, none once it has ended; waits while its controller starts again."""
    while True:
        try:
            return dict(serve.status().applications)
        except ActorDiedError:
            return {}
        except ActorUnavailableError:
            time.sleep(_LOOK_S)


@contextmanager
def _having_port(host: str, port: int) -> Iterator[None]:
    """In the block no other command has this port. InputError if something listens there.

    The proxies of Ray Serve share a port with those of another Ray, and bind it long after this looks. So the command holds the UDP port of the same
    number, which nothing shares.
    """
    with socket.socket() as one, socket.socket(type=socket.SOCK_DGRAM) as held:
        try:
            one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            one.bind((host, port))
            held.bind((host, port))
        except OSError as error:
            raise InputError(
                f"cannot listen there ({error.strerror or error})", f"{host}:{port}", "give another --port or --host"
            ) from None
        one.close()
        yield


def _check_listens(there: Any, host: str, port: int) -> None:
    if (there.host, there.port) != (host, port):
        what = f"Ray Serve of this cluster listens at {there.host}:{there.port} already"
        raise InputError(what, f"{host}:{port}", f"give --host {there.host} --port {there.port}, or end it with `serve shutdown`")
