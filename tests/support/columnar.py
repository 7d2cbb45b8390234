"""Batches in columns, beside the same batches by the rules alone: what each makes of every record."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any

import pyarrow as pa

from lakemirror.driver.columns import odd as odd_records
from lakemirror.driver.columns import stored as in_columns
from lakemirror.driver.columns.changes import key_of, none
from lakemirror.driver.columns.decode import Decoded, Decoder
from lakemirror.driver.columns.facts import Facts
from lakemirror.driver.columns.fold import OUTCOMES, Bucket, Folded, Mirrored, fold
from lakemirror.driver.columns.raw_records import RawRecords
from lakemirror.driver.rules.batch import Applied, Mirror, apply
from lakemirror.driver.rules.envelopes.records import Bad, Record
from lakemirror.driver.rules.orders import Truncated
from lakemirror.driver.rules.positions import Origin
from lakemirror.driver.rules.table import Table
from lakemirror.driver.rules.values import Event, Key, Outcome, Row, Tombstone
from tests.support.records import Record as Line
from tests.support.rule_engine import record_of

HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
RAW = pa.schema(
    [
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("timestamp", pa.timestamp("ms", "UTC")),
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("headers", HEADERS),
    ]
)


def block_of(records: Sequence[Record]) -> pa.RecordBatch:
    """Records as a block in columns."""
    rows = [
        {
            **each.origin._asdict(),
            "timestamp": None,
            "key": each.key,
            "value": each.value,
            "headers": [{"key": name, "value": value} for name, value in each.headers],
        }
        for each in records
    ]
    return pa.RecordBatch.from_pylist(rows, RAW)


def records_of(lines: Iterable[Line]) -> list[Record]:
    return [record_of(each) for each in lines]


# -- by the rules -----------------------------------------------------------------------------------------


Found = list[Event] | Truncated | str | None
"""What a record is: an event with its half, a truncate, why it cannot be applied, or nothing (None)."""


def read(record: Record, facts: Facts) -> Found:
    """What the rules make of a record."""
    found = odd_records.read(record, facts)
    match found:
        case odd_records.OddChange():
            return list(found.events)
        case Bad() | odd_records.Spoilt():
            return found.reason
        case odd_records.Other():
            return found.what
        case Truncated():
            return found
    return None


# -- in columns -------------------------------------------------------------------------------------------


GONE = "gone"
"""The column with the time of a soft delete."""


@dataclass
class Beside:
    """One mirror that is kept twice: by the rules alone, and in columns. ``odd`` counts odd records."""

    facts: Facts
    soft: bool = False
    tracked: Sequence[str] = ()
    mirror: Mirror = field(default_factory=Mirror)
    odd: int = 0
    by_rules: int = 0
    records: int = 0
    unanchored: int = 0

    def __post_init__(self) -> None:
        self.kinds = {name: each.kind for name, each in self.facts.columns.items()}
        self.key = list(self.facts.key.names)
        self.rows = in_columns.of_rows({}, self.kinds, self.key, soft=GONE if self.soft else None)
        self.ends: dict[Key, Tombstone] = {}
        self.images: list[Any] = []
        self.former: Truncated | None = None
        self.decoder = Decoder(self.facts)

    def deliver(self, records: Sequence[Record], rnd: random.Random) -> None:
        """Apply a batch in both ways, and compare what became of each record and of the mirror."""
        found = [read(each, self.facts) for each in records]
        truncates = [each for each in found if isinstance(each, Truncated)]
        table = Table(list(self.kinds), self.tracked, self.soft, truncates=truncates)
        events = [each for mine in found if isinstance(mine, list) for each in mine]
        self.unanchored += sum(each.unanchored for each in events)
        by_rules = apply(self.mirror, events, table)
        expected = _by_record(found, by_rules)
        mine = self._deliver(records, found, table, rnd)
        assert _told(records, mine) == _told(records, expected)
        self.mirror = by_rules.mirror
        self._compare()

    def _deliver(
        self, records: Sequence[Record], found: Sequence[Found], table: Table, rnd: random.Random
    ) -> list[Outcome | None]:
        blocks = cut(len(records), rnd)
        parts = [none(self.kinds)]
        numbers: list[int] = []
        odd: list[int] = []
        for begin, end in blocks:
            decoded = self.decoder.decode(RawRecords.of(block_of(records[begin:end])))
            parts.append(decoded.changes)
            numbers += [begin + int(each) for each in decoded.numbers]
            odd += [begin + int(each) for each in decoded.odd]
            assert all(records[begin + i].value is None for i in decoded.tombstones)
        self.odd, self.records = self.odd + len(odd), self.records + len(records)
        changes = pa.concat_batches(parts)
        shuffle = rnd.sample(range(len(numbers)), len(numbers))
        changes, numbers = changes.take(pa.array(shuffle, pa.int64())), [numbers[i] for i in shuffle]
        events = [(i, each) for i in odd for each in (found[i] if isinstance(found[i], list) else [])]
        ends = in_columns.of_tombstones(self.ends, self.kinds, self.key)
        bucket = Bucket(changes, self.rows, ends, [each for _, each in events], self.images)
        folded = fold(
            bucket,
            Mirrored(self.kinds, self.key, replace(table, former=self.former), GONE if self.soft else None),
        )
        self.by_rules += folded.by_rules
        self._put(folded, table)
        outcomes: list[Outcome | None] = [None] * len(records)
        for number, each in zip(numbers, folded.outcomes, strict=True):
            outcomes[number] = OUTCOMES[each]
        for (number, event), outcome in zip(events, folded.of_odd, strict=True):
            if not event.is_half:
                outcomes[number] = outcome
        of_truncates = [i for i in odd if isinstance(found[i], Truncated)]
        for number, outcome in zip(of_truncates, folded.of_truncates, strict=True):
            outcomes[number] = outcome
        return outcomes

    def _put(self, folded: Folded, table: Table) -> None:
        kept = sorted(set(range(self.rows.num_rows)) - set(folded.hidden.tolist()))
        self.rows = pa.concat_batches([self.rows.take(pa.array(kept, pa.int64())), folded.rows])
        self.ends |= in_columns.as_tombstones(folded.tombstones, self.kinds, self.key)
        self.images += folded.images
        self.former = replace(table, former=self.former).floor

    def _compare(self) -> None:
        mine, theirs = (
            in_columns.as_rows(self.rows, self.kinds, self.key, soft=GONE if self.soft else None),
            self.mirror.rows,
        )
        assert len(mine) == self.rows.num_rows
        assert shown(mine) == shown({key_of(key): row for key, row in theirs.items()})
        assert shown(self.ends) == shown({key_of(key): each for key, each in self.mirror.tombstones.items()})


def shown(found: Mapping[Key, Row | Tombstone]) -> dict[str, str]:
    """Rows or tombstones as text, in which NaN is NaN."""
    return {repr(key): _text(each) for key, each in found.items()}


def _text(each: Row | Tombstone) -> str:
    if isinstance(each, Row):
        maps = {name: dict(getattr(each, name)) for name in ("values", "seqs", "texts")}
        each = each._replace(op=str(each.op), origin=Origin(*each.origin), **maps)  # type: ignore[arg-type]
    return repr(each)


def _by_record(found: Sequence[Found], applied: Applied) -> list[Outcome | None]:
    """The outcome of each record: None if it has none."""
    events, truncates = iter(applied.events), iter(applied.truncates)
    outcomes: list[Outcome | None] = []
    for each in found:
        if isinstance(each, list):
            of_events = [next(events) for _ in each]
            outcomes.append(of_events[0])
        else:
            outcomes.append(next(truncates) if isinstance(each, Truncated) else None)
    return outcomes


def _told(records: Sequence[Record], outcomes: Sequence[Outcome | None]) -> Counter[tuple[Any, ...]]:
    """How many records of each origin have which outcome: of equal records, any may be the first."""
    return Counter((each.origin, told) for each, told in zip(records, outcomes, strict=True))


def cut(number: int, rnd: random.Random) -> list[tuple[int, int]]:
    """Some blocks of so many records."""
    ends = sorted({0, number, *(rnd.randint(0, number) for _ in range(rnd.randint(0, 3)))})
    return list(pairwise(ends))


def decoded(records: Sequence[Record], facts: Facts) -> Decoded:
    """What one block says."""
    return Decoder(facts).decode(RawRecords.of(block_of(records)))
