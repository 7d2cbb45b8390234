"""``lakemirror report``: makes a page about a pipeline from what its batches recorded."""

from __future__ import annotations

import importlib
import os
import uuid
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

import click

from lakemirror.cli.common import (
    debug_option,
    fail,
    manifest_option,
    not_installed,
    read_pipeline,
    say,
    set_option,
)

PACKAGES = ("altair", "deltalake", "pyarrow", "vl_convert")


@click.command()
@manifest_option
@click.option("-o", "--output", required=True, metavar="HTML", help="Where to write the page.")
@set_option
@debug_option
def report(file: str, output: str, settings: Sequence[str], debug: bool) -> None:
    """Make a page with plots of what a pipeline has done: one file, which needs no network.

    It is made from the audit and the quarantine beside the checkpoint, without Spark. A driver may run
    meanwhile.
    """
    pipeline = read_pipeline(file, settings)
    try:
        records = importlib.import_module("lakemirror.report.records")
        pages = importlib.import_module("lakemirror.report.page")
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if package not in PACKAGES:
            raise
        fail(not_installed(package, "report"))
    checkpoint = pipeline.spec.checkpoint
    try:
        made = pages.page(pipeline.name, checkpoint, records.read(checkpoint), datetime.now(UTC))
        _write(Path(output), made)
    except (records.ReportError, OSError) as error:
        if debug:
            raise
        fail(str(error))
    say(f"{output} is written")


def _write(path: Path, text: str) -> None:
    """Write the file completely, or not at all. Who may read it is up to the umask, as for any new file."""
    aside = path.with_name(f".{path.name}.{uuid.uuid4().hex}")
    try:
        with open(aside, "x", encoding="utf-8") as file:
            file.write(text)
        os.replace(aside, path)
    finally:
        aside.unlink(missing_ok=True)
