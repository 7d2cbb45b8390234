"""The actions in a checkpoint of a log that make a table's state (PROTOCOL.md, Checkpoints).

One reader is enough for every kind: a classic checkpoint of one file or of several, and a V2 checkpoint in
Parquet or JSON with its sidecars. What was removed, and when, is passed over.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, Protocol
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.parquet as pq

from lakemirror.driver.raised import LakemirrorError
from lakemirror.driver.writer import schema
from lakemirror.driver.writer.actions import Action, of_members
from lakemirror.driver.writer.log_files import Damaged
from lakemirror.driver.writer.statistics import of_parsed

_SIDECARS: Final = "_sidecars"
_READ: Final = ("protocol", "metaData", "txn", "domainMetadata", "add", "sidecar")
_STATISTICS: Final = "stats_parsed"
_PARSED: Final = (_STATISTICS, "partitionValues_parsed")
"""Members of an ``add`` that say in columns what others say as texts."""
_NOT_OF_REMOVED: Final = frozenset({"stats", "tags"})
"""What entries have of a file that was removed, and checkpoints do not need."""

Members = dict[str, Any]
Columns = Sequence[schema.Column]


class Unknown(LakemirrorError):
    """The log says something of an action for which there is no column."""


class _File(Protocol):
    """A file of a checkpoint. Its actions are the objects that they would be in JSON."""

    def of(self, action: str) -> list[Members]:
        """Return the actions of a name."""

    def adds(self, columns: Columns) -> list[Members]:
        """Return the files of a table with these columns, with their statistics as text."""

    def removed(self, kind: pa.StructType) -> pa.StructArray:
        """Return what was removed, with these members. Raises Unknown if there are others."""


def read(names: Iterable[str], read_file: Callable[[str], bytes]) -> list[Action]:
    """Return the actions in the files of a checkpoint and in their sidecars.

    ``read_file`` returns the content of a file of the log by its name. Raises Damaged if one is not what it
    should be.
    """
    files = _files(names, read_file)
    found: list[Action] = []
    columns: Columns = ()
    for kind in _READ[:-1]:  # files come last, because their statistics need the columns
        for name, file in files.items():
            try:
                listed = file.adds(columns) if kind == "add" else file.of(kind)
                found += [of_members(kind, each) for each in listed]
                if kind == "metaData" and listed:
                    columns = schema.parse(listed[0]["schemaString"])
            except (ValueError, KeyError, TypeError, pa.ArrowException) as error:
                raise Damaged(name, f"has a wrong {kind}: {error!r}") from error
    return found


def removed(
    names: Iterable[str], read_file: Callable[[str], bytes], kind: pa.StructType
) -> list[pa.StructArray]:
    """Return what the files of a checkpoint, and its sidecars, say was removed, as structs of this type.

    Raises Damaged as `read` does, and Unknown for members that the type lacks.
    """
    found = []
    for name, file in _files(names, read_file).items():
        try:
            found.append(file.removed(kind))
        except (ValueError, KeyError, TypeError, pa.ArrowException) as error:
            raise Damaged(name, f"has a wrong remove: {error!r}") from error
    return found


def _files(names: Iterable[str], read_file: Callable[[str], bytes]) -> dict[str, _File]:
    files = {name: _opened(name, read_file(name)) for name in names}
    sidecars = [_sidecar(name, each) for name, file in files.items() for each in file.of("sidecar")]
    return {**files, **{name: _opened(name, read_file(name)) for name in sidecars}}


def _sidecar(name: str, members: Members) -> str:
    """Return the name of a sidecar that a file refers to. All are in one folder."""
    path = unquote(str(members["path"]))
    if "/" in path:
        raise Damaged(name, f"refers to {path}, which is not among the log's sidecars")
    return f"{_SIDECARS}/{path}"


def _opened(name: str, content: bytes) -> _File:
    try:
        return _Json(content) if name.endswith(".json") else _Parquet(content)
    except (ValueError, KeyError, AttributeError, pa.ArrowException, OSError) as error:
        raise Damaged(name, f"is no checkpoint: {error}") from error


class _Json:
    """The file of a V2 checkpoint that has an action on each line."""

    def __init__(self, content: bytes) -> None:
        self._found: dict[str, list[Members]] = {}
        for line in content.decode().split("\n"):
            for name, members in json.loads(line or "{}").items():
                self._found.setdefault(name, []).append(members)
        if not self._found:
            raise ValueError("it has no action")

    def of(self, action: str) -> list[Members]:
        return self._found.get(action, [])

    def adds(self, columns: Columns) -> list[Members]:
        return [{name: each[name] for name in each if name not in _PARSED} for each in self.of("add")]

    def removed(self, kind: pa.StructType) -> pa.StructArray:
        return structs(list(map(stripped, self.of("remove"))), kind)


class _Parquet:
    """A file with a column for each action, one of which is not null in each row."""

    def __init__(self, content: bytes) -> None:
        # Spark writes times in 96 bits, whose range is larger than that of nanoseconds in 64.
        self._file = pq.ParquetFile(pa.BufferReader(content), coerce_int96_timestamp_unit="us")
        self._has = {each.name: each.type for each in self._file.schema_arrow}
        chosen = [
            f"{action}.{member.name}"
            for action in _READ
            if action in self._has
            for member in self._has[action]
            if member.name not in _PARSED
        ]
        self._table = self._read(chosen)

    def of(self, action: str) -> list[Members]:
        if action not in self._has:
            return []
        return _objects(_there(self._table[action]))

    def adds(self, columns: Columns) -> list[Members]:
        found = self.of("add")
        lacking = [each for each in found if "stats" not in each]
        if lacking and self._has["add"].get_field_index(_STATISTICS) >= 0:
            told = self._read(["add.path", f"add.{_STATISTICS}"])
            parsed = _there(told["add"]).field(_STATISTICS)
            for each, text in zip(found, of_parsed(parsed, columns), strict=True):
                if text is not None:
                    each.setdefault("stats", text)
        return found

    def removed(self, kind: pa.StructType) -> pa.StructArray:
        has = {each.name for each in self._has.get("remove", ())} - _NOT_OF_REMOVED
        lacking = has - {each.name for each in kind}
        if lacking:
            raise Unknown(f"a checkpoint has {min(lacking)} of what was removed")
        if not has:
            return structs([], kind)
        found = _there(self._read([f"remove.{name}" for name in sorted(has)])["remove"])
        members = [
            found.field(each.name).cast(each.type) if each.name in has else pa.nulls(len(found), each.type)
            for each in kind
        ]
        return pa.StructArray.from_arrays(members, fields=list(kind))

    def _read(self, columns: list[str]) -> pa.Table:
        return self._file.read(columns=columns, use_threads=False)


def _there(column: pa.ChunkedArray) -> pa.StructArray:
    """Return the structs of a column that are not null."""
    return column.combine_chunks().drop_null()


def _objects(structs: pa.StructArray) -> list[Members]:
    """Return structs as JSON has them: maps as objects, and without members that are null."""
    kinds = {each.name: each.type for each in structs.type}
    listed = {name: _values(structs.field(name), kind) for name, kind in kinds.items()}
    return [
        {name: value for name, value in zip(listed, values, strict=True) if value is not None}
        for values in zip(*listed.values(), strict=True)
    ]


def _values(values: pa.Array, kind: pa.DataType) -> list[Any]:
    found: list[Any] = values.to_pylist()
    return [_plain(each, kind) for each in found] if pa.types.is_nested(kind) else found


def _plain(value: Any, kind: pa.DataType) -> Any:
    if value is None:
        return None
    if pa.types.is_map(kind):
        return {name: _plain(each, kind.item_type) for name, each in value}
    if pa.types.is_struct(kind):
        members = {each.name: _plain(value[each.name], each.type) for each in kind}
        return {name: each for name, each in members.items() if each is not None}
    return value


def stripped(removed: Members) -> Members:
    """Return what was removed as checkpoints have it."""
    return {name: each for name, each in removed.items() if name not in _NOT_OF_REMOVED}


def structs(objects: Sequence[Members], kind: pa.StructType) -> pa.StructArray:
    """Return objects as JSON has them as structs of a type. Raises Unknown for a member that it lacks."""
    names = {each.name for each in kind}
    for each in objects:
        if not each.keys() <= names:
            raise Unknown(f"an action has {min(each.keys() - names)}, for which checkpoints have no column")
    return pa.StructArray.from_arrays(
        [_array([each.get(field.name) for each in objects], field.type) for field in kind], fields=list(kind)
    )


def _array(values: list[Any], kind: pa.DataType) -> pa.Array:
    if pa.types.is_struct(kind):
        found = structs([each or {} for each in values], kind)
        missing = pa.array([each is None for each in values], pa.bool_())
        return pa.StructArray.from_arrays(found.flatten(), fields=list(kind), mask=missing)
    if pa.types.is_map(kind):
        values = [None if each is None else list(each.items()) for each in values]
    return pa.array(values, kind)
