"""Files of rows as a source of records: the table, place and offset of each row."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final, Protocol

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from lakemirror.api.source import CsvFormat, FilesSource
from lakemirror.driver.checkpoint.storage import Entry, LocalStorage, file_system
from lakemirror.driver.errors import cause_of
from lakemirror.driver.read.base import CONTENT, RAW_NAMES, REREAD, SavedLines
from lakemirror.driver.read.files import limits
from lakemirror.driver.read.files.ledger import InputFile
from lakemirror.driver.read.files.listing import Inputs
from lakemirror.driver.read.files.records import block_of, read_lines, read_records
from lakemirror.driver.read.files.text_rows import csv_rows, json_rows
from lakemirror.driver.read.files.texts import TextFiles
from lakemirror.driver.read.files.typed_rows import BeyondLimit, NotReadable, TypedFiles
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

    def why_not(self, name: str, *, settled: bool = False) -> str | None:
        """Return why a file cannot be read now, or None if it can.

        The last line of a file that is ``settled`` may lack its end. Raises FileNotFoundError and
        PermissionError.
        """

    def layout(self, entry: Entry) -> str:
        """Return a text that identifies the columns of a file that can be read, if its format has any.

        The files of one layout are read together. Raises the same errors as `why_not`.
        """

    def room(self, entry: Entry) -> int | None:
        """Return the maximum number of offsets that a file's rows need, or None if records have offsets."""

    def read(self, files: Sequence[InputFile]) -> DataFrame:
        """Return the records of files, as RAW."""

    def lines(self, files: Sequence[InputFile]) -> SavedLines | None:
        """Return their lines, if each is a record whose key and value are text."""

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
        return _Rows(spark, inputs, table_of, lambda uris: json_rows(spark, uris))
    if source.format == "csv":
        form = source.csv or CsvFormat()
        delimiter = form.delimiter if form.header else None
        return _Rows(spark, inputs, table_of, lambda uris: csv_rows(spark, uris, form, optional), delimiter)
    return _Typed(spark, inputs, table_of, TypedFiles(spark, source.format))


class _Texts:
    """Files of text. ``delimiter`` is that of their first line, if this is a header."""

    def __init__(self, spark: SparkSession, inputs: Inputs, delimiter: str | None = None) -> None:
        self._spark, self._inputs, self._delimiter = spark, inputs, delimiter
        self._files = TextFiles(spark)
        self._sizes: dict[str, int] = {}
        """The uncompressed sizes, in bytes, of compressed files that were examined."""

    def why_not(self, name: str, *, settled: bool = False) -> str | None:
        storage, uri = self._inputs.storage(), self._inputs.uri(name)
        compressed = self._files.is_compressed(uri)
        if not compressed and not settled and not storage.ends_in_newline(name):
            return NO_END
        return self._unfit(name, uri, compressed) or self._unfit_header(uri)

    def layout(self, entry: Entry) -> str:
        if self._delimiter is None:
            return ""
        return hashlib.sha256(self._files.first_line(self._inputs.uri(entry.name)).rstrip(b"\r")).hexdigest()

    def damage(self, file: InputFile) -> str | None:
        return self.why_not(file.name, settled=True)

    def _unfit(self, name: str, uri: str, compressed: bool) -> str | None:
        size = self._inputs.storage().stat(name).size
        if not compressed and size <= limits.LONGEST_LINE:
            return None
        text = self._files.measure(uri, size)
        reason = limits.beyond(text, size, compressed=compressed)
        if reason is None and text.damage is not None:
            return CUT_OFF if name.endswith(".gz") else f"it cannot be decompressed: {text.damage}"
        if reason is None and compressed:
            self._sizes[name] = text.size
        return reason

    def _unfit_header(self, uri: str) -> str | None:
        if self._delimiter is None:
            return None
        return limits.beyond_header(self._files.first_line(uri), self._delimiter)


