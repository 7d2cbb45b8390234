"""What goes wrong with one table leaves the others alone, and every record is accounted for."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from lakemirror.driver.applier import TableApplier
from lakemirror.driver.errors import RecordsUnaccounted
from lakemirror.driver.parse import isolate
from lakemirror.driver.parse.decode import EventDecoder
from lakemirror.driver.parse.envelopes.debezium import Debezium
from lakemirror.driver.plan.refusal import Refused
from lakemirror.driver.plan.targets import Targets, canonical
from lakemirror.driver.runtime.replayer import replay
from lakemirror.driver.tables.mirror import SOURCE_PROPERTY, Mirror
from lakemirror.driver.tables.names import Location
from tests.support.mirroring import Mirroring, at
from tests.support.records import Column, Record
from tests.support.shop import Shop, table

GOOD, BAD = table("good", Column("v", "int32")), table("bad", Column("v", "int32"))

pytestmark = pytest.mark.usefixtures("stages_of_spark")  # what goes wrong here does so in them


def values(spark: SparkSession, mirroring: Mirroring, name: str) -> list[tuple[int, int]]:
    rows = at(spark, mirroring.path("demo", "public", name)).collect()
    return sorted((row["id"], row["v"]) for row in rows)


def delivered(folder: Path) -> Mirroring:
    shop = Shop()
    return Mirroring(folder).deliver([[*shop.create(GOOD, id=1, v=1), *shop.create(BAD, id=1, v=1)]])


def failing(step: Callable[..., Any], times: int, of: str = "bad") -> Callable[..., Any]:
    """The step, which fails for one table the first ``times`` it is taken."""
    left = [times]

    def attempt(self: TableApplier, *args: Any, **options: Any) -> Any:
        if self.name.table == of and left[0]:
            left[0] -= 1
            raise OSError("the disk is full")
        return step(self, *args, **options)

    return attempt


@pytest.mark.long
@pytest.mark.guarantee(
    "A fault in one record stops that record alone, and a fault in one table stops that table alone "
    "(isolation)"
)
@pytest.mark.parametrize("step", ["decide", "prepare", "write"])
def test_a_table_that_fails_once_is_written_in_the_same_run(
    step: str, spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(TableApplier, step, failing(getattr(TableApplier, step), 1))
    mirroring = delivered(tmp_path)
    tables = mirroring.run(spark).tables
    assert tables["demo.public.bad"].error is None
    assert values(spark, mirroring, "bad") == values(spark, mirroring, "good") == [(1, 1)]


@pytest.mark.long
def test_what_was_materialised_is_lost_with_an_executor(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The local checkpoint of the state goes between deciding and committing: it is decided again."""
    prepare, lost = TableApplier.prepare, []

    def lose(self: TableApplier, decision: Any, *args: Any, **options: Any) -> None:
        if not lost:
            state = decision.reduced.state.frame
            state._jdf.queryExecution().toRdd().cache()
            for each in spark.sparkContext._jsc.getPersistentRDDs().values():
                each.unpersist(True)
            lost.append(state)
        prepare(self, decision, *args, **options)

    monkeypatch.setattr(TableApplier, "prepare", lose)
    mirroring = delivered(tmp_path)
    assert mirroring.run(spark).counts.applied == 2
    assert values(spark, mirroring, "bad") == values(spark, mirroring, "good") == [(1, 1)]


