"""Decodes one table's classified events into its event frame: typed keys and rows, gaps and problems."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import reduce
from typing import Literal

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import (
    BinaryType,
    BooleanType,
    DataType,
    DateType,
    NumericType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from lakemirror.api.tables import TextEncoding
from lakemirror.driver.codes import WITH_ROW, Op
from lakemirror.driver.materialise import materialised
from lakemirror.driver.parse import computed, condition, expectations
from lakemirror.driver.parse.attempt import Fallible
from lakemirror.driver.parse.computed import Computed
from lakemirror.driver.parse.condition import LACKS, Condition
from lakemirror.driver.parse.expectations import VIOLATIONS, Expected
from lakemirror.driver.parse.values.connect import Field, schemaless
from lakemirror.driver.parse.values.decode import Decoded, RowDecoder
from lakemirror.driver.parse.values.expressions import with_members
from lakemirror.driver.parse.values.placeholder import DEFAULT
from lakemirror.driver.parse.values.texts import DEBEZIUM, Writing
from lakemirror.driver.tables.columns import SHARD
from lakemirror.driver.tables.store import Impossible

_NO_TIME = (
    "nothing says when its version begins: neither the record nor Kafka or its file gives a time (for custom "
    "records, set envelope.fields.timestamp)"
)
_FORMER_UNFIT = "the row's former key does not fit"

_NANOS = "io.debezium.time.Nano"

_LEAVES = "leaves"
"""BOOLEAN, in an event frame being decoded: whether the event's row has left its former key for another one.

This does not depend on whether the row's image can be applied. ``_TO`` is the key that it has now, null if
the mirror cannot have it.
"""
_TO = "to_key"

Unrepresentable = Literal["quarantine", "null", "text"]


@dataclass(frozen=True)
class Version:
    """How to read the events of one schema, or only those above the sequence ``after`` and up to ``until``.

    ``fields`` are the source's columns, without those whose values belong to a former life. ``refused`` maps
    mirror columns to the reason why their type cannot be stored. ``schema_id`` is None for events without an
    embedded schema, and ``remedy`` says what to do about their values that do not fit.
    """

    schema_id: int | None
    fields: Sequence[Field]
    refused: Mapping[str, str] = field(default_factory=dict)
    after: bytes | None = None
    until: bytes | None = None
    remedy: str | None = None


@dataclass(frozen=True)
class Reading:
    """How to read one table's events.

    ``columns`` are the mirror's columns. ``names`` maps the source's names to them; a column not in it is
    left out. ``key`` lists the mirror's key columns (empty: the table has none). ``from_rows`` are key
    columns that the manifest declares but the records' own keys lack, so that the key is taken from the rows.
    ``rekeyed`` says that a single update may change its row's key, ``images`` that the before image of a
    delete is wanted (append), and ``partial`` that the rows of updates may lack members whose values are as
    before. ``corrects`` says that an event with the origin of an earlier one is a correction of it: a row of
    a file that was incomplete when it was read, or was edited since. ``timed`` says that each change needs a
    time (versions). ``former`` says that updates of an event list may change their row's key.
    ``defaults`` are the fields with the defaults of columns that an event is too old to have. ``condition``
    is what rows must meet, at ``place`` in the manifest; ``remedy`` makes the source send whole rows;
    ``expectations`` is what they should meet. ``computed`` are the expressions of the mirror's computed
    columns. ``shard`` is the name of the shard if its mirror has several. ``other_key`` is the problem of
    records whose key has other columns; None if there are no such records. ``impossible`` finds values that
    the mirror's store cannot hold; None if it can hold all values.
    """

    columns: Mapping[str, DataType]
    names: Mapping[str, str]
    key: Sequence[str]
    versions: Sequence[Version]
    defaults: Mapping[str, Field] = field(default_factory=dict)
    from_rows: Sequence[str] = ()
    rekeyed: bool = False
    other_key: str | None = None
    images: bool = False
    partial: bool = False
    corrects: bool = False
    timed: bool = False
    former: bool = False
    condition: Condition | None = None
    expectations: Sequence[Expected] = ()
    computed: Sequence[Computed] = ()
    unrepresentable: Unrepresentable = "quarantine"
    placeholder: str | None = DEFAULT
    place: str = "filter"
    remedy: str = "set REPLICA IDENTITY FULL on the table"
    shard: str | None = None
    impossible: Impossible | None = None
    writing: Writing = DEBEZIUM
    encodings: Mapping[str, TextEncoding] = field(default_factory=dict)

    @property
    def is_conditional(self) -> bool:
        """Whether conditions are evaluated on rows."""
        return self.condition is not None or bool(self.expectations)

    @property
    def fallible(self) -> list[Fallible]:
        """The expressions that may fail for a row, whose record then goes to the quarantine."""
        conditions = [] if self.condition is None else [(self.condition.sql, self.place)]
        conditions += [(each.condition.sql, each.place) for each in self.expectations]
        conditions += [(each.sql, each.place) for each in self.computed]
        return [Fallible(sql, place) for sql, place in conditions]

    @property
    def inherits(self) -> bool:
        """Whether an update that changes its row's key may lack values that the row had before."""
        return bool(self.from_rows) or (self.partial and self.rekeyed)

    @property
    def source_key(self) -> list[str]:
        """The source's names for the key columns, in the order of ``key``."""
        source_names = {mirror: source for source, mirror in self.names.items()}
        return [source_names[name] for name in self.key]


