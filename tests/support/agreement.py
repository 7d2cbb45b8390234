"""What a pipeline left and what the rules make of the same records: where they differ, one line each.

Rows are compared with their metadata; so are versions, tombstones, the outcomes of records, the reasons of
the quarantine, and what happened to columns.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any
from unittest import mock

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import Row as SparkRow
from pyspark.sql import functions as F

from lakemirror.api.source import Envelope
from lakemirror.api.tables import Columns, Expectation, Table
from lakemirror.driver.batch import BatchApplier
from lakemirror.driver.checkpoint.storage import open_storage
from lakemirror.driver.read.base import Batch
from lakemirror.driver.rules import texts
from lakemirror.driver.rules.conditions import Condition, Expected
from lakemirror.driver.rules.drift import Change
from lakemirror.driver.rules.envelopes import custom, debezium, flat, maxwell
from lakemirror.driver.rules.envelopes.records import Ordering, TableName
from lakemirror.driver.rules.envelopes.records import Settings as ReadSettings
from lakemirror.driver.rules.keys import micros_of
from lakemirror.driver.rules.kinds import Arrays, Decimals, Kind, Maps, Plain, Structs
from lakemirror.driver.rules.positions import minor_of
from lakemirror.driver.rules.rows import shown
from lakemirror.driver.rules.schemas import Field, field_at, fields_at, fields_of_envelope, fields_of_struct
from lakemirror.driver.rules.texts import Writing
from lakemirror.driver.rules.values import Row
from lakemirror.driver.rules.versions import Version
from tests.support.conditions import CONDITIONS
from tests.support.mirroring import Mirroring, audited
from tests.support.records import Record, read
from tests.support.rule_engine import Asked, Classify, DeclaredIn, Engine, FieldsOf, Mirrored

COUNTS = ("applied", "superseded", "stale", "duplicates", "quarantined", "violations")
DELETED_AT = "deleted_at"
"""The column of soft deletes in these pipelines."""


@dataclass(frozen=True)
class Format:
    """How the rules read the records of an envelope."""

    classify: Classify
    fields_of: FieldsOf = fields_of_envelope
    declared_in: DeclaredIn = lambda schema: {each.name: each for each in fields_of_envelope(schema)}
    is_metadata: Callable[[str], bool] = lambda _: False
    writing: Writing = texts.DEBEZIUM


def _flat_fields(schema: Any) -> Mapping[str, Field]:
    return {each.name: each for each in fields_of_struct(schema)}


FORMATS: Mapping[str, Format] = {
    "debezium": Format(debezium.classify),
    "debezium-flat": Format(flat.classify, fields_of_struct, _flat_fields, flat.is_metadata),
    "maxwell": Format(maxwell.classify, fields_of_struct, writing=texts.MAXWELL),
}


def format_of(envelope: Envelope, ordered_by: Sequence[str]) -> Format:
    """How the rules read the records of an envelope, as the manifest describes it."""
    if envelope.format != "custom":
        return FORMATS[envelope.format]
    assert envelope.fields is not None
    fields = custom.Fields(**envelope.fields.model_dump(), op_map=envelope.op_map)
    path = fields.after.split(".") if fields.after else []

    def declared_in(schema: Any) -> Mapping[str, Field]:
        found = {name: field_at(schema, name.split(".")) for name in ordered_by}
        return {name: each for name, each in found.items() if each is not None}

    return Format(
        lambda record, settings: custom.classify(record, settings, fields),
        lambda schema: fields_at(schema, path),
        declared_in,
        fields.is_metadata,
        texts.UNKNOWN,
    )


@contextmanager
def handed_over() -> Iterator[list[list[Record]]]:
    """The records of each batch that a pipeline reads from its source while this lasts."""
    batches: list[list[Record]] = []
    apply = BatchApplier.apply

    def noted(self: BatchApplier, raw: DataFrame, batch: Batch) -> Any:
        if not batch.query_id.startswith("replay-"):
            batches.append([_line(each) for each in raw.collect()])
        return apply(self, raw, batch)

    with mock.patch.object(BatchApplier, "apply", noted):
        yield batches


def _line(row: SparkRow) -> Record:
    """A record line of a raw record."""
    texts = {
        name: None if row[name] is None else bytes(row[name]).decode(errors="surrogateescape")
        for name in ("key", "value")
    }
    place = {name: row[name] for name in ("topic", "partition", "offset", "problem")}
    at = 0 if row["timestamp"] is None else micros_of(row["timestamp"].astimezone()) // 1000
    return {**place, **texts, "timestamp": at, "headers": []}


def by_rules(mirroring: Mirroring, batches: Iterable[Sequence[Record]] | None = None) -> Engine:
    """What the rules make of all that was delivered to a pipeline, in its batches.

    ``batches`` are those of files of rows (`handed_over`).
    """
    spec = mirroring.pipeline.spec
    default = Asked(spec.defaults.mode, unrepresentable=spec.on_unrepresentable)
    names = tuple(spec.ordering.columns or ())
    form = format_of(spec.envelope, names)
    engine = Engine(
        form.classify,
        ReadSettings(
            Ordering(spec.ordering.by, columns=names), null_deletes=spec.envelope.null_value != "ignore"
        ),
        asked={each.source: _asked(each, default) for each in spec.tables},
        default=default,
        is_metadata=form.is_metadata,
        fields_of=form.fields_of,
        declared_in=form.declared_in,
        corrects=spec.source.files is not None and spec.source.files.format != "records",
        writing=form.writing,
        location=lambda table: _location(mirroring, table),
    )
    for batch in _read(mirroring) if batches is None else batches:
        engine.deliver(batch)
    engine.retry()
    return engine


def _read(mirroring: Mirroring) -> Iterator[list[Record]]:
    """The batches of files of records. A file with the content of an earlier one is skipped."""
    files = {file.read_bytes(): file for file in sorted(mirroring.input.iterdir(), reverse=True)}
    return (read(file) for file in sorted(files.values()))


def _asked(table: Table, default: Asked) -> Asked:
    """What the manifest says of a table."""
    columns = table.columns or Columns()
    return replace(
        default,
        mode=table.mode or default.mode,
        primary_key=table.primary_key or (),
        soft=table.delete is not None and table.delete.type == "soft",
        deleted_at=(table.delete and table.delete.column) or DELETED_AT,
        include=None if columns.include is None else frozenset(columns.include),
        exclude=frozenset(columns.exclude or ()),
        rename=columns.rename or {},
        filter=None if table.filter is None else _condition(table.filter, f"tables[{table.source}].filter"),
        expectations=[_expected(table, each) for each in table.expectations or ()],
        types={name: kind_of(text) for name, text in (columns.types or {}).items()},
        encodings=columns.encodings or {},
    )


def _expected(table: Table, expectation: Expectation) -> Expected:
    place = f"tables[{table.source}].expectations[{expectation.name}]"
    return Expected(expectation.name, _condition(expectation.condition, place), expectation.on_violation)


def _condition(sql: str, place: str) -> Condition:
    reads, evaluate = CONDITIONS[sql]
    return Condition(sql, place, reads, evaluate)


def kind_of(text: str) -> Kind:
    """The type that a manifest declares, in Spark's DDL."""
    name, _, inner = text.strip().removesuffix(">").partition("<")
    parts = _split(inner)
    if name.lower() == "array":
        return Arrays(kind_of(inner))
    if name.lower() == "map":
        return Maps(kind_of(parts[0]), kind_of(parts[1]))
    if name.lower() == "struct":
        members = [each.partition(":") for each in parts]
        return Structs(tuple((member.strip(), kind_of(kind)) for member, _, kind in members))
    word, _, digits = name.lower().removesuffix(")").partition("(")
    if word in ("decimal", "dec", "numeric"):
        precision, _, scale = (digits or "10,0").partition(",")
        return Decimals(int(precision), int(scale or 0))
    other = {"byte": "tinyint", "short": "smallint", "integer": "int", "long": "bigint", "real": "float"}
    return Plain(other.get(word, word).upper())


