"""One source table of a pipeline and its mirror: what the manifest says of it, and what stands in Delta."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import DataType

from lakemirror.api import CdcPipeline, Table
from lakemirror.driver.apply.scd1 import T
from lakemirror.driver.apply.tombstones import Summary, Tombstones
from lakemirror.driver.decode import Reading
from lakemirror.driver.mirror import DEFAULTS_PROPERTY, Location, Mirror, TableName, locate, owner_of
from lakemirror.driver.results import Drift


class MirroredTable:
    """A source table with its settings, mirror and tombstones, as they are known between batches."""

    def __init__(
        self,
        spark: SparkSession,
        pipeline: CdcPipeline,
        name: TableName,
        settings: Table,
        reported: Sequence[Drift],
    ) -> None:
        self.spark = spark
        self.spec = pipeline.spec
        self.name = name
        self.settings = settings
        self.source = owner_of(pipeline.name, name)
        self._reported = {each.identity for each in reported}

    @cached_property
    def location(self) -> Location:
        """Where the mirror stands or is going to stand."""
        assert self.settings.target is not None
        return locate(self.settings.target, self.name)

    @cached_property
    def mirror(self) -> Mirror:
        """The mirror, as it was read last."""
        return Mirror(self.spark, self.location)

    @cached_property
    def tombstones(self) -> Tombstones:
        """Only of a mirror that exists."""
        return Tombstones(self.spark, self.mirror)

    @property
    def tombstone_summary(self) -> Summary:
        """Of a mirror that may not be there yet."""
        return self.tombstones.summary if self.mirror.exists else Summary()

    @property
    def properties(self) -> Mapping[str, str]:
        """The mirror's table properties; none before it is there."""
        return self.mirror.properties if self.mirror.exists else {}

    @property
    def soft(self) -> str | None:
        """The column that says when a row was deleted, where deletes are soft."""
        delete = self.settings.delete
        return delete.column if delete is not None and delete.type == "soft" else None

    @property
    def asks_for_key(self) -> bool:
        """Whether the manifest asks for mode scd1 for this very table, not for tables in general."""
        listed = self.spec.listed(str(self.name))
        return listed is not None and listed.mode == "scd1"

    @property
    def rename(self) -> Mapping[str, str]:
        """Mirror names of the source columns that the manifest renames."""
        return (self.settings.columns and self.settings.columns.rename) or {}

    @property
    def declared(self) -> dict[str, DataType]:
        """Types that the manifest gives, by source name."""
        columns = self.settings.columns
        types = (columns and columns.types) or {}
        return {name: DataType.fromDDL(ddl) for name, ddl in types.items()}

    @property
    def defaults(self) -> dict[str, dict[str, Any]]:
        """Defaults of columns as the mirror's property has them: ``field`` and ``since``, by mirror name."""
        text = self.properties.get(DEFAULTS_PROPERTY)
        return dict(json.loads(text)) if text else {}

    def unreported(self, drift: Sequence[Drift]) -> tuple[Drift, ...]:
        """The drift that nobody was told of yet."""
        return tuple(each for each in drift if each.identity not in self._reported)

    def report(self, drift: Sequence[Drift]) -> None:
        """Note that a drift was told."""
        self._reported.update(each.identity for each in drift)

    def stored_seqs(self, reading: Reading, version: int | None = None) -> DataFrame:
        """The sequence of each row of the mirror, now or at a version: key, stored."""
        rows = self.mirror.frame(version).alias("t")
        return rows.select(stored_key(reading), T("__seq").alias("stored"))


def stored_key(reading: Reading) -> Column:
    """The ``key`` of a stored row, as a state has it."""
    return F.struct(*[T(name).cast(reading.columns[name]).alias(name) for name in reading.key]).alias("key")