@pytest.mark.long
def test_a_table_that_failed_for_a_while_is_whole_when_the_run_ends(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run that ends on its own retries what it held, and does not leave that to the next one."""
    monkeypatch.setattr(TableApplier, "decide", failing(TableApplier.decide, 2))
    mirroring = delivered(tmp_path)
    assert mirroring.run(spark).tables["demo.public.bad"].error is None
    assert json.loads((mirroring.checkpoint / "progress.json").read_text())["totals"]["held"] == 0
    assert values(spark, mirroring, "bad") == values(spark, mirroring, "good") == [(1, 1)]


@pytest.mark.guarantee(
    "A fault in one record stops that record alone, and a fault in one table stops that table alone "
    "(isolation)"
)
def test_a_table_that_fails_twice_is_held_and_applied_later(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mirroring = delivered(tmp_path)
    with monkeypatch.context() as broken:
        broken.setattr(TableApplier, "write", failing(TableApplier.write, 99))
        tables = mirroring.run(spark).tables
    assert values(spark, mirroring, "good") == [(1, 1)]
    error = tables["demo.public.bad"].error or ""
    assert "demo.public.bad could not be written: OSError: the disk is full" in error
    assert "suspend: true" in error
    assert tables["demo.public.bad"].counts.refused == 1
    replay(mirroring.pipeline, spark=spark)
    assert values(spark, mirroring, "bad") == [(1, 1)]


@pytest.mark.long
@pytest.mark.guarantee(
    "A fault in one record stops that record alone, and a fault in one table stops that table alone "
    "(isolation)"
)
def test_a_record_that_makes_spark_throw_is_quarantined_alone(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shop = Shop()
    records = [record for n in range(8) for record in shop.create(BAD, id=n, v=n)]
    whole = EventDecoder.decode

    def throwing(decoder: EventDecoder, events: DataFrame) -> DataFrame:
        decoded = whole(decoder, events)
        thrown = F.when(F.col("offset") == 5, F.raise_error(F.lit("a codec's mistake")))
        return decoded.withColumn("op", F.coalesce(thrown.cast("string"), F.col("op")))

    monkeypatch.setattr(EventDecoder, "decode", throwing)
    mirroring = Mirroring(tmp_path).deliver([records])
    counts = mirroring.run(spark).tables["demo.public.bad"].counts
    assert (counts.records, counts.applied, counts.quarantined) == (8, 7, 1)
    assert values(spark, mirroring, "bad") == [(n, n) for n in range(8) if n != 5]
    (row,) = spark.read.format("delta").load(f"{mirroring.checkpoint}/quarantine").collect()
    assert (row["offset"], row["source"]) == (5, "demo.public.bad")
    assert "a codec's mistake" in row["reason"]


@pytest.mark.thorough
@pytest.mark.guarantee("However many records cannot be read, the others are applied")
def test_more_records_make_spark_throw_than_can_be_found_at_once(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those among which some fail wait, and the driver tries them again until each has its own outcome."""
    shop = Shop()
    records = [record for n in range(4) for each in (GOOD, BAD) for record in shop.create(each, id=n, v=n)]
    poison = {_place(records[number]) for number in (1, 2, 4)}
    monkeypatch.setattr(isolate, "SUSPECT", 0)
    monkeypatch.setattr(isolate, "ATTEMPTS", 6)
    whole = Debezium.classify

    def throwing(self: Debezium, raw: DataFrame, *known: Any) -> DataFrame:
        bad = F.concat_ws("/", "topic", "partition", "offset").isin(*poison)
        thrown = F.when(bad, F.raise_error(F.lit("a classifier's mistake")))
        return whole(self, raw.withColumn("topic", F.coalesce(thrown.cast("string"), F.col("topic"))), *known)

    monkeypatch.setattr(Debezium, "classify", throwing)
    mirroring = Mirroring(tmp_path).deliver([records])
    left: list[int] = []
    find = isolate.poisoned

    def finding(*args: Any, **options: Any) -> isolate.Poison:
        found = find(*args, **options)
        left.append(sum(part.records for part in found.parts))
        return found

    monkeypatch.setattr(isolate, "poisoned", finding)
    for _ in range(len(poison) + 1):
        mirroring.run(spark)
        quarantine = spark.read.format("delta").load(f"{mirroring.checkpoint}/quarantine")
        rows = {_place(row.asDict()): row for row in quarantine.where("state = 'open'").collect()}
        if all(row["scope"] == "record" for row in rows.values()):
            break
    assert left[0] > 0
    assert rows.keys() == poison
    assert all("a classifier's mistake" in row["reason"] for row in rows.values())
    for number, name in enumerate(("good", "bad")):
        kept = [n for n in range(4) if _place(records[2 * n + number]) not in poison]
        assert values(spark, mirroring, name) == [(n, n) for n in kept]


def _place(record: dict[str, Any]) -> str:
    return f"{record['topic']}/{record['partition']}/{record['offset']}"


@pytest.mark.guarantee("Each record that was read has exactly one outcome (conservation)")
def test_a_batch_whose_records_are_not_accounted_for_is_not_done(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = EventDecoder.decode
    monkeypatch.setattr(EventDecoder, "decode", lambda *args: whole(*args).where("row.id <> 1 OR row.v <> 1"))
    mirroring = delivered(tmp_path)
    with pytest.raises(RecordsUnaccounted, match=r"table demo\.public\.bad: .*1 records .*applied: 0"):
        mirroring.run(spark)
    assert list(mirroring.checkpoint.glob("files/commits/*")) == []
    assert not (mirroring.checkpoint / "audit").exists()
    monkeypatch.undo()
    mirroring.run(spark)
    assert values(spark, mirroring, "bad") == values(spark, mirroring, "good") == [(1, 1)]


@pytest.mark.thorough
@pytest.mark.guarantee("No two tables share a target")
def test_a_target_that_another_pipeline_makes_at_the_same_time(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    create = Mirror.create

    def late(self: Mirror, columns: Any, properties: Any, *args: Any, **options: Any) -> None:
        if str(self.location).endswith("/bad"):
            create(self, columns, {**properties, SOURCE_PROPERTY: "other/db.t"}, *args, **options)
        create(self, columns, properties, *args, **options)

    monkeypatch.setattr(Mirror, "create", late)
    mirroring = delivered(tmp_path)
    tables = mirroring.run(spark).tables
    assert "is the mirror of other/db.t" in (tables["demo.public.bad"].error or "")
    assert (values(spark, mirroring, "bad"), values(spark, mirroring, "good")) == ([], [(1, 1)])


@pytest.mark.guarantee("No two tables share a target")
@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("/lake/public/t", "file:///lake//public/T/"),
        ("s3a://lake/a.b/c", "s3a://lake/A.b/c/"),
        ("s3a://lake/a", "s3://lake/./a"),
        ("lake.public.t", "LAKE.public.T"),
    ],
)
def test_spellings_of_one_target(one: str, other: str) -> None:
    assert canonical(one) == canonical(other)
    assert canonical(one) != canonical(one + "x")


@pytest.mark.guarantee("No two tables share a target")
@pytest.mark.parametrize(
    ("first", "then"),
    [
        ("/lake/public", "/lake/public/t"),
        ("/lake/public/a/b", "file:/lake//Public"),
        ("s3a://b", "s3a://b/t"),
    ],
)
def test_a_mirror_inside_another_mirrors_folder_is_refused(first: str, then: str) -> None:
    """VACUUM of the outer mirror would delete the inner one's files, whichever is there first."""
    for targets in (Targets({}), Targets({first: "s.a"})):
        targets.claim(Location(path=first), "s.a")
        with pytest.raises(Refused, match=r"of s\.b and the mirror of s\.a .*tables\[s\.b\]\.target"):
            targets.claim(Location(path=then), "s.b")
        targets.claim(Location(path=first), "s.a")


@pytest.mark.parametrize(
    ("path", "said"),
    [
        ("/lake/demo/orders", r"spec\.checkpoint \(/lake/demo/orders/state\) lies in the target"),
        ("file:///lake/Demo", r"lies in the target .* another checkpoint"),
        ("/lake/demo/orders/state", r"of s\.a lies in spec\.checkpoint"),
        ("/lake/demo/orders/state/t", r"lies in spec\.checkpoint .*: choose another target, tables\[s\.a\]"),
    ],
)
def test_a_mirror_around_the_checkpoint_or_inside_it_is_refused(path: str, said: str) -> None:
    with pytest.raises(Refused, match=said):
        Targets({}, "/lake/demo/orders/state").claim(Location(path=path), "s.a")


def test_a_checkpoint_beside_mirrors_or_hidden_from_vacuum_is_accepted() -> None:
    for checkpoint in ("/lake/demo/orders2", "/lake/demo/orders/_state", "s3a://lake/demo/orders/state"):
        Targets({}, checkpoint).claim(Location(path="/lake/demo/orders"), "s.a")


def test_a_refusal_calls_tables_as_the_manifest_does() -> None:
    """An entry with a longer name would match the same table twice."""
    targets = Targets({"/lake/a": "db.s.a"}, "/lake/c/state", lambda name: name.removeprefix("db."))
    for path, said in {
        "/lake/a": "give db.s.b a target of its own, tables[s.b].target",
        "/lake/a/b": "another target, tables[s.b].target, or tables[s.a].target with a new resyncToken",
        "/lake/c": "another target, tables[s.b].target (with a new resyncToken if the table is mirrored",
    }.items():
        with pytest.raises(Refused, match=re.escape(said)):
            targets.claim(Location(path=path), "db.s.b")


def test_mirrors_beside_each_other_are_accepted() -> None:
    targets = Targets({"/lake/old": "s.a"})
    paths = ("/lake/a", "/lake/ab", "/lake/a/_own/t", "/lake/b/c", "/lake/b/d", "/lake/old/a")
    for path in paths:
        targets.claim(Location(path=path), "s.a" if path.endswith("old/a") else path)
    for name in ("lake.a", "lake.a.b"):
        targets.claim(Location(name=name), name)


@pytest.mark.thorough
def test_a_table_whose_positions_cannot_be_read_is_held(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a reset, the mirror's positions tell old changes from those of a restored source."""
    mirroring = delivered(tmp_path)
    mirroring.run(spark)
    for times, refused in ((1, 0), (99, 1)):
        shutil.rmtree(mirroring.checkpoint)
        with monkeypatch.context() as broken:
            broken.setattr(TableApplier, "standing", failing(TableApplier.standing, times))
            tables = mirroring.run(spark).tables
        assert tables["demo.public.bad"].counts.refused == refused
        assert tables["demo.public.good"].counts.refused == 0
    assert "the disk is full" in (tables["demo.public.bad"].error or "")
    replay(mirroring.pipeline, spark=spark)
    assert values(spark, mirroring, "bad") == values(spark, mirroring, "good") == [(1, 1)]


def flat(offset: int, value: dict[str, Any] | None, topic: str = "shop.orders") -> Record:
    """A flat record of Debezium with the key 1."""
    text = None if value is None else json.dumps({"id": 1, **value})
    place = {"topic": topic, "partition": 0, "offset": offset, "timestamp": 1_700_000_000_000 + offset}
    return {**place, "key": '{"id": 1}', "value": text, "headers": []}


FLAT = {"envelope": {"format": "debezium-flat"}, "ordering": {"by": "offset"}}


@pytest.mark.thorough
@pytest.mark.parametrize("together", [True, pytest.param(False, marks=pytest.mark.thorough)])
def test_a_table_that_is_named_by_its_records_and_by_its_topic(
    together: bool, spark: SparkSession, tmp_path: Path
) -> None:
    """MySQL's records name a database and a table, the topic of a null value names a schema and a table."""
    rows = [flat(0, {"v": 1, "__db": "shop", "__table": "orders"}), flat(1, None)]
    rows += [flat(2, {"v": 2, "__db": "shop", "__schema": "", "__table": "orders"})]
    mirroring = Mirroring(tmp_path, FLAT).deliver([rows] if together else [[each] for each in rows])
    summary = mirroring.run(spark)
    assert summary.counts.quarantined == summary.counts.refused == 0
    assert list(summary.tables) == ["shop.orders"]
    mirroring.deliver([[flat(3, None)]]).run(spark)
    mirroring.deliver([[flat(4, {"v": 4, "__db": "shop", "__table": "orders"})]]).run(spark)
    assert [tuple(row) for row in at(spark, mirroring.path("shop", None, "orders")).collect()] == [(1, 4)]
    assert len(list(mirroring.lake.glob("*/*/orders"))) == 1


def test_a_mirror_stays_where_it_is_however_its_table_is_spelled(spark: SparkSession, tmp_path: Path) -> None:
    mirroring = Mirroring(tmp_path, FLAT).deliver([[flat(0, {"v": 1})]])
    mirroring.run(spark)
    mirroring.deliver([[flat(1, {"v": 2, "__db": "shop", "__table": "orders"})]]).run(spark)
    (path,) = mirroring.lake.glob("*/*/orders")
    assert [tuple(row) for row in at(spark, str(path)).collect()] == [(1, 2)]


def test_bad_records_of_tables_that_are_left_out_do_not_matter(spark: SparkSession, tmp_path: Path) -> None:
    shop = Shop()
    records = [*shop.create(GOOD, id=1, v=1), *shop.create(table("other", Column("w", "int32")), id=1, w=1)]
    settings = {
        "ordering": {"by": "columns", "columns": ["v"]},
        "unlisted": "ignore",
        "tables": [{"source": "public.good"}],
        "onBadRecord": "fail",
    }
    mirroring = Mirroring(tmp_path, settings).deliver([records])
    counts = mirroring.run(spark).counts
    assert (counts.applied, counts.no_row_change, counts.quarantined) == (1, 1, 0)
    assert values(spark, mirroring, "good") == [(1, 1)]


def test_an_unreadable_record_whose_table_is_a_guess_stays_bad(spark: SparkSession, tmp_path: Path) -> None:
    """Its topic names a table that is left out, but other records of the topic name one that is mirrored."""
    orders = flat(0, {"v": 1, "__db": "shop", "__table": "orders"}, topic="everything")
    garbage = {**flat(1, None, topic="everything"), "value": "{"}
    settings = {**FLAT, "unlisted": "ignore", "tables": [{"source": "shop.orders"}]}
    mirroring = Mirroring(tmp_path, settings).deliver([[orders, garbage]])
    counts = mirroring.run(spark).counts
    assert (counts.applied, counts.quarantined) == (1, 1)
