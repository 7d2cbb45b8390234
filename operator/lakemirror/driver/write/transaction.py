"""A batch's transaction, as settings of the session: Delta's own DML takes it in no other way."""

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
    """While it lasts, commits say of which batch they are."""
    return _settings(session, {_USER_METADATA: json.dumps(batch.note, sort_keys=True)})


def transaction(session: SparkSession, app_id: str, batch: Batch) -> AbstractContextManager[None]:
    """While it lasts, a write to a log that has the batch already does nothing. For rows alone: to look that
    up costs Delta a job for each log.
    """
    return _settings(
        session,
        {
            _TXN_ID: app_id,
            _TXN_VERSION: str(batch.batch_id),
            _MATERIALIZE: "none",  # what is merged is materialised already
        },
    )


def of_shard(app_id: str, batch: Batch, shard: str, session: SparkSession) -> Transaction:
    """The transaction of a shard: Delta has one version a log and id, so each has an id and a session of its
    own.
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
