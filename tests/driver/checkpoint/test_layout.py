"""A checkpoint of a newer version is left alone; one of an older version is not."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from lakemirror.driver.checkpoint import layout
from lakemirror.driver.checkpoint.layout import LAYOUT, NewerLayout, require_known
from lakemirror.driver.checkpoint.owner import Owner
from lakemirror.driver.checkpoint.storage import LocalStorage
from lakemirror.driver.errors import LakemirrorError
from lakemirror.driver.runtime.runner import run
from tests.support.mirroring import Mirroring

pytestmark = pytest.mark.guarantee(
    "The driver continues from a checkpoint of an earlier version, and leaves one of a newer version alone"
)


def test_a_checkpoint_that_tells_no_layout_is_given_one_and_keeps_it(tmp_path: Path) -> None:
    storage = LocalStorage(tmp_path)
    require_known(storage)
    noted = storage.read_text("layout.json")
    require_known(storage)
    assert json.loads(storage.read_text("layout.json")) == json.loads(noted) == {"layout": LAYOUT}


def test_an_older_layout_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    storage = LocalStorage(tmp_path)
    require_known(storage)
    monkeypatch.setattr(layout, "LAYOUT", LAYOUT + 1)
    require_known(storage)


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"layout": "one"}', '{"layout": null}'])
def test_a_damaged_file_is_named(text: str, tmp_path: Path) -> None:
    (tmp_path / "layout.json").write_text(text)
    with pytest.raises(LakemirrorError, match=r"layout\.json is damaged .*or delete it"):
        require_known(LocalStorage(tmp_path))


def test_no_run_touches_a_newer_layout(tmp_path: Path) -> None:
    """Not even Spark is started."""
    mirroring = Mirroring(tmp_path).deliver([[]])
    mirroring.checkpoint.mkdir()
    (mirroring.checkpoint / "layout.json").write_text(json.dumps({"layout": LAYOUT + 1}))
    with pytest.raises(NewerLayout, match=rf"newer version of Lakemirror \(layout {LAYOUT + 1};.*run that"):
        run(mirroring.pipeline, once=True)
    left = {str(path.relative_to(mirroring.checkpoint)) for path in mirroring.checkpoint.rglob("*.*")}
    assert {name for name in left if not name.startswith("owner/")} == {"layout.json"}
    assert not mirroring.lake.exists()


def test_whoever_takes_a_checkpoint_of_a_newer_layout_leaves_it_alone(tmp_path: Path) -> None:
    """Replays, repairs, reloads and cleanups take it as a run does."""
    (tmp_path / "layout.json").write_text(json.dumps({"layout": LAYOUT + 1}))
    with pytest.raises(NewerLayout), Owner(LocalStorage(tmp_path)):
        pass
    with pytest.raises(NewerLayout), Owner(LocalStorage(tmp_path)):  # it was given back
        pass
