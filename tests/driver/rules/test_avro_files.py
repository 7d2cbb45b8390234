"""Files of Avro (object container files): the driver's engine and the rules make the same of their rows.

Rows of each type that Avro has, in files whose schemas differ, and whole events of Debezium. The rows of the
source are known, so that what the reader makes of a file is compared as well.
"""

from __future__ import annotations

import datetime as dt
import json
import random
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any

import fastavro
import pytest
from pyspark.sql import SparkSession

from tests.driver.rules.test_files_of_rows import DMS, MODES, NOW, compare, files, pipeline, place
from tests.support.agreement import plain
from tests.support.avro import schema_without_defaults
from tests.support.delivery import doubled, parts
from tests.support.histories import History, Shape, many, play
from tests.support.mirroring import Mirroring, at
from tests.support.records import Record, Row, payload

pytestmark = pytest.mark.guarantee("The rules and the driver's engine make the same of the same records")

LOCAL = {"type": "long", "logicalType": "local-timestamp-micros"}
KINDS: Mapping[str, Any] = {
    "Op": "string",
    "id": "int",
    "v": {"type": "bytes", "logicalType": "decimal", "precision": 10, "scale": 2},
    "at": LOCAL,
    "note": "string",
    "yes": "boolean",
    "day": {"type": "int", "logicalType": "date"},
    "seen": {"type": "long", "logicalType": "timestamp-millis"},
    "ms": {"type": "int", "logicalType": "time-millis"},
    "us": {"type": "long", "logicalType": "time-micros"},
    "kind": {"type": "enum", "name": "kind", "symbols": ["new", "old"]},
    "raw": {"type": "fixed", "name": "raw", "size": 3},
    "price": {"type": "fixed", "name": "p", "size": 9, "logicalType": "decimal", "precision": 20, "scale": 5},
    "ratio": "double",
    "who": {"type": "string", "logicalType": "uuid"},
    "inner": {
        "type": "record",
        "name": "inner",
        "fields": [
            {"name": "x", "type": ["null", "int"], "default": None},
            {"name": "y", "type": ["null", {"type": "array", "items": ["null", LOCAL]}], "default": None},
        ],
    },
    "named": {"type": "map", "values": ["null", "long"]},
}
"""The types of the columns. Each may be null."""


def drawn(rnd: random.Random) -> Row:
    """Values of the columns that only these files have."""
    moment = NOW + dt.timedelta(milliseconds=rnd.randrange(5))
    return {
        "seen": rnd.choice((None, moment.replace(tzinfo=dt.UTC))),
        "ms": rnd.choice((None, dt.time(0, 0), dt.time(23, 59, 59, 999000))),
        "us": rnd.choice((None, dt.time(0, 0), dt.time(23, 59, 59, 999999))),
        "kind": rnd.choice((None, "new", "old")),
        "raw": rnd.choice((None, b"\x00\xff\x80", b"abc")),
        "price": rnd.choice((None, Decimal("-0.00001"), Decimal("999999999999999.99999"))),
        "ratio": rnd.choice((None, 0.1, -0.0, 5e-324, float("nan"), float("-inf"))),
        "who": rnd.choice((None, uuid.UUID(int=7))),
        "inner": rnd.choice((None, {"x": 1, "y": None}, {"x": None, "y": [moment, None]}, {"x": 2, "y": []})),
        "named": rnd.choice((None, {}, {"a": 1, "": None})),
    }


def rows_of(number: int, odd: Sequence[Row]) -> dict[str, list[list[Row]]]:
    """The rows of two files of each table."""
    rnd = random.Random(-number)
    return {
        table: [[{**row, **drawn(rnd)} for row in rows] for rows in made]
        for table, made in files(number, odd).items()
    }


def schema_of(kinds: Mapping[str, Any]) -> Any:
    fields = [{"name": name, "type": ["null", kind], "default": None} for name, kind in kinds.items()]
    return fastavro.parse_schema({"type": "record", "name": "row", "fields": fields})


def write(path: Path, rows: Iterable[Row], kinds: Mapping[str, Any] = KINDS, codec: str = "null") -> None:
    with path.open("wb") as file:
        fastavro.writer(file, schema_of(kinds), rows, codec=codec, sync_interval=500)


def append(path: Path, rows: Iterable[Row]) -> None:
    """Add blocks to a file, which begins as it did before."""
    with path.open("a+b") as file:
        fastavro.writer(file, None, rows)


