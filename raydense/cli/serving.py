"""`raydense serve`: an index answers over HTTP, until Ctrl-C."""

from __future__ import annotations

import json
import shlex
import signal
import sys
from contextlib import suppress
from typing import Any

import click

from raydense.cli.flags import ADDRESS, Command, Flag, config_flag, join, read
from raydense.runtime.progress import say
from raydense.runtime.signals import handle
from raydense.serving.settings import ServeSettings
from raydense.serving.token import VARIABLE, expected


def serve_command() -> click.Command:
    """The verb `serve`, with flags made from its settings."""
    where = [
        Flag(["--name"], default="search", metavar="NAME", help="the app's name; on a cluster, one that no other app has  [search]"),
        Flag(["--route"], default="/", metavar="PATH", help="what its URLs begin with, on a cluster that has several apps  [/]"),
        Flag(
            ["--host"], default="127.0.0.1", metavar="ADDRESS", help="where to listen; 0.0.0.0: for all who reach this machine  [127.0.0.1]"
        ),
        Flag(["--port"], default=8000, type=click.IntRange(1, 65_535), metavar="INT", help="the port  [8000]"),
        config_flag(),
        Flag(["--address"], metavar="ADDRESS", help=ADDRESS),
    ]
    return Command("serve", settings=ServeSettings, params=where, callback=_serve, help=ServeSettings.__doc__)


def _serve(name: str, route: str, host: str, port: int, config: str | None, address: str | None, **flags: Any) -> None:
    settings = read(ServeSettings, config, flags)
    join(address)
    from raydense.serving.running import running, until_gone

    gone = False
    with running(settings, name, route, host, port) as url, suppress(KeyboardInterrupt):
        handle((signal.SIGTERM, signal.SIGHUP), signal.default_int_handler)  # a server that ends is no command to continue
        print(f"serve: {url}/search  (Ctrl-C ends it)", flush=True)
        token = f' -H "Authorization: Bearer ${VARIABLE}"' if expected() else ""
        print(f"curl {url}/search{token} -d {shlex.quote(json.dumps({'queries': ['...'], 'k': 10}))}", flush=True)
        until_gone(name)
        gone = True
    if gone:
        say(f"serve: ended, since another process ended the app {name!r}")
        sys.exit(1)
    say("serve: ended")
