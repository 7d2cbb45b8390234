"""``spec``: what a user wants of one pipeline."""

from __future__ import annotations

import json
from collections.abc import Container
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, ConfigDict, Field, PrivateAttr, model_validator

from lakemirror.api.base import (
    IS_SET,
    ColumnName,
    Duration,
    Location,
    Matching,
    Model,
    PlainHost,
    PositiveDuration,
    SecretName,
    Token,
    rules,
    wrong,
)
from lakemirror.api.checks import cron
from lakemirror.api.jdbc import NO_LOGIN, JdbcUrl
from lakemirror.api.logins import WithoutLogin
from lakemirror.api.source import Envelope, Moment, Offset, Partition, Source, first_twice
from lakemirror.api.tables import (
    AmbiguousTable,
    Defaults,
    PipelineTarget,
    Table,
    Target,
    ambiguous_pair,
    is_pattern,
    match_table,
    same_name,
)

Topic = Annotated[str, Field(min_length=1, max_length=767)]
"""What records say of their origin: a topic of Kafka, or else the table whose rows they are."""
Positions = Annotated[
    dict[Topic, Annotated[dict[Partition, Offset], Field(min_length=1, max_length=10_000)]],
    Field(min_length=1, max_length=1000),
]


class Epoch(Model):
    """Where in the data the positions of the source start again, after a failover or a restore."""

    epoch: Annotated[int, Field(ge=1, le=65_535)]
    """The number of the epoch; the one before the first restart is 0."""
    from_: Annotated[Positions, Field(alias="from")]
    """{topic: {partition: offset}}: the first records of the epoch."""


