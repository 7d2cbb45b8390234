"""Events that Lakemirror makes itself: what is kept aside is told, and read again as it was meant."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from lakemirror.api import CdcPipeline
from lakemirror.api.report import Counts
from lakemirror.driver.checkpoint.storage import LocalStorage, Storage
from lakemirror.driver.reload.reading import REPAIR_TOPIC, as_read, as_repaired
from lakemirror.driver.results import BatchResult, TableResult
from lakemirror.driver.runtime import repair
from lakemirror.driver.runtime.reload import Reloader, ReloadRequest
from lakemirror.driver.runtime.repair import Repairer, RepairRequest
from lakemirror.driver.runtime.replay_requests import DamagedRequest, ReplayOutcome
from lakemirror.driver.verify.repairs import Event
from tests.api.manifests import changed

EPOCHS = {"epochs": [{"epoch": number, "from": {"t": {"0": number}}} for number in (1, 3)]}


def test_repairs_are_read_with_the_epoch_that_their_partition_names() -> None:
    """Also when they were held and are read again from the quarantine."""
    spec = as_repaired(CdcPipeline.from_dict(changed(ordering=EPOCHS, onBadRecord="fail"))).spec
    assert [(each.epoch, each.from_) for each in spec.ordering.epochs] == [
        (number, {REPAIR_TOPIC: {number: 0}}) for number in (1, 3)
    ]
    assert (spec.envelope.format, spec.on_bad_record) == ("debezium", "quarantine")
    used = as_repaired(CdcPipeline.from_dict(changed()), [2, 0, 2]).spec.ordering.epochs
    assert [each.epoch for each in used] == [2]
    assert as_repaired(CdcPipeline.from_dict(changed())).spec.ordering.epochs == []


def test_a_bad_row_of_a_reload_does_not_refuse_the_others() -> None:
    assert as_read(CdcPipeline.from_dict(changed(onBadRecord="fail"))).spec.on_bad_record == "quarantine"


@pytest.mark.parametrize(
    ("counts", "error", "reason"),
    [
        (Counts(), "no space left", "held, and tried again by itself: no space left"),
        (Counts(records=1, applied=1), None, "kept in the quarantine"),
    ],
)
def test_a_repair_that_was_not_applied_is_not_done(
    counts: Counts, error: str | None, reason: str, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Applier:
        def __init__(self, *_: Any, **__: Any) -> None: ...

        def apply(self, *_: Any) -> BatchResult:
            table = TableResult("shop.public.items", counts=counts, error=error)
            return BatchResult(0, rest=Counts(), tables={table.source: table})

    monkeypatch.setattr(repair, "BatchApplier", Applier)
    monkeypatch.setattr(repair.audit, "history", lambda *_: None)
    request = RepairRequest("1", "shop.public.items", (Event("{}", "{}"), Event("{}", "{}")))
    outcome = Repairer(spark, CdcPipeline.from_dict(changed()), nullcontext).carry_out(request)
    assert not outcome.done
    assert outcome.still_bad == 2 - counts.records
    assert [each.reason for each in outcome.bad] == [reason]


def test_a_stale_repair_names_the_epoch_that_its_table_is_not_in(spark: SparkSession) -> None:
    repairer = Repairer(spark, CdcPipeline.from_dict(changed(ordering=EPOCHS)), nullcontext)
    told = [
        repairer._newer(RepairRequest("1", "items", (Event("{}", "{}", 3), Event("{}", "{}", epoch))))
        for epoch in (1, 3)
    ]
    assert ["Not all partitions of the table are in epoch 3" in each for each in told] == [True, False]


def test_a_request_for_a_repair_is_read_as_it_was_written() -> None:
    request = RepairRequest("1", "shop.public.items", (Event("{}", "{}", 2), Event("é", "{}")))
    assert RepairRequest.parse(request.text(), "repair/1.json") == request
    with pytest.raises(DamagedRequest, match=r"repair/1\.json is not a request for a repair \(KeyError"):
        RepairRequest.parse(
            '{"id": "1", "table": "t", "events": [{"key": "k", "value": "v"}]}', "repair/1.json"
        )


class Failing(LocalStorage):
    """A storage that fails to store an outcome once."""

    failures = 1

    def write_text(self, name: str, text: str) -> None:
        if "/outcomes/" in name and self.failures:
            self.failures -= 1
            raise OSError("503")
        super().write_text(name, text)


def test_the_files_of_a_reload_stay_until_its_outcome_is_written(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A request that is left without them could never be carried out."""
    storage: Storage = Failing(tmp_path)
    storage.write_text_new("reload/1.json", ReloadRequest("1", "a.b", 1).text())
    storage.write_text_new("reload/1.staged", "a.b\n")
    storage.write_text_new("reload/1/part.parquet", "x\n")
    reloader = Reloader(spark, CdcPipeline.from_dict(changed()), storage)
    carried_out: list[bool] = []

    def carry_out(request: ReloadRequest) -> ReplayOutcome:
        carried_out.append(storage.is_folder("reload/1"))
        return ReplayOutcome(request.id, 1)

    monkeypatch.setattr(reloader, "carry_out", carry_out)
    requests = reloader.requests(list[str]().append)
    requests.serve()
    monkeypatch.setattr(requests._delays, "is_due", lambda name: True)
    requests.serve()
    assert carried_out == [True, True]
    assert [entry.name for entry in storage.list("reload")] == []
    assert not storage.is_folder("reload/1")
    assert storage.exists("reload/outcomes/1.json")
