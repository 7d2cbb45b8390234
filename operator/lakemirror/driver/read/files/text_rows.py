"""Rows of text files: JSON Lines and CSV.

A row becomes a JSON document. If a line is wrong, the reason is in ``problem``, beside its bytes.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Final

from pyspark.sql import Column, DataFrame, SparkSession, Window
from pyspark.sql import functions as F
from pyspark.sql.types import StringType, StructField

from lakemirror.api.source import CsvFormat
from lakemirror.driver.read import rows
from lakemirror.driver.read.files.limits import header_names
from lakemirror.driver.read.files.lines import lines

_LONGEST: Final = 20_000_000
"""The maximum number of characters in a CSV record. If there are more, a quote was opened by mistake."""
_NOT_UTF8: Final = "the line is not valid UTF-8: convert the file"
_QUOTE: Final = "a quote is not closed, or stands within a field that does not begin with one"


def json_rows(spark: SparkSession, uris: Sequence[str]) -> DataFrame:
    """Return (file, row, value (BINARY), problem) of JSON Lines files. Blank lines are left out.

    The envelope decides whether a line is the expected JSON.
    """
    line = _without_mark(F.col("line"))
    found = lines(spark, uris).withColumn("line", line).where(F.col("line").rlike(r"\S"))
    return found.select(
        "file", "row", F.col("line").cast("binary").alias("value"), _nothing().alias("problem")
    )


def csv_rows(
    spark: SparkSession, uris: Sequence[str], form: CsvFormat, optional: str | None = None
) -> DataFrame:
    """Return (file, row, value, problem) of CSV files.

    ``value`` (BINARY) is a document with its schema, in which every value is text. ``row`` is the number of a
    record's first line. Blank lines and headers are left out. Without header, a record may lack the column
    ``optional``.
    """
    read = lines(spark, uris).withColumn("line", _without_mark(F.col("line")))
    line = _without_end(F.col("line"))
    digest, is_first = _digest(line).alias("header"), F.col("row") == 0
    known = read.agg(
        F.max(_is_odd(F.col("line"))).alias("broken"),
        F.collect_list(F.when(is_first, F.struct("file", digest))).alias("files"),
        F.collect_set(F.when(is_first, F.struct(digest, line.alias("line")))).alias("headers"),
    ).first()
    assert known is not None
    if known["broken"]:
        read = _joined(read)
    read = read.withColumn("record", _without_end(F.col("line"))).where("record <> ''")
    if not form.header:
        return _parsed(read, form, *_by_layout(_Layout(tuple(form.columns or ()), optional)))
    files = {each["file"]: each["header"] for each in known["files"]}
    headers = {each["header"]: each["line"] for each in known["headers"]}
    return _with_headers(spark, read, form, files, headers)


# -- lines and records ----------------------------------------------------------------------------------


def _without_mark(line: Column) -> Column:
    """STRING: the line without a byte order mark at the start of the file."""
    marked = (F.col("row") == 0) & line.startswith("\ufeff")
    return F.when(marked, F.substr(line, F.lit(2))).otherwise(line)


def _without_end(line: Column) -> Column:
    """STRING: the line without the carriage return at its end."""
    return F.regexp_replace(line, r"\r\z", "")


def _digest(text: Column) -> Column:
    """STRING: what identifies a header, which may be long and that of many files."""
    return F.sha2(text.cast("binary"), 256)


def _is_odd(line: Column) -> Column:
    """BOOLEAN: whether the line has an odd number of quotes, so that its record does not end with it."""
    return (F.length(line) - F.length(F.replace(line, F.lit('"')))) % 2 == 1


def _joined(read: DataFrame) -> DataFrame:
    """Join lines that are separated by a line break within quotes. ``row`` is that of the first.

    A record that would not end, or only after a very long text, is left as it is: then one quote is wrong,
    but the lines after it are not.
    """
    before = Window.partitionBy("file").orderBy("row").rowsBetween(Window.unboundedPreceding, -1)
    so_far = Window.partitionBy("file").orderBy("row").rowsBetween(Window.unboundedPreceding, 0)
    whole = Window.partitionBy("file", "first")
    odd = F.col("odd").cast("bigint")
    begun = (
        read.withColumn("odd", _is_odd(F.col("line")))
        .withColumn("within", F.coalesce(F.sum(odd).over(before), F.lit(0)) % 2 == 1)
        .withColumn("first", F.last(F.when(~F.col("within"), F.col("row")), ignorenulls=True).over(so_far))
    )
    sound = (F.sum(odd).over(whole) % 2 == 0) & (F.sum(F.length("line")).over(whole) <= _LONGEST)
    parts = begun.withColumn("first", F.when(sound, F.col("first")).otherwise(F.col("row")))
    ordered = F.array_sort(F.collect_list(F.struct("row", "line")))
    text = F.array_join(F.transform(ordered, lambda each: each["line"]), "\n")
    return parts.groupBy("file", F.col("first").alias("row")).agg(text.alias("line"))


# -- fields -------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Layout:
    """The columns of a file, one of which a record may lack, or the problem with its header."""

    columns: tuple[str, ...]
    optional: str | None = None
    problem: str | None = None

    @property
    def variants(self) -> list[tuple[str, ...]]:
        """The possible columns of a record, which differ in their number."""
        if self.optional not in self.columns:
            return [self.columns]
        return [self.columns, tuple(name for name in self.columns if name != self.optional)]


def _with_headers(
    spark: SparkSession,
    read: DataFrame,
    form: CsvFormat,
    files: Mapping[str, str],
    headers: Mapping[str, str],
) -> DataFrame:
    """Return each record with the columns of its file's header.

    ``files`` has the digest of each file's header, and ``headers`` the text of each digest. The columns are
    data and not part of the query, which would otherwise grow with their number.
    """
    body = read.where("row <> 0")
    layouts = {digest: _layout_of(text, form.delimiter) for digest, text in headers.items()}
    if len(layouts) == 1:
        return _parsed(body, form, *_by_layout(next(iter(layouts.values()))))
    known = [
        (digest, each.problem, None if each.problem else list(each.columns), _head(each.columns))
        for digest, each in layouts.items()
    ]
    of_file = F.broadcast(spark.createDataFrame(list(files.items()), "file STRING, header STRING"))
    columns = "header STRING, wrong STRING, names ARRAY<STRING>, head STRING"
    of_header = F.broadcast(spark.createDataFrame(known, columns))
    joined = body.join(of_file, "file", "left").join(of_header, "header", "left")
    size, names = F.size("fields"), F.col("names")
    problem = F.coalesce(F.col("wrong"), _misfit(size, F.size(names).cast("string"), size != F.size(names)))
    document = F.when(F.col("wrong").isNull() & (size == F.size(names)), _document(F.col("head"), names))
    return _parsed(joined, form, problem, document)


def _layout_of(header: str, delimiter: str) -> _Layout:
    names = header_names(header, delimiter)
    twice = next((name for name, count in Counter(names).items() if count > 1), None)
    problem = None
    if "" in names:
        problem = f"column {names.index('') + 1} of the file's header has no name"
    elif twice is not None:
        problem = f"the file's header has the column {twice} twice"
    return _Layout(tuple(names), problem=problem)


def _parsed(read: DataFrame, form: CsvFormat, wrong: Column, document: Column) -> DataFrame:
    """Return the documents of records.

    ``wrong`` is what is wrong with the ``fields`` of a record, ``document`` the document of its ``values``.
    """
    values = F.transform("fields", lambda field: _value(field, form.null_value))
    framed = F.concat(F.lit(form.delimiter), F.array_join("fields", form.delimiter))
    unsound = framed != F.concat(F.lit(form.delimiter), F.col("record"))
    problem = F.when(~F.is_valid_utf8(F.col("line")), _NOT_UTF8).when(unsound, _QUOTE).otherwise(wrong)
    stages: list[list[Column]] = [
        [F.col("*"), _fields(F.col("record"), form.delimiter).alias("fields")],
        [F.col("*"), problem.alias("problem"), values.alias("values")],
        [
            F.col("file"),
            F.col("row"),
            F.when(F.col("problem").isNull(), document)
            .otherwise(F.col("line"))
            .cast("binary")
            .alias("value"),
            F.col("problem"),
        ],
    ]
    return reduce(lambda frame, columns: frame.select(*columns), stages, read)


def _by_layout(layout: _Layout) -> tuple[Column, Column]:
    """Return what is wrong with a record of this layout, and its document."""
    if layout.problem is not None:
        return F.lit(layout.problem), _nothing()
    size, document = F.size("fields"), _nothing()
    for names in layout.variants:
        whole = _document(F.lit(_head(names)), F.array(*map(F.lit, names)))
        document = F.when(size == len(names), whole).otherwise(document)
    expected = " or ".join(str(len(names)) for names in layout.variants)
    fits = size.isin([len(names) for names in layout.variants])
    return _misfit(size, F.lit(expected), ~fits), document


def _misfit(size: Column, expected: Column, differs: Column) -> Column:
    """STRING: what is wrong with a record whose number of fields differs from what is expected, or null."""
    parts = (F.lit("the line has "), size.cast("string"), F.lit(" fields instead of "), expected)
    return F.when(differs, F.concat(*parts))


def _head(names: Sequence[str]) -> str:
    """Return the schema of a document of text columns, as JSON."""
    fields = [StructField(name, StringType()) for name in names]
    return json.dumps(rows.schema_of(fields), separators=(",", ":"))


def _document(head: Column, names: Column) -> Column:
    """STRING: a document with this schema and the ``values`` of a record."""
    row = F.to_json(F.map_from_arrays(names, F.col("values")))
    return F.concat(F.lit('{"schema":'), head, F.lit(',"payload":'), row, F.lit("}"))


def _fields(record: Column, delimiter: str) -> Column:
    """ARRAY: the fields as they are written. If the record is not valid CSV, parts of it are missing."""
    d = f"\\x{{{ord(delimiter):x}}}"
    quoted, plain = r'"[^"]*+(?:""[^"]*+)*+"', rf'(?!")[^{d}]*+'
    pattern = rf"{d}({quoted}(?={d}|\z)|{plain})"
    return F.regexp_extract_all(F.concat(F.lit(delimiter), record), F.lit(pattern), F.lit(1))


def _value(field: Column, null_value: str) -> Column:
    """STRING: a field without its quotes, or null if it represents null."""
    inner = F.substr(field, F.lit(2), F.length(field) - 2)
    text = F.replace(inner, F.lit('""'), F.lit('"'))
    return F.when(field.startswith('"'), text).when(field != null_value, field)


def _nothing() -> Column:
    return F.lit(None).cast("string")
