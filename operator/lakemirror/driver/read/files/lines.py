"""Lines of text files, each with its place."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.readwriter import DataFrameReader

from lakemirror.driver.expressions import kept
from lakemirror.driver.read.files.limits import LONGEST_LINE
from lakemirror.driver.read.files.listing import literal

BLOCK: Final = 16 * 2**20
"""The number of bytes of a file that a task reads: small enough that one file keeps several cores busy."""
_IN_BLOCK: Final = 2**33 - 1
_NO_AUTHORITY: Final = "^([^:/]+):///"
"""How a URI without an authority begins. In ``_metadata.file_path``, it has one slash there."""

NO_RECORD: Final = (
    r"^the line |^the record has no (topic|partition|offset)$|^(key|value) is not base64, "
    r"|^a quote is not closed, |^column \d+ of the file's header |^the file's header has the column "
)
"""How the problems of lines begin. Earlier versions kept such records without their ``problem``."""


def lines(spark: SparkSession, uris: Sequence[str], block: int = BLOCK) -> DataFrame:
    """Return (line, file, row) of text files: all lines, without their line feed.

    ``row`` counts lines from 0. (If a file is read in several blocks, it is the block's first byte plus the
    line number in the block. It increases through the file, but counts lines only in the first block.)
    """
    place = {"file": _file(), "row": block_start() + in_block()}
    return in_blocks(spark, _text(uris), {"line": F.col("value"), **place}, block)


def lines_alone(spark: SparkSession, uris: Sequence[str], block: int = BLOCK) -> DataFrame:
    """Return (line, row, file) of text files, as `lines` does, with ``file`` in the first line of each block.

    A task reads the lines of a block in their order. In each line, Spark would have to copy the file's name,
    and for the columns of ``_metadata`` the line as well.
    """
    return in_blocks(spark, _text(uris), _alone(), block)


@kept
def _alone() -> Mapping[str, Column]:
    row = in_block()
    file = F.when(row == 0, F.regexp_replace(F.input_file_name(), _NO_AUTHORITY, "$1:/"))
    return {"line": F.col("value"), "row": F.input_file_block_start() + row, "file": file}


def _text(uris: Sequence[str]) -> Callable[[DataFrameReader], DataFrame]:
    return lambda reader: reader.text([literal(uri) for uri in uris], lineSep="\n")


def _file() -> Column:
    return F.col("_metadata.file_path")


def block_start() -> Column:
    """BIGINT: the first byte of the block that a row was read from."""
    return F.col("_metadata.file_block_start")


def in_block() -> Column:
    """BIGINT: counts the rows of a block from 0, if each task reads one block."""
    return F.monotonically_increasing_id().bitwiseAND(F.lit(_IN_BLOCK))


def in_blocks(
    spark: SparkSession,
    load: Callable[[DataFrameReader], DataFrame],
    columns: Mapping[str, Column],
    block: int,
) -> DataFrame:
    """Return ``columns`` of what ``load`` returns, read with one task per block of one file.

    The settings that keep Spark from packing files together belong to the session that reads, so a separate
    session reads the files. The plan is then transferred to the caller's session.
    """
    reader = spark.newSession()
    reader.conf.set("spark.sql.files.openCostInBytes", str(2**40))
    reader.conf.set("spark.sql.files.maxPartitionBytes", block)
    reader.conf.unset("spark.sql.files.maxPartitionNum")
    # Many files are listed by a job: use one task per core, not one per file.
    # A line that is longer has been added since its file was measured: the file has grown, and is read again.
    reader.conf.set("mapreduce.input.linerecordreader.line.maxlength", LONGEST_LINE + 16)
    tasks = str(spark.sparkContext.defaultParallelism)
    reader.conf.set("spark.sql.sources.parallelPartitionDiscovery.parallelism", tasks)
    loaded = load(reader.read).select(*[column.alias(name) for name, column in columns.items()])
    view = f"lakemirror_lines_{uuid.uuid4().hex}"
    loaded.createGlobalTempView(view)
    try:
        return spark.table(f"global_temp.{view}")
    finally:
        spark.catalog.dropGlobalTempView(view)
