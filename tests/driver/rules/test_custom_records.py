"""Random custom records of many manifests: the driver's envelope and the rules say the same of each."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Mapping
from typing import Any

import pytest
from pyspark.sql import SparkSession

from lakemirror.api.spec import PipelineSpec
from lakemirror.driver.parse.envelopes import chooser
from lakemirror.driver.rules.envelopes.records import Ordering, Record, Settings
from lakemirror.driver.rules.positions import Origin
from tests.driver.parse.envelopes.test_envelopes import classified
from tests.support.agreement import format_of
from tests.support.classified import differences
from tests.support.rule_engine import Engine

pytestmark = pytest.mark.guarantee("The rules and the driver's engine make the same of the same records")

PATHS = {
    "op": ("op", "m.op", "a b"),
    "after": ("new", "m.new", "payload.new", None),
    "before": ("old", "m.old", "new.old", None),
    "key": ("key", "new.id", "m.k.id", None),
    "timestamp": ("at", "m.at", "new.at", None),
    "table": ("of", "m.of", None),
}
WORDS = {"put": "u", "gone": "d", "noise": "ignore", "": "r", "1": "c", "{}": "t"}
OPS = ("c", "U", "delete", "load", "t", "put", "gone", "noise", "", None, 1, {}, "x", True)
TIMES = (
    1_700_000_000,
    1_700_000_000_123,
    "2024-02-29T12:00:00Z",
    "2024-02-29 12:00",
    "9" * 20,
    -1,
    1.5,
    None,
    [],
    "soon",
)
NUMBERS = (
    1,
    -1.5,
    "7",
    "2024-01-01",
    10**30,
    12345678901234567890123456789012345678,
    1e300,
    None,
    True,
    "x",
    [],
    0.00000000005,
)
IDS = (1, "x", 1.5, None, [1], {"a": 1}, {"id": 1, "b": None}, True, 10**20)
IMAGES = ({"id": 1, "v": 2}, {"id": 2}, {}, None, [1], "x", 5, {"id": 1, "old": {"id": 3}, "at": 5})


def manifests(count: int, number: int) -> Iterator[Mapping[str, Any]]:
    """Envelopes and orders."""
    rnd = random.Random(number)
    while count:
        paths = {name: rnd.choice(each) for name, each in PATHS.items() if rnd.random() < 0.8}
        fields = {name: path for name, path in paths.items() if path is not None}
        if not fields:
            continue
        envelope: dict[str, Any] = {"format": "custom", "fields": fields}
        if "op" in fields and rnd.random() < 0.5:
            envelope["opMap"] = WORDS
        if rnd.random() < 0.3:
            envelope["nullValue"] = "ignore"
        by = rnd.choice(("auto", "timestamp", "offset", "columns", "columns"))
        after = fields.get("after")
        column = f"{after}.v" if after else "v"
        order = {
            "by": by,
            **({"columns": rnd.choice(([column], ["m.v", column]))} if by == "columns" else {}),
        }
        yield {"envelope": envelope, "ordering": order}
        count -= 1


def values(fields: Mapping[str, str], columns: list[str], rnd: random.Random) -> Any:
    """The value of a record: most parts are there."""
    if rnd.random() < 0.03:
        return rnd.choice((None, 5, [1], "text", {}))
    value: dict[str, Any] = {"id": 1, "v": 1}
    choices: dict[str, Any] = {
        **{
            "op": OPS,
            "after": IMAGES,
            "before": IMAGES,
            "key": IDS,
            "timestamp": TIMES,
            "table": ("s.t", "t", 5, None),
        }
    }
    for name in ("after", "before", "op", "key", "timestamp", "table"):
        if name in fields and rnd.random() < 0.95:
            usual = rnd.random() < 0.7
            put(value, fields[name], choices[name][0] if usual else rnd.choice(choices[name]), rnd)
    for path in columns:
        if rnd.random() < 0.9:
            put(value, path, rnd.choice(NUMBERS), rnd)
    return value


def put(value: dict[str, Any], path: str, part: Any, rnd: random.Random) -> None:
    """Put a part at its path, unless what is there is no object."""
    *names, last = path.split(".")
    for name in names:
        inner = value.setdefault(name, {} if rnd.random() < 0.97 else rnd.choice((None, 5, [])))
        if not isinstance(inner, dict):
            return
        value = value[name] = dict(inner)
    value[last] = part


@pytest.mark.thorough
@pytest.mark.timeout(900)
@pytest.mark.parametrize(("number", "count"), [(1, 12), (2, 200)])
def test_random_records(number: int, count: int, spark: SparkSession) -> None:
    rnd, differ = random.Random(number), list[str]()
    for settings in manifests(count, number):
        spec = PipelineSpec.model_validate(
            {
                "source": {"files": {"path": "in"}},
                "target": {"path": "lake/{table}"},
                "checkpoint": "state",
                **settings,
            }
        )
        columns = list(spec.ordering.columns or ())
        records = [
            (
                rnd.choice(('{"id":1}', '{"schema":null,"payload":{"id":2}}', "[1]", "5", "{", None)),
                rnd.choice((None, "{"))
                if rnd.random() < 0.05
                else json.dumps(values(settings["envelope"]["fields"], columns, rnd)),
            )
            for _ in range(150)
        ]
        form = format_of(spec.envelope, columns)
        asked = Settings(
            Ordering(spec.ordering.by, columns=tuple(columns)),
            null_deletes=spec.envelope.null_value != "ignore",
        )
        engine = Engine(form.classify, asked, declared_in=form.declared_in, writing=form.writing)
        told = [
            engine.classified(
                Record(
                    *(None if text is None else text.encode() for text in (value, key)),
                    origin=Origin("p.s.t", 0, n),
                )
            )
            for n, (key, value) in enumerate(records)
        ]
        found = differences(classified(spark, chooser.classifier(spec), records), told)
        differ += [f"{settings}", *found[:5]] if found else []
    assert not differ, "\n".join(differ)
