"""Accesses a Delta table's log through Delta's own classes: transactions, files and deletion vectors.

These are internals of delta-spark 4.4 (package ``org.apache.spark.sql.delta``), so check this module when you
change the version. Delta's PROTOCOL.md describes what they do (Add File, Deletion Vectors).
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import cached_property, partial
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyroaring import BitMap64
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.classic.dataframe import DataFrame as ClassicDataFrame
from pyspark.sql.types import StructType

from lakemirror.driver.checkpoint.storage import file_system
from lakemirror.driver.errors import CommittedBefore, LakemirrorError
from lakemirror.driver.java import delta_log, java_class
from lakemirror.driver.reduce.bounds import Bound
from lakemirror.driver.tables import creation, delta
from lakemirror.driver.tables.delta import applied_at
from lakemirror.driver.tables.mirror import VECTORS_PROPERTY
from lakemirror.driver.write.writer import Transaction, Written
from lakemirror.driver.writer import exact_json
from lakemirror.driver.writer.actions import Metadata
from lakemirror.driver.writer.data_files import Layout, data_files
from lakemirror.driver.writer.schema import arrow_schema

Rows = npt.NDArray[np.int64]
"""Indexes of rows in a file."""

_DELTA: Final = "org.apache.spark.sql.delta"
_Ranges = tuple[Mapping[str, Any], Mapping[str, Any]]

_MAGIC: Final = (1681511377).to_bytes(4, "little")
"""The start of a bitmap in Delta's portable format (PROTOCOL.md, Deletion Vector Format)."""


class TableChanged(LakemirrorError):
    """A table is no longer as it was when it was decided what to add to it."""


class Lost(NamedTuple):
    """Data files of a table that are gone, and how many rows they had, if Delta has counted them."""

    files: int
    rows: int | None


class DataFiles:
    """The data files of a table at a version, by the hash of their place (see `place_of`).

    Also holds what their statistics say about columns, by Delta's physical names: the minimum and maximum
    values.
    """

    def __init__(self, version: int, files: Mapping[int, Any], before: DataFiles | None = None) -> None:
        """Create the list of data files.

        ``before`` are the files of an earlier version, whose statistics are known.
        """
        self.version = version
        self.files = dict(files)
        known: Mapping[int, _Ranges] = before._known if before is not None else {}
        self._known: dict[int, _Ranges] = {
            place: known.get(place) or _ranges(add) for place, add in files.items()
        }

    def within(self, bounds: Mapping[str, Bound]) -> dict[int, Any]:
        """Return the files that may contain values within the bounds of columns, by physical name."""
        return {place: add for place, add in self.files.items() if _meets(self._known[place], bounds)}


def _ranges(add: Any) -> _Ranges:
    stats = json.loads(add.stats() or "{}")
    return stats.get("minValues") or {}, stats.get("maxValues") or {}


def _meets(ranges: _Ranges, bounds: Mapping[str, Bound]) -> bool:
    least, greatest = ranges
    return all(bound.meets(least.get(name), greatest.get(name)) for name, bound in bounds.items())


class Attempt:
    """One transaction: what to commit, against the table as it was when the transaction began."""

    def __init__(
        self, log: TableLog, transaction: Transaction, started: Any, snapshot: Any, data: DataFiles
    ) -> None:
        self._log = log
        self._started = started
        self._snapshot = snapshot
        self.transaction = transaction
        self.data = data

    @cached_property
    def schema(self) -> StructType:
        """The table's schema."""
        return StructType.fromJson(json.loads(self._snapshot.metadata().schemaString()))

    @cached_property
    def vectors(self) -> bool | None:
        """Whether the table may have deletion vectors, or None if its properties do not say."""
        setting = self._snapshot.metadata().configuration().get(VECTORS_PROPERTY)
        return str(setting.get()).lower() == "true" if setting.isDefined() else None

    def rows(self, files: Iterable[Any]) -> DataFrame:
        """Return the rows of data files."""
        return self._log.frame(self._snapshot, files)

    def files_within(self, bounds: Mapping[str, Bound]) -> dict[int, Any]:
        """Return the files that may contain values within ``bounds``, by the hash of their place."""
        physical = {each.name: each.metadata.get(_PHYSICAL, each.name) for each in self.schema.fields}
        return self.data.within({physical[name]: bound for name, bound in bounds.items()})

    def write(self, frame: DataFrame) -> list[Any]:
        """Write rows as new data files, which no reader sees before they are committed."""
        return _listed(self._started.writeFiles(frame._jdf))

    def commit(
        self,
        added: Sequence[Any],
        gone: Mapping[int, Rows],
        written: Written,
        *,
        anew: Collection[int] = (),
    ) -> None:
        """Add files and hide the rows that are ``gone``, by the hash of their file's place.

        Files whose rows were rewritten (``anew``) are removed. The commit records what was ``written``.
        """
        rows = {"inserted": written.inserted, "updated": written.updated, "deleted": written.deleted}
        note = {**self.transaction.note, "rows": rows}
        self._log.commit(self, self._started, added, gone, note, anew)

    def discard(self, added: Iterable[Any]) -> None:
        """Delete files that were written but are not going to be committed."""
        self._log.discard(added)


