"""What the driver's envelopes say of records, beside what the rules say: where they differ."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from lakemirror.driver.codes import Op
from lakemirror.driver.rules.envelopes.records import Bad, Change, Classified, NoRowChange, Truncate
from lakemirror.driver.rules.keys import micros_of
from lakemirror.driver.rules.untyped import dumps, loads

IMAGES = ("key", "row", "new_key", "old_key")
"""What is compared of each change. The row before an update is kept where the manifest needs it only."""
Event = Mapping[str, Any]
"""A classified event of the driver, by column."""


def differences(events: Iterable[Event], found: Iterable[Classified]) -> list[str]:
    """One line for each record of which the two do not say the same."""
    told = [
        (number, as_plain(event), by_rules(mine))
        for number, (event, mine) in enumerate(zip(events, found, strict=True))
    ]
    return [
        f"{number}: the engine says {engine}\n   the rules  {rules}"
        for number, engine, rules in told
        if engine != rules
    ]


def by_rules(found: Classified) -> Mapping[str, Any]:
    """What the rules say, in the words of the driver's events."""
    if isinstance(found, Bad):
        return {"kind": "bad", "reason": found.reason}
    if isinstance(found, NoRowChange):
        return {"kind": "tombstone" if found.why == "tombstone" else "other"}
    told = {"table": tuple(found.table), "seq": found.seq.hex(), "at": found.at}
    if isinstance(found, Truncate):
        return {"kind": "truncate", **told}
    return {"kind": "change", **told, **dict(_of_change(found))}


def _of_change(change: Change) -> Iterator[tuple[str, Any]]:
    yield "op", str(change.op)
    for name in IMAGES:
        yield name, _alike(getattr(change, name))
    yield "before", _alike(change.before) if change.op == Op.DELETE else None
    yield "unanchored", change.unanchored


def as_plain(event: Event) -> Mapping[str, Any]:
    """What an event of the driver says."""
    kind = event["kind"]
    if kind in ("bad", "no place"):
        return {"kind": "bad", "reason": event["reason"]}
    if kind in ("tombstone", "other"):
        return {"kind": kind}
    at = None if event["event_time"] is None else micros_of(event["event_time"].astimezone())
    told = {
        "table": (event["database"], event["schema"], event["table"]),
        "seq": bytes(event["seq"]).hex(),
        "at": at,
    }
    if kind == "truncate":
        return {"kind": kind, **told}
    images = {name: _alike(_parsed(event[f"{name}_text"])) for name in IMAGES}
    if not str(images.get("key")).startswith(("[(", "[]")):
        images["key"] = None  # only an object is a key
    images["before"] = _alike(_parsed(event["before_text"])) if event["op"] == Op.DELETE else None
    return {"kind": kind, **told, "op": event["op"], **images, "unanchored": bool(event["unanchored"])}


def _parsed(text: str | None) -> Any:
    try:
        return None if text is None else loads(text)
    except ValueError:
        return text  # a record that is bad may have any


def _alike(value: Any) -> str | None:
    """A document in one spelling: the order of its members says nothing."""
    if isinstance(value, Mapping):
        return repr(sorted((name, _alike(each)) for name, each in value.items()))
    if isinstance(value, list):
        return repr([_alike(each) for each in value])
    return None if value is None else dumps(value)
