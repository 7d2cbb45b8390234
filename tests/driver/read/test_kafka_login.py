"""Logging in at Kafka: what is sent, what a refusal says, and that nothing is lost by one."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import pytest
from pyspark.errors import IllegalArgumentException
from pyspark.sql import DataFrame, SparkSession

from lakemirror.api import CdcPipeline
from lakemirror.api.source import KafkaSource
from lakemirror.driver.checkpoint.storage import LocalStorage
from lakemirror.driver.errors import SourceUnreachable, cause_of
from lakemirror.driver.read import kafka as kafka_feed
from lakemirror.driver.read import kafka_admin
from lakemirror.driver.read import login as kafka_login
from lakemirror.driver.read.base import Batch
from lakemirror.driver.read.kafka import KafkaFeed, SourceLost
from lakemirror.driver.read.kafka_admin import KafkaAdmin, TopicsForbidden
from lakemirror.driver.read.login import LoginIncomplete, client_options
from lakemirror.driver.read.watch import SourceWatch
from lakemirror.driver.results import BatchResult
from lakemirror.driver.runtime.runner import run
from tests.api.manifests import changed
from tests.driver.read.test_reach import Reports, quickly, until
from tests.support.beside import beside
from tests.support.counting import Counter, make
from tests.support.kafka_login import EXPIRED, PLAIN_PASSWORD, PLAIN_USER, GuardedBroker, start_guarded_broker
from tests.support.tokens import AUDIENCE, SCOPE

pytestmark = pytest.mark.guarantee(
    "The driver waits for brokers and token endpoints that refuse it; it does not mistake a topic that it "
    "may not see for a deleted one; it discloses no password, client secret or token"
)

USER, PASSWORD = "mirror", "Kn0ck-kn0ck"
ODD = '"q\'uo\\te" $1 ${env:HOME} \\u0041 \u00e4\u20ac\U0001f511 ;=,#//*\t\x85 '
"""A password with what means something in sasl.jaas.config, in regular expressions or in templates."""


# -- settings ------------------------------------------------------------------------------------------


def source(protocol: str, mechanism: str | None = None, **other: Any) -> KafkaSource:
    security: dict[str, Any] = {"protocol": protocol, "secret": "kafka-auth"}
    if mechanism == "OAUTHBEARER":
        security["oauth"] = {"tokenEndpointUrl": "https://idp/token", "scope": "read write"}
    if mechanism is not None:
        security["mechanism"] = mechanism
    document = {"bootstrapServers": "kafka:9092", "topics": ["t"], **other, "security": security}
    return KafkaSource.model_validate(document)


def test_settings_of_a_login() -> None:
    given = {"username": "a\n", "password": 'b"c\\\r\n', "ca.crt": "CA\n", "tls.crt": "", "tls.key": "\n"}
    assert client_options(source("SASL_SSL", "SCRAM-SHA-256"), given) == {
        "bootstrap.servers": "kafka:9092",
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": "SCRAM-SHA-256",
        "sasl.jaas.config": "org.apache.kafka.common.security.scram.ScramLoginModule required "
        'username="a" password="b\\"c\\\\";',
        "ssl.truststore.type": "PEM",
        "ssl.truststore.certificates": "CA",
    }
    plain = client_options(source("SASL_PLAINTEXT", "PLAIN"), given)
    assert plain["sasl.jaas.config"].startswith("org.apache.kafka.common.security.plain.PlainLoginModule ")
    assert not [name for name in plain if name.startswith("ssl.")]


def test_settings_of_a_login_with_tokens() -> None:
    given = {"clientId": "a\n", "clientSecret": 'b"c', "token-ca.crt": "CA\nCA\n", "extension_pool": "p\n"}
    options = client_options(source("SASL_SSL", "OAUTHBEARER"), given)
    module = "org.apache.kafka.common.security.oauthbearer.OAuthBearerLogin"
    assert options == {
        "bootstrap.servers": "kafka:9092",
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": "OAUTHBEARER",
        "sasl.jaas.config": f'{module}Module required scope="read write" ssl.truststore.type="PEM" '
        'ssl.truststore.certificates="CA\\nCA" extension_pool="p" password="" clientId="a" '
        'clientSecret="b\\"c";',
        "sasl.login.callback.handler.class": f"{module}CallbackHandler",
        "sasl.oauthbearer.token.endpoint.url": "https://idp/token",
        "sasl.login.retry.backoff.max.ms": "5000",
        "sasl.login.connect.timeout.ms": "10000",
        "sasl.login.read.timeout.ms": "10000",
    }


@pytest.mark.parametrize(
    ("protocol", "keys", "message"),
    [
        ("SASL_SSL", {"username": "a"}, "key password of secret kafka-auth is missing"),
        ("SASL_SSL", {"username": "\n", "password": "b"}, "key username of secret kafka-auth is empty"),
        ("OAUTHBEARER", {"clientId": "a"}, "key clientSecret of secret kafka-auth is missing"),
        ("SSL", {"tls.crt": "x"}, "secret kafka-auth has tls.crt and no tls.key"),
        ("SSL", {"tls.crt": "\n", "tls.key": "x"}, "secret kafka-auth has tls.key and no tls.crt"),
    ],
)
def test_a_secret_without_what_is_needed(protocol: str, keys: dict[str, str], message: str) -> None:
    given = {"SASL_SSL": ("SASL_SSL", "PLAIN"), "OAUTHBEARER": ("SASL_SSL", "OAUTHBEARER")}
    with pytest.raises(LoginIncomplete, match=f"^spec.source.kafka.security: {message}.*: .*add "):
        client_options(source(*given.get(protocol, (protocol, None))), keys)


def test_kafka_reads_the_password_that_was_given(spark: SparkSession) -> None:
    jvm: Any = spark._jvm
    for password in (ODD, "x", "\\", '"', "a\nb", "'", "${file:/etc/passwd:x}", "\u2028", "\x85\x01"):
        options = client_options(source("SASL_PLAINTEXT", "PLAIN"), {"username": "a b", "password": password})
        written = jvm.org.apache.kafka.common.config.types.Password(options["sasl.jaas.config"])
        configs = jvm.java.util.HashMap()
        configs.put("sasl.jaas.config", written)
        context = jvm.org.apache.kafka.common.security.JaasContext.loadClientContext(configs)
        [entry] = context.configurationEntries()
        assert dict(entry.getOptions()) == {"username": "a b", "password": password}


def test_kafka_asks_the_endpoint_that_the_manifest_names_where_others_are_forbidden(
    spark: SparkSession,
) -> None:
    jvm: Any = spark._jvm
    given = source("SASL_SSL", "OAUTHBEARER").model_dump(by_alias=True, exclude_none=True)
    spec = CdcPipeline.from_dict(changed(source={"kafka": given})).spec
    [(name, url)] = spec.java_properties.items()
    asked = {"own": "https://idp/token", "other": "https://other/token"}
    util = jvm.org.apache.kafka.common.security.oauthbearer.internals.secured.ConfigurationUtils(asked)
    jvm.System.setProperty(name, url)
    try:
        util.throwIfURLIsNotAllowed("own")
        with pytest.raises(IllegalArgumentException, match="https://other/token is not allowed"):
            util.throwIfURLIsNotAllowed("other")
    finally:
        jvm.System.clearProperty(name)


def test_spark_hides_what_the_module_of_tokens_is_given(spark: SparkSession) -> None:
    """Its redaction knows passwords alone."""
    jvm: Any = spark._jvm
    secret = 'a"b password="x" \\\n c'
    options = client_options(source("SASL_SSL", "OAUTHBEARER"), {"clientId": "me", "clientSecret": secret})
    redaction = jvm.org.apache.spark.kafka010.KafkaRedactionUtil
    hidden = redaction.redactJaasParam(options["sasl.jaas.config"])
    assert re.fullmatch(r"\S+ required scope=\"read write\" password=\"\S+\";", hidden), hidden


# -- a broker that asks for a login --------------------------------------------------------------------

sources = pytest.mark.sources


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GuardedBroker]:
    with start_guarded_broker(tmp_path_factory.mktemp("guarded")) as running:
        yield running


@dataclass
class Login:
    """A feed that logs in, and the values that it read."""

    spark: SparkSession
    broker: GuardedBroker
    path: Path
    values: list[bytes] = field(default_factory=list)
    watch: SourceWatch = field(default_factory=SourceWatch)

    def feed(self, listener: str, security: dict[str, str], secrets: dict[str, str], **of: Any) -> KafkaFeed:
        given = {"bootstrapServers": self.broker.addresses[listener], "security": security, **of}
        return KafkaFeed(
            self.spark,
            KafkaSource.model_validate(given),
            LocalStorage(self.path),
            interval_seconds=0.2,
            secrets=secrets,
            watch=self.watch,
        )

    @property
    def with_tokens(self) -> dict[str, str]:
        """The keys of a Secret for the listener `oauth`."""
        authority = self.broker.certificates.text("ca.crt")
        client = {"clientId": f"{CLIENT}\n", "clientSecret": f"{CLIENT_SECRET}\n"}
        return {**client, "ca.crt": authority, "token-ca.crt": authority}

    def scram(self, password: str = PASSWORD, **of: Any) -> KafkaFeed:
        return self.feed("scram", SCRAM_512, {"username": USER, "password": password}, **of)

    def read(self, feed: KafkaFeed) -> KafkaFeed:
        feed.run(self.apply, once=True, stopping=lambda: False)
        return feed

    def apply(self, frame: DataFrame, batch: Batch) -> None:
        self.values += [bytes(row.value) for row in frame.orderBy("topic", "partition", "offset").collect()]

    def filled(self, name: str, *values: str) -> str:
        topic = self.broker.open.create(name)
        self.send(topic, *values)
        return topic

    def send(self, topic: str, *values: str) -> None:
        for value in values:
            self.broker.open.send(topic, value)
        self.broker.open.flush()


SCRAM_512 = {"protocol": "SASL_PLAINTEXT", "mechanism": "SCRAM-SHA-512", "secret": "kafka-auth"}
SCRAM_256 = {**SCRAM_512, "mechanism": "SCRAM-SHA-256"}
PLAIN = {**SCRAM_512, "mechanism": "PLAIN"}
TLS = {**SCRAM_512, "protocol": "SASL_SSL"}
MUTUAL = {"protocol": "SSL", "secret": "kafka-auth"}
CLIENT, CLIENT_SECRET = "mirror app", 'sec"ret\\:+%/='
"""Of OAuth; the token is of the user of the client's name."""


