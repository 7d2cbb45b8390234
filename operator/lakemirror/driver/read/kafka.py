"""Kafka topics as a source: one streaming query, whose own checkpoint records the offsets of each batch.

Beside that checkpoint, ``kafka/topics.json`` remembers each topic's ID, where its partitions ended when they
were last seen, and whether it was ever read completely. This distinguishes three cases: a topic that was
deleted, a topic that was deleted and recreated, whose offsets now mean other records, and records that were
lost before they were read.
"""

from __future__ import annotations

import json
import logging
import re
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from functools import partial
from typing import Any

from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.query import StreamingQuery

from lakemirror.api.source import FromTimestamp, KafkaSource, Source
from lakemirror.driver import faults
from lakemirror.driver.checkpoint import identity
from lakemirror.driver.checkpoint.storage import FileCutOff, Storage
from lakemirror.driver.errors import LakemirrorError, NotAnswered, cause_of
from lakemirror.driver.read import brokers, compaction
from lakemirror.driver.read.base import Batch, ChangesLost, Committed, Lag, Standing
from lakemirror.driver.read.kafka_admin import KafkaAdmin, TopicsForbidden, named
from lakemirror.driver.read.login import client_options
from lakemirror.driver.read.offset_log import SPARK_FOLDER, TOPICS, OffsetLog, Offsets
from lakemirror.driver.read.watch import SourceWatch

_log = logging.getLogger(__name__)
_CHECK_SECONDS = 15.0
_NEW_TOPICS_SECONDS = 10
_MARK_SECONDS = 30
_RECORDS_PER_TASK = 10_000
_TASKS_PER_CORE = 2
Extent = Mapping[str, Mapping[str, Sequence[int]]]


class SourceLost(ChangesLost):
    """Records were lost from Kafka before they were read, or a topic is not the one that was read before."""


