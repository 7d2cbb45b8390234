"""Which features of Delta a mirror gets, and what keeps it from getting them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from pyspark.sql.types import IntegerType, StringType

from lakemirror.api import ManifestError, Table
from lakemirror.api.tables import LACKING, Target
from lakemirror.driver.plan.names import check_features
from lakemirror.driver.plan.refusal import Refused
from lakemirror.driver.tables.names import Location
from tests.support import readers
from tests.support.mirroring import Mirroring, at
from tests.support.records import Column
from tests.support.shop import Shop, decimal, table

pytestmark = pytest.mark.guarantee(
    "Programs that lack a Delta feature never encounter it where `target.compatibility` names them"
)


@pytest.mark.parametrize(
    ("asked", "avoided"),
    [
        (None, {}),
        (["spark", "duckdb"], {}),
        (["trino"], {"typeWidening": ["trino"]}),
        (["polars", "trino"], {"typeWidening": ["polars", "trino"], "columnMapping": ["polars"]}),
        (
            ["all"],
            {
                "columnMapping": ["delta-rs", "polars"],
                "deletionVectors": ["delta-rs"],
                "typeWidening": ["delta-rs", "polars", "trino"],
            },
        ),
    ],
)
def test_what_is_avoided_follows_from_the_readers(asked: Any, avoided: dict[str, list[str]]) -> None:
    assert Target(path="/lake/{table}", compatibility=asked).avoided == avoided


def test_a_table_follows_the_pipeline_unless_it_says_otherwise(tmp_path: Path) -> None:
    def settings(**own: Any) -> Target | None:
        listed = [{"source": "public.a", "target": {"path": "/lake/own", **own}}]
        target = {"path": "/lake/{table}", "compatibility": ["trino"]}
        table = Mirroring(tmp_path, {"target": target, "tables": listed}).pipeline.spec.table_settings(
            "public.a"
        )
        return table.target if table is not None else None

    assert settings() == Target(path="/lake/own", compatibility=["trino"])
    assert settings(compatibility=["spark"]) == Target(path="/lake/own", compatibility=["spark"])
    assert settings(changeFeed=False) == Target(path="/lake/own", compatibility=["trino"], changeFeed=False)
    with pytest.raises(ManifestError, match="listed twice"):
        settings(compatibility=["trino", "trino"])


def test_what_needs_a_feature_that_is_avoided_is_refused_by_name() -> None:
    avoided = Target(path="/lake/{table}", compatibility=["all"]).avoided
    plain = {"id": IntegerType(), "note": StringType()}
    check_features(Table(source="public.a"), Location("/lake/a"), {"timestampNtz"}, plain, avoided)
    check_features(
        Table(source="public.a"), Location("/lake/a"), {"typeWidening"}, {"a b": IntegerType()}, {}
    )
    with pytest.raises(Refused, match=r"column 'a b' .*columnMapping, which delta-rs and polars .*rename"):
        check_features(
            Table(source="public.a"), Location("/lake/a"), (), {**plain, "a b": IntegerType()}, avoided
        )
    with pytest.raises(Refused, match="the mirror /lake/a has Delta's feature typeWidening, which delta-rs"):
        check_features(Table(source="public.a"), Location("/lake/a"), {"typeWidening"}, plain, avoided)


@pytest.mark.long
def test_a_mirror_has_only_the_features_that_it_needs_and_may_have(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Two pipelines over one history: a widened column, and one whose name needs column mapping."""
    shop = Shop()
    small, large = (
        table("widened", Column("v", kind), decimal("price", 8, scale))
        for kind, scale in (("int32", 2), ("int64", 4))
    )
    named = table("named", Column("a b", "int32"))
    batches = [
        [*shop.create(small, id=1, v=1, price="ew=="), *shop.create(named, id=1, **{"a b": 1})],
        [*shop.create(large, id=2, v=2**40, price="Ew=="), *shop.update(small, id=1, v=5, price="ew==")],
    ]
    found = {}
    for name, compatibility in (("any", ["spark"]), ("all", ["all"])):
        folder = tmp_path / name
        target = {"path": f"{folder}/lake/{{db}}/{{schema}}/{{table}}", "compatibility": compatibility}
        mirroring = Mirroring(folder, {"target": target}, name=name).deliver(batches)
        tables = mirroring.run(spark).tables
        path = mirroring.path("demo", "public", "widened")
        rows = [row.asDict() for row in at(spark, path).collect()]
        assert sorted((row["id"], row["v"]) for row in rows) == [(1, 5), (2, 2**40)]
        assert not readers.differences(path, rows)
        drift = {each.column: (each.action, each.feature) for each in tables["demo.public.widened"].drift}
        found[name] = readers.features(path), drift
        error = tables["demo.public.named"].error
        assert (error is None) == (name == "any")
        assert error is None or "column 'a b' has a name that needs Delta's feature columnMapping" in error
    altered, rewritten = ("altered", "typeWidening"), ("rewritten", None)
    assert found == {
        "any": ({"typeWidening"}, {"v": altered, "price": altered}),
        "all": (set(), {"v": rewritten, "price": rewritten}),
    }
    mapped = Mirroring(tmp_path / "any").path("demo", "public", "named")
    assert readers.features(mapped) == {"columnMapping", "timestampNtz"}
    assert not readers.differences(mapped, [row.asDict() for row in at(spark, mapped).collect()])


def test_every_reader_is_known() -> None:
    assert set(readers.READERS) | {"spark", "trino"} == set(LACKING)
