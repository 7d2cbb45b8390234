"""The status tells the truth, is small, and is written only when something happened."""

from __future__ import annotations

import json
import time
from collections import Counter
from datetime import UTC, datetime, timedelta

import pytest

from lakemirror.api.report import Report
from tests.cluster.kube import Object, eventually, never
from tests.cluster.mirror import Mirror

pytestmark = pytest.mark.cluster

DRIFT = {
    "column": "note",
    "change": "added",
    "from": None,
    "to": "string",
    "action": "added",
    "since": "2026-01-01T00:00:00+00:00",
}


def table(source: str, **fields: object) -> Object:
    """A table of a report."""
    counts = dict.fromkeys(("applied", "inserted", "updated", "deleted", "stale", "duplicates"), 0)
    more = dict.fromkeys(("tombstoneRecords", "tombstonesRetained", "lateAfterCollection", "quarantined"), 0)
    states = {
        "target": f"/lake/{source}",
        "version": 1,
        "lastEventTime": None,
        "rows": 1,
        "drift": [],
        "error": None,
    }
    return {"source": source, **counts, **more, **states, **fields}


def test_what_the_driver_reports_stands_in_the_status(mirror: Mirror) -> None:
    totals = {"applied": 41, "inserted": 30, "updated": 8, "deleted": 3, "stale": 2, "duplicates": 5}
    totals |= {"tombstoneRecords": 3, "tombstonesRetained": 3, "lateAfterCollection": 1, "quarantined": 0}
    mirror.behave(lag=7, commits=True, report={"totals": totals})
    mirror.kube.apply(mirror.manifest())
    mirror.ready()
    status = eventually(lambda: mirror.status() if mirror.status().get("totals") else None)
    assert status["observedGeneration"] == mirror.resource()["metadata"]["generation"]
    assert status["phase"] == "Running"
    assert totals.items() <= status["totals"].items()
    assert status["checkpoint"]["lagRecords"] == 7
    assert status["checkpoint"]["batchId"] >= 1
    assert status["tablesTotal"] == 1
    assert status["tables"][0]["source"] == "public.table_0000"
    (pod,) = mirror.drivers()
    assert status["driver"]["pod"] == pod["metadata"]["name"]
    assert status["driver"]["runId"] == mirror.journal()[-1]["runId"]
    assert status["driver"]["image"] == pod["spec"]["containers"][0]["image"]


def test_ready_is_there_from_the_first_pass_and_kubectl_can_wait_for_it(mirror: Mirror) -> None:
    mirror.create()
    first = eventually(lambda: mirror.condition("Ready"), within=15, every=0.1)
    assert first["status"] in ("False", "Unknown", "True")
    mirror.kube.kubectl("wait", f"cdc/{mirror.name}", "--for=condition=Ready", "--timeout=60s")
    for absent in ("Reconciling", "Stalled", "SchemaDrift", "DataQuality", "SourceRestarted", "TableFailed"):
        assert not mirror.condition(absent), "present only when true"
    columns = mirror.kube.kubectl("get", "cdc", mirror.name).splitlines()
    assert columns[0].split() == ["NAME", "READY", "STATUS", "PHASE", "LAG", "TABLES", "AGE"]
    assert columns[1].split()[:4] == [mirror.name, "True", "Progressing", "Running"]


def test_nothing_is_written_when_only_time_moves(mirror: Mirror) -> None:
    """The driver renews its report every 30 s; a status that says the same stays as it is."""
    mirror.create().ready()
    time.sleep(15)  # what is still on its way from the start
    version = mirror.resource()["metadata"]["resourceVersion"]
    never(
        lambda: mirror.resource()["metadata"]["resourceVersion"] != version,
        during=75,
        every=5,
        what="a write",
    )


