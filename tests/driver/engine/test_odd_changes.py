"""A fold makes of stored rows that are read when it asks for them what it makes of rows in memory."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lakemirror.driver.columns import stored
from lakemirror.driver.columns.fold import Bucket, Mirrored, fold, keys_of
from lakemirror.driver.engine.stored_rows import look_up, oldest
from lakemirror.driver.engine.table_change import change_of
from lakemirror.driver.rules.kinds import Kind
from lakemirror.driver.rules.orders import Truncated
from lakemirror.driver.rules.table import Table
from tests.driver.columns.test_fold import KEYS, changes_of, events, seq_of
from tests.driver.engine.mirrors import Form, OnDisk, require_same, shown
from tests.driver.engine.test_table_change import LIMITS, ONCE, limits

TYPES = {"STRING": "string", "DECIMAL(10,2)": "decimal(10,2)", "DOUBLE": "double", "TIMESTAMP": "timestamp"}


@pytest.mark.parametrize("kind", KEYS, ids=str)
@settings(ONCE, max_examples=25)
@given(st.data())
def test_odd_changes_of_stored_rows(kind: Kind, data: st.DataObject) -> None:
    """Gaps, soft deletes, ties and truncates: the rules look at whole rows, and at some of their columns."""
    soft, former = data.draw(st.booleans()), data.draw(st.sampled_from([None, 2]))
    form = Form((TYPES[str(kind)],), soft=soft, named=("k",))
    floor = None if former is None else Truncated(seq_of(former, snapshot=False))
    mirrored = Mirrored(
        form.kinds, ["k"], Table(["k", "v", "w"], ("v", "w"), soft, former=floor, now=7), form.gone
    )
    ends = stored.of_tombstones({}, form.kinds, ["k"])
    with tempfile.TemporaryDirectory() as folder, limits(data.draw(st.sampled_from(LIMITS))):
        table = OnDisk.of(Path(folder) / "t", form)
        rows = stored.of_rows({}, form.kinds, ["k"], soft=form.gone)
        for _ in range(data.draw(st.integers(1, 4))):
            batch = data.draw(events(kind))
            plain = changes_of([each for each in batch if not each.gaps], form.kinds)
            odd = [each._replace(digest=each.digest[0]) for each in batch if each.gaps]  # type: ignore[index]
            keys = keys_of(plain, odd, (), mirrored)
            found = look_up(table.files, table.mirror, keys, oldest(plain))
            folded = fold(Bucket(plain, found, ends, odd), mirrored)
            beside = fold(Bucket(plain, found.take(pa.array(range(found.num_rows))), ends, odd), mirrored)
            require_same(folded, beside)
            assert folded.of_odd == beside.of_odd
            table.commit(change_of(table.files, table.mirror, found, folded, ["k"], 2000, whole=True))
            in_memory = fold(Bucket(plain, rows, ends, odd), mirrored)
            assert folded.outcomes.tolist() == in_memory.outcomes.tolist()
            kept = sorted(set(range(rows.num_rows)) - set(in_memory.hidden.tolist()))
            rows = pa.concat_batches([rows.take(pa.array(kept, pa.int64())), in_memory.rows])
            names = [*form.kinds, "__seq", "__op", *([form.gone] if form.gone else [])]
            assert shown(table.rows(), names) == shown(rows.to_pylist(), names)
            new = stored.as_tombstones(folded.tombstones, form.kinds, ["k"])
            every = {**stored.as_tombstones(ends, form.kinds, ["k"]), **new}
            ends = stored.of_tombstones(every, form.kinds, ["k"])
