"""One source table of a pipeline and its mirror: what the manifest says of it, and what stands in Delta."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import DataType

from lakemirror.api import CdcPipeline, Table
from lakemirror.driver.parse.decode import Reading
from lakemirror.driver.plan.lives import Life, Lives, from_text
from lakemirror.driver.plan.names import check_location
from lakemirror.driver.profile.overview import TableOverview
from lakemirror.driver.results import Drift
from lakemirror.driver.sequence import as_bytes
from lakemirror.driver.tables.columns import T
from lakemirror.driver.tables.mirror import COLUMNS_PROPERTY, KEY_PROPERTY, NULLS_PROPERTY, Mirror
from lakemirror.driver.tables.names import Location, TableName, locate, owner_of
from lakemirror.driver.tables.tombstones import Summary, Tombstones


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
        self._highest: bytes | None = None
        self._writes_nulls = False

    @cached_property
    def location(self) -> Location:
        """Where the mirror stands or is going to stand."""
        assert self.settings.target is not None
        return locate(self.settings.target, self.name)

    @cached_property
    def mirror(self) -> Mirror:
        """The mirror, as it was read last. Raises Refused for a location that cannot be."""
        check_location(self.settings.source, self.location)
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
    def avoided(self) -> Mapping[str, Sequence[str]]:
        """Reader features of Delta that the mirror must not have, each with the programs that lack it."""
        return self.settings.target.avoided if self.settings.target is not None else {}

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
    def fed(self) -> dict[str, DataType] | None:
        """The mirror's columns that the source's columns are written to, by source name; None without a
        mirror.
        """
        if self.mirror.columns is None:
            return None
        back, columns = {mirror: source for source, mirror in self.rename.items()}, self.settings.columns
        found = {}
        for name, kind in self.mirror.columns.items():
            source = back.get(name, name)
            renamed = name in self.rename and name not in back
            if name != self.soft and not renamed and (columns is None or columns.keeps(source)):
                found[source] = kind
        return found

    @property
    def lives(self) -> Lives:
        """What is known of the source's columns."""
        return Lives(self.stored_lives, self.fed, self.highest)

    @property
    def stored_lives(self) -> dict[str, Life]:
        """As the mirror's property has them."""
        return from_text(self.properties.get(COLUMNS_PROPERTY))

    def highest(self) -> bytes | None:
        """The highest sequence of the events that are applied; looked up once, if at all."""
        if self._highest is None and self.mirror.exists:
            row = self.mirror.frame().agg(F.max("__seq")).first()
            stored = as_bytes(row[0]) if row is not None else None
            newest = self.tombstones.summary.newest if self.properties.get(KEY_PROPERTY) != "[]" else None
            self._highest = max(filter(None, (stored, newest)), default=None)
        return self._highest

    def applied(self, seen: TableOverview) -> None:
        """Note that a batch's events are applied."""
        last = max((each.last_seq for each in seen.groups.values() if each.last_seq), default=b"")
        if seen.unanchored:
            self._highest = None  # such an event may be placed higher than it says
        elif self._highest is not None:
            self._highest = max(self._highest, last)

    @property
    def writes_nulls(self) -> bool:
        """Whether a JSON null was seen in a record without schema: who writes one leaves out no column."""
        return self._writes_nulls or self.properties.get(NULLS_PROPERTY) == "true"

    @writes_nulls.setter
    def writes_nulls(self, seen: bool) -> None:
        self._writes_nulls = seen

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
