"""A mirror that is a table in PostgreSQL, MySQL or MariaDB.

The table has the columns of the source's rows and the metadata columns. Its primary key is the mirror's key.
The same schema also contains:

=======================  ============================================================================
``TABLE__tombstones``    what `lakemirror.driver.tables.tombstones` keeps
``lakemirror_mirrors``   a row per mirror: its version, columns (Spark's types, as JSON) and properties
``lakemirror_batches``   the newest batches of each mirror and application ID, with their notes
=======================  ============================================================================

The rows of a batch are first written to staging tables. The batch is then one transaction on the mirror and
the tables above (`commit`), which begins by locking the mirror's row, and continues only if the row has the
version that the batch was made for.
"""

from __future__ import annotations

import hashlib
import json
import uuid
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from types import MappingProxyType
from typing import Any, Final

from py4j.protocol import Py4JJavaError
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import DataType, StringType, StructField, StructType

from lakemirror.driver import faults
from lakemirror.driver.errors import LakemirrorError, cause_of
from lakemirror.driver.jdbc import literal
from lakemirror.driver.tables import tombstones
from lakemirror.driver.tables.columns import METADATA
from lakemirror.driver.tables.commits import Commit
from lakemirror.driver.tables.delta import quoted
from lakemirror.driver.tables.jdbc_database import STAGING, Database, Session
from lakemirror.driver.tables.jdbc_marks import Mark, Marks
from lakemirror.driver.tables.names import Location
from lakemirror.driver.tables.store import Impossible, Unfit

_TOMBSTONES: Final = "__tombstones"
_MIRRORS, _BATCHES = "lakemirror_mirrors", "lakemirror_batches"
_SHOWN: Final = 200
"""The maximum number of characters of a key in a message."""
_A_PART: Final = 50_000
_MOST_PARTS: Final = 8
Kinds = Mapping[str, DataType]


class MirrorChanged(LakemirrorError):
    """Somebody else has written the mirror since a batch was prepared for it."""


class CannotHold(LakemirrorError):
    """A row has a value for a ``column`` of the mirror that its database cannot hold.

    ``why`` says what is wrong, ``row`` in which row, and ``said`` is the database's own message.
    """

    def __init__(self, column: str, why: str, row: str, said: str) -> None:
        super().__init__(f"column {column}: {why} ({said})")
        self.column, self.why, self.row, self.said = column, why, row, said


class JdbcFacts:
    """The facts beside a mirror. They are added in the commit of the rows."""

    exist = True
    """They are made with the mirror. A table that lacks them cannot be read."""
    apart = False

    def __init__(self, mirror: JdbcMirror) -> None:
        self._mirror = mirror
        self._kinds = {name: DataType.fromDDL(kind) for name, kind in tombstones.TYPES.items()}

    def frame(self) -> DataFrame:
        return self._mirror.read(self._mirror.table(_TOMBSTONES), self._kinds)

    def add(self, rows: DataFrame) -> None:
        self._mirror.stage("facts", rows, self._kinds)

    def insert(self, session: Session, staged: str) -> None:
        """Insert the staged rows."""
        self._mirror.insert(session, self._mirror.table(_TOMBSTONES), staged, self._kinds)

    def collect(self, before: datetime, below: bytes | None, record: DataFrame | None) -> None:
        """Collect facts in the database, whose order of bytes is the same as Spark's."""
        mirror, dialect = self._mirror, self._mirror.database.dialect
        ids = mirror.spark.range(1).select(
            F.lit(before).cast("timestamp").alias("at"), F.lit(below).cast("binary").alias("seq")
        )
        limits: Kinds = {"at": self._kinds["at"], "seq": self._kinds["seq"]}
        with mirror.staged("collect"):
            limit = mirror.stage("limits", ids, limits)
            staged = None if record is None else mirror.stage("facts", record, self._kinds)
            kinds = ", ".join(map(literal, tombstones.COLLECTED))
            at, seq = (
                dialect.into(kind, f"(SELECT c{i} FROM {limit})") for i, kind in enumerate(limits.values())
            )
            low = "" if below is None else f" AND {dialect.quoted('seq')} < {seq}"
            with mirror.database.transaction(mirror.spark) as session:
                if staged is not None:
                    self.insert(session, staged)
                session.execute(
                    f"DELETE FROM {mirror.table(_TOMBSTONES)} WHERE {dialect.quoted('kind')} IN ({kinds}) "
                    f"AND {dialect.quoted('at')} < {at}{low}"
                )


