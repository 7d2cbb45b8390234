"""Checks whether the names of a table and its columns are possible in Delta as they are.

Names that are not are refused, with what to do about them.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

from pyspark.sql.types import ArrayType, DataType, MapType, StructType

from lakemirror.api import Table
from lakemirror.driver.plan.refusal import Refused, left_out, new_mirror
from lakemirror.driver.tables.columns import METADATA
from lakemirror.driver.tables.keys import can_be_key
from lakemirror.driver.tables.mirror import MAPPING, needs_mapping
from lakemirror.driver.tables.names import Location

RESERVED = (
    "_row_dropped_",
    "_source_row_present_",
    "_target_row_present_",
    "_tmp_metadata_row_index",
    "__delta_internal_row_index",
    "__delta_internal_is_row_deleted",
)
"""Columns that Delta and Spark themselves add to a table while they read or merge it."""

_LONGEST_FOLDER = 255
"""Maximum length of a folder's name in bytes, on all file systems that have such a limit."""


def check_columns(
    table: Table,
    versions: Iterable[Sequence[str]],
    names: Mapping[str, str],
    columns: Mapping[str, DataType],
    *,
    key: Sequence[str],
    soft: str | None,
    own: Collection[str] = (),
    metadata: Collection[str] = METADATA,
    made: bool = False,
    keeps_events: bool = True,
) -> None:
    """Check that every column of a ``table`` has a name of its own in the mirror.

    ``versions`` are the source's columns, by schema, and ``names`` their names in the mirror. ``columns`` are
    the mirror's columns, without its ``metadata``, without ``soft`` (the column of a soft delete), and
    without its ``own`` columns, which the manifest adds. In a mirror that is ``made`` already, these two keep
    their names. ``keeps_events``: whether the mirror can be a list of events.

    Raises Refused, also for a column of the ``key`` whose values cannot be compared.
    """
    settings, leave = f"tables[{table.source}].columns", left_out(table)
    for version in versions:
        _check_renamed([name for name in version if name in names], names, table)
    taken = {**{name.lower(): name for name in RESERVED}, **{name.lower(): name for name in metadata}}
    seen: dict[str, str] = {}
    added = {name.lower() for name in own}
    for name, kind in columns.items():
        other = seen.setdefault(name.lower(), name)
        if other != name:
            raise Refused(
                f"columns {other!r} and {name!r} differ in case only, and Delta takes them for one: "
                f"rename one with {settings}.rename, or {leave}"
            )
        if name.lower() in taken:
            raise Refused(
                f"column {name!r} has a name that the mirror needs for a column of its own: "
                f"rename it with {settings}.rename, or {leave}"
            )
        if soft is not None and name.lower() == soft.lower():
            other = "" if made else "choose another delete.column, "
            raise Refused(
                f"column {name!r} has the name of the soft delete's column: {other}"
                f"rename it with {settings}.rename, or {leave}"
            )
        if name.lower() in added:
            other = "" if made else "choose another one there, or "
            raise Refused(
                f"column {name!r} has the name of a column that {settings} adds (metadata, rowHash, "
                f"keyHash, identity or expressions): {other}rename this with {settings}.rename"
            )
        problem = next(_problems(kind), None)
        if not name:  # nor can it be in a list of columns
            problem, leave = "it has no name", f"list the others in {settings}.include"
        if problem is not None:
            raise Refused(f"column {name!r} cannot be mirrored: {problem}; {leave}")
    for name in key:
        if name in columns and not can_be_key(columns[name]):
            other = ", or mode: append" if keeps_events else ""
            raise Refused(
                f"key column {name!r} is of type {columns[name].simpleString()}, whose values cannot be "
                f"compared: set tables[{table.source}].primaryKey to other columns{other}"
            )


def check_features(
    table: Table,
    location: Location,
    features: Collection[str],
    columns: Mapping[str, DataType],
    avoided: Mapping[str, Sequence[str]],
) -> None:
    """Raise Refused if the mirror has, or its ``columns`` need, a Delta reader feature that must be avoided.

    ``avoided`` maps each such feature to the programs that lack it.
    """
    for name, kind in columns.items():
        if MAPPING in avoided and needs_mapping({name: kind}):
            raise Refused(
                f"column {name!r} has a name that needs Delta's feature {MAPPING}, which "
                f"{' and '.join(avoided[MAPPING])} of target.compatibility cannot read: rename it with "
                f"tables[{table.source}].columns.rename, or {left_out(table)}"
            )
    present = sorted(set(features) & set(avoided))
    if present:
        raise Refused(
            f"the mirror {location} has Delta's feature {present[0]}, which "
            f"{' and '.join(avoided[present[0]])} of target.compatibility cannot read: set "
            f"{new_mirror(table)}, or run ALTER TABLE ... DROP FEATURE {present[0]} while the table is "
            "suspended"
        )


def check_location(source: str, location: Location) -> None:
    """Raise Refused for a target that is impossible in any file system or catalog."""
    remedy = f"set tables[{source}].target"
    if location.path is not None:
        longest = max(location.path.split("/"), key=lambda part: len(part.encode()))
        if len(longest.encode()) > _LONGEST_FOLDER:
            raise Refused(
                f"the target {location} has a folder whose name is longer than {_LONGEST_FOLDER} bytes: "
                f"{remedy}"
            )
        return
    parts = (location.name or "").split(".")
    if len(parts) > 3 or not all(re.fullmatch(r"[A-Za-z0-9_]+", part) for part in parts):
        raise Refused(
            f"the target {location} is not a valid name of a table in the catalog, which has up to three "
            f"words of letters, digits and '_' with dots between them: {remedy}"
        )


def _check_renamed(version: Sequence[str], names: Mapping[str, str], table: Table) -> None:
    """Check that no two columns of one schema are written to the same column of the mirror."""
    seen: dict[str, str] = {}
    for name in version:
        other = seen.setdefault(names[name], name)
        if other != name:
            raise Refused(
                f"columns {other!r} and {name!r} would both be called {names[name]!r} in the mirror: "
                f"change tables[{table.source}].columns.rename, or {left_out(table, 'one of them')}"
            )


def _problems(kind: DataType) -> Iterator[str]:
    """Yield what is wrong with the names inside a type."""
    if isinstance(kind, ArrayType):
        yield from _problems(kind.elementType)
    elif isinstance(kind, MapType):
        yield from _problems(kind.keyType)
        yield from _problems(kind.valueType)
    elif isinstance(kind, StructType):
        seen: dict[str, str] = {}
        for field in kind.fields:
            other = seen.setdefault(field.name.lower(), field.name)
            if other != field.name:
                yield f"its fields {other!r} and {field.name!r} differ in case only"
            if not field.name:
                yield "a field in it has no name"
            yield from _problems(field.dataType)
