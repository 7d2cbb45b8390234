"""``lakemirror read-at``: says which version of each mirror shows the source as it was at a position."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from typing import Any

import click

from lakemirror.cli.common import (
    FAILED,
    call,
    debug_option,
    driver_module,
    manifest_option,
    read_pipeline,
    say,
    set_option,
)


@click.command("read-at")
@manifest_option
@click.argument("position")
@click.option("--table", "tables", metavar="TABLE", multiple=True, help="Only this source table. Repeatable.")
@click.option("--log", metavar="NAME", help="Only tables of the connector with this name (source.name).")
@click.option(
    "--settled",
    is_flag=True,
    help="Assume that nothing is still on its way: everything before the position is applied.",
)
@click.option(
    "-o",
    "--output",
    type=click.Choice(["text", "json"]),
    default="text",
    show_default=True,
    help="The output format.",
)
@set_option
@debug_option
def read_at(
    file: str,
    position: str,
    tables: tuple[str, ...],
    log: str | None,
    settled: bool,
    output: str,
    settings: tuple[str, ...],
    debug: bool,
) -> None:
    """Name the version of each mirror that shows the source as it was at POSITION.

    POSITION is an LSN of PostgreSQL (16/B374D848), a place in the binary log (binlog.000003:1234), a commit
    LSN of SQL Server (0000002a:00000d40:0002), an SCN (scn:123456), what `lakemirror status` shows as
    complete (24023128:24023184), or a value of __seq in hexadecimal.

    Where a table has no such version, the output says why and names the nearest positions for which all
    tables have one.
    """
    pipeline = read_pipeline(file, settings)
    module = driver_module("read_at")
    answer = call(module.read_at, pipeline, position, tables=tables, log=log, settled=settled, debug=debug)
    if output == "json":
        say(*json.dumps(answer.to_document(), indent=2, ensure_ascii=False).split("\n"))
    else:
        say(*told(answer))
    if not answer.found:
        sys.exit(FAILED)


def told(answer: Any) -> Iterator[str]:
    """Describe an answer (`lakemirror.driver.consistent.answer.ReadAt`), line by line."""
    for table in answer.tables:
        if table.reason is not None:
            yield table.reason
        else:
            yield f"{table.source}: version {table.version}"
            yield f"  {table.query};"
    if answer.found:
        return
    if answer.complete is not None:
        yield f"All tables are complete up to {answer.complete}"
    for word, moment in (("before", answer.before), ("after", answer.after)):
        if moment is not None:
            at = moment.text or moment.seq
            yield f"The nearest position {word} it that all tables have a version for: {at}"
