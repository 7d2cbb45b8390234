"""The examples that need a broker or a database run as they are, and end in the rows that are meant."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from lakemirror.cli.common import read_pipeline
from lakemirror.driver.runtime.runner import run
from lakemirror.driver.runtime.summary import RunSummary
from tests.conformance.test_examples import truth
from tests.support.databases import PASSWORD, start_postgres
from tests.support.kafka_broker import Broker
from tests.support.kafka_login import GuardedBroker, start_guarded_broker
from tests.support.mirroring import at
from tests.support.records import Column, Message, PostgresPosition, Table

pytestmark = [pytest.mark.sources, pytest.mark.thorough, pytest.mark.timeout(300)]

ROOT = Path(__file__).parents[2]
ID, TEXT = Column("id", "int32"), Column("text", "string", optional=True)
CUSTOMERS = Table(
    "shop", "public", "customers", (ID, TEXT, Column("ssn", "string")), ("id",), "shop", True, True
)
ORDERS = Table("shop", "public", "orders", (ID, TEXT), ("id",), "shop", True, True)


def position(lsn: int) -> PostgresPosition:
    return PostgresPosition(lsn, lsn - 1, lsn, 1_790_000_000_000_000 + lsn)


def messages() -> list[tuple[Table, Message]]:
    """What happens in the shop."""
    ada, ben = ({"id": number, "text": name, "ssn": "123"} for number, name in ((1, "Ada"), (2, "Ben")))
    lamp, rope = ({"id": number, "text": name} for number, name in ((7, "Lamp"), (8, "Rope")))
    return [
        (CUSTOMERS, CUSTOMERS.create(position(10), ada)),
        (CUSTOMERS, CUSTOMERS.create(position(20), ben)),
        (ORDERS, ORDERS.create(position(30), lamp)),
        (ORDERS, ORDERS.create(position(40), rope)),
        (CUSTOMERS, CUSTOMERS.update(position(50), {**ada, "text": "Ida"}, ada)),
        *((ORDERS, message) for message in ORDERS.delete(position(60), lamp)),
    ]


def send(broker: Broker) -> None:
    for table, message in messages():
        broker.send(table.topic, message.value, key=message.key)
    broker.flush()


@pytest.fixture
def topics(request: pytest.FixtureRequest) -> Iterator[None]:
    """The topics of the shop, on the broker that the session shares."""
    broker: Broker = request.getfixturevalue("kafka")
    for table in (CUSTOMERS, ORDERS):
        broker.create_named(table.topic)
    try:
        yield
    finally:
        for table in (CUSTOMERS, ORDERS):
            broker.delete(table.topic)


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GuardedBroker]:
    with start_guarded_broker(tmp_path_factory.mktemp("guarded")) as running:
        yield running


def run_example(
    name: str, spark: SparkSession, settings: Sequence[str], secrets: dict[str, Path] | None = None
) -> RunSummary:
    """Run an example once, from the working directory, with settings that the manifest's own lines name."""
    manifest = ROOT / "examples" / name / "pipeline.yaml"
    pipeline = read_pipeline(str(manifest), settings)
    summary = run(pipeline, once=True, spark=spark, secrets=secrets or {})
    assert [table.error for table in summary.tables.values() if table.error] == []
    assert summary.counts.quarantined == 0
    return summary


def secret(folder: Path, **keys: str) -> Path:
    folder.mkdir()
    for key, value in keys.items():
        (folder / key.replace("_", ".")).write_text(value)
    return folder


@pytest.mark.usefixtures("topics")
def test_topics_of_a_broker(spark: SparkSession, kafka: Broker, tmp_path: Path) -> None:
    send(kafka)
    named = {
        "source.kafka.bootstrapServers": kafka.bootstrap,
        "target.path": f"{tmp_path}/shop/{{schema}}/{{table}}",
        "checkpoint": f"{tmp_path}/shop/_checkpoint",
    }
    comment = (ROOT / "examples/kafka/pipeline.yaml").read_text("utf-8")
    assert all(f"--set {name}=" in comment for name in named)
    run_example("kafka", spark, [f"{name}={value}" for name, value in named.items()])
    customers = at(spark, f"{tmp_path}/shop/public/customers")
    assert "ssn" not in customers.columns
    assert sorted((row["id"], row["text"]) for row in customers.collect()) == [(1, "Ida"), (2, "Ben")]
    orders = at(spark, f"{tmp_path}/shop/public/orders").collect()
    assert sorted((row["id"], row["deleted_at"] is not None) for row in orders) == [(7, True), (8, False)]


@pytest.mark.thorough
def test_brokers_that_ask_for_a_login(
    spark: SparkSession, guarded: GuardedBroker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The user has the one right that the manifest's first lines ask for."""
    for table in (CUSTOMERS, ORDERS):
        guarded.open.create_named(table.topic)
    send(guarded.open)
    guarded.set_password("lakemirror", "s3cret")
    guarded.allow("lakemirror", "READ", "shop.public.", prefix=True)
    authority = guarded.certificates.text("ca.crt")
    login = secret(tmp_path / "auth", username="lakemirror", password="s3cret", ca_crt=authority)
    guarded.tokens.clients["lakemirror"] = "s3cret"
    client = secret(tmp_path / "client", clientId="lakemirror", clientSecret="s3cret", ca_crt=authority)
    (client / "token-ca.crt").write_text(authority)
    endpoint = f"source.kafka.security.oauth.tokenEndpointUrl={guarded.tokens.url}"
    for example, listener, keys, more in (
        ("kafka-login", "tls", login, []),
        ("kafka-oauth", "oauth", client, [endpoint]),
    ):
        folder = tmp_path / example
        folder.mkdir()
        monkeypatch.chdir(folder)
        address = f"source.kafka.bootstrapServers={guarded.addresses[listener]}"
        run_example(example, spark, [address, *more], {"kafka-auth": keys})
        customers = at(spark, f"{folder}/lake/public/customers").collect()
        assert sorted((row["id"], row["text"]) for row in customers) == [(1, "Ida"), (2, "Ben")]
        assert [row["id"] for row in at(spark, f"{folder}/lake/public/orders").collect()] == [8]


def test_mirrors_in_a_database(spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    monkeypatch.chdir(tmp_path)
    with start_postgres(tmp_path) as server:
        server.sql("CREATE DATABASE analytics", "postgres")
        writer = secret(tmp_path / "writer", username=server.user, password=PASSWORD)
        address = f"target.jdbc.url={server.url}analytics"
        run_example("jdbc", spark, [address], {"mirror-writer": writer})
        for table, key in (("customers", "id"), ("orders", "order_number"), ("products", "id")):
            found = server.sql(f"SELECT {key} FROM mirror.{table} ORDER BY {key}", "analytics").split()
            numbers = [line for line in found if line.isdigit()]
            assert numbers == [str(n) for n in sorted(int(str(row[key])) for row in truth(table))]