def with_arrival(events: DataFrame) -> DataFrame:
    """Give classified events that say no time the one of their record: Kafka's, or that of its file.

    A time at or before the beginning of 1970 is none.
    """
    arrived = F.when(F.unix_micros("timestamp") > 0, F.col("timestamp"))
    return events.withColumn("event_time", F.coalesce("event_time", arrived))


class EventDecoder:
    """Classified changes of one table -> event frame (`lakemirror.driver.reduce.events`) plus ``problem``.

    Building its expressions takes a thousand or more JVM calls, so create it once per reading.
    """

    def __init__(self, reading: Reading) -> None:
        self.reading = reading
        versions = reading.versions or [Version(None, ())]
        self._versions = [(_of(version), _steps(reading, version)) for version in versions]
        self._rounded = [_rounded(reading, version) for version in versions]
        self.rounds = {name: _by_number(reading, versions, name) for each in self._rounded for name in each}
        """The mirror's columns whose values may be rounded. True if they are numbers of nanoseconds."""

    def rounded(self, events: DataFrame, columns: Collection[str]) -> list[str]:
        """Return those of the columns that have a value in these events that is rounded."""
        found: set[str] = set()
        for (mine, steps), rounded in zip(self._versions, self._rounded, strict=True):
            asked = [name for name in columns if name in rounded]
            if asked:
                wires = reduce(lambda frame, selected: frame.select(*selected), steps[:2], events.where(mine))
                row = wires.agg(*[F.max(rounded[name]) for name in asked]).first()
                found |= {name for name, each in zip(asked, row or (), strict=False) if each}
        return [name for name in columns if name in found]

    def decode(self, events: DataFrame) -> DataFrame:
        """Decode each event with its own schema into the mirror's columns and types.

        A record with a ``problem`` has a null key. Conditions and expressions are evaluated on whole rows in
        one step each. Spark would put the expressions of these steps into each other, as often as they are
        used, and take minutes for that: between two of them, rows are kept.
        """
        frames = [
            reduce(lambda frame, columns: frame.select(*columns), steps, events.where(mine))
            for mine, steps in self._versions
        ]
        decoded = reduce(DataFrame.unionByName, frames)
        reading, keyed = self.reading, bool(self.reading.key)
        if reading.condition is not None:
            decoded = condition.without_gaps(
                decoded, reading.condition, reading.place, reading.remedy, keyed=keyed
            )
            decoded = condition.decided(decoded, reading.condition, reading.place)
        if reading.condition is not None and reading.expectations:
            decoded = materialised(decoded)
        if reading.expectations:
            decoded = expectations.judged(decoded, reading.expectations, reading.remedy)
        if reading.is_conditional:
            decoded = decoded.drop(LACKS)
        if reading.from_rows or reading.rekeyed:
            decoded = _with_deletes(decoded)
        if reading.former:
            decoded = _with_former_rows(decoded)
        if reading.condition is not None:
            decoded = condition.applied(decoded, keyed=keyed)
        if reading.shard is not None:
            decoded = _of_shard(decoded, reading, reading.shard)
        if reading.is_conditional and reading.computed:
            decoded = materialised(decoded)
        if reading.computed:
            decoded = computed.evaluated(decoded, reading.computed, keyed=keyed)
        return decoded


