"""Writes with MERGE, which works for any Delta table."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import reduce

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from lakemirror.driver.reduce import bounds
from lakemirror.driver.reduce.changes import Changes
from lakemirror.driver.tables.columns import T
from lakemirror.driver.tables.delta import quoted
from lakemirror.driver.tables.mirror import Mirror
from lakemirror.driver.write.writer import Transaction, Written, merged


class MergeWriter:
    """Changes the rows of a mirror with one MERGE per batch.

    The transaction is the session's, because for MERGE, Delta takes the transaction ID from settings.
    """

    def __init__(self, mirror: Mirror) -> None:
        self._mirror = mirror

    def write(
        self, states: DataFrame, changes: Changes, transaction: Transaction, first: Callable[[], None]
    ) -> Written:
        """See `lakemirror.driver.write.writer.Writer`."""
        first()
        same = [T(name) == F.col(f"s.key.{quoted(name)}") for name in changes.key]
        within = [bounds.within(T(name), b.kind, b.low, b.high) for name, b in changes.bounds.items()]
        on = reduce(Column.__and__, [*same, *within])
        builder = (
            self._mirror.delta(transaction.session or states.sparkSession)
            .alias("t")
            .merge(states.alias("s"), on)
        )
        for each in changes.matched:
            builder = (
                builder.whenMatchedDelete(each.when)
                if each.values is None
                else builder.whenMatchedUpdate(each.when, _quote(each.values))
            )
        for each in changes.unmatched:
            builder = builder.whenNotMatchedInsert(each.when, _quote(each.values or {}))
        for each in changes.untouched:
            builder = (
                builder.whenNotMatchedBySourceDelete(each.when)
                if each.values is None
                else builder.whenNotMatchedBySourceUpdate(each.when, _quote(each.values))
            )
        return merged(builder, self._mirror.location)


def _quote(values: Mapping[str, Column]) -> dict[str, str | Column]:
    return {quoted(name): value for name, value in values.items()}
