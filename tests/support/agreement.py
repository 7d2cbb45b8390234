"""What a pipeline left and what the rules make of the same records: where they differ, one line each.

Rows are compared with their metadata; so are versions, tombstones, the outcomes of records, the reasons of
the quarantine, and what happened to columns.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

from pyspark.sql import Row as SparkRow
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from lakemirror.driver.rules.drift import Change
from lakemirror.driver.rules.envelopes import debezium, flat, maxwell
from lakemirror.driver.rules.envelopes.records import Ordering
from lakemirror.driver.rules.envelopes.records import Settings as ReadSettings
from lakemirror.driver.rules.keys import micros_of
from lakemirror.driver.rules.rows import shown
from lakemirror.driver.rules.schemas import fields_of_envelope, fields_of_struct
from lakemirror.driver.rules.values import Row
from lakemirror.driver.rules.versions import Version
from tests.support.mirroring import Mirroring, audited
from tests.support.records import read
from tests.support.rule_engine import Asked, Classify, Engine, Mirrored

COUNTS = ("applied", "superseded", "stale", "duplicates", "quarantined")
DELETED_AT = "deleted_at"
"""The column of soft deletes in these pipelines."""


ENVELOPES: Mapping[str, Classify] = {
    "debezium": debezium.classify,
    "debezium-flat": flat.classify,
    "maxwell": maxwell.classify,
}


def by_rules(mirroring: Mirroring) -> Engine:
    """What the rules make of all that was delivered to a pipeline, in its batches."""
    spec = mirroring.pipeline.spec
    is_flat = spec.envelope.format == "debezium-flat"
    default = Asked(spec.defaults.mode, unrepresentable=spec.on_unrepresentable)
    of_tables = {}
    for each in spec.tables:
        soft = each.delete is not None and each.delete.type == "soft"
        excluded = each.columns.exclude or () if each.columns is not None else ()
        of_tables[each.source] = Asked(
            each.mode or default.mode,
            each.primary_key or (),
            soft,
            frozenset(excluded),
            spec.on_unrepresentable,
        )
    engine = Engine(
        ENVELOPES[spec.envelope.format],
        ReadSettings(Ordering(spec.ordering.by)),
        asked=of_tables,
        default=default,
        is_metadata=flat.is_metadata if is_flat else lambda _: False,
        fields_of=fields_of_struct if is_flat else fields_of_envelope,
        location=lambda table: mirroring.path(table.database or "", table.schema, table.table or ""),
    )
    files = {file.read_bytes(): file for file in sorted(mirroring.input.iterdir(), reverse=True)}
    for file in sorted(files.values()):  # a file with the content of an earlier one is skipped
        engine.deliver(read(file))
    return engine


def assert_agreement(spark: SparkSession, mirroring: Mirroring) -> None:
    """Fail where a pipeline and the rules differ after all that was delivered."""
    differ = differences(spark, mirroring, by_rules(mirroring))
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
        counted = {each: mine.counts[each] for each in COUNTS}
        if _have_waited(reasons, engine, name):
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


def _have_waited(reasons: dict[Any, str], engine: Engine, name: str) -> bool:
    """Whether records of a table waited until their order was decided, so that another batch counted them.

    The rules apply each batch at once; `lakemirror.driver.rules.restarts` is compared by tests of its own.
    Removes the reasons of these records.
    """
    waited = [
        origin
        for origin, reason in reasons.items()
        if reason.startswith("undecided: ") and name in engine.topics.get(origin[0], ())
    ]
    for origin in waited:
        del reasons[origin]
    return bool(waited)


def _kind(kind: Any) -> str | None:
    return None if kind is None else shown(kind)


def targets_of(spark: SparkSession, mirroring: Mirroring) -> dict[str, str]:
    """Where the mirror of each table stands."""
    audit = spark.read.format("delta").load(f"{mirroring.checkpoint}/audit").where("target IS NOT NULL")
    return dict(map(tuple, audit.select("source", "target").distinct().collect()))


def quarantined(spark: SparkSession, mirroring: Mirroring) -> dict[Any, str]:
    """Reasons by origin: topic, partition, offset."""
    if not Path(mirroring.checkpoint, "quarantine").exists():
        return {}
    aside = spark.read.format("delta").load(f"{mirroring.checkpoint}/quarantine")
    rows = aside.select("topic", "partition", "offset", "reason").collect()
    return {(row["topic"], row["partition"], row["offset"]): row["reason"] for row in rows}


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
    frame = spark.read.format("delta").load(path)
    moments = [name for name, kind in frame.dtypes if kind == "timestamp"]
    rows = frame.withColumns({name: F.unix_micros(name) for name in moments}).collect()
    if table.mode == "append":
        return _unequal(_listed(rows, table), _listed_by_rules(table))
    if table.mode == "scd2":
        return _unequal(_versions(rows, table), _versions_by_rules(table))
    differ = _unequal(_rows(rows, table), _rows_by_rules(table))
    return differ if table.asked.soft else differ + tombstones_differ(spark, path, table)


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


def _metadata(row: SparkRow) -> tuple[Any, ...]:
    seqs = {name: bytes(seq).hex() for name, seq in (row["__column_seq"] or {}).items() if name}
    return bytes(row["__seq"]).hex(), row["__op"], row["__event_time"], seqs, row["__unrepresentable"] or {}


def _rows(rows: Iterable[SparkRow], table: Mirrored) -> dict[Any, Any]:
    return {
        _key(row, table): (
            _values(row, table),
            *_metadata(row),
            row[DELETED_AT] if table.asked.soft else None,
        )
        for row in rows
    }


def _versions(rows: Iterable[SparkRow], table: Mirrored) -> dict[Any, Any]:
    return {
        (*_key(row, table), bytes(row["__seq"]).hex()): (
            _values(row, table),
            *_metadata(row),
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
        tuple(map(plain, key)): (*_row_by_rules(row, table), row.deleted_at)
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
    """Where the newest tombstones of keys differ."""
    newest = []
    if Path(path, "_tombstones").exists():
        facts = spark.read.format("delta").load(f"{path}/_tombstones").where("kind = 'deleted'")
        newest = facts.groupBy("key").agg(F.max("seq").alias("seq")).collect()
    stored = {f"tombstone {each['key']}": bytes(each["seq"]).hex() for each in newest}
    return _unequal(stored, {f"tombstone {key}": seq for key, seq in table.tombstones.items()})
