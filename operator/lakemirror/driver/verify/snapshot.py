"""Sources that are Delta or Parquet tables on a file system, at a path made from the table's name."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from pyspark.errors import AnalysisException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    DataType,
    DateType,
    FractionalType,
    MapType,
    NumericType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
    VariantType,
)

from lakemirror.api.tables import Target
from lakemirror.driver.errors import cause_of
from lakemirror.driver.parse.values.fit import fit, settled
from lakemirror.driver.read import rows as wire
from lakemirror.driver.tables.delta import quoted
from lakemirror.driver.tables.names import TableName, locate
from lakemirror.driver.verify.sources import (
    ALL,
    Compared,
    Described,
    SourceUnfit,
    Wanted,
    marked,
    with_known,
)

_MOMENTS = (DateType, TimestampType, TimestampNTZType)


class Snapshots:
    """Tables at ``path``, a template like that of a target. Their ``format`` is delta or parquet."""

    ordered = False

    def __init__(self, spark: SparkSession, format_: str, path: str) -> None:
        self._spark, self._format, self._target = spark, format_, Target(path=path)

    def table(self, name: TableName, wanted: Compared) -> SnapshotTable:
        """Return the snapshot of a table. Raises SourceUnfit."""
        place, stored = self._stored(name)
        known = {field.name: "" for field in stored.fields if not field.name.startswith("__")}
        compared = with_known(wanted, known, {}, place)
        return SnapshotTable(self._spark, self._format, place, stored, compared)

    def described(self, name: TableName) -> Described:
        """Return what a mirror of the table would have. Raises SourceUnfit if there is no snapshot of it."""
        _, stored = self._stored(name)
        fields = [field for field in stored.fields if not field.name.startswith("__")]
        return Described({each.name: (_readable(each), each.dataType.simpleString()) for each in fields})

    def _stored(self, name: TableName) -> tuple[str, StructType]:
        place = str(locate(self._target, name))
        try:
            stored = self._spark.read.format(self._format).load(place).schema
        except AnalysisException as error:
            raise SourceUnfit(
                f"{name}: there is no {self._format} table at {place} ({cause_of(error)}): name the place of "
                "its snapshot, where {db}, {schema} and {table} stand for the parts of its name"
            ) from None
        return place, stored

    def source_block(self, position: bytes) -> dict[str, Any]:
        """Raise SourceUnfit: a snapshot has no positions."""
        raise SourceUnfit("a snapshot has no positions")

    def position(self) -> None:
        """Return None: a snapshot has no positions."""
        return

    def finished(self, unfinished: int) -> bool:
        """Return true: a snapshot does not change."""
        return True

    def sent(self, position: bytes) -> bool:
        """Return true: a snapshot has no positions."""
        return True

    def close(self) -> None:
        """Do nothing: there are no resources to release."""


class SnapshotTable:
    """One snapshot. It has no positions, so any difference from it is wrong."""

    def __init__(
        self, spark: SparkSession, format_: str, place: str, stored: StructType, compared: Compared
    ) -> None:
        self._spark, self._format, self._place = spark, format_, place
        self._stored, self.compared = stored, replace(compared)

    def rows(self, wanted: Wanted = ALL) -> DataFrame:
        """Return all rows, with the mirror's types."""
        rows = self._spark.read.format(self._format).load(self._place)
        values, unfit = [], {}
        for name, kind in self.compared.columns.items():
            source = self.compared.names[name]
            value, stored = F.col(quoted(source)), self._stored[source].dataType
            fitted = as_type(value, stored, kind)
            values.append(fitted.alias(name))
            if stored != kind:
                unfit[name] = value.isNotNull() & fitted.isNull(), _text(value, stored)
        return marked(rows, values, unfit)

    def position(self) -> None:
        """Return None: a snapshot does not change."""
        return

    def position_below(self) -> None:
        """Return None: a snapshot does not change."""
        return

    def unfinished(self) -> None:
        """Return None: a snapshot does not change."""
        return


def _readable(field: StructField) -> DataType | None:
    """Return the field's type, or None if no change event can carry it."""
    try:
        wire.schema_of([field])
    except wire.UnreadableType:
        return None
    return field.dataType


def as_type(value: Column, stored: DataType, kind: DataType) -> Column:
    """Return a value as the mirror's type, or null if it does not fit, and would not come back as it was."""
    if isinstance(stored, VariantType) and isinstance(kind, VariantType):
        return settled(value, value).value
    if stored == kind:
        return value
    if isinstance(kind, StringType):
        return _text(value, stored)
    if isinstance(stored, ArrayType) and isinstance(kind, ArrayType):
        return _array(value, stored, kind)
    if isinstance(stored, MapType) and isinstance(kind, MapType):
        return _map(value, stored, kind)
    if isinstance(stored, StructType) and isinstance(kind, StructType):
        return _struct(value, stored, kind)
    if not _returns(stored, kind):
        return fit(value, stored, kind).value
    found = value.try_cast(kind)
    return F.when(found.try_cast(stored) == value, found)


def _array(value: Column, stored: ArrayType, kind: ArrayType) -> Column:
    def fitted(each: Column) -> Column:
        return as_type(each, stored.elementType, kind.elementType)

    lost = F.exists(value, lambda each: each.isNotNull() & fitted(each).isNull())
    return F.when(~lost, F.transform(value, fitted))


def _map(value: Column, stored: MapType, kind: MapType) -> Column:
    def fitted(each: Column) -> tuple[Column, Column]:
        key = as_type(each["key"], stored.keyType, kind.keyType)
        return key, as_type(each["value"], stored.valueType, kind.valueType)

    def is_lost(each: Column) -> Column:
        key, found = fitted(each)
        return key.isNull() | (each["value"].isNotNull() & found.isNull())

    entries = F.map_entries(value)
    return F.when(
        ~F.exists(entries, is_lost), F.map_from_entries(F.transform(entries, lambda e: F.struct(*fitted(e))))
    )


def _struct(value: Column, stored: StructType, kind: StructType) -> Column:
    """STRUCT: the fields by their names. None fits if the names differ."""
    kinds = {each.name: each.dataType for each in stored.fields}
    if set(kinds) != set(kind.names):
        return F.lit(None).cast(kind)
    found, lost = [], F.lit(False)
    for each in kind.fields:
        part = value.getField(each.name)
        fitted = as_type(part, kinds[each.name], each.dataType)
        found.append(fitted.alias(each.name))
        lost = lost | (part.isNotNull() & fitted.isNull())
    return F.when(value.isNotNull() & ~lost, F.struct(*found))


def _returns(stored: DataType, kind: DataType) -> bool:
    """Return whether a cast there and back shows if a value fits: where `fit` knows nothing better."""
    return (
        (isinstance(stored, _MOMENTS) and isinstance(kind, _MOMENTS))
        or (isinstance(stored, FractionalType) and isinstance(kind, BooleanType))
        or (isinstance(stored, StringType) and isinstance(kind, BinaryType))
        or (isinstance(stored, NumericType) and isinstance(kind, TimestampType))
        or (isinstance(stored, TimestampType) and isinstance(kind, NumericType))
    )


def _text(value: Column, stored: DataType) -> Column:
    if isinstance(stored, (ArrayType, MapType, StructType, VariantType)):
        return F.to_json(value)
    return value.cast("string")
