"""What becomes of single records of each envelope: one line a case."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

import pytest
from pyspark.sql import SparkSession

from lakemirror.api.source import CustomFields, Envelope
from lakemirror.api.spec import PipelineSpec
from lakemirror.driver.parse.envelopes import chooser
from lakemirror.driver.parse.envelopes.base import EVENT_COLUMNS, Classifier
from lakemirror.driver.read.base import RAW
from lakemirror.driver.rules.envelopes.records import Classified, Ordering, Record, Settings
from lakemirror.driver.rules.positions import Origin
from tests.support.agreement import format_of
from tests.support.classified import differences

pytestmark = pytest.mark.guarantee(
    "Records of each envelope are read as its format specifies; what they lack is named"
)

Event = Mapping[str, Any]
Case = tuple[str, str | None, str | None, Event]
"""A name, the key, the value, and what the event has at least; a ``reason`` is a part of it."""

LONG = "x" * 200
DIGITS = "12345678901234567890.123456789012345678"


def classifier(envelope: Envelope, by: str = "auto", *, keep_before: bool = False) -> Classifier:
    spec = PipelineSpec.model_validate(
        {
            "source": {"files": {"path": "in"}},
            "target": {"path": "lake/{table}"},
            "checkpoint": "state",
            "envelope": envelope.model_dump(by_alias=True, exclude_none=True),
            "ordering": {"by": by},
            "tables": [{"source": "t", "primaryKey": ["id"]}] if keep_before else [],
        }
    )
    return chooser.classifier(spec)


def classified(
    spark: SparkSession,
    made: Classifier,
    records: Sequence[tuple[str | None, str | None]],
    *,
    topic: str | None = "p.s.t",
    offset: int | None = 0,
    headers: Sequence[tuple[str, str]] = (),
    known: Mapping[int, str] = MappingProxyType({}),
) -> list[dict[str, Any]]:
    added = [(name, bytearray(text.encode())) for name, text in headers]
    rows = []
    for number, (key, value) in enumerate(records):
        place = topic, 0, None if offset is None else offset + number, None
        rows.append((*place, _bytes(key), _bytes(value), added, None, number, None))
    events = made.classify(spark.createDataFrame(rows, RAW), known)
    assert events.columns == EVENT_COLUMNS.split(", ")
    return [row.asDict() for row in events.orderBy("row").collect()]


def _bytes(text: str | None) -> bytearray | None:
    return None if text is None else bytearray(text.encode("utf-8", "surrogateescape"))


def check(spark: SparkSession, made: Classifier, cases: Sequence[Case], **where: Any) -> None:
    found = classified(spark, made, [(key, value) for _, key, value, _ in cases], **where)
    wrong = []
    for (name, key, value, wanted), event in zip(cases, found, strict=True):
        kind = "bad" if "reason" in wanted else wanted.get("kind", "change")
        for column, expected in {"kind": kind, **wanted}.items():
            got = event[column]
            same = expected in (got or "") if column == "reason" else got == expected
            if not same:
                wrong.append(f"{name}: {column} is {got!r}, not {expected!r}")
        if event["kind"] == "bad":
            assert (event["raw_key"], event["raw_value"]) == (_bytes(key), _bytes(value)), name
        elif event["kind"] in ("change", "truncate"):
            assert event["reason"] is None, name
            assert len(event["seq"]) == 26, name
            assert event["table"], name
    wrong += differences(found, by_rules(made, cases, **where))
    assert not wrong, "\n".join(wrong)


def by_rules(
    made: Classifier,
    cases: Sequence[Case],
    *,
    topic: str | None = "p.s.t",
    offset: int | None = 0,
    headers: Sequence[tuple[str, str]] = (),
    known: object = None,
) -> list[Classified]:
    """What the rules say of the same records."""
    form = format_of(made._envelope, ())
    settings = Settings(Ordering(made._ordering.by), null_deletes=made._envelope.null_value != "ignore")
    added = tuple((name, text.encode()) for name, text in headers)
    return [
        form.classify(
            Record(
                *(None if text is None else bytes(_bytes(text) or b"") for text in (value, key)),
                headers=added,
                origin=Origin(topic, 0, None if offset is None else offset + number),
            ),
            settings,
        )
        for number, (_, key, value, _) in enumerate(cases)
    ]


# -- Maxwell ------------------------------------------------------------------------------------------


def row(more: str = "", *, kind: str = "insert", data: str = '{"id":1,"v":"a"}') -> str:
    return f'{{"database":"d","table":"t","type":"{kind}","ts":1477053217,"xid":23396{more},"data":{data}}}'


HASH, ARRAY = '{"database":"d","table":"t","pk.id":1}', '["d","t",[{"id":1}]]'
AT = ',"position":"master.000006:800911"'
COLUMNS = ',"primary_key":[1],"primary_key_columns":["id"]'
OTHER: Event = {"kind": "other", "seq": None}

MAXWELL: list[Case] = [
    (
        "insert",
        HASH,
        row(AT),
        {"op": "c", "database": "d", "schema": None, "table": "t", "key_text": '{"id":1}'},
    ),
    ("key as an array", ARRAY, row(AT), {"key_text": '{"id":1}'}),
    ("key in the value", None, row(AT + COLUMNS), {"key_text": '{"id":1}'}),
    ("key in upper case", HASH, row(AT, data='{"ID":1}'), {"key_text": '{"ID":1}'}),
    ("no primary key", '{"database":"d","table":"t","_uuid":"u"}', row(AT), {"key_text": None}),
    ("another producer's key", "7", row(AT), {"key_text": None}),
    ("update", HASH, row(AT + ',"old":{"v":"b"}', kind="update"), {"op": "u", "old_key_text": None}),
    (
        "many digits",
        HASH,
        row(AT + f',"old":{{"v":-{DIGITS}}}', kind="update", data=f'{{"id":1,"v":{DIGITS}}}'),
        {"row_text": f'{{"id":1,"v":{DIGITS}}}', "before_text": None},
    ),
    ("update of nothing", HASH, row(AT, kind="update"), {"op": "u", "old_key_text": None}),
    (
        "update of the key",
        HASH,
        row(AT + ',"old":{"id":7,"v":null}', kind="update"),
        {"op": "u", "key_text": '{"id":1}', "old_key_text": '{"id":7}'},
    ),
    (
        "delete",
        HASH,
        row(AT, kind="delete"),
        {"op": "d", "row_text": None, "before_text": '{"id":1,"v":"a"}'},
    ),
    ("bootstrapped", HASH, row(kind="bootstrap-insert"), {"op": "r", "seq": bytearray(26), "stream": None}),
    ("bootstrap begins", HASH, row(kind="bootstrap-start", data="{}"), OTHER),
    ("bootstrap ends", HASH, row(kind="bootstrap-complete", data="{}"), OTHER),
    (
        "table made",
        "u",
        '{"type":"table-create","database":"d","table":"t","def":{},"ts":1477053126000}',
        OTHER,
    ),
    ("table altered", "u", '{"type":"table-alter","database":"d","table":"t","old":{},"def":{}}', OTHER),
    ("table dropped", "u", '{"type":"table-drop","database":"d","table":"t","sql":"drop table t"}', OTHER),
    ("database made", "u", '{"type":"database-create","database":"d"}', OTHER),
    ("database altered", "u", '{"type":"database-alter","database":"d"}', OTHER),
    ("database dropped", "u", '{"type":"database-drop","database":"d"}', OTHER),
    ("null", HASH, None, {"kind": "tombstone"}),
    (
        "GTID of MySQL",
        HASH,
        row(',"gtid":"3e11fa47-71ca:23"'),
        {"server": "3e11fa47-71ca", "stream": "maxwell"},
    ),
    ("GTID of MariaDB", HASH, row(',"gtid":"0-12-23"'), {"server": "0-12", "stream": "maxwell"}),
    ("no position", HASH, row(), {"stream": None, "source_time": 1477053217000000}),
    ("no JSON", HASH, "{", {"reason": "not a JSON object of Maxwell"}),
    ("text after it", HASH, row() + "x", {"reason": "not a JSON object of Maxwell"}),
    ("a list", HASH, "[]", {"reason": "not a JSON object of Maxwell"}),
    ("no text", HASH, "", {"reason": "not a JSON object of Maxwell"}),
    ("too deep", HASH, row(data='{"a":' * 700 + "1" + "}" * 700), {"reason": "of at most 100 levels"}),
    ("not UTF-8", HASH, "\udcff", {"reason": "the value is not valid UTF-8"}),
    ("key not UTF-8", "\udcff", row(), {"reason": "the key is not valid UTF-8"}),
    ("no type", HASH, '{"database":"d","table":"t","data":{"id":1}}', {"reason": "has no type"}),
    ("unknown type", HASH, row(kind=LONG), {"reason": f"unknown type '{'x' * 50}'"}),
    ("no database", HASH, '{"table":"t","type":"insert","data":{"id":1}}', {"reason": "database is missing"}),
    (
        "no table",
        HASH,
        '{"database":"d","table":"","type":"insert","data":{}}',
        {"reason": "table is missing"},
    ),
    ("no data", HASH, '{"database":"d","table":"t","type":"update"}', {"reason": "type update without data"}),
    ("null data", HASH, row(data="null"), {"reason": "type insert without data"}),
    ("data is a list", HASH, row(data="[1]"), {"reason": "data is not a JSON object"}),
    ("old is text", HASH, row(',"old":"x"', kind="update"), {"reason": "old is not a JSON object"}),
    ("data without key", HASH, row(data='{"v":1}'), {"reason": "data lacks the primary key's column id"}),
    (
        "ts is text",
        HASH,
        row().replace("1477053217", '"x"'),
        {"reason": "ts has another type than Maxwell gives it"},
    ),
    ("commit is text", HASH, row(',"commit":"yes"'), {"reason": "commit has another type than Maxwell"}),
    (
        "key columns are text",
        HASH,
        row(',"primary_key_columns":"id"'),
        {"reason": "primary_key_columns has another type than Maxwell"},
    ),
    ("a number for a text", HASH, row(',"gtid":5'), {"reason": "gtid is not valid: '5'"}),
    (
        "fallback record",
        HASH,
        row(',"reason":"RecordTooLarge"'),
        {"reason": "only its key: 'RecordTooLarge'"},
    ),
    (
        "position of no file",
        HASH,
        row(',"position":"master:5"'),
        {"reason": "position is not valid: 'master:5'"},
    ),
    ("position of no offset", HASH, row(',"position":"m.000001"'), {"reason": "position is not valid"}),
    ("gtid of no number", HASH, row(',"gtid":"x"'), {"reason": "gtid is not valid: 'x'"}),
    ("negative xoffset", HASH, row(AT + ',"xoffset":-1'), {"reason": "xoffset is not valid: -1"}),
    (
        "encrypted",
        HASH,
        '{"database":"d","table":"t","type":"insert","encrypted":{}}',
        {"reason": "without data"},
    ),
]


def test_records_of_maxwell(spark: SparkSession) -> None:
    check(spark, classifier(Envelope(format="maxwell")), MAXWELL)


def test_before_images_are_kept_where_a_key_is_declared(spark: SparkSession) -> None:
    update = row(',"old":{"id":7,"n":null}', kind="update", data='{"id":1,"v":"a","n":2}')
    case: Case = ("update", HASH, update, {"before_text": '{"id":7,"v":"a","n":null}'})
    check(spark, classifier(Envelope(format="maxwell"), keep_before=True), [case])


@pytest.mark.parametrize(
    ("by", "changes"),
    [
        (
            "auto",
            [
                ',"xoffset":0,"position":"b.000009:70"',
                ',"xoffset":1,"position":"b.000009:70"',
                ',"commit":true,"position":"b.000009:70"',
                ',"xoffset":0,"position":"b.000009:100"',
                ',"xoffset":0,"position":"b.000010:4"',
            ],
        ),
        ("binlog", [',"position":"b.2:9"', ',"position":"b.2:10"', ',"position":"b.11:4"']),
        ("auto", [',"gtid":"u:9"', ',"xoffset":3,"gtid":"u:10"', ',"commit":true,"gtid":"u:10"']),
        ("offset", [',"position":"b.000009:70"', ',"position":"b.000001:4"', ""]),
        ("timestamp", [',"position":"b.000009:70"', ',"position":"b.000001:4"', ""]),
        ("auto", ["", ""]),
    ],
)
def test_maxwells_changes_are_in_the_order_that_is_asked_for(
    by: str, changes: list[str], spark: SparkSession
) -> None:
    found = classified(spark, classifier(Envelope(format="maxwell"), by), [(HASH, row(c)) for c in changes])
    sequences = [bytes(event["seq"]) for event in found]
    assert sequences == sorted(set(sequences))


def test_what_maxwell_lacks_for_the_order_is_named(spark: SparkSession) -> None:
    cases: list[Case] = [
        ("no position", HASH, row(), {"reason": "ordering.by is binlog, but the record has no position"}),
        ("bootstrap", HASH, row(kind="bootstrap-insert"), {"seq": bytearray(26)}),
    ]
    check(spark, classifier(Envelope(format="maxwell"), "binlog"), cases)
    timeless = '{"database":"d","table":"t","type":"insert","data":{"id":1}}'
    case: Case = ("nothing", HASH, timeless, {"reason": "no position, no time and no offset"})
    check(spark, classifier(Envelope(format="maxwell")), [case], offset=None)


# -- Debezium, flat -----------------------------------------------------------------------------------

KEY = '{"id":1}'
SCHEMA = '{"type":"struct","fields":[{"field":"id","type":"int32"},{"field":"__lsn","type":"int64"}]}'
KEY_SCHEMA = '{"type":"struct","fields":[{"field":"id","type":"int32"}]}'
WRAPPED = f'{{"schema":{KEY_SCHEMA},"payload":{KEY}}}', f'{{"schema":{SCHEMA},"payload":{KEY}}}'
ANCHORED = '{"id":1,"__lsn":7,"__sequence":"[\\"5\\",\\"7\\"]"}'
BLOCK = '{"connector":"mysql","db":"d"}'
DDL = (
    f'"source":{BLOCK},"ts_ms":5,"databaseName":"d","schemaName":null,"ddl":"DROP TABLE t","tableChanges":[]'
)
MESSAGE = f'{{"op":"m","ts_ms":5,"source":{BLOCK},"message":{{"prefix":"x","content":"YQ=="}}}}'
TRANSACTION = '"id":"5","event_count":1,"data_collections":[],"ts_ms":5'
OF_DEBEZIUM = "io.debezium.connector.common"
BY_TOPIC: Event = {"database": "p", "schema": "s", "table": "t"}

PLAIN_KEY = '{"schema":{"type":"int32","optional":false},"payload":7}'
COLUMNS_KEY = '{"schema":{"type":"x"},"payload":7}'

FLAT: list[Case] = [
    ("row alone", KEY, '{"id":1}', {"op": "u", "key_text": KEY, **BY_TOPIC}),
    ("create", KEY, '{"id":1,"__op":"c","__lsn":5}', {"op": "c", "unanchored": True, "stream": None}),
    ("read", KEY, '{"id":1,"__op":"r","__source_lsn":5}', {"op": "r"}),
    ("snapshot", KEY, '{"id":1,"__snapshot":"last","__lsn":5}', {"op": "r"}),
    ("no snapshot", KEY, '{"id":1,"__source_snapshot":"false","__lsn":5}', {"op": "u"}),
    (
        "rewritten delete",
        KEY,
        '{"id":1,"__deleted":"true"}',
        {"op": "d", "row_text": None, "before_text": '{"id":1,"__deleted":"true"}'},
    ),
    ("truth value", KEY, '{"id":1,"__deleted":true}', {"op": "d"}),
    ("op alone", KEY, '{"id":1,"__op":"d"}', {"op": "d"}),
    ("not deleted", KEY, '{"id":1,"__deleted":"false"}', {"op": "u"}),
    ("table", KEY, '{"id":1,"__table":"t"}', BY_TOPIC),
    ("table elsewhere", KEY, '{"id":1,"__table":"x"}', {"database": None, "schema": None, "table": "x"}),
    (
        "database and table",
        KEY,
        '{"id":1,"__source_db":"d","__source_table":"t"}',
        {"database": "d", "schema": None, "table": "t"},
    ),
    ("wrapped", WRAPPED[0], WRAPPED[1], {"key_text": KEY}),
    ("wrapped without schema", KEY, '{"schema":null,"payload":{"id":1}}', {"row_text": KEY}),
    ("binlog", KEY, '{"id":1,"__file":"b.000001","__pos":5,"__row":0}', {"stream": "debezium"}),
    ("anchored", KEY, ANCHORED, {"unanchored": False, "stream": "debezium"}),
    ("no position", KEY, '{"id":1,"__lsn":null,"__source_ts_ms":5}', {"seq": bytearray(26)}),
    ("gap", KEY, '{"id":1,"v":"__debezium_unavailable_value"}', {"gaps": True}),
    ("null without key", None, None, {"kind": "tombstone"}),
    ("null", KEY, None, {"reason": "set envelope.nullValue: ignore"}),
    ("heartbeat", '{"serverName":"p"}', '{"ts_ms":5}', {"kind": "other"}),
    ("transaction", '{"id":"5"}', f'{{"status":"END",{TRANSACTION}}}', {"kind": "other"}),
    ("schema change", '{"databaseName":"d"}', f"{{{DDL}}}", {"kind": "other"}),
    ("message", '{"prefix":"x"}', MESSAGE, {"kind": "other"}),
    ("message without key", None, MESSAGE, {"kind": "other"}),
    (
        "named heartbeat",
        None,
        f'{{"schema":{{"fields":[],"name":"{OF_DEBEZIUM}.Heartbeat"}},"payload":{{"ts_ms":5}}}}',
        {"kind": "other"},
    ),
    # Rows that resemble them
    ("row with op, message, source", KEY, '{"id":1,"op":"x","message":"hi","source":"s"}', {"op": "u"}),
    ("row with op m", KEY, '{"id":1,"op":"m","message":"hi","source":"s","__op":"c","__lsn":5}', {"op": "c"}),
    ("row that holds a message", KEY, MESSAGE.replace("{", '{"id":1,', 1), {"op": "u"}),
    ("row of texts", '{"op":"m"}', '{"op":"m","message":"{}","source":"{}"}', {"op": "u"}),
    ("row of a heartbeat's member", '{"ts_ms":5}', '{"ts_ms":5}', {"op": "u"}),
    ("row of another key", '{"name":"p"}', '{"ts_ms":5}', {"op": "u"}),
    ("row of a transaction's members", KEY, f'{{"status":"END",{TRANSACTION}}}', {"op": "u"}),
    ("row of another state", '{"id":"5"}', f'{{"status":"open",{TRANSACTION}}}', {"op": "u"}),
    ("row with status", '{"id":"5"}', '{"status":"END","id":"5","event_count":1,"v":1}', {"op": "u"}),
    (
        "flattened row of a transaction's members",
        '{"id":"5"}',
        f'{{"status":"END",{TRANSACTION},"__op":"u"}}',
        {"op": "u"},
    ),
    ("row of a schema change's members", KEY, f'{{"id":1,{DDL}}}', {"op": "u"}),
    ("row of images", KEY, '{"id":1,"op":"c","source":"a","before":null,"after":"b"}', {"op": "u"}),
    (
        "row with schema and payload",
        KEY,
        '{"id":1,"schema":{"fields":[]},"payload":{"x":1}}',
        {"row_text": '{"id":1,"schema":{"fields":[]},"payload":{"x":1}}'},
    ),
    (
        "row of another schema",
        '{"serverName":"p"}',
        '{"schema":{"fields":[],"name":"a.Heartbeat"},"payload":{"ts_ms":5}}',
        {"op": "u"},
    ),
    ("whole event", KEY, '{"op":"c","source":{},"after":{}}', {"reason": "set envelope.format: debezium"}),
    ("unknown op", KEY, '{"id":1,"__op":"x"}', {"reason": "unknown __op 'x'"}),
    ("no JSON", KEY, "{", {"reason": "the value is not a JSON object"}),
    ("text after it", KEY, '{"id":1}x', {"reason": "the value is not a JSON object"}),
    ("a list", KEY, "[1]", {"reason": "the value is not a JSON object"}),
    ("a number", KEY, "1", {"reason": "the value is not a JSON object"}),
    ("too deep", KEY, '{"a":' * 700 + "1" + "}" * 700, {"reason": "of at most 100 levels"}),
    ("not UTF-8", KEY, "\udcff", {"reason": "the value is not valid UTF-8"}),
    ("key no JSON", "Struct{id=1}", '{"id":1}', {"op": "u", "key_text": "Struct{id=1}"}),
    ("plain key", "7", '{"id":7}', {"op": "u", "key_text": "7"}),
    ("wrapped key", PLAIN_KEY, '{"id":7}', {"op": "u", "key_text": '["7"]', "key_schema_text": None}),
    ("columns", COLUMNS_KEY, '{"id":7}', {"op": "u", "key_text": COLUMNS_KEY}),
    ("LSN is text", KEY, '{"id":1,"__lsn":"x"}', {"reason": "__lsn has another type than Debezium gives it"}),
    (
        "LSN that nobody asks for",
        KEY,
        '{"id":1,"__lsn":5,"__source_lsn":"x"}',
        {"reason": "__source_lsn has"},
    ),
    ("time is a fraction", KEY, '{"id":1,"__ts_ms":1.5}', {"reason": "__ts_ms has another type"}),
    ("negative LSN", KEY, '{"id":1,"__lsn":-1}', {"reason": "__lsn is not valid: -1"}),
    ("time is no time", KEY, '{"id":1,"__source_ts_ms":-1}', {"reason": "__source_ts_ms is not valid"}),
]


def test_flat_records_of_debezium(spark: SparkSession) -> None:
    check(spark, classifier(Envelope(format="debezium-flat")), FLAT)


NO_OP = "the value has no op"
WHOLE: list[Case] = [
    (
        "wrapped key",
        PLAIN_KEY,
        f'{{"op":"r","source":{BLOCK[:-1]},"table":"t"}},"after":{{"id":7}}}}',
        {"op": "r", "key_text": '["7"]'},
    ),
    ("heartbeat", '{"serverName":"p"}', '{"ts_ms":5}', {"kind": "other"}),
    ("transaction", '{"id":"5"}', f'{{"status":"END",{TRANSACTION}}}', {"kind": "other"}),
    (
        "transaction of before",
        '{"id":"5"}',
        '{"status":"BEGIN","id":"5","event_count":null,"data_collections":null}',
        {"kind": "other"},
    ),
    ("schema change", '{"databaseName":"d"}', f"{{{DDL}}}", {"kind": "other"}),
    ("message", '{"prefix":"x"}', MESSAGE, {"kind": "other"}),
    *(
        (
            name,
            None,
            f'{{"schema":{{"fields":[],"name":"{full}"}},"payload":{{"a":1}}}}',
            {"kind": "other"},
        )
        for name, full in {
            "named heartbeat": f"{OF_DEBEZIUM}.Heartbeat",
            "named transaction": f"{OF_DEBEZIUM}.TransactionMetadataValue",
            "named schema change": "io.debezium.connector.sqlserver.SchemaChangeValue",
        }.items()
    ),
    # Records that resemble them
    ("a time alone", KEY, '{"ts_ms":5}', {"reason": NO_OP}),
    ("a state", '{"id":"5"}', '{"status":"END","id":"5"}', {"reason": NO_OP}),
    ("another state", '{"id":"5"}', f'{{"status":"open",{TRANSACTION}}}', {"reason": NO_OP}),
    ("a statement", '{"databaseName":"d"}', '{"databaseName":"d","ddl":"x"}', {"reason": NO_OP}),
    ("a database", KEY, '{"databaseName":"d"}', {"reason": NO_OP}),
    (
        "another schema",
        None,
        '{"schema":{"fields":[],"name":"a.Heartbeat"},"payload":{"ts_ms":5}}',
        {"reason": NO_OP},
    ),
    ("m alone", KEY, f'{{"op":"m","source":{BLOCK}}}', {"reason": "op m without a message"}),
    ("m of text", KEY, f'{{"op":"m","source":{BLOCK},"message":"x"}}', {"reason": "op m without a message"}),
    ("m of no source", KEY, '{"op":"m","message":{"prefix":"x","content":""}}', {"reason": "op m without"}),
]


@pytest.mark.guarantee("A record changes no row only if it is one of Debezium's own, not if it resembles one")
def test_records_of_debezium_that_change_no_row_are_known_by_what_they_are(spark: SparkSession) -> None:
    check(spark, classifier(Envelope(format="debezium")), WHOLE)
    known = {7: f'{{"type":"struct","fields":[],"name":"{OF_DEBEZIUM}.Heartbeat"}}', 8: SCHEMA}
    check(spark, classifier(Envelope(format="debezium")), WHOLE, known=known)


@pytest.mark.parametrize("by", ["auto", "lsn", "offset", "timestamp"])
def test_a_change_is_unanchored_only_where_its_position_counts(by: str, spark: SparkSession) -> None:
    wanted: Event = {"unanchored": by in ("auto", "lsn")}
    flat = '{"id":1,"__op":"c","__lsn":5,"__source_ts_ms":5}'
    check(spark, classifier(Envelope(format="debezium-flat"), by), [("flat", KEY, flat, wanted)])
    source = '{"connector":"postgresql","db":"d","schema":"s","table":"t","lsn":7,"ts_ms":5,"sequence":%s}'
    plain = f'{{"op":"c","after":{{"id":1}},"source":{source % json.dumps(json.dumps([None, "7"]))}}}'
    check(spark, classifier(Envelope(), by), [("plain", KEY, plain, wanted)])


def test_heartbeats_and_tables_are_told_by_their_topics(spark: SparkSession) -> None:
    made = classifier(Envelope(format="debezium-flat"))
    heartbeats: list[Case] = [
        ("heartbeat", None, "{}", {"kind": "other"}),
        ("heartbeat with another key", "Struct{serverName=p}", '{"ts_ms":5}', {"kind": "other"}),
        ("row", KEY, '{"id":1,"ts_ms":5}', {"op": "u"}),
    ]
    check(spark, made, heartbeats, topic="__debezium-heartbeat.p")
    check(spark, made, [("one part", KEY, KEY, {"table": "t", "schema": None, "database": None})], topic="t")
    check(spark, made, [("dots", KEY, KEY, {**BY_TOPIC, "database": "a.b"})], topic="a.b.s.t")
    check(spark, made, [("none", KEY, KEY, {"reason": "no table"})], topic=None)
    check(
        spark, made, [("unordered", KEY, KEY, {"reason": "no position, no time and no offset"})], offset=None
    )


@pytest.mark.thorough
def test_a_null_value_is_a_delete_where_something_places_it(spark: SparkSession) -> None:
    flat = Envelope(format="debezium-flat")
    null: list[Case] = [("null", KEY, None, {"op": "d", "key_text": KEY, **BY_TOPIC})]
    check(spark, classifier(flat, "offset"), null)
    placed = [("__op", "d"), ("__lsn", "77"), ("__table", '"t"'), ("other", "{")]
    check(spark, classifier(flat), null, headers=placed)
    check(spark, classifier(flat, "lsn"), null, headers=placed)
    wrapped = '{"schema":{"type":"int64"},"payload":1795202049892}'
    check(spark, classifier(flat), null, headers=[("__source_ts_ms", wrapped)])
    check(spark, classifier(flat, "timestamp"), null, headers=[("__source_ts_ms", wrapped)])
    [event] = classified(spark, classifier(flat), [(KEY, None)], headers=placed)
    [change] = classified(spark, classifier(flat), [(KEY, '{"id":1,"__lsn":77}')])
    assert event["seq"] == change["seq"]
    for by in ("lsn", "binlog", "timestamp", "auto"):
        check(spark, classifier(flat, by), [("null", KEY, None, {"reason": "nothing says when"})])
    ignored = Envelope(format="debezium-flat", null_value="ignore")
    check(spark, classifier(ignored), [("null", KEY, None, {"kind": "tombstone"})])
    check(
        spark,
        classifier(flat, "offset"),
        [
            (each, each, None, {"reason": "the key is not a JSON object"})
            for each in ("{", '{"schema":{"type":"string"},"payload":"{}"}')
        ],
    )


def test_a_header_that_has_another_type_is_named(spark: SparkSession) -> None:
    made = classifier(Envelope(format="debezium-flat"))
    named: Event = {"reason": "the header __lsn has another type than Debezium gives it"}
    cases: list[Case] = [("row", KEY, KEY, named), ("null", KEY, None, named), ("no key", "{", None, named)]
    check(spark, made, cases, headers=[("__lsn", "x")])


def test_headers_are_text_even_where_they_look_like_other_json(spark: SparkSession) -> None:
    """Connect's SimpleHeaderConverter writes names without quotes."""
    names = ["007", "-07", "0", "12", "1e5", "true", 'a"b', "a\\b", "{"]
    rows = []
    for number, name in enumerate(names):
        headers = [(key, bytearray(text.encode())) for key, text in (("__lsn", "77"), ("__table", name))]
        rows.append(("p.s.t", 0, number, None, _bytes(KEY), None, headers, None, number, None))
    made = classifier(Envelope(format="debezium-flat"))
    found = made.classify(spark.createDataFrame(rows, RAW)).orderBy("row").collect()
    assert [(each["kind"], each["op"], each["table"]) for each in found] == [
        ("change", "d", name) for name in names
    ]


