"""Determines which key a table's mirror has, and whether a batch fits it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

from lakemirror.api.tables import is_pattern, matches
from lakemirror.driver.codes import Op
from lakemirror.driver.plan import selection
from lakemirror.driver.plan.mirrored import MirroredTable
from lakemirror.driver.plan.possession import check_possession
from lakemirror.driver.plan.refusal import Refused, Waiting, new_mirror
from lakemirror.driver.plan.schemas import Schema
from lakemirror.driver.profile.overview import TableOverview
from lakemirror.driver.tables.columns import T
from lakemirror.driver.tables.mirror import (
    DELETE_PROPERTY,
    EXPRESSIONS_PROPERTY,
    FILTER_PROPERTY,
    INITIAL_PROPERTY,
    KEY_PROPERTY,
    MODE_PROPERTY,
    ORDER_PROPERTY,
    OWN_PROPERTY,
    SHARD_PROPERTY,
    SOURCE_PROPERTY,
    TRACKED_PROPERTY,
)
from lakemirror.driver.tables.names import owner_of


def key_of(
    table: MirroredTable, seen: TableOverview, versions: Sequence[Schema]
) -> tuple[list[str], str | None]:
    """Return the mirror's key columns, and what is wrong with records that have another key.

    The key is empty if the table is only appended to. The reason is None if there are no such records.

    The key is the manifest's, otherwise the mirror's, otherwise that of most records. Raises Refused for a
    table whose records all have another key than its mirror, and Waiting until there is a row.
    """
    if not versions and not table.mirror.exists:
        raise Waiting(
            f"no row of {table.name} was seen yet, only a truncate: its mirror is made with the first"
        )
    if table.settings.mode == "append":
        return [], None
    rename = table.rename
    if table.settings.primary_key:
        return [rename.get(name, name) for name in table.settings.primary_key], None
    frequent = sorted(
        versions, key=lambda each: (each.group.events, each.group.last_seq or b""), reverse=True
    )
    keys = [[rename.get(name, name) for name in key] for each in frequent for key in each.keys]
    stored = table.properties.get(KEY_PROPERTY)
    if not keys and seen.keyed and stored in (None, "[]"):
        reason = (
            f"the keys of the records of {table.name} are not JSON objects, so that they name no columns: "
            f"set tables[{table.settings.source}].primaryKey"
        )
        if seen.keyed == seen.events:
            raise Refused(f"{reason}{_if_made(table)}")
        return [], f"{reason}, and {new_mirror(table.settings)}"
    key = json.loads(stored) if stored is not None else keys[0] if keys else []
    others = [each for each in keys if set(each) != set(key)]
    if not others:
        return key, None
    reason = _another_key(table, key, others[0])
    if len(others) == len(keys) and seen.keyed == seen.events:
        kept = f"; to go on as before, set tables[{table.settings.source}].mode: append"
        raise Refused(reason if key else f"{reason}{kept}")
    return key, reason


def _if_made(table: MirroredTable) -> str:
    """Return what another key needs besides, if the table has a mirror, which keeps its key."""
    return f", and {new_mirror(table.settings)}" if table.mirror.exists else ""


def _another_key(table: MirroredTable, key: Sequence[str], other: Sequence[str]) -> str:
    """Return why a record cannot be applied, and the remedy if the source's key changed."""
    back = {mirror: source for source, mirror in table.rename.items()}
    made, found = ([back.get(name, name) for name in each] for each in (key, other))
    return (
        f"the mirror {table.mirror.location} has {_keyed(made)}, and this record has {_keyed(found)}: rows "
        f"cannot be told apart by both. If the source's key changed, set tables[{table.settings.source}]"
        f".primaryKey: [{', '.join(found)}], and {new_mirror(table.settings)}"
    )


def _keyed(key: Sequence[str]) -> str:
    return f"the key ({', '.join(key)})" if key else "no key"


