"""Tables that are written by `lakemirror.driver.writer`, with a model of what is in them."""

from __future__ import annotations

import json
import shutil
import uuid
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from decimal import Decimal
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote

import pyarrow as pa
import pyarrow.parquet as pq
from hypothesis import strategies as st
from pyroaring import BitMap64

from lakemirror.driver.writer import checksum, vectors
from lakemirror.driver.writer.actions import Add, CommitInfo, Metadata, Protocol, Remove, Transaction, line
from lakemirror.driver.writer.data_files import CHANGE_TYPE
from lakemirror.driver.writer.entry import Committed, Known, LogStore, commit, known, name_of, text_of
from lakemirror.driver.writer.schema import arrow_schema, parse
from lakemirror.driver.writer.snapshot import Snapshot, replay
from lakemirror.driver.writer.statistics import of_count
from lakemirror.driver.writer.stores import Files, LocalFiles, LocalLogStore
from lakemirror.driver.writer.transaction import Change, prepare

Row = Mapping[str, Any]

TYPES: Mapping[str, Any] = {
    "id": "long",
    "flag": "boolean",
    "tiny": "byte",
    "small": "short",
    "number": "integer",
    "big": "long",
    "single": "float",
    "double": "double",
    "price": "decimal(9,2)",
    "amount": "decimal(18,4)",
    "exact": "decimal(38,10)",
    "text": "string",
    "octets": "binary",
    "day": "date",
    "instant": "timestamp",
    "local": "timestamp_ntz",
    "items": {"type": "array", "elementType": "double", "containsNull": True},
    "named": {"type": "map", "keyType": "string", "valueType": "integer", "valueContainsNull": True},
    "inner": {
        "type": "struct",
        "fields": [
            {"name": "x", "type": "integer", "nullable": True, "metadata": {}},
            {"name": "y", "type": "double", "nullable": True, "metadata": {}},
        ],
    },
}
"""All types of a mirror that are written here."""

DIVIDING = ("flag", "tiny", "number", "price", "exact", "text", "day", "instant", "local")
_DAYS = (-719_162, 2_932_896)
"""The days of the years 1 to 9999."""
_MICROS = (_DAYS[0] * 86_400_000_000, (_DAYS[1] + 1) * 86_400_000_000 - 1)


def _whole(bits: int) -> st.SearchStrategy[int]:
    least, most = -(1 << (bits - 1)), (1 << (bits - 1)) - 1
    return st.sampled_from([least, -1, 0, 1, most]) | st.integers(least, most)


def _decimal(digits: int, scale: int) -> st.SearchStrategy[Decimal]:
    most = 10**digits - 1
    found = st.sampled_from([-most, -1, 0, 1, most]) | st.integers(-most, most)
    return found.map(lambda number: Decimal((number < 0, tuple(map(int, str(abs(number)))), -scale)))


def _moments(least: int, most: int) -> st.SearchStrategy[int]:
    odd = [-1, 0, 1, 999, 1_000, 1_001, -62_135_596_800_000_000, -30_610_224_000_000_001, least, most]
    return st.sampled_from([each for each in odd if least <= each <= most]) | st.integers(least, most)


_FLOATS = [0.0, -0.0, 1.5, -1.5, float("nan"), float("inf"), float("-inf")]
_TEXTS = [
    *("", " ", "a", "A'b", 'quo"te\\', "x=y/z%20", "\u00e4\u20ac", "\uffff", "\U0001f600", "\U0010ffff" * 3),
    *(
        "a" * 32,
        "a" * 33,
        "a" * 32 + "\x7f",
        "a" * 32 + "\U0010ffff",
        "\u20ac" * 40,
        "\U0010ffff" * 70,
        "new\nline",
    ),
]
_TEXT = st.sampled_from(_TEXTS) | st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=40)
VALUES: Mapping[str, st.SearchStrategy[Any]] = {
    "flag": st.booleans(),
    "tiny": _whole(8),
    "small": _whole(16),
    "number": _whole(32),
    "big": _whole(64),
    "single": st.sampled_from([*_FLOATS, 3.4028234663852886e38]) | st.floats(width=32),
    "double": st.sampled_from([*_FLOATS, 1e308, 5e-324, 0.1]) | st.floats(),
    "price": _decimal(9, 2),
    "amount": _decimal(18, 4),
    "exact": _decimal(38, 10),
    "text": _TEXT,
    "octets": st.binary(max_size=5),
    "day": st.sampled_from([-719_162, -141_428, -1, 0, 1, 2_932_896]) | st.integers(*_DAYS),
    "instant": _moments(*_MICROS),
    "local": _moments(*_MICROS),
    "items": st.lists(st.none() | st.sampled_from(_FLOATS), max_size=3),
    "named": st.dictionaries(_TEXT, st.none() | _whole(32), max_size=2),
    "inner": st.fixed_dictionaries({"x": st.none() | _whole(32), "y": st.none() | st.sampled_from(_FLOATS)}),
}
"""Values of each column but the ID. Days and times are numbers, as in Arrow."""


