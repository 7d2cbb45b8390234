"""New tokens in the manifest: a table that is read again, and a source that is read anew."""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from lakemirror.api import CdcPipeline
from lakemirror.driver import faults
from lakemirror.driver.checkpoint import identity, tokens
from lakemirror.driver.checkpoint.storage import LocalStorage
from lakemirror.driver.errors import LakemirrorError
from lakemirror.driver.record import quarantine
from lakemirror.driver.runtime.events import Event, Reported, Resync
from lakemirror.driver.runtime.replayer import replay
from lakemirror.driver.runtime.runner import run
from lakemirror.driver.runtime.summary import RunSummary
from tests.support.mirroring import Mirroring, at
from tests.support.records import Column, Record
from tests.support.shop import Shop, table

pytestmark = pytest.mark.guarantee("A parked table can be read again; a reset starts over")

V = Column("v", "int32")
ITEMS, PARKED = table("items", V), table("parked", V)


def history(shop: Shop) -> list[list[Record]]:
    """Two batches, in which both tables get, change and lose rows."""
    first = [r for each in (ITEMS, PARKED) for i in (1, 2) for r in shop.create(each, id=i, v=1)]
    second = []
    for each in (ITEMS, PARKED):
        second += [
            *shop.update(each, id=1, v=2),
            *shop.delete(each, id=2, v=1),
            *shop.create(each, id=4, v=2),
        ]
    return [first, second]


EXPECTED = [(1, 2), (4, 2)]


def settings(**parked: Any) -> dict[str, Any]:
    return {"tables": [{"source": "public.parked", **parked}]}


def found(spark: SparkSession, mirroring: Mirroring, name: str) -> list[tuple[int, int]]:
    path = mirroring.path("demo", "public", name)
    return sorted((row["id"], row["v"]) for row in at(spark, path).collect())


def told(spark: SparkSession, mirroring: Mirroring) -> tuple[RunSummary, list[bool]]:
    """A run, and what it told of tables that are read again."""
    events: list[Event] = []
    summary = run(mirroring.pipeline, once=True, spark=spark, on_event=events.append)
    resyncs = [event.done for event in events if isinstance(event, Resync)]
    reports = [event.report.resyncing for event in events if isinstance(event, Reported)]
    assert reports[0] == (["public.parked"] if resyncs else [])
    assert reports[-1] == []
    return summary, resyncs


def parked(spark: SparkSession, folder: Path) -> Mirroring:
    """The first batch was for both tables; the second met one that was parked, and its token had to wait."""
    first, second = history(Shop())
    Mirroring(folder, settings()).deliver([first]).run(spark)
    mirroring = Mirroring(folder, settings(suspend=True, resyncToken="1")).deliver([second])
    assert told(spark, mirroring)[1] == []
    assert found(spark, mirroring, "items") == EXPECTED
    assert found(spark, mirroring, "parked") == [(1, 1), (2, 1)]
    return mirroring


@pytest.mark.thorough
def test_a_resync_brings_back_a_table_that_was_parked(spark: SparkSession, tmp_path: Path) -> None:
    before = parked(spark, tmp_path).versions()
    mirroring = Mirroring(tmp_path, settings(resyncToken="1"))
    summary, resyncs = told(spark, mirroring)
    assert found(spark, mirroring, "parked") == EXPECTED
    assert resyncs == [False, True]
    result = summary.tables["demo.public.parked"]
    counts = result.counts
    assert (counts.inserted, counts.updated, counts.deleted) == (1, 1, 1)
    after = mirroring.versions()
    changed = {Path(path).name for path, version in after.items() if before.get(path) != version}
    assert "parked" in changed
    assert "items" not in changed
    assert told(spark, mirroring)[1] == [], "a token is acted upon once"
    assert mirroring.versions() == after
    assert not list(mirroring.checkpoint.glob("resync/*"))


