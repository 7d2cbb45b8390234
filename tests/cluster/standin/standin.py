#!/usr/bin/env python3
"""A driver that mirrors nothing, but reports as the real one does and behaves as a test wants it to.

It is started as the driver is (``python3 -m lakemirror.pod``, its manifest in a file), and patches
the ConfigMap ``LAKEMIRROR_PROGRESS_CONFIGMAP``, key ``progress.json``, with the document that
``lakemirror.driver.runtime.progress`` describes. What it does stands as JSON in the key ``behaviour`` of
ConfigMap ``<pipeline>-behaviour``, which it reads every second:

    lag         records that are not applied (0)
    commits     a new batch every 2 s (false)
    silent      report nothing (false)
    exit        end at once with this exit code, and with `message` as the reason (null)
    stubborn    ignore SIGTERM (false)
    tables      number of tables in the report (1)
    report      fields that replace those of the report ({})

It ends with 0 when a mounted Secret or ConfigMap has changed, as the real driver does. Each start and each
end becomes a line of the key ``journal`` there, for tests to count. A task, such as the cleanup of a deleted
pipeline's data, is noted and done. Needs the standard library only.
"""

from __future__ import annotations

import json
import os
import re
import signal
import ssl
import sys
import threading
import time
import urllib.error
import urllib.request
import uuid
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from lakemirror.mounts import MountWatch

ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
NAMESPACE = (ACCOUNT / "namespace").read_text()
API = f"https://{os.environ['KUBERNETES_SERVICE_HOST']}:{os.environ['KUBERNETES_SERVICE_PORT']}"
TRUST = ssl.create_default_context(cafile=str(ACCOUNT / "ca.crt"))
MANIFEST = Path("/etc/lakemirror/pipeline.yaml")
SECRETS = Path("/etc/lakemirror-secrets")
WATCHED = Path("/etc/lakemirror-watched")
TERMINATION_LOG = Path("/dev/termination-log")


class ConfigMap:
    """One ConfigMap of this namespace."""

    def __init__(self, name: str) -> None:
        self._url = f"{API}/api/v1/namespaces/{NAMESPACE}/configmaps/{name}"

    def read(self) -> dict[str, Any]:
        """The whole object; KeyError where there is none."""
        try:
            return self._call("GET")
        except urllib.error.HTTPError as error:
            if error.code == 404:
                raise KeyError(self._url) from None
            raise

    def patch(self, data: dict[str, str], version: str | None = None) -> None:
        """Set keys; with ``version`` only if the object still has this resourceVersion."""
        body: dict[str, Any] = {"data": data}
        if version:
            body["metadata"] = {"resourceVersion": version}
        self._call("PATCH", body)

    def _call(self, method: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
        headers = {"Authorization": f"Bearer {(ACCOUNT / 'token').read_text()}"}
        headers["Content-Type"] = "application/merge-patch+json"
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self._url, data, headers, method=method)
        with urllib.request.urlopen(request, context=TRUST, timeout=10) as answer:
            found: dict[str, Any] = json.load(answer)
            return found