def oauth(url: str, **more: str) -> dict[str, Any]:
    """Security of a login with tokens from an endpoint."""
    endpoint = {"tokenEndpointUrl": url, "scope": SCOPE, **more}
    return {"protocol": "SASL_SSL", "mechanism": "OAUTHBEARER", "secret": "kafka-auth", "oauth": endpoint}


@pytest.fixture
def login(spark: SparkSession, broker: GuardedBroker, tmp_path: Path) -> Login:
    broker.set_password(USER, PASSWORD)
    return Login(spark, broker, tmp_path / "state")


@sources
def test_each_way_to_log_in_with_the_right_to_read_alone(login: Login, broker: GuardedBroker) -> None:
    topic = login.filled("ways", "a")
    authority = {"ca.crt": broker.certificates.text("ca.crt")}
    broker.certificates.sign("client", "DNS:client")
    own = {f"tls.{kind}": broker.certificates.text(f"client.{kind}") for kind in ("crt", "key")}
    broker.set_password("odd", ODD, "SCRAM-SHA-256")
    broker.set_password("odd", ODD)
    odd = {"username": "odd\n", "password": ODD + "\n"}
    plain = {"username": PLAIN_USER, "password": PLAIN_PASSWORD}
    broker.tokens.clients[CLIENT] = CLIENT_SECRET
    for user in ("odd", PLAIN_USER, "CN=client", CLIENT):
        broker.allow(user, "READ", topic)
    ways = [
        ("plain", PLAIN, plain),
        ("scram", SCRAM_256, odd),
        ("scram", SCRAM_512, odd),
        ("tls", TLS, {**odd, **authority}),
        ("tls", {**TLS, "mechanism": "PLAIN"}, {**plain, **authority}),
        ("mutual", MUTUAL, {**authority, **own}),
        ("oauth", oauth(broker.tokens.url), {**login.with_tokens, "extension_logicalCluster": "a"}),
    ]
    for number, (listener, security, secrets) in enumerate(ways, 1):
        login.read(login.feed(listener, security, secrets, topics=[topic])).close()
        login.send(topic, "a")
        assert login.values == [b"a"] * number, (listener, security)
    assert login.watch.lost is None


