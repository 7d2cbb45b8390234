"""Valid fields that would not work, or would have no effect, in combination with others.

They are refused by name before anything runs, and never ignored. `lakemirror validate`, `render`, `run` and
`replay`, the operator and the driver all ask ``not_supported``. All but the driver, which has Spark's own
parser, also ask ``wrong_sql``.
"""

from __future__ import annotations

from collections.abc import Iterator

from pydantic.alias_generators import to_camel

from lakemirror.api import object_stores, secret_settings, spark_settings, sql
from lakemirror.api.errors import Loc, path_of
from lakemirror.api.spec import Executors, Maintenance, PipelineSpec, Restart, Tombstones, Verify
from lakemirror.api.tables import is_pattern

WIDENING = "typeWidening"

Found = tuple[Loc, str]
"""Where a field stands below spec, and why it is refused."""


def not_supported(spec: PipelineSpec) -> list[tuple[str, str]]:
    """Return all that is refused: pairs of a field's path (``spec.tables[public.a].mode``) and the reason."""
    return _with_paths(spec, _without_effect(spec))


def wrong_sql(spec: PipelineSpec) -> list[tuple[str, str]]:
    """Return filters, expectations and expressions that are certainly wrong: pairs of a path and the reason.

    Which columns there are, and what only Spark's parser knows, shows when the driver runs.
    """
    return _with_paths(spec, _wrong_sql(spec))


def _with_paths(spec: PipelineSpec, found: Iterator[Found]) -> list[tuple[str, str]]:
    document = {"spec": spec.model_dump(mode="json", by_alias=True, exclude_none=True)}
    return [(path_of(("spec", *loc), document), message) for loc, message in found]


def _wrong_sql(spec: PipelineSpec) -> Iterator[Found]:
    for at, text, what in _sql(spec):
        why = sql.mistake(text, what)
        if why is not None:
            yield at, f"{text!r} {why}"
        elif what == "a condition" and spec.tables[at[1]].merge_shards and _SHARD in sql.names(text):
            yield (
                at,
                f"{text!r} has {_SHARD}: a condition sees the columns of the source, which has none such",
            )


_SHARD = "__source"
"""The column of a mirror with its shard."""


def _sql(spec: PipelineSpec) -> Iterator[tuple[tuple[str, int, *tuple[str | int, ...]], str, str]]:
    """Yield each piece of SQL: where it stands, its text, and what it is."""
    for index, table in enumerate(spec.tables):
        if table.filter is not None:
            yield ("tables", index, "filter"), table.filter, "a condition"
        for number, each in enumerate(table.expectations or ()):
            yield ("tables", index, "expectations", number, "condition"), each.condition, "a condition"
        for name, text in table.expressions.items():
            yield ("tables", index, "columns", "expressions", name), text, "an expression"


def _without_effect(spec: PipelineSpec) -> Iterator[Found]:
    yield from _of_operator(spec)
    yield from _of_source(spec)
    yield from _of_tables(spec)
    if spec.maintenance is not None and spec.maintenance == Maintenance():
        yield ("maintenance",), "has no effect without optimize and vacuum: give one of them, or leave it out"
    yield from _of_envelope(spec)
    yield from _of_verify(spec)
    yield from _of_snapshots(spec)
    yield from _of_database(spec)
    yield from _of_checkpoint(spec)
    yield from _of_file_systems(spec)


def _of_file_systems(spec: PipelineSpec) -> Iterator[Found]:
    """Yield where the pipeline would write to a file system on which commits may not be atomic."""
    for at, path in places(spec):
        written = at[0] not in ("source", "verify") and path is not None
        why = object_stores.unknown_scheme(path or "") if written else None
        if why is not None:
            yield at, f"{path}: {why}"


def _of_checkpoint(spec: PipelineSpec) -> Iterator[Found]:
    """Yield places of data inside the checkpoint, which is deleted as a whole and has tables of its own."""
    why = (
        f"lies in spec.checkpoint ({spec.checkpoint}), a folder for the state of this pipeline alone, which "
        "deletionPolicy may delete: give one of the two another path"
    )
    for at, path in places(spec)[1:]:
        if path is not None and object_stores.is_inside(path, spec.checkpoint):
            yield at, why


