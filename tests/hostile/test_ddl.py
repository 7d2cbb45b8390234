"""Generated DDL histories, mixed with changes of rows, end in the tables of their source.

A history is one table's: rows are put, touched (an update that leaves out its large texts) and deleted while
columns are added, dropped, added again, renamed and change their types, and so does the key. Hypothesis
generates them, the same ones each time; all share one run of the pipeline, delivered in any order and in any
batches. A reference model knows the source's last rows, and what of them events tell at all.

To look into a failure: `test_one_history` (soak) shrinks a history of its own.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from pyspark.sql import SparkSession
from pyspark.sql.types import StringType

from tests.support.delivery import Batches, parts
from tests.support.mirroring import Mirroring, at
from tests.support.records import UNAVAILABLE, Column, Record, Row, Table
from tests.support.shop import Shop

KEYS = (1, 2, 3)
NAMES = ("a", "b")
TYPES = ("int32", "int64", "string")
ALWAYS_NULL = Column("nothing", "string", optional=True)
"""By a null, records without schema show that they leave nothing out."""

HISTORIES, BATCHES = 16, 3

Step = tuple[str, int, int]
"""What is done, to which key or column, and a number that says how."""

_STEPS = st.tuples(
    st.sampled_from(
        ["put", "put", "put", "touch", "delete", "drop", "drop", "add", "add", "rename", "retype", "rekey"]
    ),
    st.integers(0, 2),
    st.integers(0, 11),
)


@dataclass
class Source:
    """A table of the source, and what its events tell: plays steps, leaves out those that cannot be.

    ``rows`` are what a mirror can know of the rows. It differs from the source in one thing: a renamed column
    is a new one, which is null or has its default in rows that were not written since. Without schemas,
    nothing shows that a column was dropped: if it is added again, rows that were not written since have what
    they had (``former``).
    """

    name: str
    schemas: bool
    shop: Shop = field(default_factory=Shop)
    columns: dict[str, Column] = field(default_factory=dict)
    key: tuple[str, ...] = ("id",)
    records: list[Record] = field(default_factory=list)
    rows: dict[int, Row] = field(default_factory=dict)
    sent: dict[int, Row] = field(default_factory=dict)
    former: dict[int, Row] = field(default_factory=dict)
    kinds: dict[str, list[str]] = field(default_factory=dict)
    puts: int = 0

    @property
    def table(self) -> Table:
        columns = (Column("id", "int32"), Column("region", "string"), ALWAYS_NULL, *self.columns.values())
        return Table("demo", "public", self.name, columns, self.key, "demo", False, self.schemas)

    @property
    def representable(self) -> bool:
        """Whether a mirror can hold every value: no column had numbers and texts."""
        return not any("string" in kinds and len(set(kinds)) > 1 for kinds in self.kinds.values())

    def play(self, step: Step) -> None:
        what, which, how = step
        name = NAMES[which % len(NAMES)]
        getattr(self, f"_{what}")(KEYS[which] if what in ("put", "touch", "delete") else name, how)

    def _put(self, key: int, _: int) -> None:
        self.puts += 1
        values = {name: self._value(column) for name, column in self.columns.items()}
        self._write(key, values, values)

    def _touch(self, key: int, _: int) -> None:
        """An update that leaves out texts that were written before, as PostgreSQL does with large ones."""
        if key not in self.rows:
            return
        known = self.rows[key]
        image = {
            name: UNAVAILABLE if name in self.sent[key] and column.type == "string" else known[name]
            for name, column in self.columns.items()
        }
        self._write(key, image, known)

    def _write(self, key: int, image: Row, values: Row) -> None:
        fixed = {"id": key, "region": f"r{key}", "nothing": None}
        make = self.shop.update if key in self.rows else self.shop.create
        self.records += make(self.table, **fixed, **image)
        self.rows[key] = dict(values)
        self.former[key] = {}
        self.sent[key] = {**self.sent.get(key, {}), **{n: 1 for n, v in image.items() if v != UNAVAILABLE}}

    def _delete(self, key: int, _: int) -> None:
        if key in self.rows:
            row = {"id": key, "region": f"r{key}", "nothing": None, **self.rows.pop(key)}
            self.sent.pop(key)
            self.records += self.shop.delete(self.table, **row)

    def _add(self, name: str, how: int) -> None:
        if name in self.columns:
            return
        kind = TYPES[how % 3]
        default: Any = None
        if self.schemas and how % 2:
            default = "default" if kind == "string" else 7
        self._column(Column(name, kind, optional=default is None, default=default))  # type: ignore[arg-type]
        self._shown()

    def _column(self, column: Column) -> None:
        self.columns[column.name] = column
        self.kinds.setdefault(column.name, []).append(column.type)
        for key, row in self.rows.items():
            row[column.name] = column.default
            self.sent[key].pop(column.name, None)

    def _drop(self, name: str, _: int) -> None:
        if name not in self.columns:
            return
        self._forget(name)
        self._shown()

    def _forget(self, name: str) -> Column:
        for key, row in self.rows.items():
            value = row.pop(name)
            if not self.schemas:
                self.former[key].setdefault(name, value)
            self.sent[key].pop(name, None)
        return self.columns.pop(name)

    def _rename(self, name: str, _: int) -> None:
        other = NAMES[1 - NAMES.index(name)]
        if name in self.columns and other not in self.columns:
            self._column(replace(self._forget(name), name=other))
            self._shown()

    def _retype(self, name: str, how: int) -> None:
        """Widen or narrow a number: values stay, for they are small."""
        column = self.columns.get(name)
        if column is None or column.type == "string":
            return
        self.columns[name] = replace(column, type=TYPES[how % 2])  # type: ignore[arg-type]
        self.kinds[name].append(TYPES[how % 2])

    def _rekey(self, _: str, how: int) -> None:
        """Seldom, for it is the end of what can be mirrored."""
        if how == 0 and len(self.records) > 4:
            self.key = ("id", "region")
            self._put(KEYS[0], 0)

    def _shown(self) -> None:
        """Events of the new columns: no mirror can tell a change of which it sees no event; and of a single
        record without schema nobody knows if it is whole.
        """
        for key in KEYS[: 1 if self.schemas else 2]:
            self._put(key, 0)

    def _value(self, column: Column) -> Any:
        if column.optional and self.puts % 5 == 4:
            return None
        return f"text {self.puts}" if column.type == "string" else self.puts


@st.composite
def histories(draw: st.DrawFn) -> tuple[bool, list[Step]]:
    """Whether records have schemas, and what is done."""
    return draw(st.booleans()), draw(st.lists(_STEPS, min_size=12, max_size=40))


def generated(number: int) -> list[Source]:
    """Histories, always the same. Neighbours are variations of each other, so that only some are taken."""
    found: list[tuple[bool, list[Step]]] = []

    @settings(
        max_examples=number * 10,
        derandomize=True,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=[HealthCheck.too_slow],
    )
    @given(histories())
    def collect(history: tuple[bool, list[Step]]) -> None:
        found.append(history)

    collect()
    return [played(f"t{number}", *history) for number, history in enumerate(found[9::10])]


def played(name: str, schemas: bool, steps: Sequence[Step]) -> Source:
    source = Source(name, schemas)
    source.play(("add", 0, len(steps)))
    source.play(("put", 0, 0))
    for step in steps:
        source.play(step)
    source.play(("put", 1, 0))
    return source


def delivered(sources: Sequence[Source], seed: int) -> Batches:
    """Every other table in order, the others wholly shuffled; each batch has a part of each."""
    rnd = random.Random(seed)
    batches: Batches = [[] for _ in range(BATCHES)]
    for number, source in enumerate(sources):
        records = source.records if number % 2 else rnd.sample(source.records, len(source.records))
        for batch, part in zip(batches, parts(records, BATCHES), strict=False):
            batch += part
    return batches


def problems(source: Source, spark: SparkSession, mirroring: Mirroring) -> list[str]:
    """What is wrong in the mirror of a history."""
    kept = (
        spark.read.format("delta").load(f"{mirroring.checkpoint}/quarantine") if _has_bad(mirroring) else None
    )
    bad: dict[tuple[str, int], str] = {}
    if kept is not None:
        for row in kept.where("state = 'open'").where(f"topic = 'demo.public.{source.name}'").collect():
            bad[row["topic"], row["offset"]] = row["reason"]
    if len(source.key) > 1:
        said = [reason for reason in bad.values() if "(id)" in reason and "(id, region)" in reason]
        return [] if said else [f"{source.name}: its key changed, and nobody says so: {bad}"]
    if source.representable and bad:
        return [f"{source.name}: {next(iter(bad.values()))}"]
    keys = {
        int(record["key"].rpartition(":")[2].strip("}"))
        for record in source.records
        if (record["topic"], record["offset"]) in bad
    }
    frame = at(spark, mirroring.path("demo", "public", source.name))
    texts = {each.name for each in frame.schema.fields if isinstance(each.dataType, StringType)}
    found = {row["id"]: row.asDict() for row in frame.collect()}
    wrong = []
    for key in (found.keys() | source.rows.keys()) - keys:
        row, expected = found.get(key), source.rows.get(key)
        if row is None or expected is None:
            wrong.append(f"{source.name}, row {key}: source {expected}, mirror {row}")
            continue
        for name, value in {**expected, **_still(source.former[key], expected)}.items():
            as_it_is = str(value) if name in texts and value is not None else value
            if row.get(name) != as_it_is:
                wrong.append(
                    f"{source.name}, row {key}, column {name}: source {value!r}, mirror {row.get(name)!r}"
                )
    return wrong


def _still(former: Row, expected: Row) -> Row:
    """What a row still has in columns that it has not been written in since they were added again."""
    return {name: value for name, value in former.items() if name in expected}


def _has_bad(mirroring: Mirroring) -> bool:
    return (mirroring.checkpoint / "quarantine" / "_delta_log").exists()


@pytest.mark.guarantee(
    "What a record lacks says nothing about other rows: only the log of a database ends a column; a column "
    "that is added again begins a new life, in any order of delivery; a constant default goes to all rows, a "
    "placeholder of a moment or a UUID to none"
)
@pytest.mark.guarantee("A change of the key is never ignored")
@pytest.mark.thorough
@pytest.mark.timeout(900)
def test_histories_of_columns_end_in_the_rows_of_their_source(spark: SparkSession, tmp_path: Path) -> None:
    sources = generated(HISTORIES)
    mirroring = Mirroring(tmp_path).deliver(delivered(sources, 1))
    mirroring.run(spark)
    found = [line for source in sources for line in problems(source, spark, mirroring)]
    assert not found, "\n".join(found)
    assert sum(source.representable and len(source.key) == 1 for source in sources) > HISTORIES // 4


@pytest.mark.guarantee(
    "What a record lacks says nothing about other rows: only the log of a database ends a column; a column "
    "that is added again begins a new life, in any order of delivery; a constant default goes to all rows, a "
    "placeholder of a moment or a UUID to none"
)
@pytest.mark.soak
@pytest.mark.timeout(7200)
def test_one_history(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> None:
    """Slow, and shrinks."""

    @settings(
        max_examples=100,
        deadline=None,
        database=None,
        suppress_health_check=list(HealthCheck),
        derandomize=True,
    )
    @given(histories(), st.integers(0, 9))
    def ends_well(history: tuple[bool, list[Step]], seed: int) -> None:
        source = played("t", *history)
        mirroring = Mirroring(tmp_path_factory.mktemp("history")).deliver(delivered([source], seed))
        mirroring.run(spark)
        assert not problems(source, spark, mirroring)

    ends_well()
