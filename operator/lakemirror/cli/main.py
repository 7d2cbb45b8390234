"""``lakemirror``: the commands, and the exit codes they share."""

from __future__ import annotations

import click

import lakemirror
from lakemirror.cli import (
    crd,
    operator,
    read_at,
    reload,
    render,
    replay,
    report,
    run,
    status,
    validate,
    verify,
)

CONTEXT = {"help_option_names": ["-h", "--help"], "max_content_width": 110}


@click.group(context_settings=CONTEXT)
@click.version_option(lakemirror.__version__, prog_name="lakemirror")
def main() -> None:
    """Keep Delta Lake tables equal to the databases they mirror.

    Exit codes: 0 done, 1 failed, 2 the manifest or the command line is invalid.
    """


for command in (
    run.run,
    validate.validate,
    render.render,
    crd.crd,
    status.status,
    verify.verify,
    read_at.read_at,
    replay.replay,
    reload.reload,
    report.report,
    operator.operator,
):
    main.add_command(command)


if __name__ == "__main__":
    main()
