"""The identity of a checkpoint: the query ID, under which Delta remembers the batches that it committed."""

from __future__ import annotations

import json
import uuid
from datetime import UTC, datetime
from typing import NamedTuple

from lakemirror.driver.checkpoint.storage import Storage
from lakemirror.driver.document import iso
from lakemirror.driver.errors import LakemirrorError

_METADATA = "metadata.json"


def exists(storage: Storage) -> bool:
    """Return whether there is a checkpoint, that is, whether a source was ever read."""
    return storage.exists(_METADATA)


def forget(storage: Storage) -> None:
    """Make the next query a new one."""
    storage.delete(_METADATA)


def query_id(storage: Storage, source: str, *, started: bool) -> str:
    """Return the ID of the query that numbers the batches of this checkpoint.

    ``started`` says whether batches of ``source`` ("files", "kafka", "changeFeed") are recorded. If there are
    none, batch numbers start at 0 again. Under the old ID, Delta would take the new batches for old ones and
    skip them, so a new ID is generated. The same applies if the checkpoint belonged to another kind of
    source.
    """
    found = stored(storage)
    same = found if found is not None and found.source == source else None
    if started and same is not None:
        return same.query_id
    made = str(uuid.uuid4())
    # Tables may have been loaded from their database since, although the source had nothing yet.
    begun = datetime.now(UTC) if same is None else same.begun_at
    document = {"queryId": made, "source": source, "createdAt": iso(begun)}
    storage.write_text(_METADATA, json.dumps(document, indent=2) + "\n")
    return made


class Identity(NamedTuple):
    """What a checkpoint knows about itself: ``begun_at`` is when it began to read its source."""

    query_id: str
    source: str
    begun_at: datetime


def stored(storage: Storage) -> Identity | None:
    """Return the identity of a checkpoint, or None if it has not begun to read its source yet."""
    try:
        document = json.loads(storage.read_text(_METADATA))
        begun = datetime.fromisoformat(document["createdAt"])
        return Identity(str(document["queryId"]), str(document["source"]), begun)
    except FileNotFoundError:
        return None
    except (ValueError, TypeError, KeyError) as error:
        raise LakemirrorError(
            f"{storage.uri}/{_METADATA} is damaged ({error}): restore it from a copy, or give "
            "spec.spark.resetToken a new value, so that the source is read anew"
        ) from None
