"""A record with an embedded schema is the same document, whether its schema was seen before or not."""

from __future__ import annotations

import json
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from lakemirror.driver.rules.envelopes import records
from lakemirror.driver.rules.envelopes.records import HALF_CHARACTER, LEVELS, NotReadable, parsed

pytestmark = pytest.mark.guarantee(
    "Records of each envelope are read as its format specifies; what they lack is named"
)

SCHEMA = '{"type":"struct","fields":[{"field":"id","type":"int64"}],"name":"shop.Envelope"}'
HEAD = f'{{"schema":{SCHEMA}'
DEEP = "[" * LEVELS + "]" * LEVELS

TEXTS = {
    "as it is sent": f'{HEAD},"payload":{{"op":"u","price":1.50}}}}',
    "null": f'{HEAD},"payload":null}}',
    "number": f'{HEAD},"payload":12345678901234567890.12345678901234567890}}',
    "text": f'{HEAD},"payload":"a"}}',
    "nothing": f'{HEAD},"payload":}}',
    "empty schema": '{"schema":{},"payload":{"a":1}}',
    "payload first": f'{{"payload":{{"a":1}},"schema":{SCHEMA}}}',
    "schema twice before": f'{{"schema":{{"a":1}},"schema":{SCHEMA},"payload":{{"a":1}}}}',
    "schema twice after": f'{HEAD},"payload":{{"a":1}},"schema":{{"b":2}}}}',
    "schema is a text the second time": f'{HEAD},"schema":"x","payload":1}}',
    "payload twice": f'{HEAD},"payload":{{"a":1}},"payload":{{"a":2}}}}',
    "another member before": f'{HEAD},"id":7,"payload":{{"a":1}}}}',
    "another member after": f'{HEAD},"payload":{{"a":1}},"id":7}}',
    "member of the schema": '{"schema":{"type":"struct","payload":{"fields":[]}},"payload":{"a":1}}',
    "member of the schema alone": '{"schema":{"type":"struct","payload":{"fields":[]}}}',
    "schema in the payload": f'{HEAD},"payload":{{"schema":{SCHEMA},"payload":{{"a":1}}}}}}',
    "schema in a text": json.dumps({"schema": {"doc": f'{HEAD},"payload":1}}'}, "payload": {"a": 1}}),
    "payload in a text": r'{"schema":{"doc":"a,\"payload\":{}}"},"payload":{"doc":"},\"payload\":{"}}',
    "payload as a key in a text": '{"schema":{"doc":",", "payload":"x"},"payload":1}',
    "escaped name of the schema": r'{"sch\u0065ma":{"a":1},"payload":{"a":1}}',
    "escaped name of the payload": rf'{HEAD},"p\u0061yload":{{"a":1}}}}',
    "both names of the payload": rf'{HEAD},"p\u0061yload":{{"a":1}},"payload":{{"a":2}}}}',
    "escaped second schema": rf'{HEAD},"sch\u0065ma":{{"b":1}},"payload":{{"a":2}}}}',
    "whitespace": f'{{ "schema" : {SCHEMA} , "payload" : {{"a":1}} }}',
    "whitespace inside": f'{HEAD} ,"payload": {{"a":1}}\n }}',
    "whitespace before": f' {HEAD},"payload":{{"a":1}}}}',
    "whitespace after": f'{HEAD},"payload":{{"a":1}}}} \n',
    "whitespace of no kind of JSON": f'{HEAD},"payload":\u00a0{{"a":1}}}}',
    "byte order mark": f'\ufeff{HEAD},"payload":{{"a":1}}}}',
    "more behind": f'{HEAD},"payload":{{"a":1}}}}}}',
    "another document behind": f'{HEAD},"payload":{{"a":1}}}}{HEAD},"payload":{{"a":2}}}}',
    "not closed": f'{HEAD},"payload":{{"a":1}}',
    "schema not closed": '{"schema":{"a":1,"payload":{"a":1}}',
    "schema closed twice": '{"schema":{"a":1}},"payload":{"a":1}}',
    "comma before the payload is missing": f'{HEAD} "payload":{{"a":1}}}}',
    "comma too many": f'{HEAD},,"payload":{{"a":1}}}}',
    "comma at the end": f'{HEAD},"payload":{{"a":1}},}}',
    "a list instead": f'[{HEAD},"payload":1}}]',
    "NaN": f'{HEAD},"payload":{{"a":NaN}}}}',
    "NaN in the schema": '{"schema":{"default":NaN},"payload":{"a":1}}',
    "half a character": rf'{HEAD},"payload":{{"a":"\ud83d"}}}}',
    "half a character as a name": rf'{HEAD},"payload":{{"\ud83d":1}}}}',
    "half a character in the schema": r'{"schema":{"doc":"\ud83d"},"payload":{"a":1}}',
    "a whole character": rf'{HEAD},"payload":{{"a":"\ud83d\ude00"}}}}',
    "half a character in a schema that another one hides": (
        rf'{{"schema":{{"\ud83d":1}},"schema":{SCHEMA},"payload":{{"a":1}}}}'
    ),
    "halves that the payload would join": r'{"schema":{"doc":"\ud83d"},"payload":"\ude00"}',
    "control character": f'{HEAD},"payload":{{"a":"\t"}}}}',
    "deepest payload": f'{HEAD},"payload":{DEEP[1:-1]}}}',
    "payload too deep": f'{HEAD},"payload":{DEEP}}}',
    "deepest schema": f'{{"schema":{{"a":{DEEP[2:-2]}}},"payload":1}}',
    "schema too deep": f'{{"schema":{{"a":{DEEP[1:-1]}}},"payload":1}}',
    "far too deep": f'{HEAD},"payload":{"[" * 100_000}{"]" * 100_000}}}',
    "schema far too deep": f'{{"schema":{{"a":{"[" * 100_000}{"]" * 100_000}}},"payload":1}}',
}