def _split(text: str) -> list[str]:
    """The parts between commas that are in no brackets."""
    parts, depth = [""], 0
    for each in text:
        depth += (each in "<(") - (each in ">)")
        if each == "," and not depth:
            parts.append("")
        else:
            parts[-1] += each
    return parts


def _location(mirroring: Mirroring, table: TableName) -> str:
    target = mirroring.pipeline.spec.target.template
    names = {"{db}": table.database, "{schema}": table.schema or table.database, "{table}": table.table}
    for hole, name in names.items():
        target = target.replace(hole, name or "")
    return target


def assert_agreement(
    spark: SparkSession, mirroring: Mirroring, batches: Iterable[Sequence[Record]] | None = None
) -> None:
    """Fail where a pipeline and the rules differ after all that was delivered."""
    differ = differences(spark, mirroring, by_rules(mirroring, batches))
    assert not differ, "\n".join(differ[:40])


def differences(spark: SparkSession, mirroring: Mirroring, engine: Engine) -> list[str]:
    """Where a pipeline and the rules differ, in any table of the rules."""
    counts = audited(spark, mirroring, COUNTS)
    reasons, drift = quarantined(spark, mirroring), drifted(spark, mirroring)
    targets = targets_of(spark, mirroring)
    differ = [f"{name}: the rules have no such table" for name in counts.keys() - engine.tables.keys()]
    for name, mine in sorted(engine.tables.items()):
        found = of_mirror(spark, targets[name], mine)
        expected = {each: counts[name][each] for each in COUNTS}
        counted = {each: mine.counts[each] for each in COUNTS} | {"violations": mine.violations.total()}
        if _have_waited(reasons, engine, name, mine):
            expected, counted = {"all": sum(expected.values())}, {"all": sum(counted.values())}
        if expected != counted:
            found.append(f"counts of the engine {expected}, of the rules {counted}")
        for origin, reason in mine.reasons.items():
            if reasons.pop(origin, None) != reason:
                found.append(f"{origin}: the reason of the rules is {reason}")
        told = sorted(
            (each.column, str(each.change), _kind(each.before), _kind(each.after), str(each.action))
            for each in mine.drift
        )
        if drift.get(name, []) != told:
            found.append(f"drift of the engine {drift.get(name, [])}, of the rules {told}")
        differ += [f"{name}: {each}" for each in found]
    for origin, reason in engine.reasons.items():
        if reasons.pop(origin, None) != reason:
            differ.append(f"{origin}: the reason of the rules is {reason}")
    return [*differ, *(f"{origin}: the engine has {reason}" for origin, reason in reasons.items())]