class TableLog:
    """The log of the table at ``path``.

    Caches the list of data files, and reads it again only if somebody else has committed.
    """

    def __init__(self, spark: SparkSession, path: str) -> None:
        self._spark = spark
        self._java = partial(java_class, spark)
        self._path = path
        self._log = self._opened()
        self._base = self._log.dataPath()
        self._none = self._java("scala.Option").empty()
        self._known: DataFiles | None = None
        self._done: int | None = None

    def _opened(self) -> Any:
        return delta_log(self._spark, self._path)

    def begin(self, transaction: Transaction) -> Attempt:
        """Start a transaction that fails if somebody else changes the table in the meantime.

        It begins from the newest version that this process has seen: look at the table before.

        Raises CommittedBefore if the log has a batch with this number.
        """
        self._log = self._opened()  # Delta forgets logs that nobody has asked for in an hour
        # The mirror has just been looked at. If somebody has committed since, the commit is a conflict.
        started = self._begin(self._log.unsafeVolatileSnapshot())
        snapshot = started.snapshot()
        version = int(snapshot.version())
        if self._known is None or self._known.version != version:
            self._known = DataFiles(version, {self._hash(each): each for each in _files(snapshot)})
            self._done = applied_at(snapshot, transaction.app_id)
        if self._done is not None and self._done >= transaction.batch.batch_id:
            number = transaction.batch.batch_id
            raise CommittedBefore(f"{self._base.toString()} has batch {number} already")
        started.readWholeTable()
        return Attempt(self, transaction, started, snapshot, self._known)

    def frame(self, snapshot: Any, files: Iterable[Any]) -> DataFrame:
        """Return the rows of some data files."""
        listed = self._seq(files)
        frame = self._log.createDataFrame(snapshot, listed, False, self._none)
        return ClassicDataFrame(frame, self._spark)

    def discard(self, added: Iterable[Any]) -> None:
        """Delete files that were written but are not going to be committed."""
        for each in added:
            files, path = file_system(self._spark, self._place(each).toString())
            files.delete(path, False)

    def commit(
        self,
        attempt: Attempt,
        started: Any,
        added: Sequence[Any],
        gone: Mapping[int, Rows],
        note: Mapping[str, Any],
        anew: Collection[int],
    ) -> None:
        """See `Attempt.commit`."""
        transaction, data = attempt.transaction, attempt.data
        actions, live = self._java("java.util.ArrayList")(), dict(data.files)
        for each in added:
            actions.add(each)
            live[self._hash(each)] = each
        hidden = {place: rows for place, rows in gone.items() if place not in anew}
        vectors: dict[int, Any] = {**dict.fromkeys(anew), **self._vectors(data, hidden)}
        for place, vector in vectors.items():
            old = data.files[place]
            if vector is None or _whole(old, vector):
                actions.add(old.removeWithTimestamp(self._now(), True))
                del live[place]
            else:
                pair = old.removeRows(vector, True, True)
                live[place] = pair._1()
                actions.add(pair._1())
                actions.add(pair._2())
        number = transaction.batch.batch_id
        started.updateSetTransaction(
            transaction.app_id, number, self._java("scala.Option").apply(self._now())
        )
        version = self._commit(started, actions, transaction.app_id, number, json.dumps(note, sort_keys=True))
        # A commit that is no conflict to Delta may have come in between; then the files are read again.
        alone = version == data.version + 1
        self._known, self._done = DataFiles(version, live, data) if alone else None, number

    def append(self, rows: DataFrame, newest: Any) -> None:
        """Add rows to the table as it is in a snapshot, or later, in a commit that belongs to no batch."""
        started = self._begin(newest)
        self._commit(started, _listed(started.writeFiles(rows._jdf)), "append", 0, None)

    def append_at(self, rows: pa.Table, version: int) -> int:
        """Add rows to the table as it is at ``version``, and return the version that has them.

        Columns that the rows lack are null. Raises TableChanged if the table is at another version, and
        Delta's error if somebody else adds rows in the meantime.
        """
        started = self._log.startTransaction()
        found = int(started.snapshot().version())
        if found != version:
            raise TableChanged(
                f"{self._base.toString()} is at version {found}, and {version} was expected: another driver "
                "has written to it"
            )
        started.readWholeTable()
        # The note is empty, because without one, Delta uses the note of the running batch.
        return self._commit(started, self._stored(rows, started.metadata()), "append", 0, "")

    def _stored(self, rows: pa.Table, metadata: Any) -> list[Any]:
        """Store rows as a data file, for which Spark would need a job, and return Delta's action for it."""
        found = Metadata(exact_json.loads(metadata.json())["metaData"])
        layout = Layout.of_metadata(found)
        schema = arrow_schema(layout.columns)
        missing = {name: pa.nulls(rows.num_rows, schema.field(name).type) for name in schema.names}
        columns = {**missing, **dict(zip(rows.column_names, rows.columns, strict=True))}
        table = pa.table({name: columns[name] for name in schema.names}, schema)
        actions = []
        for file, add in data_files(table, layout, self._now(), uuid.uuid4):
            files, place = file_system(self._spark, f"{self._base.toString()}/{file.path}")
            stream = files.create(place, False)
            try:
                stream.write(bytearray(file.content))
            finally:
                stream.close()
            actions.append(self._java(f"{_DELTA}.actions.Action").fromJson(exact_json.dumps(add.action)))
        return actions

    def _begin(self, snapshot: Any) -> Any:
        """Start a transaction from a snapshot, for which Delta does not list the log again."""
        return self._log.startTransaction(self._none, self._java("scala.Option").apply(snapshot))

    def forget_lost(self, newest: Any) -> Lost | None:
        """Note in the log which data files are gone, so that the rest can be read and changed again.

        ``newest`` is the table's newest snapshot. Only files in the table's folder are looked for. Returns
        None if all are there.
        """
        started = self._begin(newest)
        listed = _files(newest)
        files, folder = file_system(self._spark, self._base.toString())
        placed = [(each, self._place(each)) for each in listed]
        within = [(each, place) for each, place in placed if str(place).startswith(f"{folder}/")]
        folders = {str(place.getParent()): place.getParent() for _, place in within}
        there = {name: _names_in(files, each) for name, each in folders.items()}
        lost = [
            each
            for each, place in within
            if place.getName() not in there[str(place.getParent())] and not files.exists(place)
        ]
        if not lost:
            return None
        started.readWholeTable()
        gone = [each.removeWithTimestamp(self._now(), True) for each in lost]
        self._commit(started, gone, "lost", 0, "")
        return Lost(len(lost), rows_in(lost))

    def _commit(self, started: Any, actions: Any, app_id: str, number: int, note: str | None) -> int:
        """Commit actions as an operation for which Delta maintains its incremental checksum.

        With other operations, Delta computes the state of the log at each commit.
        """
        operation = self._java(f"{_DELTA}.DeltaOperations$StreamingUpdate")(
            self._java("org.apache.spark.sql.streaming.OutputMode").Update(),
            app_id,
            number,
            self._java("scala.Option").apply(note),
        )
        return int(started.commit(self._seq(actions), operation))

    def _vectors(self, data: DataFiles, hidden: Mapping[int, Rows]) -> dict[int, Any]:
        """Store which rows of each file are hidden from now on, including those that were hidden before."""
        if not hidden:
            return {}
        entries = self._java("java.util.ArrayList")()
        for place, rows in hidden.items():
            before = data.files[place].deletionVector()
            former = self._java("scala.Option").apply(None if before is None else before.serializeToBase64())
            bitmap = bytearray(_MAGIC + BitMap64(rows).serialize())
            entries.add(
                self._java(f"{_DELTA}.commands.DeletionVectorData")(str(place), former, bitmap, len(rows))
            )
        writer = getattr(self._java(f"{_DELTA}.commands.DeletionVectorWriter$"), "MODULE$")
        store = writer.createMapperToStoreDeletionVectors(
            self._spark._jsparkSession, self._log.newDeltaHadoopConf(), self._base, 0
        )
        stored = _listed(store.apply(self._seq(entries).iterator()).toList())
        return {int(each.filePath()): each.deletionVector() for each in stored}

    def _place(self, add: Any) -> Any:
        """Return the path of a data file."""
        operations = getattr(self._java(f"{_DELTA}.util.DeltaFileOperations$"), "MODULE$")
        return operations.absolutePath(self._base.toString(), add.path())

    def _hash(self, add: Any) -> int:
        """Return what `place_of` returns for the rows of a file."""
        place = self._place(add).toUri().toString()  # in the form of Spark's _metadata.file_path
        text = self._java("org.apache.spark.unsafe.types.UTF8String").fromString(place)
        return int(self._java("org.apache.spark.sql.catalyst.expressions.XXH64").hashUTF8String(text, _SEED))

    def _seq(self, items: Iterable[Any]) -> Any:
        found = items
        if not hasattr(items, "_get_object_id"):
            found = self._java("java.util.ArrayList")()
            for each in items:
                found.add(each)
        return self._java("org.apache.spark.api.python.PythonUtils").toSeq(found)

    def _now(self) -> int:
        return int(self._java("java.lang.System").currentTimeMillis())


