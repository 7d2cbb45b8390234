"""What a version stores, kept for the versions after it: the half of a run, as an archive.

`python -m tests.support.layouts 1.2.3` stores what the current version makes of the first half of a capture
in `tests/fixtures/layouts/1.2.3.tar.xz`; `tests.conformance.test_layouts` applies the second half to each
archive that is there.
"""

from __future__ import annotations

import io
import sys
import tarfile
import tempfile
from pathlib import Path

from pyspark.sql import SparkSession

from tests.conformance.captures import Capture
from tests.support.delivery import Batches, parts
from tests.support.mirroring import Mirroring
from tests.support.records import Record

FOLDER = Path(__file__).parents[1] / "fixtures" / "layouts"
MODES = ("scd1", "scd2", "append")
CAPTURES = {mode: Capture("pk_change", as_db=f"of_{mode}") for mode in MODES}
"""One capture, mirrored in each mode."""
SETTINGS = {
    "tables": [{"source": rf"/of_{mode}\..*/", "mode": mode} for mode in MODES],
    "envelope": {"format": "debezium", "encoding": "json"},
}
_ROOT = "root.txt"
"""The folder in which an archive was made: the names of its input files stand in the checkpoint."""


def batches() -> Batches:
    """The first half, which has a record that cannot be read, and the second."""
    first, second = ([], [])
    for capture in CAPTURES.values():
        early, late = parts(capture.records, 2)
        first += early
        second += late
    return [[*first, _unreadable(first[-1])], second]


def _unreadable(record: Record) -> Record:
    return {**record, "topic": "of_nothing", "offset": 0, "value": "no JSON"}


def make(spark: SparkSession, archive: Path) -> None:
    """Run the first half, and store all that there is then."""
    with tempfile.TemporaryDirectory() as root:
        Mirroring(Path(root), SETTINGS).deliver(batches()[:1]).run(spark)
        archive.parent.mkdir(exist_ok=True)
        with tarfile.open(archive, "w:xz") as tar:
            for name in ("input", "lake", "checkpoint"):
                tar.add(Path(root, name), name, filter=_plain)
            told = tarfile.TarInfo(_ROOT)
            told.size = len(root.encode())
            tar.addfile(told, io.BytesIO(root.encode()))


def _plain(each: tarfile.TarInfo) -> tarfile.TarInfo:
    each.uid = each.gid = 0
    each.uname = each.gname = ""
    return each


def restored(archive: Path, folder: Path) -> Mirroring:
    """What is in an archive, in a folder of its own, as if it had been made there."""
    with tarfile.open(archive) as tar:
        tar.extractall(folder, filter="data")
    root = (folder / _ROOT).read_text()
    for path in (folder / "checkpoint").rglob("*.json"):
        if "_delta_log" not in path.parts:
            path.write_text(path.read_text("utf-8").replace(root, str(folder)), "utf-8")
    return Mirroring(folder, SETTINGS)


if __name__ == "__main__":
    from lakemirror.driver.runtime.session import create_session

    make(create_session("layouts"), FOLDER / f"{sys.argv[1]}.tar.xz")
