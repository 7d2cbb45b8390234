"""The lines of a log entry, partition values, folders and checksum files, as texts."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import replace
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from lakemirror.driver.rules import kinds
from lakemirror.driver.rules.kinds import Decimals
from lakemirror.driver.tables import commits
from lakemirror.driver.writer import checksum, exact_json
from lakemirror.driver.writer.actions import (
    Action,
    Add,
    ChangeFile,
    CommitInfo,
    Domain,
    Metadata,
    Protocol,
    Remove,
    Transaction,
    line,
    parse,
)
from lakemirror.driver.writer.data_files import uri_of
from lakemirror.driver.writer.entry import text_of
from lakemirror.driver.writer.partitions import NotRepresentable, divided, folder
from lakemirror.driver.writer.partitions import text_of as partition_text
from lakemirror.driver.writer.schema import Column, Type
from lakemirror.driver.writer.snapshot import Snapshot, replay
from lakemirror.driver.writer.vectors import Descriptor

VECTOR = Descriptor("u", "ab^-aqEH.-t@S}K{vb[*k^", 40, 6, 4)
ADD = Add("p=1/a%2520b.parquet", {"p": "1", "q": None}, 123, 1000, '{"numRecords":7}')
GOLDEN: list[tuple[Action, str]] = [
    (
        ADD,
        '{"add":{"path":"p=1/a%2520b.parquet","partitionValues":{"p":"1","q":null},"size":123,'
        '"modificationTime":1000,"dataChange":true,"stats":"{\\"numRecords\\":7}"}}',
    ),
    (
        replace(ADD, statistics=None, more={"tags": {"a": "b"}, "clusteringProvider": "liquid"}).removed(5),
        '{"remove":{"path":"p=1/a%2520b.parquet","deletionTimestamp":5,"dataChange":true,'
        '"extendedFileMetadata":true,"partitionValues":{"p":"1","q":null},"size":123,"tags":{"a":"b"}}}',
    ),
    (
        ChangeFile("_change_data/c.parquet", {}, 9),
        '{"cdc":{"path":"_change_data/c.parquet","partitionValues":{},"size":9,"dataChange":false}}',
    ),
    (
        Transaction("lakemirror/q", 4, 1000),
        '{"txn":{"appId":"lakemirror/q","version":4,"lastUpdated":1000}}',
    ),
    (
        Protocol(3, 7, ("deletionVectors",), ("deletionVectors",)),
        '{"protocol":{"minReaderVersion":3,"minWriterVersion":7,"readerFeatures":["deletionVectors"],'
        '"writerFeatures":["deletionVectors"]}}',
    ),
    (Protocol(1, 2), '{"protocol":{"minReaderVersion":1,"minWriterVersion":2}}'),
    (
        Domain("delta.clustering", "{}"),
        '{"domainMetadata":{"domain":"delta.clustering","configuration":"{}","removed":false}}',
    ),
    (Metadata({"id": "é\n\u2028\U000fffff"}), '{"metaData":{"id":"é\\n\\u2028\U000fffff"}}'),
]


@pytest.mark.parametrize(("action", "text"), GOLDEN)
def test_lines(action: Action, text: str) -> None:
    assert line(action) == text
    read = parse(text)
    assert read == (None if isinstance(action, ChangeFile) else action)


def test_a_commit_says_what_todays_engine_reads() -> None:
    note = {"query": "q", "batch": 4, "extent": {"t": {"0": [1, 2]}}, "rows": {"inserted": 1}}
    info = CommitInfo("id", "lakemirror/q", 4, 7, 1000, note, {"numOutputRows": 3})
    text = text_of(info, [Transaction("lakemirror/q", 4), ADD]).decode()
    assert text.splitlines()[0] == (
        '{"commitInfo":{"timestamp":1000,"operation":"STREAMING UPDATE","operationParameters":'
        '{"outputMode":"Update","queryId":"lakemirror/q","epochId":"4"},"readVersion":7,'
        '"isolationLevel":"Serializable","isBlindAppend":false,"operationMetrics":{"numOutputRows":"3"},'
        '"userMetadata":"{\\"batch\\": 4, \\"extent\\": {\\"t\\": {\\"0\\": [1, 2]}}, \\"query\\": \\"q\\", '
        '\\"rows\\": {\\"inserted\\": 1}}","engineInfo":"Lakemirror","txnId":"id"}}'
    )
    found = commits.parse(8, text)
    assert (found.ours, found.changes, found.rows) == (True, True, 3)


def test_a_file_keeps_what_is_not_known_about_it() -> None:
    text = line(replace(ADD, more={"baseRowId": 7, "tags": {"x": "y"}, "clusteringProvider": "liquid"}))
    add = parse(text)
    assert isinstance(add, Add)
    hidden = add.hiding(VECTOR)
    told = json.loads(line(hidden))["add"]
    assert told["clusteringProvider"] == "liquid"
    assert (told["baseRowId"], told["tags"]) == (7, {"x": "y"})
    assert told["deletionVector"]["cardinality"] == 6
    assert told["stats"] == '{"numRecords":7,"tightBounds":false}'
    assert hidden.removed(1).key == hidden.key != add.key
    assert hidden.removed(1).more == {"tags": {"x": "y"}, "baseRowId": 7}
    assert parse(line(hidden.removed(1))) == hidden.removed(1)


_DAY = 86_400_000_000


@pytest.mark.parametrize(
    ("value", "kind", "text"),
    [
        (True, kinds.BOOLEAN, "true"),
        (-5, kinds.SMALLINT, "-5"),
        (Decimal("1e-10"), Decimals(38, 10), "0.0000000001"),
        ("a/b=ü%", kinds.STRING, "a/b=ü%"),
        (-1, kinds.DATE, "1969-12-31"),
        (-1, kinds.TIMESTAMP, "1969-12-31T23:59:59.999999Z"),
        (0, kinds.TIMESTAMP_NTZ, "1970-01-01 00:00:00.000000"),
        (2**62, kinds.TIMESTAMP, None),
    ],
)
def test_partition_values(value: Any, kind: Type, text: str | None) -> None:
    assert partition_text(value, kind) == text


def test_rows_are_divided_by_partition_values() -> None:
    by = [Column("p", kinds.STRING), Column("t", kinds.TIMESTAMP)]
    table = pa.table(
        {
            "p": ["x", None, "x", "y"],
            "t": pa.array([0, 0, 0, None], pa.timestamp("us", "UTC")),
            "v": [1, 2, 3, 4],
        }
    )
    found = [(dict(values), rows["v"].to_pylist()) for values, rows in divided(table, by)]
    midnight = "1970-01-01T00:00:00.000000Z"
    assert found == [
        ({"p": "x", "t": midnight}, [1, 3]),
        ({"p": None, "t": midnight}, [2]),
        ({"p": "y", "t": None}, [4]),
    ]


def test_what_the_log_cannot_say_of_a_partition_is_refused() -> None:
    with pytest.raises(NotRepresentable):
        list(divided(pa.table({"p": [""], "v": [1]}), [Column("p", kinds.STRING)]))
    late = pa.table({"p": pa.array([2**62], pa.timestamp("us")), "v": [1]})
    with pytest.raises(NotRepresentable):
        list(divided(late, [Column("p", kinds.TIMESTAMP_NTZ)]))


def test_folders_and_paths() -> None:
    assert folder({"a b": "x/y=ü", "n": None}) == "a%20b=x%2Fy%3D%C3%BC/n=__HIVE_DEFAULT_PARTITION__/"
    assert uri_of("a%20b=x%2Fy/f.parquet") == "a%2520b=x%252Fy/f.parquet"
    with pytest.raises(NotRepresentable):
        folder({"p": "x" * 300})
    assert folder({}) == ""


META = Metadata({"id": "m", "schemaString": '{"type":"struct","fields":[]}', "configuration": {}})


def at(actions: Iterable[Action], vectors: bool = False) -> Snapshot:
    listed = ("deletionVectors",)
    protocol = Protocol(3, 7, listed, listed) if vectors else Protocol(1, 2)
    return replay(["\n".join(map(line, (protocol, META, *actions)))])


def test_the_log_is_replayed() -> None:
    before = at([ADD, Transaction("a", 1), Domain("d", "1")], vectors=True)
    hidden = ADD.hiding(VECTOR)
    after = before.after(
        [hidden, ADD.removed(1), Transaction("a", 2), Transaction("b", 1), Domain("d", "", True)]
    )
    assert list(after.files.values()) == [hidden]
    assert after.transactions == {"a": Transaction("a", 2), "b": Transaction("b", 1)}
    assert after.domains == {}
    assert (before.version, after.version) == (0, 1)
    assert not after.after([hidden.removed(1)]).files
    with pytest.raises(ValueError, match="no protocol"):
        replay([line(ADD)])
    with pytest.raises(ValueError, match="no entry"):
        replay([])


def test_a_checksum_is_complete_or_not_written() -> None:
    snapshot = at([ADD.hiding(VECTOR), Transaction("a", 1), Domain("d", "1")], vectors=True)
    text = checksum.text_of(snapshot, "id")
    assert text is not None
    told = exact_json.loads(text.decode())
    assert told.pop("allFiles")[0]["dataChange"] is False
    assert told == {
        "txnId": "id",
        "tableSizeBytes": "123",
        "numFiles": "1",
        "numDeletedRecordsOpt": "6",
        "numDeletionVectorsOpt": "1",
        "numMetadata": "1",
        "numProtocol": "1",
        "setTransactions": [{"appId": "a", "version": "1"}],
        "domainMetadata": [{"domain": "d", "configuration": "1", "removed": False}],
        "metadata": dict(META.given),
        "protocol": snapshot.protocol.action["protocol"] | {"minReaderVersion": "3", "minWriterVersion": "7"},
    }
    assert checksum.text_of(replace(snapshot, transactions=None), "id") is None
    assert checksum.text_of(replace(snapshot, domains=None), "id") is None
    assert checksum.text_of(snapshot.after(Transaction(str(n), 1) for n in range(100)), "id") is None
    kept = Metadata({**META.given, "configuration": {"delta.setTransactionRetentionDuration": "1 day"}})
    assert checksum.text_of(snapshot.after([kept]), "id") is None
    many = snapshot.after(replace(ADD, path=str(n)) for n in range(50))
    assert b"allFiles" not in (checksum.text_of(many, "id") or b"")


def test_a_remove_without_details_is_read() -> None:
    old = parse('{"remove":{"path":"x","deletionTimestamp":1,"dataChange":false}}')
    assert isinstance(old, Remove)
    assert line(old) == '{"remove":{"path":"x","deletionTimestamp":1,"dataChange":false}}'
