"""Mirrors on a local disk that the engine's functions change, beside a model of what is in them."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyroaring import BitMap64

from lakemirror.driver.columns import stored
from lakemirror.driver.columns.changes import schema_of
from lakemirror.driver.columns.fold import Bucket, Folded, Mirrored, fold, keys_of
from lakemirror.driver.engine.mirror_files import MirrorFiles, path_of
from lakemirror.driver.engine.stored_rows import StoredRows, look_up, oldest
from lakemirror.driver.engine.table_change import TableChange, change_of, together
from lakemirror.driver.rules import kinds
from lakemirror.driver.rules.kinds import Arrays, Decimals, Kind, Maps, Structs
from lakemirror.driver.rules.table import Table
from lakemirror.driver.writer import vectors
from lakemirror.driver.writer.actions import Add, CommitInfo, Metadata, Protocol, Transaction
from lakemirror.driver.writer.entry import Committed, commit, known, name_of, text_of
from lakemirror.driver.writer.schema import parse
from lakemirror.driver.writer.snapshot import Snapshot
from lakemirror.driver.writer.stores import Files, LocalFiles, LocalLogStore
from lakemirror.driver.writer.transaction import prepare

NAN = float("nan")
_UTC = UTC

KEYS: Mapping[str, tuple[Kind, Sequence[Any]]] = {
    "byte": (kinds.TINYINT, [-128, 0, 1, 127]),
    "integer": (kinds.INT, [-(2**31), -5, 0, 1, 2, 7, 2**31 - 1]),
    "long": (kinds.BIGINT, [-(2**63), -1, 0, 1, 2, 3, 2**40, 2**63 - 1]),
    "string": (kinds.STRING, ["", "a", "b", "ż", "a" * 40, "a" * 40 + "b", "\U0001f600", "\uffff"]),
    "decimal(9,2)": (
        Decimals(9, 2),
        [Decimal("-1.00"), Decimal("0.00"), Decimal("1.10"), Decimal("9999999.99")],
    ),
    "decimal(10,2)": (Decimals(10, 2), [Decimal("-1.00"), Decimal("0.00")]),
    "decimal(20,0)": (Decimals(20, 0), [Decimal(2**53 + 1), Decimal(2**60 - 1), Decimal(10**19)]),
    "decimal(30,3)": (
        Decimals(30, 3),
        [Decimal("-1.000"), Decimal("0.001"), Decimal(f"{10**26}.000"), Decimal(f"{2**64}.000")],
    ),
    "binary": (kinds.BINARY, [b"", b"\0", b"\xff", b"abc"]),
    "date": (kinds.DATE, [date(1, 1, 1), date(1969, 12, 31), date(2026, 1, 1), date(9999, 12, 31)]),
    "timestamp": (
        kinds.TIMESTAMP,
        [
            datetime(1, 1, 1, tzinfo=_UTC),
            datetime(2026, 1, 1, 0, 0, 0, 1, _UTC),
            datetime(2026, 1, 1, tzinfo=_UTC),
        ],
    ),
    "timestamp_ntz": (kinds.TIMESTAMP_NTZ, [datetime(1600, 1, 1, 1, 1, 1, 999_999), datetime(2026, 1, 1)]),
    "double": (kinds.DOUBLE, [0.0, -0.0, 1.5, NAN, float("inf"), -1e300]),
    "float": (kinds.FLOAT, [0.0, -0.0, 1.5, NAN, float("-inf")]),
    "boolean": (kinds.BOOLEAN, [False, True]),
}
"""Types of keys in Delta's schemas, as those of columns, and values of them."""

