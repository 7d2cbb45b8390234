"""Writes progress reports into the ConfigMap that the operator created for this pipeline."""

from __future__ import annotations

from lakemirror.api.report import Report
from lakemirror.pod.api import Api

KEY = "progress.json"


class ConfigMapSink:
    """A progress sink that writes the newest report, shortened to fit, under the key progress.json.

    It says which pod and which revision of the spec wrote it, as far as that is known. Raises what urllib
    raises if the API server does not accept it. The next report is a new attempt.
    """

    def __init__(
        self, api: Api, namespace: str, name: str, pod: str | None = None, revision: str | None = None
    ) -> None:
        self._api = api
        self._by = {"pod": pod, "revision": revision}
        self._path = f"/api/v1/namespaces/{namespace}/configmaps/{name}?fieldManager=lakemirror-driver"

    def publish(self, report: Report) -> None:
        """Write the report; called from one thread."""
        whole = report.model_copy(update=self._by).shortened()
        self._api.request("PATCH", self._path, {"data": {KEY: whole.text()}})