@sources
def test_all_that_the_feed_asks_needs_the_right_to_read_alone(login: Login, broker: GuardedBroker) -> None:
    """Also at offsets and with a pattern, and topics that nobody granted are none of it."""
    topic, other = login.filled("least", "a", "b"), login.filled("least.not", "x")
    prefix = topic.removeprefix("least")
    broker.allow(USER, "READ", topic, prefix=True)
    login.read(login.scram(topics=[topic], startingOffsets={topic: {"0": 1}}))
    assert login.values == [b"b"]
    feed = login.scram(topicPattern=rf"least(\.not)?{prefix}.*")
    login.send(topic, "c")
    assert feed.lag().records == 1
    login.read(feed)
    assert login.values == [b"b", b"c"]
    assert feed.from_its_beginning().kafka is not None
    assert (login.watch.lost, other in login.values) == (None, False)
    feed.close()


REFUSALS: list[tuple[str, dict[str, str], dict[str, str], str | None, str]] = [
    (
        "scram",
        SCRAM_512,
        {"password": "wrong"},
        None,
        "refuse the login: check username and password in secret kafka-auth",
    ),
    ("scram", SCRAM_256, {}, None, "know this user for mechanism SCRAM-SHA-256"),
    ("plain", PLAIN, {}, None, "refuse the login: check username and password in secret kafka-auth"),
    ("scram", PLAIN, {}, None, r"set spec.source.kafka.security.mechanism to one .* enabled"),
    ("tls", TLS, {}, None, "put the authority's certificate into key ca.crt of secret kafka-auth"),
    ("tls", TLS, {}, "stranger.crt", "put the authority's certificate into key ca.crt of secret"),
    ("tls", TLS, {"ca.crt": "none"}, None, "a certificate in secret kafka-auth is damaged"),
    ("expired", TLS, {}, "ca.crt", "a certificate of the brokers has expired: renew it"),
    ("other", TLS, {}, "ca.crt", "the brokers' certificate is not of this host"),
    ("scram", TLS, {}, "ca.crt", "check spec.source.kafka.security.protocol"),
    ("tls", SCRAM_512, {}, None, "check spec.source.kafka.security.protocol"),
    ("mutual", MUTUAL, {}, "ca.crt", "check tls.crt and tls.key in secret kafka-auth"),
]


