"""A proxy in front of an object store: the store is away, slow, fails, or carries a request out unheard."""

from __future__ import annotations

import http.client
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Literal

Matches = Callable[[str, str], bool]
"""Whether a request is meant, by its method and its path."""

_HELD_SECONDS = 300.0
_ERRORS = {
    503: "SlowDown",
    500: "InternalError",
    409: "ConditionalRequestConflict",
    412: "PreconditionFailed",
}


def every(method: str, path: str) -> bool:
    return True


def puts(method: str, path: str) -> bool:
    return method == "PUT"


def commits(method: str, path: str) -> bool:
    """Puts of a version of a Delta log."""
    return method == "PUT" and "/_delta_log/" in path and path.partition("?")[0].endswith(".json")


@dataclass
class Fault:
    """What happens to so many of the requests that match, after the first ``skip``.

    A number is the answer in the store's place; ``lost`` has the request carried out, and the connection
    closed without an answer; ``unconditional`` says that a put succeeded which the store has refused for its
    condition; a request that is ``held`` waits until ``go_on`` is set, and is never carried out.
    """

    kind: int | Literal["lost", "unconditional", "held"]
    matches: Matches = every
    times: int = 1
    skip: int = 0
    share: int = 1
    """Of the matching requests, each so many-th."""
    met: int = 0
    held: threading.Event = field(default_factory=threading.Event, repr=False)
    go_on: threading.Event = field(default_factory=threading.Event, repr=False)
    _seen: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False)

    def meets(self, method: str, path: str) -> bool:
        with self._lock:
            if self.met >= self.times or not self.matches(method, path):
                return False
            self._seen += 1
            if self._seen <= self.skip or self._seen % self.share:
                return False
            self.met += 1
            return True


class Proxy:
    """Hands requests to the store at ``port``, with the faults that are set."""

    def __init__(self, port: int) -> None:
        self.slow_seconds = 0.0
        self.puts = self.requests = 0
        self._store = port
        self._away = threading.Event()
        self._faults: list[Fault] = []
        proxy = self

        class Handler(_Handler):
            def carry(self) -> None:
                proxy._carry(self)

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.port = int(self._server.server_address[1])
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()

    @contextmanager
    def fault(self, fault: Fault) -> Iterator[Fault]:
        self._faults.append(fault)
        try:
            yield fault
        finally:
            self._faults.remove(fault)

    @contextmanager
    def answers_that_fail_or_never_come(self) -> Iterator[None]:
        """503 to each eleventh request, each seventh put unheard, and 412 to commits that conflict with none.

        Each of them has to be met more than once.
        """
        faults = [
            Fault(412, commits, times=2, share=3),
            Fault(503, every, times=10_000, share=11),
            Fault("lost", puts, times=10_000, share=7),
        ]
        with ExitStack() as stack:
            for each in faults:
                stack.enter_context(self.fault(each))
            yield
        assert [fault.met > 1 for fault in faults] == [True] * 3

    @contextmanager
    def away(self) -> Iterator[None]:
        """Connections are closed without an answer."""
        self._away.set()
        try:
            yield
        finally:
            self._away.clear()

    def _carry(self, request: _Handler) -> None:
        length = int(request.headers.get("Content-Length") or 0)
        body = request.rfile.read(length)
        if self._away.is_set():
            request.close_connection = True
            return
        time.sleep(self.slow_seconds)
        method, path = request.command, request.path
        self.puts += method == "PUT"
        self.requests += 1
        fault = next((fault for fault in self._faults if fault.meets(method, path)), None)
        kind = None if fault is None else fault.kind
        if fault is not None and kind == "held":
            fault.held.set()
            fault.go_on.wait(_HELD_SECONDS)
            request.close_connection = True
            return
        if isinstance(kind, int):
            request.answer(kind, _error(kind), {"Content-Type": "application/xml"})
            return
        status, content, headers = self._ask(request, body)
        if kind == "unconditional" and status == 412:
            status, content, headers = 200, b"", {"ETag": '"d41d8cd98f00b204e9800998ecf8427e"'}
        if kind == "lost":
            request.close_connection = True
        else:
            request.answer(status, content, headers)

    def _ask(self, request: _Handler, body: bytes) -> tuple[int, bytes, dict[str, str]]:
        store = http.client.HTTPConnection("127.0.0.1", self._store, timeout=120)
        store.putrequest(request.command, request.path, skip_host=True, skip_accept_encoding=True)
        for name, value in request.headers.items():
            if name.lower() not in ("expect", "connection"):
                store.putheader(name, value)
        store.endheaders(body)
        answer = store.getresponse()
        content = answer.read()
        headers = {name: value for name, value in answer.getheaders() if name.lower() != "transfer-encoding"}
        store.close()
        return answer.status, content, headers


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def carry(self) -> None:
        raise NotImplementedError

    def do_GET(self) -> None:
        self.carry()

    do_PUT = do_POST = do_DELETE = do_HEAD = do_GET  # noqa: N815 - as http.server calls them

    def answer(self, status: int, content: bytes, headers: dict[str, str]) -> None:
        self.send_response_only(status)
        named = {name.lower() for name in headers}
        for name, value in headers.items():
            self.send_header(name, value)
        if "content-length" not in named:
            self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)

    def log_message(self, format: str, *args: Any) -> None:
        pass


def _error(status: int) -> bytes:
    code = _ERRORS[status]
    return f"<Error><Code>{code}</Code><Message>{code}</Message></Error>".encode()