def _of_shard(events: DataFrame, reading: Reading, shard: str) -> DataFrame:
    """Put the shard's name first in the keys and rows of the events."""

    def named(column: str, names: Iterable[str]) -> Column:
        parts = [F.col(column)[name].alias(name) for name in names]
        whole = F.struct(F.lit(shard).alias(SHARD), *parts)
        return F.when(F.col(column).isNotNull(), whole)

    keys = ("key", "new_key", "old_key") if reading.key else ()
    return events.withColumns(
        {"row": named("row", reading.columns), **{each: named(each, reading.key) for each in keys}}
    )


def default_of(field: Field, kind: DataType) -> Column:
    """Return a field's default as a constant of type ``kind``."""
    return RowDecoder([field], {field.name: kind}).default(field.name)


def _of(version: Version) -> Column:
    """Return whether an event is read by this version (BOOLEAN)."""
    identity = F.col("schema_id")
    mine = identity.isNull() if version.schema_id is None else identity == version.schema_id
    if version.after is not None:
        mine = mine & (F.col("seq") > F.lit(version.after))
    if version.until is not None:
        mine = mine & (F.col("seq") <= F.lit(version.until))
    return mine


def _steps(reading: Reading, version: Version) -> list[list[Column]]:
    """Return the columns to select, one list after the other."""
    decoder = _row_decoder(reading, version)
    image = F.when(F.col("op") != Op.DELETE, F.col("row_text"))
    if reading.images:
        image = F.coalesce(image, F.when(F.col("op") == Op.DELETE, _gone()), F.col("before_text"))
    decoded = decoder.project(F.col("_wire"))
    problem = _problem(decoder, decoded, reading, version)
    by_mirror_name = {reading.names[name]: each for name, each in decoded.items()}
    values = [
        _value(name, kind, by_mirror_name, reading).alias(name) for name, kind in reading.columns.items()
    ]
    key_texts, keys = _keys(reading, version)
    return [
        [F.col("*"), image.alias("_image")],
        [
            F.col("*"),
            decoder.parse(F.col("_image")).alias("_wire"),
            *([decoder.parse(_former_key()).alias("_former")] if reading.former else []),
            *key_texts,
        ],
        [F.col("*"), *keys],
        [F.col("*"), problem.alias("problem")],
        [
            F.when(F.col("problem").isNull(), F.col("_key")).alias("key")
            if reading.key
            else F.lit("").alias("key"),
            _op(reading).alias("op"),
            *map(F.col, ("seq", "unanchored", "event_time", "topic", "partition", "offset", "file")),
            F.col("row").alias("line"),
            _digest(reading).alias("digest"),
            F.col("identity").isNotNull().alias("placed"),
            F.struct(*values).alias("row"),
            _gaps(by_mirror_name, reading).alias("gaps"),
            *_lacks(reading, version),
            _texts(by_mirror_name, reading).alias("texts"),
            F.col("_new_key").alias("new_key"),
            _former(reading).alias("old_key"),
            *_left(by_mirror_name, reading),
            *([_former_row(decoder, reading).alias("former")] if reading.former else []),
            F.col("problem"),
            F.lit(1).alias("records"),
        ],
    ]


def _digest(reading: Reading) -> Column:
    """Return a hash that two events at one position share if they are the same event (BIGINT).

    It is that of what was sent, not of what was decoded, which may depend on the batch: columns that were
    added have defaults, others are left out or rounded. An event whose position does not identify it is the
    same only if it has the same origin.
    """
    origin = F.xxhash64("topic", "partition", "offset")
    images: list[Column | str] = ["row_text", "before_text"]
    if reading.images:  # it is stored, so it must not depend on how the record was read
        before = F.when(F.col("op") == Op.DELETE, F.col("before_text"))
        images = ["key_text", _as_sent(F.col("row_text")), _as_sent(before)]
    return F.xxhash64(F.coalesce("identity", origin), "op", *images)