def _names_in(files: Any, folder: Any) -> Collection[str]:
    """Return the names of the files in a folder, which may be gone."""
    return {each.getPath().getName() for each in files.listStatus(folder)} if files.exists(folder) else ()


def forget_lost(spark: SparkSession, path: str) -> Lost | None:
    """Note in the log of one of our own tables which of its data files are gone.

    Returns None if all are there, or there is no table.
    """
    newest = delta.snapshot(spark, path)
    return TableLog(spark, path).forget_lost(newest) if int(newest.version()) >= 0 else None


def tells_of_lost_file(error: Exception) -> bool:
    """Return whether an error of Spark says that a data file is gone."""
    return "FAILED_READ_FILE.FILE_NOT_EXIST" in str(error) or "FileNotFoundException" in str(error)


_PHYSICAL: Final = "delta.columnMapping.physicalName"
_SEED: Final = 42
"""The seed of Spark's function xxhash64."""


def place_of(rows: DataFrame) -> Column:
    """BIGINT: the hash of the place of the file that contains a row of a scan."""
    return F.xxhash64(rows.metadataColumn("_metadata")["file_path"])


def row_of(rows: DataFrame) -> Column:
    """BIGINT: the index of a row of a scan in its file."""
    return rows.metadataColumn("_metadata")["row_index"]


