"""Opens the source of a comparison from what a person asks for."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Literal

from pyspark.sql import SparkSession

from lakemirror.api.spec import PipelineSpec, Verify
from lakemirror.driver.jdbc import Login
from lakemirror.driver.read.secrets import LoginIncomplete, Secrets, login_at
from lakemirror.driver.verify.jdbc import By, Database
from lakemirror.driver.verify.snapshot import Snapshots
from lakemirror.driver.verify.sources import SourceTables


@dataclass(frozen=True)
class SnapshotWanted:
    """Snapshots at paths given by a template."""

    path: str
    format: Literal["delta", "parquet"] = "delta"


@dataclass(frozen=True)
class DatabaseWanted:
    """A database. ``slot`` is the replication slot of its connector (PostgreSQL)."""

    login: Login
    slot: str | None = None


__all__ = ["DatabaseWanted", "LoginIncomplete", "SnapshotWanted", "SourceWanted", "open_source", "source_of"]

SourceWanted = SnapshotWanted | DatabaseWanted


def source_of(asked: Verify, secrets: Secrets) -> SourceWanted:
    """Return the source that a manifest specifies for comparisons. Raises LoginIncomplete."""
    if asked.snapshot is not None:
        return SnapshotWanted(asked.snapshot.path, asked.snapshot.format)
    jdbc = asked.jdbc
    assert jdbc is not None
    return DatabaseWanted(login_at("spec.verify.jdbc", jdbc.url, jdbc.secret, secrets), jdbc.slot)


@contextmanager
def open_source(spark: SparkSession, wanted: SourceWanted, spec: PipelineSpec) -> Iterator[SourceTables]:
    """Open the source for the duration of the context."""
    source: SourceTables
    if isinstance(wanted, SnapshotWanted):
        source = Snapshots(spark, wanted.format, wanted.path)
    else:
        epoch = max((each.epoch for each in spec.order.epochs), default=0)
        source = Database(spark, wanted.login, by=ordered_by(spec), epoch=epoch, slot=wanted.slot)
    try:
        yield source
    finally:
        source.close()


def ordered_by(spec: PipelineSpec) -> By:
    """Return what orders a pipeline's changes.

    Records of debezium-flat have positions only if someone has them added, and with ``auto`` nothing says so.
    """
    by, form = spec.order.by, spec.envelope.format
    if by in ("lsn", "binlog") or (by == "auto" and form in ("debezium", "maxwell")):
        return "log"
    return "time" if by == "timestamp" else "else"
