"""The actions of a log entry as values, and as the JSON objects of its lines (PROTOCOL.md, Actions)."""

from __future__ import annotations

import json
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from lakemirror.driver.writer import exact_json
from lakemirror.driver.writer.statistics import widened
from lakemirror.driver.writer.vectors import Descriptor

Values = Mapping[str, str | None]
"""Partition values: texts by physical name."""

_OF_ADD: Final = frozenset(
    ("path", "partitionValues", "size", "modificationTime", "dataChange", "stats", "deletionVector")
)
_KEPT: Final = ("tags", "baseRowId", "defaultRowCommitVersion")
"""What a remove keeps of what else an add has."""


@dataclass(frozen=True)
class Add:
    """A data file, together with the rows of it that are hidden.

    ``path`` is a URI as it is in the log: relative to the table, and percent-encoded. Sizes are in bytes, and
    times in ms since 1970. ``more`` is whatever else the log says about the file, such as tags.
    """

    path: str
    values: Values
    size: int
    modified: int
    statistics: str | None = None
    vector: Descriptor | None = None
    changes: bool = True
    more: Mapping[str, Any] = field(default_factory=dict)

    @property
    def key(self) -> tuple[str, str | None]:
        """What identifies the file with its hidden rows in the log."""
        return self.path, self.vector.unique if self.vector else None

    @property
    def rows(self) -> int | None:
        """How many rows the file has, hidden ones included, if its statistics say so."""
        found = json.loads(self.statistics or "{}").get("numRecords")
        return None if found is None else int(found)

    def hiding(self, vector: Descriptor) -> Add:
        """Return the file with other hidden rows. Raises ValueError if its number of rows is not known."""
        return replace(self, vector=vector, statistics=widened(self.statistics), changes=True)

    def removed(self, now: int) -> Remove:
        """Return the action that takes the file out of the table, at ``now`` (ms since 1970)."""
        kept = {name: self.more[name] for name in _KEPT if name in self.more}
        return Remove(self.path, self.values, self.size, now, self.statistics, self.vector, more=kept)

    @property
    def action(self) -> dict[str, Any]:
        told = {
            **{"path": self.path, "partitionValues": dict(self.values), "size": self.size},
            **{"modificationTime": self.modified, "dataChange": self.changes},
            **_given(stats=self.statistics, deletionVector=self.vector and self.vector.action),
        }
        return {"add": {**told, **self.more}}

    @classmethod
    def parse(cls, given: Mapping[str, Any]) -> Add:
        vector = given.get("deletionVector")
        return cls(
            given["path"],
            dict(given.get("partitionValues") or {}),
            int(given["size"]),
            int(given["modificationTime"]),
            given.get("stats"),
            Descriptor.parse(vector) if vector else None,
            bool(given["dataChange"]),
            {name: each for name, each in given.items() if name not in _OF_ADD},
        )


@dataclass(frozen=True)
class Remove:
    """The end of a data file, with the rows that were hidden."""

    path: str
    values: Values | None
    size: int | None
    deleted: int
    statistics: str | None = None
    vector: Descriptor | None = None
    changes: bool = True
    more: Mapping[str, Any] = field(default_factory=dict)

    @property
    def key(self) -> tuple[str, str | None]:
        """The `Add.key` of the file that it ends."""
        return self.path, self.vector.unique if self.vector else None

    @property
    def action(self) -> dict[str, Any]:
        extended = self.values is not None and self.size is not None
        told = {
            **{"path": self.path, "deletionTimestamp": self.deleted, "dataChange": self.changes},
            **({"extendedFileMetadata": True} if extended else {}),
            **_given(partitionValues=None if self.values is None else dict(self.values), size=self.size),
            **_given(stats=self.statistics, deletionVector=self.vector and self.vector.action),
        }
        return {"remove": {**told, **self.more}}

    @classmethod
    def parse(cls, given: Mapping[str, Any]) -> Remove:
        vector = given.get("deletionVector")
        return cls(
            given["path"],
            given.get("partitionValues"),
            given.get("size"),
            int(given.get("deletionTimestamp") or 0),
            given.get("stats"),
            Descriptor.parse(vector) if vector else None,
            bool(given["dataChange"]),
            {name: given[name] for name in _KEPT if name in given},
        )


@dataclass(frozen=True)
class ChangeFile:
    """A file of the change data feed. If a commit has any, they are all that the feed shows of it."""

    path: str
    values: Values
    size: int

    @property
    def action(self) -> dict[str, Any]:
        told = {"path": self.path, "partitionValues": dict(self.values), "size": self.size}
        return {"cdc": {**told, "dataChange": False}}


@dataclass(frozen=True)
class Transaction:
    """How far an application has come: the number of its last batch in the table."""

    app_id: str
    version: int
    updated: int | None = None

    @property
    def action(self) -> dict[str, Any]:
        return {"txn": {"appId": self.app_id, "version": self.version, **_given(lastUpdated=self.updated)}}

    @classmethod
    def parse(cls, given: Mapping[str, Any]) -> Transaction:
        return cls(given["appId"], int(given["version"]), given.get("lastUpdated"))


@dataclass(frozen=True)
class Domain:
    """Metadata of a feature, such as clustering, as a text of its own."""

    name: str
    configuration: str
    removed: bool = False

    @property
    def action(self) -> dict[str, Any]:
        told = {"domain": self.name, "configuration": self.configuration, "removed": self.removed}
        return {"domainMetadata": told}

    @classmethod
    def parse(cls, given: Mapping[str, Any]) -> Domain:
        return cls(given["domain"], given["configuration"], bool(given["removed"]))


