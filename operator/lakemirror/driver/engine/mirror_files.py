"""The live files of a mirror of current rows, as a task that changes some of its keys has to know them."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import Final
from urllib.parse import unquote, urlsplit

import pyarrow as pa

from lakemirror.driver.writer.actions import Add
from lakemirror.driver.writer.data_files import Layout
from lakemirror.driver.writer.features import has_change_feed, may_be_written, may_hide_rows
from lakemirror.driver.writer.schema import arrow_schema
from lakemirror.driver.writer.snapshot import Snapshot
from lakemirror.driver.writer.vectors import ABSOLUTE

VECTORS: Final = "deletionVectors"
"""The feature of Delta that hides rows (Delta's PROTOCOL.md)."""


class NotForEngine(ValueError):
    """A table has something that the engine does not know: Spark has to apply its changes."""


@dataclass(frozen=True)
class MirrorFiles:
    """A mirror at a version. It can be pickled.

    ``schema`` is that of its stored rows (`columns.stored.rows_schema`), ``files`` are the live ones with
    their statistics and deletion vectors. ``may_hide`` says whether rows may be hidden by deletion vectors
    now, ``must_rewrite`` that they must never be: then files of any size are rewritten.
    """

    version: int
    schema: pa.Schema
    layout: Layout
    files: tuple[Add, ...]
    may_hide: bool
    must_rewrite: bool = False

    @classmethod
    def of(cls, snapshot: Snapshot, schema: pa.Schema, avoided: Collection[str] = ()) -> MirrorFiles:
        """Return the files of a mirror whose stored rows have ``schema``.

        ``avoided`` are features of Delta that it must not have. Raises NotForEngine.
        """
        reason = next(_reasons(snapshot, schema), None)
        if reason is not None:
            raise NotForEngine(f"the mirror is not for the engine: {reason}")
        must_rewrite = VECTORS in avoided
        may_hide = may_hide_rows(snapshot.metadata) and not must_rewrite
        files = tuple(snapshot.files.values())
        return cls(snapshot.version, schema, Layout.of(snapshot), files, may_hide, must_rewrite)


def path_of(add: Add) -> str:
    """Return the path of a file in the table's folder, which is not encoded (`data_files.uri_of`)."""
    return unquote(add.path)


def hidden_in(add: Add) -> int:
    """Return how many rows of a file are hidden."""
    return add.vector.rows if add.vector else 0


def _reasons(snapshot: Snapshot, schema: pa.Schema) -> Iterator[str]:
    reason = may_be_written(snapshot)
    if reason is not None:
        yield reason
    if snapshot.metadata.partitions:
        yield "it is partitioned"
    if has_change_feed(snapshot.metadata):
        yield "its change data feed is on"
    columns = arrow_schema(Layout.of(snapshot).columns)
    for each in columns:
        if each.name not in schema.names:
            yield f"stored rows have no {each.name}, which is a column of the table"
    for each in schema:
        if each.name not in columns.names:
            yield f"it has no column {each.name}"
        elif columns.field(each.name).type != each.type:
            yield f"its column {each.name} is {columns.field(each.name).type}, and not {each.type}"
    for add in snapshot.files.values():
        if add.rows is None:
            yield f"the number of rows of {add.path} is not known"
        if urlsplit(add.path).scheme or add.path.startswith("/"):
            yield f"its file {add.path} is not in its folder"
        if add.vector is not None and add.vector.storage == ABSOLUTE:
            yield f"the deletion vector of {add.path} is not in its folder"
