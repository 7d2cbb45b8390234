"""Dataclasses as JSON documents: camelCase names, times as ISO 8601 in UTC."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from datetime import UTC, datetime
from typing import Any


def to_document(value: Any) -> Any:
    """Return ``value`` as plain dicts, lists and scalars that ``json`` can write."""
    if is_dataclass(value):
        return {camel(f.name): to_document(getattr(value, f.name)) for f in fields(value)}
    if isinstance(value, Mapping):
        return {str(key): to_document(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [to_document(item) for item in value]
    if isinstance(value, datetime):
        return iso(value)
    return value


def to_json(value: Any) -> str:
    """Return the result of ``to_document`` as indented JSON text."""
    return json.dumps(to_document(value), indent=2, ensure_ascii=False) + "\n"


def iso(moment: datetime) -> str:
    """Return ISO 8601 in UTC with milliseconds; a time without a zone is assumed to be in UTC."""
    aware = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
    return aware.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def from_millis(millis: int) -> datetime:
    """Return a file's time, given in milliseconds since 1970, in UTC."""
    return datetime.fromtimestamp(millis / 1000, UTC)


def aware(moment: datetime | None) -> datetime | None:
    """Return a collected row's time in UTC; it has no zone and is in that of this process."""
    return None if moment is None else moment.astimezone(UTC)


def camel(name: str) -> str:
    """``lag_records`` -> ``lagRecords``."""
    first, *rest = name.split("_")
    return first + "".join(word.capitalize() for word in rest)
