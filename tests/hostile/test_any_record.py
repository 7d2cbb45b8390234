"""Records with any value in any place, by format, in the midst of good ones.

The law is the oracle: whatever a record says, the others of its batch are applied, and each record has one
outcome. None makes Spark throw, so that nothing has to look for it. Many of these records would take minutes
or gigabytes if nothing looked at them first: a batch of them may take several times the processor's time of
one of good records only, and no row or reason becomes much longer than the longest record.

Each pipeline reads three batches. The first has good records only, which give the tables their types. The
other two bring the odd records twice, because a schema is learned in one batch and used in the next. Tables:
``good`` has good records only; ``odd`` also those with odd values; what ``strange`` is sent may hold it.
"""

from __future__ import annotations

import json
import os
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from lakemirror.driver.batch import BatchApplier
from lakemirror.driver.parse import isolate
from lakemirror.driver.read.base import Batch
from tests.support.mirroring import Mirroring, at
from tests.support.records import Record, Row

OFTEN = 12
"""How many times the processor's time of a batch of good records one with odd records may take, at most."""
GOOD = 1_000_000
"""Rows from here on are good."""
THERE = "@there@"
"""Stands in a record for the value of a case."""


def nested(begin: str, inner: str, end: str, times: int) -> str:
    return begin * times + inner + end * times


TEXTS = (
    *("1e-100000000", "1E+100000000", "-1e-99999999", "1e99999", "1e-9999", "0e-99999999", "1" * 5000),
    *("0." + "0" * 3000 + "1", "." * 50, "-", "+", "e", "1e", "0x1F", "1d", "1_0", " 1 ", "１２", "--1"),
    *("NaN", "nan", "Infinity", "-Infinity", "INF", "POSITIVE_INFINITY", "infinity", "null", "true", ""),
    *("2024-01-01" + " " * 30_000 + "x", "2024-01-01T00:00:00" + "0" * 30_000, "2024-02-30", "0000-00-00"),
    *("9999-12-31T23:59:59.9999999999Z", "-292278994-01-01", "+999999999-01-01", "10000-01-01", "24:00:00"),
    *("2024-01-01T00:00:00+99:99", "2024-01-01T00:00:00[" + "x" * 1000 + "]", "-99999999999999999999-01-01"),
    *("-838:59:59", "P1Y2M", '{"scale":3000000,"value":"AQ=="}', "\0", "\u202e😀", "AQ==", "////"),
    *("A" * 50_000, "{", "[]", nested("[", "", "]", 90), "'; DROP TABLE x; --", "${env:HOME}", "$.x", "a`b"),
)
LITERALS = (
    *("1e-100000000", "1E400", "-1e-400", "1e999999999999", "-0", "-0.0", "1.5", "0.1e1", "1" * 900),
    *("1" * 1001, "1." + "0" * 500, "9223372036854775807", "9223372036854775808", "-9223372036854775808"),
    *("2147483648", "-2147483648", "32768", "128", "200", "4294967296", "1e10", "0123", "1.", "NaN", "-"),
    *("true", "null", "[]", "{}", '[""]', "[null]", "[[1,2],[3]]", '[{"a":1},5]', '{"a":1,"a":2}'),
    *('{"0":1,"-0":2}', '{"0.0":1,"-0.0":2}', '{"NaN":1,"nan":2}', '{"1":1,"1.0":2,"01":3}'),
    *('{"a":1,"A":2}', '{"":1}', '{"scale":3000000,"value":"AQ=="}', '{"scale":-3000000,"value":"AQ=="}'),
    *('{"scale":-2147483648,"value":"AQ=="}', '{"scale":2147483648,"value":"AQ=="}', '{"scale":5}'),
    *('{"scale":-9223372036854775808,"value":"AQ=="}', '{"scale":"x","value":7}', '{"value":"AQ=="}'),
    *('{"scale":16383,"value":"AA=="}', '{"scale":2,"value":"' + "/" * 8000 + '"}'),
    *('{"scale":2,"value":"A"}', '{"scale":2,"value":"=A=="}', '{"scale":2,"value":"A==="}'),
    *(nested("[", "1", "]", 30), nested("[", "1", "]", 80), nested('{"a":', "1", "}", 30)),
    *(nested('{"a":[', "1", "]}", 40), nested('{"a":', "1", "}", 90), '"\\ud83d"', '{"\\u0000":1}'),
)
VALUES = (*LITERALS, *map(json.dumps, TEXTS))


