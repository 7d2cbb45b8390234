"""A batch's transaction, as settings of the session: the only way in which Delta's own DML accepts it."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager

from pyspark.sql import SparkSession

from lakemirror.driver.read.base import Batch
from lakemirror.driver.write.writer import Transaction

_TXN_ID = "spark.databricks.delta.write.txnAppId"
_TXN_VERSION = "spark.databricks.delta.write.txnVersion"
_USER_METADATA = "spark.databricks.delta.commitInfo.userMetadata"
_MATERIALIZE = "spark.databricks.delta.merge.materializeSource"


def noted(session: SparkSession, batch: Batch) -> AbstractContextManager[None]:
    """While this context is active, commits record the batch that they belong to."""
    return _settings(session, {_USER_METADATA: json.dumps(batch.note, sort_keys=True)})


def transaction(session: SparkSession, app_id: str, batch: Batch) -> AbstractContextManager[None]:
    """While this context is active, a write to a log that already has the batch does nothing.

    Use it only for writing rows, because this check costs Delta a job for each log.
    """
    return _settings(
        session,
        {
            _TXN_ID: app_id,
            _TXN_VERSION: str(batch.batch_id),
            _MATERIALIZE: "none",  # what is merged is materialized already
        },
    )


def of_shard(app_id: str, batch: Batch, shard: str, session: SparkSession) -> Transaction:
    """Return the transaction of a shard, with an ID and a session of its own.

    Delta keeps one version per log and ID.
    """
    own = session.newSession()
    mine = Transaction(f"{app_id}/{shard}", batch, shard, own)
    for name, value in (
        (_USER_METADATA, json.dumps(mine.note, sort_keys=True)),
        (_TXN_ID, mine.app_id),
        (_TXN_VERSION, str(batch.batch_id)),
        (_MATERIALIZE, "none"),
    ):
        own.conf.set(name, value)
    return mine


@contextmanager
def _settings(session: SparkSession, settings: Mapping[str, str]) -> Iterator[None]:
    for name, value in settings.items():
        session.conf.set(name, value)
    try:
        yield
    finally:
        for name in settings:
            session.conf.unset(name)
