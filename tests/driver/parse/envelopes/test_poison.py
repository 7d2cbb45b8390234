"""No record makes the classification fail, and none is read as another one than it is."""

from __future__ import annotations

import json
from typing import Any

import pytest
from pyspark.sql import Row, SparkSession

from lakemirror.api.source import Envelope
from lakemirror.api.spec import Ordering
from lakemirror.driver.parse.envelopes.debezium import Debezium
from lakemirror.driver.profile.overview import overview
from lakemirror.driver.read.base import RAW
from tests.support.records import Column, dumps
from tests.support.shop import Shop, table

pytestmark = pytest.mark.guarantee("No record makes a batch fail")

ITEMS = table("items", Column("v", "int32"))
[GOOD] = Shop(lsn=1_000_000).create(ITEMS, id=1, v=1)
MAX, MIN = 2**63 - 1, -(2**63)
LSN = "0000002a:00000d40:0002"
NO_OBJECT = "the value is not a Debezium JSON object"
OTHER_TYPE = "has another type than Debezium gives it"


def envelope(**changes: Any) -> str:
    document = json.loads(GOOD["value"])
    document["payload"].update(changes)
    return dumps(document)


def source(**changes: Any) -> str:
    """An event whose source block differs; its own position is left out where another is given."""
    block = json.loads(GOOD["value"])["payload"]["source"]
    if changes.keys() & {"file", "commit_lsn", "scn", "connector"}:
        block |= {"lsn": None, "sequence": None}
    return envelope(source=block | changes)


def nested(levels: int) -> str:
    deep = '{"a":' * levels + "1" + "}" * levels
    return str(GOOD["value"]).replace('"after":{', f'"after":{{"deep":{deep},')


BAD = {
    "lsn: text": (source(lsn="zz"), f"source.lsn {OTHER_TYPE}"),
    "lsn: negative": (source(lsn=-5), "source.lsn is not valid: -5"),
    "lsn: at its limit": (source(lsn=MAX), "source.lsn is not valid"),
    "lsn: beyond its limit": (source(lsn=2**63), f"source.lsn {OTHER_TYPE}"),
    "lsn: a fraction": (source(lsn=1.5), f"source.lsn {OTHER_TYPE}"),
    "sequence: text": (source(sequence="garbage"), "source.sequence is not valid: garbage"),
    "sequence: negative": (source(sequence='["-4","5"]'), "source.sequence is not valid"),
    "sequence: large": (source(sequence='["9999999999999999999","5"]'), "source.sequence is not valid"),
    "sequence: one": (source(sequence='["5"]'), "source.sequence is not valid"),
    "commit_lsn: text": (source(commit_lsn="zz:zz"), "source.commit_lsn is not valid: zz:zz"),
    "commit_lsn: short": (source(commit_lsn="2a:d40:2"), "source.commit_lsn is not valid"),
    "commit_lsn: wide": (source(commit_lsn=LSN + "ffff"), "source.commit_lsn is not valid"),
    "change_lsn: text": (source(commit_lsn=LSN, change_lsn="?"), "source.change_lsn is not valid: ?"),
    "serial number: negative": (source(commit_lsn=LSN, event_serial_no=-7), "event_serial_no is not valid"),
    "serial number: limit": (source(commit_lsn=LSN, event_serial_no=MAX), "event_serial_no is not valid"),
    "scn: text": (source(scn="abc"), "source.scn is not valid: abc"),
    "scn: negative": (source(scn="-1"), "source.scn is not valid: -1"),
    "scn: large": (source(scn="9" * 30), "source.scn is not valid"),
    "commit_scn: text": (source(scn="5", commit_scn="x"), "source.commit_scn is not valid: x"),
    "file: no number": (source(file="mysql-bin", pos=4), "source.file is not valid: mysql-bin"),
    "file: large": (source(file="bin." + "9" * 30, pos=4), "source.file is not valid"),
    "pos: negative": (source(file="bin.000001", pos=-4), "source.pos is not valid: -4"),
    "pos: limit": (source(file="bin.000001", pos=MAX), "source.pos is not valid"),
    "row: negative": (source(file="bin.000001", pos=4, row=-2), "source.row is not valid: -2"),
    "row: limit": (source(file="bin.000001", pos=4, row=MAX), "source.row is not valid"),
    "time decides and is none": (
        source(connector="other", ts_us=None, ts_ms=1_700_000_000_000_000),
        "source.ts_ms is not valid: 1700000000000000",
    ),
    "after: text": (envelope(after="abc"), "the after image is not a JSON object"),
    "after: number": (envelope(after=5), "the after image is not a JSON object"),
    "after: array": (envelope(after=[1]), "the after image is not a JSON object"),
    "before: text": (envelope(before="abc"), "the before image is not a JSON object"),
    "source: text": (envelope(source="abc"), f"source {OTHER_TYPE}"),
    "source: array": (envelope(source=[1]), f"source {OTHER_TYPE}"),
    "source: text of an object": (envelope(source="{}"), f"source {OTHER_TYPE}"),
    "two fields": (source(server_id="x", ts_us=True), f"source.ts_us {OTHER_TYPE}"),
    "a field alone": ('{"source":{"pos":"x"}}', f"source.pos {OTHER_TYPE}"),
    "ts_ms: beyond its limit": (envelope(ts_ms=2**63), f"ts_ms {OTHER_TYPE}"),
    "op: object": (envelope(op={}), "unknown op '{}'"),
    "ts_ms: text": (envelope(ts_ms="now"), f"ts_ms {OTHER_TYPE}"),
    "600 levels": (nested(600), NO_OBJECT),
    "2000 levels": (nested(2000), NO_OBJECT),
    "600 levels, no object": ("[" * 600 + "]" * 600, NO_OBJECT),
    "schema: 600 levels": ('{"schema":' + '{"a":' * 600 + "1" + "}" * 601, NO_OBJECT),
    "schema: text": (dumps({**json.loads(GOOD["value"]), "schema": "x"}), "the schema of the value"),
    "a text that is too long": (envelope(after={"id": 1, "note": "x" * 20_000_001}), NO_OBJECT),
    "not UTF-8": (GOOD["value"].encode().replace(b'"demo"', b'"de\xffmo"'), "the value is not valid UTF-8"),
    "zeros": ("\0\0", NO_OBJECT),
    "nothing": ("", NO_OBJECT),
    "null": ("null", NO_OBJECT),
    "a number": ("5", NO_OBJECT),
    "an array of an event": (f"[{GOOD['value']}]", NO_OBJECT),
    "two events": (GOOD["value"] * 2, NO_OBJECT),
    "text after the event": (GOOD["value"] + " x", NO_OBJECT),
    "cut off": (GOOD["value"][:-5], NO_OBJECT),
}

