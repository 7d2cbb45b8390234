"""The hostile cases as the rules have them, without the driver's engine."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from lakemirror.driver.rules.envelopes.records import TableName
from tests.hostile.cases import RECORDS, TABLES
from tests.support.records import Column, Record, Row
from tests.support.rule_engine import Asked, Engine, Mirrored
from tests.support.shop import Shop, table

RECORD_TABLE = table("records", Column("v", "int32", optional=True), Column("text", "string", optional=True))
RECORDS_SOURCE = "demo.public.records"
GOOD = (-1, -2)
"""Rows that stand before and after the hostile records."""

_MANIFEST = "the manifest is at odds with what is there, which is found before records are read"
LEFT_OUT: Mapping[str, str] = {
    "two tables with one target, the second": _MANIFEST,
    "a target that is another table": _MANIFEST,
    "a target below a file": _MANIFEST,
    "a suspended table": "its records are not read",
    "the key column is left out": _MANIFEST,
    "scd1 without a key": _MANIFEST,
    "a key is added later": "a mirror without a key is at odds with what all records have now",
}
"""Cases of whole tables that the rules do not decide, and why."""
COVERED = [number for number, case in enumerate(TABLES) if case.name not in LEFT_OUT]
"""The numbers of all others."""


def hostile_records(shop: Shop) -> list[Record]:
    """A good row, then the hostile record of each case with its number as id and v, then a good row."""

    def create(id: int) -> Record:
        (record,) = shop.create(RECORD_TABLE, id=id, v=id, text=None)
        return record

    first, last = GOOD
    return [create(first), *[case.change(create(n)) for n, case in enumerate(RECORDS)], create(last)]


def of_records(lake: str = "") -> Engine:
    """What the rules make of the single records. ``lake`` is the folder of the mirrors."""
    engine = Engine(location=lambda table: _place(lake, table))
    engine.deliver(hostile_records(Shop()))
    return engine


def _place(lake: str, table: TableName) -> str:
    return f"{lake}/{table.database}/{table.schema}/{table.table}"


def of_table(number: int) -> Mirrored:
    """What the rules make of the case of a table."""
    case = TABLES[number]
    name = f"demo.public.t{number}"
    asked = Asked(case.settings.get("mode"), case.settings.get("primaryKey", ()))
    engine = Engine(asked={name: asked})
    for batch in case.batches(Shop(), case.table(number)):
        engine.deliver(batch)
    assert not engine.reasons
    return engine.tables[name]


def reasons(engine: Engine) -> dict[int, str]:
    """The reasons of the quarantine by the offset of their record."""
    found = [engine.reasons, *(each.reasons for each in engine.tables.values())]
    return {origin.offset or 0: reason for some in found for origin, reason in some.items()}


def rows_of(table: Mirrored) -> list[Row]:
    """The rows of a mirror, without metadata."""
    if table.mode == "append":
        return [{name: (each.values or {}).get(name) for name in table.columns} for each in table.listed]
    return [dict(row.values) for row in table.rows.values()]


def rows_by_id(engine: Engine) -> dict[int, Row]:
    """The rows of the single records."""
    return {row["id"]: row for row in rows_of(engine.tables[RECORDS_SOURCE])}


def in_order(rows: Iterable[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Rows in an order of their own."""
    return sorted(rows, key=lambda row: repr(sorted(row.items())))