def test_a_row_schema_is_split_off_once_it_is_known(spark: SparkSession) -> None:
    made = classifier(Envelope(format="debezium-flat"))
    [first] = classified(spark, made, [WRAPPED])
    texts = ("schema_text", "key_schema_text")
    known = {first[text.replace("text", "id")]: first[text] for text in texts}
    assert len(known) == 2
    rows = [("p.s.t", 0, 0, None, *map(_bytes, WRAPPED), [], None, 0, None)]
    again = made.classify(spark.createDataFrame(rows, RAW), known).first()
    assert again is not None
    assert [again[text] for text in texts] == [None, None]
    assert {**again.asDict(), **{text: first[text] for text in texts}} == first


# -- custom -------------------------------------------------------------------------------------------

DMS = Envelope(format="custom", fields=CustomFields(op="Op", key="id", timestamp="at"))
BOUGHT = '"at":"2024-01-01 00:00:00"'

CUSTOM: list[Case] = [
    ("insert", None, f'{{"Op":"I","id":1,{BOUGHT}}}', {"op": "c", "key_text": KEY, **BY_TOPIC}),
    ("update", None, f'{{"Op":"U","id":"1",{BOUGHT}}}', {"op": "u", "key_text": '{"id":"1"}'}),
    ("delete", None, f'{{"Op":"D","id":1,{BOUGHT}}}', {"op": "d", "row_text": None}),
    ("word", None, f'{{"Op":"Load","id":1,{BOUGHT}}}', {"op": "r"}),
    ("truncate", None, f'{{"Op":"t",{BOUGHT}}}', {"op": "t", "kind": "truncate"}),
    ("seconds", None, '{"Op":"c","id":1,"at":1700000000}', {"source_time": 1_700_000_000_000_000}),
    ("fraction", None, '{"Op":"c","id":1,"at":1700000000.25}', {"source_time": 1_700_000_000_250_000}),
    ("milliseconds", None, '{"Op":"c","id":1,"at":"1700000000001"}', {"source_time": 1_700_000_000_001_000}),
    ("microseconds", None, '{"Op":"c","id":1,"at":1700000000000001}', {"source_time": 1_700_000_000_000_001}),
    (
        "nanoseconds",
        None,
        '{"Op":"c","id":1,"at":1700000000000001999}',
        {"source_time": 1_700_000_000_000_001},
    ),
    (
        "zone",
        None,
        '{"Op":"c","id":1,"at":"2024-01-01T01:00:00+01:00"}',
        {"source_time": 1_704_067_200_000_000},
    ),
    ("null", KEY, None, {"reason": "nothing says when"}),
    ("null without key", None, None, {"kind": "tombstone"}),
    ("no op", None, f'{{"id":1,{BOUGHT}}}', {"reason": "the record has no op: Op is missing"}),
    ("unknown op", None, f'{{"Op":"X","id":1,{BOUGHT}}}', {"reason": "unknown op 'X': set envelope.opMap"}),
    ("op is an object", None, f'{{"Op":{{}},"id":1,{BOUGHT}}}', {"reason": "unknown op '{}'"}),
    ("no time", None, '{"Op":"I","id":1}', {"reason": "the record has no time: at is missing"}),
    ("no such time", None, '{"Op":"I","id":1,"at":"soon"}', {"reason": "at is not a time: 'soon'"}),
    ("time of day", None, '{"Op":"I","id":1,"at":"10:15"}', {"reason": "at is not a time: '10:15'"}),
    ("time of day after T", None, '{"Op":"I","id":1,"at":"T10:15:00"}', {"reason": "at is not a time"}),
    ("month", None, '{"Op":"I","id":1,"at":"2024-01"}', {"reason": "at is not a time: '2024-01'"}),
    ("more after a date", None, '{"Op":"I","id":1,"at":"2024-01-02 junk"}', {"reason": "at is not a time"}),
    (
        "more after a time",
        None,
        '{"Op":"I","id":1,"at":"2024-01-02 10:15:00 junk"}',
        {"reason": "at is not a time: '2024-01-02 10:15:00 junk'"},
    ),
    ("date that is none", None, '{"Op":"I","id":1,"at":"2024-00-15"}', {"reason": "at is not a time"}),
    ("time before time", None, '{"Op":"I","id":1,"at":-5}', {"reason": "at is not a time: '-5'"}),
    ("huge time", None, '{"Op":"I","id":1,"at":1e300}', {"reason": "at is not a time"}),
    ("no key", None, f'{{"Op":"I",{BOUGHT}}}', {"reason": "the record has no key: id is missing"}),
    ("null key", None, f'{{"Op":"I","id":null,{BOUGHT}}}', {"reason": "the record has no key"}),
    ("list as key", None, f'{{"Op":"I","id":[1],{BOUGHT}}}', {"reason": "id is a list"}),
    (
        "many digits",
        None,
        f' {{"Op":"I","id":1,{BOUGHT},"v":{DIGITS}}}',
        {"row_text": f'{{"Op":"I","id":1,{BOUGHT},"v":{DIGITS}}}'},
    ),
    ("no JSON", None, "{", {"reason": "the value is not a JSON object"}),
    ("a list", None, "[]", {"reason": "the value is not a JSON object"}),
    ("not UTF-8", None, "\udcff", {"reason": "the value is not valid UTF-8"}),
    ("key not UTF-8", "\udcff", f'{{"Op":"I","id":1,{BOUGHT}}}', {"op": "c", "key_text": KEY}),
]