def _as_sent(image: Column) -> Column:
    """Return an image in one spelling, without the members that describe its event, such as its time."""
    values = F.from_json(image, "map<string,variant>")
    row = F.map_filter(values, lambda name, _: ~name.startswith("__"))
    return F.coalesce(F.to_json(row), image)


def _row_decoder(reading: Reading, version: Version) -> RowDecoder:
    columns = {
        field.name: reading.columns[reading.names[field.name]]
        for field in version.fields
        if field.name in reading.names and reading.names[field.name] not in version.refused
    }
    kept = [field for field in version.fields if field.name in columns]
    return _decoder(reading, kept, columns)


def _decoder(reading: Reading, fields: Sequence[Field], columns: Mapping[str, DataType]) -> RowDecoder:
    return RowDecoder(
        fields,
        columns,
        placeholder=reading.placeholder,
        writing=reading.writing,
        encodings=reading.encodings,
    )


def _rounded(reading: Reading, version: Version) -> dict[str, Column]:
    """Return, by mirror column, whether a value in ``_wire`` is rounded (BOOLEAN); not for the key."""
    decoded = _row_decoder(reading, version).project(F.col("_wire"))
    return {
        reading.names[name]: each.rounded
        for name, each in decoded.items()
        if each.rounded is not None and reading.names[name] not in reading.key
    }


def _by_number(reading: Reading, versions: Iterable[Version], name: str) -> bool:
    """Return whether a column has numbers of nanoseconds in some schema."""
    fields = [field for version in versions for field in version.fields]
    return any(
        (f.semantic_name or "").startswith(_NANOS) for f in fields if reading.names.get(f.name) == name
    )


def _with_deletes(events: DataFrame) -> DataFrame:
    """Add the deletes of former keys.

    Here, an update that changes its row's key is a create with ``old_key``. Its other half, the delete of the
    former key, has no record of its own. It does not wait for an image that goes to the quarantine. If the
    mirror cannot have the new key, nothing could pass values that were not sent on to it: then they stay.
    """
    moved = events.where(
        F.col(_LEAVES) & (F.col(_TO).isNotNull() | ~F.coalesce(F.size("gaps") > 0, F.lit(False)))
    )
    nothing = F.lit(None).cast(events.schema["row"].dataType)
    half = moved.withColumns(
        {
            "new_key": F.col(_TO),
            "key": F.col("old_key"),
            "old_key": F.lit(None).cast(events.schema["old_key"].dataType),
            "problem": F.lit(None).cast("string"),
            "op": F.lit(Op.DELETE),
            "row": nothing,
            "gaps": F.lit(None).cast("array<string>"),
            "texts": F.lit(None).cast("map<string, string>"),
            "records": F.lit(0),
            **({VIOLATIONS: F.lit(None).cast("array<string>")} if VIOLATIONS in events.columns else {}),
        }
    )
    return events.unionByName(half).drop(_LEAVES, _TO)


def _with_former_rows(events: DataFrame) -> DataFrame:
    """Add a delete of the former key's row for each update of an event list that changed its row's key.

    It has the place of the update and no record of its own, and does not wait for an image that goes to the
    quarantine.
    """
    moved = events.where(f"former IS NOT NULL AND op = '{Op.UPDATE}'")
    half = moved.withColumns(
        {
            "problem": F.lit(None).cast("string"),
            "op": F.lit(Op.DELETE),
            "row": F.col("former"),
            "digest": F.xxhash64("digest", F.lit(Op.DELETE)),
            "gaps": F.lit(None).cast("array<string>"),
            "texts": F.lit(None).cast("map<string, string>"),
            "records": F.lit(0),
            **({VIOLATIONS: F.lit(None).cast("array<string>")} if VIOLATIONS in events.columns else {}),
        }
    )
    return events.unionByName(half).drop("former")


def _gone() -> Column:
    """Return the image of a row that was deleted, with the columns of its key (STRING)."""
    before, key = F.col("before_text"), F.col("key_text")
    there = F.json_object_keys(before)
    lacking = F.map_filter(_values(key), lambda name, _: ~F.array_contains(there, name))
    completed = with_members(_values(before), lacking)
    named = F.when(F.json_object_keys(key).isNotNull(), key)
    return F.when(before.isNull(), named).when(F.size(lacking) > 0, completed).otherwise(before)


def _values(text: Column) -> Column:
    return F.from_json(text, "map<string,variant>")