_INNER = {"type": "struct", "fields": [{"name": "x", "type": "integer", "nullable": True, "metadata": {}}]}
_ITEMS = {"type": "array", "elementType": "double", "containsNull": True}
_NAMED = {"type": "map", "keyType": "string", "valueType": "integer", "valueContainsNull": True}
VALUES: Mapping[str, tuple[Any, Kind, Sequence[Any]]] = {
    "v": ("double", kinds.DOUBLE, [None, 1.5, NAN, 0.0]),
    "w": ("string", kinds.STRING, [None, "x", "y" * 50]),
    "inner": (_INNER, Structs((("x", kinds.INT),)), [None, {"x": 1}, {"x": None}]),
    "items": (_ITEMS, Arrays(kinds.DOUBLE), [None, [], [1.5, None]]),
    "named": (_NAMED, Maps(kinds.STRING, kinds.INT), [None, {}, {"a": 1, "b": None}]),
}
_ORIGIN = {
    "type": "struct",
    "fields": [
        {"name": name, "type": kind, "nullable": True, "metadata": {}}
        for name, kind in (("topic", "string"), ("partition", "integer"), ("offset", "long"))
    ],
}
_METADATA: Mapping[str, Any] = {
    "__seq": "binary",
    "__op": "string",
    "__event_time": "timestamp",
    "__origin": _ORIGIN,
    "__column_seq": {"type": "map", "keyType": "string", "valueType": "binary", "valueContainsNull": True},
    "__unrepresentable": {
        "type": "map",
        "keyType": "string",
        "valueType": "string",
        "valueContainsNull": True,
    },
}


class Change(NamedTuple):
    """A change of a row: its key, its place in the source and in the topic, and the row; None deletes it."""

    key: tuple[Any, ...]
    place: int
    offset: int
    row: Mapping[str, Any] | None

    @property
    def seq(self) -> bytes:
        number = self.place.to_bytes(8, "big")
        return bytes(4) + number + bytes(2) + number + bytes(3) + b"\1"


@dataclass(frozen=True)
class Form:
    """What a mirror is like. ``keys`` are the types of the columns of its key: k0, k1, ..., or ``named``."""

    keys: tuple[str, ...] = ("long",)
    mapped: bool = False
    hides: bool = True
    soft: bool = False
    values: tuple[str, ...] = ("v", "w")
    named: tuple[str, ...] = ()

    @property
    def key(self) -> list[str]:
        return list(self.named) or [f"k{i}" for i in range(len(self.keys))]

    @property
    def kinds(self) -> dict[str, Kind]:
        of_key = {name: KEYS[kind][0] for name, kind in zip(self.key, self.keys, strict=True)}
        return {**of_key, **{name: VALUES[name][1] for name in self.values}}

    @property
    def gone(self) -> str | None:
        """The column with the time of a soft delete."""
        return "gone" if self.soft else None

    @property
    def types(self) -> dict[str, Any]:
        of_key = dict(zip(self.key, self.keys, strict=True))
        own = {name: VALUES[name][0] for name in self.values}
        return {**of_key, **own, **_METADATA, **({self.gone: "timestamp"} if self.gone else {})}


def metadata_of(form: Form, types: Mapping[str, Any] | None = None) -> Metadata:
    """The metadata of a mirror, perhaps with other types of columns."""
    fields = [_field(name, kind, form) for name, kind in (types or form.types).items()]
    mapping = {"delta.columnMapping.mode": "name", "delta.columnMapping.maxColumnId": "999"}
    properties = {
        **({"delta.enableDeletionVectors": "true"} if form.hides else {}),
        **(mapping if form.mapped else {}),
    }
    return Metadata(
        {
            "id": str(uuid.uuid4()),
            "format": {"provider": "parquet", "options": {}},
            "schemaString": json.dumps({"type": "struct", "fields": fields}),
            "partitionColumns": [],
            "configuration": properties,
            "createdTime": 1000,
        }
    )


def _field(name: str, kind: Any, form: Form) -> dict[str, Any]:
    metadata = {}
    if form.mapped:
        number = int.from_bytes(name.encode()[:3], "big") + len(name)
        metadata = {"delta.columnMapping.physicalName": f"col-{name}", "delta.columnMapping.id": number}
        if isinstance(kind, dict) and kind["type"] == "struct":
            kind = {**kind, "fields": [_field(each["name"], each["type"], form) for each in kind["fields"]]}
    return {"name": name, "type": kind, "nullable": True, "metadata": metadata}


def protocol_of(form: Form, *more: str) -> Protocol:
    features = [*more, *(["timestampNtz"] if "timestamp_ntz" in form.keys else [])]
    features += ["deletionVectors"] if form.hides else []
    features += ["columnMapping"] if form.mapped else []
    if not features:
        return Protocol(1, 2)
    return Protocol(3, 7, tuple(features), (*features, "appendOnly", "invariants"))


