"""``lakemirror replay``: quarantined records, once more through the same gate."""

from __future__ import annotations

import click

from lakemirror.cli.common import (
    call,
    debug_option,
    driver_module,
    manifest_option,
    read_pipeline,
    set_option,
)


@click.command()
@manifest_option
@click.option("--table", metavar="TABLE", help="Only records of this source table.")
@click.option("--reason", metavar="REASON", help="Only records that were quarantined for this reason.")
@set_option
@debug_option
def replay(file: str, table: str | None, reason: str | None, settings: tuple[str, ...], debug: bool) -> None:
    """Apply quarantined records again, after their cause is gone.

    The driver that owns the checkpoint does it between two batches; where none runs, this command does it.
    """
    pipeline = read_pipeline(file, settings)
    replayer = driver_module("replay")
    call(replayer.replay, pipeline, table=table, reason=reason, debug=debug)