def _former_key() -> Column:
    """Return the key that the row of an event list had before an update (STRING); null if it is the same."""
    return F.when(F.col("op") == Op.UPDATE, F.col("old_key_text"))


def _former_row(decoder: RowDecoder, reading: Reading) -> Column:
    """Return the mirror's row with the columns of the former key only; null if the key is the same."""
    wire = F.col("_former")
    found = {reading.names[name]: each.value for name, each in decoder.project(wire).items()}
    values = [found.get(name, F.lit(None)).cast(kind).alias(name) for name, kind in reading.columns.items()]
    return F.when(wire.isNotNull() & wire[decoder.corrupt].isNull(), F.struct(*values))


def _op(reading: Reading) -> Column:
    """Return the op; an update that changes its row's key counts as a create."""
    if not (reading.from_rows or reading.rekeyed):
        return F.col("op")
    return F.when(_former(reading).isNotNull(), Op.CREATE).otherwise(F.col("op"))


def _former(reading: Reading) -> Column:
    """Return the key that an event's row had before, if it is a different one."""
    former = F.col("_old_key")
    return F.when(_differ(F.col("_key"), former), former) if _moves_rows(reading) else former


def _moves_rows(reading: Reading) -> bool:
    """Return whether a single update may change the key of its row."""
    return bool(reading.key) and (bool(reading.from_rows) or reading.rekeyed)


def _differ(key: Column, former: Column) -> Column:
    """BOOLEAN, never null: whether a row has another key now; so it has one that the mirror cannot have."""
    return former.isNotNull() & F.coalesce(key != former, F.lit(True))


def _left(decoded: Mapping[str, Decoded], reading: Reading) -> list[Column]:
    """Return `_LEAVES` and `_TO`, if a single update may change the key of its row.

    A key that is not certain proves nothing: that of a record with other columns, one that its row does not
    have, or one of which a part is missing. A declared key may become null in the source, others may not.
    """
    if not _moves_rows(reading):
        return []
    key, former = F.col("_key"), F.col("_old_key")
    certain = F.lit(True) if reading.other_key is None else ~_has_other_key(reading)
    there = F.map_filter(F.from_json("key_text", "map<string,string>"), lambda _, value: value.isNotNull())
    named = F.json_object_keys("row_text") if reading.from_rows else F.map_keys(there)
    shown = F.size(F.array_except(F.array(*map(F.lit, reading.source_key)), named)) == 0
    same = ~_differs_in(decoded, reading) if not reading.from_rows else F.lit(True)
    leaves = (
        (F.col("op") == Op.UPDATE)
        & _differ(key, former)
        & certain
        & F.when(key.isNull(), shown).otherwise(same)
    )
    return [F.coalesce(leaves, F.lit(False)).alias(_LEAVES), key.alias(_TO)]


def _keys(reading: Reading, version: Version) -> tuple[list[Column], list[Column]]:
    """Return the columns to select first, then ``_key``, ``_new_key`` and ``_old_key``.

    The latter are structs of the mirror's key columns, null if a part is missing. A key taken from the rows
    has a former key only if an update changes it. A key in a header may be written without a schema, by
    Connect's SimpleHeaderConverter: it has numbers where other keys have bytes.
    """
    names = ("_key", "_new_key", "_old_key")
    nothing = F.lit(None).cast("string")
    if not reading.key:
        return [], [nothing.alias(name) for name in names]
    decoder = _key_decoder(reading, version)
    texts = [F.col("key_text"), F.col("new_key_text"), F.col("old_key_text")]
    if reading.from_rows:
        before, after = F.col("before_text"), F.col("row_text")
        key = F.when(F.col("op") == Op.DELETE, before).otherwise(after)
        texts = [key, nothing, F.when(F.col("op") == Op.UPDATE, before)]
    parsed = [decoder.parse(text).alias(f"{name}_wire") for name, text in zip(names, texts, strict=True)]
    keys = {name: _key_of(reading, decoder, f"{name}_wire") for name in names}
    if version.schema_id is not None and not reading.from_rows:
        plain = _key_decoder(reading, replace(version, fields=[schemaless(n) for n in reading.source_key]))
        in_header = F.col("op") != Op.UPDATE
        for name, text in zip(names[1:], texts[1:], strict=True):
            parsed.append(plain.parse(F.when(in_header, text)).alias(f"{name}_plain"))
            keys[name] = F.coalesce(keys[name], _key_of(reading, plain, f"{name}_plain"))
    if reading.from_rows:
        keys["_old_key"] = F.when(_differ(keys["_key"], keys["_old_key"]), keys["_old_key"])
    return parsed, [each.alias(name) for name, each in keys.items()]


