"""`raydense pool`: search pools with a name, which outlive the command; other jobs call them, and they switch to other indexes."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from typing import Any

import click

from raydense.cli.flags import Command, join
from raydense.mining.settings import FilterSettings
from raydense.retrieval.settings import Pool
from raydense.runtime.progress import duration, say


@click.group("pool")
def pool_group() -> None:
    """Start a search pool that outlives this command, show its state, switch it to another index while it serves, and end it.

    A pool lives on a running Ray cluster (--address, or RAY_ADDRESS) until it is closed, or has had no call for --idle-timeout
    seconds. `raydense search --pool NAME` calls it, and so does `SearchPool.connect(NAME)` of any job. The index lies in a bucket, or on storage
    that all nodes mount. docs/reliability.md lists what happens to a call when something dies.
    """


def _description(key: str) -> str:
    return str(Pool.model_fields[key].description)


_Function = Callable[..., None]


def _on_cluster(command: _Function) -> _Function:
    """The options that each of these commands has."""
    command = click.option("--json", "as_json", is_flag=True, help="print the result as JSON on standard output")(command)
    return click.option("--address", metavar="ADDRESS", help="the Ray cluster that has the pool; by default RAY_ADDRESS")(command)


_NAME = click.option("--name", required=True, metavar="NAME", help="the pool's name")
_INDEX = click.option("--index", required=True, metavar="PATH", help="the index")


@pool_group.command("start", cls=Command, renamed_by=FilterSettings)
@_NAME
@_INDEX
@click.option("--shard-replicas", default=1, type=click.IntRange(1), metavar="INT", help=f"{_description('shard_replicas')}  [1]")
@click.option("--search-params", default="", metavar="TEXT", help=_description("search_params"))
@click.option("--threads", default=0, type=click.IntRange(0), metavar="INT", help=f"{_description('threads')}  [0]")
@click.option("--gpu/--no-gpu", default=False, help=_description("gpu"))
@click.option(
    "--idle-timeout",
    default=0.0,
    type=click.FloatRange(0),
    metavar="SECONDS",
    help="end the pool after so long without a call; 0: never  [0]",
)
@_on_cluster
def pool_start(name: str, address: str | None, as_json: bool, **settings: Any) -> None:
    """Start a pool named NAME, and wait until each shard has an actor that is loaded."""
    from raydense.retrieval.pool import SearchPool

    join(address)
    _print(SearchPool.start(name=name, **settings).status(), as_json)
    say(f"pool: raydense search --pool {name} calls it, raydense pool close --name {name} ends it")


@pool_group.command("swap", cls=Command, renamed_by=FilterSettings)
@_NAME
@_INDEX
@click.option(
    "--shard-replicas", default=None, type=click.IntRange(1), metavar="INT", help="actors of each shard; by default as many as now"
)
@click.option("--search-params", default=None, metavar="TEXT", help=f"{_description('search_params')}; by default those of now")
@_on_cluster
def pool_swap(name: str, index: str, shard_replicas: int | None, search_params: str | None, address: str | None, as_json: bool) -> None:
    """Switch a pool to another index while it serves: no call fails, and each is answered by one index.

    The new actors load next to the old ones, and take over when all are loaded; until then both need memory. If they cannot load, the pool stays as
    it is. A swap that has begun continues if this command is interrupted.
    """
    from raydense.retrieval.pool import SearchPool

    join(address)
    pool = SearchPool.connect(name)
    pool.swap(index, shard_replicas, search_params)
    _print(pool.status(), as_json)


@pool_group.command("status")
@click.option("--name", metavar="NAME", help="the pool's name; by default all")
@_on_cluster
def pool_status(name: str | None, address: str | None, as_json: bool) -> None:
    """Show the index of a pool, and the place and state of each actor; of all pools without --name."""
    from raydense.retrieval.named import pool_status, pools

    join(address)
    found = [pool_status(one) for one in ([name] if name else pools())]
    if as_json:
        print(json.dumps(found[0] if name else found, ensure_ascii=False))
    for status in () if as_json else found:
        _print(status, False)
    if not found:
        say("pool: none is running")


@pool_group.command("close")
@_NAME
@_on_cluster
def pool_close(name: str, address: str | None, as_json: bool) -> None:
    """End a pool and its actors. Calls in progress fail with an error of one line."""
    from raydense.retrieval.named import close_pool

    join(address)
    close_pool(name)
    print(json.dumps({"name": name, "closed": True}) if as_json else f"{name}: closed")


def _print(status: dict[str, Any], as_json: bool) -> None:
    if as_json:
        print(json.dumps(status, ensure_ascii=False))
        return
    states = ", ".join(f"{count} {state}" for state, count in Counter(actor["state"] for actor in status["actors"]).items())
    ends = f", ends after {duration(status['idle_timeout'])}" if status["idle_timeout"] else ""
    index = f"{status['index']} (fingerprint {status['fingerprint'][:12]}, version {status['version']})"
    print(f"{status['name']}: {index}, {len(status['actors'])} actors: {states}; idle for {duration(status['idle_s'])}{ends}")
    for actor in status["actors"]:
        where = f", node {actor['node'][:8]}, process {actor['pid']}" if "pid" in actor else ""
        calls = f", {actor['at_work']} calls at work, {actor['answered']:,} searches answered" if "pid" in actor else ""
        fault = f", {actor['fault']}" if "fault" in actor else ""
        print(f"  shard {actor['shard']}, replica {actor['replica']}: {actor['state']}{where}{calls}{fault}")