def rows_in(files: Iterable[Any]) -> int | None:
    """Return how many rows data files have that no deletion vector hides.

    Returns None if Delta keeps no statistics.
    """
    counts = [each.numLogicalRecords() for each in files]
    return sum(int(each.get()) for each in counts) if all(each.isDefined() for each in counts) else None


def rows_of(snapshot: Any) -> int | None:
    """Return how many rows a table has at a version, without running a job.

    Returns None if its log does not say.
    """
    listed = _listed_files(snapshot)
    return None if listed is None else rows_in(listed)


def _whole(add: Any, vector: Any) -> bool:
    """Return whether a deletion vector hides all rows of a file."""
    count = add.numPhysicalRecords()
    return bool(count.isDefined() and int(count.get()) == int(vector.cardinality()))


def _files(snapshot: Any) -> list[Any]:
    """Return all data files."""
    listed = _listed_files(snapshot)
    return list(snapshot.allFiles().collect()) if listed is None else listed


def _listed_files(snapshot: Any) -> list[Any] | None:
    """Return all data files if the version's checksum file lists them, or None.

    It lists them only if there are few.
    """
    checksum = snapshot.checksumOpt()
    if not checksum.isDefined():
        return None
    if int(checksum.get().numFiles()) == 0:
        return []
    listed = checksum.get().allFiles()
    return _listed(listed.get()) if listed.isDefined() else None


def _listed(items: Any) -> list[Any]:
    return [items.apply(i) for i in range(items.size())]


def append(rows: DataFrame, path: str) -> None:
    """Append rows to one of our own tables, in one commit and one file.

    Creates the table if it does not exist.

    Unlike a write by Spark, this is not affected by the transaction that the session's settings name.
    """
    rows = rows.coalesce(1)
    newest = delta.snapshot(rows.sparkSession, path)
    if int(newest.version()) < 0 or _columns(newest) != rows.columns:
        delta.append(rows, path, delta.SELDOM_READ)
    else:
        TableLog(rows.sparkSession, path).append(rows, newest)


def _columns(snapshot: Any) -> list[str]:
    return StructType.fromJson(json.loads(snapshot.metadata().schemaString())).fieldNames()


def append_at(spark: SparkSession, rows: pa.Table, columns: StructType, path: str, version: int) -> int:
    """Append rows to one of our own tables without a job, and return the version that has them.

    The table must be at ``version`` (-1: it does not exist, and gets these ``columns``), and no other writer
    may commit in between. Otherwise, raises TableChanged or Delta's error.
    """
    if version < 0:
        creation.create(spark, path, columns, delta.SELDOM_READ)
        version = 0
    elif not set(columns.names) <= set(_columns(delta.seen(spark, path))):
        delta.append(spark.createDataFrame([], columns), path)
        version += 1
    return TableLog(spark, path).append_at(rows, version)
