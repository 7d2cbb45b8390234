"""Repairs: rows that `lakemirror verify` found to be wrong, handed to the driver as change events.

Only the driver writes mirrors. A repair is therefore a request, like a replay: a file ``repair/<id>.json``
with change events in Debezium's format. The driver applies them between two batches, through the same gate as
all other events. Each event has the position at which the source was before its row was read. It is therefore
newer than everything that the mirror has of the row, and older than each change that the row does not show
(`verify.verdict`).
"""

from __future__ import annotations

import json
import logging
import uuid
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass
from datetime import UTC, datetime

from pyspark.sql import SparkSession

from lakemirror.api import CdcPipeline
from lakemirror.driver.batch import BatchApplier
from lakemirror.driver.checkpoint.owner import Owner
from lakemirror.driver.checkpoint.storage import Storage
from lakemirror.driver.errors import CheckpointInUse
from lakemirror.driver.read.base import RAW, Batch
from lakemirror.driver.record import audit
from lakemirror.driver.record.write_behind import WriteBehind
from lakemirror.driver.reload.reading import REPAIR_TOPIC, as_repaired
from lakemirror.driver.results import BatchResult
from lakemirror.driver.runtime.replay_requests import (
    DamagedRequest,
    ReplayOutcome,
    Requests,
    StillBad,
    aside,
    await_outcome,
)
from lakemirror.driver.runtime.replayer import Alone
from lakemirror.driver.verify.repairs import Event
from lakemirror.driver.write.target import DELTA, TargetKind

_log = logging.getLogger(__name__)

FOLDER = "repair"


@dataclass(frozen=True)
class RepairRequest:
    """Change events of one source table."""

    id: str
    table: str
    events: tuple[Event, ...]

    def text(self) -> str:
        """Return the request as JSON."""
        return json.dumps(asdict(self), ensure_ascii=False) + "\n"

    @classmethod
    def parse(cls, text: str, where: str) -> RepairRequest:
        """Parse the request in the file ``where``. Raises DamagedRequest if it cannot be read."""
        try:
            document = json.loads(text)
            events = tuple(
                Event(str(each["key"]), str(each["value"]), int(each["epoch"])) for each in document["events"]
            )
            return cls(str(document["id"]), str(document["table"]), events)
        except (ValueError, TypeError, KeyError) as error:
            raise DamagedRequest(
                f"{where} is not a request for a repair ({type(error).__name__}: {error}): delete it, and "
                "run `lakemirror verify --repair` again"
            ) from None


class Repairer:
    """Applies the events of each request as a batch of its own.

    ``alone`` keeps other batches away while they are applied. ``told`` receives the results, and
    ``warn`` what people should know.
    """

    def __init__(
        self,
        spark: SparkSession,
        pipeline: CdcPipeline,
        alone: Alone = nullcontext,
        told: Callable[[BatchResult], None] = lambda result: None,
        target: TargetKind = DELTA,
        warn: Callable[[str], None] = _log.warning,
    ) -> None:
        self._target, self._warn = target, warn
        self._session = spark.newSession()  # so that its settings are separate from the streaming query's
        self._alone, self._told, self._pipeline = alone, told, pipeline

    def requests(self, storage: Storage, warn: Callable[[str], None]) -> Requests[RepairRequest]:
        """Return the requests that were filed."""
        return Requests(storage, FOLDER, "repair", RepairRequest.parse, self.carry_out, warn)

    def carry_out(self, request: RepairRequest) -> ReplayOutcome:
        """Apply a request. Events that are older than what the mirror has by now change nothing."""
        query = f"replay-{uuid.uuid4().hex}"
        began = int(datetime.now(UTC).timestamp() * 1_000_000)
        rows = [
            (
                *(REPAIR_TOPIC, each.epoch, began + number, datetime.now(UTC)),
                *(each.key.encode(), each.value.encode()),
            )
            for number, each in enumerate(request.events)
        ]
        raw = self._session.createDataFrame([(*row, None, None, None, None) for row in rows], RAW)
        with self._alone():
            pipeline = as_repaired(self._pipeline, (each.epoch for each in request.events))
            history = audit.history(self._session, pipeline.spec.checkpoint)
            applier = BatchApplier(
                self._session, pipeline, query, history, warn=self._warn, target=self._target
            )
            result = applier.apply(raw, Batch(query, 0, {"repair": request.id}))
            self._told(result)
        stale = result.counts.stale
        bad = aside(request.table, result, len(rows))
        if stale:
            bad += (StillBad(request.table, self._newer(request), stale),)
        still = sum(each.records for each in bad)
        return ReplayOutcome(request.id, len(rows), still, taken={request.table: len(rows)}, bad=bad)

    def _newer(self, request: RepairRequest) -> str:
        """Return why events of a request may be stale."""
        newest = max((each.epoch for each in self._pipeline.spec.order.epochs), default=0)
        reason = "the mirror has a newer change of the row by now, or its position lies behind the source's"
        if all(each.epoch >= newest for each in request.events):
            return reason
        return (
            f"{reason}. Not all partitions of the table are in epoch {newest}: declare it for those that "
            "have no record of the former server left to read (ordering.epochs), and repair again"
        )


def repair(
    session: SparkSession,
    pipeline: CdcPipeline,
    storage: Storage,
    requests: Sequence[RepairRequest],
    timeout: float,
    target: TargetKind = DELTA,
) -> list[ReplayOutcome]:
    """Carry out requests here, or have the driver that owns the checkpoint carry them out.

    Returns their outcomes. For each request, waits up to ``timeout`` seconds for the driver. ``target`` is
    the kind of target that contains the mirrors.
    """
    if not requests:
        return []
    try:
        with Owner(storage, run_id=f"repair-{requests[0].id}") as owner:
            owner.hold_jvm(session)
            with WriteBehind(session, pipeline.spec.checkpoint, check=owner.check):
                repairer = Repairer(session, pipeline, target=target)
                return [repairer.carry_out(each) for each in requests]
    except CheckpointInUse:
        for each in requests:
            storage.write_text_new(f"{FOLDER}/{each.id}.json", each.text())
        return [await_outcome(storage, each, timeout, FOLDER) for each in requests]