@dataclass(frozen=True)
class Metadata:
    """A table's schema, partition columns and properties. ``given`` is the object in the log."""

    given: Mapping[str, Any]

    @classmethod
    def new(
        cls, schema: str, properties: Mapping[str, str], now: int, partitions: Sequence[str] = ()
    ) -> Metadata:
        """Return the metadata of a new table, made at ``now`` (ms since 1970). ``schema`` is its JSON."""
        return cls(
            {
                "id": str(uuid.uuid4()),
                "format": {"provider": "parquet", "options": {}},
                "schemaString": schema,
                "partitionColumns": list(partitions),
                "configuration": dict(properties),
                "createdTime": now,
            }
        )

    @property
    def id(self) -> str:
        return str(self.given["id"])

    @property
    def schema(self) -> str:
        return str(self.given["schemaString"])

    @property
    def partitions(self) -> tuple[str, ...]:
        """The names of the partition columns."""
        return tuple(self.given.get("partitionColumns") or ())

    @property
    def properties(self) -> Mapping[str, str]:
        return dict(self.given.get("configuration") or {})

    @property
    def provider(self) -> str:
        """The format of the data files."""
        return str((self.given.get("format") or {}).get("provider"))

    def with_properties(self, properties: Mapping[str, str]) -> Metadata:
        """Return the same with other values of some properties."""
        return Metadata({**self.given, "configuration": {**self.properties, **properties}})

    @property
    def action(self) -> dict[str, Any]:
        return {"metaData": dict(self.given)}


@dataclass(frozen=True)
class Protocol:
    """What a reader and a writer of the table must know."""

    reader: int
    writer: int
    reader_features: tuple[str, ...] | None = None
    writer_features: tuple[str, ...] | None = None

    @property
    def action(self) -> dict[str, Any]:
        features = _given(
            readerFeatures=None if self.reader_features is None else list(self.reader_features),
            writerFeatures=None if self.writer_features is None else list(self.writer_features),
        )
        return {"protocol": {"minReaderVersion": self.reader, "minWriterVersion": self.writer, **features}}

    @classmethod
    def parse(cls, given: Mapping[str, Any]) -> Protocol:
        readers, writers = given.get("readerFeatures"), given.get("writerFeatures")
        return cls(
            int(given["minReaderVersion"]),
            int(given["minWriterVersion"]),
            None if readers is None else tuple(readers),
            None if writers is None else tuple(writers),
        )


@dataclass(frozen=True)
class CommitInfo:
    """Who made a commit, and why.

    ``id`` tells the commit from all others, also from one that a second writer made of the same batch.
    ``note`` is what the commit records about its batch (`lakemirror.driver.write.writer.Transaction.note`),
    and None for a commit that belongs to none. ``app_id`` and ``number`` are those of the batch, and
    ``read_version`` is None for the first version of a table.
    """

    id: str
    app_id: str
    number: int
    read_version: int | None
    now: int
    note: Mapping[str, Any] | None = None
    metrics: Mapping[str, int] = field(default_factory=dict)

    @property
    def action(self) -> dict[str, Any]:
        """The commit as one of a stream, for which Delta has the fields of `StreamingUpdate`."""
        noted = None if self.note is None else json.dumps(self.note, sort_keys=True)
        told = {
            "timestamp": self.now,
            "operation": "STREAMING UPDATE",
            "operationParameters": {
                "outputMode": "Update",
                "queryId": self.app_id,
                "epochId": str(self.number),
            },
            **_given(readVersion=self.read_version),
            "isolationLevel": "Serializable",
            "isBlindAppend": False,
            "operationMetrics": {name: str(value) for name, value in self.metrics.items()},
            **_given(userMetadata=noted),
            "engineInfo": "Lakemirror",
            "txnId": self.id,
        }
        return {"commitInfo": told}


@dataclass(frozen=True)
class Creation:
    """The commit that creates an empty table. ``id`` tells it from all others."""

    id: str
    metadata: Metadata
    now: int

    @property
    def action(self) -> dict[str, Any]:
        """The commit as one of Delta's own operations (``DeltaOperations.CreateTable``)."""
        parameters = {
            "partitionBy": json.dumps(list(self.metadata.partitions)),
            "clusterBy": "[]",
            **_given(description=self.metadata.given.get("description")),
            "isManaged": "false",
            "properties": json.dumps(self.metadata.properties),
        }
        told = {
            "timestamp": self.now,
            "operation": "CREATE TABLE",
            "operationParameters": parameters,
            "isolationLevel": "Serializable",
            "isBlindAppend": True,
            "operationMetrics": {},
            "txnId": self.id,
        }
        return {"commitInfo": told}


Action = Add | Remove | ChangeFile | Transaction | Domain | Metadata | Protocol | CommitInfo | Creation


def line(action: Action) -> str:
    """Return an action as a line of a log entry, without the newline."""
    return exact_json.dumps(action.action)


State = Add | Remove | Transaction | Domain | Metadata | Protocol
"""The actions that make a table's state."""


def parse(text: str) -> State | None:
    """Return the action of a line, or None for one that says nothing about the table's state."""
    given = json.loads(text)
    for name in _STATE:
        if given.get(name) is not None:
            return of_members(name, given[name])
    return None


def of_members(name: str, members: Mapping[str, Any]) -> State:
    """Return an action by its name in the log and its members. Raises KeyError if it lacks one."""
    kind = _STATE[name]
    found: State = Metadata(members) if kind is Metadata else kind.parse(members)
    return found


_STATE: Final[Mapping[str, Any]] = {
    "add": Add,
    "remove": Remove,
    "txn": Transaction,
    "domainMetadata": Domain,
    "metaData": Metadata,
    "protocol": Protocol,
}


def _given(**members: Any) -> dict[str, Any]:
    """Return the members that are there."""
    return {name: value for name, value in members.items() if value is not None}
