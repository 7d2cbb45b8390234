"""The version number of the layout of a checkpoint and its mirrors.

A newer Lakemirror reads every older layout. An older one must not touch a newer layout. docs/upgrade.md
states what may change within one layout.
"""

from __future__ import annotations

import json
from typing import Final

from lakemirror.driver.checkpoint.storage import FileCutOff, Storage
from lakemirror.driver.errors import LakemirrorError

LAYOUT: Final = 1
"""The layout that this version writes. A checkpoint without the file has this layout, too."""

_FILE: Final = "layout.json"


class NewerLayout(LakemirrorError):
    """The checkpoint was written by a newer version, whose files this one would misread."""


def require_known(storage: Storage) -> None:
    """Check that this version knows the layout of a checkpoint, and record the layout if it is missing.

    Whoever takes a checkpoint calls this before anything else (`Owner`). Raises NewerLayout, and
    LakemirrorError if the file is damaged.
    """
    try:
        found = int(json.loads(storage.read_text(_FILE))["layout"])
    except FileNotFoundError:
        storage.write_text(_FILE, json.dumps({"layout": LAYOUT}) + "\n")
        return
    except (FileCutOff, ValueError, TypeError, KeyError) as error:
        raise LakemirrorError(
            f"{storage.uri}/{_FILE} is damaged ({error}): restore it from a copy, or delete it if no newer "
            "version of Lakemirror has used this checkpoint"
        ) from None
    if found > LAYOUT:
        raise NewerLayout(
            f"the checkpoint {storage.uri} was written by a newer version of Lakemirror (layout {found}; "
            f"this version knows layout {LAYOUT} and older ones): run that version or a newer one"
        )