@sources
@pytest.mark.parametrize(
    ("listener", "security", "secrets", "authority", "message"),
    REFUSALS,
    ids=[f"{refusal[0]}-{refusal[-1][:30]}" for refusal in REFUSALS],
)
def test_a_refusal_says_what_to_do(
    login: Login,
    monkeypatch: pytest.MonkeyPatch,
    listener: str,
    security: dict[str, str],
    secrets: dict[str, str],
    authority: str | None,
    message: str,
) -> None:
    monkeypatch.setattr(kafka_admin, "_CLIENT_SECONDS", 5)
    monkeypatch.setattr(kafka_admin, "_REQUEST_SECONDS", 5)
    certificates = login.broker.certificates
    if authority == "stranger.crt":
        certificates.authority("stranger")
    keys = {"username": USER, "password": PASSWORD, **secrets}
    if authority is not None:
        keys["ca.crt"] = certificates.text(authority)
    feed = login.feed(listener, security, keys, topics=["any"])
    began = time.monotonic()
    with pytest.raises(Exception, match=r".") as refused:
        login.read(feed)
    feed.close()
    assert time.monotonic() - began < 30
    lost = login.watch.lost or ""
    assert re.search(message, lost), lost
    assert lost.startswith(login.broker.addresses[listener])
    assert "\n" not in lost
    for text in (lost, str(refused.value), cause_of(refused.value)):
        assert keys["password"] not in text


@dataclass(frozen=True)
class Flaw:
    """What is wrong with a login by token, what is said of it, and how it is mended at the endpoint."""

    message: str
    keys: Mapping[str, str] = field(default_factory=dict)
    of: Mapping[str, str] = field(default_factory=dict)
    store: str = "oauth"
    path: str = ""
    away: bool = False
    audience: str = AUDIENCE
    silent_seconds: float = 0


TOKENLESS = {
    "wrong secret": Flaw(
        "the token endpoint refuses the client: check clientId and clientSecret in secret kafka-auth",
        {"clientSecret": "another"},
    ),
    "another scope": Flaw("set spec.source.kafka.security.oauth.scope to one .* ask for", of={"scope": "x"}),
    "expired certificate": Flaw("the token endpoint's certificate has expired: renew it", store="expired"),
    "certificate of another host": Flaw("certificate is not of this host: check .*Url", store="other"),
    "unknown authority": Flaw(
        "put the authority's certificate into key token-ca.crt of secret kafka-auth", {"token-ca.crt": ""}
    ),
    "damaged authority": Flaw("token-ca.crt has to be certificates in PEM", {"token-ca.crt": "none"}),
    "damaged authority of the brokers": Flaw("ca.crt and tls.crt have to be .* in PEM", {"ca.crt": "none"}),
    "away": Flaw("cannot be reached: check spec.source.kafka.security.oauth.tokenEndpointUrl", away=True),
    "silent": Flaw("Read timed out: the token endpoint cannot be reached", silent_seconds=2),
    "another path": Flaw("this is not a token endpoint: check .*oauth.tokenEndpointUrl", path="/realms"),
    "token of another": Flaw(
        "the brokers refuse the token: check that spec.source.kafka.security.oauth", audience="another"
    ),
}


