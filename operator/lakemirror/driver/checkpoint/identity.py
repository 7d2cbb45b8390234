"""The identity of a checkpoint: the query ID, under which Delta remembers the batches that it committed."""

from __future__ import annotations

import json
import uuid
from datetime import UTC, datetime

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
    if started:
        try:
            metadata = json.loads(storage.read_text(_METADATA))
            if metadata["source"] == source:
                return str(metadata["queryId"])
        except FileNotFoundError:
            pass
        except (ValueError, TypeError, KeyError) as error:
            raise LakemirrorError(
                f"{storage.uri}/{_METADATA} is damaged ({error}): restore it from a copy, or give "
                "spec.spark.resetToken a new value, so that the source is read anew"
            ) from None
    made = str(uuid.uuid4())
    document = {"queryId": made, "source": source, "createdAt": iso(datetime.now(UTC))}
    storage.write_text(_METADATA, json.dumps(document, indent=2) + "\n")
    return made