class KafkaFeed:
    """Topics as a source; see ``base.Feed``. A batch's extent is ``{topic: {partition: [from, until]}}``.

    ``secrets`` has the keys of the Secret that ``security`` names, as text. ``watch`` records whether the
    brokers answer. ``standing`` tells about the checkpoint.
    """

    def __init__(
        self,
        spark: SparkSession,
        source: KafkaSource,
        storage: Storage,
        *,
        interval_seconds: float = 10.0,
        secrets: Mapping[str, str] | None = None,
        warn: Callable[[str], None] = _log.warning,
        watch: SourceWatch | None = None,
        standing: Standing | None = None,
    ) -> None:
        self._spark = spark
        self._standing = standing or Standing()
        self._watch = watch or SourceWatch()
        self._warn = warn
        self._told: set[str] = set()
        self._checked = -_CHECK_SECONDS
        self._source = source
        self._storage = storage
        self._interval = interval_seconds
        self._client = client_options(source, secrets or {})
        self._admin = KafkaAdmin(spark, self._client)
        self._log = OffsetLog(storage)
        self._log.repair()
        self._ends: tuple[float, Offsets] | None = None
        """When the brokers were asked, and where the partitions ended then, until all of that is read."""
        self._had_all_at: float | None = None
        self._calls = threading.Lock()
        self._draining = threading.Event()
        self._failure: BaseException | None = None
        self._session: SparkSession | None = None
        """The session of the running query's batches; see `_of_one_session`."""
        self._position = self._log.position()
        self._applied: int | None = None
        self._there: set[str] = set()
        self._compaction_lags: dict[str, int | None] = {}
        self.query_id = identity.query_id(storage, "kafka", started=bool(self._log.recorded()))
        self._require_own_topics()

    def run(
        self,
        apply: Callable[[DataFrame, Batch], None],
        *,
        once: bool,
        stopping: Callable[[], bool],
    ) -> None:
        while True:
            try:
                deleted = self._check_topics()
            except SourceLost:
                if self._settle():
                    continue
                raise
            self._forget_unseeing()
            try:
                self._run_query(apply, once=once, stopping=stopping, lax=deleted)
            except StreamingQueryException as error:
                # Spark ends the query when a topic is gone, even if nothing was left to read in it.
                if brokers.refuse(error):
                    self._admin.close()  # its connection may still use an older login
                if self._check_topics() and not deleted:
                    continue
                if self._forget_unseeing():
                    continue
                if brokers.refuse(error):  # some of the brokers refuse the client, or did
                    with self._asking():
                        raise
                if _tells_of_loss(str(error)):
                    raise SourceLost(_lost_text(cause_of(error))) from error
                raise
            self._checked = time.monotonic() - _CHECK_SECONDS
            self._check_now_and_then()  # remembers for the next run where the topics end
            return

    def _run_query(
        self,
        apply: Callable[[DataFrame, Batch], None],
        *,
        once: bool,
        stopping: Callable[[], bool],
        lax: bool,
    ) -> None:
        """Run one Spark query.

        With ``lax``, it continues without topics that are gone, and this class looks for other losses itself.
        """
        self._failure = self._session = None
        self._draining.clear()
        query = self._start(partial(self._call, apply, lax), once=once, lax=lax)
        try:
            while not query.awaitTermination(1) and not stopping():
                self._check_now_and_then()
            self._drain(query)
        except StreamingQueryException:
            # The error that apply raised says more than Spark's report of it.
            if self._failure is None:
                raise
        finally:
            self._draining.set()
            query.stop()
        if self._failure is not None:
            raise self._failure

    def _settle(self) -> bool:
        """Mark what is recorded as done if all tables have it. Return whether anything had to be marked."""
        pending = sorted(self._log.recorded() - self._log.committed())
        if not pending or self._standing.applied(self.query_id) < pending[-1]:
            return False
        self._standing.check()
        for batch_id in pending:
            self._log.commit(batch_id)
        self._position = self._log.position()
        return True

    def _check_now_and_then(self) -> None:
        if time.monotonic() - self._checked < _CHECK_SECONDS:
            return
        try:
            self._check_topics()
        except Exception as error:
            if isinstance(error, LakemirrorError) and not isinstance(error, NotAnswered):
                raise
            # The brokers are unavailable or do not show everything, as the watch has recorded. The query may
            # continue.
            self._checked = time.monotonic()

    def _check_topics(self) -> bool:
        """Check the topics, and remember those that exist.

        Returns whether Spark would report a loss where there is none. This is the case if topics that were
        read are gone with nothing left in them or are no longer wanted, or if other topics are new here and
        no longer begin at 0.

        Raises SourceLost if records were lost or a topic is not the same one as before, and TopicsForbidden
        if that cannot be determined because topics may not be seen or read.
        """
        self._checked = time.monotonic()
        known, position = self._known_topics(), self._log.position()
        with self._asking():
            topics = self._described()
            ends, begins = self._admin.end_offsets(topics), self._admin.begin_offsets(topics)
        ids = {name: str(each.topicId()) for name, each in topics.items()}
        self._there = set(ids)
        late = self._late(position, begins)
        position = position or {}
        for topic in self._source.topics or ():
            if topic not in ids and topic not in known:
                self._warn_once(f"topic {topic} does not exist; it is read once it does")
        if self._source.topic_pattern is not None and not ids:
            self._warn_once(
                f"topicPattern {self._source.topic_pattern} matches the whole name of no topic that the "
                "driver's user may see; topics are read once there are any"
            )
        for topic, remembered in known.items():
            if topic in ids and remembered["id"] != ids[topic]:
                raise SourceLost(_made_again_text(topic, remembered["id"], ids[topic]))
        wanted = self._wanted()
        dropped = [topic for topic in position if not wanted(topic)]
        for topic in dropped:
            self._warn_once(f"topic {topic} is no longer read: spec.source.kafka does not name it any more")
        gone = [topic for topic in position if wanted(topic) and topic not in ids]
        for topic in gone:
            seen = known.get(topic, {}).get("ends", {})
            unread = {p: (at, seen[str(p)]) for p, at in position[topic].items() if at < seen.get(str(p), at)}
            for partition, (at, end) in unread.items():
                raise SourceLost(
                    _lost_text(
                        f"topic {topic} was deleted before all of it was read (partition {partition}: offset "
                        f"{at} is the next, and it had records up to {end - 1})"
                    )
                )
            self._warn_once(f"topic {topic} was deleted; all that was seen in it is applied")
        _require_there(position, begins)
        followed = [topic for topic in ids if known.get(topic, {}).get("followed")]
        self._warn_of_compaction({topic: topics[topic] for topic in followed}, position, ends)
        found = {
            topic: {
                "id": ids[topic],
                "ends": {str(p): end for p, end in ends[topic].items()},
                "followed": topic in followed or compaction.is_read(position.get(topic, {}), ends[topic]),
            }
            for topic in ids
        }
        kept = {topic: known[topic] for topic in (*gone, *dropped) if topic in known}
        if {**found, **kept} != known:
            document = {"query": self.query_id, "topics": {**found, **kept}}
            text = json.dumps(document, indent=2, sort_keys=True)
            self._storage.write_text(TOPICS, text + "\n")
        return bool(gone or dropped or late)

    def _warn_of_compaction(self, followed: Mapping[str, Any], position: Offsets, ends: Offsets) -> None:
        """Warn about topics whose deletes may be gone before they are read.

        A topic that is being read for the first time needs no warning: the mirror has no rows that such
        deletes could leave behind.
        """
        with self._asking():
            if new := followed.keys() - self._compaction_lags.keys():
                self._compaction_lags |= {**dict.fromkeys(new), **self._admin.compaction_lags(new)}
            lags = {name: lag for name in followed if (lag := self._compaction_lags[name]) is not None}
            if not lags:
                return
            now = int(time.time() * 1000)
            topics = {name: followed[name] for name in lags}
            safe = self._admin.first_since(topics, {name: now - lag for name, lag in lags.items()})
        for topic in compaction.overdue(position, safe, ends):
            self._warn_once(compaction.warning(topic, lags[topic]))

    def _late(self, position: Offsets | None, begins: Offsets) -> list[str]:
        """Return the topics with a new partition whose first records the brokers have already deleted.

        A partition is new, for example, if it could not be seen before.
        """
        late: list[str] = []
        if position is None:
            return late
        for topic, partitions in begins.items():
            new = {p: at for p, at in partitions.items() if at and p not in position.get(topic, {})}
            for partition, at in new.items():
                late.append(topic)
                self._warn_once(
                    f"topic {topic}, partition {partition} is new here and is read from offset {at} on: what "
                    "was before it the brokers have deleted"
                )
        return late

    def _described(self) -> dict[str, Any]:
        """Return the descriptions of the wanted topics.

        Raises TopicsForbidden if one of them may not be read, or if the brokers hide one that is named or was
        read before.
        """
        wanted = self._wanted()
        before = {*(self._source.topics or ()), *(self._position or self._log.position() or ())}
        return self._admin.described(wanted, {name for name in before if wanted(name)})

    def _forget_unseeing(self) -> bool:
        """Forget batches that were recorded while a topic could not be seen.

        Returns whether there were any. Nothing of such a batch was applied, because Spark and ``_call``
        refuse it. Without it, the topic is read on from where it was.
        """
        unseeing = [
            batch_id
            for batch_id in self._log.recorded() - self._log.committed()
            if self._log.left_out(batch_id) & self._there
        ]
        for batch_id in unseeing:
            self._log.forget(batch_id)
        return bool(unseeing)

    def _require_own_topics(self) -> None:
        """Raise LakemirrorError if the offsets and the identity of the checkpoint do not belong together."""
        query = self._topics().get("query")
        if query is not None and self._log.recorded():
            identity.require_known(self._storage, str(query), TOPICS)

    def _known_topics(self) -> dict[str, dict[str, Any]]:
        return dict(self._topics()["topics"])

    def _topics(self) -> dict[str, Any]:
        try:
            document = dict(json.loads(self._storage.read_text(TOPICS)))
            return {**document, "topics": dict(document["topics"])}
        except FileNotFoundError:
            return {"topics": {}}
        except (ValueError, TypeError, KeyError, FileCutOff) as error:
            raise LakemirrorError(
                f"{self._storage.uri}/{TOPICS} is damaged ({error}): restore it from a copy, or delete it "
                "if no topic was made again since the pipeline ran last"
            ) from None

    def _warn_once(self, message: str) -> None:
        if message not in self._told:
            self._told.add(message)
            self._warn(message)

    @contextmanager
    def _asking(self) -> Iterator[None]:
        why = partial(
            brokers.why_away,
            self._source.bootstrap_servers,
            security=self._source.security,
            get_token=self._admin.get_token,
            certificate_ends=self._admin.certificate_ends,
        )
        with self._watch.asking(why):
            try:
                yield
            except Exception as error:
                if brokers.refuse(error):
                    self._admin.close()  # the next request logs in again
                raise

    def lag(self) -> Lag:
        position = self._position or self._log.position()
        if position is None:
            return Lag(None, False)
        asked = time.monotonic()
        with self._asking():
            ends = self._admin.end_offsets(self._described())
        behind = _behind(position, ends)
        if behind == 0:
            self._had_all_at, self._ends = asked, None
        else:  # a source that is never idle is past what it had when it was last asked
            if self._ends is not None and _behind(position, self._ends[1]) == 0:
                self._had_all_at, self._ends = self._ends[0], None
            self._ends = self._ends or (asked, ends)
        return Lag(behind, behind == 0, self._had_all_at)

    def from_its_beginning(self) -> Source:
        """Return the source, starting where the checkpoint started, as far as the brokers still have that."""
        try:
            began = self._log.until(-1)
        except FileNotFoundError:
            return Source(kafka=self._source)
        with self._asking():
            kept = self._admin.begin_offsets(self._described())
        offsets = {
            topic: {number: max(at, began.get(topic, {}).get(number, at)) for number, at in each.items()}
            for topic, each in kept.items()
        }
        return Source(kafka=self._source.model_copy(update={"starting_offsets": offsets}))

    def committed(self) -> Committed | None:
        return self._log.last()

    def pending(self) -> Iterator[Batch]:
        for batch_id in sorted(self._log.recorded() - self._log.committed()):
            yield self._batch(batch_id)

    def close(self) -> None:
        """Close the connection that is used to ask for the lag."""
        self._admin.close()

    def _start(self, call: Callable[[DataFrame, int], None], *, once: bool, lax: bool) -> StreamingQuery:
        writer = (
            self._read(lax)
            .writeStream.foreachBatch(call)
            .option("checkpointLocation", f"{self._storage.uri}/{SPARK_FOLDER}")
        )
        if once:
            return writer.trigger(availableNow=True).start()
        return writer.trigger(processingTime=f"{self._interval} seconds").start()

    def _read(self, lax: bool) -> DataFrame:
        options = {f"kafka.{name}": value for name, value in self._client.items()} | {
            "kafka.metadata.max.age.ms": str(_NEW_TOPICS_SECONDS * 1000),
            # A new consumer seeks to a partition's end and back, and waits this long for records that do not
            # exist.
            "kafka.fetch.max.wait.ms": "50",
            # Records of an aborted transaction never happened.
            "kafka.isolation.level": "read_committed",
            "includeHeaders": "true",
            "failOnDataLoss": str(not lax).lower(),
            "maxOffsetsPerTrigger": str(self._source.max_records_per_batch),
            **self._subscription(),
            **self._start_options(),
        }
        frame = self._spark.readStream.format("kafka").options(**options).load()
        nothing = [
            F.lit(None).cast(kind).alias(name)
            for name, kind in (("file", "string"), ("row", "bigint"), ("problem", "string"))
        ]
        return frame.select("topic", "partition", "offset", "timestamp", "key", "value", "headers", *nothing)

    def _subscription(self) -> dict[str, str]:
        # With a pattern, a missing topic does not end the query.
        topics = [re.sub(r"([^\w-])", r"\\\1", topic) for topic in self._source.topics or []]
        return {"subscribePattern": self._source.topic_pattern or "|".join(topics)}

    def _start_options(self) -> dict[str, str]:
        """Return the options for where a new checkpoint starts.

        Spark ignores them if the checkpoint has batches.
        """
        start = self._source.starting_offsets
        if isinstance(start, str):
            return {"startingOffsets": start}
        if isinstance(start, FromTimestamp):
            millis = int(datetime.fromisoformat(start.timestamp).timestamp() * 1000)
            # A partition without a record that late starts with the next record it receives.
            return {"startingTimestamp": str(millis), "startingOffsetsByTimestampStrategy": "latest"}
        if self._log.recorded():
            return {}
        topics = self._described()
        begins, ends = self._admin.begin_offsets(topics), self._admin.end_offsets(topics)
        _require_startable(start, begins, ends)
        # Spark requires every partition; those that the manifest leaves out start at the beginning (-2).
        offsets = {
            topic: {str(p): start.get(topic, {}).get(p, -2) for p in partitions}
            for topic, partitions in ends.items()
        }
        return {"startingOffsets": json.dumps(offsets)}

    def _wanted(self) -> Callable[[str], bool]:
        if self._source.topics is not None:
            return set(self._source.topics).__contains__
        pattern = self._admin.compile(self._source.topic_pattern or "")
        return lambda topic: bool(pattern.matcher(topic).matches())

    def _call(
        self, apply: Callable[[DataFrame, Batch], None], lax: bool, frame: DataFrame, batch_id: int
    ) -> None:
        """Handle a batch. Spark calls this for every batch, in a thread of its own."""
        with self._calls:
            if self._draining.is_set():
                raise RuntimeError(f"stopping: batch {batch_id} is left to the next start")
            try:
                batch = self._batch(batch_id)
                left_out = self._log.left_out(batch_id)
                if left_out and (there := left_out & self._described().keys()):
                    raise TopicsForbidden(
                        f"{named(sorted(there))} could not be seen when batch {batch_id} was begun"
                    )
                if lax:
                    before = self._log.until(batch_id - 1)
                    begun = {topic: before[topic] for topic in batch.extent if topic in before}
                    _require_there(begun, self._admin.begin_offsets(self._described()))
                if batch.extent:  # the first batch may be empty, for example if it starts at the end
                    frame = self._of_one_session(frame)
                    cores = frame.sparkSession.sparkContext.defaultParallelism
                    apply(frame.coalesce(tasks(batch.extent, cores)), batch)
                faults.reach("before-checkpoint-commit")
                self._standing.check()
            except BaseException as error:
                # Includes errors that py4j does not expect in a callback. Spark sees an Exception, whose
                # traceback it searches with a pattern that overflows its stack on a long one.
                self._failure = error
                self._draining.set()
                raise RuntimeError(f"batch {batch_id} failed: {str(error)[:1000]}") from None
            self._position = self._log.until(batch_id)
            self._applied = batch_id

    def _of_one_session(self, frame: DataFrame) -> DataFrame:
        """Return the same frame in the session of the query's first batch.

        PySpark wraps the query's session again for each batch, but everything that is kept between batches
        belongs to a session.
        """
        if self._session is None:
            self._session = frame.sparkSession
        return DataFrame(frame._jdf, self._session)

    def _batch(self, batch_id: int) -> Batch:
        extent = self._log.extent(batch_id)
        return Batch(self.query_id, batch_id, extent, explain=partial(self._explained, extent=extent))

    def _explained(self, error: Exception, extent: Extent) -> SourceLost | None:
        """Return a SourceLost if Spark could not read a batch because the brokers have deleted records of it.

        Spark's word alone is not enough: what the brokers still have can be read by a retry.
        """
        if not _tells_of_loss(str(error)):
            return None
        begun = {topic: {int(p): span[0] for p, span in spans.items()} for topic, spans in extent.items()}
        try:
            with self._asking():
                begins = self._admin.begin_offsets(self._described())
            _require_there(begun, begins)
        except SourceLost as lost:
            return lost
        except Exception as unknown:
            _log.debug("whether records were lost is not known: %s", cause_of(unknown))
        return None

    def _drain(self, query: StreamingQuery) -> None:
        """Let the running batch be applied and marked as done, and start no other."""
        self._draining.set()
        with self._calls:  # free once the batch is applied; Spark marks it at once
            applied = self._applied
        end = time.monotonic() + _MARK_SECONDS
        while applied is not None and query.isActive and time.monotonic() < end:
            if applied in self._log.committed():
                return
            time.sleep(0.05)


