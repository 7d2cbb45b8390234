"""Requests for a replay and their outcomes: files beside the checkpoint.

Only the driver writes mirrors. A replay is therefore a request: a file ``replay/<id>.json``, which the driver
carries out between two batches. The outcome is written to ``replay/outcomes/<id>.json``.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from typing import Generic, Protocol, TypeVar

from pyspark.sql import Column
from pyspark.sql import functions as F

from lakemirror.driver import faults
from lakemirror.driver.checkpoint.storage import FileCutOff, Storage
from lakemirror.driver.document import iso
from lakemirror.driver.errors import CheckpointInUse, LakemirrorError, cause_of
from lakemirror.driver.results import BatchResult
from lakemirror.driver.runtime.backoff import Backoff

FOLDER = "replay"
OUTCOMES = f"{FOLDER}/outcomes"
_POLL_SECONDS = 0.5
_FIRST_DELAY, _LONGEST_DELAY = 5.0, 900.0
_OUTCOMES_KEPT = 100


class DamagedRequest(LakemirrorError):
    """A request file cannot be read."""


class Request(Protocol):
    """Something that the driver is asked to do between two batches."""

    @property
    def id(self) -> str:
        """The unique name of the request."""


Asked = TypeVar("Asked", bound=Request)


@dataclass(frozen=True)
class ReplayRequest:
    """Selects the open records to replay: those of a table, those whose reason contains a text, or all.

    With ``discard``, they are closed instead. If neither a table nor a reason is given, that leaves out held
    records, which the driver retries automatically.
    """

    id: str
    table: str | None = None
    reason: str | None = None
    discard: bool = False

    @classmethod
    def parse(cls, text: str, where: str) -> ReplayRequest:
        """Parse the request in the file ``where``. Raises DamagedRequest if it cannot be read."""
        try:
            document = json.loads(text)
            request = cls(
                document["id"], document["table"], document["reason"], document.get("discard", False)
            )
            texts = (request.id, request.table, request.reason)
            if not all(value is None or isinstance(value, str) for value in texts):
                raise TypeError("a text is expected for id, table and reason")
            if not isinstance(request.discard, bool):
                raise TypeError("true or false is expected for discard")
            return request
        except (ValueError, TypeError, KeyError) as error:
            raise DamagedRequest(
                f"{where} is not a replay request ({type(error).__name__}: {error}): delete it, and run "
                "`lakemirror replay` again if the replay is still wanted"
            ) from None

    def chosen(self) -> Column:
        """Return the condition that selects these records among the quarantine's open rows."""
        wanted = F.lit(True)
        if self.table is not None:
            wanted = (F.col("source") == self.table) | F.endswith(F.col("source"), F.lit("." + self.table))
        if self.reason is not None:
            wanted = wanted & F.col("reason").contains(self.reason)
        if self.discard and self.table is None and self.reason is None:
            wanted = F.coalesce("scope", F.lit("record")) == "record"
        return wanted


@dataclass(frozen=True)
class StillBad:
    """Records that stay in quarantine, by table and reason.

    ``source`` is the table, or "" if it is unknown. ``records`` is how many there are, and ``places`` where
    some of them were in the source.
    """

    source: str
    reason: str
    records: int
    places: tuple[str, ...] = ()


@dataclass(frozen=True)
class ReplayOutcome:
    """The outcome of a replay.

    ``records`` is how many were taken up, and ``taken`` how many of each table. ``still_bad`` of them stay in
    quarantine, for the reasons in ``bad``. ``error`` says why the last of ``attempts`` failed; the driver
    tries again. ``filed`` says that a running driver is to do it and has not reported an outcome yet.
    ``discarded`` says that the records were closed and not applied.
    """

    request: str
    records: int = 0
    still_bad: int = 0
    filed: bool = False
    taken: dict[str, int] = field(default_factory=dict)
    bad: tuple[StillBad, ...] = ()
    error: str | None = None
    attempts: int = 1
    at: str | None = None
    discarded: bool = False

    @property
    def done(self) -> bool:
        """Whether none of its records are left in quarantine."""
        return not (self.filed or self.error or self.still_bad)

    def text(self) -> str:
        """Return the outcome as JSON."""
        return json.dumps(asdict(self), indent=2, ensure_ascii=False) + "\n"

    @classmethod
    def parse(cls, text: str) -> ReplayOutcome:
        """Parse an outcome from JSON. Raises ValueError while the file is being written."""
        document = json.loads(text)
        bad = tuple(StillBad(**{**each, "places": tuple(each["places"])}) for each in document.pop("bad"))
        return cls(**document, bad=bad)


def aside(table: str, result: BatchResult, records: int) -> tuple[StillBad, ...]:
    """Return which of the ``records`` of a table a batch kept aside; its ``result`` is `without_open`."""
    kept = records - result.counts.records
    if not kept:
        return ()
    error = result.tables[table].error if table in result.tables else None
    reason = f"held, and tried again by itself: {error}" if error else "kept in the quarantine"
    return (StillBad(table, reason, kept),)


