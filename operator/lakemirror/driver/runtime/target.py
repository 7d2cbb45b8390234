"""Opens the kind of target that a manifest wants its mirrors in."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager

from pyspark.sql import SparkSession

from lakemirror.api import CdcPipeline
from lakemirror.driver.read.secrets import Secrets, login_at
from lakemirror.driver.tables.jdbc_database import Database
from lakemirror.driver.write.jdbc import JdbcTarget
from lakemirror.driver.write.target import DELTA, TargetKind


@contextmanager
def open_target(
    spark: SparkSession, pipeline: CdcPipeline, secrets: Secrets, *, owned: bool = True
) -> Iterator[TargetKind]:
    """Yield what opens and writes mirrors. ``owned`` says that the caller owns the checkpoint.

    No connection to a database is made before it is needed. If the database is unavailable at the start, the
    first batch waits for it, like any other batch.
    """
    jdbc = pipeline.spec.target.jdbc
    if jdbc is None:
        yield DELTA
        return
    whose = hashlib.sha256(f"{pipeline.name} {pipeline.spec.checkpoint}".encode()).hexdigest()[:8]
    login = login_at("spec.target.jdbc", jdbc.url, jdbc.secret, secrets)
    database = Database(login, whose, owned=owned)
    try:
        yield JdbcTarget(database)
    finally:
        database.close()