@dataclass(frozen=True)
class Step:
    """One commit: rows to add (without IDs), and the shares of stored rows that go away, by file in turn.

    A file loses them by being rewritten or, with ``hides``, by a deletion vector.
    """

    rows: tuple[Row, ...]
    gone: tuple[float, ...]
    hides: bool


@dataclass(frozen=True)
class History:
    """A table's form and its commits."""

    names: tuple[str, ...]
    partitions: tuple[str, ...]
    mapped: bool
    vectors: bool
    fed: bool
    listed: str | None
    steps: tuple[Step, ...]


def divides(text: str) -> bool:
    """Whether a text may be a partition value."""
    return 0 < len(quote(text, safe="")) <= 250


@st.composite
def histories(draw: st.DrawFn, mapped: bool | None = None) -> History:
    """Return histories, each of a table with some columns."""
    names = ("id", *draw(st.lists(st.sampled_from([*VALUES]), min_size=2, max_size=7, unique=True)))
    dividing = [each for each in names if each in DIVIDING]
    partitions = draw(st.lists(st.sampled_from(dividing), max_size=2, unique=True)) if dividing else []
    values = {
        name: (VALUES[name].filter(divides) if name == "text" and name in partitions else VALUES[name])
        for name in names[1:]
    }
    row = st.fixed_dictionaries({name: st.none() | each for name, each in values.items()})
    with_vectors = draw(st.booleans())
    step = st.builds(
        Step,
        st.lists(row, max_size=5).map(tuple),
        st.lists(st.sampled_from([0.0, 0.0, 0.3, 0.7, 1.0]), min_size=1, max_size=3).map(tuple),
        st.booleans() if with_vectors else st.just(False),
    )
    return History(
        names,
        tuple(partitions),
        draw(st.booleans()) if mapped is None else mapped,
        with_vectors,
        draw(st.sampled_from([False, False, True])),
        draw(st.sampled_from([None, None, "-1", "2"])),
        tuple(draw(st.lists(step, min_size=1, max_size=4))),
    )


def _field(name: str, kind: Any, mapped: bool) -> dict[str, Any]:
    physical = {
        "delta.columnMapping.physicalName": f"col-{name}",
        "delta.columnMapping.id": 1 + [*TYPES, "x", "y"].index(name),
    }
    if mapped and isinstance(kind, dict) and kind["type"] == "struct":
        kind = {**kind, "fields": [_field(each["name"], each["type"], mapped) for each in kind["fields"]]}
    return {"name": name, "type": kind, "nullable": True, "metadata": physical if mapped else {}}


def beginning(history: History) -> tuple[Protocol, Metadata]:
    """The protocol and the metadata of a table that Spark would make like this."""
    features = [*(["timestampNtz"] if "local" in history.names else [])]
    features += ["deletionVectors"] if history.vectors else []
    features += ["columnMapping"] if history.mapped else []
    protocol = Protocol(1, 4)
    if features:
        writer = (*features, "appendOnly", "invariants", "changeDataFeed")
        protocol = Protocol(3, 7, tuple(features), writer)
    properties = {
        **({"delta.enableDeletionVectors": "true"} if history.vectors else {}),
        **({"delta.columnMapping.mode": "name"} if history.mapped else {}),
        **({"delta.columnMapping.maxColumnId": "999"} if history.mapped else {}),
        **({"delta.enableChangeDataFeed": "true"} if history.fed else {}),
        **({"delta.dataSkippingNumIndexedCols": history.listed} if history.listed else {}),
    }
    fields = [_field(name, TYPES[name], history.mapped) for name in history.names]
    return protocol, Metadata(
        {
            "id": str(uuid.uuid4()),
            "format": {"provider": "parquet", "options": {}},
            "schemaString": json.dumps({"type": "struct", "fields": fields}),
            "partitionColumns": list(history.partitions),
            "configuration": properties,
            "createdTime": 1000,
        }
    )