@dataclass
class Case:
    """A pipeline: its settings, what its three batches bring, and the rows that have to be there by table.

    The target is a path below the lake.
    """

    settings: dict[str, Any]
    batches: list[list[Record]] = field(default_factory=lambda: [[], [], []])
    good: dict[str, set[int]] = field(default_factory=lambda: {"good": set(), "odd": set()})
    offset: int = 0

    def send(self, batch: int, topic: str, key: Any, value: Any, headers: Sequence[Any] = ()) -> None:
        place = {"topic": topic, "partition": 0, "offset": self.offset, "timestamp": 1_700_000_000_000}
        self.offset += 1
        self.batches[batch].append({**place, "key": key, "value": value, "headers": list(headers)})


def filled(document: Any, value: str) -> str:
    """A document with a value of JSON in its place."""
    return json.dumps(document).replace(f'"{THERE}"', value)


def chosen(seed: str, pairs: Sequence[Any], number: int) -> list[Any]:
    """Some of the pairs: always the same ones."""
    return random.Random(seed).sample(list(pairs), min(number, len(pairs)))


def deliver(case: Case, send: Callable[[int, str, int], None], odd: Callable[[int], None]) -> Case:
    """Put good records at the beginning and the end of each batch, and odd ones into all but the first."""
    for batch in range(3):
        for part in range(2):
            for table, ids in case.good.items():
                ids.add(GOOD + 10 * batch + part)
                send(batch, table, GOOD + 10 * batch + part)
            if batch and not part:
                odd(batch)
    return case


# -- the formats --------------------------------------------------------------------------------------------


def maxwell(number: int) -> Case:
    """Each part of a record, and the values of its images."""
    case = Case({"envelope": {"format": "maxwell"}, "target": "shop/s/{table}"})

    def change(table: str, id: int, /, **more: Any) -> Row:
        place = {"position": f"binlog.000001:{1000 + case.offset}", "xoffset": 0, "xid": case.offset}
        row = {"id": id, "v": "a"}
        head = {"database": "shop", "table": table, "type": "insert", "ts": 1_700_000_000 + case.offset}
        return {**head, **place, "primary_key_columns": ["id"], "data": row, **more}

    def send(batch: int, table: str, id: int, value: str = "null", /, **more: Any) -> None:
        key = {"database": "shop", "table": table, "pk.id": id}
        case.send(batch, "maxwell", json.dumps(key), filled(change(table, id, **more), value))

    # Each name in "database" or "table" would be a table of its own.
    names = ("type", "ts", "xoffset", "commit", "position", "gtid", "server_id", "data", "old")
    names += ("primary_key_columns", "reason")
    pairs = [(name, value) for name in names for value in VALUES]

    def odd(batch: int) -> None:
        for id, (name, value) in enumerate(chosen("maxwell", pairs, number)):
            send(batch, "strange", id, value, **{name: THERE})
        for id, value in enumerate(("5", "null", "{}", '""', '["a"]', '"' + "a" * 5000 + '"')):
            send(batch, "strange", id, value, table=THERE)
            send(batch, "strange", id, value, database=THERE)
        for id, value in enumerate(VALUES):
            send(batch, "strange", id, value, data={"id": id, "v": THERE})
            send(batch, "strange", id, value, type="update", old={"v": THERE})
            send(batch, "strange", id, value, type="update", data={"id": id, "w": THERE}, old={"u": 2})
        update = json.dumps(change("strange", 1, type="update", old={"u": 2}))
        case.send(batch, "maxwell", None, update.replace('"v": "a"', '"v": 1, "v": 2'))

    return deliver(case, send, odd)


