"""Publishes progress reports from a thread, and says where they go."""

from __future__ import annotations

import json
import logging
import threading
import time
from collections.abc import Callable, Iterable
from typing import Protocol

from lakemirror.api.report import DriverPhase, Report
from lakemirror.driver.checkpoint.storage import Storage
from lakemirror.driver.document import to_json
from lakemirror.driver.errors import LakemirrorError, cause_of

REPORT_FILE = "progress.json"
_log = logging.getLogger(__name__)


class ProgressSink(Protocol):
    """Receives reports."""

    def publish(self, report: Report) -> None: ...


class FileSink:
    """Writes the newest report to a JSON file beside the checkpoint."""

    def __init__(self, storage: Storage, name: str = REPORT_FILE) -> None:
        self._storage = storage
        self._name = name

    def publish(self, report: Report) -> None:
        self._storage.write_text(self._name, to_json(report.document()))


def stored_report(storage: Storage) -> Report | None:
    """Return the newest report beside the checkpoint, or None if none can be read."""
    try:
        return Report.read(json.loads(storage.read_text(REPORT_FILE)))
    except (FileNotFoundError, ValueError, LakemirrorError):
        return None


class Reporter:
    """Publishes reports from a thread: soon after news, but not often, and now and then without news.

    ``make`` returns the current report. A sink that fails is logged and tried again with the next report.
    """

    def __init__(
        self,
        make: Callable[[DriverPhase], Report],
        sinks: Iterable[ProgressSink],
        *,
        at_most_every: float = 10.0,
        at_least_every: float = 30.0,
    ) -> None:
        self._make = make
        self._sinks = list(sinks)
        self._soon, self._late = at_most_every, at_least_every
        self._news = threading.Event()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._loop, name="lakemirror-progress", daemon=True)

    def start(self) -> None:
        """Publish a report now, and start publishing from the thread."""
        self._publish("Starting")
        self._thread.start()

    def news(self) -> None:
        """Note that something has happened that the next report should include."""
        self._news.set()

    def stop(self, phase: DriverPhase) -> Report:
        """Publish the last report at once, and return it."""
        self._stop.set()
        self._news.set()
        if self._thread.is_alive():
            self._thread.join()
        return self._publish(phase)

    def _loop(self) -> None:
        while True:
            began = time.monotonic()
            if self._stop.wait(self._soon):
                return
            self._news.wait(max(0.0, self._late - (time.monotonic() - began)))
            if self._stop.is_set():
                return
            self._news.clear()
            self._publish("Running")

    def _publish(self, phase: DriverPhase) -> Report:
        report = self._make(phase)
        for sink in self._sinks:
            try:
                sink.publish(report)
            except Exception as error:
                _log.warning("progress could not be reported by %s: %s", type(sink).__name__, cause_of(error))
        return report
