"""Stored rows are found by their keys, whatever file they are in, and no more is read than is needed."""

from __future__ import annotations

import json
import pickle
from collections import Counter
from contextlib import AbstractContextManager
from dataclasses import replace
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from threading import Barrier
from typing import Any

import deltalake
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lakemirror.driver.columns import stored
from lakemirror.driver.engine.file_rows import OtherCalendar, fitted
from lakemirror.driver.engine.key_search import KeySearch
from lakemirror.driver.engine.mirror_files import MirrorFiles, NotForEngine
from lakemirror.driver.engine.stored_rows import look_up
from lakemirror.driver.rules import kinds
from lakemirror.driver.writer import log_state
from lakemirror.driver.writer.actions import Add
from lakemirror.driver.writer.data_files import Layout, encoded
from lakemirror.driver.writer.schema import Column, Group, arrow_schema
from lakemirror.driver.writer.snapshot import Snapshot
from lakemirror.driver.writer.stores import LocalFiles, LocalLogStore, Opened
from tests.driver.engine.mirrors import KEYS, Change, Form, OnDisk, metadata_of, protocol_of
from tests.driver.engine.test_table_change import ONCE, Limits, limits
from tests.driver.writer.delta_tables import VALUES as MANY_VALUES
from tests.driver.writer.delta_tables import History, Step, Written, column

HIDING = Limits(little=0)


class Counting(LocalFiles):
    """Counts how often a file is opened."""

    def __init__(self, table: Path) -> None:
        super().__init__(table)
        self.opened: Counter[str] = Counter()

    def open(self, path: str, size: int) -> AbstractContextManager[Opened]:
        self.opened[path] += 1
        return super().open(path, size)


def keys(*values: Any, kind: pa.DataType | None = None) -> dict[str, pa.Array]:
    return {"k0": pa.array(values, kind or pa.int64())}


def filled(path: Path, *batches: list[int], form: Form | None = None) -> OnDisk:
    """A mirror with a file for each batch of keys."""
    table, place = OnDisk.of(path / "t", form or Form()), 0
    with limits(HIDING):
        for batch in batches:
            made = [
                Change((key,), place + i + 1, place + i, {"v": 1.5, "w": "x"}) for i, key in enumerate(batch)
            ]
            table.apply(made)
            place += len(batch)
    return table


# -- what is read -----------------------------------------------------------------------------------------


def test_only_files_that_may_have_a_key_are_opened(tmp_path: Path) -> None:
    table = filled(tmp_path, [1, 2, 3], [10, 20], [30, 5])
    store = Counting(table.path)
    assert look_up(store, table.mirror, keys(2, 25)).column("k0").to_pylist() == [2]
    assert [*store.opened.values()] == [1, 1]
    assert look_up(store, table.mirror, keys(4, 40)).num_rows == 0
    assert [*store.opened.values()] == [1, 1]
    assert look_up(store, table.mirror, keys()).num_rows == 0
    assert look_up(store, table.mirror, keys(3, 3, 10, 30, 30)).num_rows == 3


def test_only_row_groups_with_room_for_a_key_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = filled(tmp_path, [*range(100)])
    (add,) = table.snapshot.files.values()
    place = table.path / add.path
    pq.write_table(pq.read_table(place), place, row_group_size=10)
    found = look_up(table.files, table.mirror, keys(17, 18, 55))
    assert [(each.group, each.rows.tolist()) for each in found.parts] == [(1, [17, 18]), (5, [55])]
    read: list[int] = []
    whole = pq.ParquetFile.iter_batches
    monkeypatch.setattr(
        pq.ParquetFile,
        "iter_batches",
        lambda self, size, groups, *more, **named: (
            read.extend(groups) or whole(self, size, groups, *more, **named)
        ),
    )
    found = look_up(table.files, table.mirror, keys(17, 18, 55))
    assert read == [1, 5]
    assert found.take(pa.array([2, 0, 2])).column("k0").to_pylist() == [55, 17, 55]


