"""Writes progress reports into the ConfigMap that the operator made for this pipeline."""

from __future__ import annotations

import json
import os
import ssl
import urllib.request
from pathlib import Path
from typing import Protocol

from lakemirror.api.progress import Document, shortened

ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
KEY = "progress.json"
_TIMEOUT_SECONDS = 10.0


class HasDocument(Protocol):
    """A report: ``lakemirror.driver.progress.Report``."""

    def document(self) -> Document: ...


class ConfigMapSink:
    """A progress sink: the newest report, shortened to what fits, under the key progress.json.

    It raises what urllib raises when the API server does not take it; the next report will be tried again.
    """

    def __init__(self, namespace: str, name: str, server: str | None = None, account: Path = ACCOUNT) -> None:
        self._url = f"{server or _server()}/api/v1/namespaces/{namespace}/configmaps/{name}"
        self._account = account

    def publish(self, report: HasDocument) -> None:
        """Write the report; called from one thread."""
        text = json.dumps(shortened(report.document()), separators=(",", ":"), ensure_ascii=False)
        request = urllib.request.Request(
            f"{self._url}?fieldManager=lakemirror-driver",
            json.dumps({"data": {KEY: text}}).encode(),
            {
                "Authorization": f"Bearer {(self._account / 'token').read_text('utf-8').strip()}",
                "Content-Type": "application/merge-patch+json",
            },
            method="PATCH",
        )
        with urllib.request.urlopen(request, context=self._trust(), timeout=_TIMEOUT_SECONDS) as answer:
            answer.read()

    def _trust(self) -> ssl.SSLContext | None:
        authority = self._account / "ca.crt"
        return ssl.create_default_context(cafile=str(authority)) if authority.exists() else None


def _server() -> str:
    host, port = os.environ["KUBERNETES_SERVICE_HOST"], os.environ["KUBERNETES_SERVICE_PORT"]
    return f"https://[{host}]:{port}" if ":" in host else f"https://{host}:{port}"
