"""Deletes the data of a pipeline that is no longer wanted, according to its ``deletionPolicy``."""

from __future__ import annotations

import logging
from collections.abc import Iterator

from pyspark.sql import SparkSession

from lakemirror.api import CdcPipeline
from lakemirror.api.object_stores import is_inside
from lakemirror.driver.checkpoint.owner import Owner
from lakemirror.driver.checkpoint.possession import is_of_another, require_own, stored
from lakemirror.driver.checkpoint.storage import delete_folder, file_system, open_storage
from lakemirror.driver.errors import LakemirrorError
from lakemirror.driver.read.secrets import Secrets
from lakemirror.driver.record import audit
from lakemirror.driver.runtime.paths import with_absolute_paths
from lakemirror.driver.runtime.session import create_session
from lakemirror.driver.runtime.target import open_target
from lakemirror.driver.tables.delta import is_table
from lakemirror.driver.tables.mirror import CHECKPOINT_PROPERTY, SOURCE_PROPERTY
from lakemirror.driver.tables.names import Location, owner_of
from lakemirror.driver.tables.store import Store
from lakemirror.driver.write.target import TargetKind

_log = logging.getLogger(__name__)


def delete_data(
    pipeline: CdcPipeline, spark: SparkSession | None = None, secrets: Secrets | None = None
) -> list[str]:
    """Delete the data that the policy covers: with DeleteAll the mirrors, then the checkpoint.

    Returns the deleted locations. With the policy Retain, nothing is deleted. ``secrets`` contains the
    directory of the Secret of ``target.jdbc`` if the mirrors are in a database. Raises CheckpointInUse while
    a driver is running, AnotherPipeline if the checkpoint is another pipeline's, and LakemirrorError if a
    mirror that has to stay lies in the checkpoint. What else lies there stays, with the folder. After an
    interruption, the function can be called again: the state, which knows the mirrors, is deleted last.
    """
    policy = pipeline.spec.deletion_policy
    if policy == "Retain":
        return []
    pipeline = with_absolute_paths(pipeline)
    checkpoint = pipeline.spec.checkpoint
    session = spark or create_session(f"lakemirror-cleanup-{pipeline.name}", pipeline.spec.spark.conf)
    try:
        gone: list[str] = []
        storage = open_storage(checkpoint, session)
        with Owner(storage):
            require_own(storage, pipeline.name)
            if policy == "DeleteAll":
                with open_target(session, pipeline, secrets or {}) as target:
                    for mirror in _mirrors(session, pipeline, target):
                        mirror.drop()
                        gone.append(str(mirror.location))
            _require_own_state_only(session, checkpoint)
            _require_nobody_else(session, checkpoint)
        left = _delete_state(session, checkpoint)
        if left:
            _log.warning(
                "the folder %s stays, because it has what no pipeline wrote: %s",
                checkpoint,
                ", ".join(left[:_MOST_NAMED]) + (", ..." if len(left) > _MOST_NAMED else ""),
            )
        return [*gone, checkpoint]
    finally:
        if spark is None:
            session.stop()


def _mirrors(spark: SparkSession, pipeline: CdcPipeline, target: TargetKind) -> Iterator[Store]:
    """Yield the mirrors that the audit lists and whose own properties name this pipeline as their owner.

    Those that belong to another checkpoint are left out: their data is another pipeline's of the same name.
    """
    ours = stored(open_storage(pipeline.spec.checkpoint, spark))
    for source, place in _written(spark, pipeline.spec.checkpoint):
        location = Location(path=place) if "/" in place else Location(name=place)
        mirror = target.open(spark, location)
        owner = owner_of(pipeline.name, pipeline.spec.kept_as(source))
        if not mirror.exists or mirror.properties.get(SOURCE_PROPERTY) != owner:
            continue
        if is_of_another(mirror.properties.get(CHECKPOINT_PROPERTY), ours):
            _log.warning("the mirror %s stays: it belongs to another checkpoint", location)
            continue
        yield mirror


def _written(spark: SparkSession, checkpoint: str) -> list[tuple[str, str]]:
    """Return the source tables that the audit lists, each with a place where its mirror was written."""
    places = audit.history(spark, checkpoint).places
    return sorted((source, place) for source, found in places.items() for place in found)


def _require_own_state_only(spark: SparkSession, checkpoint: str) -> None:
    """Raise LakemirrorError if a mirror lies in the checkpoint, which is deleted with all that is in it.

    A manifest whose target is there is refused, but the names of source tables may lead there, too.
    """
    for source, place in _written(spark, checkpoint):
        if "/" in place and is_inside(place, checkpoint) and is_table(spark, place):
            raise LakemirrorError(
                f"the checkpoint {checkpoint} cannot be deleted, because the mirror of {source} lies in it "
                f"({place}) and would be deleted, too: move the mirror elsewhere and try again, or set "
                "spec.deletionPolicy: Retain"
            )


_OURS = (
    "audit",
    "audit-pending",
    "changes",
    "damaged",
    "files",
    "kafka",
    "owner",
    "quarantine",
    "reload",
    "repair",
    "replay",
    "resync",
    "spark",
)
"""Folders of the checkpoint's own state (ARCHITECTURE.md, The path of one event)."""

_OUR_FILES = (
    "checkpoint.json",
    "history.json",
    "layout.json",
    "maintained.json",
    "metadata.json",
    "progress.json",
    "tokens.json",
    "verified.json",
)
"""Files of the checkpoint's own state."""

_MOST_NAMED = 10


def _delete_state(spark: SparkSession, checkpoint: str) -> list[str]:
    """Delete the checkpoint's own state, and its folder if nothing else is there.

    Returns the names of what is left.
    """
    files, path = file_system(spark, checkpoint)
    if not files.exists(path):
        return []
    left = []
    for entry in files.listStatus(path):
        name = str(entry.getPath().getName())
        folder = bool(entry.isDirectory())
        empty = folder and not files.listFiles(entry.getPath(), True).hasNext()
        if empty or _is_ours(name, folder):
            files.delete(entry.getPath(), True)
        else:
            left.append(name)
    if not left:
        delete_folder(spark, checkpoint)
    return sorted(left)


def _is_ours(name: str, folder: bool) -> bool:
    """Return whether an entry of the checkpoint's folder is its own state, or left of writing it."""
    hidden = any(name.startswith(f".{each}.") for each in _OUR_FILES)
    return name in _OURS if folder else name in _OUR_FILES or hidden


def _require_nobody_else(spark: SparkSession, checkpoint: str) -> None:
    """Raise LakemirrorError if a table, or the checkpoint of another pipeline, lies in the checkpoint.

    No audit of this pipeline lists those. The operator refuses such places, but it does not know all who
    write: `lakemirror run`, other clusters, other tools.
    """
    files, path = file_system(spark, checkpoint)
    if not files.exists(path):
        return
    for entry in files.listStatus(path):
        name = str(entry.getPath().getName())
        if name in _OURS or not entry.isDirectory():
            continue
        below = files.listFiles(entry.getPath(), True)
        while below.hasNext():
            found = str(below.next().getPath())
            for folder, what in (
                ("/_delta_log/", "a table"),
                ("/owner/", "the checkpoint of another pipeline"),
            ):
                place, inside, _ = found.rpartition(folder)
                if inside:
                    raise LakemirrorError(
                        f"the checkpoint {checkpoint} cannot be deleted, because {what} lies in it ({place}) "
                        "and would be deleted, too: move it elsewhere and try again, or set "
                        "spec.deletionPolicy: Retain"
                    )