def test_a_thousand_tables_fit(mirror: Mirror) -> None:
    tables = [table(f"public.table_{number:04}", drift=[DRIFT] * 20) for number in range(1000)]
    tables[700]["error"] = "could not be written"
    whole = Report.read({"tablesTotal": 1000, "tables": tables})
    assert whole is not None
    mirror.behave(report=whole.shortened().document())
    mirror.kube.apply(mirror.manifest())
    status = eventually(
        lambda: mirror.status() if mirror.status().get("tablesTotal") == 1000 else None, what="1,000 tables"
    )
    assert len(json.dumps(status)) < 64 * 1024
    assert 0 < len(status["tables"]) <= 100
    assert status["tables"][0]["source"] == "public.table_0700", "errors first"


def test_ready_means_that_the_source_was_reached(mirror: Mirror) -> None:
    """Not connected yet is Starting, lost for longer than a grace has the client's reason, back is Ready."""
    mirror.behave(report={"source": {}, "startedAt": iso(0), "caughtUp": False, "lagRecords": None})
    mirror.kube.apply(mirror.manifest())
    mirror.wait("Ready", "False", reason="SourceConnecting")
    assert mirror.condition("Reconciling")
    lost = {"lostSince": iso(70), "error": "kafka:9092: connection refused"}
    mirror.behave(report={"source": lost, "startedAt": iso(80), "caughtUp": False, "lagRecords": None})
    away = mirror.wait("Ready", "False", reason="SourceUnreachable")
    assert "kafka:9092: connection refused" in away["message"]
    assert any(
        e["type"] == "Warning" and e["reason"] == "SourceUnreachable" and "refused" in e["message"]
        for e in eventually(mirror.events)
    )
    mirror.behave(commits=True, report={"source": {"reachedAt": iso(0)}})
    mirror.ready()


def iso(seconds_ago: float) -> str:
    return (datetime.now(UTC) - timedelta(seconds=seconds_ago)).isoformat()


def test_what_a_person_should_look_at_is_a_condition(mirror: Mirror) -> None:
    mirror.create().ready()
    mirror.behave(report={"tables": [table("public.items", drift=[DRIFT])]})
    assert "note" in mirror.wait("SchemaDrift")["message"]
    mirror.behave(
        report={"totals": {"quarantinedOpen": 2}, "tables": [table("public.items", quarantinedOpen=2)]}
    )
    mirror.wait("DataQuality")
    eventually(lambda: not mirror.condition("SchemaDrift"), what="drift that is over")
    mirror.behave(report={"tables": [table("public.items", error="no key")]})
    assert "public.items" in mirror.wait("TableFailed")["message"]
    mirror.behave()
    eventually(lambda: not mirror.condition("TableFailed"), what="an error that is over")
    mirror.ready()


def test_a_source_that_starts_again_needs_a_person(mirror: Mirror) -> None:
    message = "positions of topic a, partition 0 start again at offset 17"
    mirror.create().ready()
    mirror.behave(exit=1, message=message, report={"sourceRestarted": message, "failure": message})
    assert message in mirror.wait("SourceRestarted")["message"]
    mirror.wait("Stalled")


def test_old_figures_are_not_called_ready(mirror: Mirror) -> None:
    """A driver that says nothing for three periods of 30 s is not known to be well."""
    mirror.create().ready()
    mirror.behave(silent=True)
    mirror.wait("Ready", "Unknown", within=180)
    mirror.behave()
    mirror.ready()
    assert len(mirror.starts()) == 1


def test_events_tell_the_story_once(mirror: Mirror) -> None:
    mirror.create().ready()
    mirror.edit(restartToken="1")
    eventually(lambda: len(mirror.starts()) == 2, what="a restart")
    mirror.ready()
    time.sleep(5)
    events = mirror.events()
    assert events
    assert all(event["message"] and event["type"] in ("Normal", "Warning") for event in events)
    twice = [key for key, n in Counter((e["reason"], e["message"]) for e in events).items() if n > 1]
    assert twice == []
    assert not [event for event in events if event["type"] == "Warning"], "nothing went wrong"
