"""Comparisons by schedule: when they are due, what is told of them, and the example that has one."""

from __future__ import annotations

import copy
import threading
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from pyspark.sql import SparkSession

from lakemirror.api import CdcPipeline
from lakemirror.api.report import Report, Verification
from lakemirror.api.supported import not_supported
from lakemirror.driver.checkpoint.storage import LocalStorage
from lakemirror.driver.document import iso
from lakemirror.driver.read.base import Lag
from lakemirror.driver.runtime import verification
from lakemirror.driver.runtime.metrics import ReportCollector
from lakemirror.driver.runtime.reporter import REPORT_FILE
from lakemirror.driver.runtime.runner import run
from lakemirror.driver.runtime.verification import Verifications, stored, told_of
from lakemirror.driver.runtime.verifier import NothingToVerify, Verified, listed
from lakemirror.driver.verify.open import LoginIncomplete, ordered_by, source_of
from lakemirror.driver.verify.table import Checked
from lakemirror.driver.verify.verdict import Difference, Settled
from tests.api.manifests import SMALL, changed

pytestmark = pytest.mark.guarantee(
    "No clock decides: not whether a target may move, which rows of files are newer, how far the source is "
    "applied, or when the next comparison is due"
)

ROOT = Path(__file__).parents[3]


class Clock:
    def __init__(self) -> None:
        self.now = datetime(2026, 3, 1, 12, tzinfo=UTC)

    def __call__(self) -> datetime:
        return self.now


class Context:
    """Spark's, as far as a thread needs it."""

    def addJobTag(self, tag: str) -> None:  # noqa: N802
        self.tag = tag

    def cancelJobsWithTag(self, tag: str) -> None:  # noqa: N802
        assert tag == self.tag


def verifications(folder: Path, clock: Clock, told: list[Verification], **verify: Any) -> Verifications:
    asked = {"snapshot": {"path": "/s/{table}"}, **verify}
    return Verifications(
        SimpleNamespace(sparkContext=Context()),  # type: ignore[arg-type]
        CdcPipeline.from_dict(changed(verify=asked)),
        LocalStorage(folder),
        {},
        known=list,
        lag=lambda: Lag(0, True),
        tell=told.append,
        warn=lambda message: None,
        clock=clock,
    )


def test_it_is_due_by_the_schedule_since_the_last_time(tmp_path: Path) -> None:
    clock, told = Clock(), []
    hourly = verifications(tmp_path, clock, told, schedule="30 * * * *")
    assert not hourly.is_due()
    clock.now += timedelta(minutes=29)
    assert not hourly.is_due()
    clock.now += timedelta(minutes=2)
    assert hourly.is_due()
    assert not verifications(tmp_path, clock, told).is_due()
    assert told == []


def test_a_driver_that_is_started_again_tells_what_was_found_and_does_not_begin_anew(tmp_path: Path) -> None:
    clock, told = Clock(), []
    found = Verification(began_at=iso(clock.now), ended_at=iso(clock.now), equal=True, tables=3)
    LocalStorage(tmp_path).write_text("verified.json", found.model_dump_json(by_alias=True) + "\n")
    clock.now += timedelta(minutes=10)
    again = verifications(tmp_path, clock, told, schedule="30 * * * *")
    assert told == [found]
    assert not again.is_due()
    clock.now += timedelta(minutes=25)
    assert again.is_due()


def test_a_clock_that_was_ahead_does_not_put_comparisons_off(tmp_path: Path) -> None:
    clock, told = Clock(), []
    ahead = iso(clock.now + timedelta(days=365))
    found = Verification(began_at=ahead, ended_at=ahead, equal=True, tables=3)
    LocalStorage(tmp_path).write_text("verified.json", found.model_dump_json(by_alias=True) + "\n")
    again = verifications(tmp_path, clock, told, schedule="30 * * * *")
    assert again.is_due()
    again.verify(lambda: False)
    assert not again.is_due()


def test_a_failure_is_told_and_waits_for_the_next_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock, told = Clock(), []

    def refused(*_: Any) -> None:
        raise OSError("no route to host")

    monkeypatch.setattr(verification, "session_for", refused)
    monkeypatch.setattr(verification, "_LOOK_SECONDS", 0.01)
    hourly = verifications(tmp_path, clock, told, schedule="30 * * * *")
    clock.now += timedelta(hours=1)
    over = threading.Event()
    monkeypatch.setattr(hourly, "_tell", lambda what: (told.append(what), over.set()))
    hourly.serve_until(over)
    [failure] = told
    assert failure.error == "OSError: no route to host"
    assert stored(LocalStorage(tmp_path)) == failure
    assert not hourly.is_due()


