"""All that a run says while it goes on."""

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
    """Tells events to ``on_event`` and warnings to the log besides, and has reports published.

    ``progress`` adds up what the run did; ``source`` takes in whether the source can be reached.
    """

    def __init__(
        self, pipeline: str, on_event: Callable[[Event], None] | None, settle: float = SETTLE_SECONDS
    ) -> None:
        self.tell: Callable[[Event], None] = on_event or (lambda event: None)
        self.progress = Progress(pipeline, settle)
        self.source = SourceWatch(self._source_changed)
        self._reporter: Reporter | None = None

    def warn(self, message: str) -> None:
        """Say what a person should see."""
        _log.warning("%s", message)
        self.progress.warn(message)
        self.tell(Warned(message))

    def news(self) -> None:
        """Something has happened that the next report should tell."""
        if self._reporter is not None:
            self._reporter.news()

    def publish(self, report: Report) -> None:
        """Tell a report as an event: the announcer is a sink itself."""
        self.tell(Reported(report))

    def start(self, feed: Feed, held: HeldRecords, sinks: Sequence[ProgressSink]) -> None:
        """Report to ``sinks``, now and from now on."""
        self._reporter = Reporter(partial(self._report, feed, held), sinks)
        self._reporter.start()

    def end(self, phase: DriverPhase) -> None:
        """The last report."""
        if self._reporter is not None:
            self._reporter.stop(phase)

    def fail(self, error: BaseException) -> None:
        """The last report, with what ended the run."""
        self.progress.failed(error)
        self.end("Failed")

    def lag(self, feed: Feed) -> Lag:
        """The feed's lag; unknown while the source cannot be reached."""
        if self.source.lost:  # whoever reads it asks again and again
            return _UNKNOWN
        try:
            return feed.lag()
        except Exception as error:
            _log.debug("the source's lag cannot be told: %s", cause_of(error))
            return _UNKNOWN

    def _report(self, feed: Feed, held: HeldRecords, phase: DriverPhase) -> Report:
        # The first report waits for no source: it tells at once where the checkpoint stands.
        observed = datetime.now(UTC)  # what comes while the lag is being asked for is not in it
        lag = _UNKNOWN if phase == "Starting" else self.lag(feed)
        counted = held.counted  # first: what is counted anew meanwhile has at least that
        return self.progress.report(phase, lag, held.open, self.source.said, observed, counted)

    def _source_changed(self, said: SourceReport) -> None:
        """Tell that the source is reached, is lost, or is lost for another reason."""
        if said.error is not None:
            self.warn(f"the source cannot be reached: {said.error}")
        else:
            _log.info("the source is reached")
        self.news()