@pytest.mark.long
def test_a_table_that_was_parked_comes_back_by_itself(spark: SparkSession, tmp_path: Path) -> None:
    """What came for it meanwhile was held."""
    checkpoint = str(parked(spark, tmp_path).checkpoint)
    assert set(quarantine.open_counts(spark, checkpoint)["demo.public.parked"]) == {"table"}
    mirroring = Mirroring(tmp_path, settings())
    assert told(spark, mirroring)[1] == []
    assert found(spark, mirroring, "parked") == EXPECTED
    assert quarantine.open_counts(spark, checkpoint) == {}


@pytest.mark.thorough
@pytest.mark.parametrize("point", ["after-rows", "before-checkpoint-commit"])
def test_a_resync_goes_on_after_a_crash(point: faults.Point, spark: SparkSession, tmp_path: Path) -> None:
    before = parked(spark, tmp_path)
    shutil.rmtree(before.checkpoint / "quarantine")  # the resync alone brings the table back
    mirroring = Mirroring(tmp_path, settings(resyncToken="1"))
    faults.arm(point, after=1)
    with pytest.raises(faults.InjectedCrash):
        mirroring.run(spark)
    summary, resyncs = told(spark, mirroring)
    assert resyncs == [False, True]
    assert summary.batches == 1, "the first batch is not read a third time"
    assert found(spark, mirroring, "parked") == EXPECTED


@pytest.mark.long
def test_in_a_new_checkpoint_tokens_ask_for_nothing(spark: SparkSession, tmp_path: Path) -> None:
    tokens = {**settings(resyncToken="1"), "spark": {"resetToken": "1"}}
    mirroring = Mirroring(tmp_path, tokens).deliver(history(Shop()))
    for batches in (2, 0):
        summary, resyncs = told(spark, mirroring)
        assert (summary.batches, resyncs) == (batches, [])
    assert found(spark, mirroring, "parked") == EXPECTED


@pytest.mark.thorough
def test_a_reset_reads_another_source_from_its_beginning(spark: SparkSession, tmp_path: Path) -> None:
    """Files of the same names, but another folder: without a reset they would count as read."""
    first, second = history(Shop())
    mirroring = Mirroring(tmp_path).deliver([first, second[:2]])
    mirroring.run(spark)
    shutil.rmtree(mirroring.input)
    again = Mirroring(tmp_path, {"spark": {"resetToken": "1"}}).deliver([first, second])
    assert again.run(spark).batches == 2
    assert found(spark, again, "items") == EXPECTED
    versions = again.versions()
    assert again.run(spark).batches == 0, "a token is acted upon once"
    assert again.versions() == versions


@pytest.mark.thorough
def test_a_mirror_that_is_copied_with_its_checkpoint_is_gone_on_with(
    spark: SparkSession, tmp_path: Path
) -> None:
    first, second = history(Shop())
    Mirroring(tmp_path / "here").deliver([first]).run(spark)
    shutil.copytree(tmp_path / "here", tmp_path / "there")
    there = Mirroring(tmp_path / "there").deliver([second])
    assert there.run(spark).counts.refused == 0
    assert found(spark, there, "items") == EXPECTED


@pytest.mark.thorough
def test_a_mirror_that_only_a_replay_wrote_is_copied_with_its_checkpoint(
    spark: SparkSession, tmp_path: Path
) -> None:
    first, second = history(Shop())
    suspended = {"tables": [{"source": "items", "suspend": True}]}
    Mirroring(tmp_path / "here", suspended).deliver([first]).run(spark)
    Mirroring(tmp_path / "here").run(spark)
    shutil.copytree(tmp_path / "here", tmp_path / "there")
    there = Mirroring(tmp_path / "there").deliver([second])
    assert there.run(spark).counts.refused == 0
    assert found(spark, there, "items") == EXPECTED


