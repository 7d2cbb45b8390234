"""Files of rows as a source of records: the table, place and offset of each row."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Final, Protocol

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from lakemirror.api.source import CsvFormat, FilesSource
from lakemirror.driver.checkpoint.storage import Entry, file_system
from lakemirror.driver.errors import cause_of
from lakemirror.driver.read.base import CONTENT, RAW_NAMES, REREAD
from lakemirror.driver.read.files.ledger import InputFile
from lakemirror.driver.read.files.listing import Inputs
from lakemirror.driver.read.files.records import read_records
from lakemirror.driver.read.files.text_rows import csv_rows, json_rows
from lakemirror.driver.read.files.typed_rows import NotReadable, TypedFiles
from lakemirror.driver.read.files.waiting import CUT_OFF, NO_END

SUFFIXES: Final = {
    "records": (".jsonl", ".jsonl.gz"),
    "json": (".json", ".jsonl", ".ndjson", ".json.gz", ".jsonl.gz", ".ndjson.gz"),
    "csv": (".csv", ".tsv", ".txt", ".csv.gz", ".tsv.gz", ".txt.gz"),
    "parquet": (".parquet",),
    "avro": (".avro",),
}
"""The suffixes of files that are taken from a folder, by format."""


class Reader(Protocol):
    """Reads the files of one format."""

    def why_not(self, name: str) -> str | None:
        """Return why a file cannot be read now, or None if it can.

        Raises FileNotFoundError and PermissionError.
        """

    def room(self, entry: Entry) -> int | None:
        """Return the maximum number of offsets that a file's rows need, or None if records have offsets."""

    def read(self, files: Sequence[InputFile]) -> DataFrame:
        """Return the records of files, as RAW."""

    def damage(self, file: InputFile) -> str | None:
        """Return what prevents a file from being read to its end, or None if nothing does."""


def reader_of(
    spark: SparkSession,
    source: FilesSource,
    inputs: Inputs,
    *,
    base64: bool,
    optional: str | None,
    table_of: Callable[[str], str],
) -> Reader:
    """Return the reader for the source's format.

    ``optional`` is the column that a row of CSV without header may lack.
    """
    if source.format == "records":
        return _Records(spark, inputs, base64=base64)
    if source.format == "json":
        return _Texts(spark, inputs, table_of, lambda uris: json_rows(spark, uris))
    if source.format == "csv":
        form = source.csv or CsvFormat()
        return _Texts(spark, inputs, table_of, lambda uris: csv_rows(spark, uris, form, optional))
    return _Typed(spark, inputs, table_of, TypedFiles(spark, source.format))


def _why_no_text(inputs: Inputs, name: str) -> str | None:
    if name.endswith(".gz"):
        return CUT_OFF if inputs.storage().gunzipped_size(name) is None else None
    return None if inputs.storage().ends_in_newline(name) else NO_END


class _Records:
    """Kafka records."""

    def __init__(self, spark: SparkSession, inputs: Inputs, *, base64: bool) -> None:
        self._spark, self._inputs, self._base64 = spark, inputs, base64

    def why_not(self, name: str) -> str | None:
        return _why_no_text(self._inputs, name)

    def room(self, entry: Entry) -> int | None:
        return None

    def read(self, files: Sequence[InputFile]) -> DataFrame:
        uris = [self._inputs.uri(each.name) for each in files]
        return read_records(self._spark, uris, size=sum(f.size for f in files), base64=self._base64)

    def damage(self, file: InputFile) -> str | None:
        return None


class _Texts:
    """Rows of text. ``rows_of`` reads files by URI."""

    def __init__(
        self,
        spark: SparkSession,
        inputs: Inputs,
        table_of: Callable[[str], str],
        rows_of: Callable[[Sequence[str]], DataFrame],
    ) -> None:
        self._spark, self._inputs, self._table_of = spark, inputs, table_of
        self._rows_of = rows_of
        self._sizes: dict[str, int] = {}
        """The uncompressed sizes, in bytes, of compressed files that were examined."""

    def why_not(self, name: str) -> str | None:
        if not name.endswith(".gz"):
            return _why_no_text(self._inputs, name)
        size = self._inputs.storage().gunzipped_size(name)
        if size is None:
            return CUT_OFF
        self._sizes[name] = size
        return None

    def room(self, entry: Entry) -> int | None:
        return 1 + self._sizes.pop(entry.name, entry.size)

    def read(self, files: Sequence[InputFile]) -> DataFrame:
        uris = [self._inputs.uri(each.name) for each in files]
        return _as_records(self._spark, self._inputs, self._table_of, files, self._rows_of(uris))

    def damage(self, file: InputFile) -> str | None:
        return None


