"""``lakemirror replay``: replays quarantined records through the same gate."""

from __future__ import annotations

import sys
from typing import Any

import click

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


@click.command()
@manifest_option
@click.option("--table", metavar="TABLE", help="Only records of this source table.")
@click.option("--reason", metavar="TEXT", help="Only records whose reason contains this text.")
@click.option(
    "--discard",
    is_flag=True,
    help="Close the records instead, because nobody is going to correct them. Without --table and --reason, "
    "this leaves out records that the driver retries automatically.",
)
@timeout_option
@set_option
@secret_option
@debug_option
def replay(
    file: str,
    table: str | None,
    reason: str | None,
    discard: bool,
    timeout: float,
    settings: tuple[str, ...],
    secrets: tuple[str, ...],
    debug: bool,
) -> None:
    """Apply quarantined records again, once their cause is gone.

    If a driver is running, it applies the records between two batches, and the command waits. Otherwise the
    command applies them itself.
    """
    pipeline = read_pipeline(file, settings)
    replayer = driver_module("replayer")
    outcome = call(
        replayer.replay,
        pipeline,
        table=table,
        reason=reason,
        discard=discard,
        timeout=timeout,
        secrets=given_directories(secrets),
        debug=debug,
    )
    say(*told(outcome, pipeline.spec.checkpoint, timeout))
    if not outcome.done:
        sys.exit(FAILED)


def told(outcome: Any, checkpoint: str, timeout: float) -> list[str]:
    """Describe a replay's `lakemirror.driver.runtime.replay_requests.ReplayOutcome`, line by line."""
    where = f"{checkpoint.rstrip('/')}/replay/outcomes/{outcome.request}.json"
    if outcome.filed:
        return [
            f"request {outcome.request} is filed, but the running driver did not finish it within "
            f"{timeout:.0f} s. It is done between two batches, at the latest when the driver starts again; "
            f"its outcome will be in {where}"
        ]
    if outcome.error is not None:
        return [
            f"request {outcome.request} failed: {outcome.error}",
            f"The driver tries it again after a growing delay; its outcome will be in {where}",
        ]
    if not outcome.records:
        return ["no open records in quarantine match"]
    if outcome.discarded:
        lines = [f"{records(outcome.records)} discarded: kept as they are until spec.retention.quarantine"]
        return lines + [
            f"  {name or 'unknown table'}: {number} discarded"
            for name, number in sorted(outcome.taken.items())
        ]
    lines = [
        f"{records(outcome.records)} taken from quarantine: {outcome.records - outcome.still_bad} applied, "
        f"{outcome.still_bad} still bad"
    ]
    lines += [
        f"  {name or 'unknown table'}: {number} taken" for name, number in sorted(outcome.taken.items())
    ]
    if outcome.bad:
        lines.append("still bad:")
    for each in outcome.bad:
        lines.append(f"  {each.source or 'unknown table'}: {records(each.records)}: {each.reason}")
        lines += [f"    at {place}" for place in each.places]
    shown = sum(each.records for each in outcome.bad)
    if shown < outcome.still_bad:
        lines.append(f"  and {records(outcome.still_bad - shown)} for other reasons")
    return lines


def records(number: int) -> str:
    """Format a number of records, with the right singular or plural."""
    return f"{number} record" if number == 1 else f"{number} records"
