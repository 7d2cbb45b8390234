"""Paths of a manifest."""

from __future__ import annotations

from pathlib import Path

import pytest

from lakemirror.driver.runtime.paths import with_absolute_paths
from tests.support.counting import make


def test_relative_paths_are_relative_to_the_current_directory(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    given = make(
        tmp_path,
        source={"files": {"path": "in/*.jsonl"}},
        checkpoint="./state",
        target={"path": "out/{table}"},
        tables=[{"source": "a", "target": {"path": "s3a://lake/a"}}, {"source": "b"}],
    )
    spec = with_absolute_paths(given).spec
    assert spec.source.files is not None
    assert spec.source.files.path == f"{tmp_path}/in/*.jsonl"
    assert (spec.checkpoint, spec.target.path) == (f"{tmp_path}/state", f"{tmp_path}/out/{{table}}")
    assert [table.target and table.target.path for table in spec.tables] == ["s3a://lake/a", None]
    fed = with_absolute_paths(
        make(tmp_path, source={"changeFeed": {"path": "out/a"}})
    ).spec.source.change_feed
    assert fed is not None
    assert fed.path == f"{tmp_path}/out/a"
