"""``lakemirror operator``: runs the operator. This is the command of its image."""

from __future__ import annotations

import importlib
import logging
import os
import socket
from datetime import timedelta

import click

from lakemirror.api import duration_seconds
from lakemirror.api.logs import OneLine
from lakemirror.cli.common import driver_image_option, fail, not_installed
from lakemirror.controller.values import Pace, Settings


def _duration(_context: click.Context, _option: click.Parameter, text: str) -> timedelta:
    try:
        return timedelta(seconds=duration_seconds(text))
    except ValueError as error:
        raise click.BadParameter(str(error)) from None


@click.command()
@click.option(
    "--namespace",
    "namespaces",
    multiple=True,
    metavar="NAMESPACE",
    help="Watch only this namespace. Repeatable. Default: the whole cluster.",
)
@driver_image_option
@click.option(
    "--rollout-max-concurrent",
    envvar="LAKEMIRROR_ROLLOUT_MAX_CONCURRENT",
    type=click.IntRange(min=1),
    default=Pace.at_once,
    show_default=True,
    help="How many drivers are restarted at a time on a new --driver-image.",
)
@click.option(
    "--rollout-timeout",
    envvar="LAKEMIRROR_ROLLOUT_TIMEOUT",
    metavar="DURATION",
    default=f"{Pace.timeout.seconds // 60}m",
    show_default=True,
    callback=_duration,
    help="How long each may take to become Ready on it before the rollout stops.",
)
@click.option("--lease", default="lakemirror-operator", show_default=True, help="The name of its Lease.")
@click.option("--port", default=8080, show_default=True, help="The port of /healthz, /readyz and /metrics.")
@click.option(
    "--log-level",
    envvar="LAKEMIRROR_LOG_LEVEL",
    type=click.Choice(["debug", "info", "warning", "error"]),
    default="info",
    show_default=True,
)
def operator(
    namespaces: tuple[str, ...],
    driver_image: str,
    rollout_max_concurrent: int,
    rollout_timeout: timedelta,
    lease: str,
    port: int,
    log_level: str,
) -> None:
    """Reconcile the CdcPipelines of a cluster: run their drivers and report their status.

    Several replicas may run. The one that holds the Lease in the namespace POD_NAMESPACE acts.
    """
    OneLine.begin("%(asctime)s %(levelname)s %(name)s: %(message)s", level=log_level.upper())
    logging.getLogger("kopf").setLevel(logging.WARNING)
    try:
        process = importlib.import_module("lakemirror.controller.operator")
    except ModuleNotFoundError as error:
        fail(not_installed(f"{error.name}", "operator"))
    process.run(
        process.Options(
            Settings(driver_image, Pace(rollout_max_concurrent, rollout_timeout)),
            identity=os.environ.get("POD_NAME") or f"{socket.gethostname()}-{os.getpid()}",
            namespace=os.environ.get("POD_NAMESPACE", "default"),
            namespaces=namespaces or None,
            lease=lease,
            port=port,
        )
    )