PATHS = Envelope(
    format="custom",
    fields=CustomFields(
        op="meta.op", table="meta.the table", before="data.old", after="data.new", key="data.new.id"
    ),
    op_map={"put": "u", "gone": "d", "noise": "ignore"},
)


def change(op: str, new: str = '{"id":1}', old: str = "null", table: str = '"a.b"') -> str:
    return f'{{"meta":{{"op":"{op}","the table":{table}}},"data":{{"new":{new},"old":{old}}}}}'


NESTED: list[Case] = [
    ("put", None, change("put"), {"op": "u", "schema": "a", "table": "b", "key_text": KEY, "row_text": KEY}),
    ("moved", None, change("put", old='{"id":2}'), {"old_key_text": '{"id":2}', "before_text": '{"id":2}'}),
    (
        "many digits",
        None,
        change("put", f'{{"id":1,"v":{DIGITS}}}'),
        {"row_text": f'{{"id":1,"v":{DIGITS}}}'},
    ),
    (
        "many digits before",
        None,
        change("gone", "null", f'{{"id":1,"v":{DIGITS}}}').replace('"new":null', '"new":{"id":1}'),
        {"before_text": f'{{"id":1,"v":{DIGITS}}}'},
    ),
    ("not moved", None, change("put", old='{"id":1,"v":2}'), {"old_key_text": None}),
    ("gone", None, change("gone"), {"op": "d", "key_text": KEY, "before_text": KEY}),
    ("noise", None, change("noise", "null"), {"kind": "other"}),
    ("other case", None, change("PUT"), {"reason": "unknown op 'PUT': it is not in envelope.opMap"}),
    ("standard word", None, change("insert"), {"reason": "unknown op 'insert'"}),
    ("no row", None, change("put", "null"), {"reason": "op u without data.new"}),
    ("row is text", None, change("put", '"x"'), {"reason": "data.new is not a JSON object"}),
    ("old is a list", None, change("put", old="[1]"), {"reason": "data.old is not a JSON object"}),
    ("no table", None, change("put", table="null"), {"reason": "no table: the record has no meta.the table"}),
    ("data is text", None, '{"meta":{"op":"put","the table":"t"},"data":"x"}', {"reason": "data.new"}),
    ("null", KEY, None, {"reason": "names no table"}),
]


