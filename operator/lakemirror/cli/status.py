"""``lakemirror status``: shows the state of a pipeline on a cluster.

It asks through kubectl, which knows how to log in.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import time
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from typing import Any

import click
from pydantic import ValidationError
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from lakemirror.api import PipelineStatus
from lakemirror.api.crd import NAME
from lakemirror.api.report import TableReport, Verification
from lakemirror.api.shown import shown
from lakemirror.api.status import Condition, DriverStatus
from lakemirror.cli.common import FAILED, fail

_EVERY_SECONDS = 2.0
_UNFOLDED = 10_000
_STYLES = {"True": "green", "False": "red", "Unknown": "yellow"}


@click.command()
@click.argument("name")
@click.option("-n", "--namespace", metavar="NAMESPACE", help="Default: kubectl's.")
@click.option("--context", metavar="CONTEXT", help="Which cluster of the kubeconfig. Default: kubectl's.")
@click.option("-w", "--watch", is_flag=True, help="Keep showing it until Ctrl-C.")
def status(name: str, namespace: str | None, context: str | None, watch: bool) -> None:
    """Show the state of the pipeline NAME on a cluster: conditions, lag, tables."""
    where = [*(["--namespace", namespace] if namespace else []), *(["--context", context] if context else [])]
    console = Console(highlight=False)
    if watch:
        _watch(console, name, where)
        return
    if not console.is_terminal:
        console.width = _UNFOLDED  # so that a search of the output finds each message in one line
    body = fetch(name, where)
    console.print(view(body, datetime.now(UTC)))
    ready = read(body).condition("Ready")
    if ready is None or ready.status != "True":
        raise SystemExit(FAILED)


def _watch(console: Console, name: str, where: Sequence[str]) -> None:
    with Live(console=console, auto_refresh=False) as live:
        try:
            while True:
                live.update(view(fetch(name, where), datetime.now(UTC)), refresh=True)
                time.sleep(_EVERY_SECONDS)
        except KeyboardInterrupt:
            return


def fetch(name: str, where: Sequence[str]) -> dict[str, Any]:
    """Return the resource from kubectl. Exits with code 1 and kubectl's own message if that fails."""
    if shutil.which("kubectl") is None:
        fail("kubectl is not on the PATH; `lakemirror status` asks the cluster through it")
    command = ["kubectl", "get", NAME, name, "--output", "json", *where]
    got = subprocess.run(command, capture_output=True, text=True, check=False)
    if got.returncode != 0:
        fail("; ".join(got.stderr.split("\n")).strip("; ") or f"kubectl exited with code {got.returncode}")
    found: dict[str, Any] = json.loads(got.stdout)
    return found


def read(body: dict[str, Any]) -> PipelineStatus:
    """Return the resource's status, which is empty if the operator has not written one.

    Exits with code 1 if this version does not understand it.
    """
    try:
        return PipelineStatus.model_validate(body.get("status") or {})
    except ValidationError:
        fail("the status was written by another version of the operator: use the lakemirror of that version")


def view(body: dict[str, Any], now: datetime) -> RenderableType:
    """Return what is shown of a resource at the time ``now``."""
    found, metadata = read(body), body["metadata"]
    head = _text(
        f"{metadata['namespace']}/{metadata['name']}  {found.phase or 'no operator has processed it yet'}"
    )
    if found.observed_generation is not None and found.observed_generation < metadata.get("generation", 0):
        head.append("  (the latest change has not been processed yet)", "yellow")
    parts: list[RenderableType] = [head, *_conditions(found, now), *_progress(found, now)]
    if found.driver is not None:
        parts += _driver(found.driver, now)
    parts += [_text(f"  warning: {text}", "yellow") for text in found.warnings or []]
    if found.verified is not None:
        parts += _verified(found.verified, now)
    if found.tables:
        parts += _tables(found.tables, found.tables_total, now)
    return Group(*parts)


def _conditions(status: PipelineStatus, now: datetime) -> Iterator[Text]:
    for condition in status.conditions or []:
        style = _STYLES[condition.status] if condition.type == "Ready" else "yellow"
        since = ago(condition.last_transition_time, now)
        yield Text.assemble(
            "  ", (_word(condition), style), f"  {condition.reason}, since {since}: ", condition.message
        )