def _have_waited(reasons: dict[Any, str], engine: Engine, name: str, table: Mirrored) -> bool:
    """Whether records of a table waited until their order was decided, or an expectation held them, so that
    another batch counted them.

    The rules apply each batch at once; `lakemirror.driver.rules.restarts` is compared by tests of its own.
    Removes the reasons of these records.
    """
    waited = [
        origin
        for origin, reason in reasons.items()
        if name in engine.topics.get(origin[0], ())
        and (reason.startswith("undecided: ") or (table.was_stopped and "onViolation is fail: " in reason))
    ]
    for origin in waited:
        del reasons[origin]
    return bool(waited)


def _kind(kind: Any) -> str | None:
    """A type as the audit has it."""
    return None if kind is None else shown(kind)


def targets_of(spark: SparkSession, mirroring: Mirroring) -> dict[str, str]:
    """Where the mirror of each table stands."""
    audit = spark.read.format("delta").load(f"{mirroring.checkpoint}/audit").where("target IS NOT NULL")
    return dict(map(tuple, audit.select("source", "target").distinct().collect()))


def quarantined(spark: SparkSession, mirroring: Mirroring) -> dict[Any, str]:
    """Reasons by origin: topic, partition, offset."""
    if not _is_table(spark, f"{mirroring.checkpoint}/quarantine"):
        return {}
    aside = spark.read.format("delta").load(f"{mirroring.checkpoint}/quarantine")
    rows = aside.select("topic", "partition", "offset", "reason").collect()
    return {(row["topic"], row["partition"], row["offset"]): _without_cause(row["reason"]) for row in rows}