def places(spec: PipelineSpec) -> list[tuple[Loc, str | None]]:
    """Return the fields that say where data is, the checkpoint first, each with its path.

    Where a field is not given, the path is None.
    """
    files, feed = spec.source.files, spec.source.change_feed
    snapshot = spec.verify.snapshot if spec.verify is not None else None
    tables = [(index, table.target) for index, table in enumerate(spec.tables) if table.target is not None]
    return [
        (("checkpoint",), spec.checkpoint),
        (("target", "path"), spec.target.path),
        *((("tables", index, "target", "path"), target.path) for index, target in tables),
        (("source", "files", "path"), files.path if files is not None else None),
        (("source", "changeFeed", "path"), feed.path if feed is not None else None),
        (("verify", "snapshot", "path"), snapshot.path if snapshot is not None else None),
    ]


_LAKE = "is not supported with target.jdbc: it is for Delta tables. Leave it out"
_NOT = "is not supported with target.jdbc"
_NO_EVENTS = f"{_NOT}, whose tables have the current rows: use scd1"
_NO_COLUMN = {
    "identity": f"{_NOT}: leave it out, or use columns.keyHash",
    "expressions": f"{_NOT}: compute the columns in a view over the mirror",
}


def _of_database(spec: PipelineSpec) -> Iterator[Found]:
    """Yield what is not supported if the mirrors are tables of a database."""
    if spec.target.jdbc is None:
        return
    yield from _of_database_tables(spec)
    for name in ("compatibility", "change_feed"):
        if getattr(spec.target, name) is not None:
            yield ("target", to_camel(name)), _LAKE
    if spec.maintenance is not None:
        yield ("maintenance",), _LAKE
    if spec.source.files is not None and spec.source.files.format != "records":
        why = f"{spec.source.files.format} {_NOT}, where nothing tells which files are applied"
        yield ("source", "files", "format"), f"{why}: use files of records"
    if spec.defaults.mode != "scd1":
        yield ("defaults", "mode"), f"{spec.defaults.mode} {_NO_EVENTS}"


def _of_database_tables(spec: PipelineSpec) -> Iterator[Found]:
    for index, table in enumerate(spec.tables):
        at = ("tables", index)
        if table.mode not in (None, "scd1"):
            yield (*at, "mode"), f"{table.mode} {_NO_EVENTS}"
        if table.merge_shards:
            yield (*at, "mergeShards"), f"{_NOT}: give each shard its own target, and join them in a view"
        if table.target is not None and table.target.path is not None:
            yield (*at, "target", "path"), "is no place in a database (target.jdbc): give target.table"
        elif table.target is not None and (table.target.table or "").count(".") > 1:
            why = "has three parts, and with target.jdbc a table has two at most: schema.table"
            yield (*at, "target", "table"), why
        for name in ("compatibility", "change_feed"):
            if table.target is not None and getattr(table.target, name) is not None:
                yield (*at, "target", to_camel(name)), _LAKE
        for name, why in _NO_COLUMN.items():
            if table.columns is not None and getattr(table.columns, name) is not None:
                yield (*at, "columns", name), why


_TIMED = "use `lakemirror reload` with the time of the snapshot (--at)"
_NO_PLACE = "leave it out. With ordering.by: columns, only the source itself can send the rows"


def _of_snapshots(spec: PipelineSpec) -> Iterator[Found]:
    """Yield tables that cannot be loaded from their database.

    Loading needs the database, the name of one table, and the place of its rows in the order of changes.
    """
    by, form = spec.ordering.by, spec.envelope.format
    log = by in ("lsn", "binlog") or (by == "auto" and form in ("debezium", "maxwell"))
    for index, table in enumerate(spec.tables):
        if table.snapshot != "jdbc":
            continue
        at = ("tables", index, "snapshot")
        if spec.verify is None or spec.verify.jdbc is None:
            yield at, "jdbc needs spec.verify.jdbc, which says where the database is"
        elif is_pattern(table.source):
            yield at, "jdbc needs the name of one table in source: list each table by its name"
        elif table.merge_shards:
            yield (
                at,
                "jdbc is one database, and mergeShards has tables of several: use `lakemirror reload`",
            )
        elif (table.mode or spec.defaults.mode) == "append":
            yield at, "jdbc loads rows, and mode append keeps events: use scd1 or scd2"
        elif not log or spec.source.change_feed is not None:
            why = "jdbc needs changes that are in the order of the log of their database"
            yield at, f"{why}: {_NO_PLACE if by == 'columns' else _TIMED}"


def _of_verify(spec: PipelineSpec) -> Iterator[Found]:
    """Yield waiting times that only apply to a database, which has positions."""
    verify = spec.verify
    if verify is None or verify.snapshot is None:
        return
    for name, field in Verify.model_fields.items():
        if name in ("wait", "settle") and getattr(verify, name) != field.default:
            yield ("verify", name), "has no effect with snapshot, which stands still: leave it out"


