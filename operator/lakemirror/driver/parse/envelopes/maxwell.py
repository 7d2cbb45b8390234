"""Maxwell's JSON records: raw record -> classified change event.

Format: https://maxwells-daemon.io/dataformat/ and https://maxwells-daemon.io/bootstrapping/. What a record
has besides the row depends on Maxwell's ``output_*`` options. The key is Kafka's, in either form of
``kafka_key_format``, or comes from ``primary_key_columns``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from pyspark.sql import Column
from pyspark.sql import functions as F

from lakemirror.driver import shapes
from lakemirror.driver.codes import Op
from lakemirror.driver.parse.envelopes.base import (
    LIMITS,
    Classifier,
    as_sent,
    document,
    event,
    exact,
    has_many_digits,
    is_object,
    kind_of,
    misfit,
    overlaid,
    quoted,
    source_block,
    unreadable,
    values_of,
)
from lakemirror.driver.parse.values.expressions import with_members
from lakemirror.driver.parse.values.texts import MAXWELL
from lakemirror.driver.rules.envelopes.maxwell import NUMBERS, OTHER_TYPE
from lakemirror.driver.sequence import identity, misplaced, sequence, server, source_micros, stream, unplaced

_BODY: Final = (
    "database STRING, table STRING, type STRING, ts BIGINT, xoffset BIGINT, commit BOOLEAN, "
    "position STRING, gtid STRING, server_id BIGINT, reason STRING, data STRING, old STRING, "
    "primary_key_columns ARRAY<STRING>"
)

_NAMES: Final = [part.split(" ")[0] for part in _BODY.split(", ")]

_OPS: Final = {
    "insert": Op.CREATE,
    "update": Op.UPDATE,
    "delete": Op.DELETE,
    "bootstrap-insert": Op.READ,
}
_OTHER: Final = (
    *("bootstrap-start", "bootstrap-complete"),
    *(f"{what}-{done}" for what in ("table", "database") for done in ("create", "alter", "drop")),
)
"""Types of records that do not change a row."""

_POSITION: Final = r"^.*\.\d{1,10}:\d{1,18}$"
_GTID: Final = r"^(?:(.*):|(\d+-\d+)-)(\d{1,18})$"
"""MySQL's ``uuid:number`` or MariaDB's ``domain-server-number``."""
_LAST_OF_TRANSACTION: Final = 2**31 - 2

_CALLED: Final = {
    "ts_ms": "ts",
    "file": "position",
    "pos": "position",
    "event_serial_no": "xoffset",
}


class Maxwell(Classifier):
    """Maxwell's records: raw records -> classified change events.

    The order is that of the binlog: ``position``, with ``xoffset`` for the rows of one event, or else
    ``gtid``. Bootstrap rows have neither, so they fill only what is missing. If Maxwell outputs no position,
    changes are ordered by ``ts``, and within one second by offset. They are not ordered by ``xid``, which
    transactions get before they are committed.
    """

    writing = MAXWELL

    def steps(self, known: Mapping[int, str]) -> list[list[Column]]:
        by = self._ordering.by
        return [
            [F.col("*"), as_sent(F.col("value").cast("string")).alias("sent")],
            [
                F.col("*"),
                has_many_digits(F.col("sent")).alias("many_digits"),
                document(F.col("sent"), _BODY).alias("v"),
            ],
            [F.col("*"), _body().alias("b"), _key_columns().alias("key_columns"), _misfit().alias("misfit")],
            [F.col("*"), *_parts(), _position().alias("source")],
            [F.col("*"), *_keys(), _reason(by).alias("reason")],
            [F.col("*"), kind_of(F.col("reason"), F.col("b.type").isin(*_OTHER), F.col("op")).alias("kind")],
            self._event(),
        ]

    def _event(self) -> list[Column]:
        ordering, source, snapshot = self._ordering, F.col("source"), F.col("snapshot")
        change, by, op = F.col("kind") == "change", self._ordering.by, F.col("op")
        data, old = F.col("b.data"), F.col("b.old")
        kept = F.lit(True) if self._keep_before else F.col("key_text").isNull()
        former = F.when(old.isNull(), data).otherwise(F.to_json(overlaid(values_of(data), values_of(old))))
        origin = {name: F.col(name) for name in ("topic", "partition", "offset")}
        seq = sequence(source, snapshot=snapshot, by=by, epochs=ordering.epochs, **origin)
        return event(
            database=F.col("b.database"),
            table=F.col("b.table"),
            op=op,
            key_text=F.col("key_text"),
            row_text=F.when(op == Op.UPDATE, _with_nulls(data, old)).when(op != Op.DELETE, data),
            partial=F.coalesce(change & (op == Op.UPDATE), F.lit(False)),
            before_text=F.when(change & (op == Op.DELETE), data).when(
                change & (op == Op.UPDATE) & kept, former
            ),
            old_key_text=F.when(change, F.col("old_key_text")),
            seq=F.when(change, seq),
            identity=F.when(change & ~snapshot, identity(source, by, old)),
            event_time=F.timestamp_micros(source_micros(source)),
            stream=F.when(change & ~snapshot, stream(source, by)),
            server=server(source),
            source_time=source_micros(source),
        )


def _with_nulls(data: Column, old: Column) -> Column:
    """Return an update's row, with nulls for the members that only its old values have.

    Such a value is null now: with ``output_nulls=false``, Maxwell leaves out nulls. A value that neither has
    is as before (``binlog_row_image=MINIMAL``).
    """
    gone = F.array_except(F.json_object_keys(old), F.json_object_keys(data))
    null = F.parse_json(F.lit("null"))
    nulls = F.map_from_arrays(gone, F.transform(gone, lambda _: null))
    return F.when(F.size(gone) > 0, with_members(values_of(data), nulls)).otherwise(data)


def _fails() -> Column:
    """Return whether the value is not a JSON object of Maxwell, or a field has another type (BOOLEAN)."""
    return F.col("v.it").isNull() | F.col("v._corrupt").isNotNull()


def _misfit() -> Column:
    """Return the first field that has another type than Maxwell gives it (STRING)."""
    kinds = {**dict.fromkeys(NUMBERS, "BIGINT"), "commit": "BOOLEAN", "primary_key_columns": "ARRAY"}
    return F.when(_fails(), misfit(F.col("sent"), kinds))


def _body() -> Column:
    """Return the record with all digits of the row's decimals, which are JSON numbers."""
    value, asked, it = F.col("sent"), F.col("many_digits"), F.col("v.it")
    images = {name: exact(value, (name,), it[name], asked) for name in ("data", "old")}
    return F.when(it.isNotNull(), F.struct(*[images.get(name, it[name]).alias(name) for name in _NAMES]))


