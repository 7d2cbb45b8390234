"""``lakemirror reload``: makes mirrors equal to a snapshot of their source."""

from __future__ import annotations

import sys
from datetime import datetime
from typing import Any

import click

from lakemirror.api.checks import moment
from lakemirror.cli.common import (
    FAILED,
    call,
    debug_option,
    driver_module,
    given_directories,
    manifest_option,
    read_pipeline,
    say,
    secret_option,
    set_option,
    timeout_option,
)
from lakemirror.cli.verify import login_options, password_of, source_wanted


def _moment(context: click.Context, option: click.Parameter, text: str | None) -> datetime | None:
    """Parse a time, which must have a time zone."""
    if text is None:
        return None
    try:
        return datetime.fromisoformat(moment(text))
    except ValueError as error:
        raise click.BadParameter(str(error)) from None


@click.command()
@manifest_option
@click.option(
    "--from",
    "source",
    metavar="URL",
    help="Where the rows are: jdbc:postgresql://HOST/DATABASE, jdbc:mariadb://HOST/, jdbc:mysql://HOST/, or "
    "delta:PATH or parquet:PATH, where {db}, {schema} and {table} stand for a table's name. "
    "Default: spec.verify.",
)
@login_options
@click.option(
    "--table",
    "tables",
    metavar="TABLE",
    multiple=True,
    help="Only this source table, even without a mirror. Repeatable. Default: all that are mirrored.",
)
@click.option(
    "--at",
    metavar="TIME",
    callback=_moment,
    help="When the export of the files began, such as 2026-03-01T00:00:00Z.",
)
@click.option("--empty", is_flag=True, help="Allow an empty snapshot, which deletes all rows.")
@timeout_option
@set_option
@secret_option
@debug_option
def reload(
    file: str,
    source: str | None,
    user: str | None,
    password_file: str | None,
    password_env: str | None,
    tables: tuple[str, ...],
    at: datetime | None,
    empty: bool,
    timeout: float,
    settings: tuple[str, ...],
    secrets: tuple[str, ...],
    debug: bool,
) -> None:
    """Make mirrors equal to a full snapshot of their tables.

    Rows that differ from the snapshot are replaced, rows that it lacks are deleted, and rows that changed
    after it are kept. If a driver is running, it applies the changes between two batches, and the
    command waits. Otherwise the command applies them itself.
    """
    pipeline = read_pipeline(file, settings)
    reloader = driver_module("reload")
    login = {"user": user, "password": password_of(password_file, password_env)}
    done = call(
        reloader.reload,
        pipeline,
        source_wanted(reloader, pipeline, "--from", source, login, secrets),
        tables=tables,
        at=at,
        empty=empty,
        timeout=timeout,
        secrets=given_directories(secrets),
        told=lambda table: say(*told(table, timeout)),
        debug=debug,
    )
    if not all(table.done for table in done):
        sys.exit(FAILED)


def told(table: Any, timeout: float) -> list[str]:
    """Describe the outcome for a table (`lakemirror.driver.runtime.reload.Reloaded`), line by line."""
    if table.error is not None:
        return [f"{table.source}: not reloaded: {table.error.removeprefix(f'{table.source}: ')}"]
    staged, outcome = table.staged, table.outcome
    counts = (("added", staged.missing), ("replaced", staged.changed), ("deleted", staged.gone))
    parts = [f"{number:,} {what}" for what, number in counts if number] or ["nothing to change"]
    lines = [f"{table.source}: {', '.join(parts)} ({staged.rows:,} rows in the snapshot)"]
    if staged.newer:
        lines.append(f"  {staged.newer:,} keys have changed since the snapshot, and were left alone")
    if staged.unfit:
        lines.append(
            f"  {staged.unfit:,} rows have values that the mirror's types cannot hold, and were left alone, "
            f"like {staged.unfitting}"
        )
    if outcome is None:
        return lines
    if outcome.filed:
        lines.append(
            f"  handed to the running driver, which did not finish it within {timeout:.0f} s: it is done "
            f"between two batches, and what came of it will be in reload/outcomes/{outcome.request}.json"
        )
    if outcome.error is not None:
        lines.append(f"  the driver tries it again, because it failed: {outcome.error}")
    lines += [f"  {bad.records:,} rows: {bad.reason}" for bad in outcome.bad]
    return lines
