"""``lakemirror operator``: the operator itself; the command of its image."""

from __future__ import annotations

import importlib
import logging
import os
import socket

import click

from lakemirror.cli.common import driver_image_option, fail
from lakemirror.controller.values import Settings


@click.command()
@click.option(
    "--namespace",
    "namespaces",
    multiple=True,
    metavar="NAMESPACE",
    help="Look after this namespace only. Repeatable; default: the whole cluster.",
)
@driver_image_option
@click.option("--lease", default="lakemirror-operator", show_default=True, help="Its Lease's name.")
@click.option(
    "--port", default=8080, show_default=True, help="Where /healthz, /readyz and /metrics are served."
)
@click.option(
    "--log-level",
    envvar="LAKEMIRROR_LOG_LEVEL",
    type=click.Choice(["debug", "info", "warning", "error"]),
    default="info",
    show_default=True,
)
def operator(namespaces: tuple[str, ...], driver_image: str, lease: str, port: int, log_level: str) -> None:
    """Look after the CdcPipelines of a cluster: run their drivers, and tell how they are.

    Several may run; one at a time acts, as the Lease in the namespace POD_NAMESPACE says.
    """
    logging.basicConfig(format="%(asctime)s %(levelname)s %(name)s: %(message)s", level=log_level.upper())
    logging.getLogger("kopf").setLevel(logging.WARNING)
    try:
        process = importlib.import_module("lakemirror.controller.operator")
    except ModuleNotFoundError as error:
        fail(f"{error.name} is not installed: pip install 'lakemirror[operator]'")
    process.run(
        process.Options(
            Settings(driver_image),
            identity=os.environ.get("POD_NAME") or f"{socket.gethostname()}-{os.getpid()}",
            namespace=os.environ.get("POD_NAMESPACE", "default"),
            namespaces=namespaces or None,
            lease=lease,
            port=port,
        )
    )
