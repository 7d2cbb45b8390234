"""Creates and alters mirrors, before rows are written.

The commits may be repeated. They change metadata and, at most, recompute computed columns.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from functools import reduce

from pyspark.errors import AnalysisException
from pyspark.sql import Column
from pyspark.sql import functions as F
from pyspark.sql.types import DataType, StringType, TimestampType

from lakemirror.driver.codes import WITH_ROW, Op
from lakemirror.driver.plan import selection
from lakemirror.driver.plan.key import made_for_good
from lakemirror.driver.plan.lives import to_text
from lakemirror.driver.plan.mirrored import MirroredTable
from lakemirror.driver.plan.possession import check_possession, possessor_to_note
from lakemirror.driver.plan.refusal import Refused
from lakemirror.driver.plan.table import TablePlan
from lakemirror.driver.tables.columns import SHARD, UNSEEN
from lakemirror.driver.tables.delta import quoted
from lakemirror.driver.tables.mirror import (
    AGED_PROPERTY,
    CHANGE_FEED_PROPERTY,
    COLUMNS_PROPERTY,
    DELETE_PROPERTY,
    GAPS_PROPERTY,
    KEY_PROPERTY,
    MODE_PROPERTY,
    ORDER_PROPERTY,
    ORDERS_PROPERTY,
    RENAMING_PROPERTY,
    SELECTION_PROPERTY,
    SENT_PROPERTY,
    SHARD_PROPERTY,
    SOURCE_PROPERTY,
    TOPICS_PROPERTY,
)

_LOG = logging.getLogger(__name__)


def form(table: MirroredTable, plan: TablePlan, batch: str) -> None:
    """Create or alter the mirror as planned, before it is written.

    ``batch`` names the batch: its application and number. Raises Refused if somebody else has created a table
    there.
    """
    properties = {}
    lives = to_text({**table.stored_lives, **plan.lives}, batch)
    if lives != table.properties.get(COLUMNS_PROPERTY, to_text({})):
        properties[COLUMNS_PROPERTY] = lives
    if plan.reading.key and plan.reading.versions and plan.tracked:
        properties[GAPS_PROPERTY] = "true"
    if plan.reading.key:
        orders = (table.orders | plan.seen.orders | plan.seen.truncated).remembered
        if orders.places:
            properties[ORDERS_PROPERTY] = orders.to_text()
    if plan.reading.key and plan.seen.topic_ids:
        properties[TOPICS_PROPERTY] = json.dumps(table.topics_after(plan.seen), sort_keys=True)
    sent = {*json.loads(table.mirror.properties.get(SENT_PROPERTY, "[]")), *plan.alteration.columns}
    properties[SENT_PROPERTY] = json.dumps(sorted(sent - {SHARD}))
    if table.shard is not None:
        names = {*json.loads(table.properties.get(SHARD_PROPERTY, "[]")), *plan.reading.names}
        properties[SHARD_PROPERTY] = json.dumps(sorted(names))
    properties = {table.property_name(name): text for name, text in properties.items()}
    properties[SELECTION_PROPERTY] = selection.to_text(
        selection.after(
            table.selections_as_made, table.selection, table.mirrored_columns, plan.alteration.add
        )
    )
    possessor, taken_over = possessor_to_note(table)
    properties |= possessor
    if table.change_feed is not None:
        properties[CHANGE_FEED_PROPERTY] = str(table.change_feed).lower()
    change = plan.alteration
    if table.mirror.exists:
        if any(name in change.alter for each in plan.computed.values() for name in each.columns):
            table.mirror.alter({}, {}, {AGED_PROPERTY: "true"})  # stays set until all rows are computed again
        renaming = {**table.renaming, **plan.renamed}
        if plan.renamed:
            table.mirror.alter(
                {}, {}, {RENAMING_PROPERTY: json.dumps(renaming)}
            )  # until values are taken along
        properties |= _as_made(table, plan)
        table.mirror.alter(
            change.add, change.alter, properties, avoided=table.avoided, comments=plan.comments
        )
        if renaming and table.mirror.updates:  # otherwise, the batch takes them along
            _take_along(table, renaming)
            table.mirror.alter({}, {}, {RENAMING_PROPERTY: "{}"})
        if table.mirror.properties.get(AGED_PROPERTY) == "true":
            _compute_anew(table, plan)
            table.mirror.alter({}, {}, {AGED_PROPERTY: "false"})
    else:
        _create(table, plan, properties)
    if table.possession is not None and taken_over is not None:
        table.possession.warn(taken_over)
    if plan.mode == "scd2" and table.location.name and (change.add or change.alter or not table.has_view):
        _show_current(table)


def _as_made(table: MirroredTable, plan: TablePlan) -> dict[str, str]:
    """Return the properties that say what the mirror was made with, where it does not say so (any more).

    Mirrors from before have no note of deletes, and one of shards may have another pattern now.
    """
    found = {name: text for name, text in made_for_good(table).items() if name == DELETE_PROPERTY}
    return {**(found if plan.reading.key else {}), SOURCE_PROPERTY: table.source}


def _take_along(table: MirroredTable, renaming: Mapping[str, str]) -> None:
    """Give columns that have another name now the values that stored rows have under the former one.

    What is noted of a value by the name of its column goes along. Repeating this changes nothing.
    """
    kinds = table.mirror.columns or {}
    had = {before: F.col(quoted(before)) for before in renaming}
    new = {after: F.col(quoted(after)) for after in renaming.values()}
    noted = {name: F.col(name) for name in ("__column_seq", "__unrepresentable")}
    waiting = [new[after].isNull() & had[before].isNotNull() for before, after in renaming.items()]
    waiting += [
        F.coalesce(F.map_contains_key(each, F.lit(before)), F.lit(False))
        for each in noted.values()
        for before in renaming
    ]
    values = {
        after: F.coalesce(new[after], had[before].cast(kinds[after])) for before, after in renaming.items()
    }
    names = F.create_map([F.lit(name) for pair in renaming.items() for name in pair])
    notes = {
        name: F.transform_keys(each, lambda key, _: F.coalesce(names[key], key))
        for name, each in noted.items()
    }
    table.mirror.update(reduce(Column.__or__, waiting), {**values, **notes})


def _compute_anew(table: MirroredTable, plan: TablePlan) -> None:
    """Bring the computed columns of stored rows up to date with the types of the columns that they read.

    A number that is 1.5 as a text may become 1.50 with more digits.
    """
    row = {name: F.col(quoted(name)) for each in plan.computed.values() for name in each.columns}
    values = {name: each.of(row) for name, each in plan.computed.items()}
    old = [~F.col(quoted(name)).eqNullSafe(value) for name, value in values.items()]
    unseen = (F.col("__op") == Op.DELETE) & F.map_contains_key("__column_seq", F.lit(UNSEEN))
    shown = F.col("__op").isin(*WITH_ROW) if plan.mode == "append" else ~F.coalesce(unseen, F.lit(False))
    table.mirror.update(shown & reduce(Column.__or__, old), values)


def _show_current(table: MirroredTable) -> None:
    """Create the view of the current rows, for people. The mirror does not need it."""
    table.has_view = True
    try:
        table.mirror.show_current()
    except AnalysisException as error:
        _LOG.warning("table %s has no view of its current rows: %s", table.location, error.getCondition())


def _create(table: MirroredTable, plan: TablePlan, properties: Mapping[str, str]) -> None:
    key = plan.reading.key
    soft = {plan.soft: TimestampType()} if plan.soft else {}
    own = {
        SOURCE_PROPERTY: table.source,
        KEY_PROPERTY: json.dumps(list(key)),
        MODE_PROPERTY: plan.mode,
        ORDER_PROPERTY: table.spec.order.kept_as,
    }
    computed = {name: each.kind for name, each in plan.computed.items()}
    shard: dict[str, DataType] = {}
    if table.shard is not None:
        own[SHARD_PROPERTY] = "true"
        shard[SHARD] = StringType()
    own |= made_for_good(table)
    table.mirror.create(
        {**shard, **plan.alteration.columns, **soft, **table.own, **computed},
        {**own, **properties},
        key,
        avoided=table.avoided,
        comments=plan.comments,
        identities=[name for name, what in table.settings.own_columns.items() if what == "identity"],
        comment=f"Mirror of {table.kept_as}, kept by Lakemirror's pipeline {table.pipeline}: to be read only",
    )
    owner = table.properties.get(SOURCE_PROPERTY)
    if owner != table.source:  # somebody else was faster
        raise Refused(f"the target {table.location} is the mirror of {owner}: choose another target")
    check_possession(table)
