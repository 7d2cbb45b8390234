"""A schema registry for tests: the questions that a driver asks of Confluent's API and of Apicurio's own, and
the ways in which one fails.
"""

from __future__ import annotations

import base64
import json
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from tests.support.records import read

Schema = Mapping[str, Any]
"""What a registry answers: ``schema``, and ``schemaType`` and ``references`` where it has them."""


@dataclass
class Registry:
    """A registry with schemas by id and by subject and version; ``own`` are the documents of Apicurio's own
    API, by the end of their path. While ``fails`` is a status, it answers so; ``odd`` has answers to single
    questions, by the end of their path. ``asked`` are the paths of the questions.
    """

    url: str
    schemas: dict[int, Schema] = field(default_factory=dict)
    guids: dict[str, Schema] = field(default_factory=dict)
    subjects: dict[tuple[str, int], Schema] = field(default_factory=dict)
    own: dict[str, str] = field(default_factory=dict)
    login: tuple[str, str] | None = None
    fails: int | None = None
    odd: dict[str, tuple[int, Any]] = field(default_factory=dict)
    asked: list[str] = field(default_factory=list)

    @property
    def envelope(self) -> dict[str, Any]:
        """The ``envelope`` of a manifest that reads records of this registry."""
        return {"format": "debezium", "encoding": "avro", "schemaRegistry": {"url": self.url}}

    def take(self, path: Path) -> None:
        """Add the schemas of a capture."""
        self.schemas |= {each["id"]: {"schema": each["schema"]} for each in read(path)}

    def answer(self, path: str, authorization: str | None) -> tuple[int, Any]:
        self.asked.append(path)
        if self.fails is not None:
            return self.fails, {"error_code": self.fails, "message": "as the test wants it"}
        for end, answer in self.odd.items():
            if path.endswith(end):
                return answer
        if path.endswith("/schemas/types"):
            return 200, ["JSON", "PROTOBUF", "AVRO"]
        if path.endswith("/system/info"):
            return 200, {"name": "Apicurio Registry (In Memory)"}
        if self.login is not None:
            expected = base64.b64encode(":".join(self.login).encode()).decode()
            if authorization != f"Basic {expected}":
                return 401, {"error_code": 401, "message": "Unauthorized"}
        if "/apis/registry/" in path:
            end = path.split("/apis/registry/")[1][len("v2/") :]
            none = [] if end.removesuffix("/references") in self.own else None
            text = self.own.get(end)
            found = none if text is None and end.endswith("/references") else text and json.loads(text)
            return (404, {"error_code": 404}) if found is None else (200, found)
        parts = path.removeprefix("/apis/ccompat/v7").strip("/").split("/")
        if parts[:2] == ["schemas", "guids"] and parts[2] in self.guids:
            return 200, self.guids[parts[2]]
        if parts[:2] == ["schemas", "ids"] and int(parts[2]) in self.schemas:
            return 200, self.schemas[int(parts[2])]
        if parts[0] == "subjects" and (parts[1], int(parts[3])) in self.subjects:
            return 200, self.subjects[parts[1], int(parts[3])]
        return 404, {"error_code": 40403, "message": "Schema not found"}


@contextmanager
def serving() -> Iterator[Registry]:
    """A registry on a port of its own."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            status, body = registry.answer(self.path, self.headers.get("Authorization"))
            data = body if isinstance(body, bytes) else json.dumps(body).encode()
            self.send_response(status)
            if 300 <= status < 400:
                self.send_header("Location", body)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    registry = Registry(f"http://127.0.0.1:{server.server_port}")
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    try:
        yield registry
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