def _require_there(position: Offsets, begins: Offsets) -> None:
    """Raise SourceLost if a partition begins after the next offset to be read."""
    for topic, partitions in position.items():
        for partition, at in partitions.items():
            first = begins.get(topic, {}).get(partition, at)
            if at < first:
                raise SourceLost(
                    _lost_text(
                        f"topic {topic}, partition {partition}: offset {at} is the next to be read, and the "
                        f"brokers have deleted all before {first}"
                    )
                )


def _require_startable(start: Mapping[str, Mapping[int, int]], begins: Offsets, ends: Offsets) -> None:
    """Raise SourceLost if the manifest starts a partition where the brokers have nothing.

    A reset alone would not help: it starts at the same offsets again.
    """
    for topic, partitions in start.items():
        for partition, at in partitions.items():
            first, end = (each.get(topic, {}).get(partition) for each in (begins, ends))
            if at >= 0 and first is not None and end is not None and not first <= at <= end:
                raise SourceLost(
                    f"spec.source.kafka.startingOffsets starts partition {partition} of topic {topic} at "
                    f"offset {at}, and only {first} to {end} are possible: correct it, or leave the "
                    "partition out, so that it starts with its first record. If the pipeline has begun, set "
                    "spec.spark.resetToken to a new value, too"
                )