class _Records(_Texts):
    """Kafka records."""

    def __init__(self, spark: SparkSession, inputs: Inputs, *, base64: bool) -> None:
        super().__init__(spark, inputs)
        self._base64 = base64

    def room(self, entry: Entry) -> int | None:
        self._sizes.pop(entry.name, None)
        return None

    def read(self, files: Sequence[InputFile]) -> DataFrame:
        uris = [self._inputs.uri(each.name) for each in files]
        return read_records(self._spark, uris, size=sum(f.size for f in files), base64=self._base64)

    def lines(self, files: Sequence[InputFile]) -> SavedLines | None:
        if self._base64:
            return None
        uris = [self._inputs.uri(each.name) for each in files]
        storage, plain = self._inputs.storage(), None
        if isinstance(storage, LocalStorage) and not any(map(self._files.is_compressed, uris)):
            plain = tuple((str(storage.path / each.name), each.size) for each in files)
        size = sum(each.size for each in files)
        frame, name = partial(read_lines, self._spark, uris, size=size), partial(_file_of, self._spark)
        return SavedLines(frame, plain, block_of(size), name)


class _Rows(_Texts):
    """Rows of text. ``rows_of`` reads files by URI."""

    def __init__(
        self,
        spark: SparkSession,
        inputs: Inputs,
        table_of: Callable[[str], str],
        rows_of: Callable[[Sequence[str]], DataFrame],
        delimiter: str | None = None,
    ) -> None:
        super().__init__(spark, inputs, delimiter)
        self._table_of, self._rows_of = table_of, rows_of

    def room(self, entry: Entry) -> int | None:
        # A file that several tasks decompress numbers its rows from bytes of the file.
        return 1 + entry.size + self._sizes.pop(entry.name, 0)

    def read(self, files: Sequence[InputFile]) -> DataFrame:
        uris = [self._inputs.uri(each.name) for each in files]
        return _as_records(self._spark, self._inputs, self._table_of, files, self._rows_of(uris))

    def lines(self, files: Sequence[InputFile]) -> SavedLines | None:
        return None


class _Typed:
    """Rows with types."""

    def __init__(
        self, spark: SparkSession, inputs: Inputs, table_of: Callable[[str], str], files: TypedFiles
    ) -> None:
        self._spark, self._inputs, self._table_of, self._files = spark, inputs, table_of, files

    def why_not(self, name: str, *, settled: bool = False) -> str | None:
        try:
            self._files.inspect(self._inputs.uri(name))
            return None
        except NotReadable as error:
            return _why(error)

    def layout(self, entry: Entry) -> str:
        return self._files.inspect(self._inputs.uri(entry.name)).schema.json()

    def room(self, entry: Entry) -> int | None:
        return self._files.inspect(self._inputs.uri(entry.name)).room

    def read(self, files: Sequence[InputFile]) -> DataFrame:
        uris = [self._inputs.uri(each.name) for each in files]
        found = self._files.read(uris)
        return _as_records(self._spark, self._inputs, self._table_of, files, found)

    def lines(self, files: Sequence[InputFile]) -> SavedLines | None:
        return None

    def damage(self, file: InputFile) -> str | None:
        try:
            self.read([file]).agg(F.max(F.length("value"))).collect()
        except NotReadable as error:
            return _why(error)
        except (PySparkException, Py4JJavaError) as error:
            # Its bytes can be read, so the failure is not that of its storage.
            if "FAILED_READ_FILE" in str(error) and self._is_there(file):
                return f"it is damaged: {cause_of(error)}"
        return None

    def _is_there(self, file: InputFile) -> bool:
        return self._inputs.sha256(file.name, file.size) == file.sha256


def _why(error: NotReadable) -> str:
    return str(error) if isinstance(error, BeyondLimit) else f"it cannot be read: {error}"


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


def _file_of(spark: SparkSession, path: str) -> str:
    """Return the column ``file`` of the records of a file on a local disk."""
    return re.sub("^file:/+", "file:/", place_of(spark, f"file://{path}"))


def place_of(spark: SparkSession, uri: str) -> str:
    """Return the place of a file, as it appears in the column ``file`` of its rows."""
    files, path = file_system(spark, uri)
    return re.sub("^file:/+", "file:///", str(files.makeQualified(path).toUri().toString()))
