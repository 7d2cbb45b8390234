"""Columns to which the manifest gives a type (``columns.types``): every type, in every mode, with TOAST."""

from __future__ import annotations

import base64
import re
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from lakemirror.api.checks import SIMPLE_TYPE
from lakemirror.driver.runtime.reload import reload
from lakemirror.driver.runtime.verifier import SnapshotWanted, verify
from lakemirror.driver.tables.delta import quoted
from tests.support.mirroring import Mirroring
from tests.support.records import UNAVAILABLE, Column
from tests.support.shop import Shop, table

V = Column("v", "int32", optional=True)
VALUES = {
    "boolean": ("true", "false"),
    "byte": ("1", "2"),
    "tinyint": ("1", "2"),
    "short": ("1", "2"),
    "smallint": ("1", "2"),
    "int": ("1", "2"),
    "integer": ("1", "2"),
    "long": ("1", "2"),
    "bigint": ("1", "2"),
    "float": ("1.5", "2.5"),
    "real": ("1.5", "2.5"),
    "double": ("1.5", "2.5"),
    "decimal": ("1", "2"),
    "numeric": ("1", "2"),
    "decimal(10,2)": ("1.25", "2.50"),
    "date": ("2026-01-01", "2026-01-02"),
    "timestamp": ("2026-01-01 00:00:01", "2026-01-02 00:00:02"),
    "timestamp_ltz": ("2026-01-01 00:00:01", "2026-01-02 00:00:02"),
    "timestamp_ntz": ("2026-01-01 00:00:01", "2026-01-02 00:00:02"),
    "string": ("a", "b"),
    "binary": ("a", "b"),
    "char(3)": ("abc", "abd"),
    "varchar(3)": ("a", "b"),
    "variant": ('{"a":1}', '{"a":[2,"x"]}'),
}
"""Two texts of the source for each type that `SIMPLE_TYPE` accepts, as the mirror shows them."""


CREATED, UPDATED = ([values[i] for values in VALUES.values()] for i in (0, 1))
NOTHING = [None] * len(VALUES)
EXPECTED = {
    "scd1": [UPDATED],
    "scd2": [CREATED, UPDATED, UPDATED, CREATED],
    "append": [CREATED, UPDATED, NOTHING, CREATED, NOTHING],
}
"""The rows of one row that is created, updated and updated without its values, and of one that is deleted."""


def shown(spark: SparkSession, mirroring: Mirroring, *names: str) -> list[list[object]]:
    """The mirror's columns as text."""
    frame = spark.read.format("delta").load(mirroring.path("demo", "public", "typed"))
    kinds = dict(frame.dtypes)
    texts = [
        F.to_json(quoted(name)) if kinds[name] == "variant" else F.col(quoted(name)).cast("string")
        for name in names
    ]
    return [list(row) for row in frame.orderBy("id", "__seq").select(*texts).collect()]


def untroubled(spark: SparkSession, mirroring: Mirroring) -> None:
    """Run, with no drift and nothing held or quarantined."""
    done = mirroring.run(spark)
    assert [(each.error, each.drift) for each in done.tables.values()] == [(None, ())]
    assert (done.counts.quarantined, done.counts.refused) == (0, 0)


def test_all_simple_types_are_listed() -> None:
    words = re.search(r"\(([a-z_|]+)\)", SIMPLE_TYPE.pattern)
    assert words is not None
    assert set(words[1].split("|")) <= VALUES.keys()


def in_base64(text: str) -> str:
    return base64.b64encode(text.encode()).decode()


def sent(texts: Sequence[str]) -> dict[str, str]:
    """What the source sends: BINARY is of bytes, and every other type of text."""
    found = dict(zip(VALUES, texts, strict=True))
    return {**found, "binary": in_base64(found["binary"])}


