"""What is known of a table before a block of its records is decoded."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Final

from lakemirror.driver.columns.changes import METADATA
from lakemirror.driver.columns.kinds import has_arrow_type
from lakemirror.driver.rules.envelopes.records import Document, Settings, TableName
from lakemirror.driver.rules.kinds import Decimals, Plain
from lakemirror.driver.rules.row_keys import KeyOfTable
from lakemirror.driver.rules.rows import Column, RowReader

_ESCAPED: Final = re.compile(r'["\\\x00-\x1f]')
"""Characters that JSON escapes in the names of members, which `msgspec` does not know of."""


@dataclass(frozen=True)
class Facts:
    """What is known of a table, and of the one schema that its records have.

    ``columns`` are those of the mirror by name, as records of this schema have them, ``key`` is its key.
    ``connector`` is Debezium's name for the kind of source. ``schema`` and ``key_schema`` are the documents
    that each record has with it (None: none). ``left_out`` are the members of rows that the mirror does not
    have.
    """

    table: TableName
    columns: Mapping[str, Column]
    key: KeyOfTable
    connector: str | None = None
    settings: Settings = field(default_factory=Settings)
    schema: Document | None = None
    key_schema: Document | None = None
    left_out: frozenset[str] = frozenset()

    @property
    def are_plain(self) -> bool:
        """Whether records of the table can be decoded in columns at all.

        Not if a type of the mirror has no Arrow type, if the key has arrays or structs, if the records' own
        keys lack a column of it, if columns or Lakemirror itself order changes, or if the name of a column
        is written with escapes.
        """
        return (
            bool(self.key.names)
            and not self.key.from_rows
            and all(name in self.key.columns and name in self.columns for name in self.key.names)
            and all(isinstance(self.columns[name].kind, Plain | Decimals) for name in self.key.names)
            and all(has_arrow_type(each.kind) for each in self.columns.values())
            and self.settings.ordering.by not in ("columns", "given")
            and not any(map(_ESCAPED.search, self._names))
            and all(name not in self.columns for name, _ in METADATA)
        )

    @cached_property
    def rows(self) -> RowReader:
        """Reads the rows of records one by one."""
        return RowReader(self.columns, self.settings.placeholder)

    @property
    def _names(self) -> set[str]:
        """The names of all members of rows."""
        return {each.source for each in self.columns.values()} | self.left_out
