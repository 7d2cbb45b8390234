"""Says what a change of the spec means for a running driver, by the table in ``api.effects``."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Collection, Iterable, Iterator
from typing import Any

from lakemirror.api import AmbiguousTable, PipelineSpec
from lakemirror.api.effects import EFFECTS, KEPT_BY_MIRRORS, Effect, effect
from lakemirror.api.jdbc import place_of
from lakemirror.api.tables import Table, Target, groups_of, is_pattern, matches, parts_of


def revision(spec: PipelineSpec, image: str) -> str:
    """Return a short hash of everything that requires a driver restart; it identifies what a driver runs.

    Fields with their default value do not count, so that a new version of the operator, which may know new
    fields, leaves drivers alone. A different ``image`` (the operator's default or the spec's) does count.
    """
    given = _given(spec)
    # Naming the image that already runs changes nothing.
    spark = {name: value for name, value in given.pop("spark", {}).items() if name != "image"}
    relevant = _without_live(given | ({"spark": spark} if spark else {}))
    text = json.dumps([relevant, image], sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:10]


def incompatible(
    old: PipelineSpec,
    new: PipelineSpec,
    mirrored: Collection[str] = (),
    refused: Collection[str] = (),
) -> list[str]:
    """Return the fields whose change needs a reset token, as paths below spec.

    The list is empty if the checkpoint can follow all changes. ``mirrored`` has the names of source tables
    that are known to have a mirror: what patterns and short names mean for a table shows only in its name.
    ``refused`` has those that the driver refuses: the refusal says what to change, and the driver judges what
    their mirrors can follow, if they have any.
    """
    before, after = _compared(old), _compared(new)
    changed = {path for path in before.keys() | after.keys() if before.get(path) != after.get(path)}
    if not changed:
        return []
    kinds = [path for path in ("kafka", "files", "change_feed") if _has(old, path) != _has(new, path)]
    if kinds:
        return ["source"]
    found = {path for path in changed if effect(path) is Effect.RESET}
    if {path.split(".")[0] for path in found} & {"target", "defaults"}:
        return sorted(found)
    return sorted(found) + list(dict.fromkeys(_moved_tables(old, new, mirrored, refused)))


def kept_by_mirrors(path: str) -> bool:
    """Return whether a mirror keeps what was set when it was made, so that only another target helps.

    ``path`` is one of those that `incompatible` returns. The driver refuses a mirror that was made otherwise.
    """
    return path in KEPT_BY_MIRRORS or (is_of_table(path) and not path.endswith("].target"))


def is_of_table(path: str) -> bool:
    """Return whether a path belongs to a single table."""
    return path.startswith("tables[")


def accepts(old: PipelineSpec, new: PipelineSpec) -> bool:
    """Return whether a new reset token allows what the checkpoint cannot follow."""
    return new.spark.reset_token not in ("", old.spark.reset_token)


def _moved_tables(
    old: PipelineSpec, new: PipelineSpec, mirrored: Collection[str], refused: Collection[str]
) -> Iterator[str]:
    """Yield the settings of tables that would be moved, get another key or filter, or be kept differently.

    A table that is moved and gets a new resyncToken in the same edit begins a new mirror, which may differ in
    everything, because it is read again.
    """
    listed = [table.source for table in (*old.tables, *new.tables)]
    free = _entries_of_all(old, new, {*refused} - {*mirrored}, mirrored)
    held = {*refused} | _entries_of_all(old, new, refused, {*mirrored} - {*refused})
    for name in dict.fromkeys([*(each for each in listed if each not in free), *mirrored]):
        try:
            before, after = old.table_settings(name), new.table_settings(name)
        except AmbiguousTable:
            continue  # the driver refuses the table
        if before is None or after is None or _begins_anew(before, after, name):
            continue
        # What the manifest calls the table, now or until now; its name if it was and is not listed.
        called = next((each for each in (after.source, before.source) if each != name), name)
        at = name if name in listed else called
        different = (
            field for field in _different(before, after, name) if field == "target" or name not in held
        )
        yield from (f"tables[{at}].{field}" for field in different)


def _entries_of_all(
    old: PipelineSpec, new: PipelineSpec, names: Collection[str], others: Collection[str]
) -> set[str]:
    """Return the entries under ``tables`` to which some of ``names`` belong, and none of the ``others``."""
    some, rest = (_entries(old, each) | _entries(new, each) for each in (names, others))
    return some - rest


def _entries(spec: PipelineSpec, names: Iterable[str]) -> set[str]:
    """Return the entries under ``tables`` that tables belong to, which may be their names themselves."""
    found = set()
    for name in names:
        try:
            settings = spec.table_settings(name)
        except AmbiguousTable:
            found |= {table.source for table in spec.tables if matches(table.source, name)}
        else:
            found |= {settings.source} if settings is not None else set()
    return found


def _begins_anew(before: Table, after: Table, name: str) -> bool:
    """Return whether the table ``name`` is read again into a new mirror."""
    asked = after.resync_token not in ("", before.resync_token)
    return asked and _is_moved(before, after, name)


def _different(before: Table, after: Table, name: str) -> Iterator[str]:
    """Yield the settings of the table ``name`` in which its mirror cannot follow."""
    if _is_moved(before, after, name):
        yield "target"
    for field in _JUDGED:
        if getattr(before, field) != getattr(after, field) and not _is_of_events(field, before, after):
            yield _alias(field)
    if before.mode == after.mode == "scd1" and before.delete != after.delete:
        yield "delete"
    if (before.own_columns, before.expressions) != (after.own_columns, after.expressions):
        yield "columns"


_JUDGED = ("primary_key", "mode", "filter", "merge_shards", "tracked_columns", "initial_valid_from")
"""Settings of a table whose change is judged by the manifest alone. The driver knows what its mirror has."""


def _is_of_events(field: str, before: Table, after: Table) -> bool:
    """Return whether a field is the key of a list of events, which only says what net changes are."""
    return field == "primary_key" and before.mode == after.mode == "append"


def _is_moved(before: Table, after: Table, name: str) -> bool:
    assert before.target is not None
    assert after.target is not None
    return _place(before.target, before.source, name) != _place(after.target, after.source, name)


def _place(target: Target, source: str, name: str) -> str:
    """Return where the mirror of the table ``name`` is, as far as its name tells.

    ``source`` is what the manifest calls the table.
    """
    known: dict[str, str] = {}
    if not is_pattern(name):
        *schema, table = parts_of(name)
        known = dict(zip(("schema", "db"), reversed(schema), strict=False))
        known |= {"table": table} | groups_of(source, name)
    return re.sub(r"\{(\w+)\}", lambda hole: known.get(hole[1], hole[0]), target.template)


def _alias(field: str) -> str:
    return Table.model_fields[field].alias or field


def _has(spec: PipelineSpec, kind: str) -> bool:
    return getattr(spec.source, kind) is not None


def _given(spec: PipelineSpec) -> dict[str, Any]:
    return spec.model_dump(mode="json", by_alias=True, exclude_defaults=True, exclude_none=True)


def _compared(spec: PipelineSpec) -> dict[str, Any]:
    """Return the fields that are given, without what may change although the rest of a field may not."""
    flat = _flat(_given(spec))
    url = flat.get("target.jdbc.url")
    return flat if url is None else {**flat, "target.jdbc.url": place_of(url)}


def _without_live(document: dict[str, Any], at: str = "") -> dict[str, Any]:
    kept: dict[str, Any] = {}
    for name, value in document.items():
        path = f"{at}{name}"
        inside = any(known.startswith(f"{path}.") for known in EFFECTS)
        if inside and isinstance(value, dict):
            value = _without_live(value, f"{path}.")
            if not value:
                continue
        elif effect(path) is Effect.LIVE:
            continue
        kept[name] = value
    return kept


def _flat(document: dict[str, Any], at: str = "") -> dict[str, Any]:
    """Map dotted paths to values, as deep as ``EFFECTS`` distinguishes fields."""
    flat: dict[str, Any] = {}
    for name, value in document.items():
        path = f"{at}{name}"
        if isinstance(value, dict) and any(known.startswith(f"{path}.") for known in EFFECTS):
            flat |= _flat(value, f"{path}.")
        else:
            flat[path] = value
    return flat
