"""Compares one table, and returns the verdict as a value."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from dataclasses import dataclass, field

from pyspark.sql import SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import DataType

from lakemirror.api import CdcPipeline
from lakemirror.api.tables import parts_of
from lakemirror.driver.codes import Op
from lakemirror.driver.plan.mirrored import MirroredTable
from lakemirror.driver.tables.keys import can_be_key
from lakemirror.driver.tables.mirror import KEY_PROPERTY, MODE_PROPERTY, SOURCE_PROPERTY, Mirror
from lakemirror.driver.tables.names import TableName
from lakemirror.driver.tables.store import OpenStore
from lakemirror.driver.verify.arrivals import Arrivals
from lakemirror.driver.verify.ranges import narrow
from lakemirror.driver.verify.repairs import Event, events
from lakemirror.driver.verify.sides import Sides
from lakemirror.driver.verify.sources import Compared, SourceTables, SourceUnfit
from lakemirror.driver.verify.verdict import Settled, settle

PARTS, SMALL = 32, 10_000
"""The number of ranges that rows are split into at a time, and the number of rows compared key by key."""
ROUNDS = 10


@dataclass(frozen=True)
class Checked:
    """The result for one table. ``error`` says why it could not be compared."""

    source: str
    target: str = ""
    mirror_rows: int = 0
    source_rows: int = 0
    settled: Settled = field(default_factory=Settled)
    complete: bool = True
    keyed: bool = True
    left_out: Mapping[str, str] = field(default_factory=dict)
    error: str | None = None
    seconds: float = 0.0
    sides: Sides | None = field(default=None, repr=False, compare=False)

    @property
    def equal(self) -> bool:
        """Whether nothing was found, and nothing is open."""
        return self.error is None and not self.settled.wrong and not self.settled.arriving and self.complete


def session_for(spark: SparkSession) -> SparkSession:
    """Return a session for comparisons, without constraint propagation.

    Constraint propagation takes minutes to find out what wide rows of converted values have in common, and is
    useless here.
    """
    session = spark.newSession()
    session.conf.set("spark.sql.constraintPropagation.enabled", "false")
    return session


def opened(
    spark: SparkSession, pipeline: CdcPipeline, source: str, open_store: OpenStore = Mirror
) -> MirroredTable:
    """Return the mirror of a source table, opened by ``open_store``.

    Raises SourceUnfit with the reason if the table is not compared.
    """
    mirrored = table_of(spark, pipeline, named(source), open_store)
    if not mirrored.mirror.exists:
        raise SourceUnfit(f"{source}: there is no mirror at {mirrored.location} yet")
    return mirrored


def named(source: str) -> TableName:
    """Return the table that `TableName` displays as ``source``."""
    *database, name = parts_of(source)
    return TableName(database[0] if database else None, database[1] if len(database) > 1 else None, name)


def table_of(
    spark: SparkSession, pipeline: CdcPipeline, table: TableName, open_store: OpenStore = Mirror
) -> MirroredTable:
    """Return a source table, whose mirror need not exist.

    Raises SourceUnfit if the table is left out, or if another table's mirror is at its location.
    """
    source = str(table)
    settings = pipeline.spec.table_settings(source)
    if settings is None:
        raise SourceUnfit(f"{source}: the manifest leaves this table out")
    mirrored = MirroredTable(spark, pipeline, table, settings, (), open_store)
    if not mirrored.mirror.exists:
        return mirrored
    owner = mirrored.properties.get(SOURCE_PROPERTY)
    if owner != mirrored.source:
        raise SourceUnfit(f"{source}: {mirrored.location} is not its mirror, but that of {owner}")
    return mirrored


def wanted_of(table: MirroredTable) -> Compared:
    """Return what can be compared of a mirror. Raises SourceUnfit."""
    fed = table.fed or {}
    names = {table.rename.get(source, source): source for source in fed}
    columns: dict[str, DataType] = {name: fed[source] for name, source in names.items()}
    key: list[str] = json.loads(table.properties.get(KEY_PROPERTY) or "[]")
    if table.properties.get(MODE_PROPERTY) == "append":
        key = []
        _only_rows(table)
    bad = next((name for name in key if name not in columns or not can_be_key(columns[name])), None)
    if bad is not None:
        raise SourceUnfit(f"{table.name}: the key column {bad} cannot be compared")
    settings = table.settings.columns
    excluded = (lambda source: not settings.keeps(source)) if settings is not None else (lambda source: False)
    return Compared(columns, names, key, excluded=excluded)


def _only_rows(table: MirroredTable) -> None:
    """Raise SourceUnfit unless each appended event is a row of its own, as in the source."""
    other = table.rows().where(~F.col("__op").isin(Op.CREATE, Op.READ)).select("__op").first()
    if other is not None:
        raise SourceUnfit(
            f"{table.name}: the mirror keeps every change (mode append) and has updates or deletes (op "
            f"{other[0]}), so that its rows are not those of the source: compare a table of mode scd1 or scd2"
        )


def check(
    spark: SparkSession,
    table: MirroredTable,
    sources: SourceTables,
    arrivals: Arrivals,
    *,
    most: int,
    images: bool = False,
) -> Checked:
    """Compare a mirror with its source. Raises SourceUnfit."""
    began = time.monotonic()
    source = sources.table(table.name, wanted_of(table))
    sides = Sides(spark, table, source, arrivals.wait_for, images=images)
    if source.compared.key:
        found = narrow(sides, parts=PARTS, small=SMALL, most=most)
    else:
        found = narrow(sides, parts=1, small=0, most=1)
    settled = settle(sides, found.keys, over=arrivals.over, rounds=ROUNDS)
    return Checked(
        str(table.name),
        str(table.location),
        found.mirror_rows,
        found.source_rows,
        settled,
        found.complete,
        bool(source.compared.key),
        source.compared.left_out,
        seconds=time.monotonic() - began,
        sides=sides,
    )


def repairing(checked: Checked, table: MirroredTable, sources: SourceTables, epoch: int = 0) -> list[Event]:
    """Return the change events that correct the wrong rows of a table, which is in ``epoch``.

    Raises SourceUnfit if it cannot be done.
    """
    sides, wrong = checked.sides, checked.settled.wrong
    assert sides is not None
    compared = sides.compared
    if table.settings.suspend:
        raise SourceUnfit(f"{table.name}: it is suspended: resume it first")
    reason = _unrepairable(checked, table, compared, ordered=sources.ordered)
    if reason is not None:
        place = f"tables[{table.settings.source}].resyncToken"
        raise SourceUnfit(f"{table.name}: {reason}: set {place} to a new value to have the table read again")
    blocks = {each.key: sources.source_block(each.position or b"") for each in wrong}
    gone = sides.key_images([each.key for each in wrong if not each.in_source])
    return events(table.name, sides.fields(compared.key), sides.fields(), wrong, gone, blocks, epoch)


def _unrepairable(checked: Checked, table: MirroredTable, compared: Compared, *, ordered: bool) -> str | None:
    """Return why wrong rows cannot be replaced one by one, or None if they can."""
    if not compared.key:
        return "it has no key, so that nothing tells which rows are wrong"
    if compared.unread:
        return f"column {compared.unread[0]} cannot be read exactly, so that rows are not known as a whole"
    if not ordered:
        return "no position of the source tells if a row is newer than a change of the pipeline"
    lost = next((each.key for each in checked.settled.wrong if each.in_source and each.image is None), None)
    return None if lost is None else f"the row {lost} has a value that the mirror's types cannot hold"