def _is_table(spark: SparkSession, path: str) -> bool:
    return bool(open_storage(f"{path}/_delta_log", spark).list())


def _without_cause(reason: str) -> str:
    """A reason without what Spark says of a row for which a condition fails, without the types that a column
    had and got, and without what the manifest could say of a value that does not fit.
    """
    reason = reason.partition("; Spark says of one such row: ")[0]
    reason = reason.partition(" from ")[0] if ": its type changed from " in reason else reason
    return (
        reason.partition(". To write them to a new column, set ")[0] if "does not fit" in reason else reason
    )


def drifted(spark: SparkSession, mirroring: Mirroring) -> dict[str, list[tuple[Any, ...]]]:
    """What happened to columns, by table: those changes that a mirror can see in the records alone."""
    audit = spark.read.format("delta").load(f"{mirroring.checkpoint}/audit").where("drift IS NOT NULL")
    found: dict[str, list[tuple[Any, ...]]] = {}
    for row in audit.select("source", "drift").collect():
        found.setdefault(row["source"], []).extend(
            (each["column"], each["change"], each["from_type"], each["to_type"], each["action"])
            for each in json.loads(row["drift"])
            if each["change"] in set(Change)
        )
    return {name: sorted(each, key=repr) for name, each in found.items()}


def of_mirror(spark: SparkSession, path: str, table: Mirrored) -> list[str]:
    """Where a mirror differs from what the rules keep."""
    frame = spark.read.format("delta").load(path).withColumnsRenamed(_in_source(table))
    moments = [name for name, kind in frame.dtypes if kind == "timestamp"]
    rows = frame.withColumns({name: F.unix_micros(name) for name in moments}).collect()
    if table.mode == "append":
        return _unequal(_listed(rows, table), _listed_by_rules(table))
    if table.mode == "scd2":
        return _unequal(_versions(rows, table), _versions_by_rules(table))
    differ = _unequal(_rows(rows, table), _rows_by_rules(table))
    return differ if table.asked.soft else differ + tombstones_differ(spark, path, table)


def _in_source(table: Mirrored) -> dict[str, str]:
    """The names of columns in the source, by those in the mirror."""
    return {name: source for source, name in table.asked.rename.items()}


def _unequal(engine: Mapping[Any, Any], rules: Mapping[Any, Any]) -> list[str]:
    differ = [key for key in engine.keys() | rules.keys() if engine.get(key) != rules.get(key)]
    return [
        f"{key}\n  engine {engine.get(key)}\n  rules  {rules.get(key)}" for key in sorted(differ, key=repr)
    ]


# -- what the engine left ---------------------------------------------------------------------------------


def _key(row: SparkRow, table: Mirrored) -> tuple[Any, ...]:
    return tuple(plain(row[name]) for name in table.key)


def _values(row: SparkRow, table: Mirrored) -> dict[str, Any]:
    return {name: plain(row[name]) for name in table.columns}


def _metadata(row: SparkRow, table: Mirrored) -> tuple[Any, ...]:
    source = _in_source(table)
    seqs = {
        source.get(name, name): bytes(seq).hex() for name, seq in (row["__column_seq"] or {}).items() if name
    }
    texts = {source.get(name, name): text for name, text in (row["__unrepresentable"] or {}).items()}
    return bytes(row["__seq"]).hex(), row["__op"], row["__event_time"], seqs, texts


def _rows(rows: Iterable[SparkRow], table: Mirrored) -> dict[Any, Any]:
    return {
        _key(row, table): (
            _values(row, table),
            *_metadata(row, table),
            _deleted(row["__event_time"], row[table.asked.deleted_at]) if table.asked.soft else None,
        )
        for row in rows
    }


