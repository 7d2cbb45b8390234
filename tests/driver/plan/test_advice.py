"""What is advised about columns that a target, or a type, cannot hold."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from pyspark.sql.types import LongType

from lakemirror.api import Table
from lakemirror.driver.plan import table as planned
from lakemirror.driver.plan.columns import readable
from lakemirror.driver.plan.refusal import Refused
from lakemirror.driver.tables import jdbc_dialects
from lakemirror.driver.tables.jdbc import JdbcMirror


def in_database(dialect: Any) -> Any:
    """A table whose mirror is one of a database that nobody connects to."""
    mirror: Any = object.__new__(JdbcMirror)
    mirror.database, mirror.location = SimpleNamespace(dialect=dialect), "public.t"
    mirror._name, mirror._schema = "t", "public"
    return SimpleNamespace(settings=Table(source="s.t"), mirror=mirror, location=mirror.location)


@pytest.mark.parametrize("name", ["xmin", "ctid", "tableoid"])
def test_a_column_that_postgresql_has_in_each_table_is_to_be_renamed(name: str) -> None:
    with pytest.raises(Refused) as refused:
        planned._check_fits(in_database(jdbc_dialects.Postgres()), {"id": LongType(), name: LongType()})
    assert str(refused.value) == (
        f"the target public.t cannot have column '{name}', for PostgreSQL has a column of this name in each "
        "table: rename it with tables[s.t].columns.rename"
    )


def test_other_names_and_other_databases_are_fine() -> None:
    planned._check_fits(in_database(jdbc_dialects.Postgres()), {"XMIN": LongType(), "xmin_": LongType()})
    planned._check_fits(in_database(jdbc_dialects.MySql()), {"xmin": LongType(), "ctid": LongType()})


def test_values_without_a_schema_go_to_a_new_column_of_text() -> None:
    """The new column would otherwise be declared, or inferred, as the type that the values do not fit."""
    table: Any = SimpleNamespace(settings=Table(source="s.t"), properties={}, rename={})
    schema: Any = SimpleNamespace(group=SimpleNamespace(schema_id=None), types={}, fields=())
    plan: Any = SimpleNamespace(refused=[()], columns={})
    span: Any = SimpleNamespace(past=(), after=None, until=None)
    [version] = readable(table, [schema], {}, plan, {None: [span]})
    assert version.remedy == (
        ". To write them to a new column, set tables[s.t].columns.rename: {COLUMN: NEW_NAME}, "
        "columns.types: {COLUMN: string} and run `lakemirror replay`"
    )