def _lost_text(what: str) -> str:
    return (
        f"records were lost before they were read: {what}. To go on with what the brokers still have, set "
        "spec.spark.resetToken to a new value; then have the connector take a snapshot of the tables again, "
        "so that the lost changes come with it"
    )


def _made_again_text(topic: str, before: str, now: str) -> str:
    return (
        f"topic {topic} was deleted and made again (its id was {before}, now it is {now}): its offsets mean "
        "other records than those that were read. Set spec.spark.resetToken to a new value, so that all "
        "topics are read from startingOffsets on; what is applied already stays as it is. If offsets order "
        "its changes (ordering.by: offset), also declare a new epoch that begins in each of its partitions "
        "at offset 0 (ordering.epochs)"
    )


def _tells_of_loss(message: str) -> bool:
    """Return whether a Spark error says that records are gone."""
    return "failOnDataLoss" in message or "data may have been" in message or "KAFKA_DATA_LOSS" in message


def tasks(extent: Extent, cores: int) -> int:
    """Return the number of tasks that read a batch.

    This is one per topic partition, but no more than the records need. A task costs as much as a few thousand
    records, so many partitions with few records are read together.
    """
    ranges = [each for partitions in extent.values() for each in partitions.values()]
    records = sum(until - start for start, until in ranges)
    return min(len(ranges), max(cores * _TASKS_PER_CORE, -(-records // _RECORDS_PER_TASK)))


def _behind(position: Offsets, ends: Offsets) -> int:
    """Return the number of records between a position and the ends of the partitions."""
    return sum(
        max(0, end - position.get(topic, {}).get(partition, 0))
        for topic, partitions in ends.items()
        for partition, end in partitions.items()
    )
