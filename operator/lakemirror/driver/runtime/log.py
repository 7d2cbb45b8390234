"""Writes a driver's log: one line for each batch, and whatever else a person should know."""

from __future__ import annotations

import logging
import os
from datetime import UTC, datetime

from lakemirror.api.logs import OneLine
from lakemirror.driver.document import iso
from lakemirror.driver.runtime.display import counts_text, drift_text
from lakemirror.driver.runtime.events import BatchDone, Event, Resync, Started

LEVEL_VARIABLE = "LAKEMIRROR_LOG_LEVEL"
_log = logging.getLogger("lakemirror")


def configure() -> None:
    """Log to standard error with UTC times. ``LAKEMIRROR_LOG_LEVEL=debug`` adds stack traces of errors."""
    level = os.environ.get(LEVEL_VARIABLE, "info").upper()
    OneLine.begin(
        "%(asctime)s %(levelname)s %(message)s",
        level=level if level in logging.getLevelNamesMapping() else "INFO",
        datefmt="%Y-%m-%dT%H:%M:%SZ",
    )
    logging.getLogger("py4j").setLevel(logging.WARNING)  # it logs every call between Python and Java


class LogLines:
    """Logs the events of a run: ``run(pipeline, on_event=LogLines())``."""

    def __init__(self) -> None:
        self._refused: dict[str, str] = {}

    def __call__(self, event: Event) -> None:
        match event:
            case Started():
                _log.info("%s: run %s, checkpoint %s", event.pipeline, event.run_id, event.checkpoint)
            case BatchDone():
                self._batch(event)
            case Resync():
                told = "were read again" if event.done else "are read again from the beginning"
                _log.info("tables %s %s", event.tables, told)
            case _:
                pass

    def _batch(self, event: BatchDone) -> None:
        counts = event.result.counts
        level = logging.WARNING if counts.quarantined or counts.refused else logging.INFO
        _log.log(level, "%s", batch_line(event))
        for source, table in event.result.tables.items():
            for drift in table.drift:
                _log.warning("schema drift: %s.%s", source, drift_text(drift))
            before = self._refused.pop(source, None)
            if table.error is not None:
                self._refused[source] = table.error
                if table.error != before:
                    _log.warning("table %s is refused: %s", source, table.error)
            elif before is not None:
                _log.info("table %s is written again", source)


def batch_line(event: BatchDone, now: datetime | None = None) -> str:
    """Describe a batch in one line.

    The line contains the tables, the records and their outcomes, the rows, the seconds, and the age of the
    newest change.
    """
    result = event.result
    times = [table.last_event_time for table in result.tables.values() if table.last_event_time is not None]
    newest = max((each if each.tzinfo else each.replace(tzinfo=UTC) for each in times), default=None)
    number = len(result.tables)
    line = f"batch {result.batch_id}: {number} table{'s' * (number != 1)}, {counts_text(result.counts)}, "
    line += f"{event.seconds:.1f} s"
    if newest is None:
        return line
    age = ((now or datetime.now(UTC)) - newest).total_seconds()
    return f"{line}; the newest change is of {iso(newest)}, {age:.0f} s ago"