def test_an_outcome_that_cannot_be_stored_is_told_and_stops_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock, told, warnings = Clock(), [], list[str]()
    hourly = verifications(tmp_path, clock, told, schedule="30 * * * *")
    monkeypatch.setattr(hourly, "_warn", warnings.append)

    def full(*_: Any) -> None:
        raise OSError("no space left on device")

    monkeypatch.setattr(hourly._storage, "write_text", full)
    hourly.verify(lambda: False)
    assert len(told) == 1
    assert "could not be stored: OSError: no space left on device" in warnings[-1]


def test_a_table_without_a_mirror_does_not_keep_others_from_being_compared() -> None:
    pipeline = CdcPipeline.from_dict(changed())
    known = ["shop.public.items", "shop.public.orders"]
    found, lacking = listed(pipeline, known, ["public.orders", "public.refunds"])
    assert found == ["shop.public.orders"]
    assert [(each.source, "is no table of this pipeline" in (each.error or "")) for each in lacking] == [
        ("public.refunds", True)
    ]
    assert listed(pipeline, known, []) == (known, ())
    with pytest.raises(NothingToVerify, match=r"public\.refunds is no table of this pipeline"):
        listed(pipeline, known, ["public.refunds"])


def test_wrong_keys_are_told_before_what_could_not_be_compared() -> None:
    """A report has room for the first findings only."""
    wrong = Settled((Difference("1", in_source=True, in_mirror=False),))
    tables = [*(Checked(f"a{n:02}", error="no right") for n in range(12)), Checked("z", settled=wrong)]
    told = told_of(Verified(tuple(tables), Clock().now, Clock().now))
    assert (told.unequal, told.findings[0].source, told.findings[0].missing) == (13, "z", 1)


def test_a_login_lacks_nothing(tmp_path: Path) -> None:
    spec = CdcPipeline.from_dict(
        changed(verify={"jdbc": {"url": "jdbc:mariadb://db/", "secret": "reader"}, "schedule": "@daily"})
    ).spec
    assert spec.verify is not None
    assert spec.secrets() == {"spec.verify.jdbc.secret": "reader"}
    by_hand = {"jdbc": {"url": "jdbc:mariadb://db/", "secret": "reader"}}
    assert CdcPipeline.from_dict(changed(verify=by_hand)).spec.secrets() == {}
    loading = {"verify": by_hand, "tables": [{"source": "shop.items", "snapshot": "jdbc"}]}
    assert CdcPipeline.from_dict(changed(**loading)).spec.secrets() == spec.secrets()
    (tmp_path / "username").write_text("me")
    with pytest.raises(LoginIncomplete, match="secret reader has no password"):
        source_of(spec.verify, {"reader": tmp_path})


@pytest.mark.parametrize(
    ("spec", "by"),
    [
        ({}, "log"),
        ({"ordering": {"by": "binlog"}}, "log"),
        ({"ordering": {"by": "timestamp"}}, "time"),
        ({"ordering": {"by": "offset"}}, "else"),
        ({"envelope": {"format": "debezium-flat"}}, "else"),
        ({"envelope": {"format": "debezium-flat"}, "ordering": {"by": "lsn"}}, "log"),
        ({"source": {"changeFeed": {"path": "/t"}}}, "else"),
    ],
)
def test_positions_of_the_source_are_compared_only_with_their_own_kind(spec: dict[str, Any], by: str) -> None:
    document = copy.deepcopy(SMALL)
    document["spec"] |= spec
    assert ordered_by(CdcPipeline.from_dict(document).spec) == by


@pytest.mark.long
def test_the_example_compares_at_its_end(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pipeline = CdcPipeline.from_yaml((ROOT / "examples/verify/pipeline.yaml").read_text("utf-8"))
    assert not_supported(pipeline.spec) == []
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    monkeypatch.chdir(tmp_path)
    run(pipeline, once=True, spark=spark)
    storage = LocalStorage(tmp_path / ".build/verify/_checkpoint")
    found = stored(storage)
    assert found is not None
    assert (found.equal, found.tables, found.error, found.findings) == (True, 4, None, [])
    report = Report.model_validate_json(storage.read_text(REPORT_FILE))
    assert report.verified == found
    collector = ReportCollector()
    collector.report = report
    values = {metric.name: metric.samples[0].value for metric in collector.collect() if metric.samples}
    assert (values["lakemirror_verified_equal"], values["lakemirror_verified_wrong_keys"]) == (1.0, 0.0)
