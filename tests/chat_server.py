"""An HTTP server that speaks the protocol of OpenAI's chat completions, with the faults of real ones, and keeps what it was asked."""

from __future__ import annotations

import json
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import urlsplit

Fault = tuple[int, dict[str, str], bytes] | str
"""A status, headers and a body; or `drop`: the connection is closed without an answer, `half`: in the middle of it."""


@dataclass
class Asked:
    """One request: when it came, its headers, its body, and the status that it got (0: none)."""

    at: float
    headers: dict[str, str]
    body: dict[str, Any]
    status: int

    @property
    def prompt(self) -> str:
        return str(self.body["messages"][0]["content"])


@dataclass
class ChatServer:
    """`answer` writes the reply to a body; `fault` says what befalls the request of a number (from 0), None: nothing."""

    answer: Callable[[dict[str, Any]], str]
    fault: Callable[[int], Fault | None] = lambda number: None
    key: str = ""
    usage: bool = True
    gate: threading.Semaphore | None = None
    """Where given, each answer takes one permit of it, and waits for it."""
    asked: list[Asked] = field(default_factory=list)
    url: str = ""
    open_at_once: int = 0
    """The most requests that were open at the same time."""

    def answered(self) -> list[Asked]:
        """The requests that got a reply."""
        return [one for one in self.asked if one.status == 200]

    def reply(self, body: dict[str, Any]) -> dict[str, Any]:
        text = self.answer(body)
        read, written = len(body["messages"][0]["content"].split()), len(text.split())
        counted = {"usage": {"prompt_tokens": read, "completion_tokens": written, "total_tokens": read + written}} if self.usage else {}
        choice = {"index": 0, "message": {"role": "assistant", "content": text}, "finish_reason": "stop"}
        return {"id": "chat", "object": "chat.completion", "model": f"{body['model']}-2026", "choices": [choice], **counted}


@contextmanager
def chat_server(answer: Callable[[dict[str, Any]], str], **more: Any) -> Iterator[ChatServer]:
    """A `ChatServer` that listens at a port of this machine until the block ends."""
    chat, lock, open_now = ChatServer(answer, **more), threading.Lock(), [0]

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            with lock:
                number = len(chat.asked)
                asked = Asked(time.monotonic(), dict(self.headers), body, 0)
                chat.asked.append(asked)
                open_now[0] += 1
                chat.open_at_once = max(chat.open_at_once, open_now[0])
            if chat.gate:
                chat.gate.acquire()
            try:
                self._answer(number, asked)
            finally:
                with lock:
                    open_now[0] -= 1

        def _answer(self, number: int, asked: Asked) -> None:
            fault = chat.fault(number)
            if fault in ("drop", "half"):
                if fault == "half":
                    self.wfile.write(b'HTTP/1.1 200 OK\r\nContent-Length: 999\r\n\r\n{"choices": [')
                    self.wfile.flush()
                self.connection.shutdown(socket.SHUT_RDWR)
                self.close_connection = True
            elif isinstance(fault, tuple):
                self._send(asked, *fault)
            elif urlsplit(self.path).path != "/v1/chat/completions":
                self._send(asked, 404, {}, b"<html>not here</html>")
            elif chat.key and self.headers.get("Authorization") != f"Bearer {chat.key}":
                given = self.headers.get("Authorization", "").removeprefix("Bearer ")
                error = {"message": f"Incorrect API key provided: {given}.\nSee the docs.", "code": "invalid_api_key"}
                self._send(asked, 401, {}, json.dumps({"error": error}).encode())
            else:
                self._send(asked, 200, {}, json.dumps(chat.reply(asked.body)).encode())

        def _send(self, asked: Asked, status: int, headers: dict[str, str], content: bytes) -> None:
            asked.status = status
            self.send_response(status)
            for name, value in {**headers, "Content-Length": str(len(content))}.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *_: Any) -> None:
            pass

    class Server(ThreadingHTTPServer):
        daemon_threads = True
        request_queue_size = 64

        def handle_error(self, request: Any, client_address: Any) -> None:
            if not isinstance(sys.exception(), ConnectionError):  # the client was killed
                super().handle_error(request, client_address)

    server = Server(("127.0.0.1", 0), Handler)
    chat.url = f"http://127.0.0.1:{server.server_port}/v1"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
    thread.start()
    try:
        yield chat
    finally:
        server.shutdown()
        server.server_close()
