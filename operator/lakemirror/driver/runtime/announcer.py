"""Everything that a run reports while it works."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from functools import partial

from lakemirror.api.report import DriverPhase, Report, SourceReport
from lakemirror.driver.errors import cause_of
from lakemirror.driver.read.base import Feed, Lag
from lakemirror.driver.read.watch import SourceWatch
from lakemirror.driver.runtime.events import Event, Reported, Warned
from lakemirror.driver.runtime.held import HeldRecords
from lakemirror.driver.runtime.progress import SETTLE_SECONDS, Progress
from lakemirror.driver.runtime.reporter import ProgressSink, Reporter

_UNKNOWN = Lag(None, False)
_log = logging.getLogger(__name__)


class Announcer:
    """Passes events to ``on_event``, also logs warnings, and has reports published.

    ``progress`` adds up what the run did. ``source`` tracks whether the source can be reached.
    """

    def __init__(
        self,
        pipeline: str,
        on_event: Callable[[Event], None] | None,
        settle: float = SETTLE_SECONDS,
        interval: float = 0.0,
    ) -> None:
        self.tell: Callable[[Event], None] = on_event or (lambda event: None)
        self.progress = Progress(pipeline, settle, interval)
        self.source = SourceWatch(self._source_changed)
        self._reporter: Reporter | None = None

    def warn(self, message: str) -> None:
        """Report something that a person should see."""
        _log.warning("%s", message)
        self.progress.warn(message)
        self.tell(Warned(message))

    def news(self) -> None:
        """Note that something has happened that the next report should include."""
        if self._reporter is not None:
            self._reporter.news()

    def publish(self, report: Report) -> None:
        """Pass a report on as an event: the announcer itself is a sink."""
        self.tell(Reported(report))

    def start(self, feed: Feed, held: HeldRecords, sinks: Sequence[ProgressSink]) -> None:
        """Publish a report to ``sinks`` now, and keep publishing."""
        self._reporter = Reporter(partial(self._report, feed, held), sinks)
        self._reporter.start()

    def end(self, phase: DriverPhase) -> None:
        """Publish the last report."""
        if self._reporter is not None:
            self._reporter.stop(phase)

    def fail(self, error: BaseException) -> None:
        """Publish the last report, with the error that ended the run."""
        self.progress.failed(error)
        self.end("Failed")

    def lag(self, feed: Feed) -> Lag:
        """Return the feed's lag, which is unknown while the source cannot be reached."""
        if self.source.lost:  # the thread that reads it keeps asking
            return _UNKNOWN
        try:
            return feed.lag()
        except Exception as error:
            _log.debug("the source's lag cannot be told: %s", cause_of(error))
            return _UNKNOWN

    def _report(self, feed: Feed, held: HeldRecords, phase: DriverPhase) -> Report:
        # The first report does not wait for the source: it says at once where the checkpoint is.
        observed = datetime.now(UTC)  # the lag does not include what arrives while it is queried
        lag = _UNKNOWN if phase == "Starting" else self.lag(feed)
        counted = held.counted  # read before held.open: a recount in between includes at least this
        return self.progress.report(phase, lag, held.open, self.source.said, observed, counted)

    def _source_changed(self, said: SourceReport) -> None:
        """Report that the source is reached, is lost, or is lost for another reason."""
        if said.error is not None:
            self.warn(f"the source cannot be reached: {said.error}")
        else:
            _log.info("the source is reached")
        self.news()