@sources
@pytest.mark.parametrize("flaw", TOKENLESS.values(), ids=TOKENLESS)
def test_what_keeps_a_client_from_its_token(
    login: Login, broker: GuardedBroker, monkeypatch: pytest.MonkeyPatch, flaw: Flaw
) -> None:
    monkeypatch.setitem(kafka_login._PATIENCE, "retry.backoff.max", 300)
    tokens = broker.tokens
    monkeypatch.setitem(tokens.clients, CLIENT, CLIENT_SECRET)
    monkeypatch.setattr(tokens, "certificate", broker.certificates.folder / f"{flaw.store}.pem")
    monkeypatch.setattr(tokens, "audience", flaw.audience)
    monkeypatch.setattr(tokens, "silent_seconds", flaw.silent_seconds)
    monkeypatch.setitem(kafka_login._PATIENCE, "read.timeout", 1000)
    keys = {**login.with_tokens, **flaw.keys}
    feed = login.feed("oauth", oauth(tokens.url + flaw.path, **flaw.of), keys, topics=["any"])
    if flaw.away:
        tokens.stop()
    try:
        with pytest.raises(Exception, match=r".") as refused:
            login.read(feed)
    finally:
        if flaw.away:
            tokens.start()
        feed.close()
    lost = login.watch.lost or ""
    assert re.search(flaw.message, lost), lost
    assert lost.startswith((tokens.url, broker.addresses["oauth"]))
    assert "\n" not in lost
    for text in (lost, str(refused.value), cause_of(refused.value)):
        assert keys["clientSecret"].strip() not in text


@sources
def test_a_topic_that_may_not_be_seen_is_not_taken_for_deleted(login: Login, broker: GuardedBroker) -> None:
    topic = login.filled("hidden", "a", "b")
    broker.allow(USER, "READ", topic)
    login.read(login.scram(topics=[topic]))
    login.send(topic, "c")
    broker.withdraw(USER, "READ", topic)
    for of in ({"topics": [topic]}, {"topicPattern": topic.replace(".", r"\.")}):
        feed = login.scram(**of)
        with pytest.raises(TopicsForbidden, match=f"may not see topic {topic}, .* the right Read on it"):
            login.read(feed)
        with pytest.raises(TopicsForbidden):
            feed.lag()
        assert topic in (login.watch.lost or "")
        feed.close()
    broker.allow(USER, "DESCRIBE", topic)
    with pytest.raises(TopicsForbidden, match=f"may not read topic {topic}: give .* the right Read on it"):
        login.read(login.scram(topics=[topic]))
    broker.allow(USER, "READ", topic)
    login.read(login.scram(topics=[topic]))
    assert login.values == [b"a", b"b", b"c"]
    assert login.watch.lost is None
    broker.open.delete(topic)
    login.read(login.scram(topics=[topic]))  # all of it is read
    broker.open.create_named(topic)
    with pytest.raises(SourceLost, match="was deleted and made again"):
        login.read(login.scram(topics=[topic]))


