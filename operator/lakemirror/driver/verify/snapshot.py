"""Sources that are Delta or Parquet tables on a file system, at a path made from the table's name."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from pyspark.errors import AnalysisException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import (
    ArrayType,
    DataType,
    MapType,
    StringType,
    StructField,
    StructType,
    VariantType,
)

from lakemirror.api.tables import Target
from lakemirror.driver.errors import cause_of
from lakemirror.driver.parse.values.fit import settled
from lakemirror.driver.read import rows as wire
from lakemirror.driver.tables.delta import quoted
from lakemirror.driver.tables.names import TableName, locate
from lakemirror.driver.verify.sources import ALL, UNFIT, Compared, Described, SourceUnfit, Wanted, with_known


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
        values, unfit = [], []
        for name, kind in self.compared.columns.items():
            source = self.compared.names[name]
            value = F.col(quoted(source))
            fitted = as_type(value, self._stored[source].dataType, kind)
            values.append(fitted.alias(name))
            if self._stored[source].dataType != kind:
                lost = value.isNotNull() & fitted.isNull()
                unfit.append(
                    F.when(lost, F.concat(F.lit(f"{name}="), _text(value, self._stored[source].dataType)))
                )
        text = F.nullif(F.concat_ws(", ", *unfit), F.lit("")) if unfit else F.lit(None).cast("string")
        return rows.select(*values, text.alias(UNFIT))

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
    """Return a value as the mirror's type, or null if it does not fit."""
    if isinstance(kind, VariantType):
        found = F.try_parse_json(value) if isinstance(stored, StringType) else value
        known = isinstance(stored, (StringType, VariantType))
        return settled(found, value).value if known else F.lit(None).cast(kind)
    if stored == kind:
        return value
    if isinstance(kind, StringType):
        return _text(value, stored)
    return value.try_cast(kind)


def _text(value: Column, stored: DataType) -> Column:
    if isinstance(stored, (ArrayType, MapType, StructType, VariantType)):
        return F.to_json(value)
    return value.cast("string")
