"""Asks Kafka's brokers about topics."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import datetime
from functools import partial
from typing import Any

from py4j.protocol import Py4JJavaError
from pyspark.sql import SparkSession

from lakemirror.driver.document import from_millis
from lakemirror.driver.errors import NotAnswered
from lakemirror.driver.java import java_class
from lakemirror.driver.read.login import CERTIFICATE, TOKEN_HANDLER
from lakemirror.driver.read.offset_log import Offsets

_log = logging.getLogger(__name__)
_REQUEST_SECONDS, _CLIENT_SECONDS, _ANSWER_SECONDS = 15, 30, 40
"""Timeouts: of one request, of an operation with all its retries, and of waiting for the client."""
_CLOSE_SECONDS = 5
_ONE_TRY = {"sasl.login.retry.backoff.ms": "1", "sasl.login.retry.backoff.max.ms": "1"}
_TOPICS_NAMED = 5
"""The maximum number of topics that a message names."""


class TopicsForbidden(NotAnswered):
    """The brokers do not let the driver read topics."""


class KafkaAdmin:
    """Asks the brokers, through the Kafka client that Spark's source includes.

    The client is created with the first request, because it cannot be created for unknown hosts.
    """

    def __init__(self, spark: SparkSession, client: Mapping[str, str]) -> None:
        self._java = partial(java_class, spark)
        self._new_array = spark.sparkContext._gateway.new_array  # type: ignore[union-attr]
        self._settings = {
            **client,
            "request.timeout.ms": str(_REQUEST_SECONDS * 1000),
            "default.api.timeout.ms": str(_CLIENT_SECONDS * 1000),
        }
        self._tells_rights = True
        """Whether the brokers report rights.

        Brokers before Kafka 2.3, and others that do not speak its newer protocol, do not.
        """
        self._making = threading.Lock()
        self._made: Any = None

    @property
    def _client(self) -> Any:
        with self._making:
            if self._made is None:
                properties = self._properties(self._settings)
                self._made = self._java("org.apache.kafka.clients.admin.AdminClient").create(properties)
            return self._made

    def _properties(self, settings: Mapping[str, str]) -> Any:
        properties = self._java("java.util.Properties")()
        for name, value in settings.items():
            properties.setProperty(name, value)
        return properties

    def get_token(self) -> None:
        """Request a token once, as the client does at the OAUTHBEARER endpoint.

        The client itself raises nothing that says why it got none.
        """
        settings = self._properties({**self._settings, **_ONE_TRY})
        values = self._java("org.apache.kafka.clients.admin.AdminClientConfig")(settings).values()
        security = "org.apache.kafka.common.security"
        entries = self._java(f"{security}.JaasContext").loadClientContext(values).configurationEntries()
        wanted = self._new_array(self._java("javax.security.auth.callback.Callback"), 1)
        wanted[0] = self._java(f"{security}.oauthbearer.OAuthBearerTokenCallback")()
        handler = self._java(TOKEN_HANDLER)()
        handler.configure(values, "OAUTHBEARER", entries)
        try:
            handler.handle(wanted)
        finally:
            handler.close()

    def certificate_ends(self) -> datetime | None:
        """Return when the client's own certificate, or the first one of its chain, expires.

        Returns None if the client has no certificate, or one that cannot be read.
        """
        chain = self._settings.get(CERTIFICATE)
        if chain is None:
            return None
        factory = self._java("java.security.cert.CertificateFactory").getInstance("X.509")
        try:
            found = factory.generateCertificates(self._java("java.io.ByteArrayInputStream")(chain.encode()))
        except Py4JJavaError as error:
            _log.debug("the client's certificate cannot be read: %s", error.java_exception)
            return None
        return min((from_millis(each.getNotAfter().getTime()) for each in found), default=None)

    def compile(self, pattern: str) -> Any:
        """Return a Java regular expression."""
        return self._java("java.util.regex.Pattern").compile(pattern)

    def begin_offsets(self, topics: Mapping[str, Any]) -> Offsets:
        """Return where the partitions of topics, as returned by ``described``, begin now."""
        return self._offsets(topics, self._everywhere(topics, "earliest"))

    def end_offsets(self, topics: Mapping[str, Any]) -> Offsets:
        """Return where the partitions of topics, as returned by ``described``, end now."""
        return self._offsets(topics, self._everywhere(topics, "latest"))

    def first_since(self, topics: Mapping[str, Any], since_ms: Mapping[str, int]) -> Offsets:
        """Return the first offset of each partition whose record is not older than a time.

        Times are in epoch milliseconds, by topic. The offset is -1 if there is no such record.
        """
        spec = self._java("org.apache.kafka.clients.admin.OffsetSpec")
        return self._offsets(topics, {name: spec.forTimestamp(since_ms[name]) for name in topics})

    def compaction_lags(self, names: Collection[str]) -> dict[str, int]:
        """Return ``min.compaction.lag.ms`` of the topics that are compacted.

        Topics are left out if the brokers do not reveal their settings, for example to a user without the
        right DescribeConfigs.
        """
        resource = self._java("org.apache.kafka.common.config.ConfigResource")
        kind = self._java("org.apache.kafka.common.config.ConfigResource$Type").TOPIC
        asked = self._java("java.util.ArrayList")()
        for name in names:
            asked.add(resource(kind, name))
        found: dict[str, int] = {}
        for topic, answer in dict(self._client.describeConfigs(asked).values()).items():
            try:
                settings = self._get(answer)
            except Py4JJavaError as error:
                _log.debug("the settings of topic %s are not known: %s", topic.name(), error.java_exception)
                continue
            policy, lag = (settings.get(name) for name in ("cleanup.policy", "min.compaction.lag.ms"))
            if policy is not None and "compact" in policy.value():
                found[topic.name()] = 0 if lag is None else int(lag.value())
        return found

    def described(self, wanted: Callable[[str], bool], before: Collection[str] = ()) -> dict[str, Any]:
        """Return the descriptions of ``wanted`` topics, and of those in ``before`` that still exist.

        Brokers list only the topics that a client may see. For a topic that is named, they say whether it may
        be seen. Raises TopicsForbidden if a topic may not be seen or read.
        """
        names = {name for name in self._get(self._client.listTopics().names()) if wanted(name)}
        found: dict[str, Any] = {}
        hidden: list[str] = []
        for name, answer in self._describing({*names, *before}).items():
            try:
                found[name] = self._get(answer)
            except Py4JJavaError as error:
                cause = str(error.java_exception.getCause())
                if "TopicAuthorizationException" in cause:
                    hidden.append(name)
                elif "UnsupportedVersionException" in cause and self._tells_rights:
                    self._tells_rights = False
                    return self.described(wanted, before)
                elif "UnknownTopicOrPartitionException" not in cause:
                    raise
        unread = [name for name, each in found.items() if not self._may_read(each)]
        if hidden or unread:
            raise TopicsForbidden(_forbidden_text(sorted(unread), sorted(hidden)))
        return found

    def _describing(self, names: Collection[str]) -> dict[str, Any]:
        """Return a future of each topic's description, with the client's rights if brokers report them."""
        topics = self._java("java.util.ArrayList")()
        for name in names:
            topics.add(name)
        options = self._java("org.apache.kafka.clients.admin.DescribeTopicsOptions")()
        options.includeAuthorizedOperations(self._tells_rights)
        return dict(self._client.describeTopics(topics, options).topicNameValues())

    def _may_read(self, described: Any) -> bool:
        """Return whether a topic may be read. True if unknown, for brokers that do not report rights."""
        rights = described.authorizedOperations()
        kinds = self._java("org.apache.kafka.common.acl.AclOperation")
        return rights is None or rights.contains(kinds.READ) or not rights.contains(kinds.DESCRIBE)

    def _everywhere(self, topics: Mapping[str, Any], which: str) -> dict[str, Any]:
        spec = getattr(self._java("org.apache.kafka.clients.admin.OffsetSpec"), which)()
        return dict.fromkeys(topics, spec)

    def _offsets(self, topics: Mapping[str, Any], wanted: Mapping[str, Any]) -> Offsets:
        """Return the offsets of the topics' partitions. ``wanted`` says which offset, by topic."""
        place = self._java("org.apache.kafka.common.TopicPartition")
        asked = self._java("java.util.HashMap")()
        for name, described in topics.items():
            for partition in described.partitions():
                asked.put(place(name, partition.partition()), wanted[name])
        offsets: Offsets = {}
        for at, found in self._get(self._client.listOffsets(asked).all()).items():
            offsets.setdefault(at.topic(), {})[at.partition()] = found.offset()
        return offsets

    def close(self) -> None:
        """Close the connection. The next request opens another."""
        with self._making:
            made, self._made = self._made, None
        if made is not None:
            made.close(self._java("java.time.Duration").ofSeconds(_CLOSE_SECONDS))

    def _get(self, future: Any) -> Any:
        return future.get(_ANSWER_SECONDS, self._java("java.util.concurrent.TimeUnit").SECONDS)


def _forbidden_text(unread: Sequence[str], hidden: Sequence[str]) -> str:
    """Return the message for ``unread`` and ``hidden`` topics.

    ``unread`` topics may be seen but not read. ``hidden`` ones may not even be seen.
    """
    parts = []
    if unread:
        parts.append(f"may not read {named(unread)}")
    if hidden:
        parts.append(f"may not see {named(hidden)}, or there is none")
    them = "it" if len(unread) + len(hidden) == 1 else "them"
    return f"the driver's user {' and '.join(parts)}: give the user the right Read on {them}"


def named(topics: Sequence[str]) -> str:
    """Format topics for a message, only the first few if there are many."""
    more = len(topics) - _TOPICS_NAMED
    named = ", ".join(topics[:_TOPICS_NAMED])
    what = "topic" if len(topics) == 1 else "topics"
    return f"{what} {named}" + (f" and {more} more" if more > 0 else "")