def check_key_columns(
    table: MirroredTable, key: Sequence[str], names: Mapping[str, str], versions: Sequence[Schema]
) -> None:
    """Check that each key column is a column of the rows, because the mirror has no others.

    Raises Refused, or Waiting if no row has been seen yet.
    """
    missing = [name for name in key if name not in names.values()]
    if not missing or not versions:
        return
    if not names:
        raise Waiting(
            f"no row of {table.name} was seen yet, only its keys: its mirror is made with the first"
        )
    columns, place = table.settings.columns, f"tables[{table.settings.source}]"
    listed = ", ".join(missing)
    back = {mirror: source for source, mirror in table.rename.items()}
    if columns is not None and not all(columns.keeps(back.get(name, name)) for name in missing):
        raise Refused(f"the key of {table.name} needs {listed}, which {place}.columns leaves out: keep it")
    raise Refused(
        f"{listed} of the key of {table.name} is not a column of its rows, which have "
        f"{', '.join(sorted(names))}: set {place}.primaryKey to columns of the rows{_if_made(table)}"
    )


def from_rows(table: MirroredTable, key: Sequence[str], versions: Sequence[Schema]) -> list[str]:
    """Return the columns of a declared key that are not part of every record's own key."""
    if not table.settings.primary_key or not key:
        return []
    keys = [_renamed(table, names) for each in versions for names in each.keys or [[]]]
    return [name for name in key if any(name not in each for each in keys)]


def _renamed(table: MirroredTable, names: Sequence[str]) -> list[str]:
    return [table.rename.get(name, name) for name in names]


def check_key(table: MirroredTable, key: Sequence[str]) -> None:
    """Check that a table without a key may be kept as a list of events.

    Raises Refused if the target keeps no events, or if the manifest itself asks for rows by key.
    """
    if not key and not table.mirror.keeps_events:
        raise Refused(
            f"the target {table.mirror.location} needs a key, but records of {table.name} have none: "
            f"set tables[{table.settings.source}].primaryKey"
        )
    if not key and table.asks_for_key:
        raise Refused(
            f"mode {table.mode} needs a key, but records of {table.name} have none: "
            f"set tables[{table.settings.source}].primaryKey, or mode: append"
        )


def _check_order(table: MirroredTable, what: str) -> None:
    made, asked = table.properties.get(ORDER_PROPERTY), table.spec.order.kept_as
    # Mirrors that were made before anything but columns was noted may have any other order.
    if made != asked and (made is not None or table.spec.order.columns is not None):
        raise Refused(
            f"{what} was made in the order of {made or 'positions, times or offsets'}, and the order of "
            f"{asked} is asked for now: the places of its rows in the one order say nothing in the other. "
            "Choose another target with a new resyncToken, or set ordering as it was, with a new "
            "spec.spark.resetToken"
        )


def made_for_good(table: MirroredTable) -> dict[str, str]:
    """Return the mirror properties for settings that determine its rows and therefore cannot change."""
    settings = table.settings
    found = {
        DELETE_PROPERTY: _deletes(table) if table.mode == "scd1" else None,
        FILTER_PROPERTY: settings.filter,
        TRACKED_PROPERTY: json.dumps(settings.tracked_columns) if settings.tracked_columns else None,
        INITIAL_PROPERTY: settings.initial_valid_from,
        OWN_PROPERTY: _text(settings.own_columns),
        EXPRESSIONS_PROPERTY: _text(settings.expressions),
    }
    return {name: value for name, value in found.items() if value is not None}


def _text(columns: Mapping[str, str]) -> str | None:
    return json.dumps(columns, sort_keys=True) if columns else None


def _deletes(table: MirroredTable) -> str:
    """Return how the manifest has rows deleted: ``hard``, or the column of a soft delete."""
    return f"soft, column {table.soft}" if table.soft is not None else _HARD


def _deletes_as_made(table: MirroredTable) -> str:
    """Return how rows of the mirror were deleted until now.

    A mirror that was made before this was noted shows it: by its columns, or by rows that are marked.
    """
    noted = table.properties.get(DELETE_PROPERTY)
    if noted is not None:
        return noted
    if table.soft is not None:
        return _deletes(table) if table.soft in (table.mirror.columns or {}) else _HARD
    marked = not table.rows().where(T("__op") == Op.DELETE).isEmpty()
    return "soft" if marked else _HARD