def _word(condition: Condition) -> str:
    return condition.type if condition.status == "True" else f"{condition.type}={condition.status}"


def _progress(status: PipelineStatus, now: datetime) -> Iterator[Text]:
    checkpoint, totals = status.checkpoint, status.totals
    if checkpoint is not None:
        lag = "unknown" if checkpoint.lag_records is None else f"{checkpoint.lag_records} records"
        lag = "none" if checkpoint.caught_up else lag
        batch = "no batch yet" if checkpoint.batch_id is None else f"batch {checkpoint.batch_id}"
        committed = f", committed {ago(checkpoint.committed_at, now)} ago" if checkpoint.committed_at else ""
        yield _text(f"  lag {lag}; {batch}{committed}")
        for each in checkpoint.waiting or ():
            yield _text(f"  waiting: {each}", "yellow")
        if checkpoint.complete_position is not None:
            made = f", made {ago(checkpoint.complete_time, now)} ago" if checkpoint.complete_time else ""
            yield _text(f"  all tables complete up to {checkpoint.complete_position}{made}")
    if totals is not None:
        said = ", ".join(f"{number} {name.replace('_', ' ')}" for name, number in totals if number)
        yield _text(f"  {said or 'nothing applied'}")


def _verified(verified: Verification, now: datetime) -> Iterator[Text]:
    since = f" {ago(verified.ended_at, now)} ago" if verified.ended_at else ""
    if verified.error is not None:
        yield _text(f"  comparison with the source failed{since}: {verified.error}", "yellow")
        return
    if verified.equal:
        yield _text(f"  compared with the source{since}: {verified.tables} tables, all equal")
        return
    yield _text(
        f"  compared with the source{since}: {verified.unequal} of {verified.tables} tables not equal", "red"
    )
    for each in verified.findings:
        counts = {name: getattr(each, name) for name in ("missing", "extra", "differing", "arriving")}
        said = each.error or ", ".join(f"{number} {name}" for name, number in counts.items() if number)
        yield _text(f"    {each.source}: {said}")


def _driver(driver: DriverStatus, now: datetime) -> Iterator[Text]:
    if driver.pod is not None:
        since = f" for {ago(driver.started_at, now)}" if driver.started_at else ""
        yield _text(f"  driver {driver.pod}{since}, {driver.restarts or 0} restarts, image {driver.image}")
    if driver.consecutive_failures and driver.last_failure is not None:
        failure = driver.last_failure
        yield _text(
            f"  failed {driver.consecutive_failures} times, last: {failure.reason}: {failure.message}", "red"
        )


def _tables(tables: Sequence[TableReport], total: int | None, now: datetime) -> Iterator[RenderableType]:
    more = (total or 0) - len(tables)
    grid = Table(box=None, pad_edge=False, caption=f"and {more} more tables" if more > 0 else None)
    grid.add_column("table", overflow="fold")
    for column in ("applied", "open in\nquarantine", "held", "version", "newest\nchange"):
        grid.add_column(column, no_wrap=True)  # narrow terminals fold names first, as late as possible
    for table in tables:
        newest = f"{ago(table.last_event_time, now)} ago" if table.last_event_time else "-"
        grid.add_row(
            table.source,
            _number(table.applied),
            _number(table.quarantined_open),
            _number(table.held),
            _number(table.version),
            newest,
        )
    yield grid
    for table in tables:
        drifted = ", ".join(f"{drift.column} {drift.change} ({drift.done})" for drift in table.drift or [])
        if drifted:
            yield _text(f"  drift of {table.source}: {drifted}")
        if table.error:
            yield _text(f"  {table.source}: {table.error}", "red")


def _text(text: str, style: str = "") -> Text:
    """Return text to print, with control characters as escapes."""
    return Text(shown(text), style)


def _number(number: int | None) -> str:
    return "-" if number is None else str(number)


def ago(moment: str, now: datetime) -> str:
    """Return how long ago ``moment`` was, in the largest unit that is precise enough: 40s, 5m, 3h, 2d."""
    seconds = max(0, int((now - datetime.fromisoformat(moment)).total_seconds()))
    for size, unit in ((86_400, "d"), (3600, "h"), (60, "m")):
        if seconds >= 2 * size:
            return f"{seconds // size}{unit}"
    return f"{seconds}s"