def _deleted(at: int | None, deleted_at: int | None) -> int | str | None:
    """When a row was deleted. A delete without a time has that of its batch."""
    return "deleted" if deleted_at is not None and at is None else deleted_at


def _versions(rows: Iterable[SparkRow], table: Mirrored) -> dict[Any, Any]:
    return {
        (*_key(row, table), bytes(row["__seq"]).hex()): (
            _values(row, table),
            *_metadata(row, table),
            row["__valid_from"],
            row["__valid_to"],
            row["__is_current"],
            row["__is_deleted"],
            None if row["__delete_seq"] is None else bytes(row["__delete_seq"]).hex(),
        )
        for row in rows
    }


def _listed(rows: Iterable[SparkRow], table: Mirrored) -> dict[Any, Any]:
    return {(*row["__origin"], row["__op"]): (_values(row, table), bytes(row["__seq"]).hex()) for row in rows}


# -- what the rules keep ----------------------------------------------------------------------------------


def _row_by_rules(row: Row, table: Mirrored) -> tuple[Any, ...]:
    values = {name: plain(row.values.get(name)) for name in table.columns}
    seqs = {name: seq.hex() for name, seq in row.seqs.items()}
    return values, row.seq.hex(), str(row.op), row.at, seqs, dict(row.texts)


def _rows_by_rules(table: Mirrored) -> dict[Any, Any]:
    return {
        tuple(map(plain, key)): (*_row_by_rules(row, table), _deleted(row.at, row.deleted_at))
        for key, row in table.mirror.rows.items()
    }


def _versions_by_rules(table: Mirrored) -> dict[Any, Any]:
    return {
        (*map(plain, key), each.row.seq.hex()): (*_row_by_rules(each.row, table), *_validity(each))
        for key, stored in table.versions.keys.items()
        for each in stored.versions
    }


def _validity(version: Version) -> tuple[Any, ...]:
    ended = None if version.delete_seq is None else version.delete_seq.hex()
    return version.valid_from, version.valid_to, version.is_current, version.is_deleted, ended


def _listed_by_rules(table: Mirrored) -> dict[Any, Any]:
    return {
        (*each.origin, str(each.op)): (
            {name: plain((each.values or {}).get(name)) for name in table.columns},
            each.seq.hex(),
        )
        for each in table.listed
    }


def plain(value: Any) -> Any:
    """A value of either side in one form. Instants are microseconds since 1970."""
    if isinstance(value, datetime):
        return micros_of(value) if value.tzinfo is not None else value
    if isinstance(value, SparkRow):
        return {name: plain(each) for name, each in value.asDict().items()}
    if isinstance(value, Mapping):
        return {name: plain(each) for name, each in value.items()}
    if isinstance(value, list):
        return [plain(each) for each in value]
    if isinstance(value, bytearray):
        return bytes(value)
    return "NaN" if value != value else value


def tombstones_differ(spark: SparkSession, path: str, table: Mirrored) -> list[str]:
    """Where the newest tombstones of keys differ.

    The rules place a delete of a transaction that was open during the snapshot after the row that was read;
    the driver does so only if the row comes in the batch of the delete. Both stop the same changes: the row
    was locked in between, and the tombstone tells where in its partition the delete came.
    """
    newest = []
    if _is_table(spark, f"{path}/_tombstones"):
        facts = spark.read.format("delta").load(f"{path}/_tombstones").where("kind = 'deleted'")
        newest = facts.groupBy("key").agg(F.max("seq").alias("seq")).collect()
    stored = {each["key"]: bytes(each["seq"]) for each in newest}
    ruled = {key: bytes.fromhex(seq) for key, seq in table.tombstones.items()}
    as_sent = {key: _sent(seq) if stored.get(key) == _sent(seq) else seq for key, seq in ruled.items()}
    named = [{f"tombstone {key}": seq.hex() for key, seq in each.items()} for each in (stored, as_sent)]
    return _unequal(*named)


def _sent(seq: bytes) -> bytes:
    """The sequence of a change of an open transaction as it was sent: its LSN is both parts."""
    return seq[:2] + minor_of(seq) + seq[12:]