def changes_of(made: Sequence[Change], form: Form) -> pa.RecordBatch:
    """Changes as a block."""
    rows = [
        {
            **dict.fromkeys(form.kinds),
            **(each.row or {}),
            **dict(zip(form.key, each.key, strict=True)),
            "__seq": each.seq,
            "__op": "d" if each.row is None else "u",
            "__event_time": datetime.fromtimestamp(each.place, UTC),
            "__topic": "t",
            "__partition": 0,
            "__offset": each.offset,
            "__log": None,
        }
        for each in made
    ]
    rows = [{name: _entries(value) for name, value in row.items()} for row in rows]
    return pa.RecordBatch.from_pylist(rows, schema_of(form.kinds))


def _entries(value: Any) -> Any:
    is_map = isinstance(value, dict) and "x" not in value
    return list(value.items()) if is_map else value


@dataclass
class OnDisk:
    """A mirror, the tombstones beside it, and what is in it by the model: the newest change of each key."""

    path: Path
    form: Form
    snapshot: Snapshot
    ends: pa.RecordBatch
    avoided: Sequence[str] = ()
    newest: dict[str, Change] = field(default_factory=dict)
    kept: list[dict[str, Any]] = field(default_factory=list)
    """If deletes are soft, the rows as they should be are those that a fold in memory leaves."""
    store: Files | None = None

    @classmethod
    def of(cls, path: Path, form: Form, avoided: Sequence[str] = ()) -> OnDisk:
        actions = (protocol_of(form), metadata_of(form))
        (path / "_delta_log").mkdir(parents=True)
        first = CommitInfo("first", "lakemirror/test", 0, -1, 1000)
        assert LocalLogStore(path / "_delta_log").create(name_of(0), text_of(first, actions))
        ends = stored.of_tombstones({}, form.kinds, form.key)
        return cls(path, form, Snapshot(-1, *actions).after(actions), ends, avoided)

    @property
    def schema(self) -> pa.Schema:
        return stored.rows_schema(self.form.kinds, soft=self.form.gone)

    @property
    def mirror(self) -> MirrorFiles:
        return MirrorFiles.of(self.snapshot, self.schema, self.avoided)

    @property
    def files(self) -> Files:
        return self.store or LocalFiles(self.path)

    def apply(self, made: Sequence[Change], buckets: int = 1, *, now: int = 2000) -> TableChange:
        """Bring the mirror up to date with changes, by buckets of their keys, and the model as well."""
        parts: list[list[Change]] = [[] for _ in range(buckets)]
        for each in made:
            parts[hash(name_of_key(each.key)) % buckets].append(each)
        found = [self.change(part, whole=buckets == 1, now=now) for part in parts]
        change = together([each for each, _ in found])
        self.commit(change, now)
        if self.form.soft:
            self.keep(made)
        ends = [folded.tombstones for _, folded in found]
        self.ends = pa.concat_batches([self.ends, *ends])
        for each in made:
            name = name_of_key(each.key)
            if name not in self.newest or self.newest[name].place < each.place:
                self.newest[name] = each
        return change

    def change(self, made: Sequence[Change], *, whole: bool, now: int = 2000) -> tuple[TableChange, Folded]:
        """What becomes of one bucket."""
        mirror, form = self.mirror, self.form
        changes = changes_of(made, form)
        mirrored = self.mirrored
        keys = keys_of(changes, (), (), mirrored)
        rows = look_up(self.files, mirror, keys, oldest(changes))
        ends = newest_ends(self.ends, form)
        folded = fold(Bucket(changes, rows, ends), mirrored)
        require_same(folded, fold(Bucket(changes, all_of(rows), ends), mirrored))
        return change_of(self.files, mirror, rows, folded, form.key, now, whole=whole), folded

    @property
    def mirrored(self) -> Mirrored:
        form = self.form
        return Mirrored(
            form.kinds, form.key, Table([*form.kinds], (), form.soft, now=7, key=form.key), form.gone
        )

    def keep(self, made: Sequence[Change]) -> None:
        """Fold changes in memory."""
        rows = pa.RecordBatch.from_pylist(self.kept, self.schema)
        ends = newest_ends(self.ends, self.form)
        folded = fold(Bucket(changes_of(made, self.form), rows, ends), self.mirrored)
        hidden = set(folded.hidden.tolist())
        self.kept = [row for i, row in enumerate(self.kept) if i not in hidden] + folded.rows.to_pylist()

    def commit(self, change: TableChange, now: int = 2000) -> None:
        """Commit a change as the driver would."""
        log, files = LocalLogStore(self.path / "_delta_log"), LocalFiles(self.path)
        version = self.snapshot.version
        prepared = prepare(self.snapshot, change.commit([Transaction("q", version + 1)]), now)
        for each in prepared.files:
            files.write(each)
        before = known(log, version)
        assert before is not None
        info = CommitInfo(str(uuid.uuid4()), "q", version + 1, version, now)
        assert isinstance(commit(log, before, info, prepared.actions), Committed)
        self.snapshot = self.snapshot.after(prepared.actions)

    def alter(self, form: Form, *more: str) -> None:
        """Commit other metadata."""
        log, version = LocalLogStore(self.path / "_delta_log"), self.snapshot.version
        before = known(log, version)
        assert before is not None
        actions = (protocol_of(form, *more), metadata_of(form))
        info = CommitInfo(str(uuid.uuid4()), "q", version + 1, version, 1500)
        assert isinstance(commit(log, before, info, actions), Committed)
        self.snapshot, self.form = self.snapshot.after(actions), form
        self.ends = stored.of_tombstones({}, form.kinds, form.key)

    def rows(self) -> list[dict[str, Any]]:
        """What is stored, read without the engine."""
        return [row for add in self.snapshot.files.values() for row in rows_of(self.path, add, self.snapshot)]

    def expected(self) -> list[dict[str, Any]]:
        """What should be."""
        if self.form.soft:
            return [{name: _logical(each) for name, each in row.items()} for row in self.kept]
        return [
            {**dict(zip(self.form.key, each.key, strict=True)), **each.row, "__seq": each.seq}
            for each in self.newest.values()
            if each.row is not None
        ]

    def require_equal(self) -> None:
        names = [*self.form.kinds, "__seq", *([self.form.gone] if self.form.gone else [])]
        assert shown(self.rows(), names) == shown(self.expected(), names)


