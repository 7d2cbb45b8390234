"""What `msgspec` reads of a record: structs that are made for the columns of a table and its kind of source.

What a struct does not name is skipped. A row has exactly its members: one that is missing or unknown makes
the record odd.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Final, Literal

import msgspec

from lakemirror.driver.rules.envelopes.records import INTEGERS, TableName

_TEXTS: Final = (
    *("connector", "name", "db", "snapshot", "sequence", "file", "commit_lsn", "change_lsn", "scn"),
    *("commit_scn", "system_identifier", "timeline"),
)
_LONG: Final = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]
_POSITION: Final = Annotated[int, msgspec.Meta(ge=0, le=10**18 - 1)]
_NUMBER: Final = Annotated[int, msgspec.Meta(ge=0, le=2**31 - 2)]


class Image(msgspec.Struct, gc=False):
    """A row before the change, of which nothing is read but that it is an object."""


def row_struct(members: Mapping[str, Any], *, are_nullable: bool) -> type[msgspec.Struct]:
    """Return the struct of a row or a key, whose attributes are ``c0``, ``c1`` and so on."""
    fields = [
        (f"c{i}", each if each is msgspec.Raw or not are_nullable else each | None)
        for i, each in enumerate(members.values())
    ]
    names = {f"c{i}": name for i, name in enumerate(members)}
    return msgspec.defstruct("Row", fields, rename=names, forbid_unknown_fields=True, gc=False)


def envelope_struct(row: type[msgspec.Struct], source: type[msgspec.Struct]) -> type[msgspec.Struct]:
    """Return the struct of Debezium's envelope, which is not wrapped in another one."""
    fields: list[tuple[str, Any] | tuple[str, Any, Any]] = [
        ("op", Literal["c", "u", "r", "d"]),
        ("source", source),
        ("after", row | None, None),
        ("before", Image | None, None),
        ("ts_ms", _LONG | None, None),
        ("payload", None, None),
        ("schema", None, None),
    ]
    return msgspec.defstruct("Envelope", fields, gc=False)


def postgres_struct(table: TableName) -> type[msgspec.Struct]:
    """Return the struct of the source block of changes of PostgreSQL that stand where their LSN says."""
    mine = {
        "connector": Literal["postgresql"],
        "lsn": _POSITION | None,
        "sequence": str | None,
        "system_identifier": str | None,
        "timeline": str | None,
        **_ALWAYS,
    }
    return _block(mine, table)


def binlog_struct(table: TableName) -> type[msgspec.Struct]:
    """Return the struct of the source block of changes that stand at a position of a binlog."""
    numbers = {"pos": _POSITION | None, "row": _NUMBER | None, "event_serial_no": _NUMBER | None}
    mine = {
        "connector": Literal["mysql", "mariadb"],
        "file": str,
        "server_id": _LONG | None,
        **numbers,
        **_ALWAYS,
    }
    return _block(mine, table)


def any_struct(table: TableName) -> type[msgspec.Struct]:
    """Return the struct of any source block, whose place is told by the rules."""
    return _block({**dict.fromkeys(_TEXTS, str | None), **dict.fromkeys(INTEGERS, _LONG | None)}, table)


_ALWAYS: Final[Mapping[str, Any]] = {
    "name": str | None,
    "ts_us": _LONG | None,
    "ts_ms": _LONG | None,
    "snapshot": str | None,
}
_UNREAD: Final = ("system_identifier", "timeline")
"""Members that say nothing about a place in a binlog, and that may be anything."""


def _block(mine: Mapping[str, Any], table: TableName) -> type[msgspec.Struct]:
    """Return the struct of a source block of a table, in which nothing else may say where a change is."""
    named = {"db": table.database, "schema": table.schema, "table": table.table}
    nothing = {name: None for name in (*_TEXTS, *INTEGERS) if name not in _UNREAD}
    of_table = {name: None if each is None else Literal[each] for name, each in named.items()}
    fields = {**nothing, **mine, **of_table}
    required = {"connector", "file"} & {name for name, each in mine.items() if each is not str | None}
    required |= {name for name, each in named.items() if each is not None}
    made: list[Any] = [(name, each) for name, each in fields.items() if name in required]
    made += [(name, each, None) for name, each in fields.items() if name not in required]
    return msgspec.defstruct("Source", made, gc=False, kw_only=True)
