"""Where a mirror stands: whatever a source table is called, below the target and in a folder of its own."""

from __future__ import annotations

import posixpath

import pytest

from lakemirror.api.tables import Target
from lakemirror.driver.tables.names import TableName, locate

NAMES = (
    "t",
    "..",
    ".",
    "",
    "a/b",
    "../../etc",
    "%2E%2E",
    "%",
    "_delta_log",
    "_tombstones",
    "a b",
    "ä",
    "...",
    "\\",
)


@pytest.mark.parametrize("template", ["/lake/{schema}/{table}", "/lake/{schema}-{table}", "/lake/{table}/x"])
def test_no_name_leaves_the_folder_or_meets_another(template: str) -> None:
    places = {}
    for name in NAMES:
        path = locate(Target(path=template), TableName("db", "s", name)).path
        assert path is not None
        assert posixpath.normpath(path) == path.rstrip("/")
        assert path.startswith("/lake/")
        assert path.count("/") == template.count("/")
        assert not {"", ".", "..", "_delta_log", "_tombstones"} & set(path.split("/")[1:])
        places[name] = path
    assert len(set(places.values())) == len(NAMES)


def test_names_that_need_no_encoding_stand_as_they_are() -> None:
    named = TableName("Db-1", "public", "order_items.v2")
    assert locate(Target(path="/l/{db}/{schema}.{table}"), named).path == "/l/Db-1/public.order_items.v2"
    assert locate(Target(path="s3a://b/x/{table}"), TableName(None, "..", "a b")).path == "s3a://b/x/a%20b"
    assert locate(Target(path="/l/{schema}/{table}"), TableName(None, "..", "..")).path == "/l/%2E./%2E."
    assert locate(Target(path="/l/{schema}{table}"), TableName(None, ".", ".")).path == "/l/%2E."
