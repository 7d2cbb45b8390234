"""`lakemirror read-at`: what it prints of an answer, and with which code it ends."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from lakemirror.api import CdcPipeline
from lakemirror.cli.main import main
from lakemirror.driver.consistent.answer import Moment, ReadAt, TableAt
from lakemirror.driver.errors import LakemirrorError
from lakemirror.driver.runtime import read_at
from tests.api.manifests import changed
from tests.support.mirroring import Mirroring

QUERY = "SELECT * FROM delta.`/lake/a` VERSION AS OF 4"
A = TableAt("public.a", "/lake/a", 4, QUERY)
B = TableAt("public.b", "/lake/b", reason="public.b: no version has all changes")


def asked(answer: ReadAt, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, *options: str) -> Result:
    def found(pipeline: CdcPipeline, position: str, **given: Any) -> ReadAt:
        assert (pipeline.name, position) == ("inventory", "0/17")
        return answer

    monkeypatch.setattr(read_at, "read_at", found)
    manifest = Mirroring(tmp_path, name="inventory").manifest
    return CliRunner().invoke(main, ["read-at", "-f", str(manifest), "0/17", *options])


def test_versions_and_their_queries(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    result = asked(ReadAt("0/17", "00", "shop", None, (A,)), monkeypatch, tmp_path)
    assert result.exit_code == 0, result.output
    assert result.stdout == f"public.a: version 4\n  {QUERY};\n"


def test_a_name_that_would_end_a_line_elsewhere_leaves_the_json_whole(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    table = TableAt("public.a\u2028b\x85", "/lake/a", 4, QUERY)
    result = asked(ReadAt("0/17", "00", "shop", None, (table,)), monkeypatch, tmp_path, "-o", "json")
    [shown] = json.loads(result.stdout)["tables"]
    assert shown["source"] == table.source


def test_mirrors_in_a_database_are_refused(tmp_path: Path) -> None:
    target = {"table": "mirror.{table}", "jdbc": {"url": "jdbc:mariadb://db/"}}
    pipeline = CdcPipeline.from_dict(changed(target=target))
    with pytest.raises(LakemirrorError, match=r"tables of a database .* without versions"):
        read_at.read_at(pipeline, "0/17")


def test_what_has_no_version_is_explained(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    before, after = Moment("aa", "0/16", {"public.a": 3}), Moment("bb", None, {"public.a": 5})
    answer = ReadAt("0/17", "00", "shop", "0/20", (A, B), before, after)
    result = asked(answer, monkeypatch, tmp_path)
    assert result.exit_code == 1
    assert "public.b: no version has all changes" in result.stdout
    assert "All tables are complete up to 0/20" in result.stdout
    assert "position before it that all tables have a version for: 0/16" in result.stdout
    assert "position after it that all tables have a version for: bb" in result.stdout
    document = json.loads(asked(answer, monkeypatch, tmp_path, "-o", "json").stdout)
    assert document["found"] is False
    assert document["before"] == {"seq": "aa", "position": "0/16", "versions": {"public.a": 3}}
    assert [table["reason"] for table in document["tables"]] == [None, B.reason]
