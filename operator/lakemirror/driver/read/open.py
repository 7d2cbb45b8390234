"""Chooses the feed for a source. This is the only module that knows all feeds."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from pyspark.sql import SparkSession

from lakemirror.api import duration_seconds
from lakemirror.api.source import ChangeFeedSource, FilesSource, KafkaSource, Source
from lakemirror.api.spec import PipelineSpec
from lakemirror.driver.checkpoint.storage import Storage
from lakemirror.driver.errors import LakemirrorError
from lakemirror.driver.orders import rows_are_dated
from lakemirror.driver.read.base import Feed, Standing
from lakemirror.driver.read.change_feed import ChangeFeed
from lakemirror.driver.read.files.feed import FilesFeed
from lakemirror.driver.read.kafka import KafkaFeed
from lakemirror.driver.read.secrets import Secrets, read_secret
from lakemirror.driver.read.watch import SourceWatch
from lakemirror.driver.tables.names import TableName

_DEFAULT_INTERVAL = "10s"


class FeedOpener:
    """Opens feeds of a pipeline's source: `open` for the source itself, or for a part of it.

    ``warn`` is called with messages for a person. ``watch`` records whether the source can be reached.
    ``standing`` tells about the checkpoint.
    """

    def __init__(
        self,
        spark: SparkSession,
        spec: PipelineSpec,
        secrets: Secrets,
        warn: Callable[[str], None],
        watch: SourceWatch,
        standing: Standing | None = None,
    ) -> None:
        self._spark, self._spec = spark, spec
        self._standing = standing or Standing()
        self._secrets, self._warn, self._watch = secrets, warn, watch
        self._base64 = spec.envelope.encoding == "avro"
        self._interval = duration_seconds(spec.trigger.interval or _DEFAULT_INTERVAL)

    def open(self, source: Source, storage: Storage, *, rereads: Feed | None = None) -> Feed:
        """Return the feed of ``source`` that stores its progress in ``storage``. The caller closes it.

        ``rereads`` is the feed whose source this one reads again.
        """
        if source.files is not None:
            return self._files(source.files, storage, rereads)
        if source.kafka is not None:
            return self._kafka(source.kafka, storage)
        if source.change_feed is not None:
            return self._change_feed(source.change_feed, storage)
        raise LakemirrorError("spec.source: exactly one of kafka, files and changeFeed is needed")

    def _files(self, source: FilesSource, storage: Storage, rereads: Feed | None) -> FilesFeed:
        fields, words = self._spec.envelope.fields, self._spec.envelope.op_map or {}
        return FilesFeed(
            self._spark,
            source,
            storage,
            base64=self._base64,
            optional=fields.op if fields is not None and "" in words else None,
            dated=rows_are_dated(self._spec),
            interval_seconds=self._interval,
            warn=self._warn,
            watch=self._watch,
            rereads=rereads if isinstance(rereads, FilesFeed) else None,
            standing=self._standing,
        )

    def _change_feed(self, source: ChangeFeedSource, storage: Storage) -> ChangeFeed:
        return ChangeFeed(
            self._spark,
            source,
            storage,
            key=self._declared_key,
            interval_seconds=self._interval,
            watch=self._watch,
            standing=self._standing,
        )

    def _declared_key(self, name: TableName) -> Sequence[str]:
        """Return the key that the manifest declares for a table, or nothing."""
        table = self._spec.listed(str(name))
        return table.primary_key or () if table is not None else ()

    def _kafka(self, source: KafkaSource, storage: Storage) -> KafkaFeed:
        secret = source.security.secret if source.security is not None else None
        return KafkaFeed(
            self._spark,
            source,
            storage,
            interval_seconds=self._interval,
            secrets=read_secret(secret, self._secrets) if secret is not None else {},
            warn=self._warn,
            watch=self._watch,
            standing=self._standing,
        )