def _key_decoder(reading: Reading, version: Version) -> RowDecoder:
    fields = [field for field in version.fields if field.name in reading.source_key]
    kinds = {each.name: reading.columns[reading.names[each.name]] for each in fields}
    return _decoder(reading, fields, kinds)


def _key_of(reading: Reading, decoder: RowDecoder, wire: str) -> Column:
    """Return the key in a parsed document; null if a part of it is missing."""
    wanted = reading.source_key
    decoded = decoder.project(F.col(wire))
    if decoded.keys() != set(wanted):
        parts = [StructField(each, reading.columns[each]) for each in reading.key]
        return F.lit(None).cast(StructType(parts))
    complete = reduce(Column.__and__, [decoded[source].value.isNotNull() for source in wanted])
    for source in wanted:
        rounded = decoded[source].rounded
        complete = complete if rounded is None else complete & ~rounded
    found = F.struct(
        *[decoded[source].value.alias(name) for name, source in zip(reading.key, wanted, strict=True)]
    )
    return F.when(complete & F.col(wire)[decoder.corrupt].isNull(), found)


def _wrong_part(reading: Reading, version: Version) -> Column:
    """Return what is wrong with the first part of the key that is not one, as the end of a sentence."""
    decoder, wire = _key_decoder(reading, version), F.col("_key_wire")
    decoded, doubt = decoder.project(wire), decoder.doubt(wire)
    reasons = [F.lit(None).cast("string") if doubt is None else F.concat(F.lit(": "), doubt)]
    for name, source in zip(reading.key, reading.source_key, strict=True):
        each = decoded.get(source)
        if each is None:
            continue
        if each.unrepresentable is not None:
            shown = F.coalesce(F.lit(None) if each.text is None else each.text, F.lit("the value"))
            lost = F.concat(F.lit(f": Spark cannot represent {name}, which is "), shown)
            reasons.append(F.when(each.unrepresentable, lost))
        if each.rounded is not None:
            finer = (
                f": {name} has digits below the microsecond, without which keys would be equal. To keep "
                f"them, set columns.types: {{{source}: string}}, with a new target and a new resyncToken"
            )
            reasons.append(F.when(each.rounded, finer))
        fits = wire[decoder.corrupt].isNull()
        if each.misfit is not None:
            fits = fits & ~each.misfit
        missing = wire.isNotNull() & fits & each.value.isNull()
        reasons.append(F.when(missing, f": {name} is null or missing, so that nothing identifies the row"))
    return F.coalesce(*reasons)


def _problem(
    decoder: RowDecoder, decoded: Mapping[str, Decoded], reading: Reading, version: Version
) -> Column:
    """Return the first reason why a record cannot be applied, or null."""
    reasons = []
    if reading.timed:
        reasons.append(F.when(F.col("event_time").isNull(), F.lit(_NO_TIME)))
    if version.refused:
        column, why = next(iter(version.refused.items()))
        # Only a list stores what a delete shows of the row.
        stores = F.lit(True) if reading.images else F.col("op") != Op.DELETE
        reasons.append(F.when(stores, F.lit(f"column {column}: {why}")))
    if reading.from_rows:
        reasons += _doubts(reading, version)
    if reading.former:
        former = decoder.project(F.col("_former")).values()
        unread = F.col("_former")[decoder.corrupt].isNotNull()
        misfit = reduce(Column.__or__, [each.misfit for each in former if each.misfit is not None], unread)
        reasons.append(F.when(F.col("_former").isNotNull() & misfit, _FORMER_UNFIT))
    if reading.other_key is not None:
        reasons.append(F.when(_has_other_key(reading), F.lit(reading.other_key)))
    if reading.key:
        listed = ", ".join(reading.key)
        if not reading.from_rows:
            unread = F.col("_key").isNull() & F.col("key_text").isNotNull()
            no_object = unread & F.json_object_keys("key_text").isNull()
            reasons.append(F.when(no_object, "the key is not a JSON object"))
        unfit = F.lit(f"the key is missing or does not fit (key columns: {listed})")
        wrong = F.coalesce(_wrong_part(reading, version), F.lit(""))
        reasons.append(F.when(F.col("_key").isNull(), F.concat(unfit, wrong)))
        if reading.rekeyed and not reading.from_rows:
            lost = (F.col("op") == Op.UPDATE) & F.col("old_key_text").isNotNull() & F.col("_old_key").isNull()
            reasons.append(F.when(lost, F.lit(f"the row's former key does not fit (key columns: {listed})")))
        if not reading.from_rows:
            reasons.append(F.when(_differs(decoded, reading), F.lit(f"key and row differ in {listed}")))
    doubt = decoder.doubt(F.col("_wire"))
    if doubt is not None:
        reasons.append(doubt)
    unfit = decoder.problem(F.col("_image"), F.col("_wire"))
    reasons.append(unfit if version.remedy is None else F.concat(unfit, F.lit(version.remedy)))
    return F.coalesce(*reasons, *_lost(decoded, reading), *_unheld(decoded, reading))