def file_request(storage: Storage, request: ReplayRequest) -> None:
    """Ask the driver for a replay by filing a request."""
    storage.write_text_new(f"{FOLDER}/{request.id}.json", json.dumps(asdict(request)) + "\n")


def await_outcome(storage: Storage, request: Request, timeout: float, folder: str = FOLDER) -> ReplayOutcome:
    """Wait for the outcome of a request, and return it.

    If the driver has not reported one after ``timeout`` seconds, returns an outcome that is only ``filed``.
    """
    until = time.monotonic() + timeout
    while True:
        outcome = _told(storage, request.id, folder)
        if outcome is not None:
            return outcome
        if time.monotonic() >= until:
            return ReplayOutcome(request.id, filed=True)
        time.sleep(_POLL_SECONDS)


def _told(storage: Storage, identity: str, folder: str) -> ReplayOutcome | None:
    """Return the outcome that the driver wrote for a request, or None until it is completely written."""
    try:
        return ReplayOutcome.parse(storage.read_text(f"{folder}/outcomes/{identity}.json"))
    except (FileNotFoundError, ValueError, TypeError, KeyError, LakemirrorError):
        return None


class Requests(Generic[Asked]):
    """Serves the requests that were filed in a ``folder``, for the owner of the checkpoint.

    ``parse`` reads a request, and ``carry_out`` does what it asks for. A request that fails is retried after
    a growing delay, and no other waits for it. ``warn`` receives failures. ``what`` is the word for the kind
    of request in messages. ``settled`` receives the id of a request whose outcome is written, and which is
    therefore never carried out again.
    """

    def __init__(
        self,
        storage: Storage,
        folder: str,
        what: str,
        parse: Callable[[str, str], Asked],
        carry_out: Callable[[Asked], ReplayOutcome],
        warn: Callable[[str], None],
        settled: Callable[[str], None] = lambda identity: None,
    ) -> None:
        self._storage, self._carry_out, self._warn, self._settled = storage, carry_out, warn, settled
        self._folder, self._what, self._parse = folder, what, parse
        self._delays: Backoff[str] = Backoff(_FIRST_DELAY, _LONGEST_DELAY)

    def serve(self) -> list[ReplayOutcome]:
        """Carry out the requests that are due, and return their outcomes."""
        names = [entry.name for entry in self._storage.list(self._folder) if entry.name.endswith(".json")]
        return [self._serve(name) for name in names if self._delays.is_due(name)]

    def _request(self, name: str) -> Asked:
        try:
            text = self._storage.read_text(name)
        except FileCutOff:
            text = ""
        return self._parse(text, f"{self._storage.uri}/{name}")

    def _serve(self, name: str) -> ReplayOutcome:
        where, identity = f"{self._folder}/{name}", name.removesuffix(".json")
        attempts = self._delays.failures(name) + 1
        try:
            outcome = _told(self._storage, identity, self._folder)  # already done if only its file is left
            if outcome is None or outcome.error is not None:
                request = self._request(where)
                outcome = replace(self._carry_out(request), request=identity, attempts=attempts)
                self._tell(outcome)
            faults.reach("after-replay-settled")
            self._storage.delete(where)
            self._settled(identity)
            self._delays.forget(name)
            return outcome
        except CheckpointInUse:  # the outcome is the other driver's to tell
            raise
        except Exception as error:
            delay = self._delays.failed(name)
            message = cause_of(error)
            self._warn(f"the {self._what} {identity} failed and is tried again in {delay:.0f} s: {message}")
            outcome = ReplayOutcome(identity, error=message, attempts=attempts)
            self._tell_anyway(outcome)
            return outcome

    def _tell(self, outcome: ReplayOutcome) -> None:
        text = replace(outcome, at=iso(datetime.now(UTC))).text()
        folder = f"{self._folder}/outcomes"
        self._storage.write_text(f"{folder}/{outcome.request}.json", text)
        for old in sorted(self._storage.list(folder), key=lambda entry: entry.mtime)[:-_OUTCOMES_KEPT]:
            self._storage.delete(f"{folder}/{old.name}")

    def _tell_anyway(self, outcome: ReplayOutcome) -> None:
        try:
            self._tell(outcome)
        except Exception as error:
            self._warn(f"the outcome of the {self._what} {outcome.request} could not be written: {error}")


class ReplayRequests(Requests[ReplayRequest]):
    """Serves the requests for a replay."""

    def __init__(
        self,
        storage: Storage,
        carry_out: Callable[[ReplayRequest], ReplayOutcome],
        warn: Callable[[str], None],
    ) -> None:
        super().__init__(storage, FOLDER, "replay", ReplayRequest.parse, carry_out, warn)
