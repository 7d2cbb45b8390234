"""``lakemirror verify``: compares the mirrors of a pipeline with their source."""

from __future__ import annotations

import os
import re
import shlex
import stat
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from lakemirror.api import CdcPipeline, duration_seconds
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
)

_SHOWN = 20
_SNAPSHOT = re.compile(r"(delta|parquet):(.+)", re.DOTALL)


def login_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add --user, --password-file and --password-env, the login of a database."""
    for option in (
        click.option("--password-env", metavar="NAME", help="A variable that holds the password."),
        click.option(
            "--password-file",
            metavar="FILE",
            type=click.Path(exists=True, dir_okay=False),
            help="A file that holds the password, and that only you may read.",
        ),
        click.option("--user", metavar="NAME", help="The user of the database."),
    ):
        command = option(command)
    return command


@click.command()
@manifest_option
@click.option(
    "--source",
    metavar="URL",
    help="What to compare with: jdbc:postgresql://HOST/DATABASE, jdbc:mariadb://HOST/, jdbc:mysql://HOST/, "
    "or delta:PATH or parquet:PATH, where {db}, {schema} and {table} stand for a table's name. "
    "Default: spec.verify.",
)
@login_options
@click.option("--slot", metavar="NAME", help="PostgreSQL: the connector's replication slot.")
@click.option("--table", "tables", metavar="TABLE", multiple=True, help="Only this source table. Repeatable.")
@click.option(
    "--wait",
    metavar="SECONDS",
    type=click.FloatRange(min=0),
    help="How long to wait, per table, until the mirror is past what was read from the source. Default: 120.",
)
@click.option(
    "--settle",
    metavar="SECONDS",
    type=click.FloatRange(min=0),
    help="The longest time that a change takes from the source to the pipeline, if no position shows it. "
    "Default: 30.",
)
@click.option(
    "--settled",
    is_flag=True,
    help="Assume that nothing changes and everything is applied: each difference counts at once.",
)
@click.option(
    "--limit",
    metavar="KEYS",
    type=click.IntRange(1, 1_000_000),
    default=10_000,
    show_default=True,
    help="The most keys of a table that are examined.",
)
@click.option(
    "--repair",
    is_flag=True,
    help="Read wrong rows again from the source and apply them, by the driver if one runs, otherwise here.",
)
@set_option
@secret_option
@debug_option
def verify(
    file: str,
    source: str | None,
    user: str | None,
    password_file: str | None,
    password_env: str | None,
    slot: str | None,
    tables: tuple[str, ...],
    wait: float | None,
    settle: float | None,
    settled: bool,
    limit: int,
    repair: bool,
    settings: tuple[str, ...],
    secrets: tuple[str, ...],
    debug: bool,
) -> None:
    """Compare mirrors with their source, while both change.

    Rows are compared by count and checksum for each range of keys, and only ranges that differ are read
    further. The command waits for changes that have not arrived yet; they are not differences.
    """
    pipeline = read_pipeline(file, settings)
    verifier = driver_module("verifier")
    login = {"user": user, "password": password_of(password_file, password_env), "slot": slot}
    wanted = source_wanted(verifier, pipeline, "--source", source, login, secrets)
    asked = pipeline.spec.verify if source is None else None
    if asked is not None:
        wait = duration_seconds(asked.wait) if wait is None else wait
        settle = duration_seconds(asked.settle) if settle is None else settle
        tables = tables or tuple(asked.tables or ())
    patience = {"wait": wait, "settle": settle}
    done = call(
        verifier.verify,
        pipeline,
        wanted,
        tables=tables,
        patience=verifier.Patience(
            settled=settled, **{name: value for name, value in patience.items() if value is not None}
        ),
        most=limit,
        repair=repair,
        secrets=given_directories(secrets),
        told=lambda table: say(*told(table)),
        debug=debug,
    )
    say(*summary(done))
    if not done.equal:
        sys.exit(FAILED)


def password_of(file: str | None, variable: str | None) -> str | None:
    """Return the password of a database, from a file or from an environment variable."""
    if file is not None and variable is not None:
        raise click.UsageError("--password-file and --password-env: give one of them")
    if variable is not None:
        if variable not in os.environ:
            raise click.UsageError(f"--password-env: there is no environment variable {variable}")
        return os.environ[variable]
    return None if file is None else _password_in(Path(file))


def _password_in(path: Path) -> str:
    """Return the password in a file of the user's own that nobody else may read.

    As with the keys of ssh, a file of another owner is that owner's affair, such as a mounted Secret.
    """
    with path.open(encoding="utf-8") as file:
        found = os.fstat(file.fileno())
        if stat.S_ISREG(found.st_mode) and found.st_uid == os.getuid() and found.st_mode & 0o077:
            raise click.UsageError(
                f"--password-file: others than you may use {path} (its mode is "
                f"{stat.S_IMODE(found.st_mode):04o}). Take that away: chmod 600 {shlex.quote(str(path))}"
            )
        return file.read().rstrip("\r\n")


def source_wanted(
    verifier: Any,
    pipeline: CdcPipeline,
    option: str,
    source: str | None,
    login: dict[str, str | None],
    secrets: tuple[str, ...],
) -> Any:
    """Return the source of rows, in the form that the driver expects.

    It is named by ``option`` on the command line, or otherwise by spec.verify.
    """
    asked, given = pipeline.spec.verify, given_directories(secrets)
    if source is None:
        if asked is None:
            raise click.UsageError(
                f"{option} is missing, and the manifest has no spec.verify: give one of them"
            )
        useless = next((f"--{name}" for name, value in login.items() if value is not None), None)
        if useless is not None:
            raise click.UsageError(f"{useless} belongs to {option}; spec.verify has its own")
        if asked.jdbc is not None and asked.jdbc.secret is not None and asked.jdbc.secret not in given:
            name = asked.jdbc.secret
            raise click.UsageError(
                f"spec.verify.jdbc.secret names the secret {name}: say where it is with --secret {name}=DIR"
            )
        return call(verifier.source_of, asked, given, debug=False)
    snapshot = _SNAPSHOT.fullmatch(source)
    if snapshot is not None:
        useless = next((f"--{name}" for name, value in login.items() if value is not None), None)
        if useless is not None:
            raise click.UsageError(f"{useless} has no effect with a snapshot")
        return verifier.SnapshotWanted(snapshot[2], snapshot[1])
    if not source.startswith(verifier.URLS):
        kinds = ", ".join((*verifier.URLS, "delta:", "parquet:"))
        raise click.UsageError(f"{option} {source.partition('?')[0]}: it must begin with one of {kinds}")
    return verifier.DatabaseWanted(
        verifier.Login(source, login["user"], login["password"]), login.get("slot")
    )


def told(table: Any) -> list[str]:
    """Describe the outcome for a table (`lakemirror.driver.verify.table.Checked`), line by line."""
    if table.error is not None:
        return [f"{table.source}: not compared: {table.error}"]
    settled = table.settled
    rows = f"{table.mirror_rows:,} rows in the mirror, {table.source_rows:,} in the source"
    lines = [f"{table.source}: {_verdict(table)} ({rows}, {table.seconds:.1f} s)"]
    if not table.keyed and settled.wrong:
        lines.append("  the table has no key, so that nothing tells which rows differ")
    elif settled.wrong:
        lines += [f"  {each.what} {each.key}" for each in settled.wrong[:_SHOWN]]
        if len(settled.wrong) > _SHOWN:
            lines.append(f"  and {len(settled.wrong) - _SHOWN:,} more")
    if settled.arriving and table.keyed:
        lines += [f"  not arrived {key}" for key in settled.arriving[:_SHOWN]]
    if settled.moving and table.keyed:
        lines.append(
            f"  {len(settled.moving):,} keys changed each time they were looked at, and were left alone"
        )
    for column, why in sorted(table.left_out.items()):
        lines.append(f"  column {column} is not compared: {why}")
    return lines


def _verdict(table: Any) -> str:
    if not table.complete:
        return f"more than {len(table.settled.wrong) + len(table.settled.arriving):,} keys differ"
    parts = []
    if table.settled.wrong:
        kinds = [each.what for each in table.settled.wrong]
        counts = ", ".join(f"{kinds.count(kind):,} {kind}" for kind in sorted(set(kinds)))
        parts.append(f"{len(kinds):,} keys are wrong: {counts}" if table.keyed else "the rows differ")
    if table.settled.arriving:
        number = f"{len(table.settled.arriving):,} keys differ" if table.keyed else "the rows differ"
        parts.append(f"{number}, perhaps because changes have not arrived")
    return "; ".join(parts) or "equal"


def summary(done: Any) -> list[str]:
    """Return the last lines, which are about all tables (`lakemirror.driver.runtime.verifier.Verified`)."""
    unequal = [table for table in done.tables if not table.equal]
    lines = []
    if not done.driver and any(table.settled.arriving for table in done.tables):
        lines.append(
            "No driver is running, so missing changes cannot be told from wrong rows: "
            "run the pipeline, or say --settled if the mirrors have all changes"
        )
    lines += [_repaired(each) for each in done.repairs]
    number = len(done.tables)
    noun = "table" if number == 1 else "tables"
    if not unequal:
        lines.append(f"{number} {noun}, all equal")
    elif done.equal:
        lines.append(f"{number} {noun}, {len(unequal)} of them repaired")
    else:
        lines.append(f"{len(unequal)} of {number} {noun} not equal")
    return lines


def _repaired(each: Any) -> str:
    """Describe the outcome of a table's repair (`lakemirror.driver.runtime.verifier.Repaired`)."""
    if each.impossible is not None:
        return f"{each.source}: not repaired: {each.impossible}"
    outcome, rows = each.outcome, f"{each.rows:,} rows"
    if outcome.filed:
        return f"{each.source}: {rows} are handed to the driver, which has not told yet what came of them"
    if outcome.error is not None:
        return f"{each.source}: the repair of {rows} failed, and the driver tries it again: {outcome.error}"
    left = "".join(f"; {bad.records:,} left alone: {bad.reason}" for bad in outcome.bad)
    return f"{each.source}: {each.rows - outcome.still_bad:,} of {rows} repaired{left}"
