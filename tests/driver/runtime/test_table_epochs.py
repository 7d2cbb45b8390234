"""After a failover, tables whose partitions are not all in the new epoch: no row of them stops changing
after it was repaired or loaded, and no position is taken for one of another epoch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from pyspark.sql import SparkSession

from lakemirror.api.spec import PipelineSpec
from lakemirror.driver.consistent.answer import ReadAt
from lakemirror.driver.jdbc import Login
from lakemirror.driver.runtime import loading, verifier
from lakemirror.driver.runtime import reload as reloading
from lakemirror.driver.runtime.read_at import read_at
from lakemirror.driver.runtime.reload import Reloaded, reload
from lakemirror.driver.runtime.runner import run
from lakemirror.driver.runtime.verifier import DatabaseWanted, Patience, SnapshotWanted, verify
from lakemirror.driver.tables.names import TableName
from lakemirror.driver.verify.jdbc import Database
from lakemirror.driver.verify.snapshot import Snapshots
from lakemirror.driver.verify.sources import Compared, Described
from tests.support.mirroring import Mirroring
from tests.support.records import Column, Message, PostgresPosition, Record, Table

pytestmark = pytest.mark.guarantee(
    "After a failover, a row that a repair, a reload or a load wrote shows each later change, and no "
    "position is taken for one of another epoch, whichever partitions are in the new one"
)

COLUMNS = (Column("id", "int32"), Column("v", "int32"))
OLD, NEW, NOW, LATER = 1_000_000, 5_000, 8_000, 9_000
"""Positions: of the former server, of the new one, and those of a repair and of what is changed after it."""
WANTED = DatabaseWanted(Login("jdbc:postgresql://db/demo", "reader", "secret"))


def table(name: str, connector: str = "demo") -> Table:
    return Table("demo", "public", name, COLUMNS, ("id",), connector, True, True)


WHOLE, MIXED, QUIET, FRESH = (table(name) for name in ("whole", "mixed", "quiet", "fresh"))
APART = table("apart", "elsewhere")
EPOCHS = [{"epoch": 1, "from": {WHOLE.topic: {"0": 2}, MIXED.topic: {"0": 3}}}]
"""The new server's records lie below the former one's in these partitions. In the others they lie above."""


@dataclass
class Stream:
    """Makes records, each one second later than the one before."""

    seconds: int = 0
    _next: dict[tuple[str, int], int] = field(default_factory=dict)

    def put(self, of: Table, lsn: int, key: int, v: int, partition: int = 0) -> list[Record]:
        row = {"id": key, "v": v}
        return self._send(of, partition, of.update(self._at(lsn), row, row))

    def gone(self, of: Table, lsn: int, key: int, partition: int = 0) -> list[Record]:
        return self._send(of, partition, of.delete(self._at(lsn), {"id": key, "v": 0})[0])

    @property
    def now(self) -> datetime:
        return datetime.fromtimestamp(1_700_000_000 + self.seconds, UTC)

    def _at(self, lsn: int) -> PostgresPosition:
        self.seconds += 1
        return PostgresPosition(lsn, lsn - 5, lsn, (1_700_000_000 + self.seconds) * 1_000_000)

    def _send(self, of: Table, partition: int, message: Message) -> list[Record]:
        offset = self._next.get((of.topic, partition), 0)
        self._next[of.topic, partition] = offset + 1
        return [
            {
                "topic": of.topic,
                "partition": partition,
                "offset": offset,
                "timestamp": message.ts_ms,
                "key": message.key,
                "value": message.value,
                "headers": [],
            }
        ]

    def before(self) -> list[Record]:
        """What the former server sent, and then the new one."""
        return [
            *self.put(WHOLE, OLD, 1, 1),
            *self.put(WHOLE, OLD + 10, 2, 1),
            *self.put(MIXED, OLD, 1, 1),
            *self.put(MIXED, OLD + 10, 2, 1),
            *self.put(MIXED, OLD + 20, 4, 1),
            *self.put(MIXED, 1_000, 11, 1, partition=1),
            *self.put(MIXED, 1_010, 12, 1, partition=1),
            *self.put(QUIET, 1_000, 1, 1),
            *self.put(QUIET, 1_010, 2, 1),
            *self.put(APART, 1_000, 1, 1),
        ]

    def after(self) -> list[Record]:
        return [
            *self.put(WHOLE, NEW, 1, 2),
            *self.gone(WHOLE, NEW + 10, 2),
            *self.put(MIXED, NEW, 1, 2),
            *self.gone(MIXED, NEW + 10, 2),
            *self.put(MIXED, NEW + 1_000, 11, 2, partition=1),
            *self.put(QUIET, NEW + 1_000, 1, 2),
            *self.put(APART, NEW + 1_000, 1, 2),
        ]


class Exported(Database):
    """A database of PostgreSQL at position `NOW`, whose tables are Parquet files."""

    def __init__(self, spark: SparkSession, folder: Path, spec: PipelineSpec) -> None:
        newest = max((each.epoch for each in spec.order.epochs), default=0)
        super().__init__(spark, WANTED.login, epoch=newest)
        self._files = Snapshots(spark, "parquet", f"{folder}/{{table}}")

    def query(self, sql: str) -> list[tuple[Any, ...]]:
        return [("false" if "pg_is_in_recovery" in sql else str(NOW),)]

    @contextmanager
    def snapshot(self, wait: float) -> Iterator[bytes]:
        yield self.position()

    def described(self, name: TableName) -> Described:
        return replace(self._files.described(name), key=("id",))

    def full_name(self, parts: Sequence[str]) -> TableName:
        return TableName("demo", "public", parts[-1])

    def table(self, name: TableName, wanted: Compared) -> Any:
        found = self._files.table(name, wanted)
        at = {"position": self.position, "position_below": self.position_below}
        return SimpleNamespace(compared=found.compared, rows=found.rows, unfinished=lambda: None, **at)


class Failed:
    """A pipeline whose source failed over, and what its database has: rows that the stream has lost."""

    def __init__(
        self, spark: SparkSession, folder: Path, monkeypatch: pytest.MonkeyPatch, **settings: Any
    ) -> None:
        self.spark, self.folder, self.stream = spark, folder, Stream()
        self.mirroring = self.of(**settings)
        for module in (verifier, reloading, loading):
            monkeypatch.setattr(module, "open_source", self._opened)
        monkeypatch.setattr(loading, "source_of", lambda *_: WANTED)
        self.mirroring.deliver([self.stream.before(), self.stream.after()]).run(spark)

    def of(self, **settings: Any) -> Mirroring:
        return Mirroring(self.folder, {"ordering": {"epochs": EPOCHS}, **settings})

    @contextmanager
    def _opened(self, spark: SparkSession, wanted: Any, spec: PipelineSpec) -> Iterator[Any]:
        files = self.folder / "database"
        if isinstance(wanted, SnapshotWanted):
            yield Snapshots(spark, "parquet", wanted.path)
        else:
            yield Exported(spark, files, spec)

    def has(self, of: Table, rows: Mapping[int, int]) -> None:
        frame = self.spark.createDataFrame(list(rows.items()), "id INT, v INT")
        frame.coalesce(1).write.mode("overwrite").parquet(f"{self.folder}/database/{of.name}")

    def rows(self, of: Table) -> dict[int, int]:
        path = self.mirroring.path(of.db, of.schema, of.name)
        rows = self.spark.read.format("delta").load(path)
        rows = rows.where("__is_current" if "__is_current" in rows.columns else "__op <> 'd'")
        return {row["id"]: row["v"] for row in rows.collect()}


def repaired(failed: Failed, tables: Sequence[str]) -> None:
    done = verify(
        failed.mirroring.pipeline,
        WANTED,
        tables=tables,
        patience=Patience(settled=True),
        repair=True,
        spark=failed.spark,
    )
    assert done.equal, [(each.error, each.settled) for each in done.tables]


def done_of(told: Sequence[Reloaded]) -> None:
    assert [(each.error, each.done) for each in told] == [(None, True)] * len(told), told


def reloaded(failed: Failed, tables: Sequence[str]) -> None:
    done_of(reload(failed.mirroring.pipeline, WANTED, tables=tables, spark=failed.spark))


def exported(failed: Failed, tables: Sequence[str]) -> None:
    wanted = SnapshotWanted(f"{failed.folder}/database/{{table}}", "parquet")
    now = failed.stream.now
    done_of(reload(failed.mirroring.pipeline, wanted, tables=tables, at=now, spark=failed.spark))


def loaded(failed: Failed, tables: Sequence[str]) -> None:
    asked = [{"source": each, "snapshot": "jdbc", "resyncToken": "1"} for each in tables]
    verified = {"jdbc": {"url": WANTED.login.url, "secret": "reader"}}
    run(failed.of(tables=asked, verify=verified).pipeline, once=True, spark=failed.spark)


Way = Callable[[Failed, Sequence[str]], None]
VERSIONS: dict[str, Any] = {"defaults": {"mode": "scd2"}}
SOFT: dict[str, Any] = {"defaults": {"delete": {"type": "soft", "column": "deleted_at"}}}


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("how", "settings"),
    [
        (loaded, {}),
        *((how, settings) for how in (repaired, reloaded, exported) for settings in ({}, VERSIONS, SOFT)),
    ],
)
def test_rows_that_were_written_beside_the_stream_show_each_later_change(
    how: Way,
    settings: dict[str, Any],
    spark: SparkSession,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """In tables that are in the epoch, in part or not at all; and they replace what the mirror had."""
    failed, now = Failed(spark, tmp_path, monkeypatch, **settings), {1: 3, 2: 3, 3: 3}
    has = {
        WHOLE: now,
        QUIET: {1: 3, 3: 3},
        MIXED: {**now, 4: 1, 11: 3, 13: 3},
        **({FRESH: now} if how in (reloaded, loaded) else {}),
    }
    for of, rows in has.items():
        failed.has(of, rows)
    how(failed, [f"demo.public.{of.name}" for of in has])
    assert {of.name: failed.rows(of) for of in has} == {of.name: rows for of, rows in has.items()}

    put = failed.stream.put
    later = [record for of in has for n in (1, 2, 3) for record in put(of, LATER + 10 * n, n, 4)]
    later += [record for n in (11, 12, 13) for record in put(MIXED, LATER + 100 + n, n, 4, partition=1)]
    failed.mirroring.deliver([later]).run(spark)
    changed = {of.name: dict.fromkeys((1, 2, 3), 4) for of in has}
    changed[MIXED.name] |= {4: 1, **dict.fromkeys((11, 12, 13), 4)}
    assert {of.name: failed.rows(of) for of in has} == changed


@pytest.mark.thorough
def test_a_position_counts_only_in_tables_of_which_it_is_known_what_lies_before_it(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    failed = Failed(spark, tmp_path, monkeypatch)
    put = failed.stream.put
    later = [record for of in (WHOLE, MIXED, QUIET, APART) for record in put(of, LATER, 1, 3)]
    failed.mirroring.deliver([later]).run(spark)

    def asked(lsn: int, *tables: Table, log: str | None = "demo", epoch: int | None = None) -> ReadAt:
        text = f"0/{lsn:X}" if epoch is None else f"{epoch:04x}{lsn:020x}{0:028x}"
        names = [f"demo.public.{each.name}" for each in tables]
        return read_at(failed.mirroring.pipeline, text, tables=names, log=log, settled=True, spark=spark)

    def shown(answer: ReadAt) -> list[dict[int, int]]:
        assert answer.found, answer
        queries = [table.query for table in answer.tables]
        return [{row["id"]: row["v"] for row in spark.sql(query or "").collect()} for query in queries]

    # The table is in the epoch, so that the position means one of the new server.
    assert shown(asked(LATER - 1, WHOLE)) == [{1: 2}]
    # Both servers made the changes in its partitions: which of them come after the position is unknown.
    for of in (QUIET, MIXED):
        answer = asked(LATER - 1, WHOLE, of)
        whole, other = sorted(answer.tables, key=lambda each: each.source, reverse=True)
        assert (answer.found, whole.reason, answer.before, answer.after) == (False, None, None, None)
        assert other.reason is not None
        assert f"demo.public.{of.name}: " in other.reason
        assert "ordering.epochs" in other.reason
    # All that it has is before the position, whoever made it.
    assert shown(asked(LATER + 1, WHOLE, QUIET)) == [{1: 3}, {1: 3, 2: 1}]
    # A sequence says which epoch is meant, and another connector's log has no other epoch.
    assert shown(asked(LATER - 1, QUIET, epoch=0)) == [{1: 2, 2: 1}]
    assert not asked(LATER - 1, QUIET, epoch=1).found
    assert shown(asked(LATER - 1, APART, log="elsewhere")) == [{1: 2}]