def test_custom_records_that_are_rows(spark: SparkSession) -> None:
    check(spark, classifier(DMS), CUSTOM)


def test_custom_records_with_paths(spark: SparkSession) -> None:
    check(spark, classifier(PATHS), NESTED)


def test_custom_records_without_op_are_upserts(spark: SparkSession) -> None:
    upserts = classifier(Envelope(format="custom", fields=CustomFields(key="k.id")), "offset")
    cases: list[Case] = [
        (
            "row",
            None,
            '{"k":{"id":1},"v":2}',
            {"op": "u", "key_text": KEY, "before_text": '{"k":{"id":1},"v":2}'},
        ),
        ("null", KEY, None, {"op": "d", "key_text": KEY, **BY_TOPIC}),
        ("null without a key of JSON", "1", None, {"reason": "the key is not a JSON object"}),
    ]
    check(spark, upserts, cases)
    inner = classifier(Envelope(format="custom", fields=CustomFields(after="row")))
    check(spark, inner, [("wrapped key", WRAPPED[0], '{"row":{"id":1}}', {"op": "u", "key_text": KEY})])
    whole = classifier(Envelope(format="custom", fields=CustomFields(key="k")))
    check(spark, whole, [("key of two", None, '{"k":{"a":1,"b":"x"}}', {"key_text": '{"a":1,"b":"x"}'})])


