"""``columns.expressions``: a computed column is its expression of the row's values, in every mode."""

from __future__ import annotations

from decimal import Decimal
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import (
    ArrayType,
    DataType,
    DecimalType,
    IntegerType,
    StringType,
    StructField,
    StructType,
)

from lakemirror.api.spark_settings import WRITER
from lakemirror.driver import faults
from lakemirror.driver.parse.computed import checked
from lakemirror.driver.parse.condition import WrongCondition
from lakemirror.driver.runtime.supported import WrongFilter
from lakemirror.driver.tables.delta import quoted
from lakemirror.driver.write import form
from tests.support.mirroring import Mirroring
from tests.support.records import UNAVAILABLE, Column
from tests.support.shop import Shop, decimal, table

KINDS: dict[str, DataType] = {
    "id": IntegerType(),
    "a.b`c": StringType(),
    "price": DecimalType(9, 2),
    "tags": ArrayType(StringType()),
    "at": StructType([StructField("a.b`c", StringType()), StructField("zip", IntegerType())]),
}
PRICE, NOTE, COUNT = decimal("p.`ü`", 9, 2), Column("note", "string", True), Column("count", "int32", True)
P1, P2 = "AJY=", "Ag=="  # 1.50 and 0.02
EXPRESSIONS = {
    "Total (net)": "`p.``ü``` * many",
    "label": "concat(upper(note), '`p.``ü```', many)",
    "marks": "transform(split(note, ''), note -> note || many)",
    "always": "7",
}


@pytest.mark.parametrize(
    ("sql", "value"),
    [
        ("id + 1", 8),
        ("`A.B``c` || at.`a.b``c` || AT.zip", "xy5"),
        ("exists(tags, id -> id = 'u') AND id = 7", True),
        ("aggregate(tags, '', (acc, t) -> acc || t || `a.b``c`)", "uxvx"),
        ("price * id", Decimal("10.50")),
        ("CASE WHEN id > 7 THEN 'id' END", None),
    ],
)
def test_an_expression_reads_columns_of_a_row(spark: SparkSession, sql: str, value: object) -> None:
    schema = StructType([StructField(name, kind) for name, kind in KINDS.items()])
    rows = spark.createDataFrame([(7, "x", Decimal("1.50"), ["u", "v"], ("y", 5))], schema)
    each = checked(spark, sql, KINDS)
    found = rows.select(each.of({name: F.col(quoted(name)) for name in KINDS}).alias("found"))
    assert found.schema["found"].dataType == each.kind
    row = found.first()
    assert row is not None
    assert row[0] == value


@pytest.mark.guarantee(
    "A filter, an expectation or a computed column that fails for rows concerns the records of these rows, "
    "however many there are, in one pass; with `onViolation: warn` they are applied"
)
@pytest.mark.parametrize(
    ("sql", "why"),
    [
        ("id +", "cannot be parsed"),
        ("amount * 2", "amount"),
        ("id + (SELECT 1)", "has a subquery: an expression sees one row only"),
        ("sum(price)", "aggregate"),
        ("explode(tags)", "generator"),
        ("row_number() OVER (ORDER BY id)", "window"),
        ("rand() * id", "rand"),
        ("uuid()", "uuid"),
        ("current_timestamp()", "current_timestamp"),
        ("*", "is not an expression: write one such as price"),
        ("map('a', id)", "is of type map<string,int>"),
        ("NULL", "is of type void"),
    ],
)
def test_what_is_no_expression_of_a_row_says_why(spark: SparkSession, sql: str, why: str) -> None:
    with pytest.raises(WrongCondition, match=why):
        checked(spark, sql, KINDS)