EARLIER = "2023-11-14 22:13:21"
POSITION = f"{1_000_100:020x}{1_000_100:020x}00000001"
HARMLESS = {
    "good": (GOOD["value"], EARLIER, POSITION),
    "ts_us: limit": (source(ts_us=MAX), EARLIER, POSITION),
    "ts_ms: limit": (source(ts_us=None, ts_ms=MAX), EARLIER, POSITION),
    "ts_ms: lowest": (source(ts_us=None, ts_ms=MIN), EARLIER, POSITION),
    "ts_ms: microseconds": (source(ts_us=None, ts_ms=1_700_000_000_000_000), EARLIER, POSITION),
    "ts_us: nanoseconds": (source(ts_us=1_700_000_000_000_000_000), EARLIER, POSITION),
    "the envelope's ts_ms: limit": (envelope(ts_ms=MAX), EARLIER, POSITION),
    "no position": (source(lsn=None, sequence="[null,null]"), EARLIER, "0" * 48),
    "MySQL without position": (source(connector="mysql", file=""), EARLIER, "0" * 48),
    "SQL Server without position": (source(connector="sqlserver", commit_lsn="NULL"), EARLIER, "0" * 48),
    "Oracle without position": (source(connector="oracle", scn="null"), EARLIER, "0" * 48),
    "no time, no position": (
        source(connector="other", ts_us=None, ts_ms=None),
        EARLIER,
        f"{0:020x}{1:020x}00000001",
    ),
}


@pytest.fixture(scope="module")
def rows(spark: SparkSession) -> dict[str, Row]:
    """All of them in one batch."""
    documents = {name: value for name, (value, _) in BAD.items()}
    documents |= {name: value for name, (value, _, _) in HARMLESS.items()}
    places = {"offset: limit": (0, MAX), "offset: negative": (0, -1), "partition: negative": (-1, 0)}
    raw = [
        (ITEMS.topic, *places.get(name, (0, 0)), None, GOOD["key"].encode(), value, None, name, 0, None)
        for name, text in (documents | dict.fromkeys(places, GOOD["value"])).items()
        for value in [text if isinstance(text, bytes) else text.encode()]
    ]
    events = Debezium(Envelope(), Ordering()).classify(spark.createDataFrame(raw, RAW))
    assert overview(events).records == len(raw)
    columns = "file", "kind", "reason", "event_time", "hex(seq) AS seq", "raw_value IS NULL AS dropped"
    found = {row["file"]: row for row in events.selectExpr(*columns).collect()}
    assert len(found) == len(raw)
    return found


@pytest.mark.parametrize("name", BAD)
def test_a_record_that_cannot_be_read_says_why(name: str, rows: dict[str, Row]) -> None:
    assert (rows[name]["kind"], rows[name]["dropped"]) == ("bad", False)
    assert BAD[name][1] in rows[name]["reason"]


@pytest.mark.parametrize("name", ["offset: limit", "offset: negative", "partition: negative"])
def test_a_place_that_cannot_be(name: str, rows: dict[str, Row]) -> None:
    assert rows[name]["kind"] == "bad"
    assert f"{name.partition(':')[0]} is not valid" in rows[name]["reason"]


@pytest.mark.parametrize("name", HARMLESS)
def test_a_record_whose_place_is_known_is_applied(name: str, rows: dict[str, Row]) -> None:
    _, time, seq = HARMLESS[name]
    assert (rows[name]["kind"], rows[name]["reason"]) == ("change", None)
    assert rows[name]["seq"].lower() == "0000" + seq
    assert str(rows[name]["event_time"]).startswith(time)


@pytest.mark.parametrize(
    ("by", "document", "reason"),
    [
        ("lsn", source(connector="mysql", file="bin.000001", pos=4), "no source.lsn or source.commit_lsn"),
        ("binlog", GOOD["value"], "ordering.by is binlog, but the record has no source.file"),
        ("timestamp", source(ts_us=None, ts_ms=None), "the record has no source.ts_ms"),
        ("timestamp", source(ts_us=MIN), "source.ts_us is not valid"),
        ("lsn", GOOD["value"], None),
        ("timestamp", source(lsn=-1), None),
        ("offset", source(lsn=-1, ts_us=MIN), None),
    ],
)
def test_a_record_without_the_declared_position_is_bad(
    by: str, document: str, reason: str | None, spark: SparkSession
) -> None:
    raw = [(ITEMS.topic, 0, 0, None, GOOD["key"].encode(), document.encode(), None, None, None, None)]
    ordering = Ordering.model_validate({"by": by})
    row = Debezium(Envelope(), ordering).classify(spark.createDataFrame(raw, RAW)).first()
    assert row is not None
    assert row["kind"] == ("change" if reason is None else "bad")
    assert reason is None or reason in row["reason"]