@pytest.mark.guarantee("A number is the same moment in a column as in the order of changes")
def test_a_time_of_custom_records_is_what_its_schema_says(spark: SparkSession) -> None:
    """A day is no number of seconds; also when the schema is known, and only its id is told."""
    times = {
        "org.apache.kafka.connect.data.Date": ("int32", 19_723, 1_704_067_200_000_000),
        "io.debezium.time.Date": ("int32", 0, 0),
        "org.apache.kafka.connect.data.Timestamp": ("int64", 1, 1000),
        "io.debezium.time.MicroTimestamp": ("int64", 5, 5),
        "io.debezium.time.NanoTimestamp": ("int64", 1_999, 1),
        "org.example.Seconds": ("int64", 7, 7_000_000),
    }
    made = classifier(
        Envelope(format="custom", fields=CustomFields(after="new", key="new.id", timestamp="m.at"))
    )
    records, known = [], {}
    for name, (kind, value, _) in times.items():
        number = '{"type":"int64","optional":false,"field":"id"}'
        at = f'{{"type":"{kind}","optional":false,"name":"{name}","field":"at"}}'
        image = f'{{"type":"struct","fields":[{number}],"optional":false,"field":"new"}}'
        meta = f'{{"type":"struct","fields":[{number},{at}],"optional":false,"field":"m"}}'
        schema = f'{{"type":"struct","fields":[{image},{meta}],"optional":false}}'
        payload = f'{{"new":{{"id":1}},"m":{{"id":2,"at":{value}}}}}'
        records.append((None, f'{{"schema":{schema},"payload":{payload}}}'))
    for _ in range(2):
        found = classified(spark, made, records, known=known)
        assert [each["source_time"] for each in found] == [micros for *_, micros in times.values()]
        assert [each["schema_text"] is None for each in found] == [bool(known)] * len(times)
        known = known or {each["schema_id"]: each["schema_text"] for each in found}


def test_names_of_the_envelope_are_no_columns() -> None:
    flat, row = chooser.metadata(Envelope(format="debezium-flat")), chooser.metadata(DMS)
    assert all(map(flat, ("__op", "__deleted", "__source_anything", "__transaction_id", "__ts_ms", "__txId")))
    assert not any(map(flat, ("op", "_op", "__mine", "ts_ms")))
    assert [name for name in ("Op", "id", "at", "op") if row(name)] == ["Op"]
    assert not any(map(chooser.metadata(PATHS), ("meta", "data", "op")))
    assert not any(map(chooser.metadata(Envelope(format="maxwell")), ("type", "data", "__op")))