_POSITIONS = {
    "maxwell": ("lsn", "which Maxwell does not write: use auto, binlog, timestamp or offset"),
    "custom": ("lsn", "binlog", "which custom records do not have: use auto, timestamp or offset"),
}
"""By envelope, the positions that its records never have, and what to do."""


def _of_envelope(spec: PipelineSpec) -> Iterator[Found]:
    """Yield fields that mean nothing for records of this envelope."""
    envelope, by = spec.envelope, spec.ordering.by
    if envelope.encoding == "json" and envelope.schema_registry is not None:
        yield ("envelope", "schemaRegistry"), "has no effect with encoding json: leave it out"
    if envelope.format != "debezium" and spec.source.change_feed is not None:
        yield ("envelope", "format"), "has no effect with source.changeFeed, whose rows have no envelope"
    if envelope.encoding == "avro" and envelope.format == "maxwell":
        yield ("envelope", "encoding"), "avro is nothing that Maxwell writes: use json"
    registry = envelope.schema_registry
    if registry is not None and registry.use_id is not None and "/apis/" not in registry.url:
        why = "has no effect with an address that is not Apicurio's (/apis/registry/v2 or /apis/ccompat/v7)"
        yield ("envelope", "schemaRegistry", "useId"), f"{why}: leave it out"
    yield from _of_rows(spec)
    if envelope.null_value != "delete" and envelope.format in ("debezium", "maxwell"):
        why = f"has no effect with format {envelope.format}, where a null value never is a change"
        yield ("envelope", "nullValue"), f"{why}: leave it out"
    if envelope.unavailable_value_placeholder is not None and envelope.format in ("maxwell", "custom"):
        why = f"has no effect with format {envelope.format}, whose records have no placeholders"
        yield ("envelope", "unavailableValuePlaceholder"), f"{why}: leave it out"
    if envelope.op_map is not None and envelope.fields is not None and envelope.fields.op is None:
        yield ("envelope", "opMap"), "has no effect without envelope.fields.op, which it translates"
    *never, why = _POSITIONS.get(envelope.format, ("",))
    if by in never:
        yield ("ordering", "by"), f"{by} is a position {why}"
    if by == "timestamp" and envelope.fields is not None and envelope.fields.timestamp is None:
        yield (
            ("ordering", "by"),
            "timestamp needs envelope.fields.timestamp, which says where the time stands",
        )


def _of_rows(spec: PipelineSpec) -> Iterator[Found]:
    """Yield what files of rows cannot hold."""
    files, envelope = spec.source.files, spec.envelope
    if files is None or files.format == "records":
        return
    if envelope.encoding == "avro":
        why = f"avro is how records are encoded, and source.files.format {files.format} has none: use json"
        yield ("envelope", "encoding"), f"{why} (Avro files are source.files.format: avro)"
    if files.format == "csv" and envelope.format != "custom":
        why = f"{envelope.format} has no meaning for rows of CSV, which are flat texts"
        yield ("envelope", "format"), f"{why}: use custom, whose fields name the columns with op and time"
    if files.format in ("avro", "parquet") and envelope.format == "maxwell":
        why = f"maxwell is JSON, and source.files.format is {files.format}"
        yield ("envelope", "format"), f"{why}: use custom or debezium, or files of JSON"


_NO_EXECUTORS = "has no effect with executors.max: 0, where the driver does all the work"


def _of_operator(spec: PipelineSpec) -> Iterator[Found]:
    backend, executors = spec.spark.backend, spec.spark.executors
    if executors.max == 0 and executors.pod_template is not None:
        yield ("spark", "executors", "podTemplate"), f"{_NO_EXECUTORS}: leave it out"
    for name in ("cores", "memory"):
        if executors.max == 0 and getattr(executors, name) != Executors.model_fields[name].default:
            yield ("spark", "executors", name), f"{_NO_EXECUTORS}: set it in spark.driver"
    if backend != "native" and spec.trigger.schedule is not None:
        why = f"has no effect with spark.backend: {backend}: set spark.backend: native, which has schedules"
        yield ("trigger", "schedule"), why
    if backend == "kubeflow" and spec.restart.reset_after != Restart().reset_after:
        why = "has no effect with spark.backend: kubeflow, which forgives no failures: leave it out"
        yield ("restart", "resetAfter"), why
    for name, why in object_stores.unsafe(spec.spark.conf, spec.checkpoint):
        yield ("spark", "conf", name), why
    secrets = dict(secret_settings.exposed(spec.spark.conf))
    wrong = dict(spark_settings.refused(spec.spark.conf))
    submitted = {} if backend == "native" else dict(spark_settings.submitted_by_others(spec.spark.conf))
    for name, why in (wrong | submitted | secrets).items():
        yield ("spark", "conf", name), why