def test_columns_are_read_when_they_are_asked_for_and_once(tmp_path: Path) -> None:
    table = filled(tmp_path, [1, 2], [3, 4])
    store = Counting(table.path)
    found = look_up(store, table.mirror, keys(1, 3, 4), since=b"\xff")
    opened = store.opened.total()
    assert found.num_rows == 3
    assert found.column("k0").to_pylist() == [1, 3, 4]
    assert [len(each) for each in found.column("__column_seq").to_pylist()] == [0, 0, 0]
    assert all(each < b"\xff" for each in found.column("__seq").to_pylist())
    assert store.opened.total() == opened, "statistics say enough"
    assert found.column("w").to_pylist() == ["x"] * 3
    assert found.column("w").to_pylist() == ["x"] * 3
    assert store.opened.total() == opened + 2


def test_a_column_of_a_row_group_is_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lakemirror.driver.engine.file_rows._FEW", 7)
    monkeypatch.setattr("lakemirror.driver.engine.file_rows._MANY", 3)
    table = filled(tmp_path, [*range(50)])
    store = Counting(table.path)
    found = look_up(store, table.mirror, keys(*range(0, 50, 3)))
    assert found.column("k0").to_pylist() == [*range(0, 50, 3)]
    opened = store.opened.total()
    assert len(found.column("__seq")) == 17
    assert store.opened.total() == opened + 1
    assert found.take(pa.array([16, 1])).column("k0").to_pylist() == [48, 3]


def test_sequences_are_exact_where_a_change_may_be_older(tmp_path: Path) -> None:
    table = filled(tmp_path, [1, 2, 3], [4, 5])
    exact = look_up(table.files, table.mirror, keys(1, 2, 4, 5)).column("__seq").to_pylist()
    assert exact == [Change((), place, 0, None).seq for place in (1, 2, 4, 5)]
    since = Change((), 4, 0, None).seq
    found = look_up(table.files, table.mirror, keys(1, 2, 4, 5), since)
    about = found.column("__seq").to_pylist()
    assert about[2:] == exact[2:]
    assert all(each < since for each in about[:2])
    assert found.take(pa.array([0, 1, 2, 3])).column("__seq").to_pylist() == exact
    at_place = look_up(table.files, table.mirror, keys(1, 2, 4, 5), Change((), 3, 0, None).seq)
    assert at_place.column("__seq").to_pylist() == exact, "the third row is not older than the third change"
    narrow = found.select(["__seq", "__origin"]).take(pa.array([1]))
    assert narrow.to_pylist() == [
        {"__seq": exact[1], "__origin": {"topic": "t", "partition": 0, "offset": 1}}
    ]


def test_a_row_without_a_sequence_has_none(tmp_path: Path) -> None:
    table = filled(tmp_path, [1, 2])
    (add,) = table.snapshot.files.values()
    content = pq.read_table(table.path / add.path)
    at = content.column_names.index("__seq")
    pq.write_table(content.set_column(at, "__seq", pa.array([b"x", None])), table.path / add.path)
    found = look_up(table.files, table.mirror, keys(1, 2), since=b"\xff").column("__seq")
    assert found.to_pylist() == [b"x", None]


def test_maps_with_entries_are_read(tmp_path: Path) -> None:
    table = filled(tmp_path, [1, 2], [3])
    add = max(table.snapshot.files.values(), key=lambda each: each.rows or 0)
    content = pq.read_table(table.path / add.path)
    at = content.column_names.index("__column_seq")
    maps = pa.array([None, [("w", b"1")]], content.schema.field(at).type)
    pq.write_table(content.set_column(at, "__column_seq", maps), table.path / add.path)
    found = look_up(table.files, table.mirror, keys(1, 2, 3)).column("__column_seq")
    assert sorted(dict(each or ()) for each in found.to_pylist() if each) == [{"w": b"1"}]
    assert found.type == table.schema.field("__column_seq").type