class JdbcMirror:
    """The table of a name (`lakemirror.driver.tables.store.Store`)."""

    keeps_events = False
    updates = False
    features: frozenset[str] = frozenset()

    def __init__(self, spark: SparkSession, database: Database, location: Location) -> None:
        self.spark, self.database, self.location = spark, database, location
        *schema, self._name = location.parts
        if len(schema) > 1:
            raise LakemirrorError(
                f"the target {location} has more than two parts, and a table of a database has a schema and "
                "a name: set spec.target.table"
            )
        with database.session(spark) as session:
            here = schema[0] if schema else session.query(f"SELECT {database.dialect.here}")[0][0]
        if here is None:
            raise LakemirrorError(
                f"the target {location} has no schema, and spec.target.jdbc.url names none: write the target "
                "as SCHEMA.TABLE, or name a database in the URL"
            )
        self._schema = str(here)
        self._marks = Marks(self._in_schema(_BATCHES), self._name)
        self.columns: dict[str, DataType] | None = None
        self.properties: dict[str, str] = {}
        self.version: int | None = None
        """The version that was read, increased by each commit of this object.

        If somebody else commits, everything known about the mirror must be read again.
        """
        self._facts = JdbcFacts(self)
        self._staging: dict[str, str] = {}
        self._staging_for = ""
        self._looked_up: tuple[int, DataFrame] | None = None
        self.refresh()

    # -- state ------------------------------------------------------------------------------------

    @property
    def exists(self) -> bool:
        return self.columns is not None

    def refresh(self) -> None:
        with self.database.session(self.spark) as session:
            self._refresh(session)

    def _refresh(self, session: Session) -> None:
        there = self._columns_in(session, self._name)
        row = self._row(session) if there else None
        self.columns, self.properties, self.version = ({} if there else None), {}, None
        if row is not None:
            self.version, self.properties = int(row[2]), json.loads(row[1])
            made = StructType.fromJson(json.loads(row[0])) if row[0] else None
            self.columns = None if made is None else {each.name: each.dataType for each in made.fields}
            lacking = [name for name in self.kinds if name not in there] if made is not None else []
            if lacking:
                raise LakemirrorError(
                    f"the table {self.location} has no column {lacking[0]!r} any more: somebody else has "
                    "altered it or made it anew. Add the column again, or drop the table while it is "
                    "suspended and give it a new resyncToken"
                )

    def table(self, suffix: str = "") -> str:
        """Return the table, or one that belongs to it, in SQL."""
        return self._in_schema(f"{self._name}{suffix}")

    def commits(self, after: int, until: int) -> list[Commit]:
        """Return nothing: a database does not tell who changed rows."""
        return []

    def applied(self, app_id: str) -> int | None:
        with self.database.session(self.spark) as session:
            return self._marks.newest(session, app_id)

    def applied_seen(self, app_id: str) -> int | None:
        return self.applied(app_id)

    def mark(self, app_id: str, batch: int) -> tuple[int, str] | None:
        """Return the version of the mirror after a batch, and the note that the batch left, or None."""
        with self.database.session(self.spark) as session:
            return self._marks.of(session, app_id, batch)

    @property
    def version_seen(self) -> int | None:
        return self.version

    def frame(self, version: int | None = None) -> DataFrame:
        if version is not None and self._looked_up is not None and self._looked_up[0] == version:
            return self._looked_up[1]
        return self.read(self.table(), self.kinds)

    @property
    def kinds(self) -> dict[str, DataType]:
        """All columns, including metadata."""
        return {**(self.columns or {}), **{name: DataType.fromDDL(kind) for name, kind in METADATA.items()}}

    def facts(self, shard: str | None) -> JdbcFacts:
        return self._facts

    def side(self, name: str) -> str:
        raise LakemirrorError(f"the target {self.location} is in a database and has no files beside it")

    def unfit(self, columns: Kinds, key: Sequence[str]) -> Unfit | None:
        dialect, table = self.database.dialect, f"{self._name}{_TOMBSTONES}"
        name, most = self._name.lower(), f"names have {dialect.longest} characters at most"
        if name in (_MIRRORS, _BATCHES) or name.startswith(STAGING) or name.endswith(_TOMBSTONES):
            return Unfit("a name that Lakemirror gives to tables of its own", "target")
        if dialect.length(self._schema) > dialect.longest:
            return Unfit(f"a schema of this name, for {most}", "target")
        if dialect.length(table) > dialect.longest:
            return Unfit(f"a table of this name, since {table} stands beside it and {most}", "target")
        for name, kind in columns.items():
            if name in dialect.own_columns:
                return Unfit(
                    f"column {name!r}, for {dialect.title} has a column of this name in each table", "name"
                )
            if dialect.length(name) > dialect.longest:
                return Unfit(f"column {name!r}, for {most}", "name")
            if dialect.type_of(kind, len(key) if name in key else 0) is None:
                of_type = f"column {name!r} of type {kind.simpleString()}"
                return Unfit(f"key {of_type}", "key") if name in key else Unfit(of_type, "columns")
        return None

    def needs(self, added: Kinds, *, wider: bool = False) -> str | None:
        return None

    @property
    def impossible(self) -> Impossible:
        return self.database.dialect.unheld

    # -- schema -----------------------------------------------------------------------------------

    def create(
        self,
        columns: Kinds,
        properties: Mapping[str, str],
        key: Sequence[str] = (),
        *,
        avoided: Collection[str] = (),
        comments: Mapping[str, str] = MappingProxyType({}),
        comment: str | None = None,
        identities: Collection[str] = (),
    ) -> None:
        """Create the tables, unless they exist.

        Until all of them exist, the mirror's row has no columns. There is then no mirror yet, and the tables
        that exist are created again.
        """
        if self.exists:
            return
        with self.database.making, self.database.session(self.spark) as session:
            self._refresh(session)
            if not self.exists:  # otherwise, another table with the same target was faster
                self._create(session, columns, properties, key)
                self._refresh(session)

    def _create(
        self, session: Session, columns: Kinds, properties: Mapping[str, str], key: Sequence[str]
    ) -> None:
        facts = {name: DataType.fromDDL(kind) for name, kind in tombstones.TYPES.items()}
        self._create_common(session)
        self._require_free(session)
        self._marks.clear(session)
        session.execute(f"DELETE FROM {self._in_schema(_MIRRORS)} WHERE name = ?", self._name)
        session.execute(
            f"INSERT INTO {self._in_schema(_MIRRORS)} (name, version, properties) VALUES (?, 0, ?)",
            *(self._name, json.dumps(dict(properties))),
        )
        for table in (self.table(), self.table(_TOMBSTONES)):
            session.execute(f"DROP TABLE IF EXISTS {table}")
        self.columns = dict(columns)
        self._create_table(session, self.table(), self.kinds, key)
        self._create_table(session, self.table(_TOMBSTONES), facts)
        self._note_form(session, columns, properties, properties)

    def alter(
        self,
        add: Kinds,
        widen: Kinds,
        properties: Mapping[str, str],
        *,
        avoided: Collection[str] = (),
        comments: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        present = dict(self.columns or {})
        new = {name: kind for name, kind in add.items() if name not in present}
        wider = {name: kind for name, kind in widen.items() if present.get(name) != kind}
        settings = {**self.properties, **properties}
        if not new and not wider and settings == self.properties:
            return
        with self.database.session(self.spark) as session:
            there = self._columns_in(session, self._name)
            for name, kind in new.items():
                if name not in there:  # otherwise, a driver died at this point
                    session.execute(f"ALTER TABLE {self.table()} ADD COLUMN {self._column(name, kind)}")
            key = json.loads(self.properties.get("lakemirror.key", "[]"))
            for name, kind in wider.items():
                quoted_, made = self._quoted(name), self._column(name, kind, key)
                retyped = self.database.dialect.retype(quoted_, made.removeprefix(f"{quoted_} "))
                session.execute(f"ALTER TABLE {self.table()} {retyped}")
            self._note_form(session, {**present, **new, **wider}, settings, self.properties)
        self.refresh()

    def show_current(self) -> None:
        raise LakemirrorError(f"the target {self.location} keeps no versions")

    def drop(self) -> None:
        """Delete the table and everything that belongs to it.

        If interrupted, this can be repeated: the table, without which there is no mirror, is dropped after
        its tombstones and marks.
        """
        with self.database.session(self.spark) as session:
            session.execute(f"DROP TABLE IF EXISTS {self.table(_TOMBSTONES)}")
            self._marks.clear(session)
            session.execute(f"DROP TABLE IF EXISTS {self.table()}")
            session.execute(f"DELETE FROM {self._in_schema(_MIRRORS)} WHERE name = ?", self._name)
        self.columns, self.properties, self.version = None, {}, None

    # -- rows -------------------------------------------------------------------------------------

    @contextmanager
    def staged(self, batch: str) -> Iterator[None]:
        """Drop what is staged for a batch at the end of the context.

        Staging tables have unique names, because tasks of a driver that was killed may still be writing to
        theirs.
        """
        self._staging_for = f"{batch}_{uuid.uuid4().hex[:6]}"
        try:
            yield
        finally:
            self._looked_up, staged, self._staging = None, self._staging, {}
            self.database.drop(self.spark, staged.values())

    def stage(self, what: str, rows: DataFrame, kinds: Kinds, *, inside: str = "", keys: int = 0) -> str:
        """Put the columns of ``kinds`` into a staging table, as c0, c1, ..., and return the table in SQL.

        They are columns of ``rows``, or fields of the struct ``inside`` them. In the latter case, ``what``
        and ``number`` are copied, too, if ``rows`` has them. ``keys`` is the number of key columns.
        """
        dialect = self.database.dialect
        name = hashlib.sha256(self._name.encode()).hexdigest()[:8]
        table = self._in_schema(f"{self.database.staging}{name}_{self._staging_for}_{what}")
        more = {"what": "char(1)", "number": "bigint"}
        further = [each for each in more if inside and each in rows.columns]
        types = [f"c{i} {dialect.staged(kind, keys)}" for i, kind in enumerate(kinds.values())]
        types += [f"{each} {more[each]}" for each in further]
        with self.database.session(self.spark) as session:
            end = dialect.options(session.query)
            # No other count would tell that facts were lost in a crash of the server.
            create = "CREATE TABLE" if what == "facts" else dialect.staging
            session.execute(f"{create} {table} ({', '.join(types)}){end}")
        self._staging[what] = table
        sent = [
            dialect.sent(F.col(inside)[name] if inside else F.col(quoted(name)), kind).alias(f"c{i}")
            for i, (name, kind) in enumerate(kinds.items())
        ]
        try:
            self.database.put(rows.select(*sent, *further), table)
        except Exception as error:
            if inside == "n":
                self._explain(error, rows)
            raise
        return table

    def _explain(self, error: Exception, rows: DataFrame) -> None:
        """Raise CannotHold if refused rows ``n`` have a value that the database cannot hold."""
        kinds, key = self.kinds, json.loads(self.properties.get("lakemirror.key", "[]"))
        values = {name: F.col("n")[name] for name in kinds}
        reasons = [
            F.when(wrong, F.struct(F.lit(name).alias("column"), F.lit(why).alias("why")))
            for name, kind in kinds.items()
            for wrong, why in self.database.dialect.refused(
                values[name], kind, len(key) if name in key else 0
            )
        ]
        row = F.to_json(F.struct(*[values[name].alias(name) for name in key]))
        found = rows.where("what <> 'd'").select(F.coalesce(*reasons).alias("found"), row.alias("row"))
        first = found.where("found IS NOT NULL")
        for each in first.orderBy("row").limit(1).collect():
            shown = each["row"] if len(each["row"]) <= _SHOWN else f"{each['row'][:_SHOWN]}..."
            raise CannotHold(each["found"]["column"], each["found"]["why"], shown, cause_of(error)) from None

    def read(self, table: str, kinds: Kinds, join: str = "", parts: int = 1) -> DataFrame:
        """Return the columns of ``kinds`` of a table.

        With a ``join`` to a staging table, they are a struct ``t`` beside that table's ``number``.
        """
        dialect = self.database.dialect
        columns = [
            f"{dialect.out(kind, self._of_t(name))} AS c{i}" for i, (name, kind) in enumerate(kinds.items())
        ]
        number = ["s.number"] if join else []
        sql = f"SELECT {', '.join([*columns, *number])} FROM {table} t{join}"
        found = self.database.frame(self.spark, sql, parts, "number")
        read = [
            dialect.received(F.col(f"c{i}"), kind).alias(name) for i, (name, kind) in enumerate(kinds.items())
        ]
        return found.select(F.struct(*read).alias("t"), "number") if join else found.select(*read)

    def look_up(self, version: int, states: DataFrame, key: Sequence[str], keys: int) -> DataFrame:
        """Return the rows ``t`` with the keys of the states, with the ``number`` of the state."""
        kinds = {name: self.kinds[name] for name in key}
        asked = states.select("key", "number")
        for name, kind in kinds.items():  # no row has an impossible key, but a delete may
            for wrong, _ in self.database.dialect.impossible(F.col("key")[name], kind, len(key)):
                asked = asked.where(~F.coalesce(wrong, F.lit(False)))
        staged = self.stage("keys", asked, kinds, inside="key", keys=len(key))
        join = f" JOIN {staged} s ON {self._same(key, kinds)}"
        parts = min(1 + keys // _A_PART, _MOST_PARTS)
        found = self.read(self.table(), self.kinds, join, parts).localCheckpoint(eager=False)
        self._looked_up = version, found.select("t.*")
        return found

    def commit(
        self, version: int, key: Sequence[str], rows: DataFrame, expected: tuple[int, int, int], mark: Mark
    ) -> None:
        """Insert, update and delete the rows ``n`` (``what``: i, u, d) in one transaction.

        ``expected`` is the number of rows inserted, updated and deleted. The transaction includes the facts
        that were added, and the mark. Raises MirrorChanged if the mirror no longer has the ``version``.
        """
        dialect, kinds = self.database.dialect, self.kinds
        staged = self.stage("rows", rows, kinds, inside="n")
        same = self._same(key, kinds, list(kinds))
        values = {
            self._quoted(name): dialect.into(kind, f"s.c{i}")
            for i, (name, kind) in enumerate(kinds.items())
            if name not in key
        }
        try:
            self._commit(version, staged, same, values, expected, mark)
        except Py4JJavaError as error:
            self._explain(error, rows)
            raise
        self.version = version + 1
        with self.database.session(self.spark) as session:
            self._marks.forget(session, self.version)

    def _commit(
        self,
        version: int,
        staged: str,
        same: str,
        values: Mapping[str, str],
        expected: tuple[int, int, int],
        mark: Mark,
    ) -> None:
        dialect, kinds = self.database.dialect, self.kinds
        with self.database.transaction(self.spark) as session:
            self._lock(session, version, mark)
            deleted = session.execute(dialect.delete(self.table(), staged, same))
            updated = session.execute(dialect.update(self.table(), staged, same, values))
            inserted = self.insert(session, self.table(), staged, kinds, " WHERE s.what = 'i'")
            if (inserted, updated, deleted) != expected:
                raise MirrorChanged(
                    f"the table {self.location} has other rows than were read of it: {inserted} rows were "
                    f"inserted, {updated} updated and {deleted} deleted, and not {expected}. Nobody else "
                    "may write it"
                )
            if "facts" in self._staging:
                self._facts.insert(session, self._staging["facts"])
            faults.reach("in-transaction")
            session.execute(
                f"UPDATE {self._in_schema(_MIRRORS)} SET version = version + 1 WHERE name = ?", self._name
            )
            self._marks.add(session, mark, version + 1)

    def update(self, when: Column, values: Mapping[str, Column]) -> None:
        raise LakemirrorError(f"the target {self.location} has no computed columns")

    def insert(self, session: Session, table: str, staged: str, kinds: Kinds, where: str = "") -> int:
        """Insert the rows of a staging table, and return their number."""
        names = ", ".join(map(self._quoted, kinds))
        values = ", ".join(
            self.database.dialect.into(kind, f"s.c{i}") for i, kind in enumerate(kinds.values())
        )
        return session.execute(f"INSERT INTO {table} ({names}) SELECT {values} FROM {staged} s{where}")

    # -- SQL --------------------------------------------------------------------------------------

    def _lock(self, session: Session, version: int, mark: Mark) -> None:
        asked = f"SELECT version FROM {self._in_schema(_MIRRORS)} WHERE name = ? FOR UPDATE"
        rows = session.query(asked, self._name)
        found = int(rows[0][0]) if rows else None
        if found != version:
            raise MirrorChanged(
                f"the table {self.location} has version {found}, and batch {mark.batch} was made for "
                f"{version}: another driver has written it"
            )

    def _row(self, session: Session) -> tuple[Any, ...] | None:
        """Return the stored columns, properties and version of the mirror, or None."""
        if not self._columns_in(session, _MIRRORS):
            return None
        found = session.query(
            f"SELECT columns, properties, version FROM {self._in_schema(_MIRRORS)} WHERE name = ?", self._name
        )
        return found[0] if found else None

    def _columns_in(self, session: Session, table: str) -> set[str]:
        found = session.query(
            "SELECT column_name FROM information_schema.columns WHERE table_schema = ? AND table_name = ?",
            *(self._schema, table),
        )
        return {name for (name,) in found}

    def _create_common(self, session: Session) -> None:
        """Create the schema and the tables that all mirrors in it share."""
        end = self.database.dialect.options(session.query)
        text = self.database.dialect.types[StringType]
        there = session.query("SELECT 1 FROM information_schema.schemata WHERE schema_name = ?", self._schema)
        if not there:
            session.execute(f"CREATE SCHEMA {self._quoted(self._schema)}")
        session.execute(
            f"CREATE TABLE IF NOT EXISTS {self._in_schema(_MIRRORS)} (name varchar(64) PRIMARY KEY, "
            f"version bigint NOT NULL, columns {text}, properties {text} NOT NULL){end}"
        )
        session.execute(
            f"CREATE TABLE IF NOT EXISTS {self._in_schema(_BATCHES)} (name varchar(64), "
            f"app_id varchar(255), batch bigint, version bigint NOT NULL, note {text} NOT NULL, "
            f"PRIMARY KEY (name, app_id, batch)){end}"
        )

    def _require_free(self, session: Session) -> None:
        """Raise LakemirrorError if there is a table that Lakemirror did not create.

        Tables that a driver left incomplete, and mirrors that somebody dropped, have a row in the table of
        mirrors.
        """
        ours = self._row(session) is not None
        for name in (self._name, f"{self._name}{_TOMBSTONES}"):
            if not ours and self._columns_in(session, name):
                raise LakemirrorError(
                    f"there is a table {self._schema}.{name} that Lakemirror did not make: "
                    "choose another target"
                )

    def _create_table(self, session: Session, table: str, kinds: Kinds, key: Sequence[str] = ()) -> None:
        parts = [self._column(name, kind, key) for name, kind in kinds.items()]
        if key:
            parts.append(f"PRIMARY KEY ({', '.join(map(self._quoted, key))})")
        end = self.database.dialect.options(session.query)
        session.execute(f"CREATE TABLE {table} ({', '.join(parts)}){end}")

    def _note_form(
        self, session: Session, columns: Kinds, properties: Mapping[str, str], before: Mapping[str, str]
    ) -> None:
        """Set columns and properties. Raises MirrorChanged if the properties are no longer ``before``."""
        made = StructType([StructField(name, kind) for name, kind in columns.items()])
        noted = session.execute(
            f"UPDATE {self._in_schema(_MIRRORS)} SET columns = ?, properties = ? "
            "WHERE name = ? AND properties = ?",
            *(made.json(), json.dumps(dict(properties)), self._name, json.dumps(dict(before))),
        )
        if not noted:
            raise MirrorChanged(f"another driver has made or altered the table {self.location} meanwhile")

    def _column(self, name: str, kind: DataType, key: Sequence[str] = ()) -> str:
        mine = len(key) if name in key else 0
        made = f"{self._quoted(name)} {self.database.dialect.type_of(kind, mine)}"
        return f"{made} NOT NULL" if mine else made

    def _same(self, key: Sequence[str], kinds: Kinds, staged: Sequence[str] = ()) -> str:
        """SQL: a row ``t`` and a staged row ``s`` have the same key.

        ``staged`` lists the columns of the staging table, if these are not just the key.
        """
        places = list(staged or key)
        return " AND ".join(
            f"{self._of_t(name)} = {self.database.dialect.into(kinds[name], f's.c{places.index(name)}')}"
            for name in key
        )

    def _quoted(self, name: str) -> str:
        return self.database.dialect.quoted(name)

    def _of_t(self, name: str) -> str:
        return f"t.{self._quoted(name)}"

    def _in_schema(self, name: str) -> str:
        return f"{self._quoted(self._schema)}.{self._quoted(name)}"
