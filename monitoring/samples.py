"""Exporters of a driver and of an operator, with the real metrics and plausible values."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

from lakemirror.api.report import (
    COUNTERS,
    GAUGES,
    CompleteReport,
    ExpectationReport,
    Report,
    SourceReport,
    TableReport,
    Totals,
    Verification,
    VerifiedTable,
)
from lakemirror.controller.figures import PipelineFigures
from lakemirror.controller.vitals import Vitals

NAMESPACE, PIPELINE = "mirrors", "shop"


def report(step: int = 0, pipeline: str = PIPELINE, error: str | None = None) -> Report:
    """Return a driver's report on a pipeline that has some of everything, and more with each ``step``.

    ``error`` is why its source is unreachable.
    """
    now = datetime.now(UTC)
    totals = {name: 100 * step + n for n, name in enumerate((*COUNTERS, *GAUGES), 1)}
    unmet = ExpectationReport(name="positive total", on_violation="warn", violations=3 + step)
    tables = [
        TableReport(
            source=source,
            target=f"/lake/{source}",
            version=7 + step,
            last_event_time=(now - timedelta(seconds=20)).isoformat(),
            expectations=[unmet],
            error=refusal,
            **totals,
        )
        for source, refusal in (("public.orders", None), ("public.odd", "public.odd: give it a key"))
    ]
    return Report(
        pipeline=pipeline,
        run_id="r",
        started_at=(now - timedelta(hours=1)).isoformat(),
        phase="Running",
        source=SourceReport(
            reached_at=now.isoformat(), lost_since=now.isoformat() if error else None, error=error
        ),
        batch_id=40 + step,
        batches=40 + step,
        batch_seconds=100.0 + 3 * step,
        committed_at=now.isoformat(),
        observed_at=now.isoformat(),
        maintained_at=now.isoformat(),
        event_time=(now - timedelta(seconds=1200)).isoformat(),
        lag_records=1000 + step,
        lag_seconds=1200.0,
        overdue_seconds=1200.0,
        caught_up=False,
        complete=[CompleteReport(log="shop", below=f"{0:04x}{2**53 + step:020x}", time=now.isoformat())],
        tables_total=len(tables),
        tables=tables,
        resyncing=["public.*"],
        totals=Totals(**totals),
        verified=Verification(
            ended_at=now.isoformat(),
            equal=False,
            tables=2,
            unequal=1,
            findings=[VerifiedTable(source="public.orders", missing=1, differing=2)],
        ),
    )


def resource(**status: Any) -> dict[str, Any]:
    """Return a pipeline as the operator knows it."""
    conditions = [
        {"type": "Ready", "status": "False", "reason": "SourceUnreachable"},
        {"type": "Stalled", "status": "True", "reason": "ResetNeeded"},
        {"type": "SchemaDrift", "status": "True", "reason": "ColumnsChanged"},
        {"type": "DataQuality", "status": "True", "reason": "MirrorDiffers"},
    ]
    driver = {"restarts": 5, "consecutiveFailures": 4}
    return {
        "metadata": {"namespace": NAMESPACE, "name": PIPELINE},
        "status": {"phase": "Running", "conditions": conditions, "driver": driver, **status},
    }


def operator(*resources: dict[str, Any]) -> Vitals:
    """Return an operator's vitals, filled as the operator fills them."""
    vitals = Vitals()
    vitals.leader.set(1)
    vitals.beat()
    for phase in ("Running", "Failed"):
        vitals.pipelines.labels(phase).set(2)
    for state in ("updated", "waiting"):
        vitals.rollout.labels(state).set(1)
    vitals.waiting.set(3)
    work(vitals)
    vitals.registry.register(PipelineFigures(lambda: resources))
    return vitals


def work(vitals: Vitals) -> None:
    """Record some passes."""
    for result, number in (("done", 2), ("failed", 5)):
        vitals.passes.labels(result).inc(number)
    vitals.pass_seconds.observe(0.2)
    vitals.asked("list", "CdcPipeline")