def test_rows_of_several_buckets_are_looked_up_together(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lakemirror.driver.engine.file_rows._FEW", 7)
    table = filled(tmp_path, [*range(50)], [*range(60, 100)], [7, 8, 70])
    store = Counting(table.path)
    buckets = [keys(*range(start, 120, 3)) for start in range(3)]
    together = look_up(store, table.mirror, keys(*range(120)))
    opened = store.opened.total()
    for bucket in buckets:
        found, alone = together.among(bucket), look_up(table.files, table.mirror, bucket)
        assert found.column("k0") == alone.column("k0")
        assert found.column("__seq") == alone.column("__seq")
        assert found.take(pa.array([5, 2])) == alone.take(pa.array([5, 2]))
        some = np.array([1, 9, 20])
        assert {path: rows.tolist() for path, rows in found.places(some).items()} == {
            path: rows.tolist() for path, rows in alone.places(some).items()
        }
        assert found.hidden == {**alone.hidden, **found.hidden}
    assert store.opened.total() <= opened + 3 + 3 * 2, "sequences were read once a file, and rows when taken"
    assert together.among(keys(1000)).num_rows == 0


class Meeting(LocalFiles):
    """Files that only open if two are opened at the same time."""

    def __init__(self, table: Path) -> None:
        super().__init__(table)
        self._both = Barrier(2, timeout=20)

    def open(self, path: str, size: int) -> AbstractContextManager[Opened]:
        self._both.wait()
        return super().open(path, size)


def test_files_are_read_at_the_same_time(tmp_path: Path) -> None:
    table = filled(tmp_path, [*range(10)], [*range(10, 20)], [5])
    wanted = keys(1, 5, 15)
    found = look_up(Meeting(table.path), _two(table.mirror), wanted, threads=2)
    alone = look_up(table.files, _two(table.mirror), wanted)
    assert found.column("k0") == alone.column("k0")
    assert found.column("w") == alone.column("w")
    some = pa.array(range(alone.num_rows))
    assert found.take(some) == alone.take(some)
    assert found.hidden == alone.hidden


def _two(mirror: MirrorFiles) -> MirrorFiles:
    return replace(mirror, files=tuple(sorted(mirror.files, key=lambda each: -each.size)[:2]))


# -- which rows are found ---------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [name for name in MANY_VALUES if name not in ("items", "named", "inner")])
@settings(ONCE, max_examples=30)
@given(data=st.data())
def test_each_value_is_found_and_no_other(name: str, data: st.DataObject, tmp_path: Path) -> None:
    """Statistics of log and footer never hide a file from a key that it has."""
    rows = st.lists(st.none() | MANY_VALUES[name], min_size=1, max_size=5)
    stored_values = data.draw(st.lists(rows, min_size=1, max_size=3))
    history = History((*("id", name),), (), data.draw(st.booleans()), True, False, None, ())
    table = Written.of(tmp_path / f"t{len(list(tmp_path.iterdir()))}", history)
    for each in stored_values:
        table.apply(Step(tuple({name: value} for value in each), (0.0,), True))
    layout = MirrorFiles.of(table.snapshot, table.table([]).schema)
    kind = layout.schema.field(name).type
    wanted = data.draw(rows)
    values = [*wanted, *data.draw(st.lists(st.sampled_from([v for each in stored_values for v in each])))]
    chosen = column(values, kind)
    found = look_up(LocalFiles(table.path), layout, {name: chosen}).column("id").to_pylist()
    one = column([row[name] for row in table.rows.values()], kind)
    listed = chosen.to_pylist()
    expected = [
        number
        for number, value in zip(table.rows, one.to_pylist(), strict=True)
        if any(_same(value, each) for each in listed)
    ]
    assert sorted(found) == expected


def _same(one: Any, other: Any) -> bool:
    return one == other or (one != one and other != other)


@settings(ONCE, max_examples=200)
@given(data=st.data())
def test_keys_of_several_columns_are_found(data: st.DataObject) -> None:
    types = [KEYS[name] for name in data.draw(st.lists(st.sampled_from([*KEYS]), min_size=1, max_size=3))]
    key = st.tuples(*(st.none() | st.sampled_from(values) for _, values in types))
    wanted, there = (data.draw(st.lists(key, max_size=12)) for _ in range(2))
    arrow = [stored.tombstones_schema({"k": kind}, ["k"]).field("k").type for kind, _ in types]
    search = KeySearch({str(i): pa.array([each[i] for each in wanted], arrow[i]) for i in range(len(types))})
    columns = [pa.array([each[i] for each in there], arrow[i]) for i in range(len(types))]
    expected = [i for i, each in enumerate(there) if any(all(map(_same, each, other)) for other in wanted)]
    assert search.find(columns).tolist() == expected


def test_many_keys_are_found() -> None:
    rnd = np.random.default_rng(1)
    numbers = rnd.integers(-(2**63), 2**63 - 1, 300_000)
    for values in (pa.array(numbers), pa.array(map(str, numbers.tolist()))):
        search = KeySearch({"k": values.take(pa.array(np.arange(0, 300_000, 3)))})
        assert search.find([values]).tolist() == [*range(0, 300_000, 3)]
        some = values.take(pa.array(np.arange(0, 300_000, 5)))
        assert search.find([some]).tolist() == [*range(0, 60_000, 3)]
        ends = (b"-", b"9" * 20) if pa.types.is_string(values.type) else (-(2**63), 2**63 - 1)
        assert search.may_be_within("k", *ends)
        assert not search.may_be_within("k", *((b":", b";") if ends[0] == b"-" else (2**63, 2**63)))


# -- files that are older than the table's columns --------------------------------------------------------


def test_files_from_before_a_column_and_before_wider_types(tmp_path: Path) -> None:
    old = Form(("integer", "date"), values=("w",))
    table = OnDisk.of(tmp_path / "t", old)
    day = date(2026, 1, 31)
    with limits(HIDING):
        table.apply([Change((number, day), number, number, {"w": f"{number}"}) for number in range(1, 6)])
        new = Form(("long", "timestamp_ntz"), values=("v", "w", "inner"))
        table.alter(new, "typeWidening")
        moment = datetime(2026, 1, 31)
        change = table.apply(
            [
                Change((2, moment), 10, 10, {"v": 1.5, "w": "new", "inner": {"x": 1}}),
                Change((3, moment), 11, 11, None),
                Change((2**40, moment), 12, 12, {"v": 2.5, "w": "other", "inner": None}),
            ]
        )
        assert (change.inserted, change.updated, change.deleted) == (1, 1, 1)
    found = look_up(table.files, table.mirror, {"k0": pa.array([1, 2]), "k1": pa.array([moment] * 2)})
    rows = found.take(pa.array([0, 1]))
    assert rows.schema == table.schema
    assert sorted((row["k0"], row["k1"], row["v"], row["w"]) for row in rows.to_pylist()) == [
        (1, moment, None, "1"),
        (2, moment, 1.5, "new"),
    ]
    with limits(Limits()):  # everything is rewritten, with the new types
        change = table.apply([Change((1, moment), 20, 20, None), Change((2, moment), 21, 21, None)])
    assert len(change.removed) == 2
    (add,) = table.snapshot.files.values()
    read = pq.read_table(table.path / add.path)
    assert sorted(read["k0"].to_pylist()) == [4, 5, 2**40]
    assert read.schema.field("k0").type == pa.int64()
    assert read["w"].to_pylist() == ["other", "4", "5"]


WIDER = [
    (pa.int8(), kinds.SMALLINT, pa.int16(), 7, 7),
    (pa.int16(), kinds.INT, pa.int32(), -7, -7),
    (pa.int32(), kinds.BIGINT, pa.int64(), 7, 7),
    (pa.int32(), kinds.DOUBLE, pa.float64(), 7, 7.0),
    (pa.float32(), kinds.DOUBLE, pa.float64(), 0.5, 0.5),
    (pa.date32(), kinds.TIMESTAMP_NTZ, pa.timestamp("us"), date(1500, 1, 2), datetime(1500, 1, 2)),
    (pa.timestamp("us"), kinds.TIMESTAMP, pa.timestamp("us", "UTC"), datetime(1, 1, 1), None),
    (pa.int32(), kinds.Decimals(12, 2), pa.decimal128(12, 2), 7, Decimal("7.00")),
    (pa.int64(), kinds.Decimals(22, 2), pa.decimal128(22, 2), -(2**63), Decimal(-(2**63))),
    (pa.decimal128(9, 2), kinds.Decimals(20, 4), pa.decimal128(20, 4), Decimal("1.25"), Decimal("1.2500")),
]


@pytest.mark.parametrize(
    ("stored_as", "kind", "arrow", "value", "expected"), WIDER, ids=lambda each: str(each)
)
def test_values_of_types_that_were_widened(
    stored_as: pa.DataType, kind: kinds.Kind, arrow: pa.DataType, value: Any, expected: Any
) -> None:
    found = fitted(pa.array([None, value], stored_as), kind, arrow)  # type: ignore[arg-type]
    assert found.type == arrow
    if expected is not None:
        assert found.to_pylist() == [None, expected]


def test_structs_that_lack_a_field_or_have_another_order() -> None:
    given = pa.array([{"b": 1, "a": "x"}, None, {"b": None, "a": "y"}])
    kind = Group((Column("a", kinds.STRING), Column("b", kinds.BIGINT), Column("c", kinds.INT)))
    arrow = pa.struct([("a", pa.string()), ("b", pa.int64()), ("c", pa.int32())])
    for values in (given, pa.concat_arrays([given, given]).slice(2, 3)):
        found = fitted(values, kind, arrow)
        assert found.type == arrow
        expected = [None if each is None else {**each, "c": None} for each in values.to_pylist()]
        assert found.to_pylist() == expected


def test_times_as_spark_writes_them_by_default(tmp_path: Path) -> None:
    """INT96, in which the first and the last years are beyond nanoseconds."""
    form = Form(("timestamp",))
    table = OnDisk.of(tmp_path / "t", form)
    moments = KEYS["timestamp"][1]
    table.apply([Change((each,), i + 1, i, {"v": 1.0, "w": "x"}) for i, each in enumerate(moments)])
    (add,) = table.snapshot.files.values()
    place = table.path / add.path
    pq.write_table(pq.read_table(place), place, use_deprecated_int96_timestamps=True)
    found = look_up(table.files, table.mirror, keys(*moments, kind=pa.timestamp("us", "UTC")))
    assert found.num_rows == len(moments)
    assert found.take(pa.array([0, 1, 2])).column("k0").cast(pa.int64()) == pa.array(
        moments, pa.timestamp("us", "UTC")
    ).cast(pa.int64())


@pytest.mark.parametrize("pair", [(5, 2**53 + 1), (2**60 - 1, 10**19)])
def test_decimals_in_files_that_delta_rs_has_combined(tmp_path: Path, pair: tuple[int, int]) -> None:
    """Its bounds are rounded or cut off: a row that is not found because of them would be added again."""
    table = OnDisk.of(tmp_path / "t", Form(("decimal(20,0)",), hides=False))
    for i, key in enumerate(map(Decimal, pair)):
        table.apply([Change((key,), i + 1, i, {"v": 1.5, "w": "x"})])
    deltalake.DeltaTable(str(table.path)).optimize.compact()
    state = log_state.read(LocalLogStore(table.path / "_delta_log"))
    assert state is not None
    assert len(state.snapshot.files) == 1
    table.snapshot = state.snapshot
    for key in map(Decimal, pair):
        found = look_up(table.files, table.mirror, keys(key, kind=pa.decimal128(20, 0)))
        assert found.column("k0").to_pylist() == [key]


_LEGACY = {b"org.apache.spark.version": b"4.2.0", b"org.apache.spark.legacyDateTime": b""}


@pytest.mark.parametrize("name", ["date", "timestamp"])
def test_old_days_in_another_calendar_are_left_to_spark(tmp_path: Path, name: str) -> None:
    """Spark writes 1500-01-01 as 1500-01-10 if its rebase mode is LEGACY, and only Spark reads it back."""
    table = OnDisk.of(tmp_path / "t", Form((name,)))
    old, shifted, new = datetime(1500, 1, 1, tzinfo=UTC), datetime(1500, 1, 10, tzinfo=UTC), datetime.now(UTC)
    values = [each if name == "timestamp" else each.date() for each in (old, shifted, new)]
    table.apply([Change((each,), i + 1, i, {"v": 1.0, "w": "x"}) for i, each in enumerate(values[::2])])
    (add,) = table.snapshot.files.values()
    place = table.path / add.path
    content = pq.read_table(place)
    kind = content.schema.field("k0").type

    def rewrite(*keys_of_rows: Any) -> None:
        changed = content.set_column(0, "k0", pa.array(keys_of_rows, kind))
        pq.write_table(changed.replace_schema_metadata(_LEGACY), place)

    rewrite(values[1], values[2])
    with pytest.raises(OtherCalendar):
        look_up(LocalFiles(table.path), table.mirror, keys(values[0], kind=kind))
    rewrite(values[2], values[2])
    assert look_up(LocalFiles(table.path), table.mirror, keys(values[2], kind=kind)).num_rows == 2


# -- mirrors that are for others --------------------------------------------------------------------------


def test_mirrors_that_are_not_for_the_engine() -> None:
    form = Form()
    schema = stored.rows_schema(form.kinds, soft=None)
    actions = (protocol_of(form), metadata_of(form))
    plain = Snapshot(-1, *actions).after(actions)
    MirrorFiles.of(plain, schema)

    def refused(snapshot: Snapshot, rows: pa.Schema = schema) -> str:
        with pytest.raises(NotForEngine) as caught:
            MirrorFiles.of(snapshot, rows)
        return str(caught.value)

    def with_metadata(**more: Any) -> Snapshot:
        return replace(plain, metadata=replace(plain.metadata, given={**plain.metadata.given, **more}))

    def with_file(add: Add) -> Snapshot:
        return plain.after([add])

    assert "partitioned" in refused(with_metadata(partitionColumns=["w"]))
    fed = {"delta.enableChangeDataFeed": "true"}
    assert "change data feed" in refused(with_metadata(configuration=fed))
    assert "appendOnly" in refused(with_metadata(configuration={"delta.appendOnly": "true"}))
    own = metadata_of(form, {**form.types, "own": "string"})
    assert "no own" in refused(replace(plain, metadata=own))
    assert "it has no column x" in refused(plain, schema.append(pa.field("x", pa.string())))
    other = schema.set(0, pa.field("k0", pa.string()))
    assert "its column k0 is int64, and not string" in refused(plain, other)
    stats = json.dumps({"numRecords": 1})
    assert "number of rows" in refused(with_file(Add("a.parquet", {}, 1, 1)))
    assert "not in its folder" in refused(with_file(Add("s3://b/a.parquet", {}, 1, 1, stats)))
    assert "not in its folder" in refused(with_file(Add("/a.parquet", {}, 1, 1, stats)))


def test_a_key_with_the_path_of_a_member_of_a_struct_is_found(tmp_path: Path) -> None:
    columns = (Column("a.b", kinds.INT), Column("a", Group((Column("b", kinds.INT),))))
    schema = arrow_schema(columns)
    rows = pa.Table.from_pylist([{"a.b": 1, "a": {"b": 100}}, {"a.b": 2, "a": {"b": 200}}], schema)
    content = bytes(encoded(rows, columns))
    (tmp_path / "part").write_bytes(content)
    add = Add("part", {}, len(content), 0, '{"numRecords": 2}')
    mirror = MirrorFiles(0, schema, Layout(columns), (add,), may_hide=True)
    found = look_up(LocalFiles(tmp_path), mirror, {"a.b": pa.array([2], pa.int32())})
    assert found.take(pa.array([0])).to_pylist() == [{"a.b": 2, "a": {"b": 200}}]


def test_a_mirror_travels_to_a_task(tmp_path: Path) -> None:
    table = filled(tmp_path, [1, 2], [2, 3], form=Form(mapped=True))
    mirror = pickle.loads(pickle.dumps(table.mirror))
    assert mirror == table.mirror
    assert look_up(table.files, mirror, keys(1, 2, 3)).num_rows == 3


def test_keys_of_another_type_are_refused(tmp_path: Path) -> None:
    table = filled(tmp_path, [1])
    with pytest.raises(TypeError):
        look_up(table.files, table.mirror, keys(1, kind=pa.int32()))


def test_a_file_that_is_gone_is_an_error(tmp_path: Path) -> None:
    table = filled(tmp_path, [1])
    (add,) = table.snapshot.files.values()
    table.files.delete(add.path)
    with pytest.raises(FileNotFoundError):
        look_up(table.files, table.mirror, keys(1))