@pytest.mark.thorough
def test_a_table_is_moved_by_a_reset_only(spark: SparkSession, tmp_path: Path) -> None:
    """Otherwise the mirror at the new target would lack what was applied before."""
    first, second = history(Shop())
    lake = Mirroring(tmp_path).deliver([first]).lake
    Mirroring(tmp_path).run(spark)
    pattern = r"/demo\.public\.(?<name>items)/"
    moving = {"tables": [{"source": pattern, "target": {"path": f"{lake}/own/{{name}}"}}]}
    mirroring = Mirroring(tmp_path, moving).deliver([second])
    tables = mirroring.run(spark).tables
    error = tables["demo.public.items"].error or ""
    assert f"demo.public.items is mirrored at {lake}/demo/public/items, and the manifest moves it" in error
    assert f"to {lake}/own/items: the checkpoint cannot follow this change. Change it back, or give" in error
    assert f"tables[{pattern}].resyncToken a new value" in error
    assert tables["demo.public.items"].counts.refused == 3
    assert not (tmp_path / "lake/own").exists()
    assert tables["demo.public.parked"].error is None, "its target is the same"
    assert replay(mirroring.pipeline, spark=spark).still_bad == 3
    spelled = {"path": f"file://{lake}//{{db}}/{{schema}}/./{{table}}/"}
    back = Mirroring(tmp_path, {"tables": [{"source": "public.items", "target": spelled}]})
    assert back.run(spark).counts.refused == 0
    assert found(spark, back, "items") == EXPECTED
    reset = Mirroring(tmp_path, {**moving, "spark": {"resetToken": "1"}})
    assert reset.run(spark).batches == 2
    assert sorted(map(tuple, at(spark, f"{lake}/own/items").collect())) == EXPECTED
    assert reset.run(spark).counts.refused == 0
    tables = Mirroring(tmp_path).deliver([second[:1]]).run(spark).tables
    assert f"is mirrored at {lake}/own/items" in (tables["demo.public.items"].error or "")


@pytest.mark.thorough
def test_a_table_is_moved_when_it_is_read_again(spark: SparkSession, tmp_path: Path) -> None:
    first, second = history(Shop())
    lake = Mirroring(tmp_path).deliver([first]).lake
    Mirroring(tmp_path).run(spark)
    listed = {"source": "public.items", "target": {"path": f"{lake}/own/{{table}}"}, "resyncToken": "1"}
    moved = Mirroring(tmp_path, {"tables": [listed]}).deliver([second])
    for _ in ("moved", "started again"):
        tables = moved.run(spark).tables
        assert all(table.error is None for table in tables.values())
        assert sorted(map(tuple, at(spark, f"{lake}/own/items").collect())) == EXPECTED
    assert found(spark, moved, "items") == [(1, 1), (2, 1)], "the former mirror is not updated"


@pytest.mark.thorough
def test_a_table_that_is_moved_while_its_source_has_nothing_goes_on(
    spark: SparkSession, tmp_path: Path
) -> None:
    """It leaves no trace at the new target, and the audit knows the former one only."""
    shop = Shop()
    first, second = history(shop)
    lake = Mirroring(tmp_path).deliver([first]).lake
    Mirroring(tmp_path).run(spark)
    for file in [*(tmp_path / "input").iterdir()]:
        file.rename(file.with_name(f"_{file.name}"))  # hidden
    own = {"path": f"{lake}/own/{{table}}"}
    moved = Mirroring(tmp_path, {"tables": [{"source": "public.items", "target": own, "resyncToken": "1"}]})
    for _ in ("moved", "started again"):
        moved.run(spark)
    assert moved.deliver([second]).run(spark).tables["demo.public.items"].error is None
    assert sorted(map(tuple, at(spark, f"{lake}/own/items").collect())) == EXPECTED
    elsewhere = {"source": "public.items", "target": {"path": f"{lake}/third/{{table}}"}, "resyncToken": "1"}
    third = Mirroring(tmp_path, {"tables": [elsewhere]}).deliver([shop.update(ITEMS, id=1, v=3)])
    assert "moves it to" in (third.run(spark).tables["demo.public.items"].error or "")


FORMS: dict[str, tuple[dict[str, Any], dict[str, Any], str]] = {
    "rekeyed": ({}, {"primaryKey": ["code"]}, "has the key id, and code is asked for now"),
    "appended": ({}, {"mode": "append"}, "was made with mode scd1, and append is asked for now"),
    "keyless": ({"mode": "append"}, {"mode": "scd1"}, "has no key, and"),
}
"""Settings of a table when its mirror is made and later, and why the later ones are refused."""


