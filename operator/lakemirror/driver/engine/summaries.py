"""The summary of a table of tombstones, from its files. Spark needs two jobs for each, after each start."""

from __future__ import annotations

from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from lakemirror.driver.engine.commits import DeltaTable
from lakemirror.driver.engine.stored_ends import DELETED, MOVED, rows_of
from lakemirror.driver.tables.tombstones import COLLECTED, Summary, moment
from lakemirror.driver.writer.data_files import Layout

_LARGEST: Final = 32 << 20
"""The most bytes of files that are read here. Spark reads more of them side by side."""
_NAMES: Final = ("kind", "key", "seq", "at", "event_time")


def summary_of(table: DeltaTable) -> Summary | None:
    """Return the summary of a table of tombstones, whether there is one or not; None if Spark has to read it.

    Raises errors of the files, and of what is not known here.
    """
    state = table.refresh()
    if state is None:
        return Summary()
    files = tuple(state.snapshot.files.values())
    if sum(each.size for each in files) > _LARGEST:
        return None
    layout = Layout.of(state.snapshot)
    blocks = [block for add in files for block in rows_of(table.files, add, layout, _NAMES)]
    return of_facts(pa.Table.from_batches(blocks)) if blocks else Summary()


def of_facts(facts: pa.Table) -> Summary:
    """Return the summary of facts, which have the columns kind, key, seq, at and event_time.

    It is that of `tables.tombstones.Tombstones`.
    """

    def of(*kinds: str) -> pa.Table:
        return facts.filter(pc.is_in(facts["kind"], value_set=pa.array(kinds, pa.string())))

    gone, deleted, moved = of(DELETED, MOVED), of(DELETED), of(MOVED)
    return Summary(
        retained=pc.count_distinct(gone["key"]).as_py(),
        newest=_highest(gone),
        floor=_highest(of("truncated")),
        moved=moved.num_rows,
        collected=_highest(of("collected")),
        oldest=moment(pc.min(of(*COLLECTED)["at"].cast(pa.int64())).as_py()),
        merged=of("merged").num_rows > 0,
        latest=moment(pc.max(deleted["event_time"].cast(pa.int64())).as_py()),
    )


def _highest(facts: pa.Table) -> bytes | None:
    return max((each for each in facts["seq"].to_pylist() if each is not None), default=None)
