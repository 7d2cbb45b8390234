"""Writes progress reports into the ConfigMap that the operator made for this pipeline."""

from __future__ import annotations

import json
from typing import Protocol

from lakemirror.api.progress import Document, shortened
from lakemirror.pod.api import Api

KEY = "progress.json"


class HasDocument(Protocol):
    """A report: ``lakemirror.driver.progress.Report``."""

    def document(self) -> Document: ...


class ConfigMapSink:
    """A progress sink: the newest report, shortened to what fits, under the key progress.json.

    It raises what urllib raises when the API server does not take it; the next report will be tried again.
    """

    def __init__(self, api: Api, namespace: str, name: str) -> None:
        self._api = api
        self._path = f"/api/v1/namespaces/{namespace}/configmaps/{name}?fieldManager=lakemirror-driver"

    def publish(self, report: HasDocument) -> None:
        """Write the report; called from one thread."""
        text = json.dumps(shortened(report.document()), separators=(",", ":"), ensure_ascii=False)
        self._api.request("PATCH", self._path, {"data": {KEY: text}})