def create(path: Path, history: History) -> Snapshot:
    """Write version 0 of a table."""
    actions = beginning(history)
    (path / "_delta_log").mkdir(parents=True)
    first = CommitInfo("first", "lakemirror/test", 0, -1, 1000)
    assert LocalLogStore(path / "_delta_log").create(name_of(0), text_of(first, actions))
    return Snapshot(-1, *actions).after(actions)


@dataclass
class Written:
    """A table on a local disk, and what is in it: rows by ID, and the IDs of each file's rows, in order."""

    path: Path
    history: History
    snapshot: Snapshot
    last: Known
    rows: dict[int, Row] = field(default_factory=dict)
    ids: dict[str, list[int]] = field(default_factory=dict)
    hidden: dict[str, BitMap64] = field(default_factory=dict)
    next_id: int = 0
    fed: Counter[str] = field(default_factory=Counter)

    @classmethod
    def of(cls, path: Path, history: History) -> Written:
        snapshot = create(path, history)
        last = known(LocalLogStore(path / "_delta_log"), 0)
        assert last is not None
        return cls(path, history, snapshot, last)

    def table(self, rows: Iterable[Row], *more: pa.Array) -> pa.Table:
        """Rows with their columns, and perhaps with the type of their change."""
        columns = parse(self.snapshot.metadata.schema)
        schema = arrow_schema([*columns, *([CHANGE_TYPE] if more else [])])
        listed = list(rows)
        arrays = [
            column([row.get(each.name) for row in listed], schema.field(each.name).type) for each in columns
        ]
        return pa.Table.from_arrays([*arrays, *more], schema=schema)

    def change(self, step: Step) -> tuple[Change, dict[int, Row], set[int], dict[str, BitMap64]]:
        """What a step does: with the rows that are added, the IDs that go away, and the hidden rows."""
        new = {self.next_id + n: {**row, "id": self.next_id + n} for n, row in enumerate(step.rows)}
        gone: set[int] = set()
        removed, hidden, again = [], {}, []
        for number, path in enumerate(sorted(self.ids)):
            share = step.gone[number % len(step.gone)]
            before = self.hidden.get(path, BitMap64())
            live = [(n, each) for n, each in enumerate(self.ids[path]) if n not in before]
            chosen = live[: round(share * len(live))]
            if not chosen:
                continue
            gone |= {each for _, each in chosen}
            if step.hides:
                hidden[path] = before | BitMap64([n for n, _ in chosen])
            else:
                removed.append(path)
                again += [each for _, each in live if each not in gone]
        changed = None
        if self.history.fed and (new or gone):
            kinds = ["delete"] * len(gone) + ["insert"] * len(new)
            changed = self.table(
                [*(self.rows[each] for each in sorted(gone)), *new.values()], pa.array(kinds)
            )
        number = self.snapshot.version + 1
        rows = [self.table([*new.values(), *(self.rows[each] for each in again)])]
        transactions = [Transaction("lakemirror/q", number, 1000)]
        return Change(rows, removed, hidden, changed, transactions), new, gone, hidden

    def apply(
        self, step: Step, files: Files | None = None, log: LogStore | None = None, *, summed: bool = True
    ) -> None:
        """Commit a step."""
        files = files or LocalFiles(self.path)
        log = log or LocalLogStore(self.path / "_delta_log")
        change, new, gone, hidden = self.change(step)
        now = 1_700_000_000_000 + self.snapshot.version
        prepared = prepare(self.snapshot, change, now)
        for each in prepared.files:
            files.write(each)
        version = self.snapshot.version
        info = CommitInfo(str(uuid.uuid4()), "lakemirror/q", version + 1, version, now)
        done = commit(log, self.last, info, prepared.actions)
        assert isinstance(done, Committed)
        assert done.known is not None
        after = self.snapshot.after(prepared.actions)
        text = checksum.text_of(after, info.id)
        assert text is not None
        if summed:
            log.create(checksum.name_of(after.version), text)
        self._learn(after, done.known, new, gone, hidden)
        if self.history.fed:
            self.fed.update({"insert": len(new), "delete": len(gone)})

    def _learn(
        self, after: Snapshot, last: Known, new: dict[int, Row], gone: set[int], hidden: dict[str, BitMap64]
    ) -> None:
        self.snapshot, self.last = after, last
        self.next_id += len(new)
        self.rows = {number: row for number, row in {**self.rows, **new}.items() if number not in gone}
        live = {path for path, _ in after.files}
        self.hidden = {path: rows for path, rows in {**self.hidden, **hidden}.items() if path in live}
        name = parse(after.metadata.schema)[0].physical
        for path in live - self.ids.keys():
            content = pq.ParquetFile(self.path / unquote(path)).read([name])
            self.ids[path] = content[name].to_pylist()
        self.ids = {path: ids for path, ids in self.ids.items() if path in live}