FORMATS: dict[str, Callable[[int], Case]] = {each.__name__: each for each in (maxwell,)}


@dataclass
class Watched:
    """What the batches of the source took of the processor, in seconds, and what made Spark throw."""

    spent: list[float] = field(default_factory=list)
    thrown: list[str] = field(default_factory=list)


@pytest.fixture
def watched(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> Watched:
    found = Watched()
    jvm: Any = spark.sparkContext._jvm
    stat = Path(f"/proc/{jvm.java.lang.ProcessHandle.current().pid()}/stat")
    apply, poisoned = BatchApplier.apply, isolate.poisoned

    def busy() -> float:
        mine = stat.read_text().rpartition(")")[2].split()
        return (int(mine[11]) + int(mine[12])) / os.sysconf("SC_CLK_TCK")

    def timed(self: BatchApplier, raw: DataFrame, batch: Batch) -> Any:
        before = busy()
        try:
            return apply(self, raw, batch)
        finally:
            if not batch.query_id.startswith("replay-"):
                found.spent.append(busy() - before)

    def told(frame: DataFrame, probe: Any, error: Exception, **options: Any) -> isolate.Poison:
        poison = poisoned(frame, probe, error, **options)
        found.thrown += poison.records.values() or [str(error)[:1000]]
        return poison

    monkeypatch.setattr(BatchApplier, "apply", timed)
    monkeypatch.setattr(isolate, "poisoned", told)
    return found


def longest(spark: SparkSession, made: Mirroring) -> int:
    """The characters of the longest row or reason of all that a pipeline has written."""
    tables = [str(log.parent) for log in made.folder.glob("lake/*/*/*/_delta_log")]
    lengths = [
        at(spark, table).agg(F.max(F.length(F.to_json(F.struct("*"))))).collect()[0][0] for table in tables
    ]
    aside = spark.read.format("delta").load(f"{made.checkpoint}/quarantine")
    return max(*[length or 0 for length in lengths], aside.agg(F.max(F.length("reason"))).collect()[0][0])


@pytest.mark.guarantee("No record makes a batch fail")
@pytest.mark.guarantee("A record takes limited time and memory, whatever it says")
@pytest.mark.long
@pytest.mark.parametrize("form", FORMATS)
def test_an_odd_record_harms_no_other(
    form: str, spark: SparkSession, tmp_path: Path, watched: Watched
) -> None:
    case = FORMATS[form](150)
    path = f"{tmp_path}/lake/{case.settings['target']}"
    made = Mirroring(tmp_path, {**case.settings, "target": {"path": path}}).deliver(case.batches)
    summary = made.run(spark)
    for table, ids in case.good.items():
        found = at(spark, made.path("shop", "s", table)).where(f"id >= {GOOD}").select("id").collect()
        assert {row["id"] for row in found} == ids, table
    records = spark.read.format("delta").load(f"{made.checkpoint}/audit").where("source IS NULL")
    sent = sum(map(len, case.batches))
    assert records.agg({"records": "sum"}).collect()[0][0] == sent
    assert 0 < summary.counts.quarantined < sent
    assert watched.thrown == []
    assert max(watched.spent[1:]) <= OFTEN * watched.spent[0]
    sizes = [len(record["value"] or "") for batch in case.batches for record in batch]
    assert longest(spark, made) <= 2 * max(sizes)


def test_what_is_sent() -> None:
    """The cases are what they are called."""
    for form, make in FORMATS.items():
        case = make(20)
        assert all(len(ids) == 6 for ids in case.good.values()), form
        assert len(case.batches[1]) > 20, form
    assert filled({"a": THERE}, "1e5") == '{"a": 1e5}'
