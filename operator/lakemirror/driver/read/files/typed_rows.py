"""Rows of Parquet and Avro files. Each becomes a document with its schema (`lakemirror.driver.read.rows`)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial, reduce
from typing import Any, Final, Literal

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.readwriter import DataFrameReader
from pyspark.sql.types import StructType

from lakemirror.driver.checkpoint.storage import file_system
from lakemirror.driver.errors import cause_of
from lakemirror.driver.java import java_class
from lakemirror.driver.read import rows
from lakemirror.driver.read.files.limits import (
    ANY_PART,
    LARGEST_PART,
    LARGEST_RATIO,
    Parts,
    beyond_parts,
)
from lakemirror.driver.read.files.lines import BLOCK, block_start, in_block, in_blocks
from lakemirror.driver.read.files.listing import literal
from lakemirror.driver.read.files.times_of_day import Types, types_of_avro, types_of_parquet
from lakemirror.driver.tables.delta import quoted

Format = Literal["parquet", "avro"]

_ROW_METADATA: Final = "org.apache.spark.sql.parquet.row.metadata"


_MEASURE: Final = "io.lakemirror.delta.ContainerMeasure"


class NotReadable(Exception):
    """A file is not of its format, or has a type that cannot be mirrored. The message says which."""


class BeyondLimit(NotReadable):
    """A file is beyond a limit. The message says which, and what to do."""


@dataclass(frozen=True)
class Inspected:
    """The types of a file, and how its rows are numbered.

    ``stored`` has the types that Spark reads the file with, ``schema`` those that its values have.

    Row numbers are below ``room``. In an Avro file, those of a block of bytes start at ``per_byte`` times its
    first byte.
    """

    schema: StructType
    stored: StructType
    room: int
    per_byte: int = 1


class TypedFiles:
    """Files of one format.

    Reads their footers and headers, and determines a schema that many files share from only one of them.
    """

    def __init__(self, spark: SparkSession, form: Format) -> None:
        self._spark, self._form = spark, form
        self._java = partial(java_class, spark)
        self._types: dict[str, Types] = {}
        self._inspected: dict[str, tuple[tuple[int, int], Inspected]] = {}

    def inspect(self, uri: str) -> Inspected:
        """Return what a file contains. Raises NotReadable, FileNotFoundError and PermissionError."""
        files, path = file_system(self._spark, uri)
        try:
            if not files.exists(path):
                raise FileNotFoundError(uri)
            status = files.getFileStatus(path)
            stamp = int(status.getLen()), int(status.getModificationTime())
            known = self._inspected.get(uri)
            if known is None or known[0] != stamp:
                known = self._inspected[uri] = stamp, self._inspect(uri, files, path, stamp[0])
            return known[1]
        except (Py4JJavaError, PySparkException, rows.UnreadableType) as error:
            if "AccessControlException" in str(error):
                raise PermissionError(uri) from None
            raise NotReadable(cause_of(error)) from None

    def _inspect(self, uri: str, files: Any, path: Any, size: int) -> Inspected:
        identity, count, types = (self._parquet if self._form == "parquet" else self._avro)(files, path)
        known = self._types.get(identity)
        if known is None:
            known = types() or Types.of(self._load(self._spark.read, None, [uri]).schema)
            rows.schema_of(known.schema.fields)
            self._types[identity] = known
        if self._form == "parquet":
            return Inspected(known.schema, known.stored, count + 1)
        per_byte = 1 + count // BLOCK
        return Inspected(known.schema, known.stored, size * per_byte + count + 1, per_byte)

    def read(self, uris: Sequence[str]) -> DataFrame:
        """Return (file, row, value (BINARY), problem) of files."""
        groups: dict[tuple[str, int], tuple[Inspected, list[str]]] = {}
        for uri in uris:
            told = self.inspect(uri)
            groups.setdefault((told.schema.json(), told.per_byte), (told, []))[1].append(uri)
            del self._inspected[uri]
        return reduce(DataFrame.unionAll, [self._documents(*each) for each in groups.values()])

    def _documents(self, told: Inspected, uris: Sequence[str]) -> DataFrame:
        fields = told.schema.fields
        columns = {
            "r": F.struct(*[F.col(quoted(each.name)) for each in fields]),
            "file": F.col("_metadata.file_path"),
        }
        if self._form == "parquet":
            columns["row"] = F.col("_metadata.row_index")
            loaded = self._load(self._spark.read, told.stored, uris)
            found = loaded.select(*[each.alias(name) for name, each in columns.items()])
        else:
            columns["row"] = block_start() * told.per_byte + in_block()
            found = in_blocks(
                self._spark, lambda reader: self._load(reader, told.stored, uris), columns, BLOCK
            )
        value = rows.document(rows.schema_of(fields), rows.wire(fields, "r")).cast("binary")
        problem = F.lit(None).cast("string")
        return found.select("file", "row", value.alias("value"), problem.alias("problem"))

    def _load(self, reader: DataFrameReader, schema: StructType | None, uris: Sequence[str]) -> DataFrame:
        chosen = reader.format(self._form)
        return (chosen if schema is None else chosen.schema(schema)).load([literal(uri) for uri in uris])

    def _parquet(self, files: Any, path: Any) -> tuple[str, int, Callable[[], Types | None]]:
        """Return a text that identifies a file's schema, the number of its rows, and what returns its types.

        That returns None where Spark determines the types by itself.
        """
        hadoop = "org.apache.parquet.hadoop"
        source = self._java(f"{hadoop}.util.HadoopInputFile").fromPath(path, files.getConf())
        reader = self._java(f"{hadoop}.ParquetFileReader").open(source)
        try:
            self._measure(files, path, "page", "parquet", reader.getRowGroups())
            about = reader.getFooter().getFileMetaData()
            told = about.getKeyValueMetaData().get(_ROW_METADATA)
            schema = about.getSchema()
            types = partial(types_of_parquet, self._spark, schema)
            return f"{schema.toString()}{told or ''}", int(reader.getRecordCount()), types
        finally:
            reader.close()

    def _avro(self, files: Any, path: Any) -> tuple[str, int, Callable[[], Types | None]]:
        """Return the same as `_parquet`. Reads all blocks, so that a truncated or damaged one is noticed."""
        count = int(self._measure(files, path, "block", "avro").rows())
        source = self._java("org.apache.avro.mapred.FsInput")(path, files.getConf())
        any_schema = self._java("org.apache.avro.generic.GenericDatumReader")()
        reader = self._java("org.apache.avro.file.DataFileReader")(source, any_schema)
        try:
            schema = str(reader.getSchema().toString())
            return schema, count, partial(types_of_avro, self._spark, schema)
        finally:
            reader.close()

    def _measure(self, files: Any, path: Any, part: str, form: str, *more: Any) -> Any:
        """Return what the parts of a file hold. Raises BeyondLimit before a reader takes memory for them."""
        size, stream = int(files.getFileStatus(path).getLen()), files.open(path)
        try:
            limits = (LARGEST_PART, ANY_PART, LARGEST_RATIO)
            found = getattr(self._java(_MEASURE), form)(stream, size, *more, *limits)
        finally:
            stream.close()
        parts = Parts(int(found.total()), int(found.largest()), bool(found.crowded()))
        reason = beyond_parts(parts, part)
        if reason is not None:
            raise BeyondLimit(reason)
        return found