class Ordering(Model):
    """What determines the order of a row's changes."""

    model_config = ConfigDict(
        json_schema_extra=rules(
            (
                "(self.by == 'columns') == has(self.columns)",
                "columns is needed with by: columns, and only there",
            ),
            (
                "!has(self.epochs) || self.epochs.map(e, e.epoch).isSorted()",
                "epochs must be in the order of their numbers",
            ),
        )
    )

    by: Literal["auto", "lsn", "binlog", "timestamp", "offset", "columns"] = "auto"
    """auto: by the position in the database's log if records have one, otherwise by the source's time,
    otherwise by Kafka's offset. lsn, binlog: by that position; a record without it goes to quarantine.
    timestamp: by the source's time. offset: by Kafka's offset within a partition. columns: by values of the
    row, such as a version or the time of the last update; a null comes before all others, and at equal values
    the offset decides.
    """
    columns: (
        Annotated[
            list[ColumnName],
            Field(min_length=1, max_length=16, json_schema_extra=IS_SET),
        ]
        | None
    ) = None
    """Columns of numbers or times whose values grow with each change, the most significant first. Of custom
    records they are dotted paths, like those of envelope.fields. To change them, set new targets.
    """
    epochs: Annotated[
        list[Epoch],
        Field(
            max_length=100,
            json_schema_extra={"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["epoch"]},
        ),
    ] = Field(default_factory=list)
    """Where the source's positions started again, in the order of their numbers."""
    tolerance_ms: Annotated[int, Field(ge=0, le=86_400_000)] = 5000
    """By how many milliseconds a change may be older than its row before it is counted as outOfOrder and the
    log warns. After a reset, or in a new topic: how much newer than the mirror a change below the mirror's
    position must be to count as a failover of the source; until then it waits in the quarantine.
    """

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.by == "columns" and self.columns is None:
            raise wrong("is required with by: columns", "columns")
        if self.by != "columns" and self.columns is not None:
            raise wrong(f"belongs to by: columns, but the order is by {self.by}", "columns")
        twice = first_twice(self.columns or [])
        if twice is not None:
            raise wrong(f"{twice} is listed twice", "columns")
        numbers = [epoch.epoch for epoch in self.epochs]
        if numbers != sorted(set(numbers)):
            raise wrong("each epoch must have a higher number than the one before it", "epochs")
        return self

    _kept_as: str | None = PrivateAttr(None)
    """What `kept_as` returns for events that the driver makes, which carry their places in that order."""

    def carried(self, ordering: Ordering) -> Ordering:
        """Return this order for events whose places are in another ``ordering``, that of their mirror."""
        copy = self.model_copy()
        copy._kept_as = ordering.kept_as
        return copy

    @property
    def kept_as(self) -> str:
        """What orders changes, as in the mirror's table property: positions, time, offset or a JSON list."""
        if self._kept_as is not None:
            return self._kept_as
        if self.by == "columns":
            return json.dumps(self.columns)
        return {"timestamp": "time", "offset": "offset"}.get(self.by, "positions")


class Tombstones(Model):
    """Markers of deleted keys, which keep late events from bringing rows back."""

    retention: Duration = "7d"
    """The minimum time that tombstones are kept."""


class Retention(Model):
    """How long records of what was done are kept."""

    audit: PositiveDuration = "30d"
    """How long the audit has a row for each batch. Earlier batches are summed up."""
    quarantine: PositiveDuration = "30d"
    """How long the quarantine has records that were replayed, corrected or discarded."""


class Trigger(Model):
    """When batches run: at an interval, or once for everything that is there, optionally on a schedule."""

    model_config = ConfigDict(
        json_schema_extra=rules(
            (
                "has(self.interval) != has(self.availableNow)",
                "exactly one of interval and availableNow is needed",
            ),
            ("!has(self.schedule) || has(self.availableNow)", "schedule belongs to availableNow"),
        )
    )

    interval: Duration | None = None
    """The interval between batches."""
    available_now: Annotated[bool, Field(json_schema_extra={"enum": [True]})] | None = None
    """Apply everything that is there, then exit."""
    schedule: Annotated[str, Field(min_length=1, max_length=100), AfterValidator(cron)] | None = None
    """When runs start: a cron schedule in UTC. Only with availableNow and the back end native."""

    @model_validator(mode="after")
    def _one(self) -> Self:
        if self.available_now is False:
            raise wrong("can only be true: give an interval instead", "availableNow")
        if self.schedule is not None and not self.available_now:
            raise wrong("belongs to availableNow: true", "schedule")
        if self.interval is None and self.available_now is None:
            raise wrong("one of interval and availableNow is required")
        if self.interval is not None and self.available_now is not None:
            raise wrong("interval is given already: give only one of the two", "availableNow")
        return self


class Optimize(Model):
    """OPTIMIZE: many small files become few, and files with many hidden rows are written anew."""

    every: PositiveDuration = "6h"
    """How often."""


class Vacuum(Model):
    """VACUUM: files that no version of the table in its retention needs are deleted."""

    every: PositiveDuration = "1d"
    """How often."""
    retain: Annotated[
        str,
        Field(max_length=12),
        Matching(
            r"^0{0,8}[1-9][0-9]{0,8}(h|d)$",
            "is not a valid time to keep files: write whole hours or days, no less than 1h, like 36h or 7d",
        ),
    ] = "7d"
    """How long old versions remain readable, at least 1h. Reads of a version that take longer, and streams
    that fall further behind, lose its files.
    """


class Maintenance(Model):
    """Maintenance of mirrors and of the tables next to them, one table at a time between batches. A run that
    ends by itself does what is due before it exits. Mirrors are compacted and vacuumed only if that is set.
    """

    optimize: Optimize | None = None
    """Compaction of small files."""
    vacuum: Vacuum | None = None
    """Deletion of files that are no longer needed."""


_TEMPLATE = (
    r"^([^{}\s]|\{(db|schema|table)\})(([^{}]|\{(db|schema|table)\})*([^{}\s]|\{(db|schema|table)\}))?$"
)


class Database(JdbcUrl):
    """A database that mirrors are compared with, read over JDBC."""

    model_config = ConfigDict(
        json_schema_extra=rules(
            NO_LOGIN,
            ("!has(self.slot) || self.url.startsWith('jdbc:postgresql:')", "slot belongs to PostgreSQL"),
        )
    )

    slot: (
        Annotated[
            str,
            Field(max_length=63),
            Matching(r"^[a-z0-9_]{1,63}$", "is not a valid name of a replication slot"),
        ]
        | None
    ) = None
    """PostgreSQL: the replication slot of the connector, which tells what has left the database."""

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.slot is not None and not self.url.startswith("jdbc:postgresql:"):
            raise wrong("belongs to PostgreSQL: leave it out", "slot")
        return self


class Snapshot(Model):
    """Tables on a file system that mirrors are compared with."""

    path: Annotated[
        str, Field(max_length=1024), Matching(_TEMPLATE, "is not a valid path"), WithoutLogin(), PlainHost()
    ]
    """The path of a table's snapshot. Placeholders: {db} {schema} {table}."""
    format: Literal["delta", "parquet"] = "delta"
    """The format of the snapshot."""


class Verify(Model):
    """What `lakemirror verify` compares the mirrors with, and when the driver does so by itself."""

    model_config = ConfigDict(
        json_schema_extra=rules(
            ("has(self.jdbc) != has(self.snapshot)", "exactly one of jdbc and snapshot is needed"),
        )
    )

    jdbc: Database | None = None
    snapshot: Snapshot | None = None
    schedule: Annotated[str, Field(min_length=1, max_length=100), AfterValidator(cron)] | None = None
    """When the driver compares: a cron schedule in UTC; a run that ends by itself compares at its end what
    was due since the last time. Without it only `lakemirror verify` does.
    """
    tables: (
        Annotated[
            list[Annotated[str, Field(min_length=1, max_length=255)]],
            Field(min_length=1, max_length=500, json_schema_extra=IS_SET),
        ]
        | None
    ) = None
    """The source tables to compare. Default: all that are mirrored."""
    wait: Duration = "2m"
    """How long to wait for a table, at most, until its mirror is past what was read from the source."""
    settle: Duration = "30s"
    """The longest time that a change takes from the source to the pipeline, if no position shows it."""

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if (self.jdbc is None) == (self.snapshot is None):
            raise wrong("exactly one of jdbc and snapshot is required")
        twice = first_twice(self.tables or [])
        if twice is not None:
            raise wrong(f"{twice} is listed twice", "tables")
        return self


class Restart(Model):
    """How a failed driver is restarted."""

    backoff_limit: Annotated[int, Field(ge=0, le=1000)] = 10
    """The number of consecutive failures that are retried before the pipeline stalls."""
    reset_after: PositiveDuration = "30m"
    """How long a driver must run for its failures to be forgotten. The back end kubeflow has no such time."""


Cores = Annotated[int, Field(ge=1, le=1024)]
Memory = Annotated[
    str,
    Field(max_length=12),
    Matching(
        r"^[1-9][0-9]{0,8}[kmgt]$", "is not a valid amount of memory: write it as Spark does, like 512m or 4g"
    ),
]


PodTemplate = Annotated[
    dict[str, Any], Field(json_schema_extra={"x-kubernetes-preserve-unknown-fields": True})
]


class Executors(Model):
    """The number of executors, and the size of each."""

    model_config = ConfigDict(json_schema_extra=rules(("self.min <= self.max", "min must not be above max")))

    min: Annotated[int, Field(ge=0, le=10_000)] = 0
    """The minimum number of executors."""
    max: Annotated[int, Field(ge=0, le=10_000)] = 4
    """The maximum number of executors. With 0 the driver does all the work."""
    cores: Cores = 2
    """CPU cores of each executor."""
    memory: Memory = "4g"
    """Heap of each executor's JVM, such as 512m or 4g. The container gets more, also for Python workers."""
    pod_template: PodTemplate | None = None
    """A pod template for executors only, merged over spark.podTemplate."""

    @model_validator(mode="after")
    def _range(self) -> Self:
        if self.min > self.max:
            raise wrong(f"must not be above max, which is {self.max}, not {self.min}", "min")
        return self


class Driver(Model):
    """The size of the driver."""

    cores: Cores = 1
    """CPU cores of the driver."""
    memory: Memory = "2g"
    """Heap of the driver's JVM, such as 512m or 4g. The container gets more, also for Python."""
    pod_template: PodTemplate | None = None
    """A pod template for the driver only, merged over spark.podTemplate."""


def _spark_keys(conf: dict[str, str]) -> dict[str, str]:
    for key in conf:
        if not key.startswith("spark.") or any(c.isspace() for c in key):
            raise wrong("is not a valid Spark setting: names begin with spark. and have no spaces", key)
    return conf


class Spark(Model):
    """The Spark application that runs the driver."""

    backend: Literal["native", "kubeflow", "apache"] = "native"
    """native: the operator's own objects; the others: a SparkApplication of that operator."""
    image: (
        Annotated[str, Field(max_length=1024), Matching(r"^[^\s]+$", "is not a valid image name")] | None
    ) = None
    """The image of driver and executors. Default: the operator's."""
    image_pull_secrets: Annotated[list[SecretName], Field(max_length=16, json_schema_extra=IS_SET)] | None = (
        None
    )
    """Names of Secrets with which the image is pulled."""
    executors: Executors = Field(default_factory=Executors)
    driver: Driver = Field(default_factory=Driver)
    conf: Annotated[
        dict[Annotated[str, Field(max_length=512)], Annotated[str, Field(max_length=4096)]],
        Field(
            max_length=200,
            json_schema_extra=rules(
                ("self.all(k, k.startsWith('spark.'))", "names of Spark settings begin with spark.")
            ),
        ),
        AfterValidator(_spark_keys),
    ] = Field(default_factory=dict)
    """Additional Spark settings. All values are strings."""
    pod_template: PodTemplate | None = None
    """A pod template that driver and executors start from."""
    reset_token: Token = ""
    """A new value lets a change take effect that the checkpoint cannot follow."""


class PipelineSpec(Model):
    """What is mirrored, to where, and how."""

    model_config = ConfigDict(
        json_schema_extra=rules(
            (
                "has(self.source.changeFeed)"
                " || (has(self.target.path) && self.target.path.contains('{table}'))"
                " || (has(self.target.table) && self.target.table.contains('{table}'))"
                " || (self.unlisted == 'ignore' && (!has(self.tables)"
                " || (self.tables.filter(t, !has(t.target)).size() < 2"
                " && !self.tables.exists(t, !has(t.target)"
                " && (!has(t.mergeShards) || !t.mergeShards)"
                " && t.source.startsWith('/')))))",
                "target must contain {table} where several tables follow it: they would share it",
            ),
            *(
                (
                    f"!has(self.target.{name}) || self.target.{name}"
                    ".matches('^([^{}]|[{](db|schema|table)[}])*$')",
                    "target: the placeholders are {db}, {schema} and {table}",
                )
                for name in ("path", "table")
            ),
            (
                "!has(self.target.path) || (self.checkpoint != self.target.path"
                " && self.checkpoint != self.target.path + '/' && self.checkpoint + '/' != self.target.path)",
                "checkpoint must not be the path of the target",
            ),
            (
                "self.spark.backend == 'native' || !has(self.trigger.schedule)",
                "trigger.schedule has no effect with this spark.backend: only native has schedules",
            ),
            (
                "self.spark.backend != 'kubeflow' || self.restart.resetAfter == '30m'",
                "restart.resetAfter has no effect with spark.backend kubeflow",
            ),
            (
                "self.defaults.mode != 'append' || !has(self.tables) || self.tables.all(t,"
                " (has(t.mode) && t.mode != 'append') || (!has(t.delete) && !has(t.primaryKey)))",
                "delete and primaryKey have no effect with mode append",
            ),
        )
    )

    _left_out: tuple[str, ...] = PrivateAttr(default=())
    """Sources of listed tables that this spec is not about."""

    suspend: bool = False
    """Pause the pipeline: no driver runs, and everything else is kept."""
    restart_token: Token = ""
    """A new value restarts the driver once."""
    source: Source
    envelope: Envelope = Field(default_factory=Envelope)
    target: PipelineTarget
    defaults: Defaults = Field(default_factory=Defaults)
    unlisted: Literal["mirror", "ignore"] = "mirror"
    """What happens to tables that are not listed under tables."""
    tables: Annotated[
        list[Table],
        Field(
            max_length=500,
            json_schema_extra={
                "x-kubernetes-list-type": "map",
                "x-kubernetes-list-map-keys": ["source"],
                **rules(
                    (
                        "[self.map(t, t.source)].all(names, self.all(t, !t.source.contains('.') || ("
                        "!(t.source.substring(t.source.indexOf('.') + 1) in names)"
                        " && !(t.source.substring(t.source.lastIndexOf('.') + 1) in names))))",
                        "one source is the end of another: both match the same table",
                    )
                ),
            },
        ),
    ] = Field(default_factory=list)
    """Settings of individual tables."""
    ordering: Ordering = Field(default_factory=Ordering)
    schema_evolution: Literal["evolve", "skip", "fail"] = "evolve"
    """What happens when a table's columns change: evolve the mirror, skip the change, or fail."""
    drift_acknowledged_until: Moment | None = None
    """Changes of columns that were seen until this time are acknowledged: SchemaDrift ends."""
    on_bad_record: Literal["quarantine", "fail"] = "quarantine"
    """What happens to a record that cannot be applied: it is kept in quarantine, or the run fails."""
    on_unrepresentable: Literal["quarantine", "null", "text"] = "quarantine"
    """What happens to a value that Spark cannot hold: infinity, dates BC, NaN decimals, over 38 digits."""
    tombstones: Tombstones = Field(default_factory=Tombstones)
    retention: Retention = Field(default_factory=Retention)
    checkpoint: Annotated[Location, WithoutLogin(), PlainHost()]
    """A directory for the state of this pipeline alone, outside its mirrors."""
    trigger: Trigger = Field(default_factory=lambda: Trigger(interval="10s"))
    maintenance: Maintenance | None = None
    verify: Verify | None = None
    progress_deadline: PositiveDuration = "10m"
    """How long there may be lag without a commit before the pipeline is no longer Ready."""
    restart: Restart = Field(default_factory=Restart)
    deletion_policy: Literal["Retain", "DeleteCheckpoint", "DeleteAll"] = "Retain"
    """Which data is deleted with the resource."""
    spark: Spark = Field(default_factory=Spark)

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        self.target.check("target")
        sources = [table.source for table in self.tables]
        twice = first_twice(sources)
        if twice is not None:
            raise wrong(f"{twice} is listed twice: list each table once", "tables")
        pair = ambiguous_pair(sources)
        if pair is not None:
            raise wrong(
                f"{pair[0]} and {pair[1]} match the same table: keep one of them, or write longer names",
                "tables",
            )
        if self.target.path is not None and self.checkpoint.rstrip("/") == self.target.path.rstrip("/"):
            raise wrong("must not be the path of the target", "checkpoint")
        self._paths_order()
        self._no_shared_target()
        self._names_are_free()
        return self

    def _paths_order(self) -> None:
        """Check that custom records are ordered by paths, which have no empty parts."""
        names = self.ordering.columns or []
        wrong_path = next((i for i, name in enumerate(names) if "" in name.split(".")), None)
        if self.envelope.format == "custom" and wrong_path is not None:
            raise wrong(
                f"{names[wrong_path]} is not a path to a field: write names with dots between them",
                *("ordering", "columns"),
                wrong_path,
            )

    def _no_shared_target(self) -> None:
        at = "path" if self.target.path is not None else "table"
        if self.source.change_feed is not None:
            return
        if "{table}" not in self.target.template:
            if self.unlisted == "mirror":
                raise wrong(
                    "needs {table}: all tables would have one target (or set unlisted: ignore)", "target", at
                )
            follow = [table for table in self.tables if table.target is None]
            sharing = [table.source for table in follow]
            many = [table.source for table in follow if not table.merge_shards]
            pattern = next((source for source in many if is_pattern(source)), None)
            if pattern is not None:
                raise wrong(f"needs {{table}}: all tables of {pattern} would have one target", "target", at)
            if len(sharing) > 1:
                raise wrong(
                    f"needs {{table}}: {sharing[0]} and {sharing[1]} would have one target", "target", at
                )

        owners: dict[str, str] = {}
        for index, table in enumerate(self.tables):
            place = (table.target or self.target).place(table.source)
            other = owners.setdefault(place, table.source) if place is not None else table.source
            if other != table.source:
                where = ("tables", index, "target") if table.target is not None else ("target", at)
                raise wrong(f"{other} and {table.source} would have one target: give each its own", *where)

    def _names_are_free(self) -> None:
        """Check that no column that the manifest names is called like the one that soft deletes add."""
        for index, table in enumerate(self.tables):
            if (table.mode or self.defaults.mode) == "append":
                continue
            column = (table.delete or self.defaults.delete).column
            taken = next((name for name in table.column_names() if same_name(name, column)), None)
            if taken is not None:
                where = ("tables", index) if table.delete is not None else ("defaults",)
                raise wrong(
                    f"{column} is a column of {table.source} already, called {taken}: choose another name",
                    *where,
                    "delete",
                    "column",
                )

    @property
    def order(self) -> Ordering:
        """What orders changes. A change feed has its own order, unless ``ordering`` says otherwise."""
        if self.source.change_feed is None or self.ordering.by != "auto":
            return self.ordering
        return self.ordering.model_copy(update={"by": "offset"})

    def secrets(self) -> dict[str, str]:
        """Return the Secrets that the driver reads: a map from the field's path to the name in it."""
        kafka, registry = self.source.kafka, self.envelope.schema_registry
        verify = self.verify
        read = verify is not None and (verify.schedule is not None or self.loads)
        jdbc = verify.jdbc if verify is not None and read else None
        found = {
            "spec.verify.jdbc.secret": jdbc.secret if jdbc is not None else None,
            "spec.target.jdbc.secret": self.target.jdbc.secret if self.target.jdbc is not None else None,
            "spec.source.kafka.security.secret": kafka.security.secret if kafka and kafka.security else None,
            "spec.envelope.schemaRegistry.secret": registry.secret if registry else None,
        }
        return {path: name for path, name in found.items() if name is not None}

    @property
    def java_properties(self) -> dict[str, str]:
        """System properties that the JVMs of driver and executors need.

        From version 4 on, Kafka's client asks only token endpoints that are listed there.
        """
        security = self.source.kafka.security if self.source.kafka is not None else None
        if security is None or security.oauth is None:
            return {}
        return {"org.apache.kafka.sasl.oauthbearer.allowed.urls": security.oauth.token_endpoint_url}

    @property
    def loads(self) -> bool:
        """Whether the driver reads tables from their database."""
        return any(table.snapshot == "jdbc" for table in self.tables)

    def _target(self, table: Table | None) -> Target:
        """Return where ``table`` goes, who must be able to read it, and whether it keeps a change feed."""
        if table is None or table.target is None:
            return self.target
        common = {name: getattr(self.target, name) for name in ("compatibility", "change_feed")}
        own = {name for name in common if getattr(table.target, name) is not None}
        return table.target.model_copy(update={name: common[name] for name in common.keys() - own})

    def listed(self, name: str) -> Table | None:
        """Return the entry of ``tables`` for ``name`` (database.schema.table), if there is one.

        Raises AmbiguousTable if two entries match.
        """
        source = match_table([*(table.source for table in self.tables), *self._left_out], name)
        return next((table for table in self.tables if table.source == source), None)

    def only(self, sources: Container[str]) -> PipelineSpec:
        """Return the spec for only these of its listed tables.

        A table that is listed by its name does not belong to a pattern.
        """
        listed = [table for table in self.tables if table.source in sources]
        spec = self.model_copy(update={"tables": listed, "unlisted": "ignore"})
        spec._left_out = tuple(table.source for table in self.tables if table.source not in sources)
        return spec

    def kept_as(self, name: str) -> str:
        """Return the table that a mirror records as its own.

        It is the table ``name``, or what the manifest calls it and all others that are shards of one.
        """
        table = self.listed(name) if self.merges(name) else None
        return table.source if table is not None else name

    def merges(self, name: str) -> bool:
        """Return whether the table ``name`` is one of several shards of a mirror."""
        try:
            table = self.listed(name)
        except AmbiguousTable:
            return False
        return table is not None and table.merge_shards

    def table_settings(self, name: str) -> Table | None:
        """Return all settings of the table ``name`` with defaults filled in; None if it is not mirrored.

        ``name`` is the table's name in the events (database.schema.table). In the result, mode, target and
        delete are never None, and ``source`` is what the manifest calls the table, or ``name``.
        """
        table = self.listed(name)
        if table is None and self.unlisted == "ignore":
            return None
        mode = (table and table.mode) or self.defaults.mode
        filled = {
            "mode": mode,
            "target": self._target(table),
            "delete": (table and table.delete) or self.defaults.delete,
        }
        return (table or Table.model_construct(source=name)).model_copy(update=filled)
