"""The events that a run passes to ``on_event``."""

from __future__ import annotations

from dataclasses import dataclass

from lakemirror.api.report import Report
from lakemirror.driver.read.base import Batch
from lakemirror.driver.results import BatchResult
from lakemirror.driver.runtime.summary import RunSummary


@dataclass(frozen=True)
class Started:
    """The run owns its checkpoint and is about to read."""

    pipeline: str
    run_id: str
    checkpoint: str


@dataclass(frozen=True)
class BatchStarted:
    """A batch is about to be applied or retried."""

    batch: Batch


@dataclass(frozen=True)
class BatchDone:
    """A batch was applied, in ``seconds``."""

    result: BatchResult
    seconds: float


@dataclass(frozen=True)
class Reported:
    """A progress report was published."""

    report: Report


@dataclass(frozen=True)
class Warned:
    """Something happened that a person should see."""

    message: str


@dataclass(frozen=True)
class Resync:
    """Tables are being read again because of their resyncToken, or that is ``done``."""

    tables: str
    done: bool


@dataclass(frozen=True)
class Maintained:
    """A table was compacted (optimize) or cleaned (vacuum).

    ``done`` describes the result, and ``seconds`` is how long it took.
    """

    task: str
    path: str
    done: str
    seconds: float


@dataclass(frozen=True)
class Finished:
    """The run has ended without an error."""

    summary: RunSummary


Event = Started | BatchStarted | BatchDone | Reported | Warned | Resync | Maintained | Finished