class _Typed:
    """Rows with types."""

    def __init__(
        self, spark: SparkSession, inputs: Inputs, table_of: Callable[[str], str], files: TypedFiles
    ) -> None:
        self._spark, self._inputs, self._table_of, self._files = spark, inputs, table_of, files

    def why_not(self, name: str) -> str | None:
        try:
            self._files.inspect(self._inputs.uri(name))
            return None
        except NotReadable as error:
            return f"it cannot be read: {error}"

    def room(self, entry: Entry) -> int | None:
        return self._files.inspect(self._inputs.uri(entry.name)).room

    def read(self, files: Sequence[InputFile]) -> DataFrame:
        uris = [self._inputs.uri(each.name) for each in files]
        found = self._files.read(uris)
        return _as_records(self._spark, self._inputs, self._table_of, files, found)

    def damage(self, file: InputFile) -> str | None:
        try:
            self.read([file]).agg(F.max(F.length("value"))).collect()
        except NotReadable as error:
            return f"it cannot be read: {error}"
        except (PySparkException, Py4JJavaError) as error:
            # Its bytes can be read, so the failure is not that of its storage.
            if "FAILED_READ_FILE" in str(error) and self._is_there(file):
                return f"it is damaged: {cause_of(error)}"
        return None

    def _is_there(self, file: InputFile) -> bool:
        return self._inputs.sha256(file.name, file.size) == file.sha256


def _as_records(
    spark: SparkSession,
    inputs: Inputs,
    table_of: Callable[[str], str],
    files: Sequence[InputFile],
    found: DataFrame,
) -> DataFrame:
    """Return RAW records of rows (file, row, value, problem).

    The topic is the table that the file's place names. The offset increases with each row and file.
    """
    places = [place_of(spark, inputs.uri(each.name)) for each in files]
    listed = [
        (place, table_of(f.name), f.start, f.mtime, f.sha256) for place, f in zip(places, files, strict=True)
    ]
    columns = "file STRING, topic STRING, start BIGINT, mtime BIGINT, sha256 STRING"
    of_file = spark.createDataFrame(listed, columns)
    # Hadoop writes local URIs with one slash or with three.
    file = F.regexp_replace("file", "^file:/+", "file:///")
    known = found.withColumn("file", file).join(F.broadcast(of_file), "file", "left")
    unknown = F.raise_error(F.concat(F.lit("no such file in the batch: "), "file"))
    start = F.coalesce("start", unknown.cast("bigint"))
    record = {
        "topic": F.col("topic"),
        "partition": F.lit(0),
        "offset": start + F.col("row"),
        "timestamp": F.timestamp_millis("mtime"),
        "key": F.lit(None).cast("binary"),
        "value": F.col("value"),
        "headers": F.array(F.struct(F.lit(CONTENT).alias("key"), F.encode("sha256", "utf-8").alias("value"))),
        "file": F.col("file"),
        "row": F.col("row"),
        "problem": F.col("problem"),
    }
    return known.select(*[record[name].alias(name) for name in RAW_NAMES])


def as_reread(rows: DataFrame) -> DataFrame:
    """Return rows of files, marked as ones that are read even though tables may already have their files."""
    mark = F.struct(F.lit(REREAD).alias("key"), F.lit(bytearray()).alias("value"))
    return rows.withColumn("headers", F.concat("headers", F.array(mark)))


def place_of(spark: SparkSession, uri: str) -> str:
    """Return the place of a file, as it appears in the column ``file`` of its rows."""
    files, path = file_system(spark, uri)
    return re.sub("^file:/+", "file:///", str(files.makeQualified(path).toUri().toString()))