@sources
def test_brokers_that_do_not_tell_rights(
    login: Login, broker: GuardedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic, jvm = login.filled("old", "a"), cast(Any, login.spark._jvm)
    broker.allow(USER, "READ", topic)
    describing, asked = KafkaAdmin._describing, []

    def old(self: Any, names: Collection[str]) -> dict[str, Any]:
        asked.append(self._tells_rights)
        if not self._tells_rights:
            return describing(self, names)
        refusal = jvm.org.apache.kafka.common.errors.UnsupportedVersionException("too old")
        return {name: jvm.java.util.concurrent.CompletableFuture.failedFuture(refusal) for name in names}

    monkeypatch.setattr(KafkaAdmin, "_describing", old)
    login.read(login.scram(topics=[topic]))
    assert (login.values, asked[:2], any(asked[1:])) == ([b"a"], [True, False], False)


@sources
@pytest.mark.parametrize("lax", [False, True], ids=["strict", "lax"])
def test_a_topic_that_is_hidden_while_others_are_read_is_read_on(
    login: Login, broker: GuardedBroker, monkeypatch: pytest.MonkeyPatch, lax: bool
) -> None:
    """Spark records a batch without it, and would never go on from there, or read it all again.

    ``lax``: beside a topic that was deleted, for which Spark is told to put up with losses.
    """
    seen, hidden, deleted = login.filled("side.a", "a"), login.filled("side.b", "b"), login.filled("side.c")
    of = {"topicPattern": f"({seen}|{hidden}|{deleted})".replace(".", r"\.")}
    for topic in (seen, hidden, deleted):
        broker.allow(USER, "READ", topic)
    login.read(login.scram(**of))
    if lax:
        broker.open.delete(deleted)
    check, feed = KafkaFeed._check_topics, login.scram(**of)

    def hide(self: KafkaFeed) -> bool:
        """Between the feed's look and Spark's."""
        found = check(self)
        monkeypatch.undo()
        broker.withdraw(USER, "READ", hidden)
        login.send(seen, "c")
        login.send(hidden, "d")
        return found

    monkeypatch.setattr(KafkaFeed, "_check_topics", hide)
    with pytest.raises(TopicsForbidden, match=f"may not see topic {hidden}"):
        login.read(feed)
    assert [batch.batch_id for batch in feed.pending()] == [1]
    broker.allow(USER, "READ", hidden)
    login.read(login.scram(**of))
    assert sorted(login.values) == [b"a", b"b", b"c", b"d"]


@sources
def test_a_topic_that_is_granted_late_is_read_from_what_there_is(login: Login, broker: GuardedBroker) -> None:
    """Spark takes it for a loss that a topic which was not there yesterday begins after 0."""
    first, late = login.filled("late.a", "a"), login.filled("late.b", "gone", "b")
    broker.open.expire(late, 1)
    pattern = f"({first}|{late})".replace(".", r"\.")
    broker.allow(USER, "READ", first)
    login.read(login.scram(topicPattern=pattern))
    broker.allow(USER, "READ", late)
    feed = login.scram(topicPattern=pattern)
    with beside(lambda stop: feed.run(login.apply, once=False, stopping=stop.is_set)):
        until(lambda: b"b" in login.values)
        login.send(first, "c")
        login.send(late, "d")
        until(lambda: len(login.values) == 4)
    login.read(login.scram(topicPattern=pattern))
    assert sorted(login.values) == [b"a", b"b", b"c", b"d"]


class Patient(Counter):
    """An applier that keeps the records of batches that were applied."""

    seen: list[tuple[int, int]]

    def apply(self, raw: DataFrame, batch: Batch) -> BatchResult:
        result = super().apply(raw, batch)
        Patient.seen += [(row.partition, row.offset) for row in raw.orderBy("offset").collect()]
        return result

    def forget(self) -> None:
        """Nothing is kept of a batch that failed."""


@dataclass
class Waiting:
    """A run that goes on, and what it has told."""

    reports: Reports

    def lost(self, because: str) -> None:
        """Wait until the source is lost for this."""
        until(lambda: because in (self.reports.sources[-1].error or "") if self.reports.sources else False)

    def applied(self, records: int) -> None:
        """Wait until so many are applied, and the source is reached."""
        until(lambda: len(Patient.seen) == records and not self.reports.sources[-1].error)


@contextmanager
def waiting(
    login: Login, folder: Path, source: dict[str, Any], keys: dict[str, str], message: str
) -> Iterator[Waiting]:
    """A run until the end of the block, after one that was to run once and ended with ``message``."""
    secret = folder / "kafka-auth"
    secret.mkdir()
    for key, value in keys.items():
        (secret / key).write_text(value)
    pipeline, secrets = make(folder, source={"kafka": source}), {"kafka-auth": secret}
    with pytest.raises(SourceUnreachable, match=message):
        run(pipeline, once=True, spark=login.spark, secrets=secrets, make_applier=Counter)
    reports = Reports()

    def work(stop: threading.Event) -> None:
        run(
            pipeline,
            spark=login.spark,
            stopping=stop.is_set,
            secrets=secrets,
            sinks=[reports],
            make_applier=Patient,
        )

    Patient.seen = []
    with beside(work):
        yield Waiting(reports)
    assert reports.all[-1].phase == "Stopped"


@sources
@pytest.mark.timeout(300)
def test_a_run_waits_while_it_is_refused_and_loses_nothing(
    login: Login, broker: GuardedBroker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A wrong password; one that is changed meanwhile; a right that is taken away: each ends by itself."""
    quickly(monkeypatch)
    monkeypatch.setattr(kafka_feed, "_CHECK_SECONDS", 1.0)
    topic = login.filled("waits", "a", "b")
    broker.allow(USER, "READ", topic)
    broker.set_password(USER, "another")
    given = {"bootstrapServers": broker.addresses["scram"], "topics": [topic], "security": SCRAM_512}
    keys = {"username": USER, "password": f"{PASSWORD}\n"}
    with waiting(login, tmp_path, given, keys, "check username and password in secret kafka-auth") as run:
        run.lost("refuse the login")
        broker.set_password(USER, PASSWORD)
        run.applied(2)
        broker.set_password(USER, "another")  # asked for again by the broker, see RELOGIN_MILLIS
        run.lost("refuse the login")
        login.send(topic, "c")
        broker.set_password(USER, PASSWORD)
        run.applied(3)
        broker.withdraw(USER, "READ", topic)
        run.lost(f"may not see topic {topic}")
        login.send(topic, "d")
        time.sleep(3)
        broker.allow(USER, "DESCRIBE", topic)
        run.lost(f"may not read topic {topic}")
        broker.allow(USER, "READ", topic)
        run.applied(4)
    assert Patient.seen == [(0, offset) for offset in range(4)]


@pytest.mark.thorough
@sources
@pytest.mark.timeout(300)
def test_a_run_waits_while_it_gets_no_token_and_loses_nothing(
    login: Login, broker: GuardedBroker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where its last token expires meanwhile."""
    quickly(monkeypatch)
    monkeypatch.setattr(kafka_feed, "_CHECK_SECONDS", 1.0)
    monkeypatch.setitem(kafka_login._PATIENCE, "retry.backoff.max", 300)
    tokens, stores = broker.tokens, broker.certificates.folder
    monkeypatch.setattr(tokens, "certificate", stores / "oauth.pem")
    monkeypatch.setattr(tokens, "lifetime_seconds", 6)
    monkeypatch.setitem(tokens.clients, CLIENT, "another")
    topic = login.filled("tokens", "a", "b")
    address = broker.addresses["oauth"]
    given = {"bootstrapServers": address, "topics": [topic], "security": oauth(tokens.url)}
    message = "check clientId and clientSecret in secret kafka-auth"
    with waiting(login, tmp_path, given, login.with_tokens, message) as run:
        run.lost(message)
        tokens.clients[CLIENT] = CLIENT_SECRET
        run.lost(f"may not see topic {topic}")
        broker.allow(CLIENT, "READ", topic)
        run.applied(2)
        tokens.stop()
        run.lost("cannot be reached: check spec.source.kafka.security.oauth.tokenEndpointUrl")
        login.send(topic, "c")
        tokens.certificate = stores / "expired.pem"
        tokens.start()
        run.lost("the token endpoint's certificate has expired: renew it")
        tokens.certificate = stores / "oauth.pem"
        run.applied(3)
    assert Patient.seen == [(0, offset) for offset in range(3)]


@sources
def test_when_a_clients_certificate_expires(spark: SparkSession, broker: GuardedBroker) -> None:
    """It is the first of its chain that counts; without one, or with a damaged one, nothing is known."""
    certificates = broker.certificates
    certificates.sign("valid", "DNS:valid")
    valid, expired = certificates.text("valid.crt"), certificates.text("expired.crt")
    for chain, year in ((valid + expired, 2020), (f"subject=CN = valid\n{expired}", 2020)):
        ends = KafkaAdmin(spark, {kafka_login.CERTIFICATE: chain}).certificate_ends()
        assert ends is not None
        assert ends.year == year
    for settings in ({}, {kafka_login.CERTIFICATE: "none"}, {kafka_login.CERTIFICATE: valid[:300]}):
        assert KafkaAdmin(spark, settings).certificate_ends() is None


@pytest.mark.thorough
@sources
@pytest.mark.timeout(300)
def test_a_run_waits_with_a_client_certificate_that_has_expired_and_loses_nothing(
    login: Login, broker: GuardedBroker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next start has the renewed one: a driver in a pod ends by itself when its Secret changes."""
    quickly(monkeypatch)
    certificates, topic = broker.certificates, login.filled("expires", "a", "b")
    broker.allow("CN=expires", "READ", topic)

    def signed(*when: str) -> dict[str, str]:
        certificates.sign("expires", "DNS:expires", *when)
        return {f"tls.{kind}": certificates.text(f"expires.{kind}") for kind in ("crt", "key")}

    keys = {"ca.crt": certificates.text("ca.crt"), **signed(*EXPIRED)}
    given = {"bootstrapServers": broker.addresses["mutual"], "topics": [topic], "security": MUTUAL}
    message = "tls.crt in secret kafka-auth expired at 2020-01-02T00:00:00Z: renew tls.crt and tls.key"
    with waiting(login, tmp_path, given, keys, message) as run_on:
        run_on.lost(message)
    secret = tmp_path / "kafka-auth"
    for key, value in signed().items():
        (secret / key).write_text(value)
    pipeline, secrets = make(tmp_path, source={"kafka": given}), {"kafka-auth": secret}
    Patient.seen = []
    run(pipeline, once=True, spark=login.spark, secrets=secrets, make_applier=Patient)
    assert Patient.seen == [(0, 0), (0, 1)]


@sources
def test_the_password_and_the_key_are_told_to_nobody(login: Login, broker: GuardedBroker) -> None:
    """Neither in what Spark and Kafka log for developers, nor in plans."""
    marker, topic = "Secr3t-Marker", login.filled("told", "a")
    broker.set_password("shy", f'{marker}"{marker}')
    broker.allow("shy", "READ", topic)
    certificates = broker.certificates
    certificates.sign("shy", "DNS:shy")
    keys = {"username": "shy", "password": f'{marker}"{marker}', "ca.crt": certificates.text("ca.crt")}
    keys |= {f"tls.{kind}": certificates.text(f"shy.{kind}") for kind in ("crt", "key")}
    text = all_that_is_told(login, login.feed("tls", TLS, keys, topics=[topic]))
    assert "sasl.jaas.config" in text
    assert marker not in text
    assert keys["tls.key"].splitlines()[1] not in text


@sources
def test_neither_a_clients_secret_nor_its_token_is_told(
    login: Login, broker: GuardedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    marker, topic = "Secr3t-Marker", login.filled("told", "a")
    tokens, given = broker.tokens, list[str]()
    monkeypatch.setitem(tokens.clients, "shy", f'{marker}"{marker}')
    broker.allow("shy", "READ", topic)
    make_token = tokens.token
    monkeypatch.setattr(tokens, "token", lambda name: given.append(make_token(name)) or given[-1])
    keys = {**login.with_tokens, "clientId": "shy", "clientSecret": f'{marker}"{marker}'}
    text = all_that_is_told(login, login.feed("oauth", oauth(tokens.url), keys, topics=[topic]))
    assert "sasl.jaas.config" in text
    assert given
    assert not [secret for secret in (marker, *given) if secret in text]


def all_that_is_told(login: Login, feed: KafkaFeed) -> str:
    """Plans, and what is logged, while a feed reads one record."""
    plans: list[str] = []

    def apply(frame: DataFrame, batch: Batch) -> None:
        login.apply(frame, batch)
        plans.append(str(frame._jdf.queryExecution().toString()))
        plans.append(str(feed._read(False)._jdf.queryExecution().toString()))

    with logged(login.spark) as written:
        feed.run(apply, once=True, stopping=lambda: False)
    feed.close()
    assert login.values == [b"a"]
    assert plans[0]
    return "\n".join([*plans, written()])


@contextmanager
def logged(spark: SparkSession) -> Iterator[Callable[[], str]]:
    """What the JVM's loggers of Kafka and of Spark's Kafka source write meanwhile, from DEBUG on."""
    jvm: Any = spark._jvm
    log4j = jvm.org.apache.logging.log4j
    written = jvm.java.io.StringWriter()
    appender = log4j.core.appender.WriterAppender.createAppender(None, None, written, "login", False, True)
    appender.start()
    root = log4j.LogManager.getContext(False).getConfiguration().getRootLogger()
    names = ["org.apache.kafka", "org.apache.spark.kafka010", "org.apache.spark.sql"]
    before = {name: log4j.LogManager.getLogger(name).getLevel() for name in names}
    root.addAppender(appender, log4j.Level.DEBUG, None)
    for name in names:
        log4j.core.config.Configurator.setLevel(name, log4j.Level.DEBUG)
    try:
        yield lambda: str(written.toString())
    finally:
        root.removeAppender("login")
        for name, level in before.items():
            log4j.core.config.Configurator.setLevel(name, level)
