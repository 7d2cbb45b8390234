"""What reaches the API server when the driver reports."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any
from urllib.error import HTTPError

import pytest

from lakemirror.api.report import Report, TableReport
from lakemirror.pod.api import Api
from lakemirror.pod.report import ConfigMapSink


class Server(HTTPServer):
    """Remembers requests, and answers with ``status``."""

    status = 200

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.got: list[tuple[str, str, dict[str, str], Any]] = []


class Handler(BaseHTTPRequestHandler):
    server: Server

    def do_PATCH(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.got.append((self.command, self.path, dict(self.headers), body))
        self.send_response(self.server.status)
        self.end_headers()

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture
def server() -> Iterator[Server]:
    with Server() as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server
        server.shutdown()
        thread.join()


REPORT = Report(pipeline="shop", batch_id=3, tables_total=1, tables=[TableReport(source="a.b")])


def test_the_report_goes_into_the_config_map(server: Server, tmp_path: Path) -> None:
    (tmp_path / "token").write_text("t0ken\n")
    sink = ConfigMapSink(Api(f"http://127.0.0.1:{server.server_port}", tmp_path), "ns", "shop-progress")
    sink.publish(REPORT)
    [(verb, path, headers, body)] = server.got
    assert (verb, path.partition("?")[0]) == ("PATCH", "/api/v1/namespaces/ns/configmaps/shop-progress")
    assert headers["Authorization"] == "Bearer t0ken"
    assert headers["Content-Type"] == "application/merge-patch+json"
    assert json.loads(body["data"]["progress.json"]) == REPORT.document()


def test_the_report_says_which_pod_and_revision_wrote_it(server: Server, tmp_path: Path) -> None:
    (tmp_path / "token").write_text("t")
    api = Api(f"http://127.0.0.1:{server.server_port}", tmp_path)
    ConfigMapSink(api, "ns", "shop-progress", pod="uid-7", revision="0123456789").publish(REPORT)
    told = json.loads(server.got[0][3]["data"]["progress.json"])
    assert (told["pod"], told["revision"]) == ("uid-7", "0123456789")


def test_a_refusal_is_an_error_for_the_reporter_to_log(server: Server, tmp_path: Path) -> None:
    (tmp_path / "token").write_text("t")
    server.status = 403
    sink = ConfigMapSink(Api(f"http://127.0.0.1:{server.server_port}", tmp_path), "ns", "shop-progress")
    with pytest.raises(HTTPError):
        sink.publish(REPORT)