_HARD = "hard"
_MADE_FOR_GOOD = {
    DELETE_PROPERTY: (
        "delete",
        "rows that were deleted are not marked as a soft delete marks them, or are among the others",
    ),
    FILTER_PROPERTY: ("filter", "rows that were left out do not come back by themselves, nor do others go"),
    TRACKED_PROPERTY: ("trackedColumns", "versions that are there were made by other columns"),
    INITIAL_PROPERTY: ("initialValidFrom", "versions that are there have another beginning"),
    OWN_PROPERTY: (
        "columns.metadata (with rowHash, keyHash and identity)",
        "rows that are there were written without",
    ),
    EXPRESSIONS_PROPERTY: ("columns.expressions", "rows that are there were computed by others"),
}


def _check_made_for_good(table: MirroredTable, what: str, key: Sequence[str]) -> None:
    asked = made_for_good(table)
    for name, (field, why) in _MADE_FOR_GOOD.items():
        made, now = table.properties.get(name), asked.get(name)
        if name == DELETE_PROPERTY:
            if not key or now is None:
                continue
            made = _deletes_as_made(table)
        if made != now:
            before = f"without a {field}" if made is None else f"with the {field} {made}"
            raise Refused(
                f"{what} was made {before}, and tables[{table.settings.source}].{field} now is "
                f"{now or 'not set'}: {why}. Choose another target with a new resyncToken, or set {field} as "
                "it was"
            )


def _is_widened(table: MirroredTable, owner: str) -> bool:
    """Return whether the mirror is one of shards whose pattern has changed, and still means all of them."""
    if table.shard is None or SHARD_PROPERTY not in table.mirror.properties:
        return False
    former = owner.removeprefix(owner_of(table.pipeline, ""))
    prefix = f"{SHARD_PROPERTY}."
    shards = [name.removeprefix(prefix) for name in table.mirror.properties if name.startswith(prefix)]
    return is_pattern(former) and all(matches(table.settings.source, each) for each in shards)


def _check_selection(table: MirroredTable, what: str) -> None:
    """Raise Refused for a column of the mirror that is left out now, or renamed to one that is there."""
    made, now, place = table.selection_as_made, table.selection, f"tables[{table.settings.source}].columns"
    dropped = {name for name, life in table.stored_lives.items() if life.dropped}
    gone = [name for name in selection.lost(made, now, table.mirrored_columns) if name not in dropped]
    if gone:
        how = f"{place}.{'exclude' if now.include is None else 'include'}"
        raise Refused(
            f"{what} has the column {gone[0]}, and {how} leaves it out now: rows that change would lose its "
            f"value, and all others would keep it. Set {new_mirror(table.settings)}, or keep the column"
        )
    for each in selection.renamings(made, now, table.mirrored_columns):
        if each.after in (table.mirror.columns or {}) and each.after not in table.renaming.values():
            raise Refused(
                f"{what} has a column {each.after} already, and {place}.rename gives this name to "
                f"{each.source}, which it has as {each.before}: the values of both would be in one column. "
                f"Choose another name, set {new_mirror(table.settings)}, or set rename as it was"
            )


def check_target(table: MirroredTable, key: Sequence[str]) -> None:
    """Check that the mirror belongs to this source table and checkpoint, and fits the table's settings.

    Its mode, key and filter, what determines its order, and the other settings of `made_for_good`
    cannot change, because its rows would mean something else. Raises Refused.
    """
    what = f"the target {table.mirror.location}"
    owner = table.properties.get(SOURCE_PROPERTY)
    if owner is None:
        raise Refused(f"{what} is a table that Lakemirror did not make: choose another target")
    if owner != table.source and not _is_widened(table, owner):
        raise Refused(f"{what} is the mirror of {owner}: choose another target")
    check_possession(table)
    mode = table.properties.get(MODE_PROPERTY)
    wanted = table.mode if key or table.asks_for_key else "append"
    if mode != wanted:
        raise Refused(
            f"{what} was made with mode {mode}, and {wanted} is asked for now. Choose another target with a "
            f"new resyncToken, or set tables[{table.settings.source}].mode: {mode}"
        )
    _check_made_for_good(table, what, key)
    _check_selection(table, what)
    _check_order(table, what)
    stored = json.loads(table.properties.get(KEY_PROPERTY, "null"))
    if key and stored is not None and set(stored) != set(key):
        raise Refused(
            f"{what} has the key {', '.join(stored)}, and {', '.join(key)} is asked for now. Choose another "
            f"target with a new resyncToken, or set tables[{table.settings.source}].primaryKey as it was"
        )