@pytest.mark.thorough
@pytest.mark.guarantee("Columns that the manifest adds are correct, whatever a row was made of")
@pytest.mark.parametrize("writer", ["", pytest.param("merge", marks=pytest.mark.thorough)])
def test_it_is_right_whatever_a_row_was_made_of(writer: str, spark: SparkSession, tmp_path: Path) -> None:
    """With values that the source left out, names that are changed, deletes, versions and a record for which
    the expression fails.
    """
    shop = Shop()
    modes = {
        "plain": {},
        "soft": {"delete": {"type": "soft", "column": "gone"}},
        "history": {"mode": "scd2"},
        "listed": {"mode": "append"},
    }
    columns = {"rename": {"count": "many"}, "expressions": EXPRESSIONS}
    tables = [{"source": name, "columns": columns, **each} for name, each in modes.items()]
    tables.append({"source": "parts", "columns": {"expressions": {"share": "100 / count"}}})
    tables.append({"source": "lost", "columns": {"expressions": {"share": "100 / parts"}}})
    batches = [[], [], []]
    for of in (table(name, PRICE, NOTE, COUNT) for name in modes):
        batches[0] += shop.create(of, id=1, **{"p.`ü`": P1}, note="ab", count=2)
        batches[0] += shop.create(of, id=2, **{"p.`ü`": P1}, note=None, count=2)
        late = shop.update(of, id=1, **{"p.`ü`": P1}, note="late", count=4)
        batches[1] += shop.update(of, id=1, **{"p.`ü`": P2}, note=UNAVAILABLE, count=3)
        batches[1] += shop.delete(of, id=2, **{"p.`ü`": P1}, note=None, count=2)
        batches[2] += [*late, *shop.create(of, id=3, **{"p.`ü`": P2}, note="c", count=None)]
    parts = table("parts", COUNT)
    batches[0] += [*shop.create(parts, id=1, count=4), *shop.create(parts, id=2, count=0)]
    batches[0] += shop.create(table("lost", COUNT), id=1, count=4)
    mirroring = Mirroring(tmp_path, {"tables": tables}).deliver(batches)
    spark.conf.set(WRITER, writer)
    try:
        summary = mirroring.run(spark)
    finally:
        spark.conf.unset(WRITER)
    assert {name for name, each in summary.tables.items() if each.error} == {"demo.public.lost"}
    assert "columns.expressions[share] cannot be evaluated" in (
        summary.tables["demo.public.lost"].error or ""
    )

    for name in modes:
        rows = spark.read.format("delta").load(mirroring.path("demo", "public", name))
        assert rows.count() >= 2
        for column, sql in EXPRESSIONS.items():
            shown = rows.where("__op <> 'd'") if name == "listed" else rows
            wrong = shown.where(f"NOT ({quoted(column)} <=> ({sql}))")
            assert not wrong.collect(), f"{name}: {column}"
    found = spark.read.format("delta").load(mirroring.path("demo", "public", "plain")).where("id = 1").first()
    assert found is not None
    assert (str(found["Total (net)"]), found["label"]) == ("0.06", "LATE`p.``ü```3")
    gone = spark.read.format("delta").load(mirroring.path("demo", "public", "soft")).where("id = 2").first()
    assert gone is not None
    assert (str(gone["Total (net)"]), gone["gone"] is None) == ("3.00", False)

    counts = summary.tables["demo.public.parts"].counts
    assert (counts.applied, counts.quarantined, counts.unaccounted) == (1, 1, 0)
    aside = spark.read.format("delta").load(f"{mirroring.checkpoint}/quarantine").where("offset = 1")
    assert "DIVIDE_BY_ZERO" in str(aside.where("topic LIKE '%parts'").select("reason").first())


@pytest.mark.thorough
@pytest.mark.guarantee("Columns that the manifest adds are correct, whatever a row was made of")
def test_it_follows_the_columns_that_it_reads(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A type that becomes wider is drift of the computed column, too, and its stored values are those of the
    new type, also after a crash between the two; a column that the source drops refuses the table. The
    expression does not change.
    """
    shop = Shop()
    expressions = {"as text": "string(price)", "double": "price + price"}
    settings = {"tables": [{"source": "items", "columns": {"expressions": expressions}}]}
    narrow, wide = table("items", decimal("price", 9, 2)), table("items", decimal("price", 12, 4))
    mirroring = Mirroring(tmp_path, settings).deliver(
        [
            shop.create(narrow, id=1, price="AJY="),
            shop.create(wide, id=2, price="AJY="),
        ]
    )
    summary = mirroring.run(spark).tables["demo.public.items"]
    assert [(each.column, each.to_type) for each in summary.drift] == [
        ("price", "decimal(12,4)"),
        ("double", "decimal(13,4)"),
    ]
    path = mirroring.path("demo", "public", "items")

    def rows() -> list[tuple[str, ...]]:
        frame = spark.read.format("delta").load(path).orderBy("id")
        return [tuple(map(str, row)) for row in frame.select("as text", "double").collect()]

    assert rows() == [("1.5000", "3.0000"), ("0.0150", "0.0300")]

    def crashes(*_: object) -> None:
        raise faults.InjectedCrash

    wider = table("items", decimal("price", 14, 5))
    mirroring.deliver([shop.create(wider, id=3, price="AJY=")])
    with monkeypatch.context() as patched:
        patched.setattr(form, "_compute_anew", crashes)
        with pytest.raises(faults.InjectedCrash):
            mirroring.run(spark)
    mirroring.run(spark)
    assert rows() == [("1.50000", "3.00000"), ("0.01500", "0.03000"), ("0.00150", "0.00300")]

    dropped = mirroring.deliver([shop.create(table("items"), id=4)]).run(spark).tables["demo.public.items"]
    assert "columns.expressions[as text] reads price, which the source does not have any more" in (
        dropped.error or ""
    )
    assert (dropped.counts.refused, len(rows())) == (1, 3)

    other = {"tables": [{"source": "items", "columns": {"expressions": {"as text": "string(id)"}}}]}
    again = Mirroring(tmp_path, other).deliver([shop.create(wide, id=5, price="AJY=")]).run(spark)
    assert "columns.expressions" in (again.tables["demo.public.items"].error or "")

    bad = {"tables": [{"source": "items", "columns": {"expressions": {"x": "id ++* 1"}}}]}
    with pytest.raises(WrongFilter, match=r"expressions\[x\]: .* cannot be parsed"):
        Mirroring(tmp_path, bad).run(spark)