@pytest.mark.thorough
@pytest.mark.parametrize(
    "mode",
    [
        "scd1",
        pytest.param("scd2", marks=pytest.mark.long),
        pytest.param("append", marks=pytest.mark.thorough),
    ],
)
def test_every_type_works(spark: SparkSession, tmp_path: Path, mode: str) -> None:
    shop = Shop()
    texts = [Column(name, "string", optional=True) for name in VALUES if name != "binary"]
    typed = table("typed", V, *texts, Column("binary", "bytes", optional=True))
    old, new, gaps = sent(CREATED), sent(UPDATED), sent([UNAVAILABLE] * len(VALUES))
    columns = {"types": {name: name for name in VALUES}}
    settings = {"tables": [{"source": "typed", "mode": mode, "columns": columns}]}
    mirroring = Mirroring(tmp_path, settings).deliver(
        [
            [*shop.create(typed, id=1, v=1, **old), *shop.create(typed, id=2, v=1, **old)],
            shop.update(typed, id=1, v=2, **new),
            [*shop.update(typed, id=1, v=3, **gaps), *shop.delete(typed, id=2, v=1, **old)],
        ]
    )
    untroubled(spark, mirroring)
    assert shown(spark, mirroring, *VALUES) == EXPECTED[mode]


AMOUNTS = table("typed", V, Column("amount", "string", optional=True), Column("doc", "string", optional=True))
DECLARED = {
    "types": {"amount": "decimal(20,2)", "doc": "variant"},
    "rename": {"amount": "price", "doc": "about"},
    "expressions": {"twice": "price * 2", "a": "variant_get(about, '$.a', 'int')"},
    "rowHash": "hash",
}


def declaring(tmp_path: Path, **settings: object) -> Mirroring:
    return Mirroring(tmp_path, {"tables": [{"source": "typed", "columns": DECLARED, **settings}]})


@pytest.mark.long
@pytest.mark.parametrize("mode", ["scd1", pytest.param("scd2", marks=pytest.mark.thorough)])
def test_values_that_are_left_out_are_taken_from_events_that_come_later_or_had_another_key(
    spark: SparkSession, tmp_path: Path, mode: str
) -> None:
    """Under other names, and what is computed of them follows."""
    shop = Shop()
    created = shop.create(AMOUNTS, id=1, v=1, amount="12.50", doc='{"a":7}')
    row = {"id": 1, "v": 2, "amount": UNAVAILABLE, "doc": UNAVAILABLE}
    updated = shop.update(AMOUNTS, **row)
    moved = shop.send(AMOUNTS, *AMOUNTS.move(shop.next(), row, {**row, "id": 2}))
    mirroring = declaring(tmp_path, mode=mode).deliver([updated])
    untroubled(spark, mirroring)
    names = ("id", "v", "price", "about", "twice", "a")
    assert shown(spark, mirroring, *names) == [["1", "2", None, None, None, None]]
    mirroring.deliver([created])
    untroubled(spark, mirroring)
    values = ["12.50", '{"a":7}', "25.00", "7"]
    found = [["1", "2", *values]] if mode == "scd1" else [["1", "1", *values], ["1", "2", *values]]
    assert shown(spark, mirroring, *names) == found
    mirroring.deliver([moved])
    untroubled(spark, mirroring)
    found = [["2", "2", *values]] if mode == "scd1" else [*found, ["2", "2", *values]]
    assert shown(spark, mirroring, *names) == found
    assert len({tuple(each) for each in shown(spark, mirroring, "id", "v", "hash")}) == len(found)