def as_mirrored(row: Row) -> Row:
    """A row of a file in the types of a mirror: Spark's, and text for times of day in microseconds."""
    changed = {"who": str(row["who"]), "us": f"{row['us']}", "ms": millis(row["ms"])}
    made = {name: None if row[name] is None else value for name, value in changed.items()}
    return {name: plain(value) for name, value in {**row, **made}.items() if name != "Op"}


def millis(time: dt.time | None) -> int | None:
    if time is None:
        return None
    return ((time.hour * 60 + time.minute) * 60 + time.second) * 1000 + time.microsecond // 1000


def last_rows(rows: Iterable[Row]) -> dict[int, Row]:
    """What the newest row of each key says, without the deleted ones."""
    newest = {row["id"]: row for row in rows if row["id"] is not None and row["Op"] != "X"}
    return {key: as_mirrored(row) for key, row in newest.items() if row["Op"] != "D"}


def found_rows(spark: SparkSession, mirroring: Mirroring, table: str) -> dict[int, Row]:
    rows = at(spark, f"{mirroring.folder}/lake/{table}").collect()
    return {row["id"]: {name: plain(_aware(name, row[name])) for name in row.asDict()} for row in rows}


def _aware(name: str, value: Any) -> Any:
    """An instant as the reader's file had it; Python gets it in the session's zone, without one."""
    is_instant = name == "seen" and isinstance(value, dt.datetime)
    return value.astimezone(dt.UTC) if is_instant else value


@pytest.mark.long
@pytest.mark.timeout(900)
def test_rows_of_each_type(spark: SparkSession, tmp_path: Path) -> None:
    """In several blocks, compressed or not. A file that grows by some blocks is read again as a whole."""
    mirroring = pipeline(tmp_path, "avro", DMS, {})
    odd: list[Row] = [{"Op": "I", "id": None, "v": Decimal(1)}, {"Op": "X", "id": 1}, {"Op": None, "id": 3}]
    made = rows_of(4, [{name: each.get(name) for name in KINDS} for each in odd])
    later = rows_of(5, [])["rows"][0]

    def deliver() -> Iterable[None]:
        for file, codec in enumerate(("deflate", "null")):
            for table, rows in made.items():
                write(place(mirroring, table, f"{file}.avro"), rows[file], codec=codec)
        yield
        append(place(mirroring, "rows", "1.avro"), later)
        append(place(mirroring, "versions", "0.avro"), later)
        yield

    compare(spark, mirroring, deliver())
    assert found_rows(spark, mirroring, "rows") == last_rows([*made["rows"][0], *made["rows"][1], *later])


@pytest.mark.thorough
@pytest.mark.timeout(900)
def test_schemas_that_differ_in_the_order_of_columns(spark: SparkSession, tmp_path: Path) -> None:
    """Columns are added, left out and widened. One gets a type that its column cannot hold."""
    ordering = {"by": "columns", "columns": ["at", "v"]}
    mirroring = pipeline(tmp_path, "avro", DMS, {"ordering": ordering})
    wider: Mapping[str, Any] = {
        **{name: kind for name, kind in KINDS.items() if name not in ("yes", "named")},
        "v": {"type": "bytes", "logicalType": "decimal", "precision": 14, "scale": 2},
        "inner": {
            **KINDS["inner"],
            "fields": [
                *KINDS["inner"]["fields"],
                {"name": "z", "type": ["null", {"type": "map", "values": "string"}], "default": None},
            ],
        },
        "more": {"type": "array", "items": "double"},
    }
    other = {**KINDS, "day": "string"}

    def deliver() -> Iterable[None]:
        made, third = rows_of(6, []), rows_of(7, [])
        for table, rows in made.items():
            write(place(mirroring, table, "0.avro"), rows[0])
            changed = [
                {**row, "more": [1.5], "inner": row["inner"] and {**row["inner"], "z": {"a": "b"}}}
                for row in rows[1]
            ]
            write(place(mirroring, table, "1.avro"), changed, wider)
            texts = [{**row, "day": row["day"] and row["day"].isoformat()} for row in third[table][0]]
            write(place(mirroring, table, "2.avro"), texts[:10], other)
            write(place(mirroring, table, "3.avro"), third[table][1])
        yield

    compare(spark, mirroring, deliver())


# -- events of Debezium -----------------------------------------------------------------------------------

