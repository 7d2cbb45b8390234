"""Databases over JDBC: their kinds, logins and connections."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from pyspark.sql import SparkSession

from lakemirror.driver.errors import cause_of


def literal(text: str) -> str:
    """Return a text as an SQL literal, for servers that do not treat a backslash as an escape character."""
    return "'" + text.replace("'", "''") + "'"


@dataclass(frozen=True)
class Login:
    """Where a database is, and who connects to it. The password does not appear in any message."""

    url: str
    user: str | None = None
    password: str | None = None

    def options(self) -> dict[str, str]:
        """Return the options for a JDBC driver."""
        given = {"user": self.user, "password": self.password}
        return {name: value for name, value in given.items() if value is not None}

    def __repr__(self) -> str:
        return f"Login({self.url!r}, {self.user!r})"


class Postgres:
    """PostgreSQL 12 and later."""

    prefixes = ("jdbc:postgresql:",)
    """The prefixes of its URLs."""
    driver = "org.postgresql.Driver"
    """The class of its JDBC driver."""
    settings = (
        "SET TIME ZONE 'UTC'; SET datestyle = 'ISO, YMD'; SET intervalstyle = 'postgres'; "
        "SET extra_float_digits = 3; SET bytea_output = 'hex'; SET standard_conforming_strings = on; "
        "SET xmlbinary = 'base64'; SET lc_monetary = 'C'"
    )
    """SQL that is run first on each connection, so that each value has only one text form."""

    def url(self, url: str) -> str:
        """Return the URL for the driver."""
        return url

    def quoted(self, name: str) -> str:
        """Return the name of a column, table or schema, quoted for SQL."""
        return '"' + name.replace('"', '""') + '"'


class MySql:
    """MySQL and MariaDB."""

    prefixes = ("jdbc:mariadb:", "jdbc:mysql:")
    driver = "org.mariadb.jdbc.Driver"
    settings = "SET time_zone = '+00:00', sql_mode = 'NO_BACKSLASH_ESCAPES', NAMES utf8mb4"

    def url(self, url: str) -> str:
        """Return the URL in MySQL's form, because Spark knows how MySQL quotes names."""
        rest = url.partition(":")[2].partition(":")[2]
        given = "permitMysqlScheme" in rest
        return f"jdbc:mysql:{rest}" + ("" if given else f"{'&' if '?' in rest else '?'}permitMysqlScheme")

    def quoted(self, name: str) -> str:
        return "`" + name.replace("`", "``") + "`"


def connect(spark: SparkSession, login: Login, kind: Postgres | MySql) -> Any:
    """Return a java.sql.Connection with the settings of its kind.

    Returns None for a URL that the driver does not understand. Raises Py4JJavaError.
    """
    jvm: Any = spark._jvm
    loader = jvm.org.apache.spark.util.Utils.getContextOrSparkClassLoader()
    gateway: Any = spark.sparkContext._gateway
    found = loader.loadClass(kind.driver).getDeclaredConstructor(gateway.new_array(jvm.Class, 0))
    driver = found.newInstance(gateway.new_array(jvm.Object, 0))
    properties = jvm.java.util.Properties()
    for name, value in login.options().items():
        properties.setProperty(name, value)
    connection = driver.connect(kind.url(login.url), properties)
    if connection is not None:
        execute(connection, kind.settings)
    return connection


def why_refused(error: Exception) -> str:
    """Return in one line why there is no connection, and what to do if the driver does not say."""
    cause = cause_of(error)
    if "RSA public key" not in cause:
        return cause
    # MySQL 8 and later request this by default, once after each start of the server.
    return (
        f"{cause}: without TLS the password could be read. Add sslMode=verify-full to the parameters of the "
        "URL (with serverSslCert, where the server's certificate is its own), or "
        "allowPublicKeyRetrieval=true in a network that is safe"
    )


def rows(connection: Any, sql: str, values: Sequence[int | str | None] = ()) -> list[tuple[Any, ...]]:
    """Return the rows of a query, with all values as text.

    The list is empty for a statement that returns no rows.
    """
    statement = _prepared(connection, sql, values)
    try:
        if not (statement.execute() if values else statement.execute(sql)):
            return []
        result = statement.getResultSet()
        width = result.getMetaData().getColumnCount()
        found = []
        while result.next():
            found.append(tuple(result.getString(index + 1) for index in range(width)))
        return found
    finally:
        statement.close()


def execute(connection: Any, sql: str, values: Sequence[int | str | None] = ()) -> int:
    """Run a statement with ``values`` for its question marks, and return how many rows it changed."""
    statement = _prepared(connection, sql, values)
    try:
        if values:
            statement.execute()
        else:
            statement.execute(sql)
        return int(statement.getUpdateCount())
    finally:
        statement.close()


def _prepared(connection: Any, sql: str, values: Sequence[int | str | None]) -> Any:
    if not values:
        return connection.createStatement()
    statement = connection.prepareStatement(sql)
    for place, value in enumerate(values, start=1):
        if isinstance(value, int):
            statement.setLong(place, value)
        else:
            statement.setString(place, value)
    return statement
