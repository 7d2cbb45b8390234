"""Generated histories as custom records: the driver's engine and the rules make the same of them.

One pipeline for each form of records and each order, with mirrors of each mode. Odd records are among them,
so that the reasons of the quarantine are compared as well.
"""

from __future__ import annotations

import json
import random
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from tests.driver.rules.test_differential import beside
from tests.support.agreement import DELETED_AT, assert_agreement, by_rules
from tests.support.custom_records import BEGAN, Form, records
from tests.support.delivery import doubled, parts, shuffled
from tests.support.histories import History, Shape, many, play
from tests.support.mirroring import Mirroring
from tests.support.records import Record, Row

pytestmark = pytest.mark.guarantee("The rules and the driver's engine make the same of the same records")

MODES: Mapping[str, Mapping[str, Any]] = {
    "rows": {"primaryKey": ["h", "id"]},
    "soft": {"primaryKey": ["h", "id"], "delete": {"type": "soft", "column": DELETED_AT}},
    "versions": {"primaryKey": ["h", "id"], "mode": "scd2"},
    "listed": {"mode": "append"},
}


@dataclass(frozen=True)
class Sent:
    """The form of the records, and what orders them. ``timed`` says that the manifest names their time."""

    form: Form
    ordering: Mapping[str, Any]
    timed: bool = True


COLUMNS = {"by": "columns", "columns": ["new.h", "new.v"]}
FORMS: Mapping[str, Sent] = {
    "times": Sent(Form(partitions=2), {"by": "auto"}),
    "times in schemas": Sent(Form(schemas=True, changed=True), {"by": "timestamp"}),
    "offsets": Sent(Form(), {"by": "offset"}),
    "offsets alone": Sent(Form(changed=True), {"by": "auto"}, timed=False),
    "columns": Sent(Form(partitions=2), COLUMNS),
    "columns in schemas": Sent(Form(schemas=True), COLUMNS, timed=False),
    "flat": Sent(Form("flat"), {"by": "auto"}),
    "flat columns": Sent(Form("flat", partitions=2), {"by": "columns", "columns": ["h", "v"]}, timed=False),
    "equal times": Sent(Form(pause=0), {"by": "timestamp"}),
}


OFTEN = ("columns",)
"""Forms that are compared by day; the others follow in the night."""
ODD = 9_000
"""The history of the odd records' rows."""


def histories(number: int, size: int, truncates: int = 1) -> Mapping[str, History]:
    """A history for each mode."""
    rnd = random.Random(number)
    return {
        name: play(many(range(size), rnd, truncates=truncates), Shape(full=True, name=name, schemas=False))
        for name in MODES
    }


def odd(form: Form) -> list[Record]:
    """Records of the first table that lack a part, or have another in its place."""
    good: Row = {"meta": {"op": "u", "table": "public.rows", "at": BEGAN}, "key": {"h": ODD, "id": 9}}
    good |= {"old": None, "new": {"h": ODD, "id": 9, "v": 1, "note": None, "big": None}}
    flat: Row = {"Op": "U", "at": BEGAN, "h": ODD, "id": 9, "v": 1}
    values: list[Any] = [
        *({**good, name: other} for name in ("meta", "key", "old", "new") for other in (None, 5, [1], {})),
        *(
            {**good, "meta": {**good["meta"], name: other}}
            for name in good["meta"]
            for other in (None, 5, "x", {})
        ),
        *({**good, "key": {"h": ODD, "id": other}} for other in (None, "x", 8)),
        *(
            {**good, "new": {**good["new"], name: other}}
            for name in ("id", "v")
            for other in (None, "x", [1])
        ),
        {**good, "meta": {**good["meta"], "op": "d"}, "new": None},
        {**good, "meta": {**good["meta"], "op": "d"}, "new": None, "key": None},
        {**good, "meta": {**good["meta"], "op": "ignore"}},
    ]
    if form.layout == "flat":
        values = [{**flat, name: other} for name in flat for other in (None, "x", [1], {}, 1.5)]
    values += [None, [1], "text", 5]
    return [
        {
            **{"topic": "demo.public.rows", "partition": 7, "offset": number, "timestamp": BEGAN},
            **{"key": json.dumps({"h": ODD, "id": 9}), "value": json.dumps(value), "headers": []},
        }
        for number, value in enumerate(values)
    ] + [
        {
            **{"topic": "demo.public.rows", "partition": 8, "offset": number, "timestamp": BEGAN},
            **{"key": key, "value": value, "headers": []},
        }
        for number, (key, value) in enumerate([(None, None), ("[1]", None), ("{", None), ("{", "{")])
    ]


def twice(sent: list[Record]) -> list[Record]:
    """Each change twice, and each truncate once.

    If a truncate comes again, whether late rows from before it show that they were deleted depends on the
    partitions that they came from.
    """
    truncates = [each for each in sent if each["key"] is None]
    return [*doubled([each for each in sent if each["key"] is not None]), *truncates]


def pipeline(folder: Path, name: str, played: Mapping[str, History]) -> Mirroring:
    """A pipeline that reads histories in three batches, in which changes come in any order, and twice."""
    sent = FORMS[name]
    timestamp = {"timestamp": sent.form.timestamp} if sent.timed else {}
    words = {} if sent.form.op_map is None else {"opMap": dict(sent.form.op_map)}
    tables = [{"source": f"public.{each}", **settings} for each, settings in MODES.items()]
    mirroring = Mirroring(
        folder,
        {
            "envelope": {"format": "custom", "fields": {**sent.form.fields, **timestamp}, **words},
            "ordering": dict(sent.ordering),
            "tables": tables,
            "target": {"path": f"{folder}/lake/public/{{table}}"},
        },
    )
    batches = beside([parts(shuffled(twice(records(each, sent.form)), 1), 3) for each in played.values()])
    batches[1] += odd(sent.form)
    return mirroring.deliver(batches)


WHOLE = [name for name, sent in FORMS.items() if sent.form.layout == "nested" and sent.form.pause]
"""Forms that tell all that happened in the source."""


@pytest.mark.parametrize("name", WHOLE)
def test_the_rules_end_in_the_rows_of_the_source(name: str, tmp_path: Path) -> None:
    ordered = "columns" in FORMS[name].ordering  # columns order no truncates
    played = histories(number=2, size=40, truncates=0 if ordered else 1)
    found = by_rules(pipeline(tmp_path, name, played)).tables["public.rows"]
    rows = {key: dict(row.values) for key, row in found.rows.items() if key[0] != ODD}
    assert rows == played["rows"].rows


@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=pytest.mark.long if name in OFTEN else pytest.mark.thorough) for name in FORMS],
)
def test_the_engine_and_the_rules_agree(name: str, spark: SparkSession, tmp_path: Path) -> None:
    mirroring = pipeline(tmp_path, name, histories(number=1, size=12))
    mirroring.run(spark)
    assert_agreement(spark, mirroring)
