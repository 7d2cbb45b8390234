"""The identity of a checkpoint: the query ID, under which Delta remembers the batches that it committed."""

from __future__ import annotations

import json
import uuid
from datetime import UTC, datetime, timedelta
from typing import Final, NamedTuple

from lakemirror.driver.checkpoint.storage import Storage, numbered
from lakemirror.driver.document import iso
from lakemirror.driver.errors import LakemirrorError

_METADATA = "metadata.json"
_FORMER: Final = 20
_PROGRESS: Final = tuple(
    f"{source}/{kind}"
    for source, kinds in {
        "files": ("offsets", "commits", "state"),
        "changes": ("offsets", "commits"),
        "spark": ("offsets", "commits"),
    }.items()
    for kind in kinds
)
"""Folders with the batches of each kind of source."""


def exists(storage: Storage) -> bool:
    """Return whether there is a checkpoint, that is, whether a source was ever read."""
    return storage.exists(_METADATA)


def has_progress(storage: Storage) -> bool:
    """Return whether there are records of batches, of any kind of source."""
    return any(numbered(storage, folder) for folder in _PROGRESS)


def damaged(storage: Storage, what: str) -> LakemirrorError:
    """Return the error to raise if the parts of a checkpoint do not belong together."""
    return LakemirrorError(
        f"the checkpoint {storage.uri} is damaged: {what}. Restore the whole folder from one copy, or give "
        "spec.spark.resetToken a new value, so that the source is read anew; what is applied stays as it is"
    )


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
    former = [] if found is None else [*found.former, found.query_id][-_FORMER:]
    document = {"queryId": made, "source": source, "createdAt": iso(begun), "former": former}
    storage.write_text(_METADATA, json.dumps(document, indent=2) + "\n")
    return made


def begin_after(storage: Storage, moment: datetime) -> None:
    """Make a checkpoint that has just begun to read its source do so after a moment.

    The clock may show less than it did when an earlier reading was recorded.
    """
    begun = stored(storage)
    if begun is None or begun.begun_at > moment:
        return
    document = json.loads(storage.read_text(_METADATA))
    document["createdAt"] = iso(moment + timedelta(milliseconds=1))
    storage.write_text(_METADATA, json.dumps(document, indent=2) + "\n")


class Identity(NamedTuple):
    """What a checkpoint knows about itself.

    ``begun_at`` is when it began to read its source, and ``former`` are queries whose batches its own follow.
    """

    query_id: str
    source: str
    begun_at: datetime
    former: tuple[str, ...] = ()


def stored(storage: Storage) -> Identity | None:
    """Return the identity of a checkpoint, or None if it has not begun to read its source yet."""
    try:
        document = json.loads(storage.read_text(_METADATA))
        begun = datetime.fromisoformat(document["createdAt"])
        former = tuple(map(str, document.get("former", ())))
        return Identity(str(document["queryId"]), str(document["source"]), begun, former)
    except FileNotFoundError:
        return None
    except (ValueError, TypeError, KeyError) as error:
        raise LakemirrorError(
            f"{storage.uri}/{_METADATA} is damaged ({error}): restore it from a copy, or give "
            "spec.spark.resetToken a new value, so that the source is read anew"
        ) from None


def require_known(storage: Storage, query_id: str | None, where: str) -> None:
    """Raise LakemirrorError if the newest batch, recorded in ``where``, belongs to none of the queries.

    The identity and the batches are then from different copies, and Delta would take new batches for old
    ones. ``query_id`` is None for batches of earlier versions, which do not name their query.
    """
    found = stored(storage)
    if found is None or query_id in (None, found.query_id, *found.former):
        return
    raise damaged(storage, f"{where} is of the query {query_id}, and metadata.json of {found.query_id}")