def outcome(text: str) -> str:
    """What a text is: the document with each digit of its numbers, or the kind of mistake."""
    try:
        return repr(parsed(text.encode("utf-8", "surrogatepass"), "value"))
    except (NotReadable, ValueError, RecursionError) as error:
        return _kind(error)


def plain(text: str) -> str:
    """The same, by Python's own reader of JSON, which sees the document as a whole."""
    try:
        text.encode()
        document = json.loads(text, parse_float=Decimal, parse_constant=_refuse)
    except UnicodeEncodeError:
        return "not readable"
    except (ValueError, RecursionError) as error:
        return _kind(error)
    members = json.loads(text, object_pairs_hook=list)  # also those that a later one of their name hides
    try:
        json.dumps(members, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        return "not readable"
    return repr(document) if _levels(document) <= LEVELS else "no document"


def _kind(error: Exception) -> str:
    return "not readable" if isinstance(error, NotReadable) else "no document"


def _refuse(name: str) -> Any:
    raise ValueError(name)


def _levels(value: Any) -> int:
    parts = list(value.values()) if isinstance(value, dict) else value if isinstance(value, list) else None
    return 0 if parts is None else 1 + max(map(_levels, parts), default=0)


@pytest.mark.parametrize("name", TEXTS)
def test_a_text_is_the_same_document_each_time(name: str) -> None:
    records._head.cache_clear()
    records._latest.clear()
    assert [outcome(TEXTS[name]) for _ in range(3)] == [plain(TEXTS[name])] * 3


def test_a_text_is_the_same_document_after_all_others() -> None:
    for _ in range(2):
        assert {name: outcome(text) for name, text in TEXTS.items()} == {
            name: plain(text) for name, text in TEXTS.items()
        }


def test_the_schema_of_each_record_is_one_and_the_same() -> None:
    first, other = (parsed(f'{HEAD},"payload":{{"id":{n}}}}}'.encode(), "value") for n in (1, 2))
    assert first["schema"] is other["schema"]
    assert (first["payload"], other["payload"]) == ({"id": 1}, {"id": 2})


def test_what_is_wrong_with_a_record_is_told_of_the_whole_document() -> None:
    with pytest.raises(NotReadable, match=HALF_CHARACTER):
        parsed(TEXTS["half a character in the schema"].encode(), "value")


_MEMBERS = [
    '"schema":',
    ',"payload":',
    '"payload"',
    '"a":',
    ',"payload":{"a":1}}',
    '{"schema":{',
    SCHEMA,
    HEAD,
]
_OTHERS = [
    "{",
    "}",
    "[",
    "]",
    ",",
    ":",
    "{}",
    "1",
    "1.50",
    '"',
    "\\",
    " ",
    "\n",
    '"a"',
    "null",
    r"\ud83d",
    r"\u0065",
]
PARTS = st.sampled_from([*_MEMBERS, *_OTHERS])


@settings(max_examples=1500, deadline=None)
@given(st.lists(PARTS, max_size=12).map("".join), st.sampled_from(["", '{"schema":{', HEAD]))
@example('"a":1},"payload":1}', '{"schema":{')
def test_any_text_is_the_same_document(text: str, head: str) -> None:
    assert outcome(head + text) == plain(head + text)


@settings(max_examples=500, deadline=None)
@given(st.sampled_from([name for name, text in TEXTS.items() if len(text) < 500]), st.data())
def test_a_text_with_a_mistake_is_the_same_document(name: str, data: st.DataObject) -> None:
    text = TEXTS[name]
    begin = data.draw(st.integers(0, len(text)))
    end = data.draw(st.integers(begin, min(len(text), begin + 12)))
    changed = text[:begin] + data.draw(PARTS) * data.draw(st.integers(0, 1)) + text[end:]
    assert outcome(changed) == plain(changed)