def _lost(decoded: Mapping[str, Decoded], reading: Reading) -> Iterator[Column]:
    """Yield why values cannot be stored that their types have no equivalent for.

    If their texts should be kept instead, these are the ones that have no text.
    """
    for name, each in decoded.items():
        if each.unrepresentable is None:
            continue
        text = F.lit(None).cast("string") if each.text is None else each.text
        shown = F.coalesce(text, F.lit("the value"))
        reason = F.concat(F.lit(f"column {reading.names[name]}: Spark cannot represent "), shown)
        if reading.unrepresentable == "quarantine":
            yield F.when(each.unrepresentable, reason)
        elif reading.unrepresentable == "text" and each.may_lack_text:
            yield F.when(each.unrepresentable & text.isNull(), reason)


def _unheld(decoded: Mapping[str, Decoded], reading: Reading) -> list[Column]:
    """Return why the mirror's store cannot hold the row of a change.

    A delete has no row to store, and if its key is impossible, no row has that key.
    """
    if reading.impossible is None:
        return []
    reasons = []
    for name, each in decoded.items():
        mirror = reading.names[name]
        keys = len(reading.key) if mirror in reading.key else 0
        for wrong, why in reading.impossible(each.value, reading.columns[mirror], keys):
            reasons.append(F.when((F.col("op") != Op.DELETE) & wrong, F.lit(f"column {name} {why}")))
    return reasons


def _has_other_key(reading: Reading) -> Column:
    """Return whether the key of a record has other columns than the mirror's key (BOOLEAN)."""
    if not reading.key:
        return F.col("key_text").isNotNull()
    wanted = [F.lit(name) for name in sorted(reading.source_key)]
    return F.array_sort(F.json_object_keys("key_text")) != F.array(*wanted)


def _differs(decoded: Mapping[str, Decoded], reading: Reading) -> Column:
    """Return whether a change's row and record have different keys (BOOLEAN).

    It is then unclear which key the row belongs to.
    """
    return _differs_in({reading.names[name]: each for name, each in decoded.items()}, reading)


def _differs_in(decoded: Mapping[str, Decoded], reading: Reading) -> Column:
    """Do the same for a row by the mirror's names."""
    same = [decoded[name].value.eqNullSafe(F.col("_key")[name]) for name in reading.key if name in decoded]
    return (F.col("op") != Op.DELETE) & ~reduce(Column.__and__, same, F.lit(True))