@pytest.mark.thorough
def test_another_form_is_refused_for_a_table_that_is_there(spark: SparkSession, tmp_path: Path) -> None:
    shop = Shop()
    tables = [table(name, Column("code", "string")) for name in FORMS]

    def mirroring(which: int) -> Mirroring:
        listed = [{"source": name, **form[which]} for name, form in FORMS.items()]
        return Mirroring(tmp_path, {"tables": listed})

    before = mirroring(0)
    before.deliver([[record for of in tables for record in shop.create(of, id=1, code="a")]]).run(spark)
    versions = before.versions()
    after = mirroring(1)
    after.deliver([[], [record for of in tables for record in shop.create(of, id=2, code="b")]])
    results = after.run(spark).tables
    for name, (_, _, why) in FORMS.items():
        result = results[f"demo.public.{name}"]
        assert why in (result.error or "")
        assert re.search(r"with a new resyncToken[,;] .*set tables\[\w+\]\.\w+", result.error or "")
        assert result.counts.refused == 1
    assert {path: version for path, version in after.versions().items() if path in versions} == versions


def test_a_table_is_loaded_at_first_and_with_each_new_token_until_that_is_noted(tmp_path: Path) -> None:
    storage, spec = LocalStorage(tmp_path / "checkpoint"), Mirroring(tmp_path).pipeline.spec

    def begin(*, reset: str = "", parked: bool = False, **tokens_: str) -> dict[str, str]:
        tables = [
            {"source": "public.loaded", "snapshot": "jdbc", "suspend": parked},
            {"source": "public.streamed"},
        ]
        for each in tables:
            each["resyncToken"] = tokens_.get(str(each["source"]).partition(".")[2], "")
        verify = {"jdbc": {"url": "jdbc:postgresql://db/shop"}}
        more = {"tables": tables, "verify": verify, "spark": {"resetToken": reset}}
        pipeline: CdcPipeline = Mirroring(tmp_path, more).pipeline
        return tokens.begin(storage, pipeline.spec)

    assert begin(streamed="1") == {"public.loaded": ""}
    identity.query_id(storage, "files", started=False)
    assert begin(streamed="1") == {"public.loaded": ""}  # it was cut off
    tokens.loaded(storage, {"public.loaded": ""}, spec)
    assert begin(streamed="1") == {}
    assert begin(streamed="2", loaded="1") == {"public.streamed": "2", "public.loaded": "1"}
    tokens.resynced(storage, {"public.streamed": "2"}, spec)
    assert begin(streamed="2", loaded="1", parked=True) == {}
    assert begin(streamed="2", loaded="1") == {"public.loaded": "1"}
    tokens.loaded(storage, {"public.loaded": "1"}, spec)
    assert begin(streamed="2", loaded="1", reset="1") == {"public.loaded": "1"}


@pytest.mark.parametrize("progress", ["files/state/49.json", "changes/offsets/1.json", "spark/commits/0"])
def test_a_checkpoint_without_identity_is_damaged_and_a_reset_helps(progress: str, tmp_path: Path) -> None:
    """The tokens of the manifest would be taken for done, and nothing would be read."""
    storage = LocalStorage(tmp_path / "checkpoint")
    parked = settings(resyncToken="1")
    pipeline = Mirroring(tmp_path, parked).pipeline
    assert tokens.begin(storage, pipeline.spec) == {}, "a new checkpoint"
    storage.write_text(progress, "{}")
    for _ in range(2):
        with pytest.raises(LakemirrorError, match=r"metadata.json is gone\. Restore .*spec.spark.resetToken"):
            tokens.begin(storage, pipeline.spec)
    pipeline = Mirroring(tmp_path, {**parked, "spark": {"resetToken": "anew"}}).pipeline
    assert tokens.begin(storage, pipeline.spec) == {}
    assert not identity.has_progress(storage)