def _key_columns() -> Column:
    """Return the primary key columns in lower case, as in Kafka's key (ARRAY<STRING>).

    See `RowIdentity` in Maxwell. Null if the record does not name them, empty if the table has none.
    """
    lower = F.transform(F.col("v.it.primary_key_columns"), F.lower)
    key = F.col("key").cast("string")
    members = F.json_object_keys(key)
    prefixed = F.filter(members, lambda name: name.startswith("pk."))
    hashed = F.transform(prefixed, lambda name: F.substr(name, F.lit(4)))
    listed = F.from_json(F.get_json_object(key, "$[2]"), "array<map<string,variant>>")
    array = F.flatten(F.transform(listed, lambda each: F.map_keys(each)))
    return F.coalesce(lower, F.when(key.startswith("["), array).otherwise(hashed))


def _parts() -> list[Column]:
    """Return the op, whether it is a bootstrap's, and the row's key columns as spelled in the row."""
    kind = F.col("b.type")
    op = F.coalesce(*[F.when(kind == name, op) for name, op in _OPS.items()])
    names = F.filter(
        F.json_object_keys("b.data"), lambda name: F.array_contains(F.col("key_columns"), F.lower(name))
    )
    return [
        op.alias("op"),
        F.coalesce(kind == "bootstrap-insert", F.lit(False)).alias("snapshot"),
        F.when(F.size("key_columns") > 0, names).alias("key_names"),
    ]


