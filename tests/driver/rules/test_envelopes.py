"""What records say: the cases of the driver's own envelopes, one line each, through the rules."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import pytest

from lakemirror.driver.rules.envelopes import custom, debezium, flat, maxwell
from lakemirror.driver.rules.envelopes.custom import Fields
from lakemirror.driver.rules.envelopes.records import (
    Bad,
    Change,
    Classified,
    NoRowChange,
    Ordering,
    Record,
    Settings,
    Truncate,
)
from lakemirror.driver.rules.positions import NO_ORIGIN, Origin, log_of, server_of, source_micros
from lakemirror.driver.rules.untyped import loads
from tests.driver.parse.envelopes.test_envelopes import (
    BY_TOPIC,
    CUSTOM,
    DMS,
    FLAT,
    KEY,
    MAXWELL,
    NESTED,
    PATHS,
    WHOLE,
    Case,
)
from tests.driver.parse.envelopes.test_poison import BAD as POISON
from tests.driver.parse.envelopes.test_poison import GOOD

pytestmark = pytest.mark.guarantee(
    "Records of each envelope are read as its format specifies; what they lack is named"
)

Classify = Callable[[Record, Settings], Classified]
NOT_COMPARED = (
    "gaps",
    "identity",
    "schema_text",
    "schema_id",
    "key_schema_text",
    "key_schema_id",
    "raw_key",
    "raw_value",
)


def record(
    key: str | None, value: str | None, topic: str | None = "p.s.t", offset: int | None = 0, **more: Any
) -> Record:
    octets = [None if each is None else each.encode("utf-8", "surrogateescape") for each in (value, key)]
    return Record(*octets, origin=Origin(topic, 0, offset), **more)


def columns(found: Classified, by: str) -> dict[str, Any]:
    """What was found, as the columns of a classified event."""
    if isinstance(found, Bad):
        names = {} if found.table is None else found.table._asdict()
        return {"kind": "bad", "reason": found.reason, "seq": None, **names}
    if isinstance(found, NoRowChange):
        return {"kind": "tombstone" if found.why == "tombstone" else "other", "seq": None}
    log = log_of(found.source, by)  # type: ignore[arg-type]
    told = {
        **found.table._asdict(),
        "seq": found.seq,
        "server": server_of(found.source),
        "source_time": source_micros(found.source),
        "event_time": found.at,
        "stream": log,
    }
    if isinstance(found, Truncate):
        return {"kind": "truncate", "op": "t", **told}
    return {
        "kind": "change",
        "op": found.op,
        **told,
        "key_text": found.key,
        "row_text": found.row,
        "before_text": found.before,
        "new_key_text": found.new_key,
        "old_key_text": found.old_key,
        "unanchored": found.unanchored,
        "partial": found.partial,
        "full_before": found.full_before,
    }


def differences(
    classify: Classify,
    cases: Sequence[Case],
    by: str = "auto",
    settings: Settings | None = None,
    **where: Any,
) -> list[str]:
    settings = settings or Settings(Ordering(by))  # type: ignore[arg-type]
    wrong = []
    for number, (name, key, value, wanted) in enumerate(cases):
        offset = where.get("offset", 0)
        place = {**where, "offset": None if offset is None else offset + number}
        found = columns(classify(record(key, value, **place), settings), by)
        kind = "bad" if "reason" in wanted else wanted.get("kind", "change")
        for column, expected in {"kind": kind, **wanted}.items():
            if column in NOT_COMPARED or (column == "stream" and expected is None):
                continue
            got = found.get(column)
            if column == "reason":
                same = expected in (got or "")
            elif column.endswith("_text") and isinstance(expected, str):
                same = got == document(expected)
            elif column == "before_text":
                continue  # the driver keeps before images only where it needs them
            else:
                same = got == expected
            if not same:
                wrong.append(f"{name}: {column} is {got!r}, not {expected!r}")
    return wrong


def document(text: str) -> Any:
    """The JSON object of a text; a key that is none has no columns."""
    try:
        found = loads(text)
    except ValueError:
        return None
    return found if isinstance(found, dict) else None


def fields(envelope: Any) -> Fields:
    assert envelope.fields is not None
    return Fields(**envelope.fields.model_dump(exclude_none=True), op_map=envelope.op_map)


OF_DMS = partial(custom.classify, fields=fields(DMS))
OF_PATHS = partial(custom.classify, fields=fields(PATHS))


@pytest.mark.parametrize(
    ("classify", "cases"),
    [
        pytest.param(maxwell.classify, MAXWELL, id="maxwell"),
        pytest.param(flat.classify, FLAT, id="debezium-flat"),
        pytest.param(debezium.classify, WHOLE, id="debezium"),
        pytest.param(OF_DMS, CUSTOM, id="dms"),
        pytest.param(OF_PATHS, NESTED, id="paths"),
    ],
)
def test_records_of_each_envelope(classify: Classify, cases: list[Case]) -> None:
    wrong = differences(classify, cases)
    assert not wrong, "\n".join(wrong)


def test_heartbeats_and_tables_are_told_by_their_topics() -> None:
    assert not differences(
        flat.classify, [("one part", KEY, KEY, {"table": "t", "schema": None, "database": None})], topic="t"
    )
    assert not differences(
        flat.classify, [("dots", KEY, KEY, {**BY_TOPIC, "database": "a.b"})], topic="a.b.s.t"
    )
    assert not differences(flat.classify, [("none", KEY, KEY, {"reason": "no table"})], topic=None)


def test_a_null_value_is_a_delete_where_something_places_it() -> None:
    null: list[Case] = [("null", KEY, None, {"op": "d", "key_text": KEY, **BY_TOPIC})]
    assert not differences(flat.classify, null, "offset")
    placed = (("__lsn", b"5"), ("__op", b"d"))
    assert not differences(flat.classify, null, headers=placed)
    assert not differences(flat.classify, [("null", KEY, None, {"reason": "nothing says when"})])
    ignored = Settings(null_deletes=False)
    assert not differences(flat.classify, [("null", KEY, None, {"kind": "tombstone"})], settings=ignored)
    assert not differences(partial(custom.classify, fields=Fields()), null, "offset")


def test_a_change_of_a_key_names_the_other_one_in_a_header() -> None:
    source = '{"connector":"postgresql","name":"shop","db":"d","schema":"s","table":"t","lsn":5}'
    value = f'{{"op":"d","before":{{"id":1}},"after":null,"source":{source},"ts_ms":7}}'
    for text in (b'{"id":2}', b'{"schema":{"type":"struct","fields":[]},"payload":{"id":2}}'):
        found = debezium.classify(record(KEY, value, headers=(("__debezium.newkey", text),)), Settings())
        assert isinstance(found, Change)
        assert found.new_key == {"id": 2}
    plain = debezium.classify(
        record(KEY, value, headers=(("__debezium.newkey", b'{"d":2026-01-02}'),)), Settings()
    )
    assert isinstance(plain, Change)
    assert plain.new_key == {"d": "2026-01-02"}


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (b"\xff", "the value is not valid UTF-8"),
        (b'"\\ud83d"', "the value has half of a surrogate pair"),
        (b"{}", "the value has no op"),
        (b"[]", "the value is not a Debezium JSON object"),
        (b"{", "the value is not a Debezium JSON object"),
        (b"{}{}", "the value is not a Debezium JSON object"),
        (
            b'{"op":"u","after":{},"source":{"lsn":"5","table":"t"}}',
            "source.lsn has another type than Debezium gives it",
        ),
        (b'{"op":"u","after":NaN,"source":{"table":"t"}}', "the value is not a Debezium JSON object"),
        (b'{"a":' * 101 + b"1" + b"}" * 101, "the value is not a Debezium JSON object"),
        (b"[" * 100_000, "the value is not a Debezium JSON object"),
    ],
)
def test_what_cannot_be_read_is_named(value: bytes, reason: str) -> None:
    found = debezium.classify(Record(value, origin=Origin("t", 0, 0)), Settings())
    assert isinstance(found, Bad)
    assert reason in found.reason


@pytest.mark.parametrize("name", POISON)
def test_a_record_that_cannot_be_read_says_why(name: str) -> None:
    value, reason = POISON[name]
    octets = value if isinstance(value, bytes) else value.encode()
    found = debezium.classify(Record(octets, GOOD["key"].encode(), origin=Origin("t", 0, 0)), Settings())
    assert isinstance(found, Bad)
    assert reason in found.reason


def test_a_record_with_a_problem_of_its_own_keeps_it() -> None:
    for classify in (debezium.classify, flat.classify, maxwell.classify, OF_DMS):
        assert classify(Record(None, origin=NO_ORIGIN, problem="cut off"), Settings()) == Bad("cut off")
