"""Which batches a mirror in a database has, each with the note that it left."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final, Protocol

KEPT: Final = 200
"""Commits of a mirror whose marks are kept at least."""
EVERY: Final = 50
"""After how many commits of a mirror older marks are forgotten."""


class Session(Protocol):
    """A connection, as `lakemirror.driver.tables.jdbc_database.Session` is one."""

    def query(self, sql: str, *values: int | str | None) -> list[tuple[Any, ...]]: ...

    def execute(self, sql: str, *values: int | str | None) -> int: ...


@dataclass(frozen=True)
class Mark:
    """Which batch a commit is, and what it says of itself."""

    app_id: str
    batch: int
    note: str


class Marks:
    """The marks of the mirror ``name``, in ``table`` (in SQL), which has those of other mirrors, too.

    A mark is asked for when its batch is done again: after a crash, and then few commits have come between.
    So those of the newest commits are enough, whether they are the source's, a replay's or a resync's.
    """

    def __init__(self, table: str, name: str) -> None:
        self._table, self._name = table, name

    def newest(self, session: Session, app_id: str) -> int | None:
        """The newest batch that was committed under ``app_id``."""
        [(newest,)] = session.query(
            f"SELECT MAX(batch) FROM {self._table} WHERE name = ? AND app_id = ?", self._name, app_id
        )
        return None if newest is None else int(newest)

    def of(self, session: Session, app_id: str, batch: int) -> tuple[int, str] | None:
        """The version of the mirror after a batch, and the note that the batch left."""
        found = session.query(
            f"SELECT version, note FROM {self._table} WHERE name = ? AND app_id = ? AND batch = ?",
            *(self._name, app_id, batch),
        )
        return (int(found[0][0]), found[0][1]) if found else None

    def add(self, session: Session, mark: Mark, version: int) -> None:
        """Note the batch with which the mirror has come to a version."""
        session.execute(
            f"INSERT INTO {self._table} (name, app_id, batch, version, note) VALUES (?, ?, ?, ?, ?)",
            *(self._name, mark.app_id, mark.batch, version, mark.note),
        )

    def forget(self, session: Session, version: int) -> None:
        """Delete marks of old commits, now and then as the ``version`` says to which the mirror has come. By
        the commits of the mirror, which nobody leaves out, and not by the numbers of batches.
        """
        if version % EVERY == 0:
            session.execute(
                f"DELETE FROM {self._table} WHERE name = ? AND version <= ?", self._name, version - KEPT
            )

    def clear(self, session: Session) -> None:
        """Delete all."""
        session.execute(f"DELETE FROM {self._table} WHERE name = ?", self._name)