KEYED = {"primaryKey": ["h", "id"]}
TABLES: Mapping[str, Mapping[str, Any]] = {
    **{name: {**each, **(KEYED if "primaryKey" in each else {})} for name, each in MODES.items()},
    "opened": KEYED,
    "partial": KEYED,
}
SHAPES: Mapping[str, Mapping[str, Any]] = {
    **{name: {"full": True} for name in MODES},
    "opened": {"full": True, "snapshot": "open"},
    "partial": {"snapshot": "open"},
}
"""Of the last table, the source sends no images before updates. Files have no keys of Kafka."""

Written = tuple[Any, Iterable[Row]]


def played() -> dict[str, History]:
    rnd = random.Random(8)
    return {
        name: play(many(range(6), rnd, truncates=1), Shape(name=name, **shape))
        for name, shape in SHAPES.items()
    }


def compare_events(
    spark: SparkSession,
    folder: Path,
    envelope: str,
    histories: Mapping[str, History],
    written: Callable[[Sequence[Record]], Written],
) -> None:
    """Events come twice, in one file or in two, and the first ones once more at the end.

    The files of a table are one stream, in which positions grow. What lies below waits until something lies
    above again, which shows that it was sent again.
    """
    source = {"path": f"{folder}/input/*/*.avro", "format": "avro", "maxFilesPerBatch": len(TABLES)}
    mirroring = Mirroring(
        folder,
        {
            "source": {"files": source},
            "envelope": {"format": envelope},
            "tables": [{"source": f"public.{name}", **each} for name, each in TABLES.items()],
            "target": {"path": f"{folder}/lake/{{table}}"},
        },
    )

    def put(table: str, number: int, records: Sequence[Record]) -> None:
        schema, rows = written(records)
        with place(mirroring, table, f"{number}.avro").open("wb") as file:
            fastavro.writer(file, fastavro.parse_schema(schema), rows)

    def deliver() -> Iterable[None]:
        sent = {
            table: parts(doubled([each for each in history.records if each["value"] is not None]), 4)
            for table, history in histories.items()
        }
        for table, contents in sent.items():
            for number, part in enumerate(contents[:-1]):
                put(table, number, part)
        yield
        for table, contents in sent.items():
            put(table, 3, contents[0][:-1])
            put(table, 4, contents[-1])
        yield

    compare(spark, mirroring, deliver())
    for table in ("rows", "opened"):
        rows = at(spark, f"{folder}/lake/{table}").collect()
        assert {(row["h"], row["id"]): row.asDict() for row in rows} == histories[table].rows
    listed = at(spark, f"{folder}/lake/listed").count()
    place(mirroring, "listed", "5.avro").write_bytes(place(mirroring, "listed", "0.avro").read_bytes())
    mirroring.run(spark)
    assert at(spark, f"{folder}/lake/listed").count() == listed, "known content says nothing new"


@pytest.mark.thorough
@pytest.mark.timeout(900)
def test_whole_events(spark: SparkSession, tmp_path: Path) -> None:
    def written(records: Sequence[Record]) -> Written:
        documents = [json.loads(each["value"]) for each in records]
        return schema_without_defaults(documents[0]["schema"]), [each["payload"] for each in documents]

    compare_events(spark, tmp_path, "debezium", played(), written)


SOURCE = {"connector": "string", "db": "string", "schema": "string", "table": "string", "sequence": "string"}
ADDED = {**SOURCE, "lsn": "long", "snapshot": "string", "ts_us": "long"}


@pytest.mark.thorough
@pytest.mark.timeout(900)
def test_events_after_flattening(spark: SparkSession, tmp_path: Path) -> None:
    """The transformation sends no truncates. Deletes are rewritten."""
    kinds = {"h": "int", "id": "int", "v": "int", "note": "string", "big": "string"}
    kinds |= {
        "__op": "string",
        "__deleted": "string",
        **{f"__source_{name}": each for name, each in ADDED.items()},
    }

    def flat(change: Row) -> Row:
        image = change["before"] if change["after"] is None else change["after"]
        added = {f"__source_{name}": change["source"][name] for name in ADDED}
        return {**image, **added, "__op": change["op"], "__deleted": str(change["op"] == "d").lower()}

    def written(records: Sequence[Record]) -> Written:
        return schema_of(kinds), [flat(payload(each["value"])) for each in records]

    rnd = random.Random(10)
    histories = {name: play(many(range(6), rnd), Shape(name=name, **shape)) for name, shape in SHAPES.items()}
    compare_events(spark, tmp_path, "debezium-flat", histories, written)