def _position() -> Column:
    """Return the change's position in the binlog, in the form of Debezium's source block.

    The last row of a transaction has ``commit`` instead of ``xoffset``. A GTID counts transactions in the way
    that the numbers of binlog files count files.
    """
    position, gtid = F.col("b.position"), F.col("b.gtid")
    number = F.nullif(F.regexp_extract(gtid, _GTID, 3), F.lit(""))
    whose = F.concat(F.regexp_extract(gtid, _GTID, 1), F.regexp_extract(gtid, _GTID, 2))
    last = F.coalesce("b.commit", F.lit(False)) & F.col("b.xoffset").isNull()
    file = F.when(position.isNotNull(), F.regexp_replace(position, r":\d+$", ""))
    return source_block(
        # If Maxwell outputs positions, all changes have one; bootstrap rows do not.
        # They must not be ordered by their time.
        connector=F.when(
            position.isNotNull() | gtid.isNotNull() | (F.col("b.type") == "bootstrap-insert"), "mysql"
        ),
        name=F.lit("maxwell"),
        ts_ms=F.try_multiply(F.col("b.ts"), F.lit(1000)),
        db=F.col("b.database"),
        table=F.col("b.table"),
        server_id=F.col("b.server_id"),
        system_identifier=F.when(position.isNull(), F.nullif(whose, F.lit(""))),
        file=F.coalesce(file, F.when(number.isNotNull(), F.concat(F.lit("gtid."), number))),
        pos=shapes.whole(F.regexp_extract(position, r":(\d{1,18})$", 1)),
        # Unlike Debezium's row, it counts all rows of a transaction.
        event_serial_no=F.when(last, _LAST_OF_TRANSACTION).otherwise(F.col("b.xoffset")),
    )


def _keys() -> list[Column]:
    """Return ``key_text`` and ``old_key_text``.

    These are the key columns of the row, now and before an update that changed one of them.
    """
    names = F.col("key_names")
    row = F.when(is_object(F.col("b.data")) & (F.size(names) > 0), values_of(F.col("b.data")))
    key = F.map_filter(row, lambda name, _: F.array_contains(names, name))
    touched = F.arrays_overlap(names, F.json_object_keys("b.old"))
    old = F.to_json(overlaid(key, values_of(F.col("b.old"))))
    return [
        F.to_json(key).alias("key_text"),
        F.when((F.col("op") == Op.UPDATE) & touched, old).alias("old_key_text"),
    ]


def _reason(by: str) -> Column:
    kind, data, old, source = F.col("b.type"), F.col("b.data"), F.col("b.old"), F.col("source")
    position, gtid = F.col("b.position"), F.col("b.gtid")
    lacking = F.array_except(F.col("key_columns"), F.transform(F.col("key_names"), F.lower))
    return (
        unreadable()
        .when(F.col("misfit").isNotNull(), F.concat(F.col("misfit"), F.lit(f" {OTHER_TYPE}")))
        .when(_fails(), f"the value is not a JSON object of Maxwell {LIMITS}")
        .when(kind.isNull(), "the value has no type: it is not a record of Maxwell")
        .when(kind.isin(*_OTHER), None)
        .when(~kind.isin(*_OPS), F.concat(F.lit("unknown type "), quoted(kind)))
        .when(F.coalesce("b.database", F.lit("")) == "", "database is missing")
        .when(F.coalesce("b.table", F.lit("")) == "", "table is missing")
        .when(
            F.col("b.reason").isNotNull(),
            F.concat(F.lit("Maxwell could not send the row, only its key: "), quoted(F.col("b.reason"))),
        )
        .when(data.isNull(), F.concat(F.lit("type "), kind, F.lit(" without data")))
        .when(~is_object(data), "data is not a JSON object")
        .when(~is_object(old), "old is not a JSON object")
        .when(
            F.size(lacking) > 0,
            F.concat(F.lit("data lacks the primary key's column "), F.array_join(lacking, ", ")),
        )
        .when(
            F.lit(by in ("auto", "binlog")) & ~position.rlike(_POSITION),
            F.concat(F.lit("position is not valid: "), quoted(position)),
        )
        .when(
            F.lit(by in ("auto", "binlog")) & position.isNull() & ~gtid.rlike(_GTID),
            F.concat(F.lit("gtid is not valid: "), quoted(gtid)),
        )
        .otherwise(
            F.coalesce(
                misplaced(
                    source,
                    partition=F.col("partition"),
                    offset=F.col("offset"),
                    by=by,
                    called=_CALLED,
                    anywhere=F.col("snapshot"),
                ),
                F.when(~F.col("snapshot"), unplaced(source, F.col("offset"), by)),
            )
        )
    )
