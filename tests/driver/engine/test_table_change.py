"""Generated batches change mirrors on a disk; what is stored is what a model says, also by delta-rs."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from lakemirror.driver.engine import table_change
from lakemirror.driver.engine.table_change import is_untidy, tidied
from tests.driver.engine.mirrors import KEYS, VALUES, Change, Form, OnDisk, name_of_key, shown
from tests.driver.writer.test_readers import READERS

ONCE = settings(
    deadline=None,
    suppress_health_check=[
        HealthCheck.too_slow,
        HealthCheck.data_too_large,
        HealthCheck.function_scoped_fixture,
    ],
)


class Limits(NamedTuple):
    """Up to how many bytes files are rewritten, without vectors and with them, and how many scraps may be."""

    small: int = 1 << 23
    little: int = 1 << 20
    few: int = 24
    scrap: int = 1 << 22


@contextmanager
def limits(given: Limits) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(table_change, "SMALL", given.small)
        patch.setattr(table_change, "_SCRAP", given.scrap)
        patch.setattr(table_change, "_LITTLE", given.little)
        patch.setattr(table_change, "_FEW", given.few)
        patch.setattr(table_change, "_WORTHWHILE", 2)
        yield


LIMITS = [
    Limits(),
    Limits(little=0),
    Limits(little=5_000, few=3),
    Limits(little=0, few=2, scrap=5_000),
    Limits(little=0, few=2),
]
"""Files are rewritten; rows are hidden; both, and scraps are combined."""


@st.composite
def forms(draw: st.DrawFn) -> Form:
    keys = draw(st.lists(st.sampled_from([*KEYS]), min_size=1, max_size=3))
    values = draw(st.lists(st.sampled_from([*VALUES]), min_size=1, max_size=3, unique=True))
    mapped, soft = draw(st.booleans()), draw(st.sampled_from([False, False, True]))
    return Form(tuple(keys), mapped, draw(st.sampled_from([True, True, False])), soft, tuple(values))


@st.composite
def batches(draw: st.DrawFn, form: Form) -> list[list[Change]]:
    """Changes of few keys, each at its own place; some come late, and some twice."""
    key = st.tuples(*(st.sampled_from(KEYS[kind][1]) for kind in form.keys))
    row = st.fixed_dictionaries({name: st.sampled_from(VALUES[name][2]) for name in form.values})
    number = draw(st.integers(1, 30))
    made = [
        Change(draw(key), place + 1, 0, draw(st.none() | row if draw(st.booleans()) else row))
        for place in range(number)
    ]
    late = draw(st.lists(st.integers(-3, 3), min_size=number, max_size=number))
    again = draw(st.lists(st.sampled_from(made), max_size=4))
    arrived = [made[i] for i in sorted(range(number), key=lambda i: i + late[i])]
    listed = [each._replace(offset=i) for i, each in enumerate([*arrived, *again])]
    cuts = sorted(draw(st.lists(st.integers(0, len(listed)), max_size=5)))
    return [listed[a:b] for a, b in zip([0, *cuts], [*cuts, len(listed)], strict=True)]


def counted(before: Sequence[dict[str, Any]], table: OnDisk) -> tuple[int, int, int]:
    """How many rows were inserted, updated and deleted, by their sequences."""
    old = {name_of_key([row[name] for name in table.form.key]): row["__seq"] for row in before}
    new = {name_of_key([row[name] for name in table.form.key]): row["__seq"] for row in table.expected()}
    updated = sum(old[key] != new[key] for key in old.keys() & new.keys())
    return len(new.keys() - old.keys()), updated, len(old.keys() - new.keys())


@settings(ONCE, max_examples=60)
@given(st.data())
def test_a_mirror_has_the_rows_of_the_model(data: st.DataObject) -> None:
    form = data.draw(forms())
    chosen = data.draw(st.sampled_from(LIMITS if form.hides else [Limits(), Limits(few=2)]))
    with tempfile.TemporaryDirectory() as folder, limits(chosen):
        table = OnDisk.of(Path(folder) / "t", form)
        for batch in data.draw(batches(form)):
            before = table.expected()
            change = table.apply(batch, data.draw(st.sampled_from([1, 3])) if form.hides else 1)
            table.require_equal()
            assert (change.inserted, change.updated, change.deleted) == counted(before, table)
            if is_untidy(table.mirror):
                table.commit(tidied(table.files, table.mirror, 3000))
                table.require_equal()
        if not form.mapped:
            found = READERS["delta-rs"](str(table.path), None)
            assert len(shown(found.to_pylist(), form.key)) == len(table.expected())
