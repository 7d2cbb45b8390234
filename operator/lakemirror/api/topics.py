"""Which topics may change which tables (``source.tableTopics`` and ``tables[].topics``).

A record names its table itself, so without these settings, whoever may write to one topic may change any
table of the pipeline.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from lakemirror.api.spec import PipelineSpec
from lakemirror.api.tables import AmbiguousTable

_NOT_IN_TOPICS = re.compile(r"[^a-zA-Z0-9._-]")
_HOLE = re.compile(r"\{(db|schema|table)\}")


def is_bound(spec: PipelineSpec) -> bool:
    """Return whether any table of the pipeline may be changed by some topics only."""
    return spec.source.table_topics is not None or any(table.topics for table in spec.tables)


def may_change(spec: PipelineSpec, name: str, parts: tuple[str, ...], topic: str | None) -> bool:
    """Return whether records of ``topic`` may change the table ``name``, whose name has these ``parts``.

    The parts are database, schema and table, or fewer of them, the table last.
    """
    listed = _listed(spec, name)
    if listed is not None:
        return topic in listed
    templates = spec.source.table_topics
    return templates is None or any(topic in _topics(each, parts) for each in templates)


def unbound(spec: PipelineSpec) -> dict[str, Any]:
    """Return the fields of ``spec`` that bind tables to topics, with values that bind none.

    Events that the driver makes itself come from no topic of the source.
    """
    source = spec.source.model_copy(update={"table_topics": None})
    return {"source": source, "tables": [each.model_copy(update={"topics": None}) for each in spec.tables]}


def _listed(spec: PipelineSpec, name: str) -> list[str] | None:
    """Return the topics that the entry of ``tables`` for ``name`` lists, or None if it lists none.

    If two entries match the name, these are the topics of all entries: the table is held anyway.
    """
    try:
        table = spec.listed(name)
    except AmbiguousTable:
        return [topic for table in spec.tables for topic in table.topics or ()] or None
    return table.topics if table is not None else None


def _topics(template: str, parts: tuple[str, ...]) -> set[str]:
    """Fill a template with the parts of a table's name, as connectors do.

    The first of two parts may be a database or a schema. A template with a placeholder that the name has no
    part for gives no topic. Debezium replaces characters that topics cannot have by ``_``
    (AbstractTopicNamingStrategy.sanitizedTopicName).
    """
    *above, table = parts
    if len(above) == 2:
        readings: list[dict[str, str]] = [{"db": above[0], "schema": above[1], "table": table}]
    elif len(above) == 1:
        readings = [{"db": above[0], "table": table}, {"schema": above[0], "table": table}]
    else:
        readings = [{"table": table}]
    return {found for each in readings if (found := _filled(template, each)) is not None}


def _filled(template: str, parts: Mapping[str, str]) -> str | None:
    if not {hole[1] for hole in _HOLE.finditer(template)} <= parts.keys():
        return None
    return _HOLE.sub(lambda hole: _NOT_IN_TOPICS.sub("_", parts[hole[1]]), template)