def rows_of(path: Path, add: Add, snapshot: Snapshot) -> Iterable[dict[str, Any]]:
    content = pq.ParquetFile(path / path_of(add), coerce_int96_timestamp_unit="us").read()
    hidden = BitMap64() if add.vector is None else vectors.read(add.vector, LocalFiles(path).read)
    logical = {each.physical: each.name for each in parse(snapshot.metadata.schema)}
    content = content.rename_columns([logical[name] for name in content.column_names])
    kept = content.take(pa.array([i for i in range(content.num_rows) if i not in hidden], pa.int64()))
    return [{name: _logical(each) for name, each in row.items()} for row in kept.to_pylist()]


def _logical(value: Any) -> Any:
    """Members of structs by their logical names."""
    if isinstance(value, dict):
        return {name.removeprefix("col-"): each for name, each in value.items()}
    if isinstance(value, list) and value and isinstance(value[0], tuple):
        return dict(value)
    return value


def shown(rows: Iterable[Mapping[str, Any]], names: Sequence[str]) -> list[str]:
    """Rows as texts, in order; empty maps of Arrow look like empty lists."""
    return sorted(repr([_shown(row.get(name)) for name in names]) for row in rows)


def _shown(value: Any) -> Any:
    if value in ({}, []):
        return []
    if isinstance(value, datetime):
        return value.replace(tzinfo=None)
    return value


def name_of_key(key: Sequence[Any]) -> str:
    """A text that is the same for keys that are."""
    return repr([each + 0.0 if isinstance(each, float) else each for each in key])


def newest_ends(ends: pa.RecordBatch, form: Form) -> pa.RecordBatch:
    """The newest tombstone of each key."""
    order = pc.sort_indices(pa.Table.from_batches([ends]), sort_keys=[("__seq", "ascending")]).to_pylist()
    rows = ends.to_pylist()
    last = {name_of_key([rows[i][name] for name in form.key]): i for i in order}
    return ends.take(pa.array(sorted(last.values()), pa.int64()))


def all_of(rows: StoredRows) -> pa.RecordBatch:
    return rows.take(pa.array(range(rows.num_rows), pa.int64()))


def require_same(one: Folded, other: Folded) -> None:
    assert repr(one.rows.to_pylist()) == repr(other.rows.to_pylist())
    assert one.hidden.tolist() == other.hidden.tolist()
    assert repr(one.tombstones.to_pylist()) == repr(other.tombstones.to_pylist())
    assert one.outcomes.tolist() == other.outcomes.tolist()
