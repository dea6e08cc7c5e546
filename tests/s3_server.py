"""A local S3 (moto's server, a process of its own), and a proxy before it that fails now and then, over real HTTP."""

from __future__ import annotations

import http.client
import itertools
import os
import socket
import struct
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

BUCKET = "corpora"
KEY, SECRET = "key-of-the-tests", "secret-of-the-tests"
Fault = str | None
_LEFT_OUT = {"connection", "transfer-encoding", "content-length", "date", "server"}


@contextmanager
def s3_server(log: Path) -> Iterator[int]:
    """The port of a running server; `empty` makes its bucket."""
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        port = one.getsockname()[1]
    with open(log, "wb") as out:
        server = subprocess.Popen([sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)], stdout=out, stderr=out)
    try:
        end = time.monotonic() + 120
        while not _answers(port):
            assert server.poll() is None, log.read_text()
            assert time.monotonic() < end, "moto did not start in 120 s"
            time.sleep(0.05)
        yield port
    finally:
        server.kill()
        server.wait()


def empty(port: int) -> None:
    """Make the server hold nothing but the empty bucket `BUCKET`.

    By plain requests: pyarrow's client of S3 was seen to wait for a lock of its own for ever here (`BuildClient`, `pthread_rwlock_wrlock`).
    """
    for method, path in (("POST", "moto-api/reset"), ("PUT", BUCKET)):
        urllib.request.urlopen(urllib.request.Request(f"http://127.0.0.1:{port}/{path}", method=method), timeout=60).read()


def _answers(port: int) -> bool:
    try:
        urllib.request.urlopen(f"http://127.0.0.1:{port}/moto-api/", timeout=10).read()
    except OSError:
        return False
    return True


def environment(port: int, cache: Path) -> dict[str, str]:
    """The environment variables for the server, with a cache: what makes a process one of another machine."""
    return {
        "AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}",
        "AWS_ACCESS_KEY_ID": KEY,
        "AWS_SECRET_ACCESS_KEY": SECRET,
        "AWS_REGION": "us-east-1",
        "AWS_EC2_METADATA_DISABLED": "true",
        "RAYDENSE_CACHE": str(cache),
    }


@dataclass
class Proxy:
    """Hands requests on; `fault` is asked about each, by its number: `500`, `reset`, `cut` (half a reply) or None.

    `hold` is called with the method and path of each before: it waits as long as the store is to be slow. `answered` is called
    with them and the status after. What `refuses` is true for is answered by `refusal`, a status and the code of an error.
    """

    upstream: int
    fault: Callable[[int, str], Fault]
    hold: Callable[[str, str], None] = lambda *_: None
    refuses: Callable[[str, str], bool] = lambda *_: False
    answered: Callable[[str, str, int], None] = lambda *_: None
    refusal: tuple[int, str] = (403, "AccessDenied")
    port: int = 0
    happened: list[str] = field(default_factory=list)  # the faults so far


@contextmanager
def proxy(upstream: int, fault: Callable[[int, str], Fault], **seen: Callable[..., None]) -> Iterator[Proxy]:
    """A running proxy; `seen` are its `hold`, `refuses` and `answered`."""
    held = Proxy(upstream, fault, **seen)
    numbers = itertools.count(1)

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def handle_one(self) -> None:
            body = self._body()
            held.hold(self.command, self.path)
            wrong = held.fault(next(numbers), self.command)
            if wrong:
                held.happened.append(wrong)
            if wrong == "reset":
                self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                self.connection.close()
                self.close_connection = True
                return
            if wrong == "500":
                self._answer(500, [], b"<Error><Code>InternalError</Code><Message>again</Message></Error>")
                return
            if held.refuses(self.command, self.path):
                status, code = held.refusal
                self._answer(status, [], f"<Error><Code>{code}</Code><Message>no</Message></Error>".encode())
                return
            there = http.client.HTTPConnection("127.0.0.1", held.upstream, timeout=60)
            there.putrequest(self.command, self.path, skip_host=True, skip_accept_encoding=True)
            for name, value in self.headers.items():
                if name.lower() not in ("connection", "content-length", "expect", "transfer-encoding"):
                    there.putheader(name, value)
            there.putheader("Content-Length", str(len(body)))
            there.endheaders(body)
            reply = there.getresponse()
            content = reply.read()
            length = reply.getheader("content-length") if self.command == "HEAD" else None
            self._answer(reply.status, reply.getheaders(), content, length, wrong == "cut")
            there.close()
            held.answered(self.command, self.path, reply.status)

        do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = handle_one

        def _body(self) -> bytes:
            if self.headers.get("transfer-encoding") != "chunked":
                return self.rfile.read(int(self.headers.get("content-length") or 0))
            chunks = []
            while count := int(self.rfile.readline().split(b";")[0], 16):
                chunks.append(self.rfile.read(count))
                self.rfile.readline()
            self.rfile.readline()
            return b"".join(chunks)

        def _answer(
            self, status: int, headers: list[tuple[str, str]], content: bytes, length: str | None = None, cut: bool = False
        ) -> None:
            self.send_response(status)
            for name, value in headers:
                if name.lower() not in _LEFT_OUT:
                    self.send_header(name, value)
            self.send_header("Content-Length", length or str(len(content)))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(content[: len(content) // 2] if cut else content)
            if cut:
                self.close_connection = True

        def log_message(self, *_: object) -> None:
            return

    class Server(ThreadingHTTPServer):
        def handle_error(self, *_: object) -> None:  # clients go away in the middle: that is what is tried
            return

    server = Server(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    held.port = server.server_address[1]
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield held
    finally:
        server.shutdown()
        server.server_close()


def with_environment(values: dict[str, str]) -> dict[str, str]:
    """This process's environment with `values`, for another process."""
    kept = {name: value for name, value in os.environ.items() if name != "RAY_ADDRESS"}
    return {**kept, **values}