def _of_source(spec: PipelineSpec) -> Iterator[Found]:
    """Yield topics, and positions in topics, that are not read."""
    kafka = spec.source.kafka
    bound = [(index, topic) for index, table in enumerate(spec.tables) for topic in table.topics or ()]
    if not spec.source.has_topics:
        no_topics = "has no effect with this source, whose rows have no topics: leave it out"
        if spec.source.table_topics is not None:
            yield ("source", "tableTopics"), no_topics
        for index in sorted({index for index, _ in bound}):
            yield ("tables", index, "topics"), no_topics
    if kafka is None or kafka.topics is None:
        return
    why = "is not one of source.kafka.topics: add it there, or leave it out here"
    for index, topic in bound:
        if topic not in kafka.topics:
            yield ("tables", index, "topics"), f"{topic} {why}"
    if isinstance(kafka.starting_offsets, dict):
        for topic in sorted(kafka.starting_offsets.keys() - set(kafka.topics)):
            yield ("source", "kafka", "startingOffsets", topic), why
    for index, epoch in enumerate(spec.ordering.epochs):
        for topic in sorted(epoch.from_.keys() - set(kafka.topics)):
            yield ("ordering", "epochs", index, "from", topic), why


_NO_VERSIONS = "which keeps no versions: leave it out"


def _of_tables(spec: PipelineSpec) -> Iterator[Found]:
    """Yield fields that mean nothing in the mode of their table, such as one that never deletes rows."""
    defaults = spec.defaults
    if spec.unlisted == "ignore" and not spec.tables:
        yield (
            ("unlisted",),
            "ignore without tables mirrors nothing: list tables, or leave it out",
        )
    kept = {
        "append": "has no effect with mode append, which keeps every event as a row",
        "scd2": "has no effect with mode scd2, which keeps deleted rows as versions with __is_deleted",
    }
    nets = spec.source.change_feed is not None and spec.source.change_feed.net_changes
    modes = [table.mode or defaults.mode for table in spec.tables]
    no_versions = _NO_VERSIONS if spec.target.jdbc is not None else f"{_NO_VERSIONS}, or set mode: scd2"
    for index, (mode, table) in enumerate(zip(modes, spec.tables, strict=True)):
        if mode in kept and table.delete is not None:
            yield ("tables", index, "delete"), f"{kept[mode]}: leave it out, or set mode: scd1"
        if mode == "append" and table.primary_key is not None and not nets:
            yield ("tables", index, "primaryKey"), f"{kept[mode]}: leave it out, or set mode: scd1"
        if mode == "append" and table.columns is not None and table.columns.key_hash is not None:
            yield ("tables", index, "columns", "keyHash"), f"{kept[mode]}: leave it out, or set mode: scd1"
        target = table.target or spec.target
        if table.columns is not None and table.columns.identity is not None and WIDENING in target.avoided:
            lacking = " and ".join(target.avoided[WIDENING])
            why = (
                f"is not supported where {lacking} of target.compatibility must read the mirror: its rows are"
            )
            instead = "" if mode == "append" else ", or use keyHash"
            yield (
                ("tables", index, "columns", "identity"),
                f"{why} written anew when a column is widened. Leave it out{instead}",
            )
        if mode == "append" and table.on_conflict == "fail":
            yield ("tables", index, "onConflict"), f"{kept[mode]}: leave it out, or set mode: scd1"
        if mode != "scd2" and table.tracked_columns is not None:
            yield ("tables", index, "trackedColumns"), f"has no effect with mode {mode}, {no_versions}"
        if mode != "scd2" and table.initial_valid_from is not None:
            yield ("tables", index, "initialValidFrom"), f"has no effect with mode {mode}, {no_versions}"
        files = spec.source.files
        if table.merge_shards and files is not None and files.format != "records":
            why = f"is not supported with files of format {files.format}: give each shard its own target"
            yield ("tables", index, "mergeShards"), why
    if {*modes, defaults.mode} == {"append"} and spec.tombstones != Tombstones():
        yield ("tombstones",), f"has no effect: {kept['append'].partition(' with ')[2]}: leave it out"
    tables = zip(modes, spec.tables, strict=True)
    follows = any(mode == "scd1" and table.delete is None for mode, table in tables)
    if defaults.mode in kept and defaults.delete.type == "soft" and not follows:
        yield ("defaults", "delete"), f"{kept[defaults.mode]}: leave it out, or set mode: scd1"
