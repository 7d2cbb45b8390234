"""``lakemirror run``: runs the driver on this machine."""

from __future__ import annotations

import sys

import click

from lakemirror.cli.common import (
    FAILED,
    call,
    debug_option,
    driver_module,
    manifest_option,
    read_pipeline,
    secret_directories,
    secret_option,
    set_option,
)


@click.command()
@manifest_option
@click.option("--once", is_flag=True, help="Exit when everything that was there at the start is applied.")
@set_option
@secret_option
@debug_option
def run(file: str, once: bool, settings: tuple[str, ...], secrets: tuple[str, ...], debug: bool) -> None:
    """Mirror on this machine, with the same driver and manifest as on a cluster.

    It runs until Ctrl-C, and then finishes its batch. A second Ctrl-C interrupts the batch, which is repeated
    at the next start. Relative paths in the manifest are relative to the current directory.
    """
    pipeline = read_pipeline(file, settings)
    directories = secret_directories(pipeline, secrets)
    about = (pipeline.spec.spark.conf, pipeline.spec.java_properties)
    driver_module("session").start_jvm(f"lakemirror-{pipeline.name}", *about)  # while the driver is imported
    runner, display = driver_module("runner"), driver_module("display")

    def mirror() -> bool:
        """Return whether a table is held."""
        with display.Display() as shown:
            summary = runner.run(pipeline, once=once, secrets=directories, on_event=shown)
        return summary.status == "completed" and bool(summary.held)

    if call(mirror, debug=debug):
        sys.exit(FAILED)
