"""The batches that a mirror in a database has, each with the note that it left."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final, Protocol

KEPT: Final = 200
"""The minimum number of commits of a mirror whose marks are kept."""
EVERY: Final = 50
"""The number of commits of a mirror after which older marks are deleted."""


class Session(Protocol):
    """A connection, such as `lakemirror.driver.tables.jdbc_database.Session`."""

    def query(self, sql: str, *values: int | str | None) -> list[tuple[Any, ...]]: ...

    def execute(self, sql: str, *values: int | str | None) -> int: ...


@dataclass(frozen=True)
class Mark:
    """The batch of a commit, and the note about it."""

    app_id: str
    batch: int
    note: str


class Marks:
    """The marks of the mirror ``name``, in ``table`` (in SQL), which also has those of other mirrors.

    A mark is looked up when its batch is repeated after a crash. By then, few other commits have been made.
    The marks of the newest commits are therefore enough, whether these belong to the source, a replay or a
    resync.
    """

    def __init__(self, table: str, name: str) -> None:
        self._table, self._name = table, name

    def newest(self, session: Session, app_id: str) -> int | None:
        """Return the newest batch that was committed under ``app_id``, or None."""
        [(newest,)] = session.query(
            f"SELECT MAX(batch) FROM {self._table} WHERE name = ? AND app_id = ?", self._name, app_id
        )
        return None if newest is None else int(newest)

    def of(self, session: Session, app_id: str, batch: int) -> tuple[int, str] | None:
        """Return the version of the mirror after a batch, and the note that the batch left, or None."""
        found = session.query(
            f"SELECT version, note FROM {self._table} WHERE name = ? AND app_id = ? AND batch = ?",
            *(self._name, app_id, batch),
        )
        return (int(found[0][0]), found[0][1]) if found else None

    def add(self, session: Session, mark: Mark, version: int) -> None:
        """Record the batch that brought the mirror to a version."""
        session.execute(
            f"INSERT INTO {self._table} (name, app_id, batch, version, note) VALUES (?, ?, ?, ?, ?)",
            *(self._name, mark.app_id, mark.batch, version, mark.note),
        )

    def forget(self, session: Session, version: int) -> None:
        """Delete marks of old commits, every `EVERY` commits of the mirror.

        This uses the mirror's ``version``, because commits have no gaps, unlike batch numbers.
        """
        if version % EVERY == 0:
            session.execute(
                f"DELETE FROM {self._table} WHERE name = ? AND version <= ?", self._name, version - KEPT
            )

    def clear(self, session: Session) -> None:
        """Delete all marks of the mirror."""
        session.execute(f"DELETE FROM {self._table} WHERE name = ?", self._name)
