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


_INVALID = "the manifest or the command line is invalid"
_COMMAND_LINE = "the command line is invalid"
EXIT_CODES: dict[str, dict[int, str]] = {
    "run": {
        0: "everything that was there is applied (--once), or the driver was asked to stop",
        1: "the driver failed, a batch was interrupted, or a table is held for an error (--once)",
        2: _INVALID,
    },
    "validate": {0: "all manifests are valid", 2: _INVALID},
    "render": {0: "the objects are printed", 2: _INVALID},
    "crd": {0: "the definition is printed", 2: _COMMAND_LINE},
    "status": {
        0: "the pipeline is ready",
        1: "it is not ready, does not exist, or kubectl failed",
        2: _COMMAND_LINE,
    },
    "verify": {
        0: "all tables are equal, or were repaired",
        1: "a table is not equal, or could not be compared, or the command failed",
        2: _INVALID,
    },
    "read-at": {
        0: "all tables have a version that shows the position",
        1: "a table has none, or the command failed",
        2: _INVALID,
    },
    "replay": {
        0: "none of the records remain in quarantine",
        1: "some remain, or are not replayed yet, or the command failed",
        2: _INVALID,
    },
    "reload": {
        0: "all tables equal the snapshot",
        1: "a table could not be reloaded, or has rows that were not changed, or the command failed",
        2: _INVALID,
    },
    "report": {0: "the page is written", 1: "it could not be made", 2: _INVALID},
    "operator": {
        0: "the operator was asked to stop",
        1: "it failed, or lost its Lease",
        2: _COMMAND_LINE,
    },
}
"""What each exit code of a command means. ``--help`` shows it."""

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
    told = [f"{code} {meaning}" for code, meaning in EXIT_CODES[str(command.name)].items()]
    command.epilog = f"Exit codes: {'; '.join(told)}."
    main.add_command(command)


if __name__ == "__main__":
    main()