@pytest.mark.thorough
def test_a_mirror_goes_on_whose_declared_columns_were_not_among_those_that_may_be_left_out(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nulls that it has for values that were left out stay until the next whole image."""
    shop = Shop()
    mirroring = Mirroring(
        tmp_path, {"tables": [{"source": "typed", "columns": {"types": {"amount": "decimal(20,2)"}}}]}
    ).deliver(
        [
            [record for i in (1, 2, 3) for record in shop.create(AMOUNTS, id=i, v=1, amount="1", doc="x")],
            shop.update(AMOUNTS, id=1, v=2, amount=UNAVAILABLE, doc=UNAVAILABLE),
        ]
    )
    with monkeypatch.context() as before:
        before.setattr("lakemirror.driver.plan.columns.tracked_in", lambda *_: ["doc"])
        untroubled(spark, mirroring)
    names = ("id", "v", "amount", "doc")
    others = [["2", "1", "1.00", "x"], ["3", "1", "1.00", "x"]]
    assert shown(spark, mirroring, *names) == [["1", "2", None, "x"], *others]
    mirroring.deliver(
        [[record for i in (1, 2) for record in shop.update(AMOUNTS, id=i, v=3, amount=UNAVAILABLE, doc="y")]]
    )
    untroubled(spark, mirroring)
    assert shown(spark, mirroring, *names) == [["1", "3", None, "y"], ["2", "3", "1.00", "y"], others[1]]
    mirroring.deliver([shop.update(AMOUNTS, id=1, v=4, amount="4", doc=UNAVAILABLE)])
    untroubled(spark, mirroring)
    assert shown(spark, mirroring, *names)[0] == ["1", "4", "4.00", "y"]


def test_text_that_is_no_json_is_no_variant(spark: SparkSession, tmp_path: Path) -> None:
    shop = Shop()
    mirroring = declaring(tmp_path, onConflict="fail").deliver(
        [
            [
                *shop.create(AMOUNTS, id=1, v=1, amount="1", doc="{"),
                *shop.create(AMOUNTS, id=2, v=1, amount="1", doc="null"),
                *shop.create(AMOUNTS, id=3, v=1, amount="1", doc=None),
                *shop.create(AMOUNTS, id=4, v=1, amount="1", doc='["a",1e2]'),
                *shop.create(AMOUNTS, id=5, v=1, amount="1", doc="1e400"),
            ]
        ]
    )
    done = mirroring.run(spark)
    assert done.counts.quarantined == 2
    assert shown(spark, mirroring, "id", "about") == [["2", "null"], ["3", None], ["4", '["a",100]']]
    aside = spark.read.format("delta").load(f"{mirroring.checkpoint}/quarantine")
    assert [row["reason"] for row in aside.collect()] == ["the value does not fit doc (variant)"] * 2


@pytest.mark.thorough
@pytest.mark.parametrize(
    "form",
    [pytest.param("parquet", marks=pytest.mark.thorough), pytest.param("delta", marks=pytest.mark.long)],
)
def test_a_variant_is_compared_and_reloaded_as_json(spark: SparkSession, tmp_path: Path, form: str) -> None:
    """A snapshot may have it as text, with other spaces and another order, or as a variant."""
    shop = Shop()
    mirroring = declaring(tmp_path).deliver(
        [
            [
                *shop.create(AMOUNTS, id=1, v=1, amount="1", doc='{"a":1,"b":[null,"x"]}'),
                *shop.create(AMOUNTS, id=2, v=1, amount="1", doc='{"a":2}'),
                *shop.create(AMOUNTS, id=3, v=1, amount="1", doc=None),
            ]
        ]
    )
    untroubled(spark, mirroring)
    doc = "doc" if form == "parquet" else "parse_json(doc)"

    def snapshot(second: str) -> None:
        rows = [(1, 1, "1", '{ "b": [null, "x"], "a": 1 }'), (2, 1, "1", second), (3, 1, "1", None)]
        frame = spark.createDataFrame(rows, "id INT, v INT, amount STRING, doc STRING")
        frame = frame.selectExpr("id", "v", "amount", f"{doc} AS doc")
        frame.write.format(form).mode("overwrite").save(f"{tmp_path}/snapshots/demo/typed")

    wanted = SnapshotWanted(f"{tmp_path}/snapshots/{{db}}/{{table}}", form)

    def wrong() -> list[tuple[str, str]]:
        [checked] = verify(mirroring.pipeline, wanted, spark=spark).tables
        assert (checked.error, checked.left_out) == (None, {})
        return [(each.key, each.what) for each in checked.settled.wrong]

    snapshot('{ "a": 2 }')
    assert wrong() == []
    snapshot('{"a":3}')
    assert wrong() == [('["2"]', "differs")]
    [done] = reload(mirroring.pipeline, wanted, at=datetime.now(UTC), spark=spark)
    assert (done.error, done.staged.changed, done.done) == (None, 1, True)
    assert shown(spark, mirroring, "about", "a") == [
        ['{"a":1,"b":[null,"x"]}', "1"],
        ['{"a":3}', "3"],
        [None, None],
    ]
    assert wrong() == []