class Standin:
    def __init__(self, pipeline: str, manifest: str) -> None:
        self.pipeline, self.manifest = pipeline, manifest
        self.run_id, self.started = uuid.uuid4().hex, now()
        self.progress = ConfigMap(os.environ["LAKEMIRROR_PROGRESS_CONFIGMAP"])
        self.orders = ConfigMap(f"{pipeline}-behaviour")
        self.batch, self.committed, self.committed_at = 0, 0.0, ""
        self.told: dict[str, Any] = {}
        self.told_at = 0.0
        self.stopping = threading.Event()
        self.mounts = MountWatch([f for top in (SECRETS, WATCHED) if top.exists() for f in top.iterdir()])

    def run(self) -> int:
        signal.signal(signal.SIGTERM, lambda *_: self.stopping.set())
        self.note("start")
        while True:
            behaviour = self.behaviour()
            if behaviour.get("exit") is not None:
                return self.fail(behaviour)
            if self.mounts.changed():
                self.stopping.set()
            if self.stopping.is_set() and not behaviour.get("stubborn"):
                self.tell("Stopped", behaviour)
                self.note("end")
                return 0
            if behaviour.get("commits") and time.monotonic() - self.committed > 2:
                self.batch, self.committed, self.committed_at = self.batch + 1, time.monotonic(), now()
            self.tell("Running", behaviour)
            self.stopping.wait(1)
            if behaviour.get("stubborn"):
                time.sleep(1)

    def fail(self, behaviour: dict[str, Any]) -> int:
        message = behaviour.get("message", "told to fail")
        code = int(behaviour["exit"])
        if code:
            self.tell("Failed", behaviour | {"report": {"failure": message} | behaviour.get("report", {})})
            TERMINATION_LOG.write_text(message)
        else:
            self.tell("Completed", behaviour)
        self.note(f"exit {code}")
        return code

    def behaviour(self) -> dict[str, Any]:
        try:
            found: dict[str, Any] = json.loads(self.orders.read()["data"]["behaviour"])
            return found
        except (KeyError, OSError):
            return {}

    def tell(self, phase: str, behaviour: dict[str, Any]) -> None:
        """Patch the report if it says something new, or is 30 s old."""
        said = self.document(phase, behaviour)
        old = time.monotonic() - self.told_at > 30
        if behaviour.get("silent") or (said == self.told and not old):
            return
        try:
            self.progress.patch({"progress.json": json.dumps({**said, "observedAt": now()})})
        except OSError as error:
            print("no report:", error, flush=True)
            return
        self.told, self.told_at = said, time.monotonic()

    def document(self, phase: str, behaviour: dict[str, Any]) -> dict[str, Any]:
        lag = behaviour.get("lag", 0)
        tables = [self.table(number) for number in range(behaviour.get("tables", 1))]
        totals = dict.fromkeys(COUNTS, 0) | {"applied": self.batch * 10, "inserted": self.batch * 10}
        document = {
            "pipeline": self.pipeline,
            "runId": self.run_id,
            "startedAt": self.started,
            "phase": phase,
            "batchId": self.batch or None,
            "committedAt": self.committed_at or None,
            "lagRecords": lag,
            "lagSeconds": 12.0 if lag else 0.0,
            "eventTime": self.started,
            "caughtUp": not lag,
            "totals": totals,
            "tablesTotal": len(tables),
            "tables": tables,
            "sourceRestarted": None,
            "tableFailed": None,
            "failure": None,
            "warnings": [],
        }
        return document | behaviour.get("report", {})

    def table(self, number: int) -> dict[str, Any]:
        counts = dict.fromkeys(COUNTS, 0)
        source = f"public.table_{number:04}"
        state = {
            "target": f"/lake/public/{source}",
            "version": self.batch,
            "rows": 0,
            "drift": [],
            "error": None,
        }
        return {"source": source, "lastEventTime": self.started, **state, **counts}

    def note(self, what: str) -> None:
        """Add a line to the journal; where a test has made none, to nothing."""
        line = {"what": what, "runId": self.run_id, "pod": os.uname().nodename, "at": now()}
        line["manifest"] = self.manifest
        print(json.dumps(line), flush=True)
        for _ in range(20):
            try:
                found = self.orders.read()
                journal = (found.get("data") or {}).get("journal", "") + json.dumps(line) + "\n"
                self.orders.patch({"journal": journal}, found["metadata"]["resourceVersion"])
                return
            except KeyError:
                return
            except OSError as error:
                print("no journal:", error, flush=True)
                time.sleep(0.5)


COUNTS = (
    "applied",
    "inserted",
    "updated",
    "deleted",
    "stale",
    "duplicates",
    "tombstoneRecords",
    "tombstonesRetained",
    "lateAfterCollection",
    "quarantined",
)


def now() -> str:
    return datetime.now(UTC).isoformat()


def main() -> int:
    manifest = MANIFEST.read_text()
    named = re.search(r"^metadata:(?:\n  .*)*?\n  name: (.*)$", manifest, re.MULTILINE)
    if not named:
        print("the manifest has no name:", manifest, flush=True)
        return 2
    standin = Standin(named[1], manifest)
    if sys.argv[1:]:
        standin.note(" ".join(sys.argv[1:]))
        return 0
    return standin.run()


if __name__ == "__main__":
    sys.exit(main())
