"""What differs between databases: their catalogs, how they write values as text, and their positions."""

from __future__ import annotations

import math
import re
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, Final

from pyspark.sql.types import DataType, DecimalType, IntegralType, StringType

from lakemirror.driver import jdbc
from lakemirror.driver.jdbc import literal
from lakemirror.driver.sequence import WIDTH
from lakemirror.driver.tables.names import TableName
from lakemirror.driver.verify.sources import SourceUnfit
from lakemirror.driver.verify.values import Family, SourceType

BLOCKS_A_PART: Final = 8192
"""The minimum number of blocks of a PostgreSQL table that are read in one part: 64 MiB."""
_MOST_PARTS: Final = 32
_LOOK_SECONDS: Final = 0.2
_WRITING: Final = "('Query', 'Execute', 'Connect', 'Slave_SQL', 'Slave_worker')"
"""Commands of MySQL and MariaDB threads that may write. Some apply another server's changes."""
_LOCK_SECONDS: Final = 5
"""How long to wait for a lock on all tables of MySQL. Nobody can write in the meantime."""

Query = Callable[[str], list[tuple[Any, ...]]]
"""Runs SQL and returns its rows, with all values as text."""


def place(major: int, minor: int) -> bytes:
    """Return the sequence of a snapshot row at a position, in epoch 0 (`lakemirror.driver.sequence`)."""
    found = bytes(2) + major.to_bytes(10, "big") + minor.to_bytes(10, "big") + bytes(4)
    assert len(found) == WIDTH
    return found


class Dialect(ABC):
    """A kind of database."""

    @abstractmethod
    def relation(self, name: TableName) -> str:
        """Return a table's name in SQL."""

    @abstractmethod
    def columns(self, query: Query, name: TableName) -> dict[str, SourceType]:
        """Return the columns of a table, in order. Empty if there is no such table."""

    @abstractmethod
    def text(self, column: str, kind: SourceType) -> str:
        """Return SQL for a column's value as text."""

    @abstractmethod
    def ordered(self, column: str, kind: SourceType, mirror: DataType) -> str | None:
        """Return SQL for a column that orders rows as Spark orders the mirror's, or None if there is none."""

    @abstractmethod
    def value(self, value: Any, mirror: DataType) -> str | None:
        """Return SQL for a value that compares with those of `ordered`."""

    @abstractmethod
    def position(self, query: Query) -> bytes:
        """Return the current position. Raises SourceUnfit if there is none, or no right to read it."""

    @abstractmethod
    def source_block(self, major: int, minor: int) -> dict[str, Any]:
        """Return a position as Debezium's connector writes it."""

    @abstractmethod
    def clock(self, query: Query) -> bytes:
        """Return the current time as the position of a change that is ordered by time."""

    def clock_below(self, query: Query) -> bytes:
        """Return a time like that of `clock`, but below every change that is not committed yet.

        Changes covered by `unfinished` are an exception. Raises SourceUnfit if the time cannot be determined.
        """
        return self.clock(query)

    def unfinished(self, query: Query) -> int | None:
        """Return a mark of the open transactions, or None if changes get their position at the commit."""
        return None

    def finished(self, query: Query, unfinished: int) -> bool:
        """Return whether the transactions of a mark have ended."""
        return True

    def sent(self, query: Query, slot: str | None) -> bytes | None:
        """Return the position up to which changes have certainly left the source, or None if unknown."""
        return None

    @abstractmethod
    def full_name(self, query: Query, parts: Sequence[str]) -> TableName:
        """Return a table's name as its connector writes it, given the last parts of the name."""

    @abstractmethod
    def key(self, query: Query, name: TableName) -> list[str]:
        """Return the columns of a table's primary key, in order."""

    @abstractmethod
    def snapshot(self, query: Query, holding: Query, wait: float) -> tuple[bytes, str | None]:
        """Start a snapshot on the connection ``holding``, and return its position.

        Whoever reads from now on sees all changes up to the position. Every change that they do not see comes
        after it. The second value is the SQL with which other connections must begin to read the same
        snapshot, or None if they cannot. Waits at most ``wait`` seconds. Raises SourceUnfit.
        """

    def parts(self, query: Query, name: TableName) -> tuple[str | None, list[str]]:
        """Return a column for reading one snapshot in parallel, and a condition on it for each part."""
        return None, ["1 = 1"]


