"""Says what a change of the spec means for a running driver, by the table in ``api.effects``."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from typing import Any

from lakemirror.api import PipelineSpec
from lakemirror.api.effects import EFFECTS, Effect, effect
from lakemirror.api.tables import Table


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


def incompatible(old: PipelineSpec, new: PipelineSpec) -> list[str]:
    """Return the fields whose change needs a reset token, as paths below spec.

    The list is empty if the checkpoint can follow all changes.
    """
    before, after = _flat(_given(old)), _flat(_given(new))
    changed = {path for path in before.keys() | after.keys() if before.get(path) != after.get(path)}
    if not changed:
        return []
    kinds = [path for path in ("kafka", "files", "change_feed") if _has(old, path) != _has(new, path)]
    if kinds:
        return ["source"]
    found = {path for path in changed if effect(path) is Effect.RESET}
    if {path.split(".")[0] for path in found} & {"target", "defaults"}:
        return sorted(found)
    return sorted(found) + list(_moved_tables(old, new))


def accepts(old: PipelineSpec, new: PipelineSpec) -> bool:
    """Return whether a new reset token allows what the checkpoint cannot follow."""
    return new.spark.reset_token not in ("", old.spark.reset_token)


def _moved_tables(old: PipelineSpec, new: PipelineSpec) -> Iterator[str]:
    """Yield the settings of tables that would be moved, get another key or filter, or be kept differently."""
    for source in dict.fromkeys(table.source for table in (*old.tables, *new.tables)):
        before, after = old.table_settings(source), new.table_settings(source)
        if before is None or after is None:
            continue
        assert before.target is not None
        assert after.target is not None
        if before.target.template != after.target.template:
            yield f"tables[{source}].target"
        for field in (
            "primary_key",
            "mode",
            "filter",
            "merge_shards",
            "tracked_columns",
            "initial_valid_from",
        ):
            if getattr(before, field) != getattr(after, field):
                yield f"tables[{source}].{_alias(field)}"
        if (before.own_columns, before.expressions) != (after.own_columns, after.expressions):
            yield f"tables[{source}].columns"


def _alias(field: str) -> str:
    return Table.model_fields[field].alias or field


def _has(spec: PipelineSpec, kind: str) -> bool:
    return getattr(spec.source, kind) is not None


def _given(spec: PipelineSpec) -> dict[str, Any]:
    return spec.model_dump(mode="json", by_alias=True, exclude_defaults=True, exclude_none=True)


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