def _doubts(reading: Reading, version: Version) -> list[Column]:
    """Return the reasons why a declared key cannot be taken from a change's before image.

    Under REPLICA IDENTITY DEFAULT, PostgreSQL sends only the columns of its own key. An update then has no
    before image, and the before image of a delete has nulls, zeros and defaults in all other columns
    (Debezium, PostgreSQL connector, "replica identity"). A value that could be a placeholder is not trusted.
    """
    listed = ", ".join(reading.from_rows)
    remedy = (
        f"primaryKey has {listed}, which the record's own key does not have: set REPLICA IDENTITY FULL on "
        "the table, or declare the record's key with a new target and a new resyncToken"
    )
    sent = F.col("before_text").isNotNull()
    defaults = {reading.names[each.name]: each for each in version.fields if each.default is not None}
    placeholder = F.lit(False)
    for name in reading.from_rows:
        value, kind = F.col("_key")[name], reading.columns[name]
        placeholder = placeholder | _is_zero(value, kind)
        if name in defaults:
            field = defaults[name]
            placeholder = placeholder | F.coalesce(value == default_of(field, kind), F.lit(False))
    doubtful = sent & ~F.col("full_before") & F.col("key_text").isNotNull() & placeholder
    updates, deletes = F.col("op") == Op.UPDATE, F.col("op") == Op.DELETE
    return [
        F.when(updates & ~sent, F.lit(f"an update without a before image, but {remedy}")),
        F.when(deletes & ~sent, F.lit(f"a delete without a before image, but {remedy}")),
        F.when(deletes & doubtful, F.lit(f"a delete with an incomplete before image: {remedy}")),
    ]


def _is_zero(value: Column, kind: DataType) -> Column:
    """Return whether a value is null, or what Debezium puts into a required but unsent column (BOOLEAN)."""
    zeros = {
        StringType: F.lit(""),
        BooleanType: F.lit(False),
        DateType: F.lit("1970-01-01").cast("date"),
        TimestampType: F.timestamp_micros(F.lit(0)),
        TimestampNTZType: F.lit("1970-01-01").cast("timestamp_ntz"),
    }
    if isinstance(kind, BinaryType):
        return F.coalesce(F.hex(value).rlike("^(00)*$"), F.lit(True))
    zero = F.lit(0).cast(kind) if isinstance(kind, NumericType) else zeros.get(type(kind))
    return value.isNull() if zero is None else F.coalesce(value == zero, F.lit(True))


def _value(name: str, kind: DataType, decoded: Mapping[str, Decoded], reading: Reading) -> Column:
    each = decoded.get(name)
    if each is None:
        default = reading.defaults.get(name)
        if default is None:
            return F.lit(None).cast(kind)
        return F.when(F.col("op") != Op.DELETE, default_of(default, kind).cast(kind))
    return each.value


def _gaps(decoded: Mapping[str, Decoded], reading: Reading) -> Column:
    """Return the columns whose values the source did not send (ARRAY); null if there are none."""
    marks = [
        F.when(F.col("gaps") & each.gap, F.lit(name))
        for name, each in decoded.items()
        if each.gap is not None
    ]
    if reading.partial:
        there = F.json_object_keys("row_text")
        marks += [
            F.when(F.col("partial") & ~F.array_contains(there, source), F.lit(name))
            for source, name in reading.names.items()
            if name not in reading.key
        ]
    if not marks:
        return F.lit(None).cast("array<string>")
    found = F.array_distinct(F.array_compact(F.array(*marks)))
    return F.when(F.col("gaps") | F.col("partial"), found)


def _lacks(reading: Reading, version: Version) -> list[Column]:
    """Return `LACKS`, if conditions read rows: the columns that a row without a schema does not show."""
    if not reading.is_conditional:
        return []
    conditions = [reading.condition, *(each.condition for each in reading.expectations)]
    read = {name for each in conditions if each is not None for name in each.columns}
    there, marks = F.json_object_keys("row_text"), []
    if version.schema_id is None:
        shown = F.col("op").isin(*WITH_ROW) & ~F.col("partial")
        marks = [
            F.when(shown & ~F.array_contains(there, source), F.lit(name))
            for source, name in reading.names.items()
            if name in read
        ]
    found = F.array_compact(F.array(*marks)) if marks else F.array()
    return [found.cast("array<string>").alias(LACKS)]


def _texts(decoded: Mapping[str, Decoded], reading: Reading) -> Column:
    nothing = F.lit(None).cast("map<string, string>")
    if reading.unrepresentable != "text":
        return nothing
    marks = [
        F.when(each.unrepresentable, F.struct(F.lit(name).alias("k"), each.text.alias("v")))
        for name, each in decoded.items()
        if each.unrepresentable is not None and each.text is not None
    ]
    if not marks:
        return nothing
    found = F.array_compact(F.array(*marks))
    return F.when(F.size(found) > 0, F.map_from_entries(found))
