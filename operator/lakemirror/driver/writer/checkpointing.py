"""Writes checkpoints: one file that says what all entries up to a version say (PROTOCOL.md, Checkpoints).

They are classic ones, which every reader knows and every table may have. They have the files, transactions
and domains of a `Snapshot`, and what was removed a while ago, which VACUUM needs: this is taken over from the
last checkpoint, in columns, and from the entries since.

Delta Kernel could write checkpoints, too. It costs more than ten times as much, lists the whole log twice,
and loses what its schema lacks: `clusteringProvider`, and statistics that the last checkpoint has in columns
only.

A checkpoint says everything, or is not written, because the entries that it sums up are deleted one day. This
is not done here: the driver's maintenance calls Delta's own clean-up (`tables.housekeeping.clean_log`).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from lakemirror.driver.writer import log_checkpoints
from lakemirror.driver.writer.actions import Add, Remove
from lakemirror.driver.writer.entry import LogStore, known, name_of, prefix_of
from lakemirror.driver.writer.log_checkpoints import Members, Unknown, stripped, structs
from lakemirror.driver.writer.log_files import (
    LAST_CHECKPOINT,
    Missing,
    Segment,
    checkpoint_of,
    hint_of,
    hinted,
    segment_of,
)
from lakemirror.driver.writer.log_state import State, content_of, entry_of
from lakemirror.driver.writer.retention import of_files
from lakemirror.driver.writer.snapshot import Key, Snapshot
from lakemirror.driver.writer.vectors import Descriptor

_log = logging.getLogger(__name__)
INTERVAL_PROPERTY: Final = "delta.checkpointInterval"
_DEFAULT_INTERVAL: Final = 10
_PLAIN: Final = {"delta.checkpoint.writeStatsAsJson": "true", "delta.checkpoint.writeStatsAsStruct": "false"}
"""With other values of these properties, a checkpoint has to have statistics in columns."""

_TEXTS: Final = pa.map_(pa.string(), pa.string())
_VECTOR: Final = pa.struct(
    {
        **{"storageType": pa.string(), "pathOrInlineDv": pa.string(), "offset": pa.int32()},
        **{"sizeInBytes": pa.int32(), "cardinality": pa.int64()},
    }
)
_OF_FILE: Final = {
    **{"path": pa.string(), "partitionValues": _TEXTS, "size": pa.int64(), "dataChange": pa.bool_()},
    **{"deletionVector": _VECTOR, "baseRowId": pa.int64(), "defaultRowCommitVersion": pa.int64()},
}
_ADD: Final = pa.struct(
    {
        **_OF_FILE,
        **{"modificationTime": pa.int64(), "stats": pa.string(), "tags": _TEXTS},
        **{"clusteringProvider": pa.string()},
    }
)
REMOVE: Final = pa.struct({**_OF_FILE, "deletionTimestamp": pa.int64(), "extendedFileMetadata": pa.bool_()})
"""What a checkpoint has of a file that was removed."""
_TRANSACTION: Final = pa.struct({"appId": pa.string(), "version": pa.int64(), "lastUpdated": pa.int64()})
_DOMAIN: Final = pa.struct({"domain": pa.string(), "configuration": pa.string(), "removed": pa.bool_()})
_METADATA: Final = pa.struct(
    {
        **{"id": pa.string(), "name": pa.string(), "description": pa.string()},
        **{"format": pa.struct({"provider": pa.string(), "options": _TEXTS}), "schemaString": pa.string()},
        **{"partitionColumns": pa.list_(pa.string()), "configuration": _TEXTS, "createdTime": pa.int64()},
    }
)
_PROTOCOL: Final = pa.struct(
    {
        **{"minReaderVersion": pa.int32(), "minWriterVersion": pa.int32()},
        **{"readerFeatures": pa.list_(pa.string()), "writerFeatures": pa.list_(pa.string())},
    }
)
_NOT_INREMOVE: Final = ("stats", "tags")
"""What a remove has in an entry and not in a checkpoint."""


def is_due(snapshot: Snapshot) -> bool:
    """Return whether a table is to have a checkpoint of this version, as Delta would decide."""
    interval = int(snapshot.metadata.properties.get(INTERVAL_PROPERTY, _DEFAULT_INTERVAL))
    return snapshot.version > 0 and snapshot.version % interval == 0


def keep_short(log: LogStore, state: State, now: int, by_delta: Callable[[], object]) -> None:
    """Write a checkpoint of a version that was just committed, if one is due at ``now`` (ms since 1970).

    ``by_delta`` makes Delta do it, where that is needed (`java_store.checkpoint_by_delta`). The table can do
    without the checkpoint, so that an error is only logged.
    """
    try:
        if not is_due(state.snapshot):
            return
        reason = checkpoint(log, state, now)
        if reason is not None:
            _log.debug("Delta writes a checkpoint of version %s: %s", state.snapshot.version, reason)
            by_delta()
    except Exception as error:
        _log.warning("no checkpoint of version %s could be written: %s", state.snapshot.version, error)


def checkpoint(log: LogStore, state: State, now: int) -> str | None:
    """Write the checkpoint of a state's version at ``now`` (ms since 1970).

    Returns None if there is one now, or else why it has to be left to Delta. Raises Damaged for a file of the
    log that is missing or not what it should be.
    """
    snapshot = state.snapshot
    for name, default in _PLAIN.items():
        if snapshot.metadata.properties.get(name, default).lower() != default:
            return f"the table has the property {name}"
    if snapshot.transactions is None or snapshot.domains is None:
        return "not all of its transactions and domains are known"
    segment = _segment(log, snapshot.version)
    if segment.begins == snapshot.version:
        return None
    try:
        rows = rows_of(snapshot, _removed(log, segment, _since(snapshot, now)))
    except Unknown as error:
        return str(error)
    content = encoded(rows)
    if known(log, snapshot.version) != state.known:
        return "its newest known entry is gone, or another one"
    log.replace(checkpoint_of(snapshot.version), content)
    log.replace(LAST_CHECKPOINT, hint_of(snapshot.version, len(rows), len(snapshot.files), len(content)))
    return None


def rows_of(snapshot: Snapshot, removed: Sequence[pa.StructArray]) -> pa.Table:
    """Return the rows of a checkpoint: a column for each action, of which each row has one.

    ``removed`` are structs of type `REMOVE`. Raises Unknown if the table has what no column is for.
    """
    transactions, domains = (snapshot.transactions or {}).values(), (snapshot.domains or {}).values()
    columns = {
        "protocol": structs([snapshot.protocol.action["protocol"]], _PROTOCOL),
        "metaData": structs([snapshot.metadata.action["metaData"]], _METADATA),
        "txn": structs([each.action["txn"] for each in transactions], _TRANSACTION),
        "domainMetadata": structs([each.action["domainMetadata"] for each in domains], _DOMAIN),
        "add": structs([_stored(each) for each in snapshot.files.values()], _ADD),
        "remove": pa.chunked_array(removed, REMOVE),
    }
    parts = [pa.table({name: each}) for name, each in columns.items()]
    return pa.concat_tables(parts, promote_options="default")


def encoded(rows: pa.Table) -> bytes:
    """Return the rows of a checkpoint as a Parquet file."""
    sink = pa.BufferOutputStream()
    pq.write_table(rows, sink, store_schema=False)
    return bytes(sink.getvalue())


def _stored(file: Add) -> Members:
    """Return a file as checkpoints have it, in which nothing changes."""
    return {**file.action["add"], "dataChange": False}


def _segment(log: LogStore, version: int) -> Segment:
    """Return the files that make a version, which the log must have."""
    hint = min(hinted(log.read(LAST_CHECKPOINT)), version)
    missing = Missing(name_of(version))
    for begins in (hint, 0):
        listed = log.list_from(begins)
        try:
            found = segment_of(each for each in listed if each.name < prefix_of(version + 1))
        except Missing as error:
            missing = error
        else:
            if found is not None and found.version == version:
                return found
    raise missing


def _since(snapshot: Snapshot, now: int) -> int:
    """Return the time (ms since 1970) up to which VACUUM does not need to know what was removed."""
    retention = of_files(snapshot.metadata.properties)
    return 0 if retention is None else now - retention


def _removed(log: LogStore, segment: Segment, since: int) -> list[pa.StructArray]:
    """Return what was removed after a time, and not added again."""
    latest: dict[Key, Add | Remove] = {}
    for version in segment.entries:
        # Removes name files as they were before: the order of lines means nothing.
        actions = [each for each in entry_of(log, version) if isinstance(each, (Add, Remove))]
        for each in sorted(actions, key=lambda each: isinstance(each, Add)):
            latest[each.key] = each
    before = log_checkpoints.removed(segment.checkpoint, lambda name: content_of(log, name), REMOVE)
    new = [each for each in latest.values() if isinstance(each, Remove) and each.deleted > since]
    told = structs([stripped(each.action["remove"]) for each in new], REMOVE)
    return [*(_left(each, latest, since) for each in before), told]


def _left(removed: pa.StructArray, latest: Mapping[Key, Add | Remove], since: int) -> pa.StructArray:
    """Return what of a checkpoint was removed after a time, and not touched since."""
    removed = removed.filter(pc.greater(removed.field("deletionTimestamp").fill_null(0), since))
    paths = pa.array({path for path, _ in latest}, pa.string())
    candidates = pc.is_in(removed.field("path"), paths).to_pylist()
    left = [not (each and _key(removed[n].as_py()) in latest) for n, each in enumerate(candidates)]
    return removed.filter(pa.array(left, pa.bool_()))


def _key(members: Members) -> Key:
    vector = members["deletionVector"]
    return members["path"], Descriptor.parse(vector).unique if vector else None