class Postgres(jdbc.Postgres, Dialect):
    """PostgreSQL 12 and later."""

    def relation(self, name: TableName) -> str:
        return f"{self.quoted(name.schema or 'public')}.{self.quoted(name.table)}"

    def columns(self, query: Query, name: TableName) -> dict[str, SourceType]:
        rows = query(
            "SELECT a.attname, "
            "format_type(b.oid, CASE WHEN t.typtype = 'd' THEN t.typtypmod ELSE a.atttypmod END), "
            "b.typtype::text, format_type(e.oid, NULL), e.typtype::text "
            "FROM pg_attribute a JOIN pg_class c ON c.oid = a.attrelid "
            "JOIN pg_namespace n ON n.oid = c.relnamespace JOIN pg_type t ON t.oid = a.atttypid "
            "JOIN pg_type b ON b.oid = CASE WHEN t.typtype = 'd' THEN t.typbasetype ELSE t.oid END "
            "LEFT JOIN pg_type e ON e.oid = b.typelem AND b.typcategory = 'A' "
            f"WHERE n.nspname = {literal(name.schema or 'public')} AND c.relname = {literal(name.table)} "
            "AND a.attnum > 0 AND NOT a.attisdropped ORDER BY a.attnum"
        )
        found = {}
        for column, kind, form, element, element_form in rows:
            if element is not None:
                # An array's digits are those of its elements.
                each = kind.removesuffix("[]") if element == "numeric" else element
                found[column] = SourceType(kind, None, element=_postgres(each, element_form))
            else:
                found[column] = _postgres(kind, form)
        return found

    def text(self, column: str, kind: SourceType) -> str:
        if kind.element is not None:
            each = self.text("e", kind.element)
            inner = f"ARRAY(SELECT {each} FROM unnest({column}) WITH ORDINALITY AS u(e, i) ORDER BY i)"
            return f"CASE WHEN {column} IS NOT NULL THEN to_json({inner})::text END"
        if kind.family == "bytes":
            return f"encode({column}, 'hex')"
        if kind.family in ("timestamptz", "timetz"):
            return f"({column} AT TIME ZONE 'UTC')::text"
        if kind.name == "money":
            return f"{column}::numeric::text"
        if kind.family == "interval":
            # Months of 30.4375 days, as in Debezium's io.debezium.time.MicroDuration.
            micros = {
                "year": 12 * 2_629_800_000_000,
                "month": 2_629_800_000_000,
                "day": 86_400_000_000,
                "hour": 3_600_000_000,
                "minute": 60_000_000,
                "second": 1_000_000,
            }
            parts = [f"extract({name} FROM {column})::numeric * {size}" for name, size in micros.items()]
            return f"trunc({' + '.join(parts)})::bigint::text"
        if kind.family in ("text", "json") and kind.name not in ("text", "character varying"):
            # In the type's own format: a cast to text removes blanks from a character(n).
            return f"CASE WHEN {column} IS NOT NULL THEN format('%s', {column}) END"
        return f"{column}::text"

    def ordered(self, column: str, kind: SourceType, mirror: DataType) -> str | None:
        if isinstance(mirror, (IntegralType, DecimalType)) and kind.family in ("integer", "decimal"):
            return column
        if isinstance(mirror, StringType) and kind.family == "text":
            return f'({self.text(column, kind)}) COLLATE "C"'
        return None

    def value(self, value: Any, mirror: DataType) -> str | None:
        return literal(value) if isinstance(value, str) else str(value)

    def position(self, query: Query) -> bytes:
        [(replica,)] = query("SELECT pg_is_in_recovery()::text")
        at = "pg_last_wal_replay_lsn()" if replica == "true" else "pg_current_wal_insert_lsn()"
        [(lsn,)] = query(f"SELECT ({at} - '0/0'::pg_lsn)::bigint::text")
        return place(int(lsn), 0)

    def source_block(self, major: int, minor: int) -> dict[str, Any]:
        return {"lsn": major, "sequence": f'["{major}","{major}"]'}

    def clock(self, query: Query) -> bytes:
        [(micros,)] = query("SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint::text")
        return place(int(micros), 0)

    def unfinished(self, query: Query) -> int:
        """Return the next transaction ID.

        The end of a snapshot is not sufficient. It follows the newest transaction that has ended, but one
        that started later may be open and may have written.
        """
        [(number,)] = query(
            "SELECT (s.xmax + age((s.xmax % 4294967296)::text::xid))::text "
            "FROM (SELECT txid_snapshot_xmax(txid_current_snapshot()) AS xmax) s"
        )
        return int(number)

    def finished(self, query: Query, unfinished: int) -> bool:
        return _oldest(query) >= unfinished

    def sent(self, query: Query, slot: str | None) -> bytes | None:
        if slot is None:
            return None
        rows = query(
            "SELECT (confirmed_flush_lsn - '0/0'::pg_lsn)::bigint::text FROM pg_replication_slots WHERE "
            f"slot_name = {literal(slot)} AND confirmed_flush_lsn IS NOT NULL"
        )
        if not rows:
            raise SourceUnfit(f"there is no logical replication slot {slot}: name the connector's slot.name")
        return place(int(rows[0][0]), 0)

    def full_name(self, query: Query, parts: Sequence[str]) -> TableName:
        [(database,)] = query("SELECT current_database()::text")
        if len(parts) == 3 and parts[0] != database:
            raise SourceUnfit(
                f"{'.'.join(parts)}: the URL names the database {database}: give that of {parts[0]}"
            )
        return TableName(database, parts[-2] if len(parts) > 1 else "public", parts[-1])

    def key(self, query: Query, name: TableName) -> list[str]:
        rows = query(
            "SELECT a.attname FROM pg_index i JOIN pg_class c ON c.oid = i.indrelid "
            "JOIN pg_namespace n ON n.oid = c.relnamespace "
            "JOIN unnest(i.indkey::int[]) WITH ORDINALITY k(attnum, place) ON true "
            "JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum = k.attnum "
            f"WHERE i.indisprimary AND n.nspname = {literal(name.schema or 'public')} "
            f"AND c.relname = {literal(name.table)} ORDER BY k.place"
        )
        return [column for (column,) in rows]

    def snapshot(self, query: Query, holding: Query, wait: float) -> tuple[bytes, str | None]:
        """See the base class.

        Changes are written to the log before they are committed. A position therefore counts once all
        transactions that were open there have ended. Whatever is not visible then was written after it.
        """
        taken: list[tuple[bytes, int]] = []
        until = time.monotonic() + wait
        while True:
            at = self.position(query)
            taken.append((at, self.unfinished(query)))
            holding("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
            oldest = _oldest(holding)
            passed = [position for position, next_ in taken if next_ <= oldest]
            if passed:
                [(exported,)] = holding("SELECT pg_export_snapshot()")
                shared = (
                    "SET TRANSACTION ISOLATION LEVEL REPEATABLE READ; "
                    f"SET TRANSACTION SNAPSHOT {literal(exported)}; "
                )
                return passed[-1], shared
            holding("ROLLBACK")
            if time.monotonic() >= until:
                raise SourceUnfit(
                    f"transactions have been open for more than {wait:.0f} s, and a change of theirs might "
                    "be lost: end them (SELECT pid, xact_start, query FROM pg_stat_activity WHERE "
                    "backend_xid IS NOT NULL), and try again"
                )
            time.sleep(_LOOK_SECONDS)

    def parts(self, query: Query, name: TableName) -> tuple[str | None, list[str]]:
        rows = query(
            "SELECT (pg_relation_size(c.oid) / current_setting('block_size')::int)::text, "
            "current_setting('server_version_num') FROM pg_class c JOIN pg_namespace n "
            f"ON n.oid = c.relnamespace WHERE n.nspname = {literal(name.schema or 'public')} "
            f"AND c.relname = {literal(name.table)} AND c.relkind = 'r'"
        )
        if not rows or int(rows[0][1]) < 140_000:  # older versions read the whole table for each range
            return None, ["1 = 1"]
        step = max(BLOCKS_A_PART, math.ceil(int(rows[0][0]) / _MOST_PARTS))
        ends = [f"'({block},0)'::tid" for block in range(step, int(rows[0][0]), step)]
        lows, highs = [None, *ends], [*ends, None]
        found = []
        for low, high in zip(lows, highs, strict=True):
            sides = [f"place >= {low}"] * (low is not None) + [f"place < {high}"] * (high is not None)
            found.append(" AND ".join(sides) or "1 = 1")
        return "t.ctid AS place", found


def _oldest(query: Query) -> int:
    """Return PostgreSQL's oldest open transaction, or if none is open, an ID above all that have ended."""
    [(number,)] = query("SELECT txid_snapshot_xmin(txid_current_snapshot())::text")
    return int(number)


_POSTGRES: Final[dict[str, Family]] = {
    "smallint": "integer",
    "integer": "integer",
    "bigint": "integer",
    "oid": "integer",
    "numeric": "decimal",
    "money": "decimal",
    "real": "float",
    "double precision": "float",
    "boolean": "boolean",
    "bit varying": "bits",
    "bit": "bits",
    "bytea": "bytes",
    "date": "date",
    "time without time zone": "time",
    "time with time zone": "timetz",
    "timestamp without time zone": "timestamp",
    "timestamp with time zone": "timestamptz",
    "interval": "interval",
    "json": "json",
    "jsonb": "json",
}
_POSTGRES_TEXTS: Final = (
    *("text", "character varying", "character", "name", "citext", "uuid", "xml", "inet", "cidr", "macaddr"),
    *("macaddr8", "int4range", "int8range", "numrange", "tsrange", "tstzrange", "daterange", "ltree"),
)


def _postgres(name: str, form: str) -> SourceType:
    """Return a type from format_type's text, of the kind (pg_type.typtype) ``form``."""
    arguments = [int(number) for number in re.findall(r"-?\d+", "".join(re.findall(r"\(([^)]*)\)", name)))]
    plain = re.sub(r"\([^)]*\)", "", name)
    family: Family | None = _POSTGRES.get(plain)
    if form == "e" or plain in _POSTGRES_TEXTS:
        family = "text"
    if plain == "bit" and arguments in ([1], []):
        family = "bit"
    digits = arguments[-1] if arguments and plain.startswith("time") else 6
    scale = arguments[-1] if plain == "numeric" and len(arguments) == 2 else 0
    variable, size = plain == "bit varying" or name == "numeric", tuple(arguments)
    return SourceType(plain, family, digits, variable=variable, scale=scale, size=size)


class MySql(jdbc.MySql, Dialect):
    """MySQL and MariaDB."""

    def relation(self, name: TableName) -> str:
        database = name.database or name.schema
        return f"{self.quoted(database)}.{self.quoted(name.table)}" if database else self.quoted(name.table)

    def columns(self, query: Query, name: TableName) -> dict[str, SourceType]:
        database = name.database or name.schema
        of = literal(database) if database else "DATABASE()"
        rows = query(
            "SELECT column_name, data_type, column_type, datetime_precision FROM information_schema.columns "
            f"WHERE table_schema = {of} AND table_name = {literal(name.table)} ORDER BY ordinal_position"
        )
        return {column: _mysql(kind.lower(), full.lower(), digits) for column, kind, full, digits in rows}

    def text(self, column: str, kind: SourceType) -> str:
        if kind.family == "bytes":
            return f"HEX({column})"
        if kind.family == "bit":
            return f"CAST({column} + 0 AS CHAR)"
        if kind.family == "bits":
            return f"LPAD(BIN({column} + 0), {kind.digits}, '0')"
        if kind.name == "float":  # as text, it would have only six digits
            return f"CAST({column} + 0e0 AS CHAR)"
        return f"CAST({column} AS CHAR CHARACTER SET utf8mb4)"

    def ordered(self, column: str, kind: SourceType, mirror: DataType) -> str | None:
        if isinstance(mirror, (IntegralType, DecimalType)) and kind.family in ("integer", "decimal"):
            return column
        if isinstance(mirror, StringType) and kind.family == "text":
            return f"CAST({self.text(column, kind)} AS BINARY)"
        return None

    def value(self, value: Any, mirror: DataType) -> str | None:
        return f"x'{value.encode().hex()}'" if isinstance(value, str) else str(value)

    def position(self, query: Query) -> bytes:
        errors = []
        for status in ("SHOW MASTER STATUS", "SHOW BINARY LOG STATUS"):
            try:
                rows = query(status)
            except SourceUnfit as error:
                errors.append(str(error))
                continue
            if not rows:
                raise SourceUnfit("the server writes no binary log, so that it has no positions")
            return _binlog(rows[0][0], rows[0][1])
        raise SourceUnfit(
            f"the position in the binary log cannot be read ({errors[0]}): grant BINLOG MONITOR (MariaDB) or "
            "REPLICATION CLIENT (MySQL) to the user"
        )

    def source_block(self, major: int, minor: int) -> dict[str, Any]:
        return {"file": f"binlog.{major:06d}", "pos": minor, "row": 0}

    def clock(self, query: Query) -> bytes:
        [(micros,)] = query("SELECT CAST(UNIX_TIMESTAMP(SYSDATE(6)) * 1000000 AS DECIMAL(20,0))")
        return place(int(micros), 0)

    def clock_below(self, query: Query) -> bytes:
        """Return the time of the oldest open statement or transaction.

        A change has the second in which its statement began, which may be long before its commit. On a
        replica, it has the source's time.
        """
        now = "UNIX_TIMESTAMP(SYSDATE(6))"
        # In the time zone of the server's machine, not of the session, and a moment after the statement.
        began = "TIMESTAMPDIFF(SECOND, '1970-01-01', CONVERT_TZ(trx_started, 'SYSTEM', '+00:00')) - 1"
        try:
            [(micros,)] = query(
                f"SELECT CAST(FLOOR(LEAST({now}, "
                f"COALESCE((SELECT MIN({began}) FROM information_schema.innodb_trx), {now}), "
                f"COALESCE((SELECT MIN({now} - `time` - 1) FROM information_schema.processlist "
                f"WHERE command IN {_WRITING} AND id <> CONNECTION_ID()), {now})"
                ")) * 1000000 - 1 AS DECIMAL(20,0))"
            )
        except SourceUnfit as error:
            raise SourceUnfit(
                "where changes are ordered by their time, a repair has to know which transactions are open "
                f"({error}): grant PROCESS to the user"
            ) from None
        return place(int(micros), 0)

    def full_name(self, query: Query, parts: Sequence[str]) -> TableName:
        if len(parts) != 2:
            raise SourceUnfit(f"{'.'.join(parts)}: name it as database.table, as the connector does")
        return TableName(parts[0], None, parts[1])

    def key(self, query: Query, name: TableName) -> list[str]:
        database = name.database or name.schema
        of = literal(database) if database else "DATABASE()"
        rows = query(
            "SELECT column_name FROM information_schema.key_column_usage WHERE constraint_name = 'PRIMARY' "
            f"AND table_schema = {of} AND table_name = {literal(name.table)} ORDER BY ordinal_position"
        )
        return [column for (column,) in rows]

    def snapshot(self, query: Query, holding: Query, wait: float) -> tuple[bytes, str | None]:
        """See the base class.

        A transaction is in the binary log before it becomes visible. MariaDB knows the position of its own
        snapshot in the log. MySQL knows it only while no transaction is being committed.
        """
        holding("START TRANSACTION WITH CONSISTENT SNAPSHOT")
        known = {name.lower(): value for name, value in holding("SHOW STATUS LIKE 'binlog_snapshot_%'")}
        file, at = known.get("binlog_snapshot_file"), known.get("binlog_snapshot_position")
        if file and at:
            return _binlog(file, at), None
        holding(f"SET SESSION lock_wait_timeout = {_LOCK_SECONDS}")
        try:
            holding("FLUSH TABLES WITH READ LOCK")
            return self.position(holding), None
        except SourceUnfit as error:
            raise SourceUnfit(
                f"the position of a snapshot cannot be told ({error}): grant RELOAD and REPLICATION CLIENT "
                "to the user, so that commits can be held up for a moment, and try again when no long "
                "statement runs (SHOW PROCESSLIST)"
            ) from None
        finally:
            holding("UNLOCK TABLES")


def _binlog(file: str, at: str) -> bytes:
    number = re.search(r"\.(\d+)$", file)
    assert number is not None
    return place(int(number[1]), int(at))


_MYSQL: Final[dict[str, Family]] = {
    **dict.fromkeys(("tinyint", "smallint", "mediumint", "int", "bigint", "year"), "integer"),
    "decimal": "decimal",
    "float": "float",
    "double": "float",
    **dict.fromkeys(
        (
            "char",
            "varchar",
            "tinytext",
            "text",
            "mediumtext",
            "longtext",
            "enum",
            "set",
            "uuid",
            "inet4",
            "inet6",
        ),
        "text",
    ),
    "json": "json",
    **dict.fromkeys(("binary", "varbinary", "tinyblob", "blob", "mediumblob", "longblob"), "bytes"),
    "date": "date",
    "time": "time",
    "datetime": "timestamp",
    "timestamp": "timestamptz",
}


def _mysql(name: str, full: str, digits: str | None) -> SourceType:
    if name == "bit":
        length = int((re.search(r"\((\d+)\)", full) or ["", "1"])[1])
        return SourceType(full, "bit" if length == 1 else "bits", length)
    # Debezium sends every TIME in microseconds.
    size = tuple(int(number) for number in re.findall(r"\d+", full)) if name == "decimal" else ()
    return SourceType(
        name,
        _MYSQL.get(name),
        6 if name == "time" else int(digits or 0),
        scale=size[1] if len(size) == 2 else 0,
        size=size,
        unsigned="unsigned" in full,
    )


DIALECTS: Final[Sequence[Postgres | MySql]] = (Postgres(), MySql())


def dialect_of(url: str) -> Postgres | MySql:
    """Return the dialect for a URL. Raises SourceUnfit."""
    found = next((each for each in DIALECTS if url.startswith(each.prefixes)), None)
    if found is None:
        known = ", ".join(prefix for each in DIALECTS for prefix in each.prefixes)
        raise SourceUnfit(f"the URL of the source must begin with one of {known}")
    return found
