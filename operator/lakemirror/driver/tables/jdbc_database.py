"""A database with mirrors: its connections, and the transfer of rows to and from it through Spark."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any, Final

from py4j.protocol import Py4JJavaError
from pyspark.sql import DataFrame, SparkSession

from lakemirror.driver.errors import NotAnswered, PipelineStopped, cause_of
from lakemirror.driver.jdbc import Login, connect, execute, literal, rows, why_refused
from lakemirror.driver.tables.jdbc_dialects import dialect_of

STAGING: Final = "lakemirror_stage_"
"""The prefix of the names of staging tables."""
_ALIVE_SECONDS: Final = 5


class DatabaseUnreachable(PipelineStopped, NotAnswered):
    """The database of the mirrors cannot be reached. No table can continue, and the batch is repeated."""


class Session:
    """A connection while it is in use."""

    def __init__(self, connection: Any) -> None:
        self.connection = connection

    def query(self, sql: str, *values: int | str | None) -> list[tuple[Any, ...]]:
        """Return the rows of a query, with all values as text."""
        return rows(self.connection, sql, values)

    def execute(self, sql: str, *values: int | str | None) -> int:
        """Run a statement, and return how many rows it changed."""
        return execute(self.connection, sql, values)


class Database:
    """The database at a URL. Thread-safe.

    ``owner`` distinguishes the staging tables of one pipeline from those of others. ``owned`` says that those
    found at the first connection were left by a driver that was killed, and are dropped.
    """

    def __init__(self, login: Login, owner: str, *, owned: bool = False) -> None:
        self.dialect = dialect_of(login.url)
        self.making = threading.Lock()
        """Held while creating tables that several mirrors share."""
        self.staging = f"{STAGING}{owner}_"
        self._login = login
        self._idle: list[Any] = []
        self._left: list[str] = []
        self._dropping = threading.Lock()
        self._litter, self._clearing = owned, threading.Lock()

    @contextmanager
    def session(self, spark: SparkSession) -> Iterator[Session]:
        """Open a connection on which each statement is a transaction."""
        connection = self._taken() or self._connected(spark)
        session = Session(connection)
        try:
            with self._clearing:
                if self._litter:
                    self._clear(session)
                    self._litter = False
            yield session
        except BaseException as error:
            lost = isinstance(error, Py4JJavaError) and not _is_alive(connection)
            _close(connection)
            if lost:
                raise DatabaseUnreachable(
                    f"the connection to the database of spec.target.jdbc was lost: {cause_of(error)}"
                ) from None
            raise
        self._idle.append(connection)

    @contextmanager
    def transaction(self, spark: SparkSession) -> Iterator[Session]:
        """Open a connection on which all statements form one transaction. Any exception rolls it back."""
        with self.session(spark) as session:
            session.connection.setAutoCommit(False)
            yield session
            session.connection.commit()
            session.connection.setAutoCommit(True)

    def frame(self, spark: SparkSession, sql: str, parts: int = 1, by: str = "") -> DataFrame:
        """Return the rows of a query, in ``parts`` partitions by the integer column ``by``."""
        url = self.dialect.url(self._login.url)
        properties = {
            **self._properties(),
            "sessionInitStatement": self.dialect.settings,
            "fetchsize": "5000",
        }
        wanted = [f"MOD({by}, {parts}) = {part}" for part in range(parts)] if parts > 1 else ["1 = 1"]
        return spark.read.jdbc(url, f"({sql}) q", predicates=wanted, properties=properties)

    def put(self, rows: DataFrame, table: str) -> None:
        """Append rows to a table with the same columns."""
        more = {"batchsize": "2000", **self.dialect.writing}
        url = self.dialect.url(self._login.url)
        rows.write.jdbc(url, table, mode="append", properties={**self._properties(), **more})

    def drop(self, spark: SparkSession, tables: Iterable[str]) -> None:
        """Drop staging tables, and those that could not be dropped before.

        If the database is unreachable, they are left for the next time.
        """
        with self._dropping:
            self._left += tables
            try:
                with self.session(spark) as session:
                    while self._left:
                        session.execute(f"DROP TABLE IF EXISTS {self._left[-1]}")
                        self._left.pop()
            except DatabaseUnreachable:
                return

    def _clear(self, session: Session) -> None:
        """Drop the staging tables that a driver left behind."""
        quoted = self.dialect.quoted
        begins = f"table_name LIKE {literal(self.staging.replace('_', '!_') + '%')} ESCAPE '!'"
        found = session.query(
            f"SELECT table_schema, table_name FROM information_schema.tables WHERE {begins}"
        )
        for schema, name in found:
            session.execute(f"DROP TABLE IF EXISTS {quoted(schema)}.{quoted(name)}")

    def close(self) -> None:
        """Close the connections that are not in use."""
        while self._idle:
            _close(self._idle.pop())

    def _properties(self) -> dict[str, str]:
        return {**self._login.options(), "driver": self.dialect.driver}

    def _taken(self) -> Any:
        while self._idle:
            connection = self._idle.pop()
            if _is_alive(connection):
                return connection
            _close(connection)
        return None

    def _connected(self, spark: SparkSession) -> Any:
        try:
            connection = connect(spark, self._login, self.dialect)
        except Py4JJavaError as error:
            raise DatabaseUnreachable(
                "the database of spec.target.jdbc cannot be reached or refuses the login: "
                f"{why_refused(error)}"
            ) from None
        if connection is None:
            raise DatabaseUnreachable("spec.target.jdbc.url is not a URL that its JDBC driver understands")
        return connection


def _is_alive(connection: Any) -> bool:
    return bool(connection.isValid(_ALIVE_SECONDS))


def _close(connection: Any) -> None:
    try:
        connection.close()
    except Py4JJavaError:  # it is broken: there is nothing to close
        return
