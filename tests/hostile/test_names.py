"""Names that are hard for SQL, Delta, Spark or a file system: mirrored as they are, or refused by name.

All cases go through one pipeline, so that a table that is refused is seen to leave the others alone. They go
through another one in Avro, once with these names, which Avro has no room for, and once with those of them
that are names of Avro.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, cast

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import ArrayType, DataType, MapType, StringType, StructField, StructType

from lakemirror.api.tables import Columns
from lakemirror.api.tables import Table as Settings
from lakemirror.driver.plan.names import RESERVED, check_columns
from lakemirror.driver.plan.refusal import Refused
from lakemirror.driver.tables.columns import METADATA
from lakemirror.driver.tables.delta import snapshot
from lakemirror.driver.tables.mirror import needs_mapping
from lakemirror.driver.tables.names import TableName, locate, name_of
from tests.support.avro import AvroWriter
from tests.support.mirroring import Mirroring, rows
from tests.support.records import UNAVAILABLE, Column, Record, Row, Table
from tests.support.registry import serving
from tests.support.shop import Shop, decimal, table

ODD = (
    "all ,;{}()=\t\n of them",
    *(f"a{mark}b" for mark in ".`\"'\\/%$"),
    *(" lead", "`", "``.`", "a.b.c", "[x]", "%20", "Δ😀", "${env:HOME}", "1e5", "x" * 200, "long " * 60),
    *(
        "s",
        "t",
        "k",
        "number",
        "at_file",
        "choice",
        "key",
        "row",
        "s.row",
        "_metadata",
        "_corrupt",
        "_corrupt_record",
        ">",
        ",",
        "*",
        "null",
    ),
)
KEY = "key ,;{}()=`.x"
NAME_OF_AVRO = re.compile(r"[^\W\d]\w*")


@dataclass(frozen=True)
class Typed(Column):
    """A nullable column with any Connect schema, as JSON."""

    schema: str = ""

    def field(self) -> Row:
        return {**json.loads(self.schema), "optional": True, "field": self.name}


def a_struct(name: str, *fields: str) -> Column:
    members = [{"type": "string", "optional": True, "field": each} for each in fields]
    return Typed(name, cast(Any, "struct"), True, schema=json.dumps({"type": "struct", "fields": members}))


def text(name: str) -> Column:
    return Column(name, "string", optional=True)


@dataclass
class Case:
    """A table, its events in three batches, and what is to come of it: ``rows``, or why it is ``refused``."""

    of: Table
    batches: list[list[Record]]
    rows: list[Row] = field(default_factory=list)
    refused: str | None = None
    settings: Row = field(default_factory=dict)
    mapped: bool = False
    widened: bool = False

    @property
    def name(self) -> TableName:
        return TableName(self.of.db, self.of.schema, self.of.name)


@dataclass(frozen=True)
class Given:
    """What the cases are made of: names of columns, of one in a key, and of members; a prefix in the catalog.

    ``schemas`` says that all records have their schema.
    """

    odd: tuple[str, ...] = ODD
    key: str = KEY
    members: tuple[str, ...] = ("a.b", "c d", "e`f", "g,h")
    schemas: bool = False
    catalog: str = "names"


def odd_columns(shop: Shop, given: Given) -> Iterator[Case]:
    """All odd names as columns of one table, of which one is part of the key: with schema and without; with a
    soft delete, in the catalog.
    """
    of = replace(table("odd", text(given.key), *map(text, given.odd)), key=("id", given.key))
    soft = "gone `at`, x"
    settings = {"target": {"table": f"{given.catalog}_{{table}}"}, "delete": {"type": "soft", "column": soft}}
    first, gone = ({"id": n, given.key: "k", **{name: f"{name}{n}" for name in given.odd}} for n in (1, 2))
    newer = {**first, **dict.fromkeys(given.odd, "new")}
    begun = shop.create(of, **first) + shop.create(of, **gone)
    late = shop.update(of, **{**gone, **dict.fromkeys(given.odd, "late")})
    ended = shop.update(of, **newer) + shop.delete(of, **gone)
    yield Case(of, [begun, ended, late], [newer], mapped=True)
    of = replace(of, name="odd_catalog", schemas=given.schemas)
    begun, ended = shop.create(of, **first) + shop.create(of, **gone), shop.update(of, **newer)
    ended += shop.delete(of, **gone)
    left = [{**newer, soft: False}, {**gone, soft: True}]
    yield Case(of, [begun, ended], left, settings=settings, mapped=True)


def later_columns(shop: Shop, given: Given) -> Iterator[Case]:
    """Odd columns that are added later, with a default, and widened."""
    added = given.odd[:4]
    of = table("later", text("plain"))
    grown = replace(of, columns=(*of.columns, *(Column(name, "int32", default=7) for name in added)))
    wide = replace(of, columns=(*of.columns, *(Column(name, "int64", default=7) for name in added)))
    one = shop.create(of, id=1, plain="a")
    two = shop.create(grown, id=2, plain="b", **dict.fromkeys(added, 2))
    three = shop.create(wide, id=3, plain="c", **dict.fromkeys(added, 2**40))
    values = {1: 7, 2: 2, 3: 2**40}
    left = [{"id": n, "plain": " abc"[n], **dict.fromkeys(added, value)} for n, value in values.items()]
    yield Case(of, [one, two, three], left, mapped=True, widened=True)


def left_out_values(shop: Shop, given: Given) -> Iterator[Case]:
    """Values that the source does not send, in odd columns; and a row that changes its key."""
    of = replace(table("toast", text(given.key), *map(text, given.odd[:9])), key=("id", given.key))
    full = {name: f"big {name}" for name in given.odd[:9]}
    gap = dict.fromkeys(given.odd[:9], UNAVAILABLE)
    at = shop.next
    begun = shop.create(of, id=1, **{given.key: "k"}, **full) + shop.create(
        of, id=2, **{given.key: "k"}, **full
    )
    update = shop.update(of, id=1, **{given.key: "k"}, **{**gap, given.odd[0]: "new"})
    before, moved = {"id": 2, given.key: "k", **full}, {"id": 2, given.key: "other", **gap}
    there = shop.send(of, *of.move(at(), before, moved))
    left = [{"id": 1, given.key: "k", **full, given.odd[0]: "new"}, {"id": 2, given.key: "other", **full}]
    # The create half of the move comes a batch after its delete.
    yield Case(of, [begun, update + there[:2], there[2:]], left, mapped=True)


def nested(shop: Shop, given: Given) -> Iterator[Case]:
    of = table("nested", a_struct("point", "x"), a_struct("odd", *given.members))
    row = {"id": 1, "point": {"x": "1"}, "odd": {name: name for name in given.members}}
    yield Case(of, [shop.create(of, **row)], [row], mapped=True)
    of = table("nested_twins", a_struct("odd", "a", "A"))
    row = {"id": 1, "odd": {"a": "1", "A": "2"}}
    yield Case(
        of, [shop.create(of, **row)], refused="column 'odd' .* 'a' and 'A' differ in case only.*exclude"
    )


def plain(shop: Shop, given: Given) -> Iterator[Case]:
    """What needs no feature of Delta has none."""
    of = table("plain", text("note"), decimal("price", 10, 2))
    yield Case(of, [shop.create(of, id=1, note="a", price="AA==")], [{"id": 1, "note": "a", "price": 0}])


def conflicts(shop: Shop, given: Given) -> Iterator[Case]:
    """Names that meet others, with and without the remedy that the refusal names."""
    soft = {"delete": {"type": "soft", "column": "Gone"}}

    def case(
        name: str, *columns: str, refused: str | None = None, left: Row | None = None, **more: Any
    ) -> Case:
        of = table(name, *map(text, columns))
        row = {"id": 1, **{column: f"value of {column}" for column in columns}}
        found = [] if left is None else [{"id": 1, **left}]
        return Case(of, [shop.create(of, **row)], found, refused, more)

    yield case("twins", "a", "A", refused="columns 'a' and 'A' differ in case only")
    yield case("meta", "__op", refused="column '__op' has a name that the mirror needs")
    yield case("soft", "gone", refused="column 'gone' has the name of the soft delete's column", **soft)
    renamed = {"A": "a2", "__op": "op", "gone": "was gone", "b": "c", "c": "b"}
    left = {"a": "a", "a2": "A", "op": "__op", "was gone": "gone", "c": "b", "b": "c"}
    values = {name: f"value of {source}" for name, source in left.items()}
    columns = ("a", "A", "__op", "gone", "b", "c")
    remedy: Row = {"columns": {"rename": renamed}, **soft}
    yield replace(case("renamed", *columns, left={**values, "Gone": False}, **remedy), mapped=True)
    remedy = {"columns": {"exclude": ["A", "__op", "gone"]}, **soft}
    left = {name: f"value of {name}" for name in ("a", "b", "c")}
    yield case("excluded", *columns, left={**left, "Gone": False}, **remedy)


TABLES = ("a b.c", "a/`b`", "%20%", 'it\'s "q"', "Ünïcode 😀", "x" * 200, "[x]*?\n{table}")


def odd_tables(shop: Shop, given: Given) -> Iterator[Case]:
    for name in TABLES:
        of = replace(table(name, text("note")), schema="odd schema.x")
        yield Case(of, [shop.create(of, id=1, note=name)], [{"id": 1, "note": name}])
    of = table("é" * 100, text("note"))
    yield Case(
        of, [shop.create(of, id=1, note="a")], refused="folder whose name is longer than 255 bytes.*target"
    )
    of = replace(table("a b", text("note")), schema="catalog")
    settings = {"target": {"table": f"{given.catalog}_{{table}}"}}
    refused = "not a valid name of a table in the catalog.*target"
    yield Case(of, [shop.create(of, id=1, note="a")], refused=refused, settings=settings)


def all_cases(given: Given) -> list[Case]:
    shop = Shop()
    makers = (odd_columns, later_columns, left_out_values, nested, plain, conflicts, odd_tables)
    return [case for maker in makers for case in maker(shop, given)]


CASES = all_cases(Given())
NAMES_OF_AVRO = tuple(filter(NAME_OF_AVRO.fullmatch, ODD))
OF_NO_AVRO = [name for name in ODD if name not in NAMES_OF_AVRO]
AVRO = all_cases(Given(NAMES_OF_AVRO, "key_x", NAMES_OF_AVRO[-4:], True, "avro"))


@dataclass(frozen=True)
class Outcome:
    """What the one run left: reasons in quarantine by table, and the pipeline itself."""

    mirroring: Mirroring
    reasons: dict[str, str]


@pytest.fixture(scope="module")
def outcome(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Outcome]:
    batches: list[list[Record]] = [[], [], []]
    for case in CASES:
        for batch, records in zip(batches, case.batches, strict=False):
            batch += records
    yield run(spark, tmp_path_factory.mktemp("names"), CASES, batches)
    spark.sql("DROP TABLE IF EXISTS names_odd_catalog")


@pytest.fixture(scope="module")
def in_avro(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Outcome]:
    """The same with records of Avro, and a table for each name that Avro does not have."""
    shop, writer = Shop(seconds=10_000), AvroWriter()
    batches: list[list[Record]] = [[], [], []]
    for number, name in enumerate(OF_NO_AVRO):
        of = table(f"no_{number}", text(name))
        batches[0] += map(writer.record, shop.create(of, id=1, **{name: "a"}))
    for case in AVRO:
        for batch, records in zip(batches, case.batches, strict=False):
            batch += map(writer.record, records)
    with serving() as registry:
        registry.schemas = {identity: {"schema": schema} for identity, schema in writer.schemas.items()}
        yield run(spark, tmp_path_factory.mktemp("avro"), AVRO, batches, envelope=registry.envelope)
    spark.sql("DROP TABLE IF EXISTS avro_odd_catalog")


def run(
    spark: SparkSession, folder: Path, cases: Sequence[Case], batches: list[list[Record]], **settings: Any
) -> Outcome:
    listed = [{"source": str(case.name), **case.settings} for case in cases if case.settings]
    mirroring = Mirroring(folder, {"tables": listed, **settings})
    mirroring.deliver(batches).run(spark)
    quarantine = spark.read.format("delta").load(f"{mirroring.checkpoint}/quarantine")
    return Outcome(mirroring, {row["source"] or row["topic"]: row["reason"] for row in quarantine.collect()})


def place(outcome: Outcome, case: Case) -> str:
    target = case.settings.get("target")
    if target is not None:
        return str(target["table"]).format(table="odd_catalog")
    pipeline = outcome.mirroring.pipeline
    path = locate(pipeline.spec.target, case.name).path
    assert path is not None
    return path


def shown(case: Case) -> str:
    return str(case.name).encode("unicode_escape").decode()[:40]


@pytest.mark.long
@pytest.mark.parametrize("case", [case for case in CASES if case.refused is None], ids=shown)
def test_a_table_is_mirrored_under_its_own_names(spark: SparkSession, outcome: Outcome, case: Case) -> None:
    check(spark, outcome, case)


@pytest.mark.thorough
@pytest.mark.parametrize("case", [case for case in AVRO if case.refused is None], ids=shown)
def test_a_table_is_mirrored_from_avro(spark: SparkSession, in_avro: Outcome, case: Case) -> None:
    check(spark, in_avro, case)


def check(spark: SparkSession, outcome: Outcome, case: Case) -> None:
    where = place(outcome, case)
    frame = spark.table(where) if "target" in case.settings else spark.read.format("delta").load(where)
    soft = case.settings.get("delete", {}).get("column")
    found = []
    for row in rows(frame).collect():
        values = row.asDict(recursive=True)
        found.append({name: value is not None if name == soft else value for name, value in values.items()})
    assert sorted(found, key=lambda row: row["id"]) == case.rows
    assert str(case.name) not in outcome.reasons


@pytest.mark.long
@pytest.mark.parametrize("case", [case for case in CASES if case.refused], ids=shown)
def test_a_table_is_refused_by_name(outcome: Outcome, case: Case) -> None:
    assert case.refused is not None
    assert re.search(case.refused, outcome.reasons[str(case.name)])


@pytest.mark.long
@pytest.mark.parametrize("case", [case for case in AVRO if case.refused], ids=shown)
def test_a_table_of_avro_is_refused_by_name(in_avro: Outcome, case: Case) -> None:
    assert case.refused is not None
    assert re.search(case.refused, in_avro.reasons[str(case.name)])


@pytest.mark.long
def test_a_name_that_avro_does_not_have_is_refused(in_avro: Outcome) -> None:
    """Its schema is, with all of its records."""
    for number, name in enumerate(OF_NO_AVRO):
        reason = in_avro.reasons[f"demo.public.no_{number}"]
        assert "cannot be used: a field of R" in reason, name
        assert reason.endswith("which is no name of Avro"), name


@pytest.mark.long
def test_a_mirror_has_the_features_that_its_names_and_types_need_and_no_others(
    spark: SparkSession, outcome: Outcome
) -> None:
    found, wanted = {}, {}
    for case in CASES:
        if case.refused is None and "target" not in case.settings:
            log = snapshot(spark, place(outcome, case))
            features = log.protocol().toString() + log.metadata().configuration().toString()
            found[str(case.name)] = ("columnMapping" in features, "ypeWidening" in features)
            wanted[str(case.name)] = (case.mapped, case.widened)
    assert found == wanted


SETTINGS = Settings(source="s.t")


def refusal(
    *version: str,
    soft: str | None = None,
    of: Settings = SETTINGS,
    made: bool = False,
    names: Mapping[str, str] | None = None,
) -> str | None:
    """Why a table with these columns (``names``: what they are renamed to) cannot be mirrored."""
    called = {name: (names or {}).get(name, name) for name in version}
    columns = dict.fromkeys(called.values(), StringType())
    try:
        check_columns(of, [version], called, columns, key=["id"], soft=soft, own=of.own_columns, made=made)
    except Refused as refused:
        return str(refused)
    return None


@pytest.mark.parametrize("name", [*METADATA, *RESERVED, "__SEQ", "_Row_Dropped_"])
def test_a_name_that_the_mirror_needs_itself_is_refused(name: str) -> None:
    why = refusal("id", name)
    assert why is not None
    assert why.startswith(f"column {name!r} has a name")
    assert "tables[s.t].columns.rename" in why
    assert "tables[s.t].columns.exclude" in why
    assert refusal("id", name, names={name: "other"}) is None


@pytest.mark.parametrize(
    ("version", "names", "why"),
    [
        (["a", "A"], {}, "columns 'a' and 'A' differ in case only"),
        (["é", "É"], {}, "columns 'é' and 'É' differ in case only"),
        (["a", "b"], {"a": "b"}, "columns 'a' and 'b' would both be called 'b'"),
        (["a", "b"], {"a": "B"}, "columns 'B' and 'b' differ in case only"),
        (["a", "gone"], {}, "column 'gone' has the name of the soft delete's column"),
        (["a", "b"], {"a": "GONE"}, "column 'GONE' has the name of the soft delete's column"),
        (["a", ""], {}, "column '' cannot be mirrored: it has no name"),
    ],
)
def test_columns_that_would_meet_in_one_are_refused(
    version: list[str], names: dict[str, str], why: str
) -> None:
    assert (refusal(*version, soft="Gone", names=names) or "").startswith(why)


def test_a_mirror_that_is_there_keeps_the_names_of_added_columns() -> None:
    for made in (False, True):
        assert ("choose another delete.column" in str(refusal("gone", soft="gone", made=made))) != made
        of = Settings(source="s.t", columns=Columns(row_hash="hash"))
        why = str(refusal("hash", of=of, made=made))
        assert ("choose another one there" in why) != made
        assert "rename this with tables[s.t].columns.rename" in why


def test_a_column_is_left_out_in_a_way_that_the_manifest_allows() -> None:
    assert "leave it out with tables[s.t].columns.exclude" in str(refusal("a", "A"))
    included = Settings(source="s.t", columns=Columns(include=["id", "a", "b", "__seq"]))
    assert "take it out of tables[s.t].columns.include" in str(refusal("a", "__seq", of=included))
    assert "take one of them out of tables[s.t].columns.include" in str(
        refusal("a", "b", of=included, names={"a": "b"})
    )
    assert str(refusal("a", "")).endswith("it has no name; list the others in tables[s.t].columns.include")


def test_columns_that_change_places_or_follow_each_other_do_not_meet() -> None:
    assert refusal("a", "b", names={"a": "b", "b": "a"}) is None
    columns = {"id": StringType(), "a": StringType()}
    names = {"id": "id", "a": "a", "A": "a"}  # the source changed the case of a name
    check_columns(SETTINGS, [["id", "a"], ["id", "A"]], names, columns, key=["id"], soft=None)


@pytest.mark.parametrize("ddl", ["map<string,int>", "struct<a: map<int,int>>", "variant"])
def test_a_key_that_cannot_be_compared_is_refused(spark: SparkSession, ddl: str) -> None:
    columns = {"id": DataType.fromDDL(ddl)}
    with pytest.raises(Refused, match=r"key column 'id' is of type .*primaryKey"):
        check_columns(SETTINGS, [["id"]], {"id": "id"}, columns, key=["id"], soft=None)


@pytest.mark.parametrize("mark", " ,;{}()=\n\t")
def test_a_name_that_delta_has_only_with_column_mapping_is_known(mark: str) -> None:
    assert needs_mapping({f"a{mark}b": StringType()})
    inner = StructType([StructField(f"a{mark}b", StringType())])
    assert needs_mapping({"a": ArrayType(MapType(StringType(), inner))})


def test_other_names_need_no_column_mapping() -> None:
    inner = StructType([StructField("é.`'\"", StringType())])
    assert not needs_mapping({".`'\"[]%\\/:<>*#@-😀": inner})


def test_a_tables_name_is_shown_in_one_way_only(spark: SparkSession) -> None:
    names = [
        TableName(None, "a", "b.c"),
        TableName(None, "a.b", "c"),
        TableName("a", "b", "c"),
        TableName(None, "a", 'b"."c'),
        TableName(None, '"a', 'b"'),
        TableName(None, None, "a b"),
    ]
    texts = ['a."b.c"', '"a.b".c', "a.b.c", 'a."b"".""c"', '"""a"."b"""', "a b"]
    assert list(map(str, names)) == texts
    parts = [(name.database, name.schema, name.table) for name in names]
    frame = spark.createDataFrame(parts, "d STRING, s STRING, t STRING").coalesce(1)
    assert [row[0] for row in frame.select(name_of(F.col("d"), F.col("s"), F.col("t"))).collect()] == texts
