"""Sets apart the changes of a batch that may not be applied, before any table sees them.

These are changes by topics that may not speak of their table (`lakemirror.api.topics`), and changes with
names beyond a limit (`lakemirror.api.limits`).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from functools import reduce

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from lakemirror.api.limits import CONNECTORS, SCHEMAS, STREAMS, TABLES, Limit, beyond
from lakemirror.api.spec import PipelineSpec
from lakemirror.api.topics import is_bound, may_change
from lakemirror.driver.codes import OWN_TOPICS
from lakemirror.driver.parse.lengths import NOT_ADMITTED
from lakemirror.driver.profile.overview import Group, Overview, overview, source_of
from lakemirror.driver.profile.positions import Stream
from lakemirror.driver.tables.names import TableName

_FOREIGN = (
    "source.tableTopics or tables[].topics says which topics may change it. Add the topic there and replay "
    "the record if it is right; otherwise find out who wrote it, and discard it"
)
_MORE = "list the tables to mirror and set unlisted: ignore, or divide them among several pipelines"
_SEVERAL = "divide the topics among several pipelines"


def foreign(spec: PipelineSpec, topics: Mapping[TableName, Collection[str]]) -> dict[str, list[str]]:
    """Return, by topic, the tables that its records name and may not change.

    ``topics`` are those whose records name each table.
    """
    found: dict[str, list[str]] = {}
    if is_bound(spec):
        for name in sorted(topics, key=str):
            for topic in sorted(topics[name]):
                if not may_change(spec, str(name), name.parts, topic):
                    found.setdefault(topic, []).append(str(name))
    return found


def without_foreign(events: DataFrame, seen: Overview, spec: PipelineSpec) -> tuple[DataFrame, Overview]:
    """Set apart the changes of tables by topics that may not change them."""
    found = foreign(spec, {name: table.topics for name, table in seen.tables.items()})
    if not found:
        return events, seen
    reason = F.concat(
        *(F.lit("table "), source_of(), F.lit(" may not be changed by topic "), F.col("topic")),
        F.lit(f": {_FOREIGN}"),
    )
    chosen = [(F.col("topic") == topic) & source_of().isin(names) for topic, names in found.items()]
    return _apart(events, [(reduce(Column.__or__, chosen), reason)])


def within_limits(
    events: DataFrame,
    seen: Overview,
    tables: Collection[str],
    streams: Collection[Stream],
    leaves_out: Callable[[TableName], bool],
) -> tuple[DataFrame, Overview]:
    """Set apart the changes whose tables, connectors or schemas exceed a limit.

    ``tables`` and ``streams`` are those that the pipeline has already. ``leaves_out`` says whether the
    manifest leaves a table out: such tables do not count.
    """
    apart: list[tuple[Column, Column]] = []
    if len(tables) + len(seen.tables) > TABLES.most:
        mirrored = [str(name) for name in seen.tables if not leaves_out(name)]
        apart += _beyond(source_of(), beyond(tables, mirrored, TABLES), TABLES, _MORE)
    apart += _of_streams(streams, [each for each in seen.streams if not each.topic.startswith(OWN_TOPICS)])
    for name, table in sorted(seen.tables.items(), key=lambda each: str(each[0])):
        rest = [group.identity for group in rarest(table.groups.values())]
        remedy = "replay the records, in several rounds if need be"
        apart += _beyond(_schemas_of(name), [_text(each) for each in rest], SCHEMAS, remedy)
    return _apart(events, apart) if apart else (events, seen)


def _of_streams(known: Collection[Stream], found: Collection[Stream]) -> list[tuple[Column, Column]]:
    """Return when streams, or the connectors that they are from, exceed a limit, and the reason."""
    if len(known) + len(found) <= min(CONNECTORS.most, STREAMS.most):
        return []
    connectors = beyond({each.name for each in known}, [each.name for each in found], CONNECTORS)
    streams = beyond({_path(each) for each in known}, [_path(each) for each in found], STREAMS)
    path = F.concat_ws("/", "topic", F.col("partition").cast("string"), "stream")
    return [
        *_beyond(F.col("stream"), connectors, CONNECTORS, _SEVERAL),
        *_beyond(F.when(F.col("stream").isNotNull(), path), streams, STREAMS, _SEVERAL),
    ]


def _path(stream: Stream) -> str:
    return f"{stream.topic}/{stream.partition}/{stream.name}"


def rarest(groups: Collection[Group]) -> list[Group]:
    """Return the groups of a table's events, by schema, that exceed the limit: those with fewest events."""
    if len(groups) <= SCHEMAS.most:
        return []
    ranked = sorted(groups, key=lambda group: (-group.events, _text(group.identity)))
    return ranked[SCHEMAS.most :]


def _beyond(column: Column, names: Collection[str], limit: Limit, remedy: str) -> list[tuple[Column, Column]]:
    """Return the condition on which events exceed a limit, and the reason. Empty without ``names``."""
    reason = F.lit(f"beyond {limit}: {remedy}")
    return [(F.coalesce(column, F.lit("")).isin(list(names)), reason)] if names else []


def _schemas_of(name: TableName) -> Column:
    """STRING: the schemas of an event of this table, as `_text` has them; null for other events."""
    each = [F.coalesce(F.col(column).cast("string"), F.lit("-")) for column in ("schema_id", "key_schema_id")]
    return F.when(source_of() == str(name), F.concat_ws("/", *each))


def _text(identity: tuple[int | None, int | None]) -> str:
    return "/".join("-" if each is None else str(each) for each in identity)


def _apart(events: DataFrame, chosen: Collection[tuple[Column, Column]]) -> tuple[DataFrame, Overview]:
    """Set apart the changes for which a condition is true, with its reason, and profile the events again."""
    reason = F.coalesce(*[F.when(condition, why) for condition, why in chosen])
    apart = F.col("kind").isin("change", "truncate") & reason.isNotNull()
    marked = events.withColumns(
        {
            "kind": F.when(apart, NOT_ADMITTED).otherwise(F.col("kind")),
            "reason": F.when(apart, reason).otherwise(F.col("reason")),
        }
    )
    return marked, overview(marked)