def column(values: Sequence[Any], kind: pa.DataType) -> pa.Array:
    """An Arrow array of a column's values, in which days and times are numbers."""
    if pa.types.is_timestamp(kind):
        return pa.array(values, pa.int64()).cast(kind)
    if pa.types.is_date(kind):
        return pa.array(values, pa.int32()).cast(kind)
    if pa.types.is_map(kind):
        return pa.array([None if each is None else list(each.items()) for each in values], kind)
    return pa.array(values, kind)


def live_rows(path: Path) -> Snapshot:
    """The table as its log says, read anew."""
    entries = sorted((path / "_delta_log").glob("*.json"))
    assert [each.name for each in entries] == [name_of(n) for n in range(len(entries))]
    return replay(each.read_text() for each in entries)


def twin(path: Path, to: Path) -> None:
    """Copy a table without statistics, neither in the log nor in data files: readers cannot skip anything."""
    shutil.copytree(path, to, ignore=shutil.ignore_patterns("*.crc", "_change_data"))
    sizes = {}
    for each in to.rglob("*.parquet"):
        content = pq.ParquetFile(each).read()
        pq.write_table(
            content, each, write_statistics=False, store_decimal_as_integer=True, store_schema=False
        )
        sizes[each] = each.stat().st_size
    for each in (to / "_delta_log").glob("*.json"):
        lines = [_bare(text, to, sizes) for text in each.read_text().split("\n") if text]
        each.write_text("".join(f"{text}\n" for text in lines if text))


def _bare(text: str, to: Path, sizes: Mapping[Path, int]) -> str:
    given = json.loads(text)
    if "add" in given:
        add = Add.parse(given["add"])
        assert add.rows is not None
        return line(replace(add, size=sizes[to / unquote(add.path)], statistics=of_count(add.rows)))
    if "remove" in given:
        remove = Remove.parse(given["remove"])
        return line(replace(remove, size=sizes[to / unquote(remove.path)], statistics=None))
    return "" if "cdc" in given else text


def read_vector(path: Path, add: Add) -> BitMap64:
    """The rows of a file that are hidden."""
    return BitMap64() if add.vector is None else vectors.read(add.vector, LocalFiles(path).read)


def plain(table: pa.Table, names: Sequence[str]) -> list[str]:
    """Rows as texts that are the same for each reader, in order."""
    columns = [[_plain(each) for each in _numbers(table[name])] for name in names]
    return sorted(map(repr, zip(*columns, strict=True)))


def _numbers(values: pa.ChunkedArray) -> list[Any]:
    kind = values.type
    if pa.types.is_timestamp(kind):
        unit = {"s": 10**6, "ms": 1000, "us": 1}[kind.unit]
        return [None if each is None else each * unit for each in values.cast(pa.int64()).to_pylist()]
    if pa.types.is_date(kind):
        return list(values.cast(pa.int32()).to_pylist())
    return list(values.to_pylist())


def _plain(value: Any) -> Any:
    match value:
        case Decimal():
            return f"{value:f}".rstrip("0").rstrip(".") if value else "0"
        case dict():
            return sorted((name, _plain(each)) for name, each in value.items())
        case list():
            pairs = value and all(isinstance(each, tuple) for each in value)
            return (
                sorted((name, _plain(each)) for name, each in value)
                if pairs
                else [_plain(each) for each in value]
            )
    return value
