"""Writes mirrors that are tables of a database (`lakemirror.driver.tables.jdbc`).

Spark reads the stored rows of a batch's keys and determines what happens to them, as for Delta. The database
then applies this in one transaction, together with the tombstones and the mark of the batch.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict
from functools import reduce
from typing import cast

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructField

from lakemirror.driver.errors import LakemirrorError
from lakemirror.driver.materialise import materialised
from lakemirror.driver.plan.mirrored import MirroredTable
from lakemirror.driver.plan.refusal import left_out, new_mirror
from lakemirror.driver.plan.table import TablePlan
from lakemirror.driver.read.base import Batch
from lakemirror.driver.reduce.changes import Changes
from lakemirror.driver.tables.columns import T
from lakemirror.driver.tables.delta import quoted
from lakemirror.driver.tables.jdbc import CannotHold, JdbcMirror
from lakemirror.driver.tables.jdbc_database import Database
from lakemirror.driver.tables.jdbc_marks import Mark
from lakemirror.driver.tables.names import Location
from lakemirror.driver.write.clauses import resolved
from lakemirror.driver.write.writer import Done, Transaction, Written


class JdbcTarget:
    """Tables of one database (`lakemirror.driver.write.target.TargetKind`)."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def open(self, spark: SparkSession, location: Location) -> JdbcMirror:
        return JdbcMirror(spark, self._database, location)

    def writers(self, table: MirroredTable) -> JdbcWriters:
        return JdbcWriters(table)

    def check(self, spark: SparkSession) -> None:
        with self._database.session(spark) as session:
            session.query("SELECT 1")

    def count(self, spark: SparkSession, target: str) -> int:
        mirror = self.open(spark, Location(name=target))
        with self._database.session(spark) as session:
            return int(session.query(f"SELECT count(*) FROM {mirror.table()}")[0][0])


class JdbcWriters:
    """The only writer of a table."""

    merged = False

    def __init__(self, table: MirroredTable) -> None:
        self._table = table

    @property
    def _mirror(self) -> JdbcMirror:
        return cast(JdbcMirror, self._table.mirror)  # opened by the target that creates these writers

    def for_changes(self, changes: Changes) -> JdbcWriter:
        return JdbcWriter(self._table, self._mirror)

    def append(
        self, events: DataFrame, plan: TablePlan, batch: Batch, session: SparkSession | None
    ) -> Written:
        raise LakemirrorError(f"the target {self._table.location} keeps no events")

    def done(self, transaction: Transaction) -> Done | None:
        """Return the commit of a batch, found by its mark."""
        found = self._mirror.mark(transaction.app_id, transaction.batch.batch_id)
        if found is None:
            return None
        note = json.loads(found[1])
        return Done(found[0], note, Written(**note["rows"]))


class JdbcWriter:
    """Changes the rows of a mirror in one transaction per batch."""

    def __init__(self, table: MirroredTable, mirror: JdbcMirror) -> None:
        self._table, self._mirror = table, mirror

    def write(
        self, states: DataFrame, changes: Changes, transaction: Transaction, first: Callable[[], None]
    ) -> Written:
        """See `lakemirror.driver.write.writer.Writer`.

        The outcomes of the records are stored in the batch's note, because a replay can no longer see the
        rows from before the commit.
        """
        try:
            return self._write(states, changes, transaction, first)
        except CannotHold as error:
            raise LakemirrorError(self._told(error)) from None

    def _told(self, error: CannotHold) -> str:
        """Return what the database cannot hold, by the source's names, and what to do."""
        back = {mirror: source for source, mirror in self._table.rename.items()}
        column, settings = back.get(error.column, error.column), self._table.settings
        leave = left_out(settings, "the column")
        if error.column in json.loads(self._mirror.properties.get("lakemirror.key", "[]")):
            key = f"tables[{settings.source}].primaryKey"
            leave = f"set {key} to other columns, and {new_mirror(settings)}"
        return (
            f"the column {column} {error.why} in the row {error.row}, which "
            f"{self._mirror.database.dialect.title} cannot hold in {self._table.location} ({error.said}): "
            f"change the row in the source, after which it is applied, or {leave}"
        )

    def _write(
        self, states: DataFrame, changes: Changes, transaction: Transaction, first: Callable[[], None]
    ) -> Written:
        mirror, version = self._mirror, self._mirror.version
        assert version is not None
        with mirror.staged(str(transaction.batch.batch_id)):
            stored = mirror.look_up(version, states, changes.key, changes.keys)
            rows = materialised(self._outcome(states, stored, changes))
            found = {row["what"]: row["count"] for row in rows.groupBy("what").count().collect()}
            counts = found.get("i", 0), found.get("u", 0), found.get("d", 0)
            written = transaction.told(Written(*counts))
            first()
            note = json.dumps({**transaction.note, "rows": asdict(written)}, sort_keys=True)
            mark = Mark(transaction.app_id, transaction.batch.batch_id, note)
            mirror.commit(version, changes.key, rows, counts, mark)
        return written

    def _outcome(self, states: DataFrame, stored: DataFrame, changes: Changes) -> DataFrame:
        """Return the rows that change, in their new form: what (i, u or d), and the row n."""
        fields = [StructField(name, kind) for name, kind in self._mirror.kinds.items()]
        known = stored.select("t", F.col("number").alias("of"))
        joined = states.alias("s").join(known, F.col("s.number") == F.col("of"), "left")
        matched = F.col("of").isNotNull()
        joined = joined.withColumn("there", matched)
        found = resolved(joined, fields, changes, F.col("there"), "there")
        if changes.untouched:
            found = found.unionByName(self._untouched(states, changes, fields))
        what = F.when(F.col("gone"), "d").when(F.col("there"), "u").otherwise("i").alias("what")
        return found.select(what, "n")

    def _untouched(self, states: DataFrame, changes: Changes, fields: Sequence[StructField]) -> DataFrame:
        """Return what happens to stored rows whose keys are not in the batch."""
        same = [T(name) == F.col(f"s.key.{quoted(name)}") for name in changes.key]
        rows = self._mirror.frame().alias("t")
        rows = rows.join(states.alias("s"), reduce(Column.__and__, same), "left_anti")
        alone = Changes(changes.key, matched=changes.untouched, unmatched=())
        rows = rows.select(F.struct("t.*").alias("t"), F.lit(True).alias("there"))
        return resolved(rows, fields, alone, F.col("there"), "there")
