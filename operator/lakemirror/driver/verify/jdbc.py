"""Sources that are databases, read over JDBC."""

from __future__ import annotations

import math
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, Literal

from py4j.protocol import Py4JJavaError
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from lakemirror.driver.errors import NotAnswered, cause_of
from lakemirror.driver.jdbc import Login, connect, rows, why_refused
from lakemirror.driver.tables.names import TableName
from lakemirror.driver.verify.dialects import dialect_of
from lakemirror.driver.verify.ranges import KeyRange
from lakemirror.driver.verify.sources import (
    ALL,
    Compared,
    Described,
    SourceUnfit,
    Wanted,
    marked,
    with_known,
)
from lakemirror.driver.verify.values import Rule, SourceType, natural_of, rule_of

By = Literal["log", "time", "else"]

_KEYS_A_QUERY = 500
_FETCHED = "2000"


class Database:
    """The tables of a database.

    ``by`` says what orders the pipeline's changes: the ``log`` of the database, its clock (``time``), or
    something ``else``. ``epoch`` is that of its positions: the newest epoch that the manifest declares, so
    that a change of a partition that is not in that epoch is never taken for a later one. Rows are written in
    the epoch of their table. ``slot`` names the replication slot that shows what has left PostgreSQL.
    """

    def __init__(
        self, spark: SparkSession, login: Login, *, by: By = "log", epoch: int = 0, slot: str | None = None
    ) -> None:
        self._spark, self._login, self._slot = spark, login, slot
        self._epoch, self.by = epoch, by
        self.ordered = by != "else"
        self.dialect = dialect_of(login.url)
        self._lock = threading.Lock()
        self._connection: Any = None
        self._shared: str | None = None

    def table(self, name: TableName, wanted: Compared) -> DatabaseTable:
        """Return a table of the database. Raises SourceUnfit."""
        self._check_database(name)
        columns = self.dialect.columns(self.query, name)
        if not columns:
            raise SourceUnfit(self._no_table(name))
        rules: dict[str, Rule] = {}
        known = {}
        feeds = {source: mirror for mirror, source in wanted.names.items()}
        for source, kind in columns.items():
            known[source] = ""
            if source in feeds:
                rule = rule_of(kind, wanted.columns[feeds[source]])
                mirror = wanted.columns[feeds[source]].simpleString()
                if rule is None or (not rule.written and feeds[source] in wanted.key):
                    known[source] = f"no exact way to compare {kind.name} with {mirror} is known"
                else:
                    rules[feeds[source]] = rule
        same = {name: rule.same for name, rule in rules.items() if rule.same is not None}
        compared = with_known(wanted, known, same, f"table {name}")
        unwritten = [wanted.names[mirror] for mirror, rule in rules.items() if not rule.written]
        compared = replace(compared, unread=(*compared.unread, *unwritten))
        return DatabaseTable(self, name, compared, columns, rules)

    def _check_database(self, name: TableName) -> None:
        if self.dialect.driver == "org.postgresql.Driver" and name.database is not None:
            [(here,)] = self.query("SELECT current_database()::text")
            if here != name.database:
                raise SourceUnfit(
                    f"{name}: it is in the database {name.database}, and the URL names {here}: give the URL "
                    f"of {name.database}"
                )

    def frame(self, sql: str, predicates: Sequence[str]) -> DataFrame:
        """Return the rows of a query, with one partition for each predicate."""
        properties = {
            **self._login.options(),
            "driver": self.dialect.driver,
            "sessionInitStatement": (self._shared or "") + self.dialect.settings,
            "fetchsize": _FETCHED,
        }
        url = self.dialect.url(self._login.url)
        return self._spark.read.jdbc(url, f"({sql}) q", predicates=list(predicates), properties=properties)

    def query(self, sql: str) -> list[tuple[Any, ...]]:
        """Return the rows of a query, with all values as text.

        Raises SourceUnfit if the server refuses the query, and NotAnswered if it is unreachable.
        """
        with self._lock:
            if self._connection is None:
                self._connection = self._connect()
            try:
                return rows(self._connection, sql)
            except Py4JJavaError as error:
                broken = not self._connection.isValid(5)
                if broken:
                    self._close()
                kind = NotAnswered if broken else SourceUnfit
                raise kind(f"the source answers: {cause_of(error)}") from None

    def position(self) -> bytes:
        """Return the current position of the source."""
        dialect = self.dialect
        found = dialect.clock(self.query) if self.by == "time" else dialect.position(self.query)
        return self._epoch.to_bytes(2, "big") + found[2:]

    def position_below(self) -> bytes:
        """Return a position below every change that is not committed yet; see `sources.SourceTable`."""
        if self.by != "time":
            return self.position()
        return self._epoch.to_bytes(2, "big") + self.dialect.clock_below(self.query)[2:]

    @contextmanager
    def snapshot(self, wait: float) -> Iterator[bytes]:
        """Make all tables be read as of one moment inside the context, and return their position.

        In MySQL and MariaDB, each table is read at a moment of its own. See `dialects.Dialect.snapshot` for
        the position.
        """
        connection = self._connect()

        def holding(sql: str) -> list[tuple[Any, ...]]:
            try:
                return rows(connection, sql)
            except Py4JJavaError as error:
                raise SourceUnfit(f"the source answers: {cause_of(error)}") from None

        try:
            found, self._shared = self.dialect.snapshot(self.query, holding, wait)
            yield self._epoch.to_bytes(2, "big") + found[2:]
        finally:
            self._shared = None
            connection.close()

    def full_name(self, parts: Sequence[str]) -> TableName:
        """Return a table's name as its connector writes it, given the last parts of the name."""
        return self.dialect.full_name(self.query, parts)

    def described(self, name: TableName) -> Described:
        """Return what a mirror of the table would have. Raises SourceUnfit if there is no such table."""
        self._check_database(name)
        columns = self.dialect.columns(self.query, name)
        if not columns:
            raise SourceUnfit(self._no_table(name))
        kinds = {column: (natural_of(kind), kind.name) for column, kind in columns.items()}
        return Described(kinds, self.dialect.key(self.query, name))

    def parts(self, name: TableName) -> tuple[str | None, list[str]]:
        """Return how to read the rows of a snapshot in parallel; see `dialects.Dialect.parts`."""
        return self.dialect.parts(self.query, name) if self._shared is not None else (None, ["1 = 1"])

    def _no_table(self, name: TableName) -> str:
        return (
            f"{name}: the source has no such table, or its user may not see it: grant SELECT on "
            f"{self.dialect.relation(name)}"
        )

    def source_block(self, position: bytes) -> dict[str, Any]:
        """Return a position as the fields of Debezium's source block."""
        major, minor = int.from_bytes(position[2:12], "big"), int.from_bytes(position[12:22], "big")
        return {"ts_us": major} if self.by == "time" else self.dialect.source_block(major, minor)

    def unfinished(self) -> int | None:
        """Return a mark of open transactions; see `sources.SourceTable.unfinished`."""
        return self.dialect.unfinished(self.query) if self.by != "else" else None

    def finished(self, unfinished: int) -> bool:
        """Return whether the transactions of a mark have ended."""
        return self.dialect.finished(self.query, unfinished)

    def sent(self, position: bytes) -> bool:
        """Return whether the replication slot has passed a position."""
        at = self.dialect.sent(self.query, self._slot) if self.by != "time" else None
        return at is not None and at[2:] >= position[2:]

    def close(self) -> None:
        with self._lock:
            self._close()

    def _close(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            try:
                connection.close()
            except Py4JJavaError:  # it is broken: there is nothing to close
                return

    def _connect(self) -> Any:
        try:
            connection = connect(self._spark, self._login, self.dialect)
        except Py4JJavaError as error:
            raise NotAnswered(
                f"the source of the comparison cannot be reached or refuses the login: {why_refused(error)}"
            ) from None
        if connection is None:
            raise SourceUnfit("the URL of the source is not a URL that its JDBC driver understands")
        return connection


class DatabaseTable:
    """One table of a database."""

    def __init__(
        self,
        database: Database,
        name: TableName,
        compared: Compared,
        columns: Mapping[str, SourceType],
        rules: Mapping[str, Rule],
    ) -> None:
        self._database, self._name, self.compared = database, name, compared
        self._columns, self._rules = columns, rules
        self._dialect = database.dialect

    def rows(self, wanted: Wanted = ALL) -> DataFrame:
        """Return its current rows."""
        dialect, compared = self._dialect, self.compared
        texts = [f"{self._text(name)} AS c{index}" for index, name in enumerate(compared.columns)]
        orders = [
            f"{order} AS k{index}"
            for index, name in enumerate(compared.key)
            if (order := self._order(name)) is not None
        ]
        predicates = self._predicates(wanted)
        if wanted.keys is None and wanted.ranges is None:
            place, predicates = self._database.parts(self._name)
            orders = [place] if place is not None else []
        sql = f"SELECT {', '.join([*texts, *orders])} FROM {dialect.relation(self._name)} t"
        read = self._database.frame(sql, predicates)
        values, unfit = [], {}
        for index, (name, kind) in enumerate(compared.columns.items()):
            rule, text = self._rules[name], F.col(f"c{index}")
            values.append(rule.parse(text).cast(kind).alias(name))
            unfit[name] = rule.unfit(text, strict=wanted.strict), text
        return marked(read, values, unfit)

    def position(self) -> bytes:
        """Return the database's position."""
        return self._database.position()

    def position_below(self) -> bytes:
        """Return a position of the database for a repair."""
        return self._database.position_below()

    def unfinished(self) -> int | None:
        """Return a mark of the database's open transactions."""
        return self._database.unfinished()

    # -- which rows -------------------------------------------------------------------------------

    def _column(self, name: str) -> tuple[str, SourceType]:
        source = self.compared.names[name]
        return f"t.{self._dialect.quoted(source)}", self._columns[source]

    def _text(self, name: str) -> str:
        return self._dialect.text(*self._column(name))

    def _order(self, name: str) -> str | None:
        return self._dialect.ordered(*self._column(name), self.compared.columns[name])

    def _predicates(self, wanted: Wanted) -> list[str]:
        """Return conditions on the query, at least one, that select all wanted rows and few others."""
        if wanted.keys is not None:
            return self._of_keys(wanted.keys)
        key = self.compared.key
        if not wanted.ranges or not key or self._order(key[0]) is None:
            return ["1 = 1"]
        numbers = not isinstance(self._sample(wanted.ranges), str)
        found = [self._of_range(each) for each in wanted.ranges]
        # An index finds numbers. Texts are compared bytewise, which costs a scan for each query.
        return found if numbers else [" OR ".join(found)]

    @staticmethod
    def _sample(ranges: Sequence[KeyRange]) -> Any:
        return next((end for each in ranges for end in (each.low, each.high) if end is not None), None)

    def _of_range(self, range_: KeyRange) -> str:
        kind = self.compared.columns[self.compared.key[0]]
        ends = [
            f"k0 {sign} {self._dialect.value(end, kind)}"
            for sign, end in ((">=", range_.low), ("<", range_.high))
            if end is not None
        ]
        inside = " AND ".join(ends)
        if not inside:
            return "1 = 1"
        return f"({inside})" if range_.low is not None else f"({inside} OR k0 IS NULL)"

    def _of_keys(self, keys: Sequence[Mapping[str, Any]]) -> list[str]:
        compared = self.compared
        usable = [(index, name) for index, name in enumerate(compared.key) if self._order(name) is not None]
        if not usable:
            return ["1 = 1"]
        size = max(1, math.ceil(len(keys) / math.ceil(len(keys) / _KEYS_A_QUERY))) if keys else 1
        found = []
        for start in range(0, len(keys), size):
            alternatives = [
                " AND ".join(
                    f"k{index} IS NULL"
                    if each[name] is None
                    else f"k{index} = {self._dialect.value(each[name], compared.columns[name])}"
                    for index, name in usable
                )
                for each in keys[start : start + size]
            ]
            found.append(" OR ".join(f"({each})" for each in alternatives))
        return found or ["1 = 0"]
