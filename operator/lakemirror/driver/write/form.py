"""The form of a mirror: it is made, and altered, before rows are written. Commits of metadata that may be
repeated.
"""

from __future__ import annotations

import json
from collections.abc import Mapping

from pyspark.sql.types import TimestampType

from lakemirror.driver.plan.lives import to_text
from lakemirror.driver.plan.mirrored import MirroredTable
from lakemirror.driver.plan.refusal import Refused
from lakemirror.driver.plan.table import TablePlan
from lakemirror.driver.tables.mirror import (
    COLUMNS_PROPERTY,
    GAPS_PROPERTY,
    KEY_PROPERTY,
    MODE_PROPERTY,
    NULLS_PROPERTY,
    SOURCE_PROPERTY,
)


def form(table: MirroredTable, plan: TablePlan) -> None:
    """Create or alter the mirror as planned. Raises Refused where somebody else made a table there."""
    properties = {}
    lives = to_text({**table.stored_lives, **plan.lives})
    if lives != table.properties.get(COLUMNS_PROPERTY, to_text({})):
        properties[COLUMNS_PROPERTY] = lives
    if table.writes_nulls:
        properties[NULLS_PROPERTY] = "true"
    if plan.reading.key and plan.reading.versions and plan.tracked:
        properties[GAPS_PROPERTY] = "true"
    if table.mirror.exists:
        change = plan.alteration
        table.mirror.alter(change.add, change.alter, properties, avoided=table.avoided)
    else:
        _create(table, plan, properties)


def _create(table: MirroredTable, plan: TablePlan, properties: Mapping[str, str]) -> None:
    key = plan.reading.key
    soft = {plan.soft: TimestampType()} if plan.soft else {}
    own = {
        SOURCE_PROPERTY: table.source,
        KEY_PROPERTY: json.dumps(list(key)),
        MODE_PROPERTY: "scd1" if key else "append",
    }
    table.mirror.create(
        {**plan.alteration.columns, **soft}, {**own, **properties}, key, avoided=table.avoided
    )
    owner = table.properties.get(SOURCE_PROPERTY)
    if owner != table.source:  # somebody else was faster
        raise Refused(f"the target {table.location} is the mirror of {owner}: choose another target")
